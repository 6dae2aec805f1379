"""Pipelines: the layers of a network over the stages of a mesh axis, microbatch after microbatch.

    loss = dist.pipeline(embed, block, head, mesh, "pp", microbatches=8, schedule="1f1b")
    params = {"first": ..., "blocks": dist.stacked(blocks, stages=4), "last": ...}
    value, grads = ts.value_and_grad(loss)(params, tokens)

The loop over ticks runs forward and backward together, so that loss and gradients come at once; the derivative of the loss
only scales them.  A stage keeps the inputs of its microbatches and computes the rest again when it runs backward.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from tessera.core import tree
from tessera.core.blame import blames_arguments, demand_function
from tessera.core.dtype import f32
from tessera.core.errors import OperandError, ShapeError
from tessera.core.mesh import Mesh
from tessera.core.pipeline import Schedule
from tessera.core.shardspec import ShardSpec
from tessera.ir.graph.ir import Value
from tessera.lang import collective
from tessera.lang.custom_rules import custom_vjp
from tessera.lang.dist.shard_map import shard_map
from tessera.lang.transforms import guarded, vjp
from tessera.ops.control import cond, scan
from tessera.ops.creation import iota
from tessera.ops.define import as_value, cast_to, full_of
from tessera.ops.elementwise import (
    add,
    eq,
    floor_divide,
    ge,
    logical_and,
    logical_not,
    lt,
    mul,
    remainder,
    sub,
    where,
)
from tessera.ops.gather import take
from tessera.ops.shape import reshape, stack, swapaxes

Tree = Any


@guarded
def stacked(blocks: Sequence[Tree], stages: int, chunks: int = 1) -> Tree:
    """The parameters of equal layers as one tree, whose tensors have axes (chunk, stage, layer, ...) in front."""
    count = stages * chunks
    if not blocks or count < 1 or len(blocks) % count:
        raise ShapeError(
            f"stacked: {len(blocks)} layers do not divide into {stages} stages of {chunks} chunks"
        )
    leaves = [tree.leaves(b) for b in blocks]
    shape = (chunks, stages, len(blocks) // count)
    made = []
    for same in zip(*leaves, strict=True):
        whole = stack([as_value(x, "stacked") for x in same])
        made.append(reshape(whole, (*shape, *whole.shape[1:])))
    return tree.unflatten(tree.structure(blocks[0]), made)


class _Unit(NamedTuple):
    """What a stage runs in a tick: whether it does, which microbatch and chunk, and the place of its input."""

    runs: Value
    microbatch: Value
    chunk: Value
    slot: Value


class _PipelineLoop(NamedTuple):
    """What goes round the loop."""

    x: Value  # from the stage before
    g: Value  # from the stage after
    kept: Value
    loss: Value
    grads: Tree  # of (chunks, first, last)


@blames_arguments
def pipeline(
    first: Callable[..., Any], block: Callable[..., Any], last: Callable[..., Any], mesh: Mesh, axis: str = "pp",
    microbatches: int = 4, schedule: str = "1f1b", chunks: int = 1,
) -> Callable[..., Any]:  # fmt: skip
    """The mean loss over microbatches of a network whose layers are stages along a mesh axis.

    first(params["first"], *batch) is what goes into the first layer, block(layer, x) a layer, which keeps the shape of x, and
    last(params["last"], x, *batch) the loss of a microbatch.  Layers are stacked by dist.stacked.  Derivatives are those by
    the parameters; the batch is held.
    """
    for name, f in (("first", first), ("block", block), ("last", last)):
        demand_function(f"pipeline: {name}", f)
    plan = Schedule(schedule, mesh.size(axis), microbatches, chunks)
    stages = _Stages(first, block, last, plan, axis)
    spec = ShardSpec((1,), (axis,))
    whole = ShardSpec()

    def both(params: Tree, batch: Tree) -> tuple[Value, Tree]:
        parts = tree.map(lambda b: _microbatches(as_value(b, "pipeline"), plan), batch)
        args = params["blocks"], params["first"], params["last"], parts
        ends = (whole, (spec, whole, whole))
        run = shard_map(stages.run, mesh, (spec, whole, whole, whole), ends, axes=(axis,))
        value, (blocks, front, back) = run(*args)
        return value, {**params, "blocks": blocks, "first": front, "last": back}

    @custom_vjp
    def loss(params: Tree, batch: Tree) -> Value:
        return both(params, batch)[0]

    def forward(params: Tree, batch: Tree) -> Any:
        return both(params, batch)

    def backward(grads: Any, ct: Value) -> Any:
        return tree.map(lambda g: mul(g, cast_to(ct, g.dtype)), grads), None

    loss.defvjp(forward, backward)

    @guarded
    def call(params: Tree, *batch: Tree) -> Value:
        missing = [k for k in ("first", "blocks", "last") if k not in params]
        if missing:
            raise OperandError(
                f"pipeline: parameters have no {missing[0]!r}, expected a dict of first, blocks and last"
            )
        _check_stacked(params["blocks"], plan)
        made: Value = loss(params, tuple(batch))
        return made

    return call


def _check_stacked(blocks: Tree, plan: Schedule) -> None:
    for x in tree.leaves(blocks):
        if x.ndim < 3 or x.shape[:2] != (plan.chunks, plan.stages):
            raise ShapeError(
                f"pipeline: a layer's parameters are {x.type}, expected ({plan.chunks}, {plan.stages}, layers, ...) as "
                f"dist.stacked(blocks, {plan.stages}, {plan.chunks}) makes them"
            )


def _microbatches(x: Value, plan: Schedule) -> Value:
    """[batch, ...] as [microbatch, rows, ...]; microbatch m has rows m, m + count, ..., so that a cut of the batch stays."""
    count = plan.microbatches
    if x.ndim == 0 or not isinstance(x.shape[0], int) or x.shape[0] % count:
        raise ShapeError(
            f"pipeline: a batch {x.type} does not divide into {count} microbatches along its first axis"
        )
    wide = reshape(x, (x.shape[0] // count, count, *x.shape[1:]))
    return swapaxes(wide, 0, 1)


class _Stages:
    """The program of one stage."""

    def __init__(self, first: Any, block: Any, last: Any, plan: Schedule, axis: str):
        self.first, self.block, self.last = first, block, last
        self.plan, self.axis = plan, axis

    def run(self, blocks: Tree, front: Tree, back: Tree, batch: Tree) -> Any:
        """The loss, and the gradients of blocks, front and back."""
        plan = self.plan
        chunks = tree.map(lambda w: reshape(w, (w.shape[0], *w.shape[2:])), blocks)
        stage = collective.axis_index(self.axis)
        x = self.first(front, *tree.map(lambda b: take(b, 0, axis=0), batch))
        blank = full_of(x.shape, 0, x.dtype)
        kept = full_of((plan.kept, *x.shape), 0, x.dtype)
        zeros = tree.map(lambda w: full_of(w.shape, 0, w.dtype), (chunks, front, back))
        start = _PipelineLoop(blank, blank, kept, full_of((), 0, f32), zeros)

        def tick(c: tuple[Any, ...], t: Value) -> Any:
            return tuple(self._tick(_PipelineLoop(*c), t, stage, (chunks, front, back), batch)), ()

        end = _PipelineLoop(*scan(tick, tuple(start), iota((plan.ticks,)))[0])
        total, (of_chunks, of_front, of_back) = end.loss, end.grads
        of_blocks = tree.map(lambda g: reshape(g, (g.shape[0], 1, *g.shape[1:])), of_chunks)
        shared = tree.map(lambda g: collective.psum(g, self.axis), (of_front, of_back))
        return collective.psum(total, self.axis), (of_blocks, *shared)

    # A tick ---------------------------------------------------------------------------------------

    def _tick(self, c: _PipelineLoop, t: Value, stage: Value, params: Tree, batch: Tree) -> _PipelineLoop:
        plan, n = self.plan, self.plan.stages
        ahead = self._unit(sub(t, stage), False)
        back = self._unit(sub(t, sub(plan.turn + n - 1, stage)), True)
        here = logical_and(eq(iota((plan.kept,)), ahead.slot), ahead.runs)
        mask = reshape(here, (plan.kept, *(1 for _ in c.x.shape)))
        kept = where(mask, reshape(c.x, (1, *c.x.shape)), c.kept)
        y = self._forward(ahead, c.x, stage, params, batch)
        g, loss, grads = self._backward(back, kept, c.g, stage, params, batch)
        forth = [(i, (i + 1) % n) for i in range(n)]
        return _PipelineLoop(
            collective.ppermute(y, self.axis, forth),
            collective.ppermute(g, self.axis, [(b, a) for a, b in forth]),
            kept, add(c.loss, loss), tree.map(add, c.grads, grads),
        )  # fmt: skip

    def _unit(self, unit: Value, back: bool) -> _Unit:
        """Schedule._unit on tensors; the place of an input is that of its unit forward."""
        plan = self.plan
        runs = logical_and(ge(unit, 0), lt(unit, plan.units))
        unit = where(runs, unit, 0)
        if plan.chunks == 1:
            return _Unit(runs, unit, mul(unit, 0), remainder(unit, plan.kept))
        round_ = plan.stages * plan.chunks
        group, rest = floor_divide(unit, round_), remainder(unit, round_)
        chunk, place = floor_divide(rest, plan.stages), remainder(rest, plan.stages)
        chunk = sub(plan.chunks - 1, chunk) if back else chunk
        first = add(add(mul(group, round_), mul(chunk, plan.stages)), place)
        return _Unit(runs, add(mul(group, plan.stages), place), chunk, remainder(first, plan.kept))

    def _ends(self, u: _Unit, stage: Value) -> tuple[Value, Value]:
        """Whether a unit is the first of the network, and the last."""
        plan = self.plan
        is_first = logical_and(eq(stage, 0), eq(u.chunk, 0))
        is_last = logical_and(eq(stage, plan.stages - 1), eq(u.chunk, plan.chunks - 1))
        return is_first, is_last

    def _layers(self, layers: Tree, front: Tree, x: Value, batch: Tree, is_first: Value) -> Value:
        x = cond(is_first, lambda x: self.first(front, *batch), lambda x: x, x)
        return scan(lambda h, layer: (self.block(layer, h), ()), x, layers)[0]  # type: ignore[no-any-return]

    def _forward(self, u: _Unit, x: Value, stage: Value, params: Tree, batch: Tree) -> Value:
        """What goes to the next stage; the last one has none, and runs forward when it runs backward."""
        is_first, is_last = self._ends(u, stage)
        chunks, front, _ = params

        def run(x: Value) -> Value:
            layers = tree.map(lambda w: take(w, u.chunk, axis=0), chunks)
            part = tree.map(lambda b: take(b, u.microbatch, axis=0), batch)
            return self._layers(layers, front, x, part, is_first)

        wanted = logical_and(u.runs, logical_not(is_last))
        made: Value = cond(wanted, run, lambda x: full_of(x.shape, 0, x.dtype), x)
        return made

    def _backward(
        self, u: _Unit, kept: Value, g: Value, stage: Value, params: Tree, batch: Tree
    ) -> tuple[Value, Value, Tree]:
        """What goes to the stage before, the loss of a microbatch where this is the last one, and the gradients."""
        is_first, is_last = self._ends(u, stage)
        chunks, front, back = params

        def run(g: Value) -> Any:
            x = take(kept, u.slot, axis=0)
            part = tree.map(lambda b: take(b, u.microbatch, axis=0), batch)
            layers = tree.map(lambda w: take(w, u.chunk, axis=0), chunks)

            def unit(layers: Tree, front: Tree, back: Tree, x: Value) -> tuple[Value, Value]:
                y = self._layers(layers, front, x, part, is_first)
                zero = full_of((), 0, f32)
                loss = cond(is_last, lambda y: cast_to(self.last(back, y, *part), f32), lambda y: zero, y)
                return y, loss

            (y, loss), pull = vjp(unit, layers, front, back, x)
            share = full_of((), 1 / self.plan.microbatches, f32)
            ct = where(is_last, full_of((), 0, y.dtype), g)
            of_layers, of_front, of_back, of_x = pull((ct, share))
            return of_x, mul(loss, share), (self._placed(of_layers, u.chunk), of_front, of_back)

        def nothing(g: Value) -> Any:
            zeros = tree.map(lambda w: full_of(w.shape, 0, w.dtype), (chunks, front, back))
            return full_of(g.shape, 0, g.dtype), full_of((), 0, f32), zeros

        made: Any = cond(u.runs, run, nothing, g)
        return made  # type: ignore[no-any-return]

    def _placed(self, grads: Tree, chunk: Value) -> Tree:
        """The gradients of one chunk as those of all, which are zero elsewhere."""
        n = self.plan.chunks
        if n == 1:
            return tree.map(lambda g: reshape(g, (1, *g.shape)), grads)

        def placed(g: Value) -> Value:
            here = reshape(eq(iota((n,)), chunk), (n, *(1 for _ in g.shape)))
            return where(here, reshape(g, (1, *g.shape)), full_of((), 0, g.dtype))

        return tree.map(placed, grads)
