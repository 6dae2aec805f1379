"""benchmarks/gpu_kernels.py compares like with like: both sides give the same numbers."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")
pytest.importorskip("torch")

pytestmark = [pytest.mark.oracle, pytest.mark.slow]
ROOT = Path(__file__).parents[2]


def test_our_kernels_and_tritons_agree() -> None:
    done = subprocess.run(
        [sys.executable, "benchmarks/gpu_kernels.py", "--agree"], cwd=ROOT,
        env=os.environ | {"TRITON_INTERPRET": "1"}, capture_output=True, text=True, check=False, timeout=900,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    assert done.stdout.count("alike") >= 24
