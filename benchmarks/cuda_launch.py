"""What the CUDA runtime costs the host: launches, graph replays, memory, copies; torch beside it where it is.

    python benchmarks/cuda_launch.py [--record FILE]

Host times are the smallest of several repeats of a loop that the device keeps up with; copies are the best
of several.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import platform
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import tessera as ts
from tessera.runtime.cuda.device import gpu
from tessera.runtime.cuda.driver import available
from tessera.runtime.cuda.graph import LaunchGraph
from tessera.runtime.cuda.launch import DeviceLaunch, Launcher, Pointer, f32, i32
from tessera.runtime.cuda.memory import empty, to_device
from tessera.runtime.cuda.module import DriverModule
from tessera.runtime.cuda.stream import DriverStream

Rows = dict[str, dict[str, float]]
# out[thread] = x[thread] * factor for thread < n, in one block.
SCALE = """
.version 7.0
.target sm_80
.address_size 64

.visible .entry scale(.param .u64 out, .param .u64 x, .param .u32 n, .param .f32 factor)
{
  .reg .pred %p; .reg .f32 %f<3>; .reg .b32 %r<2>; .reg .b64 %d<5>;
  ld.param.u64 %d0, [out];
  ld.param.u64 %d1, [x];
  ld.param.u32 %r0, [n];
  ld.param.f32 %f0, [factor];
  mov.u32 %r1, %tid.x;
  setp.ge.u32 %p, %r1, %r0;
  @%p bra done;
  mul.wide.u32 %d2, %r1, 4;
  add.s64 %d3, %d1, %d2;
  add.s64 %d4, %d0, %d2;
  ld.global.f32 %f1, [%d3];
  mul.f32 %f2, %f1, %f0;
  st.global.f32 [%d4], %f2;
done:
  ret;
}
"""
CALL = "call of a jitted sum of 8 and 8, us"
COUNTS = (1, 10, 50)
SIZES = {"4 B": 4, "1 MB": 10**6, "1 GB": 10**9}


def host_us(f: Callable[[], Any], wait: Callable[[], Any], inner: int) -> float:
    """Microseconds of the host for one call; the device is idle when each repeat begins."""
    best = float("inf")
    for _ in range(15):
        wait()
        start = time.perf_counter()
        for _ in range(inner):
            f()
        best = min(best, time.perf_counter() - start)
    wait()
    return best / inner * 1e6


def launcher_of(n: int) -> Launcher:
    f = DriverModule(SCALE.encode(), gpu()).function("scale")
    one = DeviceLaunch(f, (1, 1, 1), 32, (Pointer(1), Pointer(0), i32(32), f32(2)))
    return Launcher([one] * n, gpu())


def calls() -> Rows:
    """Host time of a jitted function of one kernel, which is compiled."""
    f = ts.jit(lambda x, y: x + y)
    x, y = (ts.tensor(np.ones(8, "f4")).to("cuda") for _ in range(2))
    return {CALL: {"tessera": host_us(lambda: f(x, y), gpu().synchronize, 50)}}


def launches() -> Rows:
    """Host time of programs of n kernels, by launches and as a graph."""
    g, rows = gpu(), {}
    x, y = to_device(np.ones(32, "f4")), empty((32,), "f4")
    cells = [x.ptr, y.ptr]
    for n in COUNTS:
        launcher = launcher_of(n)
        rows[f"{n} launches, us"] = {
            "tessera": host_us(lambda: launcher.run(cells), g.synchronize, max(1, 200 // n))  # noqa: B023
        }
        stream = DriverStream(g)
        with LaunchGraph.capture(stream) as graph:
            graph.run(launcher, cells)
        graph.instantiate()
        rows[f"graph of {n}, us"] = {
            "tessera": host_us(graph.launch, g.synchronize, max(1, 100 // n))
        }
        turn = iter(range(10**9))
        others = [cells, cells[::-1]]

        def changed() -> None:
            graph.update([others[next(turn) % 2]])  # noqa: B023

        rows[f"new addresses for a graph of {n}, us"] = {
            "tessera": host_us(changed, g.synchronize, max(1, 100 // n))
        }
        rows[f"launches of {n} until done, us"] = {
            "tessera": until_done(lambda: launcher.run(cells), g.synchronize)  # noqa: B023
        }
        rows[f"graph of {n} until done, us"] = {"tessera": until_done(graph.launch, g.synchronize)}
    return rows


def until_done(f: Callable[[], Any], wait: Callable[[], Any]) -> float:
    """Microseconds from a call to the end of its work on the device."""
    best = float("inf")
    for _ in range(50):
        wait()
        start = time.perf_counter()
        f()
        wait()
        best = min(best, time.perf_counter() - start)
    return best * 1e6


def memory() -> Rows:
    """Blocks and arrays from the pool, and what the driver takes."""
    g, rows = gpu(), {}
    for name, size in (("1 KB", 1000), ("100 MB", 10**8)):
        rows[f"alloc and free {name}, us"] = {
            "tessera": host_us(lambda: g.pool.alloc(size), g.synchronize, 1000)  # noqa: B023
        }
    rows["empty array, us"] = {
        "tessera": host_us(lambda: empty((1000,), np.float32, g), g.synchronize, 1000)
    }
    return rows


def copies() -> Rows:
    """GB/s between pageable memory of the host and the device, and microseconds where that is little."""
    g, rows = gpu(), {}
    for name, size in SIZES.items():
        host = np.ones(size, np.uint8)
        device = to_device(host)

        def up() -> None:
            device.fill(host)  # noqa: B023
            g.stream.synchronize()

        add_copies(rows, "tessera", name, size, up, device.numpy)
    return rows


def add_copies(
    rows: Rows, who: str, name: str, size: int, up: Callable[[], Any], down: Callable[[], Any]
) -> None:
    for way, f in (("to the device", up), ("from the device", down)):
        seconds = best_of(f, size)
        rows.setdefault(f"{name} {way}, us", {})[who] = seconds * 1e6
        if size > 10**5:
            rows.setdefault(f"{name} {way}, GB/s", {})[who] = size / seconds / 1e9


def best_of(f: Callable[[], Any], size: int) -> float:
    times = []
    for _ in range(5 if size > 10**8 else 50):
        start = time.perf_counter()
        f()
        times.append(time.perf_counter() - start)
    return min(times)


def with_torch(rows: Rows) -> None:
    """The same figures of torch."""
    import torch

    wait = torch.cuda.synchronize
    x = torch.ones(32, device="cuda")
    y = torch.empty_like(x)

    def many(n: int) -> Callable[[], None]:
        def run() -> None:
            for _ in range(n):
                torch.mul(x, 2.0, out=y)

        return run

    compiled = torch.compile(lambda a, b: a + b)
    compiled(x, y)
    rows[CALL]["torch.compile"] = host_us(lambda: compiled(x, y), wait, 50)
    for n in COUNTS:
        rows[f"{n} launches, us"]["torch"] = host_us(many(n), wait, max(1, 200 // n))
        rows[f"launches of {n} until done, us"]["torch"] = until_done(many(n), wait)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            many(n)()
        rows[f"graph of {n}, us"]["torch"] = host_us(graph.replay, wait, max(1, 100 // n))
        rows[f"graph of {n} until done, us"]["torch"] = until_done(graph.replay, wait)
    for name, size in (("1 KB", 1000), ("100 MB", 10**8)):
        rows[f"alloc and free {name}, us"]["torch"] = host_us(
            lambda: torch.empty(size, dtype=torch.uint8, device="cuda"),  # noqa: B023
            wait,
            1000,
        )
    for name, size in SIZES.items():
        host = torch.ones(size, dtype=torch.uint8)
        device = host.cuda()

        def up() -> None:
            device.copy_(host)  # noqa: B023
            wait()

        add_copies(rows, "torch", name, size, up, device.cpu)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--record", type=Path, help="write the figures as JSON")
    args = parser.parse_args()
    if not available():
        print("no CUDA device here: nothing to measure")
        return
    start = time.perf_counter()
    gpu()
    rows: Rows = {"first use of the device, ms": {"tessera": (time.perf_counter() - start) * 1e3}}
    rows |= calls() | launches() | memory() | copies()
    if importlib.util.find_spec("torch"):
        with_torch(rows)
    print(f"{gpu()}, Python {platform.python_version()}")
    for name, figures in rows.items():
        values = "".join(f"{who:>10} {x:10.2f}" for who, x in figures.items())
        print(f"{name:<40}{values}")
    if args.record:
        head = {"device": gpu().name, "python": platform.python_version(), "rows": rows}
        args.record.write_text(json.dumps(head, indent=1) + "\n")


if __name__ == "__main__":
    main()
