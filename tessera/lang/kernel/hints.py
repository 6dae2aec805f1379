"""hints: what a kernel or its schedule asks of a target beside its results, and what a target makes of it.

A hint acts, or the target has nothing that it could change: then it is reported (ts.check, f.hints), never
dropped in silence.  A value that no target takes is an error where it is written.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from tessera.lang.kernel.table import Program
from tessera.lang.kernel.values import KernelError
from tessera.lang.schedule import Schedule, setting_error

OF_LOADS = ("vector", "stages", "swizzle", "prefetch")
MOST_AHEAD = 16  # rounds that a prefetch may look ahead

# What a target lacks to follow a hint; what is not named here acts.
_CPU = {
    "warps": "a CPU has no warps", "stages": "loads of a CPU are not asynchronous",
    "vector": "the compiler chooses vectors", "swizzle": "a CPU has no shared memory",
}  # fmt: skip
_GPU = {
    "vector": "Triton chooses the width of accesses", "swizzle": "Triton lays out shared memory",
    "tile.prefetch": "stages overlap loads",
}  # fmt: skip
LACKS: Mapping[str, Mapping[str, str]] = {"cpu": _CPU, "cuda": _GPU, "hip": _GPU}


def note(p: Program, hints: Mapping[str, Any], known: Iterable[str] = OF_LOADS) -> int | None:
    """Record the hints of a call, and return how many rounds ahead its tiles are asked for."""
    known = tuple(known)
    unknown = set(hints) - set(known)
    if unknown:
        raise KernelError(
            f"there is no hint {', '.join(sorted(unknown))}; there are {', '.join(known)}"
        )
    given = {n: x for n, x in hints.items() if x is not None}
    for name, x in given.items():
        wrong = _ahead_error(x) if name == "prefetch" else setting_error(name, x)
        if wrong is not None:
            raise KernelError(f"hint {name} is {x!r}, expected {wrong}")
    p.hints += given.items()
    return given.get("prefetch")


def _ahead_error(x: Any) -> str | None:
    whole = isinstance(x, int) and not isinstance(x, bool)
    return None if whole and 0 <= x <= MOST_AHEAD else f"a whole number from 0 to {MOST_AHEAD}"


def unused(hints: Iterable[tuple[str, Any]], schedule: Schedule, target: str) -> list[str]:
    """What a target does not follow, each with its reason."""
    said = {n for n in ("warps", "stages", "vector", "swizzle") if getattr(schedule, n) is not None}
    said |= {n for n, x in hints if x != "none"}
    lacks = LACKS[target]
    return [f"{n} ({lacks[n]})" for n in sorted(said) if n in lacks]


def threads(hints: Iterable[tuple[str, Any]], schedule: Schedule) -> tuple[int, int] | None:
    """Warps and stages on a GPU: of the schedule, or stages as deep as loads ask for."""
    deep = [x + (n == "prefetch") for n, x in hints if n in ("stages", "prefetch")]
    if schedule.stages is None and deep:
        return schedule.with_stages(max(deep)).threads
    return schedule.threads
