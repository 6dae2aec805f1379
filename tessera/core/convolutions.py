"""The order of a convolution: which products are added up, and how.

An output is the sum over channels and over the places of the window, in this order, the last place
running fastest; padding takes part as zeros.  Leaves are whole runs of the inner axes with at most 512
products: as many channels as fit, or rows of one channel where the window is larger than a leaf, or
pieces of one row.  A leaf is one chain of fused multiply-adds from 0, and leaves join as a balanced
tree over neighbours, as in core/folds.py.

The derivative in the kernel is ordered the same way, with the batch in the place of the channels and
the outputs in the place of the window.  The derivative in x is the convolution of ct with the kernel
turned round; with a stride, each place of x adds up only what reaches it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tessera.core.dims import Size, product
from tessera.core.dtype import as_dtype
from tessera.core.evaluate import cast
from tessera.core.fma import fma
from tessera.core.folds import LEAF, join_leaves
from tessera.core.primitive import Array, Definition, Params, Types, are_plain
from tessera.core.scalar import Number
from tessera.core.types import TensorType

MOST_AXES = 3  # spatial axes that a convolution on the machine may have
_FEWEST = 8  # channels of x in a group for which its derivative puts vectors along them


@dataclass(frozen=True)
class Leaves:
    """How reduced axes are cut: `step` places of an axis, with all places of the axes behind it."""

    sizes: tuple[Size, ...]
    axis: int
    step: int

    @staticmethod
    def of(sizes: Sequence[Size]) -> Leaves:
        """The leaves of axes; all sizes but the first are numbers."""
        for axis in range(len(sizes)):
            behind = product(tuple(sizes[axis + 1 :]))
            assert isinstance(behind, int)
            if behind <= LEAF:
                return Leaves(tuple(sizes), axis, LEAF // max(behind, 1))
        raise AssertionError(sizes)

    @property
    def pieces(self) -> Size:
        """Leaves along the axis that is cut."""
        return (self.sizes[self.axis] + self.step - 1) // self.step

    @property
    def count(self) -> Size:
        return product(self.sizes[: self.axis]) * self.pieces

    def places(self) -> Iterator[list[tuple[int, ...]]]:
        """The places of each leaf, in order, at known sizes."""
        sizes: Any = self.sizes
        for lead in np.ndindex(*sizes[: self.axis]):
            for start in range(0, sizes[self.axis], self.step):
                run = range(start, min(start + self.step, sizes[self.axis]))
                tail = [range(n) for n in sizes[self.axis + 1 :]]
                yield [(*lead, *k) for k in itertools.product(run, *tail)]


def _sum(leaves: Leaves, shape: Sequence[int], dtype: Any, factors: Callable[..., Any]) -> Array:
    """The sum of products of two factors, given by their place, in the order above."""
    sums = []
    for places in leaves.places():
        total = np.zeros(shape, dtype)
        for k in places:
            x, y = factors(k)
            total = fma(x, y, total)
        sums.append(total)
    return join_leaves("add", sums)


def counts_of(types: Types, p: Params) -> list[Size]:
    """How many places the windows of a convolution have along each axis."""
    x, w = types
    out = []
    for n, k, s, d, (a, b) in zip(
        x.shape[2:], w.shape[2:], p["stride"], p["dilation"], p["padding"], strict=True
    ):
        out.append((a + n + b - (k - 1) * d - 1) // s + 1)
    return out


def padded(x: Array, low: Sequence[int], sizes: Sequence[int], fill: Number = 0) -> Array:
    """So many places of the spatial axes of x, from `low` before the first on; a fill where is none."""
    high = [n - a - m for n, a, m in zip(sizes, low, x.shape[2:], strict=True)]
    cut: Any = [
        slice(max(-a, 0), max(n - max(-b, 0), 0))
        for n, a, b in zip(x.shape[2:], low, high, strict=True)
    ]
    around = [(max(a, 0), max(b, 0)) for a, b in zip(low, high, strict=True)]
    return np.pad(x[(..., *cut)], [(0, 0), (0, 0), *around], constant_values=fill)


def seen(
    x: Array, at: Sequence[int], counts: Sequence[int], stride: Sequence[int],
    dilation: Sequence[int],
) -> Array:  # fmt: skip
    """What all windows have at one of their places."""
    cut: Any = [
        slice(k * d, k * d + (n - 1) * s + 1, s)
        for k, n, s, d in zip(at, counts, stride, dilation, strict=True)
    ]
    found: Array = x[(..., *cut)]
    return found


def _convolved(
    x: Array, w: Array, groups: int, stride: Sequence[int], dilation: Sequence[int],
    low: Sequence[int], counts: Sequence[int],
) -> Array:  # fmt: skip
    """The sums of x times w over windows, in the dtype of both."""
    rank = x.ndim - 2
    spans = [
        max((n - 1) * s + (k - 1) * d + 1, 0)
        for n, k, s, d in zip(counts, w.shape[2:], stride, dilation, strict=True)
    ]
    wide = padded(x, low, spans)
    wide = wide.reshape(x.shape[0], groups, x.shape[1] // groups, *wide.shape[2:])
    kernel = w.reshape(groups, w.shape[0] // groups, *w.shape[1:])

    def factors(k: Any) -> tuple[Array, Array]:
        c, *at = k
        weights = kernel[(slice(None), slice(None), *k)]
        here = seen(wide[:, :, None, c], at, counts, stride, dilation)
        return here, weights.reshape(*weights.shape, *(1,) * rank)

    shape = (x.shape[0], groups, kernel.shape[1], *counts)
    y = _sum(Leaves.of(w.shape[1:]), shape, x.dtype, factors)
    return y.reshape(x.shape[0], w.shape[0], *counts)


def _conv(xs: Sequence[Array], p: Params) -> list[Array]:
    dtype = as_dtype(xs[0].dtype)
    x, w = (cast(a, dtype.accum) for a in xs)
    counts: Any = counts_of([TensorType(dtype, a.shape) for a in xs], p)
    low = [a for a, _ in p["padding"]]
    return [cast(_convolved(x, w, p["groups"], p["stride"], p["dilation"], low, counts), dtype)]


def _weights(xs: Sequence[Array], p: Params) -> list[Array]:
    dtype = as_dtype(xs[0].dtype)
    x, ct = (cast(a, dtype.accum) for a in xs)
    groups, window = p["groups"], p["window"]
    low = [a for a, _ in p["padding"]]
    spans = [
        (n - 1) * s + (k - 1) * d + 1
        for n, k, s, d in zip(ct.shape[2:], window, p["stride"], p["dilation"], strict=True)
    ]
    wide = padded(x, low, spans)
    wide = wide.reshape(x.shape[0], groups, 1, x.shape[1] // groups, *wide.shape[2:])
    given = ct.reshape(x.shape[0], groups, ct.shape[1] // groups, *ct.shape[2:])

    def factors(k: Any) -> tuple[Array, Array]:
        b, *at = k
        one = given[(b, slice(None), slice(None), *at)]
        here = seen(wide[b], at, window, p["dilation"], p["stride"])
        return here, one.reshape(*one.shape, *(1,) * (1 + len(at)))

    made, into = ct.shape[1], x.shape[1] // groups
    sizes = (x.shape[0], *ct.shape[2:])
    y = _sum(Leaves.of(sizes), (groups, made // groups, into, *window), x.dtype, factors)
    return [cast(y.reshape(made, into, *window), dtype)]


def _supports_weights(types: Types, p: Params) -> bool:
    """As a convolution; all sizes but that of the batch are known."""
    x, ct = types
    known = [*x.shape[1:], *ct.shape[1:], *p["window"], p["groups"], *p["stride"], *p["dilation"]]
    if not are_plain(types, p) or x.dtype.kind != "f" or x.rank - 2 > MOST_AXES:
        return False
    if any(not isinstance(n, int) or n == 0 for n in known) or 0 in x.shape:
        return False
    return all(n == 1 for n in p["inner"])


def _weights_types(types: Types, p: Params) -> list[TensorType]:
    x, ct = types
    return [x.with_shape((ct.shape[1], x.shape[1] // p["groups"], *p["window"]))]


def _supports(types: Types, p: Params) -> bool:
    """Floats, known windows and channels, nothing between neighbours of x, more than one product."""
    x, w = types
    known = [*w.shape, p["groups"], *p["stride"], *p["dilation"]]
    if not are_plain(types, p) or x.dtype.kind != "f" or x.rank - 2 > MOST_AXES:
        return False
    if any(not isinstance(n, int) or n == 0 for n in known) or 0 in x.shape:
        return False
    return all(n == 1 for n in p["inner"]) and not is_pointwise(types, p)


def is_pointwise(types: Types, p: Params) -> bool:
    """Whether each output sees one place of x, the one with its own number: a matrix product."""
    plain = all(n == 1 for n in (*types[1].shape[2:], *p["stride"], *p["inner"]))
    return plain and all(a == 0 and b == 0 for a, b in p["padding"])


def _types(types: Types, p: Params) -> list[TensorType]:
    x, w = types
    return [x.with_shape((x.shape[0], w.shape[0], *counts_of(types, p)))]


# The derivative in x: ct goes to where windows were


@dataclass(frozen=True)
class Phase:
    """Every step-th place of an axis of x, from `offset` on: a convolution of ct of its own.

    Of the kernel, turned round, it sees `size` places: first, first + every, ...
    """

    offset: int
    step: int
    first: int
    every: int
    size: int
    dilation: int
    low: int

    def count(self, n: Size) -> Size:
        """How many of n places it has."""
        return (n - self.offset + self.step - 1) // self.step


def phases(window: int, stride: int, dilation: int, padding: int) -> list[Phase]:
    """The phases of an axis; where no window reaches, one sees nothing."""
    shared = math.gcd(stride, dilation)
    every, before = stride // shared, (window - 1) * dilation - padding
    found = []
    for offset in range(stride):
        fits = [k for k in range(every) if (offset + k * dilation - before) % stride == 0]
        first = fits[0] if fits else window
        size = max(-(-(window - first) // every), 0)
        low = -((offset + first * dilation - before) // stride)
        found.append(Phase(offset, stride, first, every, size, dilation // shared, low))
    return found


def all_phases(window: Sequence[int], p: Params) -> list[tuple[Phase, ...]]:
    """One phase of each axis, in every combination."""
    low = [a for a, _ in p["padding"]]
    return list(itertools.product(*map(phases, window, p["stride"], p["dilation"], low)))


def _input(xs: Sequence[Array], p: Params) -> list[Array]:
    dtype = as_dtype(xs[0].dtype)
    ct, w = (cast(a, dtype.accum) for a in xs)
    groups, window, sizes = p["groups"], w.shape[2:], p["size"]
    split = w.reshape(groups, w.shape[0] // groups, *w.shape[1:]).swapaxes(1, 2)
    turned = np.flip(split, tuple(range(3, split.ndim)))
    turned = turned.reshape(groups * w.shape[1], w.shape[0] // groups, *window)
    out = np.zeros((ct.shape[0], groups * w.shape[1], *sizes), ct.dtype)
    for parts in all_phases(window, p):
        kernel: Any = tuple(slice(a.first, None, a.every) for a in parts)
        into: Any = tuple(slice(a.offset, None, a.step) for a in parts)
        counts: Any = [a.count(n) for a, n in zip(parts, sizes, strict=True)]
        out[(..., *into)] = _convolved(
            ct, turned[(..., *kernel)], groups, [1] * len(parts), [a.dilation for a in parts],
            [a.low for a in parts], counts,
        )  # fmt: skip
    return [cast(out, dtype)]


def _supports_input(types: Types, p: Params) -> bool:
    """As a convolution; with enough channels for vectors."""
    ct, w = types
    known = [*w.shape, p["groups"], *p["stride"], *p["dilation"]]
    if not are_plain(types, p) or ct.dtype.kind != "f" or ct.rank - 2 > MOST_AXES:
        return False
    if any(not isinstance(n, int) or n == 0 for n in known) or 0 in (*ct.shape, *p["size"]):
        return False
    plain = all(isinstance(a, int) for a, _ in p["padding"])
    return plain and has_vectors(w)


def has_vectors(w: TensorType) -> bool:
    """Whether the derivative in x is a primitive: w has channels enough for vectors."""
    return bool(w.shape[1] >= _FEWEST)


def _input_types(types: Types, p: Params) -> list[TensorType]:
    ct, w = types
    return [ct.with_shape((ct.shape[0], w.shape[1] * p["groups"], *p["size"]))]


CONVOLUTIONS = (
    Definition("conv", _supports, _types, _conv, arity=2),
    Definition("conv_weights", _supports_weights, _weights_types, _weights),
    Definition("conv_input", _supports_input, _input_types, _input),
)
