"""Contractions and odd products on a GPU beside torch: right, and how fast.

    python benchmarks/gpu_contract.py --check
    python benchmarks/gpu_contract.py --time [--seconds 75] [--record FILE]

`--check` compares contractions, odd products and policies with f64 on fresh random inputs.  `--time`
measures products as they are compiled, and in other blocks where those are candidates, beside torch
(cuBLAS), in turn, by events on the stream that runs them; a ratio is torch's time over ours.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

import tessera as ts
from tessera import op
from tessera.compile import compile_graph
from tessera.core.errors import CompilerFaultWarning
from tessera.ir.schedule.gpu_blocks import MULTIPROCESSORS, ProductBlock
from tessera.ir.tile.gpu import contraction
from tessera.runtime.cuda.device import gpu
from tessera.runtime.triton_builder import build

B = ProductBlock
KINDS = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32, "f64": torch.float64}


# What is computed ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """A contraction of torch and of Tessera."""

    name: str
    spec: str
    shapes: tuple[tuple[int, ...], ...]
    kind: str = "bf16"
    blocks: tuple[ProductBlock, ...] = ()  # candidates beside the default

    def tensors(self) -> list[Any]:
        return [torch.randn(s, device="cuda").to(KINDS[self.kind]) for s in self.shapes]

    def ours(self, *xs: Any) -> Any:
        return op.einsum(self.spec, *xs)

    def theirs(self, *xs: Any) -> Any:
        if self.spec == "mk,kn->mn":
            return torch.mm(*xs)
        return torch.bmm(*xs) if self.spec == "bmk,bkn->bmn" else torch.einsum(self.spec, *xs)


def product(m: int, k: int, n: int, kind: str = "bf16", *blocks: ProductBlock) -> Case:
    """A product of two matrices."""
    return Case(f"{m}x{k}x{n} {kind}", "mk,kn->mn", ((m, k), (k, n)), kind, blocks)


def batched(b: int, m: int, k: int, n: int, *blocks: ProductBlock) -> Case:
    """Products of as many pairs of matrices."""
    return Case(f"{b} of {m}x{k}x{n}", "bmk,bkn->bmn", ((b, m, k), (b, k, n)), "bf16", blocks)


STAY = MULTIPROCESSORS
WIDE = (B(128, 256, 64, 8, STAY), B(128, 256, 64, 8, 0), B(256, 128, 64, 8, STAY))
MIDDLE = (
    B(128, 128, 64, 8, 0, 4, 3), B(128, 128, 64, 8, 0, 8, 3), B(128, 128, 64, 8, 0, 4, 4),
    B(128, 128, 64, 8, 2 * STAY, 4, 3), B(128, 128, 128, 8, 0, 8, 3),
)  # fmt: skip
SMALL = (
    B(128, 64, 64), B(128, 64, 128, 8, 0, 4, 4), B(64, 128, 64, 8, 0, 4, 4), B(64, 64, 128),
    B(64, 64, 64, 8, 0, 4, 5),
    B(64, 32, 128), B(32, 64, 128), B(32, 32, 128),
)  # fmt: skip
LINE = (
    B(16, 64, 128), B(16, 64, 256, 8, 0, 4, 4), B(16, 32, 256, 8, 0, 4, 4), B(16, 32, 512, 8, 0, 4, 3),
    B(16, 128, 128, 8, 0, 4, 4),
    B(16, 64, 128, 8, 0, 4, 6), B(16, 32, 128, 8, 0, 2, 6), B(16, 16, 512, 8, 0, 2, 4),
)  # fmt: skip
SINGLE = (
    B(64, 64, 32), B(128, 64, 16, 8, 0, 4, 3), B(128, 128, 16, 8, 0, 8, 3), B(128, 128, 8, 8, 0, 8, 3),
    B(64, 128, 16, 8, 0, 4, 3),
    B(128, 64, 32, 8, 0, 8, 2), B(128, 128, 16, 8, 0, 4, 3), B(64, 64, 16, 8, 0, 4, 3),
)  # fmt: skip
FEW = (
    B(512, 16, 16, 1), B(256, 16, 16, 1), B(1024, 16, 16, 1, 0, 8, 2), B(128, 16, 64, 1), B(256, 16, 32, 1),
    B(128, 16, 128, 1),
)  # fmt: skip
CASES = (
    batched(64, 512, 512, 512, *WIDE, *MIDDLE[:4]),
    product(1000, 3000, 2000, "bf16", *MIDDLE, SMALL[0]),
    product(256, 8192, 8192, "bf16", *MIDDLE, *SMALL[:3]),
    product(256, 4096, 4096, "bf16", MIDDLE[0], *SMALL[:5]),
    product(1, 28672, 8192, "bf16", *LINE),
    product(8192, 512, 8192, "bf16", *WIDE, *MIDDLE[:4]),
    product(4096, 4096, 4096, "f32", *SINGLE),
    Case("etd,te->td", "etd,te->td", ((8, 8192, 4096), (8192, 8)), "bf16", FEW),
    Case("tek,te->tk", "tek,te->tk", ((4096, 64, 1024), (4096, 64)), "bf16", FEW),
    product(256, 8192, 256, "bf16", *SMALL[3:]),
    product(64, 4096, 4096, "bf16", *SMALL[3:]),
    product(512, 512, 512, "bf16", *SMALL),
    product(1024, 1024, 1024, "bf16", MIDDLE[0], *SMALL[:5]),
    product(64, 1048576, 64),
    product(1000, 65536, 1000),
    product(1001, 3001, 2001),
    product(4095, 4095, 4095),
    batched(1024, 64, 64, 64, *SMALL[3:]),
    batched(4096, 32, 32, 32, *SMALL[5:]),
    batched(192, 1024, 64, 1024, *WIDE, *MIDDLE[:4]),
    product(4096, 4096, 4096, "bf16"),
    product(2048, 2048, 2048, "bf16", *WIDE, *MIDDLE[:3]),
    product(8192, 28672, 8192),
    product(16, 8192, 8192),
    Case("bij,bj->bi", "bij,bj->bi", ((512, 512, 1024), (512, 1024)), "bf16"),
    Case("bhqd,bhkd->bhqk", "bhqd,bhkd->bhqk", ((4, 12, 1000, 80), (4, 12, 1000, 80))),
    Case("abc,cbd->ad", "abc,cbd->ad", ((512, 64, 128), (128, 64, 512))),
    Case("ij,jk,kl->il", "ij,jk,kl->il", ((1024, 1024), (1024, 1024), (1024, 1024))),
)  # fmt: skip


# Time ---------------------------------------------------------------------------------------------


def moved(x: Any) -> Any:
    """A tensor of torch as one of ours."""
    return ts.from_dlpack(x.clone())


def made(f: Callable[..., Any], xs: list[Any]) -> Any:
    """What runs a function on tensors, by events of its stream."""
    executable = ts.jit(f).lower(*xs)._executable
    return executable.timed([x.storage for x in xs])


class Chosen:
    """While it is entered, products have this block."""

    def __init__(self, block: ProductBlock | None):
        self.block, self.usual = block, contraction.default_block

    def __enter__(self) -> None:
        if self.block is not None:
            contraction.default_block = lambda k: self.block  # type: ignore[assignment]

    def __exit__(self, *error: Any) -> None:
        contraction.default_block = self.usual


def torch_seconds(run: Callable[[], Any], times: int) -> float:
    """What so many runs take on torch's stream."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(times):
        run()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) / 1e3


