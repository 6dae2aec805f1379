"""What the sweep does on a GPU: operands for both, a check against torch, and times in turn.

Both are captured in CUDA graphs of several calls where they can be, so that neither pays for its host; what
cannot be captured (a result whose size is data, a library that waits) is timed by events around plain
calls.
"""

from __future__ import annotations

import gc
import statistics
import time
import zlib
from collections.abc import Callable
from typing import Any

import torch

import tessera as ts
from sweep.case import Case, Operand
from tessera.runtime.cuda.device import gpu
from tessera.runtime.cuda.graph import LaunchGraph
from tessera.runtime.cuda.launch import Launcher
from tessera.runtime.cuda.replay import FEWEST
from tessera.runtime.cuda.stream import DriverEvent

KINDS: dict[str, Any] = {
    "f16": torch.float16, "bf16": torch.bfloat16, "f32": torch.float32, "f64": torch.float64,
    "i8": torch.int8,
    "i32": torch.int32, "i64": torch.int64, "u8": torch.uint8, "bool": torch.bool, "c64": torch.complex64,
}  # fmt: skip
WIDE = {torch.float16: torch.float64, torch.bfloat16: torch.float64, torch.float32: torch.float64}
TOLERANCE = {torch.float16: 2e-3, torch.bfloat16: 1e-2, torch.float32: 2e-5, torch.float64: 1e-12}
torch.backends.cudnn.benchmark = True  # a peer in its best form
torch.backends.cudnn.allow_tf32 = False  # f32 means f32 on both sides
LARGE = 1 << 29  # bytes of operands that are not widened for a check
SAMPLE, ROUNDS, MOST = 1e-3, 5, 24  # seconds of a sample, samples, calls in a graph


def drawn(o: Operand, seed: int) -> Any:
    """A tensor of torch on the device."""
    g = torch.Generator("cuda").manual_seed(seed)
    kind = KINDS[o.dtype]
    if o.draw == "bool":
        return torch.rand(o.shape, generator=g, device="cuda") < 0.5
    if o.draw == "distinct":
        return torch.randperm(o.below, generator=g, device="cuda")[: o.shape[0]]
    if o.draw == "index":
        return torch.randint(0, o.below, o.shape, generator=g, device="cuda").to(kind)
    if o.draw in ("positive", "unit", "probability", "near"):
        low, high = {
            "positive": (0.1, 2),
            "unit": (-1, 1),
            "probability": (0, 1),
            "near": (0.99, 1.01),
        }[o.draw]
        return (torch.rand(o.shape, generator=g, device="cuda") * (high - low) + low).to(kind)
    x = torch.randn(
        o.shape,
        generator=g,
        device="cuda",
        dtype=torch.complex64 if o.dtype == "c64" else torch.float32,
    )
    if o.draw == "sorted":
        return x.sort()[0]
    if o.draw == "spd":
        n = o.shape[-1]
        return (x @ x.mT / n + torch.eye(n, device="cuda")).to(kind)
    return x.to(kind)


def operands(c: Case) -> tuple[list[Any], list[Any]]:
    """The same data as torch's tensors and as ours."""
    seed = zlib.crc32(str(c).encode())
    theirs = [drawn(o, seed + i) for i, o in enumerate(c.operands)]
    return theirs, [ts.from_dlpack(x) for x in theirs]


def flat(y: Any) -> list[Any]:
    return [v for x in y for v in flat(x)] if isinstance(y, tuple | list) else [y]


# Checks


def checked(c: Case) -> str:
    """What is wrong with our result; empty when nothing is.  Compiles what torch.compile is asked for,
    too.
    """
    theirs, ours = operands(c)
    jitted = c.ours if c.eager else ts.jit(c.ours)
    got = [torch.from_dlpack(x) for x in ts.tree.leaves(jitted(*ours))]
    gpu().synchronize()
    if c.checked == "no":
        return ""
    given = theirs
    if c.checked == "f64" and sum(x.nbytes for x in theirs) < LARGE:
        given = [x.to(WIDE.get(x.dtype, x.dtype)) for x in theirs]
    want = flat(c.theirs(torch, *given))
    kind = next((x.dtype for x in theirs if x.dtype in TOLERANCE), torch.float32)
    for i, (a, b) in enumerate(zip(got, want, strict=True)):
        wrong = differs(a, b, c.tolerance or TOLERANCE[kind])
        if wrong:
            return f"result {i}: {wrong}"
    return ""


def differs(got: Any, want: Any, tolerance: float) -> str:
    """How a result differs beyond a tolerance."""
    if tuple(got.shape) != tuple(want.shape):
        return f"shape {tuple(got.shape)}, expected {tuple(want.shape)}"
    if not (got.is_floating_point() or got.is_complex()):
        wrong = int((got.to(torch.int64) != want.to(torch.int64)).sum().item())
        allowed = tolerance * got.numel() if tolerance >= 1e-3 else 0
        return f"{wrong} of {got.numel()} elements differ" if wrong > allowed else ""
    wide = torch.complex128 if got.is_complex() else torch.float64
    error = torch.linalg.vector_norm((got.to(wide) - want.to(wide)).reshape(-1)).item()
    size = torch.linalg.vector_norm(want.to(wide).reshape(-1)).item()
    ratio = error / (size or 1.0)
    return "" if ratio <= tolerance else f"error {ratio:.2e} of the norm, allowed {tolerance:.0e}"


