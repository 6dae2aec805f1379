"""Tile arithmetic: scalar ops, folds, scans and products on vectors."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache
from string import Formatter
from typing import NamedTuple

import numpy as np

from tessera.core import assembly
from tessera.core.approximate import FLOATS, FUNCTIONS
from tessera.core.dtype import FORMATS, DType, f32, i32
from tessera.core.errors import OperandError
from tessera.core.processor import machine
from tessera.core.scalar import TESTS
from tessera.ir.target.cpu.algebra import LlvmAlgebra
from tessera.ir.target.cpu.instructions import EXTREMES, has_extremes, instruction
from tessera.ir.target.cpu.quotients import QuotientWriter
from tessera.ir.target.cpu.scalars import MOVES, TEMPLATES
from tessera.ir.target.cpu.types import (
    LANES,
    TYPES,
    chunks,
    constant,
    indices,
    suffix,
    vector_of,
    vector_type,
    widths_of,
)
from tessera.ir.tile.ir import Operation, Tile

_SHORTEST = 4  # lanes of the shortest vectors that the instruction for extremes takes


def _quoted(text: str) -> str:
    """A text within the quotes of LLVM."""
    plain = (chr(b) if 32 <= b < 127 and b not in b'"\\' else f"\\{b:02X}" for b in text.encode())
    return "".join(plain)


class ValueWriter(QuotientWriter):
    """Writes what computes on tiles."""

    def _full(self, op: Operation) -> None:
        t = op.results[0]
        widths = widths_of(t.type)
        self.tiles[t] = [constant(op.attributes["value"], t.dtype, w) for w in widths]

    def _index(self, op: Operation) -> None:
        t, axis = op.results[0], op.attributes["axis"]
        base = self.size(op.attributes["at"])
        names = []
        for lead in indices(t.shape[:-1]):
            at = 0
            for width in chunks(t.shape[-1] if t.shape else 1):
                splat = self.splat(self.put(f"add i64 {base}, 0"), "i64", width)
                if axis is None:
                    names.append(splat)
                elif axis == len(t.shape) - 1:
                    lanes = ", ".join(f"i64 {at + i}" for i in range(width))
                    line = f"<{lanes}>" if width > 1 else str(at)
                    names.append(self.put(f"add {vector_of('i64', width)} {splat}, {line}"))
                else:
                    more = constant(lead[axis], t.dtype, width)
                    names.append(self.put(f"add {vector_of('i64', width)} {splat}, {more}"))
                at += width
        self.tiles[t] = names

    def _apply(self, op: Operation) -> None:
        t, name = op.results[0], op.attributes["scalar"]
        if name == "div" and self.is_shared_quotient(op):
            self.tiles[t] = self.shared_quotients(op)
            return
        columns = [self.spread(x, t.shape) for x in op.operands]
        dtypes = [x.dtype for x in op.operands]
        self.tiles[t] = [
            self.scalar(name, list(row), dtypes, width)
            for *row, width in zip(*columns, widths_of(t.type), strict=True)
        ]

    def scalar(self, name: str, xs: Sequence[str], dtypes: Sequence[DType], width: int) -> str:
        """One scalar op on vectors of a width."""
        if name == "where":
            t = vector_type(dtypes[1], width)
            return self.put(f"select {vector_of('i1', width)} {xs[0]}, {t} {xs[1]}, {t} {xs[2]}")
        if name.startswith(assembly.PREFIX):
            return self.assembly(assembly.found(name), xs, width)
        dtype = dtypes[0]
        if dtype.is_narrow and name not in MOVES:
            return self.widened(name, xs, dtypes, width)
        if dtype.kind == "f" and name in FUNCTIONS:
            return FUNCTIONS[name].build(LlvmAlgebra(self, FLOATS[dtype.name], width), *xs)
        if name in EXTREMES and has_extremes(self.features, dtype, width):
            return self.extreme(name, xs[0], xs[1], width)
        words, results, result = _words(dtype, width), dict[str, str](), xs[0]
        for line in _lines(dtype.kind, name):
            given = {w: results[w] if w in results else words[w] for w in line.words}
            result = results[line.kept] = self.put(line.text.format(*xs, **given))
        return result

    def assembly(self, c: assembly.Contract, xs: Sequence[str], width: int) -> str:
        """Inline assembly, lane by lane."""
        target = machine()
        why = c.lacks(target)
        if why is not None:
            raise OperandError(f"{self.kernel.name}: {why}")
        kinds, out = [TYPES[d.name] for d in c.takes], TYPES[c.gives.name]
        call = f'call {out} asm "{_quoted(c.texts[target])}", "{c.constraints(target)}"'
        made = "poison"
        for i in range(width):
            lane = xs if width == 1 else [
                self.put(f"extractelement {vector_of(k, width)} {x}, i32 {i}")
                for k, x in zip(kinds, xs, strict=True)
            ]  # fmt: skip
            given = ", ".join(f"{k} {x}" for k, x in zip(kinds, lane, strict=True))
            y = self.put(f"{call}({given})")
            if width == 1:
                return y
            made = self.put(f"insertelement {vector_of(out, width)} {made}, {out} {y}, i32 {i}")
        return made

    def extreme(self, name: str, x: str, y: str, width: int) -> str:
        """The larger or smaller of two vectors: an instruction that knows signs of zeros but not NaN."""
        if width < _SHORTEST:
            a, b = self.longer(x, width), self.longer(y, width)
            return self.shorter(self.extreme(name, a, b, _SHORTEST), width)
        t, every = vector_type(f32, width), "i16 -1, i32 4" if width == LANES else "i8 -1"
        found = self.put(
            f"call {t} @llvm.x86.avx512.mask.range.ps.{32 * width}({t} {x}, {t} {y}, "
            f"i32 {EXTREMES[name]}, {t} poison, {every})"
        )
        none = self.put(f"fcmp uno {t} {x}, {y}")
        both = self.put(f"fadd {t} {x}, {y}")
        return self.put(f"select {vector_of('i1', width)} {none}, {t} {both}, {t} {found}")

    def longer(self, x: str, width: int) -> str:
        """A short vector with more lanes, of anything."""
        t, full = vector_type(f32, width), vector_type(f32, _SHORTEST)
        if width == 1:
            return self.put(f"insertelement {full} poison, {t} {x}, i32 0")
        lanes = [f"i32 {i}" for i in range(width)] + ["i32 poison"] * (_SHORTEST - width)
        return self.put(
            f"shufflevector {t} {x}, {t} poison, <{_SHORTEST} x i32> <{', '.join(lanes)}>"
        )

    def shorter(self, x: str, width: int) -> str:
        """The first lanes of a vector."""
        full = vector_type(f32, _SHORTEST)
        if width == 1:
            return self.put(f"extractelement {full} {x}, i32 0")
        lanes = ", ".join(f"i32 {i}" for i in range(width))
        return self.put(f"shufflevector {full} {x}, {full} poison, <{width} x i32> <{lanes}>")

    def widened(self, name: str, xs: Sequence[str], dtypes: Sequence[DType], width: int) -> str:
        """A scalar op on narrow floats: computed in f32, rounded once."""
        wide = [self.cast(x, d, f32, width) for x, d in zip(xs, dtypes, strict=True)]
        y = self.scalar(name, wide, [f32] * len(xs), width)
        return y if name in TESTS else self.cast(y, f32, dtypes[0], width)

    def _fold(self, op: Operation) -> None:
        x, t = op.operands[0], op.results[0]
        name, axis = op.attributes["scalar"], op.attributes["axis"]
        if axis == len(x.shape) - 1:
            self.tiles[t] = self.fold_last(name, x)
            return
        rows = {lead: r for r, lead in enumerate(indices(x.shape[:-1]))}
        per_row = len(chunks(x.shape[-1]))
        names = self.tiles[x]
        widths = chunks(x.shape[-1])
        out = []
        for lead in indices(t.shape[:-1]):
            for c in range(per_row):
                column = [
                    names[rows[(*lead[:axis], i, *lead[axis + 1 :])] * per_row + c]
                    for i in range(x.shape[axis])
                ]
                out.append(self.tree(name, column, x.dtype, widths[c]))
        self.tiles[t] = out

    def tree(self, name: str, xs: list[str], dtype: DType, width: int) -> str:
        """A balanced tree over vectors: the upper part onto the lower until one is left."""
        while len(xs) > 1:
            half = 1 << (len(xs) - 1).bit_length() - 1
            low = [
                self.scalar(name, (a, b), (dtype, dtype), width)
                for a, b in zip(xs[: len(xs) - half], xs[half:], strict=True)
            ]
            xs = low + xs[len(xs) - half : half]
        return xs[0]

    def fold_last(self, name: str, x: Tile) -> list[str]:
        names, widths, n = self.tiles[x], chunks(x.shape[-1]), x.shape[-1]
        whole = n % LANES == 0  # then the upper part of a tree begins at a vector
        out = []
        for r in range(len(names) // len(widths)):
            row = names[r * len(widths) : (r + 1) * len(widths)]
            if whole:
                out.append(
                    self.fold_vector(name, self.tree(name, row, x.dtype, LANES), x.dtype, LANES)
                )
            elif len(row) == 1 and n & (n - 1) == 0:
                out.append(self.fold_vector(name, row[0], x.dtype, n))
            else:
                single = [
                    e
                    for v, w in zip(row, widths, strict=True)
                    for e in self.elements(v, x.dtype, w)
                ]
                out.append(self.tree(name, single, x.dtype, 1))
        return out

    def fold_vector(self, name: str, v: str, dtype: DType, width: int) -> str:
        kind = TYPES[dtype.name]
        while width > 1:
            half = width // 2
            low, high = (
                self.put(
                    f"shufflevector <{width} x {kind}> {v}, <{width} x {kind}> undef, <{half} x i32> "
                    f"<{', '.join(f'i32 {i}' for i in range(s, s + half))}>"
                )
                for s in (0, half)
            )
            if half == 1:
                low, high = (
                    self.put(f"extractelement <1 x {kind}> {p}, i32 0") for p in (low, high)
                )
            v = self.scalar(name, (low, high), (dtype, dtype), half)
            width = half
        return v

    def _scan(self, op: Operation) -> None:
        x, t = op.operands[0], op.results[0]
        name, axis = op.attributes["scalar"], op.attributes["axis"]
        last = axis == len(x.shape) - 1
        inner = 1 if last else math.prod(x.shape[axis + 1 : -1]) * len(chunks(x.shape[-1]))
        names = self.singles(x) if last else list(self.tiles[x])
        widths = [1] * len(names) if last else widths_of(x.type)
        for i in range(len(names)):
            if i // inner % x.shape[axis]:
                pair = (names[i - inner], names[i])
                names[i] = self.scalar(name, pair, (x.dtype, x.dtype), widths[i])
        self.tiles[t] = self.packed(names, t.type) if last else names

    def _dot(self, op: Operation) -> None:
        a, b, acc = op.operands
        dtype, (rows, depth) = acc.dtype, a.shape
        left, right = (self.in_dtype(x, dtype) for x in (a, b))
        out = list(self.tiles[acc])
        widths, deep = chunks(acc.shape[1]), chunks(depth)
        for k in range(depth):
            c, lane = k // LANES, k % LANES
            for r in range(rows):
                whole = left[r * len(deep) + c]
                for i, width in enumerate(widths):
                    x = self.lane(whole, dtype, deep[c], lane, width)
                    at = r * len(widths) + i
                    out[at] = self.multiply_add(
                        x, right[k * len(widths) + i], out[at], dtype, width
                    )
        self.tiles[op.results[0]] = out

    def _dot_parts(self, op: Operation) -> None:
        x, y, acc = op.operands
        parts, rows = op.attributes["parts"], zip(
            self.spread(x, acc.shape), self.spread(y, acc.shape), self.tiles[acc],
            widths_of(acc.type), strict=True,
        )  # fmt: skip
        self.tiles[op.results[0]] = [self.words(*row, parts) for row in rows]

    def words(self, x: str, y: str, z: str, width: int, parts: int) -> str:
        """The products of the parts of words added up, by an instruction of the machine if it has one."""
        found = instruction(self.features, parts, width)
        if found is not None:
            t, inside = f"<{width} x i32>", f"<{width * parts} x i{32 // parts}>"
            a, b = (self.put(f"bitcast {t} {v} to {inside}") for v in (x, y))
            return self.put(f"call {t} @{found}({t} {z}, {inside} {a}, {inside} {b})")
        for i in range(parts):
            signs = ("u32" if parts == 4 else "i32", "i32")
            a, b = (
                self.part(v, i, parts, FORMATS[s], width)
                for v, s in zip((x, y), signs, strict=True)
            )
            z = self.multiply_add(a, b, z, i32, width)
        return z

    def part(self, x: str, i: int, parts: int, dtype: DType, width: int) -> str:
        """A part of words as a number, with a sign if the dtype has one."""
        t, bits = vector_of("i32", width), 32 // parts
        up = self.put(f"shl {t} {x}, {constant(32 - bits * (i + 1), i32, width)}")
        right = "ashr" if dtype.kind == "i" else "lshr"
        return self.put(f"{right} {t} {up}, {constant(32 - bits, i32, width)}")

    def in_dtype(self, x: Tile, dtype: DType) -> list[str]:
        pairs = zip(self.tiles[x], widths_of(x.type), strict=True)
        return [self.cast(name, x.dtype, dtype, width) for name, width in pairs]

    def lane(self, name: str, dtype: DType, of: int, lane: int, width: int) -> str:
        """One lane of a vector, in every lane of another."""
        if of == 1 or width == 1:
            one = name if of == 1 else self.element_of(name, dtype, of, lane)
            return self.splat(one, TYPES[dtype.name], width)
        t = vector_type(dtype, of)
        mask = f"<{width} x i32> splat (i32 {lane})"
        return self.put(f"shufflevector {t} {name}, {t} undef, {mask}")

    def element_of(self, name: str, dtype: DType, of: int, lane: int) -> str:
        return self.put(f"extractelement {vector_type(dtype, of)} {name}, i32 {lane}")

    def multiply_add(self, x: str, y: str, z: str, dtype: DType, width: int) -> str:
        if dtype.kind == "f":
            return self.scalar("fma", (x, y, z), (dtype,) * 3, width)
        product = self.scalar("mul", (x, y), (dtype,) * 2, width)
        return self.scalar("add", (product, z), (dtype,) * 2, width)


class _TableWords(dict[str, str]):
    """What stands in the rows of scalars.py, made when it is asked for."""

    def __init__(self, dtype: DType, width: int):
        super().__init__()
        self.dtype, self.width = dtype, width
        self["t"], self["b"] = vector_type(dtype, width), vector_of("i1", width)
        self["v"] = (f"v{width}" if width > 1 else "") + suffix(TYPES[dtype.name])

    def __missing__(self, key: str) -> str:
        whole = f"i{self.dtype.bits}"
        if key == "i":
            text = vector_of(whole, self.width)
        elif key == "f":
            text = vector_type(FORMATS[f"f{self.dtype.bits}"], self.width)
        elif key == "vi":
            text = (f"v{self.width}" if self.width > 1 else "") + whole
        elif key in _BITS:
            text = constant(_BITS[key](self.dtype), FORMATS[whole], self.width)
        else:
            text = constant(_NUMBERS[key](self.dtype), self.dtype, self.width)
        self[key] = text
        return text


_words = cache(_TableWords)


class _TableLine(NamedTuple):
    """A line of a row of scalars.py: the name of its result, its text, and the words in it."""

    kept: str
    text: str
    words: tuple[str, ...]


@cache
def _lines(kind: str, name: str) -> tuple[_TableLine, ...]:
    out = []
    for line in TEMPLATES[kind][name].splitlines():
        kept, _, text = line.strip().rpartition(" = ")
        found = {word for _, word, _, _ in Formatter().parse(text) if word is not None}
        out.append(_TableLine(kept, text, tuple(w for w in found if not w.isdigit())))
    return tuple(out)


_BITS: dict[str, Callable[[DType], int]] = {
    "up": lambda d: 1,
    "down": lambda d: -1,
    "none": lambda d: 0,
    "most": lambda d: (1 << d.bits - 1) - 1,
    "far": lambda d: int(np.asarray(np.inf, d.np).view(f"u{d.bits // 8}")),
}
_NUMBERS: dict[str, Callable[[DType], float]] = {
    "zero": lambda d: 0,
    "one": lambda d: 1,
    "minus": lambda d: -1,
    "half": lambda d: 0.5,
    "inf": lambda d: math.inf,
    "least": lambda d: -(1 << d.bits - 1),
    "width": lambda d: d.bits,
    "last": lambda d: d.bits - 1,
}
