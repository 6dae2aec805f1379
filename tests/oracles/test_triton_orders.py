"""Folds, scans and sums of rows for GPUs: Triton's interpreter has the bits of the Tile interpreter."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")
pytest.importorskip("torch")

pytestmark = [pytest.mark.oracle, pytest.mark.slow]


def test_orders_are_the_same_as_triton(tmp_path: Path) -> None:
    env = os.environ | {"TRITON_INTERPRET": "1", "TRITON_DEFAULT_FP_FUSION": "0"}
    done = subprocess.run(
        [sys.executable, "-m", "tests.oracles.triton_orders", str(tmp_path)],
        env=env, capture_output=True, text=True, check=False, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.strip().splitlines()[-1])
    assert found["count"] >= 70
    assert found["ordered"] >= 55
    assert found["wrong"] == []
