"""Attention on a GPU for any size of heads, any lengths and few queries, beside torch's backends, in one run.

    python benchmarks/gpu_attention.py --check [--seconds 110]
    python benchmarks/gpu_attention.py --time [--seconds 70] [--record FILE]

--check compares results and gradients with NumPy in f64 on fresh random inputs, and bits over schedules
and over neighbours in a batch.  --time measures lines (ours against the best of FlashAttention-2, cuDNN and
the memory-efficient kernel, in turn, medians) and, first, schedules of our kernels among which the shipped
ones were chosen. Bytes per second of decode lines count keys and values once.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as tf
from torch.nn.attention import SDPBackend, sdpa_kernel

import tessera as ts
from tessera import op
from tessera.ir.target.triton.emit import emit
from tessera.ir.target.triton.triton_source import source_of
from tessera.ir.tile.gpu import attention as forward_kernels
from tessera.ir.tile.gpu import attention_launches as kept
from tessera.ir.tile.gpu.attention import AttentionProblem
from tessera.ir.tile.launch import Threads
from tessera.runtime.cuda.device import gpu
from tessera.runtime.triton_builder import build

HEADS = (32, 40, 64, 80, 96, 112, 128, 160, 192, 256)
KINDS = {
    "cudnn": SDPBackend.CUDNN_ATTENTION, "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
}  # fmt: skip
ROUNDS, RUNS = 3, 5


def numbers(*shape: int) -> Any:
    return torch.randn(shape, device="cuda").bfloat16()


HELD: list[Any] = []  # memory of torch that our streams read


def ours(x: Any) -> Any:
    own = x.to(torch.uint8) if x.dtype is torch.bool else x.clone()
    HELD.append(own)
    made = ts.from_dlpack(own)
    return made.astype("bool") if x.dtype is torch.bool else made


def theirs(x: Any) -> Any:
    return torch.from_dlpack(x)


# Correctness


def exact(q: Any, k: Any, v: Any, causal: bool, mask: Any = None) -> Any:
    """Attention in f64."""
    q, k, v = (x.double() for x in (q, k, v))
    share = q.shape[1] // k.shape[1]
    k, v = (x.repeat_interleave(share, 1) for x in (k, v))
    s = q @ k.mT * q.shape[-1] ** -0.5
    if causal:
        m, n = s.shape[-2:]
        s = s.masked_fill(~torch.ones(m, n, dtype=torch.bool, device="cuda").tril(n - m), -np.inf)
    if mask is not None:
        s = s.masked_fill(~mask, -np.inf) if mask.dtype is torch.bool else s + mask.double()
    return torch.nan_to_num(torch.softmax(s, -1)) @ v


class Checks:
    """What was right and what was not."""

    def __init__(self, seconds: float):
        self.good, self.bad, self.end = 0, 0, time.perf_counter() + seconds

    def near(self, name: str, got: Any, want: Any, bound: float = 0.012) -> None:
        x, y = got.double(), want.double()
        error = float((x - y).norm() / y.norm().clamp_min(1e-30))
        self.is_true(f"{name}: error {error:.2e} over {bound}", error <= bound)

    def is_true(self, name: str, yes: bool) -> None:
        if yes:
            self.good += 1
        else:
            self.bad += 1
            print("BAD", name, flush=True)

    def all(self, jobs: list[Job], first: int) -> None:
        """Build several at a time, since most of the time is the compiler's; then run one after the other.

        A fault of the device ends its use: the jobs behind that one run in a new process.
        """

        def build(job: Job) -> None:
            if time.perf_counter() < self.end - 30:
                with suppress(ts.TesseraError):
                    next(job[1])

        with ThreadPoolExecutor(12) as pool:
            list(pool.map(build, jobs[first:]))
        for i, (name, steps) in enumerate(jobs[first:], first):
            if time.perf_counter() > self.end:
                print(f"{len(jobs) - i} of {len(jobs)} jobs had no time")
                return
            try:
                next(steps, None)
                gpu().synchronize()
            except (ts.TesseraError, RuntimeError) as e:
                self.is_true(f"{name}: {type(e).__name__} {' '.join(str(e).split())[:300]}", False)
                if "ILLEGAL" in str(e) or "CUDA error" in str(e):
                    self.again(i + 1)

    def again(self, first: int) -> None:
        """Go on with the jobs from one on, in a new process."""
        left = self.end - time.perf_counter()
        counts = [f"--from={first}", f"--good={self.good}", f"--bad={self.bad}"]
        sys.stdout.flush()
        os.execv(sys.executable, [sys.executable, __file__, "--check", f"--seconds={left:.0f}",
            *counts])  # fmt: skip


def compile_only(f: Callable[..., Any], *calls: Any) -> None:
    """Put the code of calls into the store, and run nothing."""
    for call in calls:
        like = [ts.tensor(np.zeros(x.shape, x.dtype.np)) for x in call]
        _ = ts.jit(f, target="cuda:sm_90").lower(*like).code


Job = tuple[str, Iterator[None]]


def mask_of(kind: str, heads: int, queries: int, keys: int) -> Any:
    if kind == "bool":
        return torch.rand(2, 1, queries, keys, device="cuda") < 0.7
    if kind == "bias":
        return numbers(1, heads, queries, keys)
    if kind == "length":
        return torch.arange(keys, device="cuda") < torch.tensor([[[[3]]], [[[keys - 1]]]]).cuda()
    return None


def forward_job(c: Checks, d: int, queries: int, keys: int, causal: bool, groups: int,
    kind: str) -> Job:  # fmt: skip
    """Two sequences against f64, and the bits of one alone."""
    name = f"d{d} {queries}x{keys} {'causal' if causal else 'full'} {kind}"

    def steps() -> Iterator[None]:
        heads = 2 * groups
        xs = [numbers(2, n, s, d) for n, s in ((heads, queries), (groups, keys), (groups, keys))]
        mask = mask_of(kind, heads, queries, keys)
        given = [] if mask is None else [mask]
        alone = [x[1:].contiguous() for x in xs] + [m[-1:].contiguous() for m in given]

        def attend(q: Any, k: Any, v: Any, *m: Any) -> Any:
            return op.attention(q, k, v, causal=causal, mask=m[0] if m else None)

        f = ts.jit(attend)
        calls = [[ours(x) for x in (*xs, *given)], [ours(x) for x in alone]]
        compile_only(attend, *calls)
        yield
        got, one = (theirs(f(*call)) for call in calls)
        c.near(name, got, exact(*xs, causal, mask))
        c.is_true(f"{name}: a sequence alone has other bits", torch.equal(one, got[1:]))

    return name, steps()


def gradient_job(c: Checks, d: int, queries: int, keys: int, causal: bool, groups: int) -> Job:
    """Gradients against f64."""
    name = f"gradient d{d} {queries}x{keys} {'causal' if causal else 'full'}"

    def steps() -> Iterator[None]:
        heads = 2 * groups
        xs = [numbers(1, n, s, d) for n, s in ((heads, queries), (groups, keys), (groups, keys))]
        ct = numbers(1, heads, queries, d)
        f, given = ts.jit(slopes(causal)), [ours(x) for x in (*xs, ct)]
        compile_only(slopes(causal), given)
        yield
        wide = [x.double().requires_grad_() for x in xs]
        want = torch.autograd.grad(exact(*wide, causal), wide, ct.double())
        for n, x, y in zip(("dq", "dk", "dv"), f(*given)[1:], want, strict=True):
            c.near(f"{name} {n}", theirs(x), y, 0.02)

    return name, steps()


def slopes(causal: bool, number: int = 0) -> Callable[..., Any]:
    """The forward pass and the cotangents of q, k and v."""

    def f(q: Any, k: Any, v: Any, ct: Any) -> Any:
        scale = q.shape[-1] ** -0.5 * (1 + number / 1024)
        o, pull = ts.vjp(lambda *x: op.attention(*x, causal=causal, scale=scale), q, k, v)
        return o, *pull(ct)

    return f


def chunk_job(c: Checks, d: int) -> Job:
    """Queries of a cache one by one, in chunks and all at once."""

    def steps() -> Iterator[None]:
        room, n = 700, 90
        q, k, v = numbers(1, 4, n, d), numbers(1, 2, room, d), numbers(1, 2, room, d)
        seen = torch.arange(room, device="cuda")[None, :] <= torch.arange(n, device="cuda")[:, None]

        def attend(q: Any, k: Any, v: Any, m: Any) -> Any:
            return op.attention(q, k, v, mask=m)

        f = ts.jit(attend)
        spans = ((0, n), (0, 1), (7, 8), (3, 70), (64, 90))
        calls = [
            (ours(q[:, :, a:b].contiguous()), ours(k), ours(v), ours(seen[a:b].contiguous()))
            for a, b in spans
        ]
        compile_only(attend, *calls)
        yield
        whole, *parts = (theirs(f(*call)) for call in calls)
        for part, (a, b) in zip(parts, spans[1:], strict=True):
            c.is_true(f"chunk {a}:{b} of d{d} has other bits", torch.equal(part, whole[:, :, a:b]))

    return f"chunks d{d}", steps()


def check(seconds: float, first: int = 0, good: int = 0, bad: int = 0) -> None:
    """Compare everything with f64, the most telling cases first."""
    c = Checks(seconds)
    c.good, c.bad = good, bad
    jobs = [forward_job(c, 80, 256, 256, True, 1, "plain"), gradient_job(c, 80, 256, 256, True, 1)]
    jobs += [forward_job(c, d, 257, 257, d < 100, 1, "plain") for d in (128, 64, 256, 80, 33)]
    jobs += [forward_job(c, d, 1, 1000, False, 2, "plain") for d in (128, 80)]
    jobs += [forward_job(c, d, 100, 300, d > 100, 1, "bool") for d in (64, 160, 96)]
    jobs += [gradient_job(c, d, 130, 201, d > 100, 2) for d in (64, 256, 40, 112)]
    jobs += [chunk_job(c, 64), forward_job(c, 64, 1, 8192, False, 2, "length")]
    jobs += [forward_job(c, 96, 90, 1000, False, 2, "bias"),
        forward_job(c, 64, 5, 4097, True, 2, "plain")]  # fmt: skip
    for i, d in enumerate((*HEADS, 1, 7, 100, 320, 512)):
        causal = bool(i % 2)
        jobs += [
            forward_job(c, d, 257, 257, not causal, 1, "plain"), forward_job(c, d, 3, 1000, True, 2, "plain"),
            gradient_job(c, d, 130, 201, causal, 2), forward_job(c, d, 100, 300, not causal, 1, "bool"),
            forward_job(c, d, 256, 512, causal, 2, "plain"), gradient_job(c, d, 128, 256, causal, 1),
        ]  # fmt: skip
    c.all(jobs, first)
    print(f"check: {c.good} ok, {c.bad} bad")


# Times


def on_device(f: Any, xs: list[Any]) -> Callable[[int], float]:
    """What runs a jitted function so many times, and says the seconds of the device."""
    f(*xs)
    *_, entry = f._variants.values()
    seconds: Callable[[int], float] = entry.executable.timed([x.storage for x in xs]).seconds
    return seconds


def on_torch(f: Callable[[], Any], graph: bool) -> Callable[[int], float]:
    """The same of torch; short functions as a CUDA graph."""
    f()
    torch.cuda.synchronize()
    run = f
    if graph:
        held = torch.cuda.CUDAGraph()
        with torch.cuda.graph(held):
            f()
        run = held.replay

    def seconds(times: int) -> float:
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(times):
            run()
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end)) / 1e3

    return seconds


class Lines:
    """Lines of a table, as many as there is time for."""

    def __init__(self, seconds: float):
        self.end, self.rows = time.perf_counter() + seconds, []

    @property
    def late(self) -> bool:
        return time.perf_counter() > self.end

    def line(self, name: str, clocks: dict[str, Any], bytes_: float = 0, flops: float = 0) -> None:
        found: dict[str, list[float]] = {}
        counts = {}
        for who, f in clocks.items():
            f(1)
            counts[who] = max(3, min(50, round(3e-3 / max(f(2) / 2, 1e-6))))
        for turn in range(ROUNDS):
            order = [*clocks.items()]
            for who, f in order[turn % len(order) :] + order[: turn % len(order)]:
                found.setdefault(who, []).append(f(counts[who]) / counts[who])
        took = {who: float(np.median(t)) for who, t in found.items()}
        mine = took["tessera"]
        peers = {w: t for w, t in took.items() if w != "tessera"}
        best = min(peers.values(), default=float("nan"))
        row = {"name": name, "us": {w: t * 1e6 for w, t in took.items()}, "ratio": best / mine}
        if bytes_:
            row["GB/s"] = bytes_ / mine / 1e9
        if flops:
            row["TFLOP/s"] = flops / mine / 1e12
        self.rows.append(row)


def peers(q: Any, k: Any, v: Any, causal: bool, graph: bool = False) -> dict[str, Any]:
    """torch's backends that take the problem, forward."""
    out = {}
    for n, kind in KINDS.items():

        def run(kind: Any = kind) -> Any:
            with sdpa_kernel(kind):
                return tf.scaled_dot_product_attention(
                    q, k, v, is_causal=causal, enable_gqa=q.shape[1] != k.shape[1]
                )

        try:
            out[n] = on_torch(run, graph)
        except RuntimeError:
            continue
    return out


