"""Random programs in bundles: C has the bits of Python, for a program, and for a loop that it is the body of.

    python -m tools.fuzz_bundles --seed 1 --count 100 [--sanitize] [--batch 8] [--record FILE]

The programs are those of tools/fuzz.py.  Each is an entry point, and once more the body of a scan of four
steps, which carries results of its arguments' types and stacks the others, and of a while_loop.  A batch of
them is a bundle; `ts.jit`, the bundle in Python and a C program on 1 and 3 threads run every entry point.
What only Python can run is counted and left out.  `--sanitize` builds the C program with AddressSanitizer
and UBSan.
"""

from __future__ import annotations

import argparse
import json
import platform
import shutil
import subprocess
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

import tessera as ts
from tessera.core.errors import NumericalError, TesseraError
from tessera.native import INCLUDE, SOURCE
from tests.deploy.test_bundle_c import record
from tests.fuzz import session
from tests.fuzz.checks import Broken, arrays, same

ROOT = Path(__file__).parent.parent
THREADS = (1, 3)
STEPS = 4
MOST = 16  # inputs or outputs of tests/native/run.c
Function = Callable[..., Any]


def stepped(f: Function, carry: tuple[Any, ...]) -> tuple[tuple[Any, ...], list[Any]]:
    """What follows a carry: results that have a carry's type take its place; and all results."""
    made = ts.tree.leaves(f(*carry))
    left, after = list(made), []
    for x in carry:
        fit = next((y for y in left if (y.shape, y.dtype) == (x.shape, x.dtype)), None)
        left = [y for y in left if y is not fit]
        after.append(x if fit is None else fit)
    return tuple(after[1:] + after[:1]) if _turns(carry) else tuple(after), made


def _turns(carry: tuple[Any, ...]) -> bool:
    """Whether carries change places: where all are of one type."""
    return len({(x.shape, x.dtype) for x in carry}) == 1


def scanned(f: Function) -> Function:
    """A loop over a program."""
    return lambda *xs: ts.scan(lambda c, _: stepped(f, c), xs, None, length=STEPS)


def repeated(f: Function) -> Function:
    """A loop over a program that ends by a test."""

    def run(*xs: Any) -> Any:
        def step(s: Any) -> Any:
            return s[0] + 1, stepped(f, s[1])[0]

        zero = ts.tensor(np.int32(0))
        return ts.while_loop(lambda s: s[0] < STEPS - 1, step, (zero, xs))[1]

    return run


def cases(seed: int) -> Iterator[tuple[str, Function, list[Any]]]:
    """The entry points of a seed: those that run."""
    p = session.drawn(seed)
    f, xs = p.function(), p.tensors
    for name, g in ((f"p{seed}", f), (f"s{seed}", scanned(f)), (f"w{seed}", repeated(f))):
        try:
            outs = ts.tree.leaves(ts.jit(g)(*xs))
        except TesseraError:  # what is carried is no argument that the program takes
            continue
        if len(xs) <= MOST and 0 < len(outs) <= MOST:
            yield name, g, xs


def build(out: Path, sanitize: bool) -> Path:
    """The C program."""
    flags = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-g"] if sanitize else []
    files = [str(ROOT / "tests" / "native" / "run.c"), str(SOURCE), "-I", str(INCLUDE)]
    front = [str(shutil.which("gcc") or shutil.which("cc")), "-O1", "-D_GNU_SOURCE", "-pthread"]
    subprocess.run([*front, *flags, *files, "-ldl", "-o", str(out)], check=True)
    return out


def batch(seeds: range, folder: Path, program: Path, counts: Counter[str]) -> list[str]:
    """What is wrong with the programs of some seeds."""
    wrong: list[str] = []
    entries = {name: (g, *xs) for seed in seeds for name, g, xs in cases(seed)}
    path = folder / "batch.tess"
    ts.bundle.save(entries, path, python_only=True, threads=3)
    loaded = ts.bundle.load(path)
    for name, (g, *xs) in entries.items():
        counts["programs" if name[0] == "p" else "loops"] += 1
        if any(loaded.manifest["entries"][name]["hosted"].values()):
            counts["for Python alone"] += 1
            continue
        try:
            outs = arrays(loaded.entry(name)(*xs))
            same("the bundle and jit", outs, arrays(ts.jit(g)(*xs)))
        except NumericalError:
            counts["without a result"] += 1
            continue
        except Broken as e:
            wrong.append(f"{name}: {e}")
            continue
        record(folder / "run.record", [*xs, *outs])
        for n in THREADS:
            run = [str(program), str(path), str(folder / "run.record"), name, str(n), "2"]
            done = subprocess.run(run, capture_output=True, text=True, check=False, timeout=300)
            counts["runs in C"] += 1
            if done.returncode or "the same bits" not in done.stderr:
                wrong.append(f"{name} on {n} threads: {done.returncode}: {done.stderr[-1500:]}")
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=40)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--sanitize", action="store_true")
    parser.add_argument("--record")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    counts: Counter[str] = Counter()
    wrong: list[str] = []
    with tempfile.TemporaryDirectory() as at:
        folder = Path(at)
        program = build(folder / "run", given.sanitize)
        for first in range(given.seed, given.seed + given.count, given.batch):
            seeds = range(first, min(first + given.batch, given.seed + given.count))
            found = batch(seeds, folder, program, counts)
            wrong += found
            print(f"{seeds.stop - given.seed}: {dict(counts)}", *found, sep="\n", flush=True)
    if given.record:
        told = {
            "machine": platform.machine(), "seeds": [given.seed, given.seed + given.count - 1],
            "sanitizers": given.sanitize, **counts, "wrong": wrong,
        }  # fmt: skip
        Path(given.record).write_text(json.dumps(told, indent=1) + "\n")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
