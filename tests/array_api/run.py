"""Run the public conformance suite of the array API standard on a checkout of your own.

    git clone --recursive https://github.com/data-apis/array-api-tests suite
    python -m pip install -r suite/requirements.txt
    python tests/array_api/run.py suite --max-examples 100

Prints the figures that docs/array-api.md quotes; exits with 1 if fewer than 97% of the tests pass.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
from collections import Counter
from importlib.metadata import version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
STANDARD = "2024.12"
REQUIRED = 0.97


def run(suite: Path, examples: int, select: list[str]) -> dict[str, Any]:
    """The suite's report on tessera.array_api."""
    env = {
        **os.environ,
        "ARRAY_API_TESTS_MODULE": "tessera.array_api",
        "ARRAY_API_TESTS_VERSION": STANDARD,
        "PYTHONPATH": str(ROOT),
    }
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "report.json"
        command = [sys.executable, "-m", "pytest", *(select or ["array_api_tests/"])]
        command += [f"--max-examples={examples}", "--disable-warnings", "-q", "--tb=short"]
        # How long an example takes says more about the machine than about the standard.
        command += [
            "--disable-deadline",
            "-p",
            "no:cacheprovider",
            "--json-report",
            f"--json-report-file={out}",
        ]
        subprocess.run(command, cwd=suite, env=env, check=False)
        if not out.exists():
            sys.exit("the suite did not run: see the message above")
        report: dict[str, Any] = json.loads(out.read_text())
        return report


def commit(suite: Path) -> str:
    """Which commit of the suite this is."""
    done = subprocess.run(
        ["git", "-C", str(suite), "rev-parse", "HEAD"], capture_output=True, text=True, check=False
    )
    return done.stdout.strip() or "unknown"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("suite", type=Path, help="a checkout of data-apis/array-api-tests")
    parser.add_argument("--max-examples", type=int, default=20, help="examples per test")
    parser.add_argument(
        "select", nargs="*", help="tests to run, such as array_api_tests/test_fft.py"
    )
    args = parser.parse_args()
    report = run(args.suite, args.max_examples, args.select)
    outcomes = Counter(t["outcome"] for t in report["tests"])
    passed, failed = outcomes["passed"], outcomes["failed"] + outcomes["error"]
    share = passed / max(passed + failed, 1)
    print(
        f"\narray API {STANDARD}: {passed} passed, {failed} failed, {outcomes['skipped']} skipped"
    )
    print(
        f"share passed: {share:.2%} at {args.max_examples} examples in {report['duration']:.0f} s"
    )
    print(f"suite {commit(args.suite)}; Python {platform.python_version()}, {platform.machine()}")
    print(", ".join(f"{p} {version(p)}" for p in ("numpy", "scipy", "ml_dtypes", "hypothesis")))
    for t in report["tests"]:
        if t["outcome"] in ("failed", "error"):
            print(f"FAILED {t['nodeid']}")
    sys.exit(share < REQUIRED)


if __name__ == "__main__":
    main()
