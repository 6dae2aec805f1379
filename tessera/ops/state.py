"""Ops of state: writes into caches, and movement between memories.  Their effects keep them in order and in
place.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tessera.core.errors import DTypeError, OperandError, ShapeError
from tessera.core.movement import ASKED
from tessera.core.types import TensorType
from tessera.ir.graph.ir import Value
from tessera.ir.graph.op import Params, Sample, Types
from tessera.ops.creation import iota
from tessera.ops.define import ArrayLike, as_value, broadcast, define
from tessera.ops.elementwise import clip, ge, logical_and, lt, remainder, sub, where
from tessera.ops.gather import scatter, take, take_along_axis
from tessera.ops.shape import moveaxis, reshape
from tessera.ops.write import WRITE_ROWS

SPACES = ("device", "host")
NEAR = ("smem", "shared", "register", "l2")  # levels of memory near to what computes


def _write_types(types: Types, p: Params) -> list[TensorType]:
    held, new, first, count = types
    if held.rank != 4 or new.rank != 4 or first.rank > 1 or count.rank > 1:
        raise ShapeError(
            f"state_write: got {held}, {new}, {first} and {count}, expected (batch, heads, room, size), "
            "(batch, heads, "
            "positions, size) and a number or one for each sequence"
        )
    if held.dtype is not new.dtype:
        raise DTypeError(f"state_write: {new} is written to {held}; cast it with astype")
    return [held]


def _column(x: Value) -> Value:
    """A number, or one for each sequence, to compare with places."""
    return x if x.ndim == 0 else reshape(x, (x.shape[0], 1))


def _write(held: Value, new: Value, first: Value, count: Value, wrap: bool) -> Value:
    batch, heads, room, size = held.shape
    more = new.shape[2]
    place = sub(iota((room,), 0), _column(first))
    if wrap:
        place = remainder(place, room)
    written = logical_and(ge(place, 0), lt(place, _column(count)))
    index = clip(place, 0, more - 1)
    if more == 1:
        moved = new
    elif index.ndim == 1:
        moved = take(new, index, axis=2)
    else:
        wide = broadcast(reshape(index, (batch, 1, room, 1)), (batch, heads, room, size))
        moved = take_along_axis(new, wide, axis=2)
    shape = (room, 1) if written.ndim == 1 else (batch, 1, room, 1)
    return where(reshape(written, shape), moved, held)


def _written(held: Any, new: Any, first: Any, count: Any, wrap: bool) -> Any:
    """The reference: position by position."""
    out, room = held.copy(), held.shape[2]
    for b in range(held.shape[0]):
        start, n = (int(x if np.ndim(x) == 0 else x[b]) for x in (first, count))
        for i in range(min(n, new.shape[2])):
            at = (start + i) % room if wrap else start + i
            if 0 <= at < room:
                out[b, :, at] = new[b, :, i]
    return out


@define(
    infer=_write_types, decompose=_write, in_place=WRITE_ROWS, numpy=_written,
    kinds=("buifc", "buifc", "iu", "iu"), moves=True, effects=frozenset(("state",)),
    samples=(
        Sample((1, 2, 5, 3), (1, 2, 2, 3), np.array(2), np.array(2)),
        Sample((2, 1, 4, 2), (2, 1, 3, 2), np.array([0, 3]), np.array([3, 1])),
        Sample((2, 1, 4, 2), (2, 1, 3, 2), np.array([3, 6]), np.array([3, 2]), wrap=True),
    ),
)  # fmt: skip
def state_write(
    held: ArrayLike, new: ArrayLike, first: ArrayLike, count: ArrayLike, wrap: bool = False
) -> Value:
    """A cache with `count` new positions from `first` on; those past its room are left out, or wrap."""
    operands = [as_value(x, "state_write") for x in (held, new, first, count)]
    return state_write.bind(*operands, wrap=bool(wrap))


def _pages_types(types: Types, p: Params) -> list[TensorType]:
    pool, new, pages, slots = types
    if pool.rank != 4 or new.rank != 4 or pages.rank != 2 or slots.rank != 2:
        raise ShapeError(
            f"state_write_pages: got {pool}, {new}, {pages} and {slots}, expected (pages, heads, page, "
            "size), (batch, "
            "heads, positions, size) and two of (batch, positions)"
        )
    return [pool]


def _write_pages(pool: Value, new: Value, pages: Value, slots: Value) -> Value:
    return scatter(pool, moveaxis(new, 2, 1), pages, slots, axes=(0, 2))


def _pages_written(pool: Any, new: Any, pages: Any, slots: Any) -> Any:
    out = pool.copy()
    for b, i in np.ndindex(*pages.shape):
        out[pages[b, i], :, slots[b, i]] = new[b, :, i]
    return out


@define(
    infer=_pages_types, decompose=_write_pages, numpy=_pages_written, kinds=("buifc", "buifc", "iu", "iu"),
    moves=True, effects=frozenset(("state",)),
    samples=(
        Sample((4, 1, 2, 3), (2, 1, 2, 3), np.array([[0, 2], [1, 3]]), np.array([[1, 0], [0, 1]])),
    ),
)  # fmt: skip
def state_write_pages(pool: ArrayLike, new: ArrayLike, pages: ArrayLike, slots: ArrayLike) -> Value:
    """A pool of pages with position i of sequence b written to slot slots[b, i] of page pages[b, i]."""
    operands = [as_value(x, "state_write_pages") for x in (pool, new, pages, slots)]
    return state_write_pages.bind(*operands)


@define(
    signature="... -> ...", view=lambda index, types, p: index, numpy=lambda x, to: x, moves=True,
    linear=(0,),
    transpose=lambda n, ct, k: ct, batch=lambda n, operands, batched: operands[0],
    effects=frozenset(("movement",)), samples=(Sample((2, 3), to="host"), Sample((), to="device")),
)  # fmt: skip
def state_move(x: ArrayLike, to: str = "device") -> Value:
    """x, which a program wants in the memory of the host or of the device; on a CPU these are one."""
    if to not in SPACES:
        raise OperandError(f"state_move: to is {to!r}, expected one of {', '.join(SPACES)}")
    return state_move.bind(as_value(x, "state_move"), to=to)


@define(
    infer=lambda types, p: [ASKED], call="state_prefetch", numpy=lambda x, into: np.zeros((), np.uint8),
    jvp=lambda n, ts: None, effects=frozenset(("movement",)),
    batch=lambda n, operands, batched: broadcast(
        state_prefetch.bind(operands[0], **n.params), (operands[0].shape[0],)
    ),
    samples=(Sample((2, 3), into="l2"), Sample((), into="smem")),
)  # fmt: skip
def state_prefetch(x: ArrayLike, into: str = "l2") -> Value:
    """Ask for x, which is read soon, in a memory near to what computes; the result is 0."""
    if into not in NEAR:
        raise OperandError(f"state_prefetch: into is {into!r}, expected one of {', '.join(NEAR)}")
    return state_prefetch.bind(as_value(x, "state_prefetch"), into=into)
