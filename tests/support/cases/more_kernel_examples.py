"""What NumPy says of the kernels of examples/kernels/training.py and lists.py, and arguments for them."""

from __future__ import annotations

from typing import Any

import numpy as np

Results = tuple[Any, ...]


def _wide(*xs: Any) -> list[Any]:
    return [x.astype(np.float64) for x in xs]


def rmsnorm_backward(x: Any, gain: Any, ct: Any) -> Results:
    x, g, c = _wide(x, gain, ct)
    r = 1 / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-5)
    normal, cg = x * r, c * g
    return r * (cg - normal * (cg * normal).mean(-1, keepdims=True)), (c * normal).sum(0)


def topk_gating(x: Any, k: int) -> Results:
    (x,) = _wide(x)
    e = np.exp(x - x.max(-1, keepdims=True))
    ids = np.argsort(-e, axis=1, kind="stable")[:, :k]
    w = np.take_along_axis(e, ids, 1)
    load = np.bincount(ids.ravel(), minlength=x.shape[1]).astype(np.int32)
    return w / w.sum(-1, keepdims=True), ids.astype(np.int32), load


def linear_cross_entropy(h: Any, w: Any, labels: Any) -> Results:
    z = np.matmul(*_wide(h, w))
    t = z - z.max(1, keepdims=True)
    return (np.log(np.exp(t).sum(1)) - t[np.arange(len(labels)), labels],)


def gru(x: Any, h: Any, wx: Any, wh: Any, bias: Any) -> Results:
    x, h, wx, wh, bias = _wide(x, h, wx, wh, bias)
    (rx, zx, cx), (rh, zh, ch) = (np.split(g, 3, axis=1) for g in (x @ wx + bias, h @ wh))
    r, z = 1 / (1 + np.exp(-rx - rh)), 1 / (1 + np.exp(-zx - zh))
    return ((1 - z) * np.tanh(cx + r * ch) + z * h,)


def kmeans_step(x: Any, centres: Any) -> Results:
    x, c = _wide(x, centres)
    near = ((x[:, None] - c) ** 2).sum(-1).argmin(1).astype(np.int32)
    sums, counts = np.zeros_like(c), np.zeros(len(c), np.int32)
    np.add.at(sums, near, x)
    np.add.at(counts, near, 1)
    return near, sums, counts


def pack_int4(x: Any) -> Results:
    groups = x.reshape(len(x), x.shape[1] // 8, 8)
    scale = np.abs(groups).max(-1) / np.float32(7)
    scale = np.where(scale > 0, scale, np.float32(1))
    q = np.clip(np.rint(groups / scale[..., None]), -8, 7).astype(np.int32).reshape(x.shape) & 15
    return (q[:, 0::2] | q[:, 1::2] << 4).astype(np.uint8), scale


def decode_int8(q: Any, k: Any, k_scale: Any, v: Any, v_scale: Any) -> Results:
    q, k, ks, v, vs = _wide(q, k, k_scale, v, v_scale)
    s = np.einsum("hd,hnd->hn", q, k * ks[:, :, None]) / np.sqrt(q.shape[1])
    e = np.exp(s - s.max(1, keepdims=True))
    return (np.einsum("hn,hnd->hd", e / e.sum(1, keepdims=True), v * vs[:, :, None]),)


def sliding_median(x: Any) -> Results:
    p = np.pad(x.astype(np.float64), 2, mode="edge") if len(x) else x
    return (np.array([np.median(p[i : i + 5]) for i in range(len(x))]),)


def compaction(x: Any) -> Results:
    kept = x[x > 0]
    return np.concatenate([kept, np.zeros(len(x) - len(kept))]), np.array([len(kept)], np.int32)


def segment_sums(x: Any, ids: Any) -> Results:
    out = np.zeros(len(x))
    for i in range(len(x)):
        out[i] = x[i] + (out[i - 1] if i and ids[i] == ids[i - 1] else 0)
    return (out,)


def suppressed(boxes: Any, most: float) -> Results:
    stays = np.ones(len(boxes), np.int32)
    for i, a in enumerate(boxes):
        for j in range(i + 1, len(boxes)) if stays[i] else ():
            b = boxes[j]
            low, high = np.maximum(a[:2], b[:2]), np.minimum(a[2:], b[2:])
            shared = np.prod(np.maximum(high - low, 0))
            both = np.prod(a[2:] - a[:2]) + np.prod(b[2:] - b[:2]) - shared
            stays[j] &= not shared > most * both
    return (stays,)


def shortest_paths(far: Any) -> Results:
    (t,) = _wide(far)
    for k in range(len(t)):
        t = np.minimum(t, t[:, k : k + 1] + t[k : k + 1])
    return (t,)


def tridiagonal(low: Any, mid: Any, high: Any, y: Any) -> Results:
    out = np.zeros(mid.shape)
    for b in range(len(mid)):
        m = np.diag(mid[b]) + np.diag(low[b, 1:], -1) + np.diag(high[b, :-1], 1)
        out[b] = np.linalg.solve(m.astype(np.float64), y[b].astype(np.float64))
    return (out,)


def common_subsequence(a: Any, b: Any) -> Results:
    d = np.zeros((len(a), a.shape[1] + 1, b.shape[1] + 1), np.int32)
    for i in range(a.shape[1]):
        for j in range(b.shape[1]):
            longer = np.maximum(d[:, i, j + 1], d[:, i + 1, j])
            d[:, i + 1, j + 1] = np.where(a[:, i] == b[:, j], d[:, i, j] + 1, longer)
    return (d[:, -1, -1],)


def boxes(r: Any, n: int) -> Any:
    corner = r.uniform(0, 4, (n, 2))
    return np.concatenate([corner, corner + r.uniform(1, 3, (n, 2))], 1).astype(np.float32)
