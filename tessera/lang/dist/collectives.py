"""Collectives over a named axis of vmap, pmap or a mesh, and over the ranks of the run where no axis is named."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tessera.core import tree
from tessera.core.blame import blames_arguments
from tessera.core.errors import OperandError, ShapeError, TraceError
from tessera.core.mesh import mesh_of
from tessera.core.ranks import demand_chosen, engine
from tessera.ir.graph.ir import Value, bind, concrete, current_builder, host_data
from tessera.lang import collective
from tessera.lang.transforms import guarded
from tessera.ops.collective import ALL_TO_ALL, axis_size_of
from tessera.ops.define import as_value
from tessera.ops.ranks import fold_over_ranks
from tessera.ops.reduction import prod
from tessera.transform.reshard import join_front, split_front

Names = str | Sequence[str] | None

_FOLDS = {"sum": collective.psum, "mean": collective.pmean, "max": collective.pmax, "min": collective.pmin}
_HOST = {"sum": np.add, "mean": np.add, "max": np.maximum, "min": np.minimum, "prod": np.multiply}


@guarded
def rank() -> int:
    """The number of this process in the run; 0 without `tessera run -n`."""
    demand_chosen()
    return engine().rank


@guarded
def size() -> int:
    """How many processes the run has."""
    demand_chosen()
    return engine().size


@guarded
def all_reduce(x: Any, axis: Names = None, op: str = "sum") -> Any:
    """The sum, mean, max, min or prod over an axis, or over the ranks of the run."""
    if op not in _HOST:
        raise OperandError(f"all_reduce: op is {op!r}, expected one of {', '.join(_HOST)}")
    if axis is None:
        return _over_ranks("all_reduce", x, op)
    _demand("all_reduce", x, axis)
    if op != "prod":
        return _FOLDS[op](x, axis)
    made: Any = as_value(x, "all_reduce")
    for name in (axis,) if isinstance(axis, str) else axis:
        made = prod(collective.all_gather(made, name), 0)
    return made


@guarded
def all_gather(x: Any, axis: str | None = None, dim: int | None = None) -> Any:
    """What all elements hold: along a new first axis, or joined along axis `dim`."""
    v = as_value(x, "all_gather")
    _demand("all_gather", v, axis)
    made = _stack_of_ranks("all_gather", v) if axis is None else collective.all_gather(v, axis)
    if dim is None:
        return made
    k = _checked("all_gather", v, dim)
    return join_front(made, k, made.shape[0] * v.shape[k])


@guarded
def reduce_scatter(x: Any, axis: str, dim: int | None = None) -> Any:
    """The sum, of which element i gets x[i], or the i-th part of axis `dim`."""
    v = as_value(x, "reduce_scatter")
    _demand("reduce_scatter", v, axis)
    parts = v if dim is None else _parts("reduce_scatter", v, axis, dim)
    return collective.scattered("reduce_scatter", parts, axis)


@guarded
def all_to_all(x: Any, axis: str, split: int = 0, join: int = 0) -> Any:
    """Element i gets the i-th part of axis `split` of what each element holds, joined along axis `join`."""
    v = as_value(x, "all_to_all")
    _demand("all_to_all", v, axis)
    parts, count = _parts("all_to_all", v, axis, split), axis_size_of("all_to_all", axis)
    made: Value = bind(ALL_TO_ALL, parts, axis=axis, size=count)
    k = _checked("all_to_all", v, join)
    return join_front(made, k, made.shape[0] * made.shape[k + 1])


@guarded
def broadcast(x: Any, axis: str | None = None, root: int = 0) -> Any:
    """What the element (or the rank) `root` holds."""
    v = as_value(x, "broadcast")
    _demand("broadcast", v, axis)
    made = _stack_of_ranks("broadcast", v) if axis is None else collective.all_gather(v, axis)
    if not 0 <= root < made.shape[0]:
        raise OperandError(f"broadcast: root is {root}, expected 0 to {made.shape[0] - 1}")
    return made[root]  # type: ignore[index]


@guarded
def permute(x: Any, axis: str, perm: Sequence[tuple[int, int]]) -> Any:
    """What element a sends to element b, for pairs (a, b) in perm; zeros where nothing comes."""
    _demand("permute", x, axis)
    return collective.permuted("permute", x, axis, perm)


@guarded
def barrier() -> None:
    """Wait until every rank of the run is here."""
    _exchanged("barrier", np.zeros(0))


@blames_arguments
def axis_index(axis: str) -> Value:
    """Which element along an axis this is."""
    return collective.axis_index(axis)


def _demand(what: str, x: Any, axis: Names) -> None:
    """The axes that a collective names are known here."""
    for name in (axis,) if isinstance(axis, str) else axis or ():
        try:
            axis_size_of(what, name)
        except OperandError as e:
            meshes = [mesh_of(v.device) for v in tree.leaves(x) if _is_on_mesh(v)]
            mesh = next((m for m in meshes if name in m.axes), None)
            if mesh is None:
                raise
            raise OperandError(
                f"{e.message.partition(';')[0]}; call it in a function of dist.shard_map(f, mesh, in_specs, "
                f"out_specs), which names the axes of mesh {mesh}"
            ) from None


def _is_on_mesh(v: Any) -> bool:
    return isinstance(v, Value) and v.device.kind == "mesh"


def _checked(what: str, v: Value, dim: int) -> int:
    if not -v.ndim <= dim < v.ndim:
        raise ShapeError(f"{what}: {v.type} has no axis {dim}")
    return dim % v.ndim


def _parts(what: str, v: Value, axis: str, dim: int) -> Value:
    """v with an axis cut into as many parts as the named axis has elements, which come in front."""
    k, count = _checked(what, v, dim), axis_size_of(what, axis)
    if not isinstance(count, int) or v.shape[k] % count:
        raise ShapeError(
            f"{what}: axis {k} of {v.type} is {v.shape[k]}, which the size {count} of axis {axis!r} does not divide"
        )
    return split_front(v, k, count)


# Over ranks ---------------------------------------------------------------------------------------


def _demand_outside(what: str) -> None:
    if current_builder() is not None:
        raise TraceError(
            f"{what}: no axis is named inside a traced function; name one of vmap, pmap or a mesh, or call it "
            "outside of the function"
        )


def _exchanged(what: str, x: Any) -> list[Any]:
    _demand_outside(what)
    ranks = range(engine().size)
    text = f"{what} {x.dtype}{list(x.shape)}"
    found = engine().exchange(text, tuple(ranks), [np.ascontiguousarray(x)] * len(ranks))
    return [y.reshape(x.shape) for y in found]  # ascontiguousarray makes vectors of scalars


def _stack_of_ranks(what: str, v: Value) -> Value:
    if v.storage is None:
        return concrete(np.stack(_exchanged(what, np.zeros(0))))
    return concrete(np.stack(_exchanged(what, host_data(v))), v.dtype)


def _over_ranks(what: str, x: Any, op: str) -> Any:
    v = as_value(x, what)
    _demand_outside(what)
    made = concrete(fold_over_ranks(host_data(v), op, _HOST[op]), v.dtype)
    return made / engine().size if op == "mean" else made
