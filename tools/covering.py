"""Which functions of the package each test file enters: a map that brings a fault to the tests near it.

    python tools/covering.py --jobs 16 --out build/covering.json

Each test file runs in a process of its own with this file as a plugin of pytest; the map says how long it
took and which functions it entered, by their qualified names.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import CodeType
from typing import Any

ROOT = Path(__file__).parent.parent
PACKAGE = str(ROOT / "tessera") + os.sep
OUT = "TESSERA_COVERING"  # where the plugin writes what it saw

_seen: set[tuple[str, str]] = set()


def _enter(code: CodeType, *_: Any) -> object:
    if code.co_filename.startswith(PACKAGE):
        _seen.add((code.co_filename[len(PACKAGE) :], code.co_qualname.replace(".<locals>", "")))
    return sys.monitoring.DISABLE


def pytest_configure(config: Any) -> None:
    """Begin to watch; an entry is reported once, so that tests run at their usual speed."""
    if OUT in os.environ:
        tool = sys.monitoring.COVERAGE_ID
        sys.monitoring.use_tool_id(tool, "covering")
        sys.monitoring.register_callback(tool, sys.monitoring.events.PY_START, _enter)
        sys.monitoring.set_events(tool, sys.monitoring.events.PY_START)


def pytest_unconfigure(config: Any) -> None:
    """Write what was seen."""
    if OUT in os.environ:
        Path(os.environ[OUT]).write_text(json.dumps(sorted(_seen)))


def _run(test: Path, limit: int) -> dict[str, Any]:
    with tempfile.NamedTemporaryFile(suffix=".json") as out:
        env = os.environ | {OUT: out.name, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'tools'}",
                            "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}  # fmt: skip
        command = [sys.executable, "-m", "pytest", "-q", "-p", "covering", "-p", "no:cacheprovider",
                   "-m", "not oracle and not gpu", "--tb=line", str(test.relative_to(ROOT))]  # fmt: skip
        start = time.monotonic()
        try:
            done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True,
                                  timeout=limit, check=False)  # fmt: skip
            code, text = done.returncode, done.stdout
        except subprocess.TimeoutExpired:
            code, text = -1, ""
        raw = Path(out.name).read_text()
        seen = json.loads(raw) if raw else []
    by_file: dict[str, list[str]] = {}
    for path, name in seen:
        by_file.setdefault(path, []).append(name)
    failed = [x for x in text.splitlines() if x.startswith(("FAILED", "ERROR"))]
    return {
        "seconds": round(time.monotonic() - start, 1),
        "status": code,
        "failed": failed,
        "seen": by_file,
    }


def near(covering: Mapping[str, Any], path: str, scope: str) -> list[str]:
    """Test files that enter a function, those first that spend most of their functions in its file."""
    ranked = []
    for test, row in covering.items():
        here = row["seen"].get(path, ())
        if row["status"] == 0 and here and (not scope or scope in here or "." not in scope):
            share = len(here) / sum(map(len, row["seen"].values()))
            ranked.append((scope not in here, -share, row["seconds"], test))
    return [test for *_, test in sorted(ranked)]


def main() -> int:
    """Make the map."""
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    p.add_argument("--jobs", type=int, default=2)
    p.add_argument("--limit", type=int, default=500, help="seconds for one file")
    p.add_argument("--out", type=Path, default=ROOT / "build" / "covering.json")
    given = p.parse_args()
    if sys.version_info < (3, 12):
        raise SystemExit("covering.py needs Python 3.12: it watches by sys.monitoring")
    tests = sorted((ROOT / "tests").rglob("test_*.py"), key=lambda f: -f.stat().st_size)
    with ThreadPoolExecutor(given.jobs) as threads:
        rows = dict(zip((str(t.relative_to(ROOT)) for t in tests),
                        threads.map(lambda t: _run(t, given.limit), tests), strict=True))  # fmt: skip
    given.out.parent.mkdir(parents=True, exist_ok=True)
    given.out.write_text(json.dumps(rows))
    for test, row in sorted(rows.items(), key=lambda r: -r[1]["seconds"])[:15]:
        print(f"{row['seconds']:7.1f} s  status {row['status']}  {test}")
    bad = {t: r for t, r in rows.items() if r["status"] not in (0, 5)}
    for test, row in bad.items():
        print(test, row["status"], *row["failed"][:5], sep="\n   ")
    total = sum(r["seconds"] for r in rows.values())
    print(f"{len(rows)} files, {total:.0f} s of one core, {len(bad)} did not pass")
    return 0


if __name__ == "__main__":
    sys.exit(main())
