"""Keys: what a call remembers is used for calls that are alike in all that matters, and for no other.

Each function is called in turn with all of its settings, forward and back; what a fresh function gives is
right.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera import KTile, kernel, op, tile
from tessera.core.flags import override

X = np.arange(6, dtype=np.float32).reshape(2, 3)


def outcome(f: Callable[[], Any]) -> Any:
    """What a call gives, with its dtype, or the text of its error."""
    try:
        out = f()
    except ts.TesseraError as e:
        return e.message
    leaves = [ts.tensor(x) for x in ts.tree.leaves(out)]
    return ts.tree.structure(out), [(v.dtype.name, v.shape, v.numpy().tobytes()) for v in leaves]


def in_any_order(make: Callable[[], Callable[..., Any]], calls: list[Callable[..., Any]]) -> None:
    """A function that has seen other calls gives for each what a fresh one gives, twice."""
    fresh = [outcome(partial(c, make())) for c in calls]
    forward = list(range(len(calls)))
    for order in (forward, forward[::-1]):
        f = make()
        for i in (*order, *order):
            assert outcome(partial(calls[i], f)) == fresh[i], i


NUMBERS: list[Any] = [
    2, 2.0, True, 3, -0.0, 0.0, 1j, float("nan"), np.float64(2), np.float32(2), np.int8(2),
    np.array(2.0), ts.tensor(2.0), ts.tensor(2), ts.tensor([2.0, 3.0, 4.0]),
]  # fmt: skip


def with_number(x: Any, n: Any) -> Callable[..., Any]:
    return lambda f: f(x, n)


def test_numbers_beside_a_tensor() -> None:
    for dtype in ("f32", "f16", "i32", "u8", "bool"):
        x = ts.tensor(X, dtype)
        in_any_order(
            lambda: ts.jit(lambda a, b: op.add(a, b)), [with_number(x, n) for n in NUMBERS]
        )
    x = ts.tensor(X)
    in_any_order(lambda: ts.jit(lambda x, y: op.atan2(x, y)), [with_number(x, n) for n in NUMBERS])


def test_dtypes_shapes_and_kinds_of_arrays() -> None:
    every = ["f64", "f32", "f16", "bf16", "i64", "i8", "u8", "bool", "c64"]
    args: list[Any] = [ts.tensor(X, d) for d in every]
    args += [X, X.T.copy(), X.T, X[:, :2], X[:0], X.astype(np.float64), list(range(3)), 3.0]
    in_any_order(
        lambda: ts.jit(lambda x: op.sum(op.add(x, x), axis=0)),
        [lambda f, x=x: f(x) for x in args],  # type: ignore[misc]
    )


def test_trees_of_one_set_of_leaves() -> None:
    a, b = ts.tensor(X), ts.tensor(X + 1)
    trees: list[Any] = [
        (a, b), [a, b], {"a": a, "b": b}, {"b": b, "a": a}, {"a": b, "b": a}, ((a,), b), (a, (b,)),
        (a, None, b), (a, b, None), {"a": (a, b)}, {1: a, 2: b},
    ]  # fmt: skip

    def f(t: Any) -> Any:
        leaves = ts.tree.leaves(t)
        return t, leaves[0] - 2 * leaves[1]

    in_any_order(lambda: ts.jit(f), [lambda g, t=t: g(t) for t in trees])  # type: ignore[misc]


@pytest.mark.filterwarnings("ignore:.*was compiled")
def test_static_values_are_known_by_type_and_value() -> None:
    x = ts.tensor(X)
    values: list[Any] = [
        1,
        True,
        1.0,
        2,
        "a",
        "b",
        None,
        (1, 2),
        (2, 1),
        (1, True),
        0.0,
        -0.0,
        ts.f32,
    ]
    in_any_order(
        lambda: ts.jit(
            lambda x, n: x + len(repr(n)) + hash(repr(n)) % 1000, static_argnames=("n",)
        ),
        [lambda f, n=n: f(x, n) for n in values],  # type: ignore[misc]
    )
    in_any_order(
        lambda: ts.jit(lambda x, n: x + hash(repr(n)) % 1000, static_argnums=1),
        [lambda f, n=n: f(x, n=n) for n in values[:6]],  # type: ignore[misc]
    )


def test_ways_to_pass_an_argument() -> None:
    a, b = ts.tensor(X), ts.tensor(X * 2)
    in_any_order(
        lambda: ts.jit(lambda x, y=3.0, *rest, z=None, **more: (x - 2 * y, rest, z, more)),
        [
            lambda f: f(a), lambda f: f(a, b), lambda f: f(x=a), lambda f: f(y=a, x=b),
            lambda f: f(a, y=b), lambda f: f(a, z=b), lambda f: f(a, 3.0), lambda f: f(a, 3),
            lambda f: f(a, b, a), lambda f: f(a, b, b), lambda f: f(a, w=b), lambda f: f(a, v=b),
            lambda f: f(b, z=a, y=b), lambda f: f(), lambda f: f(a, x=b),
        ],
    )  # fmt: skip


FLAGS: dict[str, Callable[[], Any]] = {
    "none": contextlib.nullcontext,
    "checked": ts.checked,
    "fast": lambda: ts.numerics("fast"),
    "strict": lambda: ts.numerics("strict"),
    "deterministic": lambda: ts.numerics("deterministic"),
    "nans": ts.debug_nans,
    "one thread": lambda: ts.threads(1),
    "two threads": lambda: ts.threads(2),
}


def under(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
    def run(f: Any) -> Any:
        with FLAGS[name]():
            return call(f)

    return run


def test_flags_in_force() -> None:
    x, i = ts.tensor(X), ts.tensor([0, 7])
    in_any_order(
        lambda: ts.jit(lambda x, i: (op.take(x, i, axis=1), op.sum(x))),
        [under(n, lambda f: f(x, i)) for n in FLAGS],
    )
    in_any_order(lambda: ts.jit(lambda x: op.log(x - 1)), [under(n, lambda f: f(x)) for n in FLAGS])


def test_each_numerics_has_a_variant() -> None:
    f = ts.jit(lambda x: op.sum(op.exp(x) * x, axis=1))
    seen = []
    for n in ("none", "fast", "strict", "fast", "strict", "none"):
        with FLAGS[n]():
            f(X)
        seen.append(f.compiled)
    assert seen == [1, 2, 3, 3, 3, 3]
    with ts.checked():
        f(X)
        f(X)
    assert f.compiled == 4


def test_a_keyword_that_a_function_does_not_have_is_refused_after_good_calls() -> None:
    f = ts.jit(lambda x: x + 1)
    for _ in range(3):
        f(ts.tensor(X))
        with pytest.raises(ts.TesseraError, match="unexpected keyword argument 'y'"):
            f(ts.tensor(X), y=ts.tensor(X))


def test_what_a_function_is_called_in() -> None:
    """A jitted function inside of others: by vmap, grad and jit, and alone again."""
    x = ts.tensor(X)
    in_any_order(
        lambda: ts.jit(lambda x: op.sum(x * x * op.arange(x.shape[-1]))),
        [
            lambda f: f(x), lambda f: f(x[0]), lambda f: ts.vmap(f)(x), lambda f: ts.grad(f)(x),
            lambda f: ts.jit(lambda v: f(v) + f(v + 1))(x), lambda f: ts.vmap(ts.grad(f))(x),
            lambda f: ts.hessian(f)(x[0]), lambda f: ts.jvp(f, (x,), (x,)),
        ],
    )  # fmt: skip


def test_eager_functions_that_are_called_often() -> None:
    """Calls that have become machine code give what the first call gave, also after other calls."""
    x, y = ts.tensor(X), ts.tensor(X + 2)
    calls: list[Callable[[], Any]] = [
        lambda: op.sum(x, axis=0), lambda: op.sum(x, axis=1), lambda: op.sum(x, 1, True),
        lambda: op.sum(y, axis=0), lambda: op.sum(x.astype("f64"), axis=0), lambda: op.add(x, y),
        lambda: op.add(x, 2), lambda: op.add(x, 2.5), lambda: op.add(x, True), lambda: op.sub(y, x),
        lambda: op.sub(x, y), lambda: op.softmax(x), lambda: op.softmax(x, 0), lambda: x[0], lambda: x[1],
        lambda: op.pow(x, 2), lambda: op.pow(x, 3), lambda: op.clip(x, 1, 2), lambda: op.clip(x, 1, 3),
    ]  # fmt: skip
    want = [outcome(c) for c in calls]
    for _ in range(3):
        for c in calls:
            for _ in range(300):
                c()
        assert [outcome(c) for c in calls] == want


@kernel
def stepped(x: KTile["N"], a: float, *, power=1, flip=False, names=("a", "b")):
    t = tile.load(x)
    for _ in range(power):
        t = t * a
    if flip:
        t = -t
    return t + len(names)


@pytest.mark.parametrize("verify", [False, True])
def test_plans_of_kernels(verify: bool) -> None:
    """Static keywords, numbers, dtypes and sizes of a kernel, by its plans and without."""
    x, y = X[0], np.arange(5, dtype=np.float32)
    calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
        ((x, 2.0), {}), ((x, 3.0), {}), ((x, 2), {}), ((y, 2.0), {}), ((x, 2.0), {"power": 2}),
        ((x, 2.0), {"power": 3}), ((x, 2.0), {"power": True}), ((x, 2.0), {"flip": True}),
        ((x, 2.0), {"flip": 1}), ((x, 2.0), {"names": ("a",)}), ((x, 2.0), {"power": 2, "flip": True}),
        ((x, 2.0), {"names": ()}), ((x[:0], 2.0), {}),
    ]  # fmt: skip
    with override(verify=verify):
        for _ in range(2):
            for (v, a), named in calls + calls[::-1]:
                p, flip = int(named.get("power", 1)), named.get("flip", False)
                want = (-1 if flip else 1) * v * np.float32(a) ** p + len(named.get("names", "ab"))
                np.testing.assert_allclose(stepped(v, a, **named).numpy(), want, rtol=1e-6)


@kernel
def differences(x: KTile["N"], y: KTile["N"]):
    a = tile.load(x, at=(1,), shape=(4,)) - tile.load(x, at=(0,), shape=(4,))
    b = tile.load(y, at=(1,), shape=(4,)) - tile.load(y, at=(0,), shape=(4,))
    return tile.place(a * 10 + b, tile.load(x, at=(0,), shape=(4,)))


def test_equal_expressions_of_different_tensors_stay_apart() -> None:
    """x[1:] - x[:-1] and y[1:] - y[:-1] have one shape and one text, and are two things."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(2, 4, 5))
    for cut in ((slice(1, None), slice(None, -1)), (slice(None, None, 2), slice(1, None, 2))):

        def f(a: Any, b: Any) -> Any:
            parts = [(v[:, cut[0]][:, :2] - v[:, cut[1]][:, :2]) * v[:, 1:3] for v in (a, b)]  # noqa: B023
            whole = [op.sum(op.exp(v[cut[0]][:2] + v[cut[1]][:2]), 0) for v in (a, b)]  # noqa: B023
            return (*parts, *whole, parts[0] - parts[1])

        got = ts.jit(f)(x, y)
        for g, w in zip(got, f(ts.tensor(x), ts.tensor(y)), strict=True):
            np.testing.assert_array_equal(g.numpy(), w.numpy())
        np.testing.assert_allclose(got[0], (x[:, cut[0]][:, :2] - x[:, cut[1]][:, :2]) * x[:, 1:3])
        np.testing.assert_allclose(got[1], (y[:, cut[0]][:, :2] - y[:, cut[1]][:, :2]) * y[:, 1:3])
        assert not np.array_equal(got[2].numpy(), got[3].numpy())


