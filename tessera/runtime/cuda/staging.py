"""Copies between the host and a device, through pinned memory that the device can read by itself.

Buffers go round: while the device copies one, the host fills or empties the next.  Small arrays share a
buffer. Copies belong to the main stream.
"""

from __future__ import annotations

import ctypes
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import TYPE_CHECKING

from tessera.core.errors import DeviceError
from tessera.core.processor import cores
from tessera.runtime.cuda.stream import DriverEvent

if TYPE_CHECKING:
    from tessera.runtime.cuda.device import Gpu

CHUNK = 1 << 23  # bytes of a buffer
_BUFFERS = 3  # one is filled, one travels, one is emptied
_LINE = 256  # bytes at whose multiples copies begin
_PART = 1 << 20  # bytes that are worth a thread
_THREADS = min(4, cores())


class _Buffer:
    """Pinned memory, and the event after which it may be used again."""

    __slots__ = ("_gpu", "address", "event", "used")

    def __init__(self, gpu: Gpu):
        self._gpu, self.used, self.address = gpu, 0, 0
        self.event = DriverEvent(gpu)
        made = ctypes.c_void_p()
        code = gpu.driver.cuMemHostAlloc(ctypes.byref(made), CHUNK, 0)
        gpu.driver.check("cuMemHostAlloc", code, " for a pinned buffer", CHUNK, gpu.pool.used)
        self.address = made.value or 0


class Staging:
    """The pinned buffers of a device."""

    def __init__(self, gpu: Gpu):
        self._gpu = gpu
        self._locks = threading.Lock(), threading.Lock()
        self._up: list[_Buffer] = []
        self._down: list[_Buffer] = []
        self._turn = 0

    def send(self, ptr: int, source: int, nbytes: int) -> None:
        """Copy host memory to the device; the host memory is free when this returns."""
        self._check()
        with self._locks[0]:
            self._gpu.make_current()
            driver, stream = self._gpu.driver, self._gpu.stream.handle
            for at in range(0, nbytes, CHUNK):
                n = min(CHUNK, nbytes - at)
                buffer = self._room(n)
                place = buffer.address + buffer.used
                _copy(place, source + at, n)
                code = driver.cuMemcpyHtoDAsync(ptr + at, place, n, stream)
                driver.check("cuMemcpyHtoDAsync", code)
                buffer.used += n + _LINE - 1 & -_LINE

    def _room(self, n: int) -> _Buffer:
        """A buffer with so many bytes that the device is not reading."""
        if not self._up:
            self._up.append(_Buffer(self._gpu))
        buffer = self._up[self._turn]
        if buffer.used + n <= CHUNK:
            return buffer
        buffer.event.record()
        self._turn = (self._turn + 1) % _BUFFERS
        if self._turn == len(self._up):
            self._up.append(_Buffer(self._gpu))
        buffer = self._up[self._turn]
        if buffer.used:
            buffer.event.synchronize()
            buffer.used = 0
        return buffer

    def receive(self, target: int, ptr: int, nbytes: int) -> None:
        """Copy device memory to the host, after all work of the main stream so far."""
        self._check()
        with self._locks[1]:
            self._gpu.make_current()
            starts = range(0, nbytes, CHUNK)
            while len(self._down) < min(_BUFFERS, len(starts)):
                self._down.append(_Buffer(self._gpu))
            for i in range(len(starts) + len(self._down)):
                buffer = self._down[i % len(self._down)]
                if 0 <= i - len(self._down) < len(starts):
                    at = starts[i - len(self._down)]
                    buffer.event.synchronize()
                    _copy(target + at, buffer.address, min(CHUNK, nbytes - at))
                if i < len(starts):
                    self._fetch(buffer, ptr + starts[i], min(CHUNK, nbytes - starts[i]))

    def _fetch(self, buffer: _Buffer, ptr: int, n: int) -> None:
        driver = self._gpu.driver
        code = driver.cuMemcpyDtoHAsync(buffer.address, ptr, n, self._gpu.stream.handle)
        driver.check("cuMemcpyDtoHAsync", code)
        buffer.event.record()

    def _check(self) -> None:
        if self._gpu.capturing:
            raise DeviceError(
                f"{self._gpu.kind}: host memory cannot be copied while the main stream is captured; "
                "copy before or after"
            )


@cache
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(_THREADS, thread_name_prefix="tessera-copy")


def _copy(target: int, source: int, n: int) -> None:
    """Copy host memory, on several threads where that is faster; ctypes lets go of the interpreter."""
    parts = min(_THREADS, n // _PART)
    if parts < 2:
        ctypes.memmove(target, source, n)
        return
    step = -(-n // parts)
    try:
        work = [
            _threads().submit(ctypes.memmove, target + at, source + at, min(step, n - at))
            for at in range(step, n, step)
        ]
    except RuntimeError:  # no thread starts at exit
        ctypes.memmove(target, source, n)
        return
    ctypes.memmove(target, source, step)
    for w in work:
        w.result()
