"""The log of rewrites: which operators were simplified while a record was kept, and from which lines."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from tessera.algebra.laws.derivation import Derivation
from tessera.core.source import Location, caller


@dataclass(frozen=True)
class Rewrite:
    """An operator that was simplified."""

    location: Location | None
    derive: Callable[[], Derivation]  # worked out when somebody looks
    terms: int  # how many equal terms were looked at
    saturated: bool  # whether every law was applied everywhere


class _LogState(threading.local):
    log: list[Rewrite] | None = None


_STATE = _LogState()


@contextmanager
def rewrites() -> Iterator[list[Rewrite]]:
    """Keep a record of what is simplified in the block, by this thread."""
    before, log = _STATE.log, list[Rewrite]()
    _STATE.log = log
    try:
        yield log
    finally:
        _STATE.log = before


def note(derive: Callable[[], Derivation], terms: int, saturated: bool) -> None:
    """Note a rewrite if somebody keeps a record."""
    if _STATE.log is not None:
        _STATE.log.append(Rewrite(caller(), derive, terms, saturated))
