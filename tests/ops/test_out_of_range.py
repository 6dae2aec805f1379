"""Indices and labels outside their axis: eager code raises, compiled code has one result on all targets,
checked code raises.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera import op
from tessera.core.errors import AxisError, OperandError
from tessera.ir.graph.op import REGISTRY
from tessera.ir.schedule.lower import lower
from tests.support.fakes.gpu_fake import fake_gpu
from tests.support.runners import levels

RNG = np.random.default_rng(7)
MOST = np.iinfo(np.int64)
# Integers that are no indices: keys of random numbers, numbers of clusters that we made, the count
# of a gauge.
NO_INDICES = {"cluster_turn", "singular_follow", "gauged", "same_in_every_gauge", "loggamma_sample"}
# Those whose rule other files test: what the checks are made of, and caches (test_state.py,
# test_write_in_place.py).
OTHERWISE = {"checked_index", "state_write", "state_write_pages", "write_rows", "write_slice"}


def test_every_op_that_takes_integers_alone_has_a_case_or_takes_no_indices():
    whole = {
        name
        for name, o in REGISTRY.items()
        if not isinstance(o.kinds, str) and any(set(k) <= set("iu") for k in o.kinds)
    }
    assert whole >= NO_INDICES
    assert {c.op for c in CASES.values()} >= whole - NO_INDICES - OTHERWISE


def drawn(*shape: int) -> Any:
    return RNG.standard_normal(shape).astype(np.float32)


# What is meant, in NumPy ------------------------------------------------------------------------


def _front(i: Any, n: int) -> Any:
    """Indices counted from the front, without an overflow."""
    i = i.astype(object)
    return np.where(i < 0, i + n, i)


def nearest(i: Any, n: int) -> Any:
    return np.asarray(np.clip(i, 0, n - 1)).astype(np.int64)


def read(x: Any, i: Any, axis: int = 0) -> Any:
    return np.take(x, nearest(_front(i, x.shape[axis]), x.shape[axis]), axis)


def along(x: Any, i: Any, axis: int) -> Any:
    n = x.shape[axis]
    return np.take_along_axis(x, nearest(_front(i, n), n), axis)


def _places(shape: tuple[int, ...], i: Any, axis: int, along: bool) -> Any:
    """(place in the result, place in the values) of each value whose index is inside, in order."""
    n = shape[axis]
    f = _front(i, n)
    for at in np.ndindex(f.shape):
        if 0 <= f[at] < n:
            k = int(f[at])
            yield ((*at[:axis], k, *at[axis + 1 :]) if along else (*(slice(None),) * axis, k)), at


def write(how: Callable[[Any, Any], Any], axis: int = 0, along: bool = False) -> Any:
    def run(x: Any, v: Any, i: Any) -> Any:
        out = x.copy()
        for there, here in _places(x.shape, i, axis, along):
            out[there] = how(out[there], v[here])
        return out

    return run


def put(old: Any, new: Any) -> Any:
    return new


def part(x: Any, s: Any, m: int) -> Any:
    at = int(np.clip(s, 0, x.shape[0] - m))
    return x[at : at + m]


def with_part(x: Any, v: Any, s: Any) -> Any:
    out, at = x.copy(), int(np.clip(s, 0, x.shape[0] - v.shape[0]))
    out[at : at + v.shape[0]] = v
    return out


def entropy(x: Any, y: Any, smoothing: float = 0.0) -> Any:
    logs = x - np.log(np.exp(x).sum(-1, keepdims=True))
    picked = np.take_along_axis(logs, nearest(y, x.shape[-1])[:, None], -1)[:, 0]
    return -((1 - smoothing) * picked + smoothing * logs.mean(-1))


# The cases --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """A function of floats and an index, what it means, and the range that the index must be in."""

    op: str
    run: Callable[..., Any]
    want: Callable[..., Any]
    floats: tuple[Any, ...]
    shape: tuple[int, ...]  # of the index
    low: int
    high: int
    raises: bool = True  # eagerly
    near: bool = False  # computes, and does not only move


def _scatters() -> dict[str, Case]:
    out = {}
    hows = {
        "scatter": put,
        "scatter_add": np.add,
        "scatter_mul": np.multiply,
        "scatter_max": np.maximum,
        "scatter_min": np.minimum,
    }
    for name, how in hows.items():
        f = getattr(op, name)
        out[name] = Case(
            name,
            lambda x, v, i, f=f: f(x, v, i),
            write(how),
            (drawn(6, 5), drawn(4, 5)),
            (4,),
            -6,
            5,
        )
        out[f"{name} of columns"] = Case(
            name,
            lambda x, v, i, f=f: f(x, v, i, axes=(1,)),
            write(lambda a, b, h=how: h(a, b), 1),
            (drawn(70, 6), drawn(4, 70)),
            (4,),
            -6,
            5,
        )
        out[f"{name} of elements"] = Case(
            name,
            lambda x, v, i, f=f: f(x, v, ts.tensor(np.array([0, 1, 0, 2])), i, axes=(0, 1)),
            _elements(how),
            (drawn(3, 7), drawn(4)),
            (4,),
            -7,
            6,
        )
    return out  # fmt: skip


def _elements(how: Any) -> Any:
    def run(x: Any, v: Any, i: Any) -> Any:
        out, f = x.copy(), _front(i, x.shape[1])
        for n, row in enumerate([0, 1, 0, 2]):
            if 0 <= f[n] < x.shape[1]:
                out[row, int(f[n])] = how(out[row, int(f[n])], v[n])
        return out

    return run


CASES: dict[str, Case] = {
    "gather": Case("gather", op.gather, read, (drawn(6, 5),), (4,), -6, 5),
    "gather by a scalar": Case("gather", op.gather, read, (drawn(6, 5),), (), -6, 5),
    "gather along axis 1": Case("gather", lambda x, i: op.gather(x, i, axes=(1,)), lambda x,
    i: read(x, i, 1).T, (drawn(6, 5),), (4,), -5, 4),
    "take": Case("gather", lambda x, i: op.take(x, i, axis=1), lambda x, i: read(x, i, 1), (drawn(3, 40),),
    (2, 3), -40, 39),
    "take of the flat tensor": Case("gather", op.take, lambda x, i: read(x.reshape(-1), i), (drawn(3, 4),),
    (5,), -12, 11),
    "take_along_axis": Case("gather", lambda x, i: op.take_along_axis(x, i, 0), lambda x, i: along(x, i, 0),
    (drawn(6, 5),), (2, 5), -6, 5),
    "embedding": Case("gather", op.embedding, read, (drawn(9, 33),), (2, 3), -9, 8),
    "index": Case("gather", lambda x, i: x[i], read, (drawn(6, 5),), (4,), -6, 5),
    "index of columns": Case("gather", lambda x, i: x[1:, i], lambda x, i: read(x[1:], i, 1),
    (drawn(6, 5),), (3,), -5, 4),
    "at.set": Case("scatter", lambda x, v, i: x.at[i].set(v), write(put), (drawn(6, 5), drawn(4, 5)), (4,),
    -6, 5),
    "at.add of columns": Case("scatter_add", lambda x, v, i: x.at[:, i].add(v.T), write(np.add, 1),
    (drawn(5, 6), drawn(4, 5)), (4,), -6, 5),
    "at.max": Case("scatter_max", lambda x, v, i: x.at[i].max(v), write(np.maximum), (drawn(6,), drawn(4,)),
    (4,), -6, 5),
    "at.min": Case("scatter_min", lambda x, v, i: x.at[i].min(v), write(np.minimum), (drawn(6,), drawn(4,)),
    (4,), -6, 5),
    "put_along_axis": Case("scatter", lambda x, v, i: op.put_along_axis(x, i, v, 1), write(put, 1, True),
    (drawn(3, 6), drawn(3, 2)), (3, 2), -6, 5),
    "dynamic_slice": Case("dynamic_slice", lambda x, i: op.dynamic_slice(x, (i, 0), (2, 5)), lambda x,
    i: part(x, i, 2), (drawn(6, 5),), (), 0, 4, raises=False),
    "dynamic_update_slice": Case("dynamic_update_slice", lambda x, v,
    i: op.dynamic_update_slice(x, v, (i, 0)), with_part, (drawn(6, 5), drawn(2, 5)), (), 0, 4, raises=False),
    "cross_entropy": Case("cross_entropy", lambda x, i: op.cross_entropy(x, i, reduction="none"), entropy,
    (drawn(4, 7),), (4,), 0, 6, near=True),
    "cross_entropy with smoothing": Case("cross_entropy", lambda x,
    i: op.cross_entropy(x, i, reduction="none", label_smoothing=0.25), lambda x, i: entropy(x, i, 0.25),
    (drawn(4, 7),), (4,), 0, 6, near=True),
    "nll_loss": Case("cross_entropy", lambda x, i: op.nll_loss(x, i, reduction="none"), lambda x,
    i: -np.take_along_axis(x, nearest(i, 7)[:, None], -1)[:, 0], (drawn(4, 7),), (4,), 0, 6, near=True),
    "fused_cross_entropy": Case("cross_entropy", lambda x,
    i: ts.stdlib.fused_cross_entropy(x, i, reduction="none", ignore_index=None), entropy, (drawn(4, 7),),
    (4,), 0, 6, near=True),
    "one_hot": Case("one_hot", lambda x, i: op.one_hot(i, 7) * x, lambda x,
    i: (i[:, None] == np.arange(7)) * x, (drawn(4, 7),), (4,), 0, 6, raises=False),
    **_scatters(),
}  # fmt: skip
BAD = {
    "far below": lambda c: -(10**9), "far above": lambda c: 10**9, "least": lambda c: MOST.min,
    "most": lambda c: MOST.max,
    "one below": lambda c: c.low - 1, "one above": lambda c: c.high + 1,
}  # fmt: skip


def bad_index(c: Case, kind: str) -> Any:
    """Good numbers with a bad one among them, the last or the only one."""
    i = np.asarray(RNG.integers(c.low, c.high + 1, c.shape))
    i[(-1,) * len(c.shape)] = BAD[kind](c)
    return i


def same(got: Any, want: Any, c: Case) -> None:
    got = np.asarray(got)
    if c.near:
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)
    else:
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("kind", BAD)
@pytest.mark.parametrize("name", CASES)
def test_all_targets_give_the_defined_result(name, kind):
    c = CASES[name]
    i = bad_index(c, kind)
    xs = [*map(ts.tensor, (*c.floats, i))]
    want = c.want(*c.floats, i)
    for target in ("cpu", "numpy"):
        same(ts.jit(c.run, target=target)(*xs), want, c)
    if "fused" in name:
        return  # a kernel of its own, which the tests of kernels run
    g = levels.prepared(ts.trace(c.run, *xs))
    p = lower(g)
    arrays = [*c.floats, i]
    same(levels.by_schedule(p, arrays)[0], want, c)
    same(levels.by_tile(p, arrays)[0], want, c)


@pytest.mark.parametrize("kind", ["least", "most", "one below", "one above"])
@pytest.mark.parametrize("name", [n for n in CASES if "fused" not in n])
def test_kernels_of_a_gpu_give_the_defined_result(name, kind):
    c = CASES[name]
    i = bad_index(c, kind)
    with fake_gpu(), warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        got = ts.jit(c.run, target="cuda")(*map(ts.tensor, (*c.floats, i))).numpy()
    same(got, c.want(*c.floats, i), c)


@pytest.mark.parametrize("kind", ["far below", "most"])
@pytest.mark.parametrize("dtype", [np.int32, np.uint8, np.uint64])
def test_narrow_and_unsigned_indices_mean_the_same(dtype, kind):
    info = np.iinfo(dtype)
    i = np.array([1, {"far below": info.min, "most": info.max}[kind]], dtype)
    x = drawn(9, 3)
    want = read(x, i)
    f = ts.jit(lambda x, i: op.take(x, i, axis=0))
    np.testing.assert_array_equal(f(ts.tensor(x), ts.tensor(i)), want)


@pytest.mark.parametrize("kind", BAD)
@pytest.mark.parametrize("name", CASES)
def test_eager_code_raises(name, kind):
    c = CASES[name]
    i = bad_index(c, kind)
    xs = [*map(ts.tensor, (*c.floats, i))]
    if not c.raises:
        same(c.run(*xs), c.want(*c.floats, i), c)
        return
    with pytest.raises(
        AxisError, match=f"{BAD[kind](c)}.* is out of range for .*; use {c.low} to {c.high}"
    ) as e:
        c.run(*xs)
    assert "test_out_of_range.py" in str(e.value)


@pytest.mark.parametrize("target", ["cpu", "numpy"])
@pytest.mark.parametrize("name", CASES)
def test_checked_programs_raise(name, target):
    c = CASES[name]
    f = ts.jit(c.run, target=target)
    for kind, number in BAD.items():
        i = bad_index(c, kind)
        xs = [*map(ts.tensor, (*c.floats, i))]
        same(f(*xs), c.want(*c.floats, i), c)
        at = rf" at \[{', '.join(str(n - 1) for n in c.shape)}\]" if c.shape else ""
        for run in (f, c.run):
            with ts.checked(), pytest.raises(AxisError) as e:
                run(*xs)
            assert e.match(
                rf"^\S+: \w+ {number(c)}{at} is out of range for .*; use {c.low} to {c.high}"
            )
            assert "test_out_of_range.py" in str(e.value)
    good = RNG.integers(c.low, c.high + 1, c.shape)
    xs = [*map(ts.tensor, (*c.floats, good))]
    with ts.checked():
        same(f(*xs), c.want(*c.floats, good), c)


@pytest.mark.parametrize(
    "name",
    [n for n in CASES if CASES[n].op in ("gather", "scatter", "scatter_add", "cross_entropy")],
)
def test_derivatives_are_those_of_the_defined_result(name):
    c = CASES[name]
    i = ts.tensor(bad_index(c, "one above"))
    xs = [ts.tensor(x.astype(np.float64)) for x in c.floats]
    if "fused" in name:
        return
    f = ts.jit(
        lambda *x: op.sum(op.sin(c.run(*x, i.astype("i64") + 0 * op.cast(op.sum(x[0]), "i64"))))
    )
    for k, x in enumerate(xs):
        g = ts.jit(ts.grad(f, argnums=k))(*xs).numpy()
        for at in [tuple(RNG.integers(0, n) for n in x.shape) for _ in range(5)]:
            ends = []
            for h in (1e-6, -1e-6):
                moved = x.numpy().copy()
                moved[at] += h
                ends.append(float(f(*xs[:k], ts.tensor(moved), *xs[k + 1 :])))
            np.testing.assert_allclose(g[at], (ends[0] - ends[1]) / 2e-6, rtol=1e-4, atol=1e-6)


def test_a_dropped_write_of_the_first_value_has_no_derivative():
    """Its number 0 is also what nobody who wrote leaves behind."""
    f = ts.jit(lambda x, v, i: op.sum(op.scatter(x, v, i)))
    g = ts.jit(ts.grad(f, argnums=1))(ts.zeros((3,)), ts.ones((2,)), ts.tensor(np.array([9, 1])))
    assert g.numpy().tolist() == [0, 1]


def test_an_eager_function_that_is_called_often_still_looks():
    """Calls that come again and again become machine code, which has no check."""
    x, i = ts.tensor(drawn(5)), ts.tensor(np.array([1, 2]))
    for f in (
        op.gather,
        op.take,
        op.embedding,
        lambda x, i: x[i],
        lambda x, i: op.scatter_add(x, 1.0, i),
    ):
        for _ in range(3000):
            f(x, i)
        with pytest.raises(AxisError, match="out of range"):
            f(x, ts.tensor(np.array([1, 7])))


def test_labels_that_are_ignored_are_no_error():
    x, y = ts.tensor(drawn(3, 4)), ts.tensor(np.array([1, -100, 3]))
    want = entropy(x.numpy(), np.array([1, 0, 3]))[[0, 2]].mean()
    for f in (
        lambda x, y: op.cross_entropy(x, y, ignore_index=-100),
        lambda x, y: op.nll_loss(op.log_softmax(x), y, ignore_index=-100),
        lambda x, y: ts.stdlib.fused_cross_entropy(x, y),
    ):
        np.testing.assert_allclose(float(f(x, y)), want, rtol=1e-5)
        with ts.checked():
            np.testing.assert_allclose(float(ts.jit(f)(x, y)), want, rtol=1e-5)


def test_labels_of_few_bits_count_more_classes_than_they_have_numbers():
    x = drawn(2, 300)
    y = np.array([3, 200], np.uint8)
    f = ts.jit(lambda x: op.cross_entropy(x, ts.tensor(y), reduction="sum", label_smoothing=0.1))
    np.testing.assert_allclose(float(f(ts.tensor(x))), entropy(x, y, 0.1).sum(), rtol=1e-5)
    g = ts.grad(lambda x: op.cross_entropy(x, ts.tensor(y), reduction="sum"))(ts.tensor(x)).numpy()
    p = np.exp(x) / np.exp(x).sum(-1, keepdims=True)
    p[[0, 1], y] -= 1
    np.testing.assert_allclose(g, p, atol=1e-6)


def test_checked_programs_raise_inside_loops_and_batches():
    x = ts.tensor(drawn(5))

    def loop(x, i):
        return ts.scan(lambda c, k: (c + x[k], c), x[0] * 0, i)[0]

    i = ts.tensor(np.array([1, 2, 9, 3]))
    for target in ("cpu", "numpy"):
        f = ts.jit(loop, target=target)
        f(x, i)
        with (
            ts.checked(),
            pytest.raises(AxisError, match="index: index 9 is out of range for axis 0 of f32"),
        ):
            f(x, i)
    rows = ts.tensor(np.array([[1, 2], [9, 3]]))
    with (
        ts.checked(),
        pytest.raises(AxisError, match=r"index: index 9 at \[1, 0\] is out of range"),
    ):
        ts.jit(ts.vmap(lambda i: x[i]))(rows)


def test_symbolic_sizes_are_checked_too():
    @ts.jit
    def f(x: ts.Tensor["N", ts.f32], i: ts.Tensor["M", ts.i64]):
        return x[i]

    with ts.checked():
        assert f(ts.tensor(drawn(5)), ts.tensor(np.array([4, -5]))).shape == (2,)
        with pytest.raises(
            AxisError,
            match=r"index: index 5 at \[0\] is out of range for axis 0 of f32\[N\]; use -5 to 4",
        ):
            f(ts.tensor(drawn(5)), ts.tensor(np.array([5])))


def test_a_write_outside_keeps_zeros_and_nan_as_they_are():
    x = ts.tensor(np.array([-0.0, np.nan, 1.0], np.float32))
    for target in ("cpu", "numpy"):
        got = ts.jit(lambda x, i: op.scatter_add(x, 1.0, i), target=target)(
            x, ts.tensor(np.array([7]))
        )
        assert got.numpy().tobytes() == x.numpy().tobytes()


@pytest.mark.parametrize("count", [1, 31, 32, 33, 100])
def test_few_and_many_indices_are_looked_at_alike(count: int) -> None:
    x = np.arange(10.0, 17.0)
    index = RNG.integers(-7, 7, count)
    np.testing.assert_array_equal(op.take(ts.tensor(x), ts.tensor(index)), x[index])
    grid = RNG.integers(0, 7, (count, 1))
    np.testing.assert_array_equal(op.take(ts.tensor(x), ts.tensor(grid)), x[grid])
    for bad in (-8, 7, 1 << 40, -(1 << 62)):
        index[-1] = bad
        with pytest.raises(AxisError, match=rf"index {bad} at \[{count - 1}\] is out"):
            op.take(ts.tensor(x), ts.tensor(index))


def _cache(**kind):
    rows = ts.tensor(np.ones((2, 1, 3, 4), np.float32))
    return ts.KVCache.empty(2, 1, 8, 4, **kind).append(rows, rows)


_NO_NUMBERS = {
    "fork": lambda x: _cache().fork(x),
    "fork of pages": lambda x: _cache(page=4, pages=6).fork(x),
    "truncate": lambda x: _cache().truncate(x[1]),
    "counts": lambda x: _cache(per_sequence=True).append(
        *[np.ones((2, 1, 1, 4), np.float32)] * 2, counts=x
    ),
    "dynamic_slice": lambda x: op.dynamic_slice(np.ones((4, 4)), x, (2, 2)),
    "dynamic_slice, one by one": lambda x: op.dynamic_slice(np.ones((4, 4)), (0, x[0]), (2, 2)),
    "dynamic_update_slice": lambda x: op.dynamic_update_slice(np.ones((4, 4)), np.zeros((2, 2)), x),
    "grouped_matmul": lambda x: ts.stdlib.grouped_matmul(np.ones((2, 4)), np.ones((2, 4, 3)), x),
    "ctc_loss": lambda x: op.ctc_loss(
        np.zeros((2, 5, 4), np.float32), np.ones((2, 2), np.int64), lengths=x
    ),
}


@pytest.mark.parametrize("name", _NO_NUMBERS)
@pytest.mark.parametrize(
    "given", [np.array([0.9, 1.7]), np.array([True, False])], ids=["float", "mask"]
)
def test_fractions_and_masks_are_no_whole_numbers(name, given):
    """cache.fork(keep) of a mask took sequences 1 and 0, and 1.7 was 1."""
    for f in (_NO_NUMBERS[name], lambda x: ts.jit(_NO_NUMBERS[name])(x)):
        with pytest.raises(OperandError, match="expected whole numbers"):
            f(given)
