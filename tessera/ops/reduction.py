"""Folds over axes: sums, products, extremes, and what is built of them."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tessera.core.dims import product
from tessera.core.dtype import DType, as_dtype, f64, i64, u64
from tessera.core.errors import ShapeError
from tessera.core.scalar import arg
from tessera.ir.graph.ir import Node, Value
from tessera.ir.graph.op import Op, Params, Sample, Types, register
from tessera.ops.define import (
    FUNCTIONS,
    ArrayLike,
    AxisLike,
    OpFunction,
    as_value,
    axes_of,
    axis_of,
    broadcast,
    cast_to,
    define,
    floating,
    letters,
    public,
    publish,
    wide,
)
from tessera.ops.elementwise import abs as absolute
from tessera.ops.elementwise import (
    conj,
    div,
    eq,
    exp,
    isnan,
    log,
    logical_or,
    mul,
    real,
    sqrt,
    square,
    sub,
    where,
)
from tessera.ops.shape import reshape

Tangents = Sequence[Value | None]


def fold_signature(types: Types, p: Params) -> str:
    """'a0 a1 a2 -> a0 a2' for axes=(1,)."""
    names = letters(types[0].rank)
    return f"{' '.join(names)} -> {' '.join(a for i, a in enumerate(names) if i not in p['axes'])}"


def kept(x: Value, axes: Sequence[int]) -> tuple[Any, ...]:
    """The shape of x with these axes at size 1."""
    return tuple(1 if i in axes else n for i, n in enumerate(x.shape))


def spread(y: Value, x: Value, axes: Sequence[int]) -> Value:
    """A fold of x over axes, broadcast back to x's shape."""
    return broadcast(reshape(y, kept(x, axes)), x.shape)


def _finish(y: Value, x: Value, axes: Sequence[int], keepdims: bool) -> Value:
    return reshape(y, kept(x, axes)) if keepdims else y


_SAMPLES = (
    Sample((3,)), Sample((2, 3), axis=1), Sample((2, 3, 4), axis=(0, 2)), Sample(()),
    Sample((2, 3), axis=0, keepdims=True), Sample((2, 3), axis=()),
)  # fmt: skip
_EMPTY = (Sample((0, 3), axis=0), Sample((0,)))


def reduction(
    name: str,
    doc: str,
    fold: str,
    reference: Callable[..., Any],
    *,
    prepare: Callable[[Value], Value] = lambda x: x,
    empty: bool = True,
    **record: Any,
) -> OpFunction[..., Value]:
    """out = fold of x over axes.  `prepare` settles the dtype; without `empty` an axis needs elements."""
    record.setdefault("samples", _SAMPLES + (_EMPTY if empty else ()))
    op = register(
        Op(
            name,
            doc,
            signature=fold_signature,
            body=arg(0),
            combine=fold,
            numpy=lambda x, axes: reference(x, axis=axes),
            **record,
        )
    )

    def front(x: ArrayLike, axis: AxisLike = None, keepdims: bool = False) -> Value:
        v = prepare(as_value(x, name))
        axes = axes_of(name, axis, v.ndim)
        if not empty and builtins.any(v.shape[a] == 0 for a in axes):
            raise ShapeError(
                f"{name}: {v.type} has no elements along axis {axis}, and {name} has no identity"
            )
        return _finish(front_op.bind(v, axes=axes), v, axes, keepdims) if axes else v

    front.__name__ = name
    front_op = OpFunction(op, front)
    publish(front_op, name)
    return front_op


def _wide_integer(x: Value) -> Value:
    """Integers and bools in the widest integer of their kind, as NumPy sums them."""
    if x.dtype.kind == "f" or x.dtype.kind == "c":
        return x
    wide: DType = u64 if x.dtype.kind == "u" else i64
    return cast_to(x, wide)


sum = reduction(
    "sum",
    "Sum over axes; integers are summed in 64 bits.",
    "add",
    np.sum,
    prepare=_wide_integer,
    kinds="uifc",
    linear=(0,),
    transpose=lambda n, ct, k: spread(ct, n.operands[0], n.params["axes"]),
    onnx="ReduceSum",
)


def _prod_jvp(n: Node, ts: Tangents) -> Value | None:
    """Product rule with the product of all other elements, so that zeros do no harm."""
    x, axes, t = n.operands[0], n.params["axes"], ts[0]
    if t is None:
        return None
    return sum(mul(others_product(x, axes), t), axes)


