"""A graph network tells the two halves of a social network apart by passing messages.

    python examples/recipes/graph_network.py

Edges are two vectors of indices: a message gathers the features of its sender, and `.at[].add`
scatters messages to their receivers.  Only 16 of 120 people say which half they belong to.
"""

import numpy as np

import tessera as ts
from tessera import op

PEOPLE, WIDTH, LAYERS, KNOWN = 120, 16, 3, 16
optimizer = ts.optim.adam(1e-2)


def friendships(rng, inside=0.15, across=0.02):
    """Edges in both directions as (senders, receivers), and the half of everyone."""
    half = np.arange(PEOPLE) % 2
    chance = np.where(half[:, None] == half, inside, across)
    linked = np.triu(rng.uniform(size=chance.shape) < chance, 1)
    i, j = np.nonzero(linked)
    return np.concatenate([i, j]), np.concatenate([j, i]), half


def init(key):
    first, *rest, last = ts.split(key, LAYERS + 2)
    return {
        "people": op.random.normal(first, (PEOPLE, WIDTH)),
        "layers": [op.random.normal(k, (WIDTH, WIDTH), std=WIDTH**-0.5) for k in rest],
        "out": op.random.normal(last, (WIDTH, 2), std=WIDTH**-0.5),
    }


def aggregate(h, senders, receivers):
    """The mean of the features of everyone's neighbours."""
    total = op.zeros_like(h).at[receivers].add(op.take(h, senders, axis=0))
    degree = op.zeros((h.shape[0], 1), h.dtype).at[receivers].add(1.0)
    return total / op.maximum(degree, 1.0)


def forward(params, senders, receivers):
    """The scores of both halves for everyone."""
    h = params["people"]
    for w in params["layers"]:
        h = op.layernorm(h + op.relu(aggregate(h, senders, receivers) @ w))
    return h @ params["out"]


def loss(params, senders, receivers, known, labels):
    return op.cross_entropy(forward(params, senders, receivers)[known], labels)


@ts.jit
def step(params, state, senders, receivers, known, labels):
    value, grads = ts.value_and_grad(loss)(params, senders, receivers, known, labels)
    params, state = optimizer.update(grads, state, params)
    return value, params, state


@ts.jit
def placed(params, senders, receivers, half):
    """The share of those who said nothing that are placed correctly."""
    guess = op.argmax(forward(params, senders, receivers), axis=-1)
    return op.mean((guess == half)[KNOWN:])


def train(key, steps, seed=0):
    """The parameters, and (loss, share placed correctly) after every step."""
    senders, receivers, half = friendships(np.random.default_rng(seed))
    known = np.arange(KNOWN)
    params, record = init(key), []
    state = optimizer.init(params)
    for _ in range(steps):
        value, params, state = step(params, state, senders, receivers, known, half[known])
        record.append((value.item(), placed(params, senders, receivers, half).item()))
    return params, record


def main():
    _, record = train(ts.key(0), 100)
    for i in range(9, 100, 20):
        print(
            f"step {i + 1:3d}  loss {record[i][0]:.4f}  placed correctly {100 * record[i][1]:.0f}%"
        )
    print(
        f"{KNOWN} of {PEOPLE} told their half; of the others {100 * record[-1][1]:.1f}% are found"
    )


if __name__ == "__main__":
    main()
