"""Functional optimisers: state = opt.init(params); params, state = opt.update(grads, state, params).

An optimiser is a pair of functions on trees, so it works inside jit.  The learning rate is a number
or a function of the step (see the schedules at the end).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from tessera.core import tree
from tessera.core.blame import wanting
from tessera.core.dtype import DType, f32, f64
from tessera.core.errors import OperandError
from tessera.ir.graph.ir import Value
from tessera.lang import op
from tessera.learn.optimizer import Optimizer, State, Tree
from tessera.learn.scaling import loss_scaled  # noqa: F401
from tessera.ops.define import as_value

Rate = float | Callable[[Any], Any]


def _rate(lr: Rate, step: Value) -> Any:
    return lr(op.cast(step, f32)) if callable(lr) else lr


def _wide(dtype: DType) -> DType:
    """The dtype that a step is computed and remembered in: in f16, 1e-8 and the square of 1e-4 are 0."""
    return f32 if dtype.kind == "f" and dtype.bits < f32.bits else dtype


def _widened(x: Any) -> Any:
    v = as_value(x, "update")
    return op.cast(v, _wide(v.dtype))


def _zeros(params: Tree) -> Tree:
    return tree.map(lambda p: _widened(op.zeros_like(p)), params)


def _real_zeros(params: Tree) -> Tree:
    """Zeros for mean squares, which are real for complex parameters too."""
    return tree.map(lambda z: op.zeros_like(z, z.dtype.real), _zeros(params))


def _moved(p: Any, rate: Any, direction: Any) -> Any:
    """p - rate * direction, rounded once to the dtype of p."""
    x, to = _widened(p), as_value(p, "update").dtype
    return op.cast(x - op.cast(rate, x.dtype) * direction, to)


def _power(g: Any) -> Any:
    """|g|**2, so that a step keeps the phase of a complex gradient."""
    return op.square(op.real(g)) + op.square(op.imag(g)) if g.dtype.is_complex else g * g


def _start() -> Value:
    return op.full((), 0, "i32")


def _unzip(pairs: Tree, like: Tree, n: int) -> tuple[Tree, ...]:
    """A tree of n-tuples as n trees."""
    leaves, structure = tree.flatten(like)
    flat = tree.leaves(pairs)
    return tuple(tree.unflatten(structure, flat[i::n][: len(leaves)]) for i in range(n))


@wanting
def sgd(lr: Rate, momentum: float = 0.0, nesterov: bool = False, decay: float = 0.0) -> Optimizer:
    """Stochastic gradient descent, with momentum and weight decay if given."""
    if nesterov and not momentum:
        raise OperandError(
            "sgd: nesterov=True looks ahead along the momentum, which is 0; give momentum, as in momentum=0.9"
        )

    def init(params: Tree) -> State:
        state = {"step": _start()}
        return state | ({"velocity": _zeros(params)} if momentum else {})

    def update(grads: Tree, state: State, params: Tree) -> tuple[Tree, State]:
        rate = _rate(lr, state["step"])
        new: State = {"step": state["step"] + 1}
        grads = tree.map(_widened, grads)
        if decay:
            grads = tree.map(lambda g, p: g + decay * _widened(p), grads, params)
        steps = grads
        if momentum:
            new["velocity"] = tree.map(lambda v, g: momentum * v + g, state["velocity"], grads)
            steps = (
                tree.map(lambda v, g: momentum * v + g, new["velocity"], grads)
                if nesterov
                else new["velocity"]
            )
        return tree.map(lambda p, d: _moved(p, rate, d), params, steps), new

    return Optimizer(init, update)


@wanting
def adam(
    lr: Rate, b1: float = 0.9, b2: float = 0.999, eps: float = 1e-8, decay: float = 0.0
) -> Optimizer:
    """Adam; with decay, the decoupled weight decay of AdamW."""

    def init(params: Tree) -> State:
        return {"step": _start(), "m": _zeros(params), "v": _real_zeros(params)}

    def update(grads: Tree, state: State, params: Tree) -> tuple[Tree, State]:
        step = state["step"] + 1
        count = op.cast(step, f64)  # in f32, 1 - 0.999 would have four digits
        rate = _rate(lr, state["step"])
        scale_m = 1 - op.pow(b1, count)
        scale_v = 1 - op.pow(b2, count)

        def one(p: Any, g: Any, m: Any, v: Any) -> tuple[Any, Any, Any]:
            x, g = _widened(p), _widened(g)
            m = b1 * m + (1 - b1) * g
            v = b2 * v + (1 - b2) * _power(g)
            step_size = op.cast(rate / scale_m, x.dtype)
            direction = m / (op.sqrt(v / op.cast(scale_v, v.dtype)) + eps)
            kept = x * op.cast(1 - decay * rate, x.dtype) if decay else x
            return op.cast(kept - step_size * direction, as_value(p, "update").dtype), m, v

        triples = tree.map(one, params, grads, state["m"], state["v"])
        new, m, v = _unzip(triples, params, 3)
        return new, {"step": step, "m": m, "v": v}

    return Optimizer(init, update)


@wanting
def adamw(
    lr: Rate, b1: float = 0.9, b2: float = 0.999, eps: float = 1e-8, decay: float = 0.01
) -> Optimizer:
    """Adam with decoupled weight decay."""
    return adam(lr, b1, b2, eps, decay)


@wanting
def lion(lr: Rate, b1: float = 0.9, b2: float = 0.99, decay: float = 0.0) -> Optimizer:
    """Lion (Chen et al. 2023): the sign of a blend of momentum and gradient, with decoupled decay."""

    def init(params: Tree) -> State:
        return {"step": _start(), "m": _zeros(params)}

    def update(grads: Tree, state: State, params: Tree) -> tuple[Tree, State]:
        rate = _rate(lr, state["step"])

        def one(p: Any, g: Any, m: Any) -> tuple[Any, Any]:
            g = _widened(g)
            direction = op.sign(b1 * m + (1 - b1) * g)
            whole = direction + decay * _widened(p) if decay else direction
            return _moved(p, rate, whole), b2 * m + (1 - b2) * g

        new, m = _unzip(tree.map(one, params, grads, state["m"]), params, 2)
        return new, {"step": state["step"] + 1, "m": m}

    return Optimizer(init, update)


@wanting
def rmsprop(lr: Rate, decay: float = 0.9, eps: float = 1e-8) -> Optimizer:
    """Gradients over the root of the running mean of their squares, which decays at this rate."""

    def init(params: Tree) -> State:
        return {"step": _start(), "v": _real_zeros(params)}

    def update(grads: Tree, state: State, params: Tree) -> tuple[Tree, State]:
        rate = _rate(lr, state["step"])

        def one(p: Any, g: Any, v: Any) -> tuple[Any, Any]:
            g = _widened(g)
            v = decay * v + (1 - decay) * _power(g)
            return _moved(p, rate, g / (op.sqrt(v) + eps)), v

        new, v = _unzip(tree.map(one, params, grads, state["v"]), params, 2)
        return new, {"step": state["step"] + 1, "v": v}

    return Optimizer(init, update)


@wanting
def clip_by_value(grads: Tree, limit: float) -> Tree:
    """Gradients with every element brought into [-limit, limit]."""
    return tree.map(lambda g: op.clip(g, -limit, limit), grads)


def _wide_power(g: Any) -> Any:
    """|g|**2 in f32, or in f64 for gradients in double precision."""
    if g.dtype.is_complex:
        return _power(g)
    return op.square(g if g.dtype.bits > f32.bits else op.cast(g, f32))


@wanting
def clip_by_global_norm(grads: Tree, limit: float) -> Tree:
    """Gradients scaled down so that their joint Euclidean norm is at most the limit."""
    powers = [op.sum(_wide_power(g)) for g in tree.leaves(grads)]
    norm = op.sqrt(op.sum(op.stack(powers)))
    factor = op.minimum(1.0, limit / (norm + 1e-6))
    return tree.map(lambda g: g * op.cast(factor, g.dtype), grads)


# Schedules: functions of the step


@wanting
def constant(value: float) -> Callable[[Any], Any]:
    """The same rate at every step."""
    return lambda step: op.full_like(step, value)


@wanting
def linear(start: float, stop: float, steps: int) -> Callable[[Any], Any]:
    """A rate that goes from start to stop in so many steps and stays there."""
    return lambda step: start + (stop - start) * op.clip(step / max(steps, 1), 0.0, 1.0)


@wanting
def exponential(start: float, factor: float, every: float = 1.0) -> Callable[[Any], Any]:
    """A rate that is multiplied by a factor in the course of `every` steps, evenly."""
    return lambda step: start * op.pow(factor, step / every)


@wanting
def staircase(start: float, factor: float, every: int) -> Callable[[Any], Any]:
    """A rate that is multiplied by a factor after each `every` steps."""
    return lambda step: start * op.pow(factor, op.floor(step / every))


@wanting
def warmup_cosine(peak: float, warmup: int, total: int, floor: float = 0.0) -> Callable[[Any], Any]:
    """A rate that rises linearly for `warmup` steps and then falls along a half cosine."""

    def rate(step: Any) -> Any:
        rising = peak * (step + 1) / max(warmup, 1)
        share = op.clip((step - warmup) / max(total - warmup, 1), 0.0, 1.0)
        falling = floor + (peak - floor) * 0.5 * (1 + op.cos(share * math.pi))
        return op.where(step < warmup, rising, falling)

    return rate