def others_product(x: Value, axes: Sequence[int]) -> Value:
    """For each element the product of the others along axes: prefix times suffix."""
    rest = [i for i in range(x.ndim) if i not in axes]
    order = (*rest, *axes)
    from_front = FUNCTIONS["transpose"](x, order)
    flat = reshape(
        from_front, (*(x.shape[i] for i in rest), product(tuple(x.shape[i] for i in axes)))
    )
    out = mul(_exclusive(flat, False), _exclusive(flat, True))
    back = reshape(out, tuple(x.shape[i] for i in order))
    return FUNCTIONS["transpose"](back, tuple(np.argsort(order).tolist()))


def _exclusive(x: Value, reverse: bool) -> Value:
    flip, pad, slice_ = FUNCTIONS["flip"], FUNCTIONS["pad"], FUNCTIONS["slice_"]
    y = flip(x, -1) if reverse else x
    shifted = slice_(pad(y, (*((0, 0),) * (x.ndim - 1), (1, 0)), 1), (0,) * x.ndim, x.shape)
    run = FUNCTIONS["cumprod"](shifted, -1)
    return flip(run, -1) if reverse else run


prod = reduction(
    "prod",
    "Product over axes; integers are multiplied in 64 bits.",
    "mul",
    np.prod,
    prepare=_wide_integer,
    kinds="uifc",
    jvp=_prod_jvp,
    onnx="ReduceProd",
)


def _extreme_jvp(n: Node, ts: Tangents) -> Value | None:
    """The tangents of the winners, averaged over ties."""
    x, y, axes, t = n.operands[0], n.results[0], n.params["axes"], ts[0]
    if t is None:
        return None
    wins = cast_to(eq(x, spread(y, x, axes)), x.dtype)
    return div(sum(mul(wins, t), axes), sum(wins, axes))


def _extreme(reduce: Callable[..., Any], negative: bool) -> Callable[..., Any]:
    """np.max or np.min with +0 above -0, as the scalar op has it, where NumPy gives either zero."""

    def reference(x: Any, axis: Any) -> Any:
        y = reduce(x, axis=axis)
        if x.dtype.kind in "biu" or np.all(y):
            return y
        signs = np.signbit(x if x.dtype.kind == "f" else x.astype(np.float32))
        wins = np.any((x == 0) & (signs == negative), axis=axis)
        zero = np.where(wins == negative, -0.0, 0.0).astype(x.dtype)
        return np.where(np.equal(y, 0), zero, y)

    return reference


max = reduction("max", "Largest element over axes; NaN if any is.", "max", _extreme(np.max, False),
                kinds="buif", empty=False, jvp=_extreme_jvp, moves=True, onnx="ReduceMax")  # fmt: skip
min = reduction("min", "Smallest element over axes; NaN if any is.", "min", _extreme(np.min, True),
                kinds="buif", empty=False, jvp=_extreme_jvp, moves=True, onnx="ReduceMin")  # fmt: skip


def _as_bool(x: Value) -> Value:
    return cast_to(x, as_dtype(bool))


all = reduction("all", "Whether all elements over axes are true.", "logical_and", np.all, kinds="b",
                prepare=_as_bool)  # fmt: skip
any = reduction("any", "Whether any element over axes is true.", "logical_or", np.any, kinds="b",
                prepare=_as_bool)  # fmt: skip


# Means and moments

_MEAN_SAMPLES = tuple(s for s in _SAMPLES if s.kwargs.get("axis") != ())


def _count(x: Value, axes: Sequence[int]) -> Any:
    return product(tuple(x.shape[a] for a in axes))


def _decomposed_fold(types: Types, p: Params) -> list[Any]:
    t = types[0]
    return [t.with_shape(tuple(n for i, n in enumerate(t.shape) if i not in p["axes"]))]


def _mean_reference(x: Any, axes: Any) -> Any:
    """np.mean, but quiet where there are no elements: 0 / 0 is NaN."""
    return np.divide(np.sum(x, axis=axes), int(np.prod([x.shape[a] for a in axes])))


@define(
    infer=_decomposed_fold, kinds="fc", numpy=_mean_reference, linear=(0,),
    decompose=lambda x, axes: div(sum(x, axes), _count(x, axes)), onnx="ReduceMean",
    transpose=lambda n, ct, k: spread(
        div(ct, _count(n.operands[0], n.params["axes"])), n.operands[0], n.params["axes"]
    ),
    samples=_MEAN_SAMPLES,
)  # fmt: skip
def mean(x: ArrayLike, axis: AxisLike = None, keepdims: bool = False) -> Value:
    """Arithmetic mean over axes."""
    v = floating(as_value(x, "mean"))
    axes = axes_of("mean", axis, v.ndim)
    return _finish(mean.bind(v, axes=axes), v, axes, keepdims)


