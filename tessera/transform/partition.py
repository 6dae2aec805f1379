"""partition: the program of one logical shard of a mesh, from a graph on whole tensors and their layouts.

    %2 = matmul(%0, %1) : f32[64@dp, 32], f32[32, 16]            %0 is cut by dp=8, %1 is whole
->  %2 = matmul(%0, %1) : f32[8, 32], f32[32, 16]                and so is %2: f32[64@dp, 16]

    %3 = sum(%2) {axes = (0,)} : f32[64@dp, 16]
->  %3 = sum(%2) : f32[8, 16]   a partial sum, which `psum` over dp adds up where a whole one is used

Each op is cut along the factors (transform/factors.py) that move the fewest bytes.  An op that has none
runs on whole operands.  Every collective is listed with the user's line.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tessera.core.layout import Layout, cost, parts, replicated
from tessera.core.mesh import Mesh
from tessera.core.scalar import SCALARS
from tessera.core.types import TensorType
from tessera.ir.graph.ir import (
    Builder,
    Graph,
    Node,
    Value,
    bind,
    building,
    current_builder,
    substitute_params,
)
from tessera.ir.graph.op import Params
from tessera.ops.collective import ALL_GATHER, AXIS_INDEX, PMAX
from tessera.ops.constrain import CONSTRAIN, LIKE
from tessera.ops.creation import full, iota
from tessera.ops.define import cast_to, full_of
from tessera.ops.elementwise import (
    add,
    eq,
    ge,
    logical_and,
    lt,
    maximum,
    minimum,
    mul,
    sub,
    where,
)
from tessera.ops.shape import reshape, slice_
from tessera.transform.factors import factors_of
from tessera.transform.match import collectives
from tessera.transform.partition_moves import MOVES
from tessera.transform.partition_regions import REGIONS
from tessera.transform.partition_space import SPACE
from tessera.transform.partition_views import VIEWS
from tessera.transform.reshard import EXCHANGES, Inserted, Resharding
from tessera.transform.shards import Shard, SizedNode

Choice = Mapping[str, str]  # mesh axis -> the factor that it cuts
_ADDITIVE = ("add", "sub", "neg")  # scalar ops that commute with sums over shards
_SCALED = ("mul", "div")  # those that do when the other operand is a number


@dataclass(frozen=True)
class Partitioned:
    """The program of one shard, the layouts of its outputs, and the collectives that were inserted."""

    graph: Graph
    types: tuple[TensorType, ...]  # of the outputs, whole
    layouts: tuple[Layout, ...]
    inserted: tuple[Inserted, ...]


def partition(
    g: Graph, layouts: Sequence[Layout], mesh: Mesh, sizes: Mapping[str, int],
    wanted: Sequence[Layout | None] = ()
) -> Partitioned:  # fmt: skip
    """The program of one shard, for inputs in these layouts; outputs are in the wanted ones, where given."""
    builder = Builder(input_names=g.input_names)
    with building(builder):
        walk = _Walk(mesh, sizes)
        env: dict[Value, Shard] = {}
        for v, layout in zip(g.inputs, layouts, strict=True):
            t = v.type.substitute(sizes)
            local = builder.input(t.with_shape(layout.local(t.shape, mesh)))
            env[v] = Shard(local, t, layout)
        walk.graph(g, env)
        found = [env[v] for v in g.outputs]
        goals = wanted or [None] * len(found)
        ends = [
            replace(s.layout, partial=()) if w is None else w
            for s, w in zip(found, goals, strict=True)
        ]
        outs = [walk.asked(s, end, "the result", None) for s, end in zip(found, ends, strict=True)]
        made, outer = builder.finish(outs, g.name)
    assert len(made.inputs) == len(g.inputs) + len(outer)
    types = tuple(s.type for s in found)
    return Partitioned(made, types, tuple(ends), tuple(walk.reshard.inserted))


class _Walk:
    """Goes through a graph and writes the program of one shard into the open builder."""

    def __init__(self, mesh: Mesh, sizes: Mapping[str, int], reshard: Resharding | None = None):
        self.mesh, self.sizes = mesh, dict(sizes)
        self.reshard = Resharding(mesh) if reshard is None else reshard
        self._kept: dict[tuple[Value, Layout, Layout], Value] = {}
        self._held: list[Shard] = []  # keeps the keys of that alive

    def inside(self, times: int) -> _Walk:
        """One for a region, whose collectives run so many times."""
        return _Walk(self.mesh, self.sizes, self.reshard.repeated(times))

    def note_permute(self, x: Value, axis: str, s: Shard, n: Node) -> None:
        """List a permute of x, a part of a shard, that a node needs."""
        moved = int(x.type.size) * x.dtype.bits // 8
        self.reshard.note("permute", axis, moved, s.layout.show(s.type), n.op.name, n.location)

    def trial(self) -> _Walk:
        """One whose collectives are not listed."""
        return _Walk(self.mesh, self.sizes)

    def graph(self, g: Graph, env: dict[Value, Shard]) -> None:
        """Write the nodes of a graph."""
        for n in g.nodes:
            self._set_location(n)
            results = self._node(n, [env[v] for v in n.operands])
            env.update(zip(n.results, results, strict=True))
        self._set_location(None)

    def _set_location(self, n: Node | None) -> None:
        builder = _open()
        builder.location = None if n is None else n.location

    def asked(self, s: Shard, layout: Layout, user: str, n: Node | None) -> Value:
        """A value in a layout; each is made once."""
        if s.layout == layout:
            return s.value
        key = s.value, s.layout, layout
        if key not in self._kept:
            self._held.append(s)
            again = self._again(s, layout)
            location = None if n is None else n.location
            self._kept[key] = (
                self.reshard(s.value, s.type, s.layout, layout, user, location)
                if again is None
                else again
            )
        return self._kept[key]

    def _again(self, s: Shard, layout: Layout) -> Value | None:
        """A constant or a broadcast made anew with the shape of a shard, rather than made whole and cut."""
        step = s.source
        if step is None or s.layout.axes or s.layout.partial:
            return None
        local = s.type.with_shape(layout.local(s.type.shape, self.mesh))
        if not step.operands:
            return (
                full_of(local.shape, step.params["value"], local.dtype) if _is_full(step) else None
            )
        (x,), f = step.operands, step.factors
        assert f is not None
        cut = {axis[0]: names for axis, names in zip(f.outs[0], layout.cuts, strict=True) if names}
        want = Layout(tuple(cut.get(axis[0], ()) for axis in f.ins[0]))
        if f.whole & cut.keys():
            return None
        operand = self.asked(x, want, step.node.op.name, step.node)
        made: Value = bind(step.node.op, operand, **{**step.params, "shape": local.shape})
        return made

    # One node -------------------------------------------------------------------------------------

    def _node(self, n: Node, operands: Sequence[Shard]) -> list[Shard]:
        params = substitute_params(n.params, self.sizes)
        outs = tuple(v.type.substitute(self.sizes) for v in n.results)
        types = tuple(s.type for s in operands)
        if n.op in (CONSTRAIN, LIKE):
            layout = Layout(params["cuts"] if n.op is CONSTRAIN else operands[1].layout.cuts)
            return [Shard(self.asked(operands[0], layout, n.op.name, n), types[0], layout)]
        if n.op in VIEWS:
            return VIEWS[n.op](self, n, operands, outs)
        if n.op in EXCHANGES:
            self.reshard.note_own(n, operands[0].type, operands[0].layout)
        is_cut = any(s.layout.axes or s.layout.partial for s in operands)
        rule = SPACE.get(n.op) or MOVES.get(n.op)
        made = rule(self, n, operands, params) if is_cut and rule is not None else None
        if made is not None:
            return made
        if n.op in REGIONS and (is_cut or any(map(collectives, n.regions))):
            return REGIONS[n.op](self, n, operands, params)
        if not is_cut and not (n.op.view is not None and len(types) == 1):
            step = SizedNode(n, types, outs, params, None)
            return self._whole(step, operands, remember=_is_full(step))
        step = SizedNode(n, types, outs, params, factors_of(n, types, outs, params))
        if not is_cut:
            return self._whole(step, operands, remember=_is_broadcast(step))
        if _passes_partial(step, operands):
            return self._cut(step, operands, self._choice(step, operands, keep=True), keep=True)
        if step.factors is not None:
            choice = self._choice(step, operands)
            if n.op.decompose is None or not self._moves(step, operands, choice):
                return self._cut(step, operands, choice)
        if n.op.decompose is not None:
            return self._decomposed(step, operands)
        return self._whole(step, operands)

    def _whole(
        self, step: SizedNode, operands: Sequence[Shard], remember: bool = False
    ) -> list[Shard]:
        """The node on whole operands, the same on every shard."""
        n = step.node
        values = [self.asked(s, replicated(s.type.rank), n.op.name, n) for s in operands]
        out = bind(n.op, *values, regions=n.regions, **step.params)
        made = out if n.op.multiple else (out,)
        source = replace(step, operands=tuple(operands)) if remember else None
        return [
            Shard(v, t, replicated(t.rank), source) for v, t in zip(made, step.outs, strict=True)
        ]

    def _decomposed(self, step: SizedNode, operands: Sequence[Shard]) -> list[Shard]:
        """The node as the ops that define it; a narrow dtype is widened before and rounded once after."""
        n = step.node
        assert n.op.decompose is not None
        b = Builder(location=n.location)
        with building(b):
            ins = [b.input(t) for t in step.types]
            wide = [cast_to(v, v.dtype.compute) if v.dtype.kind == "f" else v for v in ins]
            out = n.op.decompose(*wide, **step.params)
            made = out if n.op.multiple else (out,)
            outs = [cast_to(v, r.dtype) for v, r in zip(made, n.results, strict=True)]
        g, outer = b.finish(outs, n.op.name)
        if any(m.op is n.op for m in g.nodes):  # one that only another form of it defines
            return self._whole(step, operands)
        lifted = [Shard(v, v.type, replicated(v.ndim)) for v in outer]
        env = dict(zip(g.inputs, [*operands, *lifted], strict=True))
        self.graph(g, env)
        self._set_location(n)
        return [env[v] for v in g.outputs]

    # Cutting --------------------------------------------------------------------------------------

    def _choice(
        self, step: SizedNode, operands: Sequence[Shard], keep: bool = False
    ) -> dict[str, str]:
        """The cheapest way to cut a node: for each mesh axis one of the factors that operands cut by it."""
        f = step.factors
        assert f is not None
        axes = [a for a in self.mesh.axes if any(a in s.layout.axes for s in operands)]
        options = [[*self._options(step, operands, a), None] for a in axes]
        best: tuple[float, dict[str, str]] | None = None
        for picked in itertools.product(*options):
            choice = {a: c for a, c in zip(axes, picked, strict=True) if c is not None}
            if not self._fits(step, choice):
                continue
            price = self._price(step, operands, choice, keep) + self._waste(step, axes, choice)
            if best is None or price < best[0]:
                best = price, choice
        assert best is not None
        return best[1]

    def _options(self, step: SizedNode, operands: Sequence[Shard], axis: str) -> Iterator[str]:
        f, seen = step.factors, set[str]()
        assert f is not None
        for s, names in zip(operands, f.ins, strict=True):
            at = s.layout.of(axis)
            if at is None or not names[at]:
                continue
            name = next((g for g in names[at] if f.sizes[g] > 1), names[at][0])
            if name not in seen and f.is_cuttable(name, self.mesh.size(axis)):
                seen.add(name)
                yield name
        if (
            not seen and step.node.op.decompose is None
        ):  # by another axis: all_to_all moves less than all_gather
            kept = {g for out in f.outs for names in out for g in names} - f.whole
            yield from sorted(g for g in kept if f.is_cuttable(g, self.mesh.size(axis)))

    def _fits(self, step: SizedNode, choice: Choice) -> bool:
        """Whether factors that are cut several times divide, and cut folds can be padded."""
        f = step.factors
        assert f is not None
        for name in set(choice.values()):
            mine = [a for a, c in choice.items() if c == name]
            if name in f.places and len(mine) > 1:
                return False
            if f.sizes[name] % parts(mine, self.mesh) == 0:
                continue
            shared = any(name in axis and len(axis) > 1 for x in (*f.ins, *f.outs) for axis in x)
            # What is read at places lies within the size, so that no padding is.
            padded = name in f.folded and name not in f.places
            if len(mine) > 1 or shared or (padded and not _is_paddable(step)):
                return False
            if _may_refuse(step) and not self._is_in_every_shard(f.sizes[name], mine[0]):
                return False
        return True

    def _is_in_every_shard(self, size: int, mesh_axis: str) -> bool:
        """Whether every shard has an element of an axis, which can stand for those of its padding."""
        count = self.mesh.size(mesh_axis)
        return -(-size // count) * (count - 1) < size

    def _price(
        self, step: SizedNode, operands: Sequence[Shard], choice: Choice, keep: bool
    ) -> float:
        f = step.factors
        assert f is not None
        total = 0
        for i, s in enumerate(operands):
            want = self._wanted(step, i, operands, choice, keep)
            total += cost(s.layout, want, int(s.type.size) * s.type.dtype.bits // 8, self.mesh)
        for a, name in choice.items():
            if name in f.folded:
                n = self.mesh.size(a)
                out = self._out(step, 0, choice)
                size = int(step.outs[0].size) * step.outs[0].dtype.bits // 8
                total += size * (n - 1) // n // parts(out.axes, self.mesh)
        return total

    def _waste(self, step: SizedNode, axes: Sequence[str], choice: Choice) -> float:
        """Work that shards repeat, in bytes: it settles what moves the same."""
        size = sum(int(t.size) * t.dtype.bits / 8 for t in (*step.types, *step.outs))
        return size * 0.01 * sum(a not in choice for a in axes)

    def _wanted(
        self, step: SizedNode, i: int, operands: Sequence[Shard], choice: Choice, keep: bool
    ) -> Layout:
        """The layout in which operand i is needed."""
        f = step.factors
        assert f is not None
        made = self._layout(f.ins[i], choice, operands)
        return replace(made, partial=operands[i].layout.partial) if keep else made

    def _out(
        self, step: SizedNode, i: int, choice: Choice, operands: Sequence[Shard] = ()
    ) -> Layout:
        f = step.factors
        assert f is not None
        return self._layout(f.outs[i], choice, operands)

    def _layout(
        self, axes: Sequence[tuple[str, ...]], choice: Choice, operands: Sequence[Shard]
    ) -> Layout:
        """The layout of axes with these factors; a factor cut several times keeps the order that operands
        have.
        """
        orders = [names for s in operands for names in s.layout.cuts if len(names) > 1]
        cuts = []
        for axis in axes:
            mine = [a for a in self.mesh.axes if choice.get(a) in axis]
            known = next((o for o in orders if sorted(o) == sorted(mine)), None)
            cuts.append(tuple(mine) if known is None else known)
        return Layout(tuple(cuts))

    def _moves(self, step: SizedNode, operands: Sequence[Shard], choice: Choice) -> bool:
        """Whether a cut of an operand gets lost."""
        wants = [self._wanted(step, i, operands, choice, False) for i in range(len(operands))]
        pairs = zip(operands, wants, strict=True)
        return any(set(s.layout.axes) - set(w.axes) for s, w in pairs)

    def _cut(
        self, step: SizedNode, operands: Sequence[Shard], choice: Choice, keep: bool = False
    ) -> list[Shard]:
        """The node on shards of its operands."""
        n, f = step.node, step.factors
        assert f is not None
        values = []
        for i, s in enumerate(operands):
            want = self._wanted(step, i, operands, choice, keep)
            values.append(self._operand(step, i, s, want, choice))
        values, seen = self._moved(step, values, choice)
        layouts = [self._out(step, k, choice, operands) for k in range(len(step.outs))]
        local = [
            t.with_shape(w.local(t.shape, self.mesh))
            for t, w in zip(step.outs, layouts, strict=True)
        ]
        params = _for_shard(step, [v.type for v in values], local)
        out = bind(n.op, *values, **params)
        made = list(out) if n.op.multiple else [out]
        assert [v.type for v in made] == local, (n, [v.type for v in made], local)
        for is_here in seen:
            made = [where(is_here, v, full_of((), 0, v.dtype)) for v in made]
        summed = tuple(a for a, c in choice.items() if c in f.folded)
        if keep:
            partial = next(s.layout.partial for s in operands if s.layout.partial)
            return [
                Shard(v, t, replace(w, partial=partial))
                for v, t, w in zip(made, step.outs, layouts, strict=True)
            ]
        if summed and step.combine == "add":
            layouts = [replace(w, partial=summed) for w in layouts]
        elif summed:
            made = [self._folded(step, v, summed) for v in made]
        return [Shard(v, t, w) for v, t, w in zip(made, step.outs, layouts, strict=True)]

    def _operand(self, step: SizedNode, i: int, s: Shard, want: Layout, choice: Choice) -> Value:
        """Operand i in a layout, fit to be folded."""
        n, f = step.node, step.factors
        assert f is not None
        if f.counted and i in f.counted and want.axes:
            return iota(want.local(s.type.shape, self.mesh), f.counted[i], s.type.dtype)
        x = self.asked(s, want, n.op.name, n)
        summed = {c: a for a, c in choice.items() if c in f.folded}
        for axis, names in enumerate(f.ins[i]):
            a = summed.get(names[0]) if names else None
            is_sought = bool(names) and names[0] in f.places
            if a is not None and not is_sought and s.type.shape[axis] % self.mesh.size(a):
                x = self._masked(x, axis, a, s.type.shape[axis], _identity(step, s.type))
            elif a is None and want.cuts[axis] and _may_refuse(step):
                x = self._repeated(x, axis, want.cuts[axis], s.type.shape[axis])
        if i in f.added:
            for a in summed.values():
                first = eq(bind(AXIS_INDEX, axis=a), 0)
                x = where(first, x, full_of((), 0, x.dtype))
        return x

    def _moved(
        self, step: SizedNode, values: list[Value], choice: Choice
    ) -> tuple[list[Value], list[Value]]:
        """Operands that say where, counted from the shard's first element; of reads, what lies in the
        shard.
        """
        f, seen = step.factors, list[Value]()
        assert f is not None
        for a, name in choice.items():
            if name not in f.places:
                continue
            i, size = f.places[name], f.sizes[name]
            part = -(-size // self.mesh.size(a))
            first = cast_to(mul(bind(AXIS_INDEX, axis=a), part), values[i].dtype)
            if name not in f.folded:
                values[i] = sub(values[i], first)  # what lies elsewhere is not written
                continue
            values[i] = sub(minimum(maximum(values[i], 0), size - 1), first)
            is_here = logical_and(ge(values[i], 0), lt(values[i], part))
            at = [f.outs[0].index(axis) for axis in f.ins[i]]
            shape = [1] * len(f.outs[0])
            for k, n in zip(at, is_here.shape, strict=True):
                shape[k] = n
            seen.append(reshape(is_here, shape))
        return values, seen

    def _masked(self, x: Value, axis: int, mesh_axis: str, size: Any, filler: Any) -> Value:
        """x with the elements beyond the end of a padded axis replaced."""
        return where(self._is_here(x, axis, mesh_axis, size), x, full_of((), filler, x.dtype))

    def _repeated(self, x: Value, axis: int, mesh_axes: Sequence[str], size: Any) -> Value:
        """x with the shard's first element in place of those beyond the end of a padded axis."""
        if size % parts(mesh_axes, self.mesh) == 0:
            return x
        (a,) = mesh_axes
        stop = tuple(1 if k == axis else n for k, n in enumerate(x.shape))
        first = slice_(x, (0,) * x.ndim, stop)
        return where(self._is_here(x, axis, a, size), x, first)

    def _is_here(self, x: Value, axis: int, mesh_axis: str, size: Any) -> Value:
        """Which elements along a padded axis lie before its end."""
        n = x.shape[axis]
        shape = tuple(n if k == axis else 1 for k in range(x.ndim))
        here = add(iota((n,)), mul(bind(AXIS_INDEX, axis=mesh_axis), n))
        return reshape(lt(here, size), shape)

    def _folded(self, step: SizedNode, x: Value, axes: Sequence[str]) -> Value:
        """A fold of shards that is no sum, finished over mesh axes."""
        n = step.node
        for a in axes:
            count = self.mesh.size(a)
            moved = int(x.type.size) * x.dtype.bits // 8
            kind = "all_reduce" if step.combine == "max" else "all_gather"
            factor = 2 * (count - 1) / count if kind == "all_reduce" else count - 1
            shown = f"{x.type} {step.combine}@{a}"
            self.reshard.note(kind, a, int(moved * factor), shown, n.op.name, n.location)
            if step.combine == "max":
                x = bind(PMAX, x, axis=a)
            else:
                x = bind(n.op, bind(ALL_GATHER, x, axis=a, size=count), axes=(0,))
        return x


