"""Functions of operators: expm, logm, sqrtm, sign, and f(A) for a function f of numbers.

Structure is kept where it can be: functions of diagonals, of direct sums, of circulants; the exponential
of a Kronecker sum is a Kronecker product.  Else the function of the dense matrix is taken: by the
eigenvectors of a self-adjoint one, by the ops for matrices of the others; where the structure tells the
eigenvectors, as those of a Laplacian, by transforms.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from tessera.algebra import flags as rules
from tessera.algebra.apply import (
    columns,
    dense_cost,
    dense_of,
    diagonal_of,
    light_cost,
    square,
    trace_of,
)
from tessera.algebra.combinators.inverse import inverse_of
from tessera.algebra.combinators.linear import scaled
from tessera.algebra.combinators.queries import signed_logdet
from tessera.algebra.constructors.basic import eye
from tessera.algebra.kind import Cost, Kind, register
from tessera.algebra.operator import Operator, function
from tessera.algebra.waves import Spectrum, spectrum_of
from tessera.core.dtype import DType, complex_of
from tessera.core.errors import NumericalError, OperandError, ShapeError
from tessera.core.provided import Provided
from tessera.ir.graph.ir import Value, host_data
from tessera.ops import elementwise, linalg
from tessera.ops.contraction import matmul
from tessera.ops.creation import constant
from tessera.ops.define import cast_to
from tessera.ops.elementwise import mul, real
from tessera.ops.factor import eig, eigh
from tessera.ops.matrix import adjoint
from tessera.ops.matrix_function import matrix_function
from tessera.ops.shape import expand_dims
from tessera.ops.solve import solve as solve_matrix

Scalar = Callable[[Value], Value]


@dataclass(frozen=True)
class MatrixFunction:
    """A function of numbers with what it means for matrices."""

    name: str
    scalar: Scalar
    matrix: Callable[[Value], Value]
    adds: frozenset[str] = frozenset()  # flags of f(A) for a self-adjoint A


def _sign(w: Value) -> Value:
    """The sign of the real part."""
    return (
        cast_to(elementwise.sign(real(w)), w.dtype) if w.dtype.kind == "c" else elementwise.sign(w)
    )


NAMED = {
    f.name: f
    for f in (
        MatrixFunction("exp", elementwise.exp, linalg.expm, frozenset(("positive", "invertible"))),
        MatrixFunction("log", elementwise.log, lambda x: matrix_function(x, "log")),
        MatrixFunction("sqrt", elementwise.sqrt, lambda x: matrix_function(x, "sqrt")),
        MatrixFunction("sign", _sign, lambda x: matrix_function(x, "sign")),
    )
}
# How f of a self-adjoint matrix is taken: f(matrix, function of eigenvalues).
SelfAdjoint = Callable[[Value, Scalar], Value]


def by_eigenvectors(x: Value, f: Scalar) -> Value:
    """V f(w) V.H."""
    w, v = eigh(x)
    return matmul(mul(v, expand_dims(cast_to(f(w), v.dtype), -2)), adjoint(v))


SELF_ADJOINT: Provided[SelfAdjoint] = Provided(
    "function of self-adjoint",
    "how f of a self-adjoint matrix is taken: f(matrix, function of eigenvalues)",
    by_eigenvectors,
)
ACTION: Provided[Callable[[Operator, Any, Value], Value | None]] = Provided(
    "action of a function",
    "how f(A) X is found without the matrix: f(A, name or function, X), None to decline",
)


# The functions ----------------------------------------------------------------------------------


@function
def expm(a: Any) -> Operator:
    """The exponential of a square operator."""
    return function_of(square("expm", a), "exp")


@function
def logm(a: Any) -> Operator:
    """The principal logarithm of a square operator."""
    return function_of(square("logm", a), "log")


@function
def sqrtm(a: Any) -> Operator:
    """The principal square root of a square operator."""
    return function_of(square("sqrtm", a), "sqrt")


@function
def sign(a: Any) -> Operator:
    """The sign of a square operator: eigenvalues become 1 or -1 by the sign of their real part."""
    return function_of(square("sign", a), "sign")


@function
def function_(a: Any, f: Any) -> Operator:
    """f(A) for a function f of numbers, given as ops on tensors or as `exp`, `log`, `sqrt`, `sign`."""
    found = square("function", a)
    if not callable(f) and f not in NAMED:
        raise OperandError(
            f"function: got {f!r:.40} for {found}, expected a function of tensors or one of "
            f"{', '.join(NAMED)}"
        )
    return function_of(found, f)


def function_of(a: Operator, f: Any) -> Operator:
    """f(A) in the structure of A where it has one."""
    scalar = NAMED[f].scalar if isinstance(f, str) else _checked(f)
    if "diagonal" in a.flags:
        d = diagonal_of(a)
        return Operator("diag", data=(_refuse_non_finite(a, f, d, scalar(d)),))
    if a.kind == "direct_sum" and all(p.shape[0] == p.shape[1] for p in a.parts):
        return Operator("direct_sum", tuple(function_of(p, f) for p in a.parts))
    found = None if a.record.function is None else a.record.function(a, scalar, isinstance(f, str))
    if found is None and isinstance(f, str):
        found = _named(a, f)
    return Operator("function", (a,), static=(f,)) if found is None else found


def _refuse_non_finite(a: Operator, f: Any, w: Value, y: Value) -> Value:
    """f where it has no value, as the logarithm of a negative number, is refused if that is known."""
    if w.storage is not None and y.storage is not None and np.all(np.isfinite(host_data(w))):
        bad = ~np.isfinite(host_data(y))
        if np.any(bad):
            name, at = f if isinstance(f, str) else "f", host_data(w)[bad][0] + 0.0
            raise NumericalError(
                f"function: {name} has no finite value at the eigenvalue {at:.6g} of {a}"
                + ("" if a.dtype.kind == "c" else "; a complex operator may have one")
            )
    return y


def _checked(f: Callable[[Any], Any]) -> Scalar:
    def run(w: Value) -> Value:
        y = f(w)
        if not isinstance(y, Value) or y.shape != w.shape:
            shown = y.type if isinstance(y, Value) else type(y).__name__
            raise ShapeError(f"function: f gives {shown} for eigenvalues {w.type}")
        return y

    return run


def _named(a: Operator, name: str) -> Operator | None:
    """What holds for one function only."""
    both = a.kind == "kronecker" and all("positive" in p.flags for p in a.parts)
    if name == "exp" and a.kind == "kronsum":
        return Operator("kronecker", tuple(function_of(p, "exp") for p in a.parts))
    if name == "exp" and a.kind == "function" and a.static[0] == "log":
        return a.parts[0]
    if name == "log" and a.kind == "function" and a.static[0] == "exp":
        return a.parts[0] if "self_adjoint" in a.parts[0].flags else None
    if name == "sqrt" and both:
        return Operator("kronecker", tuple(function_of(p, "sqrt") for p in a.parts))
    if name == "sqrt" and "projector" in a.flags:
        return a
    if name == "sign" and {"positive", "invertible"} <= a.flags:
        return eye(a.shape[0], a.dtype)
    if name == "sign" and {"unitary", "self_adjoint"} <= a.flags:
        return a
    if name == "sign" and a.kind == "scale" and a.static and isinstance(a.static[0], int | float):
        turned = function_of(a.parts[0], "sign")
        return scaled(turned, 1 if a.static[0] > 0 else -1) if a.static[0] else None
    return None


# The kind ---------------------------------------------------------------------------------------


def _dtype(parts: Any, data: Any, static: Any) -> DType:
    """Real for real self-adjoint operators and for the named functions, else complex."""
    (a,), (f,) = parts, static
    dtype: DType = a.dtype
    plain = isinstance(f, str) or "self_adjoint" in a.flags
    return dtype if plain else complex_of(dtype)


def _dense(a: Operator) -> Value:
    (p,), (f,) = a.parts, a.static
    x = dense_of(p)
    scalar = NAMED[f].scalar if isinstance(f, str) else _checked(f)
    if "self_adjoint" in p.flags:
        return SELF_ADJOINT.get()(x, lambda w: _refuse_non_finite(p, f, w, scalar(w)))
    if isinstance(f, str):
        return NAMED[f].matrix(x)
    w, v = eig(x)
    turned = mul(v, expand_dims(scalar(w), -2))
    return adjoint(solve_matrix(adjoint(v), adjoint(turned)))


def _weights(a: Operator) -> tuple[Spectrum, Value] | None:
    """The spectrum of A that its structure tells, and the values of f there."""
    (p,), (f,) = a.parts, a.static
    known = spectrum_of(p)
    if known is None:
        return None
    scalar = NAMED[f].scalar if isinstance(f, str) else _checked(f)
    w = constant(known.values.astype(p.dtype.real.np))
    return known, cast_to(_refuse_non_finite(p, f, w, scalar(w)), a.dtype)


def _spectrum(a: Operator) -> Spectrum | None:
    """That of A with the function of its values, where they are known now."""
    found = _weights(a)
    if found is None or found[1].storage is None or a.dtype.kind == "c":
        return None
    known, weights = found
    return known.mapped(lambda w: host_data(weights).astype(np.float64))


def _apply(a: Operator, x: Value) -> Value:
    by_waves = _weights(a)
    if by_waves is not None:
        known, weights = by_waves
        return known.function(weights, x)
    found = None
    if ACTION.value is not None:
        found = ACTION.value(a.parts[0], a.static[0], x)
    return matmul(dense_of(a), x) if found is None else found


def _flags(a: Operator) -> frozenset[str]:
    (p,), (f,) = a.parts, a.static
    found = set(rules.of_function(p))
    if not isinstance(f, str):
        return frozenset(found)
    if "self_adjoint" in p.flags:
        found |= {"self_adjoint"} | NAMED[f].adds
    if f == "exp":
        found |= {"invertible"} | ({"unitary"} if "skew_adjoint" in p.flags else set())
    if f == "sqrt" and "positive" in p.flags:
        found |= {"positive"} | (p.flags & {"invertible"})
    if f == "sign":
        found |= {"invertible"}
    return frozenset(found | (p.flags & {"real"}))


def _slogdet(a: Operator) -> tuple[Value, Value]:
    """det(exp(A)) is exp(tr(A))."""
    (p,), (f,) = a.parts, a.static
    if f == "exp":
        t = trace_of(p)
        size = real(t) if t.dtype.kind == "c" else t
        phase = elementwise.exp(elementwise.sub(t, cast_to(size, t.dtype)))
        return phase, size
    return signed_logdet(Operator("dense", data=(dense_of(a),)))


def _inverse(a: Operator) -> Operator | None:
    if a.static[0] == "exp":
        return function_of(scaled(a.parts[0], -1), "exp")
    return a if a.static[0] == "sign" else None


def _power(a: Operator, k: int) -> Operator | None:
    if a.static[0] == "exp":
        return function_of(scaled(a.parts[0], k), "exp")
    if a.static[0] == "sqrt":
        whole = a.parts[0] ** (k // 2)
        return whole @ a if k % 2 else whole
    return None


def _conj(a: Operator) -> Operator:
    if isinstance(a.static[0], str):
        return function_of(a.parts[0].conj(), a.static[0])
    return Operator("conj", (a,))


def _cost(a: Operator, k: int) -> Cost:
    n = float(a.shape[0]) if isinstance(a.shape[0], int) else 1.0
    if spectrum_of(a.parts[0]) is not None:
        return light_cost(a, k, 10 * n * math.log2(n + 1) * k, launches=4)
    return dense_cost(a, k).plus(Cost(25 * n**3, 0, 1))


register(Kind(
    name="function", doc="A function of a square operator.",
    shape=lambda parts, data, static: parts[0].shape, dtype=_dtype, apply=_apply,
    transpose=lambda a: function_of(a.parts[0].T, a.static[0]), conj=_conj,
    dense=_dense, flags=_flags, cost=_cost, slogdet=_slogdet, inverse=_inverse, power=_power,
    solve=lambda a, b: columns(inverse_of(a), b) if a.static[0] in ("exp", "sign") else None,
    spectrum=_spectrum,
))  # fmt: skip
