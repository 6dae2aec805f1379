"""Matrix registers (AMX): bytes are exact, bf16 has the bits of the instruction, vectors have the same
bits.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tessera as ts
from tessera import bf16, f32, i8, i32, op, u8
from tessera.cli import doctor
from tessera.compile import artifact as image
from tessera.core import matrix_units as units
from tessera.core.dot_words import dot_words
from tessera.core.dtype import DType, u32
from tessera.core.errors import ScheduleError, VerifyError
from tessera.core.flags import override
from tessera.core.types import TensorType
from tessera.ir.schedule.ir import Kernel, Program
from tessera.ir.schedule.lower import lower
from tessera.ir.schedule.nests import matrix
from tessera.ir.schedule.nests.legality import check_nest
from tessera.ir.schedule.nests.nest import parse_nest
from tessera.ir.schedule.passes.relax_order import relax_order
from tessera.ir.target.cpu.emit import emit
from tessera.ir.target.cpu.instructions import MATRIX_INSTRUCTIONS
from tessera.ir.target.cpu.tiles import usable_features
from tessera.ir.tile.interp import interpret
from tessera.ir.tile.ir import Builder
from tessera.ir.tile.ir import Kernel as TileKernel
from tessera.ir.tile.verify import verify
from tessera.stdlib import quantise, quantised_matmul
from tests.support.runners.levels import by_llvm, by_tile, kernels, prepared
from tests.support.runners.tile_machine import Machine

RNG = np.random.default_rng(11)
needs_units = pytest.mark.skipif(
    not units.matrix_units(), reason="this processor has no matrix registers"
)
BOTH = frozenset(["int8", "bf16"])


def numbers(dtype: DType, *shape: int) -> Any:
    if dtype.kind == "f":
        return RNG.normal(size=shape).astype(dtype.np)
    low, high = (0, 256) if dtype is u8 else (-128, 128)
    return RNG.integers(low, high, shape).astype(dtype.np)


def exact(a: Any, b: Any) -> Any:
    return a.astype(np.int32) @ b.astype(np.int32)


def multiply(a: Any, b: Any) -> Any:
    return a.astype(i32) @ b.astype(i32)


def program(f: Callable[..., Any], *arrays: Any) -> Program:
    return lower(prepared(ts.trace(f, *map(ts.tensor, arrays))))


def with_nest(p: Program, text: str) -> Program:
    (k,) = p.steps
    assert isinstance(k, Kernel)
    return replace(p, steps=(replace(k, nest=parse_nest(text)),))


# The operations


def product(left: DType, right: DType, acc: DType, m: int = 16, n: int = 16) -> TileKernel:
    """z + x y, in two steps of 16 words."""
    b = Builder("product")
    x, y = (b.parameter(a, TensorType(i32, s)) for a, s in (("x", (2, m, 16)), ("y", (2, 16, n))))
    z = b.parameter("z", TensorType(acc, (m, n)), writable=True)
    with b.loop(0, 2, 1, [b.load(z, (0, 0), (m, n))]) as step:
        i = step.variable
        a = b.load(x, (i, 0, 0), (1, m, 16), axes=(1, 2))
        c = b.load(y, (i, 0, 0), (1, 16, n), axes=(1, 2))
        step.carry(b.dot_words(a, c, step.carried[0], left, right))
    b.store(z, step.results[0], (0, 0), (m, n))
    k = b.finish()
    verify(k)
    return k


PRODUCTS = {
    "llvm.x86.tdpbssd": (i8, i8, i32), "llvm.x86.tdpbsud": (i8, u8, i32), "llvm.x86.tdpbusd": (u8, i8, u32),
    "llvm.x86.tdpbuud": (u8, u8, u32), "llvm.x86.tdpbf16ps": (bf16, bf16, f32),
}  # fmt: skip


def bits_of_bf16(shape: tuple[int, ...], low: int, high: int) -> Any:
    """Numbers with exponents in a range, of any sign and digits, as words of two."""
    sign, digits = (RNG.integers(0, n, shape, np.uint16) for n in (2, 128))
    exponents = RNG.integers(low, high, shape).astype(np.uint16)
    return (sign << 15 | exponents << 7 | digits).view(np.int32)


def pairs(low: int, high: int, other: tuple[int, int], sums: tuple[int, int]) -> list[Any]:
    x, y = bits_of_bf16((2, 16, 32), low, high), bits_of_bf16((2, 16, 32), *other)
    digits = RNG.integers(0, 1 << 23, (16, 16)).astype(np.uint32)
    exponents = RNG.integers(*sums, (16, 16)).astype(np.uint32)
    sign = RNG.integers(0, 2, (16, 16)).astype(np.uint32)
    return [x, y, (sign << 31 | exponents << 23 | digits).view(np.float32)]


def edges() -> list[Any]:
    """Sums that round up to the smallest normal number only where subnormal ones have fewer digits."""
    x, y = (np.zeros((2, 16, 16, 2), np.float32) for _ in range(2))
    x[0, :, 0, 0] = y[0, 0, :, 0] = 2.0**-63
    x[0, :, 1, 0] = -(2.0 ** -np.arange(60.0, 76))
    y[0, 1, :, 0] = 2.0 ** -np.arange(75.0, 91)
    words = [v.astype(ml_dtypes.bfloat16).view(np.int32).reshape(2, 16, 16) for v in (x, y)]
    return [*words, np.zeros((16, 16), np.float32)]


BF16 = {
    "usual": lambda: pairs(117, 137, (117, 137), (117, 140)),
    "wide": lambda: pairs(1, 254, (1, 254), (1, 254)),
    "subnormal factors": lambda: pairs(0, 3, (100, 140), (0, 3)),
    "tiny products": lambda: pairs(58, 66, (58, 66), (0, 8)),
    "all bits": lambda: pairs(0, 256, (0, 256), (0, 256)),
    "infinities": lambda: pairs(253, 256, (0, 130), (0, 256)),
    "edges": edges,
}  # fmt: skip


def same_numbers(x: Any, y: Any) -> bool:
    """Whether bits are the same; any NaN is like any other."""
    if x.dtype.kind != "f":
        return bool(np.array_equal(x, y))
    none = np.isnan(x) & np.isnan(y)
    return bool(((x.view(np.uint32) == y.view(np.uint32)) | none).all())


@pytest.fixture(scope="module")
def by_vectors() -> Machine:
    return Machine([product(*PRODUCTS[name], m=2) for name in PRODUCTS], frozenset())


@pytest.fixture(scope="module")
def by_units() -> Machine:
    return Machine([product(*PRODUCTS[name]) for name in PRODUCTS])


def check_product(machine: Machine, i: int, data: list[Any]) -> None:
    kernel = machine.kernels[i]
    rows = kernel.parameters[2].type.shape[0]
    x, y, z = np.ascontiguousarray(data[0][:, :rows]), data[1], data[2][:rows]
    want, got = z.copy(), z.copy()
    with np.errstate(all="ignore"):
        interpret(kernel, [x, y, want])
    machine.run(i, [x, y, got])
    assert same_numbers(got, want)


@pytest.mark.parametrize("case", BF16)
def test_vectors_have_the_bits_of_the_bf16_instruction(case: str, by_vectors: Machine) -> None:
    check_product(by_vectors, 4, BF16[case]())


@needs_units
@pytest.mark.parametrize("case", BF16)
def test_the_bf16_instruction_has_the_bits_of_its_model(case: str, by_units: Machine) -> None:
    for _ in range(8):
        check_product(by_units, 4, BF16[case]())


@pytest.mark.parametrize("i", range(4))
def test_bytes_of_words_multiply_exactly(
    i: int, by_vectors: Machine, request: pytest.FixtureRequest
) -> None:
    *words, acc = PRODUCTS[list(PRODUCTS)[i]]
    x, y = (RNG.integers(-(2**31), 2**31, (2, 16, 16)).astype(np.int32) for _ in range(2))
    z = RNG.integers(0, 2**31, (16, 16)).astype(acc.np)
    check_product(by_vectors, i, [x, y, z])
    if units.matrix_units():
        check_product(request.getfixturevalue("by_units"), i, [x, y, z])
    a, b = (
        np.ascontiguousarray(v).view(d.np).astype(object)
        for v, d in zip((x, y), words, strict=True)
    )
    a, b = a.reshape(2, 16, 64), b.reshape(2, 16, 16, 4).swapaxes(2, 3).reshape(2, 64, 16)
    want = z.astype(object) + a[0] @ b[0] + a[1] @ b[1]
    once = dot_words(x[0], y[0], z, words[0].name, words[1].name)
    got = dot_words(x[1], y[1], once, words[0].name, words[1].name)
    assert ((got.astype(object) - want) % 2**32 == 0).all()


def test_the_rows_of_the_table_are_used_only_by_machines_that_have_them() -> None:
    assert {row.intrinsic for row in MATRIX_INSTRUCTIONS} == set(PRODUCTS)
    for row in MATRIX_INSTRUCTIONS:
        kernel = product(*PRODUCTS[row.intrinsic])
        text = emit(kernel, row.features)
        assert row.intrinsic in text
        assert "tilerelease" in text
        for less in row.features:
            assert "llvm.x86" not in emit(kernel, row.features - {less})


WORDS = {
    "rows": (i8, (12, 37), 0), "columns": (u8, (3, 128), 1), "short": (i8, (5, 20), 1),
    "pairs": (bf16, (4, 16), 0),
    "pairs along": (bf16, (2, 64), 1), "one": (bf16, (2, 1), 0), "one of bytes": (i8, (1, 4), 1),
}  # fmt: skip


def joined(name: str) -> TileKernel:
    dtype, shape, axis = WORDS[name]
    b = Builder("words")
    x = b.parameter("x", TensorType(dtype, shape))
    t = b.words(b.load(x, (0, 0), shape), axis)
    b.store(b.parameter("y", t.type, writable=True), t, (0, 0), t.shape)
    return b.finish()


def test_words_are_neighbours() -> None:
    made = [joined(name) for name in WORDS]
    machine = Machine(made)
    for i, (k, (dtype, shape, axis)) in enumerate(zip(made, WORDS.values(), strict=True)):
        x = RNG.integers(0, 256, (*shape, dtype.bits // 8), np.uint8).view(dtype.np)[..., 0]
        y = np.zeros(k.parameters[1].type.shape, np.int32)
        interpret(k, [x, y])
        moved = np.moveaxis(x, axis, 1)
        cut = np.ascontiguousarray(moved).view(np.int32)
        np.testing.assert_array_equal(y, np.moveaxis(cut, 1, axis))
        got = np.zeros_like(y)
        machine.run(i, [np.ascontiguousarray(x), got])
        np.testing.assert_array_equal(got, y)


@pytest.mark.parametrize(("make", "message"), [
    (lambda b: b.words(b.full(f32, (4, 4), 0), 0), r"words: f32\[4,4\] is no matrix of i8, u8, bf16"),
    (lambda b: b.words(b.full(i8, (6, 4), 0), 0), r"words: axis 0 of i8\[6,4\] is cut in 4 parts of a word"),
    (lambda b: b.dot_words(*(b.full(i32, (4, 4), 0),) * 3, i8, bf16), "there are no words of i8 and bf16"),
    (lambda b: b.dot_words(*(b.full(i32, (4, 4), 0),) * 3, bf16, bf16),
    "products of bf16 and bf16 do not add up in i32"),
    (lambda b: b.dot_words(*(b.full(i32, (4, n), 0) for n in (4, 5, 4)), i8, i8),
    r"are not \(m, k\), \(k, n\) and \(m, n\)"),
    (lambda b: b.dot_words(*(b.full(d, (4, 4), 0) for d in (i8, i32, i32)), i8, i8),
    "words are i32, got i8 and i32"),
], ids=["dtype", "cut", "mixed", "sum", "shapes", "words"])  # fmt: skip
def test_words_are_refused(make: Callable[[Builder], Any], message: str) -> None:
    with pytest.raises(VerifyError, match=message):
        make(Builder("refused"))


# Contractions

RAGGED = (1, 15, 16, 17, 31, 63, 64, 65, 97)
LAYOUTS = {
    "nn": lambda a, b: multiply(a, b), "nt": lambda a, b: multiply(a, b.T),
    "tn": lambda a, b: multiply(a.T, b), "tt": lambda a, b: multiply(a.T, b.T),
}  # fmt: skip


def tensors(layout: str, a: Any, b: Any) -> list[Any]:
    turned = (
        np.ascontiguousarray(x.T) if t == "t" else x for x, t in zip((a, b), layout, strict=True)
    )
    return list(turned)


@needs_units
@pytest.mark.parametrize("layout", LAYOUTS)
def test_one_kernel_of_bytes_serves_all_sizes_exactly(layout: str) -> None:
    p, q = (("M", "K"), ("K", "N"))
    p, q = p if layout[0] == "n" else p[::-1], q if layout[1] == "n" else q[::-1]
    left, right = {"nn": (i8, i8), "nt": (u8, i8), "tn": (i8, u8), "tt": (u8, u8)}[layout]
    f = LAYOUTS[layout]
    f.__annotations__ = {"a": ts.Tensor[(*p, left)], "b": ts.Tensor[(*q, right)]}
    run = ts.jit(f, target="cpu")
    sizes = [(m, 65, 33) for m in RAGGED] + [(17, k, 40) for k in RAGGED]
    sizes += [(33, 70, n) for n in RAGGED] + [(40, 2500, 70), (7, 1030, 1)]
    for m, k, n in sizes:
        a, b = numbers(left, m, k), numbers(right, k, n)
        got = run(*map(ts.tensor, tensors(layout, a, b))).numpy()
        np.testing.assert_array_equal(got, exact(a, b))
    example = [ts.tensor(x) for x in tensors(layout, numbers(left, 20, 64), numbers(right, 64, 20))]
    assert "dot_words" in str(run.lower(*example).tile)


STATIC = {
    "rows as they lie": (64, 128, 96), "one row of registers": (13, 192, 130), "few columns": (70, 64, 9),
    "long": (32, 2112, 32), "ragged": (37, 101, 53),
}  # fmt: skip


@needs_units
@pytest.mark.parametrize("name", STATIC)
def test_levels_agree_and_so_do_vectors(name: str) -> None:
    m, k, n = STATIC[name]
    a, b = numbers(i8, m, k), numbers(i8, k, n)
    p = program(multiply, a, b)
    ((_, kernel),) = kernels(p)
    assert "tdpbssd" in emit(kernel)
    np.testing.assert_array_equal(by_llvm(p, [a, b])[0], exact(a, b))
    np.testing.assert_array_equal(by_tile(p, [a, b])[0], exact(a, b))
    with override(matrix_units=False):
        q = program(multiply, a, b)
        ((_, other),) = kernels(q)
        assert "tdp" not in emit(other)
        np.testing.assert_array_equal(by_llvm(q, [a, b])[0], exact(a, b))


def scaled(a: Any, b: Any, s: Any, t: Any) -> Any:
    return op.relu(multiply(a, b).astype(f32) * s[:, None] * t[None, :])


PROGRAMS: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "scales": (scaled, (numbers(i8, 40, 96), numbers(i8, 96, 50), numbers(f32, 40), numbers(f32, 50))),
    "batch": (multiply, (numbers(i8, 3, 33, 70), numbers(u8, 3, 70, 35))),
    "shared weights": (multiply, (numbers(i8, 3, 20, 64), numbers(i8, 64, 64))),
    "four bits": (multiply, (numbers(i8, 32, 80), RNG.integers(-8, 8, (80, 48)).astype(ml_dtypes.int4))),
    "a part": (lambda a, b: multiply(a[2:, 3:70], b[1:68]), (numbers(i8, 40, 100), numbers(i8, 80, 40))),
    "a broadcast": (lambda a, b: multiply(op.broadcast_to(a, (20, 64)), b),
    (numbers(i8, 20, 1), numbers(i8, 64, 33))),
}  # fmt: skip


@needs_units
@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_have_the_bits_of_vectors_for_any_threads(name: str) -> None:
    f, arrays = PROGRAMS[name]
    xs = [ts.tensor(a) for a in arrays]
    with override(matrix_units=False):
        want = ts.jit(f)(*xs).numpy()
    run = ts.jit(f)
    for threads in (1, 2, 3, 8):
        with ts.threads(threads):
            assert run(*xs).numpy().tobytes() == want.tobytes(), threads


@needs_units
def test_quantised_products_have_the_bits_of_vectors_row_by_row() -> None:
    x, w = numbers(f32, 96, 200), numbers(f32, 200, 130)
    (a, s), (b, t) = quantise(x, axis=1), quantise(w)
    whole = quantised_matmul(a, b, t, s).numpy()
    with override(matrix_units=False):
        assert quantised_matmul(a, b, t, s).numpy().tobytes() == whole.tobytes()
    for rows in (slice(5, 6), slice(10, 43)):
        assert quantised_matmul(a[rows], b, t, s[rows]).numpy().tobytes() == whole[rows].tobytes()


# Numerics fast


@needs_units
def test_bf16_has_its_own_order_under_fast_alone() -> None:
    a, b = numbers(bf16, 48, 80), numbers(bf16, 80, 40)
    usual = program(op.matmul, a, b)
    assert "dot_words" not in "".join(str(k) for _, k in kernels(usual))
    p = relax_order(usual)
    ((_, kernel),) = kernels(p)
    assert "tdpbf16ps" in emit(kernel)
    (got,) = by_llvm(p, [a, b])
    assert same_numbers(by_tile(p, [a, b])[0].astype(np.float32), got.astype(np.float32))
    total = np.zeros((48, 40), np.float32)
    padded = np.zeros((48, 96), a.dtype), np.zeros((96, 40), b.dtype)
    padded[0][:, :80], padded[1][:80] = a, b
    for k in range(0, 96, 32):
        x = np.ascontiguousarray(padded[0][:, k : k + 32]).view(np.int32)
        y = np.ascontiguousarray(padded[1][k : k + 32].reshape(16, 2, 40).swapaxes(1, 2))
        total = dot_words(x, y.view(np.int32)[..., 0], total, "bf16", "bf16")
    assert total.astype(a.dtype).tobytes() == got.tobytes()


@needs_units
@pytest.mark.parametrize("k", [33, 700, 3000])
def test_bf16_under_fast_is_within_its_bound(k: int) -> None:
    a, b = numbers(bf16, 33, k), numbers(bf16, k, 50)
    run = ts.jit(lambda a, b: a.astype(f32) @ b.astype(f32), numerics="fast")
    got = run(ts.tensor(a), ts.tensor(b)).numpy()
    x, y = a.astype(np.float64), b.astype(np.float64)
    steps = 17 + -(-k // 32)  # roundings: 16 in a chain, one where two meet, one for each block
    assert (np.abs(got - x @ y) <= steps * 2.0**-24 * 1.01 * (np.abs(x) @ np.abs(y))).all()
    with ts.threads(3):
        assert run(ts.tensor(a), ts.tensor(b)).numpy().tobytes() == got.tobytes()


# Nests

NEST = (
    "parallel m:{m}, parallel n:{n}, {k}n:{n}, m:{m}, k:64, unroll m:16, vector n:16; "
    "stage left at {i}; stage right at {i}"
)


@needs_units
@pytest.mark.parametrize(
    ("m", "n", "k"), [(16, 16, ""), (16, 64, "k:128, "), (32, 32, "k:64, "), (48, 16, "")]
)
def test_any_nest_has_the_same_bits(m: int, n: int, k: str) -> None:
    a, b = numbers(i8, 60, 150), numbers(i8, 150, 100)
    p = with_nest(program(multiply, a, b), NEST.format(m=m, n=n, k=k, i=3 if k else 2))
    ((_, kernel),) = kernels(p)
    assert "tdpbssd" in emit(kernel)
    np.testing.assert_array_equal(by_llvm(p, [a, b])[0], exact(a, b))


def test_a_nest_in_matrix_registers_runs_without_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matrix, "matrix_units", lambda: BOTH)
    a, b = numbers(i8, 18, 70), numbers(i8, 70, 20)
    text = NEST.format(m=16, n=16, k="", i=2)
    p = with_nest(program(multiply, a, b), text)
    np.testing.assert_array_equal(by_tile(p, [a, b])[0], exact(a, b))
    with override(matrix_units=False):
        np.testing.assert_array_equal(by_llvm(p, [a, b])[0], exact(a, b))


WRONG = {
    "f32": ("32, n:32, m:32, k:64, unroll m:16",
    "matrix registers multiply bytes, or bf16 in any order; use unroll m:1"),
    "k": ("32, n:32, m:32, k:32, unroll m:16",
    "a matrix register holds 64 k; end the loops over k with k:64"),
    "many": ("64, n:64, m:64, k:64, unroll m:16",
    "there are 8 matrix registers; use smaller blocks of m and n"),
    "left": ("32, n:32, m:32, k:64, unroll m:16",
    "matrix registers read packed factors; stage left and right"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_nests_that_do_not_fit_are_refused(name: str) -> None:
    text, message = WRONG[name]
    dtype = f32 if name == "f32" else i8
    f = op.matmul if name == "f32" else multiply
    p = program(f, numbers(dtype, 64, 100), numbers(dtype, 100, 64))
    stages = "; stage right at 2" + ("" if name == "left" else "; stage left at 2")
    m = text.split(",")[0]
    nest = parse_nest(f"parallel m:{m}, parallel n:{text}, vector n:16{stages}")
    (k,) = p.steps
    assert isinstance(k, Kernel)
    with pytest.raises(ScheduleError, match=message):
        check_nest(k, nest)


# Processors and systems


@pytest.fixture
def refused(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A system that has the registers and does not give them."""

    def call(request: int, value: int) -> int:
        if request == 0x1021:
            units.ctypes.c_uint64.from_address(value).value = 1 << 18
            return 0
        return errno.EPERM

    def forget() -> None:
        units.refusal.cache_clear()
        units.may_use_tiles.cache_clear()

    monkeypatch.setattr(units, "_system_call", call)
    for module in (units, doctor):
        monkeypatch.setattr(module, "found_units", lambda: BOTH)
    monkeypatch.setattr(units.sys, "platform", "linux")
    monkeypatch.setattr(units.platform, "machine", lambda: "x86_64")
    forget()
    yield
    monkeypatch.undo()
    forget()


