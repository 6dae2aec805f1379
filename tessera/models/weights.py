"""Weights as models hold them: dense tensors, or codes of few bits with scales and offsets for each group."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tessera.core import tree
from tessera.core.dtype import f32
from tessera.core.types import TensorType
from tessera.lang import op
from tessera.lang.create import tensor
from tessera.models.blocks import Array, Groups
from tessera.models.four_bits import in_pairs, kind_of, numbers_of

# Columns of a block: its codes lie in 2 KiB for each group of 32 rows, which a core reads as one stream.
# Measured on SmolLM2's head, 576 x 49152, one row: 3.9 ms, and 5.9 ms where a row of codes has all columns.
BLOCK = 64


@tree.node
@dataclass(frozen=True)
class PackedMatrix:
    """A matrix (in, out) of few bits: i8 codes (blocks, groups, size, columns), scales and offsets (blocks,
    groups, columns).

    Its elements are code * scale + offset; a product reads the codes, and scales the sum of each group once.
    Codes of four bits are u8 (blocks, groups, size / 2, columns): an even row in the lower half of a byte,
    the next row in the upper one.
    """

    codes: Any
    scale: Any
    offset: Any  # None where the format has none
    four: str | None = field(default=None, metadata={"static": True})  # what four bits mean

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns of the matrix."""
        blocks, _, _, columns = self.codes.shape
        groups, size = self.groups
        return groups * size, blocks * columns

    @property
    def groups(self) -> tuple[int, int]:
        """How many groups a column has, and of how many rows."""
        _, groups, size, _ = self.codes.shape
        return groups, size if self.four is None else 2 * size

    def wide(self, codes: Any, axis: int) -> Any:
        """Codes in f32; along an axis, a byte may hold two of them."""
        return op.cast(codes if self.four is None else numbers_of(codes, axis, self.four), f32)

    def product(self, x: Any) -> Any:
        """x (m, in) times the matrix: sums of groups over the codes, then one sum over the groups.

        One formula for one row and for many, so that a step of one token has the bits of a step of many.
        """
        groups, size = self.groups
        parts: Any = op.reshape(x, (x.shape[0], groups, size))
        sums = op.matmul(op.transpose(parts, (1, 0, 2)), self.wide(self.codes, 2))
        scaled: Any = sums * op.expand_dims(op.cast(self.scale, f32), 2)
        if self.offset is not None:
            total = op.swapaxes(op.sum(parts, axis=-1, keepdims=True), 0, 1)
            scaled = scaled + total * op.expand_dims(op.cast(self.offset, f32), 2)
        y = op.sum(scaled, axis=1)  # (blocks, m, columns)
        return op.reshape(op.transpose(y, (1, 0, 2)), (x.shape[0], self.shape[1]))

    def columns(self, at: Any) -> Any:
        """Some columns (n,) as rows (n, in)."""
        width = self.codes.shape[3]
        block, lane = at // width, at % width
        out = self.wide(self.codes[block, :, :, lane], 2)
        out = out * op.expand_dims(op.cast(self.scale[block, :, lane], f32), 2)
        if self.offset is not None:
            out = out + op.expand_dims(op.cast(self.offset[block, :, lane], f32), 2)
        return op.reshape(out, (at.shape[0], self.shape[0]))


def packed(groups: Groups, rows: int) -> PackedMatrix:
    """The transpose of a matrix whose rows are blocks of a format one after the other."""
    width = math.gcd(rows, BLOCK)
    width = width if width >= 8 else rows
    codes = groups.codes.reshape(rows // width, width, -1, groups.codes.shape[-1])
    turned, four = codes.transpose(0, 2, 3, 1), kind_of(codes)
    if four is not None:
        turned = in_pairs(turned, 2, four)

    def per_group(x: Array) -> Any:
        return tensor(_small(x.reshape(rows // width, width, -1).swapaxes(1, 2)))

    offset = None if groups.offset is None else per_group(groups.offset)
    return PackedMatrix(tensor(np.ascontiguousarray(turned)), per_group(groups.scale), offset, four)


def _small(x: Array) -> Array:
    """Numbers in f16 where that is exact, as it is for the formats that store them so."""
    with np.errstate(over="ignore"):
        half = x.astype(np.float16)
    exact = np.array_equal(half.astype(np.float32), x)
    return np.ascontiguousarray(half if exact else x)


def linear(x: Any, w: Any, bias: Any = None) -> Any:
    """x (..., in) times a matrix (in, out), dense or packed, plus a bias."""
    if isinstance(w, PackedMatrix):
        rows, columns = w.shape
        y = op.reshape(w.product(op.reshape(x, (-1, rows))), (*x.shape[:-1], columns))
    else:
        y = x @ op.cast(w, x.dtype)
    return y if bias is None else y + op.cast(bias, x.dtype)


def side_by_side(ws: Sequence[Any]) -> Any:
    """Matrices of the same rows and format as one, whose product gives all of theirs; None where they
    differ.
    """
    few = isinstance(ws[0], PackedMatrix)
    leaves = [(w.codes, w.scale, w.offset) if isinstance(w, PackedMatrix) else (w,) for w in ws]
    kinds = {
        tuple(None if x is None else (x.dtype, _rest(x, few)) for x in part) for part in leaves
    }
    four = {w.four if isinstance(w, PackedMatrix) else None for w in ws}
    if len(kinds) > 1 or len(four) > 1:
        return None
    joined = [
        None if part[0] is None else _joined(part, 0 if few else 1)
        for part in zip(*leaves, strict=True)
    ]
    return PackedMatrix(joined[0], joined[1], joined[2], four.pop()) if few else joined[0]


def _joined(parts: Sequence[Any], axis: int) -> Any:
    """Tensors, or the types of some, one after the other."""
    if isinstance(parts[0], TensorType):
        sizes = list(parts[0].shape)
        sizes[axis] = sum(t.shape[axis] for t in parts)
        return parts[0].with_shape(tuple(sizes))
    return tensor(np.concatenate([x.numpy() for x in parts], axis=axis))


def _rest(x: Any, few: bool) -> tuple[int, ...]:
    """The axes that do not grow."""
    return tuple(x.shape[1:] if few else x.shape[:1])


def linears(x: Any, w: Any, ws: Sequence[tuple[Any, Any]]) -> list[Any]:
    """x times several matrices with biases; `w` is all of them side by side, or None."""
    if w is None:
        return [linear(x, *pair) for pair in ws]
    y, out, at = linear(x, w), [], 0
    for size, bias in ws:
        part = y[..., at : at + size]
        out.append(part if bias is None else part + op.cast(bias, x.dtype))
        at += size
    return out


def rows_of(table: Any, ids: Any) -> Any:
    """Rows (..., width) of an embedding: a table (rows, width), or a packed matrix (width, rows)."""
    if isinstance(table, PackedMatrix):
        found = table.columns(op.reshape(ids, (-1,)))
        return op.reshape(found, (*ids.shape, table.shape[0]))
    return op.cast(op.embedding(table, ids), f32)


def scores(x: Any, table: Any) -> Any:
    """x times the transpose of an embedding: the logits of tied weights."""
    return linear(x, table) if isinstance(table, PackedMatrix) else linear(x, table.mT)
