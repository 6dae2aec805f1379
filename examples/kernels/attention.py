# ruff: noqa: F821, N806  (sizes have names, and T is the schedule)
"""Attention in many forms: sliding windows, ragged batches, pages of keys, split keys, linear attention,
RWKV.
"""

from tessera import KTile, block, f32, i32, kernel, tile

INF = float("inf")


@kernel.schedule(block(16, 16))
def sliding_window(
    q: KTile["H", "S", "D"], k: KTile["H", "S", "D"], v: KTile["H", "S", "D"], *, window: int
):
    """A row sees itself and the window - 1 rows before it: blocks outside of the band are not visited."""
    T = tile.context()
    rows = tile.load(q, rows=T.m, cols=T.d)
    acc = tile.zeros((T.m, T.d), f32)
    m, l = tile.full((T.m,), -INF), tile.zeros((T.m,), f32)
    first = tile.program_of("m") * T.m
    start = max(first - window + 1, 0) // T.n * T.n
    for nb in tile.range_n(k.shape, T.n, start=start, stop=min(first + T.m, k.shape[1])):
        s = tile.dot(rows, tile.load(k, nb).T) * tile.rsqrt(float(T.d))
        apart = tile.row_index() - tile.col_index(nb)
        s = tile.where((apart >= 0) & (apart < window), s, -INF)
        p, m_c, l_c = tile.softmax_online(s)
        acc, m, l = tile.softmax_accumulate(acc, m, l, p, tile.load(v, nb), m_c, l_c)
    return acc / l[:, None]


@kernel.schedule(block(8, 8))
def varlen(q: KTile["T", "D", f32], k: KTile["T", "D", f32], v: KTile["T", "D", f32],
           offsets: KTile["B1", i32], *, causal: bool):  # fmt: skip
    """Sequences one behind the other: row i of sequence b lies at offsets[b] + i."""
    T = tile.context()
    b = tile.program(offsets.shape[0] - 1)
    out = tile.empty(q.shape, f32)
    for mb in tile.range_n(q.shape, T.m, start=offsets[b], stop=offsets[b + 1]):
        rows = tile.load(q, mb)
        acc = tile.zeros((T.m, T.d), f32)
        m, l = tile.full((T.m,), -INF), tile.zeros((T.m,), f32)
        for nb in tile.range_n(k.shape, T.n, start=offsets[b], stop=offsets[b + 1]):
            s = tile.dot(rows, tile.load(k, nb).T) * tile.rsqrt(float(T.d))
            if causal:
                s = tile.where(tile.col_index(nb) <= tile.row_index(mb), s, -INF)
            p, m_c, l_c = tile.softmax_online(s)
            acc, m, l = tile.softmax_accumulate(acc, m, l, p, tile.load(v, nb), m_c, l_c)
        tile.store(out, acc / l[:, None], rows=mb, distinct=True)
    return out


