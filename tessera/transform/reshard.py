"""Changes of layout in the program of one shard: collectives over the axes of a mesh.

    %1 : f32[8, 4] of f32[64@dp, 4]    to f32[64, 4]
->  %2 = all_gather(%1) {axis = "dp"} : f32[8, 8, 4];   %3 = reshape(%2) : f32[64, 4]

An axis whose size the mesh axis does not divide is padded: the last shards hold elements that mean nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tessera.core.layout import Layout, LayoutChange, bytes_moved, changes, parts
from tessera.core.mesh import Mesh
from tessera.core.source import Location
from tessera.core.types import TensorType
from tessera.ir.graph.ir import Node, Value, bind
from tessera.ops.collective import ALL_GATHER, ALL_TO_ALL, PART, PMAX, PPERMUTE, PSUM, PSUM_SCATTER
from tessera.ops.define import full_of
from tessera.ops.shape import moveaxis, pad, reshape, slice_

_ASKED = frozenset(("constrain", "shard_map", "the result", "all_gather", "all_reduce"))


@dataclass(frozen=True)
class Inserted:
    """A collective that a layout needed."""

    kind: str
    axis: str
    bytes: int  # that each logical shard sends
    value: str  # the type and layout of what it moves
    user: str  # the op that needs it
    location: Location | None
    times: int = 1  # how often it runs, in a loop of known length; `bytes` are those of all times

    @property
    def is_asked(self) -> bool:
        """Whether the program names it, or the layout that needs it."""
        return self.user in _ASKED

    def __str__(self) -> str:
        where = f"  at {self.location}" if self.location else ""
        often = f" {self.times} times" if self.times > 1 else ""
        return (
            f"{self.kind} over {self.axis} of {self.value} for {self.user}{often}, {self.bytes} bytes a "
            f"shard{where}"
        )


# Collectives that a program names itself, by the kind that they are listed as.
EXCHANGES = {
    PSUM: "all_reduce", PMAX: "all_reduce", ALL_GATHER: "all_gather", PSUM_SCATTER: "reduce_scatter",
    ALL_TO_ALL: "all_to_all", PPERMUTE: "permute",
}  # fmt: skip


def sized(x: Value, axis: int, size: int) -> Value:
    """x with an axis cut, or filled up with zeros, to a size."""
    n = x.shape[axis]
    if n == size:
        return x
    if n > size:
        stop = tuple(size if a == axis else k for a, k in enumerate(x.shape))
        return slice_(x, (0,) * x.ndim, stop)
    none = (0,) * x.ndim
    high = tuple(size - n if a == axis else 0 for a in range(x.ndim))
    zero = full_of((), 0, x.dtype)
    return pad.bind(x, zero, low=none, high=high, inner=none)


def split_front(x: Value, axis: int, count: int) -> Value:
    """An axis as `count` parts of equal size, which come in front: [.., n, ..] -> [count, .., n / count,
    ..].
    """
    part = -(-x.shape[axis] // count)
    x = sized(x, axis, part * count)
    wide = reshape(x, (*x.shape[:axis], count, part, *x.shape[axis + 1 :]))
    return moveaxis(wide, axis, 0)


def join_front(x: Value, axis: int, size: int) -> Value:
    """The parts in front as one axis of this size: [count, .., part, ..] -> [.., size, ..]."""
    moved = moveaxis(x, 0, axis)
    shape = (
        *moved.shape[:axis],
        moved.shape[axis] * moved.shape[axis + 1],
        *moved.shape[axis + 2 :],
    )
    return sized(reshape(moved, shape), axis, size)


class Resharding:
    """Writes changes of layout and keeps a list of what they move."""

    def __init__(self, mesh: Mesh, inserted: list[Inserted] | None = None, times: int = 1):
        self.mesh, self.times = mesh, times
        self.inserted: list[Inserted] = [] if inserted is None else inserted

    def repeated(self, times: int) -> Resharding:
        """The same list, for a region that runs so many times."""
        return Resharding(self.mesh, self.inserted, self.times * times)

    def note(
        self, kind: str, axis: str, moved: int, value: str, user: str, location: Location | None
    ) -> None:
        """List a collective."""
        self.inserted.append(
            Inserted(kind, axis, moved * self.times, value, user, location, self.times)
        )

    def note_own(self, n: Node, t: TensorType, layout: Layout) -> None:
        """List a collective of the program itself over an axis of which it sees one shard."""
        kind, axis = EXCHANGES[n.op], n.params["axis"]
        local = math.prod(layout.local(t.shape, self.mesh)) * t.dtype.bits // 8
        moved = (
            local if kind == "permute" else bytes_moved(LayoutChange(kind, axis), local, self.mesh)
        )
        self.note(kind, axis, moved, layout.show(t), n.op.name, n.location)

    def __call__(
        self,
        x: Value,
        t: TensorType,
        old: Layout,
        new: Layout,
        user: str,
        location: Location | None,
    ) -> Value:
        """The shard of a tensor of type t in a new layout."""
        now = [list(names) for names in old.cuts]
        shown = old.show(t)
        for change in changes(old, new):
            if change.kind != "part":
                local = int(x.type.size) * x.dtype.bits // 8
                moved = bytes_moved(change, local, self.mesh)
                self.note(change.kind, change.axis, moved, shown, user, location)
            x = _STEPS[change.kind](x, change, now, t.shape, self.mesh)
        return x


def _size(n: int, names: Sequence[str], mesh: Mesh) -> int:
    return -(-n // parts(names, mesh))


Step = Callable[[Value, LayoutChange, list[list[str]], Sequence[Any], Mesh], Value]


def _all_reduce(
    x: Value, c: LayoutChange, now: list[list[str]], shape: Sequence[Any], mesh: Mesh
) -> Value:
    made: Value = bind(PSUM, x, axis=c.axis)
    return made


def _reduce_scatter(
    x: Value, c: LayoutChange, now: list[list[str]], shape: Sequence[Any], mesh: Mesh
) -> Value:
    now[c.to].append(c.axis)
    count = mesh.size(c.axis)
    made: Value = bind(PSUM_SCATTER, split_front(x, c.to, count), axis=c.axis, size=count)
    return made


def _part(
    x: Value, c: LayoutChange, now: list[list[str]], shape: Sequence[Any], mesh: Mesh
) -> Value:
    now[c.to].append(c.axis)
    count = mesh.size(c.axis)
    made: Value = bind(PART, split_front(x, c.to, count), axis=c.axis, size=count)
    return made


def _all_gather(
    x: Value, c: LayoutChange, now: list[list[str]], shape: Sequence[Any], mesh: Mesh
) -> Value:
    now[c.at].remove(c.axis)
    y = bind(ALL_GATHER, x, axis=c.axis, size=mesh.size(c.axis))
    return join_front(y, c.at, _size(shape[c.at], now[c.at], mesh))


def _all_to_all(
    x: Value, c: LayoutChange, now: list[list[str]], shape: Sequence[Any], mesh: Mesh
) -> Value:
    now[c.at].remove(c.axis)
    now[c.to].append(c.axis)
    count = mesh.size(c.axis)
    y = bind(ALL_TO_ALL, split_front(x, c.to, count), axis=c.axis, size=count)
    return join_front(y, c.at, _size(shape[c.at], now[c.at], mesh))


_STEPS: dict[str, Step] = {
    "all_reduce": _all_reduce, "reduce_scatter": _reduce_scatter, "part": _part,
    "all_gather": _all_gather, "all_to_all": _all_to_all,
}  # fmt: skip
