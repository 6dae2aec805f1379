"""The workloads in Tessera."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tessera as ts
from tessera import op
from training.start import HEADS, LAYERS, VISCOSITY, Arrays


def _attend(p: Arrays, i: int, x: Any) -> Any:
    b, s, d = x.shape
    qkv = op.reshape(x @ p[f"qkv.{i}"], (b, s, 3, HEADS, d // HEADS))
    q, k, v = (op.transpose(qkv[:, :, j], (0, 2, 1, 3)) for j in range(3))
    y = op.transpose(op.attention(q, k, v, causal=True), (0, 2, 1, 3))
    return op.reshape(y, (b, s, d)) @ p[f"mix.{i}"] + p[f"mix_bias.{i}"]


def _feed(p: Arrays, i: int, x: Any) -> Any:
    h = op.gelu(x @ p[f"up.{i}"] + p[f"up_bias.{i}"], approximate="tanh")
    return h @ p[f"down.{i}"] + p[f"down_bias.{i}"]


def gpt(p: Arrays, inputs: Any, targets: Any) -> Any:
    """The mean loss of predicting the next byte."""
    x = op.embedding(p["tokens"], inputs) + p["places"]
    for i in range(LAYERS):
        x = x + _attend(p, i, op.layernorm(x, p[f"norm1.{i}"], p[f"shift1.{i}"]))
        x = x + _feed(p, i, op.layernorm(x, p[f"norm2.{i}"], p[f"shift2.{i}"]))
    return op.cross_entropy(op.layernorm(x, p["norm"], p["shift"]) @ p["out"], targets)


def mlp(p: Arrays, x: Any, y: Any) -> Any:
    """The mean loss of a classifier."""
    h = op.relu(x @ p["w0"] + p["b0"])
    h = op.relu(h @ p["w1"] + p["b1"])
    return op.cross_entropy(h @ p["w2"] + p["b2"], y)


def pinn(p: Arrays, points: Any) -> Any:
    """The mean square of the momentum equations of steady flow: third derivatives of the network."""

    def fields(x: Any, y: Any) -> Any:
        h = op.stack([x, y])
        for i in range(4):
            h = op.tanh(h @ p[f"w{i}"] + p[f"b{i}"])
        return h @ p["w4"] + p["b4"]

    def psi(x: Any, y: Any) -> Any:
        return fields(x, y)[0]

    def pressure(x: Any, y: Any) -> Any:
        return fields(x, y)[1]

    u = ts.grad(psi, 1)

    def v(x: Any, y: Any) -> Any:
        return -ts.grad(psi, 0)(x, y)

    def momentum(f: Any, axis: int, x: Any, y: Any) -> Any:
        dx, dy = ts.grad(f, 0), ts.grad(f, 1)
        moved = u(x, y) * dx(x, y) + v(x, y) * dy(x, y)
        spread = ts.grad(dx, 0)(x, y) + ts.grad(dy, 1)(x, y)
        return moved + ts.grad(pressure, axis)(x, y) - VISCOSITY * spread

    def residual(x: Any, y: Any) -> Any:
        return momentum(u, 0, x, y) ** 2 + momentum(v, 1, x, y) ** 2

    return op.mean(ts.vmap(residual)(points[:, 0], points[:, 1]))


def _attention(causal: bool) -> Callable[..., Any]:
    def loss(p: Arrays, wanted: Any) -> Any:
        return op.sum(op.square(op.attention(p["q"], p["k"], p["v"], causal=causal) - wanted))

    return loss


LOSSES: dict[str, Callable[..., Any]] = {
    "gpt": gpt,
    "pinn": pinn,
    "mlp": mlp,
    "attention": _attention(False),
    "causal": _attention(True),
}


def step_of(name: str, adam: bool, rate: float) -> tuple[Callable[..., Any], Any]:
    """A step as a compiled function of parameters, state and data, and its optimizer."""
    optimizer = ts.optim.adam(rate) if adam else ts.optim.sgd(rate)
    loss = LOSSES[name]

    @ts.jit(target="cpu", donate=("p", "state"))
    def step(p: Arrays, state: Any, data: Arrays) -> Any:
        value, grads = ts.value_and_grad(lambda p: loss(p, **data))(p)
        return value, *optimizer.update(grads, state, p)

    return step, optimizer


def training(
    name: str, adam: bool, rate: float, p: Arrays, data: Arrays
) -> tuple[Callable[[], Any], Callable[[], Arrays]]:
    """What takes a step and gives the loss, and what gives the parameters."""
    step, optimizer = step_of(name, adam, rate)
    held = [{k: ts.tensor(x) for k, x in p.items()}]
    held.append(optimizer.init(held[0]))
    inputs = {k: ts.tensor(x) for k, x in data.items()}

    def take() -> Any:
        value, *held[:] = step(*held, inputs)
        return value

    return take, lambda: {k: x.numpy() for k, x in held[0].items()}
