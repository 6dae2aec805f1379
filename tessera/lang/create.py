"""Making tensors: from numbers, from arrays, and from memory that another library holds."""

from __future__ import annotations

from typing import Any

import numpy as np

from tessera.core import dlpack
from tessera.core.arrays import as_numpy, check_fits, is_foreign, needs_check
from tessera.core.blame import blames_arguments
from tessera.core.deferred import Deferred
from tessera.core.device import CPU, GPU_OF_DLPACK, Device
from tessera.core.dtype import DType, as_dtype
from tessera.core.errors import OperandError, TesseraError, located, out_of_memory
from tessera.core.types import TensorType
from tessera.ir.graph.ir import Value, concrete, holding
from tessera.lang.device import as_device, current_device
from tessera.lang.tensor import Tensor, copied, on_device
from tessera.ops import elementwise, shape
from tessera.ops.define import ArrayLike, as_value


def is_on_gpu(x: Any) -> bool:
    """Whether x is an array of another library in the memory of a GPU."""
    if isinstance(x, Value | np.ndarray) or not hasattr(x, "__dlpack_device__"):
        return False
    return int(x.__dlpack_device__()[0]) in GPU_OF_DLPACK


@blames_arguments
def tensor(data: ArrayLike, dtype: Any = None, device: Any = None) -> Tensor:
    """A tensor with a copy of the data; Python floats become f32 and integers i64.

    Numbers that an integer dtype cannot hold are an error: integers out of its range, fractions, NaN and
    infinities.  `ts.tensor(x).astype(dtype)` wraps around and cuts fractions off.
    """
    try:
        place = current_device() if device is None else as_device(device)
        given = None if dtype is None else as_dtype(dtype)
        return _made(data, given, place)
    except TesseraError as e:
        error = located(e)
    except MemoryError as e:
        error = located(out_of_memory("tensor", e))
    raise error


def _made(data: Any, given: DType | None, place: Device) -> Tensor:
    if isinstance(data, list | tuple) and _holds_values(data):
        made: Any = shape.stack([tensor(d, given, place) for d in data])
        return made  # type: ignore[no-any-return]
    v = _read(data, given)
    if v.storage is None:
        return elementwise.cast(v, given or v.dtype)  # type: ignore[return-value]
    cast = v if given is None else elementwise.cast(v, given)
    if cast.storage is None:
        return cast  # type: ignore[return-value]
    return on_device(copied(cast.storage), cast.dtype, place)


def _read(data: Any, given: DType | None) -> Value:
    """The data as a value, once it is known to fit a dtype; numbers keep all of their digits."""
    if isinstance(data, Value) or given is None:
        return as_value(data, "tensor")
    if isinstance(data, list | tuple | int | float | complex):
        return _numbers(data, given)
    v = as_value(data, "tensor")
    if v.storage is not None and needs_check(v.dtype, given):
        check_fits(v.storage, given, "tensor")
    return v


def _numbers(data: Any, given: DType) -> Value:
    """Python numbers as a value in the format that NumPy reads them in."""
    try:
        array = np.asarray(data)
    except ValueError:
        return as_value(data, "tensor")  # says what is wrong
    if array.dtype.kind == "O" and given.kind in "iu" and _are_integers(array):
        check_fits(array, given, "tensor")
    elif array.dtype.kind in "OUS":
        return as_value(data, "tensor")
    check_fits(array, given, "tensor")
    return concrete(array, None)


def _are_integers(array: np.ndarray[Any, Any]) -> bool:
    return all(type(x) is int for x in array.flat)


def _holds_values(data: Any) -> bool:
    if isinstance(data, list | tuple):
        return any(_holds_values(d) for d in data)
    return isinstance(data, Value)


_from_dlpack = Deferred("tessera.runtime.cuda.memory:from_dlpack")


@blames_arguments
def from_dlpack(x: Any) -> Tensor:
    """A tensor in the memory of any object that speaks DLPack, on a CPU or a GPU.

    What the owner of the memory writes there changes the tensor; see docs/memory.md.
    """
    if isinstance(x, Tensor):
        return x
    if not hasattr(x, "__dlpack__") or not hasattr(x, "__dlpack_device__"):
        raise located(OperandError(f"from_dlpack: {type(x).__name__} does not speak DLPack"))
    kind = GPU_OF_DLPACK.get(int(x.__dlpack_device__()[0]))
    if kind is None:
        return _borrowed(_shared(x))
    try:
        data = _from_dlpack(x)
        t = TensorType(as_dtype(data.dtype), data.shape)
        return holding(t, data, Device(kind, data.device))  # type: ignore[return-value]
    except TesseraError as e:
        error = located(e)
    raise error


def _shared(x: Any) -> Any:
    try:
        return dlpack.take(x)
    except (BufferError, RuntimeError, TypeError, ValueError) as e:
        first = str(e).strip().partition("\n")[0]
        error = OperandError(f"from_dlpack: {type(x).__name__} does not give its memory: {first}")
    raise located(error)


def _borrowed(data: Any) -> Tensor:
    """A tensor in the memory of another library: a view that cannot be written to, by which graphs know it.

    A graph reads it at each call and holds no copy, so that jitted functions that close over the tensor see
    what eager code sees, whoever writes to that memory.
    """
    view = np.asarray(data).view()
    view.flags.writeable = False
    return on_device(view, None, CPU)


@blames_arguments
def asarray(data: ArrayLike, dtype: Any = None, device: Any = None) -> Tensor:
    """A tensor of the data, without a copy where that is possible; what is written to the array later may
    show.
    """
    try:
        return _as_tensor(data, dtype, device)
    except TesseraError as e:
        error = located(e)
    raise error


def _as_tensor(data: Any, dtype: Any, device: Any) -> Tensor:
    if is_on_gpu(data):
        found = from_dlpack(data)
        moved = found if device is None else found.to(device)
        return moved if dtype is None else moved.astype(dtype)
    if isinstance(data, Tensor) and device is None:
        return data if dtype is None else data.astype(dtype)
    if dtype is None and device is None and (isinstance(data, np.ndarray) or is_foreign(data)):
        return _borrowed(as_numpy(data, "asarray"))
    return tensor(data, dtype, device)
