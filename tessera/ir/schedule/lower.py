"""lower: a Graph as kernels over buffers.

    %m = max(%x); %e = exp(sub(%x, %m)); %s = sum(%e); %y = mul(%e, div(1, %s))
->  kernel rows r0: m[r0] = max over c of x[r0, c]; e[r0, c] = exp(x[r0, c] - m[r0]); ...

Elementwise nodes and views are written into the terms of their consumers.  What has to exist on its
own becomes a stage, and a stage joins the kernel that made its operands when it reads them row by
row.  Ops that are no loop nests are primitives, and run on the host when there is none.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tessera.core.dims import Size
from tessera.core.dtype import i64
from tessera.core.intervals import inside
from tessera.core.primitives import is_primitive
from tessera.core.scalar import Expr
from tessera.core.types import TensorType
from tessera.ir.graph.ir import Graph, Node, Value
from tessera.ir.graph.op import Element, forbidden
from tessera.ir.schedule.factors import has_positions, is_better_turned, unpacks, widens
from tessera.ir.schedule.fusion_analysis import COST, DEEP, LONG, Questions
from tessera.ir.schedule.index import narrow
from tessera.ir.schedule.ir import (
    Apply,
    Axis,
    Buffer,
    Cast,
    Group,
    HostCall,
    Kernel,
    Literal,
    Position,
    Primitive,
    Program,
    Read,
    Stage,
    Step,
    Term,
    reads,
    result_dtype,
    with_reads,
)
from tessera.ir.schedule.passes.fuse_contractions import fuse_contractions
from tessera.ir.schedule.views import (
    batch_axes,
    is_simple,
    keeps_order,
    reads_lines,
    reduced_axes,
)

_CHEAP = 4  # a term above it is not computed twice
_FEW_TENSORS = 2  # that a term reads, where it is computed again on a GPU: not measured by itself
CHEAP_ON_GPU = 48  # where arithmetic costs less beside memory
_LARGE = 800  # and of the stages of a kernel together


@dataclass
class _Open:
    """A kernel being filled."""

    rows: int
    sizes: tuple[Size, ...]  # of the row axes
    stages: list[Stage] = field(default_factory=list)
    contracts: bool = False  # the first stage is a contraction, the others follow it point by point
    tile: tuple[int, int, int] | None = None  # the block that the user asked for
    asked: str = ""  # the user's schedule
    cost: int = 0  # of its stages


def lower(g: Graph, cheap: int = _CHEAP) -> Program:
    """The program of a graph whose ops have no decompositions left."""
    # A GPU runs the kernels of a group one by one, and others with what stands beside them.
    return fuse_contractions(fuse(g, cheap), wide=cheap <= _CHEAP)


def fuse(g: Graph, cheap: int = _CHEAP) -> Program:
    """The program of such a graph, none of whose contractions are fused yet."""
    return _GraphLowering(g, cheap).program()


def fuse_for_gpu(g: Graph) -> Program:
    """The same for a GPU, which computes cheap values again rather than keep them."""
    return fuse(g, CHEAP_ON_GPU)


def _numbers_first(g: Graph) -> list[Node]:
    """The nodes; numbers that need no tensor come first, so that kernels do not wait for them."""
    known = {v for v in g.inputs if v.ndim == 0}
    early: list[Node] = []
    rest: list[Node] = []
    for n in g.nodes:
        pinned = n.regions or forbidden(n.op.effects, "move")
        plain = not pinned and all(v.ndim == 0 for v in n.results)
        first = plain and all(v in known for v in n.operands)
        (early if first else rest).append(n)
        known.update(n.results if first else ())
    return [*early, *rest]


def names_of(g: Graph, on_gpu: bool = False) -> dict[Value, str]:
    """The stage or buffer of each value that exists on its own; others are computed by their readers."""
    lowering = _GraphLowering(g, CHEAP_ON_GPU if on_gpu else _CHEAP)
    lowering.program()
    return lowering.names


class _GraphLowering(Questions):
    def __init__(self, g: Graph, cheap: int = _CHEAP):
        super().__init__(g)
        self.cheap = cheap
        self.made: dict[str, int] = {}  # step that makes each of them; inputs are made before all
        self.types: dict[str, TensorType] = {}
        self.steps: list[_Open | Primitive | HostCall] = []
        self.sizes: dict[str, Size] = {}  # of every axis
        self.done: set[Node] = set()
        self.within: dict[Value, bool] = {}

    def program(self) -> Program:
        for i, v in enumerate(self.g.inputs):
            self.name(v, f"x{i}", -1)
        for n in _numbers_first(self.g):
            self.node(n)
            # What exists is reshaped at once: then no kernel that reads it has to come later.
            made = [u for v in n.results if v in self.names for u in self.users.get(v, [])]
            for u in made:
                if u.op.reshapes:
                    self.node(u)
        return self.finish()

    def name(self, v: Value, name: str, step: int) -> None:
        self.names[v], self.made[name], self.types[name] = name, step, v.type

    # Nodes

    def node(self, n: Node) -> None:
        if n in self.done:
            return
        self.done.add(n)
        if not self.is_loop_nest(n):
            self.whole(n)
        elif n.op.combine is not None or self.must_materialize(n.results[0], n):
            if self.is_layout(n) and not self.is_copied(n):
                self.host(n)
            elif self.is_contraction(n):
                self.contraction(n)
            else:
                self.stage(n)

    def must_materialize(self, v: Value, n: Node) -> bool:
        """Whether an inlinable value must exist on its own."""
        users = self.users.get(v, [])
        self.depths[v] = self.depth(n)
        if v in self.returned or any(not self.is_loop_nest(u) for u in users):
            return True
        if self.depths[v] > DEEP or self.is_result_reshaped(v):
            return True
        if not n.op.casts and self.is_picked(v):
            return True
        if n.op.view is None and self.is_spread_factor(v):
            return True
        if any(self.is_contraction(u) for u in users):
            return not self.lies_there(v) and not self.is_widened(v)
        if self.is_narrow_factor(v):
            return True
        self.costs[v] = self.cost(n)
        if self.cheap > _CHEAP and self.closes(v):
            return True  # in place of the product, and nobody computes it again
        if self.cheap > _CHEAP and len(self.tensors(v)) > _FEW_TENSORS and len(self.readers(v)) > 1:
            return True  # to read so many again takes longer than to read what they make
        # Every point of a tensor would compute a number, or a number of its row, again.
        cheap = self.cheap if v.ndim and not self.is_spread(v) else _CHEAP
        if self.costs[v] <= cheap or self.is_simple_view(n):
            # Of what a view shows, the operand exists.
            several = n.op.view is None and len(self.tensors(v)) > 1 and len(self.readers(v)) > 1
            return several and self.is_led(v, v.dtype.bits)
        if self.costs[v] > LONG:
            return True
        return len(self.readers(v)) > 1 and not self.is_within_factor(v)

    def is_result_reshaped(self, v: Value) -> bool:
        """Whether a result is a value in another shape, which a GPU writes in the shape of its rows."""
        users = self.users.get(v, [])
        if self.cheap == _CHEAP or len(users) != 1 or 0 in v.shape:
            return False
        return users[0].op.reshapes and users[0].results[0] in self.returned

    def is_spread_factor(self, v: Value) -> bool:
        """Whether views show a value to a contraction in more places than it has elements: it would have to
        exist in all of them.
        """
        waiting = [(v, False)]
        while waiting:
            w, spread = waiting.pop()
            for u in self.users.get(w, []):
                if self.is_contraction(u):
                    if spread and not (self.is_readable(w) and self.is_widened(w)):
                        return True
                elif self.is_shown_by(u):
                    waiting.append((u.results[0], spread or u.op.spreads))
        return False

    def lies_there(self, v: Value) -> bool:
        """Whether a value is a view of a tensor in memory, which contractions read where it lies."""
        n = v.node
        while n is not None and n.op.view is not None and n.operands[0] not in self.names:
            n = n.operands[0].node
        if n is None or n.op.view is None or 0 in v.shape:
            return False
        axes = self.axes(f"t{len(self.names)}", v.shape)
        place = self.read(v, tuple(a.variable for a in axes))
        assert isinstance(place, Read), place
        shown = self.cheap == _CHEAP and v.node is n and self.is_reshaped(n)
        if shown and place.index and isinstance(place.index[-1], int):
            return False  # weights of a window of one place: another shape costs nothing
        return all(
            reads_lines(place, [a for i, a in enumerate(axes) if i not in batch])
            for u in self.users[v]
            if self.is_contraction(u)
            for batch in batch_axes(u, v)
        )

    def is_reshaped(self, n: Node) -> bool:
        """Whether a view shows all elements of a tensor in memory, in its order."""
        return n.op.reshapes and n.operands[0] in self.names and keeps_order(n)

    def is_widened(self, v: Value) -> bool:
        """Whether all that want a value are contractions, which make it of something narrower."""
        if not all(self.is_contraction(u) for u in self.users[v]) or 0 in v.shape:
            return False
        axes = self.axes(f"t{len(self.names)}", v.shape)
        t = self.read(v, tuple(a.variable for a in axes))
        sizes = {a.name: a.size for a in axes}
        if not widens(t):
            return False
        if all(is_simple(r.index, sizes) for r in reads(t)) and not has_positions(t):
            return True
        over = {axes[i].name for u in self.users[v] for i in reduced_axes(u, v)}
        wide = (
            v.dtype.kind == "f" and not v.dtype.is_narrow
        )  # words of narrow numbers are read whole
        return wide and len(over) == 1 and unpacks(t, over.pop())

    def is_within_factor(self, v: Value) -> bool:
        """Whether all that comes of a value are factors that contractions make as they read them."""
        way: dict[Value, Value | None] = {v: None}  # each value, and what it was made of
        waiting = [v]
        while waiting:
            w = waiting.pop()
            if not self.within.get(w, True) or not self.leads_on(w):
                at: Value | None = w
                while at is not None:
                    self.within[at], at = False, way[at]
                return False
            if w not in self.within:
                made = [u.results[0] for u in self.users[w] if not self.is_contraction(u)]
                waiting += (x for x in made if x not in way)
                for x in made:
                    way.setdefault(x, w)
        self.within.update(dict.fromkeys(way, True))
        return True

    def leads_on(self, v: Value) -> bool:
        """Whether all users of a value are contractions that compute it, or ops of such a factor."""
        users = self.users.get(v, [])
        return bool(users) and v not in self.returned and all(
            self.is_readable(v) and self.is_widened(v) if self.is_contraction(u)
            else self.is_loop_nest(u) and u.op.combine is None
            for u in users
        )  # fmt: skip

    def whole(self, n: Node) -> None:
        """An op on whole tensors: a primitive, or a call to the host."""
        call = n.op.call or n.op.name
        if not is_primitive(call, n.types, n.params):
            self.host(n)
            return
        operands, results = self.wired(n)
        step = Primitive(
            f"{self.g.name}_{len(self.steps)}", call, n.params, operands, results, n.location
        )
        self.steps.append(step)

    def host(self, n: Node) -> None:
        self.steps.append(HostCall(n, *self.wired(n)))

    def wired(self, n: Node) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The buffers that a step reads, and those that it makes."""
        operands = tuple(self.buffer(v) for v in n.operands)
        for v in n.results:
            self.name(v, f"t{len(self.names)}", len(self.steps))
        return operands, tuple(self.names[v] for v in n.results)

    def buffer(self, v: Value) -> str:
        assert v in self.names, f"{v} was inlined but a host call needs it"
        return self.names[v]

    # Terms

    def read(self, v: Value, index: tuple[Size, ...]) -> Term:
        """The element of a value at an index."""
        if v in self.names:
            return Read(v.dtype, self.names[v], index)
        n = v.node
        assert n is not None, v
        p = n.params
        match n.op.name:
            case "full":
                return Literal(v.dtype, p["value"])
            case "constant":
                return Literal(v.dtype, p["value"].array.item())
            case "iota":
                return _cast(Position(i64, index[p["axis"]]), v.dtype)
            case "dim":
                return Position(i64, p["size"])
            case "cast":
                return _cast(self.read(n.operands[0], index), v.dtype)
        if n.op.view is not None:
            place = n.op.view(index, n.types, p)
            return self.read(n.operands[0], tuple(narrow(i, self.sizes) for i in place))
        if n.op.pick is not None:
            return self.picked(n, n.operands[0], n.op.pick(index, n.types, p))
        body = n.op.expr(p)
        assert body is not None, n
        wide = [
            _cast(
                self.read(x, index), x.dtype if n.op.moves and x.dtype.bits > 8 else x.dtype.compute
            )
            for x in n.operands
        ]
        return _cast(_term(body, wide), v.dtype)

    def picked(self, n: Node, x: Value, where: Sequence[Any]) -> Term:
        """The element at a place that is data, of a tensor in memory or of a cast of one."""
        if x in self.names:
            return Read(x.dtype, self.names[x], tuple(self.place(i, n) for i in where))
        assert x.node is not None, x
        assert x.node.op.casts, x
        return _cast(self.picked(n, x.node.operands[0], where), x.dtype)

    def place(self, i: Any, n: Node) -> Any:
        """A place of a pick: a size, or the number that an operand holds, clamped."""
        if not isinstance(i, Element):
            return narrow(i, self.sizes)
        t = _cast(self.read(n.operands[i.operand], i.index), i64)
        if isinstance(t, Literal) and isinstance(i.last, int):
            return i.offset + min(max(int(t.value.real), 0), i.last)
        if isinstance(t, Position) and inside(t.value, i.last + 1, self.sizes):
            return t.value + i.offset
        low = Apply(i64, "max", (t, Literal(i64, 0)))
        held = Apply(i64, "min", (low, Position(i64, i.last)))
        if i.offset == 0:
            return held
        return Apply(i64, "add", (held, Position(i64, i.offset)))

    # Stages

    def stage(self, n: Node) -> None:
        v = n.results[0]
        name = f"t{len(self.names)}"
        if n.op.combine is None:
            axes = self.axes(name, v.shape)
            term = self.read(v, tuple(a.variable for a in axes))
            self.put(Stage(name, axes, (), None, term, n.location))
        else:
            self.folds(n, name)
        self.names[v] = name

    def axes(self, name: str, shape: Sequence[Size]) -> tuple[Axis, ...]:
        """The axes of a stage, one for each axis of a tensor."""
        made = tuple(Axis(f"_{name}_{i}", s) for i, s in enumerate(shape))
        self.sizes.update({a.name: a.size for a in made})
        return made

    def folds(self, n: Node, name: str) -> None:
        """A stage for each folded axis, from the last to the first; the result is rounded once."""
        x, v = n.operands[0], n.results[0]
        wide = x.dtype.accum
        axes = self.axes(name, x.shape)
        term = _cast(self.read(x, tuple(a.variable for a in axes)), wide)
        folded = sorted(n.params["axes"], reverse=True)
        for i in folded:
            last = i == folded[-1] and wide is v.dtype
            part = Stage(
                name if last else f"{name}_over{i}", axes[:i] + axes[i + 1 :], axes[i : i + 1],
                n.op.combine, term, n.location,
            )  # fmt: skip
            self.put(part, trailing=i == len(axes) - 1)
            axes = self.axes(f"{part.name}_", part.type.shape)
            term = Read(wide, part.name, tuple(a.variable for a in axes))
        if wide is not v.dtype:
            self.put(Stage(name, axes, (), None, _cast(term, v.dtype), n.location))

    def contraction(self, n: Node) -> None:
        """out[batch, m, n] = sum over k of left * right, a kernel of its own."""
        v, name = n.results[0], f"t{len(self.names)}"
        sig = n.op.sig(n.types, n.params)
        assert sig is not None
        bound, sizes = sig.bind(n.op.name, n.types)
        rows = len(bound.out) - 2
        axes = {
            a: Axis(f"_r{bound.out.index(a)}" if a in bound.out[:rows] else f"_{name}_{a}", size)
            for a, size in sizes.items()
        }
        self.sizes.update({a.name: a.size for a in axes.values()})
        terms = [
            _cast(self.read(x, tuple(axes[a].variable for a in names)), x.dtype.accum)
            for x, names in zip(n.operands, bound.ins, strict=True)
        ]
        wide = terms[0].dtype
        product = Apply(wide, "mul", tuple(terms))
        out = tuple(axes[a] for a in bound.out)
        tile = n.params.get("tile_shape")
        asked = n.params.get("schedule", "")
        sizes_of_rows = tuple(a.size for a in out[:rows])
        kernel = _Open(rows, sizes_of_rows, contracts=True, tile=tile, asked=asked)
        total = name if wide is v.dtype else f"{name}_wide"
        step = len(self.steps)
        sums = Stage(total, out, (axes[bound.reduced[0]],), "add", product, n.location)
        if is_better_turned(sums):
            self.turned(sums, kernel, v, name)
            return
        kernel.stages.append(sums)
        if total != name:
            self.made[total], self.types[total] = step, kernel.stages[0].type
            narrowed = _cast(Read(wide, total, tuple(a.variable for a in out)), v.dtype)
            kernel.stages.append(Stage(name, out, (), None, narrowed, n.location))
        self.steps.append(kernel)
        self.name(v, name, step)

    def turned(self, sums: Stage, kernel: _Open, v: Value, name: str) -> None:
        """A contraction whose columns are computed as rows, and a copy that turns them back."""
        *batch, m, n = sums.axes
        turned = replace(sums, name=f"{name}_turned", axes=(*batch, n, m))
        kernel.stages.append(turned)
        if kernel.tile is not None:
            kernel.tile = (kernel.tile[1], kernel.tile[0], kernel.tile[2])
        kernel.asked = _turned(kernel.asked)
        self.made[turned.name], self.types[turned.name] = len(self.steps), turned.type
        self.steps.append(kernel)
        axes = self.axes(name, v.shape)
        *lead, row, column = (a.variable for a in axes)
        term = Read(sums.dtype, turned.name, (*lead, column, row))
        self.put(Stage(name, axes, (), None, _cast(term, v.dtype), sums.location))
        self.names[v] = name

    def put(self, stage: Stage, trailing: bool = True) -> None:
        """Put a stage in the kernel that made its operands, or in a new one."""
        step = max((self.made[r.source] for r in reads(stage.term)), default=-1)
        kernel = self.steps[step] if step >= 0 else None
        cost = cost_of(stage.term)
        fits = isinstance(kernel, _Open) and kernel.cost + cost <= _LARGE
        if not (
            isinstance(kernel, _Open) and fits and trailing and self.joins(stage, kernel, step)
        ):
            rows = len(stage.axes) if stage.combine and trailing else max(len(stage.axes) - 1, 0)
            kernel = _Open(rows, tuple(a.size for a in stage.axes[:rows]))
            step = len(self.steps)
            self.steps.append(kernel)
        head = kernel.stages[0].axes if kernel.contracts else ()
        axes = head or tuple(
            Axis(f"_r{i}", a.size) if i < kernel.rows else a for i, a in enumerate(stage.axes)
        )
        env = {a.name: b.variable for a, b in zip(stage.axes, axes, strict=True)}
        own = {s.name: len(s.axes) for s in kernel.stages}
        here = tuple(a.variable for a in (*axes, *stage.reduced))
        term = with_reads(
            stage.term.at(env),
            lambda r: replace(r, index=here[: own[r.source]]) if r.source in own else r,
        )
        kernel.stages.append(
            Stage(stage.name, axes, stage.reduced, stage.combine, term, stage.location)
        )
        kernel.cost += cost
        self.made[stage.name], self.types[stage.name] = step, stage.type

    def joins(self, stage: Stage, kernel: _Open, step: int) -> bool:
        rows = kernel.rows
        if kernel.contracts:
            return self.follows(stage, kernel)
        if len(stage.axes) + len(stage.reduced) > rows + 1:
            return False
        if len(stage.axes) < rows or tuple(a.size for a in stage.axes[:rows]) != kernel.sizes:
            return False
        variables = tuple(a.variable for a in stage.axes[:rows])
        own = {s.name: s for s in kernel.stages}
        return all(
            self.is_here(r.index[:rows], variables)
            and self.reads_in_order(r, own[r.source], stage, rows)
            for r in reads(stage.term)
            if r.source in own
        )

    def follows(self, stage: Stage, kernel: _Open) -> bool:
        """Whether a stage computes each point of a contraction from that point."""
        shape = tuple(a.size for a in kernel.stages[0].axes)
        here = tuple(a.variable for a in stage.axes)
        own = {s.name for s in kernel.stages}
        if self.cheap > _CHEAP and self.is_heavy(stage, kernel):
            return False
        return (
            stage.combine is None
            and tuple(a.size for a in stage.axes) == shape
            and all(self.is_here(r.index, here) for r in reads(stage.term) if r.source in own)
        )

    def is_heavy(self, stage: Stage, kernel: _Open) -> bool:
        """Whether a stage reads matrices that are wider than a product: its blocks have no registers for
        them.
        """
        own = {s.name for s in kernel.stages}
        bits = min(s.dtype.bits for s in kernel.stages)
        others = {r.source for r in reads(stage.term) if r.source not in own}
        return any(self.types[n].rank > 1 and self.types[n].dtype.bits > bits for n in others)

    def is_here(self, index: Sequence[Any], here: Sequence[Size]) -> bool:
        """Whether an index is the place where a stage stands; an axis of one element is at 0."""
        return len(index) == len(here) and all(
            x == y or x == narrow(y, self.sizes) for x, y in zip(index, here, strict=True)
        )

    def reads_in_order(self, r: Read, source: Stage, stage: Stage, rows: int) -> bool:
        """Whether a stage reads a column where it stands: index j at its own column j."""
        columns = (*stage.axes[rows:], *stage.reduced)[: len(source.axes) - rows]
        return self.is_here(r.index[rows:], tuple(a.variable for a in columns)) and all(
            a.size == b.size for a, b in zip(columns, source.axes[rows:], strict=True)
        )

    # Program

    def finish(self) -> Program:
        outputs = [self.names[v] for v in self.g.outputs]
        used_later = self.used_outside(outputs)
        steps: list[Step] = []
        for i, s in enumerate(self.steps):
            if not isinstance(s, _Open):
                steps.append(s)
                continue
            written = tuple(t.name for t in s.stages if t.name in used_later)
            k = Kernel(f"{self.g.name}_{i}", s.rows, tuple(s.stages), written, tile=s.tile)
            steps.append(replace(k, asked=s.asked) if s.asked else k)
        inputs = tuple(self.names[v] for v in self.g.inputs)
        return Program(
            self.g.name, self.buffers(steps, inputs), tuple(steps), inputs, tuple(outputs),
            self.g.captured, self.g.guards,
        )  # fmt: skip

    def used_outside(self, outputs: Sequence[str]) -> set[str]:
        """Stages that the host, other kernels or the caller read."""
        found = set(outputs)
        for i, s in enumerate(self.steps):
            if not isinstance(s, _Open):
                found.update(s.operands)
            else:
                found.update(
                    r.source for t in s.stages for r in reads(t.term) if self.made[r.source] != i
                )
        return found

    def buffers(self, steps: Sequence[Step], inputs: Sequence[str]) -> Mapping[str, Buffer]:
        names = list(inputs)
        for s in steps:
            names += s.outputs if isinstance(s, Kernel | Group) else s.results
        return {n: Buffer(n, self.types[n]) for n in names}


def cost_of(t: Term) -> int:
    """About how many operations a term takes at a point."""
    own = COST.get(t.scalar, 1) if isinstance(t, Apply) else 0
    return own + sum(map(cost_of, t.children()))


def _cast(t: Term, dtype: Any) -> Term:
    return t if t.dtype is dtype else Cast(dtype, t)


def _term(e: Expr, operands: Sequence[Term]) -> Term:
    """A scalar expression on terms."""
    if e.op == "arg":
        return operands[e.index]
    if e.op == "const":
        return Literal(operands[0].dtype, e.value)
    inner = tuple(_term(o, operands) for o in e.operands)
    return Apply(result_dtype(e.op, inner), e.op, inner)


def _turned(asked: str) -> str:
    """A schedule whose rows are columns."""
    said = json.loads(asked) if asked else {}
    if "block" in said:
        said["block"] = [*said["block"], 0][1::-1]
    return json.dumps(said) if said else ""
