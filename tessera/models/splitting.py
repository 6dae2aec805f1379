"""Splitting of text into words before byte-pair encoding, by the patterns of published tokenizers.

The patterns speak of Unicode categories, which `re` does not know.  So the text is mapped to one ASCII
character for each of its own, which names the category, and the pattern runs over that.
"""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache

from tessera.core.errors import ModelError

# Control characters stand for categories: no pattern names any of them.
UPPER, LOWER, LETTER, MARK, NUMBER, OTHER, SPACE = "\x01\x02\x03\x04\x05\x06\x07"
_CATEGORY = {
    "Lu": UPPER, "Lt": UPPER, "Ll": LOWER, "Lm": LETTER, "Lo": LETTER, "Mn": MARK, "Mc": MARK, "Me": MARK,
    "Nd": NUMBER, "Nl": NUMBER, "No": NUMBER, "Zs": SPACE, "Zl": SPACE, "Zp": SPACE,
}  # fmt: skip
_ASCII_KEPT = frozenset(map(chr, [9, 10, 11, 12, 13, *range(32, 127)]))
_NEXT_LINE = "\x85"  # white space by property, though its category is Cc

_L = r"A-Za-z\x01\x02\x03"
_N = r"0-9\x05"
_S = r"\t\n\x0b\x0c\r \x07"
_UP = r"A-Z\x01\x03\x04"  # \p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}
_LOW = r"a-z\x02\x03\x04"  # \p{Ll}\p{Lm}\p{Lo}\p{M}
_TAIL = rf"[{_S}]+(?![^{_S}])|[{_S}]+"
_SHORT = r"'(?:[sStTmMdD]|[rR][eE]|[vV][eE]|[lL][lL])"

_GPT2 = rf"'(?:[stmd]|re|ve|ll)| ?[{_L}]+| ?[{_N}]+| ?[^{_S}{_L}{_N}]+|{_TAIL}"


def _llama3(digits: str) -> str:
    return (
        rf"{_SHORT}|[^\r\n{_L}{_N}]?[{_L}]+|[{_N}]{digits}| ?[^{_S}{_L}{_N}]+[\r\n]*"
        rf"|[{_S}]*[\r\n]+|{_TAIL}"
    )


_GPT4O = (
    rf"[^\r\n{_L}{_N}]?[{_UP}]*[{_LOW}]+(?:{_SHORT})?|[^\r\n{_L}{_N}]?[{_UP}]+[{_LOW}]*(?:{_SHORT})?"
    rf"|[{_N}]{{1,3}}| ?[^{_S}{_L}{_N}]+[\r\n/]*|[{_S}]*[\r\n]+|{_TAIL}"
)

# By the name that a GGUF file has under tokenizer.ggml.pre; each pattern splits the words of the one before
# it.
PATTERNS: dict[str, tuple[str, ...]] = {
    "default": (_GPT2,),
    "gpt-2": (_GPT2,),
    "smollm": (rf"[{_N}]", _GPT2),
    "starcoder": (rf"[{_N}]", _GPT2),
    "llama-bpe": (_llama3("{1,3}"),),
    "llama3": (_llama3("{1,3}"),),
    "qwen2": (_llama3(""),),
    "gpt-4o": (_GPT4O,),
}


def splitter(name: object) -> tuple[re.Pattern[str], ...]:
    """The patterns of a tokenizer by name."""
    if not isinstance(name, str) or name not in PATTERNS:
        known = ", ".join(PATTERNS)
        raise ModelError(f"tokenizer: the splitting {name!r} is not known; known are {known}")
    return tuple(map(re.compile, PATTERNS[name]))


def split(text: str, patterns: tuple[re.Pattern[str], ...]) -> list[str]:
    """The words of a text; joined they are the text."""
    words = [text]
    for pattern in patterns:
        words = [part for word in words for part in _parts(word, pattern)]
    return words


def _parts(text: str, pattern: re.Pattern[str]) -> list[str]:
    """What a pattern matches, and what lies between."""
    kinds = text if text.isascii() and text.isprintable() else "".join(map(_kind, text))
    out, at = [], 0
    for m in pattern.finditer(kinds):
        start, end = m.span()
        out += [text[at:start], text[start:end]]
        at = end
    return [w for w in [*out, text[at:]] if w]


@lru_cache(maxsize=1 << 14)
def _kind(c: str) -> str:
    if c in _ASCII_KEPT:
        return c
    return SPACE if c == _NEXT_LINE else _CATEGORY.get(unicodedata.category(c), OTHER)
