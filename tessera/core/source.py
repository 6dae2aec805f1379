"""Where in the user's program something was written."""

from __future__ import annotations

import contextlib
import functools
import importlib
import linecache
import os
import re
import sys
import threading
import warnings
from collections.abc import Iterator
from types import CodeType, FrameType
from typing import Any, NamedTuple

# Files of the standard library through which our own code runs for the user.
_BETWEEN = frozenset((contextlib.__file__, functools.__file__, importlib.__file__))
_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
# Folders whose files are not the user's: our own, the import system, and libraries that call us for the user.
_folders: tuple[str, ...] = (_PACKAGE, "<frozen importlib", "<frozen runpy")


class Location(NamedTuple):
    """A line of the user's program."""

    file: str
    line: int

    def __str__(self) -> str:
        text = linecache.getline(self.file, self.line).strip()
        return f"{self.file}:{self.line}" + (f": {text}" if text else "")


class Marked(Location):
    """A line with what was going on: the module that was called, and the part of a training step.

    It equals the plain line, so nothing but a picture depends on it.
    """

    module: str
    phase: str  # "", "backward" or "update"

    def __repr__(self) -> str:
        return f"Location(file={self.file!r}, line={self.line})"


class _TracedScope(threading.local):
    """What is being traced on this thread: modules from the outside in with their paths, part of a step."""

    modules: tuple[tuple[Any, str], ...] = ()
    phase = ""


_SCOPE = _TracedScope()


def mark(where: Location | None, module: str = "", phase: str = "") -> Location | None:
    """The line with a module and a part of a step; marks that it has and that are not given stay."""
    if where is None:
        return None
    module = module or getattr(where, "module", "")
    phase = phase or getattr(where, "phase", "")
    if not module and not phase:
        return where
    made = Marked(where.file, where.line)
    made.module, made.phase = module, phase
    return made


def place() -> Location | None:
    """The line of the caller, marked by what is being traced."""
    where, s = caller(), _SCOPE
    if not s.modules and not s.phase:
        return where
    return mark(where, s.modules[-1][1] if s.modules else "", s.phase)


@contextlib.contextmanager
def during(phase: str) -> Iterator[None]:
    """Mark lines that are traced in the block as this part of a training step."""
    before, _SCOPE.phase = _SCOPE.phase, phase
    try:
        yield
    finally:
        _SCOPE.phase = before


@contextlib.contextmanager
def inside(module: Any) -> Iterator[None]:
    """Mark lines that are traced in the block by the path of a module: block, layers.3.attention."""
    outer = _SCOPE.modules
    if outer and outer[-1][0] is module:  # a subclass that calls its base
        yield
        return
    name = _field(outer[-1][0], module) if outer else ""
    path = f"{outer[-1][1]}.{name}" if name else type(module).__name__
    _SCOPE.modules = (*outer, (module, path))
    try:
        yield
    finally:
        _SCOPE.modules = outer


def _field(owner: Any, part: Any) -> str:
    """The field of a module that holds a part, with its index or key; "": none does."""
    for name, x in vars(owner).items():
        if x is part:
            return str(name)
        held = list(enumerate(x)) if isinstance(x, list | tuple) else ()
        for key, y in x.items() if isinstance(x, dict) else held:
            if y is part:
                return f"{name}.{key}"
    return ""


def pass_over(folder: str) -> None:
    """Count the files of a library that calls us for the user as none of the user's."""
    global _folders
    _folders = tuple(dict.fromkeys((*_folders, folder + os.sep)))


def is_ours(code: CodeType) -> bool:
    """Whether code is ours, or runs for us."""
    file = code.co_filename
    generated = file == "<string>" and code.co_name == "__init__"  # of a dataclass
    return file.startswith(_folders) or file in _BETWEEN or generated


_LIBRARIES = re.compile(r"[/\\](dist|site)-packages[/\\](\w+)")
# Libraries that we call with what we were given.
_CALLED = frozenset(("jax", "jaxlib", "ml_dtypes", "numpy", "onnx", "scipy", "torch"))
_PYTHON = os.path.dirname(os.__file__) + os.sep


def _users(code: CodeType) -> bool:
    """Whether code is of the user's program: none of ours, of Python, or of a library that we call."""
    if is_ours(code):
        return False
    file = code.co_filename
    library = _LIBRARIES.search(file)
    if library is not None:
        return library[2] not in _CALLED
    return not file.startswith((_PYTHON, "<frozen", "<__array_function__"))


def ran_users_code(e: BaseException) -> bool:
    """Whether an exception passed through code of the user's on its way from where it was raised to here."""
    tb = e.__traceback__
    while tb is not None:
        if _users(tb.tb_frame.f_code):
            return True
        tb = tb.tb_next
    return False


def caller() -> Location | None:
    """The innermost line on the stack that is not Tessera's own."""
    frame = sys._getframe(1)
    while is_ours(frame.f_code):
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
        if not is_ours(frame.f_code) and not frame.f_code.co_filename.startswith("<frozen"):
            out.append((frame.f_code, frame.f_lineno))
        if frame is last:
            break
        frame = frame.f_back
    return tuple(reversed(out))
