"""DLPack: the memory of a device for other libraries, and theirs for us, without a copy.

A consumer says on which stream it works, and the producer orders that stream after its own.  A consumer
reports nothing when a tensor dies, though its memory may still be in use then: what we export is marked as
used on the consumer's stream, and what we have taken dies after our work, for the stream that libraries use
by default.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import Any, NamedTuple

import numpy as np

from tessera.core.device import GPU_OF_DLPACK, GPUS
from tessera.core.dlpack import CODES as _CODES
from tessera.core.dlpack import PLAIN as _PLAIN
from tessera.core.dlpack import VERSIONED as _VERSIONED
from tessera.core.dlpack import ManagedLayout as _Managed
from tessera.core.dlpack import TensorLayout as _Tensor
from tessera.core.dlpack import VersionedLayout as _Versioned
from tessera.core.dlpack import is_named as _is_named
from tessera.core.dlpack import pointer_of as _pointer
from tessera.core.dlpack import python_function as _python
from tessera.core.errors import CopyError, DeviceError, DTypeError, TesseraError
from tessera.runtime.code import LlvmSource, load
from tessera.runtime.cuda import device
from tessera.runtime.cuda.device import Gpu
from tessera.runtime.cuda.dlpack_ir import dlpack_ir
from tessera.runtime.cuda.pool import PoolBlock
from tessera.runtime.cuda.stream import DriverStream

_VERSION = (1, 1)
_READ_ONLY, _COPIED = 1, 2
_USED = {_PLAIN: b"used_dltensor", _VERSIONED: b"used_dltensor_versioned"}

_DTYPES = {code: d for d, code in _CODES.items()}

_new = _python("PyCapsule_New", ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
_rename = _python("PyCapsule_SetName", ctypes.c_int, ctypes.py_object, ctypes.c_char_p)
_set_context = _python("PyCapsule_SetContext", ctypes.c_int, ctypes.py_object, ctypes.c_void_p)
# The last two for a capsule that dies, which must not be counted again.
_dying_is_named = _python("PyCapsule_IsValid", ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)
_dying_pointer = _python("PyCapsule_GetPointer", ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)


# What we give -------------------------------------------------------------------------------------


class _Export(NamedTuple):
    """What lives as long as a consumer has the tensor."""

    managed: Any
    sizes: Any
    owner: Any
    stream: DriverStream


_EXPORTS: dict[int, _Export] = {}


def _delete(address: int, exports: dict[int, _Export] = _EXPORTS) -> None:
    export = exports.pop(address, None)
    if export is not None and isinstance(export.owner, PoolBlock):
        # A stream that is gone has done its work.
        with contextlib.suppress(TesseraError), export.stream.gpu.aside():
            export.owner.used_on(export.stream)


def _forget(capsule: int) -> None:
    """A capsule dies; nobody has taken the tensor if it has its first name."""
    for name in (_PLAIN, _VERSIONED):
        if _dying_is_named(capsule, name):
            _delete(_dying_pointer(capsule, name))


class _Ends(NamedTuple):
    """Addresses of the Python functions above, and of the machine code that calls them safely."""

    delete: int
    forget: int
    code: Mapping[str, int]


@cache
def _ends() -> _Ends:
    ends = [ctypes.CFUNCTYPE(None, ctypes.c_void_p)(f) for f in (_delete, _forget)]
    for f in ends:  # libraries may delete tensors after this module is gone
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(f))
    names = ("delete_plain", "delete_versioned", "forget")
    text = dlpack_ir(_Managed.context.offset, _Versioned.context.offset)
    code = load(LlvmSource("dlpack", text, names))
    places = [ctypes.cast(f, ctypes.c_void_p).value or 0 for f in ends]
    return _Ends(places[0], places[1], code.addresses)


def export(
    shape: tuple[int, ...], dtype: np.dtype[Any], gpu: Gpu, ptr: int, owner: Any, writable: bool,
    copied: bool, stream: int | None, max_version: tuple[int, int] | None,
) -> Any:  # fmt: skip
    """A capsule with the memory at an address, safe to use on the stream of the consumer."""
    if dtype not in _CODES:
        raise BufferError(f"__dlpack__: DLPack has no code for {dtype}")
    versioned = max_version is not None and max_version[0] >= 1
    if not writable and not versioned:
        raise BufferError("__dlpack__: a read-only array needs a consumer of DLPack 1.0 or newer")
    consumer = DriverStream(gpu, gpu.driver.api.default_stream if stream in (None, -1) else stream)
    if stream != -1:
        consumer.wait(gpu.stream)
    rank = len(shape)
    sizes = (ctypes.c_int64 * (2 * rank))(*shape, *_row_major(shape))
    managed: Any = _Versioned() if versioned else _Managed()
    at = ctypes.addressof(sizes)
    words = ctypes.POINTER(ctypes.c_int64)
    managed.tensor = _Tensor(
        ptr, GPUS[gpu.kind], gpu.index, rank, *_CODES[dtype], 1,
        ctypes.cast(at, words), ctypes.cast(at + 8 * rank, words), 0,
    )  # fmt: skip
    ends = _ends()
    managed.context = ends.delete
    managed.deleter = ends.code["delete_versioned" if versioned else "delete_plain"]
    if versioned:
        managed.major, managed.minor = _VERSION
        managed.flags = (0 if writable else _READ_ONLY) | (_COPIED if copied else 0)
    address = ctypes.addressof(managed)
    _EXPORTS[address] = _Export(managed, sizes, owner, consumer)
    capsule = _new(address, _VERSIONED if versioned else _PLAIN, ends.code["forget"])
    _set_context(capsule, ends.forget)
    return capsule


def _row_major(shape: tuple[int, ...]) -> list[int]:
    out, step = [], 1
    for n in reversed(shape):
        out.append(step)
        step *= n
    return out[::-1]


# What we take -------------------------------------------------------------------------------------


class _Foreign:
    """Memory of another library, which gets it back when nobody holds this."""

    __slots__ = ("_deleter", "_gpu", "_managed")

    def __init__(self, gpu: Gpu, managed: int, deleter: int | None):
        self._gpu, self._managed = gpu, managed
        self._deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(deleter) if deleter else None

    def __del__(self) -> None:
        give_back = partial(_give_back, self._gpu, self._managed, self._deleter)
        if self._gpu.capturing:
            self._gpu.deferred.append(give_back)
        else:
            give_back()


def _give_back(gpu: Gpu, managed: int, deleter: Callable[[int], None] | None) -> None:
    with contextlib.suppress(TesseraError), gpu.aside():  # the driver may have ended before us
        DriverStream(gpu, gpu.driver.api.default_stream).wait(gpu.stream)
    if deleter is not None:
        deleter(managed)


class Taken(NamedTuple):
    """The tensor in a capsule."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    gpu: Gpu
    ptr: int
    owner: Any
    writable: bool


