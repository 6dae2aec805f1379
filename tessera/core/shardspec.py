"""ShardSpec: a layout as users write it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tessera.core.blame import constructor_blames_arguments
from tessera.core.errors import OperandError, located
from tessera.core.layout import Layout, check_layout
from tessera.core.mesh import Mesh

_LABELS = {"row": -2, "col": -1}
Label = str | int
Names = str | tuple[str, ...] | None


@constructor_blames_arguments
@dataclass(frozen=True)
class ShardSpec:
    """Which axes of a tensor are cut, and along which mesh axes.

    An entry of partition is "row" (the axis before the last), "col" (the last), an axis number or the name
    of an axis.  Its entry in mesh_axes is a mesh axis, several of them, or None.
    """

    partition: tuple[Label, ...] = ()
    mesh_axes: tuple[Names, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "partition", _entries(self.partition))
        object.__setattr__(self, "mesh_axes", _entries(self.mesh_axes))
        if len(self.partition) != len(self.mesh_axes):
            raise located(
                OperandError(
                    f"ShardSpec: {len(self.partition)} axes {self.partition} but "
                    f"{len(self.mesh_axes)} mesh axes {self.mesh_axes}; name one mesh axis for each"
                )
            )

    def layout(self, shape: Sequence[int], mesh: Mesh, names: Sequence[str] = ()) -> Layout:
        """This layout of a tensor of a shape, whose axes may have names."""
        rank = len(shape)
        found: dict[int, tuple[str, ...]] = {}
        for label, given in zip(self.partition, self.mesh_axes, strict=True):
            axis = self._axis(label, rank, names)
            cuts = () if given is None else (given,) if isinstance(given, str) else tuple(given)
            if axis in found:
                raise OperandError(f"ShardSpec: {self.partition} over {self.mesh_axes} cuts twice")
            found[axis] = cuts
        used = [a for cuts in found.values() for a in cuts]
        if len(set(used)) < len(used):
            raise OperandError(f"ShardSpec: {self.partition} over {self.mesh_axes} cuts twice")
        made = Layout(tuple(found.get(k, ()) for k in range(rank)))
        return check_layout("ShardSpec", made, shape, mesh)

    def _axis(self, label: Label, rank: int, names: Sequence[str]) -> int:
        axis: int | None
        if isinstance(label, str) and label in names:
            axis = list(names).index(label)
        else:
            axis = _LABELS.get(label) if isinstance(label, str) else label
        if axis is None or not -rank <= axis < rank:
            known = f", or one of its names {', '.join(names)}" if names else ""
            raise OperandError(
                f"ShardSpec: {label!r} is no axis of a tensor of rank {rank}; write 'row', "
                f"'col' or an axis number{known}"
            )
        return axis % rank


def _entries(given: object) -> tuple[object, ...]:
    return tuple(given) if isinstance(given, tuple | list) else (given,)


def spec_of(layout: Layout) -> ShardSpec:
    """A layout by axis numbers."""
    cut = [(k, names) for k, names in enumerate(layout.cuts) if names]
    return ShardSpec(tuple(k for k, _ in cut), tuple(n[0] if len(n) == 1 else n for _, n in cut))
