"""The dashboard of a run: curves, throughput, memory and samples, live in a terminal and in a local page.

`ts.log` in any loop writes to the innermost open dashboard, or to one of its own that the first call opens.
"""

from __future__ import annotations

import atexit
import base64
import os
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from tessera.core import terminal as rich
from tessera.core.blame import blames_arguments, brief
from tessera.core.errors import OperandError
from tessera.core.png import png
from tessera.core.public import public
from tessera.files.atomic import replacing
from tessera.ir.graph.ir import Value, current_builder, host_data
from tessera.lang import debugging
from tessera.train.board_page import Board, page
from tessera.train.history import History, LoggedSample
from tessera.train.screen import line, screen

_QUIET = 10.0  # seconds between two lines where the output is no terminal
_LETTERS = 4000  # of a text
_PIXELS = 1024  # of a side of an image
_OPEN: list[Dashboard] = []  # innermost last


@public(
    "a dashboard",
    dict.fromkeys(("log", "add_scalar", "update", "__call__"), "ts.train.log({'loss': loss})"),
)
class Dashboard(AbstractContextManager["Dashboard"]):
    """Live curves, throughput, memory and samples of a run: in the terminal, in a page at a port of this
    machine, and in a file when it ends.

    It is a logger of ts.train.fit, and a context in whose block ts.log writes here.
    """

    @blames_arguments
    def __init__(
        self,
        name: str = "",
        port: int | None = None,
        file: str | os.PathLike[str] | None = None,
        terminal: bool | None = None,
        steps: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ):
        if not isinstance(name, str):
            raise OperandError(f"Dashboard: name is {type(name).__name__}, expected a string")
        if port is not None and not (_is_count(port) and port <= 65535):
            raise OperandError(
                f"Dashboard: port is {brief(port, 40)}, expected 0 to 65535 (0 takes any that is free), or "
                "None for no page"
            )
        if steps is not None and not _is_count(steps):
            raise OperandError(
                f"Dashboard: steps is {brief(steps, 40)}, expected how many there will be"
            )
        if file is not None and Path(file).suffix not in (".html", ".htm"):
            raise OperandError(
                f"Dashboard: file is {brief(str(file), 60)}, expected a name that ends in .html; "
                "train.CSV and train.JSONLines write tables"
            )
        self.history = History(name, clock)
        self.history.total = steps
        self.file = None if file is None else Path(file)
        self._port, self._terminal, self._clock = port, terminal, clock
        self._board: Board | None = None
        self._live: Any = None
        self._said, self._used = clock(), False

    @property
    def address(self) -> str | None:
        """Where a browser of this machine finds the page; None where there is none."""
        return None if self._board is None else self._board.address

    def __enter__(self) -> Dashboard:
        self.open(0)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, e: BaseException | None, tb: TracebackType | None
    ) -> None:
        self.close()

    def open(self, step: int) -> None:
        """Begin after this many steps: show the page and the curves."""
        if self in _OPEN:
            raise OperandError("Dashboard: it is open already; make one for each run")
        if self._used:
            raise OperandError("Dashboard: it was closed; make one for each run")
        self._used = True
        self.history.begin(step)
        if self._port is not None:
            self._board = Board(lambda: [self.history], self._port)
            self._board.start()
            sys.stderr.write(f"{self._board.address} shows the run\n")
        if self._terminal or (self._terminal is None and sys.stderr.isatty()):
            self._live = _shown(self.history)
        _OPEN.append(self)

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Show the numbers of a step."""
        self._add(step, values, {}, 0)

    def _add(
        self,
        step: int,
        values: Mapping[str, float],
        samples: Mapping[str, LoggedSample],
        items: int,
    ) -> None:
        self.history.add(step, values, samples, items)
        if self._live is None and self._terminal is None and self._clock() - self._said >= _QUIET:
            self._say()

    def _say(self) -> None:
        self._said = self._clock()
        sys.stderr.write(line(self.history) + "\n")

    def flush(self) -> None:
        """Nothing: what is shown is shown at once."""

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the page as one file that any browser shows."""
        where = Path(path)
        where.parent.mkdir(parents=True, exist_ok=True)
        with replacing(where) as f:
            f.write(page([self.history.data()]).encode())

    def close(self) -> None:
        """End the run: the curves stay in the terminal, the page is no longer served, the file is written."""
        if self not in _OPEN:
            return
        _OPEN.remove(self)
        self.history.end()
        if self._live is not None:
            self._live.stop()
        elif self._terminal is None and self.history.version > 1:
            self._say()
        if self._board is not None:
            self._board.stop()
        if self.file is not None:
            self.save(self.file)


def _is_count(x: Any) -> bool:
    return isinstance(x, int) and not isinstance(x, bool) and x >= 0


def _shown(run: History) -> Any:
    """The curves of a run in the terminal, drawn again four times a second."""
    console = rich.Console(stderr=True)
    live = rich.Live(get_renderable=lambda: rich.Text(screen(run, console.width)), console=console)
    live.start()
    return live


