"""Shampoo: gradients preconditioned along each of their axes (Gupta, Koren and Singer 2018)."""

from __future__ import annotations

from typing import Any

from tessera.core.errors import OperandError, located
from tessera.lang import op
from tessera.learn.leafwise import Rate, StepFacts, leafwise, moved, zeros
from tessera.learn.optimizer import Optimizer, in_range
from tessera.ops.arrange import eye


def inverse_root(a: Any, p: int) -> Any:
    """a**(-1 / p) of a symmetric positive definite matrix."""
    values, vectors = op.eigh(a)
    least = op.max(values) * 1e-12  # what rounding makes of the smallest ones
    return (vectors * op.pow(op.maximum(values, least), -1.0 / p)) @ vectors.mT


@in_range
def shampoo(
    lr: Rate, momentum: float = 0.0, eps: float = 1e-4, decay: float = 0.0, largest: int = 4096
) -> Optimizer:  # fmt: skip
    """L**(-1/4) G R**(-1/4), where L and R sum up G G' and G' G from eps I on; L**(-1/2) g for vectors.

    A parameter of more axes is a matrix of its first one and the rest.  Sides longer than `largest` are not
    preconditioned, as in the paper: their part of the root goes to the other side.
    """
    if not eps > 0:
        raise located(OperandError(f"shampoo: eps is {eps}, expected a positive number"))

    def side(k: int) -> Any:
        def make(x: Any) -> Any:
            n = _matrix(x).shape[k]
            return eps * eye(n, dtype=x.dtype) if 1 < n <= largest else op.zeros((0, 0), x.dtype)

        return make

    def rule(step: StepFacts, x: Any, g: Any, left: Any, right: Any, v: Any) -> tuple[Any, ...]:
        m = _matrix(g + decay * x if decay else g)
        left = left + m @ m.mT if left.shape[0] else left
        right = right + m.mT @ m if right.shape[0] else right
        root = 2 * ((left.shape[0] > 0) + (right.shape[0] > 0))
        direction = inverse_root(left, root) @ m if left.shape[0] else m
        direction = direction @ inverse_root(right, root) if right.shape[0] else direction
        v = momentum * v + op.reshape(direction, x.shape)
        return moved(x, step.rate, v), left, right, v

    slots = {"left": side(0), "right": side(1), "velocity": zeros}
    return leafwise(lr, slots, rule)


def _matrix(x: Any) -> Any:
    """A tensor as a matrix of its first axis and the rest; a vector as a column."""
    if x.dtype.is_complex:
        raise OperandError(f"shampoo: a parameter is {x.type}, expected real numbers")
    rows = x.shape[0] if x.ndim else 1
    return op.reshape(x, (rows, -1)) if x.size else op.reshape(x, (0, 0))
