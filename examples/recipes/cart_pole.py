"""Policy gradients (REINFORCE) balance a pole on a cart, physics and all in one compiled program.

    python examples/recipes/cart_pole.py

The environment is a function of tensors, so a batch of episodes is `ts.vmap` of one `ts.scan`, and a
whole training step, from the drawing of actions to Adam, is one call.
"""

import numpy as np

import tessera as ts
from tessera import op

EPISODES, LENGTH, HIDDEN, DISCOUNT = 32, 200, 32, 0.98
optimizer = ts.optim.adam(1e-2)


def physics(state, push):
    """The state (place, speed, angle, its speed) 20 ms later; push is -1 or 1 times 10 N."""
    _x, v, angle, w = op.unstack(state)
    sin, cos = op.sin(angle), op.cos(angle)
    force = (10.0 * push + 0.05 * w**2 * sin) / 1.1
    spin = (9.8 * sin - cos * force) / (0.5 * (4 / 3 - 0.1 * cos**2 / 1.1))
    return state + 0.02 * op.stack([v, force - 0.05 * spin * cos / 1.1, w, spin])


def upright(state):
    return (op.abs(state[0]) < 2.4) & (op.abs(state[2]) < 0.21)


def init(key):
    a, b = ts.split(key)
    return {
        "w1": op.random.normal(a, (4, HIDDEN), std=0.5), "b1": op.zeros((HIDDEN,)),
        "w2": op.random.normal(b, (HIDDEN,), std=0.1),
    }  # fmt: skip


def logit(params, state):
    """The logarithm of the odds of a push to the right."""
    return op.tanh(state @ params["w1"] + params["b1"]) @ params["w2"]


def episode(params, start, chances):
    """States, pushes and whether the pole still stood, for a uniform number per step."""

    def body(carry, chance):
        state, alive = carry
        push = op.where(chance < op.sigmoid(logit(params, state)), 1.0, -1.0)
        moved = op.where(alive, physics(state, push), state)
        return (moved, alive & upright(moved)), (state, push, alive)

    return ts.scan(body, (start, upright(start)), chances)[1]


def returns(alive):
    """Discounted sums of future rewards, one for every step that the pole stands."""
    reward = op.where(alive, 1.0, 0.0)
    return op.linear_recurrence(op.full_like(reward, DISCOUNT), reward, axis=-1, reverse=True)


def surrogate(params, states, pushes, alive):
    """A function whose gradient is the policy gradient, with the mean return of a step as baseline."""
    g = returns(alive)
    better = (g - op.mean(g, axis=0)) / (op.std(g) + 1e-6)
    chosen = op.log_sigmoid(pushes * logit(params, states))
    return -op.sum(op.where(alive, chosen * better, 0.0)) / EPISODES


@ts.jit
def step(params, opt_state, key):
    k_start, k_chance = ts.split(key)
    starts = op.random.uniform(k_start, (EPISODES, 4), -0.05, 0.05)
    chances = op.random.uniform(k_chance, (EPISODES, LENGTH))
    seen = ts.vmap(episode, in_axes=(None, 0, 0))(params, starts, chances)
    grads = ts.grad(surrogate)(params, *seen)
    params, opt_state = optimizer.update(grads, opt_state, params)
    return op.mean(op.sum(seen[2], axis=1)), params, opt_state


def train(key, steps):
    """The parameters, and the mean length of an episode at every step."""
    params, lengths = init(key), []
    opt_state = optimizer.init(params)
    for k in ts.split(key, steps):
        length, params, opt_state = step(params, opt_state, k)
        lengths.append(length.item())
    return params, lengths


def main():
    _, lengths = train(ts.key(0), 150)
    for i in range(0, 150, 25):
        print(
            f"update {i:3d}  the pole stands for {np.mean(lengths[i : i + 5]):5.1f} of {LENGTH} steps"
        )
    print(f"at the end {np.mean(lengths[-10:]):.1f}")


if __name__ == "__main__":
    main()
