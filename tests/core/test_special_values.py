"""NaN, infinities, signed zeros, subnormals, overflow, empty and tiny shapes: NumPy's rules.

Each elementwise op and each reduction is compared with the NumPy or SciPy function that documents
the behaviour: bit for bit where the result has no choice, otherwise (our own exp, sums of floats in our
own order) within the tolerance, and with the sign of zero.  pytest turns warnings into errors, so that a
warning that leaks from an op fails its test.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import scipy.special

import tessera as ts
from tessera.core.dtype import FORMATS, DType, as_dtype
from tessera.core.errors import ShapeError
from tessera.core.rounding import round_to
from tessera.ir.graph.interp import settled
from tessera.ir.graph.ir import REGISTRY
from tessera.ops.define import FUNCTIONS
from tests.support.cases.op_cases import all_cases, applications
from tests.support.runners.each import each
from tests.support.runners.loops import run_loops
from tests.support.runners.tolerance import assert_close, assert_same_bits

RUNS_ON = "numpy"


def floor_of_quotient(x: Any, y: Any) -> Any:
    """floor_divide of the array API: floor(x / y) at infinities too, where NumPy follows Python."""
    q = np.floor_divide(x, y)
    if q.dtype.kind != "f":
        return q
    return np.where(np.isinf(x) | np.isinf(y), np.floor(np.divide(x, y)), q)


def extreme(f: Callable[..., Any], negative: Callable[..., Any]) -> Callable[..., Any]:
    """IEEE 754-2019 maximum or minimum: NumPy's, but of two zeros the one with the right sign."""

    def run(x: Any, y: Any) -> Any:
        m = f(x, y)
        if m.dtype.kind != "f" and m.dtype.name != "bfloat16":
            return m
        zero = np.copysign(m.dtype.type(0), np.where(negative(np.signbit(x), np.signbit(y)), -1, 1))
        return np.where((x == 0) & (y == 0), zero, m).astype(m.dtype)

    return run


NUMPY: dict[str, Callable[..., Any]] = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide, "pow": np.power,
    "floor_divide": floor_of_quotient, "remainder": np.remainder, "fmod": np.fmod,
    "neg": np.negative, "positive": np.positive, "reciprocal": np.reciprocal, "square": np.square,
    "abs": np.abs, "sign": np.sign, "maximum": extreme(np.maximum, np.logical_and),
    "minimum": extreme(np.minimum, np.logical_or),
    "hypot": np.hypot, "copysign": np.copysign, "nextafter": lambda x,
    y: np.where(x == y, y, np.nextafter(x, y)),
    "logaddexp": np.logaddexp, "eq": np.equal, "ne": np.not_equal, "lt": np.less,
    "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal,
    "bitwise_and": np.bitwise_and, "bitwise_or": np.bitwise_or, "bitwise_xor": np.bitwise_xor,
    "bitwise_invert": np.invert, "bitwise_left_shift": np.left_shift,
    "bitwise_right_shift": np.right_shift, "logical_and": np.logical_and,
    "logical_or": np.logical_or, "logical_xor": np.logical_xor, "logical_not": np.logical_not,
    "floor": np.floor, "ceil": np.ceil, "trunc": np.trunc, "round": np.round,
    "exp": np.exp, "exp2": np.exp2, "expm1": np.expm1, "log": np.log, "log2": np.log2,
    "log10": np.log10, "log1p": np.log1p, "sqrt": np.sqrt, "cbrt": np.cbrt,
    "rsqrt": lambda x: 1 / np.sqrt(x), "sin": np.sin, "cos": np.cos, "tan": np.tan,
    "asin": np.arcsin, "acos": np.arccos, "atan": np.arctan, "atan2": np.arctan2, "sinh": np.sinh,
    "cosh": np.cosh, "tanh": np.tanh, "asinh": np.arcsinh, "acosh": np.arccosh,
    "atanh": np.arctanh, "isnan": np.isnan, "isinf": np.isinf, "isfinite": np.isfinite,
    "signbit": np.signbit, "real": np.real, "imag": np.imag, "conj": np.conj,
    "erf": scipy.special.erf, "erfc": scipy.special.erfc, "erfinv": scipy.special.erfinv,
    "erfcinv": scipy.special.erfcinv, "lgamma": scipy.special.gammaln,
    "gamma": scipy.special.gamma, "digamma": scipy.special.digamma, "sigmoid": scipy.special.expit,
    "complex": lambda re, im: re + 1j * im, "where": np.where,
    "clip": lambda x, low, high: np.minimum(np.maximum(x, low), high),
    "cast": lambda x: x, "stop_gradient": lambda x: x, "polygamma": scipy.special.polygamma,
}  # fmt: skip
# Values that agree within a few ulp: two implementations of one function.
TWO_IMPLEMENTATIONS = {"sigmoid"}
# The array API gives limits at infinity to these complex functions, NumPy does not.
COMPLEX_LIMITS = {"expm1", "tanh"}
PARAMETRISED = {"complex", "where", "clip", "cast", "stop_gradient", "polygamma"}


