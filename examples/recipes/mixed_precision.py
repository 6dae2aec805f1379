"""Train in f16 with f32 master weights and a loss scale that adapts itself.

    python examples/recipes/mixed_precision.py

The products run in f16, whose smallest number is 6e-8: gradients of a small loss vanish there.
`ts.optim.loss_scaled` multiplies the loss before the backward pass, divides the gradients after it,
skips steps that overflowed, and adapts the scale, all inside of the jitted step.
"""

import numpy as np

import tessera as ts
from tessera import f16, f32, op

SIZES = (16, 64, 64, 1)
optimizers = {
    "f32": ts.optim.adam(3e-3),
    "f16": ts.optim.adam(3e-3),
    "f16 with loss scale": ts.optim.loss_scaled(ts.optim.adam(3e-3), start=2.0**15, every=50),
}


def init(key):
    keys = ts.split(key, len(SIZES) - 1)
    return [
        {"w": op.random.normal(k, (m, n), std=(2 / m) ** 0.5), "b": op.zeros((n,))}
        for k, m, n in zip(keys, SIZES, SIZES[1:])
    ]


def forward(params, x, dtype):
    """Products in `dtype`, from weights that are kept in f32."""
    h = x.astype(dtype)
    for i, p in enumerate(ts.tree.map(lambda t: t.astype(dtype), params)):
        h = h @ p["w"] + p["b"]
        h = op.relu(h) if i + 1 < len(params) else h
    return h.astype(f32)[:, 0]


def loss(params, x, y, dtype):
    """A small loss: the targets are tiny, as in many physical units."""
    return op.mse(1e-4 * forward(params, x, dtype), y)


def trainer(name):
    """The optimiser of this name and a jitted step."""
    optimizer, dtype = optimizers[name], f32 if name == "f32" else f16
    scaled = hasattr(optimizer, "value_and_grad")

    @ts.jit
    def step(params, state, x, y):
        def of(params):
            return loss(params, x, y, dtype)

        if scaled:
            value, grads = optimizer.value_and_grad(of)(state, params)
        else:
            value, grads = ts.value_and_grad(of)(params)
        params, state = optimizer.update(grads, state, params)
        return value, params, state

    return optimizer, step


def data(rng, n):
    x = rng.normal(size=(n, SIZES[0])).astype(np.float32)
    return x, (1e-4 * np.tanh(x[:, 0] * x[:, 1] + x[:, 2])).astype(np.float32)


def train(name, steps, batch=128, seed=0):
    """The last state, and the loss of every step relative to the mean square of the targets."""
    rng, params, losses = np.random.default_rng(seed), init(ts.key(seed)), []
    optimizer, step = trainer(name)
    state = optimizer.init(params)
    for _ in range(steps):
        x, y = data(rng, batch)
        value, params, state = step(params, state, x, y)
        losses.append(value.item() / np.mean(y**2))
    return params, state, losses


def main():
    for name in optimizers:
        _, state, losses = train(name, 400)
        last = f"; scale {state['scale'].item():,.0f}" if "scale" in state else ""
        print(
            f"{name:20s} relative loss {np.mean(losses[:10]):.3f} -> {np.mean(losses[-20:]):.3f}{last}"
        )


if __name__ == "__main__":
    main()
