"""Axis signatures: one string gives an op's shape, batching and sharding rule.

"m k, k n -> m n"            matmul; k is on the left only, so it is reduced
"..., ... -> ..."            elementwise; '...' stands for the same axes everywhere
"... n! -> ... n!"           softmax; n! must be whole on every device
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from tessera.core.constraints import same, unify
from tessera.core.dims import Size
from tessera.core.errors import ShapeError
from tessera.core.types import TensorType

Axes = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Signature:
    """Named axes of the operands and of the result."""

    ins: tuple[Axes, ...]
    out: Axes
    whole: frozenset[str] = frozenset()

    @staticmethod
    def parse(text: str, operands: int = 0) -> Signature:
        """The signature of a text; nothing before the arrow is one operand without axes, if there is one."""
        sig = _parse(text)
        return Signature(((),), sig.out, sig.whole) if operands == 1 and not sig.ins else sig

    def __str__(self) -> str:
        def show(axes: Axes) -> str:
            return " ".join(f"{a}!" if a in self.whole else a for a in axes)

        return f"{', '.join(map(show, self.ins))} -> {show(self.out)}"

    @property
    def reduced(self) -> Axes:
        """Axes of operands that the result does not have."""
        seen = dict.fromkeys(a for axes in self.ins for a in axes)
        return tuple(a for a in seen if a not in self.out)

    def spell(self, op: str, ins: Sequence[TensorType]) -> Signature:
        """This signature with '...' written out for operands of these ranks."""
        ranks = {t.rank - len(a) + 1 for a, t in zip(self.ins, ins, strict=True) if "..." in a}
        if len(ranks) > 1 or any(r < 0 for r in ranks):
            raise ShapeError(
                f"{op}: operands {', '.join(map(str, ins))} do not fit the axes '{self}'"
            )
        dots = tuple(f"d{i}" for i in range(max(ranks, default=0)))

        def spell(axes: Axes) -> Axes:
            return tuple(b for a in axes for b in (dots if a == "..." else (a,)))

        return Signature(tuple(map(spell, self.ins)), spell(self.out), self.whole)

    def bind(self, op: str, ins: Sequence[TensorType]) -> tuple[Signature, dict[str, Size]]:
        """Spell out '...' and give every axis its size; name the axis when operands disagree."""
        sig = self.spell(op, ins)
        sizes: dict[str, tuple[Size, int]] = {}
        for i, (axes, t) in enumerate(zip(sig.ins, ins, strict=True)):
            if len(axes) != t.rank:
                raise ShapeError(
                    f"{op}: operand {i} is {t}, expected {len(axes)} axes ({' '.join(axes)})"
                )
            for a, n in zip(axes, t.shape, strict=True):
                m, j = sizes.setdefault(a, (n, i))
                if m is n or m == n:
                    continue
                if not unify(m, n, f"{op}: axis '{a}' of operands {j} and {i}"):
                    raise ShapeError(
                        f"{op}: axis '{a}' is {m} in operand {j} {ins[j]} "
                        f"but {n} in operand {i} {t}"
                    )
                if isinstance(n, int):
                    sizes[a] = (n, i)
        return sig, {a: n for a, (n, _) in sizes.items()}


@cache
def _parse(text: str) -> Signature:
    left, right = text.split("->")
    parts = [p.split() for p in (*left.split(","), right)]
    whole = frozenset(a[:-1] for p in parts for a in p if a.endswith("!"))
    *ins, out = (tuple(a.rstrip("!") for a in p) for p in parts)
    return Signature(() if not left.strip() else tuple(ins), out, whole)


def broadcast_shapes(op: str, types: Sequence[TensorType]) -> tuple[Size, ...]:
    """The shape that operands meet in under NumPy's broadcasting rule."""
    rank = max(t.rank for t in types)
    out: list[Size] = []
    for axis in range(-rank, 0):
        met: Size = 1
        for i, t in enumerate(types):
            if t.rank < -axis:
                continue
            n = t.shape[axis]
            if met == 1 or met == n:
                met = n if met == 1 else met
            elif n != 1:
                if not unify(met, n, f"{op}: axis {axis} of operand {i}"):
                    raise ShapeError(
                        f"{op}: operands {', '.join(map(str, types))} do not broadcast: axis "
                        f"{axis} is {met} and {n}; sizes must be equal or 1"
                    )
                met = n if isinstance(n, int) else met
        out.append(met)
    return tuple(out)


def sizes_equal(a: Sequence[Size], b: Sequence[Size]) -> bool:
    """Whether two shapes are known to be the same."""
    return len(a) == len(b) and all(same(x, y) is True for x, y in zip(a, b, strict=True))
