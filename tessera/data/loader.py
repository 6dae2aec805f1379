"""The loader: batch number s is a function of s alone, made ahead by threads or processes.

Which samples a batch holds depends on the key, the epoch and the size of a batch: not on workers, on
prefetching or on how many ranks share it.  So a run goes on at any step by asking for that step.
"""

from __future__ import annotations

import multiprocessing
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from typing import Any

import numpy as np

from tessera.core import tree
from tessera.core.blame import wanting
from tessera.core.errors import OperandError
from tessera.core.flags import with_threads
from tessera.core.public import public
from tessera.core.spans import span
from tessera.data.order import Order
from tessera.data.source import Source, source_of
from tessera.ir.graph.ir import Value, concrete
from tessera.lang.device import as_device

Array = np.ndarray[Any, np.dtype[Any]]
_KINDS = ("threads", "processes")
_source: Source | None = None  # of a process that loads for another


def _install(source: Source) -> None:
    global _source
    _source = source


def _rows(indices: Array) -> Any:
    assert _source is not None, "a process that was not installed"
    return _source.rows(indices)


_INSTEAD = {
    "__next__": "batches = iter(loader), then next(batches)",
    "__getitem__": "loader.batch(step), and loader.indices(step) for which samples it has",
    "__call__": "for batch in loader: ...",
    "dataset": "loader.indices(step): a loader gives batches, and has their samples' numbers",
    "sampler": "loader.order",
    "batch_sampler": "loader.indices(step)",
    "set_epoch": "loader.epoch(number)",
    "num_workers": "Loader(..., workers=2)",
    "shuffle": "Loader(..., key=ts.key(0))",
    "map": "Loader(..., transform=f)",
}