def gradient_peers(q: Any, k: Any, v: Any, ct: Any, causal: bool) -> dict[str, Any]:
    xs = [x.clone().requires_grad_() for x in (q, k, v)]
    out = {}
    for n, kind in KINDS.items():

        def run(kind: Any = kind) -> Any:
            with sdpa_kernel(kind):
                o = tf.scaled_dot_product_attention(*xs, is_causal=causal)
            return torch.autograd.grad(o, xs, ct)

        try:
            out[n] = on_torch(run, False)
        except RuntimeError:
            continue
    return out


def shape_of(d: int, seq: int) -> tuple[int, int, int, int]:
    return max(1, 16384 // seq), max(1, 2048 // d), seq, d


def training_cases() -> Iterator[tuple[int, int, bool]]:
    """Size of heads, length, and whether it is causal, the most telling first."""
    yield from ((256, 4096, True), (128, 4097, True), (80, 4097, True), (192, 4096, True))
    yield from ((64, 4097, True), (128, 1000, True), (40, 4096, True), (32, 4096, True))
    yield from ((256, 4097, False), (80, 4096, False), (160, 4096, True), (64, 1000, False))
    yield from ((96, 4096, True), (112, 4096, True), (80, 4096, True), (128, 4096, True))
    for d in HEADS:
        for seq in (1024, 2048, 1000, 4097):
            yield d, seq, False


DECODE = [
    (1, 32, 8, 8192, 128), (1, 32, 8, 1024, 128), (16, 32, 8, 8192, 128), (1, 32, 8, 131072, 128),
    (64, 32, 8, 2048, 128), (1, 32, 8, 32768, 64), (8, 16, 16, 8192, 80), (4, 8, 1, 16384, 256),
]  # fmt: skip


@contextmanager
def changed(module: Any, **values: Any) -> Iterator[None]:
    """Other values of names in a module."""
    before = {n: getattr(module, n) for n in values}
    for n, x in values.items():
        setattr(module, n, x)
    try:
        yield
    finally:
        for n, x in before.items():
            setattr(module, n, x)


@dataclass
class Variant:
    """One schedule that competes: what is changed while it is compiled, and the program."""

    name: str
    changes: dict[str, Any]
    number: int
    tiles: dict[str, Any] = field(default_factory=dict)

    @contextmanager
    def in_force(self) -> Iterator[None]:
        with changed(kept, **self.changes), changed(forward_kernels, **self.tiles):
            yield


def prebuild(variants: list[Variant], p: AttentionProblem, gradient: bool) -> None:
    """Ask Triton for the kernels of all variants at the same time."""
    sources = []
    for x in variants:
        own = replace(p, scale=p.size**-0.5 * (1 + x.number / 1024))
        with x.in_force():
            launches = kept.forward(own, ("q", "k", "v"), "o", "l", False)[0]
            if gradient:
                launches += kept.backward(own, tuple("qkvoc"), ("a", "b", "c"), "l", "d", False)
        for a in launches:
            sources.append(source_of(a.kernel, emit(a.kernel, a.threads), a.threads, ("cuda", 90, 32),
                0))  # fmt: skip

    def one(source: Any) -> None:
        with suppress(ts.TesseraError):
            build([source])

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(one, sources))


