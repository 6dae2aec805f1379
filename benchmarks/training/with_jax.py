"""The workloads in JAX, under jit."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
from jax import numpy as jnp

from training.start import HEADS, LAYERS, VISCOSITY, Arrays


def _layernorm(x: Any, gain: Any, shift: Any) -> Any:
    centred = x - x.mean(-1, keepdims=True)
    scale = jax.lax.rsqrt((centred * centred).mean(-1, keepdims=True) + 1e-5)
    return centred * scale * gain + shift


def _attend(p: Arrays, i: int, x: Any) -> Any:
    b, s, d = x.shape
    qkv = (x @ p[f"qkv.{i}"]).reshape(b, s, 3, HEADS, d // HEADS)
    q, k, v = (qkv[:, :, j] for j in range(3))
    y = jax.nn.dot_product_attention(q, k, v, is_causal=True)
    return y.reshape(b, s, d) @ p[f"mix.{i}"] + p[f"mix_bias.{i}"]


def _feed(p: Arrays, i: int, x: Any) -> Any:
    h = jax.nn.gelu(x @ p[f"up.{i}"] + p[f"up_bias.{i}"])
    return h @ p[f"down.{i}"] + p[f"down_bias.{i}"]


def _cross_entropy(logits: Any, labels: Any) -> Any:
    logs = jax.nn.log_softmax(logits)
    return -jnp.take_along_axis(logs, labels[..., None], axis=-1).mean()


def gpt(p: Arrays, inputs: Any, targets: Any) -> Any:
    """The mean loss of predicting the next byte."""
    x = p["tokens"][inputs] + p["places"]
    for i in range(LAYERS):
        x = x + _attend(p, i, _layernorm(x, p[f"norm1.{i}"], p[f"shift1.{i}"]))
        x = x + _feed(p, i, _layernorm(x, p[f"norm2.{i}"], p[f"shift2.{i}"]))
    return _cross_entropy(_layernorm(x, p["norm"], p["shift"]) @ p["out"], targets)


def mlp(p: Arrays, x: Any, y: Any) -> Any:
    """The mean loss of a classifier."""
    h = jax.nn.relu(x @ p["w0"] + p["b0"])
    h = jax.nn.relu(h @ p["w1"] + p["b1"])
    return _cross_entropy(h @ p["w2"] + p["b2"], y)


def pinn(p: Arrays, points: Any) -> Any:
    """The mean square of the momentum equations of steady flow: third derivatives of the network."""

    def fields(x: Any, y: Any) -> Any:
        h = jnp.stack([x, y])
        for i in range(4):
            h = jnp.tanh(h @ p[f"w{i}"] + p[f"b{i}"])
        return h @ p["w4"] + p["b4"]

    def psi(x: Any, y: Any) -> Any:
        return fields(x, y)[0]

    def pressure(x: Any, y: Any) -> Any:
        return fields(x, y)[1]

    u = jax.grad(psi, 1)

    def v(x: Any, y: Any) -> Any:
        return -jax.grad(psi, 0)(x, y)

    def momentum(f: Any, axis: int, x: Any, y: Any) -> Any:
        dx, dy = jax.grad(f, 0), jax.grad(f, 1)
        moved = u(x, y) * dx(x, y) + v(x, y) * dy(x, y)
        spread = jax.grad(dx, 0)(x, y) + jax.grad(dy, 1)(x, y)
        return moved + jax.grad(pressure, axis)(x, y) - VISCOSITY * spread

    def residual(x: Any, y: Any) -> Any:
        return momentum(u, 0, x, y) ** 2 + momentum(v, 1, x, y) ** 2

    return jax.vmap(residual)(points[:, 0], points[:, 1]).mean()


def _attention(causal: bool) -> Callable[..., Any]:
    def loss(p: Arrays, wanted: Any) -> Any:
        q, k, v = (jnp.swapaxes(p[n], 1, 2) for n in "qkv")
        y = jax.nn.dot_product_attention(q, k, v, is_causal=causal)
        return jnp.square(jnp.swapaxes(y, 1, 2) - wanted).sum()

    return loss


LOSSES: dict[str, Callable[..., Any]] = {
    "gpt": gpt,
    "pinn": pinn,
    "mlp": mlp,
    "attention": _attention(False),
    "causal": _attention(True),
}


def _adam(rate: float, p: Any, g: Any, state: Any) -> tuple[Any, Any]:
    """Adam by its formulas (Kingma and Ba 2015)."""
    m, v, t = state
    t = t + 1
    m = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, m, g)
    v = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g * g, v, g)
    first, second = -jnp.expm1(t * math.log(0.9)), -jnp.expm1(t * math.log(0.999))

    def moved(p: Any, m: Any, v: Any) -> Any:
        return p - rate / first * m / (jnp.sqrt(v / second) + 1e-8)

    return jax.tree.map(moved, p, m, v), (m, v, t)


def _descent(rate: float, p: Any, g: Any, state: Any) -> tuple[Any, Any]:
    return jax.tree.map(lambda p, g: p - rate * g, p, g), state


def training(
    name: str, adam: bool, rate: float, p: Arrays, data: Arrays
) -> tuple[Callable[[], Any], Callable[[], Arrays]]:
    """What takes a step and gives the loss, and what gives the parameters."""
    loss, update = LOSSES[name], _adam if adam else _descent
    params = {k: jnp.asarray(x) for k, x in p.items()}
    inputs = {k: jnp.asarray(x) for k, x in data.items()}

    @partial(jax.jit, donate_argnums=(0, 1))
    def step(p: Arrays, state: Any, data: Arrays) -> Any:
        value, grads = jax.value_and_grad(lambda p: loss(p, **data))(p)
        return value, *update(rate, p, grads, state)

    def zeros() -> Any:
        return jax.tree.map(jnp.zeros_like, params)

    held: list[Any] = [params, (zeros(), zeros(), jnp.zeros(())) if adam else ()]

    def take() -> Any:
        value, *held[:] = jax.block_until_ready(step(*held, inputs))
        return value

    return take, lambda: {k: jax.device_get(x) for k, x in held[0].items()}