def prebuild() -> None:
    """Build the code of all cases and candidates side by side, so that no measurement waits for Triton."""
    sources = []
    for c in CASES:
        for block in (None, *c.blocks):
            with Chosen(block):
                sources += sources_of(c.spec, c.shapes, c.kind)
    build(sources)
    print(f"{len(sources)} kernels", flush=True)


def sources_of(spec: str, shapes: Sequence[tuple[int, ...]], kind: str) -> list[Any]:
    """What Triton is asked for by a contraction."""
    types = [ts.Tensor[(*s, getattr(ts, kind))] for s in shapes]
    g = ts.trace(lambda *a: op.einsum(spec, *a), *types)
    return [call.source for _, call in compile_graph(g, "cuda:sm_90").program_at(shapes).calls]


def measure(c: Case, until: float) -> dict[str, Any]:
    """The times of a case: ours, torch's and those of candidates, in turn."""
    theirs = c.tensors()
    xs = [moved(x) for x in theirs]
    runs: dict[str, Callable[[int], float]] = {
        "torch": lambda n: torch_seconds(lambda: c.theirs(*theirs), n)
    }
    for block in (None, *c.blocks):
        name = "ours" if block is None else _name(block)
        try:
            with Chosen(block):
                timed = made(lambda *a: c.ours(*a), xs)
            runs[name] = timed.seconds
        except Exception as e:  # a candidate that does not fit is none
            print(f"  {c.name} {name}: {type(e).__name__}: {str(e)[:100]}", flush=True)
    for run in runs.values():
        run(2)
    torch.cuda.synchronize()
    gpu().synchronize()
    each = max(runs["torch"](3) / 3, 1e-6)
    times = max(min(int(0.004 / each), 50), 2)
    taken: dict[str, list[float]] = {n: [] for n in runs}
    for _ in range(7):
        for n, run in runs.items():
            taken[n].append(run(times) / times * 1e6)
        if time.perf_counter() > until:
            break
    us = {n: float(np.median(t)) for n, t in taken.items()}
    return {"name": c.name, "us": us, "ratio": us["torch"] / us.get("ours", float("inf"))}


