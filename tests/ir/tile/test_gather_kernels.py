"""Gathers and dynamic slices are reads in kernels: every level agrees, NumPy agrees, nothing is copied."""

from __future__ import annotations

import numpy as np
import pytest

import tessera as ts
from tessera import Tensor, f32, i64, op
from tessera.core.errors import VerifyError
from tessera.core.flags import override
from tessera.core.types import TensorType
from tessera.ir.schedule.interp import interpret
from tessera.ir.schedule.ir import HostCall
from tessera.ir.schedule.lower import lower
from tessera.ir.schedule.text import parse_program
from tessera.ir.schedule.verify import verify
from tessera.ir.tile.ir import Builder
from tests.support.cases.random_graphs import same_bits
from tests.support.runners import levels

RNG = np.random.default_rng(0)
X = RNG.normal(size=(10, 70)).astype(np.float32)
T = RNG.normal(size=(3, 9, 37)).astype(np.float32)


def places(n, *shape):
    """Indices with some outside of 0..n-1: those are clamped."""
    return RNG.integers(-2, n + 3, shape)


def schedule(f, *xs):
    return lower(levels.prepared(ts.trace(f, *map(ts.tensor, xs))))


def raw(x, *indices, axes=(0,)):
    """gather itself, which clamps, without the check of bounds that users get."""
    return ts.ops.gather.gather.bind(x, *indices, axes=axes)