@kernel
def paged_decode(q: KTile["B", "D", f32], keys: KTile["P", "L", "D", f32], values: KTile["P", "L", "D", f32],
                 pages: KTile["B", "N", i32], lengths: KTile["B", i32]):  # fmt: skip
    """One query for each sequence; page j of sequence b is page pages[b, j] of the pool."""
    b = tile.program(q.shape[0])
    size, width = keys.shape[1], q.shape[1]
    row = tile.load(q, at=(b, 0), shape=(1, width))
    acc, top, total = tile.zeros((1, width), f32), -INF, 0.0
    length = lengths[b]
    for j in range((length + size - 1) // size):
        page = pages[b, j]
        k = tile.reshape(tile.load(keys, at=(page, 0, 0), shape=(1, size, width)), (size, width))
        v = tile.reshape(tile.load(values, at=(page, 0, 0), shape=(1, size, width)), (size, width))
        s = tile.dot(row, tile.place(k, None).T) * tile.rsqrt(float(width))
        s = tile.where(j * size + tile.arange(size)[None, :] < length, s, -INF)
        now = tile.maximum(top, tile.max(s))
        p = tile.exp(s - now)
        scale = tile.exp(top - now)
        acc = acc * scale + tile.dot(p, tile.place(v, None))
        top, total = now, total * scale + tile.sum(p)
    out = tile.empty(q.shape, f32)
    tile.store(out, tile.where(total > 0, acc / total, 0), at=(b, 0))
    return out


@kernel
def split_decode(
    q: KTile["H", "D", f32],
    k: KTile["H", "S", "D", f32],
    v: KTile["H", "S", "D", f32],
    *,
    parts: int,
):
    """Decode with split keys: each instance has a stretch of the keys; `join_parts` puts them together."""
    h, part = tile.program(q.shape[0]), tile.program(parts)
    keys, width = k.shape[1], q.shape[1]
    stretch = (keys + parts - 1) // parts
    row = tile.load(q, at=(h, 0), shape=(1, width))
    acc, top, total = tile.zeros((1, width), f32), -INF, 0.0
    for nb in tile.range_n(keys, 8, start=part * stretch, stop=min((part + 1) * stretch, keys)):
        here = tile.col_index(nb) < (part + 1) * stretch
        s = tile.dot(row, tile.load(k, nb, batch=h).T) * tile.rsqrt(float(width))
        s = tile.where(here, s, -INF)
        now = tile.maximum(top, tile.max(s))
        p = tile.exp(s - now)
        scale = tile.exp(top - now)
        acc = acc * scale + tile.dot(p, tile.load(v, nb, batch=h))
        top, total = now, total * scale + tile.sum(p)
    sums = tile.empty((q.shape[0], parts, width), f32)
    tops, totals = tile.empty((q.shape[0], parts), f32), tile.empty((q.shape[0], parts), f32)
    tile.store(sums, acc, at=(h, part, 0))
    tile.store(tops, top, at=(h, part))
    tile.store(totals, total, at=(h, part))
    return sums, tops, totals


@kernel
def join_parts(
    sums: KTile["H", "P", "D", f32], tops: KTile["H", "P", f32], totals: KTile["H", "P", f32]
):
    """The parts of split_decode as one result."""
    h = tile.program(sums.shape[0])
    p, width = sums.shape[1], sums.shape[2]
    m = tile.load(tops, at=(h, 0), shape=(1, p))
    weights = tile.exp(m - tile.max(m))
    total = tile.sum(weights * tile.load(totals, at=(h, 0), shape=(1, p)))
    parts = tile.reshape(tile.load(sums, at=(h, 0, 0), shape=(1, p, width)), (p, width))
    out = tile.empty((sums.shape[0], width), f32)
    tile.store(out, tile.dot(weights, parts) / total, at=(h, 0))
    return out


@kernel
def linear_attention(
    q: KTile["H", "S", "D", f32], k: KTile["H", "S", "D", f32], v: KTile["H", "S", "E", f32]
):
    """Causal attention without a softmax: the state is the sum of outer products so far."""
    h = tile.program(q.shape[0])
    n, d, e = q.shape[1], q.shape[2], v.shape[2]
    state = tile.zeros((d, e), f32)
    out = tile.empty(v.shape, f32)
    for i in tile.range(n):
        key = tile.load(k, at=(h, i, 0), shape=(1, 1, d))
        value = tile.load(v, at=(h, i, 0), shape=(1, 1, e))
        state = state + tile.reshape(key, (d, 1)) * tile.reshape(value, (1, e))
        query = tile.load(q, at=(h, i, 0), shape=(1, 1, d))
        tile.store(out, tile.dot(tile.reshape(query, (1, d)), state), at=(h, i, 0))
    return out


@kernel
def rwkv(
    k: KTile["S", "C", f32], v: KTile["S", "C", f32], decay: KTile["C", f32], bonus: KTile["C", f32]
):
    """The time mixing of RWKV-4, with a running maximum so that nothing overflows; 8 channels for each
    instance.
    """
    c = tile.program((k.shape[1] + 7) // 8) * 8
    w, u = tile.load(decay, at=(c,), shape=(8,)), tile.load(bonus, at=(c,), shape=(8,))
    num, den, top = tile.zeros((8,), f32), tile.zeros((8,), f32), tile.full((8,), -1e30)
    out = tile.empty(k.shape, f32)
    for i in tile.range(k.shape[0]):
        key = tile.reshape(tile.load(k, at=(i, c), shape=(1, 8)), (8,))
        value = tile.reshape(tile.load(v, at=(i, c), shape=(1, 8)), (8,))
        here = tile.maximum(top, u + key)
        a, b = tile.exp(top - here), tile.exp(u + key - here)
        tile.store(out, ((a * num + b * value) / (a * den + b))[None, :], at=(i, c))
        after = tile.maximum(top - w, key)
        a, b = tile.exp(top - w - after), tile.exp(key - after)
        num, den, top = a * num + b * value, a * den + b, after
    return out
