"""Every op that JAX has too, on the samples of its record: values and gradients.

Each entry of the tables takes the arguments of our own function, so that a sample is a call of both.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera.core.dtype import DType, as_dtype
from tessera.ir.graph.ir import Value
from tests.support.cases.op_cases import Case, all_cases
from tests.support.runners.tolerance import TOLERANCE, assert_close

RUNS_ON = "numpy"

jax = pytest.importorskip("jax")
jnp, nn, lax, jsp = jax.numpy, jax.nn, jax.lax, jax.scipy.special
pytestmark = pytest.mark.oracle


@pytest.fixture(autouse=True)
def _double_precision() -> Any:
    jax.config.update("jax_enable_x64", True)
    yield
    jax.config.update("jax_enable_x64", False)


def _whole(name: str) -> Callable[..., Any]:
    """A rounding that leaves integers alone."""
    f = getattr(jnp, name)
    return lambda x: f(x) if x.dtype.kind == "f" else x


def _running(f: Callable[..., Any], plain: bool = True) -> Callable[..., Any]:
    """A fold along an axis, of all elements unless given, possibly from the end."""

    def run(x: Any, axis: int | None = None, reverse: bool = False) -> Any:
        x, k = (x.reshape(-1), 0) if axis is None else (x, axis % x.ndim)
        y = jnp.flip(x, k) if reverse and plain else x
        out = f(y, k) if plain else f(y, axis=k, reverse=reverse)
        return jnp.flip(out, k) if reverse and plain else out

    return run


def _by(f: Callable[..., Any]) -> Callable[..., Any]:
    return lambda x, axis=-1, descending=False, stable=True: f(
        x, axis=axis, descending=descending, stable=stable
    )


def _layernorm(
    x: Any, gain: Any = None, bias: Any = None, axis: Any = -1, eps: float = 1e-5
) -> Any:
    centred = x - jnp.mean(x, axis, keepdims=True)
    y = centred * lax.rsqrt(jnp.mean(centred**2, axis, keepdims=True) + eps)
    y = y if gain is None else y * gain
    return y if bias is None else y + bias


def _rmsnorm(x: Any, gain: Any = None, axis: Any = -1, eps: float = 1e-6) -> Any:
    y = x * lax.rsqrt(jnp.mean(x * x, axis, keepdims=True) + eps)
    return y if gain is None else y * gain


def _scatter(how: str) -> Callable[..., Any]:
    def run(x: Any, value: Any, *indices: Any, axes: Any = None) -> Any:
        axes = range(len(indices)) if axes is None else axes
        key = [slice(None)] * x.ndim
        for a, i in zip(axes, indices, strict=True):
            key[a] = i
        return getattr(x.at[tuple(key)], how)(value)

    return run


def _gather(x: Any, *indices: Any, axes: Any = None) -> Any:
    """Index arrays on the axes; the axes that they make come first."""
    axes = range(len(indices)) if axes is None else axes
    rest = [a for a in range(x.ndim) if a not in axes]
    return jnp.transpose(x, [*axes, *rest])[tuple(indices)]


def _fft(name: str) -> Callable[..., Any]:
    return getattr(jnp.fft, name)


ELEMENTWISE: dict[str, Callable[..., Any]] = {
    "add": jnp.add, "sub": jnp.subtract, "mul": jnp.multiply, "div": jnp.divide, "pow": jnp.power,
    "floor_divide": jnp.floor_divide, "remainder": jnp.remainder, "fmod": jnp.fmod,
    "neg": jnp.negative, "positive": jnp.positive, "reciprocal": lambda x: 1 / x,
    "square": jnp.square, "abs": jnp.abs, "sign": jnp.sign, "maximum": jnp.maximum,
    "minimum": jnp.minimum, "hypot": jnp.hypot, "copysign": jnp.copysign,
    "nextafter": jnp.nextafter, "logaddexp": jnp.logaddexp, "eq": jnp.equal, "ne": jnp.not_equal,
    "lt": jnp.less, "le": jnp.less_equal, "gt": jnp.greater, "ge": jnp.greater_equal,
    "bitwise_and": jnp.bitwise_and, "bitwise_or": jnp.bitwise_or, "bitwise_xor": jnp.bitwise_xor,
    "bitwise_invert": jnp.bitwise_not, "bitwise_left_shift": jnp.left_shift,
    "bitwise_right_shift": jnp.right_shift, "logical_and": jnp.logical_and,
    "logical_or": jnp.logical_or, "logical_xor": jnp.logical_xor, "logical_not": jnp.logical_not,
    "floor": _whole("floor"), "ceil": _whole("ceil"), "trunc": _whole("trunc"),
    "round": _whole("round"), "exp": jnp.exp, "exp2": jnp.exp2, "expm1": jnp.expm1, "log": jnp.log,
    "log2": jnp.log2, "log10": jnp.log10, "log1p": jnp.log1p, "sqrt": jnp.sqrt, "cbrt": jnp.cbrt,
    "rsqrt": lambda x: lax.rsqrt(x * 1.0), "sin": jnp.sin, "cos": jnp.cos, "tan": jnp.tan, "asin": jnp.arcsin,
    "acos": jnp.arccos, "atan": jnp.arctan, "atan2": jnp.arctan2, "sinh": jnp.sinh,
    "cosh": jnp.cosh, "tanh": jnp.tanh, "asinh": jnp.arcsinh, "acosh": jnp.arccosh,
    "atanh": jnp.arctanh, "sigmoid": nn.sigmoid, "erf": jsp.erf, "erfc": jsp.erfc,
    "erfinv": jsp.erfinv, "lgamma": jsp.gammaln, "elementwise.gamma": jsp.gamma,
    "digamma": jsp.digamma, "polygamma": jsp.polygamma,
    "isnan": jnp.isnan, "isinf": jnp.isinf, "isfinite": jnp.isfinite, "signbit": jnp.signbit,
    "real": jnp.real, "imag": jnp.imag, "conj": jnp.conj, "complex": lax.complex,
    "where": jnp.where, "clip": jnp.clip,
}  # fmt: skip
REDUCTIONS: dict[str, Callable[..., Any]] = {
    "sum": jnp.sum, "prod": jnp.prod, "max": jnp.max, "min": jnp.min, "all": jnp.all,
    "any": jnp.any, "mean": jnp.mean, "argmax": jnp.argmax, "argmin": jnp.argmin,
    "var": lambda x, axis=None, correction=0, keepdims=False: jnp.var(
        x, axis, ddof=correction, keepdims=keepdims
    ),
    "std": lambda x, axis=None, correction=0, keepdims=False: jnp.std(
        x, axis, ddof=correction, keepdims=keepdims
    ),
    "logsumexp": nn.logsumexp, "count_nonzero": jnp.count_nonzero,
    "cumsum": _running(jnp.cumsum), "cumprod": _running(jnp.cumprod),
    "cummax": _running(lax.cummax, plain=False), "cummin": _running(lax.cummin, plain=False),
    "logcumsumexp": _running(lax.cumlogsumexp, plain=False),
}  # fmt: skip
SHAPES: dict[str, Callable[..., Any]] = {
    "broadcast_to": jnp.broadcast_to, "reshape": jnp.reshape, "expand_dims": lambda x,
    axis=0: jnp.expand_dims(x, axis),
    "squeeze": jnp.squeeze, "transpose": jnp.transpose, "matrix_transpose": jnp.matrix_transpose,
    "swapaxes": jnp.swapaxes, "moveaxis": jnp.moveaxis, "flip": jnp.flip, "slice_": lax.slice,
    "concat": jnp.concatenate, "stack": jnp.stack, "roll": jnp.roll, "tile": jnp.tile,
    "repeat": lambda x, repeats, axis=None: jnp.repeat(x, np.asarray(repeats), axis),
    "rot90": jnp.rot90, "tril": jnp.tril, "triu": jnp.triu, "unstack": jnp.unstack,
    "pad": lambda x, width, value=0: jnp.pad(x, width, constant_values=value),
    "diagonal": lambda x, offset=0, axis1=-2, axis2=-1: jnp.diagonal(x, offset, axis1, axis2),
    "trace": lambda x, offset=0: jnp.trace(x, offset, -2, -1), "diff": lambda x, n=1, axis=-1,
    **k: jnp.diff(x, n, axis, **k),
    "take": jnp.take, "take_along_axis": jnp.take_along_axis, "index": lambda x, key: x[key],
    "gather": _gather, "scatter_add": _scatter("add"), "scatter_max": _scatter("max"),
    "scatter_min": _scatter("min"), "embedding": lambda table, ids: table[ids],
    "dynamic_slice": lambda x, start, sizes: lax.dynamic_slice(x, np.clip(start, 0, None), sizes),
    "dynamic_update_slice": lambda x, value, start: lax.dynamic_update_slice(x, value, start),
    "one_hot": lambda i, size, dtype=None, axis=-1: nn.one_hot(i, size, axis=axis),
    "meshgrid": jnp.meshgrid, "broadcast_arrays": jnp.broadcast_arrays, "isin": jnp.isin,
    "searchsorted": jnp.searchsorted, "sort": _by(jnp.sort), "argsort": _by(jnp.argsort),
    "linspace": lambda start, stop, num, endpoint=True: jnp.linspace(start, stop, num, endpoint),
    "arange": jnp.arange, "cross": jnp.cross,
}  # fmt: skip
ALGEBRA: dict[str, Callable[..., Any]] = {
    "matmul": jnp.matmul, "einsum": jnp.einsum, "vecdot": jnp.vecdot, "tensordot": jnp.tensordot,
    "outer": jnp.outer, "kron": jnp.kron, "det": jnp.linalg.det, "inv": jnp.linalg.inv,
    "pinv": jnp.linalg.pinv, "solve": jnp.linalg.solve, "slogdet": jnp.linalg.slogdet,
    "cholesky": lambda x, upper=False: jnp.linalg.cholesky(x, upper=upper),
    "eigvalsh": jnp.linalg.eigvalsh, "svdvals": jnp.linalg.svdvals, "expm": jax.scipy.linalg.expm,
    "matrix_power": jnp.linalg.matrix_power, "matrix_rank": jnp.linalg.matrix_rank,
    "matrix_norm": lambda x, ord="fro", keepdims=False: jnp.linalg.matrix_norm(x, ord=ord, keepdims=keepdims),
    "vector_norm": lambda x, ord=2, axis=None,
    keepdims=False: jnp.linalg.vector_norm(x, ord=ord, axis=axis, keepdims=keepdims),
    **{n: _fft(n) for n in ("fft", "ifft", "rfft", "irfft", "fft2", "ifft2", "fftn", "ifftn", "rfftn",
                            "irfftn", "hfft", "ihfft", "fftshift", "ifftshift")},
}  # fmt: skip
NEURAL: dict[str, Callable[..., Any]] = {
    "relu": nn.relu, "relu6": nn.relu6, "silu": nn.silu, "softsign": nn.soft_sign,
    "log_sigmoid": nn.log_sigmoid, "hardsigmoid": nn.hard_sigmoid, "hardswish": nn.hard_swish,
    "mish": nn.mish, "selu": nn.selu, "glu": nn.glu, "softmax": nn.softmax,
    "log_softmax": nn.log_softmax, "layernorm": _layernorm, "rmsnorm": _rmsnorm,
    "layernorm_safe": _layernorm, "rmsnorm_safe": _rmsnorm,
    "mse": lambda x, y, reduction="mean": getattr(jnp, reduction)((x - y) ** 2),
    "mae": lambda x, y, reduction="mean": getattr(jnp, reduction)(jnp.abs(x - y)),
}  # fmt: skip
JAX = {k: f for t in (ELEMENTWISE, REDUCTIONS, SHAPES, ALGEBRA, NEURAL) for k, f in t.items()}

NOT_OF_BOOLS = {"cummax", "cummin"}  # JAX takes numbers only
NO_GRADIENT = {"nextafter"}  # JAX has no rule


def _dtypes(case: Case, first: bool) -> list[DType]:
    """f64 for every case; the first case of a record in the other dtypes that all operands take."""
    drawn = [s for s in case.slots if s.given is None]
    if case.op is None or not drawn or not first:
        return [ts.f64]
    others = [ts.f32, ts.i32] if case.name in NOT_OF_BOOLS else [ts.f32, ts.i32, ts.bool_]
    return [d for d in (ts.f64, *others) if all(d.kind in s.kinds for s in drawn)]


def _cases() -> list[tuple[Case, DType]]:
    """Three cases of each function: JAX compiles anew for every shape."""
    count: dict[str, int] = {}
    found = []
    for c in all_cases():
        n = count[c.name] = count.get(c.name, 0) + 1
        if c.name in JAX and n <= 3:
            found += [(c, d) for d in _dtypes(c, n == 1)]
    return found


CASES = _cases()


def _theirs(case: Case, xs: Any) -> list[Any]:
    mine = Case(case.name, JAX[case.name], None, case.args, case.kwargs, case.label, case.slots)
    return jax.tree.leaves(mine.call(xs))


def _ours(case: Case, xs: Any) -> list[Value]:
    return case.run([ts.asarray(x) for x in xs])


@pytest.mark.parametrize(("case", "dtype"), [pytest.param(c, d, id=f"{c}-{d}") for c, d in CASES])
def test_values_are_those_of_jax(case: Case, dtype: DType) -> None:
    xs = case.draw(dtype)
    ours, theirs = _ours(case, xs), _theirs(case, [jnp.asarray(x) for x in xs])
    for y, want in zip(ours, theirs, strict=True):
        width = dtype if y.dtype.kind in "fc" and dtype.kind == "f" else y.dtype
        assert_close(np.asarray(y), np.asarray(want), TOLERANCE[as_dtype(width).name], times=20)


def _smooth() -> list[Case]:
    """The first case of each function that has floating-point elements."""
    found: dict[str, Case] = {}
    for c, d in CASES:
        floats = [x for x in c.draw() if x.dtype.kind == "f"]
        if d is ts.f64 and floats and all(x.size for x in floats) and c.name not in NO_GRADIENT:
            found.setdefault(c.name, c)
    return list(found.values())


@pytest.mark.parametrize("case", _smooth(), ids=str)
def test_gradients_are_those_of_jax(case: Case) -> None:
    """The cotangents of the floating-point operands for one cotangent of the floating results."""
    xs = case.draw()
    floats = [i for i, x in enumerate(xs) if x.dtype.kind == "f"]
    rng = np.random.default_rng(0)

    def with_floats(run: Any, given: Any, wrap: Any, kinds: Any) -> Any:
        full = [wrap(x) for x in xs]
        for i, x in zip(floats, given, strict=True):
            full[i] = x
        return [y for y in run(case, full) if kinds(y)]

    point = [xs[i] for i in floats]
    ours, back = ts.vjp(
        lambda *a: with_floats(lambda c, v: c.run(v), a, ts.asarray, lambda y: y.dtype.kind == "f"),
        *point,
    )
    theirs, jax_back = jax.vjp(
        lambda *a: with_floats(_theirs, a, jnp.asarray, lambda y: y.dtype.kind == "f"),
        *map(jnp.asarray, point),
    )
    cts = [rng.normal(size=y.shape) for y in ours]
    got = back([ts.asarray(c).astype(y.dtype) for c, y in zip(cts, ours, strict=True)])
    want = jax_back([jnp.asarray(c, y.dtype) for c, y in zip(cts, theirs, strict=True)])
    for g, w in zip(got, want, strict=True):
        assert_close(np.asarray(g), np.asarray(w), TOLERANCE["f64"], times=1e3)
