"""Kernels on a GPU beside torch (cuBLAS, cuDNN), torch.compile and jax, in one run.

    python benchmarks/gpu.py [--record FILE]

Times are medians of rounds, of which each is the median of 10 runs by events on the stream that runs them;
all run in every round, and each is the first in turn, since a device that is at its power limit is slower
for whoever comes next.  A ratio is the best peer's time over Tessera's.  jax has a stream that nobody else
sees: its time is the host's, of 10 runs that follow each other.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import torch
import torch.nn.functional as tf
from torch.nn.attention import SDPBackend, sdpa_kernel

import tessera as ts
from tessera import op
from tessera.runtime.cuda.device import gpu

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # the device is shared
try:
    import jax

    jax = jax if jax.default_backend() == "gpu" else None
except ImportError:
    jax = None
ROUNDS, RUNS = 6, 10
Row = dict[str, Any]


def median_ms(run: Callable[[], Any], stream: Any) -> float:
    """The median time of a run on a stream."""
    for _ in range(3):
        run()
    torch.cuda.synchronize()
    events = [torch.cuda.Event(enable_timing=True) for _ in range(RUNS + 1)]
    for e in events[:-1]:
        e.record(stream)
        run()
    events[-1].record(stream)
    torch.cuda.synchronize()
    gpu().synchronize()
    times = [a.elapsed_time(b) for a, b in pairwise(events)]
    return float(np.median(times))


def jax_ms(run: Callable[[], Any]) -> float:
    """The time of a run of jax, one of several that follow each other."""
    for _ in range(3):
        jax.block_until_ready(run())
    start = time.perf_counter()
    jax.block_until_ready([run() for _ in range(RUNS)])
    return (time.perf_counter() - start) / RUNS * 1e3


def in_jax(f: Callable[..., Any], *arrays: Any) -> dict[str, Callable[[], Any]]:
    """A function of jax on the numbers of torch's arrays, as a peer, where jax has a GPU."""
    if jax is None:
        return {}
    jitted, xs = jax.jit(f), [jax.dlpack.from_dlpack(x.contiguous()) for x in arrays]
    return {"jax": lambda: jitted(*xs)}


class Bench:
    """Lines of a table."""

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self.ours = torch.cuda.ExternalStream(gpu().stream.handle)

    def line(
        self, name: str, ours: Callable[[], Any], peers: dict[str, Callable[[], Any]], unit: str,
        amount: float,
    ) -> None:  # fmt: skip
        """Time all, in turn; `amount` of the unit (TFLOP/s, GB/s) is done in a run."""
        times: dict[str, list[float]] = {}
        everyone = {"tessera": (ours, self.ours)}
        everyone |= {n: (f, torch.cuda.current_stream()) for n, f in peers.items()}
        for number in range(ROUNDS):
            turn = number % len(everyone)
            for who, (run, stream) in [*everyone.items()][turn:] + [*everyone.items()][:turn]:
                try:
                    taken = jax_ms(run) if who == "jax" else median_ms(run, stream)
                    times.setdefault(who, []).append(taken)
                except Exception as e:  # a peer that cannot do it is no peer
                    times[who] = [float("inf")]
                    print(f"  {who}: {type(e).__name__}: {str(e)[:120]}")
        best = {who: float(np.median(t)) for who, t in times.items()}
        rate = {who: amount / t / 1e9 for who, t in best.items()}
        peer = min(t for who, t in best.items() if who != "tessera")
        row = {
            "name": name,
            "unit": unit,
            "ms": best,
            "rate": rate,
            "ratio": peer / best["tessera"],
        }
        self.rows.append(row)
        shown = "  ".join(f"{who} {r:8.1f}" for who, r in rate.items())
        print(f"{name:36} {shown}  {unit}  ratio {row['ratio']:.2f}", flush=True)


def pair(*shape: int, dtype: Any = torch.bfloat16) -> tuple[Any, Any]:
    """The same numbers in torch and in Tessera, which share no memory."""
    x = torch.randn(shape, device="cuda", dtype=torch.float32).to(dtype)
    return x, ts.from_dlpack(x.clone()) if hasattr(ts, "from_dlpack") else _taken(x)


def _taken(x: Any) -> Any:
    host = x.float().cpu().numpy()
    made = ts.tensor(host, device="cuda")
    return made.astype(ts.bf16) if x.dtype is torch.bfloat16 else made


