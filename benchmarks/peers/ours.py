# ruff: noqa: F821, N806  (sizes have names, and T is the schedule)
"""Kernels that people write in Triton, in Tessera: tutorials, layers of language models, library
functions.
"""

import math

from tessera import KTile, bf16, block, f32, i32, kernel, tile


def wide(x):
    """A tile in f32."""
    return tile.cast(x, f32)


# Triton's tutorials --------------------------------------------------------------------------


@kernel.schedule(block(64), gpu=block(1024).warps(4))
def add(x: KTile["N", f32], y: KTile["N", f32]):
    return tile.load(x) + tile.load(y)


@kernel.schedule(block(1), gpu=block(1).warps(8))
def softmax(x: KTile["M", "N", f32]):
    t = tile.load(x)
    e = tile.exp(t - tile.max(t, axis=1, keepdims=True))
    return e / tile.sum(e, axis=1, keepdims=True)


@kernel.schedule(block(16, 16).k(16), gpu=block(128, 256).k(64).warps(8).stages(3))
def matmul(a: KTile["M", "K", bf16], b: KTile["K", "N", bf16]):
    T = tile.context()
    acc = tile.zeros((T.m, T.n), f32)
    for kb in tile.range_k(a.shape, T.k):
        acc = tile.dot(
            wide(tile.load(a, rows=T.m, cols=kb)), wide(tile.load(b, rows=kb, cols=T.n)), acc
        )
    return tile.cast(tile.where(acc >= 0, acc, 0.01 * acc), bf16)


@kernel.schedule(block(64), gpu=block(1024).warps(4))
def dropout(x: KTile["N", f32], *, p: float, seed: int):
    return tile.dropout_in_kernel(tile.load(x), p=p, seed=seed)


@kernel.schedule(block(1), gpu=block(1).warps(8))
def layernorm(
    x: KTile["M", "D", bf16], gain: KTile["D", bf16], bias: KTile["D", bf16], *, eps: float
):
    row = wide(tile.load(x))
    centred = row - tile.mean(row, axis=1, keepdims=True)
    rate = tile.rsqrt(tile.mean(centred * centred, axis=1, keepdims=True) + eps)
    return tile.cast(centred * rate * wide(tile.load(gain)) + wide(tile.load(bias)), bf16)


@kernel.schedule(block(1), gpu=block(1).warps(8))
def layernorm_backward(
    x: KTile["M", "D", bf16], gain: KTile["D", bf16], mean: KTile["M", f32], rate: KTile["M", f32],
    ct: KTile["M", "D", bf16],
):  # fmt: skip
    c, g = wide(tile.load(ct)), wide(tile.load(gain))
    r = tile.load(rate)[:, None]
    hat = (wide(tile.load(x)) - tile.load(mean)[:, None]) * r
    cg = c * g
    inner = tile.mean(cg * hat, axis=1, keepdims=True)
    return tile.cast((cg - hat * inner - tile.mean(cg, axis=1, keepdims=True)) * r, bf16)


@kernel.schedule(block(16, 16), gpu=block(128, 64).warps(8).stages(3))
def attention(
    q: KTile["H", "S", "D", bf16], k: KTile["H", "L", "D", bf16], v: KTile["H", "L", "D", bf16]
):
    T = tile.context()
    rows = wide(tile.load(q, rows=T.m, cols=T.d))
    acc = tile.zeros((T.m, T.d), f32)
    m, l = tile.full((T.m,), -float("inf")), tile.zeros((T.m,), f32)
    for nb in tile.range_n(k.shape, T.n):
        s = tile.dot(rows, wide(tile.load(k, nb)).T) * tile.rsqrt(float(T.d))
        p, m_c, l_c = tile.softmax_online(s)
        acc, m, l = tile.softmax_accumulate(
            acc, m, l, tile.cast(p, bf16), tile.load(v, nb), m_c, l_c
        )
    return tile.cast(acc / l[:, None], bf16)


@kernel.schedule(block(64), gpu=block(1024).warps(4))
def arcsine(x: KTile["N", f32]):
    return tile.asin(tile.load(x))


# Layers of language models -------------------------------------------------------------------


@kernel.schedule(block(1), gpu=block(1).warps(8))
def rmsnorm(x: KTile["M", "D", bf16], gain: KTile["D", bf16], *, eps: float):
    row = wide(tile.load(x))
    rate = tile.rsqrt(tile.mean(row * row, axis=1, keepdims=True) + eps)
    return tile.cast(row * rate * wide(tile.load(gain)), bf16)


@kernel.schedule(block(4), gpu=block(4).warps(4))
def rotary(x: KTile["H", "S", "D", bf16], cos: KTile["S", "E", f32], sin: KTile["S", "E", f32]):
    half = x.shape[2] // 2
    a = wide(tile.load(x, rows=tile.context().m, cols=tile.span(x.shape[2], 0, half)))
    b = wide(tile.load(x, rows=tile.context().m, cols=tile.span(x.shape[2], half, half)))
    c, s = tile.load(cos), tile.load(sin)
    out = tile.empty(x.shape, bf16)
    tile.store(
        out,
        tile.cast(a * c - b * s, bf16),
        rows=tile.context().m,
        cols=tile.span(x.shape[2], 0, half),
    )
    tile.store(
        out,
        tile.cast(b * c + a * s, bf16),
        rows=tile.context().m,
        cols=tile.span(x.shape[2], half, half),
    )
    return out


@kernel.schedule(block(64), gpu=block(1024).warps(4))
def swiglu(a: KTile["N", bf16], b: KTile["N", bf16]):
    t = wide(tile.load(a))
    return tile.cast(t * tile.sigmoid(t) * wide(tile.load(b)), bf16)


