"""Control flow of kernels: branches, loops, and leaving them early.

What is known before a kernel runs is decided while parsing.  What is data is decided when it runs: an if
computes both branches and selects, a loop carries the tiles that it assigns, and what follows a break that
data decide happens where the loop was not left.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

from tessera.core.dims import Dim, symbol
from tessera.core.dtype import bool_
from tessera.core.source import Location
from tessera.ir.tile.ir import Operation, Tile, walk
from tessera.lang.kernel.data_ranges import MOST
from tessera.lang.kernel.expressions import chosen, is_number, is_static, is_whole, truth, words
from tessera.lang.kernel.places import TilePlaces
from tessera.lang.kernel.source import FunctionSource, assigned
from tessera.lang.kernel.values import (
    Axes,
    AxisElements,
    KernelArray,
    KernelError,
    LoopRange,
    RunTimeCount,
    TileValue,
)
from tessera.lang.kernel.writer import KernelWriter

_MOST_UNROLLED = 4096  # rounds: bounds the text of a kernel
_ROUNDS = 4  # in which what a loop carries settles


class Returned:
    """What a return statement gave."""

    def __init__(self, value: Any):
        self.value = value


@dataclass(frozen=True, eq=False)
class Left:
    """A round of a loop is over; the loop too, where `broke` holds."""

    broke: TileValue | bool


class FunctionFrame:
    """One function being parsed: its source, and its variables."""

    def __init__(
        self, source: FunctionSource, variables: Mapping[str, Any], depth: int, condition: Any,
        around: FunctionFrame | None = None,
    ):  # fmt: skip
        self.source, self.variables = source, dict(variables)
        self.around = around  # the function in which it was made, whose names it sees
        self.depth, self.condition = depth, condition  # where it is called
        self.unrolled = 0  # loops around that are written out
        self.lost: dict[str, str] = {}  # variables that are gone, and why


@dataclass(frozen=True, eq=False)
class LoopTurn:
    """One round of a loop: what it assigns first, its statements, and the test that a while has."""

    statement: ast.For | ast.While
    over: LoopRange
    test: ast.expr | None = None

    @property
    def leaves(self) -> bool:
        """Whether data may end the loop in its middle."""
        return self.test is not None or any(_exits(self.statement.body, ast.Break))


class Control:
    """Writes statements that decide what runs."""

    w: KernelWriter
    places: TilePlaces
    condition: TileValue | None
    loops: dict[Location | None, dict[str, Axes]]
    depth: int
    frames: list[FunctionFrame]
    location: Location | None
    region: object  # changes in branches and loops, for what may be changed within them
    expr: Callable[[ast.expr], Any]
    assign: Callable[[ast.expr, Any], None]
    statement: Callable[[ast.stmt], Any]
    blaming: Callable[[ast.AST], AbstractContextManager[None]]

    @property
    def frame(self) -> FunctionFrame:
        """The function being parsed."""
        return self.frames[-1]

    @contextmanager
    def apart(self) -> Iterator[None]:
        """The block is parsed beside another one, or more than once."""
        before, self.region = self.region, object()
        try:
            yield
        finally:
            self.region = before

    def block(self, statements: Sequence[ast.stmt]) -> Any:
        """Parse statements; what ended them early, or None."""
        for i, s in enumerate(statements):
            self.location = self.frame.source.location(s)
            self.w.at(self.location)
            with self.blaming(s):
                if isinstance(s, ast.If) and any(_exits([s], ast.Break, ast.Continue, ast.Return)):
                    return self._parting(s, statements[i + 1 :])
                end = self.statement(s)
            if end is not None:
                return end
        return None

    # Branches

    def _if(self, s: ast.If) -> Any:
        test = self.truth(self.expr(s.test))
        if not isinstance(test, TileValue):
            return self.block(s.body if test else s.orelse)
        _, yes, no = self._both_branches(s.body, s.orelse, test)
        self.frame.variables = self._select(test, yes, no)
        return None

    def truth(self, value: Any) -> Any:
        """A condition: known now, or a tile of one truth value."""
        found = truth(value)
        if isinstance(found, TileValue):
            if any(n != 1 for n in found.shape):
                raise KernelError(
                    f"a condition needs one truth value, got {found.type}; use tile.where for elements"
                )
            return self.w.condition(self.w.reshape(found, ()) if found.rank else found)
        return found

    def _both_branches(
        self, body: Sequence[ast.stmt], other: Sequence[ast.stmt], test: TileValue
    ) -> tuple[list[Any], dict[str, Any], dict[str, Any]]:
        """How two branches end, and the variables after each; what they store is masked."""
        before, outer = dict(self.frame.variables), self.condition
        ends, results = [], []
        for branch, holds in ((body, test), (other, self.w.apply("logical_not", test))):
            self.frame.variables = dict(before)
            self.condition = holds if outer is None else self.w.apply("logical_and", outer, holds)
            with self.apart():
                ends.append(self.block(branch))
            results.append(self.frame.variables)
        self.condition = outer
        return ends, results[0], results[1]

    def _select(self, test: TileValue, yes: dict[str, Any], no: dict[str, Any]) -> dict[str, Any]:
        joined = {}
        for name in yes | no:
            if name not in yes or name not in no:
                self.frame.lost[name] = "is assigned in one branch of an if alone"
                continue
            joined[name] = self.chosen(name, test, yes[name], no[name])
        return joined

    def chosen(self, name: str, test: TileValue, a: Any, b: Any) -> Any:
        """One of two values."""
        return chosen(self.w, name, test, a, b)

    # Leaving early

    def _parting(self, s: ast.If, rest: Sequence[ast.stmt]) -> Any:
        """An if in which a loop or the kernel may be left: what follows it is of those who stay."""
        test = self.truth(self.expr(s.test))
        if not isinstance(test, TileValue):
            return self.block([*(s.body if test else s.orelse), *rest])
        before = self.frame.variables
        ends, yes, no = self._both_branches([*s.body, *rest], [*s.orelse, *rest], test)
        if any(isinstance(e, Returned) for e in ends):
            return self._returning(test, ends)
        # A name of one side alone is of a round that is over.
        self.frame.variables = {
            n: self.chosen(n, test, yes[n], no[n])
            for n in yes
            if n in no and (n in before or _meets(yes[n], no[n]))
        }
        broke = [e.broke if isinstance(e, Left) else False for e in ends]
        return Left(self._flag(test, *broke))

    def _returning(self, test: TileValue, ends: Sequence[Any]) -> Returned:
        if any(isinstance(e, Left) for e in ends):
            raise KernelError("a kernel is not left from within a loop that runs; use break")
        values = [e.value if isinstance(e, Returned) else None for e in ends]
        if self.frame.unrolled:
            raise KernelError("a loop that is written out is not left by data; use tile.range")
        if any(v is None for v in values) and not all(v is None for v in values):
            raise KernelError(
                "a kernel returns results in one branch of an if and none in the other"
            )
        if values[0] is None:
            return Returned(None)
        if isinstance(values[0], list | tuple):
            values = [tuple(v) if isinstance(v, list | tuple) else v for v in values]
        return Returned(self.chosen("the result", test, *values))

    def _flag(self, test: TileValue, a: Any, b: Any) -> TileValue | bool:
        if isinstance(a, bool) and a is b:
            return a
        made: TileValue = self.w.apply("where", test, self.w.tile(a, bool_), self.w.tile(b, bool_))
        return made

    def _return(self, s: ast.Return) -> Returned:
        if self.depth > self.frame.depth:
            raise KernelError(
                "return stands outside of loops that run; leave a loop by break, and return after it"
            )
        return Returned(None if s.value is None else self.expr(s.value))

    def _break(self, s: ast.Break) -> Left:
        return Left(True)

    def _continue(self, s: ast.Continue) -> Left:
        return Left(False)

    # Loops

    def _for(self, s: ast.For) -> Any:
        if s.orelse:
            raise KernelError("a loop in a kernel has no else")
        over = self.expr(s.iter)
        if isinstance(over, LoopRange):
            return self._loop(LoopTurn(s, over))
        if isinstance(over, TileValue | KernelArray | Dim) or not hasattr(over, "__iter__"):
            raise KernelError(f"a loop runs over tile.range or Python values, got {over!r:.60}")
        self.frame.unrolled += 1
        try:
            return self._unrolled(s, over)
        finally:
            self.frame.unrolled -= 1

    def _unrolled(self, s: ast.For, over: Any) -> Any:
        for count, item in enumerate(over):
            if count == _MOST_UNROLLED:
                raise KernelError("a loop over Python values is written out; use tile.range")
            self.assign(s.target, item)
            end = self.block(s.body)
            if isinstance(end, Left) and isinstance(end.broke, TileValue):
                raise KernelError("a loop that is written out is not left by data; use tile.range")
            if isinstance(end, Left) and end.broke:
                break
            if isinstance(end, Returned):
                return end
        return None

    def _while(self, s: ast.While) -> None:
        if s.orelse:
            raise KernelError("a loop in a kernel has no else")
        endless = isinstance(s.test, ast.Constant) and bool(s.test.value)
        if endless and not any(_exits(s.body, ast.Break)):
            raise KernelError("while: nothing ends this loop; leave it by break")
        self._loop(LoopTurn(s, LoopRange(0, MOST, 1, lambda i: i), s.test))

    def _loop(self, turn: LoopTurn) -> None:
        """A loop carries the names that it assigns and that exist before it."""
        f, s, over = self.frame, turn.statement, turn.over
        names = [n for n in assigned(s.body) if n in f.variables and is_number(f.variables[n])]
        before = dict(f.variables)
        line = f.source.location(s)
        carried = self._settled(turn, before, names)
        self.loops[line] = {n: x.axes for n, x in carried.items()}
        names = [n for n in names if n in carried]
        starts = [carried[n].tile for n in names]
        going = self._begins(turn, {**before, **carried}) if turn.leaves else None
        bound = None if going is not None else self._bound(over)
        first = [] if going is None else [going]
        with self.w.b.loop(
            over.start, over.stop, over.step, [*first, *starts], bound, going is not None
        ) as inner:
            tiles = inner.carried[len(first) :]
            inside = {n: _at(carried[n], t) for n, t in zip(names, tiles, strict=True)}
            after, end = self._body(turn, {**before, **inside}, inner.variable)
            outs = [self._same(carried[n], inside[n], after[n], inner.name).tile for n in names]
            held = {n: _at(carried[n], t) for n, t in zip(names, outs, strict=True)}
            flags = [] if going is None else [
                self._goes_on(turn, {**before, **held}, inner.variable, end)
            ]  # fmt: skip
            inner.carry(*flags, *outs)
        f.variables = before
        for n, t in zip(names, inner.results[len(first) :], strict=True):
            f.variables[n] = _at(carried[n], t)
        target = [ast.Expr(s.target)] if isinstance(s, ast.For) else []
        for n in [*assigned(s.body), *assigned(list(target))]:
            if n not in f.variables:
                f.lost[n] = "is of a loop that has ended"

    def _bound(self, over: LoopRange) -> Tile | None:
        """Where data end a loop; at its start if it is of a branch that is not taken."""
        if over.bound is None:
            return None
        if self.condition is None:
            return over.bound.tile
        made: TileValue = self.w.apply("where", self.condition, over.bound, self.w.tile(over.start))
        return made.tile

    def _begins(self, turn: LoopTurn, variables: dict[str, Any]) -> Tile:
        """Whether a loop has a first round."""
        return self._goes(turn, variables, turn.over.start, False).tile

    def _goes_on(self, turn: LoopTurn, variables: dict[str, Any], counter: Dim, end: Any) -> Tile:
        """Whether a loop has another round after this one."""
        broke = end.broke if isinstance(end, Left) else False
        return self._goes(turn, variables, counter + turn.over.step, broke).tile

    def _goes(
        self, turn: LoopTurn, variables: dict[str, Any], counter: Any, broke: Any
    ) -> TileValue:
        w, over = self.w, turn.over
        going = w.apply("logical_not", w.tile(broke, bool_))
        if self.condition is not None:
            going = w.apply("logical_and", going, self.condition)
        if over.bound is not None:
            going = w.apply("logical_and", going, w.apply("lt", w.tile(counter), over.bound))
        if turn.test is not None:
            kept, self.frame.variables = self.frame.variables, variables
            test = self.truth(self.expr(turn.test))
            self.frame.variables = kept
            going = w.apply("logical_and", going, w.tile(test, bool_))
        found: TileValue = going
        return found

    def _settled(
        self, turn: LoopTurn, before: dict[str, Any], names: Sequence[str]
    ) -> dict[str, TileValue]:
        """What the loop carries in: tiles of the types and places that they have after a round."""
        carried: dict[str, TileValue] = {}
        counter = symbol(f"_t{self.depth}")
        body = turn.statement.body
        said = len(self.places.reports), len(self.places.hidden)
        for _ in range(_ROUNDS):
            with self.w.b.trial():
                after, _ = self._body(turn, {**before, **carried}, counter)
                made = self.w.b.written()
            self.places.forget_reports(*said)
            for n, x in before.items():
                if n not in names and after.get(n) is not x and n in assigned(body):
                    raise KernelError(f"{n} is {words(x)} before the loop; a loop carries tiles")
            inside = results_of(made)
            now = {
                n: self._joined(n, carried.get(n, before[n]), after[n], counter, inside)
                for n in names
                if n in carried or after[n] is not before[n]
            }
            known = {n: (x.axes, x.pads, type(x)) for n, x in carried.items()}
            carried = now
            if {n: (x.axes, x.pads, type(x)) for n, x in now.items()} == known:
                self._check_blocks(after, carried, counter, made)
                break
        return carried

    def _joined(
        self, name: str, start: Any, end: Any, counter: Dim, inside: set[Tile]
    ) -> TileValue:
        """A carried tile, with what is true of it before and after a round."""
        if not is_number(end):
            raise KernelError(f"{name} becomes {words(end)} in the loop; a loop carries tiles")
        if is_whole(start) and is_whole(end):
            return (
                start
                if isinstance(start, RunTimeCount)
                else RunTimeCount(self.w.tile(start).tile, (), ())
            )
        if not isinstance(end, TileValue):
            return start if isinstance(start, TileValue) else self.w.tile(start)
        weak = isinstance(start, RunTimeCount) or not isinstance(start, TileValue)
        first: TileValue = self.w.tile(start, end.dtype) if weak else start
        if first.rank < end.rank and not first.rank:
            first = self.w.broadcast(first, end.shape)
        if first.type is not end.type:
            raise KernelError(
                f"{name} is {first.type} before the loop and {end.type} after a round of it"
            )
        kept = [None if _moves(b, str(counter), inside) else b for b in end.axes]
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
        inside = results_of(made)
        for n, start in carried.items():
            end = after[n]
            moves = isinstance(end, TileValue) and any(
                _moves(a, str(counter), inside) for a in end.axes
            )
            if moves and not depends(end.tile, start.tile, made):
                raise KernelError(
                    f"{n} holds a block of this round and is carried to the next; load it where it is used"
                )

    def _same(self, start: TileValue, now: TileValue, end: Any, counter: str) -> TileValue:
        """What is carried to the next round; what is past the end in this one stays as it was."""
        made = end if isinstance(end, TileValue) else self.w.tile(end, start.dtype)
        if made.type is not start.type:
            made = self.w.cast(self.w.broadcast(made, start.shape), start.dtype)
        inside = results_of(self.w.b.written())
        for i, a in enumerate(made.axes):
            if a is not None and not a.exact and _moves(a, counter, inside):
                kept = self.w.inside(made, i, a)
                t = self.w.b.apply("where", kept, made.tile, now.tile)
                made = TileValue(t, made.axes, made.pads)
        return made

    def _body(self, turn: LoopTurn, variables: dict[str, Any], counter: Dim) -> tuple[Any, Any]:
        """The variables after a round, and how it ended."""
        f, s, over = self.frame, turn.statement, turn.over
        f.variables = dict(variables)
        self.places.loops[str(counter)] = (over.start, over.stop)
        self.places.rounds[str(counter)] = (over.step, over.ahead)
        self.depth += 1
        unrolled, f.unrolled = f.unrolled, 0
        with self.apart():
            if isinstance(s, ast.For):
                self.assign(s.target, over.variable(counter))
            end = self.block(s.body)
        self.depth -= 1
        f.unrolled = unrolled
        made, f.variables = f.variables, variables
        return made, end


def _exits(nodes: Sequence[ast.AST], *kinds: type) -> Iterator[ast.AST]:
    """The statements of these kinds that leave what is around; those of loops within are theirs."""
    for n in nodes:
        if isinstance(n, kinds):
            yield n
        if isinstance(n, ast.For | ast.While | ast.FunctionDef):
            yield from _exits(n.body, *(k for k in kinds if k is ast.Return))
        elif isinstance(n, ast.If):
            yield from _exits([*n.body, *n.orelse], *kinds)


def _meets(a: Any, b: Any) -> bool:
    """Whether one of two values can be selected."""
    return a is b or (is_number(a) and is_number(b)) or (is_static(a) and is_static(b) and a == b)


def _at(value: TileValue, tile: Tile) -> TileValue:
    """A carried tile: the places of its start, another value."""
    kind = RunTimeCount if isinstance(value, RunTimeCount) else TileValue
    return kind(tile, value.axes, value.pads)


def _moves(a: AxisElements | None, counter: str, inside: set[Tile]) -> bool:
    """Whether a place depends on the counter of a loop, or on data of one round."""
    if a is None:
        return False
    data = () if a.moved is None or a.lost is not None else (a.moved.by, a.moved.until)
    return counter in a.symbols() or any(t in inside for t in data)


def results_of(made: Sequence[Operation]) -> set[Tile]:
    """The tiles that operations give."""
    return {t for op in made for t in op.results}


def depends(end: Tile, start: Tile, made: Sequence[Operation]) -> bool:
    """Whether a tile is computed from another one by these operations."""
    reached = {start}
    for op in made:
        inner = () if op.block is None else [t for o in walk(op.block) for t in o.operands]
        if any(t in reached for t in (*op.operands, *inner)):
            reached.update(op.results)
    return end in reached
