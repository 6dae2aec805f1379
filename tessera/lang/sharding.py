"""What a tensor on a mesh knows of its layout."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from tessera.compile.mesh.array import ShardedArray, shard_slices
from tessera.core.device import Device
from tessera.core.errors import DeviceError, OperandError, TesseraError, located
from tessera.core.mesh import Mesh
from tessera.core.ranks import engine, placement
from tessera.core.shardspec import ShardSpec, spec_of
from tessera.core.types import TensorType
from tessera.ir.graph.ir import concrete, data_of

if TYPE_CHECKING:
    from tessera.lang.tensor import Tensor


class Shardable:
    """The methods of tensors that have a layout on a mesh."""

    __slots__ = ()

    type: TensorType
    device: Device

    def _sharded(self, what: str) -> ShardedArray:
        data: Any = data_of(self, what)  # type: ignore[arg-type]
        if not isinstance(data, ShardedArray):
            raise located(
                OperandError(
                    f"{what}: {self.type} is on {self.device} and has no layout; lay it out with "
                    "dist.tensor(x, layout, mesh)"
                )
            )
        return data

    @property
    def layout(self) -> ShardSpec:
        """Which axes are cut by which mesh axes."""
        data = self._sharded("layout")
        spec: ShardSpec = spec_of(data.layout) if data.spec is None else data.spec
        return spec

    @property
    def mesh(self) -> Mesh:
        """The mesh that the tensor is laid out on."""
        return self._sharded("mesh").mesh

    @property
    def shown_layout(self) -> str:
        """The type with its layout: f32[64@dp, 32] on mesh dp=8."""
        data = self._sharded("layout")
        return f"{data.layout.show(self.type)} on mesh {data.mesh}"

    def shard_slices(self, device: int) -> tuple[slice, ...]:
        """The part of each axis that a device of the mesh holds."""
        data = self._sharded("shard_slices")
        try:
            at = data.mesh.coordinates(device)
        except TesseraError as e:
            raise located(e) from None
        return shard_slices(data.shape, data.layout, data.mesh, at)

    def local(self, device: int) -> Tensor:
        """The shard of a device of the mesh, which this rank must own."""
        data = self._sharded("local")
        try:
            at = tuple(data.mesh.coordinates(device).values())
            owner = placement(data.mesh).owner(at)
            if owner != engine().rank:
                raise DeviceError(
                    f"local: shard {device} of {self.shown_layout} is on rank {owner}, this is rank "
                    f"{engine().rank}"
                )
        except TesseraError as e:
            raise located(e) from None
        return concrete(data.local(at), self.type.dtype)  # type: ignore[return-value]

    shard = local

    @property
    def shards(self) -> dict[int, Tensor]:
        """The shards that this rank owns, by device."""
        mesh = self._sharded("shards").mesh
        place = placement(mesh)
        return {
            d: self.local(d)
            for d in mesh.devices
            if place.owner(tuple(mesh.coordinates(d).values())) == place.rank
        }

    def full(self) -> Tensor:
        """The whole tensor on the CPU; every rank of a run must ask for it."""
        data = self._sharded("full")
        return concrete(np.asarray(data.numpy()), self.type.dtype)  # type: ignore[return-value]
