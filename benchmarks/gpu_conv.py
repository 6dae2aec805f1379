"""Convolutions and pooling on a GPU beside torch (cuDNN), channels first and channels last.

    python benchmarks/gpu_conv.py --check              every case against torch in f64, on random inputs
    python benchmarks/gpu_conv.py --time [--record FILE] [--seconds 70] [--kernels]

Times are of the device: work is queued behind a pause, so that the host is not measured.  All contestants
run in every round, each first in turn.  `best` is the fastest of torch with channels first and with
channels last (autotuned cuDNN, tf32 off); Tessera's tensors have their channels first.  --kernels lists
what the time of ours is made of.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import torch.nn.functional as tf
from torch.profiler import ProfilerActivity, profile

import tessera as ts
from tessera import op
from tessera.ir.tile.gpu import conv_weights, implicit_gemm
from tessera.ir.tile.gpu.implicit_gemm import ConvBlock
from tessera.runtime.cuda.device import gpu

DTYPES = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32}
CONVS = {1: tf.conv1d, 2: tf.conv2d, 3: tf.conv3d}
ROUNDS, RUNS = 3, 10
PAUSE = 400_000  # cycles that the device waits while work is queued


@dataclass(frozen=True)
class Case:
    """A convolution: x (batch, channels, ...), window, and options."""

    batch: int
    channels: int
    made: int
    sizes: tuple[int, ...]
    window: tuple[int, ...]
    stride: int = 1
    padding: int = 0
    dilation: int = 1
    groups: int = 1
    dtype: str = "bf16"
    name: str = ""
    kinds: tuple[str, ...] = field(default=("forward", "input", "weights"))

    def __str__(self) -> str:
        shape = "x".join(map(str, (self.batch, self.channels, *self.sizes)))
        rest = f" s{self.stride}" if self.stride > 1 else ""
        rest += f" d{self.dilation}" if self.dilation > 1 else ""
        rest += f" g{self.groups}" if self.groups > 1 else ""
        return f"{self.dtype} {shape} -> {self.made} k{'x'.join(map(str, self.window))}{rest}"

    @property
    def options(self) -> dict[str, int]:
        """What both libraries take by the same names."""
        names = ("stride", "padding", "dilation", "groups")
        return {n: getattr(self, n) for n in names}

    def tensors(self) -> list[Any]:
        """x, w and a cotangent."""
        d = DTYPES[self.dtype]
        x = torch.randn((self.batch, self.channels, *self.sizes), device="cuda").to(d)
        w = torch.randn((self.made, self.channels // self.groups, *self.window), device="cuda")
        w = (w / np.sqrt(w[0].numel())).to(d)
        with torch.no_grad():
            y = self.torch(x, w)
        return [x, w, torch.randn(y.shape, device="cuda").to(d)]

    def torch(self, x: Any, w: Any) -> Any:
        """The convolution by torch."""
        return CONVS[len(self.sizes)](x, w, None, **self.options)

    def ours(self, kind: str) -> Callable[..., Any]:
        """A function of x, w and ct."""
        p = self.options

        def f(x: Any, w: Any) -> Any:
            return op.conv(x, w, **p)

        if kind == "forward":
            return ts.jit(lambda x, w, ct: f(x, w))
        if kind == "input":
            return ts.jit(lambda x, w, ct: ts.vjp(lambda x: f(x, w), x)[1](ct)[0])
        return ts.jit(lambda x, w, ct: ts.vjp(lambda w: f(x, w), w)[1](ct)[0])

    def peer(self, kind: str, x: Any, w: Any, ct: Any) -> Callable[[], Any]:
        """The same by torch."""
        if kind == "forward":
            return lambda: self.torch(x, w)
        rank = len(self.sizes)
        mask = [kind == "input", kind == "weights", False]

        def run() -> Any:
            return torch.ops.aten.convolution_backward(
                ct, x, w, None, [self.stride] * rank, [self.padding] * rank,
                [self.dilation] * rank, False, [0] * rank, self.groups, mask,
            )[0 if kind == "input" else 1]  # fmt: skip

        return run


def taken(x: Any) -> Any:
    """The same numbers in Tessera."""
    return ts.from_dlpack(x.clone())


# Cases


def resnet(batch: int) -> Iterator[Case]:
    """The distinct convolutions of ResNet-50."""
    three = [
        (64, 56, 1),
        (128, 56, 2),
        (128, 28, 1),
        (256, 28, 2),
        (256, 14, 1),
        (512, 14, 2),
        (512, 7, 1),
    ]
    for c, n, s in three:
        yield Case(batch, c, c, (n, n), (3, 3), s, 1, name="resnet")
    yield Case(batch, 3, 64, (224, 224), (7, 7), 2, 3, name="resnet", kinds=("forward", "weights"))
    one = [(64, 64, 56, 1), (64, 256, 56, 1), (256, 64, 56, 1), (256, 128, 56, 1), (128, 512, 28, 1),
           (512, 128, 28, 1), (512, 256, 28, 1), (256, 1024, 14, 1), (1024, 256, 14, 1), (1024, 512, 14, 1),
           (512, 2048, 7, 1), (2048, 512, 7, 1), (256, 512, 56, 2), (512, 1024, 28, 2),
           (1024, 2048, 14, 2)]  # fmt: skip
    for c, o, n, s in one:
        yield Case(batch, c, o, (n, n), (1, 1), s, name="resnet")


def unet() -> Iterator[Case]:
    """Convolutions of a U-Net on images of 256 by 256."""
    for c, o, n in (
        (64, 64, 256),
        (128, 128, 128),
        (256, 256, 64),
        (512, 512, 32),
        (1024, 512, 32),
        (128, 64, 256),
    ):
        yield Case(8, c, o, (n, n), (3, 3), 1, 1, name="unet")


def odd() -> Iterator[Case]:
    """What fits no block."""
    yield Case(16, 5, 17, (61, 47), (5, 5), 1, 2, name="odd")
    yield Case(16, 17, 130, (37, 41), (3, 3), 2, 1, name="odd")
    yield Case(16, 130, 130, (33, 35), (2, 2), 1, 0, name="odd")
    yield Case(16, 64, 96, (40, 40), (3, 3), 1, 2, 2, name="odd")
    yield Case(32, 128, 128, (28, 28), (3, 3), 1, 1, 1, 32, name="odd")
    yield Case(16, 32, 48, (7, 20, 22), (3, 3, 3), 1, 1, name="odd")
    yield Case(16, 96, 128, (4000,), (5,), 3, 2, name="odd")
    yield Case(32, 128, 128, (56, 56), (3, 3), 1, 1, 1, 128, name="depthwise")
    yield Case(32, 128, 128, (56, 56), (5, 5), 2, 2, 1, 128, name="depthwise")


def timed() -> Iterator[Case]:
    """In the order in which they are timed, until the time is over."""
    big, strange = list(resnet(64)), list(odd())
    yield from big[:8]
    yield from strange[-2:]
    yield from big[8:]
    yield from strange[:-2]
    yield from unet()
    yield from list(resnet(1))[:12]
    for c in big[:8:2]:
        yield Case(**{**c.__dict__, "batch": 32, "dtype": "f32"})


def drawn(rng: Any) -> Case:
    """A small case at random."""
    rank = int(rng.choice([1, 2, 2, 2, 3]))
    groups = int(rng.choice([1, 1, 1, 2, 3, 5]))
    sizes = tuple(int(n) for n in rng.integers(5, 34 if rank < 3 else 12, rank))
    window = tuple(int(n) for n in rng.integers(1, 6 if rank < 3 else 4, rank))
    dilation = int(rng.choice([1, 1, 2]))
    reach = max((k - 1) * dilation + 1 for k in window)
    padding = int(rng.integers(max(0, -(-(reach - min(sizes)) // 2)), 4 + reach // 2))
    ones = [1, 2, 3, 5, 8, 9, 16, 17, 33, 64, 65, 130]
    depthwise = rng.random() < 0.15
    c, o = (
        (1, int(rng.choice([1, 2])))
        if depthwise
        else (int(rng.choice(ones)), int(rng.choice(ones)))
    )
    groups = int(rng.choice([8, 17, 64])) if depthwise else groups
    return Case(
        int(rng.choice([1, 2, 3, 7])), c * groups, o * groups, sizes, window, int(rng.integers(1, 4)),
        padding, dilation, groups, str(rng.choice(["bf16", "f16", "f32"])),
    )  # fmt: skip


# Pooling


def pools(x: Any) -> dict[str, tuple[Callable[..., Any], Callable[..., Any]]]:
    """Pooling by both: functions of x."""
    return {
        "max_pool 3 s2 p1": (lambda x: op.max_pool2d(x, 3, 2, 1), lambda x: tf.max_pool2d(x, 3, 2, 1)),
        "max_pool 2": (lambda x: op.max_pool2d(x, 2), lambda x: tf.max_pool2d(x, 2)),
        "avg_pool 3 s1 p1": (lambda x: op.avg_pool2d(x, 3, 1, 1), lambda x: tf.avg_pool2d(x, 3, 1, 1)),
        "avg_pool 2": (lambda x: op.avg_pool2d(x, 2), lambda x: tf.avg_pool2d(x, 2)),
    }  # fmt: skip


# Checking


class Checks:
    """Counts what is right."""

    def __init__(self) -> None:
        self.good = self.bad = 0

    def compare(self, what: str, ours: Any, wanted: Any, room: Any, bits: str) -> None:
        got = torch.from_dlpack(ours).double()
        unit = {"bf16": 2.0**-8, "f16": 2.0**-11, "f32": 2.0**-23}[bits]
        error = (got - wanted).abs() - unit * 1.01 * wanted.abs() - 4e-6 * room
        worst = float(error.max()) if error.numel() else 0.0
        if got.shape != wanted.shape or not worst <= 1e-6:
            self.bad += 1
            print(f"bad: {what}: off by {worst:.3g} beyond the bound", flush=True)
        else:
            self.good += 1

    def case(self, c: Case) -> None:
        """All kinds of a case: the bound is that of sums of the magnitudes."""
        x, w, ct = c.tensors()
        wide, sizes = ([t.double() for t in (x, w, ct)], [t.double().abs() for t in (x, w, ct)])
        for kind in c.kinds:
            try:
                made = c.ours(kind)(*map(taken, (x, w, ct)))
                gpu().synchronize()
                self.compare(
                    f"{kind} {c} {c.options}",
                    made,
                    c.peer(kind, *wide)(),
                    c.peer(kind, *sizes)(),
                    c.dtype,
                )
            except Exception as e:  # one case must not hide the others
                self.bad += 1
                print(
                    f"bad: {kind} {c} {c.options}: {type(e).__name__}: {str(e)[:300]}", flush=True
                )

    def pools(self, dtype: str) -> None:
        rows, line = (torch.arange(n, device="cuda") * k for n, k in ((23, 16), (30, 5)))
        first = torch.randint(0, 251, (3, 5, 1, 1), device="cuda")
        x = ((first + rows[:, None] + line) % 251 - 125).to(DTYPES[dtype])  # a window has no ties
        for name, (ours, theirs) in pools(x).items():
            try:
                wide = x.double().requires_grad_(True)
                y = theirs(wide)
                ct = torch.randn(y.shape, device="cuda").to(DTYPES[dtype])
                y.backward(ct.double())
                again = x.double().requires_grad_(True)
                theirs(again).backward(ct.double().abs())
                room = again.grad * (1 if dtype == "f32" else 4e3)
                given = [taken(x), taken(ct)]
                got, grad = ts.jit(lambda x, ct, f=ours: (f(x), ts.vjp(f, x)[1](ct)[0]))(*given)
                gpu().synchronize()
                self.compare(f"{dtype} {name}", got, y.detach(), y.detach().abs(), dtype)
                self.compare(f"{dtype} {name} gradient", grad, wide.grad, room, dtype)
            except Exception as e:  # one case must not hide the others
                self.bad += 1
                print(f"bad: {dtype} {name}: {type(e).__name__}: {str(e)[:300]}", flush=True)


def check(seconds: float) -> None:
    """Pooling, odd cases, those of ResNet-50 on small batches, and random ones until the time is over."""
    begin, checks, rng = time.monotonic(), Checks(), np.random.default_rng(int(time.time()))
    for dtype in DTYPES:
        checks.pools(dtype)
    for c in [*odd(), *list(resnet(2))[:9]]:
        if time.monotonic() - begin < seconds:
            checks.case(c)
    while time.monotonic() - begin < seconds:
        checks.case(drawn(rng))
    print(f"check: {checks.good} ok, {checks.bad} bad", flush=True)


# Timing


def device_us(run: Callable[[], Any], stream: Any) -> float:
    """The time of a run on the device."""
    run()
    torch.cuda.synchronize()
    a, b = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    with torch.cuda.stream(stream):
        torch.cuda._sleep(PAUSE)
        a.record(stream)
        for _ in range(RUNS):
            run()
        b.record(stream)
    b.synchronize()
    return float(a.elapsed_time(b)) / RUNS * 1e3


def kernels_of(run: Callable[[], Any]) -> dict[str, float]:
    """The microseconds of each kernel of a run."""
    run()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        for _ in range(5):
            run()
        gpu().synchronize()
        torch.cuda.synchronize()
    return {e.key: round(float(e.self_device_time_total) / 5, 1) for e in seen.key_averages()}


class Table:
    """Rows of times."""

    def __init__(self, seconds: float, kernels: bool) -> None:
        self.end, self.kernels = time.monotonic() + seconds, kernels
        self.rows: list[dict[str, Any]] = []
        self.stream = torch.cuda.ExternalStream(gpu().stream.handle)

    @property
    def over(self) -> bool:
        return time.monotonic() > self.end

    def line(self, name: str, ours: Callable[[], Any], peers: dict[str, Callable[[], Any]]) -> None:
        everyone = [("ours", ours, self.stream)]
        everyone += [(n, f, torch.cuda.current_stream()) for n, f in peers.items()]
        times: dict[str, list[float]] = {}
        for number in range(ROUNDS):
            for i in range(len(everyone)):
                who, run, stream = everyone[(i + number) % len(everyone)]
                times.setdefault(who, []).append(device_us(run, stream))
        us = {who: float(np.median(t)) for who, t in times.items()}
        best = min(t for who, t in us.items() if who != "ours")
        row = {"name": name, "us": us, "ratio": best / us["ours"]}
        if self.kernels:
            row["kernels"] = kernels_of(ours)
        self.rows.append(row)

    def case(self, c: Case) -> None:
        x, w, ct = c.tensors()
        given = [taken(t) for t in (x, w, ct)]
        two = len(c.sizes) == 2
        last = [t.to(memory_format=torch.channels_last) for t in (x, w, ct)] if two else []
        for kind in c.kinds:
            if self.over:
                return
            f = c.ours(kind)
            peers = {"first": c.peer(kind, x, w, ct)}
            peers |= {"last": c.peer(kind, *last)} if two else {}
            try:
                self.line(f"{c.name} {kind} {c}", lambda f=f: f(*given), peers)
            except Exception as e:  # one case must not hide the others
                print(f"failed: {kind} {c}: {type(e).__name__}: {str(e)[:300]}", flush=True)

    def pools(self) -> None:
        x = torch.randn((64, 64, 112, 112), device="cuda").to(torch.bfloat16)
        given = taken(x)
        for name, (ours, theirs) in pools(x).items():
            if self.over:
                return
            f = ts.jit(ours)
            last = x.to(memory_format=torch.channels_last)
            peers = {"first": lambda t=theirs: t(x), "last": lambda t=theirs, last=last: t(last)}
            self.line(f"pool forward {name}", lambda f=f: f(given), peers)
            ct, leaf = torch.randn_like(theirs(x)), x.clone().requires_grad_(True)
            y, mine = theirs(leaf), taken(ct)
            g = ts.jit(lambda x, ct, f=ours: ts.vjp(f, x)[1](ct)[0])
            peer = {
                "first": lambda y=y, ct=ct, leaf=leaf: torch.autograd.grad(
                    y, leaf, ct, retain_graph=True
                )
            }
            self.line(f"pool gradient {name}", lambda g=g, mine=mine: g(given, mine), peer)

    def bottleneck(self) -> None:
        """A block of ResNet-50 with batch normalisation, forward and backward."""
        shapes = [(64, 256, 1, 1), (64, 64, 3, 3), (256, 64, 1, 1)]
        ws = [torch.randn(s, device="cuda").mul(0.05).to(torch.bfloat16) for s in shapes]
        x = torch.randn((64, 256, 56, 56), device="cuda").to(torch.bfloat16)

        def theirs(x: Any, ws: Any) -> Any:
            y = x
            for i, w in enumerate(ws):
                y = tf.conv2d(y, w, padding=w.shape[2] // 2)
                y = tf.batch_norm(y, None, None, training=True)
                y = tf.relu(y if i < 2 else y + x)
            return y

        def ours(x: Any, ws: Any) -> Any:
            y = x
            for i, w in enumerate(ws):
                y = op.conv2d(y, w, padding=w.shape[2] // 2)
                z = y.astype(ts.f32)
                mean = op.mean(z, (0, 2, 3), keepdims=True)
                var = op.mean(op.square(z - mean), (0, 2, 3), keepdims=True)
                y = ((z - mean) * op.rsqrt(var + 1e-5)).astype(ts.bf16)
                y = op.relu(y if i < 2 else y + x)
            return y

        def step(x: Any, a: Any, b: Any, c: Any, ct: Any) -> Any:
            y, back = ts.vjp(lambda x, a, b, c: ours(x, (a, b, c)), x, a, b, c)
            return y, back(ct)

        f, given = ts.jit(step), [taken(t) for t in (x, *ws, x)]
        leaves = [t.clone().requires_grad_(True) for t in (x, *ws)]
        last = [
            t.to(memory_format=torch.channels_last).detach().requires_grad_(True) for t in leaves
        ]

        def run(g: Callable[..., Any], given: Any) -> Callable[[], Any]:
            return lambda: torch.autograd.grad(
                g(given[0], given[1:]), given, torch.ones_like(given[0])
            )

        self.line("bottleneck 64x256x56x56 forward and backward", lambda: f(*given),
                  {"first": run(theirs, leaves), "last": run(theirs, last)})  # fmt: skip

    def show(self) -> None:
        print(f"{'case':76} {'ours_us':>9} {'first_us':>9} {'last_us':>9} {'ratio':>6}")
        for r in sorted(self.rows, key=lambda r: r["ratio"]):
            us = [f"{r['us'].get(n, float('nan')):9.1f}" for n in ("ours", "first", "last")]
            print(f"{r['name']:76} {' '.join(us)} {r['ratio']:6.2f}")
            if "kernels" in r:
                print("    ", r["kernels"])
        if self.rows:
            mean = float(np.exp(np.mean([np.log(r["ratio"]) for r in self.rows])))
            print(f"geometric mean of {len(self.rows)} ratios: {mean:.3f}")


# Blocks

SWEPT = {
    "forward": [(128, 128, 8, 3), (128, 128, 8, 4), (128, 256, 8, 3), (64, 128, 4, 4), (64, 128, 4, 3),
    (256, 128, 8, 3), (64, 256, 4, 3)],
    "weights": [(64, 128, 4, 3), (128, 128, 8, 3), (64, 128, 4, 4), (128, 256, 8, 3), (64, 256, 4, 3)],
}  # fmt: skip


def sweep(seconds: float) -> None:
    """The product of some cases alone, with other blocks: microseconds of the kernel."""
    end, big = time.monotonic() + seconds, list(resnet(64))
    places = {"forward": implicit_gemm, "weights": conv_weights}
    for kind, c in [(k, big[i]) for i in (2, 6, 0) for k in SWEPT]:
        x, w, ct = c.tensors()
        given, found = [taken(t) for t in (x, w, ct)], {}
        usual = places[kind].default_block
        for made, windows, warps, stages in SWEPT[kind]:
            if time.monotonic() > end or made > 2 * c.made:
                continue
            block = ConvBlock(made, windows, warps, stages)
            places[kind].default_block = lambda p, block=block: block  # type: ignore[assignment]
            try:
                f = c.ours(kind)
                seen = kernels_of(lambda f=f, given=given: f(*given))
                name = "conv" if kind == "forward" else "conv_weights"
                found[made, windows, warps, stages] = seen.get(name, seen)
            except Exception as e:  # a block that does not fit is no choice
                found[made, windows, warps, stages] = f"{type(e).__name__} {str(e)[:80]}"
            finally:
                places[kind].default_block = usual
        print(f"blocks {kind} {c}: {found}", flush=True)


def main() -> None:
    """Check or time."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--time", action="store_true")
    parser.add_argument("--kernels", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--blocks", type=float, default=22, help="seconds for other blocks")
    parser.add_argument("--seconds", type=float)
    parser.add_argument("--record")
    given = parser.parse_args()
    torch.backends.cudnn.benchmark = True
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    if given.check:
        check(given.seconds or 95)
    if given.time:
        table = Table(given.seconds or 70, given.kernels)
        for i, c in enumerate(timed()):
            if i == 4 and given.blocks:
                sweep(given.blocks)
            if i == 8:
                table.pools()
                table.bottleneck()
            if table.over:
                break
            table.case(c)
        table.show()
        if given.record:
            about = {
                "device": torch.cuda.get_device_name(),
                "torch": torch.__version__,
                "python": platform.python_version(),
            }
            with open(given.record, "w") as f:
                json.dump({**about, "rows": table.rows}, f, indent=1)


if __name__ == "__main__":
    main()