def current() -> Dashboard:
    """The innermost open dashboard, or the one that ts.log opens for a whole program."""
    if not _OPEN:
        made = Dashboard(Path(sys.argv[0] or "run").stem, port=0 if sys.stderr.isatty() else None)
        made.open(0)
        atexit.register(made.close)
    return _OPEN[-1]


@blames_arguments
def log(
    values: Mapping[str, Any] | None = None,
    /,
    *,
    step: int | None = None,
    items: int = 0,
    **named: Any,
) -> None:
    """Log what a step made: numbers become curves, texts and images (rows by columns, with 3 colours or none)
    become samples.

    The dashboard that shows them is the innermost open ts.train.Dashboard, or one that the first call opens.
    Without `step` a step ends when a name comes again.  `items` says how many examples or tokens the step
    took, for throughput.  Inside a jitted function the values are logged each time the program runs.
    """
    given = _named(values, named)
    if step is not None and not _is_count(step):
        raise OperandError(f"log: step is {brief(step, 40)}, expected an integer of 0 or more")
    if not _is_count(items):
        raise OperandError(
            f"log: items is {brief(items, 40)}, expected how many examples or tokens the step took"
        )
    if current_builder() is None:
        _logged(given, step, items)
        return
    for name, x in given.items():
        if isinstance(x, Value) and x.type.rank > 3:
            raise _unfit(name, x)
    debugging.callback(lambda **arrays: _logged(arrays, step, items), **given)


def _named(values: Any, named: Mapping[str, Any]) -> dict[str, Any]:
    if values is not None and not isinstance(values, Mapping):
        raise OperandError(
            f"log: got {type(values).__name__} {brief(values, 40)}, expected names with values, as in "
            "ts.log(loss=loss) or ts.log({'loss': loss})"
        )
    given = {**(values or {}), **named}
    if not given:
        raise OperandError("log: nothing is given; write ts.log(loss=loss)")
    for name in given:
        if not isinstance(name, str) or not name:
            raise OperandError(
                f"log: {brief(name, 40)} is no name, expected a string such as 'loss'"
            )
    return given


def _logged(given: Mapping[str, Any], step: int | None, items: int) -> None:
    numbers: dict[str, float] = {}
    samples: dict[str, Any] = {}
    for name, x in given.items():
        shown = x if isinstance(x, str) else _array(name, x)
        if isinstance(shown, str) or shown.ndim:
            samples[name] = shown
        else:
            numbers[name] = float(shown)
    board = current()
    at = _step(board.history, given, step)
    board._add(at, numbers, {k: _sample(k, x, at) for k, x in samples.items()}, items)


def _step(run: History, given: Mapping[str, Any], step: int | None) -> int:
    """The step that values are of: the one that is named, or the next when a name comes again."""
    if step is not None:
        if step < run.step:
            raise OperandError(f"log: step is {step} after step {run.step}; steps go up")
        return step
    again = any(
        (name in run.curves and run.at[name] == run.step)
        or (name in run.samples and run.samples[name][-1].step == run.step)
        for name in given
    )
    return run.step + 1 if again or not run.version else run.step


def _array(name: str, x: Any) -> np.ndarray[Any, Any]:
    """A number or an image as an array."""
    data = host_data(x) if isinstance(x, Value) else x
    try:
        a = np.asarray(data)
        if a.dtype.kind == "V":  # narrow floats, which NumPy counts as none of its kinds
            a = a.astype(np.float64)
    except (TypeError, ValueError):
        raise _unfit(name, x) from None
    if a.dtype.kind not in "biuf":
        raise _unfit(name, x)
    if a.ndim and not (a.ndim == 2 or (a.ndim == 3 and a.shape[2] == 3)):
        raise _unfit(name, x)
    return a


def _unfit(name: str, x: Any) -> OperandError:
    shape = getattr(x, "shape", None)
    what = f"{type(x).__name__} {brief(x, 40)}" if shape is None else f"of shape {tuple(shape)}"
    return OperandError(
        f"log: {name} is {what}, expected a number (op.mean(x) makes one), a text, or an image of "
        "(rows, columns) or (rows, columns, 3)"
    )


def _sample(name: str, x: Any, step: int) -> LoggedSample:
    if isinstance(x, str):
        return LoggedSample(step, text=x[:_LETTERS] + " ..." * (len(x) > _LETTERS))
    if not all(0 < n <= _PIXELS for n in x.shape[:2]):
        raise OperandError(
            f"log: {name} is an image of {x.shape[0]} x {x.shape[1]}, expected 1 to {_PIXELS} on each side"
        )
    a = x if x.ndim == 3 else np.repeat(x[..., None], 3, 2)
    if a.dtype.kind == "f":
        a = np.clip(np.nan_to_num(a.astype(np.float64)), 0, 1) * 255
    else:
        a = np.clip(a.astype(np.int64), 0, 255) if a.dtype.kind != "b" else a * 255
    data = base64.b64encode(png(np.ascontiguousarray(a.astype(np.uint8)))).decode()
    return LoggedSample(step, image=f"data:image/png;base64,{data}")