def _name(b: ProductBlock) -> str:
    return f"{b.m}x{b.n}x{b.k} stay {b.persistent} warps {b.warps} stages {b.stages}"


def timing(seconds: float, record: str | None) -> None:
    """Measure what there is time for, and tell."""
    until = time.perf_counter() + seconds
    prebuild()
    rows = []
    for c in CASES:
        if time.perf_counter() > until - 2:
            print(f"no time for {c.name}")
            continue
        row = measure(c, until)
        rows.append(row)
        best = sorted(row["us"].items(), key=lambda x: x[1])
        others = "  ".join(f"[{n}] {t:.1f}" for n, t in best if n not in ("ours", "torch"))
        print(f"  {c.name}: ours {row['us'].get('ours', 0):.1f} torch {row['us']['torch']:.1f} | {others}",
            flush=True)  # fmt: skip
        torch.cuda.empty_cache()
    print("\ncase ours_us best_us ratio")
    for row in sorted(rows, key=lambda r: r["ratio"]):
        us = row["us"]
        print(f"{row['name']:28} {us.get('ours', 0):10.1f} {us['torch']:10.1f} {row['ratio']:6.2f}")
    if record:
        device = {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "rows": rows}
        with open(record, "w") as file:
            json.dump(device, file, indent=1)


# Check --------------------------------------------------------------------------------------------


def forms(rng: np.random.Generator, count: int) -> Iterator[tuple[str, list[tuple[int, ...]]]]:
    """Random einsums of one to three operands, whose axes are shared, summed, repeated or kept at will."""
    for _ in range(count):
        letters = "abcdef"[: int(rng.integers(1, 6))]
        sizes = {a: int(rng.choice([1, 2, 3, 5, 8, 17, 33, 64])) for a in letters}
        parts = []
        for _ in range(int(rng.integers(1, 4))):
            n = int(rng.integers(1, min(4, len(letters)) + 1))
            repeat = rng.random() < 0.1
            parts.append("".join(rng.choice(list(letters), n, replace=repeat)))
        used = sorted(set("".join(parts)))
        out = rng.permutation([a for a in used if rng.random() < 0.5])
        yield f"{','.join(parts)}->{''.join(out)}", [tuple(sizes[a] for a in p) for p in parts]


SHAPES = (
    (1, 1, 1), (1, 7, 1), (3, 5, 7), (17, 100, 33), (64, 64, 64), (100, 1000, 100), (127, 129, 131),
    (256, 300, 200),
    (1, 4099, 513), (513, 4099, 1), (2, 40000, 3), (64, 65536, 48), (70, 33000, 70), (200, 40000, 130),
    (1000, 1001, 999), (129, 65, 1030),
    (512, 512, 512), (640, 96, 640), (16, 2048, 4096), (300, 8191, 257),
)  # fmt: skip
FORMS = 40
BATCHES = ((7, 33, 65, 129), (64, 512, 512, 512), (100, 1, 77, 300), (300, 64, 1, 64))


