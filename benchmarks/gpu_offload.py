"""Activation offload of a stack of 24 layers on a GPU: peak memory beside the plan, and time beside keeping
on the device.

    python benchmarks/gpu_offload.py [--record FILE]     on a GPU; each row in a process of its own
    python benchmarks/gpu_offload.py --plan              the planned peaks for an H200, without a GPU

Every row is the gradient of the same model.  "keep" holds the named values on the device and computes the
rest again, "offload" writes the same values to the host and reads them back beside the kernels; "mixed"
offloads the inputs of every second pair of layers and computes all else again.  What counts: the measured
fall of the peak over the planned one (0.95 to
1.05), the time of offload over that of keep (at most 1.15), and the same bits of all gradients.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

import tessera as ts
from tessera import bf16, op

LAYERS, WIDTH, HEADS, BATCH, SEQ = 24, 2048, 16, 8, 2048
ROUNDS = 7
PAIRS = {"offload x": "keep x", "offload x and a": "keep x and a", "mixed": "keep every second"}


def layer(w: dict[str, Any], x: Any) -> Any:
    b, s, d = x.shape
    h = op.rmsnorm(x, w["norm1"])
    q, k, v = ts.split_qkv(h @ w["qkv"], heads=HEADS)
    a = op.transpose(op.attention(q, k, v, causal=True), (0, 2, 1, 3))
    a = op.checkpoint_name(op.reshape(a, (b, s, d)), "a")
    x = x + a @ w["out"]
    h = op.gelu(op.rmsnorm(x, w["norm2"]) @ w["up"])
    return x + h @ w["down"]


def stack(ws: Any, x: Any, every: int = 1) -> Any:
    for i, w in enumerate(ws):
        x = x if i % every else op.checkpoint_name(x, "x")
        x = layer(w, x)
    return x


def policies() -> dict[str, tuple[Any, int]]:
    """Policies of checkpoint, and every how many layers their input has its name."""
    return {
        "keep x": (["x"], 1), "offload x": (ts.offload(["x"]), 1),
        "keep x and a": (["x", "a"], 1), "offload x and a": (ts.offload(["x", "a"]), 1),
        "keep every second": (["x"], 2), "mixed": (ts.offload(["x"]), 2),
    }  # fmt: skip


def gradient(name: str, target: str | None = None) -> Any:
    policy, every = policies()[name]
    f = ts.checkpoint(lambda ws, x: stack(ws, x, every), policy=policy)

    def loss(ws: Any, x: Any) -> Any:
        y = op.cast(f(ws, x), "f32")
        return op.mean(op.square(y))

    made = ts.grad(loss)
    return ts.jit(made) if target is None else ts.jit(made, target=target)


def shapes(width: int) -> dict[str, tuple[int, ...]]:
    return {
        "norm1": (width,), "norm2": (width,), "qkv": (width, 3 * width), "out": (width, width),
        "up": (width, 4 * width), "down": (4 * width, width),
    }  # fmt: skip


def planned(name: str) -> int:
    """Bytes that a run on an H200 takes beside its inputs."""
    zeros = {n: ts.zeros(s, bf16) for n, s in shapes(WIDTH).items()}  # all layers may be one here
    lowered = gradient(name, "cuda:sm_90").lower(
        [zeros] * LAYERS, ts.zeros((BATCH, SEQ, WIDTH), bf16)
    )
    assert not lowered.host_steps, lowered.host_steps
    return int(lowered.memory.peak)


def measured(name: str) -> dict[str, Any]:
    """One row, in a process that has done nothing else on the device."""
    from tessera.runtime.cuda.device import gpu

    rng = np.random.default_rng(0)

    def drawn(*shape: int, scale: float = 1.0) -> Any:
        x = rng.standard_normal(shape, np.float32) * scale
        return ts.tensor(x.astype(bf16.np)).to("cuda")

    def weight(n: str, shape: tuple[int, ...]) -> Any:
        ones = ts.tensor(np.ones(shape, bf16.np)).to("cuda")
        return ones if n.startswith("norm") else drawn(*shape, scale=shape[0] ** -0.5)

    ws = [{n: weight(n, s) for n, s in shapes(WIDTH).items()} for _ in range(LAYERS)]
    x, device = drawn(BATCH, SEQ, WIDTH), gpu()
    f = gradient(name)
    begin = time.perf_counter()
    lowered = f.lower(ws, x)
    plan = int(lowered.memory.peak)
    device.synchronize()
    device.pool.trim()
    before, free = device.pool.held, device.memory_free
    out = f(ws, x)
    device.synchronize()
    first = time.perf_counter() - begin
    peak, driver = device.pool.held - before, free - device.memory_free
    digest = hashlib.sha256()
    for g in ts.tree.leaves(out):
        digest.update(g.numpy().tobytes())
    del out
    times = []
    for _ in range(ROUNDS):
        device.synchronize()
        begin = time.perf_counter()
        f(ws, x)
        device.synchronize()
        times.append(time.perf_counter() - begin)
    return {
        "policy": name, "planned_peak": plan, "measured_peak": peak, "driver_bytes": driver,
        "ms": 1e3 * sorted(times)[len(times) // 2], "ms_all": [round(1e3 * t, 2) for t in times],
        "first_s": round(first, 1), "pinned": device.engines.pinned, "sha256": digest.hexdigest()[:16],
    }  # fmt: skip


def compare(rows: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    out = []
    for off, keep in PAIRS.items():
        if off in rows and keep in rows:
            a, b = rows[keep], rows[off]
            fell = {k: a[k] - b[k] for k in ("planned_peak", "measured_peak")}
            out.append({
                "offload": off, "keep": keep, "planned_fall": fell["planned_peak"],
                "measured_fall": fell["measured_peak"],
                "measured_over_planned": fell["measured_peak"] / fell["planned_peak"],
                "time_over_keep": b["ms"] / a["ms"], "same_bits": a["sha256"] == b["sha256"],
            })  # fmt: skip
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--record", type=Path)
    parser.add_argument("--plan", action="store_true")
    parser.add_argument("--row", help="one row, printed as JSON")
    parser.add_argument("--only", nargs="*", default=list(policies()), help="some rows")
    args = parser.parse_args()
    if args.plan:
        for name in args.only:
            print(f"{name:20} planned peak {planned(name) / 2**30:7.3f} GiB", flush=True)
        return
    if args.row:
        print(json.dumps(measured(args.row)))
        return
    rows: dict[str, dict[str, Any]] = {}
    for name in args.only:
        command = [sys.executable, __file__, "--row", name]
        made = subprocess.run(command, capture_output=True, text=True, check=False)
        if made.returncode:
            print(f"{name}: failed\n{made.stderr[-2000:]}", flush=True)
            continue
        rows[name] = r = json.loads(made.stdout.splitlines()[-1])
        print(
            f"{name:20} planned {r['planned_peak'] / 2**30:7.3f} GiB, measured "
            f"{r['measured_peak'] / 2**30:7.3f} GiB, {r['ms']:7.1f} ms, first {r['first_s']} s, {r['sha256']}",  # noqa: E501
            flush=True,
        )
    found = compare(rows)
    for r in found:
        print(
            f"{r['offload']}: fall {r['measured_over_planned']:.3f} of the planned "
            f"{r['planned_fall'] / 2**30:.3f} GiB, time {r['time_over_keep']:.3f} of {r['keep']}, "
            f"same bits: {r['same_bits']}"
        )
    if args.record:
        made_of = {"layers": LAYERS, "width": WIDTH, "heads": HEADS, "batch": BATCH, "seq": SEQ}
        whole = {"model": made_of, "rows": list(rows.values()), "pairs": found}
        args.record.write_text(json.dumps(whole, indent=1) + "\n")


if __name__ == "__main__":
    main()