def free() -> None:
    """Give the memory of a case back, so that processes beside this one have it."""
    gc.collect()
    torch.cuda.empty_cache()
    gpu().pool.trim()


# Times


def our_run(c: Case, ours: list[Any]) -> tuple[Callable[[], Any], bool, bool]:
    """What runs our compiled function in the same memory, whether all of it are launches, and no graph by
    itself.
    """
    jitted = ts.jit(c.ours)
    jitted(*ours)
    (entry,) = jitted._variants.values()
    executable = entry.executable
    xs = [*(x.storage for x in ours), *executable.constants]
    p = executable.prepared([x.shape for x in xs])
    return p.repeated(xs), all(isinstance(s, Launcher) for s in p.segments), p.launches < FEWEST


def our_clock(c: Case, ours: list[Any]) -> tuple[Callable[[int], float], bool]:
    """What runs our function so many times, and says the seconds; and whether all of it are launches."""
    device = gpu()
    run, launches, few = (lambda: c.ours(*ours), False, False) if c.eager else our_run(c, ours)
    begin, end = DriverEvent(device, timing=True), DriverEvent(device, timing=True)

    def clocked(call: Callable[[], Any], each: int) -> Callable[[int], float]:
        def seconds(times: int) -> float:
            begin.record()
            for _ in range(times):
                call()
            end.record()
            end.synchronize()
            return begin.elapsed(end) / 1e3 / each

        return seconds

    plain = clocked(run, 1)
    once = min(plain(1), plain(1), plain(1))
    if not launches or not few:
        return plain, launches
    count = calls_of(once)
    with LaunchGraph.capture(device.stream) as graph:
        for _ in range(count):
            run()
    graph.instantiate()

    def replay(
        kept: Any = run,
    ) -> None:  # the graph does not keep the code and the memory of what it runs
        graph.launch()

    return clocked(replay, count), True


def their_clock(run: Callable[[], Any], captured: bool) -> Callable[[int], float]:
    """The same for torch."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))

    def clocked(call: Callable[[], Any], each: int) -> Callable[[int], float]:
        def seconds(times: int) -> float:
            begin.record()
            for _ in range(times):
                call()
            end.record()
            end.synchronize()
            return float(begin.elapsed_time(end)) / 1e3 / each

        return seconds

    plain = clocked(run, 1)
    for _ in range(2):
        run()
    once = min(plain(1), plain(1), plain(1))
    if not captured:
        return plain
    graph, count = torch.cuda.CUDAGraph(), calls_of(once)
    try:
        with torch.cuda.graph(graph):
            for _ in range(count):
                run()
    except RuntimeError:  # it waits for the device
        torch.cuda.synchronize()
        return plain
    graph.replay()
    return clocked(graph.replay, count)


def calls_of(once: float) -> int:
    """How many calls are captured together: enough that what a replay costs is no part of a call."""
    return max(1, min(MOST, int(2e-4 / max(once, 1e-6))))


def in_turn(clocks: dict[str, Callable[[int], float]], rounds: int = ROUNDS) -> dict[str, float]:
    """Median seconds of a call of each, sampled in turn; each is the first in a round of its own."""
    names = list(clocks)
    counts = {n: max(1, round(SAMPLE / max(clocks[n](1), 1e-6))) for n in names}
    counts = {n: min(k, 100) for n, k in counts.items()}
    found: dict[str, list[float]] = {n: [] for n in names}
    for r in range(rounds):
        turn = r % len(names)
        for n in names[turn:] + names[:turn]:
            found[n].append(clocks[n](counts[n]) / counts[n])
    return {n: statistics.median(x) for n, x in found.items()}


def timed(c: Case, compiled: bool) -> dict[str, Any]:
    """The row of a case; with torch.compile beside the others if wanted."""
    begin = time.monotonic()
    theirs, ours = operands(c)
    clock, launches = our_clock(c, ours)
    clocks = {"tessera": clock}
    clocks["torch"] = their_clock(lambda: c.theirs(torch, *theirs), c.captured)
    if compiled:
        f = torch.compile(lambda *xs: c.theirs(torch, *xs), dynamic=False)
        clocks["torch.compile"] = their_clock(lambda: f(*theirs), c.captured)
    us = {n: s * 1e6 for n, s in in_turn(clocks).items()}
    best = min(t for n, t in us.items() if n != "tessera")
    bound, mine = c.bound * 1e6, max(us["tessera"], 1e-3)
    return {
        "case": str(c), "us": us, "ratio": best / mine, "bound_us": bound, "of_bound": bound / mine,
        "peer_of_bound": bound / best, "host": not launches, "seconds": time.monotonic() - begin,
    }  # fmt: skip
