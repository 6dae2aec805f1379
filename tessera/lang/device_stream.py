"""Streams of a GPU: jitted functions and copies that run beside the device's main stream.

    with ts.Stream(device="cuda") as s:
        y = f(x)             # launched on s, after what makes x
    z = g(y)                 # the main stream waits for y, on the device

A result carries the event after which it can be read.  Whoever reads it lets its own stream wait for that,
so results never depend on timing.  Memory that a stream has used is used again when its work is done.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

from tessera.compile.gpu.executable import GpuExecutable
from tessera.core.device import Device
from tessera.core.errors import OperandError, located
from tessera.core.types import TensorType
from tessera.ir.graph.ir import Array, Value, data_of
from tessera.lang.device import as_device
from tessera.lang.stream import Event, Stream, fetched
from tessera.lang.tensor import Tensor
from tessera.runtime.cuda import stream as runtime
from tessera.runtime.cuda.device import gpu
from tessera.runtime.cuda.memory import DeviceArray
from tessera.runtime.cuda.pool import PoolBlock
from tessera.runtime.cuda.staging import Staging


class StreamPoint:
    """A point in the work of a GPU."""

    def __init__(self, stream: runtime.DriverStream):
        self.event = runtime.DriverEvent(stream.gpu, timing=True)
        self.event.record(stream)

    def done(self) -> bool:
        """Whether the work before it is done."""
        return self.event.done()

    def result(self) -> float:
        """Let the host wait."""
        self.event.synchronize()
        return 0.0

    def elapsed(self, later: StreamPoint) -> float:
        """Milliseconds on the device."""
        return self.event.elapsed(later.event)


class DeviceStream(Stream):
    """A stream of a GPU, beside the main one."""

    def __init__(self, device: Any = None, priority: int = 0) -> None:
        self.device: Device = as_device(device)
        self.priority = priority
        self._gpu = gpu(self.device.index, self.device.kind)
        self._stream = runtime.DriverStream(self._gpu, priority=priority)
        self._staging = Staging(self._gpu)
        self._ran: set[int] = set()  # programs that have run here

    def record(self, event: Event | None = None) -> Event:
        """An event after all that this stream was told so far."""
        event = event or Event()
        event._reached = StreamPoint(self._stream)
        return event

    def wait(self, event: Event) -> None:
        """Let what this stream is told from now on wait for an event of another stream."""
        if isinstance(event._reached, StreamPoint):
            event._reached.event.wait(self._stream)
        else:
            event.wait()

    def synchronize(self) -> None:
        """Wait until all is done."""
        self._stream.synchronize()

    def aside(self) -> AbstractContextManager[list[Any]]:
        """Give the work of this thread to this stream."""
        return runtime.aside(self._stream, self._staging)

    def call(
        self, executable: Any, tensors: Sequence[Value], types: Sequence[TensorType], user: str
    ) -> list[Tensor]:
        """Launch a program here; its results, which others wait for."""
        assert isinstance(executable, GpuExecutable), executable
        with self.aside():
            data: list[Any] = [data_of(v, user) for v in tensors]  # this stream waits for them
        run, program = executable.ready(data)  # what it keeps is made on the main stream
        with self.aside() as blocks:
            self._stream.wait(self._gpu.main)
            outs = run()
        event = self._stream.record()
        for block in (*blocks, *(x.owner for x in data if isinstance(x, DeviceArray))):
            if isinstance(block, PoolBlock):
                block.used_on(self._stream)
        if program not in self._ran:  # a first run may make what later ones keep
            self._ran.add(program)
            event.wait(self._gpu.main)
        return [self.promised(t, x, event) for t, x in zip(types, outs, strict=True)]

    def moved(self, x: Tensor, target: Device, non_blocking: bool = False) -> Tensor:
        """A tensor to or from the GPU of this stream, copied here."""
        if target.kind == "cpu" and x.device == self.device:
            with self.aside():
                data = data_of(x, "to")
                self._stream.wait(self._gpu.main)
            made = fetched(x, self.aside, data)
            if not non_blocking:
                data_of(made, "to")
            return made
        if target != self.device:
            raise located(
                OperandError(
                    f"to: the stream is of {self.device}, but the tensor goes to {target}; "
                    "use a stream of that device"
                )
            )
        with self.aside() as blocks:
            made = x._moved(target)
        event = self._stream.record()
        for block in blocks:
            block.used_on(self._stream)
        return self.promised(made.type, made.storage, event)

    def promised(self, type: TensorType, array: Any, event: runtime.DriverEvent) -> Tensor:
        """A tensor that this stream brings."""
        t = object.__new__(Promised)
        t.type, t.device, t.node, t.index, t.builder = type, self.device, None, 0, None
        t._promise, t._event, t._waited = array, event, {self._stream.handle}
        return t


class Promised(Tensor):
    """A tensor that a stream of a GPU brings: the stream that reads it waits for it on the device."""

    __slots__ = ("_event", "_promise", "_waited")
    _promise: DeviceArray | None  # None: the elements were donated
    _event: runtime.DriverEvent
    _waited: set[int]  # streams that come after it

    @property
    def storage(self) -> Array | None:
        """The elements, for the stream that is in force."""
        array = self._promise
        if array is not None:
            now = array.gpu.stream
            if now.handle not in self._waited:
                self._event.wait(now)
                self._waited.add(now.handle)
        return array  # type: ignore[return-value]

    @storage.setter
    def storage(self, x: Array | None) -> None:
        assert x is None, "only donating a tensor changes it"
        self._promise = None
