"""Bundles for cuda:sm_90 made where no GPU is seen, run on a GPU from Python and from C: their bits, and
their times.

python benchmarks/gpu_bundle.py --check
python benchmarks/gpu_bundle.py --time --record FILE
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
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
from tessera.native import INCLUDE, SOURCE

ROOT = Path(__file__).parent.parent
RNG = np.random.default_rng(11)


def normal(*shape: int, scale: float = 1.0) -> Any:
    return ts.tensor((scale * RNG.normal(size=shape)).astype(np.float32))


# Programs -----------------------------------------------------------------------------------------

WORDS, WIDTH, HEADS, DEPTH = 512, 128, 4, 2


def gpt_weights() -> Any:
    def block() -> Any:
        return {
            "qkv": normal(WIDTH, 3 * WIDTH, scale=0.1), "out": normal(WIDTH, WIDTH, scale=0.1),
            "up": normal(WIDTH, 4 * WIDTH, scale=0.1), "down": normal(4 * WIDTH, WIDTH, scale=0.1),
            "gain1": normal(WIDTH), "gain2": normal(WIDTH),
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
    logits = op.matmul(h, op.transpose(p["embed"], (1, 0)))
    return op.argmax(logits, axis=-1), logits


def mlp(p: Any, x: Any) -> Any:
    return op.softmax(op.matmul(op.gelu(op.matmul(x, p["a"]) + p["b"]), p["c"]), axis=-1)


def product(a: Any, b: Any) -> Any:
    return op.matmul(a, b)


def rows(x: Any) -> Any:
    return {"norm": op.layernorm(x), "sum": op.sum(x, axis=0), "running": op.cumsum(x, axis=-1)}


def cnn(p: Any, x: Any) -> Any:
    y = op.max_pool(op.relu(op.conv2d(x, p["a"], padding=1)), 2)
    return op.softmax(op.mean(op.relu(op.conv2d(y, p["b"], padding=1)), axis=(2, 3)), axis=-1)


def kronecker(p: Any, x: Any) -> Any:
    return op.kronecker(op.dense(p["a"]), op.dense(p["b"])) @ x


def wide(q: Any, k: Any, v: Any) -> Any:
    return op.attention(q, k, v, causal=True)


def half(*shape: int) -> Any:
    return normal(*shape).astype(ts.bf16)


def cases() -> dict[str, tuple[Any, tuple[Any, ...], Any]]:
    """Functions with arguments and weights, the same in every process; sizes are odd, prime, tiny and
    usual ones.
    """
    global RNG
    RNG = np.random.default_rng(11)
    tokens = ts.tensor(RNG.integers(0, WORDS, 48).astype(np.int32))
    dense = {"a": normal(64, 96), "b": normal(96), "c": normal(96, 10)}
    held = gpt_weights()
    return {
        "gpt": (gpt, (tokens,), held),
        "mlp": (mlp, (normal(32, 64),), dense), "mlp_one": (mlp, (normal(1, 64),), dense),
        "product": (product, (half(256, 512), half(512, 384)), None),
        "product_large": (product, (half(2048, 1024), half(1024, 2048)), None),
        "product_prime": (product, (normal(37, 101), normal(101, 53)), None),
        "vector": (product, (half(1, 4096), half(4096, 1024)), None),
        "rows": (rows, (normal(17, 129),), None), "rows_tiny": (rows, (normal(1, 1),), None),
        "cnn": (cnn, (normal(2, 3, 16, 16),), {"a": normal(8, 3, 3, 3), "b": normal(16, 8, 3, 3)}),
        "kronecker": (kronecker, (normal(48),), {"a": normal(8, 8), "b": normal(6, 6)}),
        "attention": (wide, (half(8, 512, 64), half(8, 512, 64), half(8, 512, 64)), None),
        "attention_128": (wide, (half(4, 1024, 128), half(4, 1024, 128), half(4, 1024, 128)), None),
    }  # fmt: skip


# Making, running ----------------------------------------------------------------------------------


def make(folder: Path, names: list[str]) -> None:
    """Write bundles, in a process that sees no GPU, and a note of each."""
    for name, (f, args, weights) in cases().items():
        if name not in names:
            continue
        start, wrong = time.perf_counter(), ""
        try:
            entry = {name: (f, *args)}
            ts.bundle.save(entry, folder / f"{name}.tess", targets=["cuda:sm_90"], weights=weights)
        except ts.TesseraError as e:
            wrong = str(e)
        note = {"s": round(time.perf_counter() - start, 1), "wrong": wrong}
        seen = list(map(str, ts.devices()))
        (folder / f"{name}.json").write_text(json.dumps({**note, "devices": seen}))


def make_apart(folder: Path) -> dict[str, Any]:
    """Write all bundles, in several processes; the notes of them."""
    env = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    names = list(cases())
    seats = min(len(names), max(2, len(os.sched_getaffinity(0))), 7)
    running = [
        subprocess.Popen(
            [sys.executable, __file__, "--make", str(folder), *names[i::seats]], env=env
        )
        for i in range(seats)
    ]
    for p in running:
        p.wait(timeout=90)
    notes = {n: folder / f"{n}.json" for n in names}
    return {n: json.loads(p.read_text()) if p.exists() else {} for n, p in notes.items()}


def compiled(folder: Path) -> Path | None:
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        return None
    source = ROOT / "tests" / "native" / "gpu.c"
    run = [
        compiler,
        "-O1",
        "-D_GNU_SOURCE",
        "-pthread",
        "-I",
        str(INCLUDE),
        str(source),
        str(SOURCE),
    ]
    subprocess.run([*run, "-ldl", "-o", str(folder / "gpu")], check=True)
    return folder / "gpu"


def record(path: Path, tensors: Any) -> None:
    with path.open("wb") as f:
        for x in tensors:
            f.write(struct.pack(f"<{1 + x.ndim}q", x.ndim, *x.shape) + x.tobytes())


def arrays(tree: Any) -> list[Any]:
    return [np.asarray(x.numpy()) for x in ts.tree.leaves(tree)]


def fits(got: Any, want: Any) -> bool:
    """Whether a result is near that of this processor, whose bits are another target's."""
    a, b = np.asarray(got, np.float64), np.asarray(want, np.float64)
    scale = np.abs(b).max(initial=1e-6)
    narrow = got.dtype.itemsize == 2
    return bool(
        np.isfinite(a).all() and np.abs(a - b).max(initial=0) <= (2e-2 if narrow else 2e-4) * scale
    )