def products(b: Bench) -> None:
    """Matrix products in bf16."""
    mm = ts.jit(lambda a, c: a @ c)
    shapes = ((4096,) * 3, (8192,) * 3, (8192, 1024, 8192), (4096, 14336, 4096), (16, 8192, 8192))
    for m, k, n in shapes:
        (a, ta), (c, tc) = pair(m, k), pair(k, n)
        b.line(
            f"gemm bf16 {m}x{k}x{n}", lambda: mm(ta, tc),
            {"cublas": lambda: torch.mm(a, c), **in_jax(lambda x, y: x @ y, a, c)}, "TFLOP/s", 2 * m * n * k,
        )  # fmt: skip
    fp8(b)
    m, k, n = 8192, 4096, 16384
    (a, ta), (c, tc), (bias, tbias) = pair(m, k), pair(k, n), pair(n)
    ours = ts.jit(lambda a, c, d: op.gelu(a @ c + d, approximate="tanh"))
    plain = lambda: tf.gelu(torch.addmm(bias, a, c), approximate="tanh")  # noqa: E731
    compiled = torch.compile(lambda x, y, z: tf.gelu(x @ y + z, approximate="tanh"))
    b.line(
        "gemm+bias+gelu 8192x4096x16384", lambda: ours(ta, tc, tbias),
        {
            "torch": plain, "torch.compile": lambda: compiled(a, c, bias),
            **in_jax(lambda x, y, z: jax.nn.gelu(x @ y + z), a, c, bias),
        },
        "TFLOP/s", 2 * m * n * k,
    )  # fmt: skip


def fp8(b: Bench, n: int = 8192) -> None:
    """A product in 8-bit floats, of a matrix and a turned one."""
    torch_pair = [torch.randn(n, n, device="cuda").to(torch.float8_e4m3fn) for _ in range(2)]
    ours = [
        ts.tensor(x.view(torch.uint8).cpu().numpy().view(ts.f8e4m3.np), device="cuda")
        for x in torch_pair
    ]
    (a, c), (ta, tc) = torch_pair, ours
    one = torch.ones((), device="cuda")
    mm = ts.jit(lambda x, y: x @ y.T)
    library = lambda: torch._scaled_mm(a, c.T, one, one, out_dtype=torch.bfloat16)  # noqa: E731
    b.line(f"gemm fp8 {n}x{n}x{n}", lambda: mm(ta, tc), {"cublas": library}, "TFLOP/s", 2 * n**3)


def rows(b: Bench) -> None:
    """What waits for memory, on 32768x4096 bf16."""
    r, c = 32768, 4096
    (x, tx), (y, ty), (g, tg), (h, th) = pair(r, c), pair(r, c), pair(c), pair(c)
    size = 2 * x.nbytes
    big = torch.randn(1 << 28, device="cuda")
    other = torch.empty_like(big)
    copy = median_ms(lambda: other.copy_(big), torch.cuda.current_stream())
    b.rows.append({"name": "copy", "unit": "GB/s", "rate": {"torch": 2 * big.nbytes / copy / 1e6}})
    print(f"copy {2 * big.nbytes / copy / 1e6:.0f} GB/s")
    cases: dict[str, tuple[Any, tuple[Any, ...], Any, Any, tuple[Any, ...], float]] = {
        "softmax": (op.softmax, (tx,), lambda x: tf.softmax(x, -1), lambda x: jax.nn.softmax(x), (x,), size),
        "layernorm": (
            op.layernorm, (tx, tg, th), lambda x, g, h: tf.layer_norm(x, (c,), g, h),
            lambda x, g, h: jax.nn.standardize(x, epsilon=1e-5) * g + h, (x, g, h), size,
        ),
        "rmsnorm+residual": (
            lambda x, y, g: op.rmsnorm(x + y, g), (tx, ty, tg),
            lambda x, y, g: tf.rms_norm(x + y, (c,), g), _jax_rms, (x, y, g), 1.5 * size,
        ),
        "gelu chain": (
            lambda x: op.gelu(x * 0.5 + 0.25) * 0.75 + x, (tx,), lambda x: tf.gelu(x * 0.5 + 0.25) * 0.75 + x,
            lambda x: jax.nn.gelu(x * 0.5 + 0.25, approximate=False) * 0.75 + x, (x,), size,
        ),
    }  # fmt: skip
    for name, (f, ours, peer, third, theirs, amount) in cases.items():
        run, compiled = ts.jit(f), torch.compile(peer)
        b.line(
            f"{name} 32768x4096 bf16", lambda: run(*ours),
            {
                "torch": lambda: peer(*theirs), "torch.compile": lambda: compiled(*theirs),
                **in_jax(third, *theirs),
            },
            "GB/s", amount * 1e3,
        )  # fmt: skip
    flat, tflat = big, _f32(big)
    square, tsquare = big.view(16384, 16384), _f32(big.view(16384, 16384))
    sums = ((None, flat, tflat, "sum 2^28"), (1, square, tsquare, "row sums 16384^2"),
        (0, square, tsquare, "column sums 16384^2"))  # fmt: skip
    for axis, data, mine, name in sums:
        run = ts.jit(lambda z, a=axis: op.sum(z, a))
        b.line(
            f"{name} f32", lambda: run(mine),
            {"torch": lambda: data.sum(axis), **in_jax(lambda z, a=axis: z.sum(a), data)}, "GB/s",
            big.nbytes * 1e3,
        )  # fmt: skip


