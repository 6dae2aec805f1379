"""The loop: step after step on batches by number, with checkpoints from which a run goes on to the bit."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tessera.core.blame import applied, blames_arguments, brief, demand_function
from tessera.core.errors import FileError, OperandError
from tessera.core.source import warn_caller
from tessera.data.loader import Loader
from tessera.lang.create import tensor
from tessera.ops.random_bits import fold_in
from tessera.ops.random_bits import key as make_key
from tessera.train.checkpoints import Checkpoints
from tessera.train.dashboard import Dashboard
from tessera.train.metrics import Logger
from tessera.train.stop import EarlyStop

Step = Callable[[Any, Any, Any], tuple[Any, Mapping[str, Any]]]


@dataclass(frozen=True)
class Result:
    """How a run ended: its state, how many steps were done, the last metrics, and whether
    it stopped early.
    """

    state: Any
    step: int
    metrics: Mapping[str, float]
    stopped: bool


@blames_arguments
def fit(
    step: Step,
    state: Any,
    batches: Loader | Callable[[int], Any],
    steps: int,
    key: Any = None,
    checkpoints: Checkpoints | None = None,
    loggers: Sequence[Logger] = (),
    log_every: int = 1,
    evaluate: Callable[[Any], Mapping[str, Any]] | None = None,
    evaluate_every: int | None = None,
    stop: EarlyStop | None = None,
    progress: bool | None = None,
) -> Result:
    """Run state, metrics = step(state, batch, key) for so many steps, from the newest checkpoint on if
    there is one.

    Batches come from a loader, or from a function of the number of the step.  Each step has a key of its
    own, a function of `key` and its number.  So a run that was killed goes on with the bits that it would
    have had.
    """
    if steps < 0 or log_every < 1:
        raise OperandError(
            f"fit: steps is {steps} and log_every {log_every}, expected 0 and 1 at least"
        )
    if not callable(batches) and not isinstance(batches, Loader):
        raise OperandError(
            f"fit: batches is {type(batches).__name__} {brief(batches, 40)}, "
            "expected a ts.data.Loader, or a function of the "
            "number of the step"
        )
    demand_function("fit: step(state, batch, key)", step)
    for name, x, kind in (("checkpoints", checkpoints, Checkpoints), ("stop", stop, EarlyStop)):
        if x is not None and not isinstance(x, kind):
            raise OperandError(
                f"fit: {name} is {type(x).__name__} {brief(x, 40)}, expected ts.train.{kind.__name__}(...)"
            )
    for logger in loggers:
        if not hasattr(logger, "write"):
            raise OperandError(
                f"fit: a logger is {type(logger).__name__} {brief(logger, 40)}, expected objects such as "
                "ts.train.CSV(path)"
            )
    if (evaluate is None) != (evaluate_every is None):
        raise OperandError("fit: give both of evaluate and evaluate_every, or none")
    run = _FitRun(step, state, batches, make_key(0) if key is None else key, checkpoints, stop)
    run.restore()
    told = _with_dashboard(loggers, progress, steps)
    opened: list[Logger] = []
    try:
        for logger in told:
            logger.open(run.at)
            opened.append(logger)
        return run.go(steps, _Reports(told, log_every, evaluate, evaluate_every))
    finally:
        for logger in opened:
            logger.close()


def _with_dashboard(
    loggers: Sequence[Logger], progress: bool | None, steps: int
) -> Sequence[Logger]:
    """The loggers, and curves in the terminal where they are wanted and no dashboard is given."""
    boards = [x for x in loggers if isinstance(x, Dashboard)]
    for board in boards:
        board.history.total = steps
    if boards or not (sys.stderr.isatty() if progress is None else progress):
        return loggers
    return (*loggers, Dashboard(terminal=True, steps=steps))


@dataclass
class _Reports:
    """What is told of a step, and to whom."""

    loggers: Sequence[Logger]
    every: int
    evaluate: Callable[[Any], Mapping[str, Any]] | None
    evaluate_every: int | None

    def tell(self, at: int, state: Any, metrics: Mapping[str, Any]) -> dict[str, float] | None:
        """Log the metrics of a step where they are due; None where they are not."""
        values = _numbers(metrics) if at % self.every == 0 else None
        if self.evaluate is not None and self.evaluate_every and at % self.evaluate_every == 0:
            values = (values or {}) | _numbers(self.evaluate(state))
        if values is not None:
            for logger in self.loggers:
                logger.write(at, values)
        return values

    def flush(self) -> None:
        for logger in self.loggers:
            logger.flush()


def _numbers(metrics: Mapping[str, Any]) -> dict[str, float]:
    if not isinstance(metrics, Mapping):
        raise OperandError(
            f"fit: the metrics of a step are {type(metrics).__name__} {metrics!r:.40}, expected a dict of "
            "numbers, as in "
            "{'loss': loss}"
        )
    return {name: _number(name, x) for name, x in metrics.items()}


def _number(name: Any, x: Any) -> float:
    try:
        return float(x)
    except (TypeError, ValueError):
        got = getattr(x, "type", None) or f"{type(x).__name__} {brief(x, 40)}"
        raise OperandError(f"fit: the metric {name!r} is {got}, expected a number") from None


class _FitRun:
    def __init__(
        self,
        step: Step,
        state: Any,
        batches: Any,
        key: Any,
        checkpoints: Checkpoints | None,
        stop: EarlyStop | None,
    ):
        self.step, self.state, self.batches, self.key = step, state, batches, key
        self.checkpoints, self.stop, self.at = checkpoints, stop, 0
        self.over = False

    def _tree(self) -> dict[str, Any]:
        return {
            "state": self.state,
            "step": self.at,
            "key": self.key,
            "stop": {} if self.stop is None else self.stop.state,
            "over": self.over,
            "data": _identity(self.batches),
        }

    def restore(self) -> None:
        found = None if self.checkpoints is None else self.checkpoints.restore(self._tree())
        if found is None:
            return
        if found["data"] != _identity(self.batches):
            raise FileError(
                f"fit: the checkpoint is of a run on {found['data']}, and the loader is "
                f"{_identity(self.batches)}; give "
                "the same data, or another folder"
            )
        if found["key"].numpy().tolist() != self.key.numpy().tolist():
            raise FileError(
                "fit: the checkpoint is of a run with another key; give the same key, or another folder"
            )
        self.state, self.at, self.over = found["state"], found["step"], found["over"]
        if self.stop is not None:
            self.stop.restore(found["stop"])

    def save(self) -> None:
        if self.checkpoints is not None:
            self.checkpoints.save(self.at, self._tree())

    def _batches(self, steps: int) -> Iterator[Any]:
        if isinstance(self.batches, Loader):
            return self.batches.steps(self.at, steps)
        return (self.batches(s) for s in range(self.at, steps))

    def go(self, steps: int, reports: _Reports) -> Result:
        values: dict[str, float] = {}
        start = self.at
        for batch in self._batches(steps) if not self.over else ():
            self.state, metrics = self._stepped(batch)
            self.at += 1
            told = reports.tell(self.at, self.state, metrics)
            values = values if told is None else told
            self.over = self.stop is not None and told is not None and self.stop.is_over(told)
            due = self.checkpoints is not None and self.checkpoints.is_due(self.at)
            if due or self.over or self.at == steps:
                reports.flush()  # rows of steps that will not be done again
                self.save()
            if self.over:
                break
        assert self.at >= start, "steps are counted"
        if self.stop is not None and self.stop.is_blind:
            warn_caller(
                f"fit: the run had no metric {self.stop.metric!r}, so EarlyStop did nothing; the step gives "
                f"{', '.join(values) or 'none'}"
            )
        return Result(self.state, self.at, values, self.over)

    def _stepped(self, batch: Any) -> tuple[Any, Mapping[str, Any]]:
        key = fold_in(self.key, tensor(self.at))
        out: Any = applied("fit: step(state, batch, key)", self.step, (self.state, batch, key), {})
        if not _is_pair(out):
            raise OperandError(
                f"fit: the step returned {type(out).__name__}, expected (state, metrics)"
            )
        state, metrics = out
        return state, metrics


def _is_pair(x: Any) -> bool:
    return isinstance(x, tuple) and len(x) == 2


def _identity(batches: Any) -> dict[str, Any]:
    """What the order of the data depends on."""
    if not isinstance(batches, Loader):
        return {}
    words = batches.order.words
    return {"count": batches.count, "batch": batches.batch_size, "key": list(words or ())}
