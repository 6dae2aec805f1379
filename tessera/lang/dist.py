"""Meshes and sharded tensors: how a global tensor is laid out over devices.

A tensor of `dist.tensor` is global: ops see the whole of it.  Its layout says which device holds
which part.  Here every mesh is local: the devices are ranks of this process.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tessera.core.dtype import as_dtype, f32
from tessera.core.errors import DeviceError, OperandError, ShapeError, TesseraError, located
from tessera.core.types import TensorType
from tessera.ir.graph.ir import holding
from tessera.lang.tensor import Tensor
from tessera.ops.define import shape_of

_LABELS = {"row": -2, "col": -1}


@dataclass(frozen=True)
class Mesh:
    """Devices arranged along named axes."""

    axes: tuple[str, ...]
    shape: tuple[int, ...]
    devices: tuple[int, ...]

    def __init__(
        self,
        axes: Sequence[str],
        devices: Iterable[int],
        shape: Sequence[int] | None = None,
    ):
        try:
            names, ranks = tuple(axes), tuple(devices)
            sizes = tuple(shape) if shape is not None else balanced(len(ranks), len(names))
            _check_mesh(names, ranks, sizes)
        except TesseraError as e:
            raise located(e) from None
        object.__setattr__(self, "axes", names)
        object.__setattr__(self, "shape", sizes)
        object.__setattr__(self, "devices", ranks)

    def size(self, axis: str) -> int:
        """How many devices lie along an axis."""
        if axis not in self.axes:
            raise OperandError(f"mesh has no axis '{axis}'; it has {', '.join(self.axes)}")
        return self.shape[self.axes.index(axis)]

    def coordinates(self, device: int) -> dict[str, int]:
        """Where a device lies on each axis."""
        if device not in self.devices:
            raise DeviceError(f"device {device} is not on this mesh of {len(self.devices)} devices")
        place = np.unravel_index(self.devices.index(device), self.shape)
        return {a: int(i) for a, i in zip(self.axes, place, strict=True)}


def _check_mesh(names: tuple[str, ...], ranks: tuple[int, ...], sizes: tuple[int, ...]) -> None:
    if not names or len(set(names)) != len(names):
        raise OperandError(f"Mesh: axes {list(names)} must be one or more distinct names")
    if len(set(ranks)) != len(ranks):
        raise OperandError("Mesh: a device is named twice")
    if len(sizes) != len(names) or math.prod(sizes) != len(ranks):
        raise ShapeError(
            f"Mesh: shape {sizes} over axes {list(names)} needs {math.prod(sizes)} devices in "
            f"{len(names)} axes, got {len(ranks)} devices"
        )


def balanced(count: int, axes: int) -> tuple[int, ...]:
    """The factors of count, one for each axis and as equal as can be, largest first."""
    if axes == 0:
        return ()
    if axes == 1:
        return (count,)
    root = round(count ** (1 / axes))
    last = max(d for d in range(1, max(root, 1) + 1) if count % d == 0) if count else 0
    rest = balanced(count // last if last else 0, axes - 1)
    return tuple(sorted((*rest, last), reverse=True))


@dataclass(frozen=True)
class ShardSpec:
    """Which axes of a tensor are cut, and along which mesh axes.

    An entry of partition is "row" (the axis before the last), "col" (the last) or an axis number.
    """

    partition: tuple[str | int, ...]
    mesh_axes: tuple[str, ...]

    def __post_init__(self) -> None:
        if len(self.partition) != len(self.mesh_axes):
            raise located(
                OperandError(
                    f"ShardSpec: {len(self.partition)} axes {self.partition} but "
                    f"{len(self.mesh_axes)} mesh axes {self.mesh_axes}; name one mesh axis for each"
                )
            )

    def cuts(self, rank: int, mesh: Mesh) -> dict[int, str]:
        """Tensor axis -> mesh axis."""
        found: dict[int, str] = {}
        for label, name in zip(self.partition, self.mesh_axes, strict=True):
            axis = _LABELS.get(label) if isinstance(label, str) else label
            if axis is None or not -rank <= axis < rank:
                raise OperandError(
                    f"ShardSpec: {label!r} is no axis of a tensor of rank {rank}; write 'row', "
                    "'col' or an axis number"
                )
            mesh.size(name)
            if axis % rank in found or name in found.values():
                raise OperandError(f"ShardSpec: {self.partition} over {self.mesh_axes} cuts twice")
            found[axis % rank] = name
        return found


class ShardedTensor(Tensor):
    """A global tensor with a layout on a mesh."""

    __slots__ = ("layout", "mesh")

    layout: ShardSpec
    mesh: Mesh

    def shard_slices(self, device: int) -> tuple[slice, ...]:
        """The part of each axis that a device holds."""
        place, cuts = self.mesh.coordinates(device), self.layout.cuts(self.ndim, self.mesh)
        out = []
        for axis, n in enumerate(self.shape):
            parts = self.mesh.size(cuts[axis]) if axis in cuts else 1
            i = place[cuts[axis]] if axis in cuts else 0
            out.append(slice(i * n // parts, (i + 1) * n // parts))
        return tuple(out)

    def shard(self, device: int) -> Tensor:
        """The part of the tensor that a device holds."""
        return self[self.shard_slices(device)]


def tensor(shape: Any, layout: ShardSpec, mesh: Mesh, dtype: Any = f32) -> ShardedTensor:
    """A global tensor of zeros, laid out over a mesh; it takes no memory until it is written."""
    try:
        sizes, d = shape_of("dist.tensor", shape), as_dtype(dtype)
        layout.cuts(len(sizes), mesh)
    except TesseraError as e:
        raise located(e) from None
    data = np.broadcast_to(np.zeros((), d.np), sizes)  # type: ignore[arg-type]
    plain = holding(TensorType(d, sizes), data)
    made = object.__new__(ShardedTensor)
    for slot in ("type", "data", "device", "node", "index", "builder"):
        setattr(made, slot, getattr(plain, slot))
    made.layout, made.mesh = layout, mesh
    return made
