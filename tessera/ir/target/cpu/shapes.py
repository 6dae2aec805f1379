"""Tiles in other shapes: broadcast, reshaped, transposed."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tessera.core.dtype import DType
from tessera.core.types import TensorType
from tessera.ir.target.cpu.casts import CastWriter
from tessera.ir.target.cpu.types import LANES, TYPES, chunks, indices, vector_type, widths_of
from tessera.ir.tile.ir import Operation, Tile


class ShapeWriter(CastWriter):
    """Writes what moves elements between vectors."""

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

    def _reshape(self, op: Operation) -> None:
        x, t = op.operands[0], op.results[0]
        names, own, new = self.tiles[x], (x.shape or (1,))[-1], (t.shape or (1,))[-1]
        if own == new or own % LANES == new % LANES == 0:
            self.tiles[t] = names
            return
        self.tiles[t] = self.packed(self.singles(x), t.type)

    def _broadcast(self, op: Operation) -> None:
        self.tiles[op.results[0]] = self.spread(op.operands[0], op.results[0].shape)

    def _transpose(self, op: Operation) -> None:
        x, t = op.operands[0], op.results[0]
        rows, columns = x.shape
        if rows % LANES == 0 and columns % LANES == 0:
            self.tiles[t] = self.turned(x)
            return
        single = self.singles(x)
        turned = [single[r * columns + c] for c in range(columns) for r in range(rows)]
        self.tiles[t] = self.packed(turned, t.type)

    def _take(self, op: Operation) -> None:
        x, place = op.operands
        single = self.singles(x)
        kind, every = vector_type(x.dtype, len(single)), self.vector(single, x.dtype)
        if len(single) == 1:
            found = single * place.type.size
        else:
            found = [
                self.put(f"extractelement {kind} {every}, i64 {i}") for i in self.singles(place)
            ]
        self.tiles[op.results[0]] = self.packed(found, op.results[0].type)

    def _exchange(self, op: Operation) -> None:
        single = [e for x in op.operands for e in self.singles(x)]
        shape, order = op.attributes["shape"], op.attributes["order"]
        places = np.arange(len(single)).reshape(shape).transpose(order)
        for t, own in zip(op.results, places.reshape(len(op.results), -1).tolist(), strict=True):
            self.tiles[t] = self.packed([single[i] for i in own], t.type)

    def turned(self, x: Tile) -> list[str]:
        """The transpose of a tile of whole vectors: block by block, halves of blocks exchanged."""
        names, kind = self.tiles[x], vector_type(x.dtype, LANES)
        down, across = x.shape[0] // LANES, x.shape[1] // LANES
        out: list[str] = [""] * len(names)
        for r, c in indices((down, across)):
            block = [names[(r * LANES + i) * across + c] for i in range(LANES)]
            for half in (1, 2, 4, 8):
                low = [i if not i & half else i + LANES - half for i in range(LANES)]
                high = [i + half if not i & half else i + LANES for i in range(LANES)]
                for i in range(LANES):
                    if not i & half:
                        pair = block[i], block[i + half]
                        block[i] = self.shuffle(kind, pair, low)
                        block[i + half] = self.shuffle(kind, pair, high)
            for i in range(LANES):
                out[(c * LANES + i) * down + r] = block[i]
        return out

    def shuffle(self, kind: str, pair: tuple[str, str], lanes: Sequence[int]) -> str:
        """Lanes of two vectors, counted through both."""
        mask = ", ".join(f"i32 {i}" for i in lanes)
        return self.put(
            f"shufflevector {kind} {pair[0]}, {kind} {pair[1]}, <{len(lanes)} x i32> <{mask}>"
        )

    def singles(self, x: Tile) -> list[str]:
        """The elements of a tile, in row-major order."""
        return [
            e
            for v, w in zip(self.tiles[x], widths_of(x.type), strict=True)
            for e in self.elements(v, x.dtype, w)
        ]

    def packed(self, single: Sequence[str], t: TensorType) -> list[str]:
        """The vectors of a tile of these elements."""
        out, at = [], 0
        for width in widths_of(t):
            out.append(self.vector(single[at : at + width], t.dtype))
            at += width
        return out

    def vector(self, parts: Sequence[str], dtype: DType) -> str:
        """A vector of scalars."""
        if len(parts) == 1:
            return parts[0]
        t, kind, v = vector_type(dtype, len(parts)), TYPES[dtype.name], "undef"
        for i, p in enumerate(parts):
            v = self.put(f"insertelement {t} {v}, {kind} {p}, i32 {i}")
        return v

    def elements(self, name: str, dtype: DType, width: int) -> list[str]:
        """The lanes of a vector."""
        if width == 1:
            return [name]
        t = vector_type(dtype, width)
        return [self.put(f"extractelement {t} {name}, i32 {i}") for i in range(width)]
