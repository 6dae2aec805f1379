"""pmap: a function of one element on all elements of a batch at once, one logical shard each."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any

from tessera.compile import compile_graph
from tessera.core import tree
from tessera.core.blame import demand_function, misfit, wanting
from tessera.core.errors import OperandError, ShapeError, located
from tessera.core.flags import flags
from tessera.core.mesh import Mesh
from tessera.core.shardspec import ShardSpec
from tessera.core.types import TensorType
from tessera.ir.graph.ir import Value, current_builder, donate, holding
from tessera.lang.dist.tensor import tensor
from tessera.lang.trace import trace
from tessera.lang.transforms import guarded
from tessera.lang.vmap import vmap
from tessera.ops.collective import naming
from tessera.ops.define import as_value
from tessera.compile.mesh.home import rank_target
from tessera.compile.mesh.spmd import spmd
from tessera.transform.match import check_matched


@wanting
def pmap(
    f: Callable[..., Any], axis: str = "shards", donate: Iterable[int | str] = (), mesh: Mesh | None = None
) -> Callable[..., Any]:  # fmt: skip
    """f on every element along axis 0 of its arguments, each a logical shard; collectives name `axis`.

    The mesh has one shard for each element unless one is given.  Arguments whose numbers or names are in `donate` cannot be
    used afterwards, and their memory is free as soon as the call is over.  Results are sharded along axis 0.
    """
    demand_function("pmap", f)
    listed: Any = donate
    given = _numbers(f, listed if hasattr(listed, "__iter__") and not isinstance(listed, str) else [listed])
    programs: dict[Any, Any] = {}
    mapped = vmap(f, axis_name=axis)

    @wraps(f)
    @guarded
    def run(*args: Any, **kwargs: Any) -> Any:
        args = _by_position(f, args, kwargs) if kwargs else args
        leaves, structure = tree.flatten(args)
        values = [as_value(x, "pmap") for x in leaves]
        if current_builder() is not None:
            return mapped(*args)
        for i in given:
            if not 0 <= i < len(args):
                raise OperandError(f"pmap: donate names argument {i}, but there are {len(args)}")
        on = _mesh(values, axis, mesh)
        placed = [tensor(v, ShardSpec((0,), (axis,)), on) for v in values]
        at = on, rank_target(), flags().numerics
        key = (tree.token(structure), tuple(v.type for v in placed), *at)
        if key not in programs:
            programs[key] = _made(f, structure, placed, axis, on)
        call, results, types = programs[key]
        outs = [
            holding(TensorType(t.dtype, y.shape), y, on.device)
            for t, y in zip(types, call([v.storage for v in placed]), strict=True)
        ]
        _give_away(args, given)
        return tree.unflatten(results, outs)

    return run


def _by_position(
    f: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Any, ...]:
    """Arguments given by name among the others."""
    error = misfit("pmap", f, args, kwargs)
    if error is not None:
        raise error
    bound = inspect.signature(f).bind(*args, **kwargs)
    if bound.kwargs:
        name = next(iter(bound.kwargs))
        raise OperandError(f"pmap: argument {name!r} can be given by name alone; make it positional")
    return bound.args


def _numbers(f: Callable[..., Any], given: Iterable[int | str]) -> frozenset[int]:
    """Arguments by number."""
    found = set[int]()
    for i in given:
        names = list(inspect.signature(f).parameters) if isinstance(i, str) else []
        if not isinstance(i, int) and i not in names:
            raise located(
                OperandError(f"pmap: donate has {i!r}, expected numbers or names of arguments")
            )
        found.add(names.index(i) if isinstance(i, str) else i)
    return frozenset(found)


def _mesh(values: list[Value], axis: str, mesh: Mesh | None) -> Mesh:
    if not values or any(v.ndim == 0 for v in values):
        raise ShapeError("pmap: every argument needs a first axis to be mapped along")
    n = values[0].shape[0]
    for v in values:
        if v.shape[0] != n:
            raise ShapeError(
                f"pmap: the first axis is {n} in {values[0].type} but {v.shape[0]} in {v.type}"
            )
    on = Mesh((axis,), shape=(n,)) if mesh is None else mesh
    if on.size(axis) != n:
        raise ShapeError(
            f"pmap: the first axis of {values[0].type} is {n}, expected {on.size(axis)}, the size of mesh axis {axis!r}"
        )
    return on


def _made(f: Any, structure: Any, placed: list[Any], axis: str, mesh: Mesh) -> Any:
    types = [v.type.with_shape(v.shape[1:]) for v in placed]
    name = getattr(f, "__name__", "pmap")
    with naming(axis, mesh.size(axis)):
        t = trace(f, tree.unflatten(structure, placed), {}, types, name)
    extra = [v.storage for v in t.outer]
    every = frozenset((axis,))
    check_matched(t.graph, [*(every for _ in placed), *(frozenset[str]() for _ in extra)])
    on = [*(True for _ in placed), *(False for _ in extra)]
    numerics = flags().numerics
    target = rank_target()
    call = spmd(t.graph, mesh, axis, on, lambda g: compile_graph(g, target, numerics))
    return (lambda xs: call([*xs, *extra])), t.structure, [v.type for v in t.graph.outputs]


def _give_away(args: tuple[Any, ...], given: frozenset[int]) -> None:
    for i in given:
        for v in tree.leaves(args[i]):
            if isinstance(v, Value):
                donate(v)
