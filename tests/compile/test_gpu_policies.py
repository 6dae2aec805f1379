"""Numeric policies are kernels on a GPU: no step on the host, and the bits of the CPU where one rounding
makes them.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tests.ops.test_compiled_policies import (
    EXACT,
    FLOATS,
    INTEGERS,
    NEURAL,
    ROUNDED,
    numbers,
    stored,
)
from tests.support.fakes.gpu_fake import at, fake_gpu

RUNS_ON = "numpy"
ALL = {**EXACT, **ROUNDED, **NEURAL}


def hosted(f: Any, x: Any) -> list[str]:
    """The ops that a GPU leaves to the host, without their numbers."""
    steps = ts.jit(f, target="cuda:sm_90").lower(x).host_steps
    return [name.rpartition("_")[0] for name in steps]


def wanted(name: str, d: Any) -> bool:
    return d.kind == "f" or name not in NEURAL


@pytest.mark.parametrize("d", FLOATS + INTEGERS, ids=str)
def test_a_policy_brings_no_step_of_a_gpu_to_the_host(d: Any) -> None:
    x = numbers(d)
    for name, f in ALL.items():
        if wanted(name, d):
            assert hosted(f, x) == hosted(f, x.astype(d.base)), name


def same(f: Any, d: Any, exact: bool) -> None:
    x = numbers(d, (11, 13))
    want, got = ts.jit(f)(x), ts.jit(f)(x.to("cuda"))
    assert got.dtype is want.dtype
    if exact:
        assert np.array_equal(stored(want), stored(got.numpy()))
    elif d.policy.stochastic_round:  # a number whose sum is another may go to the other neighbour
        a, b = (np.asarray(v).astype(np.float64) for v in (want, got.numpy()))
        assert np.all(np.abs(a - b) <= 2.0**-2 * np.abs(a).max())
    else:
        a, b = (np.asarray(v).astype(np.float64) for v in (want, got.numpy()))
        np.testing.assert_allclose(a, b, rtol=2.0**-6, atol=2.0**-6 * np.abs(a).max())


@pytest.mark.parametrize("d", (FLOATS + INTEGERS)[::2], ids=str)
def test_policies_on_a_gpu_have_the_bits_of_the_cpu(d: Any) -> None:
    with fake_gpu(), warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # 8-bit floats are joined on the host
        for f in EXACT.values():
            same(f, d, exact=True)
        same(ROUNDED["product"], d, exact=False)


@pytest.mark.deep
@pytest.mark.parametrize("d", FLOATS + INTEGERS, ids=str)
def test_all_policies_on_a_gpu(d: Any) -> None:
    with fake_gpu(), warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        for name, f in ALL.items():
            if wanted(name, d):
                same(f, d, exact=name in EXACT)


@pytest.mark.gpu
@pytest.mark.parametrize("d", FLOATS + INTEGERS, ids=str)
def test_policies_on_a_device(d: Any) -> None:
    with at("device"):
        for name, f in ALL.items():
            if wanted(name, d) and name != "moved":
                same(f, d, exact=name in EXACT)
