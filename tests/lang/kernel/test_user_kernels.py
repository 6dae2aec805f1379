"""Kernels of other people's habits: what NumPy says, the same bits in three ways, and no alarm of the
checks.
"""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import tessera as ts
from benchmarks.peers import cases, ours
from tests.support.cases import kernel_examples
from tests.support.cases.user_kernels import CASES

TOOLS = ("races", "barriers", "bounds", "initial", "results", "run")


def results(x):
    return [t.numpy() for t in (x if isinstance(x, tuple) else (x,))]


@pytest.mark.parametrize("name", CASES)
def test_a_kernel_is_what_numpy_says_and_raises_no_alarm(name):
    f, args, keywords, meaning = CASES[name]
    got, want = results(f(*args, **keywords)), meaning(*args, **keywords)
    for a, b in zip(got, want if isinstance(want, tuple) else (want,), strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-5)
    for step in (False, True):
        with ts.interpret(step=step):
            again = results(f(*args, **keywords))
        assert [a.tobytes() for a in again] == [a.tobytes() for a in got], step
    assert [str(x) for x in ts.check(f, *args, tools=TOOLS, **keywords).findings] == []
    assert "@triton.jit" in f.lower(*args, **keywords).triton


def drawn(spec, i):
    x = cases.drawn(spec, np.random.default_rng(i))
    return x.astype(ml_dtypes.bfloat16) if isinstance(spec, tuple) and spec[0] == "bf16" else x


_QUICK = ("rotary", "cross_entropy", "index_select", "outer", "cumsum")


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=() if n in _QUICK else pytest.mark.deep) for n in cases.CASES]
)
def test_there_is_no_alarm_for_the_kernels_beside_triton(name):
    case = cases.CASES[name]
    args = [drawn(spec, i) for i, spec in enumerate(case.small)]
    report = ts.check(getattr(ours, name), *args, tools=TOOLS, **case.keywords)
    assert [str(x) for x in report.findings] == []


def test_a_hundred_kernels_are_checked_for_false_alarms():
    """With those of examples/kernels (tests/checks/test_seeded_faults.py)."""
    assert len(CASES) + len(cases.CASES) + len(kernel_examples.CASES) >= 100
