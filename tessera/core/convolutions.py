"""The order of a convolution: which products are added up, and how.

An output is the sum over channels and over the places of the window, in this order, the last place
running fastest; padding takes part as zeros.  Leaves are whole runs of the inner axes with at most 512
products: as many channels as fit, or rows of one channel where the window is larger than a leaf, or
pieces of one row.  A leaf is one chain of fused multiply-adds from 0, and leaves join as a balanced
tree over neighbours, as in core/folds.py.  The derivative in the kernel is ordered the same way, with
the batch in the place of the channels and the outputs in the place of the window.
"""

from __future__ import annotations

import itertools
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
from tessera.core.types import TensorType

MOST_AXES = 3  # spatial axes that a convolution on the machine may have


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


def _padded(x: Array, padding: Any) -> Array:
    """x with zeros around its spatial axes; negative padding cuts."""
    cut: Any = [
        slice(max(-a, 0), n - max(-b, 0)) for n, (a, b) in zip(x.shape[2:], padding, strict=True)
    ]
    more = [(max(a, 0), max(b, 0)) for a, b in padding]
    return np.pad(x[(..., *cut)], [(0, 0), (0, 0), *more])


def _seen(x: Array, at: Sequence[int], counts: Sequence[int], p: Params) -> Array:
    """What all windows have at one of their places."""
    cut: Any = [
        slice(k * d, k * d + (n - 1) * s + 1, s)
        for k, n, s, d in zip(at, counts, p["stride"], p["dilation"], strict=True)
    ]
    seen: Array = x[(..., *cut)]
    return seen


def _conv(xs: Sequence[Array], p: Params) -> list[Array]:
    dtype = as_dtype(xs[0].dtype)
    x, w = (cast(a, dtype.accum) for a in xs)
    counts: Any = counts_of([TensorType(dtype, a.shape) for a in xs], p)
    groups, rank = p["groups"], x.ndim - 2
    wide = _padded(x, p["padding"])
    wide = wide.reshape(x.shape[0], groups, -1, *wide.shape[2:])
    kernel = w.reshape(groups, -1, *w.shape[1:])

    def factors(k: Any) -> tuple[Array, Array]:
        c, *at = k
        weights = kernel[(slice(None), slice(None), *k)]
        seen = _seen(wide[:, :, None, c], at, counts, p)
        return seen, weights.reshape(*weights.shape, *(1,) * rank)

    shape = (x.shape[0], groups, kernel.shape[1], *counts)
    y = _sum(Leaves.of(w.shape[1:]), shape, x.dtype, factors)
    return [cast(y.reshape(x.shape[0], w.shape[0], *counts), dtype)]


def _weights(xs: Sequence[Array], p: Params) -> list[Array]:
    dtype = as_dtype(xs[0].dtype)
    x, ct = (cast(a, dtype.accum) for a in xs)
    groups, window = p["groups"], p["window"]
    wide = _padded(x, p["padding"])
    wide = wide.reshape(x.shape[0], groups, 1, -1, *wide.shape[2:])
    given = ct.reshape(x.shape[0], groups, -1, *ct.shape[2:])
    turned = {**p, "stride": p["dilation"], "dilation": p["stride"]}

    def factors(k: Any) -> tuple[Array, Array]:
        b, *at = k
        one = given[(b, slice(None), slice(None), *at)]
        seen = _seen(wide[b], at, window, turned)
        return seen, one.reshape(*one.shape, *(1,) * (1 + len(at)))

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


CONVOLUTIONS = (
    Definition("conv", _supports, _types, _conv),
    Definition("conv_weights", _supports_weights, _weights_types, _weights),
)
