"""Train a model in f16: weights, products and gradients, with masters in f32 and a loss scale that adapts
itself.

    python examples/nn/mixed_precision.py

The optimiser keeps f32 masters of f16 parameters by itself.  Gradients of a small loss vanish in f16, whose
smallest number is 6e-8: `ts.optim.loss_scaled` multiplies the loss, divides the gradients, and skips steps
that overflowed.
"""

import numpy as np

import tessera as ts
from tessera import f16, f32, nn, op

SIZES = [16, 64, 64, 1]
plain = ts.optim.adam(3e-3, eps=1e-12)
OPTIMIZERS = {
    "f32": plain,
    "f16": plain,
    "f16 with loss scale": ts.optim.loss_scaled(plain, start=2.0**15, every=50),
}


def build(name):
    """The model in the dtype of this run."""
    model = nn.MLP(SIZES, op.relu, key=ts.key(0))
    return model if name == "f32" else ts.tree.map(lambda p: p.astype(f16), model)


def loss(model, x, y):
    """A small loss: the targets are tiny, as in many physical units."""
    out = model(x.astype(model.layers[0].weight.dtype)).astype(f32)
    return op.mse(1e-3 * out[:, 0], y)


def trainer(optimizer):
    """A jitted step of this optimiser."""

    @ts.jit
    def step(model, state, x, y):
        if isinstance(optimizer, type(OPTIMIZERS["f16 with loss scale"])):
            value, grads = optimizer.value_and_grad(loss)(state, model, x, y)
        else:
            value, grads = ts.value_and_grad(loss)(model, x, y)
        model, state = optimizer.update(grads, state, model)
        return value, model, state

    return step


def data(rng, n):
    x = rng.normal(size=(n, SIZES[0])).astype(np.float32)
    return x, (1e-3 * np.tanh(x[:, 0] * x[:, 1] + x[:, 2])).astype(np.float32)


def train(name, steps, batch=256, seed=0):
    """The state of the optimiser, and the loss of each step over the mean square of the targets."""
    rng, model, losses = np.random.default_rng(seed), build(name), []
    step, state = trainer(OPTIMIZERS[name]), OPTIMIZERS[name].init(model)
    for _ in range(steps):
        x, y = data(rng, batch)
        value, model, state = step(model, state, x, y)
        losses.append(value.item() / np.mean(y**2))
    return model, state, losses


def main():
    for name in OPTIMIZERS:
        _, state, losses = train(name, 400)
        last = f"; scale {state['scale'].item():,.0f}" if "scale" in state else ""
        print(
            f"{name:20s} relative loss {np.mean(losses[:10]):.3f} -> {np.mean(losses[-20:]):.3f}{last}"
        )


if __name__ == "__main__":
    main()
