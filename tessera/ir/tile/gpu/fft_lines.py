"""Fourier transforms on a GPU, many passes to a launch: a block of threads holds whole lines of elements.

    x[a, j, c] -> y[k, a, c]    a: a line, j and k < span, c: a column behind the elements of a line

Between passes, threads exchange elements (`exchange` of Tile IR) by the memory that they share.  Neighbouring
threads read and write neighbouring columns; where there are none they read neighbouring elements of a line,
and write those of neighbouring lines, which lie side by side after earlier passes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache, reduce
from math import prod

from tessera.core.fourier import FourierPass
from tessera.core.pairs import Pair
from tessera.ir.tile.gpu.fft_writer import Hook, LanePlace, Transform, TransformWriter
from tessera.ir.tile.ir import Memory, Tile

_MOST = {32: 8192, 64: 4096}  # elements of a block: 64 KB
_LEAST = 512  # of a block where lines are short: 12 us where 1024 took 17 (H200, 4096 lines of 512)
_BESIDE = 4  # lines or columns that a block takes at least, where neighbours lie beside each other: 32 bytes
_WIDE = 16  # and at most: 128 bytes
_THREADS = 512  # of a block at most: 16 elements to each where it holds the most

# Sizes of lanes by name, and the order in which they are counted.
Lanes = tuple[Mapping[str, int], Sequence[str]]


def spans(t: Transform, most: int) -> Sequence[Sequence[FourierPass]]:
    """Which passes a launch runs on lines that a block holds, if it can."""
    passes, room = t.plan.passes, _MOST[t.dtype.bits]
    if t.plan.length <= most:
        return ()
    beside = 1 if t.inner == 1 else _BESIDE
    if padded(grouped(passes, most), beside) <= room:
        return [passes]
    if any(not _is_power(p.radix) for p in passes):
        return ()
    return grouped(passes, room // _BESIDE)


def padded(groups: Sequence[Sequence[FourierPass]], beside: int) -> int:
    """The most elements of a tile of lines that lie beside each other: sizes of tiles are powers of two."""
    radices = [prod(p.radix for p in g) for g in groups]
    return max(_power(r) * _power(prod(radices) // r * beside) for r in radices)


@cache
def grouped(passes: tuple[FourierPass, ...], most: int) -> tuple[tuple[FourierPass, ...], ...]:
    """Passes in as few groups as hold at most so many elements, the groups as small as they can be."""
    best: list[tuple[int, int, tuple[tuple[FourierPass, ...], ...]]] = [(0, 0, ())]
    for end in range(1, len(passes) + 1):
        found = []
        for begin in range(end):
            size = prod(p.radix for p in passes[begin:end])
            if size <= most:
                count, total, groups = best[begin]
                found.append((count + 1, total + size, (*groups, passes[begin:end])))
        best.append(min(found, key=lambda f: f[:2]))
    return best[-1][2]


class LineWriter(TransformWriter):
    """Writes one kernel: passes on lines, in groups that a thread runs on what it holds.

    Lanes of a group are a line, the part of a k that earlier groups have found, the part of a j that later
    ones will sum over, and a column.
    """

    def __init__(self, t: Transform, passes: Sequence[FourierPass], most: int):
        self.done, self.left = passes[0].stride, passes[-1].count
        self.span = prod(p.radix for p in passes)
        self.groups = grouped(tuple(passes), most)
        self.lines, self.columns = self.block(t)
        super().__init__(t, "fft_lines", (t.outer * self.done, self.left * t.inner))
        above, behind = self.sizes
        radix = max(prod(p.radix for p in g) for g in self.groups)
        beside = self.lines * self.columns
        self.even = _is_power(beside * self.span)  # whether tiles have no places to spare
        self.rest = not self.even or above % self.lines != 0 or behind % self.columns != 0
        threads = min(_power(beside * self.span // radix + 1) // 2, _THREADS)
        self.warps = max(1, threads // 32)

    def block(self, t: Transform) -> tuple[int, int]:
        """How many lines and columns a block takes."""
        above, behind, room = t.outer * self.done, self.left * t.inner, _MOST[t.dtype.bits]
        columns = min(_WIDE, _power(behind))
        while columns > 1 and padded(self.groups, columns) > room:
            columns //= 2
        beside = _WIDE if behind == 1 and self.done > 1 else 1
        lines = max(_LEAST // (self.span * columns), min(beside, room // self.span), 1)
        return min(lines, _power(above)), columns

    def run(
        self, x: LanePlace, y: LanePlace, hook: Hook | None, factor: float | None, real: bool
    ) -> None:
        """Write the kernel: also what leads from real numbers or to them, pairs of which are elements."""
        t, half = self.t, self.span + 1
        joins, parts = real and t.inverse, real and not t.inverse
        given, made = self.made(
            x, y, (half,) if joins else (self.done, self.span, self.left),
            (half,) if parts else (self.span, self.done, self.left),
        )  # fmt: skip
        held: list[Pair] = []
        before: Lanes = {}, ()
        found, ahead = 1, self.span  # k that earlier groups have found, j that are left
        for i, group in enumerate(self.groups):
            radix = prod(p.radix for p in group)
            ahead //= radix
            sizes = {"line": self.lines, "k": found, "j": ahead, "column": self.columns}
            order = self.order(i == len(self.groups) - 1)
            if i:
                held = self.exchanged(held, before, sizes, order, radix)
            places = self.placed(sizes, order)
            if not i and joins:
                held = [self.joined_at(x, given, places, j * ahead) for j in range(radix)]
            elif not i:
                self.shapes[0] = x.shape(t, (self.done, radix, ahead, self.left))
                self.lanes = [places[n] for n in ("outer", "q", "j", "p", "inner")]
                held = [self.get(x, given, (0, 1, (j,), 2, 3, 4)) for j in range(radix)]
            self.lanes = [None, None, self.both(places["j"], self.left, places["p"])]
            if hook is not None and not i:
                held = [hook(self, v, j * ahead * self.left) for j, v in enumerate(held)]
            held = self.transformed(group, held)
            before = sizes, order
            found *= radix
        if parts:
            self.taken_apart(y, made, held, before, factor)
            return
        found //= radix
        self.shapes[1] = y.shape(t, (radix, found, self.done, self.left))
        self.lanes = [places[n] for n in ("outer", "k", "q", "p", "inner")]
        for k, v in enumerate(held):
            self.put(y, made, (0, (k,), 1, 2, 3, 4), v, factor)

    # Transforms of real numbers

    def joined_at(
        self, x: LanePlace, given: Memory, places: Mapping[str, Tile | None], first: int
    ) -> Pair:
        """The elements from a first one on of twice the complex transform that a real one comes from."""
        here, first_place = places["j"], self.whole(first)
        index = first_place if here is None else self.b.apply("add", here, first_place)
        self.lanes = [places["outer"], index, None]
        return self.joined(x, given, self.span).swapped

    def taken_apart(
        self,
        y: LanePlace,
        made: Memory,
        held: Sequence[Pair],
        before: Lanes,
        factor: float | None,
    ) -> None:
        """Write the transform of real numbers: each element from two of a line, which other threads hold."""
        m, b, found = self.span, self.b, self.span // len(held)
        places = self.placed({"line": self.lines, "k": m}, ("line", "k"))
        self.lanes = [places["outer"], places["k"], None]
        near, far = self.mirrored(m)
        line = None
        if self.lines > 1:
            line = self.scaled(
                b.apply("floor_div", b.index(0, (self.width,), 0), self.whole(m)), found
            )

        def taken(tiles: Sequence[Tile]) -> list[Tile]:
            whole, size = self.stacked(tiles), self.whole(found)
            return [
                b.take(whole, self.within(whole, self.added(
                    self.scaled(b.apply("floor_div", i, size), tiles[0].shape[0]), line,
                    b.apply("mod", i, size),
                )))
                for i in (near, self.around(far, m))
            ]  # fmt: skip

        u, v = self.moved(held, taken)
        self.put(y, made, (0, 1, 2), self.apart(u, v, near, far), factor)
        # Element m of a line, by the thread that has its first one.
        begins = self.below(self.index, 1)
        self.inside = begins if self.inside is None else b.apply("logical_and", begins, self.inside)
        self.starts, self.rest = {}, True
        last = Pair(u.re - u.im, self.zero())
        self.lanes = [places["outer"], None, None]
        self.put(y, made, (0, (m,), 2), last, factor)

    def order(self, last: bool) -> tuple[str, ...]:
        """The lanes of a group, from those that lie farthest."""
        if last and self.columns == 1 and self.done > 1:
            return ("k", "line", "column")
        return ("line", "k", "column") if last else ("line", "k", "j", "column")

    # Lanes

    def start(self) -> None:
        """The first line and column of a block."""
        above, behind = self.sizes
        self.first = {
            "line": self.b.program(-(-above // self.lines)) * self.lines,
            "column": self.b.program(-(-behind // self.columns)) * self.columns,
        }

    def placed(self, sizes: Mapping[str, int], order: Sequence[str]) -> dict[str, Tile | None]:
        """The places of the lanes: of those of a group, and of the axes of memory that follow from them."""
        b, t = self.b, self.t
        count = prod(sizes[n] for n in order)
        self.width = _power(count)
        number = b.index(0, (self.width,), 0)
        places: dict[str, Tile | None] = {"k": None, "j": None, **self.cut_up(number, sizes, order)}
        spare = count != self.width
        inside = b.apply("lt", number, self.whole(count)) if spare else None
        for name, count, own in zip(
            ("line", "column"), self.sizes, (self.lines, self.columns), strict=True
        ):
            here = None if count == 1 else b.index(self.first[name], (self.width,), None)
            place = places.get(name)
            places[name] = here if place is None or here is None else b.apply("add", here, place)
            if count % own and (at := places[name]) is not None:
                test = b.apply("lt", at, self.whole(count))
                inside = test if inside is None else b.apply("logical_and", inside, test)
        self.inside = inside
        places["outer"], places["q"] = self.cut(places["line"], t.outer, self.done)
        places["p"], places["inner"] = self.cut(places["column"], self.left, t.inner)
        return places

    def cut_up(
        self, number: Tile, sizes: Mapping[str, int], order: Sequence[str], bounded: bool = False
    ) -> dict[str, Tile]:
        """The places along axes of which a number counts the elements; bounded where it may be above all."""
        b, left = self.b, number
        places: dict[str, Tile] = {}
        moved = [n for n in order if sizes[n] > 1]
        for name in reversed(moved):
            size, whole = self.whole(sizes[name]), name == moved[0] and not bounded
            places[name] = left if whole else b.apply("mod", left, size)
            left = left if name == moved[0] else b.apply("floor_div", left, size)
        return places

    def cut(self, place: Tile | None, above: int, below: int) -> tuple[Tile | None, Tile | None]:
        """A place of two axes as one of each."""
        if place is None or below == 1:
            return place, None
        if above == 1:
            return None, place
        size = self.whole(below)
        return self.b.apply("floor_div", place, size), self.b.apply("mod", place, size)

    def both(self, high: Tile | None, size: int, low: Tile | None) -> Tile | None:
        """Places of two axes as one of both."""
        return self.added(None if high is None else self.scaled(high, size), low)

    def added(self, *places: Tile | None) -> Tile | None:
        """The sum of places that are not always 0."""
        moved = [p for p in places if p is not None]
        return reduce(lambda a, b: self.b.apply("add", a, b), moved) if moved else None

    def scaled(self, place: Tile, size: int) -> Tile:
        return place if size == 1 else self.b.apply("mul", place, self.whole(size))

    # Exchanges

    def exchanged(
        self,
        held: Sequence[Pair],
        before: Lanes,
        sizes: Mapping[str, int],
        order: Sequence[str],
        radix: int,
    ) -> list[Pair]:
        """The elements that the lanes of the next group hold: some of j's axis, of what was found for a k."""
        old, given = before
        if not self.even:
            return self.moved(held, lambda tiles: self.gathered(tiles, before, sizes, order, radix))
        named = [("found", len(held))]
        for name in given:
            named += [("held", radix), ("j", sizes["j"])] if name == "j" else [(name, old[name])]
        names = [name for name, _ in named]
        wanted = ["held"]
        for name in order:
            wanted += ["found", "k"] if name == "k" else [name]
        if "j" not in order:
            wanted.append("j")  # of which one is left
        turned = tuple(names.index(name) for name in wanted)
        shape = tuple(size for _, size in named)
        return self.moved(held, lambda tiles: self.b.exchange(tiles, shape, turned, radix))

    def gathered(
        self,
        tiles: Sequence[Tile],
        before: Lanes,
        sizes: Mapping[str, int],
        order: Sequence[str],
        radix: int,
    ) -> Sequence[Tile]:
        """The same where sizes are no powers of two: each element is taken from its place."""
        (old, given), b = before, self.b
        whole, each = self.stacked(tiles), _power(radix)
        lanes = _power(prod(sizes[n] for n in order))
        self.width = lanes * each
        number = b.index(0, (self.width,), 0)
        part = b.apply("min", b.apply("mod", number, self.whole(each)), self.whole(radix - 1))
        lane = b.apply("floor_div", number, self.whole(each))
        places = self.cut_up(lane, sizes, order, bounded=True)
        found = None
        if (k := places.pop("k", None)) is not None:
            found, places["k"] = (
                b.apply("floor_div", k, self.whole(old["k"])),
                b.apply("mod", k, self.whole(old["k"])),
            )
        ahead = self.both(part, sizes["j"], places.get("j"))
        assert ahead is not None
        places["j"] = ahead
        strides = {n: prod(old[m] for m in given[i + 1 :]) for i, n in enumerate(given)}
        at = self.added(
            None if found is None else self.scaled(found, tiles[0].shape[0]),
            *(self.scaled(places[n], strides[n]) for n in given if n in places),
        )
        taken = b.take(whole, self.within(whole, at))
        return b.exchange([taken], (lanes, each), (1, 0), each)[:radix]

    def stacked(self, tiles: Sequence[Tile]) -> Tile:
        """Tiles one behind the other, and others behind them to a power of two."""
        count, (width,) = _power(len(tiles)), tiles[0].shape
        spare = [self.b.full(tiles[0].dtype, (width,), 0)] * (count - len(tiles))
        return self.b.exchange([*tiles, *spare], (count, width), (0, 1), 1)[0]

    def within(self, x: Tile, place: Tile | None) -> Tile:
        """Places inside of a tile, also those of lanes that have nothing to do."""
        assert place is not None
        if self.even:
            return place
        below = self.b.apply("min", place, self.whole(x.shape[0] - 1))
        return self.b.apply("max", below, self.whole(0))

    def moved(
        self, held: Sequence[Pair], move: Callable[[list[Tile]], Sequence[Tile]]
    ) -> list[Pair]:
        """What becomes of the tiles that hold elements, where all parts go the same way."""
        if self.t.dtype.bits == 32:
            return [self.unpacked(word) for word in move([self.packed(v) for v in held])]
        re, im = (move([v[i].tile for v in held]) for i in (0, 1))
        return [
            Pair(self.real(self.b, x), self.real(self.b, y)) for x, y in zip(re, im, strict=True)
        ]


def _is_power(n: int) -> bool:
    return n & (n - 1) == 0


def _power(n: int) -> int:
    """The least power of two that is not below a number."""
    return 1 << (n - 1).bit_length()
