"""The cliff detector: ops over shapes, dtypes and layouts on a GPU beside torch, with the bound of each case.

    python benchmarks/gpu_sweep.py                        list the cases and their bounds; needs no GPU
    python benchmarks/gpu_sweep.py --dry --sample 20      and compile a sample for sm_90
    python benchmarks/gpu_sweep.py --check [--seconds S]  compile and check all, in processes beside each
    other python benchmarks/gpu_sweep.py --time [--seconds S] [--part i/n] [--record FILE]

A ratio is torch's best time over ours: below 1 ours is slower.  `--time` adds its rows to the record, and
measures first what the record does not have, so that several calls make one sweep; `--fresh` begins anew.
Code comes from the caches on the disk that `--check` has filled.  A case that kills its process is recorded
as such, and the rest go on.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from sweep.case import Case, part_of
from sweep.catalogue import all_cases, with_candidates

from tessera.compile import compile_graph
from tessera.core.errors import CompilerFaultWarning
from tessera.core.flags import override

HERE = Path(__file__).parent
RECORD = HERE / "records" / "sweep-h200.json"
# Measured first where time is short.
FIRST = ("scan", "select", "sort", "count", "scatter", "candidate", "norms", "loss", "rows")
WORKERS = min(12, os.cpu_count() or 1)  # each takes up to 5 GB of the device
GRACE = 5  # seconds for the case that a worker has begun


# Without a GPU


def hosted(c: Case, build: bool = False) -> dict[str, str]:
    """Lower a case for sm_90, and build its code; the steps of it that would run on the host."""
    executable: Any = compile_graph(c.graph, "cuda:sm_90")
    shapes = [o.shape for o in c.operands]
    if build:
        executable.code_at(shapes)
    found: dict[str, str] = executable.hosted_at(shapes)
    return found


def dry(cases: list[Case], sample: int) -> int:
    """List the cases; compile every n-th; how many of these have host steps that are not known."""
    for c in cases:
        print(
            f"{c!s:72} {c.bytes / 1e6:10.2f} MB {c.flops / 1e9:9.1f} GFLOP {c.bound * 1e6:9.1f} us"
        )
    chosen = cases[:: max(len(cases) // sample, 1)] if sample else []
    bad = 0
    for c in chosen:
        start = time.perf_counter()
        steps = hosted(c, build=True)
        took = time.perf_counter() - start
        print(f"compiled {c!s:64} {took:5.1f} s {'; '.join(steps.values())}", flush=True)
        bad += bool(steps) and not c.known_host
    print(f"{len(cases)} cases, {len(chosen)} compiled, {bad} with steps on the host")
    return bad


# Workers: processes that take the next case that no other has taken


def claim(folder: Path, number: int) -> bool:
    """Take a case; false when another worker has it."""
    try:
        os.close(os.open(folder / str(number), os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


def work(mode: str, numbers: list[int], folder: Path, out: Path, deadline: float) -> None:
    """Do cases until none is left or the time is over; a line of JSON for each.

    Numbers behind the last case mean the cases again, with torch.compile.
    """
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: end with the parent
    from sweep import device  # needs torch and a GPU

    cases = with_candidates()
    with out.open("a") as file:
        for n in numbers:
            if time.time() > deadline:
                return
            if not claim(folder, n):
                continue
            file.write(json.dumps({"number": n, "begun": True}) + "\n")
            file.flush()
            c = cases[n % len(cases)]
            with patched(c):
                row = _done(device, mode, c, n >= len(cases))
            file.write(json.dumps({"number": n, **row}) + "\n")
            file.flush()
            device.free()


@contextmanager
def patched(c: Case) -> Iterator[None]:
    """Other constants of the lowering while a case is compiled, and none of the code that others gave."""
    if not c.patch:
        yield
        return
    places = [(importlib.import_module(m), n, v) for m, n, v in c.patch]
    before = [(m, n, getattr(m, n)) for m, n, _ in places]
    with tempfile.TemporaryDirectory() as folder, override(cache_dir=Path(folder)):
        for m, n, v in places:
            setattr(m, n, v)
        try:
            yield
        finally:
            for m, n, v in before:
                setattr(m, n, v)


def _done(device: Any, mode: str, c: Case, again: bool) -> dict[str, Any]:
    try:
        if mode == "time":
            row: dict[str, Any] = device.timed(c, again)
            return row
        start = time.perf_counter()
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            warnings.simplefilter("error", CompilerFaultWarning)  # it would run in another way
            wrong = device.checked(c)
        host = sorted({str(w.message)[:160] for w in told if "host" in str(w.message)})
        ours = time.perf_counter() - start
        return {"case": str(c), "wrong": wrong, "host": host, "seconds": ours}
    except Exception as e:  # whatever fails is a finding; a broken context ends this process
        row = {"case": str(c), "wrong": f"{type(e).__name__}: {str(e)[:300]}", "failed": True}
        try:
            device.torch.cuda.synchronize()
        except Exception:
            print(f"{c}: {row['wrong']} (the context is broken)", file=sys.stderr, flush=True)
            os._exit(3)
        return row


def supervised(mode: str, numbers: list[int], workers: int, seconds: float) -> list[dict[str, Any]]:
    """Rows of all cases that were done: processes that die are replaced, and end with this one."""
    deadline = time.time() + seconds
    asked: list[int] = []  # signals to end: what was found is told all the same
    signal.signal(signal.SIGTERM, lambda number, frame: asked.append(number))
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        (place / "claims").mkdir()
        outs = [place / f"out{i}" for i in range(workers)]
        running = [_start(mode, numbers, place, outs[i], deadline) for i in range(workers)]
        while any(p.poll() is None for p in running) and time.time() < deadline + GRACE:
            if asked:
                break
            time.sleep(0.25)
            for i, p in enumerate(running):
                if p.poll() not in (None, 0) and time.time() < deadline:
                    last = outs[i].with_suffix(".err").read_text().strip()[-1500:]
                    print(f"a worker ended with {p.poll()}: {last}", flush=True)
                    running[i] = _start(mode, numbers, place, outs[i], deadline)
        for p in running:
            if p.poll() is None:
                p.kill()
                p.wait()
        return _rows(outs)


def _start(mode: str, numbers: list[int], place: Path, out: Path, deadline: float) -> Any:
    given = json.dumps([mode, numbers, str(place / "claims"), str(out), deadline])
    environment = {**os.environ, "TORCHINDUCTOR_COMPILE_THREADS": "1"}
    with out.with_suffix(".err").open("w") as errors:
        return subprocess.Popen(
            [sys.executable, str(Path(__file__).resolve()), "--worker", given],
            stderr=errors, env=environment,
        )  # fmt: skip


def _rows(outs: list[Path]) -> list[dict[str, Any]]:
    """What the workers wrote; a case that was begun and not ended has killed its process, or had no time."""
    found: dict[int, dict[str, Any]] = {}
    cases = with_candidates()
    for out in outs:
        for line in out.read_text().splitlines() if out.exists() else []:
            row = json.loads(line)
            n = row.pop("number")
            if row.pop("begun", False):
                name = str(cases[n % len(cases)])
                found[n] = {"case": name, "wrong": "ended its process, or had no time"}
            else:
                found[n] = row
    first = [r for n, r in found.items() if n < len(cases)]
    return first + [r for n, r in found.items() if n >= len(cases) and "us" in r]


# Modes on a device


def check(cases: list[Case], seconds: float) -> int:
    """Compile and check in parallel; a line for each failure."""
    begin = time.time()
    known = {str(c): i for i, c in enumerate(with_candidates())}
    order = [known[str(c)] for c in sorted(cases, key=urgency)]
    rows = supervised("check", order, WORKERS, seconds)
    bad = [r for r in rows if r["wrong"]]
    for r in bad:
        print(f"bad {r['case']}: {r['wrong']}")
    for r in rows:
        if r.get("host"):
            print(f"host {r['case']}: {r['host'][0]}")
    slow = sorted((r for r in rows if "seconds" in r), key=lambda r: -r["seconds"])[:8]
    print("slowest:", "; ".join(f"{r['case']} {r['seconds']:.0f} s" for r in slow))
    left = len(cases) - len(rows)
    print(f"{left} cases had no time; {time.time() - begin:.0f} s with {WORKERS} processes")
    print(f"check: {len(rows) - len(bad)} ok, {len(bad)} bad")
    return len(bad)


def clock(cases: list[Case], seconds: float, record: Path, fresh: bool) -> None:
    """Time cases, those first that the record lacks, and rank them."""
    known = {str(c): i for i, c in enumerate(with_candidates())}
    kept: dict[str, Any] = {}
    if record.exists() and not fresh:
        kept = {r["case"]: r for r in json.loads(record.read_text())["rows"] if r["case"] in known}
    order = [known[str(c)] for c in sorted(cases, key=lambda c: (str(c) in kept, urgency(c)))]
    again = [known[str(c)] + len(known) for c in cases if c.compiled and not compared(kept, c)]
    rows = supervised("time", order + again, 1, seconds)
    for r in rows:
        if "us" in r or r["case"] not in kept:
            kept[r["case"]] = r
        if "us" not in r:
            print(f"bad {r['case']}: {r['wrong']}")
    write(record, list(kept.values()))
    done = {r["case"] for r in rows}
    print(f"{len(cases) - len(done)} cases of this part had no time")
    ranked(list(kept.values()))


def urgency(c: Case) -> int:
    """What is measured first where time is short."""
    return FIRST.index(c.family) if c.family in FIRST else len(FIRST)


def compared(kept: dict[str, Any], c: Case) -> bool:
    """Whether a record has torch.compile's time of a case."""
    return "torch.compile" in kept.get(str(c), {}).get("us", {})


