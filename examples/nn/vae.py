"""A variational autoencoder of small pictures: bars whose place and width it has to find out.

python examples/nn/vae.py
"""

import numpy as np

import tessera as ts
from tessera import nn, op

SIDE, HIDDEN, LATENT = 12, 64, 2
PIXELS = SIDE * SIDE
optimizer = ts.optim.adam(3e-3)


class VAE(nn.Module):
    encoder: nn.MLP
    decoder: nn.MLP

    def __init__(self, key):
        a, b = ts.split(key)
        self.encoder = nn.MLP([PIXELS, HIDDEN, 2 * LATENT], op.tanh, key=a)
        self.decoder = nn.MLP([LATENT, HIDDEN, PIXELS], op.tanh, key=b)

    def encode(self, x):
        """The mean and the logarithm of the variance of the code."""
        return op.split(self.encoder(x), 2, axis=-1)

    def __call__(self, x, *, key):
        """The negative evidence lower bound, in nats a picture."""
        mean, log_var = self.encode(x)
        code = mean + op.exp(log_var / 2) * op.random.normal(key, mean.shape)
        pixels = op.binary_cross_entropy(self.decoder(code), x, reduction="sum")
        divergence = 0.5 * op.sum(op.exp(log_var) + mean**2 - 1 - log_var)
        return (pixels + divergence) / x.shape[0]


@ts.jit
def step(model, state, key, x):
    value, grads = ts.value_and_grad(lambda m: m(x, key=key))(model)
    model, state = optimizer.update(grads, state, model)
    return value, model, state


def bars(rng, n):
    """Pictures of one upright bar: where it begins and how wide it is are drawn."""
    start, width = rng.integers(0, SIDE - 4, (n, 1, 1)), rng.integers(1, 5, (n, 1, 1))
    column = np.arange(SIDE)
    inside = (column >= start) & (column < start + width)
    return np.broadcast_to(inside, (n, SIDE, SIDE)).reshape(n, PIXELS).astype(np.float32)


def train(key, steps, batch=128, seed=0):
    """The model and the loss of every step."""
    rng, model, losses = np.random.default_rng(seed), VAE(key), []
    state = optimizer.init(model)
    for k in ts.split(key, steps):
        value, model, state = step(model, state, k, bars(rng, batch))
        losses.append(value.item())
    return model, losses


def main():
    model, losses = train(ts.key(0), 1200)
    for i in range(0, 1200, 200):
        print(f"step {i:4d}  negative bound {np.mean(losses[i : i + 50]):7.2f} nats")
    x = bars(np.random.default_rng(1), 6)
    again = op.sigmoid(model.decoder(model.encode(x)[0]))
    print("one row of six pictures, and what the codes of two numbers keep of it:")
    for row, back in zip(x, again.tolist(), strict=True):
        print("  ", *(" #"[int(p)] for p in row[:SIDE]), " -> ",
              *(" .:*#"[int(4.99 * p)] for p in back[:SIDE]))  # fmt: skip


if __name__ == "__main__":
    main()
