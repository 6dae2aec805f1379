"""reshaping: the positions of the elements of a reshaped tile, and where that is lost.

(rows at 8 i, 6 columns) -> (48,)     elements 48 i, 48 i + 1, ... of the tensor in one axis
(rows at 8 i,)           -> (2, 4)    no axis has the edge: what needs it refuses
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from tessera.core.scalar import Number
from tessera.lang.kernel.values import Axes, AxisElements, Pads, TileValue

Groups = Iterator[tuple[list[int], list[int]]]


def reshaped(x: TileValue, shape: Sequence[int]) -> tuple[Axes, Pads]:
    """The places and the padding of a tile in another shape of as many elements."""
    axes: list[AxisElements | None] = [None] * len(shape)
    pads: list[Number | None] = [None] * len(shape)
    said = f"reshape: {x.type} to {_text(shape)} leaves an edge of its tensor on no axis"
    dropped = len(shape) < x.rank and any(
        _is_edge(a) for a, n in zip(x.axes, x.shape, strict=True) if n == 1
    )
    for old, new in _groups(x.shape, shape):
        if len(old) == len(new) == 1:
            axes[new[0]], pads[new[0]] = x.axes[old[0]], x.pads[old[0]]
        elif len(new) == 1 and (merged := _merged(x, old)) is not None:
            axes[new[0]], pads[new[0]] = merged, x.pads[old[0]]
        elif any(_is_edge(x.axes[i]) for i in old):
            for i in new:
                axes[i] = AxisElements(shape[i], 0, False, said)
    for i, j in _ones(x.shape, shape):
        axes[j], pads[j] = x.axes[i], x.pads[i]
    if dropped:
        axes = [AxisElements(n, 0, False, said) for n in shape]
    return tuple(axes), tuple(pads)


def _text(shape: Sequence[int]) -> str:
    return f"({', '.join(map(str, shape))}{',' if len(shape) == 1 else ''})"


def _is_edge(a: AxisElements | None) -> bool:
    return a is not None and not a.exact


def _merged(x: TileValue, old: list[int]) -> AxisElements | None:
    """Several axes as one: the first has a place, the others are whole."""
    first, *others = (x.axes[i] for i in old)
    if first is None or first.lost is not None:
        return None
    for a, n in zip(others, (x.shape[i] for i in old[1:]), strict=True):
        if a is not None and (a.lost is not None or a.first != 0 or a.size != n):
            return None
    inner = math.prod(x.shape[i] for i in old[1:])
    return AxisElements(first.size * inner, first.first * inner, first.exact)


def _groups(old: Sequence[int], new: Sequence[int]) -> Groups:
    """Axes of two shapes that hold the same elements, as short as can be, without those of size 1."""
    left = [i for i, n in enumerate(old) if n != 1]
    right = [i for i, n in enumerate(new) if n != 1]
    while left and right:
        a, b = [left.pop(0)], [right.pop(0)]
        while (p := math.prod(old[i] for i in a)) != (q := math.prod(new[i] for i in b)):
            if p < q:
                a.append(left.pop(0))
            else:
                b.append(right.pop(0))
        yield a, b


def _ones(old: Sequence[int], new: Sequence[int]) -> list[tuple[int, int]]:
    """Axes of size 1 that stay: as many lie before the same elements of both shapes."""
    before, after = _between(old), _between(new)
    pairs: list[tuple[int, int]] = []
    for inner, mine in before.items():
        theirs = after.get(inner, [])
        if len(mine) == len(theirs):
            pairs += zip(mine, theirs, strict=True)
    return pairs


def _between(shape: Sequence[int]) -> dict[int, list[int]]:
    """Axes of size 1 by how many elements the axes behind them have."""
    found: dict[int, list[int]] = {}
    inner = math.prod(shape)
    for i, n in enumerate(shape):
        inner = inner // n if n else 0
        if n == 1:
            found.setdefault(inner, []).append(i)
    return found
