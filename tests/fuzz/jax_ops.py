"""The functions of the catalogue in jax.numpy, under Tessera's names: a program's text runs with this `op`.

Only what JAX has with the same meaning is here; programs against JAX are drawn of these names alone.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.scipy import special

jax.config.update("jax_enable_x64", True)

Function = Callable[..., Any]


class Absent(Exception):
    """JAX has no such form of a function."""


DTYPES = {
    "bool_": jnp.bool_, "i4": jnp.int4, "u4": jnp.uint4, "i8": jnp.int8, "i16": jnp.int16, "i32": jnp.int32,
    "i64": jnp.int64, "u8": jnp.uint8,
    "u16": jnp.uint16, "u32": jnp.uint32, "u64": jnp.uint64, "f16": jnp.float16, "bf16": jnp.bfloat16,
    "f8e4m3": jnp.float8_e4m3fn, "f8e5m2": jnp.float8_e5m2,
    "f32": jnp.float32, "f64": jnp.float64, "c64": jnp.complex64, "c128": jnp.complex128,
}  # fmt: skip


def _sign(x: Any) -> Any:
    """jnp.sign, whose slope at complex numbers is 0: here by its definition."""
    if not jnp.iscomplexobj(x):
        return jnp.sign(x)
    zero = x == 0
    return jnp.where(zero, 0, x / jnp.abs(jnp.where(zero, 1, x)))


def _flat_at_zero(f: Function, x: Any, *rest: Any) -> Any:
    """f with a slope of 0 at real zeros, where JAX takes that from the right."""
    y = f(x, *rest)
    if jnp.iscomplexobj(x) or not jnp.issubdtype(y.dtype, jnp.floating):
        return y
    return jnp.where(x == 0, lax.stop_gradient(y), y)


def _whole(x: Any) -> Any:
    """Numbers of 4 bits as ones of 8, which NumPy knows the limits of."""
    wider = {"int4": jnp.int8, "uint4": jnp.uint8}.get(jnp.asarray(x).dtype.name)
    return x if wider is None else jnp.asarray(x).astype(wider)


_UNARY = {
    "abs": lambda x: _flat_at_zero(jnp.abs, x),
    "acos": jnp.arccos, "acosh": jnp.arccosh, "asin": jnp.arcsin, "asinh": jnp.arcsinh,
    "atan": jnp.arctan, "atanh": jnp.arctanh, "bitwise_invert": jnp.invert, "cbrt": jnp.cbrt,
    "ceil": jnp.ceil,
    "conj": jnp.conj, "cos": jnp.cos, "cosh": jnp.cosh, "digamma": special.digamma, "gamma": special.gamma,
    "erf": special.erf, "erfc": special.erfc, "erfinv": special.erfinv, "exp": jnp.exp, "exp2": jnp.exp2,
    "expm1": jnp.expm1, "floor": jnp.floor, "hardsigmoid": jax.nn.hard_sigmoid,
    "hardswish": jax.nn.hard_swish,
    "isfinite": jnp.isfinite, "isinf": jnp.isinf, "isnan": jnp.isnan, "lgamma": special.gammaln,
    "log": jnp.log,
    "log10": jnp.log10, "log1p": jnp.log1p, "log2": jnp.log2, "log_sigmoid": jax.nn.log_sigmoid,
    "logical_not": jnp.logical_not, "mish": jax.nn.mish, "neg": jnp.negative, "positive": jnp.positive,
    "real": jnp.real, "imag": jnp.imag, "reciprocal": jnp.reciprocal, "relu": jax.nn.relu,
    "relu6": jax.nn.relu6,
    "round": jnp.round, "rsqrt": lax.rsqrt, "selu": jax.nn.selu, "sigmoid": jax.nn.sigmoid, "sign": _sign,
    "signbit": jnp.signbit, "silu": jax.nn.silu, "sin": jnp.sin, "sinh": jnp.sinh,
    "softsign": jax.nn.soft_sign,
    "sqrt": jnp.sqrt, "square": jnp.square, "tan": jnp.tan, "tanh": jnp.tanh, "trunc": jnp.trunc,
    "tanhshrink": lambda x: x - jnp.tanh(x), "stop_gradient": lax.stop_gradient, "barrier": lambda x: (x,),
}  # fmt: skip
_BINARY = {
    "add": jnp.add, "sub": jnp.subtract, "mul": jnp.multiply, "div": jnp.divide, "pow": jnp.power,
    "atan2": jnp.arctan2, "bitwise_and": jnp.bitwise_and, "bitwise_or": jnp.bitwise_or,
    "bitwise_xor": jnp.bitwise_xor, "bitwise_left_shift": jnp.left_shift,
    "bitwise_right_shift": jnp.right_shift,
    "copysign": lambda x, y: _flat_at_zero(jnp.copysign, x, y),
    "eq": jnp.equal, "ne": jnp.not_equal,
    "ge": jnp.greater_equal, "gt": jnp.greater, "le": jnp.less_equal, "lt": jnp.less, "hypot": jnp.hypot,
    "floor_divide": jnp.floor_divide, "fmod": jnp.fmod, "remainder": jnp.remainder,
    "logaddexp": jnp.logaddexp, "logical_and": jnp.logical_and, "logical_or": jnp.logical_or,
    "logical_xor": jnp.logical_xor, "maximum": jnp.maximum, "minimum": jnp.minimum,
}  # fmt: skip
_WITH_NUMBERS = {
    "celu": lambda x, alpha=1.0: jax.nn.celu(x, alpha), "elu": lambda x, alpha=1.0: jax.nn.elu(x, alpha),
    "gelu": lambda x, approximate="none": jax.nn.gelu(x, approximate=approximate == "tanh"),
    "leaky_relu": lambda x, slope=0.01: jax.nn.leaky_relu(x, slope),
    "softplus": lambda x, beta=1.0: jax.nn.softplus(x * beta) / beta,
    "swish": lambda x, beta=1.0: x * jax.nn.sigmoid(beta * x),
    "hardtanh": lambda x, low=-1.0, high=1.0: jnp.clip(x, low, high),
    "clip": lambda x, min=None, max=None: jnp.clip(x, min, max),
    "polygamma": lambda order, x: special.polygamma(order, x) if order else special.digamma(x),
    "cast": lambda x, dtype: x.astype(dtype), "where": jnp.where,
}  # fmt: skip


def _var(x: Any, axis: Any = None, correction: float = 0.0, keepdims: bool = False) -> Any:
    return jnp.var(x, axis, correction=correction, keepdims=keepdims)


def _std(x: Any, axis: Any = None, correction: float = 0.0, keepdims: bool = False) -> Any:
    return jnp.std(x, axis, correction=correction, keepdims=keepdims)


_FOLDS = {
    "sum": lambda x, axis=None, keepdims=False: jnp.sum(_whole(x), axis, keepdims=keepdims),
    "prod": lambda x, axis=None, keepdims=False: jnp.prod(_whole(x), axis, keepdims=keepdims),
    "max": lambda x, axis=None, keepdims=False: jnp.max(x, axis, keepdims=keepdims),
    "min": lambda x, axis=None, keepdims=False: jnp.min(x, axis, keepdims=keepdims),
    "mean": lambda x, axis=None, keepdims=False: jnp.mean(x, axis, keepdims=keepdims),
    "any": lambda x, axis=None, keepdims=False: jnp.any(x, axis, keepdims=keepdims),
    "all": lambda x, axis=None, keepdims=False: jnp.all(x, axis, keepdims=keepdims),
    "logsumexp": lambda x, axis=None, keepdims=False: special.logsumexp(x, axis, keepdims=keepdims),
    "var": _var, "std": _std,
    "argmax": lambda x, axis=None, keepdims=False: jnp.argmax(x, axis, keepdims=keepdims),
    "argmin": lambda x, axis=None, keepdims=False: jnp.argmin(x, axis, keepdims=keepdims),
    "sort": lambda x, axis=-1, descending=False, stable=True: jnp.sort(x, axis, descending=descending),
    "argsort": lambda x, axis=-1, descending=False, stable=True: jnp.argsort(x, axis, descending=descending),
    "count_nonzero": lambda x, axis=None, keepdims=False: jnp.count_nonzero(x, axis, keepdims=keepdims),
}  # fmt: skip


def _scan_of(f: Function) -> Function:
    def run(x: Any, axis: Any = None, reverse: bool = False) -> Any:
        if axis is None:
            x, axis = (x.reshape(-1), 0)
        if x.dtype == bool:
            raise Absent("scans of booleans")
        if x.dtype.kind in "iu" and f in (lax.cumsum, lax.cumprod):  # wide, as in NumPy
            x = x.astype(jnp.int64 if x.dtype.kind == "i" else jnp.uint64)
        return f(x, axis % x.ndim, reverse=reverse)

    return run


def _recurrence(a: Any, b: Any, axis: int = -1, reverse: bool = False) -> Any:
    a, b = jnp.broadcast_arrays(a, b)
    a, b = jnp.moveaxis(a, axis, 0), jnp.moveaxis(b, axis, 0)

    def step(c: Any, t: Any) -> Any:
        y = t[0] * c + t[1]
        return y, y

    ys = lax.scan(step, jnp.zeros_like(b[0]), (a, b), reverse=reverse)[1] if len(b) else b
    return jnp.moveaxis(ys, 0, axis)


_SCANS = {
    "cumsum": _scan_of(lax.cumsum), "cumprod": _scan_of(lax.cumprod), "cummax": _scan_of(lax.cummax),
    "cummin": _scan_of(lax.cummin), "logcumsumexp": _scan_of(lax.cumlogsumexp),
    "linear_recurrence": _recurrence,
    "diff": lambda x, n=1, axis=-1: jnp.diff(x, n=n, axis=axis),
}  # fmt: skip


def _slice(x: Any, start: Any, stop: Any, step: Any = None) -> Any:
    return lax.slice(x, start, stop, step)


def _pad(x: Any, width: Any, value: Any = 0, mode: str = "constant") -> Any:
    return jnp.pad(x, width, mode, **({"constant_values": value} if mode == "constant" else {}))


def _repeat(x: Any, repeats: Any, axis: int | None = None) -> Any:
    return jnp.repeat(x, np.asarray(repeats) if isinstance(repeats, list) else repeats, axis=axis)


def _frame(x: Any, size: int, hop: int) -> Any:
    places = np.arange((x.shape[-1] - size) // hop + 1)[:, None] * hop + np.arange(size)
    return x[..., places]


def _windows(x: Any, size: int, stride: int = 1, dilation: int = 1) -> Any:
    reach = (size - 1) * dilation + 1
    places = (
        np.arange((x.shape[-1] - reach) // stride + 1)[:, None] * stride
        + np.arange(size) * dilation
    )
    return x[..., places]


def _matrix_diag(x: Any, offset: int = 0) -> Any:
    n = x.shape[-1] + abs(offset)
    i = np.arange(x.shape[-1])
    return (
        jnp.zeros((*x.shape[:-1], n, n), x.dtype)
        .at[..., i + max(-offset, 0), i + max(offset, 0)]
        .set(x)
    )


_SHAPES = {
    "reshape": jnp.reshape, "transpose": jnp.transpose, "swapaxes": jnp.swapaxes, "moveaxis": jnp.moveaxis,
    "matrix_transpose": lambda x: jnp.swapaxes(x, -1, -2), "expand_dims": jnp.expand_dims,
    "squeeze": jnp.squeeze, "broadcast_to": jnp.broadcast_to, "flip": jnp.flip, "roll": jnp.roll,
    "rot90": lambda x, k=1, axes=(0, 1): jnp.rot90(x, k, axes), "slice_": _slice,
    "concat": lambda xs, axis=0: jnp.concatenate(xs, axis), "stack": lambda xs, axis=0: jnp.stack(xs, axis),
    "pad": _pad, "repeat": _repeat,
    "tile": jnp.tile, "windows": _windows, "frame": _frame, "tril": jnp.tril, "triu": jnp.triu,
    "diagonal": lambda x, offset=0: jnp.diagonal(x, offset, -2, -1), "matrix_diag": _matrix_diag,
    "trace": lambda x, offset=0: jnp.trace(x, offset, -2, -1),
    "index": lambda x: x, "update": lambda x: x,
    "unstack": lambda x, axis=0: tuple(jnp.moveaxis(x, axis, 0)),
}  # fmt: skip


def _gather(x: Any, *indices: Any, axes: Any) -> Any:
    order = [*axes, *(a for a in range(x.ndim) if a not in axes)]
    return jnp.transpose(x, order)[tuple(indices)]


def _scatter(how: str) -> Function:
    def run(x: Any, value: Any, *indices: Any, axes: Any) -> Any:
        order = [*axes, *(a for a in range(x.ndim) if a not in axes)]
        moved = jnp.transpose(x, order)
        return jnp.transpose(getattr(moved.at[tuple(indices)], how)(value), np.argsort(order))

    return run


def _dynamic_slice(x: Any, start: Any, sizes: Any) -> Any:
    return lax.dynamic_slice(x, [jnp.clip(jnp.asarray(s, jnp.int64), 0) for s in start], sizes)


def _dynamic_update_slice(x: Any, value: Any, start: Any) -> Any:
    return lax.dynamic_update_slice(
        x, jnp.asarray(value, x.dtype), [jnp.clip(jnp.asarray(s, jnp.int64), 0) for s in start]
    )


_PLACES = {
    "take": lambda x, i, axis=None: jnp.take(x, i, axis, mode="clip"),
    "take_along_axis": lambda x, i, axis=-1: jnp.take_along_axis(x, i, axis),
    "gather": _gather, "embedding": lambda t, i: t[i], "scatter_add": _scatter("add"),
    "scatter_max": _scatter("max"), "scatter_min": _scatter("min"),
    "dynamic_slice": _dynamic_slice, "dynamic_update_slice": _dynamic_update_slice,
    "one_hot": lambda i, size, dtype=jnp.float32, axis=-1: jax.nn.one_hot(i, size, dtype=dtype, axis=axis),
    "searchsorted": lambda x, v, side="left": jnp.searchsorted(x, v, side=side),
}  # fmt: skip

_CREATION = {
    "full": lambda shape, value, dtype=None: jnp.full(shape, value, dtype),
    "zeros": lambda shape, dtype=jnp.float32: jnp.zeros(shape, dtype),
    "ones": lambda shape, dtype=jnp.float32: jnp.ones(shape, dtype),
    "full_like": jnp.full_like, "zeros_like": jnp.zeros_like, "ones_like": jnp.ones_like,
    "iota": lambda shape, axis=0, dtype=jnp.int64: lax.broadcasted_iota(dtype, shape, axis),
    "causal_mask": lambda q, k: np.tri(q, k, k - q, dtype=bool),
}  # fmt: skip

_PRODUCTS = {
    "matmul": jnp.matmul, "einsum": jnp.einsum, "outer": jnp.outer, "kron": jnp.kron,
    "vecdot": lambda a, b, axis=-1: jnp.vecdot(a, b, axis=axis), "tensordot": jnp.tensordot,
    "contract": lambda spec, *xs: jnp.einsum(spec.replace(" ", ""), *xs), "cross": jnp.cross,
}  # fmt: skip


def _layernorm(
    x: Any, gain: Any = None, bias: Any = None, axis: int = -1, eps: float = 1e-5
) -> Any:
    y = (x - x.mean(axis, keepdims=True)) / jnp.sqrt(x.var(axis, keepdims=True) + eps)
    return y * (1 if gain is None else gain) + (0 if bias is None else bias)


def _rmsnorm(x: Any, gain: Any = None, axis: int = -1, eps: float = 1e-6) -> Any:
    return x / jnp.sqrt(jnp.mean(x * x, axis, keepdims=True) + eps) * (1 if gain is None else gain)


def _attention(
    q: Any, k: Any, v: Any, causal: bool = False, scale: Any = None, mask: Any = None
) -> Any:
    s = q @ jnp.swapaxes(k, -1, -2) * (1 / math.sqrt(q.shape[-1]) if scale is None else scale)
    if causal:
        s = jnp.where(np.tri(*s.shape[-2:], s.shape[-1] - s.shape[-2], dtype=bool), s, -jnp.inf)
    if mask is not None:
        s = jnp.where(mask, s, -jnp.inf)
    seen = jnp.any(s > -jnp.inf, -1, keepdims=True)  # a query that sees no key gives zeros
    return jax.nn.softmax(jnp.where(seen, s, 0.0), -1) * seen @ v


def _reduced(f: Function) -> Function:
    def run(x: Any, y: Any, reduction: str = "mean", **more: Any) -> Any:
        return {"mean": jnp.mean, "sum": jnp.sum, "none": lambda v: v}[reduction](f(x, y, **more))

    return run


def _huber(x: Any, y: Any, delta: float = 1.0) -> Any:
    d = jnp.abs(x - y)
    return jnp.where(d <= delta, 0.5 * d * d, delta * (d - 0.5 * delta))


_NEURAL = {
    "softmax": jax.nn.softmax, "log_softmax": jax.nn.log_softmax, "softmin": lambda x,
    axis=-1: jax.nn.softmax(-x, axis),
    "glu": lambda x, axis=-1: jax.nn.glu(x, axis), "layernorm": _layernorm, "rmsnorm": _rmsnorm,
    "attention": _attention,
    "mse": _reduced(lambda x, y: (x - y) ** 2), "mae": _reduced(lambda x, y: jnp.abs(x - y)),
    "l1_loss": _reduced(lambda x, y: jnp.abs(x - y)), "huber": _reduced(_huber),
}  # fmt: skip


def _conv(
    x: Any,
    w: Any,
    bias: Any = None,
    stride: int = 1,
    padding: int = 0,
    dilation: int = 1,
    groups: int = 1,
) -> Any:
    n = x.ndim - 2
    y = lax.conv_general_dilated(
        x,
        w,
        (stride,) * n,
        [(padding, padding)] * n,
        rhs_dilation=(dilation,) * n,
        feature_group_count=groups,
    )
    return y if bias is None else y + bias.reshape(-1, *[1] * n)


def _conv_transpose(
    x: Any,
    w: Any,
    stride: int = 1,
    padding: int = 0,
    output_padding: int = 0,
    dilation: int = 1,
    groups: int = 1,
) -> Any:
    n = x.ndim - 2
    parts = zip(jnp.split(x, groups, 1), jnp.split(w, groups, 0), strict=True)
    ends = [
        ((k - 1) * dilation - padding, (k - 1) * dilation - padding + output_padding)
        for k in w.shape[2:]
    ]
    made = [
        lax.conv_general_dilated(
            a, jnp.flip(jnp.swapaxes(b, 0, 1), tuple(range(2, n + 2))), (1,) * n, ends,
            lhs_dilation=(stride,) * n, rhs_dilation=(dilation,) * n,
        )
        for a, b in parts
    ]  # fmt: skip
    return jnp.concatenate(made, 1)


def _pool(kind: str) -> Function:
    def run(
        x: Any, size: int, stride: Any = None, padding: int = 0, ceil_mode: bool = False,
        count_include_pad: bool = True, dilation: int = 1,
    ) -> Any:  # fmt: skip
        if ceil_mode:
            raise Absent
        n = x.ndim - 2
        window, steps = (1, 1) + (size,) * n, (1, 1) + (stride or size,) * n
        around = [(0, 0)] * 2 + [(padding, padding)] * n
        wide = (1, 1) + (dilation,) * n
        if kind == "max":
            return lax.reduce_window(x, -jnp.inf, lax.max, window, steps, around, None, wide)
        total = lax.reduce_window(x, 0.0, lax.add, window, steps, around)
        if count_include_pad:
            return total / size**n
        return total / lax.reduce_window(jnp.ones_like(x), 0.0, lax.add, window, steps, around)

    return run


_PICTURES = {
    **{f"conv{d}": _conv for d in ("", "1d", "2d", "3d")},
    **{f"conv_transpose{d}": _conv_transpose for d in ("", "1d", "2d", "3d")},
    **{f"max_pool{d}": _pool("max") for d in ("", "1d", "2d", "3d")},
    **{f"avg_pool{d}": _pool("avg") for d in ("", "1d", "2d", "3d")},
    "global_avg_pool": lambda x, keepdims=True: jnp.mean(
        x, tuple(range(2, x.ndim)), keepdims=keepdims
    ),
    "global_max_pool": lambda x, keepdims=True: jnp.max(
        x, tuple(range(2, x.ndim)), keepdims=keepdims
    ),
}


def _fft(f: Function) -> Function:
    return lambda x, n=None, axis=-1, norm=None: f(x, n=n, axis=axis, norm=norm)


def _fftn(f: Function) -> Function:
    return lambda x, norm=None: f(x, norm=norm)


_FOURIER = {
    **{n: _fft(getattr(jnp.fft, n)) for n in ("fft", "ifft", "rfft", "irfft", "hfft", "ihfft")},
    **{n: _fftn(getattr(jnp.fft, n)) for n in ("fftn", "ifftn", "fft2", "ifft2", "rfftn", "irfftn")},
    "fftshift": jnp.fft.fftshift, "ifftshift": jnp.fft.ifftshift,
}  # fmt: skip


def _triangular(
    a: Any, b: Any, lower: bool = True, transpose: bool = False, unit_diagonal: bool = False
) -> Any:
    return lax.linalg.triangular_solve(
        a, b, left_side=True, lower=lower, transpose_a=transpose, unit_diagonal=unit_diagonal
    )


_MATRICES = {
    "inv": jnp.linalg.inv, "det": jnp.linalg.det, "solve": jnp.linalg.solve, "triangular_solve": _triangular,
    "cholesky": lambda x, upper=False: jnp.linalg.cholesky(x, upper=upper), "eigvalsh": jnp.linalg.eigvalsh,
    "svdvals": lambda x: jnp.linalg.svd(x, compute_uv=False), "pinv": jnp.linalg.pinv,
    "matrix_power": jnp.linalg.matrix_power, "slogdet": lambda x: tuple(jnp.linalg.slogdet(x)),
}  # fmt: skip


def _cond(p: Any, yes: Function, no: Function, *xs: Any) -> Any:
    return lax.cond(p, yes, no, *xs)


def _while(test: Function, body: Function, init: Any, bound: Any = None) -> Any:
    return lax.while_loop(test, body, init) if bound is None else _bounded(test, body, init, bound)


def _bounded(test: Function, body: Function, init: Any, bound: int) -> Any:
    """As many steps as the bound, of which those after the end do nothing: reverse mode can follow."""
    for _ in range(bound):
        init = lax.cond(test(init), body, lambda c: c, init)
    return init


_CONTROL = {
    "cond": _cond, "while_loop": _while, "fori_loop": lax.fori_loop,
    "scan": lambda f, init, xs, reverse=False: lax.scan(f, init, xs, reverse=reverse),
}  # fmt: skip

TABLE: dict[str, Function] = {
    **_UNARY, **_BINARY, **_WITH_NUMBERS, **_FOLDS, **_SCANS, **_SHAPES, **_PLACES, **_CREATION, **_PRODUCTS,
    **_NEURAL, **_PICTURES, **_FOURIER, **_MATRICES, **_CONTROL,
}  # fmt: skip


@jax.custom_jvp
def _sine(x: Any) -> Any:
    return jnp.sin(x)


@_sine.defjvp
def _cosine(primals: Any, tangents: Any) -> Any:
    return jnp.sin(primals[0]), jnp.cos(primals[0]) * tangents[0]


SCOPE: dict[str, Any] = {
    "op": SimpleNamespace(**TABLE), "np": np, "nan": np.nan, "inf": np.inf, **DTYPES,
    "ts": SimpleNamespace(grad=jax.grad, vmap=jax.vmap, jit=jax.jit, checkpoint=jax.checkpoint),
    "parts": SimpleNamespace(sine=_sine, cube=lambda x: x * x * x, squared=lambda x: x * x),
}  # fmt: skip
# Names of the catalogue that programs against JAX are drawn of.
NAMES = (
    *(n for n in TABLE if n != "gamma"),
    "elementwise.gamma",
    "nested",
    "checkpointed",
    "own_rule",
    "inner_grad",
    "inner_vmap",
)


def gradients(loss: Function, point: Any) -> list[Any]:
    """JAX's gradients of a loss in all of a point, as NumPy arrays."""
    made = jax.grad(loss, tuple(range(len(point))))(*map(jnp.asarray, point))
    return [np.asarray(g) for g in made]


def evaluated(text: str, env: dict[str, Any]) -> list[Any]:
    """What a statement gives in JAX."""
    if re.search(r"@ (saturate|stochastic_round|accum|loss_scale)", text):
        raise Absent("policies of dtypes")
    given = {n: jnp.asarray(x) for n, x in env.items()}
    return [np.asarray(v) for v in jax.tree.leaves(eval(text, {**SCOPE, **given}))]


def loss_of(f: Function, point: Any, where: Any, weights: Any) -> Function:
    """A number that depends on all floating-point results, as a function of some arguments."""

    def loss(*floats: Any) -> Any:
        full = [jnp.asarray(x) for x in point]
        for i, x in zip(where, floats, strict=True):
            full[i] = x
        total: Any = 0.0
        for k, y in enumerate(jax.tree.leaves(f(*full))):
            if jnp.issubdtype(y.dtype, jnp.floating):
                total = total + jnp.sum(y.astype(jnp.float64) * weights(k, y.shape))
            elif y.dtype.kind == "c":
                total = total + jnp.sum(jnp.real(y)) + jnp.sum(jnp.imag(y))
        return total

    return loss
