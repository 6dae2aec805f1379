"""A mixture of experts: each token goes to its best two of eight small networks.

    python examples/recipes/mixture_of_experts.py

Tokens are routed by `op.topk`, given places in the buffers of their experts by a running count, and
moved there and back by scatter and gather.  An expert takes at most `CAPACITY` tokens; what is over is
dropped, and a loss of its own keeps the load even.
"""

import numpy as np

import tessera as ts
from tessera import op

EXPERTS, CHOSEN, WIDTH, HIDDEN = 8, 2, 8, 32
TOKENS = 256
CAPACITY = TOKENS * CHOSEN // EXPERTS * 2
optimizer = ts.optim.adam(1e-2)


def init(key):
    a, b, c = ts.split(key, 3)
    return {
        "router": op.random.normal(a, (WIDTH, EXPERTS), std=0.1),
        "up": op.random.normal(b, (EXPERTS, WIDTH, HIDDEN), std=WIDTH**-0.5),
        "down": op.random.normal(c, (EXPERTS, HIDDEN, WIDTH), std=HIDDEN**-0.5),
    }


def route(params, x):
    """Experts (tokens, chosen), their weights, and the loss of an uneven load."""
    chances = op.softmax(x @ params["router"])
    weights, experts = op.topk(chances, CHOSEN)
    load = op.mean(op.one_hot(experts[:, 0], EXPERTS), axis=0)
    uneven = EXPERTS * op.sum(load * op.mean(chances, axis=0))
    return experts, weights / op.sum(weights, axis=-1, keepdims=True), uneven


def places(experts):
    """The place of each choice in its expert's buffer: how many earlier choices it had."""
    chosen = op.one_hot(op.flatten(experts), EXPERTS, dtype="i32")
    before = op.cumsum(chosen, axis=0) - chosen
    return op.reshape(op.sum(before * chosen, axis=-1), experts.shape)


def moe(params, x):
    """Apply the chosen experts to each of the tokens (tokens, width)."""
    experts, weights, uneven = route(params, x)
    place = places(experts)
    fits = place < CAPACITY
    place = op.where(fits, place, CAPACITY)  # one place more, for what is dropped
    buffers = op.zeros((EXPERTS, CAPACITY + 1, WIDTH), x.dtype)
    buffers = buffers.at[experts, place].set(op.broadcast_to(x[:, None], (*experts.shape, WIDTH)))
    h = op.relu(op.einsum("ecw,ewh->ech", buffers, params["up"]))
    out = op.einsum("ech,ehw->ecw", h, params["down"])[experts, place]
    kept = op.where(fits, weights, 0.0)
    return op.sum(kept[..., None] * out, axis=1), uneven, op.mean(fits)


def loss(params, x, y):
    out, uneven, kept = moe(params, x)
    return op.mse(out, y) + 0.01 * uneven, kept


@ts.jit
def step(params, state, x, y):
    (value, kept), grads = ts.value_and_grad(loss, has_aux=True)(params, x, y)
    params, state = optimizer.update(grads, state, params)
    return value, kept, params, state


def dense_moe(params, x):
    """The same with every expert applied to every token: the check."""
    experts, weights, _ = route(params, x)
    h = op.relu(op.einsum("tw,ewh->teh", x, params["up"]))
    out = op.einsum("teh,ehw->tew", h, params["down"])
    gates = op.sum(op.one_hot(experts, EXPERTS) * weights[..., None], axis=1)
    return op.einsum("te,tew->tw", gates, out)


def tasks(rng, n):
    """Tokens of eight kinds, each of which is turned by a matrix of its own."""
    fixed = np.random.default_rng(99)
    centres, turns = fixed.normal(size=(EXPERTS, WIDTH)), fixed.normal(size=(EXPERTS, WIDTH, WIDTH))
    kind = rng.integers(0, EXPERTS, n)
    x = 2 * centres[kind] + 0.5 * rng.normal(size=(n, WIDTH))
    y = np.einsum("nw,nwv->nv", x, turns[kind]) / WIDTH
    return x.astype(np.float32), y.astype(np.float32)


def train(key, steps, seed=0):
    """The parameters, and (loss, share of choices kept) of every step."""
    rng, params, record = np.random.default_rng(seed), init(key), []
    state = optimizer.init(params)
    for _ in range(steps):
        value, kept, params, state = step(params, state, *tasks(rng, TOKENS))
        record.append((value.item(), kept.item()))
    return params, record


def main():
    params, record = train(ts.key(0), 400)
    for i in range(0, 400, 80):
        value, kept = np.mean(record[i : i + 20], axis=0)
        print(f"step {i:3d}  loss {value:.4f}  choices that found room {100 * kept:.1f}%")
    x, _ = tasks(np.random.default_rng(1), TOKENS)
    load = np.bincount(np.asarray(route(params, ts.asarray(x))[0]).reshape(-1), minlength=EXPERTS)
    print("tokens per expert:", *load)


if __name__ == "__main__":
    main()
