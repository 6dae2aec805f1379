"""Steps of a language model over pages: several sequences at once, each with the bits that it has alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tessera.lang import op
from tessera.lang.jit import jit
from tessera.models.blocks import Array
from tessera.models.held import Pages
from tessera.models.model import LanguageModel

PAGE = 16  # positions of a page: a prefix is shared in these units, and half of one is wasted by a sequence
ROWS = (1, 8, 32, 128)  # tokens of a step for each sequence, as a prompt is cut
BATCHES = (1, 2, 4, 8, 16, 32, 64)  # sequences of a step: a batch is padded to the next
LEAST_PAGES = 16  # columns of a table: the next power of two, so that programs are few


@dataclass(frozen=True)
class Part:
    """The tokens of one sequence in a step: they follow `start` earlier ones, and lie in pages of the pool."""

    tokens: Sequence[int]
    start: int
    pages: Sequence[int]


def bytes_of_page(model: LanguageModel) -> int:
    """Bytes that a page takes in all layers, keys and values."""
    s = model.shape
    size: int = 2 * s.layers * s.kv_heads * s.head_dim * PAGE * 4
    return size


class PagedSteps:
    """The compiled steps of a model, and the pools of keys and values that they fill."""

    def __init__(self, model: LanguageModel, pages: int):
        s = model.shape
        self.model = model
        size = (pages, s.kv_heads, PAGE, s.head_dim)
        self._pools = [
            (np.zeros(size, np.float32), np.zeros(size, np.float32)) for _ in range(s.layers)
        ]
        self._step = jit(self._last)

    def _last(self, params: Any, tokens: Any, pools: Any, table: Any, start: Any, last: Any) -> Any:
        family, shape = self.model._family, self.model.shape
        x, new = family.forward(
            shape, params, tokens, [Pages(k, v, table) for k, v in pools], start
        )
        at = op.broadcast_to(op.reshape(last, (-1, 1, 1)), (x.shape[0], 1, x.shape[2]))
        return family.logits(shape, params, op.take_along_axis(x, at, axis=1))[:, 0], new

    def run(self, parts: Sequence[Part]) -> Array:
        """Logits (parts, vocabulary) after the tokens of each part, whose keys and values are then in their pages."""
        batch = next(b for b in BATCHES if b >= len(parts))
        rows = next(r for r in ROWS if r >= max(len(p.tokens) for p in parts))
        wide = LEAST_PAGES
        while wide < max(len(p.pages) for p in parts):
            wide *= 2
        tokens, table = np.zeros((batch, rows), np.int32), np.zeros((batch, wide), np.int32)
        start, last = np.zeros((2, batch), np.int32)
        for i, p in enumerate(parts):
            tokens[i, : len(p.tokens)] = p.tokens
            table[i, : len(p.pages)] = p.pages
            start[i], last[i] = p.start, len(p.tokens) - 1
        out, new = self._step(self.model.params, tokens, self._pools, table, start, last)
        self._write(parts, new)
        found: Array = out.numpy()[: len(parts)]
        return found

    def _write(self, parts: Sequence[Part], new: Any) -> None:
        sequence = np.concatenate([np.full(len(p.tokens), i) for i, p in enumerate(parts)])
        row = np.concatenate([np.arange(len(p.tokens)) for p in parts])
        place = np.concatenate([p.start + np.arange(len(p.tokens)) for p in parts])
        page = np.array([parts[i].pages[at // PAGE] for i, at in zip(sequence, place, strict=True)])
        slot = place % PAGE
        for pools, rows in zip(self._pools, new, strict=True):
            for pool, fresh in zip(pools, rows, strict=True):
                pool[page, :, slot] = fresh.numpy()[sequence, :, row]
