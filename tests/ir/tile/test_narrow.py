"""Narrow numbers in contractions: integers are exact, storage formats widen as they are read."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tessera as ts
from tessera import f32, i8, i32, op
from tessera.core.dtype import FORMATS, DType, f8e4m3, saturate
from tessera.core.errors import VerifyError
from tessera.core.flags import override
from tessera.core.types import TensorType
from tessera.ir.schedule.ir import HostCall, Kernel, Program
from tessera.ir.schedule.lower import lower
from tessera.ir.schedule.nests.space import nests
from tessera.ir.target.cpu.emit import emit
from tessera.ir.target.cpu.instructions import INSTRUCTIONS, instruction
from tessera.ir.target.cpu.machine import host_features
from tessera.ir.tile.interp import interpret
from tessera.ir.tile.ir import Builder
from tessera.models.blocks import E2M1_TWICE
from tessera.models.four_bits import numbers_of
from tests.support.cases.random_graphs import same_bits
from tests.support.runners.levels import by_llvm, by_schedule, by_tile, kernels, prepared
from tests.support.runners.tile_machine import Machine


@pytest.fixture(autouse=True)
def vectors_alone() -> Iterator[None]:
    """What vectors compute, also where there are matrix registers (tests/ir/tile/test_matrix_units.py)."""
    with override(matrix_units=False):
        yield


SHAPES = [(1, 7, 5), (5, 20, 33), (3, 515, 17), (49, 6, 20)]


def numbers(dtype: DType, shape: tuple[int, ...], seed: int = 0) -> Any:
    """Random numbers from the whole range of an integer format, or around 0 of a float."""
    rng = np.random.default_rng(seed)
    if dtype.kind == "f":
        return rng.normal(size=shape).astype(dtype.np)
    info: Any = ml_dtypes.iinfo(dtype.np)
    wide = rng.integers(int(info.min), int(info.max), shape, np.int64, endpoint=True)
    return wide.astype(np.int8).astype(dtype.np) if dtype.name == "i4" else wide.astype(dtype.np)


def program(f: Callable[..., Any], *arrays: Any) -> Program:
    return lower(prepared(ts.trace(f, *map(ts.tensor, arrays))))


def is_one_kernel(p: Program) -> bool:
    return len(p.steps) == 1 and isinstance(p.steps[0], Kernel) and p.steps[0].contracts


def levels_agree(p: Program, arrays: list[Any]) -> Any:
    want = by_schedule(p, arrays)
    for run in (by_tile, by_llvm):
        assert same_bits(run(p, arrays), want), run.__name__
    return want[0]


# Integers

PAIRS = [("i8", "i8"), ("u8", "i8"), ("i8", "u8"), ("u8", "u8"), ("i4", "i8"), ("i4", "i4"),
         ("i16", "i8"), ("i16", "i16"), ("i32", "i8"), ("i32", "i32")]  # fmt: skip


@pytest.mark.parametrize(("left", "right"), PAIRS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_sums_of_products_of_integers_are_exact(
    left: str, right: str, shape: tuple[int, int, int]
) -> None:
    m, k, n = shape
    x, y = numbers(FORMATS[left], (m, k), 1), numbers(FORMATS[right], (k, n), 2)
    p = program(lambda a, b: a.astype(i32) @ b.astype(i32), x, y)
    got = levels_agree(p, [x, y])
    a, b = (v.astype(np.int8) if v.dtype == ml_dtypes.int4 else v for v in (x, y))
    assert is_one_kernel(p)
    np.testing.assert_array_equal(got, a.astype(np.int32) @ b.astype(np.int32))


@pytest.mark.parametrize("name", ["i4", "i8", "u8", "i16", "i64", "u32"])
def test_a_product_in_its_own_dtype_wraps_once(name: str) -> None:
    d = FORMATS[name]
    x, y = numbers(d, (6, 40), 1), numbers(d, (40, 20), 2)
    p = program(lambda a, b: a @ b, x, y)
    got = levels_agree(p, [x, y])
    exact = x.astype(np.int8 if name == "i4" else d.np).astype(object) @ y.astype(
        np.int8 if name == "i4" else d.np
    ).astype(object)
    low = np.array([int(v) % (1 << d.bits) for v in exact.ravel()], np.uint64)
    assert is_one_kernel(p)
    raw = got.ravel().view(f"u{got.dtype.itemsize}").astype(np.uint64) & ((1 << d.bits) - 1)
    np.testing.assert_array_equal(raw, low)


@pytest.mark.parametrize("f", [
    lambda a, b: a.astype(i32) @ b.astype(i32),
    lambda a, b: a.astype(i32) @ b.astype(i32).T.T,
    lambda a, b: a.T.astype(i32).T @ b.astype(i32),
    lambda a, b: op.einsum("mk,nk->mn", a.astype(i32), b.T.astype(i32)),
])  # fmt: skip
def test_every_layout_gives_the_same_sums(f: Callable[..., Any]) -> None:
    x, y = numbers(i8, (20, 70), 1), numbers(i8, (70, 40), 2)
    got = levels_agree(program(f, x, y), [x, y])
    np.testing.assert_array_equal(got, x.astype(np.int32) @ y.astype(np.int32))


def test_words_do_not_reach_beyond_a_part_of_memory() -> None:
    x, y = numbers(i8, (20, 70), 1), numbers(i8, (70, 40), 2)
    for first, last in ((0, 5), (3, 68), (1, 70), (2, 66)):
        p = program(lambda a, b, s=slice(first, last): a[:, s].astype(i32) @ b[s].astype(i32), x, y)
        want = x[:, first:last].astype(np.int32) @ y[first:last].astype(np.int32)
        np.testing.assert_array_equal(levels_agree(p, [x, y]), want)


def test_turned_layouts_are_joined_where_they_lie() -> None:
    x, y = numbers(i8, (30, 70), 1), numbers(i8, (35, 70), 2)
    p = program(lambda a, b: a.astype(i32) @ b.astype(i32).T, x, y)
    assert is_one_kernel(p)
    np.testing.assert_array_equal(
        levels_agree(p, [x, y]), x.astype(np.int32) @ y.T.astype(np.int32)
    )


@cache
def spaces() -> tuple[Program, list[Any]]:
    x, y = numbers(i8, (30, 1100), 1), numbers(i8, (1100, 40), 2)
    return program(lambda a, b: a.astype(i32) @ b.astype(i32), x, y), [x, y]


@pytest.mark.parametrize("seed", range(24))
def test_every_nest_gives_the_same_sums(seed: int) -> None:
    p, arrays = spaces()
    (kernel,) = p.steps
    assert isinstance(kernel, Kernel)
    found = list(nests(kernel))
    q = replace(p, steps=(replace(kernel, nest=found[seed * len(found) // 24]),))
    x, y = (v.astype(np.int32) for v in arrays)
    assert same_bits(by_llvm(q, arrays), [x @ y])


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_every_number_of_threads_gives_the_same_sums(threads: int) -> None:
    x, y = numbers(i8, (300, 700), 1), numbers(i8, (700, 200), 2)
    with ts.threads(threads):
        got = ts.jit(lambda a, b: a.astype(i32) @ b.astype(i32), target="cpu")(x, y)
    np.testing.assert_array_equal(got.numpy(), x.astype(np.int32) @ y.astype(np.int32))


def test_a_batch_of_integers_is_one_kernel() -> None:
    x, y = numbers(i8, (3, 9, 30), 1), numbers(i8, (3, 30, 20), 2)
    p = program(lambda a, b: a.astype(i32) @ b.astype(i32), x, y)
    assert is_one_kernel(p)
    np.testing.assert_array_equal(levels_agree(p, [x, y]), x.astype(np.int32) @ y.astype(np.int32))


def test_a_symbolic_number_of_products_is_exact() -> None:
    def f(a: ts.Tensor["M", "K", i8], b: ts.Tensor["K", 20, i8]) -> Any:
        return a.astype(i32) @ b.astype(i32)

    run = ts.jit(f, target="cpu")
    for m, k in ((3, 17), (8, 512), (1, 1), (5, 1030)):
        x, y = numbers(i8, (m, k), m), numbers(i8, (k, 20), k)
        want = x.astype(np.int32) @ y.astype(np.int32)
        np.testing.assert_array_equal(run(x, y).numpy(), want)


# Words of parts


def words(parts: int, shape: tuple[int, int]) -> Any:
    b = Builder("words")
    x, y = (b.parameter(n, TensorType(i32, shape)) for n in "xy")
    z = b.parameter("z", TensorType(i32, shape), True)
    a, c, acc = (b.load(m, (0, 0), shape) for m in (x, y, z))
    b.store(z, b.dot_parts(a, c, acc, parts), (0, 0), shape)
    return b.finish()


@pytest.mark.parametrize("parts", [2, 4])
@pytest.mark.parametrize("columns", [1, 3, 4, 8, 16, 37])
def test_words_multiply_part_by_part(parts: int, columns: int) -> None:
    kernel = words(parts, (2, columns))
    data = [numbers(i32, (2, columns), s) for s in range(3)]
    data[0].view(np.uint32)[0, 0] = data[1].view(np.uint32)[0, 0] = 0x80008000
    want, got = (data[2].copy() for _ in range(2))
    interpret(kernel, [*data[:2], want])
    Machine([kernel]).run(0, [*data[:2], got])
    np.testing.assert_array_equal(got, want)
    kinds = ("u1", "i1") if parts == 4 else ("i2", "i2")
    x, y = (v.view(k).astype(np.int64) for v, k in zip(data, kinds, strict=False))
    exact = data[2] + (x * y).reshape(2, columns, parts).sum(-1)
    np.testing.assert_array_equal(want, exact.astype(np.int32))


def test_the_table_of_instructions_is_used_only_by_machines_that_have_them() -> None:
    kernel = words(4, (1, 16))
    row = INSTRUCTIONS[0]
    assert row.intrinsic in emit(kernel, row.features)
    assert "llvm.x86" not in emit(kernel, frozenset())
    assert instruction(frozenset(["avx2"]), 4, 16) is None


@pytest.mark.parametrize("row", INSTRUCTIONS, ids=lambda r: r.intrinsic)
def test_an_instruction_has_the_bits_of_the_shifts(row: Any) -> None:
    if not row.features <= host_features():
        pytest.skip("this CPU does not have it")
    kernel = words(row.parts, (1, row.words))
    assert row.intrinsic in emit(kernel)
    data = [numbers(i32, (1, row.words), s) for s in range(3)]
    by_shifts, by_instruction = (data[2].copy() for _ in range(2))
    Machine([kernel], features=frozenset()).run(0, [*data[:2], by_shifts])
    Machine([kernel]).run(0, [*data[:2], by_instruction])
    np.testing.assert_array_equal(by_instruction, by_shifts)


@pytest.mark.parametrize(("parts", "dtypes", "message"), [
    (3, (i32, i32, i32), "dot_parts: words have 3 parts, expected 2 or 4"),
    (4, (i8, i8, i8), "dot_parts: words are i32 or u32, got i8"),
    (4, (i32, i8, i32), "dot_parts: operands i32, i8, i32 must be of one dtype"),
])  # fmt: skip
def test_words_are_refused(parts: int, dtypes: tuple[DType, ...], message: str) -> None:
    b = Builder("refused")
    with pytest.raises(VerifyError, match=message):
        b.dot_parts(*(b.full(d, (1, 4), 0) for d in dtypes), parts)


def test_words_that_do_not_spread_are_refused() -> None:
    b = Builder("refused")
    x, y = b.full(i32, (2, 1), 0), b.full(i32, (1, 4), 0)
    with pytest.raises(VerifyError, match=r"i32\[2,1\] and i32\[1,4\] do not spread to i32\[1,4\]"):
        b.dot_parts(x, y, y, 4)


# Storage


@pytest.mark.parametrize("name", ["i4", "i8", "f8e4m3", "f8e5m2", "bf16", "f16"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_weights_are_widened_and_scaled_as_they_are_read(
    name: str, shape: tuple[int, int, int]
) -> None:
    m, k, n = shape
    w = numbers(FORMATS[name], (k, n), 1)
    x, s = numbers(f32, (m, k), 2), numbers(f32, (n,), 3)
    p = program(lambda x, w, s: x @ (w.astype(f32) * s[None, :]), x, w, s)
    assert is_one_kernel(p)
    got = levels_agree(p, [x, w, s])
    q = program(lambda x, w: x @ w, x, w.astype(np.float32) * s)
    assert same_bits(by_llvm(q, [x, w.astype(np.float32) * s]), [got])


SCALED = {
    "rows of the weights": lambda x, w, s, t: x @ (w.astype(f32) * s[:, None]).T,
    "zero points": lambda x, w, s, t: x @ ((w.astype(f32) - t[None, :]) * s[:, None]).T,
    "along k": lambda x, w, s, t: x @ (w.astype(f32) * t[None, :]).T,
    "a number": lambda x, w, s, t: x @ (w.astype(f32) * 0.125).T,
    "on the left": lambda x, w, s, t: (w.astype(f32) * s[:, None]) @ x.T,
    "bf16": lambda x, w, s, t: x.astype(ts.bf16) @ (w.astype(ts.bf16) * s[:, None].astype(ts.bf16)).T,
}  # fmt: skip


@pytest.mark.parametrize("name", SCALED)
def test_scales_may_lie_along_either_axis(name: str) -> None:
    w = numbers(i8, (48, 70), 1)
    x, s, t = numbers(f32, (20, 70), 2), numbers(f32, (48,), 3), numbers(f32, (70,), 4)
    p = program(SCALED[name], x, w, s, t)
    assert not any(isinstance(s, HostCall) for s in p.steps)
    assert is_one_kernel(p) or name == "bf16"
    got = levels_agree(p, [x, w, s, t])
    eager = SCALED[name](*map(ts.tensor, (x, w, s, t))).numpy()
    loose = 0.05 if name == "bf16" else 1e-4
    size = np.abs(eager.astype(np.float32)).max()
    assert np.abs(got.astype(np.float32) - eager.astype(np.float32)).max() <= loose * size


def test_what_others_want_too_is_made_once() -> None:
    x, w = numbers(f32, (4, 30), 1), numbers(i8, (30, 20), 2)
    p = program(lambda x, w: (x @ w.astype(f32), op.sum(w.astype(f32))), x, w)
    assert same_bits(by_llvm(p, [x, w]), by_schedule(p, [x, w]))


def test_strided_weights_exist_on_their_own() -> None:
    x, w = numbers(f32, (4, 15), 1), numbers(i8, (30, 20), 2)
    p = program(lambda x, w: x @ w[::2].astype(f32), x, w)
    np.testing.assert_allclose(
        levels_agree(p, [x, w]), x @ w[::2].astype(np.float32), rtol=1e-4, atol=1e-3
    )


def halves(w: Any, axis: int, signed: bool) -> Any:
    """Both halves of bytes, one after the other along an axis."""
    return op.unpack_ints(w, 4, axis, signed).astype(f32)


FOURS = [(1, 32, 64), (1, 34, 5), (3, 520, 200), (20, 32, 70), (9, 1030, 130)]


@pytest.mark.parametrize("signed", [False, True])
@pytest.mark.parametrize("shape", FOURS, ids=str)
def test_two_codes_of_a_byte_are_taken_apart_as_they_are_read(
    shape: tuple[int, int, int], signed: bool
) -> None:
    m, k, n = shape
    x, w = numbers(f32, (m, k), 1), numbers(FORMATS["u8"], (k // 2, n), 2)
    p = program(lambda x, w: x @ halves(w, 0, signed), x, w)
    assert is_one_kernel(p)
    got = levels_agree(p, [x, w])
    codes = np.stack([w & 15, w >> 4], 1).reshape(k, n).astype(np.int8)
    codes = (codes ^ 8) - 8 if signed else codes
    q = program(lambda x, w: x @ w.astype(f32), x, codes)
    assert same_bits(by_llvm(q, [x, codes]), [got])


def test_codes_of_bytes_are_taken_apart_in_every_nest() -> None:
    x, w = numbers(f32, (5, 70), 1), numbers(FORMATS["u8"], (35, 40), 2)
    p = program(lambda x, w: x @ halves(w, 0, True), x, w)
    (k,) = p.steps
    assert isinstance(k, Kernel)
    want = by_schedule(p, [x, w])
    for nest in list(nests(k))[::7]:
        q = replace(p, steps=(replace(k, nest=nest),))
        assert same_bits(by_llvm(q, [x, w]), want), nest


def test_a_computed_factor_of_a_batch_exists_once() -> None:
    x, w = numbers(f32, (3, 24), 1), numbers(FORMATS["u8"], (5, 3, 4, 16), 2)
    at = np.array([2], np.int32)

    def f(x: Any, at: Any, w: Any) -> Any:
        parts = op.reshape(op.take(x, at, axis=0), (3, 1, 8))
        return op.matmul(parts, halves(w, 2, False))

    p = program(f, x, at, w)
    made = [k for k in p.steps if isinstance(k, Kernel) and not k.contracts]
    sizes = [p.buffers[n].type.size for k in made for n in k.outputs]
    assert sizes == [24]  # and not one for each of the 5 products that share it
    levels_agree(p, [x, at, w])


def test_numbers_that_take_several_steps_are_made_as_they_are_read() -> None:
    x, w = numbers(f32, (2, 24), 1), numbers(FORMATS["u8"], (12, 40), 2)
    p = program(lambda x, w: x @ numbers_of(w, 0, "e2m1").astype(f32), x, w)
    assert is_one_kernel(p)
    codes = E2M1_TWICE[np.stack([w & 15, w >> 4], 1).reshape(24, 40)]
    q = program(lambda x, w: x @ w.astype(f32), x, codes)
    assert same_bits(by_llvm(q, [x, codes]), [levels_agree(p, [x, w])])


def test_a_factor_of_a_batch_may_follow_from_a_fold() -> None:
    x, w = numbers(f32, (5, 3, 8), 1), numbers(i8, (8, 16), 2)

    def f(x: Any, w: Any) -> Any:
        scale = op.sum(w.astype(f32), axis=0, keepdims=True)
        return op.matmul(x, op.broadcast_to(w.astype(f32) * op.exp(scale * 1e-3), (5, 8, 16)))

    got = levels_agree(program(f, x, w), [x, w])
    np.testing.assert_allclose(got, f(*map(ts.tensor, (x, w))).numpy(), rtol=1e-4, atol=1e-2)


BYTES = {
    "along the columns": lambda x, w: x @ halves(w[:, :12], 1, False),
    "turned": lambda x, w: x @ halves(w[:24], 1, False).T,
    "on the left": lambda x, w: (halves(w, 0, True).T @ x.T).T,
    "in a batch": lambda x, w: x @ halves(op.reshape(w, (3, 12, 24)), 1, False),
    "scaled": lambda x, w: x @ (halves(w[:12], 0, False) * 0.5),
    "in integers": lambda x, w: x.astype(i32) @ op.unpack_ints(w[:12], 4, 0, True),
    "twice": lambda x, w: x @ halves(w[:12], 0, True) + op.sum(halves(w[:12], 0, True)),
}  # fmt: skip


@pytest.mark.parametrize("name", BYTES)
def test_codes_of_bytes_may_lie_along_any_axis(name: str) -> None:
    w = numbers(FORMATS["u8"], (36, 24), 1)
    inner = {"along the columns": 36, "turned": 48, "on the left": 72}.get(name, 24)
    x = numbers(f32, (4, inner), 2)
    f = BYTES[name]
    got = levels_agree(program(f, x, w), [x, w])
    np.testing.assert_allclose(got, f(*map(ts.tensor, (x, w))).numpy(), rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("name", ["f8e4m3", "f8e5m2"])
def test_products_of_small_floats_are_sums_in_f32_rounded_once(name: str) -> None:
    d = FORMATS[name]
    x, y = numbers(d, (9, 600), 1), numbers(d, (600, 33), 2)
    p = program(lambda a, b: a @ b, x, y)
    assert is_one_kernel(p)
    got = levels_agree(p, [x, y])
    q = program(lambda a, b: a.astype(f32) @ b.astype(f32), x, y)
    assert same_bits([by_llvm(q, [x, y])[0].astype(d.np)], [got])


def test_a_cast_that_saturates_is_a_kernel() -> None:
    x = np.array([[1e9, -1e9, 448.0, 464.1, np.inf, -np.inf, np.nan, 0.1]], np.float32)
    p = program(lambda a: a.astype(f8e4m3 @ saturate), x)
    assert isinstance(p.steps[0], Kernel)
    got = levels_agree(p, [x]).astype(np.float32)[0]
    np.testing.assert_array_equal(got[:6], [448, -448, 448, 448, 448, -448])
    assert np.isnan(got[6])


def test_kernels_say_what_they_do_with_words() -> None:
    x, y = numbers(i8, (8, 64), 1), numbers(i8, (64, 64), 2)
    p = program(lambda a, b: a.astype(i32) @ b.astype(i32), x, y)
    ((_, kernel),) = kernels(p)
    assert '"tile.dot_parts"' in str(kernel)
    assert "parts = 4" in str(kernel)


@pytest.mark.parametrize("name", ["f8e4m3", "f8e5m2"])
def test_casts_to_small_floats_round_ties_to_even_up_to_the_last_number(name: str) -> None:
    d = FORMATS[name]
    codes = np.arange(256, dtype=np.uint8).view(d.np)
    line = np.sort(codes.astype(np.float32)[np.isfinite(codes.astype(np.float32))])
    ties = np.concatenate([(line[1:] + line[:-1]) / 2, 2 * line[-1:] - line[-2:-1]])
    near = [np.nextafter(ties, np.float32(s * np.inf)) for s in (1, -1)]
    x = np.concatenate([line, ties, *near, np.float32([np.inf, -np.inf, np.nan, -0.0])])[None]
    p = program(lambda a: a.astype(d), x)
    assert isinstance(p.steps[0], Kernel)
    with np.errstate(all="ignore"):
        assert same_bits([levels_agree(p, [x])], [x.astype(d.np)])
    q = program(lambda a: a.astype(f32), codes[None])
    assert same_bits([levels_agree(q, [codes[None]])], [codes[None].astype(np.float32)])


def test_weights_of_i4_with_a_scale_for_each_group_are_right() -> None:
    w, s = numbers(FORMATS["i4"], (64, 40), 1), numbers(f32, (4, 40), 2)
    x = numbers(f32, (5, 64), 3)

    def f(x: Any, w: Any, s: Any) -> Any:
        groups = w.astype(f32).reshape((4, 16, 40)) * s[:, None, :]
        return x @ groups.reshape((64, 40))

    p = program(f, x, w, s)
    wide = w.astype(np.float32) * np.repeat(s, 16, axis=0)
    want = by_llvm(program(lambda a, b: a @ b, x, wide), [x, wide])
    assert same_bits([levels_agree(p, [x, w, s])], want)