def check() -> None:
    """Compare with f64, and tell."""
    good, bad = 0, 0

    def near(name: str, got: Any, want: Any, bound: float) -> None:
        nonlocal good, bad
        a, b = np.asarray(got).astype(np.float64), np.asarray(want)
        error = np.linalg.norm(a - b) / max(np.linalg.norm(b), 1e-30) if a.shape == b.shape else 9.0
        if error <= bound:
            good += 1
        else:
            bad += 1
            print(f"{name}: {error:.2e}, at most {bound:.1e}", flush=True)

    rng = np.random.default_rng(int(time.time()))
    bounds = {"f32": 2e-6, "bf16": 6e-3, "f16": 1e-3, "f64": 1e-13}
    until = time.perf_counter() + 100

    def one(spec: str, shapes: list[tuple[int, ...]], kind: str) -> None:
        nonlocal bad
        name = f"{spec} {shapes} {kind}"
        if time.perf_counter() > until:
            return
        xs = [ts.tensor(rng.normal(size=s)).astype(kind) for s in shapes]
        want = np.einsum(spec, *(x.numpy().astype(np.float64) for x in xs), optimize=True)
        try:
            got = ts.jit(lambda *a: op.einsum(spec, *a))(*(x.to("cuda") for x in xs)).numpy()
        except Exception as e:
            bad += 1
            print(f"{name}: {type(e).__name__}: {str(e)[:150]}", flush=True)
            return
        # A chain of k sums in f32 is off by about sqrt(k) roundings.
        ins, _, out = spec.partition("->")
        sizes = {a: n for part, s in zip(ins.split(","), shapes, strict=True) for a,
            n in zip(part, s, strict=True)}  # fmt: skip
        terms = float(np.prod([n for a, n in sizes.items() if a not in out]))
        long = 6e-8 * terms**0.5 if kind == "f32" else 0.0
        scale = 1 if np.linalg.norm(want) > 1e-3 * want.size**0.5 else 50
        near(name, got, want, max(bounds[kind], long) * scale)

    cases: list[tuple[str, list[tuple[int, ...]], str]] = []
    for m, k, n in SHAPES:
        cases += [("mk,kn->mn", [(m, k), (k, n)], kind) for kind in ("bf16", "f32")]
        cases.append(("km,nk->mn", [(k, m), (n, k)], "bf16"))
    cases += [("bmk,bkn->bmn", [(b, m, k), (b, k, n)], "bf16") for b, m, k, n in BATCHES]
    cases += [(*form, str(rng.choice(["bf16", "f32", "f16", "f64"]))) for form in forms(rng, FORMS)]
    build([x for c in cases for x in sources_of(*c)])
    policies(near)
    bits(near, rng)
    for c in cases:
        one(*c)
    print(f"check: {good} ok, {bad} bad")


def policies(near: Callable[[str, Any, Any, float], None]) -> None:
    """Policies on the device have the bits of the CPU where one rounding makes them."""
    x = np.random.default_rng(5).normal(size=(57, 61)) * 6
    functions = {
        "add": lambda x: x + x, "product": lambda x: (x * x + x) * x,
        "cast": lambda x: x.astype(ts.f64).astype(x.dtype),
    }  # fmt: skip
    kinds = (
        ts.tf32, ts.bf16 @ ts.stochastic_round, ts.f16 @ ts.stochastic_round,
        ts.f8e4m3 @ ts.stochastic_round @ ts.saturate,
        ts.bf16 @ ts.accum(ts.f64), ts.f16 @ ts.loss_scale(1024), ts.f16 @ ts.saturate, ts.i8 @ ts.saturate,
        ts.u8 @ ts.saturate,
    )  # fmt: skip
    for d in kinds:
        value = ts.tensor(np.abs(x) if d.kind == "u" else x, dtype=ts.f64).astype(d)
        for name, f in functions.items():
            want, got = ts.jit(f)(value), ts.jit(f)(value.to("cuda"))
            near(f"{d} {name}", got.numpy().astype(np.float64), np.asarray(want).astype(np.float64),
                0.0)  # fmt: skip
        want, got = (np.asarray(v.numpy()).astype(np.float64)
            for v in (ts.jit(lambda x: x @ x.T)(value),
            ts.jit(lambda x: x @ x.T)(value.to("cuda"))))  # fmt: skip
        near(f"{d} product of matrices", got, want, 0.05)


def bits(near: Callable[[str, Any, Any, float], None], rng: np.random.Generator) -> None:
    """A row has the bits that it has alone, in every number of rows, columns and batches."""
    for k in (100, 512, 3001, 40000):
        a, b = (ts.tensor(rng.normal(size=s)).astype("bf16") for s in ((300, k), (k, 300)))
        f = ts.jit(lambda x, y: x @ y)
        whole = f(a.to("cuda"), b.to("cuda")).numpy()
        for m, n in ((1, 300), (17, 64), (64, 1), (128, 130), (300, 16)):
            part = f(a[:m].to("cuda"), b[:, :n].to("cuda")).numpy()
            same = np.array_equal(part.view(np.uint16), whole[:m, :n].view(np.uint16))
            near(f"bits of {m}x{k}x{n}", 0.0 if same else 1.0, 0.0, 0.0)


def main() -> None:
    """Check or measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--time", action="store_true")
    parser.add_argument("--seconds", type=float, default=70.0)
    parser.add_argument("--record")
    args = parser.parse_args()
    warnings.simplefilter("error", CompilerFaultWarning)  # what runs in another way is not checked
    if args.check:
        check()
    if args.time:
        timing(args.seconds, args.record)


if __name__ == "__main__":
    main()
