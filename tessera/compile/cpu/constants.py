"""Steps that read constants alone: they run once, when a program first runs.

    image: x, w -> packed = pack(w); y = conv(x, packed)
->  once: w -> packed            every call: x, packed -> y

A constant is a captured array that nobody can write to.  Memory that is borrowed may change, and is read at
each call (docs/decisions/026-tensors-are-values.md).  A result stays if it is not much larger than what it
is made of.
"""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tessera.compile.artifact import Image, KernelCall
from tessera.core.dims import symbols_within
from tessera.ir.schedule.ir import HostCall
from tessera.ir.schedule.memory import size_of

_GROWTH = (
    4  # times what a step reads that its results may take: packed panels and widened formats do
)
_SMALL = 1 << 16  # bytes that results may take in any case


def is_constant(x: Any) -> bool:
    """Whether nobody can write to the memory of an array: it and all it is a view of are read-only."""
    while isinstance(x, np.ndarray):
        if x.flags.writeable:
            return False
        base: Any = x.base
        x = base.obj if isinstance(base, memoryview) else base
    if isinstance(x, mmap.mmap):
        return memoryview(x).readonly
    return x is None or isinstance(x, bytes)


@dataclass(frozen=True)
class Split:
    """A program in two parts: what runs once, and what runs at each call.

    Each part reads the captured arrays with its numbers; the second one reads the results of the first after
    them.
    """

    once: Image
    constants: tuple[int, ...]
    each: Image
    kept: tuple[int, ...]


def split(image: Image, given: int, constant: Sequence[bool]) -> Split | None:
    """The parts of an image whose inputs from `given` on are captured; None if every step needs all calls."""
    captured = image.inputs[given:]
    known = {n for n, c in zip(captured, constant, strict=True) if c}
    early: list[KernelCall | HostCall] = []
    late: list[KernelCall | HostCall] = []
    loops: dict[int, int] = {}
    for i, s in enumerate(image.steps):
        reads, writes = _wired(s)
        if known.issuperset(reads) and i not in image.loops and _stays(image, s, reads, writes):
            early.append(s)
            known.update(writes)
            continue
        if i in image.loops:
            loops[len(late)] = image.loops[i]
        late.append(s)
    made = {n for s in early for n in _wired(s)[1]}
    wanted = {n for s in late for n in _wired(s)[0]} | set(image.outputs)
    results = tuple(n for n in image.buffers if n in made & wanted)
    if not results:
        return None
    used = {n for s in early for n in _wired(s)[0]}
    constants = tuple(i for i, n in enumerate(captured) if n in used)
    kept = tuple(i for i, n in enumerate(captured) if n in wanted)
    once = replace(
        image, steps=tuple(early), inputs=tuple(captured[i] for i in constants), outputs=results,
        tables=(), loops={},
    )  # fmt: skip
    inputs = (*image.inputs[:given], *(captured[i] for i in kept), *results)
    return Split(
        once,
        constants,
        replace(image, steps=tuple(late), inputs=inputs, tables=(), loops=loops),
        kept,
    )


def _wired(s: KernelCall | HostCall) -> tuple[Sequence[str], Sequence[str]]:
    return (s.operands, s.results) if isinstance(s, HostCall) else (s.inputs, s.outputs)


def _stays(
    image: Image, s: KernelCall | HostCall, reads: Sequence[str], writes: Sequence[str]
) -> bool:
    """Whether a step of constants gives the same at each call, and its results are worth their memory."""
    if isinstance(s, HostCall):
        if s.node.regions or s.node.op.effects or symbols_within(s.node.params.values()):
            return False
    elif image.kernels[s.kernel].sizes:
        return False
    types = [image.buffers[n] for n in (*reads, *writes)]
    if not all(t.static for t in types) or not set(writes).isdisjoint(image.outputs):
        return False
    size = sum(size_of(image.buffers[n]) for n in writes)
    return size <= max(_GROWTH * sum(size_of(image.buffers[n]) for n in reads), _SMALL)
