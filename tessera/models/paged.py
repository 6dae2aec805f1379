"""Steps of a language model over pages: several sequences at once, each with the bits that it has alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tessera.core.device import CPU
from tessera.core.dtype import f32
from tessera.lang.create import tensor
from tessera.lang.tensor import on_device
from tessera.models.blocks import Array
from tessera.models.model import LanguageModel

PAGE = 16  # positions of a page: a prefix is shared in these units, and half of one is wasted by a sequence
ROWS = (1, 32, 128)  # tokens of a step for each sequence, as a prompt is cut
# Sequences of a step.  SmolLM2-135M takes 42, 75, 137, 282 and 553 ms of CPU for 1, 4, 8, 16 and 32
# sequences (Xeon, 2.5 GHz): linear from 4 on, so that more programs would save nothing and each takes
# seconds to compile.
BATCHES = (1, 4, 16)
LEAST_PAGES = 16  # columns of a table: the next power of two, so that programs are few


@dataclass(frozen=True)
class SequencePart:
    """The tokens of one sequence in a step: they follow `start` earlier ones, and lie in
    pages of the pool.
    """

    tokens: Sequence[int]
    start: int
    pages: Sequence[int]


def batches(count: int) -> list[int]:
    """Sizes of steps that together have room for so many sequences, at most a quarter of a step for none."""
    out = []
    while count > 0:
        enough = next((b for b in BATCHES if count <= b <= count * 4 / 3), None)
        size = max(b for b in BATCHES if b <= count) if enough is None else enough
        out.append(size)
        count -= size
    return out


def bytes_of_page(model: LanguageModel) -> int:
    """Bytes that a page takes in all layers, keys and values."""
    s = model.shape
    size: int = 2 * s.layers * s.kv_heads * s.head_dim * PAGE * 4
    return size


class PagedSteps:
    """Steps of a model over pools of keys and values, which they fill."""

    def __init__(self, model: LanguageModel, pages: int):
        s = model.shape
        self.model = model
        self._most = -(-s.context // PAGE)
        size = (pages, s.kv_heads, PAGE, s.head_dim)
        self._pools = [
            (np.zeros(size, np.float32), np.zeros(size, np.float32)) for _ in range(s.layers)
        ]
        # The same memory as tensors: a call of tensors alone is found by their types at once.
        self._shown = [(on_device(k, f32, CPU), on_device(v, f32, CPU)) for k, v in self._pools]

    def run(self, parts: Sequence[SequencePart]) -> Array:
        """Logits (parts, vocabulary) after the tokens of each part, whose keys and values are then in their
        pages.
        """
        out, at = [], 0
        for size in batches(len(parts)):
            out.append(self._run(parts[at : at + size], size))
            at += size
        return np.concatenate(out)

    def _run(self, parts: Sequence[SequencePart], batch: int) -> Array:
        rows = next(r for r in ROWS if r >= max(len(p.tokens) for p in parts))
        wide = LEAST_PAGES
        while wide < max(len(p.pages) for p in parts):
            wide *= 2
        wide = min(wide, self._most)
        tokens, table = np.zeros((batch, rows), np.int32), np.zeros((batch, wide), np.int32)
        start, last = np.zeros((2, batch), np.int32)
        for i, p in enumerate(parts):
            tokens[i, : len(p.tokens)] = p.tokens
            table[i, : len(p.pages)] = p.pages
            start[i], last[i] = p.start, len(p.tokens) - 1
        model = self.model
        given = [tensor(x) for x in (tokens, table, start, last)]
        out, new = model.paged_step(model.params, given[0], self._shown, *given[1:])
        self._write(parts, new)
        found: Array = out.numpy()[: len(parts)]
        return found

    def _write(self, parts: Sequence[SequencePart], new: Any) -> None:
        sequence = np.concatenate([np.full(len(p.tokens), i) for i, p in enumerate(parts)])
        row = np.concatenate([np.arange(len(p.tokens)) for p in parts])
        place = np.concatenate([p.start + np.arange(len(p.tokens)) for p in parts])
        page = np.array([parts[i].pages[at // PAGE] for i, at in zip(sequence, place, strict=True)])
        slot = place % PAGE
        for pools, rows in zip(self._pools, new, strict=True):
            for pool, fresh in zip(pools, rows, strict=True):
                pool[page, :, slot] = fresh.numpy()[sequence, :, row]
