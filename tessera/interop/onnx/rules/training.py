"""Optimizer steps and gradients of ai.onnx.preview.training."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tessera.interop.onnx.gradient import BODY, DOMAIN
from tessera.interop.onnx.rule import NodeCall, rule, tensor
from tessera.lang import op
from tessera.lang.transforms import vjp
from tessera.ops.define import as_value

_DOMAIN = DOMAIN


def _each(xs: tuple[Any, ...], kinds: int, step: Callable[..., tuple[Any, ...]]) -> tuple[Any, ...]:
    """A step for each tensor; inputs and outputs are grouped by kind: all x, all gradients, ..."""
    count = len(xs) // kinds
    made = [step(*(xs[k * count + i] for k in range(kinds))) for i in range(count)]
    return tuple(x for kind in zip(*made, strict=True) for x in kind)


@rule("Gradient", domain=_DOMAIN, fold=False)
def _gradient(n: NodeCall, *given: Any) -> Any:
    """The gradients of y in each of xs, by reverse mode through the nodes between them."""
    count = len(n.need("xs"))
    rest = given[count:]

    def between(*xs: Any) -> Any:
        (y,) = n.run(n.need(BODY), [*xs, *rest])
        return as_value(tensor(y))

    y, pull = vjp(between, *[as_value(tensor(x)) for x in given[:count]])
    return tuple(pull(op.ones(y.shape, y.dtype)))


@rule("Adagrad", domain=_DOMAIN)
def _adagrad(n: NodeCall, rate: Any, steps: Any, *xs: Any) -> Any:
    def step(x: Any, g: Any, h: Any) -> tuple[Any, ...]:
        decayed = op.div(
            rate, op.add(1.0, op.mul(op.cast(steps, "f32"), n.get("decay_factor", 0.0)))
        )
        g = op.add(g, op.mul(x, n.get("norm_coefficient", 0.0)))
        h = op.add(h, op.square(g))
        scaled = op.div(g, op.add(op.sqrt(h), n.get("epsilon", 0.0)))
        return op.sub(x, op.mul(decayed, scaled)), h

    return _each(xs, 3, step)


@rule("Adam", domain=_DOMAIN)
def _adam(n: NodeCall, rate: Any, steps: Any, *xs: Any) -> Any:
    alpha, beta = n.get("alpha", 0.9), n.get("beta", 0.999)

    def step(x: Any, g: Any, v: Any, h: Any) -> tuple[Any, ...]:
        g = op.add(g, op.mul(x, n.get("norm_coefficient", 0.0)))
        v = op.add(op.mul(v, alpha), op.mul(g, 1 - alpha))
        h = op.add(op.mul(h, beta), op.mul(op.square(g), 1 - beta))
        t = op.cast(steps, "f32")
        warm = op.div(op.sqrt(op.sub(1.0, op.pow(beta, t))), op.sub(1.0, op.pow(alpha, t)))
        warm = op.where(op.gt(t, 0), warm, 1.0)
        scaled = op.div(v, op.add(op.sqrt(h), n.get("epsilon", 0.0)))
        x = op.sub(x, op.mul(op.mul(rate, warm), scaled))
        return op.mul(x, 1 - n.get("norm_coefficient_post", 0.0)), v, h

    return _each(xs, 4, step)


@rule("Momentum", domain=_DOMAIN)
def _momentum(n: NodeCall, rate: Any, steps: Any, *xs: Any) -> Any:
    alpha, beta = n.need("alpha"), n.need("beta")

    def step(x: Any, g: Any, v: Any) -> tuple[Any, ...]:
        g = op.add(g, op.mul(x, n.get("norm_coefficient", 0.0)))
        first = op.eq(steps, 0)
        v = op.add(op.mul(v, alpha), op.mul(g, op.where(first, 1.0, beta)))
        move = op.add(g, op.mul(v, alpha)) if n.get("mode") == "nesterov" else v
        return op.sub(x, op.mul(rate, move)), v

    return _each(xs, 3, step)
