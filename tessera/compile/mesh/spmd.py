"""A function of one shard as a program of a rank: what `pmap` runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tessera.compile.executable import Executable
from tessera.compile.mesh.array import ShardedArray, block_shape, blocks_of
from tessera.core.layout import Layout, replicated
from tessera.core.mesh import Mesh
from tessera.core.ranks import placement
from tessera.ir.graph.ir import Builder, Graph, building
from tessera.ops.shape import reshape
from tessera.transform.bucket import bucket
from tessera.transform.inline import copy_into, inline_all
from tessera.transform.of_rank import of_rank


def spmd(
    g: Graph, mesh: Mesh, axis: str, mapped: Sequence[bool], compile: Callable[[Graph], Executable]
) -> Callable[[Sequence[Any]], list[ShardedArray]]:
    """g, which is of one element along a mesh axis, on arrays that are stacks of elements where mapped.

    Results are stacks of elements, cut along their first axis.
    """
    place, one = placement(mesh), _with_axis(inline_all(g), mapped)
    ins = [_layout(v.ndim, axis, m) for v, m in zip(one.inputs, mapped, strict=True)]
    outs = [_layout(v.ndim, axis, True) for v in one.outputs]
    n = mesh.size(axis)
    shapes = [(n, *v.shape[1:]) if m else v.shape for v, m in zip(one.inputs, mapped, strict=True)]
    made = [(n, *v.shape[1:]) for v in one.outputs]
    whole = of_rank(
        one, place, ins, outs,
        [block_shape(s, lay, place) for s, lay in zip(shapes, ins, strict=True)],
        [block_shape(s, lay, place) for s, lay in zip(made, outs, strict=True)],
    )  # fmt: skip
    executable = compile(bucket(whole))

    def run(inputs: Sequence[Any]) -> list[ShardedArray]:
        ends = zip(executable.run(blocks_of(inputs)), outs, made, strict=True)
        return [ShardedArray(y, layout, mesh, shape) for y, layout, shape in ends]

    return run


def _layout(rank: int, axis: str, mapped: bool) -> Layout:
    return Layout(((axis,), *((),) * (rank - 1))) if mapped else replicated(rank)


def _with_axis(g: Graph, mapped: Sequence[bool]) -> Graph:
    """g with an axis of size 1 in front of mapped inputs and of all outputs."""
    builder = Builder(input_names=g.input_names)
    with building(builder):
        xs = [
            builder.input(v.type.with_shape((1, *v.shape)) if m else v.type)
            for v, m in zip(g.inputs, mapped, strict=True)
        ]
        inner = [
            reshape(x, v.shape) if m else x for x, v, m in zip(xs, g.inputs, mapped, strict=True)
        ]
        outs = [reshape(y, (1, *y.shape)) for y in copy_into(g, tuple(inner))]
        made, _ = builder.finish(outs, g.name)
    return Graph(made.inputs, made.nodes, made.outputs, g.name, made.input_names)
