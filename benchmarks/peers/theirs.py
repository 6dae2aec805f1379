# ruff: noqa: N803, N806  (Triton's way of naming blocks)
# mypy: ignore-errors
"""The kernels of ours.py in Triton, with the same blocks, warps and stages.

Written for this comparison after the descriptions of Triton's tutorials and of libraries of kernels.
"""

import torch
import triton
import triton.language as tl
from triton.language.extra import libdevice


@triton.jit
def add_kernel(x, y, out, n, B: tl.constexpr):
    at = tl.program_id(0) * B + tl.arange(0, B)
    inside = at < n
    tl.store(out + at, tl.load(x + at, inside) + tl.load(y + at, inside), inside)


def pointwise(kernel, *tensors, extra=(), dtype=None):
    out = torch.empty_like(tensors[0], dtype=dtype)
    n = out.numel()
    kernel[(triton.cdiv(n, 1024),)](*tensors, out, n, *extra, B=1024, num_warps=4)
    return out


def add(x, y):
    return pointwise(add_kernel, x, y)


@triton.jit
def softmax_kernel(x, out, n, B: tl.constexpr):
    row, at = tl.program_id(0), tl.arange(0, B)
    t = tl.load(x + row * n + at, at < n, other=-float("inf"))
    e = tl.exp(t - tl.max(t, axis=0))
    tl.store(out + row * n + at, e / tl.sum(e, axis=0), at < n)


def rows_of(kernel, x, *more, extra=(), out=None, warps=8):
    m, n = x.shape
    out = torch.empty_like(x) if out is None else out
    kernel[(m,)](x, *more, out, n, *extra, B=triton.next_power_of_2(n), num_warps=warps)
    return out


def softmax(x):
    return rows_of(softmax_kernel, x)


@triton.jit
def product_kernel(
    a, b, c, out, M, N, K, sa, sb, so, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, G: tl.constexpr,
    LEAKY: tl.constexpr, BIAS: tl.constexpr,
):  # fmt: skip
    pid, z = tl.program_id(0), tl.program_id(1)
    rows, cols = tl.cdiv(M, BM), tl.cdiv(N, BN)
    group = pid // (G * cols)
    first = group * G
    high = min(rows - first, G)
    pm, pn = first + (pid % (G * cols)) % high, (pid % (G * cols)) // high
    am = (pm * BM + tl.arange(0, BM)) % M
    bn = (pn * BN + tl.arange(0, BN)) % N
    k = tl.arange(0, BK)
    pa = a + z * sa + am[:, None] * K + k[None, :]
    pb = b + z * sb + k[:, None] * N + bn[None, :]
    acc = tl.zeros((BM, BN), tl.float32)
    for i in range(tl.cdiv(K, BK)):
        left = tl.load(pa, k[None, :] < K - i * BK, other=0.0)
        right = tl.load(pb, k[:, None] < K - i * BK, other=0.0)
        acc = tl.dot(left, right, acc)
        pa += BK
        pb += BK * N
    if LEAKY:
        acc = tl.where(acc >= 0, acc, 0.01 * acc)
    m, n = pm * BM + tl.arange(0, BM), pn * BN + tl.arange(0, BN)
    if BIAS:
        acc += tl.load(c + n, n < N, other=0.0).to(tl.float32)[None, :]
    inside = (m[:, None] < M) & (n[None, :] < N)
    tl.store(out + z * so + m[:, None] * N + n[None, :], acc.to(out.dtype.element_ty), inside)


def product_of(a, b, c, blocks, leaky=False):
    batch = a.shape[0] if a.ndim == 3 else 1
    (M, K), N = a.shape[-2:], b.shape[-1]
    out = torch.empty((*a.shape[:-1], N), dtype=a.dtype, device=a.device)
    bm, bn, bk = blocks
    product_kernel[(triton.cdiv(M, bm) * triton.cdiv(N, bn), batch)](
        a, b, a if c is None else c, out, M, N, K, M * K, K * N, M * N, BM=bm, BN=bn, BK=bk, G=8, LEAKY=leaky,
        BIAS=c is not None, num_warps=8, num_stages=3,
    )  # fmt: skip
    return out


def matmul(a, b):
    return product_of(a, b, None, (128, 256, 64), leaky=True)


@triton.jit
def dropout_kernel(x, out, n, p, seed, B: tl.constexpr):
    at = tl.program_id(0) * B + tl.arange(0, B)
    t = tl.load(x + at, at < n)
    kept = tl.rand(seed, at) > p
    tl.store(out + at, tl.where(kept, t / (1 - p), 0.0), at < n)


def dropout(x, *, p, seed):
    return pointwise(dropout_kernel, x, extra=(p, seed))