def compete(
    title: str, variants: list[Variant], p: AttentionProblem, xs: list[Any], make: Any
) -> None:
    """Build variants, time them, and tell."""
    prebuild(variants, p, len(xs) > 3)
    clocks = {}
    for x in variants:
        with x.in_force():
            clocks[x.name] = _built(make(x.number), xs)
    tell(title, clocks)


def _threads(t: Threads) -> str:
    return f"{t.warps}w {t.stages}s{' boxes' if t.descriptors else ''}"


def search_forward(d: int, seq: int) -> None:
    """Blocks and threads of the forward pass, with heads in pieces and padded to one tile."""
    space = [
        (128, Threads(8, 2, approximate=True)), (128, Threads(8, 3, approximate=True)),
        (128, Threads(8, 2, True, approximate=True)), (128, Threads(8, 3, True, approximate=True)),
        (64, Threads(4, 2, approximate=True)), (64, Threads(4, 2, True, approximate=True)),
        (64, Threads(4, 3, True, approximate=True)),
    ]  # fmt: skip
    b, h, *_ = shape_of(d, seq)
    p = AttentionProblem(b, h, h, seq, seq, d, d, ts.bf16, True, 1.0)
    variants = []
    for rows, threads in space:
        block = {"forward_block": lambda p, r=rows, t=threads: (r, t), "pipeline": lambda k: None}
        name, number = f"{rows} {_threads(threads)}", 1 + len(variants)
        variants.append(Variant(f"pieces {name}", block, number))
        if len(forward_kernels.pieces(d)) > 1 and not threads.descriptors:
            one = {"pieces": lambda n: ((0, forward_kernels.padded(n)),)}
            variants.append(Variant(f"one tile {name}", block, 1 + len(variants), one))
    variants.append(Variant("as shipped", {}, 100))
    xs = [ours(numbers(b, h, seq, d)) for _ in range(3)]
    compete(f"forward d{d} S{seq} causal", variants, p, xs, lambda n: op_of(True, n))