def _open() -> Builder:
    builder = current_builder()
    assert builder is not None
    return builder


def _is_full(step: SizedNode) -> bool:
    return step.node.op is full.op


def _is_broadcast(step: SizedNode) -> bool:
    grows = int(step.outs[0].size) > int(step.types[0].size)
    return step.factors is not None and grows and "shape" in step.params


def _passes_partial(step: SizedNode, operands: Sequence[Shard]) -> bool:
    """Whether a node commutes with the sums that its operands still need."""
    partial = next((s.layout.partial for s in operands if s.layout.partial), ())
    if not partial or step.factors is None:
        return False
    if any(a in s.layout.axes for s in operands for a in partial):
        return False  # what shards hold along that axis belongs to other elements
    op = step.node.op
    if op.view is not None:
        return operands[0].layout.partial == partial
    body = op.expr(step.params)
    if op.combine is not None or op.call is not None or body is None:
        return False
    if not all(e.op == "arg" for e in body.operands):
        return False
    if body.op in _SCALED:
        return _is_scaled(body.op, operands)
    if op is where.op:
        pred, *sides = operands
        return not pred.layout.partial and sum(s.is_zero for s in sides) == 1
    return body.op in _ADDITIVE and all(s.layout.partial == partial for s in operands)


def _is_scaled(scalar: str, operands: Sequence[Shard]) -> bool:
    """Whether a partial sum is multiplied by a number, or divided by one."""
    first, *rest = operands if operands[0].layout.partial or scalar == "div" else operands[::-1]
    others = (s.type.size == 1 and not s.layout.partial and not s.layout.axes for s in rest)
    return bool(first.layout.partial) and all(others)


