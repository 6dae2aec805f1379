"""Factorisations and solutions of small systems by primitives, for targets that have kernels for them.

transform/factor_small.py puts these formulas in place of the ops, whose records name them (`small`).  A
matrix that is singular or not positive definite ends the program with the error of the op itself, by
`sound`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tessera.core.dtype import as_dtype, i64
from tessera.core.errors import NumericalError
from tessera.core.small_matrices import SMALL_MATRICES
from tessera.core.types import TensorType
from tessera.ir.graph.ir import Value, bind
from tessera.ir.graph.op import OWN, UNLISTED, Op
from tessera.ops.define import FUNCTIONS, broadcast, cast_to


def _primitive(name: str) -> Op:
    d = next(d for d in SMALL_MATRICES if d.name == name)

    def run(*xs: Any, **p: Any) -> Any:
        made = d.evaluate(xs, p)
        return tuple(made) if name == "small_lu" else made[0]

    op = Op(
        name, f"{name} of matrices of a few rows.", call=name, infer=d.infer, numpy=run, kinds="f",
        multiple=name == "small_lu", total=True,
    )  # fmt: skip
    UNLISTED[name] = op
    OWN.add(op)
    return op


_CHOLESKY, _LU, _SUBSTITUTE = map(_primitive, ("small_cholesky", "small_lu", "small_substitute"))


def _sound(x: Any, ok: Any, of: Any, asked: str, trouble: str) -> Any:
    if not ok:
        raise no_factor(TensorType(as_dtype(of.dtype), of.shape), asked, trouble)
    return x


def no_factor(of: TensorType, asked: str, trouble: str) -> NumericalError:
    """The error of an op whose matrix has no factor."""
    return NumericalError(f"{asked}: {of} {trouble}")


SOUND = Op(
    "sound", "x, if it is sound; else the program ends with an error.", call="sound", numpy=_sound,
    infer=lambda types, p: types[:1], moves=True, kinds=("f", "b", "f"),
)  # fmt: skip
UNLISTED[SOUND.name] = SOUND
OWN.add(SOUND)


def _checked(y: Value, ok: Value, op: str, x: Value, trouble: str) -> Value:
    made: Value = bind(SOUND, y, FUNCTIONS["all"](ok), x, asked=op, trouble=trouble)
    return made


def _is_no_zero(x: Value) -> Value:
    return FUNCTIONS["ne"](FUNCTIONS["diagonal"](x), 0.0)


def cholesky(trouble: str) -> Callable[[Value], Value]:
    """The lower factor of the symmetric part."""

    def formula(x: Value) -> Value:
        even = FUNCTIONS["mul"](FUNCTIONS["add"](x, _turned(x)), 0.5)
        y: Value = bind(_CHOLESKY, even)
        pivots = FUNCTIONS["diagonal"](y)
        return _checked(y, FUNCTIONS["eq"](pivots, pivots), "cholesky", x, trouble)

    return formula


def _turned(x: Value) -> Value:
    axes = tuple(range(x.ndim))
    return FUNCTIONS["transpose"].bind(x, axes=(*axes[:-2], axes[-1], axes[-2]))


def _substituted(a: Value, b: Value, **p: bool) -> Value:
    params: dict[str, Any] = dict(p)
    made: Value = bind(_SUBSTITUTE, a, b, **params)
    return made


def triangular_solve(trouble: str) -> Callable[..., Value]:
    """Substitution, if there is no 0 on the diagonal."""

    def formula(a: Value, b: Value, lower: bool, transpose: bool, unit_diagonal: bool) -> Value:
        y = _substituted(a, b, lower=lower, transpose=transpose, unit_diagonal=unit_diagonal)
        if unit_diagonal:
            return y
        return _checked(y, _is_no_zero(a), "triangular_solve", a, trouble)

    return formula


def _solved(op: str, trouble: str, a: Value, b: Value) -> Value:
    """By the factors of a with rows swapped."""
    factors, perm, _ = bind(_LU, a)
    half = _substituted(factors, _rows(b, perm), lower=True, transpose=False, unit_diagonal=True)
    y = _substituted(factors, half, lower=False, transpose=False, unit_diagonal=False)
    return _checked(y, _is_no_zero(factors), op, a, trouble)


def _rows(b: Value, perm: Value) -> Value:
    """Rows of every matrix in another order."""
    *batch, n, k = b.shape
    wide = broadcast(FUNCTIONS["reshape"](perm, (*batch, n, 1)), (*batch, n, k))
    iota = FUNCTIONS["iota"]
    places = [iota.bind(shape=b.shape, axis=a, dtype=perm.dtype) for a in range(b.ndim)]
    places[-2] = wide
    made: Value = FUNCTIONS["gather"].bind(b, *places, axes=tuple(range(b.ndim)))
    return made


def _identity(x: Value) -> Value:
    row, column = (
        FUNCTIONS["iota"].bind(shape=x.shape, axis=x.ndim - a, dtype=i64) for a in (2, 1)
    )
    return cast_to(FUNCTIONS["eq"](row, column), x.dtype)


def solve(trouble: str) -> Callable[[Value, Value], Value]:
    """The solution by factors."""
    return lambda a, b: _solved("solve", trouble, a, b)


def inv(trouble: str) -> Callable[[Value], Value]:
    """The solution for the columns of the identity."""

    def formula(x: Value) -> Value:
        return _solved("inv", trouble, x, _identity(x))

    return formula


def lu(x: Value) -> tuple[Value, Value, Value]:
    """Rows in their order and both factors."""
    factors, perm, _ = bind(_LU, x)
    lower = FUNCTIONS["add"](FUNCTIONS["tril"](factors, -1), _identity(x))
    return perm, lower, FUNCTIONS["triu"](factors)


def det(x: Value) -> Value:
    """The product of the pivots, with the sign of the order of rows."""
    factors, _, sign = bind(_LU, x)
    return FUNCTIONS["mul"](FUNCTIONS["prod"](FUNCTIONS["diagonal"](factors), -1), sign)


def slogdet(x: Value) -> tuple[Value, Value]:
    """The sign, and the sum of the logarithms of the pivots."""
    factors, _, sign = bind(_LU, x)
    pivots = FUNCTIONS["diagonal"](factors)
    signs = FUNCTIONS["prod"](FUNCTIONS["sign"](pivots), -1)
    size = FUNCTIONS["sum"](FUNCTIONS["log"](FUNCTIONS["abs"](pivots)), -1)
    return FUNCTIONS["mul"](signs, sign), size
