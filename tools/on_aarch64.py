"""Runs bundles for aarch64 in C, by qemu-user on another processor, and compares their bits with recorded runs.

    python -m tools.on_aarch64 [--threads 1 2 3] [--level O0 O3] [--record FILE]

Three sets: the files of tests/data, whose runs were recorded when they were committed; the programs of the tests of the C
runtime; and those of tools/bundle_digests, whose bundles have the digests that an aarch64 machine recorded.  The runs of
the last two are recorded here, by `ts.jit` on this processor.  It needs a C compiler for aarch64 and, elsewhere, qemu-user
(Debian: gcc-aarch64-linux-gnu, qemu-user).
"""

from __future__ import annotations

import argparse
import hashlib
import json
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import tessera as ts
from tessera.deploy.container import Container
from tessera.lang.annotation import TensorSpec
from tessera.native import INCLUDE, SOURCE
from tests.deploy import test_bundle_c as native
from tests.deploy.test_bundle_v1 import DATA, DIGESTS
from tools import bundle_digests

HERE = platform.machine() == "aarch64"
SIZES = {"B": 5, "S": 7}  # of symbolic inputs
_WORDS = 61  # integers of inputs are below, as tables of the programs have so many rows or more


class Case(NamedTuple):
    """A bundle and a run of it, whose inputs and outputs are a file that tests/native/run.c reads."""

    name: str
    entry: str
    bundle: Path
    record: Path


def emulator() -> str | None:
    """qemu-user for aarch64; "" where none is needed, None where it is missing."""
    return "" if HERE else shutil.which("qemu-aarch64") or shutil.which("qemu-aarch64-static")


def compiler() -> str | None:
    """A C compiler for aarch64."""
    return shutil.which("gcc") if HERE else shutil.which("aarch64-linux-gnu-gcc")


def build(out: Path, source: str, *flags: str) -> Path:
    """A program of tests/native for aarch64, without libraries."""
    front = [str(compiler()), "-std=c99", "-D_GNU_SOURCE", "-pthread", "-static", "-w", *flags]
    files = [str(native.HERE / source), str(SOURCE), "-I", str(INCLUDE)]
    subprocess.run([*front, *files, "-o", str(out)], check=True, stderr=subprocess.DEVNULL)
    return out


def run(program: Path, *args: str | Path) -> subprocess.CompletedProcess[str]:
    """Run a program for aarch64."""
    front = [x for x in [emulator()] if x]
    command = [*front, str(program), *map(str, args)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)


def kept() -> Iterator[Case]:
    """The committed files of format version 1."""
    for name in DIGESTS:
        paths = [DATA / f"bundle-v1-{name}.{end}" for end in ("tess", "record")]
        yield Case(f"bundle-v1-{name}", name, *paths)


def recorded(folder: Path, name: str, f: Any, given: Sequence[Any], weights: Any) -> Path:
    """A run on this processor."""
    held = () if weights is None else (weights,)
    outs = ts.jit(f)(*held, *given)
    path = folder / f"{name}.record"
    native.record(path, [*ts.tree.leaves(given), *ts.tree.leaves(outs)])
    return path


def of_tests(folder: Path, *only: str) -> Iterator[Case]:
    """The programs of the tests of the C runtime."""
    for name, (f, args, weights) in native.PROGRAMS.items():
        if only and name not in only:
            continue
        path = folder / f"{name}.tess"
        ts.bundle.save({name: (f, *args)}, path, targets=["cpu:aarch64"], weights=weights)
        given = native.OTHER.get(name, args)
        yield Case(name, name, path, recorded(folder, name, f, given, weights))


def _drawn(x: Any, seed: int) -> Any:
    """Data for an argument: numbers for zeros, at SIZES for an annotation."""
    if isinstance(x, TensorSpec):
        return bundle_digests.normal(seed, *(SIZES.get(str(n), n) for n in x.shape))
    return x if x.dtype.kind == "i" else bundle_digests.normal(seed, *x.shape)


def of_digests(folder: Path) -> Iterator[Case]:
    """The programs of tools/bundle_digests."""
    for name, (f, args, weights, _) in bundle_digests.table().items():
        path = folder / f"digest-{name}.tess"
        bundle_digests.make(name, path, bundle_digests.CPU)
        given = [_drawn(x, 50 + i) for i, x in enumerate(args)]
        yield Case(
            f"digest-{name}", name, path, recorded(folder, f"digest-{name}", f, given, weights)
        )


def runs_with_its_bits(case: Case, program: Path, threads: int) -> str:
    """What is wrong with a run; "" if nothing is."""
    done = run(program, case.bundle, case.record, case.entry, str(threads))
    same = done.returncode == 0 and "cpu:aarch64: the same bits" in done.stderr
    return "" if same else f"{done.returncode}: {done.stderr[-500:]}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--level", nargs="+", default=["O0", "O3"])
    parser.add_argument("--record")
    given = parser.parse_args()
    if emulator() is None or compiler() is None:
        print("there is no qemu-user, or no C compiler for aarch64")
        return 2
    whole: dict[str, Any] = {"machine": platform.machine(), "by": _version(), "cases": {}}
    bad = 0
    with tempfile.TemporaryDirectory() as at:
        folder = Path(at)
        programs = {x: build(folder / x, "run.c", f"-{x}") for x in given.level}
        for case in (*kept(), *of_tests(folder), *of_digests(folder)):
            runs = {
                f"-{level}, {n} threads": runs_with_its_bits(case, program, n)
                for level, program in programs.items()
                for n in given.threads
            }
            wrong = {k: x for k, x in runs.items() if x}
            bad += len(wrong)
            data = hashlib.sha256(case.record.read_bytes()).hexdigest()
            row = {
                "runs": len(runs),
                "same bits": len(runs) - len(wrong),
                "inputs and outputs": data,
            }
            whole["cases"][case.name] = {"bundle": Container(case.bundle).digest.hex(), **row}
            print(f"{case.name}: {row['same bits']} of {row['runs']}", *wrong.values(), flush=True)
    if given.record:
        Path(given.record).write_text(json.dumps(whole, indent=1) + "\n")
    return int(bool(bad))


def _version() -> str:
    if HERE:
        return "this processor"
    told = subprocess.run(
        [str(emulator()), "--version"], capture_output=True, text=True, check=True
    )
    found = re.search(r"version \S+", told.stdout)
    return f"qemu-user {found[0] if found else ''}"


if __name__ == "__main__":
    sys.exit(main())
