# ruff: noqa: F821, N806  (sizes have names, and T is the schedule)
"""Steps of training and serving that fuse several passes: norms backward, routing, losses over a vocabulary
that is never written, cells, clusters, packed weights, caches of bytes.
"""

from tessera import KTile, block, f32, i8, i32, i64, kernel, tile, u8

INF = float("inf")


@kernel.schedule(block(4))
def rmsnorm_backward(x: KTile["M", "N", f32], gain: KTile["N", f32], ct: KTile["M", "N", f32]):
    """The cotangents of x and of the gain; the gain's is added up in the order of the rows' blocks."""
    t, c = tile.load(x), tile.load(ct)
    g = tile.load(gain, at=(0,), shape=(x.shape[1],))
    scale = tile.rsqrt(tile.mean(t * t, axis=1, keepdims=True) + 1e-5)
    normal, cg = t * scale, c * g
    of_gain = tile.empty((x.shape[1],), f32)
    tile.accumulate(of_gain, tile.sum(c * normal, axis=0), at=(0,))
    return scale * (cg - normal * tile.mean(cg * normal, axis=1, keepdims=True)), of_gain


@kernel.schedule(block(4))
def topk_gating(logits: KTile["T", "E", f32], *, k: int):
    """The k likeliest experts of each token, weights that add up to 1, and the load of each expert."""
    t = tile.load(logits)
    e = tile.exp(t - tile.max(t, axis=1, keepdims=True))
    weights, ids = tile.topk(e / tile.sum(e, axis=1, keepdims=True), k, axis=1)
    ids = tile.cast(ids, i32)
    load = tile.empty((logits.shape[1],), i32)
    tile.accumulate(load, tile.ones(ids.shape, i32), at=(ids,))
    return weights / tile.sum(weights, axis=1, keepdims=True), ids, load


@kernel.schedule(block(4, 8))
def linear_cross_entropy(h: KTile["M", "K", f32], w: KTile["K", "V", f32], labels: KTile["M", i64]):
    """The loss of h @ w, block by block of the vocabulary: the logits are never in memory."""
    T = tile.context()
    t, want = tile.load(h), tile.load(labels, T.m)
    top, total, own = tile.full((T.m,), -INF), tile.zeros((T.m,)), tile.zeros((T.m,))
    for nb in tile.range_k(w.shape, T.n):
        z = tile.dot(t, tile.load(w, cols=nb))
        high = tile.maximum(top, tile.max(z, axis=1))
        total = total * tile.exp(top - high) + tile.sum(tile.exp(z - high[:, None]), axis=1)
        own = own + tile.sum(tile.where(tile.col_index(nb) == want[:, None], z, 0), axis=1)
        top = high
    return tile.log(total) + top - own


@kernel.schedule(block(4))
def gru(x: KTile["B", "I", f32], h: KTile["B", "H", f32], wx: KTile["I", "G", f32],
        wh: KTile["H", "G", f32], bias: KTile["G", f32]):  # fmt: skip
    """One step of a gated recurrent unit: the reset gate sees the product, as in cuDNN."""
    t, s = tile.load(x), tile.load(h)
    gates = wx.shape[1]
    w, u = (tile.load(m, at=(0, 0), shape=(m.shape[0], gates)) for m in (wx, wh))
    gx = tile.dot(t, w) + tile.load(bias, at=(0,), shape=(gates,))
    (rx, zx, cx), (rh, zh, ch) = (tile.split(g, 3, axis=1) for g in (gx, tile.dot(s, u)))
    r, z = tile.sigmoid(rx + rh), tile.sigmoid(zx + zh)
    return (1 - z) * tile.tanh(cx + r * ch) + z * s


@kernel.schedule(block(8))
def kmeans_step(x: KTile["N", "D", f32], centres: KTile["K", "D", f32]):
    """The nearest centre of each point, and the sums and counts of the points of each centre."""
    t, (k, d) = tile.load(x), centres.shape
    c = tile.load(centres, at=(0, 0), shape=(k, d))
    near = tile.cast(tile.argmin(tile.sum((t[:, None, :] - c[None]) ** 2, axis=2), axis=1), i32)
    sums, counts = tile.empty((k, d), f32), tile.empty((k,), i32)
    tile.accumulate(sums, t, at=(near[:, None], tile.arange(d, i32)[None, :]))
    tile.accumulate(counts, tile.ones(near.shape, i32), at=(near,))
    return near, sums, counts


@kernel.schedule(block(4))
def pack_int4(x: KTile["M", "N", f32]):
    """Groups of 8 numbers with one scale each, as integers of -8 to 7, two in a byte."""
    t, n = tile.load(x), x.shape[1]
    groups = tile.reshape(t, (t.shape[0], n // 8, 8))
    scale = tile.max(tile.abs(groups), axis=2) / 7
    scale = tile.where(scale > 0, scale, 1.0)
    q = tile.round(groups / scale[:, :, None])
    q = tile.reshape(tile.cast(min(max(q, -8), 7), i32), (t.shape[0], n // 2, 2)) & 15
    return tile.cast(q[:, :, 0] | (q[:, :, 1] << 4), u8), scale


@kernel
def decode_int8(q: KTile["H", "D", f32], k: KTile["H", "N", "D", i8], k_scale: KTile["H", "N", f32],
                v: KTile["H", "N", "D", i8], v_scale: KTile["H", "N", f32]):  # fmt: skip
    """One query for each head against keys and values of bytes, with a scale for each position."""
    h, width = tile.program(q.shape[0]), q.shape[1]
    row = tile.load(q, at=(h, 0), shape=(1, width))
    acc, top, total = tile.zeros((1, width), f32), -INF, 0.0
    for nb in tile.range_n(k.shape[1], 8):
        column = tile.col_index(nb)
        s = tile.dot(row, tile.cast(tile.load(k, nb, batch=h), f32).T) * k_scale[h, column]
        s = s * tile.rsqrt(float(width))
        now = tile.maximum(top, tile.max(s))
        p, before = tile.exp(s - now), tile.exp(top - now)
        acc = acc * before + tile.dot(
            p * v_scale[h, column], tile.cast(tile.load(v, nb, batch=h), f32)
        )
        top, total = now, total * before + tile.sum(p)
    out = tile.empty(q.shape, f32)
    tile.store(out, acc / total, at=(h, 0))
    return out