CASES = {
    "rows": (raw, (X, places(10, 6))),
    "rows of rows": (raw, (X, places(10, 2, 3))),
    "columns": (lambda x, i: op.take(x, i, 1) * 2.0, (X, places(70, 19))),
    "elements": (lambda x, i, j: raw(x, i, j, axes=(0, 1)), (X, places(10, 35), places(70, 35))),
    "middle": (lambda x, i: raw(x, i, axes=(1,)), (T, places(9, 5))),
    "softmax of rows": (lambda x, i: op.softmax(raw(x, i)), (X, places(10, 6))),
    "sum of rows": (lambda x, i: op.sum(raw(x, i), 0), (X, places(10, 600))),
    "along the last axis": (lambda x, i: op.take_along_axis(x, i, 1), (X, RNG.integers(0, 70, (10, 33)))),
    "along the first axis": (lambda x, i: op.take_along_axis(x, i, 0), (X, RNG.integers(0, 10, (3, 70)))),
    "one of each row": (lambda x, i: op.sum(op.take_along_axis(x, i, 1)), (X, RNG.integers(0, 70, (10, 1)))),
    "of an expression": (lambda x, i: raw(op.exp(x) + 1.0, i), (X, places(10, 4))),
    "index of an expression": (lambda x, i: raw(x, op.minimum(i * 2, 5)), (X, places(10, 4))),
    "bools": (lambda x, i: raw(x > 0.0, i), (X, places(10, 17))),
    "unsigned index": (raw, (X, np.array([3, 250], np.uint8))),
    "slice": (lambda x, s: op.dynamic_slice(x, (s, 3), (4, 50)) + 1.0, (X, np.array(8))),
    "slice of columns": (lambda x, s: op.dynamic_slice(x, (0, s), (10, 17)), (X, np.array(-4))),
    "update": (lambda x, v, s: op.dynamic_update_slice(x, v, (s, 0)), (X, X[:2] * 9, np.array(5))),
    "update of columns": (
        lambda x, v, s: op.dynamic_update_slice(x, v, (1, s)) * 2.0, (X, X[:3, :5] * 9, np.array(99)),
    ),
    "update of all": (lambda x, v: op.dynamic_update_slice(x, v, (0, 0)), (X, X * 2)),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_every_level_agrees(name):
    f, xs = CASES[name]
    p = schedule(f, *xs)
    assert not any(isinstance(s, HostCall) for s in p.steps), str(p)
    verify(p)
    assert parse_program(p.text).text == p.text
    want = levels.by_schedule(p, xs)
    for run in (levels.by_tile, levels.by_llvm):
        assert same_bits(run(p, xs), want), run.__name__
    eager = ts.tree.leaves(f(*map(ts.tensor, xs)))
    for got, y in zip(want, eager, strict=True):
        np.testing.assert_allclose(got, y, rtol=1e-5, atol=1e-5)


VIEWS = {
    "rows turned around": (lambda x: x[::-1] * 2.0, 0),
    "columns turned around": (lambda x: x[:, ::-1] * 2.0, 0),
    "every third column": (lambda x: x[1::2, ::3] + 1.0, 0),
    "sum of every second": (lambda x: op.sum(x[:, 1::2], 1) + 1.0, 0),
    "column sums of every second": (lambda x: op.sum(x[::2, ::-2], 0) + 1.0, 0),
    "diagonal": (lambda x: op.diagonal(x) * 2.0, 0),
    "windows": (lambda x: op.max(op.windows(x, 3), -1) * 2.0, 0),
    "a contraction reads a copy": (lambda x: x[:, ::-1] @ x.T, 1),
    "two users": (lambda x: (x[:, ::-1] * 2.0, op.exp(x[:, ::-1])), 1),
}


@pytest.mark.parametrize("name", VIEWS)
def test_views_whose_index_is_linear_are_reads(name):
    f, hosted = VIEWS[name]
    p = schedule(f, X)
    verify(p)
    assert sum(isinstance(s, HostCall) for s in p.steps) == hosted, str(p)
    want = levels.by_schedule(p, [X])
    for run in (levels.by_tile, levels.by_llvm):
        assert same_bits(run(p, [X]), want), run.__name__
    for got, y in zip(want, ts.tree.leaves(f(ts.tensor(X))), strict=True):
        np.testing.assert_allclose(got, y, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", ["f16", "bf16", "f64", "i8", "i32", "u64", "bool"])
def test_every_dtype(dtype):
    x = RNG.normal(size=(7, 40)) * 9
    x = (np.abs(x) if dtype == "u64" else x).astype(ts.core.dtype.as_dtype(dtype).np)
    for i, axes in ((places(7, 5), (0,)), (places(40, 33), (1,))):
        p = schedule(lambda v, i, axes=axes: raw(v, i, axes=axes), x, i)
        want = levels.by_schedule(p, [x, i])
        assert same_bits(levels.by_tile(p, [x, i]), want)
        assert same_bits(levels.by_llvm(p, [x, i]), want)
        np.testing.assert_array_equal(
            want[0].astype(float), np.take(x, np.clip(i, 0, x.shape[axes[0]] - 1), axes[0]).astype(float)
            if axes == (0,) else np.take(x, np.clip(i, 0, 39), 1).T.astype(float),
        )  # fmt: skip


def test_an_embedding_with_its_norm_is_one_kernel():
    table, g = X, RNG.normal(size=70).astype(np.float32)
    p = schedule(lambda t, i, g: op.rmsnorm(raw(t, i), g) + 1.0, table, places(10, 30), g)
    assert len(p.steps) == 1


def test_one_compile_serves_all_sizes():
    @ts.jit(target="cpu")
    def f(x: Tensor["V", "D", f32], i: Tensor["N", i64]):
        return op.gather(x, i) * 2.0, op.take(x, i, 1)

    for v, d, n in ((3, 5, 7), (40, 33, 1), (17, 64, 100)):
        x = RNG.normal(size=(v, d)).astype(np.float32)
        i = RNG.integers(0, min(v, d), n)
        a, b = f(x, i)
        np.testing.assert_array_equal(a, x[i] * 2)
        np.testing.assert_array_equal(b, x[:, i])
    assert f.compiled == 1


def test_gradients_agree():
    def loss(x, i):
        return op.sum(op.square(op.gather(x, i)))

    i = RNG.integers(0, 10, 25)
    got = ts.jit(ts.grad(loss), target="cpu")(X, i)
    np.testing.assert_allclose(got, ts.grad(loss)(X, i), rtol=1e-5)


def test_threads_do_not_change_a_gather():
    i = places(10, 300)
    f = ts.jit(raw, target="cpu")
    found = set()
    for threads in (1, 2, 8):
        with override(threads=threads):
            found.add(f(X, i).numpy().tobytes())
    assert len(found) == 1


# What the levels refuse


def test_a_place_outside_is_found_by_the_interpreter():
    p = schedule(raw, X, np.array([1]))
    text = p.text.replace("(9)", "(12)")
    with pytest.raises(VerifyError, match="elements 12 to 12 lie outside axis 0 of size 10"):
        interpret(parse_program(text), [X, np.array([99])])


def test_a_place_is_an_i64():
    p = schedule(lambda x, i: raw(x, i), X, np.array([1]))
    with pytest.raises(VerifyError, match="which is f32, expected i64"):
        verify(parse_program(p.text.replace("@min(max(x1[_r0], 0), (9))", "@x0[_r0, 0]")))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"picked": {2: "i"}}, "gather: picked [2] are no distinct axes of f32[4,5]"),
        (
            {"picked": {0: "l"}, "extent": (2, 5), "axes": (0, 1)},
            "gather: axis 0 is picked by i64[2,1], but its extent is not 1; one number moves a box",
        ),
        ({"picked": {0: "f"}}, "gather: an index tile is f32[], expected i64"),
    ],
)
def test_what_the_rules_say_of_a_gather(change, message):
    b = Builder("k")
    m = b.parameter("x", TensorType(f32, (4, 5)))
    tiles = {"i": b.full(i64, (), 1), "f": b.full(f32, (), 1.0), "l": b.full(i64, (2, 1), 1)}
    given = {"picked": {0: "i"}, "at": (0, 0), "extent": (1, 5), "axes": (1,), **change}
    given["picked"] = {a: tiles[t] for a, t in given["picked"].items()}
    with pytest.raises(VerifyError) as e:
        b.gather(m, **given)
    assert e.value.message == message


def test_a_scatter_writes_the_tile_of_its_places():
    b = Builder("k")
    m = b.parameter("y", TensorType(f32, (4, 5)), writable=True)
    at = b.full(i64, (), 1)
    with pytest.raises(VerifyError) as e:
        b.scatter(m, b.full(f32, (3,), 0.0), {0: at}, (0, 0), (1, 5), (1,))
    assert e.value.message == "scatter: the tile is f32[3], but the places are f32[5]"
    with pytest.raises(VerifyError, match="is not writable"):
        b.scatter(b.parameter("x", m.type), b.full(f32, (5,), 0.0), {0: at}, (0, 0), (1, 5), (1,))


def test_a_diagonal_reads_each_place_once():
    def f(x: Tensor["N", "N", f32]):
        i = op.iota((x.shape[0],), 0)
        return raw(x, i, i, axes=(0, 1)) * 2.0

    p = lower(levels.prepared(ts.trace(f, Tensor["N", "N", f32])))
    for n in (1, 5, 70):
        x = RNG.normal(size=(n, n)).astype(np.float32)
        want = [np.diagonal(x) * 2]
        for run in (levels.by_schedule, levels.by_tile, levels.by_llvm):
            assert same_bits(run(p, [x]), want), run.__name__
