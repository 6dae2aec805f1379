"""Arguments for the kernels of examples/kernels, and what NumPy says of them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from examples.kernels import (
    algebra,
    attention,
    fused,
    grids,
    lists,
    neural,
    products,
    scans,
    sorting,
    sparse,
    training,
)
from tessera.lang.kernel.random import words_reference
from tests.support.cases import more_kernel_examples as more

F, I = ("float32",), ("int32",)
Args = tuple[tuple[Any, ...], dict[str, Any]]


@dataclass(frozen=True)
class Case:
    """A kernel, its arguments for a size and a dtype, and its results."""

    kernel: Any
    arguments: Callable[[Any, int, Any], Args]
    expected: Callable[..., tuple[Any, ...]]
    dtypes: tuple[str, ...] = F
    tolerance: float = 1e-4
    least: int = 0  # the smallest size that has a meaning


def close(got: Any, expected: Any, tolerance: float) -> None:
    """Raise AssertionError where results differ."""
    assert got.shape == np.shape(expected), (got.shape, np.shape(expected))
    if got.dtype.kind in "iub":
        np.testing.assert_array_equal(got, expected)
    else:
        np.testing.assert_allclose(got.astype(np.float64), expected, rtol=tolerance, atol=tolerance)


def normal(r: Any, *shape: int, dtype: Any = np.float32) -> Any:
    x = r.normal(size=shape) if np.dtype(dtype).kind == "f" else r.integers(-9, 9, shape)
    return x.astype(dtype)


def attended(q: Any, k: Any, v: Any, seen: Any = None) -> Any:
    s = q.astype(np.float64) @ k.swapaxes(-1, -2).astype(np.float64) / np.sqrt(q.shape[-1])
    s = s if seen is None else np.where(seen, s, -np.inf)
    e = np.exp(s - s.max(-1, keepdims=True, initial=-1e300))
    return e / np.maximum(e.sum(-1, keepdims=True), 1e-300) @ v


# Attention


def _heads(r: Any, n: int, d: Any) -> list[Any]:
    return [normal(r, 2, n, 8) for _ in range(3)]


def _window(q: Any, k: Any, v: Any, window: int) -> tuple[Any, ...]:
    apart = np.arange(q.shape[1])[:, None] - np.arange(q.shape[1])
    return (attended(q, k, v, (apart >= 0) & (apart < window)),)


def _offsets(r: Any, n: int, parts: int = 4) -> Any:
    return np.concatenate([[0], np.sort(r.integers(0, n + 1, parts - 1)), [n]]).astype(np.int32)


def _varlen(q: Any, k: Any, v: Any, offsets: Any, causal: bool) -> tuple[Any, ...]:
    out = np.zeros(q.shape)
    for a, b in pairwise(offsets):
        seen = np.tri(b - a, dtype=bool) if causal else None
        out[a:b] = attended(q[a:b], k[a:b], v[a:b], seen)
    return (out,)


def _pages(r: Any, n: int, d: Any) -> Args:
    keys, values = normal(r, 9, 4, 8), normal(r, 9, 4, 8)
    pages = r.integers(0, 9, (n, 5)).astype(np.int32)
    return (normal(r, n, 8), keys, values, pages, r.integers(0, 21, n).astype(np.int32)), {}


def _paged(q: Any, keys: Any, values: Any, pages: Any, lengths: Any) -> tuple[Any, ...]:
    out = np.zeros(q.shape)
    for b, n in enumerate(lengths):
        k, v = (x[pages[b]].reshape(-1, q.shape[1])[:n] for x in (keys, values))
        out[b] = attended(q[b : b + 1], k, v)[0] if n else 0
    return (out,)


def _parts(q: Any, k: Any, v: Any, parts: int) -> tuple[Any, ...]:
    stretch = -(-k.shape[1] // parts)
    sums, tops, totals = [], [], []
    for p in range(parts):
        s = np.einsum("hd,hnd->hn", q, k[:, p * stretch : (p + 1) * stretch]) / np.sqrt(q.shape[1])
        top = s.max(1, initial=-np.inf)
        e = np.exp(s - np.where(np.isfinite(top), top, 0)[:, None])
        sums.append(np.einsum("hn,hnd->hd", e, v[:, p * stretch : (p + 1) * stretch]))
        tops.append(top)
        totals.append(e.sum(1))
    return np.stack(sums, 1), np.stack(tops, 1), np.stack(totals, 1)


def _linear(q: Any, k: Any, v: Any) -> tuple[Any, ...]:
    return (np.tril(q.astype(np.float64) @ k.swapaxes(1, 2)) @ v,)


def _rwkv(k: Any, v: Any, w: Any, u: Any) -> tuple[Any, ...]:
    out = np.zeros(k.shape)
    for t in range(len(k)):
        ages = t - 1 - np.arange(t)
        weights = np.exp(k[:t] - ages[:, None] * w.astype(np.float64))
        own = np.exp(u + k[t])
        out[t] = ((weights * v[:t]).sum(0) + own * v[t]) / (weights.sum(0) + own)
    return (out,)


# Sparse


def _csr(r: Any, n: int, dtype: Any, width: int = 11) -> tuple[Any, Any]:
    a = normal(r, n, width, dtype=dtype) * (r.random((n, width)) < 0.4)
    a[:, :1] += a[:, :1] == 0  # so that there is an entry
    rows = np.concatenate([[0], np.cumsum((a != 0).sum(1))]).astype(np.int32)
    return a.astype(dtype), (rows, np.nonzero(a)[1].astype(np.int32), a[a != 0].astype(dtype))


def _csr_with(*shape: int) -> Callable[..., Args]:
    def make(r: Any, n: int, dtype: Any) -> Args:
        return (*_csr(r, n, dtype)[1], normal(r, *shape, dtype=dtype)), {}

    return make


def _dense(rows: Any, cols: Any, values: Any, width: int = 11) -> Any:
    a = np.zeros((len(rows) - 1, width), np.float64 if values.dtype.kind == "f" else values.dtype)
    for i in range(len(rows) - 1):
        for j in range(rows[i], rows[i + 1]):
            a[i, cols[j]] = values[j]
    return a


def _bsr(r: Any, n: int, dtype: Any) -> Args:
    rows = _offsets(r, 6, n) if n else np.zeros(1, np.int32)
    rows = rows if len(rows) == n + 1 else np.resize(rows, n + 1)
    return (rows, r.integers(0, 3, 6).astype(np.int32), normal(r, 6, 4, 4), normal(r, 12, 5)), {}


def _blocks(rows: Any, cols: Any, blocks: Any, x: Any) -> tuple[Any, ...]:
    out = np.zeros(((len(rows) - 1) * 4, x.shape[1]))
    for i in range(len(rows) - 1):
        for j in range(rows[i], rows[i + 1]):
            out[4 * i : 4 * i + 4] += blocks[j] @ x[4 * cols[j] : 4 * cols[j] + 4]
    return (out,)


def _coo(r: Any, n: int, dtype: Any) -> Args:
    rows, cols = (r.integers(0, m, n).astype(np.int32) for m in (7, 11))
    return (
        rows,
        cols,
        normal(r, n, dtype=dtype),
        normal(r, 11, dtype=dtype),
        normal(r, 7, dtype=dtype),
    ), {}


def _coo_sum(rows: Any, cols: Any, values: Any, x: Any, y: Any) -> tuple[Any, ...]:
    out = y.astype(np.float64 if y.dtype.kind == "f" else y.dtype)
    np.add.at(out, rows, values * x[cols])
    return (out,)


def _rows_added(ids: Any, x: Any, y: Any) -> tuple[Any, ...]:
    out = y.astype(np.float64 if y.dtype.kind == "f" else y.dtype)
    for i, k in enumerate(ids):
        if 0 <= k < len(y):
            out[k] += x[i]
    return (out,)


def _bags(table: Any, ids: Any, offsets: Any) -> tuple[Any, ...]:
    parts = [table[ids[a:b]] for a, b in pairwise(offsets)]
    return (np.stack([p.mean(0) if len(p) else np.zeros(table.shape[1]) for p in parts]),)


# Products


def _grouped(x: Any, w: Any, offsets: Any) -> tuple[Any, ...]:
    parts = [x[a:b].astype(np.float64) @ w[e] for e, (a, b) in
             enumerate(pairwise(offsets))]  # fmt: skip
    return (np.concatenate(parts),)


def _int4(r: Any, n: int, dtype: Any) -> Args:
    packed = r.integers(0, 256, (16, 9)).astype(np.uint8)
    return (normal(r, n, 32), packed, normal(r, 4, 9)), {"group": 8}


def _int4_product(x: Any, packed: Any, scale: Any, group: int) -> tuple[Any, ...]:
    w = np.stack([packed & 15, packed >> 4], 1).reshape(32, -1).astype(np.float64) - 8
    return (x @ (w * np.repeat(scale, group, 0)),)


_FP4 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])


def _mxfp4_product(x: Any, codes: Any, scales: Any) -> tuple[Any, ...]:
    nibbles = np.stack([codes & 15, codes >> 4], -1).reshape(len(codes), -1)
    w = np.where(nibbles >= 8, -1, 1) * _FP4[nibbles & 7]
    return (x @ (w * np.repeat(2.0 ** (scales.astype(float) - 127), 32, 1)).T,)


# Scans


def _recurrence(a: Any, x: Any) -> tuple[Any, ...]:
    h, out = np.zeros(x.shape[0]), np.zeros(x.shape)
    for t in range(x.shape[1]):
        h = a[:, t] * h + x[:, t]
        out[:, t] = h
    return (out,)


def _mamba(x: Any, delta: Any, a: Any, b: Any, c: Any) -> tuple[Any, ...]:
    state, out = np.zeros(a.shape), np.zeros(x.shape)
    for t in range(len(x)):
        step = delta[t].astype(np.float64)[:, None]
        state = np.exp(step * a) * state + step * x[t][:, None] * b[t]
        out[t] = (state * c[t]).sum(1)
    return (out,)


def _segments(flags: Any, x: Any) -> tuple[Any, ...]:
    out = np.zeros(x.shape, np.float64 if x.dtype.kind == "f" else x.dtype)
    for t in range(x.shape[1]):
        before = out[:, t - 1] if t else 0
        out[:, t] = np.where(flags[:, t] != 0, x[:, t], before + x[:, t])
    return (out,)


def _softmax(x: Any) -> Any:
    e = np.exp(x.astype(np.float64) - x.max(1, keepdims=True, initial=-1e30))
    return e / e.sum(1, keepdims=True)


# Grids


def _heat(u: Any, rate: float) -> tuple[Any, ...]:
    p = np.pad(u.astype(np.float64), 1)
    return (u + rate * (p[:-2, 1:-1] + p[2:, 1:-1] + p[1:-1, :-2] + p[1:-1, 2:] - 4.0 * u),)


def _life(w: Any) -> tuple[Any, ...]:
    n = sum(np.roll(w, (a, b), (0, 1)) for a in (-1, 0, 1) for b in (-1, 0, 1) if (a, b) != (0, 0))
    return (((n == 3) | ((w == 1) & (n == 2))).astype(np.int32),)


def _mandelbrot(re: Any, im: Any, most: int) -> tuple[Any, ...]:
    x, y, count = re * 0, im * 0, np.zeros(re.shape, np.int32)
    for _ in range(most):
        inside = x * x + y * y <= 4
        count += inside
        x, y = np.where(inside, x * x - y * y + re, x), np.where(inside, 2 * x * y + im, y)
    return (count,)


def _correlated(image: Any, g: Any) -> tuple[Any, ...]:
    h, w = (n - 2 for n in image.shape)
    return (sum(g[a, b] * image[a : a + h, b : b + w].astype(np.float64)
                for a in range(3) for b in range(3)),)  # fmt: skip


def _warped(image: Any, flow: Any) -> tuple[Any, ...]:
    at = np.round(flow).astype(np.int64)
    ok = ((at >= 0) & (at < image.shape)).all(-1)
    i, j = np.moveaxis(np.clip(at, 0, np.array(image.shape) - 1), -1, 0)
    return (np.where(ok, image[i, j], 0),)


# Algebra


def _spd(r: Any, n: int, dtype: Any) -> Args:
    a = r.normal(size=(3, n, n))
    return ((a @ a.swapaxes(1, 2) + n * np.eye(n)).astype(dtype),), {}


def _lu(a: Any) -> tuple[Any, ...]:
    m = a.astype(np.float64)
    for k in range(m.shape[1]):
        m[:, k + 1 :, k] /= m[:, k : k + 1, k]
        m[:, k + 1 :, k + 1 :] -= m[:, k + 1 :, k : k + 1] * m[:, k : k + 1, k + 1 :]
    return (m,)


def _pulls(at: Any, mass: Any, soft: float) -> tuple[Any, ...]:
    apart = at[None].astype(np.float64) - at[:, None]
    r = (apart**2).sum(-1) + soft
    return ((mass[None, :, None] * apart / r[..., None] ** 1.5).sum(1),)


def _fourier(re: Any, im: Any) -> tuple[Any, ...]:
    z = np.fft.fft(re.astype(np.float64) + 1j * im)
    return z.real, z.imag


# Orders


def _distance(a: Any, b: Any, sizes: Any) -> tuple[Any, ...]:
    out = []
    for x, y, (m, n) in zip(a, b, sizes, strict=True):
        row = list(range(n + 1))
        for i in range(m):
            after = [row[0] + 1]
            for j in range(n):
                after.append(min(row[j] + (x[i] != y[j]), row[j + 1] + 1, after[j] + 1))
            row = after
        out.append(row[n])
    return (np.array(out, np.int32),)


def _words(r: Any, n: int, dtype: Any) -> Args:
    sizes = np.stack([r.integers(0, 7, n), r.integers(0, 10, n)], 1).astype(np.int32)
    words = [r.integers(0, 3, (n, m)).astype(np.int32) for m in (6, 9)]
    return (*words, sizes.reshape(n, 2)), {}


def _collatz(x: Any) -> tuple[Any, ...]:
    def steps(n: int) -> int:
        count = 0
        while n > 1:
            n, count = (n // 2 if n % 2 == 0 else 3 * n + 1), count + 1
        return count

    return (np.array([steps(int(n)) for n in x], np.int64),)


# Layers


def _layernorm(x: Any, gain: Any, ct: Any, eps: float) -> tuple[Any, ...]:
    x, ct = x.astype(np.float64), ct.astype(np.float64)
    centred = x - x.mean(1, keepdims=True)
    scale = 1 / np.sqrt((centred**2).mean(1, keepdims=True) + eps)
    z, cg = centred * scale, ct * gain
    dx = scale * (cg - cg.mean(1, keepdims=True) - z * (cg * z).mean(1, keepdims=True))
    blocks = [slice(i, i + 4) for i in range(0, len(x), 4)]
    parts = [(ct * z)[b].sum(0) for b in blocks]
    return dx, np.stack(parts) if parts else np.zeros((0, x.shape[1]))


def _dropped(x: Any, residual: Any, p: float, seed: int) -> tuple[Any, ...]:
    drawn = words_reference(np.arange(x.size).reshape(x.shape), seed)
    return (np.where(drawn >= np.uint64(int(p * 2**32)), x / (1 - p), 0) + residual,)


def _entropy(logits: Any, labels: Any) -> tuple[Any, ...]:
    p = _softmax(logits)
    at = np.arange(len(labels)), labels
    return -np.log(p[at]), p - np.eye(logits.shape[1])[labels]


def _rotary(x: Any, c: Any, s: Any) -> tuple[Any, ...]:
    a, b = np.split(x, 2, 1)
    return (np.concatenate([a * c - b * s, b * c + a * s], 1),)


def _adam(x: Any, g: Any, moments: Any, rate: float, correction: float) -> tuple[Any, ...]:
    m, v = 0.9 * moments.first + 0.1 * g, 0.999 * moments.second + 0.001 * g * g
    return x - rate * correction * m / (np.sqrt(v) + 1e-8), m, v


def _args(make: Callable[..., Any]) -> Callable[[Any, int, Any], Args]:
    return lambda r, n, d: (tuple(make(r, n, d)), {})


def _wide(x: Any) -> Any:
    return x.astype(np.float64) if x.dtype.kind == "f" else x


def _rank(r: Any, shape: tuple[int, ...], dtype: Any, k: int) -> list[Any]:
    return [normal(r, *shape, dtype=dtype) for _ in range(k)]


_NUMBERS = ("float32", "int32", "float64")
CASES: dict[str, Case] = {
    "sliding_window": Case(attention.sliding_window, lambda r, n,
    d: (tuple(_heads(r, n, d)), {"window": 5}), _window),
    "varlen": Case(attention.varlen, lambda r, n, d: ((*[normal(r, n, 8) for _ in range(3)], _offsets(r, n)),
                   {"causal": True}), _varlen),
    "paged_decode": Case(attention.paged_decode, _pages, _paged),
    "split_decode": Case(attention.split_decode, lambda r, n, d: ((normal(r, 2, 8), normal(r, 2, n, 8),
                         normal(r, 2, n, 8)), {"parts": 3}), _parts),
    "linear_attention": Case(attention.linear_attention,
    _args(lambda r, n, d: (normal(r, 2, n, 8), normal(r, 2, n, 8),
                             normal(r, 2, n, 4))), _linear),
    "rwkv": Case(attention.rwkv, _args(lambda r, n, d: (normal(r, n, 11), normal(r, n, 11),
                 np.abs(normal(r, 11)), normal(r, 11))), _rwkv),
    "csr_product": Case(sparse.csr_product, _csr_with(11), lambda a, b, c, x: (_dense(a, b, c) @ x,),
                        _NUMBERS, least=1),
    "csr_rows": Case(sparse.csr_rows, _csr_with(11, 6), lambda a, b, c, x: (_dense(a, b, c) @ x,), _NUMBERS,
    least=1),
    "bsr_product": Case(sparse.bsr_product, _bsr, _blocks),
    "coo_product": Case(sparse.coo_product, _coo, _coo_sum, _NUMBERS),
    "scatter_rows": Case(sparse.scatter_rows, _args(lambda r, n, d: (r.integers(-1, 6, n).astype(np.int32),
                         normal(r, n, 5, dtype=d), normal(r, 5, 5, dtype=d))), _rows_added, _NUMBERS),
    "embedding_bag": Case(sparse.embedding_bag, _args(lambda r, n, d: (normal(r, 13, 6), r.integers(0, 13, n)
                          .astype(np.int32), _offsets(r, n))), _bags),
    "histogram": Case(sparse.histogram, lambda r, n, d: ((r.integers(-2, 9, n).astype(d),), {"bins": 7}),
                      lambda x, bins: (np.array([(x == i).sum() for i in range(bins)], np.int32),), I),
    "grouped_product": Case(products.grouped_product,
    _args(lambda r, n, d: (normal(r, n, 10), normal(r, 4, 10, 19),
                            _offsets(r, n))), _grouped),
    "split_k": Case(products.split_k, lambda r, n, d: ((normal(r, 9, n), normal(r, n, 10)), {"parts": 3}),
                    lambda a, b, parts: (a.astype(np.float64) @ b,)),
    "int8_product": Case(products.int8_product,
    _args(lambda r, n, d: (normal(r, n, 20, dtype=d), normal(r, 20, 9,
                         dtype=d), normal(r, 9))), lambda a, b,
                         s: (a.astype(np.int64) @ b.astype(np.int64) * s,),
                         ("int8",)),
    "int4_product": Case(products.int4_product, _int4, _int4_product),
    "mxfp4_product": Case(products.mxfp4_product,
    _args(lambda r, n, d: (normal(r, n, 64), r.integers(0, 256, (9, 32))
                          .astype(np.uint8), r.integers(120, 132, (9, 2)).astype(np.uint8))), _mxfp4_product),
    "linear_recurrence": Case(scans.linear_recurrence, _args(lambda r, n, d: (r.random((n, 9)).astype(d),
                              normal(r, n, 9))), _recurrence),
    "selective_scan": Case(scans.selective_scan,
    _args(lambda r, n, d: (normal(r, n, 10), r.random((n, 10)).astype(d),
                           -r.random((10, 4)).astype(d), normal(r, n, 4), normal(r, n, 4))), _mamba),
    "segmented_sum": Case(scans.segmented_sum,
    _args(lambda r, n, d: (r.integers(0, 2, (n, 9)).astype(np.int32),
                          normal(r, n, 9, dtype=d))), _segments, _NUMBERS),
    "row_argmax": Case(scans.row_argmax, _args(lambda r, n, d: _rank(r, (n, 9), d, 1)),
                       lambda x: (x.max(1), x.argmax(1).astype(np.int32)), _NUMBERS),
    "online_softmax": Case(scans.online_softmax, _args(lambda r, n, d: _rank(r, (n, 9), d, 1)),
                           lambda x: (_softmax(x),)),
    "discounted": Case(scans.discounted, _args(lambda r, n, d: (normal(r, n, 9), 0.9)),
                       lambda x, g: (_recurrence(np.full(x.shape, g), x[:, ::-1])[0][:, ::-1],)),
    "exclusive_sum": Case(scans.exclusive_sum, _args(lambda r, n, d: _rank(r, (n, 9), d, 1)),
                          lambda x: ((x.cumsum(1) - x).astype(x.dtype),), I),
    "heat": Case(grids.heat, _args(lambda r, n, d: (normal(r, n, 9, dtype=d), 0.25)), _heat,
    ("float32", "float64")),
    "life": Case(grids.life, _args(lambda r, n, d: (r.integers(0, 2, (n, 11)).astype(d),)), _life, I),
    "mandelbrot": Case(grids.mandelbrot, _args(lambda r, n, d: (*_rank(r, (n,), d, 2), 40)), _mandelbrot,
                       ("float32", "float64")),
    "winograd": Case(grids.winograd, _args(lambda r, n, d: (normal(r, n, 9), normal(r, 3, 3))), _correlated,
    least=3),
    "nearest": Case(grids.nearest,
    _args(lambda r, n, d: (normal(r, 6, 7, dtype=d), (r.random((n, 9, 2)) * 9 - 1)
                    .astype(np.float32))), _warped, _NUMBERS),
    "cholesky": Case(algebra.cholesky, _spd, lambda a: (np.linalg.cholesky(_wide(a)),),
    ("float32", "float64"),
                     1e-3, least=1),
    "lu": Case(algebra.lu, _spd, _lu, ("float32", "float64"), 1e-3, least=1),
    "solve_lower": Case(algebra.solve_lower, _args(lambda r, n, d: (np.tril(_spd(r, n, d)[0][0]),
                        normal(r, 3, n, dtype=d))), lambda a,
                        y: (np.linalg.solve(_wide(a), y[..., None])[..., 0],),
                        ("float32", "float64"), 1e-3, least=1),
    "n_body": Case(algebra.n_body, _args(lambda r, n, d: (normal(r, n, 3), np.abs(normal(r, n)), 0.1)),
    _pulls),
    "fft": Case(algebra.fft, _args(lambda r, n, d: _rank(r, (n, 16), d, 2)), _fourier),
    "sort_rows": Case(sorting.sort_rows, _args(lambda r, n, d: _rank(r, (n, 7), d, 1)),
    lambda x: (np.sort(x, 1),
                      np.argsort(x, 1, kind="stable")), ("float32", "int32", "float64", "int8")),
    "top_rows": Case(sorting.top_rows, lambda r, n, d: (tuple(_rank(r, (n, 7), d, 1)), {"k": 3}),
                     lambda x, k: (np.sort(x, 1)[:, ::-1][:, :k],
                     np.argsort(-_wide(x), 1, kind="stable")[:, :k]),
                     _NUMBERS),
    "search": Case(sorting.search,
    _args(lambda r, n, d: (np.sort(normal(r, 9, dtype=d)), normal(r, n, dtype=d))),
                   lambda e, x: (np.searchsorted(e, x),), _NUMBERS),
    "edit_distance": Case(sorting.edit_distance, _words, _distance),
    "collatz": Case(sorting.collatz, _args(lambda r, n, d: (r.integers(1, 99, n),)), _collatz, ("int64",)),
    "power_iteration": Case(sorting.power_iteration, lambda r, n, d: ((_spd(r, n, d)[0][0][0], 1e-5), {}),
                            lambda a, t: (np.linalg.eigvalsh(_wide(a))[-1:],), F, 1e-3, least=1),
    "layernorm_backward": Case(neural.layernorm_backward,
    _args(lambda r, n, d: (normal(r, n, 9), normal(r, 9),
                               normal(r, n, 9), 1e-5)), _layernorm),
    "dropout_add": Case(neural.dropout_add, lambda r, n,
    d: (tuple(_rank(r, (n, 9), d, 2)), {"p": 0.3, "seed": 7}),
                        _dropped),
    "cross_entropy": Case(neural.cross_entropy, _args(lambda r, n, d: (normal(r, n, 9), r.integers(0, 9, n)
                          .astype(np.int32))), _entropy),
    "rotary": Case(neural.rotary, _args(lambda r, n, d: (normal(r, n, 8), *_rank(r, (n, 4), d, 2))), _rotary),
    "adam": Case(neural.adam, _args(lambda r, n, d: (*_rank(r, (n,), d, 2), neural.Moments(normal(r, n),
                 np.abs(normal(r, n))), 0.1, 2.0)), _adam),
    "mean_of": Case(neural.mean_of, _args(lambda r, n, d: (tuple(_rank(r, (n,), d, 3)),)),
                    lambda xs: (sum(map(_wide, xs)) / 3,)),
    "softmax_backward": Case(neural.softmax_backward, _args(lambda r, n, d: _rank(r, (n, 9), d, 2)),
                             lambda y, c: (y * (c - (y * c).sum(1, keepdims=True)),)),
    "swiglu": Case(neural.swiglu, _args(lambda r, n, d: _rank(r, (n, 10), d, 1)),
                   lambda x: (_wide(x[:, :5]) / (1 + np.exp(-_wide(x[:, :5]))) * x[:, 5:],)),
}  # fmt: skip


# Fused


def _shares(r: Any, *shape: int) -> Any:
    e = np.exp(r.normal(size=shape))
    return (e / e.sum(-1, keepdims=True)).astype(np.float32)


def _quantized(x: Any) -> tuple[Any, ...]:
    top = np.abs(x).max(1, keepdims=True)
    scale = np.where(top > 0, top / np.float32(127), np.float32(1)).astype(np.float32)
    return np.round(x / scale).astype(np.int8), scale


def _divergence(p: Any, log_q: Any) -> tuple[Any, ...]:
    p = p.astype(np.float64)
    return ((p * (np.log(np.where(p > 0, p, 1)) - log_q)).sum(1),)


def _losses(logits: Any, target: Any) -> tuple[Any, ...]:
    z = logits.astype(np.float64)
    top = z.max(1)
    total = np.log(np.exp(z - top[:, None]).sum(1)) + top
    return (total - z[np.arange(len(z)), target],)


def _geglu(ct: Any, a: Any, b: Any) -> tuple[Any, ...]:
    x = a.astype(np.float64)
    cdf = 0.5 * (1 + np.vectorize(math.erf, otypes=[float])(x / np.sqrt(2)))
    return ct * b * (cdf + x * np.exp(-x * x / 2) / np.sqrt(2 * np.pi)), ct * x * cdf


def _normed(x: Any, residual: Any, gain: Any, bias: Any) -> tuple[Any, ...]:
    t = x.astype(np.float64) + residual
    away = t - t.mean(1, keepdims=True)
    return t, away / np.sqrt((away**2).mean(1, keepdims=True) + 1e-5) * gain + bias


def _nucleus(probabilities: Any, draw: Any, p: float) -> tuple[Any, ...]:
    out = np.zeros(len(draw), np.int32)
    for i, (row, u) in enumerate(zip(probabilities, draw, strict=True)):
        order = np.argsort(-row, kind="stable")
        ranked = row[order]
        upto = np.cumsum(ranked, dtype=np.float32)
        kept = np.where(upto - ranked < np.float32(p), ranked, 0)
        reached = np.cumsum(kept, dtype=np.float32)
        out[i] = order[min(int((reached <= u * reached[-1]).sum()), int((kept > 0).sum()) - 1)]
    return (out,)


def _hashed(x: Any, bins: int) -> tuple[Any, ...]:
    ids = (x.astype(np.uint32) * np.uint32(2654435769)) >> np.uint32(16)
    return (np.bincount(ids % bins, minlength=bins).astype(np.int32),)


def _blocks_seen(r: Any, n: int, d: Any) -> Args:
    seen = (r.random((-(-n // 8), 3)) < 0.6).astype(np.int32)
    return (normal(r, n, 8), normal(r, 21, 8), normal(r, 21, 8), seen), {}


def _seen_attention(q: Any, k: Any, v: Any, seen: Any) -> tuple[Any, ...]:
    every = seen.repeat(8, 0).repeat(8, 1)[: len(q), : len(k)] > 0
    return (attended(q, k, v, every),)


def _moments(x: Any, w: Any) -> tuple[Any, ...]:
    a, b = x.astype(np.float64), w.astype(np.float64)
    mean = (a * b).sum(1) / b.sum(1)
    return mean, (b * (a - mean[:, None]) ** 2).sum(1) / b.sum(1)


CASES |= {
    "quantize_rows": Case(fused.quantize_rows, lambda r, n, d: ((normal(r, n, 13),), {}), _quantized),
    "dequantize_rows": Case(
        fused.dequantize_rows,
        lambda r, n, d: ((r.integers(-127, 128, (n, 13)).astype(np.int8), normal(r, n, 1)), {}),
        lambda q, s: (q * s,)),
    "kl_divergence": Case(
        fused.kl_divergence, lambda r, n, d: ((_shares(r, n, 37), np.log(_shares(r, n, 37))), {}),
        _divergence),
    "jagged_sum": Case(
        fused.jagged_sum, lambda r, n, d: ((normal(r, n, 8), _offsets(r, n)), {}),
        lambda x, o: (np.stack([x[a:b].sum(0) for a, b in pairwise(o)]),)),
    "chunked_cross_entropy": Case(
        fused.chunked_cross_entropy,
        lambda r, n, d: ((normal(r, n, 37), r.integers(0, 37, n).astype(np.int32)), {}), _losses),
    "geglu_backward": Case(fused.geglu_backward, lambda r, n, d: (tuple(normal(r, 3, n, 13)), {}), _geglu),
    "add_layernorm": Case(
        fused.add_layernorm,
        lambda r, n, d: ((normal(r, n, 13), normal(r, n, 13), normal(r, 13), normal(r, 13)), {}), _normed),
    "block_cumsum": Case(
        fused.block_cumsum, lambda r, n, d: ((normal(r, 3, n),), {}),
        lambda x: (np.cumsum(x.astype(np.float64), 1),)),
    "top_p": Case(
        fused.top_p, lambda r, n, d: ((_shares(r, n, 11), r.random(n).astype(np.float32)), {"p": 0.7}),
        _nucleus),
    "bitonic_sort": Case(
        fused.bitonic_sort, lambda r, n, d: ((normal(r, n, 16),), {}), lambda x: (np.sort(x, 1),)),
    "hash_counts": Case(
        fused.hash_counts, lambda r, n, d: ((r.integers(-1000, 1000, n).astype(np.int32),), {"bins": 7}),
        _hashed),
    "block_masked_attention": Case(fused.block_masked_attention, _blocks_seen, _seen_attention),
    "weighted_moments": Case(
        fused.weighted_moments,
        lambda r, n, d: ((normal(r, n, 37), r.random((n, 37)).astype(np.float32) + np.float32(0.1)), {}),
        _moments),
}  # fmt: skip


CASES |= {
    "rmsnorm_backward": Case(
        training.rmsnorm_backward,
        lambda r, n, d: ((normal(r, n, 10), normal(r, 10), normal(r, n, 10)), {}), more.rmsnorm_backward),
    "topk_gating": Case(
        training.topk_gating, lambda r, n, d: ((normal(r, n, 6),), {"k": 2}), more.topk_gating),
    "linear_cross_entropy": Case(
        training.linear_cross_entropy,
        lambda r, n, d: ((normal(r, n, 6), normal(r, 6, 20), r.integers(0, 20, n)), {}),
        more.linear_cross_entropy),
    "gru": Case(
        training.gru,
        lambda r, n, d: ((normal(r, n, 5), normal(r, n, 4), normal(r, 5, 12), normal(r, 4, 12),
                          normal(r, 12)), {}), more.gru),
    "kmeans_step": Case(
        training.kmeans_step, lambda r, n, d: ((normal(r, n, 3), normal(r, 4, 3)), {}), more.kmeans_step),
    "pack_int4": Case(training.pack_int4, lambda r, n, d: ((normal(r, n, 16),), {}), more.pack_int4),
    "decode_int8": Case(
        training.decode_int8,
        lambda r, n, d: ((normal(r, 2, 8), r.integers(-127, 128, (2, n, 8)).astype(np.int8),
                          r.random((2, n)).astype(np.float32) / 50,
                          r.integers(-127, 128, (2, n, 8)).astype(np.int8),
                          r.random((2, n)).astype(np.float32) / 50), {}), more.decode_int8, least=1),
    "sliding_median": Case(
        lists.sliding_median, lambda r, n, d: ((normal(r, n, dtype=d),), {}), more.sliding_median,
        ("float32", "float64", "int32")),
    "compaction": Case(lists.compaction, lambda r, n, d: ((normal(r, n),), {}), more.compaction),
    "segment_sums": Case(
        lists.segment_sums,
        lambda r, n, d: ((normal(r, n), np.sort(r.integers(0, 4, n)).astype(np.int32)), {}),
        more.segment_sums),
    "suppressed": Case(
        lists.suppressed, lambda r, n, d: ((more.boxes(r, n), 0.3), {}), more.suppressed, least=1),
    "shortest_paths": Case(
        lists.shortest_paths, lambda r, n, d: ((r.random((n, n)).astype(d),), {}), more.shortest_paths,
        ("float32", "float64"), least=1),
    "tridiagonal": Case(
        lists.tridiagonal,
        lambda r, n, d: ((normal(r, 3, n, dtype=d), normal(r, 3, n, dtype=d) + d.type(6),
                          normal(r, 3, n, dtype=d), normal(r, 3, n, dtype=d)), {}), more.tridiagonal,
        ("float32", "float64"), 1e-3),
    "common_subsequence": Case(
        lists.common_subsequence,
        lambda r, n, d: ((r.integers(0, 3, (n, 6)).astype(np.int32),
                          r.integers(0, 3, (n, 7)).astype(np.int32)), {}), more.common_subsequence),
}  # fmt: skip
