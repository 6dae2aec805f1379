"""What commands show on a terminal and write to files, and how they fail."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tessera.core.errors import TesseraError
from tessera.core.terminal import Console, Live, Table, escape
from tessera.inspect.files import write_whole

WIDE = 320  # columns of a table that is not shown on a terminal


class UsageError(Exception):
    """The command line asks for something that is not there: exit status 2."""


class Failure(Exception):
    """A command could not do what it was asked for: exit status 1."""


class ProgramError(Exception):
    """The user's program raised; the text is its traceback, without our frames."""


@contextmanager
def program_errors(path: str) -> Iterator[None]:
    """What a program raises becomes a ProgramError, wherever it runs: in its file, or while it is traced."""
    try:
        yield
    except (TesseraError, UsageError, Failure, ProgramError):
        raise
    except Exception as e:  # whatever the user's program raises is the user's to see
        text = _from_file(e, path)
        if text is None:
            raise
        raise ProgramError(text) from None


def _from_file(e: Exception, path: str) -> str | None:
    """The traceback of an exception from the user's file on; None where the file has no part in it."""
    whole = traceback.TracebackException.from_exception(e)
    first = next((i for i, f in enumerate(whole.stack) if f.filename == path), None)
    if first is None:
        return None
    whole.stack = traceback.StackSummary.from_list(whole.stack[first:])
    return "".join(whole.format())


def split(text: str) -> tuple[str, str]:
    """The file and the function, or Class.method; a colon before anything else belongs to the file."""
    path, _, name = text.rpartition(":")
    is_name = all(map(str.isidentifier, name.split(".")))
    return (path, name) if path and is_name else (text, "")


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
    "escape", "program_errors", "split", "table_of", "write_file",
]  # fmt: skip
