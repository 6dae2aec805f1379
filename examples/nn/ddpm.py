"""Denoising diffusion (DDPM) of points on a two-dimensional spiral, with averaged weights.

    python examples/nn/ddpm.py

A network learns to tell which noise was added to a point; sampling removes noise step by step, as one
`ts.scan`.
"""

import numpy as np

import tessera as ts
from tessera import nn, op

STEPS, WIDTH = 50, 64
BETAS = np.linspace(1e-3, 0.2, STEPS, dtype=np.float32)
KEPT = np.cumprod(1 - BETAS)  # the share of the variance that is still signal after t steps
optimizer = ts.optim.ema(ts.optim.adam(3e-3), 0.98)


class Denoiser(nn.Module):
    times: nn.Embedding
    net: nn.MLP

    def __init__(self, key):
        a, b = ts.split(key)
        self.times = nn.Embedding(STEPS, 8, key=a)
        self.net = nn.MLP([2 + 8, WIDTH, WIDTH, 2], op.silu, key=b)

    def __call__(self, x, t):
        """The noise in points x (n, 2) after t (n,) steps."""
        return self.net(op.concat([x, self.times(t)], axis=-1))


def loss(model, x, t, noise):
    kept = op.take(ts.asarray(KEPT), t)[:, None]
    return op.mse(model(op.sqrt(kept) * x + op.sqrt(1 - kept) * noise, t), noise)


@ts.jit
def step(model, state, key, x):
    a, b = ts.split(key)
    t, noise = op.random.randint(a, (x.shape[0],), 0, STEPS), op.random.normal(b, x.shape)
    value, grads = ts.value_and_grad(loss)(model, x, t, noise)
    model, state = optimizer.update(grads, state, model)
    return value, model, state


@ts.jit
def sample(model, start, noise):
    """Points from pure noise `start`; `noise` (STEPS, n, 2) is what the reverse steps add."""

    def denoise(x, inputs):
        t, beta, kept, z = inputs
        guess = model(x, op.broadcast_to(t, x.shape[:1]))
        mean = (x - beta / op.sqrt(1 - kept) * guess) / op.sqrt(1 - beta)
        return mean + op.where(t > 0, op.sqrt(beta), 0.0) * z, None

    steps = (op.arange(STEPS), ts.asarray(BETAS), ts.asarray(KEPT), noise)
    return ts.scan(denoise, start, steps, reverse=True)[0]


def spiral(rng, n):
    """Points on a spiral of one and a half turns, a little blurred."""
    r = np.sqrt(rng.uniform(0.05, 1, size=(n, 1)))
    points = 2 * r * np.concatenate([np.cos(3 * np.pi * r), np.sin(3 * np.pi * r)], axis=1)
    return (points + rng.normal(scale=0.05, size=(n, 2))).astype(np.float32)


def train(key, steps, batch=256, seed=0):
    """The averaged model and the loss of every step."""
    rng, model, losses = np.random.default_rng(seed), Denoiser(key), []
    state = optimizer.init(model)
    for k in ts.split(key, steps):
        value, model, state = step(model, state, k, spiral(rng, batch))
        losses.append(value.item())
    return state["ema"], losses


def distance_to(points, data):
    """The mean distance of each point to the nearest of the data."""
    return op.mean(op.min(op.vector_norm(points[:, None] - data, axis=-1), axis=1)).item()


def main(steps=1500, count=500):
    model, losses = train(ts.key(0), steps)
    a, b = ts.split(ts.key(1))
    start, noise = op.random.normal(a, (count, 2)), op.random.normal(b, (STEPS, count, 2))
    data = ts.tensor(spiral(np.random.default_rng(1), 2000))
    before, after = distance_to(start, data), distance_to(sample(model, start, noise), data)
    print(f"loss {losses[0]:.3f} -> {np.mean(losses[-50:]):.3f}")
    print(f"mean distance to the spiral: noise {before:.3f}, samples {after:.3f}")
    return before, after


if __name__ == "__main__":
    main()
