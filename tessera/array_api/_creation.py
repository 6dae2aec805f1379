"""Making arrays: fills, ranges, and what other libraries hold."""

from __future__ import annotations

from typing import Any

import numpy as np

from tessera.array_api._array import writable
from tessera.core.device import CPU
from tessera.core.dtype import DType, as_dtype, f32
from tessera.core.errors import CopyError
from tessera.ir.graph.ir import Value, concrete
from tessera.lang import op
from tessera.lang.create import from_dlpack as on_any_device
from tessera.lang.create import tensor
from tessera.lang.device import as_device, current_device
from tessera.lang.tensor import Tensor
from tessera.ops import arrange
from tessera.ops.define import public

Number = bool | int | float | complex
Shape = int | tuple[int, ...]


def place(x: Value, device: Any) -> Tensor:
    """x on a device, by default the one for new arrays."""
    return writable(_tensor(x).to(current_device() if device is None else device))


def _like(x: Value, y: Value, device: Any) -> Tensor:
    return place(y, x.device if device is None else device)


@public
def asarray(
    obj: Any, /, *, dtype: DType | None = None, device: Any = None, copy: bool | None = None
) -> Tensor:
    """obj as an array: an array, a number, nested sequences of these, a buffer or DLPack object."""
    return writable(_asarray(obj, dtype, device, copy))


def _asarray(obj: Any, dtype: DType | None, device: Any, copy: bool | None) -> Tensor:
    if isinstance(obj, Tensor):
        return _from_tensor(obj, dtype, device, copy)
    data = _shared(obj)
    if data is not None:
        to = current_device() if device is None else as_device(device)
        return _from_tensor(_tensor(concrete(data, None, to)), dtype, None, copy)
    if copy is False:
        raise CopyError(f"asarray: a {type(obj).__name__} cannot be taken without a copy")
    return tensor(obj, dtype, device)


def _shared(obj: Any) -> Any:
    """The memory of an object as a NumPy array, or None if it offers none."""
    if isinstance(obj, np.ndarray | np.generic):
        return obj
    if hasattr(obj, "__dlpack__"):
        return np.from_dlpack(obj)
    try:
        return np.asarray(memoryview(obj))
    except TypeError:
        return None


def _tensor(x: Value) -> Tensor:
    assert isinstance(x, Tensor)
    return x


def _from_tensor(x: Tensor, dtype: DType | None, device: Any, copy: bool | None) -> Tensor:
    d = x.dtype if dtype is None else as_dtype(dtype)
    to = x.device if device is None else as_device(device)
    if d is x.dtype and to == x.device and not copy:
        return x
    if copy is False:
        raise CopyError(f"asarray: {x.type} on {x.device} as {d} on {to} needs a copy")
    y = x.astype(d).to(to)
    return y if y.storage is None else _tensor(concrete(y.storage.copy(), d, to))


@public
def from_dlpack(x: Any, /, *, device: Any = None, copy: bool | None = None) -> Tensor:
    """An array of the data of any object that speaks DLPack."""
    if isinstance(x, Tensor):
        return writable(_from_tensor(x, None, device, copy))
    if int(x.__dlpack_device__()[0]) != 1:
        return writable(_from_tensor(on_any_device(x), None, device, copy))
    made = _tensor(concrete(np.from_dlpack(x, copy=copy), None, CPU))
    return writable(_from_tensor(made, None, device, None))


@public
def full(
    shape: Shape, fill_value: Number, *, dtype: DType | None = None, device: Any = None
) -> Tensor:
    """An array of one number."""
    return place(op.full(shape, fill_value, dtype), device)


@public
def zeros(shape: Shape, *, dtype: DType | None = None, device: Any = None) -> Tensor:
    """An array of zeros."""
    return place(op.zeros(shape, dtype or f32), device)


@public
def ones(shape: Shape, *, dtype: DType | None = None, device: Any = None) -> Tensor:
    """An array of ones."""
    return place(op.ones(shape, dtype or f32), device)


@public
def empty(shape: Shape, *, dtype: DType | None = None, device: Any = None) -> Tensor:
    """An array whose elements carry no meaning."""
    return place(op.empty(shape, dtype or f32), device)


@public
def full_like(
    x: Value, /, fill_value: Number, *, dtype: DType | None = None, device: Any = None
) -> Tensor:
    """An array of one number, shaped as x."""
    return _like(x, op.full_like(x, fill_value, dtype), device)


@public
def zeros_like(x: Value, /, *, dtype: DType | None = None, device: Any = None) -> Tensor:
    """An array of zeros, shaped as x."""
    return _like(x, op.zeros_like(x, dtype), device)


@public
def ones_like(x: Value, /, *, dtype: DType | None = None, device: Any = None) -> Tensor:
    """An array of ones, shaped as x."""
    return _like(x, op.ones_like(x, dtype), device)


@public
def empty_like(x: Value, /, *, dtype: DType | None = None, device: Any = None) -> Tensor:
    """An array shaped as x whose elements carry no meaning."""
    return _like(x, op.empty_like(x, dtype), device)


@public
def arange(
    start: float,
    /,
    stop: float | None = None,
    step: float = 1,
    *,
    dtype: DType | None = None,
    device: Any = None,
) -> Tensor:
    """The numbers from start (0 when only one is given) up to stop, a step apart."""
    return place(op.arange(start, stop, step, dtype), device)


@public
def linspace(
    start: complex,
    stop: complex,
    /,
    num: int,
    *,
    dtype: DType | None = None,
    device: Any = None,
    endpoint: bool = True,
) -> Tensor:
    """num evenly spaced numbers from start to stop, which is left out without endpoint."""
    return place(op.linspace(start, stop, num, dtype, endpoint), device)


@public
def eye(
    n_rows: int,
    n_cols: int | None = None,
    /,
    *,
    k: int = 0,
    dtype: DType | None = None,
    device: Any = None,
) -> Tensor:
    """Ones on the k-th diagonal, zeros elsewhere."""
    columns = n_rows if n_cols is None else n_cols
    diagonal = max(-n_rows, min(k, columns))  # any further out is just as empty
    return place(arrange.eye(n_rows, columns, diagonal, dtype or f32), device)