def test_a_process_that_is_refused_computes_with_vectors(refused: None) -> None:
    assert units.matrix_units() == frozenset()
    assert not any(f.startswith("amx") for f in usable_features())
    a, b = numbers(i8, 40, 70), numbers(i8, 70, 40)
    p = program(multiply, a, b)
    ((_, kernel),) = kernels(p)
    assert "dot_parts" in str(kernel)
    assert "tile" not in emit(kernel)
    np.testing.assert_array_equal(by_llvm(p, [a, b])[0], exact(a, b))
    assert doctor._matrix_units() == "the system refuses them (Operation not permitted)"
    assert image.key_of(ts.trace(multiply, ts.tensor(a), ts.tensor(b))) is not None


def test_images_for_processes_with_and_without_registers_differ(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    g = ts.trace(multiply, *(ts.tensor(numbers(i8, 16, 16)) for _ in range(2)))
    keys = set()
    for may in (True, False):
        monkeypatch.setattr(image, "may_use_tiles", lambda may=may: may)
        for on in (True, False):
            with override(matrix_units=on):
                keys.add(image.key_of(g))
    assert len(keys) == 4


def test_a_processor_without_registers_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(units, "found_units", frozenset)
    monkeypatch.setattr(doctor, "found_units", frozenset)
    assert units.matrix_units() == frozenset()
    assert doctor._matrix_units() == "none"
    monkeypatch.setattr(doctor, "found_units", lambda: BOTH)
    with override(matrix_units=False):
        assert doctor._matrix_units() == "switched off by TESSERA_MATRIX_UNITS"
