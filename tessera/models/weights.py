"""Weights as models hold them: dense tensors, or codes of few bits with scales and offsets for each group."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from tessera.core import tree
from tessera.core.dtype import f32
from tessera.lang import op
from tessera.lang.create import tensor
from tessera.models.blocks import Array, Groups


@tree.node
@dataclass(frozen=True)
class Packed:
    """A matrix (in, out) of few bits: codes (groups, size, out) of i8, scales and offsets (groups, 1, out).

    Its elements are those of the file, code * scale + offset in f32; a product reads the codes.
    """

    codes: Any
    scale: Any
    offset: Any

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns of the matrix."""
        groups, size, columns = self.codes.shape
        return groups * size, columns

    def dense(self) -> Any:
        """The matrix in f32."""
        return op.reshape(self._elements(self.codes, self.scale, self.offset), self.shape)

    def columns(self, at: Any) -> Any:
        """Some columns as rows: (places, rows)."""
        parts = (op.take(x, at, axis=2) for x in (self.codes, self.scale, self.offset))
        flat: Any = op.reshape(self._elements(*parts), (self.shape[0], at.shape[0]))
        return flat.mT

    @staticmethod
    def _elements(codes: Any, scale: Any, offset: Any) -> Any:
        return op.cast(codes, f32) * scale + offset


def packed(groups: Groups, rows: int) -> Packed:
    """The transpose of a matrix whose rows are blocks one after the other."""

    def turned(x: Array) -> Array:
        whole = x.reshape(rows, -1, x.shape[-1])
        return np.ascontiguousarray(np.moveaxis(whole, 0, 2))

    scale = groups.scale[..., None]
    offset = np.zeros_like(scale) if groups.offset is None else groups.offset[..., None]
    return Packed(tensor(turned(groups.codes)), tensor(turned(scale)), tensor(turned(offset)))


def linear(x: Any, w: Any, bias: Any = None) -> Any:
    """x (..., in) times a matrix (in, out), dense or packed, plus a bias."""
    dense = w.dense() if isinstance(w, Packed) else op.cast(w, x.dtype)
    y = x @ dense
    return y if bias is None else y + op.cast(bias, x.dtype)


def rows_of(table: Any, ids: Any) -> Any:
    """Rows (..., width) of an embedding: a table (rows, width), or a packed matrix (width, rows)."""
    if isinstance(table, Packed):
        found = table.columns(op.reshape(ids, (-1,)))
        return op.reshape(found, (*ids.shape, table.shape[0]))
    return op.cast(op.embedding(table, ids), f32)


def scores(x: Any, table: Any) -> Any:
    """x times the transpose of an embedding: the logits of tied weights."""
    return linear(x, table) if isinstance(table, Packed) else linear(x, table.mT)
