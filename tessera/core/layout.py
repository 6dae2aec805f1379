"""Layouts: which axes of a tensor are cut along which axes of a mesh, and how one becomes another.

`f32[64@dp, 32]` is cut along its first axis by the mesh axis dp; `f32[64] sum@dp` is a tensor whose value
is the sum of what the shards along dp hold.  A mesh axis that is not named replicates.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tessera.core.errors import OperandError, ShapeError
from tessera.core.mesh import Mesh
from tessera.core.types import TensorType

Cuts = tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True)
class Layout:
    """For each axis of a tensor the mesh axes that cut it, major first, and those with partial sums."""

    cuts: Cuts
    partial: tuple[str, ...] = ()

    def of(self, axis: str) -> int | None:
        """The tensor axis that a mesh axis cuts."""
        return next((i for i, names in enumerate(self.cuts) if axis in names), None)

    @property
    def axes(self) -> tuple[str, ...]:
        """The mesh axes that cut."""
        return tuple(a for names in self.cuts for a in names)

    def refines(self, other: Layout) -> bool:
        """Whether each shard of this layout lies in one shard of the other."""
        pairs = zip(self.cuts, other.cuts, strict=True)
        return self.partial == other.partial and all(m[: len(o)] == o for m, o in pairs)

    def local(self, shape: Sequence[Any], mesh: Mesh) -> tuple[int, ...]:
        """The shape of a shard; of an axis that does not divide the last shards are padded."""
        return tuple(-(-n // parts(names, mesh)) for n, names in zip(shape, self.cuts, strict=True))

    def show(self, t: TensorType) -> str:
        """A type with this layout: f32[64@dp, 32]."""
        sizes = [
            f"{n}@{'+'.join(names)}" if names else str(n)
            for n, names in zip(t.shape, self.cuts, strict=True)
        ]
        rest = f" sum@{'+'.join(self.partial)}" if self.partial else ""
        return f"{t.dtype}[{', '.join(sizes)}]{rest}"


def replicated(rank: int) -> Layout:
    """The layout that is whole on every shard."""
    return Layout(((),) * rank)


def parts(names: Sequence[str], mesh: Mesh) -> int:
    """Into how many parts mesh axes cut."""
    made = 1
    for a in names:
        made *= mesh.size(a)
    return made


def check_layout(who: str, layout: Layout, shape: Sequence[Any], mesh: Mesh) -> Layout:
    """Refuse mesh axes that the mesh does not have, that cut twice, or that cut together what does not
    divide.
    """
    seen: set[str] = set()
    for i, names in enumerate(layout.cuts):
        for a in names:
            mesh.size(a)
            if a in seen:
                raise OperandError(f"{who}: mesh axis '{a}' cuts twice in {layout.cuts}")
            seen.add(a)
        if len(names) > 1 and shape[i] % parts(names, mesh):
            raise ShapeError(
                f"{who}: axis {i} of size {shape[i]} is cut by {' and '.join(names)} into "
                f"{parts(names, mesh)} "
                "parts, which do not divide it; cut it by one mesh axis, or choose a size that divides"
            )
    return layout


# Changes of layout --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LayoutChange:
    """One step from a layout to another, over one mesh axis.

    kind is all_reduce, reduce_scatter (onto `to`), all_gather (of axis `at`), all_to_all (from `at` to
    `to`) or part, which keeps a part of what each shard has and moves nothing.
    """

    kind: str
    axis: str
    at: int = -1
    to: int = -1


def changes(old: Layout, new: Layout) -> Iterator[LayoutChange]:
    """The steps from one layout to another, which has partial sums only where the old one has them too."""
    now = [list(names) for names in old.cuts]
    want = [list(names) for names in new.cuts]
    partial = [a for a in old.partial if a not in new.partial]
    yield from _leave(now, want)
    yield from _enter(now, want, partial)
    yield from (LayoutChange("all_reduce", a) for a in partial if not any(a in w for w in want))


def _leave(now: list[list[str]], want: list[list[str]]) -> Iterator[LayoutChange]:
    """Take away the mesh axes that cut otherwise, minor ones first."""
    for i, names in enumerate(now):
        while names and names != want[i][: len(names)]:
            a = names.pop()
            target = next((j for j, w in enumerate(want) if a in w), None)
            if target is not None and target != i and want[target] == [*now[target], a]:
                now[target].append(a)
                yield LayoutChange("all_to_all", a, i, target)
            else:
                yield LayoutChange("all_gather", a, i)


def _enter(
    now: list[list[str]], want: list[list[str]], partial: list[str]
) -> Iterator[LayoutChange]:
    """Cut by the mesh axes that are missing, major ones first."""
    for j, w in enumerate(want):
        for a in w[len(now[j]) :]:
            yield LayoutChange("reduce_scatter" if a in partial else "part", a, -1, j)


def bytes_moved(change: LayoutChange, local: int, mesh: Mesh) -> int:
    """The bytes that a shard which holds `local` bytes sends in a step."""
    n = mesh.size(change.axis)
    if change.kind == "part":
        return 0
    if change.kind == "all_gather":
        return (n - 1) * local
    return (2 if change.kind == "all_reduce" else 1) * local * (n - 1) // n


def after(change: LayoutChange, local: int, mesh: Mesh) -> int:
    """The bytes that a shard holds after a step."""
    n = mesh.size(change.axis)
    factors: Mapping[str, float] = {"all_gather": n, "reduce_scatter": 1 / n, "part": 1 / n}
    return int(local * factors.get(change.kind, 1))


def cost(old: Layout, new: Layout, nbytes: int, mesh: Mesh) -> int:
    """The bytes that a shard sends when a tensor of `nbytes` changes its layout."""
    local, total = nbytes // max(1, parts(old.axes, mesh)), 0
    for change in changes(old, new):
        total += bytes_moved(change, local, mesh)
        local = after(change, local, mesh)
    return total
