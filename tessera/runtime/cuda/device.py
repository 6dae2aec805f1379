"""Devices: what they are, their primary contexts, their main streams and their memory."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property

from tessera.core.errors import DeviceError
from tessera.runtime.cuda import driver as _driver
from tessera.runtime.cuda.driver import PEER_ALREADY, DriverApi
from tessera.runtime.cuda.kept import Engines
from tessera.runtime.cuda.pool import DevicePool
from tessera.runtime.cuda.staging import Staging
from tessera.runtime.cuda.stream import ASIDE, DriverStream


class _Current(threading.local):
    gpu: Gpu | None = None


_CURRENT = _Current()


class Gpu:
    """One device.  Use `gpu(index)`: two for one device would not know of each other's memory."""

    def __init__(self, index: int, kind: str = "cuda"):
        self.driver: DriverApi = _driver.load(kind)
        n = count(kind)
        if not 0 <= index < n:
            names = ", ".join(f"{kind}:{i}" for i in range(n))
            raise DeviceError(f"{kind}: there is no device {kind}:{index}; devices are {names}")
        self.kind, self.index, self._alone = kind, index, n == 1
        handle = ctypes.c_int()
        self.driver.check("cuDeviceGet", self.driver.cuDeviceGet(ctypes.byref(handle), index))
        self._handle = handle.value
        self.context = self._context()
        self.name = self._name()
        api, wanted = self.driver.api, self.driver.api.attributes
        self.capability = (self._attribute(wanted.major), self._attribute(wanted.minor))
        self.architecture, built_for = api.architecture(self.driver, self._handle, self.capability)
        self.warp = self._attribute(wanted.warp)  # threads
        self.target: tuple[str, int | str, int] = (kind, built_for, self.warp)  # of Triton
        self.multiprocessors = self._attribute(wanted.multiprocessors)
        self.shared_per_block = self._attribute(wanted.shared)  # bytes that a kernel can opt in to
        self.l2 = self._attribute(wanted.l2)
        self._reached: set[Gpu] = set()  # devices whose memory this one was told to read by itself
        self.main = DriverStream(self)
        self.pool = DevicePool(self)
        self._staging = Staging(self)
        self.capturing = False  # whether the main stream is being captured
        self.deferred: list[Callable[[], None]] = []  # what waits for the end of that

    @cached_property
    def engines(self) -> Engines:
        """What copies between this device and pinned memory beside its kernels."""
        return Engines(self)

    @property
    def stream(self) -> DriverStream:
        """The stream that work of this thread goes to: the main one, unless it runs aside."""
        s = ASIDE.stream
        return self.main if s is None or s.gpu is not self else s

    @property
    def staging(self) -> Staging:
        """The pinned buffers of that stream."""
        s = ASIDE.stream
        return self._staging if s is None or s.gpu is not self else ASIDE.staging

    def make_current(self) -> None:
        """Let calls of this thread mean this device."""
        if self._alone and _CURRENT.gpu is self:
            return
        # Among several devices another library may have chosen one since.
        now = ctypes.c_uint64()  # a context, or the number of a device in its lower half
        self.driver.check("cuCtxGetCurrent", self.driver.cuCtxGetCurrent(ctypes.byref(now)))
        if now.value != self.context:
            self.driver.check("cuCtxSetCurrent", self.driver.cuCtxSetCurrent(self.context))
        _CURRENT.gpu = self

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Make this device current and then the one before it: for what may happen in the middle of other
        calls.
        """
        before = ctypes.c_uint64()
        if not self._alone:
            code = self.driver.cuCtxGetCurrent(ctypes.byref(before))
            self.driver.check("cuCtxGetCurrent", code)
        self.make_current()
        try:
            yield
        finally:
            if not self._alone:
                self.driver.cuCtxSetCurrent(before.value)

    def reach(self, other: Gpu) -> None:
        """Let this device read the memory of another one by itself, where the two can do that."""
        if other in self._reached:
            return
        self._reached.add(other)
        can = ctypes.c_int()
        code = self.driver.cuDeviceCanAccessPeer(ctypes.byref(can), self._handle, other._handle)
        self.driver.check("cuDeviceCanAccessPeer", code, f" of {self.kind}:{other.index}")
        if can.value:
            self.make_current()
            code = self.driver.cuCtxEnablePeerAccess(other.context, 0)
            if code != PEER_ALREADY:  # another library was first
                self.driver.check("cuCtxEnablePeerAccess", code, f" to {self.kind}:{other.index}")

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

    def _context(self) -> int:
        """What stands for this device where one becomes current."""
        if not self.driver.api.contexts:
            return self._handle
        context = ctypes.c_void_p()
        code = self.driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), self._handle)
        self.driver.check("cuDevicePrimaryCtxRetain", code, f" on {self.kind}:{self.index}")
        return context.value or 0

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
        return f"{self.kind}:{self.index} ({self.name})"


def count(kind: str = "cuda") -> int:
    """How many devices there are."""
    driver, out = _driver.load(kind), ctypes.c_int()
    driver.check("cuDeviceGetCount", driver.cuDeviceGetCount(ctypes.byref(out)))
    return out.value


_GPUS: dict[tuple[DriverApi, int], Gpu] = {}
_LOCK = threading.Lock()


def gpu(index: int = 0, kind: str = "cuda") -> Gpu:
    """The device of this number."""
    key = (_driver.load(kind), index)
    found = _GPUS.get(key)
    if found is None:
        with _LOCK:
            found = _GPUS.get(key) or _GPUS.setdefault(key, Gpu(index, kind))
    return found


def memory_in_use() -> dict[str, int]:
    """Bytes of blocks in use, for each GPU that this process has opened."""
    with _LOCK:
        return {f"{g.kind}:{g.index}": g.pool.used for g in _GPUS.values()}
