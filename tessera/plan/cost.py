"""Costs: products by roofline and waves of tiles, streaming kernels by bytes, collectives by latency and
bandwidth.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from tessera.plan.machine import Accelerator, Link, Machine

# Tiles of a result that libraries pick from, and the share of the full rate that each reaches.
TILES = ((128, 256, 1.0), (128, 128, 0.9), (64, 64, 0.6))
RAMP = 96  # elements of a sum that filling and draining the pipeline of a tile costs


@dataclass(frozen=True)
class MatrixProducts:
    """`count` products (m, k) by (k, n)."""

    m: float
    n: float
    k: float
    count: float = 1

    @property
    def flops(self) -> float:
        """Multiplications and additions."""
        return 2 * self.m * self.n * self.k * self.count

    def bytes(self, width: float) -> float:
        """What it reads and writes once."""
        return (self.m * self.k + self.k * self.n + self.m * self.n) * self.count * width


def product_time(
    p: MatrixProducts, device: Accelerator, dtype: str = "bf16", width: float = 2
) -> float:
    """Seconds of a product: the roofline, with the share of the peak that its tiles keep busy."""
    if min(p.m, p.n, p.k, p.count) <= 0:
        return 0.0
    best = max(_busy(p, rows, columns, device.units) * rate for rows, columns, rate in TILES)
    used = best * p.k / (p.k + RAMP)
    compute = p.flops / (device.peak(dtype) * device.product_efficiency * used)
    return max(compute, stream_time(p.bytes(width), device)) + device.launch


def _busy(p: MatrixProducts, rows: int, columns: int, units: int) -> float:
    """The share of multiprocessors that do useful work; half of an unfinished last wave is idle."""
    tiles = math.ceil(p.m / rows) * math.ceil(p.n / columns) * p.count
    waves = tiles / units
    return (
        p.m
        * p.n
        * p.count
        / (tiles * rows * columns)
        * waves
        / (waves + (math.ceil(waves) - waves) / 2)
    )


def stream_time(nbytes: float, device: Accelerator) -> float:
    """Seconds of kernels that read and write these bytes."""
    return nbytes / (device.bandwidth * device.memory_efficiency)


@dataclass(frozen=True)
class DeviceGroup:
    """Devices that take part in a collective: `size` of them, `stride` apart in the order of the machine."""

    size: int
    stride: int = 1


def spans(group: DeviceGroup, machine: Machine) -> Iterator[tuple[int, Link]]:
    """How many members of a group each level joins, with its link; levels that join one are left out."""
    below, left = 1, group.size
    for i, level in enumerate(machine.levels):
        above = below * level.size
        last = i == len(machine.levels) - 1
        reach = max(1, above // max(group.stride, below)) if group.stride < above else 1
        joined = left if last else min(left, reach)
        while left % joined:
            joined -= 1
        if joined > 1:
            yield joined, level.link
        left //= joined
        below = above


def collective_time(kind: str, nbytes: float, group: DeviceGroup, machine: Machine) -> float:
    """Seconds of a collective over a group, where each member holds `nbytes` of the whole tensor.

    all_reduce, all_gather, reduce_scatter and broadcast take the whole tensor's bytes, all_to_all those
    that a member sends.  Levels run one after another: scatter inside, reduce outside, gather inside.
    """
    if group.size == 1 or nbytes == 0:
        return 0.0
    total, part, inside = 0.0, float(nbytes), 1
    for n, link in spans(group, machine):
        speed = link.bandwidth * link.efficiency
        inside *= n
        # Trees for all_reduce, rings for the others, as NCCL has them: a ring passes this level once in each
        # group of those above.
        hops = math.ceil(math.log2(n)) if kind == "all_reduce" else (n - 1) * (group.size // inside)
        if kind == "all_to_all":
            total += nbytes * (inside - inside // n) / group.size / speed + (n - 1) * link.latency
        elif link.reduces and kind == "all_reduce":
            total += part / speed + 2 * link.latency
        else:
            rounds = 2 if kind == "all_reduce" else 1
            total += rounds * (part * (n - 1) / n / speed + hops * link.latency)
        part /= n
    return total


def link_between(stride: int, machine: Machine) -> Link:
    """The link between devices that lie this far apart in the order of the machine."""
    below = 1
    for level in machine.levels:
        below *= level.size
        if stride < below:
            return level.link
    return machine.levels[-1].link


def send_time(nbytes: float, stride: int, machine: Machine) -> float:
    """Seconds to send bytes from one device to another."""
    link = link_between(stride, machine)
    return link.latency + nbytes / (link.bandwidth * link.efficiency)
