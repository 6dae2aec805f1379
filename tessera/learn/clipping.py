"""Clipping of gradients, by element or by their joint norm."""

from __future__ import annotations

from typing import Any

from tessera.core import tree
from tessera.core.blame import wanting
from tessera.core.dtype import f32
from tessera.lang import op
from tessera.learn.leafwise import power
from tessera.learn.optimizer import Tree


@wanting
def clip_by_value(grads: Tree, limit: float) -> Tree:
    """Gradients with every element brought into [-limit, limit]."""
    return tree.map(lambda g: op.clip(g, -limit, limit), grads)


def _wide_power(g: Any) -> Any:
    """|g|**2 in f32, or in f64 for gradients in double precision."""
    if g.dtype.is_complex:
        return power(g)
    return op.square(g if g.dtype.bits > f32.bits else op.cast(g, f32))


@wanting
def global_norm(grads: Tree) -> Any:
    """The Euclidean norm of all elements of a tree together."""
    return op.sqrt(op.sum(op.stack([op.sum(_wide_power(g)) for g in tree.leaves(grads)])))


@wanting
def clip_by_global_norm(grads: Tree, limit: float) -> Tree:
    """Gradients scaled down so that their joint Euclidean norm is at most the limit."""
    factor = op.minimum(1.0, limit / (global_norm(grads) + 1e-6))
    return tree.map(lambda g: g * op.cast(factor, g.dtype), grads)
