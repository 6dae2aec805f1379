"""parse: the Python source of a kernel to Tile IR.

    for nb in tile.range_n(K.shape, T.n): acc = tile.dot(a, b, acc)   ->   "tile.for"(acc) ({ ... })

What is known before a kernel runs (sizes of tiles, static arguments, Python values) is computed while
parsing: an if on such a value takes one branch, a loop over a Python range is written out.  What is known
when it runs is a tile: a loop over tile.range carries the tiles that it assigns, and an if on a tile
selects.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from inspect import signature
from types import FunctionType, ModuleType
from typing import Any

from tessera.core.dtype import DType
from tessera.core.errors import TesseraError
from tessera.core.source import Location
from tessera.lang.kernel.closures import Closure
from tessera.lang.kernel.containers import is_method, own, run_method
from tessera.lang.kernel.control import FunctionFrame, Returned
from tessera.lang.kernel.expressions import (
    ATTRIBUTES,
    BUILTINS,
    TileMethod,
    binary,
    compared,
    is_static,
    joined,
    unary,
)
from tessera.lang.kernel.kernel_habits import no_attribute, unknown_function
from tessera.lang.kernel.memory import element
from tessera.lang.kernel.parts import item
from tessera.lang.kernel.places import TilePlaces
from tessera.lang.kernel.python_values import PythonValues
from tessera.lang.kernel.source import FunctionSource, source_of
from tessera.lang.kernel.table import INTRINSICS, Intrinsic
from tessera.lang.kernel.values import Axes, KernelArray, KernelError, Restart, TileValue
from tessera.lang.kernel.writer import KernelWriter, plain_number

_PYTHON = (ArithmeticError, LookupError, TypeError, ValueError, AttributeError)
_FIXED = (ModuleType, Intrinsic, DType, type)  # what nobody gives another meaning
_SILENT = (print, breakpoint)  # which speak when a kernel is stepped through


class Parser(PythonValues):
    """Parses functions; calls of kernels become part of the kernel that calls them."""

    def __init__(self, writer: KernelWriter, places: TilePlaces, inline: Callable[[Any], Any]):
        self.w, self.places = writer, places
        self.inline = inline  # the function of a kernel object, or None
        self.condition: TileValue | None = None
        self.hints: list[tuple[str, Any]] = []
        self.location: Location | None = None
        self.loops: dict[
            Location | None, dict[str, Axes]
        ] = {}  # places of what loops carry, by line
        self.depth = 0
        self.region: object = None
        self.frames: list[FunctionFrame] = []
        self.reads: dict[tuple[int, str], tuple[FunctionSource, str, Any]] = {}

    def function(
        self,
        source: FunctionSource,
        variables: Mapping[str, Any],
        around: FunctionFrame | None = None,
    ) -> Any:
        """What a function returns for these arguments; one that a kernel made sees the names around it."""
        if any(f.source.tree is source.tree for f in self.frames):
            raise KernelError(f"{source.name} calls itself; a kernel cannot")
        self.frames.append(FunctionFrame(source, variables, self.depth, self.condition, around))
        try:
            if isinstance(source.tree, ast.Lambda):
                return self.expr(source.tree.body)
            end = self.block(source.tree.body)
        finally:
            self.frames.pop()
        return end.value if isinstance(end, Returned) else None

    # Statements

    def statement(self, s: ast.stmt) -> Any:
        """Parse a statement; what it ends, or None."""
        return self._handler(s, "statement")(s)

    @contextmanager
    def blaming(self, n: ast.AST) -> Iterator[None]:
        """Errors in the block are at this piece of syntax, unless they have a place already."""
        source = self.frame.source
        try:
            yield
        except TesseraError as e:
            error: TesseraError = e
        except Restart:
            raise
        except _PYTHON as e:
            kind = "" if isinstance(e, AttributeError) else f"{type(e).__name__}: "
            error = KernelError(f"{kind}{e}")
        else:
            return
        raise source.blame(error, n)

    def _handler(self, n: ast.AST, kind: str) -> Callable[[Any], Any]:
        found: Callable[[Any], Any] | None = getattr(self, f"_{type(n).__name__.lower()}", None)
        if found is None:
            raise KernelError(f"a kernel has no {kind} of the kind {type(n).__name__.lower()!r}")
        return found

    def _pass(self, s: ast.Pass) -> None:
        pass

    def _assert(self, s: ast.Assert) -> None:
        known = self.truth(self.expr(s.test))
        if isinstance(known, TileValue):
            raise KernelError("assert is about what is known before the kernel runs")
        if not known:
            said = "" if s.msg is None else f": {self.expr(s.msg)}"
            raise KernelError(f"assert fails{said}")

    def _expr(self, s: ast.Expr) -> None:
        value = self.expr(s.value)
        call = s.value
        if (
            not isinstance(call, ast.Call)
            or not call.args
            or not isinstance(call.args[0], ast.Name)
        ):
            return
        f = self.expr(call.func)
        if isinstance(f, Intrinsic) and f.updates:
            self.assign(call.args[0], value)

    def _assign(self, s: ast.Assign) -> None:
        value = self.expr(s.value)
        for target in s.targets:
            self.assign(target, value)

    def _annassign(self, s: ast.AnnAssign) -> None:
        if s.value is not None:
            self.assign(s.target, self.expr(s.value))

    def _augassign(self, s: ast.AugAssign) -> None:
        if not isinstance(s.target, ast.Name):
            raise KernelError("a kernel assigns to names alone; use tile.store for memory")
        before = self._name(ast.copy_location(ast.Name(s.target.id, ast.Load()), s.target))
        self.assign(s.target, binary(self.w, type(s.op), before, self.expr(s.value)))

    # Expressions

    def expr(self, n: ast.expr) -> Any:
        """The value of an expression."""
        with self.blaming(n):
            made = self._handler(n, "expression")(n)
            return made if isinstance(n, ast.Name | ast.Attribute) else own(made, self.region)

    def _name(self, n: ast.Name) -> Any:
        f: FunctionFrame | None = self.frame
        while f is not None:
            if n.id in f.variables:
                return f.variables[n.id]
            if n.id in f.lost:
                raise KernelError(f"{n.id} {f.lost[n.id]}; give it a value before")
            f = f.around
        source = self.frame.source
        value = source.lookup(n.id)
        if not isinstance(value, _FIXED):
            self.reads[id(source.function), n.id] = (source, n.id, value)
        return plain_number(value)

    def _slice(self, n: ast.Slice) -> slice:
        parts = [None if x is None else self.expr(x) for x in (n.lower, n.upper, n.step)]
        return slice(*parts)

    def _binop(self, n: ast.BinOp) -> Any:
        return binary(self.w, type(n.op), self.expr(n.left), self.expr(n.right))

    def _unaryop(self, n: ast.UnaryOp) -> Any:
        return unary(self.w, type(n.op), self.expr(n.operand))

    def _compare(self, n: ast.Compare) -> Any:
        operands = [self.expr(x) for x in (n.left, *n.comparators)]
        return compared(self.w, [type(op) for op in n.ops], operands)

    def _boolop(self, n: ast.BoolOp) -> Any:
        values = (self.expr(e) for e in n.values)
        return joined(self.w, isinstance(n.op, ast.And), values)

    def _ifexp(self, n: ast.IfExp) -> Any:
        test = self.truth(self.expr(n.test))
        if not isinstance(test, TileValue):
            return self.expr(n.body if test else n.orelse)
        return self.chosen("the value", test, self.expr(n.body), self.expr(n.orelse))

    def _attribute(self, n: ast.Attribute) -> Any:
        owner = self.expr(n.value)
        if isinstance(owner, TileValue):
            if n.attr not in ATTRIBUTES:
                raise KernelError(no_attribute(n.attr, ATTRIBUTES))
            return ATTRIBUTES[n.attr](self.w, owner)
        return plain_number(getattr(owner, n.attr))

    def _subscript(self, n: ast.Subscript) -> Any:
        owner, key = self.expr(n.value), self.expr(n.slice)
        if isinstance(owner, TileValue):
            return item(self.w, owner, key if isinstance(key, tuple) else (key,))
        if isinstance(owner, KernelArray):
            return element(self, owner, key if isinstance(key, tuple) else (key,))
        return owner[key]

    # Calls

    def _call(self, n: ast.Call) -> Any:
        f = self.expr(n.func)
        args: list[Any] = []
        for a in n.args:
            if isinstance(a, ast.Starred):
                args += self.expr(a.value)
            else:
                args.append(self.expr(a))
        kwargs: dict[str, Any] = {}
        for k in n.keywords:
            kwargs.update({k.arg: self.expr(k.value)} if k.arg else self.expr(k.value))
        self.location = self.frame.source.location(n)
        self.w.at(self.location)
        return self.call(f, args, kwargs)

    def invoke(self, f: Any, args: Sequence[Any]) -> Any:
        """What a function gives for tiles, in a loop around it."""
        self.depth += 1
        with self.apart():
            made = self.call(f, args, {})
        self.depth -= 1
        return made

    def call(self, f: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """What a call gives: an intrinsic, another kernel or function, or Python."""
        if isinstance(f, Intrinsic):
            return f.run(self, args, kwargs)
        if isinstance(f, Closure):
            return f(*args, **kwargs)
        if is_method(f):
            return run_method(f, args, kwargs, self.region)
        if f in _SILENT:
            return None
        if f is range and not all(map(is_static, args)):
            return INTRINSICS["range"].run(self, args, kwargs)
        if isinstance(f, TileMethod):
            return f.run(*args, **kwargs)
        inner = self.inline(f)
        if inner is not None:
            return self._inlined(inner, args, kwargs)
        if f in BUILTINS and any(not is_static(x) for x in args):
            return BUILTINS[f](self.w, *args, **kwargs)
        known = all(is_static(x) for x in (*args, *kwargs.values()))
        if isinstance(f, FunctionType) and (not known or uses_tiles(f, self.inline)):
            return self._inlined(f, args, kwargs)
        if not known:
            raise KernelError(unknown_function(f))
        return f(*args, **kwargs)

    def _inlined(self, f: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        source = source_of(f)
        bound = signature(f).bind(*args, **kwargs)
        bound.apply_defaults()
        return self.function(source, bound.arguments)


def uses_tiles(f: FunctionType, inline: Callable[[Any], Any]) -> bool:
    """Whether a Python function calls intrinsics or kernels, so that it must be parsed."""
    around = f.__globals__
    for name in f.__code__.co_names:
        found = around.get(name)
        if isinstance(found, Intrinsic) or inline(found) is not None or _is_namespace(found):
            return True
    return False


def _is_namespace(x: Any) -> bool:
    return isinstance(x, ModuleType) and x.__name__ == "tessera.lang.tile"
