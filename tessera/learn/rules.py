"""The update rules of first-order optimisers, each for one parameter at a time."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tessera.core.errors import OperandError
from tessera.lang import op
from tessera.learn.leafwise import (
    Rate,
    StepFacts,
    leafwise,
    moved,
    power,
    real_zeros,
    zeros,
)
from tessera.learn.optimizer import Optimizer, in_range


def _kept(step: StepFacts, x: Any, decay: float) -> Any:
    """x after decoupled weight decay."""
    return x * op.cast(1 - decay * step.rate, x.dtype) if decay else x


@in_range
def sgd(
    lr: Rate,
    momentum: float = 0.0,
    nesterov: bool = False,
    decay: float = 0.0,
    *,
    dampening: float = 0.0,
) -> Optimizer:
    """Stochastic gradient descent, with momentum and weight decay if given."""
    if nesterov and (not momentum or dampening):
        raise OperandError(
            f"sgd: nesterov with momentum {momentum} and dampening {dampening}; expected momentum and no "
            "dampening"
        )

    def rule(step: StepFacts, x: Any, g: Any, *v: Any) -> tuple[Any, ...]:
        g = g + decay * x if decay else g
        if not momentum:
            return (moved(x, step.rate, g),)
        if dampening:  # not in the first step
            first, later = (op.full((), n, x.dtype) for n in (1.0, 1 - dampening))
            new = momentum * v[0] + op.where(op.eq(step.number, 0), first, later) * g
        else:
            new = momentum * v[0] + g
        return moved(x, step.rate, momentum * new + g if nesterov else new), new

    return leafwise(lr, {"velocity": zeros} if momentum else {}, rule)


@in_range
def adam(
    lr: Rate,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-8,
    decay: float = 0.0,
    *,
    l2: float = 0.0,
    amsgrad: bool = False,
) -> Optimizer:
    """Adam; decay is the decoupled weight decay of AdamW, l2 is added to the gradient."""

    def rule(step: StepFacts, x: Any, g: Any, m: Any, v: Any, *top: Any) -> tuple[Any, ...]:
        g = g + l2 * x if l2 else g
        m = b1 * m + (1 - b1) * g
        v = b2 * v + (1 - b2) * power(g)
        most = op.maximum(top[0], v) if amsgrad else v
        size = op.cast(step.rate / (1 - op.pow(b1, step.count)), x.dtype)
        scale = op.cast(1 - op.pow(b2, step.count), v.dtype)
        direction = m / (op.sqrt(most / scale) + eps)
        new = _kept(step, x, decay) - size * direction
        return (new, m, v, most) if amsgrad else (new, m, v)

    slots = {"m": zeros, "v": real_zeros} | ({"top": real_zeros} if amsgrad else {})
    return leafwise(lr, slots, rule)


@in_range
def adamw(
    lr: Rate, b1: float = 0.9, b2: float = 0.999, eps: float = 1e-8, decay: float = 0.01
) -> Optimizer:
    """Adam with decoupled weight decay."""
    return adam(lr, b1, b2, eps, decay)


@in_range
def adamax(
    lr: Rate, b1: float = 0.9, b2: float = 0.999, eps: float = 1e-8, l2: float = 0.0
) -> Optimizer:
    """Adam with the largest recent gradient in place of the root mean square (Kingma and Ba 2015)."""

    def rule(step: StepFacts, x: Any, g: Any, m: Any, u: Any) -> tuple[Any, ...]:
        g = g + l2 * x if l2 else g
        m = b1 * m + (1 - b1) * g
        u = op.maximum(b2 * u, op.abs(g) + eps)
        return moved(x, step.rate / (1 - op.pow(b1, step.count)), m / u), m, u

    return leafwise(lr, {"m": zeros, "u": real_zeros}, rule)


@in_range
def nadam(
    lr: Rate,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-8,
    l2: float = 0.0,
    decay: float = 0.0,
    momentum_decay: float = 4e-3,
) -> Optimizer:
    """Adam with Nesterov's momentum (Dozat 2016); l2 is added to the gradient, decay is decoupled."""

    def mu(count: Any) -> Any:
        return b1 * (1 - 0.5 * op.pow(0.96, count * momentum_decay))

    def rule(step: StepFacts, x: Any, g: Any, m: Any, v: Any) -> tuple[Any, ...]:
        g = g + l2 * x if l2 else g
        now, later = mu(step.count), mu(step.count + 1)
        total = step.shared["mu"] * now
        m = b1 * m + (1 - b1) * g
        v = b2 * v + (1 - b2) * power(g)
        root = op.sqrt(v / op.cast(1 - op.pow(b2, step.count), v.dtype)) + eps
        by_g, by_m = (1 - now) / (1 - total), later / (1 - total * later)
        direction = (op.cast(by_g, x.dtype) * g + op.cast(by_m, x.dtype) * m) / root
        return moved(_kept(step, x, decay), step.rate, direction), m, v

    def after(step: StepFacts) -> dict[str, Any]:
        return {"mu": step.shared["mu"] * mu(step.count)}

    return leafwise(lr, {"m": zeros, "v": real_zeros}, rule, {"mu": 1.0}, after)


