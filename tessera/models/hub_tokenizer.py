"""Tokenizers of `tokenizer.json` files, by the tokenizers package."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

from tessera.core.errors import ModelError
from tessera.models.tokenizer import BYTE_NAME, WORD, byte_characters

try:
    import tokenizers
except ModuleNotFoundError:
    tokenizers = None  # type: ignore[assignment]


LARGEST = 1 << 24  # of a token, beyond every vocabulary


class HubTokenizer:
    """A tokenizer of a Hugging Face folder."""

    def __init__(self, folder: Path):
        if tokenizers is None:
            raise ModelError(
                "tokenizer.json needs the tokenizers package: pip install tessera[models]"
            )
        self._path = folder / "tokenizer.json"
        self._inner = _loaded(self._path)
        self._inner.no_padding()
        self._inner.no_truncation()
        self.size: int = self._inner.get_vocab_size()
        highest = max(self._ask(self._inner.get_vocab).values(), default=0)
        if highest >= LARGEST:  # the package makes lists of so many entries, and aborts
            raise ModelError(f"{self._path}: a token has the number {highest}, beyond {LARGEST}")
        settings = _json(folder / "tokenizer_config.json")
        generation = _json(folder / "generation_config.json")
        self.bos = self._id(settings.get("bos_token"))
        ends = {self._id(settings.get("eos_token"))}
        listed = generation.get("eos_token_id")
        given = {i for i in (listed if isinstance(listed, list) else [listed]) if type(i) is int}
        if not all(0 <= i < LARGEST for i in given):
            raise ModelError(
                f"{folder / 'generation_config.json'}: eos_token_id is {listed!r}, expected tokens"
            )
        ends |= given
        self.eos = frozenset(i for i in ends if i is not None)
        self.template = _template(settings, folder)

    def _id(self, name: Any) -> int | None:
        text = name.get("content") if isinstance(name, dict) else name
        if not isinstance(text, str):
            return None
        found: int | None = self._ask(self._inner.token_to_id, text)
        return found

    def _ask(self, question: Any, *given: Any, **options: Any) -> Any:
        with _refused(f"{self._path}: the tokenizers package fails"):
            return question(*given, **options)

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        """The tokens of a text; `special` adds what the file adds, such as a first token."""
        whole = text.encode("utf-8", "replace").decode()  # halves of surrogate pairs are no text
        out: list[int] = self._ask(self._inner.encode, whole, add_special_tokens=special).ids
        return out

    def decode(self, tokens: Iterable[int], *, special: bool = False) -> str:
        """The text of tokens, with the names of special ones if `special`."""
        ids = [int(t) for t in tokens]
        out: str = self._ask(self._inner.decode, ids, skip_special_tokens=not special)
        return out

    def name(self, token: int) -> str:
        """The text of one token, special or not."""
        return self.decode([token], special=True)

    def piece(self, token: int) -> bytes | None:
        """The bytes that a token adds to a text; None of one that is no text, such as an end."""
        name: str | None = self._ask(self._inner.id_to_token, token)
        if name is None or token in self._special:
            return None
        if self._bytes:
            return (
                bytes(self._bytes[c] for c in name)
                if all(c in self._bytes for c in name)
                else name.encode()
            )
        if BYTE_NAME.fullmatch(name):
            return bytes([int(name[3:5], 16)])
        return name.replace(WORD, " ").encode()

    @cached_property
    def _special(self) -> frozenset[int]:
        added = self._inner.get_added_tokens_decoder()
        return self.eos | {i for i, t in added.items() if t.special}

    @cached_property
    def _bytes(self) -> dict[str, int]:
        """GPT-2's character for each byte where names are made of these, else nothing."""
        decoder = json.dumps(json.loads(self._inner.to_str()).get("decoder"))
        return {c: b for b, c in byte_characters().items()} if '"ByteLevel"' in decoder else {}


def _loaded(path: Path) -> Any:
    if not path.is_file():
        raise ModelError(f"{path}: there is no such file")
    with _refused(f"{path}: is not read by the tokenizers package"):
        return tokenizers.Tokenizer.from_file(str(path))


@contextmanager
def _refused(what: str) -> Iterator[None]:
    """Turn what the package raises into a ModelError: plain Exceptions, and the panics of Rust, which are
    BaseExceptions of a class that it does not export.
    """
    try:
        yield
    except (KeyboardInterrupt, SystemExit, GeneratorExit, MemoryError):
        raise
    except BaseException as e:
        raise ModelError(f"{what} ({e})") from None


def _json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        found = json.loads(path.read_text())
    except (ValueError, RecursionError) as e:
        raise ModelError(f"{path}: is not JSON ({e})") from None
    return found if isinstance(found, dict) else {}


def _template(settings: dict[str, Any], folder: Path) -> str | None:
    own = folder / "chat_template.jinja"
    if own.is_file():
        return own.read_text()
    found = settings.get("chat_template")
    if isinstance(found, list):  # several, by name
        named = {t.get("name"): t.get("template") for t in found if isinstance(t, dict)}
        found = named.get("default")
    return found if isinstance(found, str) else None