def search_gradient(d: int, seq: int) -> None:
    """Blocks and threads of the backward pass."""
    b, h, *_ = shape_of(d, seq)
    p = AttentionProblem(b, h, h, seq, seq, d, d, ts.bf16, True, 1.0)
    variants = []
    for m, n, warps, stages in (
        (32, 64, 8, 1), (32, 64, 8, 2), (64, 64, 8, 1), (64, 64, 8, 2), (64, 32, 8, 1), (64, 32, 8, 2),
        (64, 64, 4, 2),
    ):  # fmt: skip
        own = (m, n, Threads(warps, stages, True, approximate=True))
        for kind in ("keys_block", "queries_block"):
            block = {kind: lambda p, own=own: own, "double": lambda k: None}
            name = f"{kind} {m}x{n} {_threads(own[2])}"
            variants.append(Variant(name, block, 1 + len(variants)))
    xs = [ours(numbers(b, h, seq, d)) for _ in range(4)]
    compete(f"gradient d{d} S{seq} causal", variants, p, xs, lambda n: ts.jit(slopes(True, n)))


def op_of(causal: bool, number: int = 0) -> Any:
    """Attention; that of another number is another program, which no store of code has."""

    def f(q: Any, k: Any, v: Any) -> Any:
        scale = q.shape[-1] ** -0.5 * (1 + number / 1024)
        return op.attention(q, k, v, causal=causal, scale=scale if number else None)

    return ts.jit(f)


