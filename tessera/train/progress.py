"""A bar that shows how far a run is, in a terminal."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from tessera.core import terminal


class Bar:
    """The steps that are done, the time that is left and the last metrics; nothing where it is not wanted."""

    def __init__(self, shown: bool | None, start: int, total: int):
        self._progress: Any = None
        if shown if shown is not None else sys.stderr.isatty():
            t = terminal
            columns = (
                t.BarColumn(),
                t.MofNCompleteColumn(),
                t.TimeRemainingColumn(),
                t.TextColumn("{task.description}"),
            )
            self._progress = t.Progress(*columns, console=t.Console(stderr=True))
            self._task = self._progress.add_task("", total=total, completed=start)
            self._progress.start()

    def show(self, step: int, values: Mapping[str, float] | None) -> None:
        """Show a step and its metrics."""
        if self._progress is None:
            return
        text = (
            {}
            if values is None
            else {"description": "  ".join(f"{k} {v:.4g}" for k, v in values.items())}
        )
        self._progress.update(self._task, completed=step, **text)

    def close(self) -> None:
        """Leave the bar as it is."""
        if self._progress is not None:
            self._progress.stop()
