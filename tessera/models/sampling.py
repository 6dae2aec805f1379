"""Choosing the next token: penalties, temperature, cuts of the distribution, and a draw that is a function
of seed and place.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tessera.core.errors import OperandError
from tessera.models.blocks import Array


@dataclass(frozen=True)
class Sampling:
    """How tokens are chosen; temperature 0 takes the likeliest."""

    temperature: float = 0.0
    top_k: int = 0  # 0: all
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        ranges = {
            "temperature": (self.temperature, 0, 100), "top_k": (self.top_k, 0, 2**31),
            "top_p": (self.top_p, 0, 1),
            "min_p": (self.min_p, 0, 1), "repetition_penalty": (self.repetition_penalty, 1e-3, 1e3),
            "presence_penalty": (self.presence_penalty, -100, 100), "seed": (self.seed, 0, 2**64 - 1),
            "frequency_penalty": (self.frequency_penalty, -100, 100),
        }  # fmt: skip
        for name, (v, low, high) in ranges.items():
            whole = name in ("top_k", "seed")
            if (
                isinstance(v, bool)
                or not isinstance(v, int if whole else int | float)
                or not low <= v <= high
            ):
                kind = "an integer" if whole else "a number"
                raise OperandError(
                    f"generate: {name} is {v!r}, expected {kind} from {low} to {high}"
                )


def penalised(logits: Array, seen: Sequence[int], new: Sequence[int], s: Sampling) -> Array:
    """Logits after penalties: repetition for all tokens so far, presence and frequency for the new ones."""
    out: Array = np.array(logits, np.float64)
    if s.repetition_penalty != 1.0 and len(seen):
        at = np.unique(np.asarray(seen))
        out[at] = np.where(
            out[at] > 0, out[at] / s.repetition_penalty, out[at] * s.repetition_penalty
        )
    if (s.presence_penalty or s.frequency_penalty) and len(new):
        at, count = np.unique(np.asarray(new), return_counts=True)
        out[at] -= s.presence_penalty + s.frequency_penalty * count
    return out


def kept(logits: Array, s: Sampling) -> Array:
    """Logits at a temperature, -inf where top_k, top_p or min_p leave a token out."""
    out = logits / s.temperature
    if 0 < s.top_k < len(out):
        out = np.where(out < np.partition(out, -s.top_k)[-s.top_k], -math.inf, out)
    if s.top_p < 1.0:
        order = np.argsort(-out, kind="stable")
        before = np.cumsum(probabilities(out)[order]) - probabilities(out)[order]
        cut = order[before >= s.top_p]
        out[cut[cut != order[0]]] = -math.inf
    if s.min_p > 0.0:
        out = np.where(out < out.max() + math.log(s.min_p), -math.inf, out)
    return out


def probabilities(logits: Array) -> Array:
    """softmax in f64."""
    e = np.exp(logits - logits.max())
    out: Array = e / e.sum()
    return out


def choose(logits: Array, seen: Sequence[int], new: Sequence[int], s: Sampling) -> int:
    """The next token after those seen, of which the last are new."""
    if not np.isfinite(logits).any():
        raise OperandError("generate: the logits are not finite; the weights are damaged")
    scores = penalised(logits, seen, new, s)
    if s.temperature == 0:
        return int(np.argmax(scores))
    total = np.cumsum(probabilities(kept(scores, s)))
    at = int(np.searchsorted(total, uniform(s.seed, len(seen)) * total[-1], side="right"))
    return min(at, int(np.flatnonzero(np.diff(total, prepend=0.0))[-1]))


def uniform(seed: int, place: int) -> float:
    """A number of [0, 1) for a seed and a position: counter-based, so that no draw depends on another."""
    word = np.random.Philox(key=seed, counter=place).random_raw()
    return int(word >> 11) * 2.0**-53
