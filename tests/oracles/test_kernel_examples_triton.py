"""The kernels of examples/kernels as Triton's interpreter runs their printed source."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")
pytest.importorskip("torch")

pytestmark = [pytest.mark.oracle, pytest.mark.slow]


def test_the_kernels_of_the_examples_are_right_as_triton(tmp_path: Path) -> None:
    env = os.environ | {"TRITON_INTERPRET": "1", "TRITON_DEFAULT_FP_FUSION": "0"}
    done = subprocess.run(
        [sys.executable, "-m", "tests.oracles.triton_examples", str(tmp_path), "5"],
        env=env, capture_output=True, text=True, check=False, timeout=900,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.strip().splitlines()[-1])
    assert found["count"] >= 40
    assert found["wrong"] == {}


@pytest.mark.parametrize(("seed", "found"), [(73000143, "ok"), (73000193, "left out")])
def test_what_the_interpreter_of_triton_does_otherwise_is_no_fault(seed: int, found: str) -> None:
    """Zeros of either sign in a minimum; a quotient of the device's library."""
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, str(root / "tools" / "fuzz_kernels.py"), "--triton", "--seed", str(seed),
         "--count", "1"],
        env=os.environ | {"PYTHONPATH": str(root)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    assert f"{{'{found}': 1}}" in done.stdout
