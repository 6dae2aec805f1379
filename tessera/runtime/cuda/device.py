"""Devices: what they are, their primary contexts, their main streams and their memory."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable

from tessera.core.errors import DeviceError
from tessera.runtime.cuda import driver as _driver
from tessera.runtime.cuda.driver import Driver
from tessera.runtime.cuda.pool import Pool
from tessera.runtime.cuda.staging import Staging
from tessera.runtime.cuda.stream import Stream

_MULTIPROCESSORS, _L2, _MAJOR, _MINOR, _SHARED = 16, 38, 75, 76, 97  # CUdevice_attribute


class _Current(threading.local):
    context: int = 0


_CURRENT = _Current()


class Gpu:
    """One device.  Use `gpu(index)`: two for one device would not know of each other's memory."""

    def __init__(self, index: int):
        self.driver: Driver = _driver.load()
        n = count()
        if not 0 <= index < n:
            names = ", ".join(f"cuda:{i}" for i in range(n))
            raise DeviceError(f"cuda: there is no device cuda:{index}; devices are {names}")
        self.index, self._alone = index, n == 1
        handle = ctypes.c_int()
        self.driver.check("cuDeviceGet", self.driver.cuDeviceGet(ctypes.byref(handle), index))
        self._handle = handle.value
        context = ctypes.c_void_p()
        code = self.driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), self._handle)
        self.driver.check("cuDevicePrimaryCtxRetain", code, f" on cuda:{index}")
        self.context = context.value or 0
        self.name = self._name()
        self.capability = (self._attribute(_MAJOR), self._attribute(_MINOR))
        self.multiprocessors = self._attribute(_MULTIPROCESSORS)
        self.shared_per_block = self._attribute(_SHARED)  # bytes that a kernel can opt in to
        self.l2 = self._attribute(_L2)
        self.stream = Stream(self)  # the main one
        self.pool = Pool(self)
        self.staging = Staging(self)
        self.capturing = False  # whether the main stream is being captured
        self.deferred: list[Callable[[], None]] = []  # what waits for the end of that

    def make_current(self) -> None:
        """Let calls of this thread mean this device."""
        if self._alone and _CURRENT.context == self.context:
            return
        # Among several devices another library may have chosen one since.
        now = ctypes.c_void_p()
        self.driver.check("cuCtxGetCurrent", self.driver.cuCtxGetCurrent(ctypes.byref(now)))
        if now.value != self.context:
            self.driver.check("cuCtxSetCurrent", self.driver.cuCtxSetCurrent(self.context))
        _CURRENT.context = self.context

    def synchronize(self) -> None:
        """Wait until the work of all streams is done."""
        self.make_current()
        self.driver.check("cuCtxSynchronize", self.driver.cuCtxSynchronize())

    @property
    def memory_total(self) -> int:
        """Bytes that the device has."""
        self.make_current()
        return self.driver.memory()[1]

    @property
    def memory_free(self) -> int:
        """Bytes that no process has taken."""
        self.make_current()
        return self.driver.memory()[0]

    def _attribute(self, which: int) -> int:
        out = ctypes.c_int()
        code = self.driver.cuDeviceGetAttribute(ctypes.byref(out), which, self._handle)
        self.driver.check("cuDeviceGetAttribute", code, f" for attribute {which}")
        return out.value

    def _name(self) -> str:
        text = ctypes.create_string_buffer(256)
        code = self.driver.cuDeviceGetName(text, len(text), self._handle)
        self.driver.check("cuDeviceGetName", code)
        return text.value.decode()

    def __repr__(self) -> str:
        return f"cuda:{self.index} ({self.name})"


def count() -> int:
    """How many devices there are."""
    driver, out = _driver.load(), ctypes.c_int()
    driver.check("cuDeviceGetCount", driver.cuDeviceGetCount(ctypes.byref(out)))
    return out.value


_GPUS: dict[tuple[Driver, int], Gpu] = {}
_LOCK = threading.Lock()


def gpu(index: int = 0) -> Gpu:
    """The device of this number."""
    key = (_driver.load(), index)
    found = _GPUS.get(key)
    if found is None:
        with _LOCK:
            found = _GPUS.get(key) or _GPUS.setdefault(key, Gpu(index))
    return found
