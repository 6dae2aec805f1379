"""registers: how many registers the tiles that are alive together need, on a CPU and on a GPU."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from tessera.checks.findings import Verdict, finding
from tessera.core.processor import Registers, registers
from tessera.ir.tile.ir import Block, Kernel, Operation, Tile

TOOL = "registers"
PER_THREAD = 255  # registers of 4 bytes that a thread of a GPU may have
WARP = 32  # threads, on NVIDIA
_HELD = 16  # of a GPU thread, for positions and counters


@dataclass(frozen=True)
class Pressure:
    """The most tiles that are alive at one operation, and what they need."""

    bytes: int
    tiles: int
    op: Operation | None
    warps: int = 4

    def vectors(self, r: Registers) -> int:
        """Vector registers of a CPU."""
        return math.ceil(self.bytes / r.bytes)

    @property
    def per_thread(self) -> int:
        """Registers of each thread of a GPU."""
        return math.ceil(self.bytes / 4 / (self.warps * WARP)) + _HELD


def pressure(kernel: Kernel, warps: int = 4) -> Pressure:
    """The operation where most bytes of tiles are alive."""
    return max(_block(kernel.body, {}, warps), key=lambda p: p.bytes)


def check_registers(kernel: Kernel, warps: int = 4, cpu: Registers | None = None) -> Verdict:
    """Estimate the registers of a kernel; where they do not suffice, tiles spill to memory."""
    p, r = pressure(kernel, warps), cpu or registers()
    note = (
        f"{p.bytes} bytes in {p.tiles} tiles: {p.vectors(r)} of {r.total} vector registers; "
        f"{p.per_thread} registers a thread with {warps} warps"
    )
    found = []
    if p.per_thread > PER_THREAD:
        found.append(finding(
            TOOL, "hint", kernel.name, p.op, f"on a GPU with {warps} warps each thread needs "
            f"about {p.per_thread} registers, more than {PER_THREAD}: tiles spill to memory",
            {"bytes": p.bytes, "tiles": p.tiles}, "smaller tiles, or more warps",
        ))  # fmt: skip
    return Verdict(TOOL, kernel.name, findings=tuple(found), note=note)


def _block(block: Block, after: Mapping[Tile, int], warps: int) -> list[Pressure]:
    """The pressure at each operation; `after` holds what is alive after the block."""
    live = {**after, **{t: _bytes(t) for t in block.outputs}}
    found = [Pressure(sum(live.values()), len(live), None, warps)]
    for op in reversed(block.operations):
        around = {**live, **{t: _bytes(t) for t in op.results}}
        if op.block is not None:
            inner = {t: n for t, n in around.items() if t not in op.results}
            # What a loop reads from outside is alive in all of its iterations.
            outside = {t: _bytes(t) for t in _used(op.block)}
            found += _block(op.block, {**inner, **outside}, warps)
        for t in op.results:
            live.pop(t, None)
        live.update((t, _bytes(t)) for t in op.operands)
        if op.block is not None:
            live.update((t, _bytes(t)) for t in _used(op.block))
        # A result may take the registers of an operand that is read for the last time.
        both = max(around, live, key=lambda held: sum(held.values()))
        found.append(Pressure(sum(both.values()), len(both), op, warps))
    return found


def _used(block: Block) -> set[Tile]:
    """The tiles that a block reads and does not make."""
    made, used = set(block.arguments), set[Tile]()
    for op in block.operations:
        used |= set(op.operands) - made
        if op.block is not None:
            used |= _used(op.block) - made
        made |= set(op.results)
    return used | (set(block.outputs) - made)


def _bytes(t: Tile) -> int:
    return math.ceil(math.prod(t.shape) * t.dtype.itemsize)
