"""Correct kernels for the checks, and ways to break them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from tessera.core.dims import Dim, Size, larger, smaller, substitute, symbol
from tessera.core.dtype import DType, f32, i64
from tessera.core.types import TensorType
from tessera.ir.tile.ir import Block, Builder, Kernel, Memory, Operation, Tile, walk

M, N, K = symbol("M"), symbol("N"), symbol("K")


def tensor(*shape: Size, dtype: DType = f32) -> TensorType:
    return TensorType(dtype, shape)


def start(name: str, **types: TensorType) -> tuple[Any, ...]:
    """A builder and a parameter for each type; those whose names begin with y are written."""
    b = Builder(name)
    return b, *(b.parameter(n, t, n.startswith("y")) for n, t in types.items())


# Global memory ----------------------------------------------------------------------------------


def copy() -> Kernel:
    b, x, y = start("copy", x=tensor(N), y=tensor(N))
    at = b.program((N + 15) // 16) * 16
    b.store(y, b.load(x, (at,), (16,), masked=(0,)), (at,), (16,), masked=(0,))
    return b.finish()


def whole_blocks() -> Kernel:
    """Only the whole blocks of 8, without masks."""
    b, x, y = start("whole_blocks", x=tensor(N), y=tensor(N))
    at = b.program(N // 8) * 8
    b.store(y, b.load(x, (at,), (8,)), (at,), (8,))
    return b.finish()


def blocks_2d() -> Kernel:
    b, x, y = start("blocks_2d", x=tensor(M, N), y=tensor(M, N))
    i, j = b.program((M + 3) // 4) * 4, b.program((N + 7) // 8) * 8
    t = b.load(x, (i, j), (4, 8), masked=(0, 1))
    b.store(y, b.apply("exp", t), (i, j), (4, 8), masked=(0, 1))
    return b.finish()


def row_sums() -> Kernel:
    b, x, y = start("row_sums", x=tensor(M, N), y=tensor(M))
    row = b.program(M)
    with b.loop(0, N, 4, [b.full(f32, (4,), 0)]) as c:
        t = b.load(x, (row, c.variable), (1, 4), axes=(1,), masked=(1,))
        c.carry(b.apply("add", c.carried[0], t))
    b.store(y, b.fold("add", c.results[0], 0), (row,), (1,))
    return b.finish()


def turned() -> Kernel:
    b, x, y = start("turned", x=tensor(M, N), y=tensor(N, M))
    i, j = b.program((M + 7) // 8) * 8, b.program((N + 7) // 8) * 8
    t = b.load(x, (i, j), (8, 8), masked=(0, 1))
    b.store(y, t, (j, i), (8, 8), axes=(1, 0), masked=(0, 1))
    return b.finish()


def rows_of_heads() -> Kernel:
    """One grid axis for two axes of memory."""
    b, x, y = start("rows_of_heads", x=tensor(M, K, N), y=tensor(M, K, N))
    p = b.program(M * K)
    with b.loop(0, N, 8) as c:
        at = (p // K, p % K, c.variable)
        t = b.load(x, at, (1, 1, 8), axes=(2,), masked=(2,))
        b.store(y, t, at, (1, 1, 8), axes=(2,), masked=(2,))
    return b.finish()


def neighbours() -> Kernel:
    """Sums of three neighbours, inside only."""
    b, x, y = start("neighbours", x=tensor(N + 2), y=tensor(N))
    at = b.program(N)
    parts = [b.load(x, (at + i,), (1,)) for i in range(3)]
    b.store(y, b.apply("add", b.apply("add", parts[0], parts[1]), parts[2]), (at,), (1,))
    return b.finish()


def backwards() -> Kernel:
    b, x, y = start("backwards", x=tensor(N), y=tensor(N))
    p = b.program(N)
    b.store(y, b.load(x, (N - 1 - p,), (1,)), (p,), (1,))
    return b.finish()


def triangle() -> Kernel:
    """A loop whose end depends on the instance."""
    b, x, y = start("triangle", x=tensor(N, N), y=tensor(N))
    row = b.program(N)
    with b.loop(0, row + 1, 1, [b.full(f32, (1,), 0)]) as c:
        c.carry(b.apply("add", c.carried[0], b.load(x, (row, c.variable), (1, 1), axes=(1,))))
    b.store(y, c.results[0], (row,), (1,))
    return b.finish()


def pieces() -> Kernel:
    """Pieces of 32 columns, the last one shorter, by a minimum."""
    b, x, y = start("pieces", x=tensor(M, N), y=tensor(M, N))
    i, j = b.program(M), b.program((N + 31) // 32)
    with b.loop(32 * j, smaller(32 * j + 32, N), 1) as c:
        b.store(y, b.load(x, (i, c.variable), (1, 1)), (i, c.variable), (1, 1))
    return b.finish()


def product() -> Kernel:
    b, x, w, y = start("product", x=tensor(M, K), w=tensor(K, N), y=tensor(M, N))
    i, j = b.program((M + 3) // 4) * 4, b.program((N + 3) // 4) * 4
    with b.loop(0, K, 8, [b.full(f32, (4, 4), 0)]) as c:
        a = b.load(x, (i, c.variable), (4, 8), masked=(0, 1))
        v = b.load(w, (c.variable, j), (8, 4), masked=(0, 1))
        c.carry(b.dot(a, v, c.carried[0]))
    b.store(y, c.results[0], (i, j), (4, 4), masked=(0, 1))
    return b.finish()


def window() -> Kernel:
    """The last element that a window of 5 reaches, never below 0."""
    b, x, y = start("window", x=tensor(N), y=tensor(N))
    p = b.program(N)
    b.store(y, b.load(x, (larger(p - 4, 0),), (1,)), (p,), (1,))
    return b.finish()


def clamped() -> Kernel:
    """Places that are computed as tiles."""
    b, x, y = start("clamped", x=tensor(N), y=tensor(N))
    at = b.program((N + 7) // 8) * 8
    place = b.index(at + 3, (8,), 0)
    last = b.index(N - 1)
    place = b.apply("min", place, b.broadcast(last, (8,)))
    b.store(y, b.gather(x, {0: place}, (0,), (1,)), (at,), (8,), masked=(0,))
    return b.finish()


def halves() -> Kernel:
    """Two stores of each instance, to two halves."""
    b, x, y = start("halves", x=tensor(N), y=tensor(2 * N))
    p = b.program(N)
    t = b.load(x, (p,), (1,))
    b.store(y, t, (p,), (1,))
    b.store(y, t, (p + N,), (1,))
    return b.finish()


def in_place() -> Kernel:
    """Each instance reads and writes its own row."""
    b, y = start("in_place", y=tensor(M, 16))
    p = b.program(M)
    b.store(y, b.apply("neg", b.load(y, (p, 0), (1, 16))), (p, 0), (1, 16))
    return b.finish()


GLOBAL = [copy, whole_blocks, blocks_2d, row_sums, turned, rows_of_heads, neighbours, backwards, triangle,
          pieces, product, window, clamped, halves, in_place]  # fmt: skip

# Shared memory ----------------------------------------------------------------------------------


def staged(drop: int | None = None) -> Kernel:
    """A product through shared memory; barriers 0 and 1."""
    b, x, w, y = start("staged", x=tensor(M, K), w=tensor(K, N), y=tensor(M, N))
    i, j = b.program((M + 7) // 8) * 8, b.program((N + 7) // 8) * 8
    sx, sw = b.alloc(f32, (8, 4), "shared"), b.alloc(f32, (4, 8), "shared")
    with b.loop(0, K, 4, [b.full(f32, (8, 8), 0)]) as c:
        b.store(sx, b.load(x, (i, c.variable), (8, 4), masked=(0, 1)), (0, 0), (8, 4))
        b.store(sw, b.load(w, (c.variable, j), (4, 8), masked=(0, 1)), (0, 0), (4, 8))
        _barrier(b, 0, drop)
        c.carry(b.dot(b.load(sx, (0, 0), (8, 4)), b.load(sw, (0, 0), (4, 8)), c.carried[0]))
        _barrier(b, 1, drop)
    b.store(y, c.results[0], (i, j), (8, 8), masked=(0, 1))
    return b.finish()


def doubled(drop: int | None = None) -> Kernel:
    """Two buffers: one is filled while the other is read."""
    b, x, y = start("doubled", x=tensor(M, N), y=tensor(M, 8))
    i = b.program((M + 7) // 8) * 8
    s = b.alloc(f32, (2, 8, 8), "shared")
    b.store(s, b.load(x, (i, 0), (8, 8), masked=(0, 1)), (0, 0, 0), (1, 8, 8), axes=(1, 2))
    _barrier(b, 0, drop)
    with b.loop(0, (N + 7) // 8, 1, [b.full(f32, (8, 8), 0)]) as c:
        v = c.variable
        t = b.load(x, (i, 8 * v + 8), (8, 8), masked=(0, 1))
        b.store(s, t, ((v + 1) % 2, 0, 0), (1, 8, 8), axes=(1, 2))
        kept = b.load(s, (v % 2, 0, 0), (1, 8, 8), axes=(1, 2))
        c.carry(b.apply("add", c.carried[0], kept))
        _barrier(b, 1, drop)
    b.store(y, c.results[0], (i, 0), (8, 8), masked=(0,))
    return b.finish()


def pipelined(drop: str = "", pending: int = 1, stages: int = 3) -> Kernel:
    """Asynchronous stores two tiles ahead."""
    b, x, y = start("pipelined", x=tensor(M, N), y=tensor(M, 8))
    i = b.program((M + 7) // 8) * 8
    s = b.alloc(f32, (stages, 8, 8), "shared")
    for n in range(2):
        t = b.load(x, (i, 8 * n), (8, 8), masked=(0, 1))
        b.store_async(s, t, (n % stages, 0, 0), (1, 8, 8), axes=(1, 2))
    with b.loop(0, (N + 7) // 8, 1, [b.full(f32, (8, 8), 0)]) as c:
        v = c.variable
        if drop != "wait":
            b.wait(pending)
        if drop != "barrier":
            b.barrier()
        t = b.load(x, (i, 8 * v + 16), (8, 8), masked=(0, 1))
        b.store_async(s, t, ((v + 2) % stages, 0, 0), (1, 8, 8), axes=(1, 2))
        kept = b.load(s, (v % stages, 0, 0), (1, 8, 8), axes=(1, 2))
        c.carry(b.apply("add", c.carried[0], kept))
    b.store(y, c.results[0], (i, 0), (8, 8), masked=(0,))
    return b.finish()


def turned_in_shared(drop: int | None = None) -> Kernel:
    """A block that is written by rows and read by columns."""
    b, x, y = start("turned_in_shared", x=tensor(M, N), y=tensor(N, M))
    i, j = b.program((M + 7) // 8) * 8, b.program((N + 7) // 8) * 8
    s = b.alloc(f32, (8, 9), "shared")
    b.store(s, b.load(x, (i, j), (8, 8), masked=(0, 1)), (0, 0), (8, 8))
    _barrier(b, 0, drop)
    b.store(y, b.load(s, (0, 0), (8, 8), axes=(1, 0)), (j, i), (8, 8), masked=(0, 1))
    return b.finish()


def shifting(drop: int | None = None) -> Kernel:
    """A line that is moved on by one place in every step."""
    b, x, y = start("shifting", x=tensor(N), y=tensor(N))
    s = b.alloc(f32, (17,), "shared")
    b.store(s, b.load(x, (0,), (17,), masked=(0,)), (0,), (17,))
    _barrier(b, 0, drop)
    with b.loop(0, K, 1):
        t = b.load(s, (0,), (16,))
        _barrier(b, 1, drop)
        b.store(s, t, (1,), (16,))
        _barrier(b, 2, drop)
    b.store(y, b.load(s, (0,), (16,)), (0,), (16,), masked=(0,))
    return b.finish()


def tree(drop: int | None = None) -> Kernel:
    """A sum in shared memory, half onto half."""
    b, x, y = start("tree", x=tensor(M, 16), y=tensor(M))
    p = b.program(M)
    s = b.alloc(f32, (16,), "shared")
    b.store(s, b.load(x, (p, 0), (1, 16), axes=(1,)), (0,), (16,))
    _barrier(b, 0, drop)
    for step, width in enumerate((8, 4, 2, 1)):
        both = b.apply("add", b.load(s, (0,), (width,)), b.load(s, (width,), (width,)))
        _barrier(b, 2 * step + 1, drop)
        b.store(s, both, (0,), (width,))
        _barrier(b, 2 * step + 2, drop)
    b.store(y, b.load(s, (0,), (1,)), (p,), (1,))
    return b.finish()


def _barrier(b: Builder, number: int, drop: int | None) -> None:
    if number != drop:
        b.barrier()


SHARED: dict[str, tuple[Callable[..., Kernel], int]] = {  # with the number of barriers
    "staged": (staged, 2), "doubled": (doubled, 2), "turned_in_shared": (turned_in_shared, 1),
    "shifting": (shifting, 3), "tree": (tree, 9),
}  # fmt: skip

# Mutations --------------------------------------------------------------------------------------


def changed(kernel: Kernel, target: Operation, **attributes: Any) -> Kernel:
    """The kernel with other attributes of one operation."""

    def block(b: Block) -> Block:
        return replace(b, operations=tuple(map(operation, b.operations)))

    def operation(op: Operation) -> Operation:
        if op is target:
            inner = op.block
            return Operation(op.name, op.operands, {**op.attributes, **attributes}, op.results,
                             op.memory, inner, op.location)  # fmt: skip
        if op.block is None:
            return op
        return Operation(op.name, op.operands, op.attributes, op.results, op.memory, block(op.block),
                         op.location)  # fmt: skip

    return replace(kernel, body=block(kernel.body))


def accesses(kernel: Kernel) -> list[Operation]:
    return [op for op in walk(kernel.body) if op.name in ("load", "store", "gather", "scatter")]


def moved(at: tuple[Size, ...], axis: int, by: Size) -> tuple[Size, ...]:
    return tuple(x + by if i == axis else x for i, x in enumerate(at))


def bound_mutants(kernel: Kernel) -> Iterator[tuple[str, Kernel]]:
    """Masks dropped, positions shifted, one more instance, one more iteration."""
    for n, op in enumerate(accesses(kernel)):
        at = op.attributes["at"]
        if op.attributes["masked"]:
            yield f"{n} unmasked", changed(kernel, op, masked=())
        for axis in range(len(at)):
            for by in (1, -1):
                yield f"{n} axis {axis} by {by}", changed(kernel, op, at=moved(at, axis, by))
    for axis, (name, count) in enumerate(kernel.grid):
        grid = tuple((name, count + 1) if i == axis else g for i, g in enumerate(kernel.grid))
        yield f"grid {axis}", replace(kernel, grid=grid)
    for n, op in enumerate(o for o in walk(kernel.body) if o.name == "for"):
        yield f"loop {n}", changed(kernel, op, stop=op.attributes["stop"] + op.attributes["step"])


def race_mutants(kernel: Kernel) -> Iterator[tuple[str, Kernel]]:
    """Stores that forget a grid variable, or step by less or more than they write."""
    names = [name for name, _ in kernel.grid]
    for n, op in enumerate(a for a in accesses(kernel) if a.name == "store"):
        at = op.attributes["at"]
        for name in names:
            p = symbol(name)
            for what, value in (("dropped", 0), ("halved", p // 2), ("shared", p - p % 3)):
                new = tuple(substitute(x, {name: value}) if isinstance(x, Dim) else x for x in at)
                yield f"{n} {name} {what}", changed(kernel, op, at=new)
        for axis in range(len(at)):
            masked = tuple(range(len(at)))
            shifted = moved(at, axis, -1)
            yield f"{n} axis {axis} reaches back", changed(kernel, op, at=shifted, masked=masked)


__all__ = ["GLOBAL", "SHARED", "Builder", "K", "M", "Memory", "N", "Tile", "i64"]
