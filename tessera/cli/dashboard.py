"""tessera dashboard: curves of runs from the files that they write."""

from __future__ import annotations

import argparse
import csv
import io
import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path

from tessera.cli.show import UsageError, write_file
from tessera.core.errors import FileError
from tessera.train.board_page import Board, page
from tessera.train.history import History

_LOOK = 0.5  # seconds between two looks at the files


def show_runs(args: argparse.Namespace) -> int:
    """Write or serve one page with the curves of all files."""
    names = _names([Path(f) for f in args.files])
    runs = [_Followed(Path(f), name) for f, name in zip(args.files, names, strict=True)]
    for run in runs:
        run.look()
    if args.out is not None:
        write_file(args.out, page([r.history.data() for r in runs]))
        print(args.out)
        return 0
    if not 0 <= args.port <= 65535:
        raise UsageError(f"--port is {args.port}, expected 0 to 65535")
    board = Board(lambda: [r.history for r in runs], args.port)
    board.start()
    print(f"{board.address} shows {', '.join(names)}; Ctrl-C ends", flush=True)
    try:
        while not threading.Event().wait(_LOOK):
            for run in runs:
                run.look()
    except KeyboardInterrupt:
        print("ended")
    finally:
        board.stop()
    return 0


def _names(paths: list[Path]) -> list[str]:
    """A name for each file: as little of its path as tells it from the others."""
    for many in range(1, max(len(p.parts) for p in paths) + 1):
        names = ["/".join(p.parts[-many:]) for p in paths]
        if len(set(names)) == len(names):
            return names
    raise UsageError(f"{paths[0]} is given twice")


class _Followed:
    """A file of metrics and what is known of it; one that was begun anew is read anew."""

    def __init__(self, path: Path, name: str):
        if path.suffix not in (".csv", ".jsonl"):
            raise UsageError(
                f"{path} is no file of metrics, expected one that ends in .csv (train.CSV) or .jsonl "
                "(train.JSONLines)"
            )
        self.path, self.name = path, name
        self.history = History(name, live=False)
        self._seen: tuple[int, int] | None = None

    def look(self) -> None:
        """Read the file if it has changed."""
        try:
            s = os.stat(self.path)
            if (s.st_mtime_ns, s.st_size) == self._seen:
                return
            text = self.path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as e:
            reason = e.strerror if isinstance(e, OSError) else "it is no text"
            raise FileError(f"dashboard: cannot read {self.path}: {reason}") from None
        self._seen = (s.st_mtime_ns, s.st_size)
        made, before = History(self.name, live=False), self.history
        for step, values in self._rows(text):
            made.add(step, values, {})
        with before.lock:  # readers hold this history, so it takes over what was read
            before.curves, before.step, before.at = made.curves, made.step, made.at
            before.version += 1
            before.lock.notify_all()

    def _rows(self, text: str) -> Iterator[tuple[int, dict[str, float]]]:
        whole = text[: text.rfind("\n") + 1]  # a line that is being written is left for later
        rows = csv.DictReader(io.StringIO(whole)) if self.path.suffix == ".csv" else _lines(whole)
        for number, row in enumerate(rows, 1):
            try:
                values = {
                    k: float(v) for k, v in row.items() if k != "step" and v not in ("", None)
                }
                yield int(row["step"]), values
            except (KeyError, TypeError, ValueError, AttributeError):
                raise FileError(
                    f"dashboard: row {number} of {self.path} is {str(row)[:60]}, expected a step and "
                    "numbers, as train.CSV and train.JSONLines write them"
                ) from None


def _lines(text: str) -> Iterator[dict[str, str]]:
    for x in text.splitlines():
        try:
            yield json.loads(x)
        except ValueError:
            yield {"line": x}