def _built(f: Any, xs: list[Any]) -> Any:
    try:
        return on_device(f, xs)
    except ts.TesseraError as e:
        return str(e)[-160:]


def tell(name: str, clocks: dict[str, Any]) -> None:
    """Times of schedules, the fastest first."""
    found = {}
    for who, f in clocks.items():
        if isinstance(f, str):
            print(f"  {name}: {who}: {f}")
            continue
        f(2)
        found[who] = min(f(5) / 5 for _ in range(3))
    for who, t in sorted(found.items(), key=lambda x: x[1]):
        print(f"  {name}: {t * 1e6:9.1f} us  {who}", flush=True)


def search_decode(batch: int, heads: int, groups: int, keys: int, d: int) -> None:
    """Threads and parts of decode."""
    p = AttentionProblem(batch, heads, groups, 1, keys, d, d, ts.bf16, False, 1.0)
    variants = []
    for warps, stages, parts in ((4, 3, 64), (4, 3, 32), (4, 3, 128), (4, 2, 64), (4, 4, 64), (8, 3, 64),
        (2, 3, 64), (8, 2, 32)):  # fmt: skip
        t = Threads(warps, stages, approximate=True)
        block = {"part_block": lambda p, t=t: (16, t)}
        name, tiles = f"{_threads(t)} {parts} parts", {"_PARTS": parts}
        variants.append(Variant(name, block, 1 + len(variants), tiles))
    xs = [ours(numbers(batch, n, s, d)) for n, s in ((heads, 1), (groups, keys), (groups, keys))]
    title = f"decode {batch}x{heads}/{groups}x{keys} d{d}"
    compete(title, variants, p, xs, lambda n: op_of(False, n))


SEARCHES: list[Callable[[], None]] = [
    lambda: search_forward(192, 4096), lambda: search_forward(128, 4097), lambda: search_decode(*DECODE[0]),
    lambda: search_decode(*DECODE[2]),
    lambda: search_forward(256, 4096), lambda: search_gradient(256, 4096), lambda: search_forward(80, 4096),
    lambda: search_decode(*DECODE[1]), lambda: search_forward(64, 4097), lambda: search_gradient(192, 4096),
]  # fmt: skip


