"""Generate from a transformer token by token, with a cache of keys and values.

    python examples/recipes/decoding.py

The model learns to go on with a repeated pattern.  Prefill runs the whole prompt at once and fills a
`ts.KVCache`; then one jitted step per token appends to the cache.
"""

import time

import numpy as np

import tessera as ts
from tessera import op

VOCABULARY, WIDTH, HEADS, LAYERS, ROOM = 12, 48, 4, 2, 64
optimizer = ts.optim.adam(3e-3)


def init(key):
    keys = iter(ts.split(key, 2 + 4 * LAYERS))

    def matrix(m, n):
        return op.random.normal(next(keys), (m, n), std=m**-0.5)

    def block():
        return {
            "qkv": matrix(WIDTH, 3 * WIDTH), "mix": matrix(WIDTH, WIDTH),
            "up": matrix(WIDTH, 4 * WIDTH), "down": matrix(4 * WIDTH, WIDTH),
        }  # fmt: skip

    blocks = [block() for _ in range(LAYERS)]
    return {"tokens": matrix(VOCABULARY, WIDTH), "blocks": blocks, "out": matrix(WIDTH, VOCABULARY)}


def empty_caches(batch):
    return [ts.KVCache.empty(batch, HEADS, ROOM, WIDTH // HEADS) for _ in range(LAYERS)]


def forward(params, caches, tokens):
    """Scores of every next token (batch, length, vocabulary), and the caches with these tokens."""
    batch, length = tokens.shape
    places = caches[0].length + op.arange(length)
    seen = op.arange(ROOM) <= places[:, None]  # what each query may look at
    x, filled = op.embedding(params["tokens"], tokens), []
    for p, cache in zip(params["blocks"], caches):
        qkv = op.reshape(op.rmsnorm(x) @ p["qkv"], (batch, length, 3, HEADS, WIDTH // HEADS))
        q, k, v = op.unstack(op.transpose(qkv, (2, 0, 3, 1, 4)))
        cache = cache.append(op.rope(k, places), v)
        y = op.attention(op.rope(q, places), cache.K, cache.V, mask=seen)
        x = x + op.reshape(op.swapaxes(y, 1, 2), (batch, length, WIDTH)) @ p["mix"]
        x = x + op.gelu(op.rmsnorm(x) @ p["up"]) @ p["down"]
        filled.append(cache)
    return op.rmsnorm(x) @ params["out"], filled


def loss(params, tokens):
    scores, _ = forward(params, empty_caches(tokens.shape[0]), tokens[:, :-1])
    return op.cross_entropy(scores, tokens[:, 1:])


@ts.jit
def step(params, state, tokens):
    value, grads = ts.value_and_grad(loss)(params, tokens)
    params, state = optimizer.update(grads, state, params)
    return value, params, state


@ts.jit(donate=("caches",))
def advance(params, caches, tokens):
    """The most likely next token (batch, 1) after these, and the caches, written in place."""
    scores, caches = forward(params, caches, tokens)
    return op.argmax(scores[:, -1:], axis=-1), caches


def generate(params, prompt, count):
    """`count` tokens after a prompt (batch, length): prefill, then one at a time."""
    token, caches = advance(params, empty_caches(prompt.shape[0]), prompt)
    out = [token]
    for _ in range(count - 1):
        token, caches = advance(params, caches, token)
        out.append(token)
    return op.concat(out, axis=1)


def patterns(rng, batch, length=33):
    """Sequences that repeat a drawn pattern of 3 to 6 tokens."""
    rows = [
        np.resize(rng.permutation(VOCABULARY)[: rng.integers(3, 7)], length) for _ in range(batch)
    ]
    return np.stack(rows)


def train(key, steps, batch=32, seed=0):
    """The parameters and the loss of every step."""
    rng, params = np.random.default_rng(seed), init(key)
    state, losses = optimizer.init(params), []
    for _ in range(steps):
        value, params, state = step(params, state, patterns(rng, batch))
        losses.append(value.item())
    return params, losses


def main():
    params, losses = train(ts.key(0), 300)
    for i in range(0, 300, 60):
        print(f"step {i:3d}  loss {np.mean(losses[i : i + 10]):.3f}")
    rows = patterns(np.random.default_rng(1), 4, 46)
    generate(params, ts.asarray(rows[:, :16]), 2)  # compiles prefill and step
    begin = time.perf_counter()
    out = generate(params, ts.asarray(rows[:, :16]), 30).numpy()
    print(f"{(out == rows[:, 16:]).mean():.0%} of the tokens continue the pattern, "
          f"{30 * len(rows) / (time.perf_counter() - begin):,.0f} tokens/s")  # fmt: skip
    print(*rows[0, :16], "|", *out[0])


if __name__ == "__main__":
    main()
