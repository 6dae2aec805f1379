"""What commands show on a terminal and write to files, and how they fail."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.table import Table

from tessera.inspect.files import write_whole

WIDE = 320  # columns of a table that is not shown on a terminal


class UsageError(Exception):
    """The command line asks for something that is not there: exit status 2."""


class Failure(Exception):
    """A command could not do what it was asked for: exit status 1."""


class ProgramError(Exception):
    """The user's program raised; the text is its traceback, without our frames."""


def console() -> Console:
    """Where tables go: as wide as the terminal, or as wide as they need to be."""
    return Console() if sys.stdout.isatty() else Console(width=WIDE)


def table_of(*columns: str) -> Table:
    """A table without lines."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for c in columns:
        table.add_column(c, overflow="fold")
    return table


def complain(message: str, status: int, word: str = "error") -> int:
    """Say what went wrong, and return the exit status."""
    Console(stderr=True).print(
        f"[bold red]{word}:[/] {escape(message)}", soft_wrap=True, highlight=False
    )
    return status


def check_place(*paths: str | None) -> None:
    """Raise when a file could not be written, before long work is done for it."""
    for path in paths:
        if path is None:
            continue
        folder = Path(path).absolute().parent
        if not folder.is_dir():
            raise UsageError(f"{path} cannot be written: there is no folder {folder}")
        if Path(path).is_dir() or not os.access(folder, os.W_OK):
            raise UsageError(f"{path} cannot be written")


def write_file(path: str, content: str | bytes) -> None:
    """Write a file, whole or not at all."""
    try:
        write_whole(path, content)
    except OSError as e:
        raise Failure(f"{path} cannot be written ({e.strerror or e})") from None


__all__ = [
    "Console", "Failure", "Live", "ProgramError", "Table", "UsageError", "check_place", "complain", "console",
    "escape", "table_of", "write_file",
]  # fmt: skip
