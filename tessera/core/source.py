"""Where in the user's program something was written."""

from __future__ import annotations

import contextlib
import functools
import importlib
import linecache
import os
import sys
import warnings
from types import CodeType, FrameType
from typing import NamedTuple

# Files of the standard library through which our own code runs for the user.
_BETWEEN = frozenset((contextlib.__file__, functools.__file__, importlib.__file__))
_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
# Folders whose files are not the user's: our own, the import system, and libraries that call us for the user.
_folders: tuple[str, ...] = (_PACKAGE, "<frozen importlib")


class Location(NamedTuple):
    """A line of the user's program."""

    file: str
    line: int

    def __str__(self) -> str:
        text = linecache.getline(self.file, self.line).strip()
        return f"{self.file}:{self.line}" + (f": {text}" if text else "")


def pass_over(folder: str) -> None:
    """Count the files of a library that calls us for the user as none of the user's."""
    global _folders
    _folders = tuple(dict.fromkeys((*_folders, folder + os.sep)))


def _ours(code: CodeType) -> bool:
    file = code.co_filename
    generated = file == "<string>" and code.co_name == "__init__"  # of a dataclass
    return file.startswith(_folders) or file in _BETWEEN or generated


def caller() -> Location | None:
    """The innermost line on the stack that is not Tessera's own."""
    frame = sys._getframe(1)
    while _ours(frame.f_code):
        back = frame.f_back
        if back is None:
            return None
        frame = back
    return Location(frame.f_code.co_filename, frame.f_lineno)


def warn_caller(message: str, category: type[Warning] = RuntimeWarning) -> None:
    """Warn at the user's line."""
    place = caller()
    if place is None:
        warnings.warn(message, category, stacklevel=2)
    else:
        warnings.warn_explicit(message, category, place.file, place.line)


def callers(last: FrameType | None = None) -> tuple[tuple[CodeType, int], ...]:
    """The code and the line of every frame of the user's on the stack, outermost first, from `last` on."""
    out = []
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if not _ours(frame.f_code) and not frame.f_code.co_filename.startswith("<frozen"):
            out.append((frame.f_code, frame.f_lineno))
        if frame is last:
            break
        frame = frame.f_back
    return tuple(reversed(out))
