"""switch, map, associative_scan, reduce, eval_shape, unrolled scans and callbacks, beside NumPy."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera import Tensor, f32, f64, i32, op
from tests.support.runners.tolerance import assert_same_bits

X = np.arange(1.0, 8.0, dtype=np.float32)
WAYS = [lambda f: f, ts.jit]


@pytest.mark.parametrize("way", WAYS)
def test_switch_takes_one_branch_and_clamps_the_index(way: Any) -> None:
    branches = [op.sin, lambda x: x * 2.0, op.exp]
    f = way(lambda i, x: ts.switch(i, branches, x))
    for i, which in ((0, 0), (1, 1), (2, 2), (9, 2), (-3, 0)):
        assert_same_bits(f(ts.tensor(i), ts.tensor(X)), branches[which](ts.tensor(X)))
    g = ts.grad(lambda x: ts.switch(ts.tensor(1), branches, x).sum())
    np.testing.assert_array_equal(way(g)(ts.tensor(X)).numpy(), np.full(7, 2.0, np.float32))
    batch = ts.vmap(lambda i, x: ts.switch(i, branches, x))
    got = way(batch)(ts.tensor([2, 0]), ts.tensor(np.stack([X, X])))
    assert_same_bits(got, op.stack([op.exp(ts.tensor(X)), op.sin(ts.tensor(X))]))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: ts.switch(0, []), "switch: branches must be a list of at least one function"),
        (
            lambda: ts.switch(0.5, [op.sin], ts.tensor(X)),
            "switch: the index is f32[], expected an integer scalar",
        ),
        (
            lambda: ts.switch(0, [op.sin, lambda x: x[:2]], ts.tensor(X)),
            "switch: result is f32[7] from branch 0 but f32[2] from branch 1; make the shapes equal, for "
            "example with op.broadcast_to",
        ),
        (
            lambda: ts.map(op.sin, ts.tensor(X), batch_size=0),
            "map: batch_size is 0, expected a number of at least 1",
        ),
        (
            lambda: ts.associative_scan(op.add, ts.tensor(X), axis=1),
            "associative_scan: elems is f32[7], which has no axis 1",
        ),
        (
            lambda: ts.scan(lambda c, x: (c, x), 0.0, ts.tensor(X), unroll=0),
            "scan: unroll is 0, expected a number of at least 1, or True",
        ),
        (
            lambda: ts.debug.print(3),
            "debug.print: the text is int, expected a format such as 'x is {}'; ts.print takes values alone",
        ),
    ],
)
def test_mistakes(call: Any, message: str) -> None:
    with pytest.raises(ts.TesseraError) as e:
        call()
    assert e.value.message == message


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("size", [None, 1, 2, 3, 7, 10])
def test_map_goes_along_the_first_axis(way: Any, size: int | None) -> None:
    f = way(lambda x: ts.map(lambda r: (op.sum(r), r * 2.0), x, batch_size=size))
    x = np.arange(14.0, dtype=np.float32).reshape(7, 2)
    total, twice = f(ts.tensor(x))
    np.testing.assert_array_equal(total.numpy(), x.sum(1))
    np.testing.assert_array_equal(twice.numpy(), x * 2)


def composed(a: Any, b: Any) -> Any:
    return a[0] * b[0], a[1] * b[0] + b[1]


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 7, 8, 13])
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("axis", [0, -1])
def test_associative_scan_gives_all_prefixes(n: int, reverse: bool, axis: int) -> None:
    r = np.random.default_rng(n)
    a, b = (r.integers(-2, 3, (n, 2) if axis == 0 else (2, n)).astype(np.float64) for _ in "ab")
    got = ts.jit(lambda e: ts.associative_scan(composed, e, reverse=reverse, axis=axis))(
        (ts.tensor(a), ts.tensor(b))
    )
    rows = [np.moveaxis(v, axis, 0)[::-1] if reverse else np.moveaxis(v, axis, 0) for v in (a, b)]
    want = list(itertools.accumulate(zip(*rows, strict=True), composed))
    for k in range(2):
        made = np.moveaxis(got[k].numpy(), axis, 0)
        expected = np.stack([w[k] for w in want])
        np.testing.assert_array_equal(made[::-1] if reverse else made, expected)


def test_an_associative_scan_has_a_derivative() -> None:
    x = ts.tensor(np.arange(1.0, 6.0))
    got = ts.grad(lambda x: ts.associative_scan(op.mul, x)[-1])(x)
    np.testing.assert_allclose(got.numpy(), 120.0 / x.numpy())


@pytest.mark.parametrize("axes", [(0,), (1, 2), (0, 2), (0, 1, 2), ()])
def test_reduce_folds_axes_by_a_function(axes: tuple[int, ...]) -> None:
    x = np.random.default_rng(0).integers(-9, 9, (3, 4, 5)).astype(np.float32)
    got = ts.jit(lambda x: ts.reduce(x, -np.inf, op.maximum, axes))(ts.tensor(x))
    np.testing.assert_array_equal(got.numpy(), x.max(axes) if axes else x)
    total, most = ts.reduce(
        (ts.tensor(x), ts.tensor(x)), (10.0, 0.0), lambda a, b: (a[0] + b[0], op.maximum(a[1], b[1])), axes
    )  # fmt: skip
    np.testing.assert_array_equal(total.numpy(), x.sum(axes) + 10 if axes else x + 10)
    np.testing.assert_array_equal(
        most.numpy(), x.max(axes, initial=0) if axes else np.maximum(x, 0)
    )


def test_eval_shape_computes_nothing() -> None:
    calls = []

    def f(x: Any, y: Any) -> Any:
        calls.append(isinstance(x, ts.Tensor) and x.ndim)
        return {"product": x @ y, "top": op.argmax(x)}

    got = ts.eval_shape(f, Tensor[3, 4, f32], np.ones((4, 2), np.float32))
    assert {k: (t.shape, t.dtype) for k, t in got.items()} == {
        "product": ((3, 2), f32),
        "top": ((), ts.i64),
    }
    assert len(calls) == 1
    assert str(ts.eval_shape(lambda x: x.T, Tensor["B", 64, f64])) == "f64[64,B]"


@pytest.mark.parametrize("unroll", [2, 3, 7, 20, True])
@pytest.mark.parametrize("reverse", [False, True])
def test_an_unrolled_scan_has_the_bits_of_a_plain_one(unroll: Any, reverse: bool) -> None:
    def f(x: Any, unroll: Any) -> Any:
        step = lambda c, v: (op.sin(c) + v["a"], (c * v["a"], {"n": v["a"]}))  # noqa: E731
        return ts.scan(step, 0.5, {"a": x}, reverse=reverse, unroll=unroll)

    x = ts.tensor(X)
    for way in WAYS:
        for a, b in zip(
            ts.tree.leaves(way(lambda x: f(x, unroll))(x)), ts.tree.leaves(f(x, 1)), strict=True
        ):
            assert_same_bits(a, b)
    slope = lambda u: ts.grad(lambda x: f(x, u)[0])(x)  # noqa: E731
    np.testing.assert_allclose(slope(unroll).numpy(), slope(1).numpy(), rtol=1e-6)


def test_an_unrolled_scan_without_xs_counts_its_steps() -> None:
    got = ts.jit(lambda: ts.scan(lambda c, _: (c * 2, c), 1, length=5, unroll=2))()
    assert int(got[0]) == 32
    assert got[1].numpy().tolist() == [1, 2, 4, 8, 16]


@pytest.mark.parametrize("way", WAYS)
def test_callbacks_return_what_the_host_gives(way: Any) -> None:
    seen: list[Any] = []

    def host(x: Any, scale: float = 1.0) -> Any:
        seen.append(x.copy())
        return np.asarray(x * scale, np.float32)

    f = way(lambda x: ts.pure_callback(host, x.type, x * 2.0, scale=3.0) + 1.0)
    np.testing.assert_array_equal(f(ts.tensor(X)).numpy(), X * 6 + 1)
    g = way(lambda x: ts.io_callback(host, np.zeros(7, np.float32), x))
    np.testing.assert_array_equal(g(ts.tensor(X)).numpy(), X)
    assert len(seen) == 2
    with pytest.raises(ts.TesseraError, match="has no derivative"):
        ts.grad(lambda x: ts.pure_callback(host, x.type, x).sum())(ts.tensor(X))


def test_debug_print_formats_the_numbers_of_a_run(capsys: Any) -> None:
    @ts.jit
    def f(x: Any) -> Any:
        ts.debug.print("x is {}, {name} {shape}", x, name="of", shape=x.shape)
        ts.debug.callback(lambda v: print("seen", v.sum()), x)
        return x + 1

    for x in ([1, 2], [3, 4]):
        f(ts.tensor(x, dtype=i32))
    assert capsys.readouterr().out == "x is [1 2], of (2,)\nseen 3\nx is [3 4], of (2,)\nseen 7\n"
