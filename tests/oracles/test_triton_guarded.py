"""The printed Triton source, run by Triton's interpreter in memory that is watched: without a mask it is
noticed.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")
pytest.importorskip("torch")

pytestmark = [pytest.mark.oracle, pytest.mark.slow]


def told(folder: Path, mode: str) -> dict:
    env = os.environ | {"TRITON_INTERPRET": "1", "TRITON_DEFAULT_FP_FUSION": "0"}
    done = subprocess.run(
        [sys.executable, "-m", "tests.oracles.triton_guarded", str(folder), mode],
        env=env, capture_output=True, text=True, check=False, timeout=900,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.strip().splitlines()[-1])


def test_kernels_of_a_gpu_touch_nothing_but_their_tensors(tmp_path: Path) -> None:
    found = told(tmp_path, "plain")
    assert found["compiled"] > 12
    assert found["kernels"] > 40
    assert found["wrong"] == []


# Weights of a phase of a convolution in f32, 17 out channels last: behind a row lies the next one, of which
# columns are made that no store writes. Only the phase of the last tap reads behind the tensor, and its mask
# is noticed.
EQUIVALENT = "conv {}: tl.load(w + i1 * 272 + p1 * 2448 + p2 * 32"


def test_a_mask_that_is_dropped_from_the_printed_source_is_noticed(tmp_path: Path) -> None:
    found = told(tmp_path, "mutants")
    assert found["dropped"] > 50
    left = [x for x in found["left"] if not x.startswith(EQUIVALENT)]
    assert left == []
    assert len(found["left"]) <= 3
