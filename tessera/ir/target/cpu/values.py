"""Tile arithmetic: scalar ops, casts, folds and changes of shape on vectors."""

from __future__ import annotations

from collections.abc import Sequence

from tessera.core.dtype import DType
from tessera.ir.target.cpu.memory import MemoryWriter
from tessera.ir.target.cpu.scalars import TEMPLATES
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


class ValueWriter(MemoryWriter):
    """Writes what computes on tiles."""

    def _full(self, op: Operation) -> None:
        t = op.results[0]
        widths = widths_of(t.type)
        self.tiles[t] = [constant(op.attributes["value"], t.dtype, w) for w in widths]

    def _index(self, op: Operation) -> None:
        t, axis = op.results[0], op.attributes.get("axis")
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

    def spread(self, t: Tile, shape: tuple[int, ...]) -> list[str]:
        """The chunks of a tile broadcast to a shape."""
        names = self.tiles[t]
        if t.shape == shape:
            return names
        own = t.shape or (1,) * len(shape)
        per_row = len(chunks(own[-1])) if own else 1
        out = []
        splats: dict[tuple[str, int], str] = {}
        for lead in indices(shape[:-1]):
            row = 0
            for i, n in zip(lead, own[:-1], strict=True):
                row = row * n + (0 if n == 1 else i)
            for c, width in enumerate(chunks(shape[-1] if shape else 1)):
                if own and own[-1] == 1 and width > 1:
                    key = (names[row], width)
                    if key not in splats:
                        splats[key] = self.splat(names[row], TYPES[t.dtype.name], width)
                    out.append(splats[key])
                else:
                    out.append(names[row * per_row + (c if own and own[-1] != 1 else 0)])
        return out

    def _apply(self, op: Operation) -> None:
        t, name = op.results[0], op.attributes["scalar"]
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
        t = vector_type(dtypes[0], width)
        template = TEMPLATES[dtypes[0].kind][name]
        kind = TYPES[dtypes[0].name]
        overload = (f"v{width}" if width > 1 else "") + suffix(kind)
        return self.put(template.format(*xs, t=t, v=overload))

    def _cast(self, op: Operation) -> None:
        x, t = op.operands[0], op.results[0]
        self.tiles[t] = [
            self.cast(name, x.dtype, t.dtype, width)
            for name, width in zip(self.tiles[x], widths_of(t.type), strict=True)
        ]

    def cast(self, name: str, source: DType, to: DType, width: int) -> str:
        a, b = vector_type(source, width), vector_type(to, width)
        if a == b:
            return name
        if to.kind == "b":
            zero = constant(0, source, width)
            relation = "fcmp une" if source.kind == "f" else "icmp ne"
            return self.put(f"{relation} {a} {name}, {zero}")
        if source.kind == "f" and to.kind == "f":
            word = "fpext" if source.bits < to.bits else "fptrunc"
        elif source.kind == "f":
            sign = "s" if to.kind == "i" else "u"
            kinds = (suffix(TYPES[to.name]), suffix(TYPES[source.name]))
            v = f"v{width}" if width > 1 else ""
            return self.put(
                f"call {b} @llvm.fpto{sign}i.sat.{v}{kinds[0]}.{v}{kinds[1]}({a} {name})"
            )
        elif to.kind == "f":
            word = "sitofp" if source.kind == "i" else "uitofp"
        elif to.bits < source.bits:
            word = "trunc"
        else:
            word = "sext" if source.kind == "i" else "zext"
        return self.put(f"{word} {a} {name} to {b}")

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
        whole = all(w == LANES for w in widths) and len(widths) & (len(widths) - 1) == 0
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

    def elements(self, name: str, dtype: DType, width: int) -> list[str]:
        """The lanes of a vector."""
        if width == 1:
            return [name]
        t = vector_type(dtype, width)
        return [self.put(f"extractelement {t} {name}, i32 {i}") for i in range(width)]

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

    def _reshape(self, op: Operation) -> None:
        x, t = op.operands[0], op.results[0]
        names, own, new = self.tiles[x], (x.shape or (1,))[-1], (t.shape or (1,))[-1]
        if own == new:
            self.tiles[t] = names
            return
        single = [
            e
            for v, w in zip(names, widths_of(x.type), strict=True)
            for e in self.elements(v, x.dtype, w)
        ]
        out, at = [], 0
        for width in widths_of(t.type):
            part = single[at : at + width]
            out.append(part[0] if width == 1 else self.vector(part, t.dtype))
            at += width
        self.tiles[t] = out

    def vector(self, parts: Sequence[str], dtype: DType) -> str:
        """A vector of scalars."""
        t, kind, v = vector_type(dtype, len(parts)), TYPES[dtype.name], "undef"
        for i, p in enumerate(parts):
            v = self.put(f"insertelement {t} {v}, {kind} {p}, i32 {i}")
        return v


# Types and constants --------------------------------------------------------------------------
