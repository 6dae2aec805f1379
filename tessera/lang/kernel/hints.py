"""hints: what a kernel or its schedule asks of a target beside its results, and what a target makes of it.

A hint acts, or the target has nothing that it could change: then a call there is an error that names both.
f.hints and ts.check say so before.  A value that no target takes is an error where it is written.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from tessera.core.errors import ScheduleError
from tessera.core.processor import machine
from tessera.lang.kernel.table import IntrinsicContext
from tessera.lang.kernel.values import KernelError
from tessera.lang.schedule import Schedule, Space, setting_error

OF_LOADS = ("vector", "stages", "swizzle", "prefetch")
MOST_AHEAD = 16  # rounds that a prefetch may look ahead

# What a target lacks to follow a hint; what is not named here acts.
_CPU = {
    "warps": "a CPU runs a block in one thread",
    "swizzle": "a CPU has no shared memory",
    "tma": "a CPU has no copy engine",
    "specialise": "a CPU runs a block in one thread",
    "registers": "a CPU has the registers that it has",
}
_GPU = {
    "swizzle": "Triton lays out shared memory, and swizzles it by itself",
    "tile.prefetch": "Triton has no prefetch; prefetch=1 of a load or of a range overlaps rounds",
}
_AMD = _GPU | {
    "tma": "AMD GPUs have no copy engine for tiles",
    "specialise": "Triton gives no roles to the warps of AMD GPUs",
    "registers": "Triton sets no limit on AMD GPUs",
}
LACKS: Mapping[str, Mapping[str, str]] = {"numpy": _CPU, "cpu": _CPU, "cuda": _GPU, "hip": _AMD}
OF_SCHEDULES = ("warps", "stages", "vector", "swizzle", "tma", "specialise", "registers")
_INSTEAD = {
    "warps": "give it to GPUs alone, as in kernel.schedule(block(64), gpu=block(64).warps(8))",
    "tma": "give it to GPUs alone, as in kernel.schedule(block(64), gpu=block(64).tma())",
    "specialise": "give it to GPUs alone, as in kernel.schedule(block(64), gpu=block(64).specialise())",
    "registers": "give it to GPUs alone, as in kernel.schedule(block(64), gpu=block(64).registers(128))",
}


def note(
    p: IntrinsicContext, hints: Mapping[str, Any], known: Iterable[str] = OF_LOADS
) -> int | None:
    """Record the hints of a call, and return how many rounds ahead its tiles are asked for."""
    known = tuple(known)
    unknown = set(hints) - set(known)
    if unknown:
        raise KernelError(
            f"there is no hint {', '.join(sorted(unknown))}; there are {', '.join(known)}"
            + ("; what lies outside is fill=" if "other" in unknown else "")
        )
    given = {n: x for n, x in hints.items() if x is not None}
    for name, x in given.items():
        wrong = _ahead_error(x) if name == "prefetch" else setting_error(name, x)
        if wrong is not None:
            raise KernelError(f"hint {name} is {x!r}, expected {wrong}")
    p.hints += given.items()
    return given.get("prefetch", given["stages"] - 1 if "stages" in given else None)


def _ahead_error(x: Any) -> str | None:
    whole = isinstance(x, int) and not isinstance(x, bool)
    return None if whole and 0 <= x <= MOST_AHEAD else f"a whole number from 0 to {MOST_AHEAD}"


def unused(hints: Iterable[tuple[str, Any]], schedule: Schedule, target: str) -> list[str]:
    """What a target refuses, each with its reason."""
    lacks = LACKS[target]
    hints = list(hints)
    found = [f"{n} ({lacks[n]})" for n in _lacking(hints, schedule, target)]
    return found + [f"assembly ({why})" for why in _without_text(hints, target)]


def _without_text(hints: Iterable[tuple[str, Any]], target: str) -> list[str]:
    """Why a target cannot run the inline assembly of a kernel; what is interpreted runs its reference."""
    own = {"cpu": machine(), "cuda": "ptx", "hip": "amdgcn"}.get(target)
    contracts = dict.fromkeys(c for n, c in hints if n == "assembly")
    lacking = [] if own is None else [c.lacks(own) for c in contracts]
    return [why for why in lacking if why is not None]


def _lacking(hints: Iterable[tuple[str, Any]], schedule: Schedule, target: str) -> list[str]:
    said = {n for n in OF_SCHEDULES if getattr(schedule, n) not in (None, False)}
    said |= {n for n, x in hints if x != "none"}
    return sorted(n for n in said if n in LACKS[target])


def refuse(name: str, hints: Iterable[tuple[str, Any]], schedule: Schedule, target: str) -> None:
    """Raise ScheduleError where a kernel or its schedule asks for what a target does not have."""
    hints = list(hints)
    for why in _without_text(hints, target):
        raise ScheduleError(f"{name}: {why}; give it one, or run the reference by ts.interpret()")
    for n in _lacking(hints, schedule, target):
        instead = _INSTEAD.get(n, "leave it out")
        raise ScheduleError(f"{name}: {n} does nothing on {target}: {LACKS[target][n]}; {instead}")


def space_of(space: Space, target: str) -> Space:
    """The part of a space that a target has: settings that it lacks are not searched."""
    return Space(tuple((n, x) for n, x in space.choices if n not in LACKS[target]))


def threads(hints: Iterable[tuple[str, Any]], schedule: Schedule) -> tuple[int, ...] | None:
    """Warps and stages on a GPU: of the schedule, or stages as deep as loads ask for."""
    deep = [x + (n == "prefetch") for n, x in hints if n in ("stages", "prefetch")]
    if schedule.stages is None and deep:
        return schedule.with_stages(max(deep)).threads
    return schedule.threads
