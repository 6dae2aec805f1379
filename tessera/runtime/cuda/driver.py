"""The CUDA driver by ctypes: the functions that we use, with their types, and their errors.

Nothing is loaded before `load()` or `available()`.  The library is the only thing that tests replace: see `use`.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from tessera.core.errors import DeviceError, OutOfMemoryError, TesseraError

LIBRARY = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"
Call = Callable[..., int]

_P, _I, _U, _Z, _D = (
    ctypes.c_void_p, ctypes.c_int, ctypes.c_uint, ctypes.c_size_t, ctypes.c_uint64,
)  # fmt: skip
# Names as cuda.h has them, and the types of their arguments; _P is any pointer, _D an address on the device.
SIGNATURES: dict[str, tuple[Any, ...]] = {
    "cuInit": (_U,),
    "cuDriverGetVersion": (_P,),
    "cuGetErrorName": (_I, _P),
    "cuGetErrorString": (_I, _P),
    "cuDeviceGetCount": (_P,),
    "cuDeviceGet": (_P, _I),
    "cuDeviceGetName": (_P, _I, _I),
    "cuDeviceGetAttribute": (_P, _I, _I),
    "cuDevicePrimaryCtxRetain": (_P, _I),
    "cuCtxSetCurrent": (_P,),
    "cuCtxGetCurrent": (_P,),
    "cuCtxSynchronize": (),
    "cuMemGetInfo": (_P, _P),
    "cuMemAlloc": (_P, _Z),
    "cuMemFree": (_D,),
    "cuMemHostAlloc": (_P, _Z, _U),
    "cuMemcpyHtoDAsync": (_D, _P, _Z, _P),
    "cuMemcpyDtoHAsync": (_P, _D, _Z, _P),
    "cuMemcpyDtoDAsync": (_D, _D, _Z, _P),
    "cuMemcpy2DAsync": (_P, _P),
    "cuMemsetD8Async": (_D, ctypes.c_ubyte, _Z, _P),
    "cuStreamCreate": (_P, _U),
    "cuStreamDestroy": (_P,),
    "cuStreamSynchronize": (_P,),
    "cuStreamQuery": (_P,),
    "cuStreamWaitEvent": (_P, _P, _U),
    "cuStreamBeginCapture": (_P, _I),
    "cuStreamEndCapture": (_P, _P),
    "cuStreamGetCaptureInfo": (_P, _P, _P, _P, _P, _P),
    "cuEventCreate": (_P, _U),
    "cuEventDestroy": (_P,),
    "cuEventRecord": (_P, _P),
    "cuEventSynchronize": (_P,),
    "cuEventQuery": (_P,),
    "cuEventElapsedTime": (_P, _P, _P),
    "cuModuleLoadDataEx": (_P, _P, _U, _P, _P),
    "cuModuleUnload": (_P,),
    "cuModuleGetFunction": (_P, _P, ctypes.c_char_p),
    "cuFuncGetAttribute": (_P, _I, _P),
    "cuFuncSetAttribute": (_P, _I, _I),
    "cuFuncGetParamInfo": (_P, _Z, _P, _P),
    "cuLaunchKernelEx": (_P, _P, _P, _P),
    "cuTensorMapEncodeTiled": (_P, _I, _U, _P, _P, _P, _P, _P, _I, _I, _I, _I),
    "cuTensorMapReplaceAddress": (_P, _P),
    "cuGraphInstantiate": (_P, _P, ctypes.c_ulonglong),
    "cuGraphDestroy": (_P,),
    "cuGraphExecDestroy": (_P,),
    "cuGraphLaunch": (_P, _P),
    "cuGraphGetNodes": (_P, _P, _P),
    "cuGraphExecKernelNodeSetParams": (_P, _P, _P),
}
# The names in the library that cuda.h gives to the newest forms.
_SYMBOLS = {
    **{name: f"{name}_v2" for name in (
        "cuMemGetInfo", "cuMemAlloc", "cuMemFree", "cuMemcpyHtoDAsync",
        "cuMemcpyDtoHAsync", "cuMemcpyDtoDAsync", "cuMemcpy2DAsync", "cuStreamDestroy", "cuEventDestroy",
        "cuStreamBeginCapture", "cuStreamGetCaptureInfo", "cuGraphExecKernelNodeSetParams",
    )},
    "cuGraphInstantiate": "cuGraphInstantiateWithFlags",
}  # fmt: skip
SUCCESS, OUT_OF_MEMORY, DEINITIALIZED, NOT_READY = 0, 2, 4, 600
_HINTS = {
    209: "the code was built for another architecture than this device has",
    **dict.fromkeys(
        (700, *range(714, 720)),
        "a kernel failed while it ran, which ends the use of this device: start the process again; "
        "compute-sanitizer finds the kernel",
    ),
}


class Driver:
    """The functions of the driver as attributes, by the names of cuda.h; each returns its error code."""

    def __init__(self, library: Any):
        self.library = library
        self.ended = False  # at exit, what is left belongs to the driver: it may have gone already
        atexit.register(self._end)
        for name, types in SIGNATURES.items():
            function = getattr(library, _SYMBOLS.get(name, name), None)
            if function is not None:
                function.argtypes, function.restype = types, ctypes.c_int
                setattr(self, name, function)

    def _end(self) -> None:
        self.ended = True

    def __getattr__(self, name: str) -> Call:
        if name not in SIGNATURES:
            raise AttributeError(name)
        raise DeviceError(
            f"cuda: this NVIDIA driver has no {name}; install driver 525 (CUDA 12.0) or newer"
        )

    def has(self, name: str) -> bool:
        """Whether the driver is new enough to have a function."""
        return name in self.__dict__

    def check(self, name: str, code: int, about: str = "", asked: int = 0, held: int = 0) -> None:
        """Raise the error that a code stands for; `about` says what the call was for."""
        if code == SUCCESS:
            return
        if code == OUT_OF_MEMORY:
            raise self._out_of_memory(name, asked, held)
        hint = f"; {_HINTS[code]}" if code in _HINTS else ""
        raise DeviceError(f"cuda: {name} failed with {self.describe(code)}{about}{hint}")

    def describe(self, code: int) -> str:
        """The driver's name of an error and what it says of it."""
        words = []
        for get in (self.cuGetErrorName, self.cuGetErrorString):
            text = ctypes.c_char_p()
            found = get(code, ctypes.byref(text)) == SUCCESS and text.value
            words.append(found.decode() if found else f"error {code}")
        return f"{words[0]} ({words[1]})"

    @property
    def version(self) -> tuple[int, int]:
        """The newest CUDA that the driver knows."""
        out = ctypes.c_int()
        self.check("cuDriverGetVersion", self.cuDriverGetVersion(ctypes.byref(out)))
        return out.value // 1000, out.value % 1000 // 10

    def memory(self) -> tuple[int, int]:
        """Bytes that are free, and all bytes, of the current device."""
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        code = self.cuMemGetInfo(ctypes.byref(free), ctypes.byref(total))
        return (free.value, total.value) if code == SUCCESS else (0, 0)

    def _out_of_memory(self, name: str, asked: int, held: int) -> TesseraError:
        free, total = self.memory()
        wanted = f"for {size_text(asked)}" if asked else "with CUDA_ERROR_OUT_OF_MEMORY"
        return OutOfMemoryError(
            f"cuda: {name} failed {wanted}: {size_text(free)} of {size_text(total)} are free and "
            f"tensors of this process hold {size_text(held)}; let go of tensors or use smaller ones"
        )