def _var(x: Value, axes: tuple[int, ...], correction: float) -> Value:
    centred = sub(x, spread(mean(x, axes), x, axes))
    power = real(mul(centred, conj(centred))) if x.dtype.kind == "c" else square(centred)
    return div(sum(power, axes), _freedom(_count(x, axes), correction, power.dtype))


def _freedom(n: Any, correction: float, dtype: DType) -> Any:
    """The count less the correction, 0 at least; of a symbolic count in f64, as Python does it for a
    number.
    """
    if isinstance(n, int):
        return builtins.max(n - correction, 0)
    left = sub(cast_to(as_value(n, "var"), f64), correction)
    return cast_to(FUNCTIONS["maximum"](left, 0.0), dtype)


def _var_reference(x: Any, axes: Any, correction: float) -> Any:
    n = int(np.prod([x.shape[a] for a in axes]))
    c = x - np.expand_dims(_mean_reference(x, axes), axes)
    return np.divide((c * c.conj()).real.sum(axis=axes), builtins.max(n - correction, 0))


@define(
    infer=lambda types, p: [
        t.with_dtype(t.dtype.real) for t in _decomposed_fold(types, p)
    ],
    kinds="fc", decompose=_var, numpy=_var_reference, samples=_MEAN_SAMPLES,
)  # fmt: skip
def var(
    x: ArrayLike, axis: AxisLike = None, correction: float = 0.0, keepdims: bool = False
) -> Value:
    """Variance over axes; the sum of squares is divided by the count less the correction."""
    v = floating(as_value(x, "var"))
    axes = axes_of("var", axis, v.ndim)
    return _finish(var.bind(v, axes=axes, correction=correction), v, axes, keepdims)


@public
def std(
    x: ArrayLike, axis: AxisLike = None, correction: float = 0.0, keepdims: bool = False
) -> Value:
    """Standard deviation over axes: the square root of var, whose slope at equal elements is 0."""
    return flat_at_zero(sqrt, var(x, axis, correction, keepdims))


def flat_at_zero(root: Callable[[Value], Value], x: Value) -> Value:
    """A root of x with the slope 0 where x is 0, rather than the infinite one."""
    zero = FUNCTIONS["eq"](x, 0)
    return where(zero, 0, root(where(zero, 1, x)))


def _logsumexp_reference(x: Any, axes: Any) -> Any:
    top = np.max(x, axis=axes, keepdims=True, initial=-np.inf)
    safe = np.where(np.isfinite(top), top, 0)
    total = np.log(np.sum(np.exp(x - safe), axis=axes))
    return total + safe.reshape(total.shape)


def _logsumexp(x: Value, axes: tuple[int, ...]) -> Value:
    if builtins.any(x.shape[a] == 0 for a in axes):
        return log(sum(exp(x), axes))  # of nothing, which has no largest element
    top = max(x, axes)
    safe = where(FUNCTIONS["isfinite"](top), top, 0)
    return FUNCTIONS["add"](log(sum(exp(sub(x, spread(safe, x, axes))), axes)), safe)


def _logsumexp_jvp(n: Node, ts: Tangents) -> Value | None:
    x, y, axes, t = n.operands[0], n.results[0], n.params["axes"], ts[0]
    if t is None:
        return None
    (x, t), d = wide(x, t), t.dtype
    if y.dtype != x.dtype:  # a narrow y of 100 is rounded by 1/4, and exp(x - y) off by as much
        y = logsumexp.bind(x, axes=axes)
    safe = where(FUNCTIONS["isinf"](y), 0, y)  # a NaN stays one
    return cast_to(sum(mul(exp(sub(x, spread(safe, x, axes))), t), axes), d)


@define(
    infer=_decomposed_fold, kinds="f", decompose=_logsumexp, numpy=_logsumexp_reference,
    jvp=_logsumexp_jvp, onnx="ReduceLogSumExp", samples=_MEAN_SAMPLES,
)  # fmt: skip
def logsumexp(x: ArrayLike, axis: AxisLike = None, keepdims: bool = False) -> Value:
    """log(sum(exp(x))) over axes without overflow; -inf where every element is."""
    v = floating(as_value(x, "logsumexp"))
    axes = axes_of("logsumexp", axis, v.ndim)
    return _finish(logsumexp.bind(v, axes=axes), v, axes, keepdims)


# Positions of extremes


def _arg_reference(f: Callable[..., Any]) -> Callable[..., Any]:
    return lambda x, axis: f(x, axis=axis)


