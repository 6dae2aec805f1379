"""Caches of keys and values, updated functionally.

    RollingCache      a ring of slots, of which a window of positions is seen; older ones are overwritten
    QuantizedCache    i8 or f8 with a scale for each position and head
    PagedCache        pages of one pool, found by a table for each sequence; forks share them

All have one length, or one for each sequence.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from tessera.core import tree
from tessera.core.blame import blames_arguments
from tessera.core.constraints import require, unify
from tessera.core.dtype import FORMATS, as_dtype, i32
from tessera.core.errors import OperandError, ShapeError, TesseraError, located
from tessera.ir.graph.ir import concrete, host_data
from tessera.lang import op
from tessera.lang.linear_state import Linear
from tessera.ops.define import as_value
from tessera.ops.places import looked_at
from tessera.ops.whole import whole_tensor

APPEND = "KVCache.append"


def lengths_of(batch: Any, per_sequence: bool) -> Any:
    return op.zeros((batch,), "i32") if per_sequence else concrete(0, "i32")


class Cache(Linear):
    """What caches have in common: a length, appending, and which positions a query sees."""

    length: Any
    K: Any
    V: Any
    _names: ClassVar[tuple[str, ...]] = ("K", "V")  # tensors with a row for each position

    @blames_arguments
    def append(self, k: Any, v: Any, counts: Any = None) -> Any:
        """The cache with the positions of k and v, both (batch, heads, seq, dim), after its own.

        With counts, i32 (batch,), only so many positions of each sequence are appended: the cache has a
        length for each. Positions past the room are an error where the length is known; a program that is
        traced drops them, and raises under ts.checked().
        """
        try:
            found = [as_value(x, APPEND) for x in (k, v)]
            return self._next(self._appended(found[0], found[1], _counts(self, counts, found[0])))
        except TesseraError as e:
            error = located(e)
        raise error

    def _appended(self, k: Any, v: Any, count: Any) -> Any:
        raise AssertionError(f"{type(self).__name__} states how it grows")

    def read(self) -> tuple[Any, Any]:
        """Keys and values (batch, heads, slots, dim) of all slots, filled or not."""
        return self.K, self.V

    def positions(self) -> Any:
        """The position that each slot holds, (slots,) or (batch, slots); below 0 or from the length on:
        none.
        """
        slots = op.arange(self.read()[0].shape[2])
        return slots if self.length.ndim == 0 else op.reshape(slots, (1, slots.shape[0]))

    def seen(self, queries: Any, causal: bool = True, counts: Any = None) -> Any:
        """Which slots the last `queries` positions see: bools that broadcast to (batch, heads, queries,
        slots).
        """
        at, length = self.positions(), op.cast(self.length, "i64")
        start = length - (
            queries if counts is None else whole_tensor("KVCache.seen", "counts", counts)
        )
        rows = op.arange(queries) + (start if start.ndim == 0 else op.expand_dims(start, 1))
        at, rows = op.expand_dims(at, -2), op.expand_dims(rows, -1)
        last = length if length.ndim == 0 else op.reshape(length, (length.shape[0], 1, 1))
        mask = op.logical_and(at >= 0, at < last)
        mask = op.logical_and(mask, at <= rows) if causal else mask
        mask = self._windowed(mask, at, rows)
        return mask if mask.ndim == 2 else op.expand_dims(mask, 1)

    def _windowed(self, mask: Any, at: Any, rows: Any) -> Any:
        return mask

    def truncate(self, length: Any) -> Any:
        """The cache with at most so many positions: the last ones are forgotten, as when a draft is
        refused.
        """
        try:
            n = whole_tensor("KVCache.truncate", "length", length, i32)
            looked_at("KVCache.truncate: length", n, 0, (1 << 31) - 1, "a number of positions")
            return self._next(self._truncated(op.minimum(self.length, n)))
        except TesseraError as e:
            error = located(e)
        raise error

    def _truncated(self, length: Any) -> Any:
        return self._with(length=length)

    def prune(self, count: Any) -> Any:
        """The cache without its oldest `count` positions; those after them move to the front."""
        try:
            return self._next(self._pruned(count))
        except TesseraError as e:
            error = located(e)
        raise error

    def _pruned(self, count: Any) -> Any:
        if type(count) is not int or count < 0:
            raise OperandError(
                f"KVCache.prune: count is {type(count).__name__} {count!r:.40}, expected a number of "
                "positions"
            )
        room = self._tensors()[0].shape[2]
        if self.length.storage is not None and count > int(host_data(self.length).min()):
            raise OperandError(
                f"KVCache.prune: count is {count}, but the cache holds {int(host_data(self.length).min())} "
                "positions"
            )
        index = op.minimum(op.arange(room) + count, room - 1)
        moved = [op.take(x, index, axis=2) for x in self._tensors()]
        return self._with(moved, length=op.cast(op.maximum(self.length - count, 0), "i32"))

    def fork(self, sequences: Any) -> Any:
        """The cache of these sequences, by number, one or more times each: beams, and prompts with one
        beginning.
        """
        try:
            index = whole_tensor("KVCache.fork", "the list of sequences", sequences)
            if index.ndim != 1:
                raise ShapeError(
                    f"KVCache.fork: the sequences are {index.type}, expected their numbers, as in [0, 0, 1]"
                )
            return self._next(self._forked(index))
        except TesseraError as e:
            error = located(e)
        raise error

    def _forked(self, index: Any) -> Any:
        length = self.length if self.length.ndim == 0 else op.take(self.length, index, axis=0)
        return self._with([op.take(x, index, axis=0) for x in self._tensors()], length=length)

    def reset(self) -> Any:
        """The cache without positions, in the memory that it has."""
        return self._next(self._with(length=op.zeros_like(self.length)))

    def offload(self) -> Any:
        """The cache in the memory of the host; a program that is traced says so, and does it where there is
        another.
        """
        return self._next(self._moved("host", "cpu"))

    def prefetch(self, device: Any = None) -> Any:
        """The cache in the memory of a device, or of the one in force."""
        return self._next(self._moved("device", device))

    def _moved(self, to: str, device: Any) -> Any:
        def move(x: Any) -> Any:
            if x.storage is None:
                if to == "device" and x.device.kind == "cpu":
                    op.state_prefetch(
                        x
                    )  # where the device's memory is the host's, its caches are near
                return op.state_move(x, to=to)
            return x if device is None else x.to(device)

        return self._with([move(x) for x in self._tensors()], length=move(self.length))

    def _tensors(self) -> list[Any]:
        return [getattr(self, n) for n in self._names]

    def _with(self, tensors: Any = None, **fields: Any) -> Any:
        """This cache with other tensors and other fields."""
        me: Any = self
        return replace(me, **dict(zip(self._names, tensors or (), strict=False)), **fields)


def _counts(cache: Cache, counts: Any, k: Any) -> Any:
    """How many positions of each sequence are appended."""
    if counts is None:
        return None
    n = whole_tensor(APPEND, "counts", counts)
    if n.ndim != 1 or not unify(n.shape[0], k.shape[0], f"{APPEND}: counts"):
        raise ShapeError(
            f"{APPEND}: counts are {n.type}, expected one number for each of {k.shape[0]} sequences"
        )
    if cache.length.ndim == 0:
        raise OperandError(
            f"{APPEND}: counts need a length for each sequence; make the cache with per_sequence=True"
        )
    return looked_at(f"{APPEND}: counts", n, 0, k.shape[2], f"{k.shape[2]} new positions")


def written(keys: Any, values: Any, first: Any, count: Any, wrap: bool = False) -> Any:
    start, n = (whole_tensor(APPEND, "the place", x) for x in (first, count))
    return [op.state_write(held, new, start, n, wrap=wrap) for held, new in (keys, values)]


def checked(c: Cache, k: Any, v: Any, dtype: Any = None) -> tuple[Any, Any]:
    """The room of a cache and the number of new positions, once they are known to fit it."""
    for name, held, new in (("K", c.K, k), ("V", c.V, v)):
        _check(name, held, new, dtype or held.dtype)
    if not unify(k.shape[2], v.shape[2], f"{APPEND}: the positions of K and V"):
        raise ShapeError(f"{APPEND}: got K {k.type} and V {v.type}, expected as many positions")
    return c.K.shape[2], k.shape[2]


def _check(name: str, held: Any, new: Any, dtype: Any) -> None:
    """The dtype and all axes but that of positions are those of the cache."""
    fits = new.ndim == 4 and dtype is new.dtype
    if not fits or not all(
        unify(held.shape[a], new.shape[a], f"{APPEND}: axis {a} of {name}") for a in (0, 1, 3)
    ):
        b, h, _, d = held.shape
        raise ShapeError(
            f"{APPEND}: got {new.type} for {name}, expected {dtype}[{b},{h},positions,{d}] as in the cache "
            f"{held.type}"
        )


# A window ---------------------------------------------------------------------------------------


@tree.node
@dataclass(frozen=True)
class RollingCache(Cache):
    """A ring of slots: position p lies in slot p modulo the room, and queries see the last `window`
    positions.
    """

    K: Any
    V: Any
    length: Any  # positions seen so far, more than the room after a while
    window: int = field(metadata={"static": True})

    def _appended(self, k: Any, v: Any, count: Any) -> RollingCache:
        room, more = checked(self, k, v)
        if not require("at_least", room - self.window + 1, more, f"{APPEND}: the ring"):
            raise ShapeError(
                f"{APPEND}: got {more} positions for a ring of {room} with a window of {self.window}, which "
                "takes "
                f"{room - self.window + 1} at once; make a larger ring, or append fewer"
            )
        n = more if count is None else count
        keys, values = written((self.K, k), (self.V, v), self.length, n, wrap=True)
        return RollingCache(keys, values, op.cast(self.length + n, "i32"), self.window)

    def positions(self) -> Any:
        """The position that each slot holds; below 0: none."""
        last = op.cast(self.length, "i64") - 1
        last = last if last.ndim == 0 else op.expand_dims(last, 1)
        room = self.K.shape[2]
        return last - op.remainder(last - op.arange(room), room)

    def _windowed(self, mask: Any, at: Any, rows: Any) -> Any:
        return op.logical_and(mask, at > rows - self.window)

    def _pruned(self, count: Any) -> Any:
        raise OperandError(
            "KVCache.prune: a rolling cache forgets by itself what its window does not see"
        )

    def _truncated(self, length: Any) -> Any:
        room = self.K.shape[2]
        lost = looked_at(
            "KVCache.truncate: the positions to forget", self.length - length, 0, room - self.window,
            f"a ring of {room} with a window of {self.window}",
        )  # fmt: skip
        return self._with(length=self.length - lost)


def rolling(
    batch: Any, heads: Any, size: Any, dim: Any, dtype: Any, per_sequence: bool, window: int
) -> RollingCache:
    if window < 1 or window > size:
        raise OperandError(
            f"KVCache.empty: window is {window}, expected 1 to {size}, the slots of the ring"
        )
    blank = op.zeros((batch, heads, size, dim), dtype)
    return RollingCache(blank, blank, lengths_of(batch, per_sequence), window)


# Few bits ---------------------------------------------------------------------------------------

_LARGEST = {d.name: d.largest for d in FORMATS.values() if d.bits == 8 and d.kind in "if"}


@tree.node
@dataclass(frozen=True)
class QuantizedCache(Cache):
    """Keys and values in few bits, times a scale f32 for each position and head."""

    K: Any
    V: Any
    K_scale: Any
    V_scale: Any
    length: Any
    _names: ClassVar[tuple[str, ...]] = ("K", "V", "K_scale", "V_scale")
    dtype: Any = field(metadata={"static": True})  # of the keys and values that come and go

    def _appended(self, k: Any, v: Any, count: Any) -> Any:
        room, more = checked(self, k, v, self.dtype)
        if not require("at_least", room, more, f"{APPEND}: the room of the cache"):
            raise ShapeError(
                f"{APPEND}: got {more} positions for a cache of {room}; make a larger one"
            )
        what = f"{more} more positions in a cache of {room}"
        length = looked_at(f"{APPEND}: length", self.length, 0, room - more, what)
        n = more if count is None else count
        (k, ks), (v, vs) = (_narrowed(x, self.K.dtype) for x in (k, v))
        held = written((self.K, k), (self.V, v), length, n)
        scales = written((self.K_scale, ks), (self.V_scale, vs), length, n)
        filled = op.cast(op.minimum(length + n, room), "i32")
        return self._with([*held, *scales], length=filled)

    def read(self) -> tuple[Any, Any]:
        """Keys and values in their own dtype."""
        pairs = ((self.K, self.K_scale), (self.V, self.V_scale))
        k, v = (op.cast(op.cast(x, "f32") * s, self.dtype) for x, s in pairs)
        return k, v


def _narrowed(x: Any, dtype: Any) -> tuple[Any, Any]:
    """x over the largest of each row, in few bits, and the scales."""
    wide = op.cast(x, "f32")
    scale = op.max(op.abs(wide), axis=-1, keepdims=True) / _LARGEST[dtype.name]
    unit = wide / op.where(op.eq(scale, 0), 1.0, scale)
    return op.cast(op.round(unit) if dtype.kind == "i" else unit, dtype), scale


def quantized_cache(
    batch: Any, heads: Any, size: Any, dim: Any, dtype: Any, per_sequence: bool, quantized: Any
) -> QuantizedCache:
    to = as_dtype(quantized)
    if to.name not in _LARGEST:
        raise OperandError(
            f"KVCache.empty: quantized is {to}, expected one of {', '.join(_LARGEST)}"
        )
    blank = op.zeros((batch, heads, size, dim), to)
    scale = op.zeros((batch, heads, size, 1), "f32")
    length = lengths_of(batch, per_sequence)
    return QuantizedCache(blank, blank, scale, scale, length, as_dtype(dtype))


# Pages ------------------------------------------------------------------------------------------


@tree.node
@dataclass(frozen=True)
class PagedCache(Cache):
    """Pages (pages + 1, heads, page, dim) of one pool; row b of the table names those of sequence b, in
    order.

    Pages are taken one after another; the last one of the pool holds what has no place.  A page that is
    full may belong to several sequences, one that is not to one alone: fork and truncate copy it.
    """

    K: Any
    V: Any
    table: Any  # i32 (batch, most pages of a sequence)
    used: Any  # i32: pages that were taken
    length: Any  # i32 (batch,)

    def _appended(self, k: Any, v: Any, count: Any) -> Any:
        self._check(k, v)
        page, more = self.K.shape[2], k.shape[2]
        room = self.table.shape[1] * page
        what = f"{more} more positions in a cache of {room}"
        start = op.cast(looked_at(f"{APPEND}: length", self.length, 0, room - more, what), "i64")
        n = op.full_like(start, more) if count is None else count
        end = op.minimum(start + n, room)
        table, used = self._grown(_pages(start, page), _pages(end, page))
        at = op.expand_dims(start, 1) + op.arange(more)
        there = op.take_along_axis(
            op.cast(table, "i64"), op.clip(at // page, 0, table.shape[1] - 1), axis=1
        )
        there = op.where(at < op.expand_dims(end, 1), there, self.K.shape[0] - 1)
        slots = op.remainder(at, page)
        pools = [op.state_write_pages(x, y, there, slots) for x, y in ((self.K, k), (self.V, v))]
        return self._with(pools, table=table, used=used, length=op.cast(end, "i32"))

    def _check(self, k: Any, v: Any) -> None:
        b, (_, h, _, d) = self.table.shape[0], self.K.shape
        for name, held, x in (("K", self.K, k), ("V", self.V, v)):
            fits = x.ndim == 4 and x.dtype is held.dtype
            if not fits or not all(
                unify(x.shape[a], n, f"{APPEND}: axis {a} of {name}")
                for a, n in ((0, b), (1, h), (3, d))
            ):
                raise ShapeError(
                    f"{APPEND}: got {x.type} for {name}, expected {held.dtype}[{b},{h},positions,{d}] as in "
                    "the cache"
                )
        if not unify(k.shape[2], v.shape[2], f"{APPEND}: the positions of K and V"):
            raise ShapeError(f"{APPEND}: got K {k.type} and V {v.type}, expected as many positions")

    def _grown(self, have: Any, need: Any) -> tuple[Any, Any]:
        """The table with new pages between how many each sequence has and needs, and how many are used
        then.
        """
        pages = self.K.shape[0] - 1
        new = op.maximum(need - have, 0)
        total = op.sum(new)
        used: Any = op.cast(self.used, "i64")
        if total.storage is not None and used.storage is not None:
            looked_at(f"{APPEND}: pages", used + total, 0, pages, f"a pool of {pages}")
        else:
            used = looked_at(f"{APPEND}: pages", used, 0, pages, f"a pool of {pages}")
        first = op.expand_dims(used + op.cumsum(new, axis=0) - new, 1)
        column = op.expand_dims(op.arange(self.table.shape[1]), 0)
        from_, to = op.expand_dims(have, 1), op.expand_dims(need, 1)
        taken = op.minimum(first + column - from_, pages)
        inside = op.logical_and(column >= from_, column < to)
        return op.cast(op.where(inside, taken, self.table), "i32"), op.cast(used + total, "i32")

    def read(self) -> tuple[Any, Any]:
        """Keys and values (batch, heads, slots, dim) in the order of positions."""
        k, v = (self._gathered(x) for x in (self.K, self.V))
        return k, v

    def _gathered(self, pool: Any) -> Any:
        _, h, page, d = pool.shape
        b, n = self.table.shape
        found = op.take(pool, op.cast(self.table, "i64"), axis=0)
        return op.reshape(op.transpose(found, (0, 2, 1, 3, 4)), (b, h, n * page, d))

    def _owned(self, table: Any, length: Any) -> Any:
        """The cache of a table whose last pages, where they are not full, are copied."""
        page, trash = self.K.shape[2], self.K.shape[0] - 1
        wide = op.cast(length, "i64")
        full, part = wide // page, op.remainder(wide, page) > 0
        column = op.clip(full, 0, table.shape[1] - 1)
        old = op.squeeze(
            op.take_along_axis(op.cast(table, "i64"), op.expand_dims(column, 1), axis=1), 1
        )
        grown = PagedCache(self.K, self.V, table, self.used, length)
        fresh, used = grown._grown(full, full + op.cast(part, "i64"))
        new = op.squeeze(
            op.take_along_axis(op.cast(fresh, "i64"), op.expand_dims(column, 1), axis=1), 1
        )
        to = op.where(part, new, trash)
        pools = [op.scatter(x, op.take(x, old, axis=0), to, axes=(0,)) for x in (self.K, self.V)]
        return self._with(pools, table=fresh, used=used, length=length)

    def _forked(self, index: Any) -> Any:
        return self._owned(op.take(self.table, index, axis=0), op.take(self.length, index, axis=0))

    def _truncated(self, length: Any) -> Any:
        return self._owned(self.table, length)

    def _pruned(self, count: Any) -> Any:
        page = self.K.shape[2]
        if type(count) is not int or count < 0 or count % page:
            raise OperandError(
                f"KVCache.prune: count is {count!r:.40}, expected a multiple of the {page} positions of a "
                "page"
            )
        columns = op.minimum(
            op.arange(self.table.shape[1]) + count // page, self.table.shape[1] - 1
        )
        length = op.cast(op.maximum(self.length - count, 0), "i32")
        return PagedCache(self.K, self.V, op.take(self.table, columns, axis=1), self.used, length)

    def reset(self) -> Any:
        """The cache without positions; all pages are free."""
        tensors = (self.K, self.V, self.table, op.zeros_like(self.used), op.zeros_like(self.length))
        return self._next(PagedCache(*tensors))


def _pages(positions: Any, page: Any) -> Any:
    return (positions + (page - 1)) // page


def paged(
    batch: Any, heads: Any, size: Any, dim: Any, dtype: Any, page: Any, pages: Any
) -> PagedCache:
    if type(page) is not int or type(pages) is not int or min(page, pages) < 1:
        raise OperandError(
            f"KVCache.empty: page is {page} and pages {pages}, expected how many positions a page has and "
            "how many "
            "pages there are"
        )
    pool = op.zeros((pages + 1, heads, page, dim), dtype)
    table = op.full((batch, -(-size // page)), pages, "i32")
    return PagedCache(pool, pool, table, concrete(0, "i32"), op.zeros((batch,), "i32"))
