"""The Tile interpreter: every operation on NumPy arrays, every access checked."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from itertools import product
from typing import Any

import numpy as np

from tessera.core.constraints import solve
from tessera.core.dims import Size, substitute
from tessera.core.dot_words import dot_words, words
from tessera.core.dtype import DType
from tessera.core.errors import VerifyError
from tessera.core.evaluate import cast, neutral, scalar
from tessera.core.evaluator import evaluator, evaluators
from tessera.core.fma import unguarded_fma
from tessera.core.rounding import round_to
from tessera.ir.tile.ir import Block, Kernel, Memory, Operation, Tile

Array = np.ndarray[Any, np.dtype[Any]]


# Is told of every operation with its instance, before its results are used.
Watch = Callable[["Operation", "Instance", Sequence[Array]], None]


def interpret(
    kernel: Kernel,
    arrays: Sequence[Array],
    known: Mapping[str, int] | None = None,
    watch: Watch | None = None,
) -> None:
    """Run a kernel over its whole grid; writable parameters are written in place.

    The sizes follow from the arrays unless they are known.
    """
    sizes = sizes_of(kernel, arrays) if known is None else dict(known)
    counts = [int(substitute(n, sizes)) for _, n in kernel.grid]
    names = [name for name, _ in kernel.grid]
    memories = dict(zip(kernel.parameters, arrays, strict=True))
    boxes: dict[Operation, _Box] = {}
    with np.errstate(all="ignore"):
        for point in product(*map(range, counts)):
            here = {**sizes, **dict(zip(names, point, strict=True))}
            instance = Instance(here, dict(memories), watch, boxes)
            instance.block(kernel.body, ())
            instance.finish()


class NotDistinctError(VerifyError):
    """Two elements of a tile are stored to one place that distinct=True promised to differ."""


class _Box:
    """What the accesses of an operation have in common: where its box begins, how large it is, what may lie
    outside.
    """

    __slots__ = ("axes", "begin", "extent", "order", "squeezed")

    def __init__(self, op: Operation):
        a = op.attributes
        self.begin, self.extent = evaluators(tuple(a["at"])), tuple(a["extent"])
        self.axes = tuple((i, n, i in a["masked"]) for i, n in enumerate(self.extent))
        kept = a["axes"]
        self.squeezed = tuple(i for i in range(len(self.extent)) if i not in kept)
        order = _orders(kept)[1]
        self.order = order if order != tuple(range(len(order))) else None


class Instance:
    """One program instance: the values of its variables, tiles and memories.

    Instances of one kernel may share what they know of the boxes of its operations.
    """

    def __init__(
        self,
        variables: dict[str, int],
        memories: dict[Memory, Array],
        watch: Watch | None = None,
        boxes: dict[Operation, _Box] | None = None,
    ):
        self.variables, self.memories, self.watch = variables, memories, watch
        self.boxes = {} if boxes is None else boxes
        self.tiles: dict[Tile, Array] = {}
        self.pending: list[Callable[[], None]] = []  # stores that have not arrived
        self.current: Operation | None = None

    def number(self, x: Size) -> int:
        return x if isinstance(x, int) else evaluator(x)(self.variables)

    def block(self, block: Block, inputs: Sequence[Array]) -> list[Array]:
        tiles, watch = self.tiles, self.watch
        tiles.update(zip(block.arguments, inputs, strict=True))
        for op in block.operations:
            self.current = op
            results = getattr(self, f"_{op.name}")(op, *[tiles[t] for t in op.operands])
            for t, x in zip(op.results, results, strict=True):
                tiles[t] = x
            if watch is not None:
                watch(op, self, results)
        return [tiles[t] for t in block.outputs]

    def finish(self) -> None:
        """Let what is still on its way arrive."""
        for arrive in self.pending:
            arrive()

    def _alloc(self, op: Operation) -> list[Array]:
        assert op.memory is not None
        shape = [self.number(n) for n in op.memory.type.shape]
        self.memories[op.memory] = unwritten(shape, op.memory.type.dtype)
        return []

    def _for(self, op: Operation, *carried: Array) -> list[Array]:
        a, values = op.attributes, list(carried)
        assert op.block is not None
        stop = self.number(a["stop"])
        if a.get("bounded"):
            stop = min(stop, int(values[0]))
        for i in range(self.number(a["start"]), stop, a["step"]):
            if a.get("going") and not values[0]:
                break
            self.variables[a["variable"]] = i
            values = self.block(op.block, values)
        return values

    def box(self, op: Operation) -> _Box:
        """The box of an access."""
        found = self.boxes.get(op)
        if found is None:
            found = self.boxes[op] = _Box(op)
        return found

    def part(self, op: Operation) -> tuple[Array, tuple[slice, ...], tuple[slice, ...]]:
        """The memory, and what of the box lies inside of it: where in the memory, where in the box."""
        assert op.memory is not None
        data, box = self.memories[op.memory], self.box(op)
        there, here = [], []
        for first, (axis, n, masked), size in zip(
            box.begin(self.variables), box.axes, data.shape, strict=True
        ):
            low = first if first > 0 else 0
            high = first + n if first + n < size else size
            if high - low < n and not masked:
                raise VerifyError(
                    f"{op.name}: elements {first} to {first + n - 1} lie outside axis {axis} of "
                    f"{op.memory} of size {size}"
                ).at(op.location)
            high = max(high, low)
            there.append(slice(low, high))
            here.append(slice(low - first, high - first))
        return data, tuple(there), tuple(here)

    def places(self, op: Operation) -> tuple[Array, tuple[Any, ...], Array]:
        """The memory, an index of every element of the box, and which of them are inside."""
        data, there, here = self.part(op)
        extent = op.attributes["extent"]
        inside = np.zeros(extent, bool)
        inside[here] = True
        lines = []
        for t, h, n, size in zip(there, here, extent, data.shape, strict=True):
            lines.append(np.clip(t.start - h.start + np.arange(n), 0, max(size - 1, 0)))
        return data, np.ix_(*lines), inside

    def _load(self, op: Operation) -> list[Array]:
        data, there, here = self.part(op)
        extent, t = self.box(op).extent, op.results[0]
        box = data[there].copy()
        if box.shape != extent:
            seen, box = box, np.full(extent, round_to(np.asarray(op.attributes["fill"]), t.dtype))
            box[here] = seen
        return [self._kept(op, box)]

    def _store(self, op: Operation, value: Array) -> list[Array]:
        self._arrival(op, value)()
        return []

    def _arrival(self, op: Operation, value: Array) -> Callable[[], None]:
        """What writes a tile to its box, when it is called."""
        data, there, here = self.part(op)
        box = np.transpose(value, _orders(op.attributes["axes"])[0])
        part = box.reshape(op.attributes["extent"])[here]

        def arrive() -> None:
            data[there] = part

        return arrive

    def _store_async(self, op: Operation, value: Array) -> list[Array]:
        self.pending.append(self._arrival(op, value))
        return []

    def _wait(self, op: Operation) -> list[Array]:
        while len(self.pending) > op.attributes["pending"]:
            self.pending.pop(0)()
        return []

    def _barrier(self, op: Operation) -> list[Array]:
        return []  # the threads of an instance are one here

    def _prefetch(self, op: Operation) -> list[Array]:
        return []  # no element changes

    def picked(self, op: Operation, indices: Sequence[Array], shape: tuple[int, ...]) -> Any:
        """The memory, an index of every element of a tile, and which of them are inside."""
        assert op.memory is not None
        data, a = self.memories[op.memory], op.attributes
        own = dict(zip(a["axes"], range(len(shape)), strict=False))
        moved = dict(zip(a["picked"], indices, strict=True))
        index, inside = [], np.ones(shape, bool)
        for axis, at in enumerate(a["at"]):
            place = np.full(shape, self.number(at), np.int64) + moved.get(axis, 0)
            if axis in own:
                line = np.arange(a["extent"][axis])
                place = place + line.reshape([-1] + [1] * (len(shape) - own[axis] - 1))
            ok = (place >= 0) & (place < data.shape[axis])
            if axis not in a["masked"] and not ok.all():
                raise VerifyError(
                    f"{op.name}: elements {place.min()} to {place.max()} lie outside axis {axis} of "
                    f"{op.memory} of size {data.shape[axis]}"
                ).at(op.location)
            inside = inside & ok
            index.append(np.clip(place, 0, max(data.shape[axis] - 1, 0)))
        return data, tuple(index), inside

    def _gather(self, op: Operation, *indices: Array) -> list[Array]:
        t = op.results[0]
        data, index, inside = self.picked(op, indices, t.shape)
        fill = round_to(np.asarray(op.attributes["fill"]), t.dtype)
        return [np.where(inside, data[index], fill) if data.size else np.full(t.shape, fill)]

    def _scatter(self, op: Operation, value: Array, *indices: Array) -> list[Array]:
        data, index, inside = self.picked(op, indices, value.shape)
        if op.attributes.get("distinct") and data.size:
            flat = np.ravel_multi_index(
                [np.broadcast_to(i, value.shape)[inside] for i in index], data.shape
            )
            if len(np.unique(flat)) != flat.size:
                raise NotDistinctError(
                    f"scatter: two elements of a tile are written to one place of {op.memory}, and it says "
                    "that "
                    "they are distinct"
                ).at(op.location)
        how = op.attributes.get("atomic")
        for place in np.ndindex(value.shape):
            if inside[place]:
                at = tuple(i[place] for i in index)
                new = value[place]
                data[at] = (
                    new if how is None else scalar(how, [data[at], new], op.operands[0].dtype)
                )
        return []

    def _kept(self, op: Operation, values: Array) -> Array:
        box = self.box(op)
        if box.squeezed:
            values = values.squeeze(box.squeezed)
        return values if box.order is None else values.transpose(box.order)

    def _full(self, op: Operation) -> list[Array]:
        t = op.results[0]
        return [np.full(t.shape, round_to(np.asarray(op.attributes["value"]), t.dtype))]

    def _index(self, op: Operation) -> list[Array]:
        t, axis = op.results[0], op.attributes["axis"]
        base = np.full(t.shape, self.number(op.attributes["at"]), np.int64)
        if axis is None:
            return [base]
        return [base + np.arange(t.shape[axis]).reshape([-1] + [1] * (len(t.shape) - axis - 1))]

    def _apply(self, op: Operation, *xs: Array) -> list[Array]:
        return [scalar(op.attributes["scalar"], xs, op.results[0].dtype)]

    def _cast(self, op: Operation, x: Array) -> list[Array]:
        return [cast(x, op.results[0].dtype)]

    def _fold(self, op: Operation, x: Array) -> list[Array]:
        fold = neighbour_fold if "order" in op.attributes else tree_fold
        return [fold(op.attributes["scalar"], x, op.attributes["axis"], op.results[0].dtype)]

    def _scan(self, op: Operation, x: Array) -> list[Array]:
        name, axis = op.attributes["scalar"], op.attributes["axis"]
        if "order" in op.attributes:
            return [neighbour_scan(name, x, axis, op.results[0].dtype)]
        rows = list(np.moveaxis(x, axis, 0))
        for i in range(1, len(rows)):
            rows[i] = scalar(name, (rows[i - 1], rows[i]), op.results[0].dtype)
        return [np.stack(rows, axis)]

    def _dot(self, op: Operation, a: Array, b: Array, acc: Array) -> list[Array]:
        a, b = a.astype(acc.dtype), b.astype(acc.dtype)
        for k in range(a.shape[1]):
            x, y = a[:, k : k + 1], b[k : k + 1]
            acc = unguarded_fma(x, y, acc) if acc.dtype.kind == "f" else acc + x * y
        return [acc]

    def _dot_parts(self, op: Operation, x: Array, y: Array, acc: Array) -> list[Array]:
        parts = op.attributes["parts"]
        kinds = (np.uint8, np.int8) if parts == 4 else (np.int16, np.int16)
        factors = [
            np.ascontiguousarray(v).view(k).reshape(*v.shape, parts).astype(acc.dtype)
            for v, k in zip((x, y), kinds, strict=True)
        ]
        return [acc + (factors[0] * factors[1]).sum(-1, dtype=acc.dtype)]

    def _words(self, op: Operation, x: Array) -> list[Array]:
        return [words(x, op.attributes["axis"])]

    def _dot_words(self, op: Operation, x: Array, y: Array, acc: Array) -> list[Array]:
        a = op.attributes
        return [dot_words(x, y, acc, a["left"], a["right"])]

    def _reshape(self, op: Operation, x: Array) -> list[Array]:
        return [x.reshape(op.results[0].shape)]

    def _broadcast(self, op: Operation, x: Array) -> list[Array]:
        return [np.broadcast_to(x, op.results[0].shape)]

    def _transpose(self, op: Operation, x: Array) -> list[Array]:
        return [x.T]

    def _take(self, op: Operation, x: Array, place: Array) -> list[Array]:
        if place.min() < 0 or place.max() >= len(x):
            raise VerifyError(f"take: places {place.min()} to {place.max()} of {len(x)} elements")
        return [x[place]]

    def _count(self, op: Operation, x: Array) -> list[Array]:
        size = op.attributes["size"]
        return [np.bincount(x[(x >= 0) & (x < size)], minlength=size).astype(np.int32)]

    def _exchange(self, op: Operation, *xs: Array) -> list[Array]:
        a = op.attributes
        turned = np.stack(xs).reshape(a["shape"]).transpose(a["order"])
        return list(turned.reshape(a["count"], -1))


@lru_cache(4096)
def _orders(axes: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The order that sorts axes, and the rank of each."""
    order = tuple(sorted(range(len(axes)), key=axes.__getitem__))
    return order, tuple(sorted(range(len(axes)), key=order.__getitem__))


