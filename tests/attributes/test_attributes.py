"""Attributes away from their defaults: each op of pairs.txt, eagerly and compiled, is what NumPy or SciPy
say.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.fft
import scipy.linalg
import scipy.signal
import scipy.special

import tessera as ts
from tessera import op

RNG = np.random.default_rng(7)
X = np.round(RNG.uniform(-2, 2, (2, 3, 4)), 2)
GIVEN: dict[str, Any] = {
    "x": X, "y": X[1] + 0.125, "v": RNG.normal(size=5), "m": RNG.normal(size=(4, 4)),
    "i": RNG.integers(0, 4, (2, 3, 4)), "b": X > 0.3, "c": X[0] + 1j * X[1],
}  # fmt: skip
PAIRS = [
    tuple(line.split(" | ", 1))
    for line in Path(__file__).with_name("pairs.txt").read_text(encoding="utf-8").splitlines()
    if line and not line.startswith("#")
]


def written(text: str) -> Any:
    """A text as a function of all that is given."""
    return eval(f"lambda {', '.join(GIVEN)}: {text}", {"np": np, "scipy": scipy, "op": op})


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("ours", "theirs"), PAIRS, ids=[p[0] for p in PAIRS])
def test_an_op_is_what_others_say(ours: str, theirs: str) -> None:
    want = np.asarray(written(theirs)(**GIVEN))
    f = written(ours)
    tensors = {k: ts.tensor(v) for k, v in GIVEN.items()}
    eager = f(**GIVEN) if "scipy" in ours or "np.abs" in ours or "np.sin" in ours else f(**tensors)
    compiled = (
        ts.jit(lambda: f(**GIVEN))() if "scipy" in ours or "np." in ours else ts.jit(f)(**tensors)
    )
    for got in (eager, compiled):
        assert got.shape == want.shape
        assert (got.dtype.kind in "fc") == (want.dtype.kind in "fc")
        np.testing.assert_allclose(got.numpy(), want, rtol=1e-6, atol=1e-7)
