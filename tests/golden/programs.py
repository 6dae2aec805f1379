"""A fixed corpus of small programs, over every kind of kernel, whose generated code is recorded (record.py).

A program is a function and the types of its operands, written `f32[8,N]`; `N=20` gives a symbolic size.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import tessera as ts
from tessera import Tensor, op
from tessera.core.dtype import bf16, c64, f16, f32, f64, i8, i32, i64, u8
from tessera.ir.graph.ir import Graph
from tests.golden import kernels

DTYPES = {str(d): d for d in (bf16, c64, f16, f32, f64, i8, i32, i64, u8)} | {"bool": ts.bool_}


@dataclass(frozen=True)
class Program:
    """A function of tensors, their types, and how it is compiled."""

    function: Callable[..., Any]
    types: str
    numerics: str = "deterministic"
    donated: frozenset[int] = frozenset()

    def trace(self) -> Graph:
        """Its graph."""
        found = re.findall(r"(\w+)\[([^\]]*)\]", self.types)
        return ts.trace(self.function, *(_spec(DTYPES[d], shape) for d, shape in found))

    @property
    def sizes(self) -> dict[str, int]:
        """The symbolic sizes of a run."""
        return {n: int(k) for n, k in re.findall(r"(\w+)=(\d+)", self.types)}


def _spec(dtype: Any, shape: str) -> Any:
    dims = [int(x) if x.isdecimal() else x for x in shape.replace(" ", "").split(",") if x]
    return Tensor[(*dims, dtype)]


def _seen(s: Any, offset: int = 0) -> Any:
    row, column = (op.iota(s.shape[-2:], axis, i64) for axis in (0, 1))
    return op.where(column <= row + offset, s, float("-inf"))


def _weights(q: Any, k: Any) -> Any:
    return op.softmax(_seen(op.matmul(q, op.swapaxes(k, -1, -2)) * 0.25))


def _mlp(x: Any, w: Any, v: Any) -> Any:
    return op.mean(op.square(op.gelu(x @ w) @ v))


def _block(x: Any, w: Any, u: Any, g: Any) -> Any:
    """A transformer block of one head."""
    y = op.layernorm(x) * g
    q, k, v = op.split(y @ w, 3, axis=-1)
    return x + op.matmul(_weights(q, k), v) @ u


def _rms(x: Any, g: Any) -> Any:
    w = x.astype(f32)
    return (w * op.rsqrt(op.mean(w * w) + 1e-5) * g).astype(x.dtype)


def _heads(x: Any, w: Any, u: Any) -> Any:
    """Attention of two heads whose queries, keys and values are columns of one product."""
    parts = op.split(x @ w, 3, axis=-1)
    q, k, v = (op.transpose(op.reshape(p, (2, 256, 2, 64)), (0, 2, 1, 3)) for p in parts)
    y = op.attention(q, k, v, causal=True)
    return op.reshape(op.transpose(y, (0, 2, 1, 3)), (2, 256, 128)) @ u


def _until(x: Any) -> Any:
    return op.while_loop(lambda c: op.sum(c[1]) < 100.0, lambda c: (c[0] + 1, c[1] * 2.0), (0, x))


def _adam(p: Any, g: Any, m: Any, v: Any) -> Any:
    m, v = m * 0.9 + g * 0.1, v * 0.99 + g * g * 0.01
    return p - 0.001 * m / (op.sqrt(v) + 1e-8), m, v


def _grad(f: Callable[..., Any], *which: int) -> Callable[..., Any]:
    return ts.grad(lambda *xs: op.sum(op.square(f(*xs))), which or (0,))


def _rows(*names: str) -> dict[str, Program]:
    """One program for each elementwise op of a family."""
    return {f"unary {n}": Program(getattr(op, n), "f32[5,37]") for n in names}


PROGRAMS: dict[str, Program] = {
    # Elementwise
    "chain": Program(lambda x, y: op.tanh(x * 2.0 + y) * op.exp(-y), "f32[33,65] f32[65]"),
    "chain of N": Program(lambda x, y: op.tanh(x * 2.0 + y) - x, "f32[N,65] f32[N,1] N=20"),
    "chain of M by N": Program(lambda x, y: (x + y, x * y), "f32[M,N] f32[N] M=3 N=130"),
    "one number": Program(lambda x: x * x + 1.0, "f32[]"),
    "no elements": Program(lambda x: op.exp(x) + 1.0, "f32[0,7]"),
    "large": Program(lambda x, y: x * y + x, "f32[2048,2048] f32[2048]"),
    "polynomials": Program(lambda x: (op.erf(x), op.sin(x), op.log(x), op.atan(x)), "f64[40]"),
    "bf16 chain": Program(lambda x, y: op.gelu(x * y) + x, "bf16[9,130] bf16[130]"),
    "f16 chain": Program(lambda x: op.sigmoid(x) * x, "f16[70]"),
    "integers": Program(lambda x, y: (x // y + x % y, x * y - 3, op.abs(x)), "i32[40] i32[40]"),
    "narrow integers": Program(lambda x, y: (x * y, x // 3, op.maximum(x, y)), "i8[70] i8[70]"),
    "bits of words": Program(lambda x, y: (x & y) ^ (x << 2) | (y >> 1), "i32[40] i32[40]"),
    "bools": Program(lambda x, y: op.where((x > y) | (x < 0), y, -x), "f32[40] f32[40]"),
    "casts": Program(lambda x: (op.cast(x, bf16), op.cast(x, i32), op.cast(x, f64)), "f32[40]"),
    "casts of integers": Program(lambda x: (op.cast(x, f32), op.cast(x, u8)), "i64[40]"),
    "eight bits": Program(lambda x: (op.cast(x, ts.f8e4m3), op.cast(x, ts.f8e5m2)), "f32[40]"),
    "from eight bits": Program(lambda x: op.cast(op.cast(x, ts.f8e4m3) * 2.0, bf16), "f32[40]"),
    "four bits": Program(lambda x: op.cast(op.cast(x, ts.i4), f32), "i32[40]"),
    "saturated": Program(lambda x: op.cast(x, ts.f8e4m3 @ ts.saturate), "f32[40]"),
    "random words": Program(lambda x: op.random.bits(ts.key(1), (70,)), "f32[1]"),
    "complex": Program(lambda x, y: (x * y + op.conj(x), op.abs(x), op.real(y)), "c64[7,5] c64[5]"),
    "broadcast": Program(lambda x, y: x[:, None] * y[None, :] + 1.0, "f32[33] f32[17]"),
    "two results of one input": Program(lambda x: (op.exp(x), op.log(x)), "f32[300]"),
    "adam": Program(_adam, "f32[33,65] f32[33,65] f32[33,65] f32[33,65]"),
    "adam in place": Program(_adam, "f32[33,65] f32[33,65] f32[33,65] f32[33,65]",
    donated=frozenset([0, 2, 3])),
    "donated view": Program(lambda x: op.reshape(x, (65, 33)) * 2.0, "f32[33,65]", donated=frozenset([0])),
    **_rows("exp2", "log1p", "expm1", "cosh", "asin", "lgamma", "round", "rsqrt", "silu", "isnan", "cbrt"),
    # Views
    "transpose": Program(lambda x: x.T * 2.0, "f32[33,65]"),
    "transpose alone": Program(lambda x: op.transpose(x, (2, 0, 1)), "f32[3,33,65]"),
    "flip of a reshape": Program(lambda x: op.flip(op.reshape(op.flip(x), (8, 9)), 0) * 2.0, "f32[72]"),
    "slices": Program(lambda x: x[1:30:3, ::-2] + x[0:10, 2:35], "f32[33,65]"),
    "slices of two": Program(lambda x, y: (x[:4] * y[2:6], y[:4] * x[2:6], x[1:5] * y[1:5]),
    "f32[8,9] f32[8,9]"),
    "roll and pad": Program(lambda x: op.pad(op.roll(x, 3, 1), ((1, 2), (0, 4)), value=1.5), "f32[9,20]"),
    "concat": Program(lambda x, y: op.concat([x, y * 2.0, x], 1), "f32[9,20] f32[9,7]"),
    "stack": Program(lambda x, y: op.stack([x, op.exp(y)], 1), "f32[9,20] f32[9,20]"),
    "repeat and tile": Program(lambda x: op.repeat(x, 3, axis=1) + op.tile(x, (1, 3)), "f32[9,20]"),
    "diagonal": Program(lambda x: op.diagonal(x) + op.tril(x)[0], "f32[20,20]"),
    "views returned": Program(lambda x: ((y := x * 2.0), y[2:], op.reshape(y, (-1,)), y.T), "f32[9,20]"),
    # Folds
    "sum": Program(op.sum, "f32[70000]"),
    "sum of rows": Program(lambda x: op.sum(op.exp(x), 1), "f32[33,600]"),
    "sum of columns": Program(lambda x: op.sum(x * x, 0), "f32[600,33]"),
    "sum of the middle": Program(lambda x: op.mean(x, 1), "f32[7,40,9]"),
    "sum of N rows": Program(lambda x: op.sum(x, 1), "f32[M,N] M=5 N=1100"),
    "maxima": Program(lambda x: (op.max(x, 1), op.min(x, 0), op.prod(x, 1)), "f32[33,65]"),
    "argmax": Program(lambda x: (op.argmax(x, 1), op.argmin(x, 0)), "f32[33,65]"),
    "all and any": Program(lambda x: (op.all(x > 0, 1), op.any(x > 1, 0)), "f32[33,65]"),
    "sum in bf16": Program(lambda x: op.sum(x, 1), "bf16[33,600]"),
    "sum of integers": Program(lambda x: (op.sum(x, 0), op.max(x)), "i32[33,65]"),
    "variance": Program(lambda x: (op.var(x, 1), op.std(x)), "f32[33,65]"),
    "fold of an empty axis": Program(lambda x: op.sum(x, 1) + 1.0, "f32[5,0]"),
    "fast sum": Program(lambda x: op.sum(x * x, 1), "f32[33,6000]", "fast"),
    # Rows
    "softmax": Program(op.softmax, "f32[70,600]"),
    "softmax of N": Program(op.softmax, "f32[M,N] M=7 N=50"),
    "softmax of wide rows": Program(op.softmax, "f32[3,70000]"),
    "layernorm": Program(op.layernorm, "f32[70,600]"),
    "layernorm and gain": Program(lambda x, g, b: op.layernorm(x) * g + b,
    "bf16[33,128] bf16[128] bf16[128]"),
    "rmsnorm of N rows": Program(lambda x, g: op.rmsnorm(x) * g, "f32[N,100] f32[100] N=9"),
    "logsumexp": Program(lambda x: op.logsumexp(x, 1), "f64[9,200]"),
    "groupnorm": Program(lambda x: op.groupnorm(x, 4), "f32[2,8,5,6]"),
    "batchnorm": Program(lambda x: (x - op.mean(x, (0, 2, 3), keepdims=True)) * 2.0, "f32[4,3,6,5]"),
    "cross entropy": Program(lambda x, y: op.mean(op.cross_entropy(x, y)), "f32[33,100] i64[33]"),
    "gradient of softmax": Program(_grad(op.softmax), "f32[33,65]"),
    "gradient of layernorm": Program(_grad(lambda x, g: op.layernorm(x) * g, 0, 1), "f32[33,65] f32[65]"),
    "gradient of cross entropy": Program(_grad(lambda x, y: op.cross_entropy(x, y)), "f32[33,100] i64[33]"),
    # Contractions
    "matmul": Program(lambda a, b: a @ b, "f32[600,600] f32[600,600]"),
    "matmul small": Program(lambda a, b: a @ b, "f32[7,5] f32[5,9]"),
    "matmul nt": Program(lambda a, b: a @ b.T, "f32[100,80] f32[90,80]"),
    "matmul tn": Program(lambda a, b: op.gelu(a.T @ b), "f32[600,300] f32[600,300]"),
    "matmul tt": Program(lambda a, b: a.T @ b.T, "f32[80,100] f32[90,80]"),
    "matmul of M N K": Program(lambda a, b, c: op.relu(a @ b + c), "f32[M,K] f32[K,N] f32[N] M=50 N=70 K=30"),
    "matmul of M rows": Program(lambda a, b: a @ b, "f32[M,64] f32[64,256] M=3"),
    "few rows": Program(lambda a, b: a @ b, "f32[1,600] f32[600,600]"),
    "vector": Program(lambda a, b: a @ b, "f32[600,600] f32[600]"),
    "dot": Program(lambda a, b: a @ b, "f32[6000] f32[6000]"),
    "outer": Program(lambda a, b: op.outer(a, b), "f32[60] f32[70]"),
    "long sums": Program(lambda a, b: a.T @ b, "f32[9000,16] f32[9000,16]"),
    "wide": Program(lambda a, b: a @ b, "f32[64,64] f32[64,4096]"),
    "batched": Program(lambda a, b: a @ b, "f32[6,33,20] f32[6,20,40]"),
    "batched with one": Program(lambda a, b: a @ b, "f32[6,33,20] f32[20,40]"),
    "epilogue": Program(lambda a, b, c, d: op.gelu(a @ b + c) * d,
    "f32[64,96] f32[96,128] f32[128] f32[64,128]"),
    "epilogue that gathers": Program(lambda x, w, y, i: x @ w + y[i],
    "f32[33,20] f32[20,40] f32[9,40] i64[33]"),
    "epilogue that folds": Program(lambda a, b: op.softmax(a @ b), "f32[64,96] f32[96,128]"),
    "prologue": Program(lambda a, b: op.relu(a) @ op.tanh(b), "f32[64,96] f32[96,128]"),
    "two products of one": Program(lambda x, w, v: (x @ w) * op.silu(x @ v),
    "f32[64,96] f32[96,128] f32[96,128]"),
    "two products in a row": Program(lambda x, w, v: op.relu(x @ w) @ v,
    "f32[64,96] f32[96,128] f32[128,32]"),
    "bf16 product": Program(lambda a, b: a @ b, "bf16[256,256] bf16[256,256]"),
    "bf16 product thin": Program(lambda a, b: op.silu(a @ b), "bf16[1,512] bf16[512,512]"),
    "f16 product": Program(lambda a, b: op.relu(a @ b.T), "f16[128,64] f16[96,64]"),
    "f64 product": Program(lambda a, b: a @ b, "f64[300,300] f64[300,300]"),
    "byte product": Program(lambda a, b: op.einsum("mk,kn->mn", op.cast(a, i32), op.cast(b, i32)),
    "i8[64,128] i8[128,64]"),
    "integer product": Program(lambda a, b: a @ b, "i32[20,30] i32[30,20]"),
    "complex product": Program(lambda a, b: a @ b, "c64[20,30] c64[30,20]"),
    "empty product": Program(lambda a, b: a @ b + 1.0, "f32[20,0] f32[0,30]"),
    "einsum": Program(lambda a, b, c: op.einsum("bij,bjk,kl->bil", a, b, c),
    "f32[3,20,30] f32[3,30,20] f32[20,7]"),
    "einsum that traces": Program(lambda a, b: op.einsum("bij,bkj->bki", a, b), "f32[3,20,30] f32[3,9,30]"),
    "fast product": Program(lambda a, b: a @ b, "f32[64,3000] f32[3000,64]", "fast"),
    "gradient of mlp": Program(_grad(_mlp, 1, 2), "f32[64,96] f32[96,128] f32[128,32]"),
    "step of mlp": Program(
        lambda x, w, v: tuple(p - 0.1 * g for p,
        g in zip((w, v), ts.grad(_mlp, (1, 2))(x, w, v), strict=True)),
        "f32[64,96] f32[96,128] f32[128,32]", donated=frozenset([1, 2]),
    ),
    # Attention
    "attention": Program(lambda q, k, v: op.attention(q, k, v, causal=True),
    "f32[2,3,70,16] f32[2,3,70,16] f32[2,3,70,16]"),
    "attention of groups": Program(lambda q, k, v: op.attention(q, k, v),
    "bf16[2,8,64,32] bf16[2,2,128,32] bf16[2,2,128,32]"),
    "attention with roles": Program(lambda q, k, v: op.attention(q, k, v, causal=True),
    "bf16[2,4,512,128] bf16[2,4,512,128] bf16[2,4,512,128]"),
    "attention of one query": Program(lambda q, k, v: op.attention(q, k, v),
    "bf16[2,4,1,64] bf16[2,4,300,64] bf16[2,4,300,64]"),
    "attention of N": Program(lambda q, k, v: op.attention(q, k, v, causal=True),
    "f32[2,N,16] f32[2,N,16] f32[2,N,16] N=33"),
    "attention by hand": Program(lambda q, k, v: op.matmul(_weights(q, k), v),
    "f32[2,33,16] f32[2,33,16] f32[2,33,16]"),
    "gradient of attention": Program(
        _grad(lambda q, k, v: op.attention(q, k, v, causal=True), 0, 1, 2),
        "bf16[1,2,128,64] bf16[1,2,128,64] bf16[1,2,128,64]",
    ),
    "transformer block": Program(_block, "f32[2,33,32] f32[32,96] f32[32,32] f32[32]"),
    "gradient of a block": Program(_grad(_block, 1, 2, 3), "f32[2,33,32] f32[32,96] f32[32,32] f32[32]"),
    "slopes of attention": Program(
        lambda q, k, v, o, ct: op.attention_grad(q, k, v, o, ct, causal=True),
        " ".join(["bf16[1,4,256,64]"] * 5),
    ),
    "slopes of wide attention": Program(lambda *xs: op.attention_grad(*xs),
    " ".join(["f16[1,2,256,128]"] * 5)),
    "slopes of odd attention": Program(
        lambda *xs: op.attention_grad(*xs, causal=True),
        "bf16[1,4,100,32] bf16[1,2,130,32] bf16[1,2,130,32] bf16[1,4,100,32] bf16[1,4,100,32]",
    ),
    "attention and its slopes": Program(
        lambda q, k, v, ct: op.attention_grad(q, k, v, op.attention(q, k, v), ct),
        " ".join(["bf16[1,2,256,128]"] * 4),
    ),
    "attention of columns": Program(_heads, "bf16[2,256,128] bf16[128,384] bf16[128,128]"),
    # Products with a vector of narrow floats
    "thin": Program(lambda w, x: w @ x, "bf16[1024,1024] bf16[1024]"),
    "thin of a norm": Program(lambda w, x, g: w @ _rms(x, g), "bf16[1024,1024] bf16[1024] f32[1024]"),
    "thin of a sum that stays": Program(
        lambda w, x, g, u: (x + u, w @ _rms(x + u, g)), "f16[2048,1024] f16[1024] f32[1024] f16[1024]",
    ),
    "thin and what follows": Program(lambda w, x, g: op.tanh((w @ (x * 2.0)).astype(f32) + g),
    "bf16[1024,2048] bf16[2048] f32[1024]"),
    "thin with many rows": Program(
        lambda w, x, g: op.silu((z := w @ _rms(x, g))[:12288]) * z[12288:],
        "bf16[24576,1024] bf16[1024] f32[1024]",
    ),
    "products side by side": Program(lambda x, w, u, v: (x @ w, x @ u, x @ v),
    "bf16[8,256] bf16[256,512] bf16[256,256] bf16[256,256]"),
    # Kernels that somebody wrote
    "kernel among ops": Program(lambda x, y: kernels.scaled(x * 2.0, y, 2.0) + 1.0, "f32[N] f32[N] N=37"),
    "kernel that stores": Program(lambda x, y: kernels.store_some(x, y), "f32[6,5] f32[6,5]"),
    "kernel of narrow floats": Program(lambda a, b: kernels.large_product(a, b), "bf16[100,70] bf16[70,130]"),
    "gradient of a kernel": Program(_grad(kernels.normalised, 0, 1), "f32[7,13] f32[13]"),
    "gradient of a kernel with a loop": Program(_grad(kernels.product, 0, 1), "f32[13,7] f32[7,11]"),
    "gradient of large tiles": Program(_grad(kernels.large_product, 0, 1), "f32[100,70] f32[70,130]"),
    # Convolutions and windows
    "conv": Program(lambda x, w, b: op.relu(op.conv(x, w, b, 1, 1)), "f32[2,8,14,14] f32[16,8,3,3] f32[16]"),
    "conv with strides": Program(lambda x, w: op.conv(x, w, None, 2, 1), "f32[2,3,15,15] f32[8,3,3,3]"),
    "conv dilated in groups": Program(lambda x, w: op.conv(x, w, None, 1, 2, 2, 2),
    "f32[2,4,11,11] f32[6,2,3,3]"),
    "conv of depth": Program(lambda x, w: op.conv(x, w, None, 1, 1, 1, 16), "f32[2,16,9,9] f32[16,1,3,3]"),
    "conv of pixels": Program(lambda x, w: op.conv(x, w), "f32[2,32,9,9] f32[16,32,1,1]"),
    "conv of lines": Program(lambda x, w: op.conv(x, w, None, 1, 1), "f32[2,8,50] f32[16,8,3]"),
    "conv transposed": Program(lambda x, w: op.conv_transpose(x, w, stride=2, padding=1),
    "f32[2,8,7,7] f32[8,4,3,3]"),
    "gradient of conv": Program(_grad(lambda x, w: op.conv(x, w, None, 1, 1), 0, 1),
    "f32[2,8,14,14] f32[16,8,3,3]"),
    "gradient of strided conv": Program(_grad(lambda x, w: op.conv(x, w, None, 2, 1), 0, 1),
    "f32[2,3,15,15] f32[8,3,3,3]"),
    "bf16 conv": Program(lambda x, w: op.conv(x, w, None, 1, 1), "bf16[2,16,8,8] bf16[16,16,3,3]"),
    "filter of one plane": Program(lambda x, w: op.conv(x, w, None, 1, 1), "f32[1,1,64,64] f32[1,1,3,3]"),
    "max pool": Program(lambda x: op.max_pool(x, 2), "f32[2,3,8,8]"),
    "average pool": Program(lambda x: op.avg_pool(x, 3, 2, 1), "f32[2,3,9,9]"),
    "gradient of max pool": Program(_grad(lambda x: op.max_pool(x, 2)), "f32[2,3,8,8]"),
    "resize": Program(lambda x: op.resize(x, (10, 14)), "f32[2,3,5,7]"),
    # Transforms
    "fft": Program(op.fft, "c64[20,64]"),
    "fft of primes": Program(lambda x: op.fft(x, axis=0), "c64[17,9]"),
    "fft of 60": Program(lambda x: op.ifft(op.fft(x) * 2.0), "c64[20,60]"),
    "rfft": Program(lambda x: op.abs(op.rfft(x)), "f32[70,64]"),
    "irfft": Program(lambda x: op.irfft(op.rfft(x) * 0.5, 64), "f32[18,64]"),
    "fft2": Program(lambda x: op.real(op.fft2(x)), "c64[3,16,12]"),
    "fft of long rows": Program(op.fft, "c64[2,4096]"),
    "filter": Program(lambda x, h: op.ifft(op.fft(x) * h), "c64[20,64] c64[20,64]"),
    "filter of two": Program(lambda x, y: op.ifft(op.fft(x) * op.fft(y) + x), "c64[9,128] c64[9,128]"),
    "filter down": Program(lambda x, h: (op.ifft(op.fft(x, axis=0) * op.conj(h), axis=0), h),
    "c64[64,20] c64[64,20]"),
    "transform that is read twice": Program(
        lambda x, h: (op.ifft((y := op.fft(x, axis=0)) * h, axis=0), y), "c64[64,20] c64[64,20]",
    ),
    # Results of a step in the place of its operands
    "two results in one place": Program(lambda x: (op.exp(t := op.sort(x * 2.0, 1)), op.log(t)),
    "f32[9,100]"),
    "two results between steps": Program(
        lambda x: (op.sort(op.exp(t := op.sort(x * 2.0, 1)), 1), op.sort(-t, 1), op.sum(t)), "f32[9,100]",
    ),
    "result in the place of a view": Program(lambda x: op.exp(op.reshape(op.sort(x * 2.0, 1), (-1,))) + 1.0,
    "f32[9,100]"),
    "result beside a part": Program(lambda x: op.exp((t := op.sort(x * 2.0, 1))[2:]) * op.sum(t),
    "f32[9,100]"),
    "names of one size": Program(lambda x, y: op.sort(x * y, 0) - op.cumsum(y, 0),
    "f32[lambda_,7] f32[lambda_,7] lambda_=11"),
    # Scans, sorts, places
    "cumsum": Program(lambda x: op.cumsum(x, 1), "f32[70,60]"),
    "cumsum down": Program(lambda x: op.cumsum(x * 2.0, 0) + 1.0, "f32[70,60]"),
    "cumsum of N": Program(lambda x: op.cumsum(x, 0), "f32[N] N=1000"),
    "cummax": Program(lambda x: op.cummax(x, 1), "i32[9,100]"),
    "cumprod in bf16": Program(lambda x: op.cumprod(x, 1), "bf16[9,100]"),
    "sort": Program(lambda x: op.sort(x, 1), "f32[70,60]"),
    "sort down": Program(lambda x: op.sort(x, 0, descending=True), "f32[70,6]"),
    "sort of long rows": Program(lambda x: op.sort(x, 1), "f32[2,5000]"),
    "argsort": Program(lambda x: op.argsort(x, 1), "f32[9,33]"),
    "top": Program(lambda x: op.topk(x, 5), "f32[9,33]"),
    "gather of rows": Program(lambda x, i: x[i] * 2.0, "f32[33,65] i64[20]"),
    "gather of numbers": Program(lambda x, i: op.take_along_axis(x, i, 1), "f32[33,65] i64[33,4]"),
    "gather of columns": Program(lambda x, i: op.take(x, i, 1), "f32[33,65] i32[20]"),
    "embedding": Program(lambda t, i: op.embedding(t, i) + 1.0, "bf16[100,64] i64[4,9]"),
    "gradient of embedding": Program(_grad(lambda t, i: op.embedding(t, i)), "f32[100,64] i64[4,9]"),
    "scatter add": Program(lambda x, i, v: x.at[i].add(v), "f32[33,65] i64[20] f32[20,65]"),
    "scatter add of many": Program(lambda x, i, v: x.at[i].add(v), "f32[50,65] i64[200] f32[200,65]"),
    "scatter add in bf16": Program(lambda x, i, v: x.at[i].add(v), "bf16[50] i64[200] bf16[200]"),
    "scatter set": Program(lambda x, i, v: x.at[i].set(v), "f32[330] i64[20] f32[20]"),
    "scatter max": Program(lambda x, i, v: x.at[i].max(v), "f32[33,5] i64[20] f32[20,5]"),
    "update of a slice": Program(lambda x, v: x.at[2:6].set(v * 2.0) + 1.0, "f32[33,65] f32[4,65]"),
    "update where": Program(lambda x, v, i: op.dynamic_update_slice(x, v, (i, 0)),
    "f32[33,65] f32[4,65] i64[]"),
    "update in place": Program(
        lambda x, v, i: op.dynamic_update_slice(x, v, (i, 0)), "f32[33,65] f32[4,65] i64[]",
        donated=frozenset([0]),
    ),
    "dynamic slice": Program(lambda x, i: op.dynamic_slice(x, (i, 0), (4, 65)) * 2.0, "f32[33,65] i64[]"),
    "one hot": Program(lambda i: op.one_hot(i, 10), "i64[33]"),
    "places in sorted rows": Program(lambda x, y: op.searchsorted(x, y), "f32[33] f32[20]"),
    # Random numbers
    "dropout": Program(lambda x: op.dropout(ts.key(3), x, 0.25), "f32[33,65]"),
    "normal": Program(lambda x: x + op.random.normal(ts.key(3), (33, 65)), "f32[33,65]"),
    "uniform": Program(lambda x: op.random.uniform(ts.key(3), (100,)) * x, "f32[100]"),
    # Control flow
    "scan": Program(lambda w, h, xs: op.scan(lambda h, x: (op.tanh(h @ w + x), h), h, xs),
    "f32[16,16] f32[4,16] f32[9,4,16]"),
    "scan back": Program(lambda h, xs: op.scan(lambda h, x: (h * 0.5 + x, op.sum(h)), h, xs, reverse=True),
    "f32[16] f32[9,16]"),
    "while": Program(_until, "f32[16]"),
    "cond": Program(lambda p, x: op.cond(p > 0, lambda x: op.exp(x), lambda x: x * 2.0, x), "f32[] f32[33]"),
    "fori": Program(lambda x: op.fori_loop(0, 5, lambda i, x: x * 0.5 + 1.0, x), "f32[33]"),
    "gradient of scan": Program(
        _grad(lambda w, h, xs: op.scan(lambda h, x: (op.tanh(h @ w + x), h), h, xs)[0]),
        "f32[8,8] f32[2,8] f32[5,2,8]",
    ),
    # Host calls among kernels
    "solve": Program(lambda a, b: op.exp(op.solve(a + 1.0, b * 2.0)), "f32[9,9] f32[9,3]"),
    "cholesky": Program(lambda a: op.sum(op.cholesky(a @ a.T + 9.0)), "f64[9,9]"),
    "host between kernels": Program(lambda a: (op.det(a * 2.0) + a, op.softmax(a)), "f32[9,9]"),
    # Batched and differentiated programs
    "vmap of a product": Program(ts.vmap(lambda a, b: op.softmax(a @ b)), "f32[5,9,20] f32[5,20,7]"),
    "jvp": Program(lambda x, t: ts.jvp(lambda x: op.sum(op.tanh(x) * x, 1), (x,), (t,)),
    "f32[9,20] f32[9,20]"),
    "hessian": Program(ts.hessian(lambda x: op.sum(op.sin(x) * x * x)), "f32[5]"),
}  # fmt: skip
