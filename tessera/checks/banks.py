"""banks: how often the threads of a warp meet in one bank of shared memory.

Shared memory has 32 banks of 4 bytes, and each gives one word at a time.  The elements of a tile go
to threads in row-major order, `vector` neighbours to each; an access of 4 bytes a thread is made by 32
threads at once, of 8 bytes by 16 and of 16 bytes by 8.  The degree of an access is the number of
different words that its worst bank must give in one such turn.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tessera.checks.concrete import (
    Array,
    Env,
    InstanceEvent,
    events,
    instances,
    shape_at,
    try_sizes,
)
from tessera.checks.findings import Finding, Verdict, finding
from tessera.ir.tile.ir import Kernel, Memory, Operation

TOOL = "banks"
BANKS, WORD, WARP = 32, 4, 32


@dataclass(frozen=True)
class Swizzle:
    """Places within a memory: `bits` of the number of a chunk of `chunk` elements are xored.

    Chunks are numbered along the last axis and xored with the row: (row // every) mod 2**bits.
    """

    bits: int = 3
    chunk: int = 4
    every: int = 1

    def place(self, rows: Array, columns: Array) -> Array:
        """The column that an element moves to."""
        number, inside = np.divmod(columns, self.chunk)
        moved = number ^ ((rows // self.every) & ((1 << self.bits) - 1))
        return np.asarray(moved * self.chunk + inside)


@dataclass(frozen=True)
class BankLayout:
    """How a shared memory is laid out and accessed."""

    swizzle: Swizzle | None = None
    vector: int = 1  # elements that a thread takes at once


def check_banks(
    kernel: Kernel,
    sizes: Mapping[str, int] | None = None,
    layouts: Mapping[str, BankLayout] | BankLayout | None = None,
) -> Verdict:
    """Name every access of shared memory whose threads meet in a bank, with the degree."""
    shared = [m for m in kernel.scratch() if m.space == "shared"]
    if not shared:
        return Verdict(TOOL, kernel.name, note="no shared memory")
    worst: dict[Operation, tuple[int, InstanceEvent, Env]] = {}
    for env in _few(try_sizes(kernel, sizes)):
        for instance in instances(kernel, env, 2):
            for e in events(kernel, env, instance, 4):
                if e.op.memory not in shared or not e.low or "picked" in e.op.attributes:
                    continue
                d = degree(e.op, e.low, shape_at(e.op.memory, env), layout_of(e.op.memory, layouts))
                if d > worst.get(e.op, (0,))[0]:
                    worst[e.op] = d, e, env
    found = [_finding(kernel, op, d, e, env) for op, (d, e, env) in worst.items() if d > 1]
    return Verdict(TOOL, kernel.name, len(worst) - len(found), (), tuple(found))


def _few(sizes: Iterable[Env]) -> list[Env]:
    """The largest of the sizes to try: banks repeat, so that a few tell all."""
    return sorted(sizes, key=lambda s: sum(s.values()))[-2:]


def layout_of(m: Memory, layouts: Mapping[str, BankLayout] | BankLayout | None) -> BankLayout:
    """The layout of a memory by its name; plain rows unless given."""
    if isinstance(layouts, BankLayout):
        return layouts
    return (layouts or {}).get(m.name, BankLayout())


def degree(op: Operation, low: Sequence[int], shape: Sequence[int], layout: BankLayout) -> int:
    """The conflict degree of an access whose box begins at `low`: 1 is free of conflicts."""
    assert op.memory is not None
    size = op.memory.type.dtype.itemsize
    places = _places(op, low, shape, layout)
    vector = _vector(places, layout.vector, size)
    threads = places[: len(places) // vector * vector].reshape(-1, vector)
    if not len(threads):
        threads = places.reshape(1, -1)
    together = max(WARP * WORD // max(math.ceil(vector * size), WORD), 1)
    worst = 1
    for start in range(0, len(threads), together):
        words = np.unique((threads[start : start + together] * size // WORD).astype(np.int64))
        worst = max(worst, int(np.bincount(words % BANKS).max()))
    return worst


def _places(op: Operation, low: Sequence[int], shape: Sequence[int], layout: BankLayout) -> Array:
    """The number of each element of the tile in its memory, in the order of the tile."""
    a = op.attributes
    extent = [a["extent"][axis] for axis in a["axes"]]
    grid = np.indices(extent).reshape(len(extent), -1)
    own = dict(zip(a["axes"], grid, strict=True))
    index = [own.get(axis, 0) + at for axis, at in enumerate(low)]
    if layout.swizzle is not None and len(shape) > 1:
        rows = np.zeros(1, np.int64)
        for n, i in zip(shape[:-1], index[:-1], strict=True):
            rows = rows * n + i
        index[-1] = layout.swizzle.place(rows, np.asarray(index[-1]))
    flat = np.zeros(max(math.prod(extent), 1), np.int64)
    for n, i in zip(shape, index, strict=True):
        flat = flat * n + i
    return flat


def _vector(places: Array, wanted: int, size: float) -> int:
    """Elements that a thread takes at once: neighbours in memory, whole and aligned, 16 bytes at most."""
    vector = min(wanted, max(int(16 // size), 1), len(places))
    while vector > 1:
        whole = places[: len(places) // vector * vector].reshape(-1, vector)
        lines = (np.diff(whole, axis=1) == 1).all() and not (whole[:, 0] % vector).any()
        if lines and len(places) % vector == 0:
            break
        vector -= 1
    return vector


def _finding(kernel: Kernel, op: Operation, d: int, e: InstanceEvent, env: Env) -> Finding:
    assert op.memory is not None
    shape = shape_at(op.memory, env)
    padded = [*shape[:-1], shape[-1] + max(1, round(WORD / op.memory.type.dtype.itemsize))]
    return finding(
        TOOL, "warning", kernel.name, op,
        f"{op.name} of {op.memory} meets {d} times in a bank: it takes {d} turns where 1 would do",
        {**env, "at": list(e.low), "degree": d},
        f"pad the rows ({padded}), swizzle the memory, or access its last axis in order",
        confirmed=True,
    )  # fmt: skip
