"""A Fourier neural operator learns the solution of Burgers' equation from its initial state.

    python examples/recipes/fno.py

A spectral convolution multiplies the lowest modes of a transform by complex matrices.  Trained on a
grid of 64 points, it is evaluated on one of 128.
"""

import numpy as np

import tessera as ts
from tessera import op

WIDTH, MODES, LAYERS = 24, 12, 3
optimizer = ts.optim.adam(ts.optim.warmup_cosine(5e-3, 20, 300))


def init(key):
    keys = iter(ts.split(key, 3 * LAYERS + 2))

    def draw(*shape, std):
        return op.random.normal(next(keys), shape, std=std)

    def block():
        re, im = (draw(MODES, WIDTH, WIDTH, std=0.5 / WIDTH) for _ in range(2))
        return {"modes": op.complex(re, im), "local": draw(WIDTH, WIDTH, std=WIDTH**-0.5)}

    return {
        "lift": draw(2, WIDTH, std=1.0),
        "blocks": [block() for _ in range(LAYERS)],
        "out": draw(WIDTH, 1, std=WIDTH**-0.5),
    }


def spectral_conv(weights, x):
    """Mix the channels of the lowest modes of x (batch, points, channels)."""
    n = x.shape[1]
    low = op.rfft(x, axis=1)[:, :MODES]
    mixed = op.einsum("bmi,mio->bmo", low, weights)
    padded = op.pad(mixed, ((0, 0), (0, n // 2 + 1 - MODES), (0, 0)))
    return op.irfft(padded, n=n, axis=1)


def forward(params, u):
    """The state at the end from the state at the start, both (batch, points)."""
    n = u.shape[1]
    place = op.broadcast_to(op.arange(n) / n, u.shape)
    h = op.stack([u, place], axis=-1) @ params["lift"]
    for i, p in enumerate(params["blocks"]):
        h = spectral_conv(p["modes"], h) + h @ p["local"]
        h = op.gelu(h) if i + 1 < LAYERS else h
    return (h @ params["out"])[..., 0]


def relative_error(params, u, v):
    """The mean over pictures of |prediction - v| / |v|."""
    gap = op.vector_norm(forward(params, u) - v, axis=-1)
    return op.mean(gap / op.vector_norm(v, axis=-1))


@ts.jit
def step(params, state, u, v):
    value, grads = ts.value_and_grad(relative_error)(params, u, v)
    # Gradients of complex parameters are the conjugates of the direction of ascent.
    grads = ts.tree.map(op.conj, grads)
    params, state = optimizer.update(grads, state, params)
    return value, params, state


def burgers(rng, samples, n, viscosity=0.02, time=0.5, steps=400):
    """Smooth periodic initial states, and the states later, by a spectral method."""
    x, k = np.arange(n) / n, 2j * np.pi * np.fft.rfftfreq(n, 1 / n)
    waves, phases = rng.normal(size=(samples, 4, 1)), rng.uniform(size=(samples, 4, 1))
    order = np.arange(1, 5)[:, None]
    u = np.sum(waves / order * np.sin(2 * np.pi * (order * x + phases)), axis=1)
    hat, dt = np.fft.rfft(u), time / steps
    for _ in range(steps):  # diffusion exactly, transport by the midpoint rule
        half = hat - dt / 2 * k * np.fft.rfft(np.fft.irfft(hat, n) ** 2 / 2)
        hat = (hat - dt * k * np.fft.rfft(np.fft.irfft(half, n) ** 2 / 2)) * np.exp(
            viscosity * k**2 * dt
        )
        hat[:, n // 3 :] = 0
    return u.astype(np.float32), np.fft.irfft(hat, n).astype(np.float32)


def train(key, steps, samples=256, batch=32, seed=0):
    """The parameters and the error at every step."""
    rng, params = np.random.default_rng(seed), init(key)
    u, v = burgers(rng, samples, 64)
    state, losses = optimizer.init(params), []
    for _ in range(steps):
        pick = rng.integers(0, samples, batch)
        value, params, state = step(params, state, u[pick], v[pick])
        losses.append(value.item())
    return params, losses


def main():
    params, losses = train(ts.key(0), 300)
    for i in range(0, 300, 50):
        print(f"step {i:3d}  relative error {np.mean(losses[i : i + 10]):.3f}")
    for n in (64, 128):
        error = relative_error(params, *map(ts.asarray, burgers(np.random.default_rng(1), 64, n)))
        print(f"new states on {n} points: {error.item():.3f}")


if __name__ == "__main__":
    main()
