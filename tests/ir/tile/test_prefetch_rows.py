"""ahead: the next row is fetched while one is computed, and nothing else changes."""

import numpy as np
import pytest

import tessera as ts
from tessera import op
from tessera.core.dims import symbol
from tessera.core.dtype import f32
from tessera.core.types import TensorType
from tessera.ir.target.cpu.emit import emit
from tessera.ir.target.cpu.program import program
from tessera.ir.tile.cpu.legalize import expand
from tessera.ir.tile.cpu.passes.prefetch_rows import ahead
from tessera.ir.tile.interp import interpret
from tessera.ir.tile.ir import Builder, walk
from tessera.ir.tile.text import parse_kernel
from tessera.ir.tile.verify import verify
from tessera.runtime.kernel import CompiledKernel
from tessera.stdlib.kernels.rows import softmax
from tests.support.cases.random_graphs import same_bits

M = symbol("M")
RNG = np.random.default_rng(0)


def centred(width=1024, passes=2, apart=1, function=False):
    """y = x - (the sum of x, or of exp(x), for every pass), with `apart` far parts of a row at a time."""
    b = Builder("centred")
    x = b.parameter("x", TensorType(f32, (M, width)))
    y = b.parameter("y", TensorType(f32, (M, width)), writable=True)
    row, total = b.program(M), b.full(f32, (), 0.0)
    part = width // apart
    for _ in range(passes):
        with b.loop(0, part, 16, [b.full(f32, (16,), 0.0)]) as columns:
            sums = columns.carried[0]
            for i in range(apart):
                at = (row, columns.variable + i * part)
                piece = b.load(x, at, (1, 16), axes=(1,))
                sums = b.apply("add", sums, b.apply("exp", piece) if function else piece)
            columns.carry(sums)
        total = b.apply("add", total, b.reshape(b.fold("add", columns.results[0], 0), ()))
    with b.loop(0, width, 64) as columns:
        at = (row, columns.variable)
        piece = b.load(x, at, (1, 64), axes=(1,))
        b.store(y, b.apply("sub", piece, total), at, (1, 64), axes=(1,))
    return b.finish()


def hints(kernel):
    return [op.attributes["at"] for op in walk(kernel.body) if op.name == "prefetch"]


def masks(kernel):
    """Loops that ask for a row and read one that may be outside of its memory."""
    loops = [o for o in walk(kernel.body) if o.block is not None]
    names = [
        {(o.name, bool(o.attributes.get("masked"))) for o in x.block.operations} for x in loops
    ]
    return [n for n in names if {("load", True), ("prefetch", False)} <= n]


def test_the_second_loop_over_a_row_asks_for_the_next():
    first, second, last = (
        loop for loop in ahead(centred()).body.operations if loop.block is not None
    )
    names = [[op.name for op in loop.block.operations] for loop in (first, second, last)]
    assert names == [["load", "apply"], ["load", "prefetch", "apply"], ["load", "apply", "store"]]
    row, column = symbol("_p0"), symbol(second.attributes["variable"])
    assert second.block.operations[1].attributes["at"] == (row + 1, column)
    assert second.block.operations[1].attributes["extent"] == (1, 16)


def test_far_parts_of_a_row_are_asked_for_in_order():
    """Four loads at i, i + 256, ...: a turn of 64 columns asks for the 64 that follow the last turn's."""
    found = hints(ahead(centred(apart=4)))
    at = [x[1] for x in found]
    assert [x - at[0] for x in at] == [0, 16, 32, 48]
    (name,) = {s for s in ("_i1", "_i2", "_i3") if symbol(s) * 4 == at[0]} or {None}
    assert name is not None, at[0]


def test_rows_that_are_short_or_long_or_read_once_are_left_alone():
    for kernel in (centred(64), centred(1 << 13), centred(passes=0)):
        assert ahead(kernel) is kernel
    b = Builder("alone")
    x = b.parameter("x", TensorType(f32, (1024,)), writable=True)
    b.store(x, b.full(f32, (16,), 1.0), (0,), (16,))
    alone = b.finish()
    assert ahead(alone) is alone


def test_long_rows_are_fetched_to_the_second_cache_while_functions_are_computed():
    kernel = ahead(centred(1 << 13, function=True))
    assert [op.attributes["far"] for op in walk(kernel.body) if op.name == "prefetch"] == [True]
    assert "i32 0, i32 2, i32 1)" in emit(kernel)
    assert "i32 0, i32 3, i32 1)" in emit(ahead(centred(function=True)))
    assert parse_kernel(kernel.text).text == kernel.text
    too_long = centred(1 << 16, function=True)
    assert ahead(too_long) is too_long


def test_a_memory_that_is_written_is_not_fetched():
    """Its next row may be another thread's, which would have to be told."""
    b = Builder("own")
    x = b.parameter("x", TensorType(f32, (M, 1024)), writable=True)
    row = b.program(M)
    for _ in range(3):
        with b.loop(0, 1024, 64) as columns:
            at = (row, columns.variable)
            piece = b.load(x, at, (1, 64), axes=(1,))
            b.store(x, b.apply("add", piece, piece), at, (1, 64), axes=(1,))
    kernel = b.finish()
    assert ahead(kernel) is kernel


@pytest.mark.parametrize("apart", [1, 4])
def test_the_bits_are_the_same_to_the_last_row(apart):
    plain = centred(apart=apart)
    kernel = ahead(plain)
    verify(kernel)
    assert parse_kernel(kernel.text).text == kernel.text != plain.text
    assert emit(kernel).count("@llvm.prefetch") == apart + 1  # and its declaration
    code = CompiledKernel(program(kernel))
    for rows in (1, 5):
        x = RNG.normal(size=(rows, 1024)).astype(np.float32)
        want, got, slow = (np.zeros_like(x) for _ in range(3))
        interpret(plain, [x, want])
        interpret(kernel, [x, slow])
        code.run([x, got])
        assert same_bits([slow, got], [want, want])


def test_rows_of_the_library_and_of_ops_are_fetched():
    x = RNG.normal(size=(3, 1024)).astype(np.float32)
    kernel = softmax.with_schedule(ts.Schedule(block=(1,))).lower(x)
    assert len(hints(ahead(expand(kernel)))) == 8  # one for each leaf of the tree of a sum
    several = softmax.with_schedule(ts.Schedule(block=(4,))).lower(
        x
    )  # row by row; the last are masked
    assert [len(masks(ahead(expand(k)))) for k in (kernel, several)] == [0, 0]
    assert len(hints(ahead(expand(several)))) == 8
    assert "tile.prefetch" in str(ts.jit(lambda x: op.softmax(x, axis=-1)).lower(x).tile)
