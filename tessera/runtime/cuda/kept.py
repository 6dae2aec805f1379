"""Values of a device that are kept in pinned memory of the host for a while, copied beside its kernels.

One stream copies out and one copies back, so that both directions of the bus are in use while kernels run.
Events keep the order: a copy out waits for what made the value, a copy back for the copy out and for who used
its place before.  Pinned memory is slow to get, so that it is kept for the next value of its size.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

from tessera.core.errors import DeviceError
from tessera.runtime.cuda.stream import DriverEvent, DriverStream

if TYPE_CHECKING:
    from tessera.runtime.cuda.device import Gpu


class Pinned(NamedTuple):
    """Pinned memory, and the event after which it may be written."""

    address: int
    free: DriverEvent | None


class PinnedValue(NamedTuple):
    """A value in pinned memory, and the event after which it is there."""

    address: int
    nbytes: int
    there: DriverEvent


class Engines:
    """The two streams of copies of a device, and the pinned memory that they have."""

    def __init__(self, gpu: Gpu):
        self._gpu = gpu
        self._out, self._back = DriverStream(gpu), DriverStream(gpu)
        self._bins: dict[int, list[Pinned]] = {}
        self.pinned = 0  # bytes
        self.times: list[tuple[DriverEvent, DriverEvent]] | None = (
            None  # of copies, while a profile asks
        )

    def out(self, ptr: int, nbytes: int) -> PinnedValue:
        """Begin to copy a value out, after the work of the stream in force so far."""
        gpu = self._gpu
        self._check()
        place = self._place(nbytes)
        gpu.make_current()
        self._out.wait(gpu.stream)
        if place.free is not None:
            self._out.wait(place.free)
        with self._timed(self._out):
            if nbytes:
                code = gpu.driver.cuMemcpyDtoHAsync(place.address, ptr, nbytes, self._out.handle)
                gpu.driver.check("cuMemcpyDtoHAsync", code)
        return PinnedValue(place.address, nbytes, self._out.record())

    def back(self, kept: PinnedValue, ptr: int) -> DriverEvent:
        """Begin to copy a value back, into memory that is free after the work of the stream in force so far;
        the event after which it is there.
        """
        gpu = self._gpu
        self._check()
        gpu.make_current()
        self._back.wait(gpu.stream)
        self._back.wait(kept.there)
        with self._timed(self._back):
            if n := kept.nbytes:
                code = gpu.driver.cuMemcpyHtoDAsync(ptr, kept.address, n, self._back.handle)
                gpu.driver.check("cuMemcpyHtoDAsync", code)
        there = self._back.record()
        self._bins.setdefault(kept.nbytes, []).append(Pinned(kept.address, there))
        return there

    def wait(self, event: DriverEvent) -> None:
        """Let later work of the stream in force wait for a copy."""
        self._gpu.stream.wait(event)

    @contextmanager
    def _timed(self, stream: DriverStream) -> Iterator[None]:
        """Record the events around a copy while a profile runs."""
        if self.times is None:
            yield
            return
        begin, end = (DriverEvent(self._gpu, timing=True) for _ in range(2))
        begin.record(stream)
        yield
        end.record(stream)
        self.times.append((begin, end))

    def _place(self, nbytes: int) -> Pinned:
        """Pinned memory of this size."""
        free = self._bins.get(nbytes)
        if free:
            try:
                return free.pop(0)  # the one that was read first is free first
            except IndexError:  # another thread was faster
                pass
        gpu, made = self._gpu, ctypes.c_void_p()
        if not nbytes:
            return Pinned(0, None)
        gpu.make_current()
        code = gpu.driver.cuMemHostAlloc(ctypes.byref(made), nbytes, 0)
        gpu.driver.check("cuMemHostAlloc", code, " for a value to keep", nbytes, gpu.pool.used)
        self.pinned += nbytes
        return Pinned(made.value or 0, None)

    def _check(self) -> None:
        if self._gpu.capturing:
            raise DeviceError(
                f"{self._gpu.kind}: an offloaded value cannot be copied while the main stream is captured; "
                "use another policy of checkpoint there"
            )
