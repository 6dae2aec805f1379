"""through_scratch: a kernel that works on a copy of a tensor which it stores to and loads again.

    y = max(y, x)   ->   s = y; s = max(s, x); y = s

The copy is scratch of the one instance that the kernel then has, so that what is loaded of it can be kept
for the derivative, as of any other scratch.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from tessera.core.dims import Size
from tessera.ir.tile.ir import Block, Builder, Kernel, Memory, Operation, walk
from tessera.ir.tile.serial import serialised

CHUNK = 64  # elements that are copied at once


def through_scratch(kernel: Kernel, memories: Iterable[Memory], count: int) -> Kernel:
    """The kernel on copies of these parameters; those after the first `count` begin as zeros."""
    kernel = kernel if all(n == 1 for _, n in kernel.grid) else serialised(kernel)
    copies: dict[Memory, Memory] = {}
    b = _numbered(kernel, 0)
    for m in memories:
        s = copies[m] = b.alloc(m.type.dtype, m.type.shape)
        if m in kernel.parameters[:count]:
            copy(b, m, s)
        else:
            fill(b, s, 0)
    before = b.finish().body.operations
    b = _numbered(kernel, len(before) * 8)
    for m, s in copies.items():
        copy(b, s, m)
    after = b.finish().body.operations
    body = (*before, *_on(kernel.body.operations, copies), *after)
    return replace(kernel, body=Block((), body, ()))


def _numbered(kernel: Kernel, more: int) -> Builder:
    """A builder whose loops and scratch have names that a kernel has not."""
    names = [str(op.attributes.get("variable", "")) for op in walk(kernel.body)]
    names += [m.name for m in kernel.scratch()]
    numbers = [int(found[0]) for n in names if (found := re.findall(r"(\d+)$", n))]
    b = Builder(kernel.name)
    b._count = max(numbers, default=0) + more
    return b


def _on(operations: Iterable[Operation], copies: Mapping[Memory, Memory]) -> list[Operation]:
    """Operations on the copies of memories."""
    made = []
    for op in operations:
        block = op.block
        if block is not None:
            block = replace(block, operations=tuple(_on(block.operations, copies)))
        memory = None if op.memory is None else copies.get(op.memory, op.memory)
        made.append(
            Operation(op.name, op.operands, op.attributes, op.results, memory, block, op.location)
        )
    return made


# Memory as a whole, whose sizes may be symbolic -----------------------------------------------------


def fill(b: Builder, m: Memory, value: int) -> None:
    """Store a number to every element."""

    def one(at: tuple[Size, ...], extent: tuple[int, ...]) -> None:
        b.store(m, b.full(m.type.dtype, extent, value), at, extent, None, _last(m))

    pieces(b, m, one)


def copy(b: Builder, x: Memory, y: Memory) -> None:
    """Store every element of a memory to another one."""

    def one(at: tuple[Size, ...], extent: tuple[int, ...]) -> None:
        b.store(y, b.load(x, at, extent, None, _last(x)), at, extent, None, _last(y))

    pieces(b, x, one)


def _last(m: Memory) -> tuple[int, ...]:
    return (m.type.rank - 1,) if m.type.rank else ()


def _width(m: Memory) -> tuple[int, ...]:
    return (*(1,) * (m.type.rank - 1), CHUNK) if m.type.rank else ()


def pieces(b: Builder, m: Memory, one: Callable[[tuple[Size, ...], tuple[int, ...]], None]) -> None:
    """Do something at each stretch of the last axis."""

    def walk(at: tuple[Size, ...]) -> None:
        axis = len(at)
        if axis == m.type.rank:
            one(at, _width(m))
            return
        step = CHUNK if axis == m.type.rank - 1 else 1
        with b.loop(0, m.type.shape[axis], step) as loop:
            walk((*at, loop.variable))

    walk(())
