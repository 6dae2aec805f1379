"""numerics: unstable kernels have a witness that fails, stable ones a proof that no input breaks."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given

import tessera as ts
from tessera import op
from tessera.checks.abstract import limits
from tessera.checks.faults import edges
from tessera.checks.intervals import Hull, bounds_of, compare
from tessera.checks.numerics import ErrorBound, analyse, check_numerics
from tessera.core.dtype import DType, bf16, f16, f32, f64, i8, i32
from tessera.core.errors import NumericalError, OperandError
from tessera.core.evaluate import scalar
from tessera.core.scalar import SCALARS
from tessera.core.types import TensorType
from tessera.ir.tile.interp import interpret, sizes_of
from tessera.ir.tile.ir import Builder, Kernel, Tile
from tessera.lang import verify
from tests.support.breadth import examples
from tests.support.cases.tile_kernels import Program, programs

Body = Callable[["Row"], Tile]


class Row:
    """Writes a kernel that computes a row of a result from a row of x, and maybe of z."""

    def __init__(self, dtype: DType = f32, n: int = 16, rows: int = 2):
        self.b, self.dtype, self.n = Builder("row"), dtype, n
        t = TensorType(dtype, (rows, n))
        self.x, self.z = self.b.parameter("x", t), self.b.parameter("z", t)
        self.y = self.b.parameter("y", t, writable=True)
        self.p = self.b.program(rows)

    def load(self, name: str = "x") -> Tile:
        m = self.x if name == "x" else self.z
        return self.b.load(m, (self.p, 0), (1, self.n), axes=(1,))

    def __getattr__(self, name: str) -> Any:
        if name in SCALARS:
            return lambda *xs: self.b.apply(name, *xs)
        raise AttributeError(name)

    def number(self, value: float) -> Tile:
        return self.b.full(self.dtype, (1,), value)

    def fold(self, name: str, x: Tile) -> Tile:
        return self.b.fold(name, x, 0)

    def kernel(self, body: Body) -> Kernel:
        out = self.b.cast(self.b.broadcast(body(self), (self.n,)), self.dtype)
        self.b.store(self.y, out, (self.p, 0), (1, self.n), axes=(1,))
        return self.b.finish()


def softmax(r: Row, m: Tile | None = None) -> Tile:
    x = r.load()
    e = r.exp(x if m is None else r.sub(x, m))
    return r.div(e, r.fold("add", e))


def stable_softmax(r: Row) -> Tile:
    return softmax(r, r.fold("max", r.load()))


def weighed(r: Row, exp: Any, scale: float) -> Tile:
    e = exp(r.mul(r.sub(r.load(), r.fold("max", r.load())), r.number(scale)))
    return r.div(e, r.fold("add", e))


def online(r: Row, rescale: bool = True, guard: bool = True) -> Tile:
    """Softmax in two blocks: the maximum and the sum are carried on."""
    b, x = r.b, [r.b.load(r.x, (r.p, k), (1, 8), axes=(1,)) for k in (0, 8)]
    m, total = r.number(-float("inf")), r.number(0)
    for part in x:
        new = r.max(m, r.fold("max", part)) if guard else r.fold("max", part)
        e = r.exp(r.sub(part, new))
        old = r.mul(total, r.exp(r.sub(m, new))) if rescale else total
        total, m = r.add(old, r.fold("add", e)), new
    return r.div(r.exp(r.sub(r.load(), b.broadcast(m, (r.n,)))), total)


def variance(r: Row, x: Tile) -> Tile:
    mean = r.div(r.fold("add", x), r.number(r.n))
    return r.div(r.fold("add", r.square(r.sub(x, mean))), r.number(r.n))


def centred(r: Row) -> Tile:
    x = r.load()
    return r.sub(x, r.div(r.fold("add", x), r.number(r.n)))


def masked_row(r: Row) -> Tile:
    """Every element masked: the maximum is -inf."""
    gone = r.b.full(r.dtype, (r.n,), -float("inf"))
    return r.exp(r.sub(gone, r.fold("max", gone)))


R, T = Row, tuple[Body, Row, tuple[float, float]]
UNSTABLE: dict[str, T] = {
    "softmax": (softmax, R(), (-100, 100)),
    "softmax in f16": (softmax, R(f16), (-20, 20)),
    "softmax in bf16": (softmax, R(bf16), (-100, 100)),
    "softmax in f64": (softmax, R(f64), (-800, 800)),
    "softmax of what underflows": (softmax, R(), (-300, -200)),
    "softmax less the minimum": (lambda r: softmax(r, r.fold("min", r.load())), R(), (-100, 100)),
    "softmax less the mean": (
        lambda r: softmax(r, r.div(r.fold("add", r.load()), r.number(r.n))), R(), (-200, 200)),
    "softmax less the maximum of a half": (
        lambda r: softmax(r, r.b.fold("max", r.b.load(r.x, (r.p, 0), (1, 8), axes=(1,)), 0)), R(),
        (-100, 100)),
    "softmax less the maximum of another": (
        lambda r: softmax(r, r.fold("max", r.load("z"))), R(), (-100, 100)),
    "online softmax without the maximum so far": (lambda r: online(r, guard=False), R(), (-100, 100)),
    "logsumexp": (lambda r: r.log(r.fold("add", r.exp(r.load()))), R(), (-100, 100)),
    "log of softmax": (lambda r: r.log(stable_softmax(r)), R(), (-100, 100)),
    "sigmoid by exp": (
        lambda r: r.div(r.exp(r.load()), r.add(r.number(1), r.exp(r.load()))), R(), (-100, 100)),
    "tanh by exp": (
        lambda r: r.div(r.sub(r.exp(r.load()), r.exp(r.neg(r.load()))),
                        r.add(r.exp(r.load()), r.exp(r.neg(r.load())))), R(), (-100, 100)),
    "softplus by exp": (lambda r: r.log(r.add(r.number(1), r.exp(r.load()))), R(), (-100, 100)),
    "layernorm without epsilon": (
        lambda r: r.mul(centred(r), r.rsqrt(variance(r, r.load()))), R(), (-10, 10)),
    "layernorm by squares": (
        lambda r: r.div(r.load(), r.sqrt(r.sub(
            r.div(r.fold("add", r.square(r.load())), r.number(r.n)),
            r.square(r.div(r.fold("add", r.load()), r.number(r.n)))))), R(), (999, 1000)),
    "variance overflows f16": (lambda r: variance(r, r.load()), R(f16), (-400, 400)),
    "unit vector of zero": (
        lambda r: r.div(r.load(), r.sqrt(r.fold("add", r.square(r.load())))), R(), (-1, 1)),
    "unit vector of tiny numbers": (
        lambda r: r.div(r.load(), r.sqrt(r.fold("add", r.square(r.load())))), R(), (1e-30, 1e-25)),
    "fourth power": (lambda r: r.square(r.square(r.load())), R(), (-1e10, 1e10)),
    "square in f16": (lambda r: r.square(r.load()), R(f16), (-300, 300)),
    "sum in f16": (lambda r: r.fold("add", r.load()), R(f16), (0, 10000)),
    "product of a row": (lambda r: r.fold("mul", r.load()), R(), (-1e3, 1e3)),
    "sums of a row in f16": (lambda r: r.b.scan("add", r.load(), 0), R(f16), (0, 10000)),
    "reciprocal": (lambda r: r.recip(r.load()), R(), (-1, 1)),
    "quotient": (lambda r: r.div(r.load(), r.load("z")), R(), (0, 1)),
    "logarithm of zero": (lambda r: r.log(r.load()), R(), (0, 1)),
    "logarithm of a difference": (lambda r: r.log(r.sub(r.number(1), r.load())), R(), (0, 1)),
    "root of a negative": (lambda r: r.sqrt(r.load()), R(), (-1, 1)),
    "arc sine": (lambda r: r.asin(r.load()), R(), (-2, 2)),
    "exp of a product": (lambda r: r.exp(r.mul(r.load(), r.load("z"))), R(), (-10, 10)),
    "power": (lambda r: r.pow(r.load(), r.load("z")), R(), (1, 50)),
    "cosh": (lambda r: r.cosh(r.load()), R(), (-100, 100)),
    "cast to f16": (
        lambda r: r.b.cast(r.b.cast(r.mul(r.load(), r.load()), f16), f32), R(), (-300, 300)),
    "all masked": (masked_row, R(), (-1, 1)),
    "entropy": (
        lambda r: r.mul(stable_softmax(r), r.log(stable_softmax(r))), R(), (-100, 100)),
}  # fmt: skip


@pytest.mark.parametrize("name", UNSTABLE)
def test_an_unstable_kernel_has_a_witness(name: str) -> None:
    body, row, (lo, hi) = UNSTABLE[name]
    kernel = Row(row.dtype).kernel(body)
    v = check_numerics(kernel, {}, {"x": ErrorBound(lo, hi), "z": ErrorBound(lo, hi)})
    assert v.findings, v
    assert all(f.confirmed and f.suggestion for f in v.findings)


def test_there_are_many_unstable_kernels() -> None:
    assert len(UNSTABLE) >= 25


STABLE: dict[str, T] = {
    "softmax": (stable_softmax, R(), (-100, 100)),
    "softmax of large numbers": (stable_softmax, R(), (-1e30, 1e30)),
    "softmax in f16": (stable_softmax, R(f16), (-1000, 1000)),
    "softmax in bf16": (stable_softmax, R(bf16), (-1e4, 1e4)),
    "softmax scaled": (lambda r: weighed(r, r.exp, 0.125), R(), (-1000, 1000)),
    "softmax by exp2": (lambda r: weighed(r, r.exp2, 1.0), R(), (-1000, 1000)),
    "online softmax": (online, R(), (-100, 100)),
    "logsumexp": (
        lambda r: r.add(r.fold("max", r.load()), r.log(r.fold("add", r.exp(
            r.sub(r.load(), r.fold("max", r.load())))))), R(), (-100, 100)),
    "sigmoid": (lambda r: r.sigmoid(r.load()), R(), (-1e4, 1e4)),
    "tanh": (lambda r: r.tanh(r.load()), R(), (-1e4, 1e4)),
    "layernorm": (
        lambda r: r.mul(centred(r), r.rsqrt(r.add(variance(r, r.load()), r.number(1e-5)))), R(),
        (-100, 100)),
    "sum": (lambda r: r.fold("add", r.load()), R(f16), (-1000, 1000)),
    "unit vector": (
        lambda r: r.div(r.load(), r.sqrt(r.add(r.fold("add", r.square(r.load())), r.number(1e-6)))),
        R(), (-1e3, 1e3)),
    "logarithm": (lambda r: r.log(r.add(r.abs(r.load()), r.number(1e-3))), R(), (-10, 10)),
    "quotient": (lambda r: r.div(r.load(), r.load("z")), R(), (0.5, 2)),
}  # fmt: skip


@pytest.mark.parametrize("name", STABLE)
def test_a_stable_kernel_is_proved_and_its_bounds_hold(name: str) -> None:
    body, row, (lo, hi) = STABLE[name]
    kernel, dtype = Row(row.dtype).kernel(body), row.dtype
    inputs = {"x": ErrorBound(lo, hi), "z": ErrorBound(lo, hi)}
    v = check_numerics(kernel, {}, inputs)
    assert v.is_proof, v
    out = analyse(kernel, {}, inputs).outs["y"]
    rng = np.random.default_rng(3)
    for k in range(12):
        shape = (2, 16)
        x, z = (rng.uniform(lo, hi, shape) if k % 3 else rng.choice([lo, hi], shape) for _ in "xz")
        arrays = [x.astype(dtype.np), z.astype(dtype.np), np.zeros(shape, dtype.np)]
        interpret(kernel, arrays)
        y = arrays[2].astype(np.float64)
        assert np.all((y >= out.lo) & (y <= out.hi)), (out, y)


def test_the_error_bound_holds() -> None:
    """The error of softmax, a sum and a variance against f64."""
    for name in ("softmax", "sum", "logsumexp", "quotient"):
        body, row, (lo, hi) = STABLE[name]
        narrow, wide = Row(row.dtype).kernel(body), Row(f64).kernel(body)
        inputs = {"x": ErrorBound(lo, hi), "z": ErrorBound(lo, hi)}
        bound = analyse(narrow, {}, inputs).outs["y"].err
        assert np.isfinite(bound)
        rng = np.random.default_rng(4)
        for _ in range(8):
            x, z = (rng.uniform(lo, hi, (2, 16)).astype(row.dtype.np) for _ in "xz")
            y, exact = np.zeros_like(x), np.zeros((2, 16))
            interpret(narrow, [x, z, y])
            interpret(wide, [x.astype(np.float64), z.astype(np.float64), exact])
            assert np.abs(y.astype(np.float64) - exact).max() <= bound, name


# Rules ----------------------------------------------------------------------------------------------

KNOWN = [
    "add", "sub", "mul", "div", "max", "min", "fma", "square", "abs", "pow", "recip", "sin", "cos",
    "cosh", "hypot", "logaddexp", "atan2", "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sqrt",
    "cbrt",
    "tanh", "sigmoid", "erf", "atan", "asinh", "sinh", "asin", "atanh", "acosh", "floor", "ceil", "round",
    "trunc", "sign", "pos", "rsqrt", "erfc", "neg", "acos"]  # fmt: skip


@pytest.mark.parametrize("name", KNOWN)
def test_the_bounds_of_a_scalar_op_hold(name: str) -> None:
    """Random points of random intervals, infinite ones too; NaN only where it is announced."""
    rng, count = np.random.default_rng(5), 400
    with np.errstate(all="ignore"):
        xs, hulls = [], []
        for _ in range(SCALARS[name].arity):
            a, b = (rng.choice([-np.inf, -100, -2, -1, -0.5, 0, 0.5, 1, 3, 90, np.inf], count,
                               p=[0.02] + [0.96 / 9] * 9 + [0.02]) for _ in "ab")  # fmt: skip
            lo, hi = np.minimum(a, b), np.maximum(a, b)
            share = rng.uniform(0, 1, count)
            x = np.clip(np.where(np.isfinite(lo + hi), lo + share * (hi - lo), a), lo, hi)
            zero = np.zeros(count)
            hulls.append(Hull(lo, hi, zero, zero != 0, zero, zero))
            xs.append(x)
        r = bounds_of(name, hulls)
        y = scalar(name, xs, f64)
    slack = np.where(np.isfinite(y), 1e-12 * np.maximum(np.abs(y), 1), 0)
    nan = np.isnan(y)
    assert not np.any(nan & ~np.broadcast_to(r.nan, y.shape)), name
    inside = (y >= r.lo - slack) & (y <= r.hi + slack) | nan | (y == r.lo) | (y == r.hi)
    assert inside.all(), name
    made = np.isinf(y) & np.all([np.isfinite(x) for x in xs], axis=0)
    announced = np.isinf(r.lo) | np.isinf(r.hi) | np.broadcast_to(r.zero, y.shape)
    assert not np.any(made & ~announced), name


@pytest.mark.parametrize("name", ["lt", "le", "gt", "ge", "eq", "ne"])
def test_a_comparison_of_intervals_is_sure_exactly_where_all_their_points_agree(name: str) -> None:
    """Of intervals that end at whole numbers, the points at halves decide; NaN leaves all open."""
    ends = [(lo, hi) for lo in range(-2, 3) for hi in range(lo, 3)]
    pairs = [(a, b, n) for a in ends for b in ends for n in range(4)]
    columns = [np.array(c, float) for c in zip(*((*a, *b) for a, b, _ in pairs), strict=True)]
    nans = [np.array([bool(n & bit) for _, _, n in pairs]) for bit in (1, 2)]
    zero = np.zeros(len(pairs))
    one, two = (
        Hull(lo, hi, zero, nan, zero, zero)
        for lo, hi, nan in zip(columns[::2], columns[1::2], nans, strict=True)
    )
    found = compare(name, one, two)
    assert found is not None
    for i, (a, b, n) in enumerate(pairs):
        xs, ys = (np.arange(2 * lo, 2 * hi + 1) / 2 for lo, hi in (a, b))
        truth = scalar(name, [xs[:, None], ys[None, :]], f64)
        want = (0, 1) if n else (truth.min(), truth.max())
        assert (found.lo[i], found.hi[i]) == want, (name, a, b, n)


def test_limits_are_those_of_the_dtype() -> None:
    assert limits(ts.i8) == (-128, 127)
    assert limits(ts.u8) == (0, 255)
    assert limits(ts.bool_) == (0, 1)


# Random kernels -------------------------------------------------------------------------------------


@examples(150)
@given(programs())
def test_results_lie_within_the_bounds_of_random_kernels(p: Program) -> None:
    """Whatever is computed is inside of what was announced, and NaN only where it may be."""
    inputs = {}
    for m, a in zip(p.kernel.parameters, p.arrays, strict=True):
        wide = a.astype(np.float64)
        if not m.writable and m.type.dtype.kind == "f" and a.size and np.isfinite(wide).all():
            inputs[m.name] = ErrorBound(float(wide.min()), float(wide.max()))
    outs = analyse(p.kernel, sizes_of(p.kernel, p.arrays), inputs).outs
    runs = []
    for fill in (0, 1):
        arrays = p.fresh()
        for m, a in zip(p.kernel.parameters, arrays, strict=True):
            if m.writable:
                a[...] = fill
        interpret(p.kernel, arrays)
        runs.append(arrays)
    for m, a, b in zip(p.kernel.parameters, *runs, strict=True):
        if m.writable:
            x, y = a.astype(np.float64), b.astype(np.float64)
            x = x[(x == y) | (np.isnan(x) & np.isnan(y))]  # what was written in both runs
            bound = outs[m.name]
            assert bound.nan or not np.isnan(x).any(), (m, bound)
            x = x[~np.isnan(x)]
            assert np.all((x >= bound.lo) & (x <= bound.hi)), (m, bound, x)


# The decorator --------------------------------------------------------------------------------------


def rows(*shape: int) -> ts.Tensor:
    return ts.tensor(np.random.default_rng(6).standard_normal(shape).astype(np.float32))


def test_a_jitted_function_keeps_its_promise() -> None:
    @verify.numerics(stable=True, bounded=[-100, 100])
    @ts.jit(target="cpu")
    def f(x):
        return op.softmax(x, axis=-1)

    x = rows(3, 20)
    np.testing.assert_allclose(f(x).numpy().sum(-1), 1, rtol=1e-6)
    (v,) = f.report(x)
    assert v.is_proof
    assert "error of at most" in v.note


def test_a_broken_promise_raises_with_the_witness() -> None:
    @verify.numerics(stable=True, bounded=[-100, 100])
    @ts.jit(target="cpu")
    def f(x):
        e = op.exp(x)
        return e / op.sum(e, axis=-1, keepdims=True)

    with pytest.raises(NumericalError, match="exp in f32 overflows to infinity"):
        f(rows(3, 20))
    lax = verify.numerics(stable=False, bounded=[-100, 100])(f.function)
    assert np.isfinite(lax(rows(3, 20)).numpy()).all()
    assert not lax.report(rows(3, 20)).ok
    assert verify.numerics(bounded=[-10, 10])(f.function).report(rows(3, 20)).ok


def test_bounds_go_from_kernel_to_kernel() -> None:
    """A variance is not negative, so that its root is a number; a witness is one of the program."""

    def norm(x, eps):
        m, v = op.mean(x, 0, keepdims=True), op.var(x, 0, keepdims=True)
        return (x - m) / op.sqrt(v + eps)

    safe = verify.numerics(bounded=[-50, 50])(ts.jit(lambda x: norm(x, 1e-3), target="cpu"))
    assert all(v.is_proof for v in safe.report(rows(8, 6))), safe.report(rows(8, 6))
    bare = verify.numerics(bounded=[-50, 50])(ts.jit(lambda x: norm(x, 0.0), target="cpu"))
    assert not bare.report(rows(8, 6)).ok


def test_a_range_for_each_input() -> None:
    f = ts.jit(lambda x, y: x / y, target="cpu")
    apart = {"x": [-1, 1], "y": [1, 2]}
    assert verify.numerics(bounded=apart)(f).report(rows(2, 3), rows(2, 3))[0].is_proof
    assert not verify.numerics(bounded=[-1, 1])(f).report(rows(2, 3), rows(2, 3)).ok


def test_mistakes_in_the_decorator_are_told() -> None:
    with pytest.raises(OperandError, match=r"the bounds given are \[1\], expected \[low, high\]"):
        verify.numerics(bounded=[1])
    with pytest.raises(OperandError, match="expected a kernel or a jitted function"):
        verify.numerics()(lambda x: x)


# Exact arithmetic -----------------------------------------------------------------------------------

EXACT: dict[str, Callable[..., Fraction]] = {
    "add": lambda a, b: a + b, "sub": lambda a, b: a - b, "mul": lambda a, b: a * b,
    "div": lambda a, b: a / b, "fma": lambda a, b, c: a * b + c, "square": lambda a: a * a,
    "recip": lambda a: 1 / a,
}  # fmt: skip


@pytest.mark.parametrize("name", EXACT)
def test_the_exact_result_rounded_once_lies_within_the_bounds(name: str) -> None:
    """Of numbers that are known, so that no width of an interval hides what f64 loses."""
    rng, count = np.random.default_rng(6), 300
    xs = [
        rng.standard_normal(count) * 2.0 ** rng.integers(-40, 40, count)
        for _ in range(SCALARS[name].arity)
    ]
    if name == "fma":  # sums that cancel lose most
        xs[2][::2] = -(xs[0] * xs[1])[::2] * (1 + rng.integers(-2, 3, count)[::2] * 2.0**-52)
    zero = np.zeros(count)
    r = bounds_of(name, [Hull(x, x, zero, zero != 0, zero, zero) for x in xs])
    for i in range(count):
        y = float(EXACT[name](*(Fraction(float(x[i])) for x in xs)))
        assert r.lo[i] <= y <= r.hi[i], [x[i] for x in xs]
        assert r.hi[i] - r.lo[i] <= 2.0**-46 * sum(abs(x[i]) for x in xs[-1:]) + 2.0**-46 * abs(
            y
        ) + (2.0**-46 * abs(xs[0][i] * xs[1][i]) if name == "fma" else 0)


@pytest.mark.parametrize("dtype", [i8, i32, f32], ids=str)
def test_the_bounds_of_a_product_are_those_of_its_sums(dtype: DType) -> None:
    """Of whole numbers too, where no sum leaves the dtype."""
    b, out = Builder("product"), dtype if dtype.kind == "f" else i32
    x, w = b.parameter("x", TensorType(dtype, (2, 5))), b.parameter("w", TensorType(dtype, (5, 3)))
    y = b.parameter("y", TensorType(out, (2, 3)), writable=True)
    left, right = b.load(x, (0, 0), (2, 5)), b.load(w, (0, 0), (5, 3))
    acc = b.full(out, (2, 3), 1)
    b.store(y, b.dot(b.cast(left, out), b.cast(right, out), acc), (0, 0), (2, 3))
    found = analyse(b.finish(), {}, {"x": ErrorBound(-2, 3), "w": ErrorBound(-4, 1)}).outs["y"]
    assert found.lo == pytest.approx(1 - 5 * 12, rel=1e-5)
    assert found.hi == pytest.approx(1 + 5 * 8, rel=1e-5)


PLACES: dict[str, Callable[[int, int], float]] = {
    "all at the upper bound": lambda k, n: 1,
    "all at the lower bound": lambda k, n: 0,
    "alternating bounds": lambda k, n: (k % n + 1) % 2,
    "one at the upper bound, the rest at the lower": lambda k, n: k == 0,
    "the second half at the upper bound": lambda k, n: k % n >= n // 2,
    "all in the middle": lambda k, n: 0.5,
}


@pytest.mark.parametrize("shape", [(), (1,), (4,), (6,), (3, 4), (2, 2, 6), (3, 1)], ids=str)
def test_witnesses_are_sought_at_every_edge(shape: tuple[int, ...]) -> None:
    """Each pattern is what its name says, and all are within the bounds."""
    n = shape[-1] if shape else 1
    patterns = dict(
        edges([(shape, f32, -2.0, 6.0), (shape, f64, 0.5, 1e300), (shape, i8, -500, 3)])
    )
    assert len(patterns) == 10
    assert patterns.keys() >= PLACES.keys()
    for name, (x, wide, whole) in patterns.items():
        assert x.shape == wide.shape == whole.shape == shape, name
        assert (x.dtype, wide.dtype, whole.dtype) == (np.float32, np.float64, np.int8)
        assert ((x >= -2) & (x <= 6) & (wide >= 0.5) & (wide <= 1e300) & (whole <= 3)).all(), name
        if name in PLACES:
            want = [-2.0 + 8 * PLACES[name](k, n) for k in range(x.size)]
            np.testing.assert_array_equal(x.reshape(-1), np.array(want, np.float32), name)
    rows = patterns["rows of one number each"][0]
    assert np.ptp(rows.reshape(-1, n), axis=1).max() == 0
    assert rows.size == n or len(np.unique(rows)) > 1
    assert not patterns["all zero or the number next to it"][0].any()
    assert (patterns["all zero or the number next to it"][1] == 0.5).all()
    assert np.abs(patterns["tiny numbers"][0]).max() <= 1e-30
