"""Reading a JSON body: every field has a kind and a range, and a field that is not known is refused."""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import Any

from tessera.serve.engine import Refused

DEEPEST = 200  # lists and objects in each other, which later steps go through by recursion
MOST = 2**31  # of a number that has no other bound


def parsed(raw: bytes) -> dict[str, Any]:
    """The object that a body holds."""
    try:
        body = json.loads(raw, parse_constant=_no_constant)
    except (ValueError, RecursionError) as e:
        raise Refused(400, f"the body is not JSON ({e})") from None
    if not isinstance(body, dict):
        raise Refused(400, f"the body is {_kind(body)}, expected an object")
    if _levels(body) > DEEPEST:
        raise Refused(400, f"the body has more than {DEEPEST} levels of lists and objects")
    return body


def _levels(x: Any) -> int:
    """How deep lists and objects are in each other, counted without recursion."""
    count, here = 0, [x]
    while here:
        count += 1
        inner = [
            y.values() if isinstance(y, dict) else y for y in here if isinstance(y, dict | list)
        ]
        here = [z for y in inner for z in y]
    return count


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _kind(x: Any) -> str:
    kinds = {dict: "an object", list: "a list", str: "a text", bool: "a bool", type(None): "null"}
    return kinds.get(type(x), "a number")


class Fields:
    """The fields of an object; null is as good as absent."""

    def __init__(self, body: dict[str, Any], known: Collection[str]):
        self._body = {k: v for k, v in body.items() if v is not None}
        unknown = sorted(self._body.keys() - set(known))
        if unknown:
            raise Refused(400, f"{unknown[0]!r:.80} is not a field of this request")

    def __contains__(self, name: str) -> bool:
        return name in self._body

    def raw(self, name: str) -> Any:
        """A field as it is, or None."""
        return self._body.get(name)

    def wrong(self, name: str, wanted: str) -> Refused:
        """The error for a field."""
        got = self._body.get(name)
        shown = f"{got!r:.60}" if isinstance(got, str | int | float | bool) else _kind(got)
        return Refused(400, f"{name} is {shown}, expected {wanted}")

    def number(self, name: str, default: float, low: float, high: float) -> float:
        """A number of a range."""
        v = self._body.get(name, default)
        if isinstance(v, bool) or not isinstance(v, int | float) or not low <= v <= high:
            raise self.wrong(name, f"a number from {low:g} to {high:g}")
        return float(v)

    def integer(self, name: str, default: Any, low: int, high: int) -> Any:
        """An integer of a range, or the default, which may be None."""
        v = self._body.get(name, default)
        if name in self._body and (type(v) is not int or not low <= v <= high):
            raise self.wrong(name, f"an integer from {low} to {high}")
        return v

    def flag(self, name: str) -> bool:
        """A bool, false unless given."""
        v = self._body.get(name, False)
        if not isinstance(v, bool):
            raise self.wrong(name, "a bool")
        return v

    def text(self, name: str, default: str) -> str:
        """A text."""
        v = self._body.get(name, default)
        if not isinstance(v, str):
            raise self.wrong(name, "a text")
        return v

    def choice(self, name: str, options: Collection[str], default: str) -> str:
        """One of some texts."""
        v = self._body.get(name, default)
        if not isinstance(v, str) or v not in options:
            raise self.wrong(name, f"one of {', '.join(options)}")
        return v

    def object(self, name: str) -> dict[str, Any]:
        """An object, empty unless given."""
        v = self._body.get(name, {})
        if not isinstance(v, dict):
            raise self.wrong(name, "an object")
        return v

    def texts(self, name: str, most: int) -> list[str]:
        """A text or a list of some, none empty."""
        v = self._body.get(name, [])
        out = [v] if isinstance(v, str) else v
        good = isinstance(out, list) and len(out) <= most
        if not good or not all(isinstance(t, str) and t for t in out):
            raise self.wrong(name, f"a text or up to {most} texts, none empty")
        return list(out)