@triton.jit
def layernorm_kernel(x, gain, bias, out, n, eps, B: tl.constexpr):
    row, at = tl.program_id(0), tl.arange(0, B)
    inside = at < n
    t = tl.load(x + row * n + at, inside, other=0.0).to(tl.float32)
    mean = tl.sum(t, axis=0) / n
    centred = tl.where(inside, t - mean, 0.0)
    rate = 1 / tl.sqrt(tl.sum(centred * centred, axis=0) / n + eps)
    g, b = tl.load(gain + at, inside).to(tl.float32), tl.load(bias + at, inside).to(tl.float32)
    tl.store(out + row * n + at, (centred * rate * g + b).to(tl.bfloat16), inside)


def layernorm(x, gain, bias, *, eps):
    return rows_of(layernorm_kernel, x, gain, bias, extra=(eps,))


@triton.jit
def layernorm_backward_kernel(x, gain, mean, rate, ct, out, n, B: tl.constexpr):
    row, at = tl.program_id(0), tl.arange(0, B)
    inside = at < n
    t = tl.load(x + row * n + at, inside, other=0.0).to(tl.float32)
    c = tl.load(ct + row * n + at, inside, other=0.0).to(tl.float32)
    g = tl.load(gain + at, inside, other=0.0).to(tl.float32)
    r = tl.load(rate + row)
    hat = tl.where(inside, (t - tl.load(mean + row)) * r, 0.0)
    cg = c * g
    inner, middle = tl.sum(cg * hat, axis=0) / n, tl.sum(cg, axis=0) / n
    tl.store(out + row * n + at, ((cg - hat * inner - middle) * r).to(tl.bfloat16), inside)


def layernorm_backward(x, gain, mean, rate, ct):
    return rows_of(layernorm_backward_kernel, x, gain, mean, rate, ct)


@triton.jit
def attention_kernel(
    q,
    k,
    v,
    out,
    S,
    L,
    scale,
    D: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    WHOLE: tl.constexpr,
):
    pm, h = tl.program_id(0), tl.program_id(1)
    m, d = pm * BM + tl.arange(0, BM), tl.arange(0, D)
    rows = tl.load(q + h * S * D + m[:, None] * D + d[None, :], m[:, None] < S, other=0.0)
    acc = tl.zeros((BM, D), tl.float32)
    top = tl.full((BM,), -float("inf"), tl.float32)
    total = tl.zeros((BM,), tl.float32)
    for i in range(tl.cdiv(L, BN)):
        n = i * BN + tl.arange(0, BN)
        keys = tl.load(k + h * L * D + n[None, :] * D + d[:, None], n[None, :] < L, other=0.0)
        s = tl.dot(rows, keys) * (scale * 1.44269504)
        if not WHOLE:
            s = tl.where(n[None, :] < L, s, -float("inf"))
        new = tl.maximum(top, tl.max(s, axis=1))
        p = tl.exp2(s - new[:, None])
        old = tl.exp2(top - new)
        total = total * old + tl.sum(p, axis=1)
        values = tl.load(v + h * L * D + n[:, None] * D + d[None, :], n[:, None] < L, other=0.0)
        acc = tl.dot(p.to(values.dtype), values, acc * old[:, None])
        top = new
    made = (acc / total[:, None]).to(out.dtype.element_ty)
    tl.store(out + h * S * D + m[:, None] * D + d[None, :], made, m[:, None] < S)


def attention(q, k, v):
    h, s, d = q.shape
    out = torch.empty_like(q)
    attention_kernel[(triton.cdiv(s, 128), h)](
        q, k, v, out, s, k.shape[1], d**-0.5, D=d, BM=128, BN=64, WHOLE=k.shape[1] % 64 == 0, num_warps=8,
        num_stages=3,
    )  # fmt: skip
    return out


@triton.jit
def arcsine_kernel(x, out, n, B: tl.constexpr):
    at = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(out + at, libdevice.asin(tl.load(x + at, at < n)), at < n)


def arcsine(x):
    return pointwise(arcsine_kernel, x)


@triton.jit
def rmsnorm_kernel(x, gain, out, n, eps, B: tl.constexpr):
    row, at = tl.program_id(0), tl.arange(0, B)
    inside = at < n
    t = tl.load(x + row * n + at, inside, other=0.0).to(tl.float32)
    rate = tl.rsqrt(tl.sum(t * t, axis=0) / n + eps)
    g = tl.load(gain + at, inside).to(tl.float32)
    tl.store(out + row * n + at, (t * rate * g).to(tl.bfloat16), inside)


def rmsnorm(x, gain, *, eps):
    return rows_of(rmsnorm_kernel, x, gain, extra=(eps,))


