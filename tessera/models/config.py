"""Reading of `config.json`: each value with its type and range, so that a wrong one has a clear error."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tessera.core.errors import ModelError

MOST = 3e38  # the largest number of f32, nearly
LARGEST = 1 << 24  # of any size in a config: vocabularies have 2**18, contexts 2**20


class Config:
    """The values of a config.json, by name."""

    def __init__(self, values: Mapping[str, Any], path: str = "config.json"):
        self.values, self.path = values, path

    def _wrong(self, name: str, wanted: str) -> ModelError:
        return ModelError(f"{self.path}: {name} is {self.values.get(name)!r}, expected {wanted}")

    def size(self, name: str, missing: int | None = None, least: int = 1) -> int:
        """A whole number that sizes are made of."""
        v = self.values.get(name)
        v = missing if v is None else v
        if type(v) is not int or not least <= v <= LARGEST:
            raise self._wrong(name, f"an integer from {least} to {LARGEST}")
        return v

    def maybe_size(self, name: str) -> int | None:
        """A size, or None where there is none."""
        return None if self.values.get(name) is None else self.size(name)

    def number(self, name: str, missing: float | None = None) -> float:
        """A finite number."""
        v = self.values.get(name)
        v = missing if v is None else v
        if not _number(v):
            raise self._wrong(name, "a number")
        return float(v)  # type: ignore[arg-type]

    def positive(self, name: str, missing: float | None = None) -> float:
        """A number above 0."""
        v = self.number(name, missing)
        if not v > 0:
            raise self._wrong(name, "a number above 0")
        return v

    def maybe_positive(self, name: str) -> float | None:
        """A number above 0, or None where there is none."""
        return None if self.values.get(name) is None else self.positive(name)

    def flag(self, name: str, missing: bool = False) -> bool:
        """True or false."""
        v = self.values.get(name)
        v = missing if v is None else v
        if not isinstance(v, bool):
            raise self._wrong(name, "true or false")
        return v

    def choice(
        self, name: str, among: Sequence[str] | Mapping[str, Any], missing: str | None = None
    ) -> str:
        """One of some names."""
        v = self.values.get(name)
        v = missing if v is None else v
        if not isinstance(v, str) or v not in among:
            raise self._wrong(name, f"one of {', '.join(among)}")
        return v

    def layer_types(self, layers: int) -> list[str] | None:
        """The kind of attention of each layer, where it is stated."""
        v = self.values.get("layer_types")
        if v is None:
            return None
        known = ("full_attention", "sliding_attention")
        if not isinstance(v, list) or len(v) != layers or not all(x in known for x in v):
            raise self._wrong("layer_types", f"{layers} of {' or '.join(known)}")
        return v

    def rope(self, name: str = "rope_parameters") -> dict[str, Any]:
        """The parameters of rotary positions, in the old or the new form of the file."""
        new = self.values.get(name)
        old = self.values.get("rope_scaling") if name == "rope_parameters" else None
        found = {k: v for k, v in {**_object(old), **_object(new)}.items() if v is not None}
        part = found.get("partial_rotary_factor", self.values.get("partial_rotary_factor"))
        if part not in (None, 1):
            raise ModelError(
                f"{self.path}: partial_rotary_factor is {part!r}, expected 1: heads turn as a whole"
            )
        if "rope_theta" not in found:
            found["rope_theta"] = self.positive("rope_theta", 10000.0)
        found.setdefault("max_position_embeddings", self.values.get("max_position_embeddings"))
        return {k: self._rope_value(k, v) for k, v in found.items()}

    def _rope_value(self, key: str, v: Any) -> Any:
        number = _number(v)
        wanted = {
            "rope_type": isinstance(v, str),
            "type": isinstance(v, str),
            "truncate": isinstance(v, bool),
        }
        positive = key in ("rope_theta", "factor", "original_max_position_embeddings")
        if wanted.get(
            key, isinstance(v, dict | list) or v is None or (number and (v > 0 or not positive))
        ):
            return v
        raise ModelError(f"{self.path}: {key} of the rotary positions is {v!r}")


def _number(x: Any) -> bool:
    """Whether this is a number that an f32 can hold."""
    return isinstance(x, int | float) and not isinstance(x, bool) and abs(x) <= MOST


def _object(x: Any) -> dict[str, Any]:
    return x if isinstance(x, dict) else {}
