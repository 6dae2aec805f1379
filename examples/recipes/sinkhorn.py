"""Optimal transport by Sinkhorn's iteration moves a cloud of points onto a ring.

    python examples/recipes/sinkhorn.py

The iteration is a `ts.while_loop` on logarithms.  Its gradient needs no derivative of the loop: at the
optimum the potentials may be held constant (the envelope theorem), which a `ts.custom_vjp` says.
"""

import numpy as np

import tessera as ts
from tessera import f64, op

EPSILON, LIMIT, TOLERANCE = 0.05, 500, 1e-6


def costs(x, y):
    """Half the squared distances of all pairs of rows."""
    return 0.5 * op.sum((x[:, None] - y) ** 2, axis=-1)


def potentials(cost, epsilon=EPSILON):
    """The dual potentials of uniform weights, and how many rounds it took."""
    n, m = cost.shape

    def soft_min(c, axis, count):
        return -epsilon * (op.logsumexp(-c / epsilon, axis=axis) - np.log(count))

    def off(state):
        _, _, gap, i = state
        return (gap > TOLERANCE) & (i < LIMIT)

    def body(state):
        f, g, _, i = state
        g = soft_min(cost - f[:, None], 0, n)
        new = soft_min(cost - g, 1, m)
        return new, g, op.max(op.abs(new - f)), i + 1

    zero = (op.zeros((n,), cost.dtype), op.zeros((m,), cost.dtype))
    f, g, _, rounds = ts.while_loop(off, body, (*zero, op.full((), np.inf, cost.dtype), 0))
    return f, g, rounds


def plan(cost, f, g, epsilon=EPSILON):
    """How much mass goes from each point to each other point."""
    return op.exp((f[:, None] + g - cost) / epsilon) / (cost.shape[0] * cost.shape[1])


@ts.custom_vjp
def transport(cost):
    """The entropic cost of moving uniform weights on the rows to uniform weights on the columns."""
    f, g, _ = potentials(cost)
    return op.mean(f) + op.mean(g)


def transport_forward(cost):
    f, g, _ = potentials(cost)
    return op.mean(f) + op.mean(g), plan(cost, f, g)


transport.defvjp(transport_forward, lambda moved, ct: (ct * moved,))


def divergence(x, y):
    """Zero for equal clouds: the cost less what entropy alone would cost."""
    return transport(costs(x, y)) - 0.5 * (transport(costs(x, x)) + transport(costs(y, y)))


@ts.jit
def step(x, y, rate):
    """Move every point down the gradient; points have mass 1 / n."""
    value, grads = ts.value_and_grad(divergence)(x, y)
    return value, x - rate * x.shape[0] * grads


def clouds(rng, n):
    """A disc and a ring."""
    x = 0.3 * rng.normal(size=(n, 2))
    turn = rng.uniform(0, 2 * np.pi, n)
    return x, np.stack([np.cos(turn), np.sin(turn)], axis=1)


def main():
    x, y = (ts.asarray(a) for a in clouds(np.random.default_rng(0), 100))
    for i in range(21):
        value, x = step(x, y, ts.tensor(0.5, f64))
        if i % 4 == 0:
            radius = op.vector_norm(x, axis=1)
            print(f"round {i:2d}  divergence {value.item():.5f}  "
                  f"radius {op.mean(radius).item():.3f} +- {op.std(radius).item():.3f}")  # fmt: skip
    f, g, rounds = potentials(costs(x, y))
    moved = plan(costs(x, y), f, g)
    print(f"a last plan after {rounds.item()} rounds; its rows sum to 1/n within "
          f"{op.max(op.abs(op.sum(moved, axis=1) * 100 - 1)).item():.1e}")  # fmt: skip


if __name__ == "__main__":
    main()