@public("a loader", _INSTEAD)
class Loader:
    """Batches of `batch` samples of arrays or of anything with a length and items.

    key       shuffles, anew in each epoch; without one samples keep their order
    transform (batch, keys) -> batch, with a key u32[2] for each sample, for augmentations
    workers   threads (or processes, kind="processes") that load `prefetch` batches ahead; 0: none.  A
              transform runs on the worker's own thread, beside the threads of a step
    rank, ranks   the share of each batch that this process takes
    epochs    how many epochs `steps` and `for batch in loader` go through; None: `steps` does not end,
              and each `for batch in loader` is one epoch, the first time epoch 0, then 1 and so on
    """

    @wanting
    def __init__(
        self,
        data: Any,
        batch: int,
        key: Any = None,
        transform: Callable[[Any, Any], Any] | None = None,
        workers: int = 1,
        kind: str = "threads",
        prefetch: int = 2,
        drop_last: bool = True,
        rank: int = 0,
        ranks: int = 1,
        epochs: int | None = None,
        collate: Callable[[list[Any]], Any] | None = None,
        device: Any = None,
    ):
        self._source = source_of(data, collate)
        self.count, self.batch_size = self._source.count, batch
        self.epochs = epochs
        self._check(kind, workers, prefetch, rank, ranks, drop_last)
        self.order = Order(self.count, key)
        self._transform, self._device = transform, None if device is None else as_device(device)
        self._workers, self._kind, self._prefetch = workers, kind, max(prefetch, workers)
        self._drop_last, self._rank, self._ranks = drop_last, rank, ranks
        self._pools: list[Executor] = []
        self._begun = 0  # epochs that were iterated over

    def _check(
        self, kind: str, workers: int, prefetch: int, rank: int, ranks: int, drop_last: bool
    ) -> None:
        if kind not in _KINDS:
            raise OperandError(f"Loader: kind is {kind!r}, expected one of {', '.join(_KINDS)}")
        for name, x, least in (
            ("workers", workers, 0),
            ("prefetch", prefetch, 1),
            ("batch", self.batch_size, 1),
            ("epochs", 1 if self.epochs is None else self.epochs, 1),
        ):
            if x < least:
                raise OperandError(f"Loader: {name} is {x}, expected at least {least}")
        if not 0 <= rank < ranks:
            raise OperandError(
                f"Loader: rank is {rank} of {ranks} ranks, expected 0 to {ranks - 1}"
            )
        if self.batch_size % ranks:
            raise OperandError(
                f"Loader: a batch of {self.batch_size} samples cannot be shared by {ranks} ranks; choose a "
                "multiple"
            )
        if self.count < (self.batch_size if drop_last or ranks > 1 else 1):
            raise OperandError(
                f"Loader: there are {self.count} samples, fewer than a batch of {self.batch_size}; choose a "
                "smaller one"
            )
        if ranks > 1 and not drop_last:
            raise OperandError(
                "Loader: drop_last=False leaves a batch that ranks cannot share; use drop_last=True"
            )

    def __len__(self) -> int:
        """Batches of an epoch."""
        full, rest = divmod(self.count, self.batch_size)
        return full + (1 if rest and not self._drop_last else 0)

    def __iter__(self) -> Iterator[Any]:
        if self.epochs is not None:
            return self.steps(0)
        number, self._begun = self._begun, self._begun + 1
        return self.epoch(number)

    def epoch(self, number: int) -> Iterator[Any]:
        """The batches of one epoch."""
        if number < 0:
            raise OperandError(f"Loader.epoch: number is {number}, expected at least 0")
        return self.steps(number * len(self), (number + 1) * len(self))

    def indices(self, step: int) -> Array:
        """Which samples batch number `step` holds, of this rank's share."""
        self._demand("indices", step)
        return self.order.at(*self._positions(step))

    def _positions(self, step: int) -> tuple[int, Array]:
        epoch, i = divmod(step, len(self))
        share = self.batch_size // self._ranks
        start = i * self.batch_size + self._rank * share
        return epoch, np.arange(start, min(start + share, self.count))

    def _demand(self, method: str, step: int) -> None:
        if not hasattr(step, "__index__") or step < 0:
            raise OperandError(
                f"Loader.{method}: step is {step!r:.40}, expected an integer from 0 on"
            )

    def batch(self, step: int) -> Any:
        """Batch number `step`, made now."""
        self._demand("batch", step)
        return self._finished(step, self._source.rows(self.indices(step)))

    def _finished(self, step: int, rows: Any) -> Any:
        made = tree.map(self._tensor, rows)
        if self._transform is not None:
            made = self._transform(made, self._tensor(self.order.keys(*self._positions(step))))
        return made

    def _tensor(self, x: Any) -> Any:
        if isinstance(x, Value):
            return x
        made: Any = concrete(x)
        return made if self._device is None else made.to(self._device)

    def steps(self, start: int = 0, stop: int | None = None) -> Iterator[Any]:
        """The batches from one step on, made ahead."""
        for name, x in (("start", start), ("stop", stop)):
            if x is not None and (x < 0 or not hasattr(x, "__index__")):
                raise OperandError(
                    f"Loader.steps: {name} is {x!r:.40}, expected an integer from 0 on"
                )
        if stop is None and self.epochs is not None:
            stop = self.epochs * len(self)
        if not self._workers:
            return (self.batch(s) for s in _numbers(start, stop))
        return self._ahead(start, stop)

    def _ahead(self, start: int, stop: int | None) -> Iterator[Any]:
        waiting: deque[tuple[int, Future[Any]]] = deque()
        submit, numbers = self._submitter(), _numbers(start, stop)
        try:
            while True:
                # One more than is ahead: the one that the caller gets next.
                while len(waiting) <= self._prefetch and (s := next(numbers, None)) is not None:
                    waiting.append((s, submit(s)))
                if not waiting:
                    return
                step, future = waiting.popleft()
                yield _result(step, future)
        finally:
            for _, future in waiting:
                future.cancel()

    def _submitter(self) -> Callable[[int], Future[Any]]:
        if not self._pools:
            self._open()
        if self._kind == "threads":
            return lambda s: self._pools[0].submit(_alone, self.batch, s)
        loading, finishing = self._pools

        def submit(s: int) -> Future[Any]:
            rows = loading.submit(_rows, self.indices(s))
            return finishing.submit(_alone, lambda: self._finished(s, rows.result()))

        return submit

    def _open(self) -> None:
        if self._kind == "processes":
            spawn = multiprocessing.get_context("spawn")
            self._pools.append(ProcessPoolExecutor(self._workers, spawn, _install, (self._source,)))
        threads = self._workers if self._kind == "threads" else 1
        self._pools.append(ThreadPoolExecutor(threads, "tessera-data"))
        weakref.finalize(self, _close, list(self._pools))

    def close(self) -> None:
        """End the workers; the next use starts them again."""
        _close(self._pools)
        self._pools = []


def _alone(f: Callable[..., Any], *args: Any) -> Any:
    """f on this thread alone: one that waits for the threads of a step comes when the step is over."""
    with with_threads(1):
        return f(*args)


def _close(pools: list[Executor]) -> None:
    for pool in pools:
        pool.shutdown(wait=False, cancel_futures=True)


def _numbers(start: int, stop: int | None) -> Iterator[int]:
    s = start
    while stop is None or s < stop:
        yield s
        s += 1


def _result(step: int, future: Future[Any]) -> Any:
    """A batch; a profile has the time that its reader waits for it."""
    try:
        if future.done():
            return future.result()
        with span("data", f"batch {step}"):
            return future.result()
    except Exception as e:
        e.add_note(f"while the loader made batch {step}")
        raise
