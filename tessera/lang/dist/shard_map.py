"""shard_map: a function of one shard along some mesh axes, with collectives, inside a program on whole tensors.

    def ring(q, k, v): ...                  # sees the part of a sequence that one shard along "sp" holds
    y = dist.shard_map(ring, mesh, (spec, spec, spec), spec)(q, k, v)

Mesh axes that no layout names propagate through the function as they do everywhere else.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import wraps
from typing import Any

from tessera.core import tree
from tessera.core.blame import wanting, demand_function
from tessera.core.errors import OperandError, ShapeError
from tessera.core.layout import Layout
from tessera.core.mesh import Mesh
from tessera.core.shardspec import ShardSpec
from tessera.ir.graph.ir import Graph, Value, bind, current_builder
from tessera.lang.dist.tensor import layouts_by_key, tensor
from tessera.lang.jit import jit
from tessera.lang.trace import trace
from tessera.lang.transforms import guarded
from tessera.ops.collective import naming
from tessera.ops.define import as_value
from tessera.ops.local import TO_GLOBAL, TO_LOCAL, WHOLE
from tessera.transform.inline import copy_into
from tessera.transform.match import check_matched

Specs = Any  # a ShardSpec for all leaves, or a tuple, list or dict of these


@wanting
def shard_map(
    f: Callable[..., Any], mesh: Mesh, in_specs: Specs, out_specs: Specs, axes: Sequence[str] | None = None,
    check: bool = True,
) -> Callable[..., Any]:  # fmt: skip
    """f on the parts of its arguments that each shard along mesh axes holds; collectives in f name these axes.

    A layout stands for all leaves of an argument or result.  The axes are those that layouts name unless they are given.
    Of a result that an axis does not cut, every shard along it must hold the same: a result of which that does
    not follow, from sums and gathers over the axis, is refused.  `check=False` takes your word for it.
    """
    demand_function("shard_map", f)
    named = [a for s in (*_leaves(in_specs), *_leaves(out_specs)) for a in _axes_of(s)]
    manual = tuple(dict.fromkeys(named if axes is None else axes))
    for a in manual:
        mesh.size(a)
    if not manual:
        raise OperandError("shard_map: no layout names a mesh axis; give axes=")

    def run(*args: Any) -> Any:
        leaves, structure = tree.flatten(args)
        specs = _for_each("in_specs", in_specs, structure)
        values = [as_value(x, "shard_map") for x in leaves]
        inner = [_entered(v, s.layout(v.shape, mesh), manual, mesh) for v, s in zip(values, specs, strict=True)]  # fmt: skip
        types = [v.type for v in inner]
        name = getattr(f, "__name__", "shard_map")
        with ExitStack() as stack:
            for a in manual:
                stack.enter_context(naming(a, mesh.size(a)))
            t = trace(f, tree.unflatten(structure, inner), {}, types, name)
        outer = [_entered(v, None, manual, mesh) for v in t.outer]
        varying = [frozenset(s.layout(v.shape, mesh).axes) & frozenset(manual) for v, s in zip(values, specs, strict=True)]  # fmt: skip
        varies = check_matched(t.graph, [*varying, *(frozenset() for _ in outer)])
        bare = Graph(t.graph.inputs, t.graph.nodes, t.graph.outputs, name)
        outs = copy_into(bare, (*inner, *outer))
        ends = _for_each("out_specs", out_specs, t.structure)
        if check:
            for i, (v, found, s) in enumerate(zip(outs, varies, ends, strict=True)):
                _demand_same(i, v, found & frozenset(manual), s)
        made = [_left(v, s, manual, mesh) for v, s in zip(outs, ends, strict=True)]
        return tree.unflatten(t.structure, made)

    traced = jit(run)

    @wraps(f)
    @guarded
    def call(*args: Any) -> Any:
        if current_builder() is not None:
            return run(*args)
        return traced(*tree.map(lambda x: tensor(x, _spec_of(x), mesh), args))

    return call


def _demand_same(i: int, v: Value, varies: frozenset[str], spec: ShardSpec) -> None:
    """Raise where shards along an axis that does not cut a result may hold different ones."""
    left = sorted(varies - frozenset(_axes_of(spec)))
    if left:
        a = left[0]
        raise OperandError(
            f"shard_map: result {i}, {v.type}, may differ between shards along {a!r}, which its layout does not "
            f"cut, so that no tensor is all of them; sum or gather it (dist.all_reduce(v, {a!r})), cut it along "
            f"{a!r} in out_specs, or say check=False if every shard holds the same"
        )


def _spec_of(x: Any) -> ShardSpec | None:
    return x.layout if isinstance(x, Value) and x.device.kind == "mesh" else None  # type: ignore[attr-defined]


def _leaves(specs: Specs) -> list[ShardSpec]:
    if specs is None:
        return [ShardSpec()]
    if isinstance(specs, ShardSpec):
        return [specs]
    if not isinstance(specs, tuple | list | dict):
        raise OperandError(f"shard_map: got {specs!r:.40} for a layout, expected a ShardSpec")
    children = specs.values() if isinstance(specs, dict) else specs
    return [s for child in children for s in _leaves(child)]


def _axes_of(spec: ShardSpec) -> list[str]:
    found: list[str] = []
    for given in spec.mesh_axes:
        found += [] if given is None else [given] if isinstance(given, str) else list(given)
    return found


def _for_each(what: str, specs: Specs, s: tree.Structure) -> list[ShardSpec]:
    """One layout for each leaf of a tree, from a prefix of it."""
    if specs is None or isinstance(specs, ShardSpec):
        return [specs or ShardSpec()] * s.count
    children = layouts_by_key(f"shard_map: {what}", specs, s) if isinstance(specs, dict) else list(specs)
    if s.kind is None or len(children) != len(s.children):
        raise OperandError(
            f"shard_map: {what} has {len(children)} layouts for {len(s.children)} in {s}; give one for each, or one for all"
        )
    return [e for c, k in zip(children, s.children, strict=True) for e in _for_each(what, c, k)]


def _entered(v: Value, layout: Layout | None, manual: Sequence[str], mesh: Mesh) -> Value:
    """The part of v that one shard along the axes holds, major axes first."""
    for a in _ordered(layout, manual):
        dim = WHOLE if layout is None else layout.of(a)
        dim, size = WHOLE if dim is None else dim, mesh.size(a)
        if dim >= 0 and v.shape[dim] % size:
            raise ShapeError(
                f"shard_map: axis {dim} of {v.type} is {v.shape[dim]}, which mesh axis {a!r} of size {size} does not "
                "divide; pad it to a multiple"
            )
        v = bind(TO_LOCAL, v, axis=a, dim=dim, size=size)
    return v


def _left(v: Value, spec: ShardSpec, manual: Sequence[str], mesh: Mesh) -> Value:
    layout = spec.layout(tuple(n * mesh.size() for n in v.shape), mesh)  # any size that divides
    for a in reversed(_ordered(layout, manual)):
        dim = layout.of(a)
        v = bind(TO_GLOBAL, v, axis=a, dim=WHOLE if dim is None else dim, size=mesh.size(a))
    return v


def _ordered(layout: Layout | None, manual: Sequence[str]) -> list[str]:
    cut = [] if layout is None else [a for a in layout.axes if a in manual]
    return [*cut, *(a for a in manual if a not in cut)]
