"""Words of narrow numbers, and products of matrices of them, by vectors.

words(x[4 k, n], axis=0)   ->   one shuffle of four vectors of bytes
"""

from __future__ import annotations

from collections.abc import Sequence

from tessera.core.dot_words import PARTS
from tessera.core.dtype import FORMATS, f32, i32
from tessera.ir.target.cpu.picks import PickWriter
from tessera.ir.target.cpu.types import (
    LANES,
    TYPES,
    chunks,
    constant,
    vector_of,
    vector_type,
    widths_of,
)
from tessera.ir.tile.ir import Operation, Tile

_LEAST, _FAR = 2.0**-126, 2.0**48  # the smallest normal number, and a power to look below it with
_WIDE = {"i8": "i32", "u8": "u32"}  # parts as numbers


class WordWriter(PickWriter):
    """Writes words and their products."""

    def _words(self, op: Operation) -> None:
        (x,), t = op.operands, op.results[0]
        parts = PARTS[x.dtype.name]
        made = self.joined_rows if op.attributes["axis"] == 0 else self.joined_columns
        self.tiles[t] = made(x, t, parts)

    def joined_rows(self, x: Tile, t: Tile, parts: int) -> list[str]:
        """So many rows as one row of words."""
        names, widths, out = self.tiles[x], chunks(x.shape[1]), []
        for row in range(t.shape[0]):
            for c, width in enumerate(widths):
                lines = [names[(row * parts + i) * len(widths) + c] for i in range(parts)]
                out.append(self.interleaved(lines, TYPES[x.dtype.name], width))
        return out

    def interleaved(self, lines: Sequence[str], kind: str, width: int) -> str:
        """Words of one lane of each vector."""
        order = [p * width + i for i in range(width) for p in range(len(lines))]
        while len(lines) > 2:
            lines = self.in_pairs(lines, kind, width)
            width *= 2
        every = self.picked(kind, width, lines[0], lines[1], order)
        words = vector_of("i32", len(order) * int(kind[1:]) // 32)
        return self.put(f"bitcast {vector_of(kind, len(order))} {every} to {words}")

    def in_pairs(self, vectors: Sequence[str], kind: str, width: int) -> list[str]:
        """Vectors of twice as many lanes."""
        return [
            self.picked(kind, width, vectors[i], vectors[i + 1], range(2 * width))
            for i in range(0, len(vectors), 2)
        ]

    def joined_columns(self, x: Tile, t: Tile, parts: int) -> list[str]:
        """Neighbours in a row as words: the same bits."""
        kind, single = TYPES[x.dtype.name], []
        whole = all(w == LANES for w in (*widths_of(x.type), *widths_of(t.type)))
        for name, width in zip(self.tiles[x], widths_of(x.type), strict=True):
            short = width // parts
            words = self.put(
                f"bitcast {vector_of(kind, width)} {name} to {vector_of('i32', short)}"
            )
            single += [words] if whole else self.elements(words, i32, short)
        if not whole:
            return self.packed(single, t.type)
        return [self.concatenated(single[i : i + parts]) for i in range(0, len(single), parts)]

    def concatenated(self, vectors: list[str]) -> str:
        """One vector of several of words."""
        width = LANES // len(vectors)
        while len(vectors) > 1:
            vectors = self.in_pairs(vectors, "i32", width)
            width *= 2
        return vectors[0]

    def _dot_words(self, op: Operation) -> None:
        x, y, acc = op.operands
        left, right = op.attributes["left"], op.attributes["right"]
        out, widths = list(self.tiles[acc]), chunks(acc.shape[1])
        for at, width in enumerate(widths_of(acc.type)):
            row, c = divmod(at, len(widths))
            pairs = [
                (self.word(x, row, w, width), self.tiles[y][w * len(widths) + c])
                for w in range(x.shape[1])
            ]
            if left == "bf16":
                out[at] = self.bf16_products(pairs, out[at], width)
                continue
            for a, b in pairs:
                out[at] = self.products(a, b, out[at], width, (left, right))
        self.tiles[op.results[0]] = out

    def word(self, x: Tile, row: int, w: int, width: int) -> str:
        """One word in every lane."""
        deep = chunks(x.shape[1])
        whole = self.tiles[x][row * len(deep) + w // LANES]
        return self.lane(whole, i32, deep[w // LANES], w % LANES, width)

    def products(self, a: str, b: str, z: str, width: int, kinds: tuple[str, str]) -> str:
        """The products of the bytes of words added up."""
        if kinds == ("u8", "i8"):
            return self.words(a, b, z, width, 4)
        for i in range(4):
            x, y = (
                self.part(v, i, 4, FORMATS[_WIDE[k]], width)
                for v, k in zip((a, b), kinds, strict=True)
            )
            z = self.multiply_add(x, y, z, i32, width)
        return z

    def bf16_products(self, pairs: Sequence[tuple[str, str]], acc: str, width: int) -> str:
        """What TDPBF16PS makes of words, step by step."""
        sums = [constant(0.0, f32, width)] * 2
        for pair in pairs:
            for part in range(2):
                a, b = (self.half(v, part, width) for v in pair)
                sums[part] = self.fused(a, b, sums[part], width)
        t = vector_type(f32, width)
        total = self.flushed(self.put(f"fadd {t} {sums[0]}, {sums[1]}"), width)
        return self.flushed(self.put(f"fadd {t} {self.flushed(acc, width)}, {total}"), width)

    def half(self, x: str, part: int, width: int) -> str:
        """A bf16 of words as f32, or a zero if it is subnormal."""
        whole, t = vector_of("i32", width), vector_type(f32, width)
        bits = self.put(
            f"and {whole} {x}, {constant(-65536, i32, width)}"
            if part
            else f"shl {whole} {x}, {constant(16, i32, width)}"
        )
        return self.flushed(self.put(f"bitcast {whole} {bits} to {t}"), width)

    def fused(self, x: str, y: str, z: str, width: int) -> str:
        """x y + z rounded once; below the normal numbers it is a zero (core/dot_words.py)."""
        t, b = vector_type(f32, width), vector_of("i1", width)
        total = self.scalar("fma", (x, y, z), (f32,) * 3, width)
        up = constant(_FAR, f32, width)
        high, top = (self.put(f"fmul {t} {v}, {up}") for v in (x, z))
        far = self.scalar("fma", (high, y, top), (f32,) * 3, width)
        edge = self.below(total, _LEAST, "oeq", width)
        under = self.below(far, _LEAST * _FAR, "olt", width)
        both = self.put(f"and {b} {edge}, {under}")
        return self.flushed(total, width, both)

    def below(self, x: str, limit: float, test: str, width: int) -> str:
        """Lanes whose size compares with a number."""
        t = vector_type(f32, width)
        size = self.scalar("abs", (x,), (f32,), width)
        return self.put(f"fcmp {test} {t} {size}, {constant(limit, f32, width)}")

    def flushed(self, x: str, width: int, others: str | None = None) -> str:
        """x with zeros for numbers that are subnormal, and for other lanes."""
        whole, t, b = vector_of("i32", width), vector_type(f32, width), vector_of("i1", width)
        small = self.below(x, _LEAST, "olt", width)
        if others is not None:
            small = self.put(f"or {b} {small}, {others}")
        bits = self.put(f"bitcast {t} {x} to {whole}")
        sign = self.put(f"and {whole} {bits}, {constant(-(1 << 31), i32, width)}")
        zero = self.put(f"bitcast {whole} {sign} to {t}")
        return self.put(f"select {b} {small}, {t} {zero}, {t} {x}")