def _jax_rms(x: Any, y: Any, g: Any) -> Any:
    z = (x + y).astype("float32")
    return (z * jax.lax.rsqrt((z * z).mean(-1, keepdims=True) + 1e-6) * g).astype(x.dtype)


def _jax_attention(causal: bool) -> Callable[..., Any]:
    """cuDNN's attention as jax has it, on (batch, queries, heads, size)."""

    def f(*xs: Any) -> Any:
        return jax.nn.dot_product_attention(*xs, is_causal=causal, implementation="cudnn")

    return f


def _jax_gradient(causal: bool) -> Callable[..., Any]:
    def f(q: Any, k: Any, v: Any, d: Any) -> Any:
        o, pull = jax.vjp(_jax_attention(causal), q, k, v)
        return o, pull(d)

    return f


def _f32(x: Any) -> Any:
    return (
        ts.from_dlpack(x.clone())
        if hasattr(ts, "from_dlpack")
        else ts.tensor(x.cpu().numpy(), device="cuda")
    )


def attention(b: Bench) -> None:
    """Attention forward and backward, 16384 tokens, 2048 numbers each."""
    for size in (64, 128):
        for seq in (4096, 16384):
            for causal in (False, True):
                _attention(b, size, seq, causal)


def _attention(b: Bench, size: int, seq: int, causal: bool) -> None:
    shape = (16384 // seq, 2048 // size, seq, size)
    (q, tq), (k, tk), (v, tv), (d, td) = (pair(*shape) for _ in range(4))
    flops = 4 * shape[0] * shape[1] * seq * seq * size * (0.5 if causal else 1)
    run = ts.jit(lambda q, k, v: op.attention(q, k, v, causal=causal))
    name = f"attention d{size} S{seq} {'causal' if causal else 'full'}"
    kinds = {"cudnn": SDPBackend.CUDNN_ATTENTION, "fa2": SDPBackend.FLASH_ATTENTION}

    def forward(kind: Any) -> Any:
        with sdpa_kernel(kind):
            return tf.scaled_dot_product_attention(q, k, v, is_causal=causal)

    turned = [x.transpose(1, 2) for x in (q, k, v, d)]
    peers = {n: lambda kind=kind: forward(kind) for n, kind in kinds.items()}
    peers |= in_jax(_jax_attention(causal), *turned[:3])
    b.line(f"{name} forward", lambda: run(tq, tk, tv), peers, "TFLOP/s", flops)
    out = run(tq, tk, tv)
    scale = size**-0.5
    back = ts.jit(
        lambda q, k, v, o, d: op.attention_grad(q, k, v, o, d, causal=causal, scale=scale)
    )
    xs = [x.clone().requires_grad_() for x in (q, k, v)]
    theirs = {}
    for n, kind in kinds.items():
        with sdpa_kernel(kind):
            o = tf.scaled_dot_product_attention(*xs, is_causal=causal)
        theirs[n] = lambda o=o: torch.autograd.grad(o, xs, d, retain_graph=True)
    b.line(f"{name} backward*", lambda: back(tq, tk, tv, out, td), theirs, "TFLOP/s", 2.5 * flops)

    def slopes(q: Any, k: Any, v: Any, d: Any) -> Any:
        o, pull = ts.vjp(lambda q, k, v: op.attention(q, k, v, causal=causal), q, k, v)
        return o, pull(d)

    def whole(kind: Any) -> Any:
        with sdpa_kernel(kind):
            o = tf.scaled_dot_product_attention(*xs, is_causal=causal)
        return torch.autograd.grad(o, xs, d)

    both = ts.jit(slopes)
    peers = {n: lambda kind=kind: whole(kind) for n, kind in kinds.items()}
    peers |= in_jax(_jax_gradient(causal), *turned)
    b.line(f"{name} gradient", lambda: both(tq, tk, tv, td), peers, "TFLOP/s", 3.5 * flops)


def main() -> None:
    """Measure and tell."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--record")
    parser.add_argument("--only", nargs="*", default=["products", "rows", "attention"])
    args = parser.parse_args()
    b = Bench()
    for part in args.only:
        {"products": products, "rows": rows, "attention": attention}[part](b)
        if args.record:
            whole = {
                "device": torch.cuda.get_device_name(), "torch": torch.__version__,
                "jax": jax and jax.__version__,
                "python": platform.python_version(), "rows": b.rows,
            }  # fmt: skip
            with open(args.record, "w") as file:
                json.dump(whole, file, indent=1)
    print(
        "* the backward pass of Tessera alone computes the sums of rows again, with the forward pass"
    )


if __name__ == "__main__":
    main()
