"""Seeds faults in the compiler, one at a time, and tells whether the tests catch them.

    python tools/mutations.py                  all faults of faults.py
    python tools/mutations.py --list           what they are
    python tools/mutations.py --only 3 17-20   some of them
    python tools/mutations.py --left           those that the record does not show as caught
    python tools/mutations.py --jobs 2         so many at once

Random mutants of the whole package are those of random_mutants.py.

The package and its tests are copied to a temporary folder; the working tree is never changed.  A fault is
caught when a test fails, crashes or takes too long.  Tests near the fault are asked first, then random
programs, then all tests of the levels; the record has a row for each fault, written when it is known.
Machine code is kept by the text of its LLVM IR, so faults share it.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import Queue
from threading import Lock
from typing import NamedTuple

from faults import FAULTS, Fault

ROOT = Path(__file__).parent.parent
RECORD = ROOT / "benchmarks" / "records" / "mutations.json"
LIMIT = 900  # seconds for the tests of one fault
PROGRAMS = "400"  # random programs that are asked

RANDOM = "tests/compile/test_random_programs.py::test_all_levels_agree"
# Tests that are asked first, by the kind of a fault.
TESTS = {
    "schedule": "tests/core/test_index.py tests/ir/schedule/test_joins.py tests/ir/schedule/test_schedule.py",
    "places": "tests/ir/tile/test_gather_kernels.py tests/ir/tile/test_primitives.py",
    "contraction": "tests/ir/schedule/test_joins.py tests/ir/target/test_cpu_target.py "
    "tests/ir/schedule/test_nest.py",
    "group": "tests/ir/schedule/test_fuse_contractions.py",
    "memory": "tests/ir/schedule/test_memory_plan.py tests/ir/schedule/test_joins.py "
    "tests/lang/test_donate.py",
    "rows": "tests/ir/schedule/test_schedule.py",
    "abreast": "tests/ir/schedule/test_nest.py tests/ir/schedule/test_schedule.py",
    "spread": "tests/ir/tile/test_split_reduction.py tests/ir/schedule/test_schedule.py",
    "scan": "tests/ops/test_accumulate.py tests/ir/tile/test_primitives.py",
    "sort": "tests/ir/tile/test_sorting.py",
    "copies": "tests/ir/tile/test_primitives.py tests/ops/test_arrange.py",
    "fft": "tests/ir/tile/test_fft_tiles.py",
    "filter": "tests/ir/schedule/test_fuse_fft.py",
    "fast": "tests/compile/test_fast.py",
    "convolution": "tests/ops/test_convolution.py",
    "tile": "tests/ir/tile/test_tile.py tests/ir/tile/test_tile_scalars.py",
    "bounds": "tests/ir/tile/test_bounds.py",
    "casts": "tests/ir/tile/test_tile_scalars.py tests/core/test_every_dtype.py",
    "pool": "tests/runtime/test_pool.py tests/runtime/test_compiled_kernel.py",
    "graph": "tests/transform/test_simplify.py tests/core/test_every_dtype.py",
    "derivatives": "tests/transform/test_transforms.py",
    "batch": "tests/transform/test_vmap.py",
}
# Then all tests of the levels.
LEVELS = (
    "tests/ir/schedule/test_schedule.py tests/ir/tile/test_tile.py tests/ir/target/test_cpu_target.py "
    "tests/compile/test_bits.py "
    "tests/ir/schedule/test_nest.py tests/ir/tile/test_split_reduction.py "
    "tests/ir/schedule/test_memory_plan.py tests/ir/tile/test_primitives.py "
    "tests/ir/tile/test_gather_kernels.py tests/ir/schedule/test_views.py "
    "tests/checks/test_check_compiled.py "
    "tests/core/test_special_values.py tests/core/test_every_dtype.py"
)


class Outcome(NamedTuple):
    """What became of a fault."""

    fault: Fault
    caught: bool
    by: str  # the test that failed, or how the run ended
    seconds: float


class Copy:
    """A copy of the project to break."""

    def __init__(self, folder: Path, code: Path):
        self.folder = folder
        skipped = shutil.ignore_patterns(
            "__pycache__", ".git", ".venv*", "build", ".*_cache", "*.egg-info"
        )
        shutil.copytree(ROOT, folder, ignore=skipped, dirs_exist_ok=True)
        self.cache = folder / "cache"
        self.cache.mkdir()
        (self.cache / "code").symlink_to(code)  # by the text of the LLVM IR, whoever wrote it
        self.moment = time.time()

    def write(self, path: Path, text: str) -> None:
        """Change a file so that Python sees it, however soon after the last change."""
        path.write_text(text)
        self.moment += 10
        os.utime(path, (self.moment, self.moment))

    def run(self, tests: Sequence[str]) -> tuple[int, str, float]:
        """The exit status of pytest (-1: out of time), what it printed, and how long it took."""
        env = os.environ | {
            "TESSERA_CACHE_DIR": str(self.cache), "TESSERA_RANDOM_PROGRAMS": PROGRAMS,
            "OPENBLAS_NUM_THREADS": "1", "PYTHONPATH": str(self.folder),
        }  # fmt: skip
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "--tb=line",
                   "--hypothesis-profile=mutations", "-m", "not oracle and not gpu and not deep",
                   *dict.fromkeys(tests)]  # fmt: skip
        start = time.monotonic()
        try:
            done = subprocess.run(
                command, cwd=self.folder, env=env, timeout=LIMIT, capture_output=True, text=True,
                check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return -1, "", time.monotonic() - start
        return done.returncode, done.stdout + done.stderr, time.monotonic() - start

    def try_fault(self, fault: Fault) -> Outcome:
        """Apply a fault, run the tests, take it back."""
        path = self.folder / "tessera" / fault.path
        right = path.read_text()
        self.write(path, broken(right, fault))
        total = 0.0
        try:
            for tests in stages(fault):
                code, text, seconds = self.run(tests)
                total += seconds
                if code != 0:
                    break
        finally:
            self.write(path, right)
        return Outcome(fault, code != 0, _by(code, text), round(total, 1))


def broken(text: str, fault: Fault) -> str:
    """A file with a fault; its text must be there exactly once."""
    count = text.count(fault.old)
    if count != 1:
        raise SystemExit(f"{fault.path}: {fault.old!r} is there {count} times, expected once")
    return text.replace(fault.old, fault.new)


def stages(fault: Fault) -> list[list[str]]:
    """The tests that a fault is shown to, nearest first."""
    near = TESTS[fault.tests].split()
    return [near, [RANDOM], [t for t in LEVELS.split() if t not in near]]


def _by(code: int, text: str) -> str:
    if code == 0:
        return ""
    if code == -1:
        return f"no end after {LIMIT} seconds"
    failed = [line for line in text.splitlines() if line.startswith(("FAILED", "ERROR"))]
    return failed[0].split(" - ")[0].split(" ", 1)[1] if failed else f"exit status {code}"


def main() -> int:
    """Run what the command line asks for."""
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    p.add_argument("--list", action="store_true", help="print the faults")
    p.add_argument("--only", nargs="+", metavar="N", help="numbers, or ranges such as 3-7")
    p.add_argument("--left", action="store_true", help="faults that are not recorded as caught")
    p.add_argument("--jobs", type=int, default=2, help="faults at once")
    p.add_argument(
        "--unbroken", action="store_true", help="first see that all tests pass without a fault"
    )
    given = p.parse_args()
    chosen = _chosen(given.only)
    if given.left:
        known = _recorded()
        chosen = [i for i in chosen if not known.get(_name(FAULTS[i]), {}).get("caught")]
    if given.list:
        for i in chosen:
            print(f"{i:3} {FAULTS[i].path}: {FAULTS[i].breaks}")
        return 0
    with tempfile.TemporaryDirectory(prefix="mutations-") as folder:
        code = Path(
            os.environ.get("MUTATIONS_CODE", f"{folder}/code")
        )  # kept between runs if named
        code.mkdir(exist_ok=True)
        copies = [Copy(Path(folder) / str(i), code) for i in range(given.jobs)]
        for f in FAULTS:
            broken((copies[0].folder / "tessera" / f.path).read_text(), f)
        if given.unbroken:
            every = [t for i in chosen for stage in stages(FAULTS[i]) for t in stage]
            status, text, seconds = copies[0].run(every)
            print(
                f"without a fault: {'passes' if status == 0 else _by(status, text)} in {seconds:.0f} s"
            )
        outcomes = _try_all(copies, chosen)
    caught = sum(o.caught for o in outcomes)
    print(f"{caught} of {len(outcomes)} faults caught")
    return 0 if caught >= 0.95 * len(outcomes) else 1


def _chosen(only: Sequence[str] | None) -> list[int]:
    if only is None:
        return list(range(len(FAULTS)))
    ends = [(int(a), int(b or a)) for a, _, b in (x.partition("-") for x in only)]
    return [i for a, b in ends for i in range(a, b + 1)]


def _try_all(copies: Sequence[Copy], chosen: Sequence[int]) -> list[Outcome]:
    idle: Queue[Copy] = Queue()
    for c in copies:
        idle.put(c)

    def one(i: int) -> Outcome:
        copy = idle.get()
        try:
            o = copy.try_fault(FAULTS[i])
        finally:
            idle.put(copy)
        _record(o)
        print(f"{i:3} {'caught  ' if o.caught else 'SURVIVED'} {o.seconds:6.1f} s  {o.fault.path}: "
              f"{o.fault.breaks}  [{o.by}]", flush=True)  # fmt: skip
        return o

    with ThreadPoolExecutor(len(copies)) as threads:
        return list(threads.map(one, chosen))


def _name(fault: Fault) -> str:
    return f"{fault.path}: {fault.breaks}"


def _recorded() -> dict[str, dict[str, object]]:
    """The rows of the record, by the names of faults."""
    if not RECORD.exists():
        return {}
    rows = json.loads(RECORD.read_text())["outcomes"]
    return {f"{r['file']}: {r['breaks']}": r for r in rows}


_WRITING = Lock()


def _record(o: Outcome) -> None:
    """Put an outcome into the record, in the order of faults.py."""
    row = {"file": o.fault.path, "breaks": o.fault.breaks, "caught": o.caught, "by": o.by}
    with _WRITING:
        rows = {**_recorded(), _name(o.fault): row}
        kept = [rows[n] for n in map(_name, FAULTS) if n in rows]
        whole = {"faults": len(kept), "caught": sum(bool(r["caught"]) for r in kept)}
        RECORD.write_text(json.dumps({**whole, "outcomes": kept}, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
