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

from tessera.algebra.apply import as_operator, as_plain_matrix, as_vector, dense_of
from tessera.algebra.constructors import basic, fourier
from tessera.algebra.constructors.banded import tridiagonal
from tessera.algebra.constructors.basic import float_dtype
from tessera.algebra.constructors.circulant import circulant
from tessera.algebra.constructors.factored import factors_of, low_rank
from tessera.algebra.constructors.index import permutation
from tessera.algebra.flags import FLAGS
from tessera.algebra.operator import Operator, function
from tessera.algebra.table import IndexTable
from tessera.core.dtype import FORMATS, DType, as_dtype
from tessera.core.errors import OperandError
from tessera.ir.graph.ir import Value, host_data
from tessera.ops.define import as_value, floating
from tessera.ops.matrix import adjoint

MAX_RANK = 8  # TESS_MAX_RANK of the operator ABI (docs/abi.md)
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
class HeldDescriptor:
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
    if t.dtype >= len(DTYPES):
        raise OperandError(
            f"operator descriptor: no dtype has the number {t.dtype}; there are {len(DTYPES)}"
        )
    if t.rank > MAX_RANK or any(n < 0 for n in t.shape[: t.rank]):
        raise OperandError(
            f"operator descriptor: a tensor has rank {t.rank} and the sizes {list(t.shape)}, expected at "
            "most "
            f"{MAX_RANK} sizes, none negative"
        )
    dtype = np.dtype(FORMATS[DTYPES[t.dtype]].np)
    shape, strides = tuple(t.shape[: t.rank]), tuple(t.strides[: t.rank])
    if 0 in shape or not t.data:
        return np.zeros(shape, dtype)
    if any(s < 0 for s in strides):
        raise OperandError(
            "operator descriptor: a stride is negative, expected an address of the first element"
        )
    span = dtype.itemsize + sum((n - 1) * s for n, s in zip(shape, strides, strict=True))
    buffer = (ctypes.c_char * span).from_address(t.data)
    return np.ndarray(shape, dtype, buffer, strides=strides).copy()


def _array(v: Value, user: Operator) -> np.ndarray[Any, Any]:
    if v.storage is None:
        raise OperandError(f"operator descriptor: {user} is traced and has no data to point to")
    return host_data(v)


def _numbers(*xs: int) -> np.ndarray[Any, Any]:
    return np.array(xs, np.int64)


def _none(a: Operator) -> np.ndarray[Any, Any]:
    """An empty array that tells the dtype."""
    return np.zeros((0,), a.dtype.np)


# Kinds ------------------------------------------------------------------------------------------

_NORMS = ("backward", "ortho", "forward")
Arrays = Sequence[Any]


@dataclass(frozen=True)
class KindLayout:
    """How an implicit kind is laid out."""

    tag: int
    encode: Callable[[Operator], Arrays]
    decode: Callable[[Arrays], Operator]


def _tensors(a: Operator) -> Arrays:
    """The layout of kinds that are nothing but tensors."""
    return [_array(v, a) for v in a.data]


def _whole(xs: Arrays, i: int, count: int | None = None) -> list[int]:
    """Tensor i of a payload as whole numbers."""
    x = xs[i]
    if x.ndim != 1 or x.dtype.kind not in "iu" or (count is not None and len(x) != count):
        shape = ",".join(map(str, x.shape))
        wanted = f"{count} whole numbers" if count is not None else "a vector of whole numbers"
        raise OperandError(
            f"operator descriptor: tensor {i} is {x.dtype}[{shape}], expected {wanted}"
        )
    return [int(n) for n in x]


def _dtype(xs: Arrays) -> DType:
    """The dtype that the first tensor tells."""
    return float_dtype("operator descriptor", as_dtype(xs[0].dtype))


def _norm(i: int) -> str:
    if not 0 <= i < len(_NORMS):
        raise OperandError(
            f"operator descriptor: no norm has the number {i}; there are {len(_NORMS)}"
        )
    return _NORMS[i]


def _toeplitz(xs: Arrays) -> Operator:
    m, n, mirrored = _whole(xs, 1, 3)
    if m < 1 or n < 1 or xs[0].shape != (m + n - 1,):
        raise OperandError(
            f"operator descriptor: a Toeplitz matrix of {m} by {n} has {m + n - 1} diagonals, but tensor 0 "
            "has "
            f"the shape {xs[0].shape}"
        )
    data = (as_vector("operator descriptor", xs[0]),)
    return Operator("toeplitz", data=data, static=(m, n, bool(mirrored)))


def _zero(xs: Arrays) -> Operator:
    m, n = _whole(xs, 1, 2)
    return basic.zero(m, n, _dtype(xs))


