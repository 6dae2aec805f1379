"""Operators that the eigenvectors of their factors diagonalise.

With A = P diag(w) P.H and B = Q diag(v) Q.H, of any size together, P (x) Q diagonalises s (A (x) B) + t I,
whose eigenvalues are s w[i] v[j] + t, and s (A (+) B) + t I with s (w[i] + v[j]) + t: solutions and
determinants take the eigenvectors of the factors.  The derivative of a solution is A dx = db - dA x, that
of a determinant one of eigenvalues alone, so that both are right where eigenvalues repeat.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tessera.algebra.apply import columns, dense_of
from tessera.algebra.constructors.basic import slogdet_of_diagonal
from tessera.algebra.linear_graph import traced as traced_at
from tessera.algebra.operator import Operator
from tessera.algebra.solve import DENSE_LIMIT
from tessera.algebra.waves import Spectrum
from tessera.core import tree
from tessera.core.dtype import DType
from tessera.core.errors import NumericalError
from tessera.ir.graph.ir import Value, current_builder, host_data
from tessera.ir.graph.place import known_data
from tessera.ops.contraction import kron
from tessera.ops.creation import constant
from tessera.ops.custom import LinearRule, Values, custom
from tessera.ops.define import cast_to, full_of
from tessera.ops.elementwise import add, div, mul, real, sub
from tessera.ops.factor import eigh, eigvalsh
from tessera.ops.shape import expand_dims, flatten, reshape
from tessera.transform.batch_control import traced
from tessera.transform.differentiate import push_forward
from tessera.transform.inline import inline

CORES = ("kronecker", "kronsum")


def leaves_of(kind: str, a: Operator) -> list[Operator]:
    """The parts of nested operators of one kind, from left to right."""
    if a.kind != kind:
        return [a]
    return [f for p in a.parts for f in leaves_of(kind, p)]


@dataclass(frozen=True)
class Shifted:
    """The product of `scales` times a Kronecker product or sum, and multiples of the identity."""

    core: Operator
    scales: tuple[Any, ...]  # numbers and tensors
    shifts: tuple[tuple[Any, ...], ...]  # each a product of numbers and tensors

    def values(self, of_factors: Sequence[Value]) -> Value:
        """The eigenvalues, from those of the factors."""
        w = of_factors[0]
        for v in of_factors[1:]:
            w = kron(w, v) if self.core.kind == "kronecker" else _sums(w, v)
        w = _times(w, self.scales)
        for shift in self.shifts:
            w = add(w, _times(full_of((), 1, w.dtype), shift))
        return w


def _sums(w: Value, v: Value) -> Value:
    return flatten(add(expand_dims(w, 1), expand_dims(v, 0)))


def _times(x: Value, factors: Sequence[Any]) -> Value:
    for f in factors:
        x = mul(x, cast_to(real(f), x.dtype) if isinstance(f, Value) else f)
    return x


def shifted(a: Operator) -> Shifted | None:
    """A as a Kronecker product or sum of self-adjoint factors and multiples of the identity."""
    cores: list[tuple[Operator, tuple[Any, ...]]] = []
    shifts: list[tuple[Any, ...]] = []
    for term in leaves_of("plus", a):
        inner, factors = unscaled(term)
        if inner.kind == "eye":
            shifts.append(factors)
        else:
            cores.append((inner, factors))
    if (
        len(cores) != 1
        or cores[0][0].kind not in CORES
        or not _are_real((*cores[0][1], *sum(shifts, ())))
    ):
        return None
    core, scales = cores[0]
    if not all(_is_self_adjoint(f) for f in leaves_of(core.kind, core)):
        return None
    return Shifted(core, scales, tuple(shifts))


def unscaled(a: Operator) -> tuple[Operator, tuple[Any, ...]]:
    """An operator without the factors before it, and those."""
    factors: list[Any] = []
    while a.kind == "scale":
        factors.append(a.data[0] if a.data else a.static[0])
        (a,) = a.parts
    return a, tuple(factors)


def _are_real(factors: Sequence[Any]) -> bool:
    return not any(
        f.dtype.kind == "c" if isinstance(f, Value) else isinstance(f, complex) for f in factors
    )


def _is_self_adjoint(a: Operator) -> bool:
    """By what is known without numbers, else by the numbers of a matrix that is not large."""
    n = a.shape[0]
    if "self_adjoint" in a.flags:
        return True
    if n != a.shape[1] or not isinstance(n, int) or n > DENSE_LIMIT:
        return False
    m = known_data(dense_of(a))
    return m is not None and bool(np.array_equal(m, np.conj(m.T)))


# Solutions --------------------------------------------------------------------------------------


def solve(a: Operator, b: Value) -> Value | None:
    """A X = B in the eigenvectors of the factors, None when A is no such operator."""
    if shifted(a) is None:
        return None
    if current_builder() is None:
        return _by_eigenvectors(a, b)
    return _node(a, b)


def _basis(a: Operator, found: Shifted) -> tuple[Value, Operator]:
    """The eigenvalues, and the eigenvectors as an operator; those of numbers are kept."""
    key = ("eigenbasis", current_builder())
    if key not in a.memo:
        pairs = [eigh(dense_of(f)) for f in leaves_of(found.core.kind, found.core)]
        basis = Operator("dense", data=(pairs[0][1],))
        for _, v in pairs[1:]:
            basis = Operator("kronecker", (basis, Operator("dense", data=(v,))))
        a.memo[key] = found.values([w for w, _ in pairs]), basis
    return a.memo[key]  # type: ignore[no-any-return]


def _by_eigenvectors(a: Operator, b: Value) -> Value:
    found = shifted(a)
    assert found is not None, a
    w, basis = _basis(a, found)
    refuse_singular(a, w)
    inner = columns(basis.H, b)
    return columns(basis, div(inner, reshape(cast_to(w, inner.dtype), (a.shape[0], 1))))


def refuse_singular(a: Operator, w: Value) -> None:
    """Eigenvalues that vanish are refused where the numbers are known."""
    if w.storage is None or not host_data(w).size:
        return
    size = float(np.max(np.abs(host_data(w))))
    if float(np.min(np.abs(host_data(w)))) <= size * float(np.finfo(host_data(w).dtype).eps):
        raise NumericalError(f"solve: {a} is singular: an eigenvalue is 0; use pseudoinverse")


def _node(a: Operator, b: Value) -> Value:
    """The solution as a node that knows its derivative: A dX = dB - dA X."""
    leaves, s = tree.flatten(a)
    operands = [b, *leaves]

    def run(b: Value, *xs: Value) -> list[Value]:
        return [_by_eigenvectors(tree.unflatten(s, xs), b)]

    def push(values: Values, tangents: Values) -> tuple[Values, Values]:
        here = tree.unflatten(s, values[1:])
        x = _node(here, values[0])
        t, given = traced_at(
            lambda *ys: columns(tree.unflatten(s, ys), x), tuple(values[1:]), "solve"
        )
        moving = [
            d if v.dtype.kind in "fc" else None
            for v, d in zip(values[1:], tangents[1:], strict=True)
        ]
        still = [None] * (len(given) - len(moving))
        (moved,) = push_forward(inline(t.graph), given, [*moving, *still])[1]
        right = tangents[0] if moved is None else sub(tangents[0], moved)
        return [x], [_node(here, right)]

    def transposed(values: Values, ct: Value) -> Value:
        return _node(tree.unflatten(s, values[1:]).T, ct)

    g, outer = traced(operands, run, "solve")
    rule = LinearRule("solve", len(operands), push, transposed)
    return custom(g, *operands, *outer, rule=rule)[0]


# Determinants and spectra -----------------------------------------------------------------------


def slogdet(a: Operator) -> tuple[Value, Value] | None:
    """Sign and logarithm of the determinant by the eigenvalues, None when A is no such operator."""
    found = shifted(a)
    if found is None:
        return None
    factors = leaves_of(found.core.kind, found.core)
    return slogdet_of_diagonal(found.values([eigvalsh(dense_of(f)) for f in factors]))


def spectrum(a: Operator) -> Spectrum | None:
    """All eigenvalues of a large operator of known numbers, None when it is none."""
    n = a.shape[0]
    large = isinstance(n, int) and n > DENSE_LIMIT
    if not large or any(v.storage is None for v in tree.leaves(a)) or (found := shifted(a)) is None:
        return None
    w, basis = _basis(a, found)
    if w.storage is None:
        return None
    vectors = [f.data[0] for f in leaves_of("kronecker", basis)]

    def chosen(at: Any, dtype: DType) -> Value:
        places = np.unravel_index(at, [v.shape[1] for v in vectors])
        out: Any = None
        for v, j in zip(vectors, places, strict=True):
            part = host_data(v)[:, j]
            out = part if out is None else (out[:, None] * part[None]).reshape(-1, len(at))
        return cast_to(constant(out), dtype)

    def weighted(weights: Value, x: Value) -> Value:
        inner = columns(basis.H, x)
        return columns(basis, mul(inner, reshape(cast_to(weights, inner.dtype), (n, 1))))

    return Spectrum(np.asarray(host_data(w), np.float64), chosen, weighted)
