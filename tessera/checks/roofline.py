"""roofline: what a kernel computes and moves, and which of the two limits it on a machine."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

import numpy as np

from tessera.checks.concrete import shape_at, value
from tessera.checks.findings import Finding, Verdict, finding
from tessera.core.costs import COSTS
from tessera.core.dot_words import PARTS
from tessera.core.processor import registers
from tessera.ir.tile.ir import Block, Kernel, Memory, Operation

TOOL = "roofline"


@dataclass(frozen=True)
class RooflineMachine:
    """What a machine can do at best: operations and bytes in a second."""

    name: str
    flops: float  # of f32, fused multiply-adds counted twice
    bandwidth: float  # of main memory
    cache: float = 8 << 20  # bytes that stay close to the cores


# Of data sheets: dense matrix products of bf16, memory, second-level cache.
MACHINES = {
    "h200": RooflineMachine("h200", 989e12, 4.8e12, 50 << 20),
    "h100": RooflineMachine("h100", 989e12, 3.35e12, 50 << 20),
    "a100": RooflineMachine("a100", 312e12, 2.0e12, 40 << 20),
    "mi300x": RooflineMachine("mi300x", 1307e12, 5.3e12, 256 << 20),
}
_FREE = frozenset(("where", "pos", "real", "conj", "copysign", "neg", "abs"))


@dataclass(frozen=True)
class LaunchWork:
    """What a launch of a kernel does."""

    flops: float
    bytes: float  # that must come from memory and go there: every parameter that is touched, once
    moved: float  # that loads and stores of parameters move in all

    @property
    def intensity(self) -> float:
        """Operations for each byte."""
        return self.flops / max(self.bytes, 1)


@cache
def this_machine() -> RooflineMachine:
    """This machine, measured for a moment: one product of matrices and one copy."""
    n, words = 384, 1 << 22
    a, b = np.ones((n, n), np.float32), np.ones((n, n), np.float32)
    x, y = np.ones(words, np.float32), np.empty(words, np.float32)
    product = min(_seconds(lambda: a @ b) for _ in range(4))
    copy = min(_seconds(lambda: np.copyto(y, x)) for _ in range(4))
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1
    # A multiply-add of one vector a cycle at 2 GHz: a measurement under load may show less.
    least = 2e9 * registers().bytes / 4 * 2
    return RooflineMachine(
        f"this machine, {cores} cores", max(2 * n**3 / product, least), 8 * words / copy
    )


def _seconds(f: object) -> float:
    start = time.perf_counter()
    f()  # type: ignore[operator]
    return max(time.perf_counter() - start, 1e-9)


def work(kernel: Kernel, sizes: Mapping[str, int]) -> LaunchWork:
    """Operations and bytes of all instances at these sizes."""
    counts = [value(n, sizes) for _, n in kernel.grid]
    total = math.prod(counts)
    # The middle instance stands for all: the first and the last have borders.
    middle = {name: n // 2 for (name, _), n in zip(kernel.grid, counts, strict=True)}
    flops, moved, touched = _block(kernel.body, {**sizes, **middle})
    once = sum(
        math.prod(shape_at(m, sizes)) * m.type.dtype.itemsize
        for m in kernel.parameters
        if m in touched
    )
    return LaunchWork(flops * total, min(once, moved * total) or once, moved * total)


Sum = tuple[float, float, set[Memory]]


def _block(block: Block, env: dict[str, int]) -> Sum:
    flops, moved, touched = 0.0, 0.0, set[Memory]()
    for op in block.operations:
        if op.block is not None:
            f, m, t, trips = *_block(op.block, _middle(op, env)), _trips(op, env)
            f, m = f * trips, m * trips
            t = t if trips else set()
        else:
            f, m, t = _operation(op)
        flops, moved, touched = flops + f, moved + m, touched | t
    return flops, moved, touched


def _trips(op: Operation, env: dict[str, int]) -> int:
    a = op.attributes
    return len(range(value(a["start"], env), value(a["stop"], env), a["step"]))


def _middle(op: Operation, env: dict[str, int]) -> dict[str, int]:
    a = op.attributes
    trips = range(value(a["start"], env), value(a["stop"], env), a["step"])
    return {**env, a["variable"]: trips[len(trips) // 2] if trips else trips.start}


def _operation(op: Operation) -> Sum:
    if op.traits.reads or op.traits.writes:
        m = op.memory
        assert m is not None
        tile = op.results[0] if op.traits.reads else op.operands[0]
        if m.space != "global":
            return 0.0, 0.0, set()
        return 0.0, math.prod(tile.shape) * m.type.dtype.itemsize, {m}
    return _flops(op), 0.0, set()


def _flops(op: Operation) -> float:
    if op.name == "dot":
        (m, k), n = op.operands[0].shape, op.operands[1].shape[1]
        return float(2 * m * k * n)
    if op.name == "dot_words":
        (m, k), n = op.operands[0].shape, op.operands[1].shape[1]
        return float(2 * PARTS[op.attributes["left"]] * m * k * n)
    if op.name == "dot_parts":
        return float(2 * op.attributes["parts"] * math.prod(op.results[0].shape))
    if op.name in ("fold", "scan"):
        return float(math.prod(op.operands[0].shape))
    if op.name != "apply" or op.attributes["scalar"] in _FREE:
        return 0.0
    return float(COSTS.get(op.attributes["scalar"], 1) * math.prod(op.results[0].shape))


def check_roofline(
    kernel: Kernel, sizes: Mapping[str, int], machine: RooflineMachine | str | None = None
) -> Verdict:
    """Say what limits a kernel at these sizes, and how much of the machine it can reach."""
    known = MACHINES[machine] if isinstance(machine, str) else machine
    m = known or this_machine()
    w = work(kernel, sizes)
    ridge = m.flops / m.bandwidth
    bound = "memory" if w.intensity < ridge else "arithmetic"
    reach = min(w.intensity / ridge, 1.0)
    seconds = max(w.flops / m.flops, w.bytes / m.bandwidth)
    note = (
        f"{w.flops:.3g} operations on {w.bytes:.3g} bytes, {w.intensity:.2g} a byte "
        f"(balance {ridge:.2g}): bound by {bound}, {reach:.0%} of the peak of {m.name} at best, "
        f"{seconds * 1e6:.3g} us"
    )
    return Verdict(TOOL, kernel.name, findings=tuple(_hints(kernel, w, m)), note=note)


def _hints(kernel: Kernel, w: LaunchWork, m: RooflineMachine) -> list[Finding]:
    again = w.moved / max(w.bytes, 1)
    if again < 4 or w.moved / m.bandwidth < w.flops / m.flops or w.bytes < m.cache:
        return []
    return [finding(
        TOOL, "hint", kernel.name, None,
        f"loads and stores move {w.moved:.3g} bytes, {again:.0f} times what the tensors hold",
        {"flops": w.flops, "bytes": w.bytes, "moved": w.moved},
        "larger tiles, so that what is loaded is used more often",
    )]  # fmt: skip
