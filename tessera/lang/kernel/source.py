"""The source of a kernel: its syntax tree, the names around it, and lines for errors, with a caret."""

from __future__ import annotations

import ast
import builtins
import copy
import inspect
import linecache
import textwrap
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any

from tessera.core.errors import TesseraError
from tessera.core.source import Location
from tessera.lang.kernel.values import KernelError


class FunctionSource:
    """A function as Python wrote it down."""

    def __init__(self, function: Callable[..., Any]):
        self.function = function
        self.name: str = getattr(function, "__name__", "kernel")
        code = getattr(function, "__code__", None)
        try:
            lines, self.first = inspect.getsourcelines(function)
        except (OSError, TypeError):
            raise KernelError(
                f"{self.name}: its source cannot be read; write kernels in a file"
            ) from None
        text = "".join(lines)
        whole = textwrap.dedent(text)
        self.indent = len(lines[0]) - len(lines[0].lstrip())
        try:
            tree: ast.AST = ast.parse(whole).body[0]
        except SyntaxError:  # the line of a lambda may be part of an expression
            tree = ast.Pass()
        if not isinstance(tree, ast.FunctionDef):
            raise KernelError(f"{self.name}: expected a function that def makes")
        self.tree: ast.FunctionDef | ast.Lambda = tree
        self.file = code.co_filename if code else "<kernel>"

    def nested(self, tree: ast.FunctionDef | ast.Lambda) -> FunctionSource:
        """A function that this one makes."""
        made = copy.copy(self)
        made.tree, made.name = tree, getattr(tree, "name", "lambda")
        return made

    def location(self, n: ast.AST) -> Location:
        """The line of a piece of syntax."""
        return Location(self.file, self.first + getattr(n, "lineno", 1) - 1)

    def blame(self, error: TesseraError, n: ast.AST) -> TesseraError:
        """The error at a piece of syntax, with a caret below it; one that has a place keeps it."""
        if error.origins:
            return error
        place = self.location(n)
        line = linecache.getline(place.file, place.line)
        text = line.strip()
        begin = getattr(n, "col_offset", 0) + self.indent - (len(line) - len(line.lstrip()))
        last = getattr(n, "end_lineno", None) == getattr(n, "lineno", None)
        end = getattr(n, "end_col_offset", 0) + self.indent - (len(line) - len(line.lstrip()))
        width = max(end - begin, 1) if last else max(len(text) - begin, 1)
        lead = len(f"at {place.file}:{place.line}: ")
        error.at(place)
        error.origins = (" " * (lead + begin) + "^" * width,) if text else (" ",)
        return error

    def lookup(self, name: str) -> Any:
        """What a name means around the function."""
        f: Any = self.function
        code, cells = f.__code__, f.__closure__ or ()
        closed = dict(zip(code.co_freevars, cells, strict=True))
        if name in closed:
            try:
                return closed[name].cell_contents
            except ValueError:
                raise KernelError(f"{name} has no value yet") from None
        if name in f.__globals__:
            return f.__globals__[name]
        if hasattr(builtins, name):
            return getattr(builtins, name)
        raise KernelError(f"{name} is not defined")


@lru_cache(maxsize=1024)
def source_of(function: Callable[..., Any]) -> FunctionSource:
    """The source of a function, read once."""
    return FunctionSource(function)


def assigned(nodes: list[ast.stmt]) -> list[str]:
    """The names that statements may assign to, in order; a call as a statement may change its argument."""
    found: dict[str, None] = {}
    for top in nodes:
        for n in _walk(top):
            if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store):
                found[n.id] = None
            if isinstance(n, ast.Expr) and isinstance(n.value, ast.Call) and n.value.args:
                first = n.value.args[0]
                if isinstance(first, ast.Name):
                    found[first.id] = None
    return list(found)


def _walk(top: ast.AST) -> Iterator[ast.AST]:
    """The syntax of a function, without that of functions within it, whose names are their own."""
    yield top
    for n in ast.iter_child_nodes(top):
        if not isinstance(n, ast.FunctionDef | ast.Lambda):
            yield from _walk(n)
