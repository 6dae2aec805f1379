"""Dtypes under the standard's names, and the functions on dtypes."""

from __future__ import annotations

import builtins
from dataclasses import dataclass
from typing import Any

import ml_dtypes

from tessera.core.dtype import FORMATS, DType, as_dtype
from tessera.core.errors import DTypeError, OperandError
from tessera.core.promotion import meet_scalar, promote, promote_all
from tessera.ir.graph.ir import Value
from tessera.lang.tensor import Tensor
from tessera.ops.define import public

bool = FORMATS["bool"]
int8, int16, int32, int64 = (FORMATS[f"i{n}"] for n in (8, 16, 32, 64))
uint8, uint16, uint32, uint64 = (FORMATS[f"u{n}"] for n in (8, 16, 32, 64))
float32, float64 = FORMATS["f32"], FORMATS["f64"]
complex64, complex128 = FORMATS["c64"], FORMATS["c128"]

DTYPES: dict[str, DType] = {
    "bool": bool, "int8": int8, "int16": int16, "int32": int32, "int64": int64,
    "uint8": uint8, "uint16": uint16, "uint32": uint32, "uint64": uint64,
    "float32": float32, "float64": float64, "complex64": complex64, "complex128": complex128,
}  # fmt: skip
KINDS = {
    "bool": "b", "signed integer": "i", "unsigned integer": "u", "integral": "iu",
    "real floating": "f", "complex floating": "c", "numeric": "iufc",
}  # fmt: skip
_finfo: Any = ml_dtypes.finfo
_iinfo: Any = ml_dtypes.iinfo


@dataclass(frozen=True)
class FloatInfo:
    """Limits of a floating-point dtype; of its real part for a complex one."""

    bits: int
    eps: float
    max: float
    min: float
    smallest_normal: float
    dtype: DType


@dataclass(frozen=True)
class IntegerInfo:
    """Limits of an integer dtype."""

    bits: int
    max: int
    min: int
    dtype: DType


@public
def finfo(type: DType | Value, /) -> FloatInfo:
    """The limits of a floating-point dtype."""
    d = _dtype_of(type)
    if d.kind not in "fc":
        raise DTypeError(f"finfo: {d} is not a floating-point dtype; use iinfo")
    i = _finfo(d.real.np)
    eps, high, low, tiny = (float(x) for x in (i.eps, i.max, i.min, i.smallest_normal))
    return FloatInfo(d.real.bits, eps, high, low, tiny, d.real)


@public
def iinfo(type: DType | Value, /) -> IntegerInfo:
    """The limits of an integer dtype."""
    d = _dtype_of(type)
    if not d.is_integer:
        raise DTypeError(f"iinfo: {d} is not an integer dtype; use finfo")
    i = _iinfo(d.np)
    return IntegerInfo(d.bits, int(i.max), int(i.min), d)


def _dtype_of(x: DType | Value) -> DType:
    return x.dtype if isinstance(x, Value) else as_dtype(x)


@public
def isdtype(dtype: DType, kind: DType | str | tuple[DType | str, ...]) -> builtins.bool:
    """Whether a dtype is of a kind: a dtype, the name of a kind, or a tuple of these."""
    if isinstance(kind, tuple):
        return any(isdtype(dtype, k) for k in kind)
    if not isinstance(kind, str):
        return dtype is kind
    if kind not in KINDS:
        raise OperandError(f"isdtype: {kind!r} is not a kind; kinds are {', '.join(KINDS)}")
    return dtype.kind in KINDS[kind]


@public
def can_cast(from_: DType | Value, to: DType, /) -> builtins.bool:
    """Whether promotion may lead from one dtype to another."""
    source = _dtype_of(from_)
    try:
        return promote(source, to) is to
    except DTypeError:
        return False


@public
def result_type(*arrays_and_dtypes: Any) -> DType:
    """The dtype in which arrays, dtypes and Python numbers meet."""
    numbers = [x for x in arrays_and_dtypes if isinstance(x, int | float | complex)]
    dtypes = [_dtype_of(x) for x in arrays_and_dtypes if not isinstance(x, int | float | complex)]
    if not dtypes:
        raise OperandError("result_type: needs at least one array or dtype")
    met = promote_all(dtypes)
    for n in numbers:
        met = meet_scalar(met, n)
    return met


@public
def astype(x: Tensor, dtype: DType, /, *, copy: builtins.bool = True, device: Any = None) -> Tensor:
    """x in another dtype, on another device if one is given."""
    y = x.astype(dtype, copy=copy)
    return y if device is None else y.to(device)
