"""Denoising diffusion (DDPM) of points on a two-dimensional spiral.

    python examples/recipes/ddpm.py

A network learns to tell which noise was added to a point; sampling starts from pure noise and
removes it step by step.  The sampler is one `ts.scan`, so that all its steps are one program.
"""

import numpy as np

import tessera as ts
from tessera import op

STEPS, WIDTH = 50, 64
BETAS = np.linspace(1e-3, 0.2, STEPS, dtype=np.float32)
KEPT = np.cumprod(1 - BETAS)  # the share of the variance that is still signal after t steps
optimizer = ts.optim.adam(3e-3)


def init(key):
    a, b, c = ts.split(key, 3)
    return {
        "in": op.random.normal(a, (2 + 8, WIDTH), std=0.3),
        "mid": op.random.normal(b, (WIDTH, WIDTH), std=WIDTH**-0.5),
        "out": op.random.normal(c, (WIDTH, 2), std=WIDTH**-0.5),
    }


def embed(t):
    """Waves of four frequencies for the number of the step."""
    angles = t[:, None] * (0.5 ** op.arange(4)) * (2 * np.pi / STEPS)
    return op.concat([op.sin(angles), op.cos(angles)], axis=-1)


def predict_noise(params, x, t):
    h = op.silu(op.concat([x, embed(t)], axis=-1) @ params["in"])
    h = h + op.silu(h @ params["mid"])
    return h @ params["out"]


def loss(params, x, t, noise):
    kept = op.take(ts.asarray(KEPT), t)[:, None]
    noisy = op.sqrt(kept) * x + op.sqrt(1 - kept) * noise
    return op.mse(predict_noise(params, noisy, t), noise)


@ts.jit
def step(params, state, key, x):
    k_t, k_noise = ts.split(key)
    t = op.random.randint(k_t, (x.shape[0],), 0, STEPS)
    noise = op.random.normal(k_noise, x.shape)
    value, grads = ts.value_and_grad(loss)(params, x, t, noise)
    params, state = optimizer.update(grads, state, params)
    return value, params, state


@ts.jit
def sample(params, start, noise):
    """Points from pure noise `start`; `noise` (STEPS, n, 2) is what the reverse steps add."""

    def denoise(x, inputs):
        t, beta, kept, z = inputs
        guess = predict_noise(params, x, op.broadcast_to(t, x.shape[:1]))
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
    """The parameters and the loss of every step."""
    rng, params = np.random.default_rng(seed), init(key)
    state, losses = optimizer.init(params), []
    for k in ts.split(key, steps):
        value, params, state = step(params, state, k, spiral(rng, batch))
        losses.append(value.item())
    return params, losses


def distance_to(points, data):
    """The mean distance of each point to the nearest of the data."""
    return op.mean(op.min(op.vector_norm(points[:, None] - data, axis=-1), axis=1))


def main():
    params, losses = train(ts.key(0), 1500)
    for i in range(0, 1500, 300):
        print(f"step {i:4d}  loss {np.mean(losses[i : i + 100]):.3f}")
    a, b = ts.split(ts.key(1))
    start, noise = op.random.normal(a, (500, 2)), op.random.normal(b, (STEPS, 500, 2))
    points, data = sample(params, start, noise), ts.tensor(spiral(np.random.default_rng(1), 2000))
    before, after = distance_to(start, data), distance_to(points, data)
    print(f"mean distance to the spiral: noise {before:.3f}, samples {after:.3f}")


if __name__ == "__main__":
    main()