def measure(seconds: float, record: str | None) -> None:
    """All lines that there is time for; compilations of the next cases run while none is timed."""
    start = time.perf_counter()
    lines = Lines(seconds * 0.55)
    decode_lines(lines)
    cases = list(training_cases())
    for i in range(0, len(cases), 4):
        if lines.late:
            break
        train_lines(lines, cases[i : i + 4])
    show(lines, start)
    write(lines, record)
    for search in SEARCHES:
        if time.perf_counter() > start + seconds - 10:
            break
        search()


def show(lines: Lines, start: float) -> None:
    """The table, worst first."""
    print(f"{'case':44} {'ours_us':>10} {'best_us':>10} {'ratio':>6}")
    for r in sorted(lines.rows, key=lambda r: r["ratio"]):
        best = min((t for w, t in r["us"].items() if w != "tessera"), default=float("nan"))
        more = "  ".join(f"{n} {r[n]:.0f}" for n in ("GB/s", "TFLOP/s") if n in r)
        who = " ".join(f"{w} {t:.1f}" for w, t in r["us"].items() if w != "tessera")
        print(
            f"{r['name']:44} {r['us']['tessera']:10.1f} {best:10.1f} {r['ratio']:6.2f}  {more}  ({who})"
        )
    print(f"{len(lines.rows)} lines in {time.perf_counter() - start:.0f} s")


def write(lines: Lines, record: str | None) -> None:
    """The record of all lines."""
    if record:
        whole = {"device": torch.cuda.get_device_name(), "torch": torch.__version__,
            "rows": lines.rows}  # fmt: skip
        with open(record, "w") as file:
            json.dump(whole, file, indent=1)


def decode_lines(lines: Lines) -> None:
    """One query on many keys."""
    held = [
        (c, numbers(c[0], c[1], 1, c[4]), numbers(c[0], c[2], c[3], c[4]), numbers(c[0], c[2], c[3], c[4]))
        for c in DECODE
    ]  # fmt: skip
    with ThreadPoolExecutor(12) as pool:
        made = list(pool.map(lambda x: on_device(op_of(False), [ours(t) for t in x[1:]]), held))
    for (c, q, k, v), f in zip(held, made, strict=True):
        if lines.late:
            return
        clocks = {"tessera": f, **peers(q, k, v, False, graph=True)}
        lines.line(f"decode {c[0]}x{c[1]}/{c[2]}x{c[3]} d{c[4]}", clocks, k.nbytes + v.nbytes)


def train_lines(lines: Lines, cases: list[tuple[int, int, bool]]) -> None:
    """Forward passes and gradients of some cases, built at the same time."""
    held = [(c, [numbers(*shape_of(c[0], c[1])) for _ in range(4)]) for c in cases]
    jobs = [
        job
        for (_, _, causal), x in held
        for job in ((op_of(causal), x[:3]), (ts.jit(slopes(causal)), x))
    ]

    def make(job: Any) -> Any:
        f, x = job
        return on_device(f, [ours(t) for t in x])

    with ThreadPoolExecutor(12) as pool:
        made = list(pool.map(make, jobs))
    for i, ((d, seq, causal), (q, k, v, ct)) in enumerate(held):
        if lines.late:
            return
        name = f"d{d} S{seq} {'causal' if causal else 'full'}"
        b, h, *_ = q.shape
        flops = 4 * b * h * seq * seq * d * (0.5 if causal else 1)
        lines.line(f"forward {name}", {"tessera": made[2 * i], **peers(q, k, v, causal)}, 0, flops)
        both = {"tessera": made[2 * i + 1], **gradient_peers(q, k, v, ct, causal)}
        lines.line(f"gradient {name}", both, 0, 3.5 * flops)


def main() -> None:
    """Check, or measure and tell."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--time", action="store_true")
    parser.add_argument("--seconds", type=float)
    parser.add_argument("--record")
    parser.add_argument(
        "--from", dest="first", type=int, default=0, help="the first job of --check"
    )
    for what in ("good", "bad"):
        parser.add_argument(
            f"--{what}", type=int, default=0, help="jobs of a process before this one"
        )
    args = parser.parse_args()
    torch.manual_seed(time.time_ns() % (1 << 31))
    print(f"{gpu().name}, torch {torch.__version__}")
    if args.check:
        check(args.seconds or 95, args.first, args.good, args.bad)
    if args.time:
        measure(args.seconds or 70, args.record)


if __name__ == "__main__":
    main()
