"""Tensors with layouts: from shapes, arrays, functions and shards, and changes of layout."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from tessera.core import tree
from tessera.core.blame import blames_arguments, wanting
from tessera.core.dtype import as_dtype, f32
from tessera.core.errors import OperandError, ShapeError
from tessera.core.mesh import Mesh, mesh_of
from tessera.core.ranks import demand_chosen, placement
from tessera.core.shardspec import ShardSpec
from tessera.core.types import TensorType
from tessera.ir.graph.ir import Value, holding, host_data
from tessera.lang.dist.scope import current_scope
from tessera.lang.tensor import Tensor
from tessera.lang.transforms import guarded
from tessera.ops.constrain import constrained
from tessera.ops.define import as_value, shape_of
from tessera.compile.mesh.array import ShardedArray, block_shape, cut, shard_slices
from tessera.compile.mesh.home import at_home, home

Spec = ShardSpec | None


def _is_shape(x: Any) -> bool:
    return isinstance(x, int) or (isinstance(x, tuple | list) and all(isinstance(n, int) for n in x))


def _held(data: ShardedArray, dtype: Any) -> Tensor:
    data.block = at_home(data.block, home())
    t = TensorType(as_dtype(dtype), data.shape)
    return holding(t, data, data.mesh.device)  # type: ignore[arg-type,return-value]


@blames_arguments
@guarded
def tensor(
    shape: Any, layout: ShardSpec | None = None, mesh: Mesh | None = None, dtype: Any = None, names: Sequence[str] = ()
) -> Tensor:  # fmt: skip
    """A global tensor on a mesh: zeros of a shape, which take no memory until used, or the data of an array."""
    demand_chosen()
    scope = current_scope()
    if mesh is None and scope is not None:
        mesh = scope.mesh
        layout = scope.spec(names) if layout is None else layout
    if mesh is None:
        raise OperandError(
            "dist.tensor: mesh is missing; give mesh=dist.Mesh(axes, shape=...), or use it in a block `with "
            "dist.mesh(...)`"
        )
    spec = ShardSpec() if layout is None else layout
    _check_names(names, shape)
    if _is_shape(shape):
        sizes, d = shape_of("dist.tensor", shape), as_dtype(f32 if dtype is None else dtype)
        found = spec.layout(sizes, mesh, names)  # type: ignore[arg-type]
        mine = block_shape(sizes, found, placement(mesh))  # type: ignore[arg-type]
        block = np.broadcast_to(np.zeros((), d.np), mine)
        return _held(ShardedArray(block, found, mesh, sizes, spec), d)  # type: ignore[arg-type]
    v = as_value(shape, "dist.tensor")
    if v.storage is None:
        return constrain(v, spec, mesh)  # type: ignore[no-any-return]
    if dtype is not None and as_dtype(dtype) is not v.dtype:
        v = Tensor.astype(v, dtype)  # type: ignore[arg-type]
    found = spec.layout(v.shape, mesh, names)
    if v.device.kind == "mesh" and mesh_of(v.device) == mesh:
        return constrain(v, spec, mesh)  # type: ignore[no-any-return]
    made = cut(host_data(v), found, mesh)
    made.spec = spec
    return _held(made, v.dtype)


def _check_names(names: Sequence[str], given: Any) -> None:
    """Names of axes, if any, are one for each."""
    rank = np.ndim(given) if not _is_shape(given) else 1 if isinstance(given, int) else len(given)
    if names and len(names) != rank:
        raise ShapeError(
            f"dist.tensor: {len(names)} names {tuple(names)} for a tensor of {rank} axes; name each axis once"
        )


@blames_arguments
def replicate(x: Any, mesh: Mesh) -> Any:
    """A tree of tensors, whole on every shard of a mesh."""
    return shard(x, ShardSpec(), mesh)


Rule = ShardSpec | Callable[[str, Any], Spec] | Mapping[str, Any] | Sequence[Any]


@wanting
@guarded
def shard(x: Any, layout: Any, mesh: Mesh) -> Any:
    """A tree of tensors on a mesh; layout is one for all leaves, a tree of them, or a function of (path, leaf)."""
    leaves, structure = tree.flatten(x)
    paths = tree.structure_paths(structure, "")
    specs = specs_for(layout, x, leaves, paths)
    made = [tensor(v, s, mesh) for v, s in zip(leaves, specs, strict=True)]
    return tree.unflatten(structure, made)


def specs_for(layout: Any, x: Any, leaves: Sequence[Any], paths: Sequence[str]) -> list[Spec]:
    """One layout for each leaf of a tree."""
    if layout is None or isinstance(layout, ShardSpec):
        return [layout] * len(leaves)
    if callable(layout):
        return [layout(p, v) for p, v in zip(paths, leaves, strict=True)]
    found = _leaves_of(layout, tree.structure(x))
    if len(found) != len(leaves):
        raise OperandError(
            f"dist.shard: {len(found)} layouts for a tree of {len(leaves)} tensors; give one for each leaf, one for "
            "all, or a function of (path, tensor)"
        )
    return found


def _leaves_of(layouts: Any, s: tree.Structure | None) -> list[Spec]:
    """The layouts in a tree of them, in the order of the leaves; s is None in a plain list of layouts."""
    if s is not None and not s.count and s.kind is not None:
        return []
    if layouts is None or isinstance(layouts, ShardSpec):
        return [layouts]
    if isinstance(layouts, str) or not isinstance(layouts, Iterable):
        raise OperandError(
            f"dist.shard: a layout is {type(layouts).__name__} {layouts!r:.40}, expected dist.ShardSpec(partition, mesh_axes)"
        )
    if isinstance(layouts, Mapping):
        children = layouts_by_key("dist.shard", layouts, s or tree.LEAF)
    else:
        children = list(layouts)
    alike = s is not None and len(s.children) == len(children)
    parts = s.children if s is not None and alike else [None] * len(children)
    return [e for child, part in zip(children, parts, strict=True) for e in _leaves_of(child, part)]


def layouts_by_key(user: str, layouts: Mapping[Any, Any], s: tree.Structure) -> list[Any]:
    """The layouts that a mapping has for the children of a node, by their keys or the names of fields."""
    keys = tree.keys(s) if s.kind is not None else []
    if set(keys) != set(layouts):
        raise OperandError(
            f"{user}: layouts for {', '.join(map(repr, layouts)) or 'nothing'}, expected them for "
            f"{', '.join(map(repr, keys)) or 'a tensor'}, as in {s}"
        )
    return [layouts[k] for k in keys]


@blames_arguments
@guarded
def from_function(
    shape: Sequence[int], layout: ShardSpec | None, mesh: Mesh, f: Callable[[tuple[slice, ...]], Any], dtype: Any = f32
) -> Tensor:  # fmt: skip
    """A global tensor of which f(slices) gives each shard; a rank asks for its own."""
    sizes, d = tuple(shape), as_dtype(dtype)
    spec = ShardSpec() if layout is None else layout
    found = spec.layout(sizes, mesh)
    place = placement(mesh)
    block = np.zeros(block_shape(sizes, found, place), d.np)
    data = ShardedArray(block, found, mesh, sizes, spec)
    for dev in mesh.devices:
        at = mesh.coordinates(dev)
        if place.owner(tuple(at.values())) != place.rank:
            continue
        part = shard_slices(sizes, found, mesh, at)
        given = np.asarray(f(part)).astype(d.np, copy=False)
        wanted = tuple(s.stop - s.start for s in part)
        if given.shape != wanted:
            raise ShapeError(
                f"dist.from_function: f gave an array of shape {given.shape} for {part}, expected {wanted}"
            )
        data.local(tuple(at.values()))[...] = given
    return _held(data, d)


@blames_arguments
@guarded
def from_shards(
    shards: Mapping[int, Any], shape: Sequence[int], layout: ShardSpec | None, mesh: Mesh, dtype: Any = None
) -> Tensor:
    """A global tensor of the shards that this rank owns, by device."""
    if not shards:
        raise OperandError("dist.from_shards: shards is empty; give those of this rank's devices")
    first = as_value(next(iter(shards.values())), "dist.from_shards")
    spec = ShardSpec() if layout is None else layout
    found = spec.layout(tuple(shape), mesh)
    by_part = {
        shard_slices(tuple(shape), found, mesh, mesh.coordinates(d)).__repr__(): x
        for d, x in shards.items()
    }

    def part(where: tuple[slice, ...]) -> Any:
        if repr(where) not in by_part:
            raise OperandError(f"dist.from_shards: no shard was given for {where}")
        return host_data(as_value(by_part[repr(where)]))

    made: Tensor = from_function(shape, spec, mesh, part, first.dtype if dtype is None else dtype)
    return made


@blames_arguments
@guarded
def constrain(x: Any, layout: ShardSpec | None, mesh: Mesh | None = None) -> Any:
    """Tensors of a tree in a layout on the mesh that they are on; the same values otherwise."""
    spec = ShardSpec() if layout is None else layout
    return tree.map(lambda v: _constrained(as_value(v, "dist.constrain"), spec, mesh), x)


@blames_arguments
@guarded
def reshard(x: Any, layout: ShardSpec | None, mesh: Mesh | None = None) -> Any:
    """Tensors of a tree in another layout, or on another mesh; the same values otherwise."""
    return constrain(x, layout, mesh)


def _constrained(v: Value, spec: ShardSpec, mesh: Mesh | None) -> Value:
    on = mesh_of(v.device) if v.device.kind == "mesh" else mesh
    if v.device.kind == "mesh" and mesh is not None and mesh != on:
        if v.storage is not None:
            return tensor(v, spec, mesh)
        raise OperandError(
            f"dist.constrain: {v.type} is on mesh {on}, and a program runs on one mesh; move it to mesh {mesh} "
            "outside of the function"
        )
    if on is None and v.storage is None:
        return v  # a program without a mesh
    if on is None:
        raise OperandError(
            f"dist.constrain: {v.type} is on {v.device} and no mesh is given; lay it out with "
            "dist.tensor(x, layout, mesh)"
        )
    layout = spec.layout(v.shape, on)
    if v.storage is not None and v.device.kind != "mesh":
        return tensor(v, spec, on)
    made = constrained(v, layout.cuts)
    data: Any = made.storage
    if isinstance(data, ShardedArray):
        data.spec = spec
    return made
