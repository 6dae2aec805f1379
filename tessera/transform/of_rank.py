"""of_rank: the program of a rank, from the program of one logical shard and the box of shards that it owns.

    %1 = sum(%0) : f32[8, 16];  %2 = psum(%1) {axis = "dp"}          one of 8 shards along dp
->  %1 = sum(%0) : f32[4, 8, 16];  %2 = ranks_sum(...)               a rank with four of them

The shards of a rank are batched, one mesh axis after the other.  A collective over an axis that the rank
owns all of becomes sums and transposes; over one that ranks share, an exchange between them.
"""

from __future__ import annotations

from collections.abc import Sequence

from tessera.core.layout import Layout
from tessera.core.mesh import Placement
from tessera.ir.graph.ir import Builder, Graph, Value, building
from tessera.ops.batching import Spread, adding, in_front
from tessera.ops.shape import reshape, slice_, transpose
from tessera.transform.batch import batch_graph
from tessera.transform.drop_unit_axes import drop_unit_axes
from tessera.transform.inline import copy_into
from tessera.transform.reshard import sized


def of_rank(
    g: Graph, place: Placement, ins: Sequence[Layout], outs: Sequence[Layout],
    in_shapes: Sequence[Sequence[int]], out_shapes: Sequence[Sequence[int]], loose: bool = False,
) -> Graph:  # fmt: skip
    """A graph from the blocks of its inputs that a rank holds to the blocks of its outputs.

    The shapes are those of blocks; inputs of g beyond them are whole on every rank.  `loose` leaves the order
    of sums between ranks to the engine.
    """
    unit = [a for a in place.mesh.axes if place.mesh.size(a) == 1]
    if unit:
        g = drop_unit_axes(g, unit)
        ins, outs = ([_without(lay, unit) for lay in each] for each in (ins, outs))
    axes = [a for a in place.mesh.axes if a not in unit]
    more = len(g.inputs) - len(ins)
    masks = {a: [*(a in x.axes for x in ins), *([False] * more)] for a in axes}
    batched, found = g, dict[str, list[bool]]()
    for a in reversed(axes):
        batched, found[a] = _batched(batched, place, a, masks[a], loose)
    builder = Builder(input_names=g.input_names)
    with building(builder):
        own = [
            builder.input(v.type.with_shape(tuple(shape)))
            for v, shape in zip(g.inputs[: len(ins)], in_shapes, strict=True)
        ]
        rest = [builder.input(v.type) for v in g.inputs[len(ins) :]]
        stacks = [
            _stacked(x, v.shape, lay, place) for x, v, lay in zip(own, g.inputs, ins, strict=False)
        ]
        made = copy_into(batched, (*stacks, *rest))
        blocks = [
            _block(y, lay, [a for a in axes if found[a][k]], shape, place)
            for k, (y, lay, shape) in enumerate(zip(made, outs, out_shapes, strict=True))
        ]
        whole, _ = builder.finish(blocks, g.name)
    return Graph(whole.inputs, whole.nodes, whole.outputs, g.name, whole.input_names, g.captured)


def _without(layout: Layout, axes: Sequence[str]) -> Layout:
    """A layout that these mesh axes do not cut."""
    cuts = tuple(tuple(a for a in names if a not in axes) for names in layout.cuts)
    return Layout(cuts, tuple(a for a in layout.partial if a not in axes))


def spread_of(place: Placement, axis: str, loose: bool = False) -> Spread | None:
    """How ranks share a mesh axis; None where each has all of it."""
    if place.is_whole(axis):
        return None
    group = place.group(axis)
    ranges = tuple(place.range(axis, r) for r in group)
    return Spread(group, ranges, group.index(place.rank), loose)


def _batched(
    g: Graph, place: Placement, axis: str, mask: Sequence[bool], loose: bool
) -> tuple[Graph, list[bool]]:
    """g with a mesh axis in front of these inputs, and which outputs have it."""
    count = place.count(axis)
    builder = Builder(input_names=g.input_names)
    with building(builder), adding(axis, count, spread_of(place, axis, loose)):
        xs = [
            builder.input(v.type.with_shape((count, *v.shape)) if b else v.type)
            for v, b in zip(g.inputs, mask, strict=True)
        ]
        outs, found = batch_graph(g, xs, mask)
        made, _ = builder.finish(outs, g.name)
    return made, list(found)


def _counts(names: Sequence[str], place: Placement) -> list[int]:
    return [place.count(a) for a in names]


def _product(counts: Sequence[int]) -> int:
    made = 1
    for n in counts:
        made *= n
    return made


def _stacked(x: Value, part: Sequence[int], layout: Layout, place: Placement) -> Value:
    """A block as a stack of shards of a shape: the mesh axes that cut it come in front, in the order of the
    mesh.
    """
    at: dict[str, int] = {}
    shape: list[int] = []
    rest: list[int] = []
    for axis, names in enumerate(layout.cuts):
        counts = _counts(names, place)
        x = sized(x, axis, part[axis] * _product(counts))
        for a, n in zip(names, counts, strict=True):
            at[a] = len(shape)
            shape.append(n)
        rest.append(len(shape))
        shape.append(part[axis])
    if not at:
        return x
    order = [at[a] for a in place.mesh.axes if a in at]
    return transpose(reshape(x, shape), (*order, *rest))


def _block(
    y: Value, layout: Layout, front: Sequence[str], shape: Sequence[int], place: Placement
) -> Value:
    """A stack of shards with these mesh axes in front as a block."""
    y, have = _dropped(y, front, layout), [a for a in front if a in layout.axes]
    for a in reversed(place.mesh.axes):
        if a in layout.axes and a not in have:
            y = in_front(y, False, place.count(a))
            have = [a, *have]
    lead, order = len(have), list[int]()
    sizes: list[int] = []
    for axis, names in enumerate(layout.cuts):
        order += [have.index(a) for a in names]
        order.append(lead + axis)
        sizes.append(_product(_counts(names, place)) * y.shape[lead + axis])
    y = reshape(transpose(y, order), sizes)
    for axis, n in enumerate(shape):
        y = sized(y, axis, n)
    return y


def _dropped(y: Value, front: Sequence[str], layout: Layout) -> Value:
    """y without the mesh axes in front along which it is the same everywhere."""
    for k, a in reversed(list(enumerate(front))):
        if a in layout.axes:
            continue
        start = (0,) * y.ndim
        stop = tuple(1 if i == k else n for i, n in enumerate(y.shape))
        y = reshape(slice_(y, start, stop), (*y.shape[:k], *y.shape[k + 1 :]))
    return y
