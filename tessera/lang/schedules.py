"""Schedules of a whole program: one for each kernel, by the names that f.lower(...).schedule has.

    {"f_0": block(64, 64), "f_1": "parallel r0:8, r0:1, c:64, unroll l:4, vector c:16"}

A file has the same as JSON: {"f_0": {"block": [64, 64]}, "f_1": {"nest": "parallel r0:8, ..."}}.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tessera.core.errors import ScheduleError
from tessera.ir.schedule.nests.nest import parse_nest
from tessera.lang.schedule import Fluent, Schedule, as_schedule

Schedules = tuple[tuple[str, str], ...]  # names of kernels, and settings as JSON


def schedules_of(given: Any) -> Schedules:
    """What jit was given: schedules or nests by the names of kernels, or a file of them."""
    if given is None:
        return ()
    if isinstance(given, str | os.PathLike):
        given = _of_file(Path(given))
    if not isinstance(given, Mapping):
        raise ScheduleError(
            f"jit: schedules is {type(given).__name__} {given!r:.40}, expected schedules by the names of "
            'kernels, as in {"f_0": block(64, 64)}, or the path of a file'
        )
    return tuple((str(n), settings(f"jit: schedules[{n!r}]", x)) for n, x in sorted(given.items()))


def settings(what: str, x: Any) -> str:
    """The settings of a schedule, or of the text of a nest, as JSON."""
    if isinstance(x, str):
        parse_nest(x)
        return json.dumps({"nest": x})
    if isinstance(x, Mapping):
        if set(x) == {"nest"} and isinstance(x["nest"], str):
            return settings(what, x["nest"])
        x = Schedule.from_dict(x)
    if not isinstance(x, Schedule | Fluent):
        raise ScheduleError(
            f"{what} is {type(x).__name__} {x!r:.40}, expected a Schedule, as in block(64, 64), or the "
            "text of a nest"
        )
    said = as_schedule(x).to_dict()
    if not said:
        raise ScheduleError(f"{what} says nothing; name a block, as in block(64, 64)")
    return json.dumps(said, sort_keys=True)


def _of_file(path: Path) -> Mapping[str, Any]:
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError) as e:
        raise ScheduleError(f"jit: schedules: {path} cannot be read: {e}") from None
    if not isinstance(found, dict) or not all(isinstance(x, dict) for x in found.values()):
        raise ScheduleError(
            f"jit: schedules: {path} holds no schedules, expected JSON such as "
            '{"f_0": {"block": [64, 64]}}'
        )
    return found


def save(path: str | os.PathLike[str], nests: Mapping[str, str]) -> None:
    """Write the nests of kernels to a file that jit(schedules=path) reads."""
    whole = {name: {"nest": text} for name, text in nests.items()}
    Path(path).write_text(json.dumps(whole, indent=1) + "\n")