@in_range
def radam(
    lr: Rate,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-8,
    l2: float = 0.0,
    decay: float = 0.0,
) -> Optimizer:
    """Adam whose first steps are plain momentum, until the second moment is known well (Liu et al. 2020)."""
    most = 2 / (1 - b2) - 1

    def rule(step: StepFacts, x: Any, g: Any, m: Any, v: Any) -> tuple[Any, ...]:
        g = g + l2 * x if l2 else g
        m = b1 * m + (1 - b1) * g
        v = b2 * v + (1 - b2) * power(g)
        t, kept = step.count, op.pow(b2, step.count)
        known = most - 2 * t * kept / (1 - kept)
        safe = op.maximum(known, 5.0)
        rectified = op.sqrt(
            (safe - 4) * (safe - 2) * most / ((most - 4) * (most - 2) * safe) * (1 - kept)
        )
        plain = m / op.cast(1 - op.pow(b1, t), x.dtype)
        scaled = plain * op.cast(rectified, x.dtype) / (op.sqrt(v) + eps)
        direction = op.where(known > 5.0, scaled, plain)
        return moved(_kept(step, x, decay), step.rate, direction), m, v

    return leafwise(lr, {"m": zeros, "v": real_zeros}, rule)


@in_range
def lion(lr: Rate, b1: float = 0.9, b2: float = 0.99, decay: float = 0.0) -> Optimizer:
    """Lion (Chen et al. 2023): the sign of a blend of momentum and gradient, with decoupled decay."""

    def rule(step: StepFacts, x: Any, g: Any, m: Any) -> tuple[Any, ...]:
        direction = op.sign(b1 * m + (1 - b1) * g)
        whole = direction + decay * x if decay else direction
        return moved(x, step.rate, whole), b2 * m + (1 - b2) * g

    return leafwise(lr, {"m": zeros}, rule)


@in_range
def rmsprop(
    lr: Rate,
    decay: float = 0.9,
    eps: float = 1e-8,
    *,
    momentum: float = 0.0,
    centered: bool = False,
    l2: float = 0.0,
) -> Optimizer:
    """Gradients over the root of the running mean of their squares, which decays at this rate."""

    def rule(step: StepFacts, x: Any, g: Any, v: Any, *more: Any) -> tuple[Any, ...]:
        rest = list(more)
        g = g + l2 * x if l2 else g
        v, spread, after = decay * v + (1 - decay) * power(g), None, []
        if centered:
            mean = decay * rest.pop(0) + (1 - decay) * g
            spread = v - power(mean)
            after.append(mean)
        direction = g / (op.sqrt(v if spread is None else spread) + eps)
        if momentum:
            direction = momentum * rest.pop(0) + direction
            after.append(direction)
        return moved(x, step.rate, direction), v, *after

    slots = {"v": real_zeros} | ({"mean": zeros} if centered else {})
    return leafwise(lr, slots | ({"velocity": zeros} if momentum else {}), rule)


@in_range
def adagrad(
    lr: Rate = 1e-2,
    eps: float = 1e-10,
    *,
    lr_decay: float = 0.0,
    l2: float = 0.0,
    initial: float = 0.0,
) -> Optimizer:
    """Gradients over the root of the sum of all their squares (Duchi et al. 2011)."""

    def rule(step: StepFacts, x: Any, g: Any, v: Any) -> tuple[Any, ...]:
        g = g + l2 * x if l2 else g
        v = v + power(g)
        rate = step.rate / (1 + (step.count - 1) * lr_decay) if lr_decay else step.rate
        return moved(x, rate, g / (op.sqrt(v) + eps)), v

    return leafwise(lr, {"v": lambda x: op.full_like(real_zeros(x), initial)}, rule)


