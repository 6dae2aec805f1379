"""Traces and determinants from products with random vectors, each with its standard error."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from tessera.algebra.apply import applied, columns, square
from tessera.algebra.operator import Operator, function
from tessera.algebra.solvers import short
from tessera.algebra.solvers.closed import Closed, close
from tessera.algebra.solvers.implicit import SolverSettings, System, by_row, dot, is_zero, solution
from tessera.algebra.solvers.krylov import steps_of
from tessera.algebra.solvers.long import lanczos_process, tridiagonal
from tessera.core.errors import OperandError
from tessera.core.types import TensorType
from tessera.ir.graph.ir import Value, current_builder
from tessera.ops.callbacks import ensure
from tessera.ops.contraction import matmul
from tessera.ops.custom import ForwardRule, Values, custom
from tessera.ops.define import full_of
from tessera.ops.elementwise import conj, gt, log, mul, real, stop_gradient, where
from tessera.ops.elementwise import square as squared
from tessera.ops.factor import eigh, qr
from tessera.ops.indexing import index
from tessera.ops.linalg import epsilon
from tessera.ops.matrix import adjoint
from tessera.ops.random import bernoulli
from tessera.ops.random_bits import key as key_of
from tessera.ops.random_bits import split
from tessera.ops.reduction import mean, std
from tessera.ops.reduction import min as least
from tessera.ops.reduction import sum as total
from tessera.ops.shape import matrix_transpose, slice_, squeeze
from tessera.transform.batch_control import traced
from tessera.transform.differentiate import Tangent, zeros


class Estimate(NamedTuple):
    """A mean over random vectors, and its standard error."""

    value: Value
    error: Value


def signs(key: Any, n: int, count: int, a: Operator) -> Value:
    """Columns of -1 and 1."""
    up = bernoulli(key_of(0) if key is None else key, 0.5, (n, count))
    return where(up, full_of((), 1, a.dtype), -1)


def _mean(ts: Value, plus: Value | None = None) -> Estimate:
    count = ts.shape[0]
    value = mean(ts)
    error = std(real(ts), correction=1.0) if count > 1 else full_of((), float("inf"), ts.dtype.real)
    return Estimate(value if plus is None else value + plus, stop_gradient(mul(error, count**-0.5)))


@function
def stochastic_trace(
    a: Any, *, samples: int = 64, key: Any = None, method: str = "hutch++"
) -> Estimate:
    """The trace of A from so many products: by Hutchinson (1990) or Hutch++ (Meyer et al. 2021)."""
    found = square("stochastic_trace", a)
    n, user = found.shape[0], "stochastic_trace"
    count = steps_of(user, samples, 1 << 30, "samples")
    if method == "hutchinson":
        z = signs(key, n, count, found)
        return _mean(total(mul(conj(z), columns(found, z)), 0))
    if method != "hutch++":
        raise OperandError(f"{user}: method is {method!r}, expected 'hutchinson' or 'hutch++'")
    rank = min(max(count // 3, 1), n)
    keys = split(key_of(0) if key is None else key)
    first, second = index(keys, 0), index(keys, 1)
    # The trace does not depend on the basis, so that its derivative need not either.
    q = stop_gradient(qr(columns(found, signs(first, n, rank, found)))[0])
    inside = total(mul(conj(q), columns(found, q)))
    g = signs(second, n, rank, found)
    g = g - matmul(q, matmul(adjoint(q), g))
    return _mean(total(mul(conj(g), columns(found, g)), 0), inside)


# Determinants -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Logdet:
    """Stochastic Lanczos quadrature of log det A: rows of probes, and the settings of its solves."""

    apply: Closed
    steps: int
    settings: SolverSettings

    def run(self, probes: Value, leaves: Sequence[Value]) -> list[Value]:
        """An estimate for each probe."""
        apply = self.apply.on(leaves)
        user = self.settings.user

        def one(z: Value) -> list[Value]:
            t = lanczos_process(apply, z, self.steps)
            w, v = eigh(tridiagonal(t))
            low = least(w)
            w = ensure(
                w, gt(low, 0), low,
                message=f"{user}: is not positive definite: it has a Ritz value of {{:.3g}}; use "
                "op.slogdet of the dense matrix",
            )  # fmt: skip
            weight = squared(squeeze(slice_(v, (0, 0), (1, self.steps)), 0))
            return [mul(real(dot(z, z)), total(mul(weight, log(w))))]

        return by_row(one, [probes])


def _node(p: _Logdet, probes: Value, leaves: Values) -> Value:
    """d log det A = tr(A^-1 dA), which the same probes estimate."""

    def push(values: Values, tangents: Values) -> tuple[Values, Values]:
        z, *mine = values
        y = _node(p, z, mine)
        ts: list[Tangent] = [None if is_zero(t) else t for t in tangents[1:]]
        system = System(short.cg, True, p.apply, None, p.settings)

        def one(z: Value) -> list[Value]:
            inner = System(short.cg, True, Closed(p.apply.graph, tuple(mine)), None, p.settings)
            x = solution(inner, z)[0]
            moved = system.apply.moved(z, mine, ts)
            return [zeros(y.type.with_shape(())) if moved is None else real(dot(x, moved))]

        return [y], by_row(one, [z])

    operands = [probes, *leaves]
    g, outer = traced(operands, lambda z, *rest: p.run(z, rest), "stochastic_logdet")
    rule = ForwardRule("stochastic_logdet", len(operands), push)
    return custom(g, *operands, *outer, rule=rule)[0]


@function
def stochastic_logdet(
    a: Any, *, samples: int = 32, steps: int = 64, key: Any = None, tol: float | None = None,
    limit: int | None = None,
) -> Estimate:  # fmt: skip
    """log det of a positive definite A by stochastic Lanczos quadrature (Ubaru et al. 2017).

    Its derivative is tr(A^-1 dA) over the same random vectors, with solutions by cg.
    """
    user = "stochastic_logdet"
    found = square(user, a)
    n = found.shape[0]
    z = matrix_transpose(signs(key, n, steps_of(user, samples, 1 << 30, "samples"), found))
    rough = 1e-8 if epsilon(found.dtype) < 1e-12 else 1e-4
    s = SolverSettings(
        f"{user}: {found}", rough if tol is None else float(tol), 0.0,
        max(100, min(10 * n, 20_000)) if limit is None else int(limit), True,
    )  # fmt: skip
    closed = close(lambda x: applied(user, found, x), TensorType(found.dtype, (n,)))
    p = _Logdet(closed, steps_of(user, steps, n), s)
    if current_builder() is None:
        return _mean(p.run(z, closed.leaves)[0])
    return _mean(_node(p, z, closed.leaves))
