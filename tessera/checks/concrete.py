"""Kernels at concrete sizes: which sizes to try, which instances, what they touch, and running them.

Positions depend on sizes, instance and loops alone, never on data, so that boxes are listed without
running anything; gathers and scatters are seen by the interpreter only.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from random import Random
from typing import Any

import numpy as np

from tessera.core.dims import Dim, Size, symbols
from tessera.core.dtype import DType
from tessera.core.errors import VerifyError
from tessera.ir.tile.interp import Instance, Watch
from tessera.ir.tile.ir import Block, Kernel, Memory, Operation, walk

Array = np.ndarray[Any, np.dtype[Any]]
Env = dict[str, int]

MOST_ELEMENTS = 1 << 24  # of all parameters together, where arrays are made
_INSTANCES = 40  # of a grid, at its ends and between: bounds the work, not measured
_TRIPS = 12  # of a loop, at its start: bounds the work, not measured
_OPERATIONS = 20_000  # of an instance whose loops data end
_CODE: dict[Dim, Callable[..., int]] = {}


class _TimeSpent(Exception):
    """An instance has run for long enough."""


def value(x: Size, env: Mapping[str, int]) -> int:
    """A size where all of its symbols are known."""
    if isinstance(x, int):
        return x
    code = _CODE.get(x)
    if code is None:
        names = ", ".join(sorted(symbols(x)))
        code = _CODE[x] = eval(f"lambda {names}, **_: {x}", {"max": max, "min": min})
    return code(**env)


def try_sizes(kernel: Kernel, known: Mapping[str, int] | None, count: int = 24) -> Iterator[Env]:
    """Values of the sizes to look at: those that are known, or small ones and those near blocks."""
    names = [n for n in kernel.sizes if n not in (known or {})]
    if not names:
        yield dict(known or {})
        return
    wanted, random = _interesting(kernel), Random(0)
    alike = ({**dict.fromkeys(names, n), **(known or {})} for n in wanted)
    yield from islice((s for s in alike if _is_possible(kernel, s)), max(count // 2, 4))
    if len(names) > 1:
        for _ in range(count):
            some = {**{n: random.choice(wanted) for n in names}, **(known or {})}
            if _is_possible(kernel, some):
                yield some


def _is_possible(kernel: Kernel, sizes: Env) -> bool:
    """Whether a call may have these sizes: nothing has less than no elements."""
    shapes = [n for m in kernel.parameters for n in m.type.shape]
    return all(value(n, sizes) >= 0 for n in (*shapes, *(n for _, n in kernel.grid)))


def _interesting(kernel: Kernel) -> list[int]:
    """Sizes about the blocks of a kernel, small ones first."""
    found = {1, 2, 3, 5, 8, 17}
    for op in walk(kernel.body):
        steps = [op.attributes["step"]] if op.name == "for" else op.attributes.get("extent", ())
        for n in steps:
            found |= {n - 1, n, n + 1, 2 * n + 1} if n > 1 else set()
    return sorted(n for n in found if 1 <= n <= 300)


def instances(kernel: Kernel, sizes: Env, most: int = _INSTANCES) -> list[Env]:
    """Instances of the grid: all, or the first, the last and some between."""
    counts = [value(n, sizes) for _, n in kernel.grid]
    names = [name for name, _ in kernel.grid]
    total = math.prod(counts)
    if total <= 0:
        return []
    numbers = range(total) if total <= most else _some(total, counts, most)
    return [dict(zip(names, map(int, np.unravel_index(i, counts)), strict=True)) for i in numbers]


def _some(total: int, counts: Sequence[int], most: int) -> list[int]:
    """Neighbours along every axis from the first and to the last instance, and random ones."""
    steps = [math.prod(counts[i + 1 :]) for i in range(len(counts))]
    near = {0, total - 1}
    for step, n in zip(steps, counts, strict=True):
        near |= {i * step for i in range(min(n, 4))} | {
            total - 1 - i * step for i in range(min(n, 3))
        }
    rng = Random(1)
    while len(near) < most:
        near.add(rng.randrange(total))
    return sorted(near)


@dataclass(frozen=True)
class InstanceEvent:
    """An operation as an instance meets it; boxes are first and last elements, before masking."""

    op: Operation
    env: Mapping[str, int]
    low: tuple[int, ...] = ()
    high: tuple[int, ...] = ()

    def loops(self, grid: Sequence[str]) -> dict[str, int]:
        """The loop variables."""
        return {k: v for k, v in self.env.items() if k.startswith("_") and k not in grid}


def events(
    kernel: Kernel, sizes: Env, instance: Env, trips: int | None = _TRIPS
) -> Iterator[InstanceEvent]:
    """What an instance does in memory, in order; of long loops only the first and last iterations."""
    yield from _events(kernel.body, {**sizes, **instance}, trips)


def _events(block: Block, env: Env, trips: int | None) -> Iterator[InstanceEvent]:
    for op in block.operations:
        if op.block is not None:
            a = op.attributes
            counter = range(value(a["start"], env), value(a["stop"], env), a["step"])
            if a.get("bounded") or a.get("going"):
                counter = counter[:_TRIPS]  # data end it, after an unknown number of rounds
            for i in _chosen(counter, trips):
                yield from _events(op.block, {**env, a["variable"]: i}, trips)
        elif (op.memory is not None and op.name != "prefetch") or op.traits.orders:
            a = op.attributes
            low = tuple(value(x, env) for x in a.get("at", ()))
            high = tuple(x + n - 1 for x, n in zip(low, a.get("extent", ()), strict=True))
            yield InstanceEvent(op, env, low, high)


def _chosen(counter: range, trips: int | None) -> Sequence[int]:
    if trips is None or len(counter) <= trips:
        return counter
    half = trips // 2
    return [*counter[:half], *counter[-half:]]


def shape_at(m: Memory, sizes: Mapping[str, int]) -> tuple[int, ...]:
    """The shape of a memory at these sizes."""
    return tuple(value(n, sizes) for n in m.type.shape)


def clipped(e: InstanceEvent, sizes: Env) -> Any:
    """The elements that a box touches, as slices of its memory."""
    assert e.op.memory is not None
    shape = shape_at(e.op.memory, sizes)
    return tuple(
        slice(max(lo, 0), max(min(hi + 1, n), lo, 0))
        for lo, hi, n in zip(e.low, e.high, shape, strict=True)
    )


def arrays_for(kernel: Kernel, sizes: Env, seed: int = 0) -> list[Array] | None:
    """Arguments of these sizes, with random numbers; None when they would be too large."""
    shapes = [shape_at(m, sizes) for m in kernel.parameters]
    if sum(math.prod(s) for s in shapes) > MOST_ELEMENTS or any(n < 0 for s in shapes for n in s):
        return None
    rng = np.random.default_rng(seed)
    # Numbers that may end loops are about as large as sizes: others would make them run for hours.
    most = 2 * max((n for s in shapes for n in s), default=0) + 2 if ends_by_data(kernel) else None
    return [
        np.zeros(s, m.type.dtype.np) if m.writable else random_array(s, m.type.dtype, rng, most)
        for s, m in zip(shapes, kernel.parameters, strict=True)
    ]


def ends_by_data(kernel: Kernel) -> bool:
    """Whether data say how many rounds a loop has."""
    return any(
        op.attributes.get("bounded") or op.attributes.get("going") for op in walk(kernel.body)
    )


def random_array(
    shape: Sequence[int], dtype: DType, rng: np.random.Generator, most: int | None = None
) -> Array:
    """Numbers of a dtype: small floats, integers of the whole range, or up to some number."""
    if dtype.kind in "iu" and most is not None:
        top = min(most, (1 << (dtype.bits - 1)) - 1)
        return rng.integers(-top if dtype.kind == "i" else 0, top + 1, shape).astype(dtype.np)
    if dtype.kind == "b":
        return rng.integers(0, 2, shape).astype(bool)
    if dtype.kind in "iu":
        bits = min(dtype.bits, 31) - (dtype.kind == "i")
        low = -(1 << bits) if dtype.kind == "i" else 0
        return rng.integers(low, 1 << bits, shape).astype(dtype.np)
    return rng.standard_normal(shape).astype(dtype.np)


def run_instance(
    kernel: Kernel,
    sizes: Env,
    instance: Env,
    arrays: Sequence[Array],
    watch: Watch | None = None,
    stopped: list[Operation] | None = None,
) -> VerifyError | None:
    """Run one instance in the interpreter; the error of an access that it refuses, and which it is."""
    memories = dict(zip(kernel.parameters, arrays, strict=True))
    left = [_OPERATIONS]

    def watched(op: Operation, i: Instance, results: Any) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise _TimeSpent
        if watch is not None:
            watch(op, i, results)

    with np.errstate(all="ignore"):
        limited = watched if ends_by_data(kernel) else watch
        made = Instance({**sizes, **instance}, dict(memories), limited)
        try:
            made.block(kernel.body, ())
            made.finish()
        except _TimeSpent:
            return None
        except VerifyError as e:
            if stopped is not None and made.current is not None:
                stopped.append(made.current)
            return e
    return None


def shown(sizes: Env, instance: Env, **more: Any) -> dict[str, Any]:
    """A witness: sizes, then the instance, then more."""
    out: dict[str, Any] = dict(sizes)
    if instance:
        out["instance"] = tuple(instance.values())
    return {**out, **more}
