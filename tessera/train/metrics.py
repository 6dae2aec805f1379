"""Metrics of a run as files: a row for each step that is logged, and none that a resumed run will write
again.
"""

from __future__ import annotations

import csv
import io
import json
import math
import os
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from tessera.core.blame import constructor_blames_arguments
from tessera.core.errors import FileError, OperandError
from tessera.core.public import public
from tessera.files.atomic import replacing


class Logger(Protocol):
    """Where metrics go."""

    def open(self, step: int) -> None:
        """Begin after this many steps; what was written for later ones goes."""

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Write the numbers of a step."""

    def flush(self) -> None:
        """Have all that was written on the disk."""

    def close(self) -> None:
        """Write no more."""


_INSTEAD = "logger.write(step, {'loss': loss}), or ts.train.fit(..., loggers=[logger])"
LOGGER_INSTEAD = dict.fromkeys(
    ("log", "log_metrics", "add_scalar", "add_scalars", "writerow", "log_dict", "__call__"),
    _INSTEAD,
)


@public("a logger", LOGGER_INSTEAD)
class _RowFile(ABC):
    """A text file of rows, each of which has a step."""

    def __init__(self, path: str | os.PathLike[str]):
        self.path = Path(path)
        self._file: Any = None

    def open(self, step: int) -> None:
        """Begin after this many steps; rows of later ones go."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        lines = self.path.read_text().splitlines(keepends=True) if self.path.exists() else []
        kept = [x for x in lines if x.endswith("\n") and self._is_before(x, step)] if step else []
        with replacing(self.path) as f:
            f.write("".join(kept).encode())
        self._file = open(self.path, "a")  # noqa: SIM115  open until `close`

    @abstractmethod
    def _is_before(self, line: str, step: int) -> bool:
        """Whether a row is of this step or an earlier one."""

    def _opened(self) -> Any:
        """The file, which `open` opened."""
        if self._file is None:
            raise OperandError(
                f"{type(self).__name__}: the file is not open; call open(step) before write, flush and "
                "close, "
                "or give the logger to ts.train.fit(..., loggers=[logger])"
            )
        return self._file

    def flush(self) -> None:
        """Have all rows on the disk."""
        self._opened().flush()
        os.fsync(self._opened().fileno())

    def close(self) -> None:
        """Write no more rows."""
        self._opened().close()


@public("a logger", LOGGER_INSTEAD)
@constructor_blames_arguments
class CSV(_RowFile):
    """A table with a column for the step and one for each metric."""

    def __init__(self, path: str | os.PathLike[str]):
        super().__init__(path)
        self._columns: list[str] = []

    def open(self, step: int) -> None:
        """Begin after this many steps; rows of later ones go."""
        super().open(step)
        with open(self.path) as f:
            self._columns = next(csv.reader(f), [])[1:]

    def _is_before(self, line: str, step: int) -> bool:
        first = line.partition(",")[0].strip()
        return first == "step" or (first.isdigit() and int(first) <= step)

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Write the row of a step; the first row states the columns."""
        if not self._columns:
            self._columns = sorted(values)
            self._opened().write(_row(["step", *self._columns]))
        for name in values:
            if name not in self._columns:
                raise FileError(
                    f"CSV: metric {name!r} at step {step} is none of the columns "
                    f"{', '.join(self._columns)}; log the "
                    "same names each time, or use JSONLines"
                )
        self._opened().write(
            _row([step, *(repr(values[c]) if c in values else "" for c in self._columns)])
        )


def _row(cells: list[Any]) -> str:
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerow(cells)
    return out.getvalue()


@public("a logger", LOGGER_INSTEAD)
@constructor_blames_arguments
class JSONLines(_RowFile):
    """A line of JSON for each step."""

    def _is_before(self, line: str, step: int) -> bool:
        try:
            return int(json.loads(line)["step"]) <= step
        except (ValueError, KeyError, TypeError):
            return False

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Write the line of a step; numbers that are not finite are strings."""
        shown = {k: v if math.isfinite(v) else repr(v) for k, v in sorted(values.items())}
        self._opened().write(json.dumps({"step": step, **shown}) + "\n")
