"""The kernels of a program at one level, by name, and their text."""

from __future__ import annotations

import hashlib
import re
from typing import Generic, TypeVar

_NAMED = re.compile(r"^(?://|;|#) kernel (.*)\n", re.MULTILINE)
_COMMENTS = (('"', "//"), ("@triton", "#"), ("import", "#"), ("from", "#"))


K = TypeVar("K")


class Kernels(dict[str, K], Generic[K]):
    """The kernels of a program; prints as their text one after the other, each under its name.

    K is what a kernel is at the level: Tile IR, or the text that is printed of it.
    """

    @property
    def text(self) -> str:
        return "\n".join(_named(name, str(k)) for name, k in self.items())

    @property
    def hash(self) -> str:
        """SHA-256 of the text."""
        return hashlib.sha256(self.text.encode()).hexdigest()

    def __str__(self) -> str:
        return self.text


def _named(name: str, text: str) -> str:
    """A kernel under its name, which is a comment of its language: of MLIR, of Python or of LLVM."""
    comment = next((c for begin, c in _COMMENTS if text.lstrip().startswith(begin)), ";")
    return f"{comment} kernel {name}\n{text}"


def parts(text: str) -> dict[str, str]:
    """The texts under the names in a text, each in the line where it stands; none if there are no names."""
    found = list(_NAMED.finditer(text))
    if not found or text[: found[0].start()].strip():
        return {}
    ends = [m.start() - 1 for m in found[1:]] + [len(text)]
    return {m.group(1): text[m.end() : end] for m, end in zip(found, ends, strict=True)}


def line_of(text: str, part: str) -> int:
    """How many lines of a text stand before a part of it."""
    return text[: text.index(part)].count("\n")
