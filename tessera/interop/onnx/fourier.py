"""Complex tensors and Fourier transforms in ONNX files.

Runtimes of ONNX have no complex tensors; their DFT takes pairs along a last axis of 2.  So ops are computed
on two real tensors (transform/split_complex.py), and only what a transform takes or makes is whole: a
tensor with one axis more.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tessera.core.dims import Size, product
from tessera.core.dtype import DType, f64
from tessera.interop.onnx.model import OnnxError
from tessera.interop.onnx.nodes import emits
from tessera.interop.onnx.writer import OnnxWriter
from tessera.ir.graph.ir import Graph, Node
from tessera.transform.decompose import decompose
from tessera.transform.inline import inline
from tessera.transform.split_complex import has_complex, is_complex, split_all

_TRANSFORMS = ("fft", "ifft", "rfft", "irfft")
_PARTS = ("complex", "real", "imag")
_AXIS_IS_INPUT = 20  # the operator set from which DFT takes its axis as an operand


def in_real_parts(g: Graph) -> Graph:
    """g with pairs of real tensors in place of complex ones, but beside transforms."""
    if not has_complex(g):
        return g
    own = len(g.inputs) - len(g.captured)
    names = [f"input {n!r}" for n in g.input_names] + ["an input"] * own
    given = list(zip(names, g.inputs[:own], strict=False))
    for what, v in [*given, *(("a result", v) for v in g.outputs)]:
        if is_complex(v):
            raise OnnxError(
                f"onnx: {what} is {v.type}, but runtimes of ONNX have no complex tensors; pass or return "
                "op.real(z) and op.imag(z)"
            )
    return split_all(decompose(inline(g), _is_kept))


def _is_kept(n: Node) -> bool:
    """Whether a node is written as it is: what is real, and transforms."""
    return n.op.name in _TRANSFORMS or not any(map(is_complex, (*n.operands, *n.results)))


@emits("complex")
def _complex(w: OnnxWriter, n: Node, re: str, im: str) -> str:
    last = w.ints([-1])
    parts = [w.emit("Unsqueeze", x, last) for x in (re, im)]
    made: str = w.emit("Concat", *parts, axis=-1)
    return made


@emits("real", "imag")
def _part(w: OnnxWriter, n: Node, z: str) -> str:
    if not is_complex(n.operands[0]):
        assert n.op.name == "real", "the imaginary part of what is real is a number"
        found: str = w.emit("Identity", z)
        return found
    return _taken(w, z, int(n.op.name == "imag"))


def _taken(w: OnnxWriter, z: str, part: int) -> str:
    made: str = w.emit("Gather", z, w.constant(np.array(part, np.int64)), axis=-1)
    return made


@emits("fft", "ifft")
def _fft(w: OnnxWriter, n: Node, z: str) -> str:
    shape, axes, dtype = n.operands[0].shape, n.params["axes"], n.operands[0].dtype.real
    forward = n.op.name == "fft"
    for a in axes:
        z = _dft(w, z, a) if forward else _inverse(w, z, a, shape[a], dtype)
    return _scaled(w, z, n, [shape[a] for a in axes], not forward)


@emits("rfft")
def _rfft(w: OnnxWriter, n: Node, x: str) -> str:
    axis = n.params["axis"]
    z = _dft(w, w.emit("Unsqueeze", x, w.ints([-1])), axis, onesided=1)
    return _scaled(w, z, n, [n.operands[0].shape[axis]], False)


@emits("irfft")
def _irfft(w: OnnxWriter, n: Node, z: str) -> str:
    """The inverse of the spectrum with the half that is left out: conjugates, from back to front."""
    axis, size, dtype = n.params["axis"], n.params["n"], n.operands[0].dtype.real
    left_out = w.size(size - n.operands[0].shape[axis])  # elements 1 to so many stand for two
    tail = w.emit("Slice", z, w.ints([1]), w.emit("Add", left_out, w.ints([1])), w.ints([axis]))
    back = w.emit(
        "Slice", tail, w.ints([-1]), w.ints([np.iinfo(np.int64).min]), w.ints([axis]), w.ints([-1])
    )
    whole = w.emit("Concat", z, _conjugate(w, back, dtype), axis=axis)
    y = _taken(w, _inverse(w, whole, axis, size, dtype), 0)
    return _scaled(w, y, n, [size], True)


def _inverse(w: OnnxWriter, z: str, axis: int, size: Size, dtype: DType) -> str:
    """The inverse along an axis, divided by its length.

    onnxruntime divides doubles by a length that was inverted in single precision: those take a forward
    transform of conjugates.
    """
    if dtype is not f64:
        return _dft(w, z, axis, inverse=1)
    y = _conjugate(w, _dft(w, _conjugate(w, z, dtype), axis), dtype)
    made: str = w.emit("Div", y, _count(w, [size], dtype))
    return made


def _conjugate(w: OnnxWriter, z: str, dtype: DType) -> str:
    made: str = w.emit("Mul", z, w.constant(np.array([1, -1]), dtype.np))
    return made


def _dft(w: OnnxWriter, z: str, axis: int, **flags: int) -> str:
    if w.opset >= _AXIS_IS_INPUT:
        made: str = w.emit("DFT", z, "", w.constant(np.array(axis, np.int64)), **flags)
    else:
        made = w.emit("DFT", z, axis=axis, **flags)
    return made


def _count(w: OnnxWriter, sizes: Sequence[Size], dtype: DType) -> str:
    return w.cast(w.emit("Squeeze", w.size(product(tuple(sizes)))), dtype.np)


def _scaled(w: OnnxWriter, y: str, n: Node, sizes: Sequence[Size], inverse: bool) -> str:
    """A transform by the norm of its op, after one that divides by the length backwards alone."""
    norm = n.params["norm"]
    if norm == "backward":
        return y
    dtype = n.results[0].dtype
    count = _count(w, sizes, dtype.real if dtype.kind == "c" else dtype)
    if norm == "ortho":
        count = w.emit("Sqrt", count)
    made: str = w.emit("Mul" if inverse else "Div", y, count)
    return made
