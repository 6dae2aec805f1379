"""Fourier transforms and what is made of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from tessera.core.dtype import DType, complex_of
from tessera.core.host import scipy
from tessera.interop.stablehlo.rules.table import rule, stands_for
from tessera.interop.stablehlo.writer import Ssa, Writer, ints
from tessera.ir.graph.ir import Node, Value, concrete
from tessera.ops.contraction import matmul
from tessera.ops.creation import full
from tessera.ops.gather import scatter_add
from tessera.ops.shape import moveaxis, reshape


def _transform(w: Writer, x: Ssa, kind: str, axis: int, out: int, dtype: DType, length: int) -> Ssa:
    """A transform of one axis, which stands last while it is transformed."""
    order = [a for a in range(len(x.shape)) if a != axis] + [axis]
    y = w.transpose(x, order)
    held = {"fft_type": f"#stablehlo<fft_type {kind}>", "fft_length": ints([length])}
    y = w.op("fft", y, dtype=dtype, shape=(*y.shape[:-1], out), properties=held)
    return w.transpose(y, [order.index(a) for a in range(len(order))])


def _scaled(w: Writer, x: Ssa, norm: str, size: int, inverse: bool) -> Ssa:
    """The factor of a norm; StableHLO divides inverses by their size."""
    factor = {"ortho": math.sqrt(size) if inverse else 1 / math.sqrt(size)}.get(norm, 1.0)
    if norm == "forward":
        factor = size if inverse else 1 / size
    return x if factor == 1 else w.op("multiply", x, w.like(factor, x))


@rule("fft")
def _fft(w: Writer, n: Node, x: Ssa) -> Any:
    return _complex(w, n, x, False)


@rule("ifft")
def _ifft(w: Writer, n: Node, x: Ssa) -> Any:
    return _complex(w, n, x, True)


def _complex(w: Writer, n: Node, x: Ssa, inverse: bool) -> Any:
    if 0 in x.shape:
        return x
    axes: Sequence[int] = n.params["axes"]
    y = x
    for a in axes:
        y = _transform(w, y, "IFFT" if inverse else "FFT", a, x.shape[a], x.dtype, x.shape[a])
    return _scaled(w, y, n.params["norm"], math.prod(x.shape[a] for a in axes), inverse)


@rule("rfft")
def _rfft(w: Writer, n: Node, x: Ssa) -> Any:
    axis, out = n.params["axis"], n.results[0]
    x = w.cast(x, n.operands[0].dtype.compute)
    if 0 in x.shape:
        return w.full(0, out.dtype, out.shape)
    to = complex_of(x.dtype)
    size = x.shape[axis]
    y = _transform(w, x, "RFFT", axis, out.shape[axis], to, size)
    return w.cast(_scaled(w, y, n.params["norm"], size, False), out.dtype)


@rule("irfft")
def _irfft(w: Writer, n: Node, x: Ssa) -> Any:
    axis, size, out = n.params["axis"], n.params["n"], n.results[0]
    if 0 in x.shape:
        return w.full(0, out.dtype, out.shape)
    y = _transform(w, x, "IRFFT", axis, size, x.dtype.real, size)
    return w.cast(_scaled(w, y, n.params["norm"], size, True), out.dtype)


@stands_for("dct")
def _dct(x: Value, type: int, axis: int, norm: Any) -> Value:
    """The matrix of the transform, which is small as kernels of images and spectra are."""
    size = x.shape[axis]
    if 0 in x.shape:
        return x
    table = scipy("fft").dct(np.eye(size), type=type, norm=norm, axis=0)
    matrix = concrete(table, x.dtype)
    return moveaxis(matmul(moveaxis(x, axis, -1), moveaxis(matrix, 0, 1)), -1, axis)


@stands_for("overlap_add")
def _overlap_add(x: Value, hop: int) -> Value:
    """Frames added up where they lay."""
    *batch, count, size = x.shape
    long = (count - 1) * hop + size if count else 0
    at = (np.arange(count)[:, None] * hop + np.arange(size)).reshape(-1)
    flat = moveaxis(reshape(x, (*batch, count * size)), -1, 0)
    out = scatter_add(full((long, *batch), 0, x.dtype), flat, at)
    return moveaxis(out, 0, -1)