def _fft(xs: Arrays) -> Operator:
    norm, inverse = _whole(xs, 2, 2)
    make = fourier.ifft if inverse else fourier.fft
    return make(tuple(_whole(xs, 1)), _norm(norm), _dtype(xs))


def _dct(xs: Arrays) -> Operator:
    n, kind, norm = _whole(xs, 1, 3)
    return fourier.dct(n, kind, _norm(norm), _dtype(xs))


LAYOUTS = {
    "eye": KindLayout(
        1, lambda a: [_none(a), _numbers(a.static[0])],
        lambda xs: basic.eye(_whole(xs, 1, 1)[0], _dtype(xs)),
    ),
    "zero": KindLayout(
        2, lambda a: [_none(a), _numbers(*a.static[:2])],
        _zero,
    ),
    "diag": KindLayout(3, _tensors, lambda xs: basic.diag(xs[0])),
    "tridiagonal": KindLayout(4, _tensors, lambda xs: tridiagonal(*xs)),
    "circulant": KindLayout(5, _tensors, lambda xs: circulant(xs[0])),
    "toeplitz": KindLayout(
        6, lambda a: [_array(a.data[0], a), _numbers(*map(int, a.static))], _toeplitz
    ),
    "permutation": KindLayout(
        7, lambda a: [_none(a), a.static[0].array],
        lambda xs: permutation(_whole(xs, 1), _dtype(xs)),
    ),
    "fft": KindLayout(
        8, lambda a: [_none(a), _numbers(*a.static[0]), _numbers(_NORMS.index(a.static[1]), a.static[2])],
        _fft,
    ),
    "dct": KindLayout(
        9, lambda a: [_none(a), _numbers(a.static[0], a.static[1], _NORMS.index(a.static[2]))], _dct
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
def describe(a: Any) -> HeldDescriptor:
    """The C layout of an operator."""
    found = as_operator("describe", a)
    name, tag, arrays = _layout(found)
    desc = TessOperatorDesc()
    desc.repr, desc.tag = REPRESENTATIONS.index(name), tag
    desc.flags = sum(1 << i for i, f in enumerate(BITS) if f in found.flags)
    kept = tuple(np.asarray(x) for x in arrays)
    for t, x in zip(desc.payload, kept, strict=False):
        _fill(t, x)
    return HeldDescriptor(desc, kept)


@function
def undescribe(d: HeldDescriptor | TessOperatorDesc) -> Operator:
    """The operator that a descriptor tells of, with copies of its tensors."""
    desc = d.desc if isinstance(d, HeldDescriptor) else d
    if not isinstance(desc, TessOperatorDesc):
        raise OperandError(
            f"operator descriptor: got {type(d).__name__}, expected what op.describe gives or a "
            "TessOperatorDesc"
        )
    if desc.repr >= len(REPRESENTATIONS):
        raise OperandError(f"operator descriptor: no representation {desc.repr}")
    arrays = [_read(t) for t in desc.payload]
    flags = tuple(f for i, f in enumerate(BITS) if desc.flags >> i & 1)
    return _built(REPRESENTATIONS[desc.repr], desc.tag, arrays).assume(*flags)


def _built(name: str, tag: int, arrays: Arrays) -> Operator:
    if name == "dense":
        return basic.dense(arrays[0])
    if name == "factor":
        u, s, vh = arrays
        return low_rank(u, adjoint(as_plain_matrix("operator descriptor", vh)), s)
    if name == "blocksparse":
        return _from_tiles(arrays)
    if tag not in _TAGS:
        raise OperandError(f"operator descriptor: no implicit kind has the tag {tag}")
    return _TAGS[tag].decode(arrays)


def _from_tiles(arrays: Arrays) -> Operator:
    tiles, places, _ = arrays
    m, n = _whole(arrays, 2, 2)
    if tiles.ndim != 3 or places.shape != (2, len(tiles)) or places.dtype.kind not in "iu":
        raise OperandError(
            f"operator descriptor: tiles of the shape {tiles.shape} have places of the shape {places.shape}, "
            "expected (count, rows, columns) and (2, count) whole numbers"
        )
    r, c = tiles.shape[1:]
    inside = r > 0 and c > 0 and m % r == 0 == n % c and m >= 0 <= n
    if not inside or np.any(places < 0) or np.any(places >= np.array([[m // r], [n // c]])):
        raise OperandError(
            f"operator descriptor: tiles of {r} by {c} do not lie within a matrix of {m} by {n}"
        )
    single = (r, c) == (1, 1)
    data = floating(as_value(tiles.reshape(-1) if single else tiles, "operator descriptor"))
    static = (IndexTable(places[0]), IndexTable(places[1]), m, n)
    return Operator("sparse" if single else "block_sparse", data=(data,), static=static)
