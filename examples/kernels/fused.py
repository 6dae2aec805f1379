# ruff: noqa: F821, N806  (sizes have names, and T is the schedule)
"""Fused steps of training and inference: quantised rows, losses over large vocabularies, ragged sums,
sampling.
"""

from tessera import KTile, block, f32, i8, i32, kernel, tile


@kernel.schedule(block(4))
def quantize_rows(x: KTile["M", "N", f32]):
    """Rows as i8 with one scale each: the largest magnitude becomes 127."""
    t = tile.load(x)
    top = tile.max(tile.abs(t), axis=1, keepdims=True)
    scale = tile.where(top > 0, top / 127, 1.0)
    return tile.cast(tile.round(t / scale), i8), scale


@kernel.schedule(block(4))
def dequantize_rows(q: KTile["M", "N", i8], scale: KTile["M", 1, f32]):
    """Rows of i8 with one scale each, as f32."""
    return tile.cast(tile.load(q), f32) * tile.load(scale)


@kernel.schedule(block(4, 16))
def kl_divergence(p: KTile["M", "N", f32], log_q: KTile["M", "N", f32]):
    """The sum of p (log p - log q) of every row, in blocks of columns."""
    T = tile.context()
    total = tile.zeros((T.m,), f32)
    for nb in tile.range_k(p.shape, T.n):
        a = tile.load(p, rows=T.m, cols=nb)
        safe = tile.where(a > 0, a, 1.0)
        total = total + tile.sum(a * (tile.log(safe) - tile.load(log_q, rows=T.m, cols=nb)), axis=1)
    return total


@kernel
def jagged_sum(values: KTile["T", 8, f32], offsets: KTile["B1", i32]):
    """Sums of the rows of ragged batches."""
    b = tile.program(offsets.shape[0] - 1)
    total = tile.zeros((8,), f32)
    for rows in tile.range_n(values.shape, 4, start=offsets[b], stop=offsets[b + 1]):
        total = total + tile.sum(tile.load(values, rows=rows, cols=8), axis=0)
    out = tile.empty((offsets.shape[0] - 1, 8), f32)
    tile.store(out, total[None, :], at=(b, 0))
    return out


@kernel.schedule(block(4, 16))
def chunked_cross_entropy(logits: KTile["M", "V", f32], target: KTile["M", i32]):
    """log of the sum of exponentials minus the target's logit, in one pass over blocks of the vocabulary."""
    T = tile.context()
    want = tile.load(target, T.m)
    top = tile.full((T.m,), -float("inf"))
    total, chosen = tile.zeros((T.m,)), tile.zeros((T.m,))
    for nb in tile.range_k(logits.shape, T.n):
        t = tile.load(logits, rows=T.m, cols=nb)
        high = tile.maximum(top, tile.max(t, axis=1))
        total = total * tile.exp(top - high) + tile.sum(tile.exp(t - high[:, None]), axis=1)
        hit = tile.col_index(nb) == want[:, None]
        chosen = chosen + tile.sum(tile.where(hit, t, 0.0), axis=1)
        top = high
    return tile.log(total) + top - chosen


@kernel.schedule(block(4))
def geglu_backward(ct: KTile["M", "N", f32], a: KTile["M", "N", f32], b: KTile["M", "N", f32]):
    """The cotangents of a and b in gelu(a) * b."""
    g, x = tile.load(ct), tile.load(a)
    cdf = 0.5 * (1 + tile.erf(x * 0.7071067811865476))
    density = tile.exp(-0.5 * x * x) * 0.3989422804014327
    return g * tile.load(b) * (cdf + x * density), g * x * cdf


@kernel.schedule(block(4))
def add_layernorm(x: KTile["M", "N", f32], residual: KTile["M", "N", f32], gain: KTile["N", f32],
                  bias: KTile["N", f32]):  # fmt: skip
    """The sum of two tensors, and its rows normalised."""
    t = tile.load(x) + tile.load(residual)
    mean = tile.mean(t, axis=1, keepdims=True)
    away = t - mean
    var = tile.mean(away * away, axis=1, keepdims=True)
    n = x.shape[1]
    g, b = (tile.load(v, at=(0,), shape=(n,))[None, :] for v in (gain, bias))
    return t, away * tile.rsqrt(var + 1e-5) * g + b


@kernel
def block_cumsum(x: KTile["M", "N", f32]):
    """Running sums of rows, block by block: each begins with the sum of those before it."""
    i = tile.program(x.shape[0])
    out = tile.empty(x.shape, f32)
    before = tile.zeros((1, 1), f32)
    for j in tile.range(0, x.shape[1], 16):
        t = tile.load(x, at=(i, j), shape=(1, 16))
        tile.store(out, tile.scan(t, "add", axis=1) + before, at=(i, j))
        before = before + tile.sum(t, axis=1, keepdims=True)
    return out


