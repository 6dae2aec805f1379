"""TessOperatorGraph: an operator as C sees it, whose products, sums and inverses stay what they are.

What has no layout in C (functions of Python, stencils, sketches) is passed as its dense matrix.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np

from tessera.algebra.operator import Operator
from tessera.core.dtype import as_dtype
from tessera.deploy.dtypes import DTYPES

ABI, MAX_RANK = 1, 8
DENSE, FACTOR, IMPLICIT, BLOCKSPARSE = range(4)
IDENTITY, ZERO, DIAGONAL, FFT, CIRCULANT, PERMUTATION = range(1, 7)
LEAF, COMPOSE, SUM, SCALE, ADJOINT, KRONECKER, DIRECT_SUM, INVERSE, RESOLVENT = range(9)
_FLAGS = {"unitary": 1, "self_adjoint": 2, "normal": 4}
_NODES = {
    "compose": COMPOSE, "plus": SUM, "adjoint": ADJOINT, "kronecker": KRONECKER, "direct_sum": DIRECT_SUM,
    "inverse": INVERSE,
}  # fmt: skip
_MOST = {COMPOSE: 64, SUM: 64, DIRECT_SUM: 64, KRONECKER: 2}

Array = np.ndarray[Any, np.dtype[Any]]


class SizedStruct(ctypes.Structure):
    """A struct that begins with its size and version."""

    def __init__(self, **fields: Any):
        super().__init__(**fields, size=ctypes.sizeof(self), version=ABI)


_HEAD = (("size", ctypes.c_uint32), ("version", ctypes.c_uint32))


class TessTensorDesc(SizedStruct):
    """A tensor in memory, as tessera.h has it."""

    _fields_ = (
        *_HEAD, ("dtype", ctypes.c_uint32), ("rank", ctypes.c_uint32), ("shape", ctypes.c_int64 * MAX_RANK),
        ("strides", ctypes.c_int64 * MAX_RANK), ("bytes", ctypes.c_uint64), ("device", ctypes.c_uint32),
        ("flags", ctypes.c_uint32), ("data", ctypes.c_void_p),
    )  # fmt: skip


class TessOperatorDesc(SizedStruct):
    """An operator by its representation, as tessera.h has it."""

    _fields_ = (
        *_HEAD, ("repr", ctypes.c_uint32), ("tag", ctypes.c_uint32), ("flags", ctypes.c_uint32),
        ("reserved", ctypes.c_uint32), ("rows", ctypes.c_int64), ("columns", ctypes.c_int64),
        ("payload", TessTensorDesc * 3),
    )  # fmt: skip


class TessOperatorNode(SizedStruct):
    """An operator made of others."""

    _fields_ = (
        *_HEAD, ("kind", ctypes.c_uint32), ("leaf", ctypes.c_uint32), ("first", ctypes.c_uint32),
        ("count", ctypes.c_uint32), ("scalar", ctypes.c_double * 2),
    )  # fmt: skip


class TessOperatorGraph(SizedStruct):
    """Leaves, nodes, and the nodes that each node is made of."""

    _fields_ = (
        *_HEAD, ("leaf_count", ctypes.c_uint32), ("node_count", ctypes.c_uint32),
        ("operand_count", ctypes.c_uint32), ("root", ctypes.c_uint32),
        ("leaves", ctypes.POINTER(TessOperatorDesc)), ("nodes", ctypes.POINTER(TessOperatorNode)),
        ("operands", ctypes.POINTER(ctypes.c_uint32)),
    )  # fmt: skip


def tensor(x: Array) -> TessTensorDesc:
    """The descriptor of an array, which must live as long."""
    t = TessTensorDesc(dtype=DTYPES[as_dtype(x.dtype).name], rank=x.ndim)
    t.shape[: x.ndim] = x.shape
    t.strides[: x.ndim] = x.strides
    t.bytes, t.data = x.nbytes, x.ctypes.data
    return t


class OperatorGraph:
    """An operator as a TessOperatorGraph, with the arrays that it points to."""

    def __init__(self, a: Operator):
        self.arrays: list[Array] = []
        self._leaves: list[TessOperatorDesc] = []
        self._nodes: list[TessOperatorNode] = []
        self._operands: list[int] = []
        self._known: dict[int, int] = {}
        root = self._node(a)
        self.leaves = (TessOperatorDesc * max(len(self._leaves), 1))(*self._leaves)
        self.nodes = (TessOperatorNode * len(self._nodes))(*self._nodes)
        self.operands = (ctypes.c_uint32 * max(len(self._operands), 1))(*self._operands)
        self.desc = TessOperatorGraph(
            leaf_count=len(self._leaves), node_count=len(self._nodes), operand_count=len(self._operands),
            root=root, leaves=self.leaves, nodes=self.nodes, operands=self.operands,
        )  # fmt: skip

    @property
    def kinds(self) -> list[int]:
        """The kinds of the nodes in order."""
        return [n.kind for n in self._nodes]

    def _node(self, a: Operator) -> int:
        if id(a) not in self._known:
            self._known[id(a)] = self._added(a)
        return self._known[id(a)]

    def _added(self, a: Operator) -> int:
        kind = _NODES.get(a.kind)
        if a.kind == "scale" and a.data and a.data[0].ndim == 0:
            z = complex(np.asarray(a.data[0]))
            return self._made(SCALE, a.parts, z)
        if kind is not None and 1 <= len(a.parts) <= _MOST.get(kind, 1):
            if kind != KRONECKER or len(a.parts) == 2:
                return self._made(kind, a.parts)
        self._leaves.append(self._leaf(a))
        self._nodes.append(TessOperatorNode(kind=LEAF, leaf=len(self._leaves) - 1))
        return len(self._nodes) - 1

    def _made(self, kind: int, parts: Sequence[Operator], scalar: complex = 0) -> int:
        numbers = [self._node(p) for p in parts]
        node = TessOperatorNode(kind=kind, first=len(self._operands), count=len(numbers))
        node.scalar[0], node.scalar[1] = scalar.real, scalar.imag
        self._operands += numbers
        self._nodes.append(node)
        return len(self._nodes) - 1

    def _leaf(self, a: Operator) -> TessOperatorDesc:
        rows, columns = map(int, a.shape)
        flags = sum(bit for name, bit in _FLAGS.items() if name in a.flags)
        d = TessOperatorDesc(repr=IMPLICIT, flags=flags, rows=rows, columns=columns)
        if a.kind == "eye":
            d.tag = IDENTITY
        elif a.kind == "zero":
            d.tag = ZERO
        elif a.kind == "diag":
            d.tag = DIAGONAL
            d.payload[0] = self._held(np.asarray(a.data[0]))
        elif a.kind == "circulant":
            d.tag = CIRCULANT
            d.payload[0] = self._held(np.asarray(a.data[0]))
        elif a.kind == "fft" and a.static[:3] == ((rows,), "backward", False):
            d.tag = FFT
        else:
            d.repr = DENSE
            d.payload[0] = self._held(np.asarray(a.todense()))
        return d

    def _held(self, x: Array) -> TessTensorDesc:
        x = np.ascontiguousarray(x)
        if x.dtype.kind not in "fc" or x.dtype.itemsize < 4:
            x = x.astype(np.float64)
        self.arrays.append(x)
        return tensor(x)


__all__ = [
    "OperatorGraph",
    "TessOperatorDesc",
    "TessOperatorGraph",
    "TessOperatorNode",
    "TessTensorDesc",
    "tensor",
]
