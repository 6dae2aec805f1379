"""Preconditioners: operators that stand for the inverse of A, roughly."""

from __future__ import annotations

from typing import Any

import numpy as np

from tessera.algebra.apply import columns, conjugate, dense_of, diagonal_of, light_cost, square
from tessera.algebra.combinators.linear import plus
from tessera.algebra.constructors.basic import diag, eye
from tessera.algebra.constructors.factored import low_rank
from tessera.algebra.kind import Kind, register
from tessera.algebra.operator import Operator, function
from tessera.algebra.solvers.krylov import steps_of
from tessera.core.errors import OperandError
from tessera.ir.graph.ir import Value
from tessera.ops.callbacks import ensure
from tessera.ops.contraction import matmul
from tessera.ops.creation import iota
from tessera.ops.define import cast_to, full_of
from tessera.ops.elementwise import div, ge, maximum, mul, ne, reciprocal, sub, where
from tessera.ops.elementwise import square as squared
from tessera.ops.factor import cholesky, qr, svd
from tessera.ops.indexing import index
from tessera.ops.linalg import epsilon
from tessera.ops.matrix import adjoint, matrix_diag
from tessera.ops.random import normal
from tessera.ops.random_bits import key as key_of
from tessera.ops.reduction import all as every
from tessera.ops.reduction import norm
from tessera.ops.shape import matrix_transpose, pad, reshape, slice_
from tessera.ops.solve import inv, triangular_solve


@function
def jacobi(a: Any) -> Operator:
    """The inverse of the diagonal of A."""
    found = square("jacobi", a)
    d = diagonal_of(found)
    d = ensure(
        d, every(ne(d, 0)),
        message=f"jacobi: {found} has a zero on its diagonal; use another preconditioner",
    )  # fmt: skip
    made: Operator = diag(reciprocal(d))
    return made.assume(*(found.flags & {"positive"}))


# Blocks -------------------------------------------------------------------------------------------


@function
def block_jacobi(a: Any, size: int) -> Operator:
    """The inverses of the blocks of so many rows and columns along the diagonal of A."""
    found = square("block_jacobi", a)
    n = found.shape[0]
    s = steps_of("block_jacobi", size, n, "size")
    count = -(-n // s)
    rest = count * s - n
    whole = pad(dense_of(found), ((0, rest), (0, rest)))
    past = where(ge(iota((count * s,), 0), n), full_of((), 1, found.dtype), 0)
    whole = whole + matrix_diag(past)  # ones on the diagonal past the end
    at = iota((count,), 0)
    every_block = (at, slice(None), at, slice(None))
    blocks = index(reshape(whole, (count, s, count, s)), every_block)
    made = Operator("block_diagonal", data=(inv(blocks),), static=(n,))
    return made.assume(*(found.flags & {"positive", "self_adjoint"}))


def _apply_blocks(a: Operator, x: Value) -> Value:
    blocks, (n,), k = a.data[0], a.static, x.shape[1]
    count, s, _ = blocks.shape
    stacked = reshape(pad(x, ((0, count * s - n), (0, 0))), (count, s, k))
    return slice_(reshape(matmul(blocks, stacked), (count * s, k)), (0, 0), (n, k))


def _turned(a: Operator) -> Operator:
    return Operator("block_diagonal", data=(matrix_transpose(a.data[0]),), static=a.static)


def _exact_blocks(a: Operator, parts: Any, data: Any) -> Any:
    (blocks,), (n,) = data, a.static
    count, s, _ = blocks.shape
    out = np.zeros((count * s, count * s), object)
    for k in range(count):
        out[k * s : k * s + s, k * s : k * s + s] = blocks[k]
    return out[:n, :n]


register(Kind(
    name="block_diagonal", doc="Blocks of one size along the diagonal, the last one cut at the end.",
    shape=lambda parts, data, static: (static[0], static[0]),
    apply=_apply_blocks, transpose=_turned, representation="blocksparse",
    conj=lambda a: Operator("block_diagonal", data=(conjugate(a.data[0]),), static=a.static),
    cost=lambda a, k: light_cost(
        a, k, 2.0 * a.static[0] * a.data[0].shape[1] * k, float(a.static[0] * a.data[0].shape[1])
    ),
    exact=_exact_blocks,
))  # fmt: skip


# Low rank -----------------------------------------------------------------------------------------


@function
def nystrom(a: Any, rank: int, shift: float = 0.0, key: Any = None) -> Operator:
    """A preconditioner for A + shift I from a random sketch of a positive A (Frangella et al. 2021).

    With the largest eigenvalues S and vectors U of the sketch it is (s + shift) U / (S + shift) U.H on
    their span and the identity off it, where s is the smallest of S.
    """
    found = square("nystrom", a)
    if not found.flags & {"positive"}:
        raise OperandError(
            f"nystrom: {found} is not known to be positive; say so with A.assume('positive')"
        )
    n, dtype = found.shape[0], found.dtype
    r = steps_of("nystrom", rank, n, "rank")
    draws = normal(key_of(0) if key is None else key, (n, r), dtype=dtype.real)
    test, _ = qr(cast_to(draws, dtype))
    y = columns(found, test)
    nu = mul(norm(y), epsilon(dtype))
    y = y + mul(test, cast_to(nu, dtype))
    factor = cholesky(matmul(adjoint(test), y))  # lower, core = L L.H
    b = adjoint(triangular_solve(factor, adjoint(y)))
    u, s, _ = svd(b, full_matrices=False)
    values = maximum(sub(squared(s), nu), 0)
    last = slice_(values, (r - 1,), (r,))
    change = sub(div(last + shift, maximum(values + shift, epsilon(dtype))), 1)
    made: Operator = plus(eye(n, dtype), low_rank(u, s=cast_to(change, dtype)))
    return made.assume("positive")
