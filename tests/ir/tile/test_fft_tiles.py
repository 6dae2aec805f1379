"""Fourier transforms below Graph IR: the definition is near NumPy's, and every level has its bits."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest
import scipy.fft

import tessera as ts
from tessera import Tensor, op
from tessera.compile.artifact import decode, encode
from tessera.compile.cpu.build import build
from tessera.compile.passes import Context
from tessera.core import fourier
from tessera.core.dtype import as_dtype
from tessera.core.flags import override
from tessera.core.roots import roots
from tessera.core.types import TensorType
from tessera.ir.schedule.ir import HostCall, Primitive
from tessera.ir.schedule.lower import lower
from tessera.ir.schedule.text import parse_program
from tessera.ir.schedule.verify import verify
from tessera.ir.tile import interp as tile_interp
from tessera.ir.tile.cpu.fft import FftSchedule, Transform
from tessera.ir.tile.ir import Builder
from tests.support.cases.random_graphs import same_bits
from tests.support.runners import levels

LENGTHS = [*range(1, 201), 1009, 1024, 2310, 4096, 65537]
NORMS = ("backward", "ortho", "forward")
# Relative error of a whole transform; the worst measured are 2.5e-7 (65537, by a chirp) and 1.2e-15.
BOUNDS = {"f32": 3e-7, "f64": 1.5e-15}


def draw(shape, dtype="c64", seed=0):
    rng, d = np.random.default_rng([seed, *shape]), as_dtype(dtype)
    x = rng.normal(size=shape)
    return (x + 1j * rng.normal(size=shape) if d.kind == "c" else x).astype(d.np)


def distance(x, want):
    return np.linalg.norm(x - want) / max(np.linalg.norm(want), 1e-300)


# The definition ---------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [1, 2, 3, 8, 12, 360, 1009, 4096, 5000])
def test_roots_of_unity(n):
    """Near the library's, and exact where they can be."""
    k = np.arange(-n, 2 * n)
    re, im = roots(k, n)
    turns = [math.tau * (i % n) / n for i in k]
    assert np.abs(re - [math.cos(t) for t in turns]).max() < 2e-15
    assert np.abs(im + [math.sin(t) for t in turns]).max() < 2e-15
    assert np.abs(re * re + im * im - 1).max() < 2.5e-16
    again = roots(k + n, n)
    assert np.array_equal(re, again[0])
    assert np.array_equal(im, again[1])
    if n % 8 == 0:
        eighth = [float(x) for i in range(8) for x in np.ravel(roots(np.array([i * n // 8]), n))]
        h = math.sqrt(0.5)
        assert eighth == [1, 0, h, -h, 0, -1, -h, -h, -1, 0, -h, h, 0, 1, h, h]


@pytest.mark.parametrize("bits", [32, 64])
def test_the_definition_is_near_numpy_for_every_length(bits):
    c, f = f"c{2 * bits}", f"f{bits}"
    for i, n in enumerate(LENGTHS):
        norm = NORMS[i % 3]
        x, real = draw((2, n), c), draw((2, n), f)
        half = draw((2, n // 2 + 1), c)
        wide, wide_half = x.astype(complex), half.astype(complex)
        found = {
            "fft": (fourier.fft(x, 1, norm), np.fft.fft(wide, norm=norm)),
            "ifft": (fourier.fft(x, 1, norm, True), np.fft.ifft(wide, norm=norm)),
            "rfft": (fourier.rfft(real, 1, norm), np.fft.rfft(real.astype(float), norm=norm)),
            "irfft": (fourier.irfft(half, 1, n, norm), np.fft.irfft(wide_half, n, norm=norm)),
        }
        for name, (y, want) in found.items():
            assert distance(y, want) < BOUNDS[f], (name, n, norm)
            assert y.dtype == as_dtype(f if name == "irfft" else c).np


@pytest.mark.parametrize("n", [1000, 1024, 1009])
def test_the_definition_is_as_exact_as_scipy(n):
    x = draw((8, n))
    want = np.fft.fft(x.astype(complex))
    assert distance(fourier.fft(x, 1, "backward"), want) < 1.1 * distance(scipy.fft.fft(x), want)


@pytest.mark.parametrize("n", [1, 2, 3, 4, 6, 7, 8, 11, 16, 22, 30, 49, 64, 1024])
def test_laws_of_the_transform(n):
    """Round trips, an impulse, a constant: what needs no oracle."""
    x, real = draw((3, n), "c128"), draw((3, n), "f64")
    there = fourier.fft(x, 1, "backward")
    assert distance(fourier.fft(there, 1, "backward", True), x) < 1e-14
    half = fourier.rfft(real, 1, "backward")
    assert distance(fourier.irfft(half, 1, n, "backward"), real) < 1e-14
    assert distance(fourier.fft(real + 0j, 1, "backward")[:, : n // 2 + 1], half) < 1e-14
    first = np.zeros((1, n), complex)
    first[0, 0] = 1
    assert distance(fourier.fft(first, 1, "backward"), np.ones((1, n))) < 1e-14


def test_factors_multiply_to_the_length():
    for n in range(1, 3000):
        found = fourier.factors(n)
        smooth = n
        for p in (2, 3, 5, 7):
            while smooth % p == 0:
                smooth //= p
        assert (found is not None) == (smooth == 1)
        if found is not None:
            assert math.prod(found) == n
            assert set(found) <= {2, 3, 4, 5, 7, 8}


# Levels -----------------------------------------------------------------------------------------


def program(f, *xs):
    """The program of f, all of it in primitives."""
    p = lower(levels.prepared(ts.trace(f, *xs)))
    assert any(isinstance(s, Primitive) for s in p.steps), str(p)
    assert not any(isinstance(s, HostCall) for s in p.steps), str(p)
    verify(p)
    assert parse_program(p.text).text == p.text
    return p


def check(f, *xs, interpret=True):
    """All levels agree on f; the outputs."""
    p = program(f, *map(ts.tensor, xs))
    want = levels.by_schedule(p, xs)
    for run in (levels.by_tile, levels.by_llvm) if interpret else (levels.by_llvm,):
        assert same_bits(run(p, xs), want), run.__name__
    return want


FUNCTIONS = {
    "fft": (op.fft, "c", np.fft.fft),
    "ifft": (op.ifft, "c", np.fft.ifft),
    "rfft": (op.rfft, "f", np.fft.rfft),
    "irfft": (op.irfft, "c", np.fft.irfft),
}
# Each radix and layout: one row, many rows, columns fewer and more than a vector has lanes.
CASES = [
    ((1,), 0), ((2,), 0), ((40,), 0), ((17, 5), 1), ((3, 7), 1), ((16, 24), 1), ((33, 9), 1),
    ((6, 3), 0), ((2, 8, 19), 1), ((11, 2), 0), ((1, 13), 1), ((18, 11), 1), ((35, 16), 0),
    ((4, 22), 1), ((20, 2), 1),
]  # fmt: skip


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize(("shape", "axis"), CASES)
def test_every_level_has_the_bits_of_the_definition(name, shape, axis):
    f, kind, oracle = FUNCTIONS[name]
    x, norm = draw(shape, f"{kind}{64 if kind == 'c' else 32}"), NORMS[sum(shape) % 3]
    if name == "irfft" and shape[axis] == 1:
        (y,) = check(lambda v: f(v, 1, axis, norm), x)
        want = oracle(x, 1, axis, norm)
    else:
        (y,) = check(lambda v: f(v, None, axis, norm), x)
        want = oracle(x.astype(complex) if kind == "c" else x.astype(float), None, axis, norm)
    assert y.shape == want.shape
    assert distance(y, want) < BOUNDS["f32"]


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize(
    ("shape", "axis"), [((20, 12), 1), ((12, 20), 0), ((12,), 0), ((5, 11), 1)]
)
def test_double_precision(name, shape, axis):
    f, kind, oracle = FUNCTIONS[name]
    x = draw(shape, f"{kind}{128 if kind == 'c' else 64}")
    (y,) = check(lambda v: f(v, None, axis), x)
    assert distance(y, oracle(x, None, axis)) < BOUNDS["f64"]


@pytest.mark.parametrize("n", [9, 15, 23])
def test_odd_lengths_of_real_transforms(n):
    for shape, axis in (((n,), 0), ((20, n), 1), ((n, 18), 0)):
        x = draw(shape, "f32")
        (y,) = check(lambda v, a=axis: op.rfft(v, None, a), x)
        assert distance(y, np.fft.rfft(x.astype(float), axis=axis)) < BOUNDS["f32"]
        (back,) = check(lambda v, a=axis: op.irfft(v, n, a), y)
        assert distance(back, x) < 2 * BOUNDS["f32"]


@pytest.mark.parametrize("n", [1009, 1024, 2310, 4096, 65537])
def test_long_transforms_in_machine_code(n):
    x = draw((1, n))
    (y,) = check(op.fft, x, interpret=False)
    assert distance(y, np.fft.fft(x.astype(complex))) < BOUNDS["f32"]


def test_several_axes_are_transformed_from_the_last_to_the_first():
    x = draw((4, 6, 18), "c128")
    (y,) = check(lambda v: op.fftn(v, axes=(2, 0)), x)
    assert same_bits([y], [fourier.fft(fourier.fft(x, 0, "backward"), 2, "backward")])
    assert distance(y, np.fft.fftn(x, axes=(2, 0))) < BOUNDS["f64"]
    (z,) = check(lambda v: op.ifftn(v, norm="ortho"), x)
    assert distance(z, np.fft.ifftn(x, norm="ortho")) < BOUNDS["f64"]


def test_real_transforms_of_several_axes_and_back():
    x = draw((6, 5, 8), "f32")
    (y,) = check(op.rfftn, x)
    assert distance(y, np.fft.rfftn(x.astype(float))) < BOUNDS["f32"]
    (z,) = check(lambda v: op.irfftn(op.rfftn(v), s=x.shape), x)
    assert distance(z, x) < BOUNDS["f32"]


@pytest.mark.parametrize("shape", [(0, 4), (4, 0), (2, 6, 0), (0, 6, 3)])
def test_no_elements(shape):
    x = draw(shape, "f32")
    axis = 1 if len(shape) > 2 else int(shape[0] == 0)
    f = ts.jit(lambda v: op.rfft(v, None, axis), target="cpu")
    want = np.fft.rfft(x, axis=axis)
    assert f(x).shape == want.shape


# Bits -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("shape", "axis"), [((40, 96), 1), ((96, 40), 0), ((3, 31, 21), 1)])
def test_threads_do_not_change_a_transform(shape, axis):
    x = draw(shape, "f32")
    f = ts.jit(
        lambda v: op.irfft(op.ifft(op.rfft(v, None, axis), None, axis), 30, axis), target="cpu"
    )
    found = set()
    for threads in (1, 2, 3, 8):
        with override(threads=threads):
            found.add(f(x).numpy().tobytes())
    assert len(found) == 1


@pytest.mark.parametrize("n", [24, 35, 11, 64])
@pytest.mark.parametrize("name", ["fft", "rfft"])
def test_a_row_alone_is_the_row_in_a_batch_and_the_column_of_a_matrix(name, n):
    f, kind, _ = FUNCTIONS[name]
    x = draw((37, n), f"{kind}{64 if kind == 'c' else 32}")
    rows, columns = (ts.jit(lambda v, a=a: f(v, None, a), target="cpu") for a in (1, 0))
    whole = rows(x).numpy()
    for i in (0, 17, 36):
        assert same_bits([rows(x[i : i + 1]).numpy()[0]], [whole[i]])
    few = rows(x[:5]).numpy()
    assert same_bits([few], [whole[:5]])
    turned = np.ascontiguousarray(x.T)
    assert same_bits([columns(turned).numpy()], [np.ascontiguousarray(whole.T)])
    assert same_bits(
        [columns(turned[:, :3].copy()).numpy()], [np.ascontiguousarray(whole.T[:, :3])]
    )


@pytest.mark.parametrize("n", [4, 12])
def test_instances_that_overlap_do_not_read_what_others_wrote(n):
    """21 columns are two instances of 16 lanes, and a result may lie where its operand was."""
    x = draw((n, 21))
    f = ts.jit(lambda v: op.fft(op.ifft(op.fft(v, axis=0), axis=0), axis=0), target="cpu")
    back = fourier.fft(fourier.fft(x, 0, "backward"), 0, "backward", True)
    for threads in (1, 2):
        with override(threads=threads):
            assert same_bits([f(x).numpy()], [fourier.fft(back, 0, "backward")])


def test_one_compile_serves_all_batches():
    @ts.jit(target="cpu")
    def f(x: Tensor["B", 12, "C", ts.c64]):
        return op.fft(x, axis=1), op.fft(op.transpose(x, (0, 2, 1)))

    for batch, columns in ((1, 1), (3, 17), (20, 2), (2, 40)):
        x = draw((batch, 12, columns))
        y, z = f(x)
        want = fourier.fft(x, 1, "backward")
        assert same_bits([y.numpy()], [want])
        assert same_bits([z.numpy()], [np.ascontiguousarray(want.transpose(0, 2, 1))])
    assert f.compiled == 1


@pytest.mark.parametrize("n", ["N", (1 << 24) + 1])
def test_an_unknown_or_huge_length_runs_on_the_host(n):
    p = lower(levels.prepared(ts.trace(op.fft, Tensor[n, ts.c64])))
    assert [type(s) for s in p.steps] == [HostCall]


# The rest of the compiler -----------------------------------------------------------------------


def test_gradients_of_a_convolution():
    x, k = draw((8, 12), "f32", 1), draw((8, 12), "f32", 2)

    def loss(a, b):
        y = op.irfftn(op.rfftn(a) * op.rfftn(b), s=(8, 12))
        return op.sum(y * y)

    for compiled, plain in zip(
        ts.jit(ts.grad(loss, argnums=(0, 1)), target="cpu")(x, k),
        ts.grad(loss, argnums=(0, 1))(ts.tensor(x), ts.tensor(k)),
        strict=True,
    ):
        assert distance(compiled.numpy(), plain.numpy()) < 2e-6


def test_an_image_keeps_its_tables():
    g = levels.prepared(ts.trace(lambda v: op.fft(op.fft(v), axis=0), Tensor[6, 6, ts.c64]))
    image, _ = build(g, Context())
    again = decode(encode(image, g), g)
    assert again == image
    assert len(image.tables) == 1
    assert np.array_equal(again.tables[0].array(), fourier.FourierPlan(6).table(np.float32))


def test_schedules_do_not_change_a_transform():
    """24 of them: rows and columns, 1 to 16 lanes, whole or short vectors."""
    found = set()
    x = draw((23, 12))
    for outer, inner in ((23, 1), (1, 23)):
        given = np.ascontiguousarray(x if inner == 1 else x.T)
        for lanes, register in product((1, 2, 3, 5, 8, 16), (16, 64)):
            schedule = FftSchedule(lanes=lanes, few=1, register=register)
            t = Transform("fft", 12, outer, inner, ts.f32, schedule=schedule)
            y = np.zeros(t.result.shape, np.float32)
            inputs = [given.view(np.float32).reshape(t.operand.shape), t.plan.table(np.float32)]
            levels.run_llvm(t.kernel(), [*inputs, y], {})
            made = y.reshape(-1).view(np.complex64)
            rows = made.reshape(23, -1) if inner == 1 else made.reshape(-1, 23).T
            found.add(np.ascontiguousarray(rows).tobytes())
    assert found == {fourier.fft(x, 1, "backward").tobytes()}


@pytest.mark.parametrize("outer", [1, 15, 16, 40])
@pytest.mark.parametrize("inner", [1, 2, 16, 21])
def test_layouts(outer, inner):
    t = Transform("fft", 4, outer, inner, ts.f32)
    if inner > 1:
        assert (t.layout, t.lanes) == ("columns", min(inner, 16))
    else:
        assert (t.layout, t.lanes) == (("rows", 16) if outer >= 16 else ("line", 1))


@pytest.mark.parametrize("dtype", ["f32", "f64", "bf16", "i8"])
@pytest.mark.parametrize("width", [1, 2, 7, 16, 21, 32])
@pytest.mark.parametrize("masked", [False, True])
def test_parts_that_alternate_are_moved_at_once(dtype, width, masked):
    """tile[part, i] = memory[i, part]: the machine code of such loads and stores."""
    d, rows, size = as_dtype(dtype), 3, width - 1 if masked and width > 1 else width
    b = Builder("pairs")
    x = b.parameter("x", TensorType(d, (rows, size, 2)))
    y = b.parameter("y", TensorType(d, (rows, 2, size)), writable=True)
    z = b.parameter("z", TensorType(d, (rows, size, 2)), writable=True)
    row = b.program(rows)
    mask = (1,) if masked else ()
    t = b.load(x, (row, 0, 0), (1, width, 2), axes=(2, 1), masked=mask, fill=1)
    b.store(y, t, (row, 0, 0), (1, 2, width), axes=(1, 2), masked=(2,) if masked else ())
    b.store(z, b.apply("add", t, t), (row, 0, 0), (1, width, 2), axes=(2, 1), masked=mask)
    k = b.finish()
    data = np.random.default_rng(width).integers(-9, 9, (rows, size, 2)).astype(d.np)
    results = []
    for run in (tile_interp.interpret, levels.run_llvm):
        out = [np.zeros((rows, 2, size), d.np), np.zeros((rows, size, 2), d.np)]
        run(k, [data, *out], {})
        results.append(out)
    assert same_bits(*results)
    assert np.array_equal(results[0][0], data.transpose(0, 2, 1))
    assert np.array_equal(results[0][1], data + data)