@contextmanager
def quiet() -> Iterator[None]:
    """NumPy itself may warn; only the ops under test may not."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        yield


def elementwise(name: str) -> bool:
    o = REGISTRY[name]
    return isinstance(o.signature, str) and set(o.signature) <= set("., ->")


PLAIN = sorted(n for n in NUMPY if n not in PARAMETRISED)
OTHERS = sorted(
    n for n in REGISTRY if elementwise(n) and n not in NUMPY and REGISTRY[n].body is not None
)


def special(dtype: DType) -> np.ndarray:
    """The values of a dtype at which something happens."""
    if dtype.kind == "b":
        return np.array([False, True])
    if dtype.kind in "iu":
        info = ml_dtypes.iinfo(dtype.np)
        low, high = int(info.min), int(info.max)
        some = [low, high, 0, 1, 2, 7, high - 1, low + 1]
        return np.array(some, dtype.compute.np).astype(dtype.np)
    info = ml_dtypes.finfo(dtype.real.np)
    tiny = [info.smallest_subnormal, info.smallest_normal, info.max, info.eps]
    x = np.array([0, 1, 0.5, 2, 2.5, 3, 1e3, np.inf, *tiny], dtype.real.np)
    x = np.concatenate([x, -x, np.array([np.nan], x.dtype)])
    if dtype.kind == "f":
        return x
    few = np.array([0.0, -0.0, 1, -2.5, np.inf, -np.inf, np.nan], x.dtype)
    z = np.empty((len(few), len(few)), dtype.np)
    z.real, z.imag = few[:, None], few[None, :]
    return z.ravel()


def grid(name: str, dtype: DType) -> list[np.ndarray]:
    """Every pair of special values, or the values themselves."""
    x = special(dtype)
    if FUNCTIONS[name].op.signature == "... -> ...":
        return [x]
    a, b = (np.ascontiguousarray(v.ravel()) for v in np.meshgrid(x, x, indexing="ij"))
    if name == "pow" and dtype.kind == "i":
        b = np.abs(b >> b.dtype.type(1))  # an integer to a negative power is refused
    if "shift" in name:
        b = np.tile(np.arange(dtype.bits, dtype=dtype.np), len(a))[: len(a)]
    return [a, b]


ELEMENTWISE = [(n, d) for n in PLAIN for d in FORMATS.values() if d.kind in REGISTRY[n].kinds]
OWN_FORMAT = {"nextafter"}  # about the numbers of the format itself, not of a wider one


def test_every_elementwise_op_has_a_counterpart() -> None:
    mine = {n for n, f in FUNCTIONS.items() if f.__module__ == "tessera.ops.elementwise"}
    assert sorted(mine - set(NUMPY)) == []


@each(ELEMENTWISE, by=lambda c: str(c[0]))
def test_elementwise_ops_follow_numpy(name: str, dtype: DType) -> None:
    xs = grid(name, dtype)
    got = FUNCTIONS[name](*map(ts.asarray, xs))
    wide = dtype if name in OWN_FORMAT else dtype.compute
    with quiet():
        want = NUMPY[name](*(x.astype(wide.np) for x in xs))
        want = round_to(want, got.dtype) if dtype.is_narrow else want
    if name in COMPLEX_LIMITS and dtype.kind == "c":
        inside = np.isfinite(xs[0])
        assert_close(np.asarray(got)[inside], want[inside])
    elif name in TWO_IMPLEMENTATIONS:
        assert_close(got, want)
    elif dtype.kind == "f" and not settled(REGISTRY[name], [ts.asarray(xs[0]).type], [got.type]):
        assert_near(got, want)
    else:
        assert_same_bits(got, want)


def assert_near(got: Any, want: Any) -> None:
    """Within the tolerance, and every zero has its sign."""
    assert_close(got, want)
    g, w = (np.asarray(x).astype(np.float64) for x in (got, want))
    zeros = w == 0
    np.testing.assert_array_equal(np.signbit(g[zeros]), np.signbit(w[zeros]))


@each(
    (
        (n, s)
        for n in PLAIN
        if "f" in REGISTRY[n].kinds
        for s in [(), (1,), (0,), (1, 0, 2), (1, 1)]
    ),
    by=lambda c: str(c[0]),
)
def test_elementwise_ops_keep_tiny_shapes(name: str, shape: tuple[int, ...]) -> None:
    count = len(grid(name, ts.f64))
    low, high = REGISTRY[name].domain
    x = np.full(shape, (low + high) / 2)
    with quiet():
        want = NUMPY[name](*[x] * count)
    got = FUNCTIONS[name](*[ts.asarray(x)] * count)
    assert got.shape == shape
    assert_close(got, want)


@pytest.mark.parametrize("name", OTHERS)
def test_other_elementwise_ops_follow_their_body(name: str) -> None:
    """Without a counterpart in NumPy: the reference is the scalar body, point by point."""
    case = next(c for c in all_cases() if c.op is REGISTRY[name] and c.slots)
    x = special(ts.f32)
    xs = [x if s.given is None else s.given for s in case.slots]
    if any(s.given is not None for s in case.slots):
        pytest.skip("its other operands are data of a fixed shape")
    for a in applications(case, xs):
        with np.errstate(all="ignore"):
            assert_close(run_loops(a.node, a.operands), a.results[0])
    case.run([ts.asarray(v) for v in xs])


# Ops with parameters


@pytest.mark.parametrize("dtype", [ts.f32, ts.f64, ts.i8, ts.u64], ids=str)
def test_clip_follows_numpy(dtype: DType) -> None:
    x = special(dtype)
    a, b, c = (np.ascontiguousarray(v.ravel()) for v in np.meshgrid(x, x[:8], x[:8]))
    with quiet():
        larger, smaller = NUMPY["maximum"], NUMPY["minimum"]
        assert_same_bits(ts.op.clip(a, b, c), smaller(larger(a, b), c))
        assert_same_bits(ts.op.clip(a, b), larger(a, b))
        assert_same_bits(ts.op.clip(a, max=b), smaller(a, b))


@pytest.mark.parametrize("dtype", FORMATS.values(), ids=str)
def test_where_moves_every_bit(dtype: DType) -> None:
    with quiet():
        x = special(dtype if not dtype.is_narrow else ts.f32).astype(dtype.np)
    keep = np.arange(len(x)) % 2 == 0
    got = ts.op.where(keep, ts.asarray(x), ts.asarray(x[::-1].copy()))
    assert_same_bits(got, np.where(keep, x, x[::-1]))


@pytest.mark.parametrize("to", ["f64", "f32", "c64", "c128", "bool"])
@pytest.mark.parametrize("dtype", [ts.f64, ts.f32, ts.i8, ts.i64, ts.u64, ts.bool_], ids=str)
def test_cast_follows_numpy(dtype: DType, to: str) -> None:
    x = special(dtype)
    with quiet():
        assert_same_bits(ts.op.cast(ts.asarray(x), to), x.astype(as_dtype(to).np))


def test_cast_to_an_integer_clamps() -> None:
    """Where NumPy leaves the result undefined: NaN is 0 and the rest goes to the nearest end."""
    x = np.array([np.nan, np.inf, -np.inf, -0.0, 300.5, -300.5])
    np.testing.assert_array_equal(ts.op.cast(x, "i8"), [0, 127, -128, 0, 127, -128])
    np.testing.assert_array_equal(ts.op.cast(x, "u8"), [0, 255, 0, 0, 255, 0])


def test_complex_keeps_its_parts() -> None:
    x = special(ts.f64)
    z = ts.op.complex(x, x[::-1].copy())
    assert_same_bits(ts.op.real(z), x)
    assert_same_bits(ts.op.imag(z), x[::-1].copy())


@pytest.mark.parametrize("order", [1, 2, 3])
def test_polygamma_follows_scipy(order: int) -> None:
    x = special(ts.f64)
    with quiet():
        assert_same_bits(ts.op.polygamma(order, x), scipy.special.polygamma(order, x))


# Reductions --------------------------------------------------------------------------------------


def _argmax(x: Any, axis: Any = None, keepdims: bool = False) -> Any:
    return np.argmax(x, axis, keepdims=keepdims)


def _argmin(x: Any, axis: Any = None, keepdims: bool = False) -> Any:
    return np.argmin(x, axis, keepdims=keepdims)


REDUCTIONS: dict[str, Callable[..., Any]] = {
    "sum": np.sum, "prod": np.prod, "max": np.max, "min": np.min, "all": np.all, "any": np.any,
    "mean": np.mean, "var": np.var, "std": np.std, "logsumexp": np.logaddexp.reduce,
    "l2norm": lambda x, axis=None, keepdims=False: np.sqrt(
        np.sum(np.abs(x) ** 2, axis=axis, keepdims=keepdims)
    ),
    "count_nonzero": np.count_nonzero, "argmax": _argmax, "argmin": _argmin,
}  # fmt: skip
ONE_AXIS = {"argmax", "argmin"}
TAKES_INTEGERS = ["sum", "prod", "max", "min", "all", "any", "count_nonzero", "argmax", "argmin"]

_NAN, _INF = float("nan"), float("inf")
ROWS = np.array(
    [
        [1.0, _NAN, 2.0], [_INF, -_INF, 0.0], [-_INF, -_INF, -_INF], [_INF, 1.0, _INF],
        [-0.0, -0.0, -0.0], [0.0, -0.0, 0.0], [5e-324, 5e-324, -5e-324], [1e308, 1e308, 1e308],
        [-1.0, 3.0, -1.0], [_NAN, _NAN, _INF],
    ]
)  # fmt: skip
every_reduction = pytest.mark.parametrize("name", REDUCTIONS)


def check_reduction(name: str, x: np.ndarray, **how: Any) -> None:
    got = getattr(ts.op, name)(ts.asarray(x), **how)
    with quiet():
        want = np.asarray(REDUCTIONS[name](x, **how))
    if name in ("max", "min"):  # of zeros of both signs NumPy gives either one
        np.testing.assert_array_equal(got, want)
    elif name in ("sum", "prod") and x.dtype.kind == "f":
        assert_near(got, want)
    elif name in ("sum", "prod", "all", "any", "argmax", "argmin", "count_nonzero"):
        assert_same_bits(got, want)
    else:
        assert_close(got, want)


@every_reduction
@pytest.mark.parametrize("dtype", ["f64", "f32"])
def test_reductions_of_special_values_follow_numpy(name: str, dtype: str) -> None:
    with quiet():
        x = ROWS.astype(dtype.replace("f", "float"))
    for axis in (1, 0):
        check_reduction(name, x, axis=axis)
    for row in x:
        check_reduction(name, row)


SHAPES = [(), (1,), (1, 1), (1, 3), (0,), (0, 3), (3, 0), (2, 0, 3)]


@every_reduction
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_reductions_of_tiny_and_empty_shapes_follow_numpy(
    name: str, shape: tuple[int, ...]
) -> None:
    x = np.random.default_rng(0).normal(size=shape)
    axes: list[Any] = [
        None,
        *range(len(shape)),
        *(() if name in ONE_AXIS else [tuple(range(len(shape)))]),
    ]
    for axis in axes:
        for keepdims in (False, True):
            how = {"axis": axis, "keepdims": keepdims}
            error = refusal(name, x, how)
            if error is None:
                check_reduction(name, x, **how)
                continue
            with pytest.raises(ShapeError, match=f"^{name}: .* has no elements along axis"):
                getattr(ts.op, name)(ts.asarray(x), **how)


def refusal(name: str, x: np.ndarray, how: dict[str, Any]) -> ValueError | None:
    """The error with which NumPy refuses an extreme of nothing."""
    try:
        with quiet():
            REDUCTIONS[name](x, **how)
    except ValueError as e:
        return e
    return None


@pytest.mark.parametrize("name", ["sum", "prod", "max", "min", "all", "any"])
def test_no_axes_is_the_elements(name: str) -> None:
    check_reduction(name, np.array([[1.0, 0.0], [3.0, -2.0]]), axis=())


@pytest.mark.parametrize("name", TAKES_INTEGERS)
@pytest.mark.parametrize(
    "dtype", [d for d in FORMATS.values() if d.kind in "biu" and d.bits > 4], ids=str
)
def test_reductions_of_integers_wrap_as_in_numpy(name: str, dtype: DType) -> None:
    x = np.concatenate([special(dtype)] * 3)
    check_reduction(name, x)
    check_reduction(name, x.reshape(3, -1), axis=0)


@pytest.mark.parametrize("name", ["sum", "prod", "mean", "var", "std", "count_nonzero", "l2norm"])
def test_reductions_of_complex_values_follow_numpy(name: str) -> None:
    z = np.array([[1 + 2j, -1j, 3], [_NAN, 1j, 2], [0j, 0j, 0j]])
    check_reduction(name, z, axis=1)
    check_reduction(name, z[:0], axis=1)


@pytest.mark.parametrize("dtype", [ts.f32, ts.f64, ts.bf16, ts.f8e4m3], ids=str)
def test_the_slope_of_clip_is_one_at_its_ends(dtype: DType) -> None:
    """As in PyTorch, with one end or two; jax.numpy.clip shares it between x and the end."""
    x = ts.tensor([0.0, 1.0, 1.5, 2.0, 3.0], dtype=dtype)
    ends = [(1.0, 2.0), (1.0, None), (None, 2.0)]
    for low, high in ends:
        inside = [(low is None or v >= low) and (high is None or v <= high) for v in x.tolist()]
        for f in (
            ts.grad(lambda v, a=low, b=high: ts.op.sum(ts.op.clip(v, a, b))),
            ts.jit(ts.grad(lambda v, a=low, b=high: ts.op.sum(ts.op.clip(v, a, b)))),
        ):
            assert f(x).tolist() == inside
    end = ts.tensor(1.0, dtype=dtype)
    assert ts.grad(lambda e: ts.op.sum(ts.op.clip(x, e)))(end).item() == 1
    assert ts.grad(lambda e: ts.op.sum(ts.op.clip(x, max=e)))(end).item() == 3


def test_the_slope_of_clip_belongs_to_max_where_min_is_above_it() -> None:
    f = ts.op.clip
    for x, low, high in ((0.0, 0.25, 0.0), (1.0, 0.5, 0.25), (0.3, 0.5, 0.25), (0.1, 0.5, 0.25)):
        point = [ts.tensor([v], dtype=ts.f64) for v in (x, low, high)]
        got = ts.grad(lambda *p: ts.op.sum(f(*p)), (0, 1, 2))(*point)
        assert [float(g[0]) for g in got] == [0.0, 0.0, 1.0]
