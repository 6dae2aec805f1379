"""Bundles in C beside the same programs in Python: the time of a run, and what a call costs.

    python benchmarks/deployed.py [--rounds 9] [--only NAME] [--threads 1 16] [--record FILE]

A round measures each way for a third of a second, one after the other: `jit` and `bundle` in this process,
`c` in a process of its own, whose start is not part of it.  A figure is the median over rounds of each
round's median run.
`ratio` is the time of C over the time of `jit`.  `call` is a kernel that adds two vectors of 16 numbers,
where the time is all overhead: the mean of a million calls.
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
from typing import Any

import cold_start
import numpy as np

import tessera as ts
from tessera import op
from tessera.core.flags import override
from tessera.deploy.targets import usable
from tessera.native import INCLUDE, SOURCE

BLOCK = 0.3  # seconds
RNG = np.random.default_rng(3)

# program BUNDLE ENTRY THREADS SECONDS MODE < inputs: each has its number of axes, its sizes, its
# bytes.  MODE 0 prints the
# median run, MODE 1 the mean of a million.
PROGRAM = r"""
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include "tessera/tessera.h"
static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
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
  static double times[1 << 20];
  TessBundle *bundle;
  TessEntry *entry;
  TessValueInfo info;
  TessTensorDesc in[8], out[8] = {0};
  uint32_t n, m, i;
  int k = 0, million = 1000000;
  double start, last;
  if (argc != 6) return 2;
  check(tess_set_threads((uint32_t)atoi(argv[3])));
  check(tess_bundle_open(argv[1], 0, &bundle));
  check(tess_entry_open(bundle, argv[2], &entry));
  n = tess_entry_input_count(entry), m = tess_entry_output_count(entry);
  for (i = 0; i < n; i++) {
    int64_t rank, shape[TESS_MAX_RANK];
    check(tess_entry_input(entry, i, &info));
    if (fread(&rank, 8, 1, stdin) != 1 || fread(shape, 8, (size_t)rank, stdin) != (size_t)rank) return 3;
    check(tess_tensor_init(&in[i], info.dtype, (uint32_t)rank, shape, NULL));
    in[i].data = aligned_alloc(64, (in[i].bytes + 63) / 64 * 64);
    if (fread(in[i].data, 1, in[i].bytes, stdin) != in[i].bytes) return 3;
  }
  for (i = 0; i < 3; i++) check(tess_entry_run(entry, in, n, out, m));
  start = now();
  if (atoi(argv[5])) {
    for (k = 0; k < million; k++) check(tess_entry_run(entry, in, n, out, m));
    printf("%.9f\n", (now() - start) / million);
    return 0;
  }
  for (last = start; k < 1 << 20 && last - start < atof(argv[4]); k++) {
    double before = last;
    check(tess_entry_run(entry, in, n, out, m));
    last = now(), times[k] = last - before;
  }
  qsort(times, (size_t)k, sizeof *times, order);
  printf("%.9f\n", times[k / 2]);
  return 0;
}
"""


def normal(*shape: int) -> Any:
    return ts.tensor((0.1 * RNG.normal(size=shape)).astype(np.float32))


K1, K2, DENSE = normal(32, 3, 3, 3), normal(64, 32, 3, 3), normal(64, 10)
A, B = normal(192, 192), normal(128, 128)


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


TOKENS = ts.tensor(RNG.integers(0, cold_start.WORDS, 64).astype(np.int32))
PROGRAMS: dict[str, tuple[Callable[..., Any], tuple[Any, ...], Any]] = {
    "gpt": (cold_start.gpt, (TOKENS,), cold_start.weights()), "cnn": (cnn, (normal(8, 3, 64, 64),), None),
    "heat": (heat, (normal(512, 512),), None), "kronecker": (kronecker, (normal(192 * 128),), None),
    "call": (call, (normal(16), normal(16)), None),
}  # fmt: skip


def in_python(f: Callable[..., Any], args: tuple[Any, ...]) -> float:
    """The median run of a block."""
    times, start = [], time.perf_counter()
    last = start
    while last - start < BLOCK:
        before = last
        f(*args)
        last = time.perf_counter()
        times.append(last - before)
    return statistics.median(times)


def in_c(folder: Path, name: str, threads: int) -> float:
    run = [str(folder / "program"), str(folder / f"{name}.tess"), name, str(threads), str(BLOCK)]
    given = (folder / f"{name}.in").read_bytes()
    mode = str(int(name == "call"))
    return float(subprocess.run([*run, mode], input=given, capture_output=True, check=True).stdout)


def measured(name: str, folder: Path, threads: int, rounds: int) -> dict[str, Any]:
    f, args, weights = PROGRAMS[name]
    held = () if weights is None else (weights,)
    jitted, loaded = ts.jit(f), ts.bundle.load(folder / f"{name}.tess").entry(name)
    bits = [[np.asarray(x).tobytes() for x in ts.tree.leaves(y)]
        for y in (jitted(*held, *args), loaded(*args))]  # fmt: skip
    assert bits[0] == bits[1], name
    found: dict[str, list[float]] = {"jit": [], "bundle": [], "c": []}
    for _ in range(rounds):
        found["jit"].append(in_python(jitted, (*held, *args)))
        found["bundle"].append(in_python(loaded, args))
        found["c"].append(in_c(folder, name, threads))
    out: dict[str, Any] = {
        k: {"us": round(1e6 * statistics.median(x), 3), "least": round(1e6 * min(x), 3)} for k,
        x in found.items()
    }  # fmt: skip
    pairs = zip(found["c"], found["jit"], strict=True)
    return {**out, "ratio": round(statistics.median(c / j for c, j in pairs), 3)}


def build(folder: Path) -> None:
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None or not usable():
        raise SystemExit("there is no C compiler for this processor")
    (folder / "program.c").write_text(PROGRAM)
    files = [str(folder / "program.c"), str(SOURCE), "-I", str(INCLUDE), "-pthread", "-ldl"]
    flags = ["-O2", "-D_GNU_SOURCE"]
    subprocess.run([compiler, *flags, *files, "-o", str(folder / "program")], check=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--record")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--only", choices=PROGRAMS)
    parser.add_argument("--threads", type=int, nargs="+")
    given = parser.parse_args()
    rows: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as at:
        folder = Path(at)
        build(folder)
        for name in PROGRAMS if given.only is None else [given.only]:
            f, args, weights = PROGRAMS[name]
            with (folder / f"{name}.in").open("wb") as out:
                for x in map(np.asarray, args):
                    out.write(struct.pack(f"<{1 + x.ndim}q", x.ndim, *x.shape) + x.tobytes())
            for n in given.threads or sorted({1, len(os.sched_getaffinity(0))}):
                # Loops are chosen for the threads that run them, in `jit` and in the bundle.
                entry = {name: (f, *args)}
                ts.bundle.save(entry, folder / f"{name}.tess", weights=weights, threads=n)
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
