"""Streams and events: work of a stream runs in order; events order work of different ones."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from tessera.runtime.cuda.driver import NOT_READY

if TYPE_CHECKING:
    from tessera.runtime.cuda.device import Gpu

_NON_BLOCKING, _NO_TIMING = 1, 2


class _Aside(threading.local):
    """Where a thread gives its work to another stream than the main one, and what memory it asked for
    there.
    """

    stream: DriverStream | None = None
    staging: Any = None
    blocks: list[Any] | None = None


ASIDE = _Aside()


@contextmanager
def aside(stream: DriverStream, staging: Any) -> Iterator[list[Any]]:
    """Give the work of this thread to a stream, and copies their own pinned buffers; the blocks that it
    asked for.
    """
    before = ASIDE.stream, ASIDE.staging, ASIDE.blocks
    ASIDE.stream, ASIDE.staging, ASIDE.blocks = stream, staging, []
    try:
        yield ASIDE.blocks
    finally:
        ASIDE.stream, ASIDE.staging, ASIDE.blocks = before


class DriverStream:
    """A queue of work on a device; given a handle, the stream of another library."""

    __slots__ = ("_owned", "gpu", "handle")

    def __init__(self, gpu: Gpu, handle: int | None = None, priority: int = 0):
        self.gpu, self._owned = gpu, False
        if handle is not None:
            self.handle = handle
            return
        gpu.make_current()
        made = ctypes.c_void_p()
        if priority:
            create = gpu.driver.cuStreamCreateWithPriority
            code = create(ctypes.byref(made), _NON_BLOCKING, priority)
        else:
            code = gpu.driver.cuStreamCreate(ctypes.byref(made), _NON_BLOCKING)
        gpu.driver.check("cuStreamCreate", code)
        self.handle, self._owned = made.value or 0, True

    def synchronize(self) -> None:
        """Wait until all work so far is done."""
        self.gpu.make_current()
        code = self.gpu.driver.cuStreamSynchronize(self.handle)
        self.gpu.driver.check("cuStreamSynchronize", code)

    def done(self) -> bool:
        """Whether all work so far is done."""
        self.gpu.make_current()
        code = self.gpu.driver.cuStreamQuery(self.handle)
        if code != NOT_READY:
            self.gpu.driver.check("cuStreamQuery", code)
        return code != NOT_READY

    def record(self, event: DriverEvent | None = None) -> DriverEvent:
        """Mark this point of the stream."""
        event = DriverEvent(self.gpu) if event is None else event
        event.record(self)
        return event

    def wait(self, other: DriverEvent | DriverStream) -> None:
        """Let later work here wait for an event, or for the work so far of another stream."""
        event = other.record() if isinstance(other, DriverStream) else other
        event.wait(self)

    def __del__(self) -> None:
        if self._owned and not self.gpu.driver.ended:
            self.gpu.driver.cuStreamDestroy(self.handle)


class DriverEvent:
    """A point in the work of a stream."""

    __slots__ = ("gpu", "handle", "timing")

    def __init__(self, gpu: Gpu, timing: bool = False):
        self.gpu, self.timing, self.handle = gpu, timing, 0
        gpu.make_current()
        made = ctypes.c_void_p()
        code = gpu.driver.cuEventCreate(ctypes.byref(made), 0 if timing else _NO_TIMING)
        gpu.driver.check("cuEventCreate", code)
        self.handle = made.value or 0

    def record(self, stream: DriverStream | None = None) -> None:
        """Move this event to the present end of a stream (the one in force, if none is given)."""
        self.gpu.make_current()
        stream = self.gpu.stream if stream is None else stream
        code = self.gpu.driver.cuEventRecord(self.handle, stream.handle)
        self.gpu.driver.check("cuEventRecord", code)

    def wait(self, stream: DriverStream) -> None:
        """Let later work of a stream wait for this event."""
        stream.gpu.make_current()
        code = stream.gpu.driver.cuStreamWaitEvent(stream.handle, self.handle, 0)
        stream.gpu.driver.check("cuStreamWaitEvent", code)

    def synchronize(self) -> None:
        """Wait for this event."""
        self.gpu.make_current()
        code = self.gpu.driver.cuEventSynchronize(self.handle)
        self.gpu.driver.check("cuEventSynchronize", code)

    def done(self) -> bool:
        """Whether the work before this event is done."""
        self.gpu.make_current()
        code = self.gpu.driver.cuEventQuery(self.handle)
        if code != NOT_READY:
            self.gpu.driver.check("cuEventQuery", code)
        return code != NOT_READY

    def elapsed(self, end: DriverEvent) -> float:
        """Milliseconds from this event to a later one; both with timing, and both done."""
        assert (self.timing, end.timing) == (True, True), "elapsed: events were made without timing"
        self.gpu.make_current()
        out = ctypes.c_float()
        code = self.gpu.driver.cuEventElapsedTime(ctypes.byref(out), self.handle, end.handle)
        self.gpu.driver.check("cuEventElapsedTime", code)
        return out.value

    def __del__(self) -> None:
        if self.handle and not self.gpu.driver.ended:
            self.gpu.driver.cuEventDestroy(self.handle)
