"""The manifest of a bundle: what it says of entry points, checked before anything of it is used."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from tessera.core.dtype import as_dtype
from tessera.core.errors import FileError, TesseraError
from tessera.core.flags import NUMERICS
from tessera.core.parse_sizes import parse_dim
from tessera.core.types import TensorType
from tessera.deploy.container import VERSION, Container

# What reading of wrong bytes raises in Python.
BROKEN = (ValueError, LookupError, TypeError, AttributeError, RecursionError, OverflowError)


def read_manifest(c: Container) -> Mapping[str, Any]:
    """The manifest of an open bundle."""
    try:
        found = json.loads(c.read("manifest"))
        fits = found["format"] == VERSION and _are_texts(found["targets"])
        fits &= all(_is_tensor(n, t) for n, t in found["tensors"].items())
        fits &= all(_is_entry(n, e, found["tensors"]) for n, e in found["entries"].items())
    except TesseraError as e:
        raise FileError(
            f"bundle: {c.path} has a manifest that cannot be read: {e.message}"
        ) from None
    except BROKEN as e:
        raise FileError(
            f"bundle: {c.path} has a manifest that cannot be read ({e!r:.80})"
        ) from None
    if not fits:
        raise FileError(f"bundle: {c.path} has a manifest of another form; it is damaged")
    made: Mapping[str, Any] = found
    return made


def described(x: Mapping[str, Any]) -> tuple[str, TensorType]:
    """The name and the type of a value."""
    shape = tuple(n if isinstance(n, int) else parse_dim(n) for n in x["shape"])
    return x["name"], TensorType(as_dtype(x["dtype"]), shape)


def _are_texts(x: Any) -> bool:
    return isinstance(x, list) and all(isinstance(t, str) for t in x)


def _are_sizes(x: Any) -> bool:
    return isinstance(x, list) and all(type(n) is int and 0 <= n < 1 << 63 for n in x)


def _is_tensor(name: Any, t: Any) -> bool:
    return isinstance(name, str) and _are_sizes(t["shape"]) and as_dtype(t["dtype"]) is not None


def _is_entry(name: str, e: Any, tensors: Mapping[str, Any]) -> bool:
    for v in (*e["inputs"], *e["outputs"]):
        described(v)
    held = e["weights"]
    return (
        name.isidentifier()
        and e["numerics"] in NUMERICS
        and _are_texts(held)
        and _are_texts(e.get("imports", []))
        and _are_texts(list(e.get("fixed", {}).values()))
        and all(n in tensors for n in held)
        and all(isinstance(v["name"], str) for v in (*e["inputs"], *e["outputs"]))
        and all(isinstance(t, str) and _are_texts(s) for t, s in e["hosted"].items())
        and _leaves(e["returns"]) == len(e["outputs"])
    )


def _leaves(node: Any) -> int:
    """The tensors of a result."""
    if node is None:
        return 0
    if node == 0:
        return 1
    if node.keys() == {"dict", "order"}:
        keys = [k for k, _ in node["dict"]]
        if len(set(keys)) < len(keys) or sorted(keys) != sorted(node["order"]):
            _fail(node["order"])
        node = {"dict": node["dict"]}
    ((word, inner),) = node.items()
    if word == "dict":
        return sum(_leaves(n) for k, n in inner if isinstance(k, str) or _fail(k))
    if word not in ("list", "tuple"):
        _fail(word)
    return sum(map(_leaves, inner))


def _fail(x: Any) -> bool:
    raise ValueError(f"a result of {x!r:.40}")
