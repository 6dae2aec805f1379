"""The workloads in PyTorch, eager or compiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional as F  # noqa: N812

from training.start import HEADS, LAYERS, VISCOSITY, WIDTH, Arrays


def _attend(p: Arrays, i: int, x: Any) -> Any:
    b, s, d = x.shape
    q, k, v = (x @ p[f"qkv.{i}"]).split(d, dim=-1)
    q, k, v = (t.view(b, s, HEADS, d // HEADS).transpose(1, 2) for t in (q, k, v))
    y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    y = y.transpose(1, 2).reshape(-1, d)
    return torch.addmm(p[f"mix_bias.{i}"], y, p[f"mix.{i}"]).view(b, s, d)


def _feed(p: Arrays, i: int, x: Any) -> Any:
    h = torch.addmm(p[f"up_bias.{i}"], x.view(-1, WIDTH), p[f"up.{i}"])
    h = F.gelu(h, approximate="tanh")
    return torch.addmm(p[f"down_bias.{i}"], h, p[f"down.{i}"]).view(x.shape)


def gpt(p: Arrays, inputs: Any, targets: Any) -> Any:
    """The mean loss of predicting the next byte."""
    x = F.embedding(inputs, p["tokens"]) + p["places"]
    for i in range(LAYERS):
        x = x + _attend(p, i, F.layer_norm(x, (WIDTH,), p[f"norm1.{i}"], p[f"shift1.{i}"]))
        x = x + _feed(p, i, F.layer_norm(x, (WIDTH,), p[f"norm2.{i}"], p[f"shift2.{i}"]))
    x = F.layer_norm(x, (WIDTH,), p["norm"], p["shift"])
    return F.cross_entropy(x.view(-1, WIDTH) @ p["out"], targets.reshape(-1))


def mlp(p: Arrays, x: Any, y: Any) -> Any:
    """The mean loss of a classifier."""
    h = F.relu(torch.addmm(p["b0"], x, p["w0"]))
    h = F.relu(torch.addmm(p["b1"], h, p["w1"]))
    return F.cross_entropy(torch.addmm(p["b2"], h, p["w2"]), y)


def _slope(y: Any, x: Any) -> Any:
    """dy/dx at every point, itself differentiable."""
    return torch.autograd.grad(y.sum(), x, create_graph=True)[0]


def pinn(p: Arrays, points: Any) -> Any:
    """The mean square of the momentum equations of steady flow: third derivatives of the network."""
    x, y = points[:, 0].detach().requires_grad_(), points[:, 1].detach().requires_grad_()
    h = torch.stack([x, y], 1)
    for i in range(4):
        h = torch.tanh(torch.addmm(p[f"b{i}"], h, p[f"w{i}"]))
    psi, pressure = torch.addmm(p["b4"], h, p["w4"]).unbind(1)
    v, u = torch.autograd.grad(psi.sum(), (x, y), create_graph=True)
    v = -v
    pushes = torch.autograd.grad(pressure.sum(), (x, y), create_graph=True)
    total: Any = 0.0
    for f, push in zip((u, v), pushes, strict=True):
        dx, dy = torch.autograd.grad(f.sum(), (x, y), create_graph=True)
        spread = _slope(dx, x) + _slope(dy, y)
        total = total + (u * dx + v * dy + push - VISCOSITY * spread) ** 2
    return total.mean()


def _attention(causal: bool) -> Callable[..., Any]:
    def loss(p: Arrays, wanted: Any) -> Any:
        y = F.scaled_dot_product_attention(p["q"], p["k"], p["v"], is_causal=causal)
        return F.mse_loss(y, wanted, reduction="sum")

    return loss


LOSSES: dict[str, Callable[..., Any]] = {
    "gpt": gpt,
    "pinn": pinn,
    "mlp": mlp,
    "attention": _attention(False),
    "causal": _attention(True),
}


def training(
    name: str, adam: bool, rate: float, p: Arrays, data: Arrays, compiled: bool = False
) -> tuple[Callable[[], Any], Callable[[], Arrays]]:
    """What takes a step and gives the loss, and what gives the parameters."""
    params = {k: torch.tensor(x, requires_grad=True) for k, x in p.items()}
    inputs = {k: torch.tensor(x) for k, x in data.items()}
    make = torch.optim.Adam if adam else torch.optim.SGD
    optimizer = make(params.values(), lr=rate)
    loss = torch.compile(LOSSES[name]) if compiled else LOSSES[name]

    def take() -> Any:
        optimizer.zero_grad()
        value = loss(params, **inputs)
        value.backward()
        optimizer.step()
        return value.item()

    return take, lambda: {k: x.detach().numpy() for k, x in params.items()}
