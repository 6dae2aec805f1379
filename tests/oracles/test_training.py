"""Twenty steps of training against PyTorch and JAX: the losses and the parameters agree.

Each model is written once, with the functions of a library as an argument.  PyTorch steps by its own
Adam, JAX by the published formulas.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera import op

torch = pytest.importorskip("torch")
jax = pytest.importorskip("jax")
jnp = jax.numpy
pytestmark = pytest.mark.oracle

STEPS, RATE = 20, 1e-3
DTYPES = [np.float32, np.float64]
Params = dict[str, Any]


@pytest.fixture(autouse=True)
def _double_precision() -> Any:
    jax.config.update("jax_enable_x64", True)
    yield
    jax.config.update("jax_enable_x64", False)


# The libraries ------------------------------------------------------------------------------------


class Ours:
    """Tessera."""

    tanh, gelu, relu, softmax, log_softmax = op.tanh, op.gelu, op.relu, op.softmax, op.log_softmax
    where, mean, sum = op.where, op.mean, op.sum
    grad, vmap = ts.grad, ts.vmap

    @staticmethod
    def array(x: Any) -> Any:
        return ts.tensor(x)

    @staticmethod
    def layernorm(x: Any, gain: Any) -> Any:
        return op.layernorm(x, gain)

    @staticmethod
    def swap(x: Any, a: int, b: int) -> Any:
        return op.swapaxes(x, a, b)

    @staticmethod
    def pick(x: Any, index: Any) -> Any:
        return op.take_along_axis(x, index[..., None], -1)

    @staticmethod
    def train(loss: Callable[..., Any], params: Params, data: Any, target: str) -> Any:
        opt = ts.optim.adam(RATE)

        @ts.jit(target=target)
        def step(p: Any, state: Any, *data: Any) -> Any:
            value, grads = ts.value_and_grad(lambda p: loss(Ours, p, *data))(p)
            return value, *opt.update(grads, state, p)

        p = {k: ts.tensor(v) for k, v in params.items()}
        state, losses = opt.init(p), []
        inputs = [ts.tensor(x) for x in data]
        for _ in range(STEPS):
            value, p, state = step(p, state, *inputs)
            losses.append(float(value))
        return losses, {k: np.asarray(v) for k, v in p.items()}


class Jax:
    """JAX."""

    tanh, relu, where, mean, sum = jnp.tanh, jax.nn.relu, jnp.where, jnp.mean, jnp.sum
    softmax, log_softmax, array, swap = (
        jax.nn.softmax,
        jax.nn.log_softmax,
        jnp.asarray,
        jnp.swapaxes,
    )
    grad, vmap = jax.grad, jax.vmap

    @staticmethod
    def gelu(x: Any) -> Any:
        return jax.nn.gelu(x, approximate=False)

    @staticmethod
    def layernorm(x: Any, gain: Any) -> Any:
        return (x - x.mean(-1, keepdims=True)) / jnp.sqrt(x.var(-1, keepdims=True) + 1e-5) * gain

    @staticmethod
    def pick(x: Any, index: Any) -> Any:
        return jnp.take_along_axis(x, index[..., None], -1)

    @staticmethod
    def train(loss: Callable[..., Any], params: Params, data: Any, target: str) -> Any:
        @jax.jit
        def step(p: Any, m: Any, v: Any, t: Any) -> Any:
            value, g = jax.value_and_grad(lambda p: loss(Jax, p, *map(jnp.asarray, data)))(p)
            m = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, m, g)
            v = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g * g, v, g)
            new = jax.tree.map(
                lambda p, m, v: p - RATE * (m / (1 - 0.9**t)) / (jnp.sqrt(v / (1 - 0.999**t)) + 1e-8),
                p, m, v,
            )  # fmt: skip
            return value, new, m, v

        p = {k: jnp.asarray(v) for k, v in params.items()}
        m = v = jax.tree.map(jnp.zeros_like, p)
        losses = []
        for t in range(1, STEPS + 1):
            value, p, m, v = step(p, m, v, float(t))
            losses.append(float(value))
        return losses, {k: np.asarray(v) for k, v in p.items()}


class Torch:
    """PyTorch."""

    tanh, relu, where, mean, sum = torch.tanh, torch.relu, torch.where, torch.mean, torch.sum
    softmax, log_softmax = torch.nn.functional.softmax, torch.nn.functional.log_softmax
    gelu, grad, vmap = torch.nn.functional.gelu, torch.func.grad, torch.vmap
    array, swap = torch.as_tensor, torch.swapaxes

    @staticmethod
    def layernorm(x: Any, gain: Any) -> Any:
        return torch.nn.functional.layer_norm(x, x.shape[-1:], gain)

    @staticmethod
    def pick(x: Any, index: Any) -> Any:
        return torch.gather(x, -1, index[..., None])

    @staticmethod
    def train(loss: Callable[..., Any], params: Params, data: Any, target: str) -> Any:
        p = {k: torch.tensor(v, requires_grad=True) for k, v in params.items()}
        opt = torch.optim.Adam(p.values(), lr=RATE)
        losses = []
        for _ in range(STEPS):
            opt.zero_grad()
            value = loss(Torch, p, *map(torch.as_tensor, data))
            value.backward()
            opt.step()
            losses.append(float(value.detach()))
        return losses, {k: v.detach().numpy() for k, v in p.items()}


# The models ---------------------------------------------------------------------------------------


def _draw(rng: Any, dtype: Any, **shapes: tuple[int, ...]) -> Params:
    """Matrices scaled by their inputs, vectors of ones."""
    return {
        k: (np.ones(s) if len(s) == 1 else rng.normal(size=s) / math.sqrt(s[0])).astype(dtype)
        for k, s in shapes.items()
    }


def mlp_loss(f: Any, p: Params, x: Any, y: Any) -> Any:
    h = f.relu(x @ p["w0"] + p["b0"])
    h = f.relu(h @ p["w1"] + p["b1"])
    return -f.mean(f.pick(f.log_softmax(h @ p["w2"] + p["b2"], -1), y))


def mlp(dtype: Any) -> tuple[Any, Params, Any]:
    rng = np.random.default_rng(0)
    sizes = (784, 64, 64, 10)
    shapes: dict[str, Any] = {f"w{i}": sizes[i : i + 2] for i in range(3)}
    shapes |= {f"b{i}": (sizes[i + 1],) for i in range(3)}
    x, y = rng.normal(size=(32, 784)).astype(dtype), rng.integers(0, 10, size=32)
    return mlp_loss, _draw(rng, dtype, **shapes), (x, y)


LAYERS, D, HEADS, S, B, VOCAB = 2, 64, 4, 32, 2, 65


def _attention(f: Any, p: Params, i: int, x: Any, mask: Any) -> Any:
    def heads(name: str) -> Any:
        return f.swap((x @ p[f"{name}{i}"]).reshape((B, S, HEADS, D // HEADS)), 1, 2)

    q, k, v = heads("q"), heads("k"), heads("v")
    scores = (q @ f.swap(k, 2, 3)) / math.sqrt(D // HEADS)
    weights = f.softmax(f.where(mask, scores, -1e9), -1)
    return f.swap(weights @ v, 1, 2).reshape((B, S, D)) @ p[f"o{i}"]


def gpt_loss(f: Any, p: Params, tokens: Any, targets: Any) -> Any:
    mask = f.array(np.tril(np.ones((S, S), bool)))
    x = p["tokens"][tokens] + p["places"]
    for i in range(LAYERS):
        x = x + _attention(f, p, i, f.layernorm(x, p[f"n{i}"]), mask)
        x = x + f.gelu(f.layernorm(x, p[f"m{i}"]) @ p[f"up{i}"]) @ p[f"down{i}"]
    logits = f.layernorm(x, p["n"]) @ p["out"]
    return -f.mean(f.pick(f.log_softmax(logits, -1), targets))


def gpt(dtype: Any) -> tuple[Any, Params, Any]:
    rng = np.random.default_rng(0)
    shapes: dict[str, Any] = {"tokens": (VOCAB, D), "places": (S, D), "n": (D,), "out": (D, VOCAB)}
    for i in range(LAYERS):
        shapes |= {f"{k}{i}": (D, D) for k in "qkvo"}
        shapes |= {f"n{i}": (D,), f"m{i}": (D,), f"up{i}": (D, 4 * D), f"down{i}": (4 * D, D)}
    tokens = rng.integers(0, VOCAB, size=(B, S + 1))
    return gpt_loss, _draw(rng, dtype, **shapes), (tokens[:, :-1], tokens[:, 1:])


def pinn_loss(f: Any, p: Params, points: Any) -> Any:
    """Steady Navier-Stokes for a stream function: third derivatives of the network."""

    def fields(x: Any, y: Any) -> Any:
        h = f.tanh(x * p["wx"] + y * p["wy"])
        for i in range(3):
            h = f.tanh(h @ p[f"w{i}"])
        return h @ p["out"]

    def psi(x: Any, y: Any) -> Any:
        return fields(x, y)[0]

    u = f.grad(psi, 1)
    v = lambda x, y: -f.grad(psi, 0)(x, y)  # noqa: E731

    def momentum(g: Any, axis: int, x: Any, y: Any) -> Any:
        moved = u(x, y) * f.grad(g, 0)(x, y) + v(x, y) * f.grad(g, 1)(x, y)
        spread = f.grad(f.grad(g, 0), 0)(x, y) + f.grad(f.grad(g, 1), 1)(x, y)
        push = f.grad(lambda x, y: fields(x, y)[1], axis)(x, y)
        return moved + push - 0.01 * spread

    def residual(point: Any) -> Any:
        x, y = point[0], point[1]
        return momentum(u, 0, x, y) ** 2 + momentum(v, 1, x, y) ** 2 + (psi(x, y) - x * y) ** 2

    return f.mean(f.vmap(residual)(points))


def pinn(dtype: Any) -> tuple[Any, Params, Any]:
    rng = np.random.default_rng(0)
    shapes: dict[str, Any] = {f"w{i}": (16, 16) for i in range(3)}
    p = _draw(rng, dtype, **shapes, out=(16, 2))
    p |= {k: rng.normal(size=16).astype(dtype) for k in ("wx", "wy")}
    return pinn_loss, p, (rng.uniform(-1, 1, size=(24, 2)).astype(dtype),)


# The law ------------------------------------------------------------------------------------------


def gap(got: Params, want: Params, start: Params) -> float:
    """The distance of two trainings, relative to how far they went."""
    apart = sum(np.sum((got[k] - want[k]) ** 2) for k in want)
    moved = sum(np.sum((want[k] - start[k]) ** 2) for k in want)
    return float(np.sqrt(apart / moved))


@pytest.mark.parametrize("model", [mlp, gpt, pinn], ids=lambda m: m.__name__)
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: d.__name__)
def test_twenty_steps_agree(model: Any, dtype: Any) -> None:
    loss, params, data = model(dtype)
    ours = {target: Ours.train(loss, params, data, target) for target in ("numpy", "cpu")}
    limit = 1e-5 if dtype is np.float32 else 1e-10
    for library in (Torch, Jax):
        losses, end = library.train(loss, params, data, "")
        for mine, new in ours.values():
            np.testing.assert_allclose(mine, losses, rtol=limit, atol=limit)
            assert gap(new, end, params) <= limit
