"""Factors: the named parts of the axes of an op's operands and results, along which a mesh can cut it.

A matmul has the factors m, k and n; a reshape of [6, 4] to [24] has two, which its result's axis holds
together. A factor that results do not have is folded; one that is whole cannot be cut.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Axis = tuple[str, ...]  # the factors of one axis, major first
Shape = Sequence[Any]  # of ints: a program is partitioned at the sizes of a call


@dataclass(frozen=True, slots=True)
class Factors:
    """The factors of every axis of the operands and results of one application of an op."""

    ins: tuple[tuple[Axis, ...], ...]
    outs: tuple[tuple[Axis, ...], ...]
    sizes: Mapping[str, Any]
    whole: frozenset[str] = frozenset()
    # Operands that are added to what is folded, such as the target of scatter_add.
    added: frozenset[int] = frozenset()
    # Operands that count along an axis of theirs, by that axis: shards count from zero.
    counted: Mapping[int, int] = field(default_factory=dict)
    # Factors along which an operand says where to read or write, by that operand: shards see its places
    # moved.
    places: Mapping[str, int] = field(default_factory=dict)

    @property
    def folded(self) -> frozenset[str]:
        """Factors of operands that no result has."""
        kept = {f for out in self.outs for axis in out for f in axis}
        return frozenset(f for x in self.ins for axis in x for f in axis if f not in kept)

    def is_cuttable(self, f: str, count: int) -> bool:
        """Whether a mesh axis of this size can cut a factor."""
        if f in self.whole:
            return False
        for x in (*self.ins, *self.outs):
            for axis in x:
                if f not in axis:
                    continue
                first = next(g for g in axis if g == f or self.sizes[g] > 1)
                if first != f or (len(axis) > 1 and self.sizes[f] % count):
                    return False
        return True


def single(names: Sequence[Sequence[str]], outs: Sequence[Sequence[str]], sizes: Mapping[str, Any],
           whole: frozenset[str] = frozenset(), **more: Any) -> Factors:  # fmt: skip
    """Factors of axes that have one each."""
    return Factors(
        tuple(tuple((a,) for a in x) for x in names), tuple(tuple((a,) for a in x) for x in outs),
        sizes, whole, **more,
    )  # fmt: skip


def reshaped(old: Shape, new: Shape) -> Factors:
    """The factors of a reshape: the coarsest axes that both shapes are products of.

    Axes between two common strides that are no such products, as in [8, 2, 3] -> [8, 3, 2], are whole.
    """
    size = math.prod(old)
    if size == 0:
        names = [f"i{k}" for k in range(len(old))], [f"o{k}" for k in range(len(new))]
        sizes = dict(zip((*names[0], *names[1]), (*old, *new), strict=True))
        return single([names[0]], [names[1]], sizes, frozenset(sizes))
    both = [{size, 1, *_strides(shape)} for shape in (old, new)]
    strides = sorted(both[0] | both[1], reverse=True)
    common = sorted(both[0] & both[1], reverse=True)
    apart = [
        (high, low)
        for high, low in itertools.pairwise(common)
        if any(a % b for a, b in itertools.pairwise(s for s in strides if low <= s <= high))
    ]
    pairs = list(itertools.pairwise(strides))
    sizes = {f"f{k}": a // b for k, (a, b) in enumerate(pairs)}
    whole: set[str] = set()

    def axis(name: str, n: int, s: int) -> Axis:
        if n > 1 and any(n * s <= high and s >= low for high, low in apart):
            sizes[name] = n
            whole.add(name)
            return (name,)
        return tuple(f"f{k}" for k, (a, b) in enumerate(pairs) if a <= n * s and b >= s)

    def axes(which: str, shape: Shape) -> tuple[Axis, ...]:
        ends = zip(shape, _strides(shape), strict=True)
        return tuple(axis(f"{which}{k}", n, s) for k, (n, s) in enumerate(ends))

    return Factors((axes("i", old),), (axes("o", new),), sizes, frozenset(whole))


def _strides(shape: Shape) -> list[int]:
    return [math.prod(shape[k + 1 :]) for k in range(len(shape))]
