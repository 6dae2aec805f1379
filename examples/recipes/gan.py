"""A generative adversarial network for a ring of eight Gaussians.

    python examples/recipes/gan.py

Two networks, two losses, two optimisers: each gradient is taken in its own network's parameters, and
one jitted step does both.
"""

import numpy as np

import tessera as ts
from tessera import op

WIDTH, NOISE, MODES = 64, 8, 8
optimizer = ts.optim.adam(1e-3, b1=0.5)


def mlp_init(key, sizes):
    keys = ts.split(key, len(sizes) - 1)
    return [
        (op.random.normal(k, (m, n), std=(2 / m) ** 0.5), op.zeros((n,)))
        for k, m, n in zip(keys, sizes, sizes[1:])
    ]


def mlp(layers, x):
    for w, b in layers[:-1]:
        x = op.leaky_relu(x @ w + b, 0.2)
    w, b = layers[-1]
    return x @ w + b


def init(key):
    a, b = ts.split(key)
    return {
        "generator": mlp_init(a, (NOISE, WIDTH, WIDTH, 2)),
        "critic": mlp_init(b, (2, WIDTH, WIDTH, 1)),
    }


def critic_loss(critic, real, fake):
    """Tell data (1) from inventions (0)."""
    right, wrong = mlp(critic, real), mlp(critic, fake)
    return op.mean(op.softplus(-right)) + op.mean(op.softplus(wrong))


def generator_loss(generator, critic, noise):
    """Be taken for data."""
    return op.mean(op.softplus(-mlp(critic, mlp(generator, noise))))


@ts.jit
def step(nets, states, key, real):
    noise = op.random.normal(key, (real.shape[0], NOISE))
    fake = mlp(nets["generator"], noise)
    d_loss, d_grads = ts.value_and_grad(critic_loss)(nets["critic"], real, fake)
    critic, d_state = optimizer.update(d_grads, states["critic"], nets["critic"])
    g_loss, g_grads = ts.value_and_grad(generator_loss)(nets["generator"], critic, noise)
    generator, g_state = optimizer.update(g_grads, states["generator"], nets["generator"])
    nets = {"generator": generator, "critic": critic}
    return (d_loss, g_loss), nets, {"generator": g_state, "critic": d_state}


def centres():
    turn = 2 * np.pi * np.arange(MODES) / MODES
    return np.stack([np.cos(turn), np.sin(turn)], axis=1).astype(np.float32)


def ring(rng, n):
    noise = rng.normal(scale=0.05, size=(n, 2)).astype(np.float32)
    return centres()[rng.integers(0, MODES, n)] + noise


def train(key, steps, batch=256, seed=0):
    """The networks and their losses, step by step."""
    rng, nets, losses = np.random.default_rng(seed), init(key), []
    states = {name: optimizer.init(net) for name, net in nets.items()}
    for k in ts.split(key, steps):
        (d, g), nets, states = step(nets, states, k, ring(rng, batch))
        losses.append((d.item(), g.item()))
    return nets, losses


def coverage(points):
    """How many Gaussians got at least 2% of the points, and how far points are from the nearest."""
    gaps = op.vector_norm(points[:, None] - ts.asarray(centres()), axis=-1)
    share = op.mean(op.one_hot(op.argmin(gaps, axis=1), MODES), axis=0)
    return op.count_nonzero(share > 0.02).item(), op.mean(op.min(gaps, axis=1)).item()


def main():
    nets, losses = train(ts.key(0), 2500)
    for i in range(0, 2500, 500):
        d, g = np.mean(losses[i : i + 100], axis=0)
        print(f"step {i:4d}  critic {d:.3f}  generator {g:.3f}")
    points = mlp(nets["generator"], op.random.normal(ts.key(1), (2000, NOISE)))
    modes, gap = coverage(points)
    print(f"{modes} of {MODES} Gaussians found, mean distance to the nearest {gap:.3f}")


if __name__ == "__main__":
    main()
