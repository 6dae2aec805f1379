"""Clipping of gradients, by element or by their joint norm."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from tessera.core import tree
from tessera.core.blame import blames_arguments, wanting
from tessera.core.dtype import f32
from tessera.core.errors import OperandError, located
from tessera.lang import op
from tessera.learn.leafwise import power
from tessera.learn.optimizer import Tree
from tessera.ops.define import as_value

P = ParamSpec("P")
R = TypeVar("R")


def _no_step(name: str, step: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Refuse a limit without gradients, which is a step in optax: name the step of ours."""

    def decorate(f: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(f)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            if len(args) == 1 and not kwargs and isinstance(args[0], int | float):
                got = f"{name}: got the limit {args[0]!r} and no gradients"
                raise located(
                    OperandError(f"{got}; a step of optim.chain is optim.{step}({args[0]!r})")
                )
            return f(*args, **kwargs)

        return call

    return decorate


def _refuse_negative(name: str, limit: Any) -> None:
    """Refuse a limit below zero, which would turn gradients round."""
    if isinstance(limit, int | float) and not limit >= 0:
        raise located(OperandError(f"{name}: limit is {limit}, expected 0 or more"))


@_no_step("clip_by_value", "clip_value")
@wanting
def clip_by_value(grads: Tree, limit: float) -> Tree:
    """Gradients with every element brought into [-limit, limit]."""
    _refuse_negative("clip_by_value", limit)
    return tree.map(lambda g: op.clip(g, -limit, limit), grads)


def _wide_power(g: Any) -> Any:
    """|g|**2 in f32, or in f64 for gradients in double precision."""
    if g.dtype.is_complex:
        return power(g)
    return op.square(g if g.dtype.bits > f32.bits else op.cast(g, f32))


@blames_arguments
def global_norm(grads: Tree) -> Any:
    """The Euclidean norm of all elements of a tree together."""
    leaves = [as_value(g, "optim.global_norm") for g in tree.leaves(grads)]
    return op.sqrt(op.sum(op.stack([op.sum(_wide_power(g)) for g in leaves])))


@_no_step("clip_by_global_norm", "clip_norm")
@wanting
def clip_by_global_norm(grads: Tree, limit: float) -> Tree:
    """Gradients scaled down so that their joint Euclidean norm is at most the limit."""
    _refuse_negative("clip_by_global_norm", limit)
    factor = op.minimum(1.0, limit / (global_norm(grads) + 1e-6))
    return tree.map(lambda g: g * op.cast(factor, g.dtype), grads)
