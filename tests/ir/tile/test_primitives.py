"""Primitives: every level gives the bits of the definition, on any threads, and NumPy agrees."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

import tessera as ts
from tessera import Tensor, op
from tessera.core.dtype import as_dtype
from tessera.core.errors import ParseError, VerifyError
from tessera.core.flags import override
from tessera.core.primitives import PRIMITIVES
from tessera.ir.schedule.ir import HostCall, Primitive
from tessera.ir.schedule.lower import lower
from tessera.ir.schedule.text import parse_program
from tessera.ir.schedule.verify import verify
from tessera.ir.tile.cpu import sort
from tessera.ir.tile.cpu.primitives import LOWERINGS
from tessera.ir.tile.unit import Unit
from tests.support.cases.random_graphs import same_bits
from tests.support.runners import levels

RNG = np.random.default_rng(0)


def check(f, *xs):
    """All levels agree on f, which has a primitive and no host call; the outputs."""
    p = lower(levels.prepared(ts.trace(f, *map(ts.tensor, xs))))
    assert any(isinstance(s, Primitive) for s in p.steps), str(p)
    assert not any(isinstance(s, HostCall) for s in p.steps), str(p)
    verify(p)
    assert parse_program(p.text).text == p.text
    want = levels.by_schedule(p, xs)
    for run in (levels.by_tile, levels.by_llvm):
        assert same_bits(run(p, xs), want), run.__name__
    return want


def draw(shape, dtype):
    d = as_dtype(dtype)
    if d.kind == "b":
        return RNG.integers(0, 2, shape).astype(bool)
    if d.kind in "iu":
        return RNG.integers(0, 100, shape).astype(d.np)
    x = RNG.normal(size=shape).astype(d.np)
    if x.size > 8:
        x.flat[3], x.flat[5] = -0.0, np.inf
    return x


SHAPES = [((7,), 0), ((1,), 0), ((0,), 0), ((5, 33), 1), ((5, 33), 0), ((3, 0), 0), ((2, 9, 83), 1),
          ((2, 3, 4), 0), ((9, 21, 1), 1)]  # fmt: skip
FOLDS = ["cumsum", "cumprod", "cummax", "cummin"]


def test_every_primitive_has_kernels():
    assert set(LOWERINGS) == set(PRIMITIVES)


# Scans


@pytest.mark.parametrize("name", FOLDS)
@pytest.mark.parametrize(("shape", "axis"), SHAPES)
@pytest.mark.parametrize("reverse", [False, True])
def test_running_folds_agree_at_every_level(name, shape, axis, reverse):
    f = getattr(op, name)
    x = draw(shape, "f32")
    (y,) = check(lambda v: f(v, axis, reverse=reverse), x)
    np.testing.assert_array_equal(y, f(x, axis, reverse=reverse))


@pytest.mark.parametrize("name", FOLDS)
@pytest.mark.parametrize("dtype", ["f16", "bf16", "f64", "i64", "u8", "bool"])
def test_running_folds_of_every_dtype(name, dtype):
    f = getattr(op, name)
    x = draw((6, 20), dtype)
    for axis in (0, 1):
        (y,) = check(lambda v, axis=axis: f(v, axis), x)
        want = f(x, axis).numpy()
        assert y.dtype == want.dtype
        np.testing.assert_array_equal(y.astype(float), want.astype(float))


@pytest.mark.parametrize(("shape", "axis"), SHAPES)
@pytest.mark.parametrize("reverse", [False, True])
def test_linear_recurrences_agree_at_every_level(shape, axis, reverse):
    a, b = draw(shape, "f32"), draw(shape, "f32")
    (y,) = check(lambda v, w: op.linear_recurrence(v, w, axis, reverse), a, b)
    np.testing.assert_array_equal(y, op.linear_recurrence(a, b, axis, reverse))


def test_a_scan_in_pieces_is_the_scan():
    a, b = draw((3, 50), "f32"), draw((3, 50), "f32")
    b[~np.isfinite(b)] = 1
    a[~np.isfinite(a)] = 1
    f = ts.jit(op.linear_recurrence, target="cpu")
    whole, first = f(a, b).numpy(), f(a[:, :20], b[:, :20]).numpy()
    later = b[:, 20:].copy()
    later[:, 0] = a[:, 20] * first[:, -1] + b[:, 20]
    np.testing.assert_array_equal(f(a[:, 20:], later), whole[:, 20:])


def test_one_compile_of_a_scan_serves_all_sizes():
    @ts.jit(target="cpu")
    def f(x: Tensor["B", "N", ts.f32]):
        return op.cumsum(x * 2.0, 1), op.cumsum(x, 0)

    for shape in ((1, 1), (5, 70), (130, 9)):
        x = draw(shape, "f32")
        for y, want in zip(f(x), (np.cumsum(x * 2, 1), np.cumsum(x, 0)), strict=True):
            np.testing.assert_array_equal(y, want)
    assert f.compiled == 1


@pytest.mark.parametrize("axis", [0, 1])
def test_threads_do_not_change_a_scan(axis):
    x = draw((70, 130), "f32")
    f = ts.jit(lambda v: op.cumsum(v, axis), target="cpu")
    found = set()
    for threads in (1, 2, 3, 8):
        with override(threads=threads):
            found.add(f(x).numpy().tobytes())
    assert len(found) == 1


# Scatters

JOINS = ["scatter", "scatter_add", "scatter_max", "scatter_min"]
TARGETS = {
    "rows": ((10, 70), (0,), (25,)),
    "wide rows": ((6, 200), (0,), (9,)),
    "few columns": ((40, 3), (0,), (50,)),
    "a line": ((300,), (0,), (77,)),
    "a short line": ((3,), (0,), (9,)),
    "a sparse line": ((300,), (0,), (3,)),
    "sparse rows": ((99, 3), (0,), (2,)),
    "sparse elements": ((11, 80), (0, 1), (7,)),
    "parts of nothing": ((3, 60), (0,), (1,)),
    "the last axis": ((9, 50), (1,), (20,)),
    "elements": ((9, 50), (0, 1), (33,)),
    "elements, turned": ((9, 50), (1, 0), (33,)),
    "index of two axes": ((10, 17), (0,), (3, 4)),
    "middle": ((3, 8, 20), (1,), (11,)),
    "outer and inner": ((5, 4, 6), (0, 2), (30,)),
    "no values": ((5, 4), (0,), (0,)),
}


def scatter_case(shape, axes, count, dtype="f32"):
    indices = [RNG.integers(-2, shape[a] + 2, count) for a in axes]
    rest = [n for i, n in enumerate(shape) if i not in axes]
    return [draw(shape, dtype), draw((*count, *rest), dtype), *indices]


def scattered(name, axes):
    f = ts.ops.gather.OPS[name]
    return lambda *xs: f.bind(*xs, axes=axes)


@pytest.mark.parametrize("name", JOINS)
@pytest.mark.parametrize("case", TARGETS)
def test_scatters_agree_at_every_level(name, case):
    shape, axes, count = TARGETS[case]
    xs, f = scatter_case(shape, axes, count), scattered(name, axes)
    (y,) = check(f, *xs)
    np.testing.assert_array_equal(y, f(*map(ts.tensor, xs)))


@pytest.mark.parametrize("name", JOINS)
@pytest.mark.parametrize("dtype", ["f16", "bf16", "f64", "i8", "u64", "bool"])
def test_scatters_of_every_dtype(name, dtype):
    if name == "scatter_add" and dtype == "bool":
        return
    for case in ("rows", "a line"):
        shape, axes, count = TARGETS[case]
        xs, f = scatter_case(shape, axes, count, dtype), scattered(name, axes)
        (y,) = check(f, *xs)
        want = f(*map(ts.tensor, xs)).numpy()
        assert y.dtype == want.dtype
        np.testing.assert_array_equal(y.astype(float), want.astype(float))


@pytest.mark.parametrize("case", ["rows", "wide rows", "a line", "elements", "sparse elements"])
def test_threads_do_not_change_a_scatter(case):
    shape, axes, count = TARGETS[case]
    xs = scatter_case(shape, axes, count)
    f = ts.jit(scattered("scatter_add", axes), target="cpu")
    found = set()
    for threads in (1, 2, 3, 8):
        with override(threads=threads):
            found.add(f(*xs).numpy().tobytes())
    assert len(found) == 1


def test_one_compile_of_a_scatter_serves_all_sizes():
    @ts.jit(target="cpu")
    def f(x: Tensor["V", "D", ts.f32], v: Tensor["N", "D", ts.f32], i: Tensor["N", ts.i64]):
        return op.scatter_add(x, v, i)

    for v, d, n in ((3, 5, 7), (40, 133, 1), (17, 64, 100)):
        x, y = (RNG.normal(size=(k, d)).astype(np.float32) for k in (v, n))
        i = RNG.integers(0, v, n)
        want = x.copy()
        np.add.at(want, i, y)
        np.testing.assert_array_equal(f(x, y, i), want)
    assert f.compiled == 1


# Sorts

LINES = [((9, 7), 1), ((17, 8), 1), ((8, 2), 1), ((2, 20, 5), 1), ((13, 9), 0)]


@pytest.fixture
def small_blocks(monkeypatch):
    """Blocks of few elements, so that short lines have all kinds of comparisons."""
    monkeypatch.setattr(sort, "_BLOCK", 4)


def mixed(shape, dtype="f32"):
    """Many equal elements, zeros of both signs, infinities and NaN."""
    x = RNG.integers(-3, 4, shape).astype(as_dtype(dtype).np)
    if x.dtype.kind in "iub":
        return x
    odd = RNG.choice([-0.0, 0.0, np.nan, np.inf, -np.inf, 1.5], shape).astype(x.dtype)
    return np.where(RNG.random(shape) < 0.4, odd, x)


@pytest.mark.parametrize(("shape", "axis"), LINES)
@pytest.mark.parametrize("descending", [False, True])
def test_sorts_agree_at_every_level(shape, axis, descending, small_blocks):
    x = mixed(shape)
    (y,) = check(lambda v: op.sort(v, axis, descending), x)
    (i,) = check(lambda v: op.argsort(v, axis, descending), x)
    np.testing.assert_array_equal(y, np.take_along_axis(x, i, axis))
    np.testing.assert_array_equal(i, stable_order(x, axis, descending))


def stable_order(x, axis, descending):
    if not descending:
        return np.argsort(x, axis, kind="stable")
    back = np.argsort(np.flip(x, axis), axis, kind="stable")
    return np.flip(x.shape[axis] - 1 - back, axis)


@pytest.mark.parametrize("shape", [(8, 1100), (20, 256), (9, 4096), (700, 9)])
def test_long_lines_are_sorted(shape):
    x = mixed(shape)
    f = ts.jit(
        lambda v: (op.argsort(v, 0), op.topk(v, 8, 0)[0], op.argsort(v, 1, True)), target="cpu"
    )
    first, top, last = f(x)
    np.testing.assert_array_equal(first, stable_order(x, 0, False))
    np.testing.assert_array_equal(top, np.take_along_axis(x, stable_order(x, 0, True)[:8], 0))
    np.testing.assert_array_equal(last, stable_order(x, 1, True))


@pytest.mark.parametrize("dtype", ["f16", "bf16", "f64", "i8", "u32", "i64", "u64", "bool"])
def test_sorts_of_every_dtype(dtype):
    x = mixed((9, 7), dtype)
    wide = x.astype(np.float64) if x.dtype.kind not in "iub" else x
    for descending in (False, True):
        (i,) = check(lambda v, d=descending: op.argsort(v, 1, d), x)
        np.testing.assert_array_equal(i, stable_order(wide, 1, descending))
        check(lambda v, d=descending: op.sort(v, 1, d), x)


@pytest.mark.parametrize("largest", [False, True])
@pytest.mark.parametrize("k", [0, 1, 2, 5, 9])
def test_the_k_largest_agree_at_every_level(k, largest):
    x = mixed((9, 9))
    y, i = check(lambda v: op.topk(v, k, largest=largest), x)
    np.testing.assert_array_equal(i, stable_order(x, 1, largest)[:, :k])
    np.testing.assert_array_equal(y, np.take_along_axis(x, i, 1))


@pytest.mark.parametrize("k", [1, 2, 3, 8, 100])
def test_the_k_largest_of_long_lines(k):
    x = mixed((17, 1300))
    y, i = ts.jit(lambda v: op.topk(v, k), target="cpu")(x)
    np.testing.assert_array_equal(i, stable_order(x, 1, True)[:, :k])
    np.testing.assert_array_equal(y, np.take_along_axis(x, i.numpy(), 1))


def test_the_host_sorts_what_kernels_do_not():
    for x in (mixed((3, 50)), mixed((100,)), mixed((9, 1))):
        p = lower(levels.prepared(ts.trace(lambda v: op.argsort(v, -1), ts.tensor(x))))
        assert isinstance(p.steps[0], HostCall)
        for dtype in (np.float32, np.float64, np.int32):
            y = (
                np.nan_to_num(x, nan=9, posinf=9, neginf=-9).astype(dtype)
                if dtype == np.int32
                else x.astype(dtype)
            )
            for descending in (False, True):
                got = op.argsort(y, -1, descending).numpy()
                np.testing.assert_array_equal(got, stable_order(y, y.ndim - 1, descending))


def test_threads_do_not_change_a_sort():
    x = mixed((70, 130))
    f = ts.jit(lambda v: op.topk(v, 100), target="cpu")
    found = set()
    for threads in (1, 2, 8):
        with override(threads=threads):
            found.add(b"".join(y.numpy().tobytes() for y in f(x)))
    assert len(found) == 1


# Copies

JOINED = [
    ([(2, 3), (1, 3)], 0), ([(3, 1), (3, 5), (3, 70)], 1), ([(2, 3, 4), (2, 0, 4), (2, 2, 4)], 1),
    ([(5,), (9,)], 0), ([(1, 2500), (1, 3000)], 1), ([(30, 200), (7, 200)], 0),
]  # fmt: skip


@pytest.mark.parametrize(("shapes", "axis"), JOINED)
def test_concat_agrees_at_every_level(shapes, axis):
    xs = [draw(s, "f32") for s in shapes]
    (y,) = check(lambda *vs: op.concat(vs, axis), *xs)
    np.testing.assert_array_equal(y, np.concatenate(xs, axis))


PADS = [((5,), ((2, 3),)), ((3, 70), ((1, 0), (2, 5))), ((2, 3, 4), ((0, 0), (1, 1), (0, 0))),
        ((6, 9), ((-2, 1), (3, -4))), ((4100,), ((7, 0),)), ((0, 3), ((1, 1), (0, 0)))]  # fmt: skip


@pytest.mark.parametrize(("shape", "width"), PADS)
def test_pad_agrees_at_every_level(shape, width):
    x = draw(shape, "f32")
    low, high = (tuple(w[i] for w in width) for i in (0, 1))
    made = ts.ops.shape.pad
    (y,) = check(
        lambda v, f: made.bind(v, f, low=low, high=high, inner=(0,) * v.ndim), x, np.float32(1.5)
    )
    kept = x[
        tuple(slice(max(-a, 0), n - max(-b, 0)) for (a, b), n in zip(width, shape, strict=True))
    ]
    want = np.pad(kept, [(max(a, 0), max(b, 0)) for a, b in width], constant_values=1.5)
    np.testing.assert_array_equal(y, want)


@pytest.mark.parametrize("dtype", ["f16", "f64", "i8", "u32", "bool"])
def test_copies_of_every_dtype(dtype):
    x, z = draw((3, 20), dtype), draw((), dtype)
    check(lambda v: op.concat([v, v], 1), x)
    check(lambda v, f: op.pad(v, 1, f), x, z)


def test_one_compile_of_a_copy_serves_all_sizes():
    @ts.jit(target="cpu")
    def f(x: Tensor["N", "M", ts.f32], y: Tensor["K", "M", ts.f32]):
        return op.concat([x, y, x]), op.pad(x, 2)

    for n, k, m in ((1, 1, 1), (7, 3, 40), (2, 9, 5000)):
        x, y = (RNG.normal(size=(s, m)).astype(np.float32) for s in (n, k))
        a, b = f(x, y)
        np.testing.assert_array_equal(a, np.concatenate([x, y, x]))
        np.testing.assert_array_equal(b, np.pad(x, 2))
    assert f.compiled == 1


# The step


def program():
    def f(x):
        return op.cumsum(x, 0)

    return lower(levels.prepared(ts.trace(f, Tensor[3, 4, ts.f32])))


def test_a_primitive_prints_what_it_is():
    assert program().readable.split("\n")[-2] == (
        "  primitive f_0: cumsum(x0, axis=0, reverse=False) -> t1"
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"primitive": "dance"}, "f: primitive f_0: there is no dance of f32[3,4]"),
        (
            {"operands": ("t1",)},
            "f: primitive f_0: reads t1, which is not written before",
        ),
        ({"results": ()}, "f: primitive f_0: gives 1 tensors, but writes 0"),
        ({"results": ("x0",)}, "f: primitive f_0: x0 is written before"),
    ],
)
def test_what_the_verifier_says_of_a_primitive(change, message):
    p = program()
    (step,) = p.steps
    with pytest.raises(VerifyError) as e:
        verify(replace(p, steps=(replace(step, **change),)))
    assert e.value.message == message


def test_an_unknown_primitive_is_no_text():
    with pytest.raises(ParseError, match="there is no 'dance'"):
        parse_program(program().text.replace('primitive = "cumsum"', 'primitive = "dance"'))


# Searches


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("dtype", ["f32", "f64", "bf16", "i32", "u8", "bool"])
@pytest.mark.parametrize(("size", "count"), [(1, 1), (2, 40), (7, 33), (64, 100), (100, 1100)])
def test_searches_agree_at_every_level_and_with_numpy(size, count, dtype, side):
    x, v = np.sort(draw((size,), dtype)), draw((count,), dtype)
    if as_dtype(dtype).kind == "f" and size > 2:
        x[-1] = v[0] = np.nan
        v[-1], v[1] = np.inf, x[0]
    (y,) = check(lambda x, v: op.searchsorted(x, v, side), x, v)
    wide = np.float64 if as_dtype(dtype).kind == "f" else np.int64
    np.testing.assert_array_equal(y, np.searchsorted(x.astype(wide), v.astype(wide), side))


def test_lines_of_a_part_are_written_by_whole_vectors_and_one_masked_one():
    """Of 64 and of 16 elements, whatever the length: a vector of another width is several for a machine."""
    for columns in (5, 15, 16, 17, 64, 65, 150):
        lowered = ts.jit(lambda x, v, i: op.dynamic_update_slice(x, v, (i, 0))).lower(
            Tensor[4000, columns, ts.f32], Tensor[4, columns, ts.f32], Tensor[ts.i64]
        )
        text = "".join(str(unit.text) for unit in lowered.tile.values())
        widths = set(re.findall(r"tile.scatter.*extent = \[1, (\d+)\]", text))
        want = {"64"} if columns >= 64 else set()
        assert widths == want | ({"16"} if columns % 64 else set()), columns


def test_a_step_that_no_lowering_serves_stays_as_it_is():
    unit = Unit("host", None, {})
    assert unit.each(lambda kernel: None) is unit
    assert unit.kernels() == []