def unwritten(shape: Sequence[int], dtype: DType) -> Array:
    """Scratch before it is written: numbers that are wrong wherever they are used."""
    if dtype.kind == "f":
        return np.full(shape, np.nan, dtype.np)
    return np.full(shape, 0x55 if dtype.kind != "b" else True, dtype.np)


def tree_fold(name: str, x: Array, axis: int, dtype: DType) -> Array:
    """A fold as a balanced tree: the upper part onto the lower until one element is left."""
    x = np.moveaxis(x, axis, 0)
    while len(x) > 1:
        half = 1 << (len(x) - 1).bit_length() - 1
        low = scalar(name, (x[: len(x) - half], x[half:]), dtype)
        x = np.concatenate([low, x[len(x) - half : half]])
    return np.moveaxis(x, 0, axis)


def neighbour_fold(name: str, x: Array, axis: int, dtype: DType) -> Array:
    """A fold as a binary tree over aligned neighbours; the last of an odd number stands alone."""
    x = np.moveaxis(x, axis, 0)
    while len(x) > 1:
        x = _neighbours_joined(name, x, dtype)
    return np.moveaxis(x, 0, axis)


def neighbour_scan(name: str, x: Array, axis: int, dtype: DType) -> Array:
    """Running folds down the tree over aligned neighbours: what comes before a right child is what comes
    before its parent, and then its sibling.
    """
    levels = [np.moveaxis(x, axis, 0)]
    while len(levels[-1]) > 1:
        levels.append(_neighbours_joined(name, levels[-1], dtype))
    before = np.full_like(levels[-1], neutral(name, dtype))
    for level in reversed(levels[:-1]):
        parent, before = before, np.repeat(before, 2, axis=0)[: len(level)]
        count = len(level) // 2
        before[1::2] = scalar(name, (parent[:count], level[: 2 * count : 2]), dtype)
    return np.moveaxis(scalar(name, (before, levels[0]), dtype), 0, axis)


def _neighbours_joined(name: str, x: Array, dtype: DType) -> Array:
    whole = len(x) // 2 * 2
    return np.concatenate([scalar(name, (x[:whole:2], x[1:whole:2]), dtype), x[whole:]])


def sizes_of(kernel: Kernel, arrays: Sequence[Array]) -> dict[str, int]:
    """The symbols of a kernel at the sizes of its arguments."""
    shapes = [
        (m.name, m.type.shape, a.shape) for m, a in zip(kernel.parameters, arrays, strict=True)
    ]
    return solve(shapes, ())