def take(x: Any) -> Taken:
    """The memory of a GPU's tensor that knows DLPack."""
    if not hasattr(x, "__dlpack__") or not hasattr(x, "__dlpack_device__"):
        raise DeviceError(f"from_dlpack: a {type(x).__name__} does not know DLPack")
    kind, index = map(int, x.__dlpack_device__())
    if kind not in GPU_OF_DLPACK:
        raise DeviceError(
            f"from_dlpack: the tensor is on a device of kind {kind}, expected CUDA (2) or ROCm (10)"
        )
    gpu = device.gpu(index, GPU_OF_DLPACK[kind])
    capsule = _capsule(x, gpu.stream.handle)
    name = next((n for n in _USED if _is_named(capsule, n)), None)
    if name is None:
        raise DeviceError(f"from_dlpack: {type(x).__name__} gave no fresh DLPack capsule")
    address = _pointer(capsule, name)
    kind_of: Any = _Versioned if name == _VERSIONED else _Managed
    managed = kind_of.from_address(address)
    _rename(capsule, _USED[name])
    owner = _Foreign(gpu, address, managed.deleter)
    t = managed.tensor
    shape = tuple(t.shape[: t.ndim])
    dtype = _DTYPES.get((t.code, t.bits))
    if dtype is None or t.lanes != 1:
        raise DTypeError(f"from_dlpack: no dtype for code {t.code} of {t.bits} bits x {t.lanes}")
    _check_order(shape, t)
    writable = name == _PLAIN or not managed.flags & _READ_ONLY
    return Taken(shape, dtype, gpu, (t.data or 0) + t.byte_offset, owner, writable)


def _capsule(x: Any, stream: int) -> Any:
    try:
        return x.__dlpack__(stream=stream, max_version=_VERSION)
    except TypeError:  # from before DLPack 1.0
        return x.__dlpack__(stream=stream)


def _check_order(shape: tuple[int, ...], t: _Tensor) -> None:
    """Raise an error unless elements lie in row-major order without gaps."""
    if not t.strides or 0 in shape:
        return
    wanted = _row_major(shape)
    strides = t.strides[: t.ndim]
    if any(n > 1 and a != b for n, a, b in zip(shape, strides, wanted, strict=True)):
        raise CopyError(
            f"from_dlpack: strides {tuple(strides)} of shape {shape} are not in row-major order; "
            "pass a contiguous copy"
        )
