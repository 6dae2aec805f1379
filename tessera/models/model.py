"""A language model: weights, config and tokenizer, with its compiled steps."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tessera.core.errors import OperandError, ShapeError
from tessera.lang import op
from tessera.lang.create import tensor
from tessera.lang.jit import jit
from tessera.lang.tensor import Tensor
from tessera.models.blocks import Array
from tessera.models.held import Pages
from tessera.models.tokenizer import Tokenizer

CHUNKS = (
    1,
    8,
    32,
    128,
    512,
)  # rows of a step: the fewest programs that waste at most three quarters
LEAST_ROOM = 256  # positions of a new cache; a cache grows by doubling


@dataclass(frozen=True)
class Family:
    """How an architecture computes: hidden states with a cache, logits, and what a cache holds."""

    forward: Callable[..., tuple[Any, list[Any]]]
    logits: Callable[..., Any]


@dataclass
class State:
    """What a model has seen of some sequences: keys and values of each layer, and how many positions are
    filled.
    """

    cache: list[Any]
    length: int
    room: int

    def copy(self) -> State:
        """A state of its own: steps use up the one that they are given."""
        return State(
            [tuple(tensor(x.numpy().copy()) for x in pair) for pair in self.cache],
            self.length,
            self.room,
        )


class LanguageModel:
    """A decoder with its weights; tokens go in, logits of the next token come out."""

    def __init__(
        self, family: Family, shape: Any, params: Any, tokenizer: Tokenizer | None, name: str
    ):
        self.shape, self.params, self.name = shape, params, name
        self._tokenizer, self._family = tokenizer, family
        self._step = jit(self._last, donate=["cache"])
        self._all = jit(self._every, donate=["cache"])
        self._states = jit(self._hidden, donate=["cache"])
        self.paged_step = jit(self._over_pages)

    @property
    def tokenizer(self) -> Tokenizer:
        """Text to tokens and back."""
        if self._tokenizer is None:
            raise OperandError(
                f"{self.name}: the model has no tokenizer; give tokens instead of text"
            )
        return self._tokenizer

    @property
    def context(self) -> int:
        """How many positions the model was made for."""
        size: int = self.shape.context
        return size

    @property
    def ends(self) -> frozenset[int]:
        """Tokens that end a text."""
        return frozenset() if self._tokenizer is None else self._tokenizer.eos

    def _every(self, params: Any, tokens: Any, cache: Any, start: Any) -> Any:
        x, cache = self._family.forward(self.shape, params, tokens, cache, start)
        return self._family.logits(self.shape, params, x), cache

    def _hidden(self, params: Any, tokens: Any, cache: Any, start: Any) -> Any:
        return self._family.forward(self.shape, params, tokens, cache, start)

    def _over_pages(
        self, params: Any, tokens: Any, pools: Any, table: Any, start: Any, last: Any
    ) -> Any:
        """Logits (batch, vocabulary) after row `last` of each sequence, and the new keys and values of each
        layer.
        """
        held = [Pages(k, v, table) for k, v in pools]
        x, new = self._family.forward(self.shape, params, tokens, held, start)
        at = op.broadcast_to(op.reshape(last, (-1, 1, 1)), (x.shape[0], 1, x.shape[2]))
        return self._family.logits(self.shape, params, op.take_along_axis(x, at, axis=1))[:, 0], new

    def _last(self, params: Any, tokens: Any, cache: Any, start: Any, at: Any) -> Any:
        x, cache = self._family.forward(self.shape, params, tokens, cache, start)
        x = op.take(x, op.reshape(at, (1,)), axis=1)
        return self._family.logits(self.shape, params, x)[:, 0], cache

    def start(self, room: int = LEAST_ROOM) -> State:
        """An empty state with room for positions."""
        s, size = self.shape, self._room(room)
        blank = [
            tuple(tensor(np.zeros((1, s.kv_heads, size, s.head_dim), np.float32)) for _ in range(2))
            for _ in range(s.layers)
        ]
        return State(blank, 0, size)

    def _room(self, needed: int) -> int:
        size = LEAST_ROOM
        while size < needed:
            size *= 2
        return size

    def _grown(self, state: State, needed: int) -> State:
        if needed <= state.room:
            return state
        size = self._room(needed)
        more = [
            tuple(
                tensor(np.pad(x.numpy(), ((0, 0), (0, 0), (0, size - state.room), (0, 0))))
                for x in pair
            )
            for pair in state.cache
        ]
        return State(more, state.length, size)

    def _checked(self, tokens: Any) -> Array:
        ids = np.asarray(tokens)
        if ids.ndim != 1 or ids.size == 0 or ids.dtype.kind not in "iu":
            raise ShapeError(
                f"{self.name}: got tokens {ids.dtype}{list(ids.shape)}, expected a list of integers"
            )
        if ids.min() < 0 or ids.max() >= self.shape.vocabulary:
            raise OperandError(
                f"{self.name}: token {ids.max() if ids.min() >= 0 else ids.min()} is out of range; the "
                "model has "
                f"{self.shape.vocabulary}"
            )
        return ids.astype(np.int32)

    def advance(self, state: State, tokens: Any, *, every: bool = False) -> tuple[Array, State]:
        """Logits after tokens, (vocabulary,), or after each of them, and the state that has seen them.

        The state that is given is used up.
        """
        return self._advance(state, tokens, self._all if every else None)

    def _advance(self, state: State, tokens: Any, rows_of: Any) -> tuple[Array, State]:
        """What a step gives for each token, or the logits after the last, and the state
        that has seen them.
        """
        ids = self._checked(tokens)
        total = state.length + len(ids)
        if total > self.context:
            raise ShapeError(
                f"{self.name}: {total} positions are more than the context of {self.context}; shorten the "
                "prompt"
            )
        outs = []
        while len(ids):
            size = next((c for c in CHUNKS if c >= len(ids)), CHUNKS[-1])
            part, ids = ids[:size], ids[size:]
            state = self._grown(state, state.length + size)
            out, state = self._chunk(state, part, size, rows_of)
            outs.append(out)
        return (outs[-1] if rows_of is None else np.concatenate(outs)), state

    def _chunk(self, state: State, part: Array, size: int, rows_of: Any) -> tuple[Array, State]:
        """One compiled step; rows past the tokens are written to the cache and then written over."""
        padded = np.zeros((1, size), np.int32)
        padded[0, : len(part)] = part
        # Tensors, not arrays: a call of tensors alone is found by their types at once.
        rows, start = tensor(padded), tensor(np.array([state.length], np.int32))
        if rows_of is not None:
            out, cache = rows_of(self.params, rows, state.cache, start)
            found = out.numpy()[0, : len(part)]
        else:
            at = tensor(np.array(len(part) - 1, np.int32))
            out, cache = self._step(self.params, rows, state.cache, start, at)
            found = out.numpy()[0]
        return found, State(cache, state.length + len(part), state.room)

    def logits(self, tokens: Any) -> Tensor:
        """Logits (positions, vocabulary) after each of the tokens."""
        ids = self._checked(tokens)
        return tensor(self.advance(self.start(len(ids)), ids, every=True)[0])

    def hidden(self, tokens: Any) -> Tensor:
        """Hidden states (positions, width) of tokens, after the last norm."""
        ids = self._checked(tokens)
        return tensor(self._advance(self.start(len(ids)), ids, self._states)[0])

    def tokens_of(self, prompt: str | Sequence[int] | Iterable[int]) -> list[int]:
        """A prompt as tokens."""
        if isinstance(prompt, str):
            return self.tokenizer.encode(prompt)
        return [int(t) for t in prompt]
