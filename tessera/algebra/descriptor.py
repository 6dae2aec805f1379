"""TessOperatorDesc: the C layout of an operator, from an operator and back.

A dense operator has its matrix as payload; a factored one U, S and V.H; a block-sparse one its tiles,
their places and the shape; an implicit one the tensors of its kind, which the tag names.  What has no
layout of its own (products, sums, functions of Python) is passed as its dense matrix.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tessera.algebra.apply import as_operator, dense_of
from tessera.algebra.constructors.factored import factors_of
from tessera.algebra.flags import FLAGS
from tessera.algebra.operator import Operator, function
from tessera.algebra.table import Table
from tessera.core.dtype import FORMATS, as_dtype
from tessera.core.errors import OperandError
from tessera.ir.graph.ir import Value, concrete
from tessera.ops.matrix import adjoint

MAX_RANK = 8
REPRESENTATIONS = ("dense", "factor", "implicit", "blocksparse")  # TESS_OP_DENSE = 0, ...
DTYPES = tuple(FORMATS)
# Bits of the field `flags`; the first three are those that the specification names.
BITS = (
    "unitary",
    "self_adjoint",
    "normal",
    *sorted(set(FLAGS) - {"unitary", "self_adjoint", "normal"}),
)


class TessTensorDesc(ctypes.Structure):
    """A tensor: where its first element lies, its dtype (a number of DTYPES), sizes, strides in bytes."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("dtype", ctypes.c_uint32),
        ("rank", ctypes.c_uint32),
        ("shape", ctypes.c_int64 * MAX_RANK),
        ("strides", ctypes.c_int64 * MAX_RANK),
    )


class TessOperatorDesc(ctypes.Structure):
    """An operator, as in Part VI of the specification."""

    _fields_ = (
        ("repr", ctypes.c_uint32),
        ("payload", TessTensorDesc * 3),
        ("tag", ctypes.c_uint32),
        ("flags", ctypes.c_uint32),
    )


@dataclass(frozen=True)
class Described:
    """A descriptor with the arrays that it points to, which live as long as it does."""

    desc: TessOperatorDesc
    arrays: tuple[np.ndarray[Any, Any], ...]

    @property
    def representation(self) -> str:
        """dense, factor, implicit or blocksparse."""
        return REPRESENTATIONS[self.desc.repr]


# Tensors ----------------------------------------------------------------------------------------


def _fill(t: TessTensorDesc, x: np.ndarray[Any, Any]) -> None:
    t.data = x.ctypes.data
    t.dtype = DTYPES.index(as_dtype(x.dtype).name)
    t.rank = x.ndim
    t.shape[: x.ndim] = x.shape
    t.strides[: x.ndim] = x.strides


def _read(t: TessTensorDesc) -> np.ndarray[Any, Any]:
    """A copy of the elements."""
    dtype = np.dtype(FORMATS[DTYPES[t.dtype]].np)
    shape, strides = tuple(t.shape[: t.rank]), tuple(t.strides[: t.rank])
    if 0 in shape or not t.data:
        return np.zeros(shape, dtype)
    if any(s < 0 for s in strides):
        raise OperandError("operator descriptor: a stride is negative, expected an address of the first element")  # fmt: skip
    span = dtype.itemsize + sum((n - 1) * s for n, s in zip(shape, strides, strict=True))
    buffer = (ctypes.c_char * span).from_address(t.data)
    return np.ndarray(shape, dtype, buffer, strides=strides).copy()


def _array(v: Value, user: Operator) -> np.ndarray[Any, Any]:
    if v.data is None:
        raise OperandError(f"operator descriptor: {user} is traced and has no data to point to")
    return v.data


def _numbers(*xs: int) -> np.ndarray[Any, Any]:
    return np.array(xs, np.int64)


def _none(a: Operator) -> np.ndarray[Any, Any]:
    """An empty array that tells the dtype."""
    return np.zeros((0,), a.dtype.np)


# Kinds ------------------------------------------------------------------------------------------

_NORMS = ("backward", "ortho", "forward")
Arrays = Sequence[Any]


@dataclass(frozen=True)
class Layout:
    """How an implicit kind is laid out."""

    tag: int
    encode: Callable[[Operator], Arrays]
    decode: Callable[[Arrays], Operator]


def _with_data(kind: str, count: int) -> tuple[Callable[[Operator], Arrays], Callable[[Arrays], Operator]]:  # fmt: skip
    """Kinds that are nothing but tensors."""
    return (
        lambda a: [_array(v, a) for v in a.data],
        lambda xs: Operator(kind, data=[concrete(x) for x in xs[:count]]),
    )


def _dtype(x: Any) -> Any:
    return as_dtype(x.dtype)


