"""A variational autoencoder of small pictures: bars whose place and width it has to find out.

    python examples/recipes/vae.py

The encoder gives the mean and variance of a code, the decoder the chances of pixels; the noise between
them is drawn inside of the jitted step.
"""

import numpy as np

import tessera as ts
from tessera import op

SIDE, HIDDEN, LATENT = 12, 64, 2
PIXELS = SIDE * SIDE
optimizer = ts.optim.adam(3e-3)


def init(key):
    def linear(key, rows, columns):
        return {
            "w": op.random.normal(key, (rows, columns), std=rows**-0.5),
            "b": op.zeros((columns,)),
        }

    a, b, c, d = ts.split(key, 4)
    return {
        "encode": linear(a, PIXELS, HIDDEN),
        "moments": linear(b, HIDDEN, 2 * LATENT),
        "decode": linear(c, LATENT, HIDDEN),
        "pixels": linear(d, HIDDEN, PIXELS),
    }


def apply(layer, x):
    return x @ layer["w"] + layer["b"]


def encode(params, x):
    """The mean and the logarithm of the variance of the code."""
    h = op.tanh(apply(params["encode"], x))
    return op.split(apply(params["moments"], h), 2, axis=-1)


def decode(params, code):
    """The logits of the pixels."""
    return apply(params["pixels"], op.tanh(apply(params["decode"], code)))


def loss(params, x, noise):
    """The negative evidence lower bound, in nats a picture."""
    mean, log_var = encode(params, x)
    code = mean + op.exp(log_var / 2) * noise
    pixels = op.binary_cross_entropy(decode(params, code), x, reduction="sum")
    divergence = 0.5 * op.sum(op.exp(log_var) + mean**2 - 1 - log_var)
    return (pixels + divergence) / x.shape[0]


@ts.jit
def step(params, state, key, x):
    noise = op.random.normal(key, (x.shape[0], LATENT))
    value, grads = ts.value_and_grad(loss)(params, x, noise)
    params, state = optimizer.update(grads, state, params)
    return value, params, state


def bars(rng, n):
    """Pictures of one upright bar: where it begins and how wide it is are drawn."""
    start, width = rng.integers(0, SIDE - 4, (n, 1, 1)), rng.integers(1, 5, (n, 1, 1))
    column = np.arange(SIDE)
    inside = (column >= start) & (column < start + width)
    return np.broadcast_to(inside, (n, SIDE, SIDE)).reshape(n, PIXELS).astype(np.float32)


def train(key, steps, batch=128, seed=0):
    """The parameters and the loss of every step."""
    rng, params = np.random.default_rng(seed), init(key)
    state, losses = optimizer.init(params), []
    for k in ts.split(key, steps):
        value, params, state = step(params, state, k, bars(rng, batch))
        losses.append(value.item())
    return params, losses


def main():
    params, losses = train(ts.key(0), 1200)
    for i in range(0, 1200, 200):
        print(f"step {i:4d}  negative bound {np.mean(losses[i : i + 50]):7.2f} nats")
    x = bars(np.random.default_rng(1), 6)
    again = op.sigmoid(decode(params, encode(params, x)[0]))
    print("one row of six pictures, and what the codes of two numbers keep of it:")
    for row, back in zip(x, again.tolist(), strict=True):
        print("  ", *(" #"[int(p)] for p in row[:SIDE]), " -> ",
              *(" .:*#"[int(4.99 * p)] for p in back[:SIDE]))  # fmt: skip


if __name__ == "__main__":
    main()