def _may_refuse(step: SizedNode) -> bool:
    """Whether a node may raise for what padding holds; writes at places drop it."""
    op, f = step.node.op, step.factors
    assert f is not None
    return op.call is not None and not (op.total or op.moves or f.places)


def _is_paddable(step: SizedNode) -> bool:
    """Whether a fold of operands that are padded with an identity is right."""
    f = step.factors
    assert f is not None
    if f.added or len(step.types) > 1:
        bilinear = len(step.node.op.linear) == len(step.types)
        return step.combine == "add" and (bool(f.added) or bilinear or _is_product(step))
    body = step.node.op.expr(step.params)
    return body is not None and body.op == "arg"


def _is_product(step: SizedNode) -> bool:
    """Whether the body is zero where one of the operands is."""

    def product(e: Any) -> bool:
        return e.op == "arg" or (e.op == "mul" and all(map(product, e.operands)))

    body = step.node.op.expr(step.params)
    return body is not None and product(body)


def _identity(step: SizedNode, t: TensorType) -> Any:
    """What a fold ignores; zero in a product of several operands."""
    assert step.combine is not None
    if len(step.types) > 1:
        return 0
    number = SCALARS[step.combine].identity
    assert number is not None, step.node
    if t.dtype.kind in "iu" and isinstance(number, float) and math.isinf(number):
        ends = np.iinfo(t.dtype.np)
        return int(ends.max if number > 0 else ends.min)
    return number


def _for_shard(step: SizedNode, types: Sequence[TensorType], outs: Sequence[TensorType]) -> Params:
    """The parameters of a node for a shard."""
    params, op = dict(step.params), step.node.op
    if params.get("shape") == step.outs[0].shape:
        params["shape"] = outs[0].shape
    return params if op.resize is None else op.resize(params, types, outs)