def test_donated_views_leave_what_others_hold() -> None:
    """What a jitted function may write over is its argument alone, never what shares its memory."""
    base = np.arange(12, dtype=np.float32)
    for view in (base[:6], base[6:], base[::2], base[::-1][:6], base.reshape(2, 6)[1]):
        before = base.copy()
        f = ts.jit(lambda x, y: (x * 2 + y, x - y), donate=("x",))
        a, b = f(ts.tensor(view), view)
        np.testing.assert_array_equal(a, view * 3)
        np.testing.assert_array_equal(b, view * 0)
        np.testing.assert_array_equal(base, before)
    x = ts.tensor(base)
    part, want = x[2:8], base[2:8].copy()
    y = ts.jit(lambda v: v + 1, donate=("v",))(x[:6])
    np.testing.assert_array_equal(part, want)
    np.testing.assert_array_equal(x, base)
    np.testing.assert_array_equal(y, base[:6] + 1)


def test_tensors_on_two_devices_are_told_by_name() -> None:
    """Also after calls with both on one device, and with one of them in a tree."""
    with override(cpu_devices=2):
        x = ts.tensor(X)
        y = x.to("cpu:1")
        f = ts.jit(lambda a, b: a + b["c"])
        for _ in range(3):
            np.testing.assert_array_equal(f(x, {"c": x}), 2 * X)
            with pytest.raises(ts.TesseraError) as e:
                f(x, {"c": y})
            assert e.value.message == (
                "<lambda>: argument 'a' f32[2,3] is on cpu:0 but argument 'b' f32[2,3] is on cpu:1; "
                "move one with x.to('cpu:0')"
            )
