"""A neural ordinary differential equation learns the field of a spiral from its trajectories.

    python examples/recipes/neural_ode.py

The solver is a Runge-Kutta step in a `ts.scan`, and the gradient goes straight through it;
`ts.checkpoint` keeps only the states between steps, so that memory does not grow with the network.
"""

import numpy as np

import tessera as ts
from tessera import op

WIDTH, STEPS, DT = 32, 30, 0.1
TRUTH = np.array([[-0.1, 2.0], [-2.0, -0.1]], np.float32)
ROUNDS = 500
optimizer = ts.optim.adam(ts.optim.warmup_cosine(2e-2, 20, ROUNDS))


def init(key):
    a, b = ts.split(key)
    return {
        "w1": op.random.normal(a, (2, WIDTH), std=0.7), "b1": op.zeros((WIDTH,)),
        "w2": op.random.normal(b, (WIDTH, 2), std=0.1), "b2": op.zeros((2,)),
    }  # fmt: skip


def field(params, x):
    return op.tanh(x**3 @ params["w1"] + params["b1"]) @ params["w2"] + params["b2"]


def true_field(_, x):
    return x**3 @ ts.asarray(TRUTH)


def runge_kutta(f, params, x, dt):
    k1 = f(params, x)
    k2 = f(params, x + dt / 2 * k1)
    k3 = f(params, x + dt / 2 * k2)
    k4 = f(params, x + dt * k3)
    return x + dt / 6 * (k1 + 2 * k2 + 2 * k3 + k4)


def odeint(f, params, start, steps=STEPS, dt=DT):
    """The states after each step, (steps, ...)."""

    @ts.checkpoint
    def advance(x, params):
        return runge_kutta(f, params, x, dt)

    def body(x, _):
        x = advance(x, params)
        return x, x

    return ts.scan(body, start, length=steps)[1]


def loss(params, start, path):
    return op.mean(op.abs(odeint(field, params, start) - path))


@ts.jit
def step(params, state, start, path):
    value, grads = ts.value_and_grad(loss)(params, start, path)
    params, state = optimizer.update(grads, state, params)
    return value, params, state


def train(key, steps, starts=16):
    """The parameters and the loss of every step."""
    k_start, k_init = ts.split(key)
    start = op.random.uniform(k_start, (starts, 2), -1.5, 1.5)
    path = odeint(true_field, None, start)
    params = init(k_init)
    state, losses = optimizer.init(params), []
    for _ in range(steps):
        value, params, state = step(params, state, start, path)
        losses.append(value.item())
    return params, losses


def main():
    params, losses = train(ts.key(0), ROUNDS)
    for i in range(0, ROUNDS, 100):
        print(f"step {i:3d}  mean error along the trajectories {losses[i]:.4f}")
    start = ts.tensor([[1.2, 0.3]])
    ours, truth = odeint(field, params, start), odeint(true_field, None, start)
    print(
        f"a new start ends at {np.asarray(ours[-1, 0]).round(2)}, truly at "
        f"{np.asarray(truth[-1, 0]).round(2)}"
    )


if __name__ == "__main__":
    main()
