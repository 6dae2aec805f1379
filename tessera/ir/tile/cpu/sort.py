"""sort: lines of a tensor sorted by a network of comparisons, sixteen lines side by side.

    y = sort(x[r, :])   ->   program r by 16: for each comparison (a, b) of the network: order (a, b)

The network is a bitonic sort whose first comparisons of a block mirror its halves, so that all blocks
ascend.  Elements carry their index, and equal elements are ordered by it: the result is the stable
order of core/sorts.py.  NaN becomes infinity with an index past all others (or before them, where it
comes first), and lines are filled up to a power of two by elements that come last.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial

from tessera.core.dims import Size, product
from tessera.core.dtype import DType, i32, i64
from tessera.core.evaluate import identity
from tessera.core.types import TensorType
from tessera.ir.schedule.ir import Primitive
from tessera.ir.tile.ir import Builder, Kernel, Memory, Tile
from tessera.ir.tile.launch import Expansion, Launch

_LANES = 16  # of a vector: AVX-512 in f32
_BLOCK = 256  # elements of a line whose comparisons run together, in the nearest cache

Pair = tuple[Tile, Tile]  # keys and indices of one element of every line


def lower_sort(wanted: str, step: Primitive, types: Mapping[str, TensorType]) -> Expansion:
    """One kernel; `wanted` says whether values, indices or both are written."""
    return Expansion((Launch(_Sort(wanted, step, types).kernel(), step.operands, step.results),))


class _Sort:
    def __init__(self, wanted: str, step: Primitive, types: Mapping[str, TensorType]):
        p, b = step.params, Builder("kernel")
        x, axis = types[step.operands[0]], p["axis"]
        self.b, self.dtype, self.down = b, x.dtype, bool(p.get("descending", p.get("largest")))
        n = x.shape[axis]
        assert isinstance(n, int)
        self.n, self.count = n, p.get("k", n)
        self.outer, self.inner = product(x.shape[:axis]), product(x.shape[axis + 1 :])
        self.x = b.parameter("x", TensorType(x.dtype, (self.outer, n, self.inner)))
        made = (self.outer, self.count, self.inner)
        self.outs = {
            name: b.parameter(name, TensorType(x.dtype if name == "values" else i64, made), True)
            for name in wanted.split()
        }
        self.size = 1 << (n - 1).bit_length()
        self.key = _key_dtype(x.dtype)
        self.keys, self.places = (b.alloc(d, (self.size, _LANES)) for d in (self.key, i32))

    def kernel(self) -> Kernel:
        self.lines()
        with self.b.loop(0, self.n) as e:
            self.put(e.variable, self.element(e.variable))
        self.fill()
        self.sort()
        with self.b.loop(0, self.count) as e:
            self.store(e.variable, self.get(e.variable))
        return self.b.finish()

    # Lines

    def lines(self) -> None:
        """Which lines this instance sorts: neighbours in memory where there are some."""
        if self.inner == 1:
            self.row: Size = self.b.program((self.outer + _LANES - 1) // _LANES) * _LANES
            self.column: Size = 0
            self.extent, self.axis = (_LANES, 1, 1), 0
        else:
            self.row = self.b.program(self.outer)
            self.column = self.b.program((self.inner + _LANES - 1) // _LANES) * _LANES
            self.extent, self.axis = (1, 1, _LANES), 2

    def element(self, e: Size) -> Pair:
        """The e-th element of every line, and its index."""
        b = self.b
        at = (self.row, e, self.column)
        raw = b.load(self.x, at, self.extent, axes=(self.axis,), masked=(self.axis,))
        key, place = b.cast(raw, self.key), b.cast(b.index(e, (_LANES,)), i32)
        if self.key.kind != "f":
            return key, place
        nan = b.apply("is_nan", key)
        moved = b.apply("add", place, b.full(i32, (1,), -self.n if self.down else self.n))
        key = b.apply("where", nan, b.full(self.key, (1,), math.inf), key)
        return key, b.apply("where", nan, moved, place)

    def fill(self) -> None:
        """Elements that come after all others."""
        if self.size == self.n:
            return
        last = identity("max" if self.down else "min", self.key)
        with self.b.loop(self.n, self.size) as e:
            key = self.b.full(self.key, (_LANES,), last)
            place = self.b.cast(self.b.index(e.variable + 2 * self.n, (_LANES,)), i32)
            self.put(e.variable, (key, place))

    def store(self, e: Size, pair: Pair) -> None:
        b, (key, place) = self.b, pair
        outside = b.apply("lt", place, b.full(i32, (1,), 0))
        back = self.n
        if not self.down:
            outside, back = b.apply("ge", place, b.full(i32, (1,), self.n)), -self.n
        if self.key.kind == "f":
            key = b.apply("where", outside, b.full(self.key, (1,), math.nan), key)
            place = b.apply("where", outside, b.apply("add", place, b.full(i32, (1,), back)), place)
        for name, m in self.outs.items():
            value = b.cast(key, self.dtype) if name == "values" else b.cast(place, i64)
            at = (self.row, e, self.column)
            b.store(m, value, at, self.extent, axes=(self.axis,), masked=(self.axis,))

    def get(self, at: Size) -> Pair:
        return self.read(self.keys, at), self.read(self.places, at)

    def read(self, m: Memory, at: Size) -> Tile:
        return self.b.load(m, (at, 0), (1, _LANES), axes=(1,))

    def put(self, at: Size, pair: Pair) -> None:
        for m, t in zip((self.keys, self.places), pair, strict=True):
            self.b.store(m, t, (at, 0), (1, _LANES), axes=(1,))

    # The network

    def sort(self) -> None:
        """Blocks first, each on its own; then pairs of sorted halves, up to the whole line."""
        few = 1 << max(self.count - 1, 1).bit_length() if isinstance(self.count, int) else self.size
        if 2 * few <= min(_BLOCK, self.size):
            self.sort_blocks(few)
            self.select(few)
            return
        block = min(_BLOCK, self.size)
        self.sort_blocks(block)
        for k in _powers(2 * block, self.size):
            with self.b.loop(0, self.size, k) as half:
                self.merge(half.variable, k)

    def sort_blocks(self, block: int) -> None:
        with self.b.loop(0, self.size, block) as here:
            for k in _powers(2, block):
                with self.b.loop(here.variable, here.variable + block, k) as half:
                    self.merge(half.variable, k)

    def select(self, k: int) -> None:
        """Of two sorted blocks of k elements the first k, until one block is left."""
        count = self.size // k
        while count > 1:
            count //= 2
            with self.b.loop(0, count) as block:
                here, other = block.variable * k, (block.variable + count) * k
                with self.b.loop(0, k) as e:
                    place = here + e.variable
                    first, _ = self.ordered(self.get(place), self.get(other + k - 1 - e.variable))
                    self.put(place, first)
                self.strides(here, k, _powers(1, k // 2)[::-1])

    def merge(self, start: Size, k: int) -> None:
        """Two sorted halves of k elements as one."""
        quarter = k // 4
        if quarter == 0:
            self.network([start, start + 1], [(0, 1)])
            return
        with self.b.loop(0, quarter) as e:
            i, end = e.variable, start + k - 1 - e.variable
            places = [start + i, start + i + quarter, end - quarter, end]
            self.network(places, [(0, 3), (1, 2), (0, 1), (2, 3)])
        strides = _powers(1, quarter // 2)[::-1] if quarter > 1 else []
        far = [s for s in strides if s >= _BLOCK]
        self.strides(start, k, far)
        near = [s for s in strides if s < _BLOCK]
        if not far:
            self.strides(start, k, near)
            return
        with self.b.loop(start, start + k, _BLOCK) as block:
            self.strides(block.variable, _BLOCK, near)

    def strides(self, start: Size, k: int, strides: Sequence[int]) -> None:
        """Comparisons of elements so far apart, two distances at once."""
        for i in range(0, len(strides), 2):
            pair = strides[i : i + 2]
            low = pair[-1]
            if len(pair) == 1:
                places, comparisons = [0, low], [(0, 1)]
            else:
                places, comparisons = [m * low for m in range(4)], [(0, 2), (1, 3), (0, 1), (2, 3)]
            with (
                self.b.loop(start, start + k, 2 * pair[0]) as block,
                self.b.loop(block.variable, block.variable + low) as e,
            ):
                self.network([e.variable + p for p in places], comparisons)

    def network(self, places: Sequence[Size], comparisons: Sequence[tuple[int, int]]) -> None:
        """Some elements through some comparisons, without memory in between."""
        held = [self.get(p) for p in places]
        for i, j in comparisons:
            held[i], held[j] = self.ordered(held[i], held[j])
        for p, pair in zip(places, held, strict=True):
            self.put(p, pair)

    def ordered(self, a: Pair, b: Pair) -> tuple[Pair, Pair]:
        """Two elements, the one that comes first before the other."""
        apply, ((p, i), (q, j)) = self.b.apply, (a, b)
        before = apply("gt" if self.down else "lt", q, p)
        equal = apply("logical_and", apply("eq", p, q), apply("lt", j, i))
        swap = apply("logical_or", before, equal)
        first = apply("where", swap, q, p), apply("where", swap, j, i)
        return first, (apply("where", swap, p, q), apply("where", swap, i, j))


def _key_dtype(dtype: DType) -> DType:
    """What is compared: the element as it is, or in a format that vectors like."""
    if dtype.kind == "f":
        return dtype.compute
    return i32 if dtype.bits < 32 else dtype


def _powers(first: int, last: int) -> list[int]:
    """The powers of two from first to last."""
    return [1 << i for i in range(first.bit_length() - 1, last.bit_length())]


SORTS = {
    "sort": partial(lower_sort, "values"),
    "argsort": partial(lower_sort, "indices"),
    "topk": partial(lower_sort, "values indices"),
}