def write(record: Path, rows: list[dict[str, Any]]) -> None:
    """The record: the worst ratio first."""
    whole = {"rows": sorted(rows, key=lambda r: r.get("ratio", 0.0)), "summary": summary(rows)}
    record.parent.mkdir(parents=True, exist_ok=True)
    record.write_text(json.dumps(whole, indent=1) + "\n")


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """What the issue asks of the sweep."""
    rows = [r for r in rows if not r["case"].startswith("candidate")]
    ratios = sorted(r["ratio"] for r in rows if "us" in r)
    families: dict[str, list[float]] = {}
    for r in rows:
        if "us" in r:
            families.setdefault(r["case"].split(":")[0], []).append(r["ratio"])
    return {
        "cases": len(ratios), "failed": sum("us" not in r for r in rows),
        "median": float(np.median(ratios)) if ratios else None,
        "under 0.5": sum(x < 0.5 for x in ratios), "under 0.8": sum(x < 0.8 for x in ratios),
        "geometric means": {f: round(float(np.exp(np.mean(np.log(x)))), 3) for f, x in families.items()},
    }  # fmt: skip


def ranked(rows: list[dict[str, Any]], most: int = 150) -> None:
    """The table, worst first."""
    print(f"{'case':76} {'ours_us':>10} {'best_us':>10} {'ratio':>6} {'bound':>8} of bound")
    timed = sorted((r for r in rows if "us" in r), key=lambda r: r["ratio"])
    tried = sorted(r["case"] for r in timed if r["case"].startswith("candidate"))
    chosen = [r for r in timed if r["case"] not in tried][:most]
    for r in chosen + [r for c in tried for r in timed if r["case"] == c]:
        best = min(t for n, t in r["us"].items() if n != "tessera")
        host = " host" if r["host"] else ""
        print(f"{r['case']:76} {r['us']['tessera']:10.1f} {best:10.1f} {r['ratio']:6.2f} "
              f"{r['bound_us']:8.1f} "
              f"{r['of_bound']:.2f}{host}")  # fmt: skip
    print(json.dumps(summary(rows)))


def _has(c: Case, only: list[str]) -> bool:
    return any(o in str(c) for o in only)


def main() -> None:
    """Choose a mode."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for mode in ("dry", "check", "time", "fresh"):
        parser.add_argument(f"--{mode}", action="store_true")
    parser.add_argument("--sample", type=int, default=0, help="cases that --dry compiles")
    parser.add_argument("--seconds", type=float)
    parser.add_argument("--part", default="1/1")
    parser.add_argument("--only", nargs="+", default=[""], help="cases whose name has one of these")
    parser.add_argument("--record", type=Path, default=RECORD)
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        mode, numbers, folder, out, deadline = json.loads(args.worker)
        work(mode, numbers, Path(folder), Path(out), deadline)
        return
    cases = [c for c in part_of(all_cases(), args.part) if _has(c, args.only)]
    tried = with_candidates()[len(all_cases()) :]
    tried = [c for c in part_of(tried, args.part) if _has(c, args.only)]
    if args.check:
        check([*cases, *tried], args.seconds or 110)
    if args.time:
        clock([*cases, *tried], args.seconds or 95, args.record, args.fresh)
    if not (args.check or args.time):
        sys.exit(dry(cases, args.sample))


if __name__ == "__main__":
    main()
