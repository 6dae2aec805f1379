"""How symbolic operators are written: as formulas with letters, which are explained below."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tessera.algebra.laws.datum import leaf
from tessera.algebra.operator import Operator


class Letters:
    """Names for tensors and for operators without parts."""

    def __init__(self) -> None:
        self.names: dict[Any, tuple[str, str]] = {}

    def of(self, key: Any, first: str, text: str) -> str:
        """The name of a thing; the same thing has the same name."""
        if key not in self.names:
            used = sum(name[0] == first for name, _ in self.names.values())
            self.names[key] = (f"{first}{used or ''}", text)
        return self.names[key][0]

    def lines(self) -> Iterator[str]:
        """What each name means."""
        for name, text in self.names.values():
            yield f"{name} is {text}"


_TIGHT = {"plus": 0, "scale": 1, "compose": 2}


def shown(a: Operator, letters: Letters, above: int = 0) -> str:
    """The operator as a formula."""
    text, level = _shown(a, letters)
    return f"({text})" if level < above else text


def _shown(a: Operator, letters: Letters) -> tuple[str, int]:
    if a.kind == "plus":
        return " + ".join(shown(p, letters, 1) for p in a.parts), 0
    if a.kind == "scale":
        factor = str(a.static[0]) if a.static else data(a.data[0], letters)
        return f"{factor} * {shown(a.parts[0], letters, 2)}", 1
    if a.kind == "compose":
        left, right = a.parts
        return f"{shown(left, letters, 2)} @ {shown(right, letters, 3)}", 2
    if a.kind in ("adjoint", "transpose"):
        return f"{shown(a.parts[0], letters, 4)}.{'H' if a.kind == 'adjoint' else 'T'}", 4
    if a.kind in ("eye", "zero"):
        return f"{a.kind}({', '.join(map(str, a.static[:-1]))})", 4
    inner = [*(shown(p, letters) for p in a.parts), *(data(d, letters) for d in a.data)]
    return f"{a.kind}({', '.join([*inner, *map(str, a.static)])})", 4


_FIRST = {0: "s", 1: "d", 2: "a"}


def data(d: Any, letters: Letters) -> str:
    """Symbolic data as a formula."""
    d = leaf(d)
    if d.fn == "number":
        return str(d.static[0])
    if d.fn == "leaf":
        sizes = ",".join(map(str, d.shape))
        return letters.of(d, _FIRST.get(len(d.shape), "x"), f"{d.dtype}[{sizes}]")
    inner = [data(x, letters) for x in d.args]
    if d.fn in ("add", "mul", "matmul"):
        return f"({f' {_SIGNS[d.fn]} '.join(inner)})"
    if d.fn == "transpose":
        return f"{inner[0]}.T"
    return f"{d.fn}({', '.join([*inner, *map(str, d.static)])})"


_SIGNS = {"add": "+", "mul": "*", "matmul": "@"}
