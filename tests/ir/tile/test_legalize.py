"""expand: large tiles as tiles that fit the registers, with the interpreter's bits at every step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tessera as ts
from tessera.core.dims import Size, smaller, symbol
from tessera.core.dtype import DType, bf16, bool_, f32, f64, i8, i32, i64, u8
from tessera.core.processor import SETS, Registers
from tessera.core.types import TensorType
from tessera.ir.tile.cpu.legalize import expand
from tessera.ir.tile.cpu.legalize.large import fits
from tessera.ir.tile.interp import interpret
from tessera.ir.tile.ir import Builder, Kernel, Tile, walk
from tessera.ir.tile.verify import verify
from tests.support.breadth import examples
from tests.support.cases.random_graphs import same_bits
from tests.support.cases.tile_kernels import Program, programs
from tests.support.runners.tile_machine import Machine

# Registers so small that hardly a tile fits, and those of real processors.
TINY = {n: Registers(4, n, 1) for n in (1, 4)}
H, M, N, K, S = (symbol(n) for n in "HMNKS")
RNG = np.random.default_rng(0)


def results(k: Kernel, arrays: list[Any]) -> list[Any]:
    """The arguments after the interpreter."""
    own = [a.copy() for a in arrays]
    interpret(k, own)
    return own


# The law on random kernels --------------------------------------------------------------------


@examples(60)
@given(programs(), st.sampled_from(sorted(TINY)))
def test_random_kernels_keep_their_bits(p: Program, size: int) -> None:
    small = expand(p.kernel, TINY[size])
    verify(small)
    assert same_bits(results(small, p.arrays), p.run())


@settings(max_examples=5)
@given(st.lists(programs(), min_size=3, max_size=3))
def test_machine_code_of_random_kernels(ps: list[Program]) -> None:
    small = [expand(p.kernel, TINY[1]) for p in ps]
    machine = Machine(small)
    for i, p in enumerate(ps):
        got = p.fresh()
        machine.run(i, got)
        assert same_bits(got, p.run())


# Kernels as people write them -----------------------------------------------------------------


def data(*shape: int, dtype: DType = f32) -> Any:
    x = RNG.normal(size=shape) * (1 if dtype.kind == "f" else 20)
    return (x if dtype.kind == "f" else x.astype(np.int64)).astype(dtype.np)


def rows(
    shape: tuple[int, int], body: Callable[[Builder, Tile], Tile], dtype: DType = f32
) -> Kernel:
    """Rows and columns of a matrix at once, masked; what they become is stored."""
    b = Builder("rows")
    x = b.parameter("x", TensorType(dtype, (M, N)))
    row = b.program((M + shape[0] - 1) // shape[0]) * shape[0]
    y = body(b, b.load(x, (row, 0), shape, masked=(0, 1)))
    out = b.parameter("y", TensorType(y.dtype, (M, N)), writable=True)
    b.store(out, b.broadcast(y, shape), (row, 0), shape, masked=(0, 1))
    return b.finish()


def softmax(b: Builder, x: Tile) -> Tile:
    e = b.apply("exp", b.apply("sub", x, b.fold("max", x, 1)))
    return b.apply("div", e, b.fold("add", e, 1))


def layernorm(b: Builder, x: Tile) -> Tile:
    count = b.full(x.dtype, (1, 1), x.shape[1])
    mean = b.apply("div", b.fold("add", x, 1), count)
    centred = b.apply("sub", x, mean)
    square = b.apply("mul", centred, centred)
    variance = b.apply("div", b.fold("add", square, 1), count)
    return b.apply("mul", centred, b.apply("rsqrt", variance))


def columns(b: Builder, x: Tile) -> Tile:
    return b.apply("add", b.fold("add", x, 0), b.fold("min", x, 0))


def squashed(b: Builder, x: Tile) -> Tile:
    """Statistics without the axis that was folded, as a line."""
    line = b.reshape(b.fold("add", x, 1), (x.shape[0],))
    line = b.apply("tanh", line)
    return b.apply("mul", x, b.expand(line, 1))


def running(b: Builder, x: Tile) -> Tile:
    return b.apply("sub", b.scan("add", x, 1), b.scan("max", x, 0))


def turned(b: Builder, x: Tile) -> Tile:
    y = b.transpose(b.apply("add", x, b.full(x.dtype, (), 1)))
    flat = b.reshape(y, (x.shape[0] * x.shape[1],))
    return b.reshape(b.apply("neg", flat), x.shape)


def triangle(b: Builder, x: Tile) -> Tile:
    above = b.apply("lt", b.index(0, (x.shape[0], 1), 0), b.index(3, x.shape, 1))
    return b.apply("where", above, x, b.full(x.dtype, (), -1))


BODIES = [softmax, layernorm, columns, squashed, running, turned, triangle]
SHAPES = [(1, 600), (40, 40), (5, 150), (33, 1)]


@pytest.mark.parametrize("body", BODIES, ids=lambda f: f.__name__)
def test_rows(body: Callable[[Builder, Tile], Tile]) -> None:
    """Of matrices that are smaller than a tile, and of wider ones, which need no masks."""
    kernels = [rows(s, body) for s in SHAPES]
    widths = [n - n // 9 if i % 2 else n + 3 for i, (_, n) in enumerate(SHAPES)]
    shapes = [(m + 2, n) for (m, _), n in zip(SHAPES, widths, strict=True)]
    arguments = [[data(*s), np.zeros(s, f32.np)] for s in shapes]
    agree(kernels, arguments)


@pytest.mark.parametrize("dtype", [f64, bf16, u8], ids=str)
def test_rows_of_other_dtypes(dtype: DType) -> None:
    shapes = [(3, 200), (40, 16)]

    def body(b: Builder, x: Tile) -> Tile:
        y = b.apply("mul", x, b.fold("max", x, 1))
        return b.apply("add", b.fold("add", y, 1), b.fold("mul", x, 0))

    arguments = [[data(m, n, dtype=dtype), np.zeros((m, n), dtype.np)] for m, n in shapes]
    agree([rows(s, body, dtype) for s in shapes], arguments)


def test_folds_keep_minus_zero() -> None:
    k = rows((1, 1000), lambda b, x: b.fold("add", x, 1))
    (_, y) = results(expand(k), [np.full((1, 1000), -0.0, f32.np), np.zeros((1, 1000), f32.np)])
    assert np.signbit(y).all()


def agree(kernels: list[Kernel], arguments: list[list[Any]]) -> None:
    """All levels give the bits of the kernels as they are written, and tiles fit."""
    small = [expand(k) for k in kernels]
    machine = Machine(small)
    for i, (k, e, arrays) in enumerate(zip(kernels, small, arguments, strict=True)):
        verify(k)
        verify(e)
        want, got = results(k, arrays), [a.copy() for a in arrays]
        assert same_bits(results(e, arrays), want)
        machine.run(i, got)
        assert same_bits(got, want)
        tiles = [t for op in walk(e.body) for t in op.results]
        assert all(fits(t.type, SETS["avx512f"]) for t in tiles)


def matmul(bm: int, bn: int, bk: int, dtype: DType = f32, wide: DType = f32) -> Kernel:
    b = Builder("matmul")
    x = b.parameter("x", TensorType(dtype, (M, K)))
    w = b.parameter("w", TensorType(dtype, (K, N)))
    y = b.parameter("y", TensorType(wide, (M, N)), writable=True)
    row, column = b.program((M + bm - 1) // bm) * bm, b.program((N + bn - 1) // bn) * bn
    with b.loop(0, K, bk, [b.full(wide, (bm, bn), 0)]) as k:
        left = b.load(x, (row, k.variable), (bm, bk), masked=(0, 1))
        right = b.load(w, (k.variable, column), (bk, bn), masked=(0, 1))
        k.carry(b.dot(left, right, k.carried[0]))
    b.store(y, k.results[0], (row, column), (bm, bn), masked=(0, 1))
    return b.finish()


@pytest.mark.parametrize(
    ("dtype", "wide"), [(f32, f32), (f64, f64), (bf16, f32), (i8, i32)], ids=str
)
def test_matmul(dtype: DType, wide: DType) -> None:
    kernels = [matmul(*s, dtype, wide) for s in ((32, 48, 16), (20, 100, 8))]
    arrays = [data(21, 13, dtype=dtype), data(13, 70, dtype=dtype), np.zeros((21, 70), wide.np)]
    agree(kernels, [arrays] * 2)
    outs = [results(k, arrays)[2] for k in kernels]
    for other in outs[1:]:
        assert same_bits(outs[:1], [other])  # whatever the size of tiles


def test_products_with_few_columns() -> None:
    b = Builder("sums")
    x = b.parameter("x", TensorType(f32, (70, 90)))
    y = b.parameter("y", TensorType(f32, (70, 3)), writable=True)
    with b.loop(0, 90, 30, [b.full(f32, (70, 1), 0)]) as l:
        part = b.load(x, (0, l.variable), (70, 30))
        l.carry(b.dot(b.apply("exp", part), b.full(f32, (30, 1), 1), l.carried[0]))
    right = b.load(x, (0, 0), (40, 3))
    all_ = b.dot(b.load(x, (0, 0), (70, 40)), right, b.broadcast(l.results[0], (70, 3)))
    b.store(y, all_, (0, 0), (70, 3))
    agree([b.finish()], [[data(70, 90), np.zeros((70, 3), f32.np)]])


def attention(bm: int, bn: int, d: int, causal: bool, s: Size = S) -> Kernel:
    """softmax(q k^T) v, with sums that are corrected as larger scores come."""
    b = Builder("attention")
    q, k, v = (b.parameter(n, TensorType(f32, (H, s, d))) for n in "qkv")
    o = b.parameter("o", TensorType(f32, (H, s, d)), writable=True)
    head, row = b.program(H), b.program((s + bm - 1) // bm) * bm

    def load(m: Any, at: Size, n: int) -> Tile:
        return b.load(m, (head, at, 0), (1, n, d), axes=(1, 2), masked=(1,))

    queries = b.apply("mul", load(q, row, bm), b.full(f32, (), d**-0.5))
    begin = [b.full(f32, (bm, 1), -1e30), b.full(f32, (bm, 1), 0), b.full(f32, (bm, d), 0)]
    with b.loop(0, smaller(row + bm, s) if causal else s, bn, begin) as keys:
        most, total, out = keys.carried
        at = keys.variable
        scores = b.dot(queries, b.transpose(load(k, at, bn)), b.full(f32, (bm, bn), 0))
        column = b.index(at, (1, bn), 1)
        seen = b.apply("lt", column, b.index(s, (1, 1)))
        if causal:
            seen = b.apply("logical_and", b.apply("le", column, b.index(row, (bm, 1), 0)), seen)
        scores = b.apply("where", seen, scores, b.full(f32, (), -1e30))
        new = b.apply("max", most, b.fold("max", scores, 1))
        less = b.apply("exp", b.apply("sub", most, new))
        p = b.apply("exp", b.apply("sub", scores, new))
        total = b.apply("add", b.apply("mul", total, less), b.fold("add", p, 1))
        keys.carry(new, total, b.dot(p, load(v, at, bn), b.apply("mul", out, less)))
    y = b.apply("div", keys.results[2], keys.results[1])
    b.store(o, y, (head, row, 0), (1, bm, d), axes=(1, 2), masked=(1,))
    return b.finish()


def test_attention() -> None:
    cases = [(48, 32, 16, False, S), (32, 16, 8, True, S), (16, 48, 8, True, 40)]
    kernels = [attention(*c) for c in cases]
    agree(kernels, [[data(1, 40, c[2]) for _ in range(4)] for c in cases])
    q, k, v, _ = arrays = [data(1, 40, 16) for _ in range(4)]
    p = np.exp(q[0].astype(f64.np) @ k[0].T / 4)
    want = p / p.sum(1, keepdims=True) @ v[0]
    np.testing.assert_allclose(results(kernels[0], arrays)[3][0], want, rtol=1e-4, atol=1e-5)


# What memory holds ----------------------------------------------------------------------------


def test_loops_may_exchange_what_they_carry() -> None:
    b = Builder("exchange")
    x = b.parameter("x", TensorType(f32, (50, 40)))
    y = b.parameter("y", TensorType(f32, (50, 80)), writable=True)
    first = b.load(x, (0, 0), (50, 40))
    with b.loop(0, 3, 1, [first, b.apply("neg", first)]) as l:
        low, high = l.carried
        l.carry(high, b.apply("add", low, high))
    for i, t in enumerate(l.results):
        b.store(y, t, (0, 40 * i), (50, 40))
    agree([b.finish()], [[data(50, 40), np.zeros((50, 80), f32.np)]])


def test_what_was_loaded_stays_when_memory_changes() -> None:
    b = Builder("reversed")
    y = b.parameter("y", TensorType(f32, (64, 64)), writable=True)
    old = b.load(y, (0, 0), (64, 64))
    later = b.apply("mul", old, b.full(f32, (), 2))
    b.store(y, b.transpose(old), (0, 0), (64, 64))
    with b.loop(0, 2) as l:
        again = b.load(y, (l.variable, 0), (32, 64))
        b.store(y, again, (30, 0), (32, 64))
    new = b.load(y, (0, 0), (64, 64))
    b.store(y, b.apply("add", later, new), (0, 0), (64, 64))
    agree([b.finish()], [[data(64, 64)]])


def test_gathers_and_scatters() -> None:
    b = Builder("gathers")
    x = b.parameter("x", TensorType(f32, (30, 90)))
    i = b.parameter("i", TensorType(i64, (70, 1)))
    y = b.parameter("y", TensorType(f32, (40, 90)), writable=True)
    z = b.parameter("z", TensorType(bool_, (70, 90)), writable=True)
    picked = b.load(i, (0, 0), (70, 1))
    got = b.gather(x, {0: picked}, (0, 0), (1, 90), (0, 1), (0, 1), 7)
    b.scatter(y, got, {0: picked}, (1, 0), (1, 90), (0, 1), (0,))
    b.store(z, b.apply("gt", got, b.full(f32, (), 0)), (0, 0), (70, 90))
    numbers = RNG.integers(-3, 45, size=(70, 1))
    agree(
        [b.finish()],
        [[data(30, 90), numbers, np.zeros((40, 90), f32.np), np.zeros((70, 90), bool)]],
    )


# The text and what fits --------------------------------------------------------------------------------


def test_whole_parts_are_not_masked() -> None:
    small = expand(attention(32, 32, 32, False), SETS["avx512f"])
    masked = {
        str(op.attributes["stop"]): [bool(o.attributes.get("masked")) for o in walk(op.block)]
        for op in walk(small.body)
        if op.block is not None and op.attributes["step"] == 32
    }
    assert not any(masked[str(S // 32 * 32)])
    assert any(masked["S"])


def test_one_kernel_has_one_expansion() -> None:
    k = attention(64, 32, 32, True)
    parsed = ts.ir.parse(k.text)
    assert isinstance(parsed, Kernel)
    assert expand(parsed).text == expand(k).text
    assert expand(expand(k)).text == expand(k).text


def test_kernels_that_fit_are_not_touched() -> None:
    k = rows((2, 64), softmax)
    assert expand(k, SETS["avx512f"]) is k
    assert expand(k, SETS["asimd"]).text == k.text


def test_every_processor_gives_the_same_bits() -> None:
    k, arrays = attention(24, 40, 8, True), [data(1, 30, 8) for _ in range(4)]
    want = results(k, arrays)
    for of in SETS.values():
        assert same_bits(results(expand(k, of), arrays), want)
