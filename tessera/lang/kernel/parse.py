"""parse: the Python source of a kernel to Tile IR.

    for nb in tile.range_n(K.shape, T.n): acc = tile.dot(a, b, acc)   ->   "tile.for"(acc) ({ ... })

What is known before a kernel runs (sizes of tiles, static arguments, Python values) is computed while parsing:
an if on such a value takes one branch, a loop over a Python range is written out.  What is known when it
runs is a tile: a loop over tile.range carries the tiles that it assigns, and an if on a tile selects.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from inspect import signature
from types import FunctionType, ModuleType
from typing import Any

from tessera.core.dims import Dim, symbol
from tessera.core.dtype import DType
from tessera.core.errors import TesseraError
from tessera.core.source import Location
from tessera.ir.tile.ir import Operation, Tile, walk
from tessera.lang.kernel.compute import column
from tessera.lang.kernel.expressions import (
    ATTRIBUTES,
    BUILTINS,
    Bound,
    binary,
    compare,
    is_number,
    is_static,
    truth,
    unary,
    words,
)
from tessera.lang.kernel.memory import element
from tessera.lang.kernel.places import Places
from tessera.lang.kernel.source import Source, assigned, source_of
from tessera.lang.kernel.table import Intrinsic
from tessera.lang.kernel.values import Array, Axes, Axis, KernelError, Range, Restart, TileValue
from tessera.lang.kernel.writer import Writer

_MOST_UNROLLED = 4096
_ROUNDS = 4  # in which what a loop carries settles
_PYTHON = (ArithmeticError, LookupError, TypeError, ValueError, AttributeError)
_BREAK, _CONTINUE = object(), object()
_FIXED = (ModuleType, Intrinsic, DType, type)  # what nobody gives another meaning
_SILENT = (print, breakpoint)  # which speak when a kernel is stepped through


class Returned:
    """What a return statement gave."""

    def __init__(self, value: Any):
        self.value = value


class Frame:
    """One function being parsed: its source, and its variables."""

    def __init__(self, source: Source, variables: Mapping[str, Any], depth: int, condition: Any):
        self.source, self.variables = source, dict(variables)
        self.depth, self.condition = depth, condition  # where it is called
        self.lost: dict[str, str] = {}  # variables that are gone, and why


class Parser:
    """Parses functions; calls of kernels become part of the kernel that calls them."""

    def __init__(self, writer: Writer, places: Places, inline: Callable[[Any], Any]):
        self.w, self.places = writer, places
        self.inline = inline  # the function of a kernel object, or None
        self.condition: TileValue | None = None
        self.hints: list[tuple[str, Any]] = []
        self.location: Location | None = None
        self.loops: dict[
            Location | None, dict[str, Axes]
        ] = {}  # places of what loops carry, by line
        self.depth = 0
        self.frames: list[Frame] = []
        self.reads: dict[tuple[int, str], tuple[Source, str, Any]] = {}

    @property
    def frame(self) -> Frame:
        """The function being parsed."""
        return self.frames[-1]

    def function(self, source: Source, variables: Mapping[str, Any]) -> Any:
        """What a function returns for these arguments."""
        if any(f.source.function is source.function for f in self.frames):
            raise KernelError(f"{source.name} calls itself; a kernel cannot")
        self.frames.append(Frame(source, variables, self.depth, self.condition))
        try:
            end = self.block(source.tree.body)
        finally:
            self.frames.pop()
        return end.value if isinstance(end, Returned) else None

    # Statements

    def block(self, statements: Sequence[ast.stmt]) -> Any:
        """Parse statements; what ended them early, or None."""
        for s in statements:
            self.location = self.frame.source.location(s)
            self.w.at(self.location)
            with self.blaming(s):
                end = self._handler(s, "statement")(s)
            if end is not None:
                return end
        return None

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

    def _return(self, s: ast.Return) -> Returned:
        if self.depth > self.frame.depth or self.condition is not self.frame.condition:
            raise KernelError(
                "return stands at the end of a kernel, not in a loop or under a condition that is known "
                "when it runs"
            )
        return Returned(None if s.value is None else self.expr(s.value))

    def _break(self, s: ast.Break) -> object:
        return _BREAK

    def _continue(self, s: ast.Continue) -> object:
        return _CONTINUE

    def _assert(self, s: ast.Assert) -> None:
        known = self._truth(self.expr(s.test))
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

    def _if(self, s: ast.If) -> Any:
        test = self._truth(self.expr(s.test))
        if not isinstance(test, TileValue):
            return self.block(s.body if test else s.orelse)
        return self._select(s, test)

    def _truth(self, value: Any) -> Any:
        found = truth(value)
        if isinstance(found, TileValue):
            if any(n != 1 for n in found.shape):
                raise KernelError(
                    f"an if needs one truth value, got {found.type}; use tile.where for elements"
                )
            return self.w.condition(self.w.reshape(found, ()) if found.rank else found)
        return found

    def _select(self, s: ast.If, test: TileValue) -> None:
        """Both branches are computed; what they assign is selected, what they store is masked."""
        before, outer = dict(self.frame.variables), self.condition
        results = []
        for branch, holds in ((s.body, test), (s.orelse, self.w.apply("logical_not", test))):
            self.frame.variables = dict(before)
            self.condition = holds if outer is None else self.w.apply("logical_and", outer, holds)
            if self.block(branch) is not None:
                raise KernelError("a branch that is chosen when the kernel runs cannot end a loop")
            results.append(self.frame.variables)
        self.condition = outer
        yes, no = results
        joined = {}
        for name in yes | no:
            if name not in yes or name not in no:
                self.frame.lost[name] = "is assigned in one branch of an if alone"
                continue
            joined[name] = self._chosen(name, test, yes[name], no[name])
        self.frame.variables = joined

    def _chosen(self, name: str, test: TileValue, a: Any, b: Any) -> Any:
        if a is b or (is_static(a) and is_static(b) and type(a) is type(b) and a == b):
            return a
        if isinstance(a, tuple) and isinstance(b, tuple) and len(a) == len(b):
            return tuple(self._chosen(name, test, x, y) for x, y in zip(a, b, strict=True))
        if not is_number(a) or not is_number(b):
            raise KernelError(f"{name} is {words(a)} in one branch and {words(b)} in the other")
        return self.w.apply("where", test, a, b)

    def _for(self, s: ast.For) -> Any:
        if s.orelse:
            raise KernelError("a loop in a kernel has no else")
        over = self.expr(s.iter)
        if isinstance(over, Range):
            return self._loop(s, over)
        if isinstance(over, TileValue | Array | Dim) or not hasattr(over, "__iter__"):
            raise KernelError(f"a loop runs over tile.range or Python values, got {over!r:.60}")
        for count, item in enumerate(over):
            if count == _MOST_UNROLLED:
                raise KernelError("a loop over Python values is written out; use tile.range")
            self.assign(s.target, item)
            end = self.block(s.body)
            if end is _BREAK:
                break
            if isinstance(end, Returned):
                return end
        return None

    # Loops that run

    def _loop(self, s: ast.For, over: Range) -> None:
        """A loop carries the names that it assigns and that exist before it."""
        f = self.frame
        names = [n for n in assigned(s.body) if n in f.variables and is_number(f.variables[n])]
        before = dict(f.variables)
        line = f.source.location(s)
        carried = self._settled(s, over, before, names)
        self.loops[line] = {n: x.axes for n, x in carried.items()}
        names = [n for n in names if n in carried]
        with self.w.b.loop(
            over.start, over.stop, over.step, [carried[n].tile for n in names]
        ) as inner:
            inside = {n: _at(carried[n], t) for n, t in zip(names, inner.carried, strict=True)}
            after = self._body(s, over, {**before, **inside}, inner.variable)
            outs = [self._same(carried[n], inside[n], after[n], inner.name) for n in names]
            inner.carry(*(x.tile for x in outs))
        f.variables = before
        for n, t in zip(names, inner.results, strict=True):
            f.variables[n] = _at(carried[n], t)
        for n in [*assigned(s.body), *assigned([ast.Expr(s.target)])]:
            if n not in f.variables:
                f.lost[n] = "is of a loop that has ended"

    def _settled(
        self, s: ast.For, over: Range, before: dict[str, Any], names: Sequence[str]
    ) -> dict[str, TileValue]:
        """What the loop carries in: tiles of the types and places that they have after a round."""
        carried: dict[str, TileValue] = {}
        counter = symbol(f"_t{self.depth}")
        for _ in range(_ROUNDS):
            with self.w.b.trial():
                after = self._body(s, over, {**before, **carried}, counter)
                made = self.w.b.written()
            for n, x in before.items():
                if n not in names and after.get(n) is not x and n in assigned(s.body):
                    raise KernelError(f"{n} is {words(x)} before the loop; a loop carries tiles")
            now = {
                n: self._joined(n, carried.get(n, before[n]), after[n], counter)
                for n in names
                if n in carried or after[n] is not before[n]
            }
            known = {n: (x.axes, x.pads) for n, x in carried.items()}
            carried = now
            if {n: (x.axes, x.pads) for n, x in now.items()} == known:
                self._check_blocks(after, carried, counter, made)
                break
        return carried

    def _joined(self, name: str, start: Any, end: Any, counter: Dim) -> TileValue:
        """A carried tile, with what is true of it before and after a round."""
        if not is_number(end):
            raise KernelError(f"{name} becomes {words(end)} in the loop; a loop carries tiles")
        if not isinstance(end, TileValue):
            return start if isinstance(start, TileValue) else self.w.tile(start)
        first = start if isinstance(start, TileValue) else self.w.tile(start, end.dtype)
        if first.rank < end.rank and not first.rank:
            first = self.w.broadcast(first, end.shape)
        if first.type is not end.type:
            raise KernelError(
                f"{name} is {first.type} before the loop and {end.type} after a round of it"
            )
        kept = [None if _moves(b, str(counter)) else b for b in end.axes]
        axes = tuple(self.w.same_axis(name, a, b) for a, b in zip(first.axes, kept, strict=True))
        pads = tuple(
            a if a == b and type(a) is type(b) else None
            for a, b in zip(first.pads, end.pads, strict=True)
        )
        return TileValue(first.tile, axes, pads)

    def _check_blocks(
        self, after: Mapping[str, Any], carried: Mapping[str, TileValue], counter: Dim,
        made: Sequence[Operation],
    ) -> None:  # fmt: skip
        """What is of other elements in each round must be made from what it was before."""
        for n, start in carried.items():
            end = after[n]
            moves = isinstance(end, TileValue) and any(_moves(a, str(counter)) for a in end.axes)
            if moves and not depends(end.tile, start.tile, made):
                raise KernelError(
                    f"{n} holds a block of this round and is carried to the next; load it where it is used"
                )

    def _same(self, start: TileValue, now: TileValue, end: Any, counter: str) -> TileValue:
        """What is carried to the next round; what is past the end in this one stays as it was."""
        made = end if isinstance(end, TileValue) else self.w.tile(end, start.dtype)
        if made.type is not start.type:
            made = self.w.cast(self.w.broadcast(made, start.shape), start.dtype)
        for i, a in enumerate(made.axes):
            if a is not None and not a.exact and _moves(a, counter):
                inside = self.w.inside(made, i, a)
                t = self.w.b.apply("where", inside, made.tile, now.tile)
                made = TileValue(t, made.axes, made.pads)
        return made

    def _body(self, s: ast.For, over: Range, variables: dict[str, Any], counter: Dim) -> Any:
        f = self.frame
        f.variables = dict(variables)
        self.places.loops[str(counter)] = (over.start, over.stop)
        self.places.rounds[str(counter)] = (over.step, over.ahead)
        self.depth += 1
        self.assign(s.target, over.variable(counter))
        end = self.block(s.body)
        self.depth -= 1
        if end is not None:
            raise KernelError(
                "a loop that runs has no break and no continue; use an if or tile.where"
            )
        made, f.variables = f.variables, variables
        return made

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
        for item in self.expr(c.iter):
            self.frame.variables = dict(kept)
            self.assign(c.target, item)
            if all(self._truth(self.expr(t)) for t in c.ifs):
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
        test = self._truth(self.expr(n.test))
        if not isinstance(test, TileValue):
            return self.expr(n.body if test else n.orelse)
        return self._chosen("the value", test, self.expr(n.body), self.expr(n.orelse))

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
            return column(self.w, owner, key if isinstance(key, tuple) else (key,))
        if isinstance(owner, Array):
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

    def call(self, f: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """What a call gives: an intrinsic, another kernel or function, or Python."""
        if isinstance(f, Intrinsic):
            return f.emit(self, *args, **kwargs)
        if f in _SILENT:
            return None
        if isinstance(f, Bound):
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


def _at(value: TileValue, tile: Tile) -> TileValue:
    """A carried tile: the places of its start, another value."""
    return TileValue(tile, value.axes, value.pads)


def _moves(a: Axis | None, counter: str) -> bool:
    """Whether a place depends on the counter of a loop."""
    return a is not None and counter in a.symbols()


def depends(end: Tile, start: Tile, made: Sequence[Operation]) -> bool:
    """Whether a tile is computed from another one by these operations."""
    reached = {start}
    for op in made:
        inner = () if op.block is None else [t for o in walk(op.block) for t in o.operands]
        if any(t in reached for t in (*op.operands, *inner)):
            reached.update(op.results)
    return end in reached


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