@kernel
def top_p(probabilities: KTile["M", "V", f32], draw: KTile["M", f32], *, p: float):
    """A sample of the smallest set of the likeliest numbers whose probabilities reach p."""
    i = tile.program(probabilities.shape[0])
    v = probabilities.shape[1]
    row = tile.reshape(tile.load(probabilities, at=(i, 0), shape=(1, v)), (v,))
    order = tile.argsort(row, axis=0, descending=True)
    ranked = tile.gather(row, order, axis=0)
    upto = tile.scan(ranked, "add", axis=0)
    kept = tile.where(upto - ranked < p, ranked, 0.0)
    reached = tile.scan(kept, "add", axis=0)
    at = tile.sum(tile.cast(reached <= draw[i] * tile.sum(kept), i32))
    at = tile.minimum(at, tile.sum(tile.cast(kept > 0, i32)) - 1)
    chosen = tile.sum(tile.where(tile.arange(v, i32) == at, tile.cast(order, i32), 0))
    out = tile.empty((probabilities.shape[0],), i32)
    tile.store(out, chosen, at=(i,))
    return out


@kernel
def bitonic_sort(x: KTile["M", 16, f32]):
    """Rows of 16 in order, by a network of comparisons."""
    i = tile.program(x.shape[0])
    t = tile.reshape(tile.load(x, at=(i, 0), shape=(1, 16)), (16,))
    number = tile.arange(16)
    for size in (2, 4, 8, 16):
        step = size // 2
        while step >= 1:
            other = tile.gather(t, number ^ step, axis=0)
            rising, first = (number & size) == 0, (number & step) == 0
            t = tile.where(rising == first, tile.minimum(t, other), tile.maximum(t, other))
            step = step // 2
    out = tile.empty(x.shape, f32)
    tile.store(out, t[None, :], at=(i, 0))
    return out


@kernel.schedule(block(16))
def hash_counts(x: KTile["N", i32], *, bins: int):
    """How many numbers fall into each bin of a multiplicative hash."""
    ids = tile.cast(tile.load(x), "u32") * 2654435769
    counts = tile.empty((bins,), i32)
    tile.accumulate(counts, tile.ones(ids.shape, i32), at=(tile.cast((ids >> 16) % bins, i32),))
    return counts


@kernel.schedule(block(8, 8))
def block_masked_attention(
    q: KTile["S", "D", f32],
    k: KTile["L", "D", f32],
    v: KTile["L", "D", f32],
    seen: KTile["A", "B", i32],
):
    """Attention that skips blocks of 8 keys which a mask of blocks leaves out."""
    T = tile.context()
    rows = tile.load(q, rows=T.m, cols=T.d)
    i = tile.program_of("m")
    acc = tile.zeros((T.m, T.d), f32)
    m, l = tile.full((T.m,), -float("inf")), tile.zeros((T.m,), f32)
    j = 0
    for nb in tile.range_n(k.shape, T.n):
        if seen[i, j] != 0:
            s = tile.dot(rows, tile.load(k, nb).T) * tile.rsqrt(float(T.d))
            p, m_c, l_c = tile.softmax_online(s)
            acc, m, l = tile.softmax_accumulate(acc, m, l, p, tile.load(v, nb), m_c, l_c)
        j = j + 1
    return tile.where(l[:, None] > 0, acc / l[:, None], 0.0)


@kernel.schedule(block(4, 16))
def weighted_moments(x: KTile["M", "N", f32], w: KTile["M", "N", f32]):
    """Weighted means and variances of rows, by Chan's rule for joining blocks."""
    T = tile.context()
    total, mean, spread = tile.zeros((T.m,)), tile.zeros((T.m,)), tile.zeros((T.m,))
    for nb in tile.range_k(x.shape, T.n):
        a, b = tile.load(x, rows=T.m, cols=nb), tile.load(w, rows=T.m, cols=nb)
        more = tile.sum(b, axis=1)
        here = tile.sum(a * b, axis=1) / tile.where(more > 0, more, 1.0)
        away = a - here[:, None]
        own = tile.sum(b * away * away, axis=1)
        both = total + more
        share = tile.where(both > 0, more / tile.where(both > 0, both, 1.0), 0.0)
        delta = here - mean
        spread = spread + own + delta * delta * total * share
        mean, total = mean + delta * share, both
    return mean, spread / tile.where(total > 0, total, 1.0)
