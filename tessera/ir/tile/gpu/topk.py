"""topk: the first k of each line without sorting it, by rounds of sorted runs of which the smaller half
stays.

    runs of K = 2^j >= k words, sorted   ->   of two runs, the smaller word of each pair: the K smallest
    of both
                                              until one run is left

An ascending run beside a descending one is bitonic: the smaller of the words that face each other are the K
smallest, and bitonic again, so that log2 K comparisons sort them.  Blocks do this for parts of a long line,
and then for what is left of the parts.  Words are those of sort.py, so the order is that of a stable sort.
"""

from __future__ import annotations

from collections.abc import Mapping

from tessera.core.dims import Size
from tessera.core.dtype import i64
from tessera.core.types import TensorType
from tessera.ir.schedule.gpu_blocks import power, warps_for
from tessera.ir.schedule.ir import Primitive
from tessera.ir.tile.gpu.sort import Sort, Words, sort
from tessera.ir.tile.gpu.sorted_lines import is_sortable
from tessera.ir.tile.ir import Builder, Kernel, Memory
from tessera.ir.tile.launch import Expansion, Launch, Threads

CHUNK = 1024  # words that a block takes of a longer line: 2048 took 1.15 times as long (k of 8 and 50, H200)
WHOLE = 2048  # of a line that is one block
LARGEST = 256  # k: more are a part of a sort
_LAST = (1 << 63) - 1  # the word behind all others


def topk(step: Primitive, types: Mapping[str, TensorType]) -> Expansion | None:
    """The launches of a selection, or of a sort where k is large."""
    x, p = types[step.operands[0]], step.params
    values, indices = step.results
    k = int(types[values].shape[p["axis"]])
    kept = max(power(k), 2)  # runs of one word have no direction
    if (
        not is_sortable(x, p["axis"])
        or not 0 < k <= LARGEST
        or 2 * kept > power(x.shape[p["axis"]])
    ):
        return sort("values indices", step, types)
    made = _Select(x, p["axis"], bool(p["largest"]), kept)
    outs, counts = {"values": values, "indices": indices}, {"values": k, "indices": k}
    if made.size <= WHOLE:
        only = Launch(made.whole(counts), step.operands, step.results, made.threads)
        return Expansion((only,))
    return made.rounds(step.operands[0], outs, counts)


class _Select(Sort):
    """The kernels of a selection of `kept` words of each line."""

    def __init__(self, x: TensorType, axis: int, down: bool, kept: int):
        super().__init__(x, axis, down)
        self.kept = kept

    def best(self, b: Builder, words: Words) -> Words:
        """The first words of lines, in order."""
        k, words = self.kept, self.sorted(b, words, 0, self.kept)
        rows, n = words[0].shape
        while n > k:
            facing = b.apply("neg", b.index(0, (1, 1, 2, 1), 2))  # odd runs are inverted words
            pairs = [b.reshape(w, (rows, n // (2 * k), 2, k)) for w in words]
            words = self.extreme(b, [b.apply("xor", w, facing) for w in pairs], "min")
            n //= 2
            if n > k:
                odd = b.apply("and", b.index(0, (1, n // k, 1, 1), 1), b.full(i64, (1, 1, 1, 1), 1))
                words = [b.apply("xor", w, b.apply("neg", odd)) for w in words]
            words = self.merged(b, [b.reshape(w, (rows, n)) for w in words], k)
        return words

    def whole(self, counts: Mapping[str, int]) -> Kernel:
        """Short lines, several in a block."""
        b = Builder("topk_lines")
        x, outs = self.given(b), self.made(b, counts)
        line = self.lines(b)
        extent, axes = self.box(self.rows, self.size)
        raw = b.load(x, (line[0], 0, line[1]), extent, axes, (axes[0], 1))
        self.unpack(b, self.best(b, self.words(b, raw, 0)), x, outs, line, 0)
        return b.finish()

    def rounds(self, x: str, outs: Mapping[str, str], counts: Mapping[str, int]) -> Expansion:
        """Parts of a line in a block each, then what is left of them."""
        lines, name = self.outer * self.inner, outs["values"]
        threads = Threads(warps_for(self.parts * CHUNK))
        launches: list[Launch] = []
        between: dict[str, TensorType] = {}
        left = -(-self.n // CHUNK) * self.kept
        given = tuple(f"{name}_left{left}_{i}" for i in range(self.parts))
        launches.append(Launch(self.first(left), (x,), given, threads))
        between |= dict.fromkeys(given, TensorType(i64, (lines, left)))
        while left > CHUNK:
            fewer = -(-left // CHUNK) * self.kept
            made = tuple(f"{name}_left{fewer}_{i}" for i in range(self.parts))
            launches.append(Launch(self.next(left, fewer), given, made, threads))
            between |= dict.fromkeys(made, TensorType(i64, (lines, fewer)))
            given, left = made, fewer
        last = Launch(self.final(left, counts), (x, *given), tuple(outs.values()), threads)
        return Expansion((*launches, last), between)

    def buffers(self, b: Builder, left: int) -> list[Memory]:
        """Where words are left."""
        t = TensorType(i64, (self.outer * self.inner, left))
        return [b.parameter(f"w{i}", t, True) for i in range(self.parts)]

    def first(self, left: int) -> Kernel:
        """The first words of each part of a line."""
        b = Builder("topk_parts")
        x = self.given(b)
        buffers = self.buffers(b, left)
        o, c, part = b.program(self.outer), b.program(self.inner), b.program(left // self.kept)
        extent, axes = self.box(1, CHUNK)
        raw = b.load(x, (o, part * CHUNK, c), extent, axes, (1,))
        words = self.best(b, self.words(b, raw, part * CHUNK))
        for m, w in zip(buffers, words, strict=True):
            b.store(m, w, (o * self.inner + c, part * self.kept), (1, self.kept))
        return b.finish()

    def taken(self, b: Builder, count: int, at: Size, n: int, line: Size) -> Words:
        """Words that an earlier round has left."""
        t = TensorType(i64, (self.outer * self.inner, count))
        buffers = [b.parameter(f"v{i}", t) for i in range(self.parts)]
        masked = (1,) if count % n else ()
        return [b.load(m, (line, at), (1, n), None, masked, _LAST) for m in buffers]

    def next(self, count: int, left: int) -> Kernel:
        """The first words of each part of what is left."""
        b = Builder("topk_rounds")
        lines = self.outer * self.inner
        line, part = b.program(lines), b.program(left // self.kept)
        words = self.best(b, self.taken(b, count, part * CHUNK, CHUNK, line))
        for m, w in zip(self.buffers(b, left), words, strict=True):
            b.store(m, w, (line, part * self.kept), (1, self.kept))
        return b.finish()

    def final(self, count: int, counts: Mapping[str, int]) -> Kernel:
        """The first words of all that is left, and what they stand for."""
        b = Builder("topk_final")
        x, o, c = self.given(b), b.program(self.outer), b.program(self.inner)
        words = self.taken(b, count, 0, power(count), o * self.inner + c)
        outs = self.made(b, counts)
        self.unpack(b, self.best(b, words), x, outs, (o, c), 0)
        return b.finish()
