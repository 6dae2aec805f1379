"""The derivative of a strided convolution in x by the phases of its stride.

Places of x a stride apart see the same places of the kernel: a convolution of ct with a stride
of 1.  Phases that see windows of one size are out channels of one convolution.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from tessera.core.constraints import same
from tessera.core.dims import Size, bounds
from tessera.ir.graph.ir import Value
from tessera.ops.contraction import reference_einsum
from tessera.ops.creation import iota
from tessera.ops.define import full_of
from tessera.ops.elementwise import add, mul
from tessera.ops.gather import take
from tessera.ops.shape import concat, flip, moveaxis, pad, reshape, slice_, stack, transpose
from tessera.ops.windows import reach


def by_phases(
    convolution: Any, ct: Value, w: Value, size: Sequence[Size], *, stride: Sequence[int],
    padding: Sequence[tuple[Size, Size]], dilation: Sequence[int], groups: Size,
) -> Value:  # fmt: skip
    """What the op conv_input computes, of sizes above 0; `convolution` is the op conv."""
    low: list[Any] = [a for a, _ in padding]
    if not all(isinstance(a, int) for a in low):  # all places, then those of x
        zeros = ((0, 0),) * len(low)
        steps = zip(ct.shape[2:], stride, w.shape[2:], dilation, strict=True)
        long = [reach(n, s) + reach(k, d) - 1 for n, s, k, d in steps]
        given: dict[str, Any] = {"stride": stride, "dilation": dilation, "groups": groups}
        return _within(by_phases(convolution, ct, w, long, padding=zeros, **given), low, size)
    if not all(map(_has_phases, w.shape[2:], stride)):
        return _at_once(convolution, ct, w, size, stride, low, dilation, groups)
    counts = [(n + s - 1) // s for n, s in zip(size, stride, strict=True)]
    runs = [_runs(*axis) for axis in zip(w.shape[2:], stride, dilation, low, strict=True)]
    y = _joined([], runs, lambda parts: _phases(convolution, ct, w, parts, counts, groups))
    return _within(y, (0,) * len(low), size)


def _has_phases(window: Size, stride: int) -> bool:
    """Whether it is known which phases of a stride see nothing of the kernel."""
    return isinstance(window, int) or bounds(window - stride)[0] >= 0


def _at_once(
    convolution: Any, ct: Value, w: Value, size: Sequence[Size], stride: Sequence[int],
    low: Sequence[int], dilation: Sequence[int], groups: Size,
) -> Value:  # fmt: skip
    """By one convolution of ct with its elements a stride apart."""
    pairs = []
    for n, m, k, s, d, a in zip(
        size, ct.shape[2:], w.shape[2:], stride, dilation, low, strict=True
    ):
        before = reach(k, d) - 1 - a
        pairs.append((before, n + a - reach(m, s)))
    y: Value = convolution.bind(
        ct, transposed_kernel(w, groups), stride=(1,) * len(pairs), padding=tuple(pairs),
        dilation=tuple(dilation), inner=tuple(stride), groups=groups,
    )  # fmt: skip
    return y


def transposed_kernel(w: Value, groups: Size) -> Value:
    """w turned around, with in and out channels exchanged inside each group."""
    out, into, *sizes = w.shape
    rank = len(sizes)
    split = reshape(w, (groups, out // groups, into, *sizes))
    swapped = transpose(split, (0, 2, 1, *range(3, 3 + rank)))
    return flip(reshape(swapped, (groups * into, out // groups, *sizes)), tuple(range(2, 2 + rank)))


class _Phase(NamedTuple):
    """Every stride-th place of an axis of x: of the kernel it sees first, first + every, ...

    As core/convolutions.py has it, but the kernel is not turned round, and its size may be a symbol.
    """

    first: int
    every: int
    size: Size
    dilation: int
    low: Size


def _runs(window: Size, stride: int, dilation: int, low: int) -> list[list[_Phase]]:
    """The phases of an axis; neighbours that see equal windows of ct at the same places are together."""
    every = stride // math.gcd(stride, dilation)
    apart, found = every * dilation // stride, []
    for offset in range(low, low + stride):
        fits = [k for k in range(every) if (offset - k * dilation) % stride == 0]
        first = fits[0] if fits else 0
        size = (window - first + every - 1) // every if fits else 0
        if isinstance(window, int) and window <= first:
            size = 0
        at = (offset - first * dilation) // stride
        found.append(_Phase(first, every, size, apart, (size - 1) * apart - at))
    return [list(run) for _, run in itertools.groupby(found, lambda a: (a.size, a.low))]


def _joined(
    parts: list[list[_Phase]], runs: list[list[list[_Phase]]], made: Callable[[Any], Value]
) -> Value:
    """The places of all phases in their order, axis by axis."""
    axis = len(parts)
    if axis == len(runs):
        return made(parts)
    inner, pieces = 2 * axis + 3, []  # the phases of an axis run faster than its places
    for run in runs[axis]:
        y = _joined([*parts, run], runs, made)
        if len(run) > 1:
            pieces.append(moveaxis(y, 2 + axis, inner))
        else:
            kept = (*y.shape[: 2 + axis], *y.shape[3 + axis :])
            pieces.append(reshape(y, (*kept[:inner], 1, *kept[inner:])))
    y = concat(pieces, inner)
    merged_size = y.shape[inner - 1] * y.shape[inner]
    return reshape(y, (*y.shape[: inner - 1], merged_size, *y.shape[inner + 1 :]))


def _phases(
    convolution: Any,
    ct: Value,
    w: Value,
    runs: list[list[_Phase]],
    counts: Sequence[Size],
    groups: Size,
) -> Value:
    """What runs of phases add up, each as out channels of one convolution of ct."""
    heads, many = [run[0] for run in runs], [len(run) for run in runs]
    made = w.shape[1] * groups
    if any(a.size == 0 for a in heads):
        return full_of((ct.shape[0], made, *many, *counts), 0, ct.dtype)
    kernels = []
    for parts in itertools.product(*runs):
        kernels.append(transposed_kernel(_taps(w, parts), groups))
    kernel = stack(kernels, 1)
    padding = []
    for a, n, m in zip(heads, counts, ct.shape[2:], strict=True):
        padding.append((a.low, n + reach(a.size, a.dilation) - 1 - a.low - m))
    ones = (1,) * len(runs)
    y = convolution.bind(
        ct, reshape(kernel, (made * len(kernels), *kernel.shape[2:])), stride=ones,
        padding=tuple(padding), dilation=tuple(a.dilation for a in heads), inner=ones, groups=groups,
    )  # fmt: skip
    return reshape(y, (ct.shape[0], made, *many, *counts))


def _taps(w: Value, parts: Sequence[_Phase]) -> Value:
    """The places of the kernel that phases see."""
    start, step = [0] * w.ndim, [1] * w.ndim
    for axis, a in enumerate(parts, 2):
        if isinstance(w.shape[axis], int):
            start[axis], step[axis] = a.first, a.every
        else:  # by data: no proof that a stride stays inside a size that is a symbol
            w = take(w, add(mul(iota((a.size,)), a.every), a.first), axis)
    return slice_(w, start, w.shape, step)


def _within(y: Value, low: Sequence[Size], size: Sequence[Size]) -> Value:
    """So many places of y from the low-th on, zeros where it has none."""
    high = [n + a - m for n, a, m in zip(size, low, y.shape[2:], strict=True)]
    if all(same(n, 0) for n in (*low, *high)):
        return y
    return pad.bind(
        y, full_of((), 0, y.dtype), low=(0, 0, *(-a for a in low)), high=(0, 0, *high),
        inner=(0,) * y.ndim,
    )  # fmt: skip


def input_reference(
    ct: Any, w: Any, size: Any, stride: Any, padding: Any, dilation: Any, groups: int
) -> Any:
    """Each place of the kernel times ct, added where the windows were.

    Beyond the ends of ct are zeros, which take part where the kernel reaches a place of x.
    """
    batch, made, into = ct.shape[0], w.shape[0] // groups, w.shape[1]
    around = [
        (
            -(-max(reach(k, d) - 1 - a, 0) // s),
            max((n - 1 + a) // s + 1 - m, 0),
        )
        for k, d, a, s, n, m in zip(
            w.shape[2:], dilation, (a for a, _ in padding), stride, size, ct.shape[2:], strict=True
        )
    ]
    wide = np.pad(ct, [(0, 0), (0, 0), *around])
    # The place of x that the first element of ct reaches with the first place of the kernel.
    first = [
        -a - before * s for (a, _), (before, _), s in zip(padding, around, stride, strict=True)
    ]
    out = np.zeros((batch, groups, into, *size), ct.dtype)
    given, kernel = (
        wide.reshape(batch, groups, made, *wide.shape[2:]),
        w.reshape(groups, made, into, *w.shape[2:]),
    )
    for k in np.ndindex(*w.shape[2:]):
        take: list[Any] = []
        at: list[Any] = []
        for i, d, n, s, f, m in zip(k, dilation, wide.shape[2:], stride, first, size, strict=True):
            low = max(-((f + i * d) // s), 0)
            high = min(-((f + i * d - m) // s), n)
            take.append(slice(low, max(high, low)))
            at.append(
                slice(f + i * d + low * s, f + i * d + (high - 1) * s + 1 if high > low else 0, s)
            )
        if any(a.start == a.stop for a in take):
            continue
        seen = given[(..., *take)]
        out[(..., *at)] += reference_einsum("bgo...,goc->bgc...", seen, kernel[(..., *k)])
    return out.reshape(batch, groups * into, *size)
