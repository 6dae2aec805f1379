"""Streams and events: calls that run in order, beside what their caller does.

    with ts.Stream() as s:   # ts.Stream(device="cuda"): a stream of a GPU (device_stream.py)
        y = f(x)             # a jitted function: queued, and back at once
    z = op.sum(y)            # waits for y

A stream keeps its own order and knows nothing of other streams.  What needs a tensor that is not there
yet waits for it; an event lets a stream, or the host, wait for what another stream was told before.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import Any

from tessera.core import call_guard
from tessera.core.blame import constructor_blames_arguments
from tessera.core.deferred import Deferred
from tessera.core.device import CPU, Device
from tessera.core.errors import OperandError, located
from tessera.core.flags import carried
from tessera.core.open_blocks import OpenBlocks
from tessera.core.types import TensorType
from tessera.ir.graph.ir import Array, Value, data_of
from tessera.lang.device import as_device
from tessera.lang.tensor import Tensor

Run = Callable[[Sequence[Array]], Sequence[Array]]


@constructor_blames_arguments
class Event:
    """A point in a stream, reached when all that the stream was told before it is done."""

    def __init__(self) -> None:
        self._reached: Any = None  # a future, or a point in the work of a GPU

    @property
    def done(self) -> bool:
        """Whether it was reached."""
        return self._reached is not None and self._reached.done()

    def wait(self) -> None:
        """Let the caller wait until it is reached."""
        self._time()

    def elapsed(self, later: Event) -> float:
        """Milliseconds from this event to a later one; waits for both."""
        between = getattr(self._reached, "elapsed", None)
        if between is None and not hasattr(later._reached, "elapsed"):
            return (later._time() - self._time()) * 1e3
        self._time(), later._time()
        if between is None or not isinstance(later._reached, type(self._reached)):
            raise located(
                OperandError(
                    "event: one of the two is of a GPU and one of the host; record both in one stream"
                )
            )
        return between(later._reached)  # type: ignore[no-any-return]

    def _time(self) -> float:
        if self._reached is None:
            raise located(
                OperandError("event: it was recorded in no stream; call stream.record(event) first")
            )
        return self._reached.result()  # type: ignore[no-any-return]


@constructor_blames_arguments
class Stream:
    """A queue of calls: with a thread of its own, or of a GPU if `device` is one.

    Streams of a GPU with a lower number for `priority` go first where several wait for it.
    """

    def __new__(cls, device: Any = None, *rest: Any, **more: Any) -> Stream:
        """A stream of the host, or of the GPU that is named; __init__ checks the arguments."""
        of_gpu = device is not None and as_device(device).kind != "cpu"
        kind: Any = _OF_DEVICE.function() if of_gpu else cls
        made: Stream = object.__new__(kind)
        return made

    def __init__(self, device: Any = None, priority: int = 0) -> None:
        self.device: Device = CPU if device is None else as_device(device)
        if priority:
            raise located(
                OperandError(
                    f"Stream: priority is {priority}, but streams of the CPU have none; "
                    "name a GPU as its device"
                )
            )
        self._thread = ThreadPoolExecutor(1, "stream")
        self._calls: list[Future[Any]] = []  # those whose failure nobody has seen

    def __enter__(self) -> Stream:
        """Jitted functions that are called in the block run on this stream."""
        _OPEN.open(self)
        call_guard.begin()
        return self

    def __exit__(self, *_: object) -> None:
        call_guard.end()
        _OPEN.close_last(lambda stream: stream is self)

    def record(self, event: Event | None = None) -> Event:
        """An event after all that this stream was told so far."""
        event = event or Event()
        event._reached = self._thread.submit(time.perf_counter)
        return event

    def wait(self, event: Event) -> None:
        """Let what this stream is told from now on wait for an event of another stream."""
        if event._reached is None:
            event.wait()
        self._thread.submit(event.wait)

    def synchronize(self) -> None:
        """Wait until all is done; raises what failed first."""
        calls, self._calls = self._calls, []
        self.record().wait()
        for call in calls:
            call.result()

    def call(
        self, executable: Any, tensors: Sequence[Value], types: Sequence[TensorType], user: str
    ) -> list[Tensor]:
        """Queue a call of a compiled function; the tensors that it will give."""
        return self.submit(executable.run, tensors, types, user)

    def submit(
        self, run: Run, operands: Sequence[Value], types: Sequence[TensorType], user: str
    ) -> list[Tensor]:
        """Queue a call; the tensors that it will give."""

        @carried
        def call() -> Sequence[Array]:
            return run([data_of(v, user) for v in operands])

        self._calls = [c for c in self._calls if not c.done() or c.exception()]
        self._calls.append(self._thread.submit(call))
        return [_pending(t, self._calls[-1], i) for i, t in enumerate(types)]


_OF_DEVICE = Deferred("tessera.lang.device_stream:DeviceStream")
_OPEN: OpenBlocks[Stream] = OpenBlocks("tessera streams")


def current_stream() -> Stream | None:
    """The stream that jitted functions run on here."""
    return _OPEN.innermost()


class Pending(Tensor):
    """A tensor that a stream will bring: its type is known, its elements are waited for."""

    __slots__ = ("_call", "_number")
    _call: Future[Sequence[Array]] | None  # None: the elements were donated
    _number: int

    @property
    def storage(self) -> Array | None:
        """The elements."""
        return None if self._call is None else self._call.result()[self._number]

    @storage.setter
    def storage(self, x: Array | None) -> None:
        assert x is None, "only donating a tensor changes it"
        self._call = None


@cache
def _copies() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(2, "tessera-fetch")


def fetched(
    x: Tensor, around: Callable[[], AbstractContextManager[Any]] = nullcontext, data: Any = None
) -> Tensor:
    """A tensor of a GPU on the host, copied while the caller goes on."""
    held: Any = data_of(x, "to") if data is None else data

    def copied() -> Sequence[Array]:
        with around():
            return [held.numpy()]

    return _pending(x.type, _copies().submit(copied), 0)


def _pending(type: TensorType, call: Future[Sequence[Array]], number: int) -> Tensor:
    t = object.__new__(Pending)
    t.type, t.device, t.node, t.index, t.builder = type, CPU, None, 0, None
    t._call, t._number = call, number
    return t
