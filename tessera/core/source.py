"""Where in the user's program something was written."""

from __future__ import annotations

import linecache
import os
import sys
from typing import NamedTuple

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep


class Location(NamedTuple):
    """A line of the user's program."""

    file: str
    line: int

    def __str__(self) -> str:
        text = linecache.getline(self.file, self.line).strip()
        return f"{self.file}:{self.line}" + (f": {text}" if text else "")


def caller() -> Location | None:
    """The innermost line on the stack that is not Tessera's own."""
    frame = sys._getframe(1)
    while frame.f_code.co_filename.startswith(_PACKAGE):
        back = frame.f_back
        if back is None:
            return None
        frame = back
    return Location(frame.f_code.co_filename, frame.f_lineno)
