"""A mask of tokens from a grammar: only tokens after which an end is still within reach may be chosen."""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from tessera.core.errors import OperandError
from tessera.models import grammar
from tessera.models.blocks import Array
from tessera.models.grammar import NEVER, State
from tessera.models.model import LanguageModel
from tessera.models.schema import INSIDE, PLAIN, Grammar
from tessera.models.tokenizer import Tokenizer

KEPT = 512  # states of a grammar whose masks are kept: 4 bytes for each token of the vocabulary

SCHEMAS = 16  # whose masks are kept


class Vocabulary:
    """The texts of all tokens as a tree of bytes: a node is (token ids that end here, {byte: node})."""

    def __init__(self, tokenizer: Tokenizer, size: int):
        self.size, self.ends = size, sorted(tokenizer.eos)
        self.pieces = [tokenizer.piece(t) if t < tokenizer.size else None for t in range(size)]
        self.root = _tree((t, p) for t, p in enumerate(self.pieces) if p)
        characters = [_characters(p) for p in self.pieces]
        self.plain = np.flatnonzero(characters)
        self.lengths = np.array([characters[t] for t in self.plain], np.int32)
        self.odd = _tree((t, p) for t, p in enumerate(self.pieces) if p and not characters[t])
        single = self.root[1]
        if not all(b in single and single[b][0] for b in range(0x20, 0x7F)):
            raise OperandError("schema: the tokenizer has no token for some printable character")
        self.ascii_only = not all(b in single and single[b][0] for b in range(0x80, 0xF5))


def _tree(pieces: Iterable[tuple[int, bytes]]) -> Any:
    root: Any = ([], {})
    for token, piece in pieces:
        at = root
        for b in piece:
            at = at[1].setdefault(b, ([], {}))
        at[0].append(token)
    return root


def _characters(piece: bytes | None) -> int:
    """How many characters a token has if any string may have them as they are, else 0."""
    try:
        text = (piece or b"").decode()
    except UnicodeDecodeError:
        return 0
    return 0 if any(c in '"\\\x7f' or c < " " for c in text) else len(text)


class Masks:
    """What a grammar allows after each state: for every token the bytes that an end needs then, NEVER where
    it may not come.
    """

    def __init__(self, vocabulary: Vocabulary, of: Grammar):
        self.start, self._vocabulary = of.start, vocabulary
        self._known: OrderedDict[State, Array] = OrderedDict()
        self._after: dict[tuple[State, int], State] = {}

    def after(self, state: State, token: int) -> State:
        """The state after a token."""
        for b in self._vocabulary.pieces[token] or b"":
            state = self._next(state, b)
        return state

    def _next(self, state: State, byte: int) -> State:
        found = self._after.get((state, byte))
        if found is None:
            if len(self._after) > KEPT * 256:
                self._after.clear()
            found = self._after[state, byte] = grammar.after(state, byte)
        return found

    def needed(self, state: State) -> Array:
        """Bytes (tokens,) that an end needs after each token."""
        if state in self._known:
            self._known.move_to_end(state)
            return self._known[state]
        out = np.full(self._vocabulary.size, NEVER, np.int32)
        inside = all(s is not None and s.top in INSIDE for s in state)
        if inside:
            out[self._vocabulary.plain] = self._in_string(state)
        work = [(self._vocabulary.odd if inside else self._vocabulary.root, state)]
        while work:
            (tokens, children), here = work.pop()
            if tokens:
                out[tokens] = grammar.needed(here)
            for byte, child in children.items():
                then = self._next(here, byte)
                if then:
                    work.append((child, then))
        if None in state:
            out[self._vocabulary.ends] = 0
        self._known[state] = out
        if len(self._known) > KEPT:
            self._known.popitem(last=False)
        return out

    def _in_string(self, state: State) -> Array:
        """Bytes that an end needs after each plain token inside a string: only their numbers of characters
        matter.
        """
        lengths = self._vocabulary.lengths
        out = np.full(len(lengths), NEVER, np.int32)
        for s in state:
            if s is None or s.top is not PLAIN or s.rest is None:
                continue
            more, below = s.rest.top, 0 if s.rest.rest is None else s.rest.rest.needed
            then = np.maximum(more.least - (lengths - 1), 0) + below
            room = NEVER if more.most is None else more.most
            out = np.minimum(out, np.where(lengths - 1 <= room, then, NEVER))
        return out


class Guide:
    """The states of one reply, and what may come next."""

    def __init__(self, masks: Masks):
        self._masks = masks
        self._tokens: list[int] = []
        self._states: list[State] = [masks.start]

    def least(self) -> int:
        """Tokens that suffice for some reply: one for each byte."""
        return grammar.needed(self._masks.start)

    def _at(self, new: Sequence[int]) -> State:
        """The state after some tokens; those that it has followed before are not followed again."""
        same = 0
        while same < min(len(self._tokens), len(new)) and self._tokens[same] == new[same]:
            same += 1
        del self._tokens[same:], self._states[same + 1 :]
        for token in new[same:]:
            self._tokens.append(token)
            self._states.append(self._masks.after(self._states[-1], token))
        return self._states[-1]

    def masked(self, logits: Array, new: Sequence[int], left: int) -> Array:
        """Logits of tokens after which the reply can end in time, -inf for others; `left` counts the next
        token, too.
        """
        out: Array = np.where(self._masks.needed(self._at(new)) < left, logits, -np.inf)
        return out

    def complete(self, new: Sequence[int]) -> bool:
        """Whether nothing may follow."""
        return self._at(new) == frozenset([None])


def guide(model: LanguageModel, schema: Any, limit: int, named: str = "max_new_tokens") -> Guide:
    """The guide of a reply of up to `limit` tokens, which a message calls by the name that a user gave."""
    made = Guide(_masks(model, _frozen(schema)))
    if made.least() > limit:
        raise OperandError(f"schema: it needs up to {made.least()} tokens, but {named} is {limit}")
    return made


# Of each model that lives: its vocabulary, and the masks of schemas that were used last.
_KNOWN: WeakKeyDictionary[LanguageModel, tuple[Vocabulary, OrderedDict[str, Masks]]] = (
    WeakKeyDictionary()
)


_LOCK = threading.Lock()  # requests are read on several threads


def _masks(model: LanguageModel, schema: str) -> Masks:
    with _LOCK:
        return _masks_alone(model, schema)


def _masks_alone(model: LanguageModel, schema: str) -> Masks:
    if model not in _KNOWN:
        _KNOWN[model] = (Vocabulary(model.tokenizer, model.shape.vocabulary), OrderedDict())
    vocabulary, known = _KNOWN[model]
    if schema not in known:
        known[schema] = Masks(vocabulary, Grammar(json.loads(schema), vocabulary.ascii_only))
    known.move_to_end(schema)
    while len(known) > SCHEMAS:
        known.popitem(last=False)
    return known[schema]


def _frozen(schema: Any) -> str:
    try:
        return json.dumps(schema)
    except (TypeError, ValueError, RecursionError) as e:
        raise OperandError(f"schema: it is not JSON ({e})") from None
