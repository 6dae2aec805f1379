"""Terms of derivations as text: tables of data and of operators, each named by its place.

Tensors are recorded by their types alone; what is written can be replayed and checked, since neither needs
numbers.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

from tessera.algebra.kind import KINDS
from tessera.algebra.laws.datum import FUNCTIONS, Datum, closure, leaf, make, number, symbol
from tessera.algebra.operator import Operator
from tessera.algebra.table import IndexTable
from tessera.core.dims import Dim
from tessera.core.dtype import DType, as_dtype
from tessera.core.errors import OperandError
from tessera.core.parse_sizes import parse_dim

FORMAT = "tessera derivation 1"
Json = Any


# Fields -----------------------------------------------------------------------------------------


def _written(x: Any, a: Operator | None = None) -> Json:
    """A static field or a number as JSON."""
    if x is None or isinstance(x, bool | int | str):
        return x
    for kind, (name, write, _) in _FIELDS.items():
        if isinstance(x, kind):
            return {name: write(x)}
    raise OperandError(
        f"derivation: {a} holds {type(x).__name__}, which has no text; only its steps can be "
        "printed"
    )


_FIELDS: dict[type, tuple[str, Any, Any]] = {
    float: ("float", repr, float),
    complex: ("complex", lambda x: [repr(x.real), repr(x.imag)], lambda x: complex(*map(float, x))),
    Fraction: ("fraction", str, Fraction),
    IndexTable: ("table", lambda x: x.array.tolist(), IndexTable),
    tuple: ("tuple", lambda xs: [_written(x) for x in xs], lambda xs: tuple(_read(x) for x in xs)),
    DType: ("dtype", str, as_dtype),
    Dim: ("size", str, parse_dim),
}


def _read(x: Json) -> Any:
    if not isinstance(x, dict):
        return x
    ((name, inner),) = x.items()
    for known, _, read in _FIELDS.values():
        if known == name:
            return read(inner)
    raise OperandError(f"derivation: the text has a field {name!r} that is not known")


# Terms ------------------------------------------------------------------------------------------


class TermWriter:
    """The tables of what is written."""

    def __init__(self, terms: Sequence[Operator], flags: dict[int, frozenset[str]]):
        self._flags = flags
        self._terms: dict[int, int] = {}
        self._kept: list[Operator] = []
        for a in terms:
            self._enter(a)
        data = closure(leaf(d) for a in self._kept for d in a.data)
        # Numbers are shared by all; the rest is made in this order again, on which its form depends.
        rest = sorted((d for d in data if d.fn != "number"), key=lambda d: d.serial)
        self._data = {d: i for i, d in enumerate([*(d for d in data if d.fn == "number"), *rest])}

    def _enter(self, a: Operator) -> None:
        if id(a) not in self._terms:
            for p in a.parts:
                self._enter(p)
            self._terms[id(a)] = len(self._kept)
            self._kept.append(a)

    def at(self, a: Operator) -> int:
        """The place of a term."""
        return self._terms[id(a)]

    def tables(self) -> dict[str, Json]:
        """Data and terms."""
        return {
            "data": [self._datum(d) for d in self._data],
            "terms": [self._term(a) for a in self._kept],
        }

    def _datum(self, d: Datum) -> Json:
        if d.fn == "leaf":
            return ["leaf", [_written(n) for n in d.shape], str(d.dtype)]
        return [d.fn, [self._data[x] for x in d.args], [_written(x) for x in d.static]]

    def _term(self, a: Operator) -> Json:
        return [
            a.kind, [self.at(p) for p in a.parts], [self._data[leaf(d)] for d in a.data],
            [_written(x, a) for x in a.static], sorted(self._flags.get(id(a), ())),
        ]  # fmt: skip


class TermReader:
    """The terms that a text holds, and what is known of them by identity."""

    def __init__(self, tables: dict[str, Json]):
        self._data: list[Datum] = []
        self.terms: list[Operator] = []
        self.flags: dict[int, frozenset[str]] = {}
        for i, entry in enumerate(tables["data"]):
            self._data.append(self._datum(i, *entry))
        for kind, parts, data, static, flags in tables["terms"]:
            if kind not in KINDS:
                raise OperandError(
                    f"derivation: the text has an operator of kind {kind!r}, which is not known"
                )
            held: Any = tuple(self._data[i] for i in data)
            fields = tuple(_read(x) for x in static)
            a = Operator(kind, tuple(self.terms[i] for i in parts), held, fields)
            self.terms.append(a)
            self.flags[id(a)] = frozenset(flags)

    def _datum(self, i: int, fn: str, *rest: Json) -> Datum:
        if fn == "leaf":
            shape, dtype = rest
            return symbol(f"x{i}", tuple(_read(n) for n in shape), as_dtype(dtype))
        args, static = rest
        if fn == "number":
            return number(_read(static[0]))
        if fn not in FUNCTIONS:
            raise OperandError(f"derivation: the text has a function {fn!r}, which is not known")
        return make(fn, *(self._data[k] for k in args), static=tuple(_read(x) for x in static))


def dumped(whole: dict[str, Json]) -> str:
    """Text, one entry a line."""
    lines = [f'"format": {json.dumps(FORMAT)}']
    for name, x in whole.items():
        if isinstance(x, list):
            inner = ",\n  ".join(json.dumps(entry) for entry in x)
            lines.append(f'"{name}": [\n  {inner}\n]' if x else f'"{name}": []')
        else:
            lines.append(f'"{name}": {json.dumps(x)}')
    return "{\n" + ",\n".join(lines) + "\n}\n"


def parsed(text: str) -> dict[str, Json]:
    """What a text says, if it is one of these."""
    try:
        whole = json.loads(text)
    except json.JSONDecodeError as e:
        raise OperandError(f"derivation: the text is no JSON: {e}") from None
    found = whole.get("format") if isinstance(whole, dict) else None
    if found != FORMAT:
        raise OperandError(f"derivation: the text has the format {found!r}, expected {FORMAT!r}")
    return whole  # type: ignore[no-any-return]