@in_range
def adadelta(lr: Rate = 1.0, rho: float = 0.9, eps: float = 1e-6, l2: float = 0.0) -> Optimizer:
    """Gradients scaled by the ratio of past steps to past gradients (Zeiler 2012)."""

    def rule(step: StepFacts, x: Any, g: Any, v: Any, d: Any) -> tuple[Any, ...]:
        g = g + l2 * x if l2 else g
        v = rho * v + (1 - rho) * power(g)
        delta = op.sqrt(d + eps) / op.sqrt(v + eps) * g
        return moved(x, step.rate, delta), v, rho * d + (1 - rho) * power(delta)

    return leafwise(lr, {"v": real_zeros, "d": real_zeros}, rule)


@in_range
def adafactor(
    lr: Rate = 1e-2,
    beta2_decay: float = -0.8,
    eps: float | None = None,
    scale_eps: float = 1e-3,
    clip: float = 1.0,
    decay: float = 0.0,
) -> Optimizer:
    """Adam's second moments of a matrix by its rows and columns only, with steps relative to the parameter.

    Shazeer and Stern 2018, as PyTorch has it; eps is that of the dtype unless given.
    """

    def rule(step: StepFacts, x: Any, g: Any, rows: Any, columns: Any) -> tuple[Any, ...]:
        least = float(np.finfo(x.dtype.np).eps) if eps is None else eps
        share = op.cast(op.pow(step.count, beta2_decay), x.dtype)
        size = op.cast(op.minimum(step.rate, 1 / op.sqrt(step.count)), x.dtype)
        size = size * op.maximum(scale_eps, op.sqrt(op.mean(op.square(x))))
        if x.ndim > 1:
            rows = rows + share * (op.mean(g * g, axis=-1, keepdims=True) - rows)
            columns = columns + share * (op.mean(g * g, axis=-2, keepdims=True) - columns)
            around = op.maximum(op.mean(rows, axis=-2, keepdims=True), least)
            estimate = rows @ columns / around
        else:
            rows = rows + share * (g * g - rows)
            estimate = rows
        u = g / op.sqrt(op.maximum(estimate, least * least))
        size = size / op.maximum(1.0, op.sqrt(op.mean(op.square(u))) / clip)
        return moved(_kept(step, x, decay), size, u), rows, columns

    return leafwise(lr, {"rows": _row_zeros, "columns": _column_zeros}, rule)


def _row_zeros(x: Any) -> Any:
    return op.zeros((*x.shape[:-1], 1), x.dtype) if x.ndim > 1 else op.zeros_like(x)


def _column_zeros(x: Any) -> Any:
    shape = (*x.shape[:-2], 1, x.shape[-1]) if x.ndim > 1 else (0,)
    return op.zeros(shape, x.dtype)


# Newton-Schulz: a x + b x x'x + c (x x')**2 x has singular values near 1 after five steps (Jordan et al.
# 2024).
QUINTIC = (3.4445, -4.7750, 2.0315)


def orthogonalised(g: Any, steps: int = 5, eps: float = 1e-7) -> Any:
    """About U V' of g = U S V': singular values between 0.7 and 1.2."""
    a, b, c = QUINTIC
    tall = g.shape[-2] > g.shape[-1]
    x = g.mT if tall else g
    x = x / op.maximum(op.sqrt(op.sum(op.square(x), axis=(-2, -1), keepdims=True)), eps)
    for _ in range(steps):
        s = x @ x.mT
        x = a * x + (b * s + c * (s @ s)) @ x
    return x.mT if tall else x


@in_range
def muon(
    lr: Rate,
    momentum: float = 0.95,
    nesterov: bool = True,
    decay: float = 0.0,
    steps: int = 5,
    match_adam: bool = False,
) -> Optimizer:
    """Momentum, orthogonalised, for matrices (Jordan et al. 2024); use optim.groups for the other parameters.

    Steps are scaled by sqrt(max(1, rows / columns)), or with match_adam by 0.2 sqrt(max(rows, columns)).
    """

    def rule(step: StepFacts, x: Any, g: Any, v: Any) -> tuple[Any, ...]:
        if x.ndim < 2:
            raise OperandError(
                f"muon: a parameter is {x.type}, expected matrices; give the others to another optimiser by "
                "optim.groups"
            )
        v = momentum * v + (1 - momentum) * g
        direction = orthogonalised(g + momentum * (v - g) if nesterov else v, steps)
        m, n = x.shape[-2:]
        scale = 0.2 * math.sqrt(max(m, n)) if match_adam else math.sqrt(max(1, m / n))
        return moved(_kept(step, x, decay), step.rate * scale, direction), v

    return leafwise(lr, {"velocity": zeros}, rule)
