"""Derivatives of kernels that data steer, as Triton's interpreter runs their printed source."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")
pytest.importorskip("torch")

pytestmark = [pytest.mark.oracle, pytest.mark.slow]


def test_derivatives_of_kernels_are_right_as_triton(tmp_path: Path) -> None:
    env = os.environ | {"TRITON_INTERPRET": "1", "TRITON_DEFAULT_FP_FUSION": "0"}
    done = subprocess.run(
        [sys.executable, "-m", "tests.oracles.triton_grads", str(tmp_path)],
        env=env, capture_output=True, text=True, check=False, timeout=900,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.strip().splitlines()[-1])
    assert found["count"] >= 20
    assert found["wrong"] == {}
