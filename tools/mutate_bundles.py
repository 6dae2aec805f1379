"""Damages bundles, headers and descriptors and gives them to the readers in Python and in C: none may crash.

    python -m tools.mutate_bundles --count 100000 --seed 1 [--python 10000] [--descriptors 10000] [--jobs
    16] [--sanitize]
                                   [--record FILE]

Of the count, `--python` copies go to Python's reader, `--descriptors` are descriptors of tensors, operators
and graphs of these that C validates and applies, and the rest goes to the reader of C.  All run in batches
that are processes of their own, `--jobs` at once.  A copy is a function of its seed and number.  Half of
the copies have digests that fit them, so that the readers behind the digests are reached.  Code of a copy
that is not verified is never run.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import multiprocessing
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import connection
from pathlib import Path
from typing import Any

from tessera.core.errors import TesseraError
from tessera.deploy import bundle
from tessera.deploy.targets import usable
from tessera.native import INCLUDE, SOURCE
from tests.deploy import test_bundle_hostile as hostile
from tests.deploy import test_operator_graph as operators

NATIVE = Path(hostile.__file__).parents[1] / "native"
BATCH = 250


def make(path: Path) -> None:
    """Write the bundle that is damaged."""
    types = hostile.Tensor["n", 7], hostile.Tensor["2*n"]
    bundle.save(hostile.program, path, *types, targets=[f"cpu:{usable()[-1]}"])


def python_batch(whole: str, first: int, count: int) -> None:
    """Give copies to Python's reader; anything but a TesseraError ends the process."""
    with tempfile.TemporaryDirectory() as folder:
        hostile.attempt(Path(whole), Path(folder) / "f", range(first, first + count))


def descriptor_batch(library: str, first: int, count: int) -> None:
    """Give descriptors to C."""
    made = ctypes.CDLL(library)
    made.tess_last_error.restype = ctypes.c_char_p
    operators.damage(made, range(first, first + count))


def batches(
    target: Callable[[str, int, int], None], given: Path, seed: int, count: int, jobs: int
) -> int:
    """How many batches ended otherwise than well."""
    context = multiprocessing.get_context("fork")
    faults, left, running = 0, list(range(0, count, BATCH)), {}
    while left or running:
        while left and len(running) < jobs:
            first = left.pop(0)
            n = min(BATCH, count - first)
            p = context.Process(target=target, args=(str(given), seed * 1_000_003 + first, n))
            p.start()
            running[p.sentinel] = first, p
        for done in connection.wait(list(running)):
            first, p = running.pop(done)
            p.join()
            if p.exitcode:
                faults += 1
                print(
                    f"{target.__name__} of seed {seed} from {first} ended with {p.exitcode}",
                    flush=True,
                )
    return faults


def build(out: Path, source: Path, *flags: str) -> Path:
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        raise TesseraError("mutate_bundles: there is no C compiler")
    front = [compiler, "-O1", "-D_GNU_SOURCE", "-I", str(INCLUDE), "-pthread", *flags]
    subprocess.run([*front, str(source), "-o", str(out)], check=True)
    return out


def in_c(whole: Path, seed: int, count: int, jobs: int, sanitize: bool) -> dict[str, int]:
    """What the reader of C made of copies, in as many processes as are asked for."""
    checks = ["-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"] if sanitize else []
    program = build(whole.with_name("mutate"), NATIVE / "mutate.c", *checks)
    cuts = [count * k // jobs for k in range(jobs + 1)]

    def run(first: int, end: int) -> list[int]:
        # copy i is a function of seed + i, and odd copies have digests that fit
        start = seed * 1_000_003 + first
        command = [str(program), str(whole), str(end - first), str(start)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        said = re.fullmatch(r"(\d+) copies, (\d+) taken, (\d+) faults", done.stdout.strip())
        if said is None or done.stderr:
            print(done.stdout[-500:], done.stderr[-2000:], flush=True)
        return [int(x) for x in said.groups()] if said else [end - first, 0, 1]

    with ThreadPoolExecutor(jobs) as pool:
        found = list(pool.map(run, cuts[:-1], cuts[1:]))
    copies, taken, faults = map(sum, zip(*found, strict=True))
    return {"copies": copies, "taken": taken, "faults": faults}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--python", type=int, default=None, help="a tenth unless given")
    parser.add_argument("--descriptors", type=int, default=None, help="a tenth unless given")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--sanitize", action="store_true")
    parser.add_argument("--record")
    given = parser.parse_args()
    python = given.count // 10 if given.python is None else given.python
    descriptors = given.count // 10 if given.descriptors is None else given.descriptors
    start = time.perf_counter()
    row: dict[str, Any] = {"seed": given.seed, "machine": platform.machine()}
    with tempfile.TemporaryDirectory() as name:
        whole = Path(name) / "whole.tess"
        make(whole)
        library = build(Path(name) / "libtessera.so", SOURCE, "-shared", "-fPIC")
        faults = batches(python_batch, whole, given.seed, python, given.jobs)
        row["python"] = {"copies": python, "faults": faults}
        faults = batches(descriptor_batch, library, given.seed, descriptors, given.jobs)
        row["descriptors"] = {"copies": descriptors, "faults": faults}
        rest = given.count - python - descriptors
        row["c"] = in_c(whole, given.seed, rest, given.jobs, given.sanitize)
    row |= {"sanitized": given.sanitize, "seconds": round(time.perf_counter() - start, 1)}
    print(json.dumps(row))
    if given.record:
        Path(given.record).write_text(json.dumps(row, indent=1) + "\n")
    return int(any(row[k]["faults"] for k in ("python", "descriptors", "c")))


if __name__ == "__main__":
    sys.exit(main())
