"""Tensors across the border: PyTorch's memory as a tensor of ours and back, without a copy.

DLPack carries a GPU's memory.  The CPU's goes by NumPy, which is quicker than its capsules and also
carries the narrow floats, as integers of their width.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tessera.core.blame import blames_arguments, brief
from tessera.core.device import CPU
from tessera.core.dtype import FORMATS, DType, as_dtype
from tessera.core.errors import DTypeError, OperandError
from tessera.core.types import TensorType
from tessera.interop.torch.library import torch
from tessera.ir.graph.ir import Value, holding, host_data
from tessera.lang.create import from_dlpack

_NAMES = {
    "bool": "bool", "int8": "i8", "int16": "i16", "int32": "i32", "int64": "i64", "uint8": "u8",
    "uint16": "u16", "uint32": "u32", "uint64": "u64", "float16": "f16", "bfloat16": "bf16",
    "float32": "f32", "float64": "f64", "complex64": "c64", "complex128": "c128",
    "float8_e4m3fn": "f8e4m3", "float8_e5m2": "f8e5m2",
}  # fmt: skip
_OURS = {f"torch.{name}": FORMATS[ours] for name, ours in _NAMES.items()}
_THEIRS = {ours: name for name, ours in _NAMES.items()}
# What NumPy has no dtype for crosses as integers of the same width.
_CARRIED = {"bf16": "int16", "f8e4m3": "uint8", "f8e5m2": "uint8"}


def dtype_of(dtype: Any) -> DType:
    """The dtype of ours for one of PyTorch's."""
    found = _OURS.get(str(dtype))
    if found is None:
        raise DTypeError(f"torch: tensors of {dtype} cannot cross; cast them, as in x.float()")
    return found


def torch_dtype(dtype: DType) -> Any:
    """The dtype of PyTorch for one of ours."""
    name = _THEIRS.get(dtype.name)
    if name is None:
        raise DTypeError(f"torch: PyTorch has no dtype for {dtype}; cast it, as in x.astype(f32)")
    return getattr(torch(), name)


def is_torch(x: Any) -> bool:
    """Whether x is a tensor of PyTorch."""
    return isinstance(x, torch().Tensor)


def array_of(x: Any) -> np.ndarray[Any, Any]:
    """The memory of a tensor on the CPU as a NumPy array; copied only when its elements are not in memory
    as such.
    """
    x = x.detach()
    if x.layout is not torch().strided or x.is_quantized:
        raise OperandError(
            f"torch: a tensor of layout {x.layout} cannot cross; make it dense: x.to_dense()"
        )
    if x.is_conj() or x.is_neg():
        x = x.resolve_conj().resolve_neg()
    carried = _CARRIED.get(dtype_of(x.dtype).name)
    if carried is None:
        found: np.ndarray[Any, Any] = x.numpy()
        return found
    return np.asarray(x.view(getattr(torch(), carried)).numpy().view(dtype_of(x.dtype).np))


@blames_arguments
def from_torch(x: Any) -> Value:
    """A tensor of PyTorch as one of ours, in the same memory."""
    if x.device.type != "cpu":
        return from_dlpack(x.detach().resolve_conj().resolve_neg().contiguous())
    array = array_of(x)
    return holding(TensorType(dtype_of(x.dtype), array.shape), array, CPU)


@blames_arguments
def to_torch(v: Value) -> Any:
    """A tensor of ours as one of PyTorch, in the same memory; memory that may not be written to is copied."""
    if not isinstance(v, Value):
        raise OperandError(f"torch.to_torch: got {type(v).__name__} {brief(v)}, expected a tensor")
    if v.device.kind not in ("cpu", CPU.kind):
        return torch().from_dlpack(v)
    return tensor_of(host_data(v), v.dtype)


def tensor_of(data: Any, dtype: DType) -> Any:
    """A NumPy array as a tensor of PyTorch."""
    array = np.asarray(data)
    if not array.flags.writeable or min(array.strides, default=0) < 0:
        array = np.array(array)
    carried = _CARRIED.get(dtype.name)
    if carried is None:
        return torch().from_numpy(array)
    return torch().from_numpy(array.view(carried)).view(torch_dtype(dtype))


def as_ours(dtype: Any) -> DType:
    """A dtype of any library as one of ours."""
    return _OURS.get(str(dtype)) or as_dtype(dtype)
