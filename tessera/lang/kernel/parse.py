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
from tessera.lang.kernel.control import Control, FunctionFrame, Returned
from tessera.lang.kernel.expressions import (
    ATTRIBUTES,
    BUILTINS,
    TileMethod,
    binary,
    compare,
    is_static,
    truth,
    unary,
)
from tessera.lang.kernel.memory import element
from tessera.lang.kernel.parts import item
from tessera.lang.kernel.places import TilePlaces
from tessera.lang.kernel.source import FunctionSource, source_of
from tessera.lang.kernel.table import INTRINSICS, Intrinsic
from tessera.lang.kernel.values import Axes, KernelArray, KernelError, Restart, TileValue
from tessera.lang.kernel.writer import KernelWriter

_PYTHON = (ArithmeticError, LookupError, TypeError, ValueError, AttributeError)
_FIXED = (ModuleType, Intrinsic, DType, type)  # what nobody gives another meaning
_SILENT = (print, breakpoint)  # which speak when a kernel is stepped through


class Parser(Control):
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
        self.frames: list[FunctionFrame] = []
        self.reads: dict[tuple[int, str], tuple[FunctionSource, str, Any]] = {}

    def function(self, source: FunctionSource, variables: Mapping[str, Any]) -> Any:
        """What a function returns for these arguments."""
        if any(f.source.function is source.function for f in self.frames):
            raise KernelError(f"{source.name} calls itself; a kernel cannot")
        self.frames.append(FunctionFrame(source, variables, self.depth, self.condition))
        try:
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
            error = KernelError(f"{type(e).__name__}: {e}")
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

    def assign(self, target: ast.expr, value: Any) -> None:
        """Give a name, or several, a value."""
        if isinstance(target, ast.Name):
            self.frame.variables[target.id] = value
            return
        if not isinstance(target, ast.Tuple | ast.List):
            raise KernelError("a kernel assigns to names alone; use tile.store for memory")
        if not isinstance(value, tuple | list):
            raise KernelError(f"{value!r:.60} cannot be taken apart")
        if len(value) != len(target.elts):
            raise KernelError(f"{len(value)} values for {len(target.elts)} names")
        for t, v in zip(target.elts, value, strict=True):
            self.assign(t, v)

    # Expressions

    def expr(self, n: ast.expr) -> Any:
        """The value of an expression."""
        with self.blaming(n):
            return self._handler(n, "expression")(n)

    def _constant(self, n: ast.Constant) -> Any:
        return n.value

    def _name(self, n: ast.Name) -> Any:
        f = self.frame
        if n.id in f.variables:
            return f.variables[n.id]
        if n.id in f.lost:
            raise KernelError(f"{n.id} {f.lost[n.id]}; give it a value before")
        value = f.source.lookup(n.id)
        if not isinstance(value, _FIXED):
            self.reads[id(f.source.function), n.id] = (f.source, n.id, value)
        return value

    def _tuple(self, n: ast.Tuple) -> tuple[Any, ...]:
        return tuple(self.expr(e) for e in n.elts)

    def _list(self, n: ast.List) -> list[Any]:
        return [self.expr(e) for e in n.elts]

    def _listcomp(self, n: ast.ListComp) -> list[Any]:
        (c,) = n.generators
        kept = self.frame.variables
        out = []
        for each in self.expr(c.iter):
            self.frame.variables = dict(kept)
            self.assign(c.target, each)
            if all(self.truth(self.expr(t)) for t in c.ifs):
                out.append(self.expr(n.elt))
        self.frame.variables = kept
        return out

    _generatorexp = _listcomp

    def _slice(self, n: ast.Slice) -> slice:
        parts = [None if x is None else self.expr(x) for x in (n.lower, n.upper, n.step)]
        return slice(*parts)

    def _binop(self, n: ast.BinOp) -> Any:
        return binary(self.w, type(n.op), self.expr(n.left), self.expr(n.right))

    def _unaryop(self, n: ast.UnaryOp) -> Any:
        return unary(self.w, type(n.op), self.expr(n.operand))

    def _compare(self, n: ast.Compare) -> Any:
        left, out = self.expr(n.left), None
        for op, comparator in zip(n.ops, n.comparators, strict=True):
            right = self.expr(comparator)
            found = compare(self.w, type(op), left, right)
            out = found if out is None else self._both("logical_and", out, found)
            left = right
        return out

    def _both(self, name: str, a: Any, b: Any) -> Any:
        if isinstance(a, TileValue) or isinstance(b, TileValue):
            return self.w.apply(name, self.w.condition(a), self.w.condition(b))
        return (a and b) if name == "logical_and" else (a or b)

    def _boolop(self, n: ast.BoolOp) -> Any:
        conjunction = isinstance(n.op, ast.And)
        out: Any = None
        for i, e in enumerate(n.values):
            value = self.expr(e)
            out = value if i == 0 else self._both(
                "logical_and" if conjunction else "logical_or", out, value
            )  # fmt: skip
            known = truth(out)
            if not isinstance(known, TileValue) and bool(known) != conjunction:
                return out
        return out

    def _ifexp(self, n: ast.IfExp) -> Any:
        test = self.truth(self.expr(n.test))
        if not isinstance(test, TileValue):
            return self.expr(n.body if test else n.orelse)
        return self.chosen("the value", test, self.expr(n.body), self.expr(n.orelse))

    def _attribute(self, n: ast.Attribute) -> Any:
        owner = self.expr(n.value)
        if isinstance(owner, TileValue):
            if n.attr not in ATTRIBUTES:
                raise KernelError(f"a tile has no {n.attr!r}; it has {', '.join(ATTRIBUTES)}")
            return ATTRIBUTES[n.attr](self.w, owner)
        return getattr(owner, n.attr)

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
        made = self.call(f, args, {})
        self.depth -= 1
        return made

    def call(self, f: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """What a call gives: an intrinsic, another kernel or function, or Python."""
        if isinstance(f, Intrinsic):
            return f.emit(self, *args, **kwargs)
        if f in _SILENT:
            return None
        if f is range and not all(map(is_static, args)):
            return INTRINSICS["range"].emit(self, *args, **kwargs)
        if isinstance(f, TileMethod):
            return f.run(*args, **kwargs)
        inner = self.inline(f)
        if inner is not None:
            return self._inlined(inner, args, kwargs)
        if f in BUILTINS and any(not is_static(x) for x in args):
            return BUILTINS[f](self.w, *args, **kwargs)
        known = all(is_static(x) for x in (*args, *kwargs.values()))
        if isinstance(f, FunctionType) and (not known or _uses_tiles(f, self.inline)):
            return self._inlined(f, args, kwargs)
        if not known:
            raise KernelError(
                f"{getattr(f, '__name__', f)} is a Python function that knows no tiles; use tile.*"
            )
        return f(*args, **kwargs)

    def _inlined(self, f: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        source = source_of(f)
        bound = signature(f).bind(*args, **kwargs)
        bound.apply_defaults()
        return self.function(source, bound.arguments)


def _uses_tiles(f: FunctionType, inline: Callable[[Any], Any]) -> bool:
    """Whether a Python function calls intrinsics or kernels, so that it must be parsed."""
    around = f.__globals__
    for name in f.__code__.co_names:
        found = around.get(name)
        if isinstance(found, Intrinsic) or inline(found) is not None or _is_namespace(found):
            return True
    return False


def _is_namespace(x: Any) -> bool:
    return isinstance(x, ModuleType) and x.__name__ == "tessera.lang.tile"
