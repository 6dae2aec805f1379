"""Tokenizers of GGUF files: byte-level byte-pair encoding, and SentencePiece with scores."""

from __future__ import annotations

import heapq
import re
from collections.abc import Iterable, Sequence
from functools import cached_property, lru_cache
from typing import Any, Protocol

import numpy as np

from tessera.core.errors import ModelError, OperandError
from tessera.models.splitting import split, splitter

NORMAL, UNKNOWN, CONTROL, USER, UNUSED, BYTE = range(1, 7)  # types of tokens in a file
WORD = "\u2581"  # what SentencePiece writes for a space


class Tokenizer(Protocol):
    """Text to token numbers and back."""

    size: int
    bos: int | None
    eos: frozenset[int]
    template: str | None

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        """The tokens of a text; names of special tokens in it are those tokens if `special`."""

    def decode(self, tokens: Iterable[int], *, special: bool = False) -> str:
        """The text of tokens, with the names of special ones if `special`."""

    def name(self, token: int) -> str:
        """The text of one token, special or not."""

    def piece(self, token: int) -> bytes | None:
        """The bytes that a token adds to a text; None of one that is no text, such as an end."""


@lru_cache(maxsize=1)
def byte_characters() -> dict[int, str]:
    """GPT-2's printable character for each byte: itself where it is printable, from 256 on otherwise."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in plain]
    return {b: chr(b) for b in plain} | {b: chr(256 + i) for i, b in enumerate(others)}


class _FromGGUF:
    """What both kinds of tokenizers share: names, types, special tokens."""

    def __init__(self, metadata: dict[str, Any], path: str):
        self._metadata, self._path = metadata, path
        self.names: list[str] = self._list("tokens", str)
        self.size = len(self.names)
        self.types = self._integers("token_type", NORMAL)
        self.ids = {name: i for i, name in enumerate(self.names)}
        self.bos = self._id("bos_token_id")
        self.eos = frozenset(i for k in _ENDS if (i := self._id(k)) is not None)
        template = metadata.get("tokenizer.chat_template")
        self.template = template if isinstance(template, str) else None
        named = [
            n for n, t in zip(self.names, self.types, strict=True) if t in (CONTROL, USER) and n
        ]
        by_length = sorted(named, key=len, reverse=True)
        self._named = re.compile("|".join(map(re.escape, by_length))) if named else None

    def _list(self, key: str, kind: type) -> list[Any]:
        v = self._metadata.get(f"tokenizer.ggml.{key}")
        if not isinstance(v, list) or not all(isinstance(x, kind) for x in v):
            raise ModelError(f"{self._path}: tokenizer.ggml.{key} is no list of {kind.__name__}")
        return v

    def _integers(self, key: str, missing: int) -> list[int]:
        v = self._metadata.get(f"tokenizer.ggml.{key}", np.full(self.size, missing))
        if not isinstance(v, np.ndarray) or v.shape != (self.size,) or v.dtype.kind not in "iu":
            raise ModelError(f"{self._path}: tokenizer.ggml.{key} are not {self.size} integers")
        out: list[int] = v.tolist()
        return out

    def _id(self, key: str) -> int | None:
        v = self._metadata.get(f"tokenizer.ggml.{key}")
        if v is None:
            return None
        if type(v) is not int or not 0 <= v < self.size:
            raise ModelError(
                f"{self._path}: tokenizer.ggml.{key} is {v!r}, expected 0 to {self.size - 1}"
            )
        return v

    def _flag(self, key: str, missing: bool) -> bool:
        v = self._metadata.get(f"tokenizer.ggml.{key}", missing)
        if not isinstance(v, bool):
            raise ModelError(f"{self._path}: tokenizer.ggml.{key} is {v!r}, expected a bool")
        return v

    def name(self, token: int) -> str:
        """The text of one token, special or not."""
        return self.decode([token], special=True)

    def _apart(self, text: str, special: bool) -> list[tuple[str, bool]]:
        """Pieces of a text, and whether each is the name of a token."""
        if self._named is None or not special:
            return [(text, False)] if text else []
        out, at = [], 0
        for m in self._named.finditer(text):
            out += [(text[at : m.start()], False), (m[0], True)]
            at = m.end()
        return [(t, named) for t, named in [*out, (text[at:], False)] if t]

    def _checked(self, tokens: Iterable[int]) -> list[int]:
        out = [int(t) for t in tokens]
        for t in out:
            if not 0 <= t < self.size:
                raise OperandError(
                    f"decode: token {t} is out of range; the tokenizer has {self.size}"
                )
        return out

    def decode(self, tokens: Iterable[int], *, special: bool = False) -> str:
        """The text of tokens, with the names of special ones if `special`."""
        parts = [self._bytes(t, special) for t in self._checked(tokens)]
        return b"".join(parts).decode("utf-8", "replace")

    def _bytes(self, token: int, special: bool) -> bytes:
        kind, name = self.types[token], self.names[token]
        if kind in (CONTROL, UNKNOWN):
            return name.encode() if special else b""
        return name.encode() if kind == USER else self._plain_bytes(token)

    def piece(self, token: int) -> bytes | None:
        """The bytes that a token adds to a text; None of one that is no text, such as an end."""
        special = self.types[token] in (CONTROL, UNKNOWN, UNUSED) or token in self.eos
        return None if special else self._bytes(token, False)

    def _plain_bytes(self, token: int) -> bytes:
        return self.names[token].encode()


_ENDS = ("eos_token_id", "eot_token_id", "eom_token_id")


class BytePairs(_FromGGUF):
    """Byte-level byte-pair encoding, the tokenizer of GPT-2, Llama 3, Qwen and SmolLM."""

    def __init__(self, metadata: dict[str, Any], path: str):
        super().__init__(metadata, path)
        self._patterns = splitter(metadata.get("tokenizer.ggml.pre", "default"))
        pairs = [tuple(m.split(" ")) for m in self._list("merges", str)]
        if not all(len(p) == 2 for p in pairs):
            raise ModelError(f"{path}: tokenizer.ggml.merges has an entry that is no pair of names")
        self._rank: dict[Any, int] = {pair: i for i, pair in enumerate(pairs)}
        self._characters = byte_characters()
        self._add_bos = self._flag("add_bos_token", False)
        self._word = lru_cache(maxsize=1 << 16)(self._merged)

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        """The tokens of a text; names of special tokens in it are those tokens if `special`."""
        out = [self.bos] if self._add_bos and self.bos is not None else []
        for part, named in self._apart(text, special):
            if named:
                out.append(self.ids[part])
                continue
            for word in split(part, self._patterns):
                out += self._word(word)
        return out

    def _merged(self, word: str) -> tuple[int, ...]:
        """The tokens of a word: the pair of lowest rank merges first, the leftmost of several."""
        raw = word.encode("utf-8", "replace")
        symbols = merge([self._characters[b] for b in raw], lambda a, b: self._rank.get((a, b)))
        return tuple(t for s in symbols for t in self._tokens_of(s))

    def _tokens_of(self, symbol: str) -> list[int]:
        if symbol in self.ids:
            return [self.ids[symbol]]
        return [self.ids[c] for c in symbol if c in self.ids]

    @cached_property
    def _back(self) -> dict[str, int]:
        return {c: b for b, c in self._characters.items()}

    def _plain_bytes(self, token: int) -> bytes:
        name = self.names[token]
        if all(c in self._back for c in name):
            return bytes(self._back[c] for c in name)
        return name.encode()


class SentencePieces(_FromGGUF):
    """SentencePiece with a score for each piece, the tokenizer of Llama 2, Mistral and Gemma."""

    def __init__(self, metadata: dict[str, Any], path: str):
        super().__init__(metadata, path)
        scores = metadata.get("tokenizer.ggml.scores")
        if not isinstance(scores, np.ndarray) or scores.shape != (self.size,):
            raise ModelError(f"{path}: tokenizer.ggml.scores are not {self.size} numbers")
        self._scores: list[float] = scores.astype(np.float64).tolist()
        self._add_bos = self._flag("add_bos_token", True)
        self._prefix = self._flag("add_space_prefix", True)
        self._unknown = self._id("unknown_token_id")
        self._of_byte = {
            int(n[3:5], 16): i for i, n in enumerate(self.names) if BYTE_NAME.fullmatch(n)
        }

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        """The tokens of a text; names of special tokens in it are those tokens if `special`."""
        out = [self.bos] if self._add_bos and self.bos is not None else []
        for i, (part, named) in enumerate(self._apart(text, special)):
            if named:
                out.append(self.ids[part])
                continue
            escaped = (" " + part if self._prefix and i == 0 else part).replace(" ", WORD)
            for s in merge(list(escaped), self._order):
                out += self._tokens_of(s)
        return out

    def _order(self, a: str, b: str) -> float | None:
        token = self.ids.get(a + b)
        return None if token is None else -self._scores[token]

    def _tokens_of(self, symbol: str) -> list[int]:
        if symbol in self.ids:
            return [self.ids[symbol]]
        raw = symbol.encode("utf-8", "replace")
        if all(b in self._of_byte for b in raw):
            return [self._of_byte[b] for b in raw]
        return [] if self._unknown is None else [self._unknown]

    def decode(self, tokens: Iterable[int], *, special: bool = False) -> str:
        """The text of tokens, with the names of special ones if `special`."""
        text = super().decode(tokens, special=special)
        return text.removeprefix(" ") if self._prefix else text

    def name(self, token: int) -> str:
        """The text of one token, special or not."""
        return super().decode([token], special=True)

    def _plain_bytes(self, token: int) -> bytes:
        name = self.names[token]
        if self.types[token] == BYTE and BYTE_NAME.fullmatch(name):
            return bytes([int(name[3:5], 16)])
        return name.replace(WORD, " ").encode()


BYTE_NAME = re.compile("<0x[0-9A-F]{2}>")


def merge(symbols: Sequence[str], order: Any) -> list[str]:
    """Merge neighbours, lowest order first and the leftmost of equal ones, until no pair has an order."""
    text: list[str | None] = list(symbols)
    after = [*range(1, len(text)), -1]
    before = [*range(-1, len(text) - 1)]
    heap: list[tuple[float, int, str, str]] = []

    def offer(i: int) -> None:
        if i < 0 or after[i] < 0:
            return
        a, b = text[i], text[after[i]]
        rank = order(a, b)
        if rank is not None:
            heapq.heappush(heap, (rank, i, str(a), str(b)))

    for i in range(len(text) - 1):
        offer(i)
    while heap:
        _, i, a, b = heapq.heappop(heap)
        j = after[i]
        if text[i] != a or j < 0 or text[j] != b:
            continue  # one of the two has merged since
        text[i], text[j] = a + b, None
        after[i] = after[j]
        if after[j] >= 0:
            before[after[j]] = i
        after[j] = -1
        offer(before[i])
        offer(i)
    return [s for s in text if s is not None]


KINDS: dict[str, type[BytePairs] | type[SentencePieces]] = {
    "gpt2": BytePairs,
    "llama": SentencePieces,
}


def from_gguf(metadata: dict[str, Any], path: str) -> BytePairs | SentencePieces:
    """The tokenizer that a GGUF file describes."""
    kind = metadata.get("tokenizer.ggml.model")
    if not isinstance(kind, str) or kind not in KINDS:
        raise ModelError(f"{path}: the tokenizer is {kind!r}, expected one of {', '.join(KINDS)}")
    made: BytePairs | SentencePieces = KINDS[kind](metadata, path)
    return made
