"""What a derivative keeps elsewhere, by its number, until it is read back once."""

from __future__ import annotations

import itertools
import threading
from typing import Any

from tessera.core.errors import RuleError

_KEPT: dict[int, Any] = {}
_NUMBERS = itertools.count(1)
_LOCK = threading.Lock()


def held() -> int:
    """How many values are written out and not read back."""
    return len(_KEPT)


def keep(kept: Any) -> int:
    """Keep what stands for a value; its number."""
    with _LOCK:
        number = next(_NUMBERS)
        _KEPT[number] = kept
    return number


def take(number: int) -> Any:
    """What was kept under a number, once."""
    with _LOCK:
        kept = _KEPT.pop(number, None)
    if kept is None:
        raise RuleError(
            "offload: what this derivative kept was already read back; a function with an offload policy is "
            "pulled back once for each time it is run"
        )
    return kept
