"""A physics-informed network solves the heat equation u_t = u_xx / 10 without any data.

    python examples/recipes/pinn.py

Derivatives of the network by its inputs are `ts.grad` of a scalar function, mapped over all points by
`ts.vmap`; the gradient by the parameters goes through them.
"""

import numpy as np

import tessera as ts
from tessera import op

WIDTH, DIFFUSION = 32, 0.1
STEPS = 600
optimizer = ts.optim.adam(ts.optim.warmup_cosine(1e-2, 20, STEPS))


def init(key):
    sizes = (2, WIDTH, WIDTH, 1)
    keys = ts.split(key, len(sizes) - 1)
    return [
        (op.random.normal(k, (m, n), std=m**-0.5), op.zeros((n,)))
        for k, m, n in zip(keys, sizes, sizes[1:])
    ]


def u(params, x, t):
    """The solution at a point; it is sin(pi x) at t = 0 and 0 at x = 0 and 1, whatever the network is."""
    h = op.stack([x, t])
    for w, b in params[:-1]:
        h = op.tanh(h @ w + b)
    w, b = params[-1]
    return op.sin(np.pi * x) + x * (1 - x) * t * (h @ w + b)[0]


def residual(params, x, t):
    """u_t - u_xx / 10 at a point."""
    u_t = ts.grad(u, 2)(params, x, t)
    u_xx = ts.grad(ts.grad(u, 1), 1)(params, x, t)
    return u_t - DIFFUSION * u_xx


def loss(params, x, t):
    return op.mean(ts.vmap(residual, in_axes=(None, 0, 0))(params, x, t) ** 2)


@ts.jit
def step(params, state, key):
    x, t = op.random.uniform(key, (2, 256))
    value, grads = ts.value_and_grad(loss)(params, x, t)
    params, state = optimizer.update(grads, state, params)
    return value, params, state


def exact(x, t):
    return np.sin(np.pi * x) * np.exp(-DIFFUSION * np.pi**2 * t)


def train(key, steps):
    """The parameters and the loss of every step."""
    params = init(key)
    state, losses = optimizer.init(params), []
    for k in ts.split(key, steps):
        value, params, state = step(params, state, k)
        losses.append(value.item())
    return params, losses


def error(params, n=33):
    """The largest error on a grid."""
    x, t = np.meshgrid(np.linspace(0, 1, n), np.linspace(0, 1, n))
    x, t = x.reshape(-1).astype(np.float32), t.reshape(-1).astype(np.float32)
    found = ts.vmap(u, in_axes=(None, 0, 0))(params, ts.asarray(x), ts.asarray(t))
    return np.abs(np.asarray(found) - exact(x, t)).max()


def main():
    params, losses = train(ts.key(0), STEPS)
    for i in range(0, STEPS, 100):
        print(f"step {i:3d}  mean square residual {losses[i]:.5f}")
    print(f"largest error against the exact solution: {error(params):.5f}")


if __name__ == "__main__":
    main()
