"""Filters as primitives: transforms along an axis, products of what they make, and the transform back.

A filter is a list of parts, each a transform along its axis or a complex op point by point, on operands of
the filter and results of earlier parts; the last part is its result.  Their bits are those of the parts
alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tessera.core import fourier
from tessera.core.dims import Size, product
from tessera.core.dtype import c64, c128
from tessera.core.pairs import COMPLEX
from tessera.core.primitive import Array, Definition, Params, Types

POINTWISE = {d.name: d for d in COMPLEX if d.name in ("add", "sub", "mul", "square", "neg", "conj")}
TRANSFORMS = ("fft", "ifft")
_LANES = 16  # columns from which on neighbours are transformed at once
_BYTES = 1 << 18  # of such columns, so that a few of them stay in the second cache


@dataclass(frozen=True)
class FilterPart:
    """One computation of a filter: operands are those of the filter, then results of earlier parts."""

    name: str
    operands: tuple[int, ...]
    norm: str = ""  # of a transform

    def __str__(self) -> str:
        words = [self.name, *map(str, self.operands)]
        return " ".join([*words, self.norm] if self.norm else words)


def parts_of(p: Params) -> list[FilterPart]:
    """The parts of a filter."""
    return [_part(text) for text in p["parts"]]


def _part(text: str) -> FilterPart:
    name, *words = text.split()
    numbers = tuple(int(w) for w in words if w.isdecimal())
    return FilterPart(name, numbers, words[-1] if name in TRANSFORMS else "")


def fits(dtype: object, shape: Sequence[Size], axis: int) -> bool:
    """Whether filters along an axis of such tensors are computed as one."""
    n, inner = shape[axis], product(tuple(shape[axis + 1 :]))
    if dtype not in (c64, c128) or not isinstance(n, int) or axis == len(shape) - 1:
        return False
    many = not isinstance(inner, int) or inner >= _LANES
    plan = fourier.FourierPlan(n)
    bytes_each = 8 if dtype is c64 else 16
    close = n * _LANES * bytes_each <= _BYTES
    return many and close and not plan.chirped and len(plan.passes) > 1


def _supports(types: Types, p: Params) -> bool:
    first = types[0]
    same = all(t.dtype is first.dtype and t.shape == first.shape for t in types)
    return same and fits(first.dtype, first.shape, p["axis"])


def _evaluate(xs: Sequence[Array], p: Params) -> list[Array]:
    known = list(xs)
    for part in parts_of(p):
        mine = [known[i] for i in part.operands]
        if part.name in TRANSFORMS:
            made = fourier.fft(mine[0], p["axis"], part.norm, part.name == "ifft")
        else:
            (made,) = POINTWISE[part.name].evaluate(mine, {})
        known.append(made)
    return [known[-1]]


FILTERS = (Definition("filter", _supports, lambda types, p: [types[0]], _evaluate),)
