"""Check assumed flags (A.assume, flags=) under ts.checked(), in compiled programs too.

Up to 2048 rows the matrix is looked at; beyond that products with random vectors, which tell whether an
operator is self-adjoint, unitary, a projector, normal or positive, but not where its elements are zero.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tessera.algebra.apply import as_operator, columns, dense_of
from tessera.algebra.operator import Operator, function
from tessera.algebra.solve import DENSE_LIMIT
from tessera.core import tree
from tessera.core.errors import NumericalError
from tessera.ir.graph.ir import Value, current_builder
from tessera.ops.arrange import eye, roll, tril, triu
from tessera.ops.callbacks import ensure
from tessera.ops.contraction import matmul
from tessera.ops.creation import constant
from tessera.ops.define import cast_to, full_of
from tessera.ops.elementwise import abs as absolute
from tessera.ops.elementwise import gt, imag, le, maximum, mul, neg, sub, where
from tessera.ops.factor import eigvalsh, svdvals
from tessera.ops.key_uses import own_draws
from tessera.ops.linalg import epsilon
from tessera.ops.matrix import adjoint, hermitian_part
from tessera.ops.random import normal
from tessera.ops.random_bits import key
from tessera.ops.reduction import max as largest
from tessera.ops.shape import concat, matrix_transpose, slice_

Pair = tuple[Value, Value]  # two tensors that are equal when the flag holds
PROBES = 8  # random vectors on which a large operator is looked at


def _gram(m: Value) -> Value:
    return matmul(adjoint(m), m)


def _one(m: Value) -> Value:
    return eye(m.shape[1], dtype=m.dtype)


def _not_negative(m: Value) -> list[Pair]:
    w = eigvalsh(hermitian_part(m))
    return [(m, adjoint(m)), (w, maximum(w, 0))]


def _regular(m: Value) -> list[Pair]:
    s = svdvals(m)
    lost = where(gt(s, mul(largest(s), epsilon(s.dtype))), full_of((), 0, s.dtype), 1)
    return [(lost, full_of(lost.shape, 0, s.dtype))]


def _shifted(m: Value) -> list[Pair]:
    rows, cols = m.shape
    left, rest = slice_(m, (1, 0), (rows, 1)), slice_(m, (0, 0), (rows - 1, cols - 1))
    return [(m, concat([slice_(m, (0, 0), (1, cols)), concat([left, rest], 1)], 0))]


# What the flags say of the matrix.
OF_MATRIX: dict[str, Callable[[Value], list[Pair]]] = {
    "real": lambda m: [(imag(m), mul(imag(m), 0))] if m.dtype.kind == "c" else [],
    "unitary": lambda m: [(_gram(m), _one(m))],
    "orthogonal_columns": lambda m: [(_gram(m), _one(m))],
    "self_adjoint": lambda m: [(m, adjoint(m))],
    "skew_adjoint": lambda m: [(m, neg(adjoint(m)))],
    "symmetric": lambda m: [(m, matrix_transpose(m))],
    "normal": lambda m: [(_gram(m), matmul(m, adjoint(m)))],
    "positive": _not_negative,
    "invertible": _regular,
    "projector": lambda m: [(matmul(m, m), m), (m, adjoint(m))],
    "diagonal": lambda m: [(m, triu(tril(m)))],
    "triangular_lower": lambda m: [(m, tril(m))],
    "triangular_upper": lambda m: [(m, triu(m))],
    "circulant": lambda m: [(m, roll(m, (1, 1), (0, 1)))],
    "toeplitz": _shifted,
    "permutation": lambda m: [(_gram(m), _one(m)), (mul(m, m), m)],
}


def _inner(a: Operator, x: Value) -> Value:
    return matmul(adjoint(x), columns(a, x))


def _plain_inner(a: Operator, x: Value) -> Value:
    return matmul(matrix_transpose(x), columns(a, x))


def _twice(a: Operator, b: Operator, x: Value) -> Value:
    return columns(a, columns(b, x))


# What they say of products with vectors.
OF_PRODUCTS: dict[str, Callable[[Operator, Value], list[Pair]]] = {
    "unitary": lambda a, x: [(_twice(a.H, a, x), x)],
    "orthogonal_columns": lambda a, x: [(_twice(a.H, a, x), x)],
    "self_adjoint": lambda a, x: OF_MATRIX["self_adjoint"](_inner(a, x)),
    "skew_adjoint": lambda a, x: OF_MATRIX["skew_adjoint"](_inner(a, x)),
    "symmetric": lambda a, x: OF_MATRIX["symmetric"](_plain_inner(a, x)),
    "normal": lambda a, x: [(_twice(a.H, a, x), _twice(a, a.H, x))],
    "positive": lambda a, x: _not_negative(_inner(a, x)),
    "projector": lambda a, x: [(_twice(a, a, x), columns(a, x)), *OF_MATRIX["self_adjoint"](_inner(a, x))],
}  # fmt: skip
_SQUARE = set(OF_MATRIX) - {
    "real", "orthogonal_columns", "diagonal", "triangular_lower", "triangular_upper", "toeplitz",
}  # fmt: skip


@function
def check_claims(a: Any) -> Operator:
    """A, if its numbers satisfy its assumed flags; while tracing, an A that checks them when it runs."""
    return _verify(as_operator("check_claims", a))


def _verify(a: Operator) -> Operator:
    found = current_builder()
    if a.is_gradient or not all(isinstance(v, Value) for v in tree.leaves(a)):
        return a  # gradients carry no assumed flags, nor do symbols while laws are tried
    if ("verified", found) not in a.memo:
        parts = tuple(_verify(p) for p in a.parts)
        changed = any(p is not q for p, q in zip(parts, a.parts, strict=True))
        new = Operator(a.kind, parts, a.data, a.static, a.assumed) if changed else a
        new = _looked_at(new, a.assumed - _own(a)) if a.assumed else new
        new.memo["verified", found] = new
        a.memo["verified", found] = new
    return a.memo["verified", found]  # type: ignore[no-any-return]


def _own(a: Operator) -> frozenset[str]:
    """What the structure tells, whatever is vouched for."""
    return a._made(frozenset()).flags


def _looked_at(a: Operator, claims: frozenset[str]) -> Operator:
    bare = a._made(frozenset())
    data = list(a.data)
    for flag in sorted(claims & set(OF_MATRIX)):
        if flag in _SQUARE and a.shape[0] != a.shape[1]:
            raise NumericalError(f"assume: {a} is not {flag}: it is not square; leave the flag out")
        for x, y in _pairs(bare, flag):
            checked = _ensured(a, flag, x, y, data[0] if data else None)
            data[:1] = [checked] if data else []
    if not data or data[0] is a.data[0]:
        return a
    return Operator(a.kind, a.parts, data, a.static, a.assumed)


def _pairs(a: Operator, flag: str) -> Sequence[Pair]:
    n = a.shape[1]
    if all(isinstance(s, int) and s <= DENSE_LIMIT for s in a.shape):
        return OF_MATRIX[flag](dense_of(a))
    if flag not in OF_PRODUCTS or not isinstance(n, int):
        return ()
    with own_draws():
        probes = normal(key(0), (n, PROBES), dtype=a.dtype.real)
    return OF_PRODUCTS[flag](a, cast_to(probes, a.dtype))


def _ensured(a: Operator, flag: str, x: Value, y: Value, leaf: Value | None) -> Value:
    """The leaf, or any tensor, once x and y are found to be near each other."""
    size = (
        maximum(largest(absolute(x)), largest(absolute(y)))
        if 0 not in x.shape
        else full_of((), 0, x.dtype.real)
    )
    off = largest(absolute(sub(x, y))) if 0 not in x.shape else size
    ok = le(
        off, mul(size, epsilon(x.dtype) ** 0.5)
    )  # claims that hold may have passed through functions
    text = f"assume: {a} is not {flag}: it is off by {{:.3g}} of {{:.3g}}; leave the flag out"
    held = constant(0.0) if leaf is None else leaf
    return ensure(held, ok, off, size, message=text)
