"""Damages bundles, headers and descriptors and gives them to the readers in Python and in C: none may crash.

    python -m tools.mutate_bundles --count 100000 --seed 1 [--python 10000] [--sanitize] [--record FILE]

Of the count, `--python` copies go to Python's reader and the rest to that of C, in batches that are processes of their
own.  A copy is a function of its seed and number.  Half of the copies have digests that fit them, so that the readers
behind the digests are reached.  Code of a copy that is not verified is never run.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tessera.core.errors import TesseraError
from tessera.deploy import bundle
from tessera.deploy.targets import usable
from tessera.native import INCLUDE
from tests.deploy import test_bundle_hostile as hostile

NATIVE = Path(hostile.__file__).parent / "native"
BATCH = 250


def make(path: Path) -> None:
    """Write the bundle that is damaged."""
    types = hostile.Tensor["n", 7], hostile.Tensor["2*n"]
    bundle.save(hostile.program, path, *types, targets=[f"cpu:{usable()[-1]}"])


def python_batch(whole: str, first: int, count: int) -> None:
    """Give copies to Python's reader; anything but a TesseraError ends the process."""
    with tempfile.TemporaryDirectory() as folder:
        hostile.attempt(Path(whole), Path(folder) / "f", range(first, first + count))


def in_python(whole: Path, seed: int, count: int) -> int:
    """How many batches of copies ended otherwise than well."""
    faults = 0
    context = multiprocessing.get_context("fork")
    for first in range(0, count, BATCH):
        n = min(BATCH, count - first)
        p = context.Process(target=python_batch, args=(str(whole), seed * 1_000_003 + first, n))
        p.start()
        p.join()
        if p.exitcode:
            faults += 1
            print(
                f"python: a batch of seed {seed} from {first} ended with {p.exitcode}", flush=True
            )
    return faults


def run_c(source: str, folder: Path, arguments: list[str], sanitize: bool) -> str:
    """Build a program of tests/native, run it, and give back what it says."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        raise TesseraError("mutate_bundles: there is no C compiler")
    checks = ["-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"] if sanitize else []
    out = folder / Path(source).stem
    front = [compiler, "-O1", *checks, "-D_GNU_SOURCE", "-I", str(INCLUDE), "-pthread"]
    subprocess.run([*front, str(NATIVE / source), "-o", str(out)], check=True)
    done = subprocess.run([str(out), *arguments], capture_output=True, text=True, check=False)
    if done.returncode or done.stderr:
        print(done.stderr[-2000:], flush=True)
    return done.stdout.strip() or f"ended with {done.returncode}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--python", type=int, default=None, help="a tenth unless given")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--sanitize", action="store_true")
    parser.add_argument("--record")
    given = parser.parse_args()
    python = given.count // 10 if given.python is None else given.python
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make(folder / "whole.tess")
        faults = in_python(folder / "whole.tess", given.seed, python)
        rest = str(given.count - python)
        arguments = [str(folder / "whole.tess"), rest, str(given.seed)]
        said = run_c("mutate.c", folder, arguments, given.sanitize)
    row: dict[str, Any] = {
        "seed": given.seed, "python": {"copies": python, "faults": faults}, "c": said,
        "sanitized": given.sanitize, "seconds": round(time.perf_counter() - start, 1),
    }  # fmt: skip
    print(json.dumps(row))
    if given.record:
        Path(given.record).write_text(json.dumps(row, indent=1) + "\n")
    return int(faults > 0 or not said.endswith(" 0 faults"))


if __name__ == "__main__":
    sys.exit(main())