@triton.jit
def rotary_kernel(x, cos, sin, out, S, H: tl.constexpr, R: tl.constexpr):
    rows, at = tl.program_id(0) * R + tl.arange(0, R), tl.arange(0, H)
    h = tl.program_id(1)
    inside = (rows < S)[:, None]
    place = rows[:, None] * H + at[None, :]
    c, s = tl.load(cos + place, inside), tl.load(sin + place, inside)
    begin = h * S * 2 * H + rows[:, None] * 2 * H + at[None, :]
    a, b = tl.load(x + begin, inside).to(tl.float32), tl.load(x + begin + H, inside).to(tl.float32)
    tl.store(out + begin, (a * c - b * s).to(tl.bfloat16), inside)
    tl.store(out + begin + H, (b * c + a * s).to(tl.bfloat16), inside)


def rotary(x, cos, sin):
    h, s, d = x.shape
    out = torch.empty_like(x)
    rotary_kernel[(triton.cdiv(s, 4), h)](x, cos, sin, out, s, H=d // 2, R=4, num_warps=4)
    return out


@triton.jit
def swiglu_kernel(a, b, out, n, B: tl.constexpr):
    at = tl.program_id(0) * B + tl.arange(0, B)
    t = tl.load(a + at, at < n).to(tl.float32)
    made = t * tl.sigmoid(t) * tl.load(b + at, at < n).to(tl.float32)
    tl.store(out + at, made.to(tl.bfloat16), at < n)


def swiglu(a, b):
    return pointwise(swiglu_kernel, a, b)


@triton.jit
def tanh_of(x):
    return 2 * tl.sigmoid(2 * x) - 1


@triton.jit
def geglu_kernel(a, b, out, n, B: tl.constexpr):
    at = tl.program_id(0) * B + tl.arange(0, B)
    t = tl.load(a + at, at < n).to(tl.float32)
    inner = 0.7978845608028654 * (t + 0.044715 * t * t * t)
    made = 0.5 * t * (1 + tanh_of(inner)) * tl.load(b + at, at < n).to(tl.float32)
    tl.store(out + at, made.to(tl.bfloat16), at < n)


def geglu(a, b):
    return pointwise(geglu_kernel, a, b)


@triton.jit
def cross_entropy_kernel(x, labels, out, n, B: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    m, l = -float("inf"), 0.0
    for i in range(0, n, B):
        at = i + tl.arange(0, B)
        t = tl.load(x + row * n + at, at < n, other=-float("inf")).to(tl.float32)
        top = tl.maximum(m, tl.max(t, axis=0))
        l = l * tl.exp(m - top) + tl.sum(tl.exp(t - top), axis=0)
        m = top
    own = tl.load(x + row * n + tl.load(labels + row)).to(tl.float32)
    tl.store(out + row, m + tl.log(l) - own)


def cross_entropy(x, labels):
    m, n = x.shape
    out = torch.empty(m, dtype=torch.float32, device=x.device)
    cross_entropy_kernel[(m,)](x, labels, out, n, B=4096, num_warps=16)
    return out


@triton.jit
def kl_kernel(p, log_q, out, n, B: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    total = tl.zeros((B,), tl.float32)
    for i in range(0, n, B):
        at = i + tl.arange(0, B)
        t = tl.load(p + row * n + at, at < n, other=0.0)
        total += t * (
            tl.log(tl.maximum(t, 1e-30)) - tl.load(log_q + row * n + at, at < n, other=0.0)
        )
    tl.store(out + row, tl.sum(total, axis=0))


def kl_divergence(p, log_q):
    m, n = p.shape
    out = torch.empty(m, dtype=torch.float32, device=p.device)
    kl_kernel[(m,)](p, log_q, out, n, B=4096, num_warps=8)
    return out


@triton.jit
def dynamic_tanh_kernel(x, gain, bias, out, n, alpha, B: tl.constexpr):
    row, at = tl.program_id(0), tl.arange(0, B)
    inside = at < n
    t = tanh_of(tl.load(x + row * n + at, inside, other=0.0).to(tl.float32) * alpha)
    g, b = tl.load(gain + at, inside).to(tl.float32), tl.load(bias + at, inside).to(tl.float32)
    tl.store(out + row * n + at, (t * g + b).to(tl.bfloat16), inside)


def dynamic_tanh(x, gain, bias, alpha):
    return rows_of(dynamic_tanh_kernel, x, gain, bias, extra=(alpha,))


@triton.jit
def log_softmax_kernel(x, out, n, B: tl.constexpr):
    row, at = tl.program_id(0), tl.arange(0, B)
    t = tl.load(x + row * n + at, at < n, other=-float("inf"))
    t = t - tl.max(t, axis=0)
    tl.store(out + row * n + at, t - tl.log(tl.sum(tl.exp(t), axis=0)), at < n)


def log_softmax(x):
    return rows_of(log_softmax_kernel, x)


@triton.jit
def cumsum_kernel(x, out, n, B: tl.constexpr):
    row, at = tl.program_id(0), tl.arange(0, B)
    t = tl.load(x + row * n + at, at < n, other=0.0)
    tl.store(out + row * n + at, tl.cumsum(t, axis=0), at < n)


def cumsum(x):
    return rows_of(cumsum_kernel, x)


@triton.jit
def argmax_kernel(x, out, n, B: tl.constexpr):
    row, at = tl.program_id(0), tl.arange(0, B)
    t = tl.load(x + row * n + at, at < n, other=-float("inf"))
    tl.store(out + row, tl.argmax(t, axis=0).to(tl.int64))


def argmax(x):
    return rows_of(
        argmax_kernel, x, out=torch.empty(x.shape[0], dtype=torch.int64, device=x.device)
    )


@triton.jit
def variance_kernel(x, means, out, n, B: tl.constexpr):
    row, at = tl.program_id(0), tl.arange(0, B)
    t = tl.load(x + row * n + at, at < n, other=0.0)
    mean = tl.sum(t, axis=0) / n
    centred = tl.where(at < n, t - mean, 0.0)
    tl.store(out + row, tl.sum(centred * centred, axis=0) / n)
    tl.store(means + row, mean)


def variance(x):
    means, out = (torch.empty(x.shape[0], dtype=x.dtype, device=x.device) for _ in range(2))
    return rows_of(variance_kernel, x, means, out=out), means


@triton.jit
def matvec_kernel(a, x, out, M, N, BM: tl.constexpr, BN: tl.constexpr):
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    total = tl.zeros((BM, BN), tl.float32)
    for i in range(0, N, BN):
        n = i + tl.arange(0, BN)
        inside = (m[:, None] < M) & (n[None, :] < N)
        t = tl.load(a + m[:, None] * N + n[None, :], inside, other=0.0).to(tl.float32)
        total += t * tl.load(x + n, n < N, other=0.0).to(tl.float32)[None, :]
    tl.store(out + m, tl.sum(total, axis=1), m < M)


def matvec(a, x):
    m, n = a.shape
    out = torch.empty(m, dtype=torch.float32, device=a.device)
    matvec_kernel[(triton.cdiv(m, 4),)](a, x, out, m, n, BM=4, BN=1024, num_warps=8)
    return out


@triton.jit
def outer_kernel(x, y, out, M, N, BM: tl.constexpr, BN: tl.constexpr):
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    n = tl.program_id(1) * BN + tl.arange(0, BN)
    t = tl.load(x + m, m < M)[:, None] * tl.load(y + n, n < N)[None, :]
    tl.store(out + m[:, None] * N + n[None, :], t, (m[:, None] < M) & (n[None, :] < N))


def outer(x, y):
    m, n = len(x), len(y)
    out = torch.empty((m, n), dtype=x.dtype, device=x.device)
    outer_kernel[(triton.cdiv(m, 32), triton.cdiv(n, 128))](
        x, y, out, m, n, BM=32, BN=128, num_warps=4
    )
    return out


@triton.jit
def index_select_kernel(x, ids, out, N, V, D, BM: tl.constexpr, B: tl.constexpr):
    m, d = tl.program_id(0) * BM + tl.arange(0, BM), tl.arange(0, B)
    row = tl.load(ids + m, m < N, other=0)
    ok = (m < N) & (row >= 0) & (row < V)
    t = tl.load(
        x + row.to(tl.int64)[:, None] * D + d[None, :], ok[:, None] & (d < D)[None, :], other=0.0
    )
    tl.store(out + m.to(tl.int64)[:, None] * D + d[None, :], t, (m < N)[:, None] & (d < D)[None, :])


def index_select(x, ids):
    n, (v, d) = len(ids), x.shape
    out = torch.empty((n, d), dtype=x.dtype, device=x.device)
    index_select_kernel[(triton.cdiv(n, 4),)](
        x, ids, out, n, v, d, BM=4, B=triton.next_power_of_2(d), num_warps=8
    )
    return out


@triton.jit
def gelu_kernel(x, out, n, B: tl.constexpr):
    at = tl.program_id(0) * B + tl.arange(0, B)
    t = tl.load(x + at, at < n).to(tl.float32)
    tl.store(out + at, (0.5 * t * (1 + tl.erf(t * 0.7071067811865476))).to(tl.bfloat16), at < n)


def gelu(x):
    return pointwise(gelu_kernel, x)


def addmm(c, a, b):
    return product_of(a, b, c, (128, 128, 64))


def bmm(a, b):
    return product_of(a, b, None, (128, 128, 64))