LAYOUTS = {
    "eye": Layout(
        1, lambda a: [_none(a), _numbers(a.static[0])],
        lambda xs: Operator("eye", static=(int(xs[1][0]), _dtype(xs[0]))),
    ),
    "zero": Layout(
        2, lambda a: [_none(a), _numbers(*a.static[:2])],
        lambda xs: Operator("zero", static=(int(xs[1][0]), int(xs[1][1]), _dtype(xs[0]))),
    ),
    "diag": Layout(3, *_with_data("diag", 1)),
    "tridiagonal": Layout(4, *_with_data("tridiagonal", 3)),
    "circulant": Layout(5, *_with_data("circulant", 1)),
    "toeplitz": Layout(
        6, lambda a: [_array(a.data[0], a), _numbers(*map(int, a.static))],
        lambda xs: Operator(
            "toeplitz", data=(concrete(xs[0]),), static=(int(xs[1][0]), int(xs[1][1]), bool(xs[1][2]))
        ),
    ),
    "permutation": Layout(
        7, lambda a: [_none(a), a.static[0].array],
        lambda xs: Operator("permutation", static=(Table(xs[1]), _dtype(xs[0]))),
    ),
    "fft": Layout(
        8, lambda a: [_none(a), _numbers(*a.static[0]), _numbers(_NORMS.index(a.static[1]), a.static[2])],
        lambda xs: Operator(
            "fft", static=(tuple(map(int, xs[1])), _NORMS[xs[2][0]], bool(xs[2][1]), _dtype(xs[0]))
        ),
    ),
    "dct": Layout(
        9, lambda a: [_none(a), _numbers(a.static[0], a.static[1], _NORMS.index(a.static[2]))],
        lambda xs: Operator(
            "dct", static=(int(xs[1][0]), int(xs[1][1]), _NORMS[xs[1][2]], _dtype(xs[0]))
        ),
    ),
}  # fmt: skip
_TAGS = {layout.tag: layout for layout in LAYOUTS.values()}


def _factors(a: Operator) -> Arrays:
    """U, S, V.H; S is ones when the operator has none."""
    if a.kind == "projector":
        u, s, v = a.data[0], None, a.data[0]
    else:
        u, s, v = factors_of(a)
    ones = np.ones((u.shape[1],), u.dtype.np)
    return [_array(u, a), ones if s is None else _array(s, a), _array(adjoint(v), a)]


def _tiles(a: Operator) -> Arrays:
    rows, cols, m, n = a.static
    values = _array(a.data[0], a)
    tiles = values if values.ndim == 3 else values.reshape(-1, 1, 1)
    return [tiles, np.stack([rows.array, cols.array]), _numbers(m, n)]


def _layout(a: Operator) -> tuple[str, int, Arrays]:
    if a.kind in ("low_rank", "projector"):
        return "factor", 0, _factors(a)
    if a.kind in ("sparse", "block_sparse"):
        return "blocksparse", 0, _tiles(a)
    if a.kind in LAYOUTS:
        return "implicit", LAYOUTS[a.kind].tag, LAYOUTS[a.kind].encode(a)
    return "dense", 0, [_array(dense_of(a), a)]


@function
def describe(a: Any) -> Described:
    """The C layout of an operator."""
    found = as_operator("describe", a)
    name, tag, arrays = _layout(found)
    desc = TessOperatorDesc()
    desc.repr, desc.tag = REPRESENTATIONS.index(name), tag
    desc.flags = sum(1 << i for i, f in enumerate(BITS) if f in found.flags)
    kept = tuple(np.asarray(x) for x in arrays)
    for t, x in zip(desc.payload, kept, strict=False):
        _fill(t, x)
    return Described(desc, kept)


@function
def undescribe(d: Described | TessOperatorDesc) -> Operator:
    """The operator that a descriptor tells of, with copies of its tensors."""
    desc = d.desc if isinstance(d, Described) else d
    if not isinstance(desc, TessOperatorDesc):
        raise OperandError(
            f"undescribe: got {type(d).__name__}, expected what op.describe(A) gives"
        )
    if desc.repr >= len(REPRESENTATIONS):
        raise OperandError(f"operator descriptor: no representation {desc.repr}")
    arrays = [_read(t) for t in desc.payload]
    flags = tuple(f for i, f in enumerate(BITS) if desc.flags >> i & 1)
    return _built(REPRESENTATIONS[desc.repr], desc.tag, arrays).assume(*flags)


def _built(name: str, tag: int, arrays: Arrays) -> Operator:
    if name == "dense":
        return Operator("dense", data=(concrete(arrays[0]),))
    if name == "factor":
        u, s, vh = map(concrete, arrays)
        return Operator("low_rank", data=(u, s, adjoint(vh)), static=(True, False))
    if name == "blocksparse":
        tiles, (rows, cols), (m, n) = arrays
        single = tiles.shape[1:] == (1, 1)
        data = concrete(tiles.reshape(-1) if single else tiles)
        static = (Table(rows), Table(cols), int(m), int(n))
        return Operator("sparse" if single else "block_sparse", data=(data,), static=static)
    if tag not in _TAGS:
        raise OperandError(f"operator descriptor: no implicit kind has the tag {tag}")
    return _TAGS[tag].decode(arrays)
