"""Kernels of attention, in one pass over keys and without a matrix of scores in memory.

After Dao, "FlashAttention-2" (2023).  Scores are kept in powers of two.  The largest score so far changes
only after every CADENCE keys, whatever the schedule, and all products are chains in ascending order: so a
result has the same bits for every schedule.  Keys that no row of a block sees add zeros, and are left out.

Row i sees key j if j < keys, and for b = i + keys - rows: j <= b when causal, and b - window < j (or j <
sink).
"""

from __future__ import annotations

import math

from tessera.core.dtype import f32
from tessera.lang import tile
from tessera.lang.kernel.decorate import kernel
from tessera.lang.kernel.signature import KTile
from tessera.stdlib.kernels.rows import wide

CADENCE = 128  # keys between rescalings: part of the bits, so it never changes
INF = math.inf


def counts(lengths, q, k, c, g):
    """How many rows and keys a sequence has: those of its tensors, or fewer."""
    if lengths is None:
        return q.shape[-2], k.shape[-2]
    return lengths[c, g, 0], lengths[c, g, 1]


def hidden(s, rows, cols, sizes, ends, causal, window, sink):
    """Scores in which what a row does not see is -inf; `ends` says whether there may be keys past the end."""
    count, keys = sizes
    if not causal and window is None and not ends:
        return s
    last = rows + (keys - count)
    seen = cols < keys
    if causal:
        seen = (cols <= last) & seen if ends else cols <= last
    if window is not None:
        near = cols > last - window
        if not causal:
            near = near & (cols < last + window)
        if sink:
            near = near | (cols < sink)
        seen = seen & near
    return tile.where(seen, s, -INF)


