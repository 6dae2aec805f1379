"""forward: the kernel that pushes tangents forward, tile by tile in the same grid.

    y = f(load(x)) stored to y   ->   t = load(t_x); store f'(load(x)) times t to t_y

It computes the values of the kernel beside their tangents.  A memory that holds what moves has one of
tangents; loops, indices and branches are those of the kernel.  Results are stored where the kernel loads them
again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tessera.core.dims import Dim, Size, substitute
from tessera.ir.tile.autodiff.activity import moving
from tessera.ir.tile.autodiff.plan import loads_of
from tessera.ir.tile.autodiff.prune import prune
from tessera.ir.tile.autodiff.push_rules import PUSH_RULES, Pushes, no_push
from tessera.ir.tile.autodiff.synchronous import synchronous
from tessera.ir.tile.ir import Block, Builder, Kernel, Memory, Operation, Tile
from tessera.ir.tile.rules import canonical


@dataclass(frozen=True)
class Forward:
    """A kernel on the operands of another one and tangents of some of them."""

    kernel: Kernel
    tangents: tuple[int, ...]  # the operands whose tangents it takes, in order
    results: tuple[int | None, ...]  # for each result of the kernel, which one here is its tangent


def push(kernel: Kernel, count: int, moved: Sequence[bool], pushes: Pushes) -> Forward:
    """The tangents of the results from those of the moved ones of `count` operands.

    The results of a kernel are the operands that it stores to, and then what it makes.  Operands that it
    stores what moves to have tangents always, even when they are 0.
    """
    w = _Writer(synchronous(kernel), count, moved, pushes)
    made = prune(w.kernel_forward())
    first = count + len(w.tangents)
    results = [m for i, m in enumerate(made.parameters) if m.writable or i >= first]
    found = tuple(results.index(w.pushed[m]) if m in w.pushed else None for m in w.results)
    return Forward(made, tuple(w.tangents), found)


class _Writer:
    """A kernel being pushed forward."""

    def __init__(self, kernel: Kernel, count: int, moved: Sequence[bool], pushes: Pushes):
        self.kernel, self.pushes, self.b = kernel, pushes, Builder(f"{kernel.name}_forward")
        self.b.grid = list(kernel.grid)
        inputs, made = kernel.parameters[:count], kernel.parameters[count:]
        self.results = [*(m for m in inputs if m.writable), *made]
        wanted = [m for m, w in zip(inputs, moved, strict=True) if w]
        self.moving, self.held = moving(kernel, wanted)
        self.tiles: dict[Tile, Tile] = {}
        self.ts: dict[Tile, Tile] = {}  # tangents, by tiles of the kernel
        self.sizes: dict[str, Size] = {}
        self.memories: dict[Memory, Memory] = {}
        self.pushed: dict[Memory, Memory] = {}
        # Results that the kernel loads are made here, too.
        self.again = {m for m in self.results if loads_of(kernel, m)}
        for m in inputs:
            writes = m.writable and m in self.again
            self.memories[m] = self.b.parameter(m.name, m.type, writes)
        self.tangents = [k for k, m in enumerate(inputs) if m in self.held]
        for k in self.tangents:
            self._tangent(inputs[k])
        for m in made:
            if m in self.held:
                self._tangent(m)
        for m in made:
            if m in self.again:
                self.memories[m] = self.b.parameter(self._free(m.name), m.type, True)

    def _tangent(self, m: Memory) -> None:
        self.pushed[m] = self.b.parameter(self._free(f"t_{m.name}"), m.type, m.writable)

    def _free(self, name: str) -> str:
        taken = {m.name for m in (*self.b.parameters, *self.kernel.parameters)}
        while name in taken:
            name += "_"
        return name

    def kernel_forward(self) -> Kernel:
        self._block(self.kernel.body)
        return self.b.finish()

    def tangent(self, t: Tile) -> Tile:
        """The tangent of a tile; 0 where it does not move."""
        return self.ts[t] if t in self.ts else self.b.full(t.dtype, t.shape, 0)

    def _size(self, x: Any) -> Any:
        if isinstance(x, tuple):
            return tuple(self._size(n) for n in x)
        return substitute(x, self.sizes) if isinstance(x, Dim) else x

    def _block(self, block: Block) -> None:
        for op in block.operations:
            self.b.location = op.location
            if op.block is not None:
                self._loop(op, op.block)
            elif op.name == "alloc":
                self._alloc(op)
            elif op.traits.writes:
                self._store(op)
            elif op.name != "prefetch":
                self._value(op)

    def _alloc(self, op: Operation) -> None:
        m = op.memory
        assert m is not None
        self.memories[m] = self.b.alloc(m.type.dtype, m.type.shape, m.space)
        if m in self.held:
            self.pushed[m] = self.b.alloc(m.type.dtype, m.type.shape, m.space)

    def _again(self, op: Operation, operands: Sequence[Tile], m: Memory | None, **more: Any) -> Any:
        attributes = {key: self._size(x) for key, x in op.attributes.items()} | more
        return self.b.repeat(op, operands, attributes, m)

    def _store(self, op: Operation) -> None:
        m, (value, *indices) = op.memory, op.operands
        assert m is not None
        picks = [self.tiles[t] for t in indices]
        how = op.attributes.get("atomic")
        if how not in (None, "add") and m in self.held:
            raise no_push(op, f"an atomic {how}")
        if m not in self.results or m in self.again:
            self._again(op, [self.tiles[value], *picks], self.memories[m])
        if m in self.held:
            self._again(op, [self.tangent(value), *picks], self.pushed[m])

    def _value(self, op: Operation) -> None:
        m, operands = op.memory, [self.tiles[t] for t in op.operands]
        made = self._again(op, operands, None if m is None else self.memories[m])
        self.tiles.update(zip(op.results, made, strict=True))
        if not op.results or op.results[0] not in self.moving:
            return
        y = op.results[0]
        if m is not None:
            fill = canonical(op.name, 0, y.dtype)
            (self.ts[y],) = self._again(op, operands, self.pushed[m], fill=fill)
        elif op.name in PUSH_RULES:
            self.ts[y] = PUSH_RULES[op.name](self, op)

    def _loop(self, op: Operation, block: Block) -> None:
        a = op.attributes
        ks = [k for k, t in enumerate(block.arguments) if t in self.moving]
        start, stop = self._size(a["start"]), self._size(a["stop"])
        first = [self.tiles[t] for t in op.operands]
        count = len(first)
        carried = [*first, *(self.tangent(op.operands[k]) for k in ks)]
        with self.b.loop(start, stop, a["step"], carried, like=op) as loop:
            self.sizes[a["variable"]] = loop.variable
            self.tiles.update(zip(block.arguments, loop.carried[:count], strict=True))
            for k, t in zip(ks, loop.carried[count:], strict=True):
                self.ts[block.arguments[k]] = t
            self._block(block)
            outs = [self.tangent(block.outputs[k]) for k in ks]
            loop.carry(*(self.tiles[t] for t in block.outputs), *outs)
        self.tiles.update(zip(op.results, loop.results[:count], strict=True))
        for k, t in zip(ks, loop.results[count:], strict=True):
            self.ts[op.results[k]] = t
