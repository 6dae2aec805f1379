"""The nests that the tuner has found, for the kernels that they were found for."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import replace

from tessera.compile.cpu.forms import form_of, sizes_of
from tessera.core.errors import ScheduleError
from tessera.core.types import TensorType
from tessera.ir.schedule.ir import Kernel, Program
from tessera.ir.schedule.nests.legality import is_legal
from tessera.ir.schedule.nests.nest import parse_nest
from tessera.runtime import tuned


def tuned_nests(p: Program, sizes: Mapping[str, int] | None = None) -> Program:
    """The program whose kernels have the nests that the tuner found, at these sizes if any are given."""
    found = tuned.entries()
    if not found:
        return p
    types = {n: b.type for n, b in p.buffers.items()}
    steps = [_tuned(s, types, sizes or {}, found) if isinstance(s, Kernel) else s for s in p.steps]
    return replace(p, steps=tuple(steps))


def _tuned(
    k: Kernel, types: Mapping[str, TensorType], sizes: Mapping[str, int],
    found: Mapping[tuple[str, str], str],
) -> Kernel:  # fmt: skip
    own = {n: sizes[n] for n in sizes_of(k, types) if n in sizes}
    name = identity(k, types)
    text = found.get((name, tuned.size_class(own)))
    if text is None:
        return k
    try:
        nest = parse_nest(text)
    except ScheduleError:  # of another version
        return k
    if not is_legal(k, nest):
        return k
    tuned.take(name)
    return replace(k, nest=nest)


def identity(k: Kernel, types: Mapping[str, TensorType]) -> str:
    """What a kernel is known by to the tuner: SHA-256 of its form without a nest."""
    return hashlib.sha256(form_of(replace(k, nest=None), types).encode()).hexdigest()
