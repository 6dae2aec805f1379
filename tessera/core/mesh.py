"""Logical meshes: named axes of shards, and how the ranks of a run divide them.

The logical mesh belongs to the program; how many ranks there are belongs to the machine.  A rank owns a box
of logical shards: a range of coordinates on each axis.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any, NoReturn

import numpy as np

from tessera.core.blame import blames_arguments
from tessera.core.device import Device
from tessera.core.errors import DeviceError, OperandError, ShapeError, TesseraError, located
from tessera.core.public import public

Range = tuple[int, int]  # first coordinate, and the one after the last


_INSTEAD = {
    "axis_names": "mesh.axes",
    "names": "mesh.axes",
    "mesh_dim_names": "mesh.axes",
    "ndim": "len(mesh.axes)",
    "get_local_rank": "mesh.coordinates(dist.rank())",
    "__getitem__": "mesh.size(axis) for how many shards lie along an axis, mesh.axis(name) for its mesh",
}


@public("a mesh", _INSTEAD)
@dataclass(frozen=True)
class Mesh:
    """Logical shards arranged along named axes."""

    axes: tuple[str, ...]
    shape: tuple[int, ...]
    devices: tuple[int, ...]

    @blames_arguments
    def __init__(
        self,
        axes: Any,
        shape: Any = None,
        devices: Iterable[int] | int | None = None,
    ):
        try:
            if not isinstance(axes, Iterable) or not isinstance(shape, Iterable | None):
                raise OperandError(
                    f"Mesh: got axes {axes!r:.40} and shape {shape!r:.40}, expected names of axes and a "
                    "size for each, as in "
                    'Mesh(["dp", "tp"], shape=(2, 4))'
                )
            names = (axes,) if isinstance(axes, str) else tuple(axes)
            sizes = None if shape is None else tuple(shape)
            if sizes is not None and not all(hasattr(n, "__index__") for n in sizes):
                raise OperandError(f"Mesh: shape is {shape!r:.40}, expected integers")
            sizes = None if sizes is None else tuple(operator.index(n) for n in sizes)
            if devices is None:
                if sizes is None:
                    raise OperandError("Mesh: give shape=, devices= or both")
                devices = range(math.prod(sizes))
            ranks = tuple(range(devices) if isinstance(devices, int) else devices)
            sizes = balanced(len(ranks), len(names)) if sizes is None else sizes
            _check_mesh(names, ranks, sizes)
        except TesseraError as e:
            raise located(e) from None
        object.__setattr__(self, "axes", names)
        object.__setattr__(self, "shape", sizes)
        object.__setattr__(self, "devices", ranks)

    def __str__(self) -> str:
        return " x ".join(f"{a}={n}" for a, n in zip(self.axes, self.shape, strict=True))

    def __enter__(self) -> NoReturn:
        raise located(
            OperandError(
                "a mesh is no block: tensors say which mesh they are on; write dist.tensor(x, layout, mesh), "
                "dist.shard_map(f, mesh, in_specs, out_specs), or with ts.mesh(devices, layout={...}) for a "
                "block in which tensors are cut"
            )
        )

    def __exit__(self, *error: object) -> None: ...

    def size(self, axis: str | None = None) -> int:
        """How many shards lie along an axis, or on the whole mesh."""
        if axis is None:
            return math.prod(self.shape)
        if axis not in self.axes:
            raise OperandError(f"mesh has no axis '{axis}'; it has {', '.join(self.axes)}")
        return self.shape[self.axes.index(axis)]

    def axis(self, name: str) -> Mesh:
        """The mesh of one axis alone, through its first coordinates on the others."""
        n, where = self.size(name), self.axes.index(name)
        grid = np.array(self.devices).reshape(self.shape)
        first = grid[tuple(slice(None) if i == where else 0 for i in range(len(self.axes)))]
        return Mesh((name,), (n,), [int(d) for d in first])

    def coordinates(self, device: int) -> dict[str, int]:
        """Where a device lies on each axis."""
        if device not in self._places:
            raise DeviceError(f"device {device} is not on this mesh of {len(self.devices)} devices")
        place = np.unravel_index(self._places[device], self.shape)
        return {a: int(i) for a, i in zip(self.axes, place, strict=True)}

    @cached_property
    def _places(self) -> dict[int, int]:
        return {d: i for i, d in enumerate(self.devices)}

    @property
    def device(self) -> Device:
        """The device that tensors on this mesh are on."""
        if self not in _NUMBERS:
            _NUMBERS[self] = len(_MESHES)
            _MESHES.append(self)
        return Device("mesh", _NUMBERS[self])


_MESHES: list[Mesh] = []
_NUMBERS: dict[Mesh, int] = {}


def mesh_of(device: Device) -> Mesh:
    """The mesh that a device of kind `mesh` stands for."""
    return _MESHES[device.index]


def told(device: Device) -> str:
    """A device as messages name it: a mesh by its axes."""
    return f"mesh {mesh_of(device)}" if device.kind == "mesh" else str(device)


def moving_to(device: Device) -> str:
    """What to do with a tensor that should be on a device."""
    if device.kind == "mesh":
        return "lay one out on the other's mesh with dist.tensor(x, layout, mesh)"
    return f"move one with x.to({str(device)!r})"


def _check_mesh(names: tuple[str, ...], ranks: tuple[int, ...], sizes: tuple[int, ...]) -> None:
    if not names or len(set(names)) != len(names) or not all(isinstance(n, str) for n in names):
        raise OperandError(f"Mesh: axes {list(names)} must be one or more distinct names")
    if len(set(ranks)) != len(ranks):
        raise OperandError("Mesh: a device is named twice")
    if len(sizes) != len(names) or math.prod(sizes) != len(ranks) or min(sizes) < 1:
        raise ShapeError(
            f"Mesh: shape {sizes} over axes {list(names)} needs {math.prod(sizes)} devices in "
            f"{len(names)} axes, got {len(ranks)} devices"
        )


@blames_arguments
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


# Ranks --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Placement:
    """How the ranks of a run divide a mesh: a grid of ranks, each with a box of logical shards."""

    mesh: Mesh
    grid: tuple[int, ...]  # how many ranks lie along each axis
    rank: int

    def range(self, axis: str, rank: int | None = None) -> Range:
        """The coordinates on an axis that a rank owns."""
        i = self.mesh.axes.index(axis)
        return _part(self.mesh.shape[i], self.grid[i], self._coordinates(rank)[i])

    def count(self, axis: str) -> int:
        """How many coordinates on an axis this rank owns."""
        low, high = self.range(axis)
        return high - low

    def is_whole(self, axis: str) -> bool:
        """Whether every rank owns all coordinates on an axis."""
        return self.grid[self.mesh.axes.index(axis)] == 1

    def group(self, axis: str) -> tuple[int, ...]:
        """The ranks that differ from this one on an axis alone, this one included, in order."""
        i, mine = self.mesh.axes.index(axis), list(self._coordinates(None))
        found = []
        for k in range(self.grid[i]):
            mine[i] = k
            found.append(int(np.ravel_multi_index(tuple(mine), self.grid)))
        return tuple(found)

    def owner(self, coordinates: Sequence[int]) -> int:
        """The rank that owns a logical shard."""
        place = []
        for n, parts, c in zip(self.mesh.shape, self.grid, coordinates, strict=True):
            spans = [_part(n, parts, k) for k in range(parts)]
            place.append(next(k for k, (low, high) in enumerate(spans) if low <= c < high))
        return int(np.ravel_multi_index(tuple(place), self.grid))

    def _coordinates(self, rank: int | None) -> tuple[int, ...]:
        where = np.unravel_index(self.rank if rank is None else rank, self.grid)
        return tuple(int(i) for i in where)


def _part(n: int, parts: int, k: int) -> Range:
    return k * n // parts, (k + 1) * n // parts


@cache
def placed(mesh: Mesh, rank: int, ranks: int) -> Placement:
    """The placement that gives the busiest rank the fewest shards, cutting the first axes first."""
    choices: Any = itertools.product(*(range(1, n + 1) for n in mesh.shape))
    grids = [g for g in choices if math.prod(g) == ranks]
    if not grids:
        raise DeviceError(
            f"mesh {mesh}: {ranks} ranks cannot share {mesh.size()} shards as a grid; run it on a number of "
            "ranks that is a product of at most the size of each axis"
        )

    def load(grid: tuple[int, ...]) -> tuple[int, tuple[int, ...]]:
        most = math.prod(-(-n // g) for n, g in zip(mesh.shape, grid, strict=True))
        return most, tuple(-g for g in grid)

    return Placement(mesh, min(grids, key=load), rank)