@kernel.schedule(block(64), gpu=block(1024).warps(4))
def geglu(a: KTile["N", bf16], b: KTile["N", bf16]):
    t = wide(tile.load(a))
    inner = math.sqrt(2 / math.pi) * (t + 0.044715 * t * t * t)
    return tile.cast(0.5 * t * (1 + tile.tanh(inner)) * wide(tile.load(b)), bf16)


@kernel.schedule(block(1, 64), gpu=block(1, 4096).warps(16))
def cross_entropy(logits: KTile["M", "V", bf16], labels: KTile["M", i32]):
    """Losses of rows, in one pass over the columns."""
    T = tile.context()
    m, l = tile.full((T.m,), -float("inf")), tile.zeros((T.m,), f32)
    for nb in tile.range_k(logits.shape, T.n):
        t = wide(tile.load(logits, rows=T.m, cols=nb))
        top = tile.maximum(m, tile.max(t, axis=1))
        l = l * tile.exp(m - top) + tile.sum(tile.exp(t - top[:, None]), axis=1)
        m = top
    own = wide(logits[tile.row_index()[:, 0], tile.load(labels)])
    return m + tile.log(l) - own


@kernel.schedule(block(1, 64), gpu=block(1, 4096).warps(8))
def kl_divergence(p: KTile["M", "N", f32], log_q: KTile["M", "N", f32]):
    T = tile.context()
    total = tile.zeros((T.m,), f32)
    for nb in tile.range_k(p.shape, T.n):
        t = tile.load(p, rows=T.m, cols=nb)
        e = t * (tile.log(tile.maximum(t, 1e-30)) - tile.load(log_q, rows=T.m, cols=nb))
        total = total + tile.sum(e, axis=1)
    return total


@kernel.schedule(block(1), gpu=block(1).warps(8))
def dynamic_tanh(x: KTile["M", "D", bf16], gain: KTile["D", bf16], bias: KTile["D", bf16], alpha):
    t = tile.tanh(wide(tile.load(x)) * alpha)
    return tile.cast(t * wide(tile.load(gain)) + wide(tile.load(bias)), bf16)


# Functions of a library ----------------------------------------------------------------------


@kernel.schedule(block(1), gpu=block(1).warps(8))
def log_softmax(x: KTile["M", "N", f32]):
    t = tile.load(x)
    t = t - tile.max(t, axis=1, keepdims=True)
    return t - tile.log(tile.sum(tile.exp(t), axis=1, keepdims=True))


@kernel.schedule(block(1), gpu=block(1).warps(8))
def cumsum(x: KTile["M", "N", f32]):
    return tile.scan(tile.load(x), "add", axis=1)


@kernel.schedule(block(1), gpu=block(1).warps(8))
def argmax(x: KTile["M", "N", f32]):
    return tile.argmax(tile.load(x), axis=1)


@kernel.schedule(block(1), gpu=block(1).warps(8))
def variance(x: KTile["M", "N", f32]):
    t = tile.load(x)
    mean = tile.mean(t, axis=1)
    centred = t - mean[:, None]
    return tile.mean(centred * centred, axis=1), mean


@kernel.schedule(block(16, 32), gpu=block(4, 1024).warps(8))
def matvec(a: KTile["M", "N", bf16], x: KTile["N", bf16]):
    T = tile.context()
    total = tile.zeros((T.m,), f32)
    for nb in tile.range_k(a.shape, T.n):
        t = wide(tile.load(a, rows=T.m, cols=nb))
        total = total + tile.sum(t * wide(tile.load(x, nb)), axis=1)
    return total


@kernel.schedule(block(16, 16), gpu=block(32, 128).warps(4))
def outer(x: KTile["M", f32], y: KTile["N", f32]):
    T = tile.context()
    return tile.load(x, T.m)[:, None] * tile.load(y, T.n)[None]


@kernel.schedule(block(4), gpu=block(4).warps(8))
def index_select(x: KTile["V", "D", bf16], ids: KTile["N", i32]):
    return tile.load(x, rows=tile.load(ids, tile.context().m))


@kernel.schedule(block(64), gpu=block(1024).warps(4))
def gelu(x: KTile["N", bf16]):
    t = wide(tile.load(x))
    return tile.cast(0.5 * t * (1 + tile.erf(t * math.sqrt(0.5))), bf16)


@kernel.schedule(block(16, 16).k(16), gpu=block(128, 128).k(64).warps(8).stages(3))
def addmm(c: KTile["N", bf16], a: KTile["M", "K", bf16], b: KTile["K", "N", bf16]):
    T = tile.context()
    acc = tile.zeros((T.m, T.n), f32)
    for kb in tile.range_k(a.shape, T.k):
        acc = tile.dot(
            wide(tile.load(a, rows=T.m, cols=kb)), wide(tile.load(b, rows=kb, cols=T.n)), acc
        )
    return tile.cast(acc + wide(tile.load(c, T.n)), bf16)


@kernel.schedule(block(16, 16).k(16), gpu=block(128, 128).k(64).warps(8).stages(3))
def bmm(a: KTile["B", "M", "K", bf16], b: KTile["B", "K", "N", bf16]):
    T = tile.context()
    acc = tile.zeros((T.m, T.n), f32)
    for kb in tile.range_k(a.shape, T.k):
        acc = tile.dot(
            wide(tile.load(a, rows=T.m, cols=kb)), wide(tile.load(b, rows=kb, cols=T.n)), acc
        )
    return tile.cast(acc, bf16)
