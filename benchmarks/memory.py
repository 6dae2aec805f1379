"""The memory that a run takes against what its plan says.

    python benchmarks/memory.py [--only NAME] [--record FILE]

Each program runs once in a process of its own.  `measured` is the growth of the resident memory from
just before the run to its highest point in it, `planned` the peak of the memory plan.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import tessera as ts
from tessera import op

Case = tuple[Callable[..., Any], tuple[Any, ...]]


def weights(*shape: int) -> Any:
    rng = np.random.default_rng(0)
    return ts.tensor(rng.standard_normal(shape, np.float32) / np.float32(shape[0] ** 0.5))


def layer(x: Any, p: dict[str, Any], heads: int) -> Any:
    """Attention and two dense layers, each after a norm and added to what came in."""
    batch, length, width = x.shape
    size = width // heads
    q, k, v = (
        op.transpose(op.reshape(op.layernorm(x) @ p[n], (batch, length, heads, size)), (0, 2, 1, 3))
        for n in "qkv"
    )
    scores = op.softmax(op.einsum("bhqd,bhkd->bhqk", q, k) * size**-0.5)
    seen = op.transpose(op.einsum("bhqk,bhkd->bhqd", scores, v), (0, 2, 1, 3))
    x = x + op.reshape(seen, (batch, length, width)) @ p["o"]
    return x + op.gelu(op.layernorm(x) @ p["up"]) @ p["down"]


def gpt(p: dict[str, Any], tokens: Any) -> Any:
    x = op.take(p["embedding"], tokens, 0)
    for q in p["layers"]:
        x = layer(x, q, 4)
    return op.layernorm(x) @ p["head"]


def loss(p: dict[str, Any], tokens: Any) -> Any:
    return op.mean(op.square(gpt(p, tokens)))


def parameters(layers: int, width: int, words: int) -> dict[str, Any]:
    sizes = dict.fromkeys("qkvo", (width, width)) | {
        "up": (width, 4 * width), "down": (4 * width, width),
    }  # fmt: skip
    return {
        "embedding": weights(words, width),
        "head": weights(width, words),
        "layers": [{n: weights(*s) for n, s in sizes.items()} for _ in range(layers)],
    }


def tokens(batch: int, length: int, words: int) -> Any:
    return ts.tensor(np.random.default_rng(1).integers(0, words, (batch, length)))


def block() -> Case:
    return (
        lambda x, w: op.softmax(op.tanh(x) @ w) * op.exp(x) + x,
        (weights(8192, 1024), weights(1024, 1024)),
    )


CASES: dict[str, Callable[[], Case]] = {
    "block": block,
    "gpt": lambda: (gpt, (parameters(2, 256, 8192), tokens(8, 512, 8192))),
    "gpt-step": lambda: (ts.value_and_grad(loss), (parameters(2, 256, 2048), tokens(4, 256, 2048))),
}


class Highest:
    """The highest resident memory while a block runs, in bytes."""

    def __enter__(self) -> Highest:
        Path("/proc/self/clear_refs").write_text("5")  # the mark starts anew
        self.before = self._read("VmRSS:")
        return self

    def __exit__(self, *error: object) -> None:
        self.growth = self._read("VmHWM:") - self.before

    def _read(self, name: str) -> int:
        lines = Path("/proc/self/status").read_text().splitlines()
        (found,) = [line for line in lines if line.startswith(name)]
        return int(found.split()[1]) * 1024


def measure(name: str) -> dict[str, Any]:
    """Planned and measured bytes of one program."""
    f, xs = CASES[name]()
    jitted = ts.jit(f, target="cpu")
    plan = jitted.lower(*xs).memory
    warm = ts.jit(lambda x: op.exp(x) @ x, target="cpu")(
        weights(300, 300)
    )  # threads and their stacks
    time.sleep(0.1)
    with Highest() as run:
        out = jitted(*xs)
    del warm, out
    return {"name": name, "planned": plan.peak, "measured": run.growth,
            "buffers": sum(s.size for s in plan.storages if s.kind != "input"),
            "threads": threading.active_count()}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=CASES)
    parser.add_argument("--record", type=Path)
    given = parser.parse_args()
    if given.only:
        r = measure(given.only)
        mib = [f"{r[k] / 2**20:12.1f}" for k in ("buffers", "planned", "measured")]
        print(f"{given.only:10}", *mib, f"{r['measured'] / r['planned']:8.3f}")
        return
    print(
        f"{'program':10} {'buffers MiB':>12} {'planned MiB':>12} {'measured MiB':>12} {'ratio':>8}"
    )
    lines = []
    for name in CASES:
        done = subprocess.run(
            [sys.executable, __file__, "--only", name], capture_output=True, text=True, check=True
        )
        print(done.stdout, end="", flush=True)
        lines.append(done.stdout.split())
    if given.record:
        record = {"machine": platform.platform(), "numpy": np.__version__, "lines": lines}
        given.record.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