def _arg_by_folds(extreme: OpFunction[..., Value]) -> Callable[..., Value]:
    """The first index at which the extreme stands, or NaN if there is one."""

    def run(x: Value, axis: int) -> Value:
        hit = eq(x, spread(extreme(x, axis), x, (axis,)))
        if x.dtype.kind == "f":
            hit = logical_or(hit, isnan(x))
        here = FUNCTIONS["iota"](x.shape, axis)
        return min(where(hit, here, x.shape[axis]), axis)

    return run


def _arg(
    name: str, doc: str, f: Callable[..., Any], extreme: OpFunction[..., Value], onnx: str
) -> OpFunction[..., Value]:
    op = register(
        Op(
            name,
            doc,
            decompose=_arg_by_folds(extreme),
            kinds="buif",
            numpy=_arg_reference(f),
            onnx=onnx,
            infer=lambda types, p: [
                types[0]
                .with_dtype(i64)
                .with_shape((*types[0].shape[: p["axis"]], *types[0].shape[p["axis"] + 1 :]))
            ],
            jvp=lambda n, ts: None,
            moves=True,
            samples=(Sample((3,)), Sample((2, 3), axis=1), Sample((2, 3), axis=0, keepdims=True)),
        )
    )

    def front(x: ArrayLike, axis: int | None = None, keepdims: bool = False) -> Value:
        v = as_value(x, name)
        flat = reshape(v, (v.type.size,)) if axis is None else v
        k = 0 if axis is None else axis_of(name, axis, v.ndim)
        if flat.shape[k] == 0:
            raise ShapeError(f"{name}: {v.type} has no elements along axis {axis}")
        y = made.bind(flat, axis=k)
        axes = range(v.ndim) if axis is None else (k,)
        return _finish(y, v, axes, keepdims)

    front.__name__ = name
    made = OpFunction(op, front)
    publish(made, name)
    return made


argmax = _arg(
    "argmax", "Index of the first largest element along an axis.", np.argmax, max, "ArgMax"
)
argmin = _arg(
    "argmin", "Index of the first smallest element along an axis.", np.argmin, min, "ArgMin"
)


@public
def count_nonzero(x: ArrayLike, axis: AxisLike = None, keepdims: bool = False) -> Value:
    """How many elements over axes are not zero."""
    return sum(cast_to(FUNCTIONS["ne"](as_value(x), 0), i64), axis, keepdims)


@public
def norm(x: ArrayLike, ord: float = 2, axis: AxisLike = None, keepdims: bool = False) -> Value:
    """Vector norm over axes: (sum |x|**ord)**(1/ord), the largest |x| for inf, smallest for -inf."""
    v = floating(as_value(x, "norm"))
    size = absolute(v)
    if ord == float("inf"):
        return max(size, axis, keepdims)
    if ord == float("-inf"):
        return min(size, axis, keepdims)
    if ord == 0:
        return cast_to(count_nonzero(v, axis, keepdims), size.dtype)
    if ord == 1:
        return sum(size, axis, keepdims)
    if ord == 2:
        return l2norm(v, axis, keepdims)
    total = sum(FUNCTIONS["pow"](size, ord), axis, keepdims)
    if ord < 0:
        return FUNCTIONS["pow"](total, 1 / ord)
    return flat_at_zero(lambda t: FUNCTIONS["pow"](t, 1 / ord), total)


def _l2norm(x: Value, axes: tuple[int, ...]) -> Value:
    power = real(mul(x, conj(x))) if x.dtype.kind == "c" else square(x)
    return sqrt(sum(power, axes))


def _l2norm_jvp(n: Node, ts: Tangents) -> Value | None:
    """x . t / |x|, and 0 where x is 0."""
    x, y, axes, t = n.operands[0], n.results[0], n.params["axes"], ts[0]
    if t is None:
        return None
    along = sum(real(mul(conj(x), t)) if x.dtype.kind == "c" else mul(x, t), axes)
    return where(eq(y, 0), 0, div(along, where(eq(y, 0), 1, y)))


@define(
    infer=lambda types, p: [t.with_dtype(t.dtype.real) for t in _decomposed_fold(types, p)],
    kinds="fc", decompose=_l2norm, jvp=_l2norm_jvp, onnx="ReduceL2", samples=_MEAN_SAMPLES,
    numpy=lambda x, axes: np.sqrt(np.sum((x * x.conj()).real, axis=axes)),
)  # fmt: skip
def l2norm(x: ArrayLike, axis: AxisLike = None, keepdims: bool = False) -> Value:
    """Euclidean norm over axes."""
    v = floating(as_value(x, "l2norm"))
    axes = axes_of("l2norm", axis, v.ndim)
    return _finish(l2norm.bind(v, axes=axes), v, axes, keepdims)
