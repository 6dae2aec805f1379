"""Values and slopes at ties, zeros, ends and NaN: one table, eagerly, compiled, in reverse and forward mode.

The slope at a kink is the one of the documents: ties of max, min, maximum and minimum share it evenly, a
function that is flat on one side has the slope 0 there, the ends of clip belong to its inside; clip with
one end is maximum or minimum.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera import op
from tessera.core.approximate import FUNCTIONS
from tessera.core.evaluate import is_portable
from tessera.core.scalar import SCALARS, Expr, arg
from tessera.ir.graph.op import REGISTRY, UNLISTED
from tessera.ops.constrain import CONSTRAIN, LIKE

NAN, INF = float("nan"), float("inf")
AT = [0.0, -0.0, 1.0, -1.0, 3.0, -3.0, 6.0]

# The slopes at AT of functions with kinks and ends.
UNARY: dict[str, tuple[Callable[..., Any], list[float]]] = {
    "abs": (op.abs, [0, 0, 1, -1, 1, -1, 1]),
    "sign": (op.sign, [0] * 7),
    "floor": (op.floor, [0] * 7),
    "ceil": (op.ceil, [0] * 7),
    "round": (op.round, [0] * 7),
    "relu": (op.relu, [0, 0, 1, 0, 1, 0, 1]),
    "relu6": (op.relu6, [0, 0, 1, 0, 1, 0, 0]),
    "leaky_relu": (lambda x: op.leaky_relu(x, 0.25), [0.25, 0.25, 1, 0.25, 1, 0.25, 1]),
    "hardtanh": (op.hardtanh, [1, 1, 0, 0, 0, 0, 0]),
    "hardtanh-wide": (lambda x: op.hardtanh(x, -3.0, 6.0), [1, 1, 1, 1, 1, 0, 0]),
    "softshrink": (lambda x: op.softshrink(x, 1.0), [0, 0, 0, 0, 1, 1, 1]),
    "hardshrink": (lambda x: op.hardshrink(x, 1.0), [0, 0, 0, 0, 1, 1, 1]),
    "hardsigmoid": (op.hardsigmoid, [1 / 6, 1 / 6, 1 / 6, 1 / 6, 0, 0, 0]),
    "hardswish": (op.hardswish, [0.5, 0.5, 5 / 6, 1 / 6, 1, 0, 1]),
    "elu": (op.elu, [1, 1, 1, np.exp(-1), 1, np.exp(-3), 1]),
    "elu-2": (lambda x: op.elu(x, 2.0), [2, 2, 1, 2 * np.exp(-1), 1, 2 * np.exp(-3), 1]),
    "celu-2": (lambda x: op.celu(x, 2.0), [1, 1, 1, np.exp(-0.5), 1, np.exp(-1.5), 1]),
    "clip": (lambda x: op.clip(x, -1.0, 3.0), [1, 1, 1, 1, 1, 0, 0]),
    "clip-low": (lambda x: op.clip(x, 0.0, None), [1, 1, 1, 0, 1, 0, 1]),  # as with two ends
    "clip-high": (lambda x: op.clip(x, None, 3.0), [1, 1, 1, 1, 1, 1, 0]),
    "softplus": (op.softplus, [1 / (1 + np.exp(-x)) for x in AT]),
    "softplus-2": (lambda x: op.softplus(x, 2.0), [1 / (1 + np.exp(-2 * x)) for x in AT]),
    "softsign": (op.softsign, [1 / (1 + abs(x)) ** 2 for x in AT]),
    "square": (op.square, [2 * x for x in AT]),
    "pow-2": (lambda x: op.pow(x, 2.0), [2 * x for x in AT]),
    "pow-1": (lambda x: op.pow(x, 1.0), [1] * 7),
    "pow-0": (lambda x: op.pow(x, 0.0), [0] * 7),
    "tanh": (op.tanh, [1 - np.tanh(x) ** 2 for x in AT]),
    "where": (lambda x: op.where(x > 0, op.sqrt(op.where(x > 0, x, 1.0)), 0.0),
              [0, 0, 0.5, 0, 0.5 / np.sqrt(3), 0, 0.5 / np.sqrt(6)]),
}  # fmt: skip


def same(got: Any, want: Any, rtol: float = 1e-9, atol: float = 1e-12) -> None:
    np.testing.assert_allclose(np.asarray(got.numpy(), float), want, rtol=rtol, atol=atol)


@pytest.mark.parametrize("name", UNARY)
def test_slopes_at_kinks(name: str) -> None:
    f, want = UNARY[name]
    x = ts.tensor(np.array(AT))
    reverse = ts.grad(lambda v: op.sum(f(v)))
    same(reverse(x), want)
    same(ts.jit(reverse)(x), want)
    same(ts.jvp(f, (x,), (ts.ones_like(x),))[1], want)
    narrow = ts.jit(ts.grad(lambda v: op.sum(f(v).astype("f32"))))(x.astype("bf16"))
    same(narrow, want, 2e-2, 5e-3)


# The slopes of folds of rows: ties share them evenly, zeros do not spoil a product.
ROWS: list[tuple[str, Callable[..., Any], list[float], list[float]]] = [
    ("max", op.max, [2, 5, 5, 1], [0, 0.5, 0.5, 0]),
    ("max-all", op.max, [3, 3, 3, 3], [0.25] * 4),
    ("max-zeros", op.max, [0.0, -0.0, -1, 0.0], [1 / 3, 1 / 3, 0, 1 / 3]),
    ("max-inf", op.max, [INF, INF, 1, 2], [0.5, 0.5, 0, 0]),
    ("min", op.min, [2, 1, 5, 1], [0, 0.5, 0, 0.5]),
    ("min-inf", op.min, [-INF, 3, -INF, 1], [0.5, 0, 0.5, 0]),
    ("prod", op.prod, [2, 5, 3, 1], [15, 6, 10, 30]),
    ("prod-one-zero", op.prod, [2, 0, 3, 1], [0, 6, 0, 0]),
    ("prod-two-zeros", op.prod, [2, 0, 0, 1], [0, 0, 0, 0]),
    ("cumprod-zero", lambda v: op.cumprod(v, -1), [2, 0, 3, 1], [1, 2 + 6 + 6, 0, 0]),
    ("cummax", lambda v: op.cummax(v, -1), [2, 5, 5, 1], [1, 1, 2, 0]),
    ("cummin", lambda v: op.cummin(v, -1), [2, 5, 5, 1], [3, 0, 0, 1]),
    ("sort", lambda v: op.sort(v) * ts.tensor([1.0, 2, 3, 4]), [2, 5, 5, 1], [2, 3, 4, 1]),
    ("norm-zero", op.norm, [0, 0, 0, 0], [0, 0, 0, 0]),
    ("std-equal", op.std, [2, 2, 2, 2], [0, 0, 0, 0]),
    ("logsumexp-one", op.logsumexp, [-INF, 0, -INF, -INF], [0, 1, 0, 0]),
    ("logsumexp-nan", op.logsumexp, [NAN, 1, 2, -INF], [NAN, NAN, NAN, NAN]),
    ("max-nan", op.max, [NAN, 1, 2, 3], [NAN] * 4),
    ("prod-nan", op.prod, [NAN, 1, 2, 3], [6, NAN, NAN, NAN]),
]


@pytest.mark.parametrize(("f", "x", "want"), [r[1:] for r in ROWS], ids=[r[0] for r in ROWS])
@pytest.mark.filterwarnings("ignore")
def test_slopes_of_folds(f: Callable[..., Any], x: list[float], want: list[float]) -> None:
    reverse = ts.grad(lambda v: op.sum(f(v)))
    v = ts.tensor(np.array(x, float))
    same(reverse(v), want)
    same(ts.jit(reverse)(v), want)
    basis = np.eye(4)
    forward = [ts.jvp(lambda v: op.sum(f(v)), (v,), (ts.tensor(b),))[1].numpy() for b in basis]
    finite = np.isfinite(want) & (not np.isnan(x).any())
    np.testing.assert_allclose(np.array(forward)[finite], np.array(want)[finite], atol=1e-12)


PAIRS: list[tuple[str, Callable[..., Any], float, float, float, float]] = [
    ("maximum", op.maximum, 1, 1, 0.5, 0.5),
    ("maximum-less", op.maximum, 1, 2, 0, 1),
    ("maximum-zeros", op.maximum, 0.0, -0.0, 0.5, 0.5),
    ("minimum", op.minimum, 1, 1, 0.5, 0.5),
    ("minimum-less", op.minimum, 1, 2, 1, 0),
    ("minimum-inf", op.minimum, INF, INF, 0.5, 0.5),
    ("hypot", op.hypot, 3, 4, 0.6, 0.8),
    ("hypot-zero", op.hypot, 0, 0, 0, 0),
    ("atan2", op.atan2, 1, 0, 0, -1),
    ("pow-zero", op.pow, 0, 2, 0, 0),
    ("pow-zero-one", op.pow, 0, 1, 1, 0),
    ("pow-zero-zero", op.pow, 0, 0, 0, 0),
    ("pow", op.pow, 2, 3, 12, 8 * np.log(2)),
    ("logaddexp", op.logaddexp, 2, 2, 0.5, 0.5),
    ("copysign", op.copysign, 2, -1, -1, 0),
    ("copysign-negative", op.copysign, -2, -1, 1, 0),
    ("fmod", op.fmod, 7, -2, 1, 3),
    ("fmod-negative", op.fmod, -7, 2, 1, 3),
    ("remainder", op.remainder, 7, -2, 1, 4),
    ("remainder-negative", op.remainder, -7, 2, 1, 4),
]


@pytest.mark.parametrize("row", PAIRS, ids=[r[0] for r in PAIRS])
def test_slopes_of_pairs(row: tuple[str, Callable[..., Any], float, float, float, float]) -> None:
    _, f, x, y, dx, dy = row
    g = ts.grad(lambda a, b: op.sum(f(a, b)), argnums=(0, 1))
    a, b = (ts.tensor(np.full(3, float(v))) for v in (x, y))
    for run in (g, ts.jit(g)):
        for got, want in zip(run(a, b), (dx, dy), strict=True):
            same(got, np.full(3, want))
    for i, want in enumerate((dx, dy)):
        ds = [ts.ones_like(v) * float(j == i) for j, v in enumerate((a, b))]
        same(ts.jvp(f, (a, b), tuple(ds))[1], np.full(3, want))


FOLDS: list[tuple[Any, Any]] = [
    (op.argmax, np.argmax), (op.argmin, np.argmin), (op.max, np.max), (op.min, np.min),
]  # fmt: skip
WINNERS = [
    ([1, 3, 3], 1, 0), ([3, 1, 1], 0, 1), ([NAN, 1, NAN], 0, 0), ([1, NAN, NAN], 1, 1),
    ([0.0, -0.0], 0, 0), ([-0.0, 0.0], 0, 0), ([-INF, -INF], 0, 0), ([INF, NAN], 1, 1),
    ([2, 2, NAN], 2, 2), ([5], 0, 0),
]  # fmt: skip


@pytest.mark.parametrize("dtype", ["f64", "f32", "f16", "bf16"])
@pytest.mark.parametrize(("x", "most", "least"), WINNERS, ids=[str(w[0]) for w in WINNERS])
def test_the_first_of_equals_wins_and_a_nan_before_all(
    x: list[float], most: int, least: int, dtype: str
) -> None:
    v = ts.tensor(np.array([x, x[::-1]]), dtype)
    numbers = v.numpy().astype(float)
    assert int(op.argmax(v, 1)[0]) == most
    assert int(op.argmin(v, 1)[0]) == least
    for f, numpy in FOLDS:
        for axis in (0, 1, None):
            got = ts.jit(f, static_argnames=("axis",))(v, axis=axis).numpy().astype(float)
            np.testing.assert_array_equal(got, numpy(numbers, axis))


@pytest.mark.parametrize("axis", [0, 1, -1, -2, (0, 1), (), None])
@pytest.mark.parametrize("keep", [False, True])
def test_slopes_of_folds_by_axes(axis: Any, keep: bool) -> None:
    """Finite differences would see a fold over the wrong axis; here the sum of slopes is the number of
    folds.
    """
    x = np.array([[1.0, 4.0, 2.0], [3.0, 0.5, 6.0]])
    over = (0, 1) if axis is None else axis
    for f, numpy in ((op.max, np.max), (op.min, np.min), (op.prod, np.prod), (op.mean, np.mean),
                     (op.var, np.var), (op.std, np.std), (op.sum, np.sum)):  # fmt: skip
        if axis == () and f in (op.std,):
            continue  # flat everywhere
        w = np.random.default_rng(0).normal(size=numpy(x, axis=over, keepdims=keep).shape)
        loss = lambda v: op.sum(f(v, axis=axis, keepdims=keep) * ts.tensor(w))  # noqa: B023, E731
        got = ts.jit(ts.grad(loss))(ts.tensor(x)).numpy()
        want = np.zeros_like(x)
        for i in np.ndindex(*x.shape):
            e = np.zeros_like(x)
            e[i] = 1e-6
            ends = [np.sum(numpy(x + s * e, axis=over, keepdims=keep) * w) for s in (1, -1)]
            want[i] = (ends[0] - ends[1]) / 2e-6
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("dtype", ["f64", "f32", "bf16"])
@pytest.mark.parametrize("correction", [0, 1, 0.1, 1.5, -0.5, 3, 4, 5.25])
def test_corrections_of_statistics_at_symbolic_and_known_sizes(
    correction: float, dtype: str
) -> None:
    """A fraction was cut off for symbolic sizes, and so eagerly; more than the count gave negative
    variances.
    """
    x = ts.tensor(np.array([1.5, -0.5, 2.0]), dtype)
    numbers = x.numpy().astype(float)
    freedom = max(3 - correction, 0.0)
    with np.errstate(divide="ignore"):
        want = np.divide(np.sum((numbers - numbers.mean()) ** 2), freedom)
    symbolic: Any = lambda v: op.var(v, 0, correction)  # noqa: E731
    symbolic.__annotations__["v"] = ts.Tensor["N"]
    results = [
        op.var(x, 0, correction),
        ts.jit(lambda v: op.var(v, 0, correction))(x),
        ts.jit(symbolic)(x),
    ]
    tolerance = {"f64": 1e-12, "f32": 1e-6, "bf16": 1e-2}[dtype]
    for got in results:
        np.testing.assert_allclose(float(got), want, rtol=tolerance)
        np.testing.assert_array_equal(got.numpy(), results[0].numpy())
    root = ts.jit(lambda v: op.std(v, 0, correction))(x)
    np.testing.assert_allclose(float(root), np.sqrt(want), rtol=tolerance)


def test_what_is_portable_is_exact_or_our_own() -> None:
    """Functions of the machine's library have other bits elsewhere; ours and exactly rounded ones have
    not.
    """
    for name, row in SCALARS.items():
        e = Expr(name, tuple(arg(i) for i in range(row.arity)))
        exact = row.ulp <= 0.5 or name == "rsqrt"
        assert is_portable(e, ts.f32) == (exact or name in FUNCTIONS), name
        assert is_portable(e, ts.c64) == exact, name
        if row.arity == 1:
            assert is_portable(Expr("neg", (e,)), ts.f32) == is_portable(e, ts.f32), name
    assert not is_portable(Expr("logaddexp", (arg(0), arg(1))), ts.f32)


def test_what_only_moves_elements_says_so() -> None:
    """An op that hands its operand on has no format to compute in: its record has `moves`."""
    every = [*REGISTRY.values(), *UNLISTED.values(), CONSTRAIN, LIKE]
    copies = [
        o for o in every if isinstance(o.body, Expr) and o.body.op == "arg" and o.combine is None
    ]
    assert {"cast", "checkpoint_name", "constrain", "like", "stop_gradient"} <= {
        o.name for o in copies
    }
    for o in copies:
        assert o.moves, o.name
        assert o.body == arg(0), o.name
