"""`with mesh(devices, layout={...})`: the mesh and the meaning of axis names for the tensors made in a block."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any

from tessera.core.blame import blames_arguments
from tessera.core.errors import OperandError, located
from tessera.core.mesh import Mesh
from tessera.core.open_blocks import OpenBlocks
from tessera.core.shardspec import ShardSpec

_WHOLE = ("replicate", None)


class MeshScope:
    """A mesh with the mesh axis that cuts each named axis of tensors."""

    def __init__(self, mesh: Mesh, layout: Mapping[str, str | None]):
        self.mesh, self.layout = mesh, dict(layout)
        for name, axis in self.layout.items():
            if axis not in (*_WHOLE, *mesh.axes):
                raise located(
                    OperandError(
                        f"mesh: {name!r} is cut by {axis!r}, but the mesh has axes {', '.join(mesh.axes)}"
                    )
                )

    def __repr__(self) -> str:
        cut = ", ".join(f"{name} by {a}" for name, a in self.layout.items() if a not in _WHOLE)
        return f"<mesh {self.mesh}: {cut or 'nothing'} cut>"

    def shard(self, *names: str, **layout: str) -> MeshScope:
        """This mesh, which cuts axes of these names: all by its only axis, or each by the one given."""
        if names and len(self.mesh.axes) != 1:
            raise located(
                OperandError(
                    f"mesh.shard: the mesh has axes {', '.join(self.mesh.axes)}; say which cuts what, as in "
                    f'shard({names[0]}="{self.mesh.axes[0]}")'
                )
            )
        return MeshScope(
            self.mesh, {**self.layout, **dict.fromkeys(names, self.mesh.axes[0]), **layout}
        )

    def spec(self, names: Sequence[str]) -> ShardSpec:
        """The layout of a tensor whose axes have these names."""
        cut = {n: a for n in names if (a := self.layout.get(n)) not in _WHOLE}
        places = [k for k, n in enumerate(names) if n in cut]
        return ShardSpec(tuple(places), tuple(cut[names[k]] for k in places))

    def __enter__(self) -> MeshScope:
        _SCOPES.open(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, e: BaseException | None, tb: TracebackType | None
    ) -> None:
        _SCOPES.close_last(lambda scope: scope is self)


_SCOPES: OpenBlocks[MeshScope] = OpenBlocks("tessera meshes")


def current_scope() -> MeshScope | None:
    """The innermost `with mesh(...)`."""
    return _SCOPES.innermost()


@blames_arguments
def mesh(
    devices: Iterable[int] | int | Mesh,
    layout: Mapping[str, str | None] | None = None,
    shape: Sequence[int] | None = None,
) -> MeshScope:
    """A mesh for `with`: dist.tensor(x, names=(...)) in the block is laid out as `layout` says for each name.

    The axes of the mesh are those that layout names, in order; "shard" and no layout mean one axis, called shard.
    """
    given: dict[str, Any] = dict(layout or {})
    if isinstance(devices, Mesh):
        return MeshScope(devices, given)
    axes = tuple(dict.fromkeys(a for a in given.values() if a not in _WHOLE)) or ("shard",)
    numbers = range(devices) if isinstance(devices, int) else devices
    return MeshScope(Mesh(axes, shape, numbers), given)