class Counts:
    """How many checks held, and a line for each that did not."""

    def __init__(self) -> None:
        self.good = self.bad = 0

    def __call__(self, holds: bool, what: str) -> None:
        self.good, self.bad = self.good + holds, self.bad + (not holds)
        if not holds:
            print(f"bad: {what}", flush=True)


def check_python(name: str, folder: Path, counts: Counts) -> tuple[list[Any], list[Any]] | None:
    """Run a bundle from Python; its inputs and outputs."""
    f, args, weights = cases_of[name]
    try:
        b = ts.bundle.load(folder / f"{name}.tess", device="cuda:0")
        got = arrays(b.run(*args))
    except Exception as e:
        counts(False, f"{name}: {type(e).__name__}: {e}")
        return None
    counts(b.entry(name).target == "cuda:sm_90", f"{name}: it ran on {b.entry(name).target}")
    there = [x.to("cuda:0") for x in args]
    again = arrays(b.run(*there))
    counts(
        all(x.tobytes() == y.tobytes() for x, y in zip(got, again, strict=True)), f"{name}: again"
    )
    held = () if weights is None else (ts.tree.map(lambda x: x.to("cuda:0"), weights),)
    jitted = arrays(ts.jit(f)(*held, *there))
    same = all(x.tobytes() == y.tobytes() for x, y in zip(got, jitted, strict=True))
    counts(same, f"{name}: other bits than the jitted function on this device")
    want = arrays(ts.jit(f)(*(() if weights is None else (weights,)), *args))
    floats = [(x, y) for x, y in zip(got, want, strict=True) if x.dtype.kind not in "iub"]
    counts(all(fits(x, y) for x, y in floats), f"{name}: far from this processor's result")
    return [np.asarray(x.numpy()) for x in args], got


