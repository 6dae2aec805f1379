"""Bundles in C beside the same programs in Python: the time of a run, and what a call costs.

    python benchmarks/deployed.py [--rounds 40] [--only NAME...] [--threads 1 2] [--chosen N] [--loops]
                                  [--record FILE]

The ways run in turn, a block of runs each: `jit` and `bundle` in this process, `c` in a process of its own,
which waits in between and whose start is not part of it.  A block gives its median run and its least one.
`ratio` is the median over rounds of the time of C over the time of `jit`, both of the same round; `least` is
the least run of C over the least run of `jit`, and `work` the same of the processor time of all threads:
other work on the machine disturbs these less.
`call` is a kernel that adds two vectors of 16 numbers, where the time is all overhead.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import cold_start
import numpy as np

import tessera as ts
from tessera import op
from tessera.core.flags import override
from tessera.deploy.targets import usable
from tessera.native import INCLUDE, SOURCE

BLOCK = 0.05  # seconds
RNG = np.random.default_rng(3)

# program BUNDLE ENTRY THREADS INPUTS: the inputs have, each, a number of axes, sizes, bytes.  It reads lines
# of seconds and runs each for so long; a line out is a median run, the least,
# and the least processor time.  A run of 0 seconds is that of 10,000, whose mean stands for all three.
PROGRAM = r"""
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include "tessera/tessera.h"
static double now(clockid_t which) {
  struct timespec t;
  clock_gettime(which, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}
static void check(tess_status_t status) {
  if (!status) return;
  fprintf(stderr, "%s\n", tess_last_error());
  exit(1);
}
static int order(const void *a, const void *b) {
  return (*(const double *)a > *(const double *)b) - (*(const double *)a < *(const double *)b);
}
int main(int argc, char **argv) {
  static double times[1 << 20], work[1 << 20];
  TessBundle *bundle;
  TessEntry *entry;
  TessValueInfo info;
  TessTensorDesc in[16], out[16] = {0};
  uint32_t n, m, i;
  double seconds;
  FILE *file;
  if (argc != 5 || !(file = fopen(argv[4], "rb"))) return 2;
  check(tess_set_threads((uint32_t)atoi(argv[3])));
  check(tess_bundle_open(argv[1], 0, &bundle));
  check(tess_entry_open(bundle, argv[2], &entry));
  n = tess_entry_input_count(entry), m = tess_entry_output_count(entry);
  for (i = 0; i < n; i++) {
    int64_t rank, shape[TESS_MAX_RANK];
    check(tess_entry_input(entry, i, &info));
    if (fread(&rank, 8, 1, file) != 1 || fread(shape, 8, (size_t)rank, file) != (size_t)rank) return 3;
    check(tess_tensor_init(&in[i], info.dtype, (uint32_t)rank, shape, NULL));
    in[i].data = aligned_alloc(64, (in[i].bytes + 63) / 64 * 64);
    if (fread(in[i].data, 1, in[i].bytes, file) != in[i].bytes) return 3;
  }
  for (i = 0; i < 3; i++) check(tess_entry_run(entry, in, n, out, m));
  while (scanf("%lf", &seconds) == 1) {
    double start = now(CLOCK_MONOTONIC), last = start;
    int k, few = 10000;
    double begun = now(CLOCK_PROCESS_CPUTIME_ID);
    for (k = 0; !seconds && k < few; k++) check(tess_entry_run(entry, in, n, out, m));
    if (!seconds) {
      times[0] = (now(CLOCK_MONOTONIC) - start) / few, k = 1;
      work[0] = (now(CLOCK_PROCESS_CPUTIME_ID) - begun) / few;
    }
    for (; seconds && k < 1 << 20 && last - start < seconds; k++) {
      double before = last;
      begun = now(CLOCK_PROCESS_CPUTIME_ID);
      check(tess_entry_run(entry, in, n, out, m));
      work[k] = now(CLOCK_PROCESS_CPUTIME_ID) - begun;
      last = now(CLOCK_MONOTONIC), times[k] = last - before;
    }
    qsort(times, (size_t)k, sizeof *times, order);
    qsort(work, (size_t)k, sizeof *work, order);
    printf("%.9f %.9f %.9f\n", times[k / 2], times[0], work[0]);
    fflush(stdout);
  }
  return 0;
}
"""


def normal(*shape: int) -> Any:
    return ts.tensor((0.1 * RNG.normal(size=shape)).astype(np.float32))


K1, K2, DENSE = normal(32, 3, 3, 3), normal(64, 32, 3, 3), normal(64, 10)
A, B = normal(192, 192), normal(128, 128)
TOKENS = ts.tensor(RNG.integers(0, cold_start.WORDS, 64).astype(np.int32))


def cnn(x: Any) -> Any:
    y = op.max_pool(op.relu(op.conv2d(x, K1, padding=1)), 2)
    y = op.mean(op.relu(op.conv2d(y, K2, padding=1)), axis=(2, 3))
    return op.softmax(op.matmul(y, DENSE), axis=-1)


def heat(f: Any) -> Any:
    """A step of the heat equation on a torus, by its spectrum."""
    n = f.shape[-1]
    k = np.fft.fftfreq(n, 1 / n)
    factor = ts.tensor(np.exp(-0.01 * (k[:, None] ** 2 + k[None] ** 2)).astype(np.float32))
    return op.real(op.ifft2(op.fft2(f) * factor))


def kronecker(x: Any) -> Any:
    return op.kronecker(op.dense(A), op.dense(B)) @ x


def call(x: Any, y: Any) -> Any:
    return x + y


def schroedinger(u: Any) -> Any:
    """Steps of Schroedinger's equation on a line, by the spectrum and in place: complex numbers."""
    n = u.shape[-1]
    k = np.fft.fftfreq(n, 1 / n)
    moved = ts.tensor(np.exp(-0.0005j * k**2).astype(np.complex64))
    turned = ts.tensor(np.exp(-0.01j * np.linspace(-3, 3, n) ** 2).astype(np.complex64))
    for _ in range(4):
        u = op.ifft(op.fft(u * turned) * moved)
    return u, op.sum(op.abs(u) ** 2)


WAVE = ts.tensor((RNG.normal(size=1024) + 1j * RNG.normal(size=1024)).astype(np.complex64))


def mixture(x: Any, means: Any) -> Any:
    """A step of expectation and maximisation for Gaussians: factors of small matrices."""
    d = means.shape[1]
    apart = x[None] - means[:, None]
    spread = op.matmul(op.transpose(apart, (0, 2, 1)), apart) / x.shape[0] + 0.1 * ts.tensor(
        np.eye(d, dtype=np.float32)
    )
    low = op.cholesky(spread)
    z = op.triangular_solve(low, op.transpose(apart, (0, 2, 1)), lower=True)
    logs = -0.5 * op.sum(z * z, axis=1) - 0.5 * op.slogdet(spread)[1][:, None]
    share = op.softmax(logs, axis=0)
    return op.matmul(share, x) / op.sum(share, axis=1)[:, None], op.logsumexp(logs, axis=0)


def table(xs: Any, at: Any) -> Any:
    """Linear interpolation in a table."""
    xs = op.cumsum(op.abs(xs) + 0.001, axis=0)
    at = op.abs(at) * 100.0
    i = op.clip(op.searchsorted(xs, at), 1, xs.shape[0] - 1)
    a, b = op.take(xs, i - 1, axis=0), op.take(xs, i, axis=0)
    return (at - a) / (b - a)


def torus(x: Any) -> Any:
    return op.roll(x, 1, 0) + op.roll(x, -1, 0) + op.roll(x, 1, 1) + op.roll(x, -1, 1) - 4 * x


HALVES = {"a": normal(512, 2048), "b": normal(2048, 512)}


def narrow(p: Any, x: Any) -> Any:
    """What is made of weights alone: it is computed once."""
    a, b = (op.tanh(w * 3.0) / op.sum(op.abs(w), axis=0) for w in (p["a"], p["b"]))
    return op.matmul(op.gelu(op.matmul(x, a)), b)


def adam(x: Any) -> Any:
    """Thirty steps of Adam on two layers, a loop whose state is 200 kB."""

    def loss(w: Any) -> Any:
        return op.mean((op.matmul(op.tanh(op.matmul(x, w[0])), w[1]) - x) ** 2)

    def step(s: Any, _: Any) -> Any:
        w, m, v = s
        g = ts.grad(loss)(w)
        m = tuple(0.9 * a + 0.1 * b for a, b in zip(m, g, strict=True))
        v = tuple(0.99 * a + 0.01 * b * b for a, b in zip(v, g, strict=True))
        rows = zip(w, m, v, strict=True)
        return (tuple(a - 0.01 * b / (op.sqrt(c) + 1e-6) for a, b, c in rows), m, v), None

    zero = (ts.zeros((128, 64)), ts.zeros((64, 128)))
    return ts.scan(step, ((W1, W2), zero, zero), None, length=30)[0][0]


W1, W2 = normal(128, 64), normal(64, 128)


def orders(x: Any) -> Any:
    return op.sort(x), op.argsort(x), op.topk(x, 5)


PROGRAMS: dict[str, tuple[Callable[..., Any], tuple[Any, ...], Any]] = {
    "gpt": (cold_start.gpt, (TOKENS,), cold_start.weights()), "cnn": (cnn, (normal(8, 3, 64, 64),), None),
    "heat": (heat, (normal(512, 512),), None), "kronecker": (kronecker, (normal(192 * 128),), None),
    "call": (call, (normal(16), normal(16)), None),
    "schroedinger": (schroedinger, (WAVE,), None),
    "mixture": (mixture, (normal(2000, 4), normal(8, 4)), None),
    "table": (table, (normal(4096), normal(100_000)), None), "torus": (torus, (normal(512, 512),), None),
    "narrow": (narrow, (normal(8, 512),), HALVES), "adam": (adam, (normal(64, 128),), None),
    "orders": (orders, (normal(64, 1000),), None),
}  # fmt: skip


class Block(NamedTuple):
    """Of the runs of a block: the median, the least, and the least processor time, of all threads."""

    middle: float
    least: float
    work: float


def in_python(f: Callable[..., Any], args: tuple[Any, ...]) -> Block:
    times, work, start = [], [], time.perf_counter()
    last = start
    while last - start < BLOCK:
        before, begun = last, time.process_time_ns()
        f(*args)
        work.append(1e-9 * (time.process_time_ns() - begun))
        last = time.perf_counter()
        times.append(last - before)
    return Block(statistics.median(times), min(times), min(work))


def in_c(program: subprocess.Popen[str], name: str) -> Block:
    assert program.stdin is not None
    assert program.stdout is not None
    program.stdin.write(f"{0 if name == 'call' else BLOCK}\n")
    program.stdin.flush()
    return Block(*map(float, program.stdout.readline().split()))


def measured(name: str, folder: Path, threads: int, rounds: int) -> dict[str, Any]:
    f, args, weights = PROGRAMS[name]
    held = () if weights is None else (weights,)
    jitted, loaded = ts.jit(f), ts.bundle.load(folder / f"{name}.tess").entry(name)
    bits = [[np.asarray(x).tobytes() for x in ts.tree.leaves(y)]
        for y in (jitted(*held, *args), loaded(*args))]  # fmt: skip
    assert bits[0] == bits[1], name
    found: dict[str, list[Block]] = {"jit": [], "bundle": [], "c": []}
    run = [str(folder / x) for x in ("program", f"{name}.tess")]
    last = [name, str(threads), str(folder / f"{name}.in")]
    pipe = subprocess.PIPE
    with subprocess.Popen([*run, *last], stdin=pipe, stdout=pipe, text=True) as program:
        for _ in range(rounds):
            found["jit"].append(in_python(jitted, (*held, *args)))
            found["c"].append(in_c(program, name))
            found["bundle"].append(in_python(loaded, args))
        program.communicate("")
    out: dict[str, Any] = {
        k: {"us": round(1e6 * statistics.median(x.middle for x in rows), 3),
            "least": round(1e6 * min(x.least for x in rows), 3),
            "work": round(1e6 * min(x.work for x in rows), 3)} for k, rows in found.items()
    }  # fmt: skip
    pairs = zip(found["c"], found["jit"], strict=True)
    ratio = round(statistics.median(c.middle / j.middle for c, j in pairs), 3)
    least, work = (round(out["c"][k] / out["jit"][k], 3) for k in ("least", "work"))
    return {**out, "ratio": ratio, "least": least, "work": work}


def build(folder: Path) -> None:
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None or not usable():
        raise SystemExit("there is no C compiler for this processor")
    (folder / "program.c").write_text(PROGRAM)
    files = [str(folder / "program.c"), str(SOURCE), "-I", str(INCLUDE), "-pthread", "-ldl"]
    flags = ["-O2", "-D_GNU_SOURCE"]
    subprocess.run([compiler, *flags, *files, "-o", str(folder / "program")], check=True)


def loops() -> dict[str, tuple[Callable[..., Any], tuple[Any, ...], Any]]:
    """The programs with loops that benchmarks/cpu_sweep.py runs beside JAX."""
    from beside_jax import programs

    return {
        c.name: (c.ours, tuple(ts.tensor(x) for x in c.operands), None) for c in programs.cases()
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--record")
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--only", nargs="+")
    parser.add_argument("--threads", type=int, nargs="+")
    parser.add_argument(
        "--chosen", type=int, help="threads that bundles are for, if not those that run"
    )
    parser.add_argument(
        "--loops", action="store_true", help="programs with loops, for which jax is needed"
    )
    given = parser.parse_args()
    if given.loops:
        PROGRAMS.clear()
        PROGRAMS.update(loops())
    rows: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as at:
        folder = Path(at)
        build(folder)
        for name in PROGRAMS if given.only is None else given.only:
            f, args, weights = PROGRAMS[name]
            with (folder / f"{name}.in").open("wb") as out:
                for x in map(np.asarray, args):
                    out.write(struct.pack(f"<{1 + x.ndim}q", x.ndim, *x.shape) + x.tobytes())
            for n in given.threads or sorted({1, len(os.sched_getaffinity(0))}):
                # Loops are chosen for the threads that run them, in `jit` and in the bundle.
                entry = {name: (f, *args)}
                chosen = given.chosen or n
                ts.bundle.save(entry, folder / f"{name}.tess", weights=weights, threads=chosen)
                with override(threads=n):
                    row = measured(name, folder, n, given.rounds)
                rows[f"{name}, {n} threads"] = row
                print(f"{name}, {n} threads: {json.dumps(row)}", flush=True)
    whole = {
        "cores": os.cpu_count(), "machine": platform.machine(), "load": os.getloadavg()[0],
        "targets": usable(), "rows": rows,
    }  # fmt: skip
    if given.record:
        Path(given.record).write_text(json.dumps(whole, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