def size_text(n: int) -> str:
    """Bytes for people."""
    for unit, scale in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if n >= scale:
            return f"{n / scale:.1f} {unit}"
    return f"{n} bytes"


_LOCK = threading.Lock()
_DRIVER: Driver | None = None
_ABSENT = ""  # why there is no driver, once that is known


def load() -> Driver:
    """The driver of this machine, ready for use."""
    if _DRIVER is not None:
        return _DRIVER
    with _LOCK:
        return _first_load()


def _first_load() -> Driver:
    global _DRIVER, _ABSENT
    if _DRIVER is None and not _ABSENT:
        try:
            _DRIVER = started(ctypes.CDLL(LIBRARY))
        except OSError as e:
            _ABSENT = (
                f"cuda: there is no NVIDIA driver here ({LIBRARY}: {e}); install one, so that "
                "nvidia-smi works, or use the device 'cpu'"
            )
        except DeviceError as e:
            _ABSENT = e.message
    if _DRIVER is None:
        raise DeviceError(_ABSENT)
    return _DRIVER


def started(library: Any) -> Driver:
    """The driver in a library, after its start; an error when it finds no device."""
    driver = Driver(library)
    code, count = driver.cuInit(0), ctypes.c_int()
    if code == SUCCESS:
        code = driver.cuDeviceGetCount(ctypes.byref(count))
    if code == SUCCESS and count.value:
        return driver
    why = (
        "it counts 0 devices" if code == SUCCESS else f"cuInit failed with {driver.describe(code)}"
    )
    raise DeviceError(
        f"cuda: the NVIDIA driver finds no device: {why}; look at nvidia-smi and at "
        "CUDA_VISIBLE_DEVICES, or use the device 'cpu'"
    )


def available() -> bool:
    """Whether there is a driver with a device."""
    if _ABSENT:
        return False
    try:
        load()
    except DeviceError:
        return False
    return True


@contextmanager
def use(library: Any) -> Iterator[Driver]:
    """Take a library in place of the driver's while the block runs; what was made before stays as it is."""
    global _DRIVER, _ABSENT
    before = _DRIVER, _ABSENT
    _DRIVER, _ABSENT = started(library), ""
    try:
        yield _DRIVER
    finally:
        _DRIVER, _ABSENT = before


def _after_fork() -> None:
    """A child cannot use what its parent has started."""
    global _LOCK, _DRIVER, _ABSENT
    _LOCK = threading.Lock()
    if _DRIVER is not None:
        _DRIVER = None
        _ABSENT = (
            "cuda: this process was forked from one that had used the GPU, which CUDA does not allow; "
            "start processes by 'spawn' (multiprocessing.set_start_method)"
        )


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
