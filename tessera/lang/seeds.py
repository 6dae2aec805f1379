"""seeds: which keys a program draws from, and where."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from tessera.core.blame import blames_arguments
from tessera.lang.shapes import trace
from tessera.ops.key_uses import KeyUse, recording


@dataclass(frozen=True)
class Seeds:
    """The uses of keys in a program, in order; str() is a list."""

    uses: tuple[KeyUse, ...]

    def __iter__(self) -> Iterator[KeyUse]:
        return iter(self.uses)

    def __len__(self) -> int:
        return len(self.uses)

    def __str__(self) -> str:
        return "\n".join(map(str, self.uses)) or "no key is used"


@blames_arguments
def seeds(f: Callable[..., Any], *types: Any, **kwargs: Any) -> Seeds:
    """The keys that f draws from, for tensors or types as arguments: how each came to be, and the line."""
    record: list[KeyUse] = []
    with recording(record):
        trace(f, *types, **kwargs)
    return Seeds(tuple(record))
