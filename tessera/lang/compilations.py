"""Compilations while a program runs: what was compiled, why, and whether the cache had it; reported to those
who watch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from tessera.compile.executable import Executable
from tessera.compile.fallback import PlainExecutable
from tessera.compile.passes import TARGET


@dataclass(frozen=True)
class Compilation:
    """A function that was compiled, or a hand-written kernel that was called for the first time."""

    name: str
    executable: Any  # None: a kernel
    data: Sequence[Any]  # what it was called on
    why: str
    seconds: float = 0.0
    kernel: Any = None  # the kernel, where it is one
    function: Any = None  # what was called, and on what
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)

    @property
    def how(self) -> str:
        """What runs it, and whether the cache had it."""
        if self.kernel is not None:
            return "kernel"
        if isinstance(self.executable, PlainExecutable):
            return "fell back: op by op"
        if type(self.executable) is Executable:
            return "references"
        built = any(s.level == TARGET for s in self.executable.record)
        return "compiled" if built else "from the cache"


COMPILATIONS: list[list[Compilation]] = []  # of those who watch


@contextmanager
def compilations() -> Iterator[list[Compilation]]:
    """What is compiled while the block runs."""
    found: list[Compilation] = []
    COMPILATIONS.append(found)
    try:
        yield found
    finally:
        COMPILATIONS.remove(found)


def note(c: Compilation) -> None:
    """Tell those who watch."""
    for seen in COMPILATIONS:
        seen.append(c)


_MODES = ("target", "numerics", "ts.checked", "static arguments", "device")


def reason(names: Sequence[str], before: Sequence[Any], now: Any) -> str:
    """Why a function was compiled: what no variant so far was made for."""
    if not before:
        return "first call"
    (modes, types), (last_modes, last_types) = now, before[-1]
    changed = [w for w, a, b in zip(_MODES, modes, last_modes, strict=True) if a != b]
    said = [f"{w} changed" for w in changed]
    if len(types) != len(last_types):
        said.append(f"{len(types)} tensors where there were {len(last_types)}")
    else:
        pairs = zip(names, types, last_types, strict=True)
        said += [f"{n} is {a} and was {b}" for n, a, b in pairs if a is not b][:2]
    return "again: " + ("; ".join(said) or "another structure of arguments")