def check_c(name: str, folder: Path, program: Path, times: int, counts: Counts) -> str:
    """Run a bundle from C against the record of Python's run; what it says."""
    run = [
        str(program),
        str(folder / f"{name}.tess"),
        str(folder / f"{name}.record"),
        name,
        str(times),
    ]
    done = subprocess.run(run, capture_output=True, text=True, check=False, timeout=60)
    counts(done.returncode == 0, f"{name} from C: {done.returncode} {done.stderr.strip()}")
    return done.stderr.strip()


cases_of: dict[str, Any] = {}


def check(folder: Path, end: float) -> int:
    counts, late = Counts(), 0
    program = compiled(folder)
    counts(program is not None, "there is no C compiler")
    for name in cases_of:
        if time.perf_counter() > end:
            late += 1
            continue
        note = json.loads((folder / f"{name}.json").read_text())
        counts(not note["wrong"], f"{name}: {note['wrong']}")
        counts(
            note["devices"] == ["cpu:0"], f"{name}: it was made where {note['devices']} are seen"
        )
        found = check_python(name, folder, counts)
        if found is None or program is None:
            continue
        record(folder / f"{name}.record", [*found[0], *found[1]])
        print(f"{name}: {check_c(name, folder, program, 20, counts)}", flush=True)
    print(f"check: {counts.good} ok, {counts.bad} bad, {late} had no time")
    return int(counts.bad > 0)


# Times --------------------------------------------------------------------------------------------


def median_us(run: Any, seconds: float) -> float:
    """The median time of a call that waits for its result."""
    run()
    times: list[float] = []
    end = time.perf_counter() + seconds
    while len(times) < 5 or (time.perf_counter() < end and len(times) < 2000):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return 1e6 * float(np.median(times))


def measure(folder: Path, seconds: float, path: str | None) -> None:
    """Ours from a bundle against ours jitted, from Python; and what the C program says of a run."""
    program, counts, table = compiled(folder), Counts(), []
    from tessera.runtime.cuda.device import gpu

    end = time.perf_counter() + seconds
    for name, (f, args, weights) in cases_of.items():
        if time.perf_counter() > end:
            break
        entry = ts.bundle.load(folder / f"{name}.tess", device="cuda:0").entry(name)
        there = [x.to("cuda:0") for x in args]
        held = () if weights is None else (ts.tree.map(lambda x: x.to("cuda:0"), weights),)
        jitted = ts.jit(f)
        ours = median_us(lambda e=entry, t=there: (e.run(*t), gpu().synchronize()), 0.4)
        other = median_us(lambda j=jitted, h=held, t=there: (j(*h, *t), gpu().synchronize()), 0.4)
        record(
            folder / f"{name}.record",
            [*[np.asarray(x.numpy()) for x in args], *arrays(entry.run(*args))],
        )
        said = check_c(name, folder, program, 200, counts) if program else ""
        in_c = (
            float(said.split("kernels, ")[1].split(" us")[0])
            if " us a run" in said
            else float("nan")
        )
        table.append({"case": name, "bundle_us": ours, "jit_us": other, "c_us": in_c})
    table.sort(key=lambda r: -r["bundle_us"] / r["jit_us"])
    print("case ours_us best_us ratio c_us")
    for r in table:
        ratio = r["bundle_us"] / r["jit_us"]
        print(f"{r['case']} {r['bundle_us']:.1f} {r['jit_us']:.1f} {ratio:.2f} {r['c_us']:.1f}")
    if path:
        Path(path).write_text(json.dumps(table, indent=1))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--make", nargs="+", metavar="FOLDER NAME")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--time", action="store_true")
    parser.add_argument("--record")
    parser.add_argument("--seconds", type=float, default=70.0)
    given = parser.parse_args()
    if given.make:
        make(Path(given.make[0]), given.make[1:])
        return 0
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        made = make_apart(folder)
        print(f"made without a GPU in {time.perf_counter() - start:.1f} s: {made}", flush=True)
        cases_of.update(cases())
        status = 0
        if given.check:
            status = check(folder, start + min(given.seconds + 25, 95))
        if given.time:
            measure(folder, given.seconds - (time.perf_counter() - start), given.record)
    return status


if __name__ == "__main__":
    sys.exit(main())
