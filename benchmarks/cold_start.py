"""Cold start of a small GPT in C: from the start of the process to its first result, and where the time goes.

    python benchmarks/cold_start.py [--record FILE]

The bundle has 14.6 MB of weights, all of which are verified before the first kernel runs: by the digests of
their pieces, and for comparison as one stream.  A process is started anew for each sample; the file is in
the page cache.  `cpu` is the time of both threads of a process, which says more than the clock when others
use the machine.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import resource
import shutil
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

import tessera as ts
from tessera import op
from tessera.deploy.container import Container, write
from tessera.deploy.targets import usable
from tessera.native import INCLUDE, SOURCE

HERE = Path(__file__).parent.parent / "tests" / "native"
WORDS, WIDTH, HEADS, DEPTH = 2048, 256, 4, 4
RNG = np.random.default_rng(5)


def normal(*shape: int) -> Any:
    return ts.tensor((0.1 * RNG.normal(size=shape)).astype(np.float32))


def weights() -> Any:
    def block() -> Any:
        return {
            "qkv": normal(WIDTH, 3 * WIDTH), "out": normal(WIDTH, WIDTH), "up": normal(WIDTH, 4 * WIDTH),
            "down": normal(4 * WIDTH, WIDTH), "gain1": normal(WIDTH), "gain2": normal(WIDTH),
        }  # fmt: skip

    return {"embed": normal(WORDS, WIDTH), "blocks": [block() for _ in range(DEPTH)]}


def gpt(p: Any, tokens: Any) -> Any:
    s = tokens.shape[0]
    h = op.take(p["embed"], tokens, axis=0)
    for b in p["blocks"]:
        q, k, v = (
            op.transpose(op.reshape(x, (s, HEADS, WIDTH // HEADS)), (1, 0, 2))
            for x in op.split(op.matmul(op.layernorm(h, b["gain1"]), b["qkv"]), 3, axis=-1)
        )
        a = op.reshape(op.transpose(op.attention(q, k, v, causal=True), (1, 0, 2)), (s, WIDTH))
        h = h + op.matmul(a, b["out"])
        h = h + op.matmul(op.gelu(op.matmul(op.layernorm(h, b["gain2"]), b["up"])), b["down"])
    return op.argmax(op.matmul(h, op.transpose(p["embed"], (1, 0)))[-1])


def record(path: Path, tensors: Any) -> None:
    with path.open("wb") as f:
        for x in map(np.asarray, tensors):
            f.write(struct.pack(f"<{1 + x.ndim}q", x.ndim, *x.shape) + x.tobytes())


def without_pieces(path: Path, out: Path) -> None:
    """Write a bundle again, without the digests of pieces."""
    c = Container(path)
    write(out, [(s.kind, s.name, c.read(s.name)) for s in c.sections if s.name != "pieces/weights"])


def sample(folder: Path, name: str) -> dict[str, float]:
    """Milliseconds of a process: of opening, of the first run, of a later one, and of its processors."""
    run = [
        str(folder / "run"),
        str(folder / f"{name}.tess"),
        str(folder / "record"),
        "gpt",
        "2",
        "2",
    ]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    start = time.perf_counter()
    done = subprocess.run(run, capture_output=True, text=True, check=True)
    whole = 1e3 * (time.perf_counter() - start)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    said = re.match(r"open ([\d.]+) ms, first run ([\d.]+) ms, later runs ([\d.]+) us", done.stderr)
    assert said is not None, done.stderr
    assert "the same bits" in done.stderr, done.stderr
    opened, first, later = map(float, said.groups())
    spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {
        "process": whole, "open": opened, "first": first, "later": later / 1e3, "ready": opened + first,
        "cpu": 1e3 * spent,
    }  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--record")
    parser.add_argument("--samples", type=int, default=21)
    given = parser.parse_args()
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None or not usable():
        print("there is no C compiler for this processor")
        return 1
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        held, tokens = weights(), ts.tensor(RNG.integers(0, WORDS, 16).astype(np.int32))
        ts.bundle.save(gpt, folder / "gpt.tess", tokens, weights=held)
        record(folder / "record", [tokens, ts.jit(gpt)(held, tokens)])
        source = [str(HERE / "run.c"), str(SOURCE), "-I", str(INCLUDE), "-pthread", "-ldl"]
        subprocess.run(
            [compiler, "-O2", "-D_GNU_SOURCE", *source, "-o", str(folder / "run")], check=True
        )
        size = (folder / "gpt.tess").stat().st_size
        without_pieces(folder / "gpt.tess", folder / "stream.tess")
        found: dict[str, list[dict[str, float]]] = {"gpt": [], "stream": []}
        for _ in range(given.samples):
            for name, rows in found.items():
                rows.append(sample(folder, name))
    row: dict[str, Any] = {
        "bytes": size, "cores": os.cpu_count(), "machine": platform.machine(), "load": os.getloadavg()[0],
    }  # fmt: skip
    for name, rows in found.items():
        of = {k: [r[k] for r in rows] for k in rows[0]}
        row["by pieces" if name == "gpt" else "as one stream"] = {
            k: {"median": round(statistics.median(x), 2), "least": round(min(x), 2)} for k, x in of.items()
        }  # fmt: skip
    print(json.dumps(row, indent=1))
    if given.record:
        Path(given.record).write_text(json.dumps(row, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
