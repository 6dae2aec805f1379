"""Kernels as people write them who come from Triton, each with its arguments and its meaning in NumPy."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from tessera import KTile, block, f32, i32, i64, kernel, tile, u8

CASES: dict[str, tuple[Any, tuple[Any, ...], dict[str, Any], Callable[..., Any]]] = {}
r = np.random.default_rng(0)


def case(ref: Callable[..., Any], *args: Any, **keywords: Any) -> Callable[[Any], Any]:
    """Keep a kernel with its arguments and what NumPy says of them."""

    def keep(k: Any) -> Any:
        CASES[k.signature.name] = k, args, keywords, ref
        return k

    return keep


def normal(*shape: int) -> Any:
    return r.normal(size=shape).astype(np.float32)


def boxes(n: int) -> Any:
    first = r.random((n, 2))
    return np.concatenate([first, first + r.random((n, 2)) + 0.1], 1).astype(np.float32)


def sigmoid(x: Any) -> Any:
    return 1 / (1 + np.exp(-x))


def area(t: Any) -> Any:
    return (t[:, 2] - t[:, 0]) * (t[:, 3] - t[:, 1])


def gn_ref(x, g, b, groups):
    n = len(x)
    t = x.reshape(n, groups, -1)
    m = t.mean(-1, keepdims=True)
    v = t.var(-1, keepdims=True)
    return ((t - m) / np.sqrt(v + 1e-5)).reshape(x.shape) * g[None, :, None] + b[None, :, None]


@case(gn_ref, normal(3, 6, 10), normal(6), normal(6), groups=2)
@kernel
def group_norm(x: KTile["N", "C", "L"], gain: KTile["C"], bias: KTile["C"], *, groups: int):
    n = tile.program(x.shape[0])
    g = tile.program(groups)
    size = x.shape[1] // groups
    t = tile.load(x, at=(n, g * size, 0), shape=(1, size, x.shape[2]))
    mean = tile.mean(t)
    var = tile.mean((t - mean) * (t - mean))
    scale = tile.load(gain, at=(g * size,), shape=(size,))
    shift = tile.load(bias, at=(g * size,), shape=(size,))
    y = tile.empty(x.shape, f32)
    tile.store(
        y,
        (t - mean) * tile.rsqrt(var + 1e-5) * scale[None, :, None] + shift[None, :, None],
        at=(n, g * size, 0),
    )
    return y


def pool_ref(x):
    h, w = x.shape
    oh, ow = (h - 3) // 2 + 1, (w - 3) // 2 + 1
    return np.array(
        [[x[2 * i : 2 * i + 3, 2 * j : 2 * j + 3].max() for j in range(ow)] for i in range(oh)],
        np.float32,
    )


@case(pool_ref, normal(9, 12))
@kernel
def max_pool(x: KTile["H", "W", f32]):
    oh, ow = (x.shape[0] - 3) // 2 + 1, (x.shape[1] - 3) // 2 + 1
    i = tile.program(oh)
    j = tile.program((ow + 7) // 8) * 8
    cols = 2 * (j + tile.arange(8))
    best = tile.full((8,), -float("inf"))
    for di in range(3):
        for dj in range(3):
            best = tile.maximum(best, x[2 * i + di, cols + dj])
    y = tile.empty((oh, ow), f32)
    tile.store(y, best[None], at=(i, j))
    return y


def conv_ref(x, w):
    l, c = x.shape
    k = w.shape[0]
    p = np.concatenate([np.zeros((k - 1, c), np.float32), x])
    y = sum(p[i : i + l] * w[i] for i in range(k))
    return y / (1 + np.exp(-y))


@case(conv_ref, normal(21, 5), normal(4, 5))
@kernel.schedule(block(8))
def causal_conv(x: KTile["L", "C"], w: KTile[4, "C"]):
    i = tile.program((x.shape[0] + 7) // 8) * 8
    c = x.shape[1]
    acc = tile.zeros((8, c), f32)
    for k in range(4):
        acc = acc + tile.load(x, at=(i + k - 3, 0), shape=(8, c)) * tile.load(
            w, at=(k, 0), shape=(1, c)
        )
    y = tile.empty(x.shape, f32)
    tile.store(y, acc * tile.sigmoid(acc), at=(i, 0))
    return y


def im2col_ref(x):
    h, w = x.shape
    return np.array([x[i : i + 3, j : j + 3].ravel() for i in range(h - 2) for j in range(w - 2)])


@case(im2col_ref, normal(6, 7))
@kernel
def im2col(x: KTile["H", "W", f32]):
    oh, ow = x.shape[0] - 2, x.shape[1] - 2
    p = tile.program(oh)
    q = tile.program(ow)
    y = tile.empty((oh * ow, 9), f32)
    tile.store(y, tile.reshape(tile.load(x, at=(p, q), shape=(3, 3)), (1, 9)), at=(p * ow + q, 0))
    return y


def gate_ref(x, k):
    idx = np.argsort(-x, axis=1, kind="stable")[:, :k]
    v = np.take_along_axis(x, idx, 1)
    e = np.exp(v - v.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True), idx


@case(gate_ref, normal(9, 8), k=2)
@kernel.schedule(block(4))
def router(x: KTile["T", "E", f32], *, k: int):
    v, i = tile.topk(tile.load(x), k, axis=1)
    e = tile.exp(v - tile.max(v, axis=1, keepdims=True))
    return e / tile.sum(e, axis=1, keepdims=True), i


def gqa_ref(q, k, v, groups):
    out = []
    for h in range(q.shape[0]):
        s = q[h] @ k[h // groups].T / math.sqrt(q.shape[-1])
        L = s.shape[1]
        s = s - 2.0 ** -(h + 1) * np.abs(np.arange(s.shape[0])[:, None] - np.arange(L)[None])
        s = np.where(np.arange(L)[None] <= np.arange(s.shape[0])[:, None], s, -np.inf)
        p = np.exp(s - s.max(1, keepdims=True))
        out.append(p / p.sum(1, keepdims=True) @ v[h // groups])
    return np.array(out)


@case(gqa_ref, normal(4, 19, 8), normal(2, 19, 8), normal(2, 19, 8), groups=2)
@kernel
def alibi_gqa(
    q: KTile["H", "S", "D"], k: KTile["G", "S", "D"], v: KTile["G", "S", "D"], *, groups: int
):
    h = tile.program(q.shape[0])
    i = tile.program((q.shape[1] + 7) // 8) * 8
    d = q.shape[2]
    rows = tile.reshape(tile.load(q, at=(h, i, 0), shape=(1, 8, d)), (8, d))
    m = tile.full((8,), -float("inf"))
    l = tile.zeros((8,))
    acc = tile.zeros((8, d))
    slope = tile.exp2(-1.0 * tile.cast(h + 1, f32))
    for j in tile.range(0, i + 8, 8):
        kk = tile.place(
            tile.reshape(tile.load(k, at=(h // groups, j, 0), shape=(1, 8, d)), (8, d)), None
        )
        vv = tile.place(
            tile.reshape(tile.load(v, at=(h // groups, j, 0), shape=(1, 8, d)), (8, d)), None
        )
        s = tile.dot(tile.place(rows, None), kk.T) * (1 / math.sqrt(8))
        qi = i + tile.arange(8)[:, None]
        kj = j + tile.arange(8)[None]
        s = s - slope * tile.cast(tile.abs(qi - kj), f32)
        s = tile.where((kj <= qi) & (kj < k.shape[1]), s, -float("inf"))
        top = tile.maximum(m, tile.max(s, axis=1))
        p = tile.exp(s - top[:, None])
        old = tile.exp(m - top)
        l = l * old + tile.sum(p, axis=1)
        acc = acc * old[:, None] + tile.dot(p, vv)
        m = top
    y = tile.empty(q.shape, f32)
    tile.store(y, (acc / l[:, None])[None], at=(h, i, 0))
    return y


def rope2_ref(x, c, s):
    a, b = x[:, ::2], x[:, 1::2]
    y = np.empty_like(x)
    y[:, ::2] = a * c - b * s
    y[:, 1::2] = a * s + b * c
    return y


@case(rope2_ref, normal(9, 8), normal(9, 4), normal(9, 4))
@kernel.schedule(block(4))
def interleaved_rope(x: KTile["S", "D"], cos: KTile["S", "E"], sin: KTile["S", "E"]):
    t = tile.load(x)
    d = x.shape[1]
    pairs = tile.reshape(t, (t.shape[0], d // 2, 2))
    a, b = pairs[:, :, 0], pairs[:, :, 1]
    c, s = tile.load(cos), tile.load(sin)
    return tile.reshape(tile.stack((a * c - b * s, a * s + b * c), axis=2), t.shape)


def welford_ref(x):
    return x.mean(1), x.var(1)


def merge(a, b):
    n = a[0] + b[0]
    d = b[1] - a[1]
    w = tile.where(n > 0, b[0] / n, 0.0)
    return n, a[1] + d * w, a[2] + b[2] + d * d * a[0] * w


@case(welford_ref, normal(5, 21))
@kernel.schedule(block(2, 8))
def welford(x: KTile["M", "N", f32]):
    t = tile.load(x)
    n, mean, m2 = tile.reduce((tile.ones(t.shape, f32), t, tile.zeros(t.shape, f32)), merge, axis=1)
    return mean, m2 / n


def iou_ref(a, b):
    lo = np.maximum(a[:, None, :2], b[None, :, :2])
    hi = np.minimum(a[:, None, 2:], b[None, :, 2:])
    wh = np.clip(hi - lo, 0, None)
    inter = wh[..., 0] * wh[..., 1]
    return inter / (area(a)[:, None] + area(b)[None] - inter)


@case(iou_ref, boxes(7), boxes(5))
@kernel.schedule(block(4, 4))
def iou(a: KTile["M", 4, f32], b: KTile["N", 4, f32]):
    T = tile.context()
    p = tile.load(a, rows=T.m)
    q = tile.load(b, rows=T.n)
    x0 = tile.maximum(p[:, 0][:, None], q[:, 0][None])
    y0 = tile.maximum(p[:, 1][:, None], q[:, 1][None])
    x1 = tile.minimum(p[:, 2][:, None], q[:, 2][None])
    y1 = tile.minimum(p[:, 3][:, None], q[:, 3][None])
    inter = tile.maximum(x1 - x0, 0) * tile.maximum(y1 - y0, 0)
    pa = (p[:, 2] - p[:, 0]) * (p[:, 3] - p[:, 1])
    qa = (q[:, 2] - q[:, 0]) * (q[:, 3] - q[:, 1])
    return inter / (pa[:, None] + qa[None] - inter)


def cdist_ref(a, b):
    return np.sqrt(((a[:, None] - b[None]) ** 2).sum(-1))


@case(cdist_ref, normal(9, 13), normal(7, 13))
@kernel.schedule(block(4, 4).k(4))
def cdist(a: KTile["M", "K", f32], b: KTile["N", "K", f32]):
    T = tile.context()
    acc = tile.zeros((T.m, T.n), f32)
    for kb in tile.range_k(a.shape, T.k):
        d = (
            tile.load(a, rows=T.m, cols=kb)[:, None, :]
            - tile.load(b, rows=T.n, cols=kb)[None, :, :]
        )
        acc += tile.sum(d * d, axis=2)
    return tile.sqrt(acc)


def compact_ref(x):
    k = x[x > 0]
    y = np.zeros_like(x)
    y[: len(k)] = k
    return y, np.array([len(k)])


@case(compact_ref, normal(37))
@kernel
def compact(x: KTile["N", f32]):
    """Elements above 0 to the front: one instance walks over the blocks."""
    y = tile.empty(x.shape, f32, partial=True)
    count = tile.empty((1,), i64)
    base = tile.cast(0, i64)
    for nb in tile.range_n(x.shape, 8):
        t = tile.load(x, nb)
        keep = t > 0
        where = tile.scan(tile.cast(keep, i64), "add", axis=0, exclusive=True)
        tile.store(y, t, at=(base + where,), mask=keep, distinct=True)
        base = base + tile.sum(tile.cast(keep, i64))
    tile.store(count, base, at=(0,))
    return y, count


def bil_ref(img, p):
    h, w = img.shape
    y = np.clip(p[:, 0], 0, h - 1)
    x = np.clip(p[:, 1], 0, w - 1)
    y0 = np.floor(y).astype(int)
    x0 = np.floor(x).astype(int)
    y1 = np.minimum(y0 + 1, h - 1)
    x1 = np.minimum(x0 + 1, w - 1)
    fy = (y - y0).astype(np.float32)
    fx = (x - x0).astype(np.float32)
    return (1 - fy) * ((1 - fx) * img[y0, x0] + fx * img[y0, x1]) + fy * (
        (1 - fx) * img[y1, x0] + fx * img[y1, x1]
    )


@case(bil_ref, normal(6, 7), (r.random((19, 2)) * 8 - 1).astype(np.float32))
@kernel.schedule(block(8))
def bilinear(img: KTile["H", "W", f32], p: KTile["N", 2, f32]):
    t = tile.load(p)
    h, w = img.shape
    y = tile.minimum(tile.maximum(t[:, 0], 0), h - 1)
    x = tile.minimum(tile.maximum(t[:, 1], 0), w - 1)
    y0, x0 = tile.cast(tile.floor(y), i64), tile.cast(tile.floor(x), i64)
    y1, x1 = tile.minimum(y0 + 1, h - 1), tile.minimum(x0 + 1, w - 1)
    fy, fx = y - tile.floor(y), x - tile.floor(x)
    return (1 - fy) * ((1 - fx) * img[y0, x0] + fx * img[y0, x1]) + fy * (
        (1 - fx) * img[y1, x0] + fx * img[y1, x1]
    )


def unpack_ref(q, s):
    lo = (q & 15).astype(np.int32) - 8
    hi = (q >> 4).astype(np.int32) - 8
    t = np.stack([lo, hi], -1).reshape(q.shape[0], -1)
    return t * np.repeat(s, 8, axis=1)


@case(unpack_ref, r.integers(0, 256, (5, 12)).astype(np.uint8), normal(5, 3))
@kernel.schedule(block(2))
def unpack_int4(q: KTile["M", "H", u8], scale: KTile["M", "G", f32]):
    t = tile.load(q)
    lo = tile.cast(t & 15, i32) - 8
    hi = tile.cast(t >> 4, i32) - 8
    both = tile.reshape(tile.join(lo, hi), (t.shape[0], 2 * q.shape[1]))
    s = tile.load(scale)
    g = tile.reshape(
        tile.broadcast(s[:, :, None], (t.shape[0], scale.shape[1], 8)), (t.shape[0], 2 * q.shape[1])
    )
    return tile.cast(both, f32) * g


def lstm_ref(x, h, c, w, u, b):
    g = x @ w + h @ u + b
    n = h.shape[1]
    i, f, o, k = (
        sigmoid(g[:, :n]),
        sigmoid(g[:, n : 2 * n]),
        sigmoid(g[:, 2 * n : 3 * n]),
        np.tanh(g[:, 3 * n :]),
    )
    c2 = f * c + i * k
    return o * np.tanh(c2), c2


@case(lstm_ref, normal(5, 6), normal(5, 4), normal(5, 4), normal(6, 16), normal(4, 16), normal(16))
@kernel.schedule(block(2))
def lstm(
    x: KTile["B", "I", f32],
    h: KTile["B", "H", f32],
    c: KTile["B", "H", f32],
    w: KTile["I", "G", f32],
    u: KTile["H", "G", f32],
    b: KTile["G", f32],
):
    g = tile.dot(tile.load(x), tile.load(w, rows=w.shape[0]))
    g = tile.dot(tile.load(h), tile.load(u, rows=u.shape[0]), g) + tile.load(b, b.shape[0])[None]
    i, f, o, k = tile.split(g, 4, axis=1)
    new = tile.sigmoid(f) * tile.load(c) + tile.sigmoid(i) * tile.tanh(k)
    return tile.sigmoid(o) * tile.tanh(new), new


def ce_ref(x, y, smoothing):
    s = smoothing
    m = x.max(1, keepdims=True)
    lse = np.log(np.exp(x - m).sum(1)) + m[:, 0]
    own = x[np.arange(len(y)), np.clip(y, 0, None)]
    return np.where(y == -100, 0, (1 - s) * (lse - own) + s * (lse - x.mean(1)))


@case(ce_ref, normal(9, 11), np.array([1, -100, 3, 10, 0, -100, 7, 7, 2], np.int32), smoothing=0.1)
@kernel.schedule(block(4))
def smoothed(x: KTile["M", "V", f32], y: KTile["M", i32], *, smoothing: float):
    t, ids = tile.load(x), tile.load(y)
    m = tile.max(t, axis=1)
    lse = m + tile.log(tile.sum(tile.exp(t - m[:, None]), axis=1))
    own = x[tile.row_index()[:, 0], ids]
    loss = (1 - smoothing) * (lse - own) + smoothing * (lse - tile.mean(t, axis=1))
    return tile.where(ids == -100, 0, loss)


def vit_ref(e, t):
    s = e[:, 0]
    back = []
    for i in range(1, e.shape[1]):
        a = s[:, :, None] + t[None]
        back.append(a.argmax(1))
        s = a.max(1) + e[:, i]
    return (s.max(1),)


@case(vit_ref, normal(3, 9, 4), normal(4, 4))
@kernel
def viterbi(e: KTile["B", "L", "S", f32], t: KTile["S", "S", f32]):
    b = tile.program(e.shape[0])
    n = e.shape[2]
    move = tile.place(tile.load(t, rows=n), None)
    s = tile.reshape(tile.load(e, at=(b, 0, 0), shape=(1, 1, n)), (n,))
    s = tile.place(s, None)
    for i in tile.range(1, e.shape[1]):
        here = tile.place(tile.reshape(tile.load(e, at=(b, i, 0), shape=(1, 1, n)), (n,)), None)
        s = tile.max(s[:, None] + move, axis=0) + here
    y = tile.empty((e.shape[0],), f32)
    tile.store(y, tile.max(s), at=(b,))
    return y


def quant_ref(x, q):
    return np.quantile(x, q, axis=1, method="lower").astype(np.float32)


@case(quant_ref, normal(5, 13), q=0.5)
@kernel.schedule(block(1))
def median(x: KTile["M", "N", f32], *, q: float):
    t = tile.load(x)
    k = int(q * (x.shape[1] - 1))
    return tile.sort(t, axis=1)[:, k]


def adamw_ref(p, g, m, v, lr, t):
    m2 = 0.9 * m + 0.1 * g
    v2 = 0.999 * v + 0.001 * g * g
    p2 = p * (1 - lr * 0.01) - lr * (m2 / (1 - 0.9**t)) / (np.sqrt(v2 / (1 - 0.999**t)) + 1e-8)
    return p2, m2, v2


@case(
    adamw_ref, normal(37), normal(37), normal(37), abs(normal(37)), np.float32(1e-2), np.float32(3)
)
@kernel.schedule(block(16))
def adamw(p: KTile["N"], g: KTile["N"], m: KTile["N"], v: KTile["N"], lr, t):
    w, d = tile.load(p), tile.load(g)
    m2 = 0.9 * tile.load(m) + 0.1 * d
    v2 = 0.999 * tile.load(v) + 0.001 * d * d
    c1 = 1 - tile.exp(t * math.log(0.9))
    c2 = 1 - tile.exp(t * math.log(0.999))
    tile.store(p, w * (1 - lr * 0.01) - lr * (m2 / c1) / (tile.sqrt(v2 / c2) + 1e-8))
    tile.store(m, m2)
    tile.store(v, v2)


def box_ref(x):
    return x.cumsum(0).cumsum(1)


@case(box_ref, normal(9, 13))
@kernel
def integral(x: KTile["M", "N", f32]):
    t = tile.load(x, rows=x.shape[0], cols=x.shape[1])
    return tile.scan(tile.scan(t, "add", axis=0), "add", axis=1)


def spmm_ref(idx, val, x):
    return np.einsum(
        "rk,rkd->rd", val, np.where((idx >= 0)[..., None], x[np.clip(idx, 0, None)], 0)
    )


@case(spmm_ref, r.integers(-1, 9, (7, 3)).astype(np.int32), normal(7, 3), normal(9, 5))
@kernel.schedule(block(4))
def ell_product(idx: KTile["R", "K", i32], val: KTile["R", "K", f32], x: KTile["N", "D", f32]):
    i, v = tile.load(idx), tile.load(val)
    acc = tile.zeros((v.shape[0], x.shape[1]), f32)
    for k in range(idx.shape[1]):
        acc = acc + v[:, k][:, None] * tile.load(x, rows=i[:, k])
    return acc