@kernel
def attention(
    q: KTile["C", "G", "S", "D"], k: KTile["C", "L", "D"], v: KTile["C", "L", "E"],
    lengths: KTile["C", "G", 2], *, scale: float, causal: bool, window, sink: int, dropout: float,
    seed: int, stats: bool,
):  # fmt: skip
    """Weighted means of values, and with stats log2 of the sum of weights of each row."""
    T = tile.context()
    wanted = wide(tile.load(q, rows=T.m, cols=T.d)) * (scale / math.log(2))
    c, g = tile.batch_index() // q.shape[1], tile.batch_index() % q.shape[1]
    first, rows, sizes = tile.program_of("m") * T.m, tile.row_index(), counts(lengths, q, k, c, g)
    acc = tile.zeros((T.m, v.shape[2]), wanted.dtype)
    top, total = tile.full((T.m,), -INF, wanted.dtype), tile.zeros((T.m,), wanted.dtype)
    for start, stop in spans(first, T, q.shape[2], k.shape[1], causal, window, sink, lengths):
        for nb in tile.range_n(k.shape, step(T.n), start=start, stop=stop):
            for j in range(step(T.n) // CADENCE):
                part = tile.span(k.shape, nb.start + j * CADENCE, CADENCE)
                s = tile.dot(wanted, wide(tile.load(k, part, batch=c)).T)
                cols, ends = tile.col_index(part), lengths is not None
                s = hidden(s, rows, cols, sizes, ends, causal, window, sink)
                now = tile.maximum(top, tile.max(s, axis=1))
                base = tile.where(now == -INF, 0.0, now)
                e, before = tile.exp2(s - base[:, None]), tile.exp2(top - base)
                total = total * before + tile.sum(e, axis=1)
                if dropout:
                    e = tile.dropout_in_kernel(e, p=dropout, seed=seed)
                acc = tile.dot(e, wide(tile.load(v, part, batch=c)), acc * before[:, None])
                top = now
    y = acc * (1 / tile.where(total == 0, 1.0, total))[:, None] + 0.0
    if lengths is not None:
        y = tile.where(rows < sizes[0], y, 0.0)
    y = tile.cast(y, q.dtype)
    return (y, tile.where(total == 0, INF, top + tile.log2(total))) if stats else y


@kernel
def attention_back(
    q: KTile["C", "G", "S", "D"], k: KTile["C", "L", "D"], v: KTile["C", "L", "E"],
    lengths: KTile["C", "G", 2], sums: KTile["C", "G", "S"], y: KTile["C", "G", "S", "E"],
    ct: KTile["C", "G", "S", "E"], *, scale: float, causal: bool, window, sink: int, dropout: float,
    seed: int,
):  # fmt: skip
    """The cotangents of q, k and v: one instance for each head of keys, so that all sums are chains.

    Block by block of keys: those of the keys and values are added up over all rows that see them, and
    those of the rows are added to where they lie.  The last result is sum(y * ct) of each row.
    """
    T, real = tile.context(), f32 if q.dtype.bits < 32 else q.dtype
    dq, dk, dv = (
        tile.empty(q.shape, real),
        tile.empty(k.shape, k.dtype),
        tile.empty(v.shape, v.dtype),
    )
    deltas = tile.empty(sums.shape, real)
    c, group, rows, keys = tile.program(k.shape[0]), q.shape[1], q.shape[2], k.shape[1]
    line = (1, 1, T.m)
    for g in tile.range(group):
        for mb in tile.range_m(rows, T.m):
            weighed = wide(tile.load(y, mb, batch=(c, g))) * wide(tile.load(ct, mb, batch=(c, g)))
            tile.store(deltas, tile.reshape(tile.sum(weighed, axis=1), line), at=(c, g, mb.start))
            tile.store(dq, tile.zeros((T.m, T.d), real), mb, batch=(c, g))
    for nb in tile.range_n(keys, T.n):
        kb, vb = wide(tile.load(k, nb, batch=c)), wide(tile.load(v, nb, batch=c))
        dkb, dvb = tile.zeros(kb.shape, real), tile.zeros(vb.shape, real)
        first, last = seers(nb.start, T, rows, keys, causal, window, sink, lengths)
        for g in tile.range(group):
            sizes = counts(lengths, q, k, c, g)
            for mb in tile.range_m(rows, T.m, start=first, stop=last):
                qb = wide(tile.load(q, mb, batch=(c, g))) * (scale / math.log(2))
                s = tile.dot(qb, kb.T)
                at, cols, ends = tile.row_index(mb), tile.col_index(nb), lengths is not None
                s = hidden(s, at, cols, sizes, ends, causal, window, sink)
                p = tile.exp2(s - column(sums, c, g, mb, T))
                out = wide(tile.load(ct, mb, batch=(c, g)))
                dp, kept = tile.dot(out, vb.T), p
                if dropout:
                    b = c * group + g
                    dp = tile.dropout_in_kernel(dp, p=dropout, seed=seed, batch=b)
                    kept = tile.dropout_in_kernel(p, p=dropout, seed=seed, batch=b)
                dvb = tile.dot(kept.T, out, dvb)
                ds = p * (dp - column(deltas, c, g, mb, T))
                dkb = tile.dot(ds.T, qb, dkb)
                found = tile.load(dq, mb, batch=(c, g))
                tile.store(dq, tile.dot(ds, kb, found), mb, batch=(c, g))
        tile.store(dk, tile.cast(dkb * math.log(2), k.dtype), nb, batch=c)
        tile.store(dv, tile.cast(dvb, v.dtype), nb, batch=c)
    for g in tile.range(group):
        for mb in tile.range_m(rows, T.m):
            tile.store(dq, tile.load(dq, mb, batch=(c, g)) * scale, mb, batch=(c, g))
    return dq, dk, dv, deltas


def column(x, c, g, mb, T):
    """Numbers of the rows of a block, below each other."""
    return tile.reshape(tile.load(x, at=(c, g, mb.start), shape=(1, 1, T.m)), (T.m, 1))


def seers(first, T, rows, keys, causal, window, sink, lengths):
    """Where the rows begin and end that see some key of a block."""
    if lengths is not None:
        return 0, rows
    before, stop = first - (keys - rows), rows
    if window is not None and not sink:
        stop = min(before + T.n - 1 + window, rows)
    if not causal:
        before = 0 if window is None else before - window + 1
    return max(before, 0) // T.m * T.m, stop


def step(n):
    """Keys that a block of the schedule has: whole cadences."""
    return -(-n // CADENCE) * CADENCE


def spans(first, T, rows, keys, causal, window, sink, lengths):
    """Where the keys begin and end that some row of a block sees, in whole cadences."""
    if lengths is not None:
        return [(0, keys)]
    stop = min(first + T.m + keys - rows, keys) if causal else keys
    if window is None:
        return [(0, stop)]
    if not causal:
        stop = min(first + T.m + keys - rows + window, keys)
    start = max(first + keys - rows - window + 1, 0) // CADENCE * CADENCE
    if not sink:
        return [(start, stop)]
    kept = -(-sink // step(T.n)) * step(T.n)
    return [(0, min(kept, stop)), (max(start, kept), stop)]
