"""examples/kernels: every kernel against NumPy, in three ways that have the same bits."""

from __future__ import annotations

import numpy as np
import pytest

import tessera as ts
from examples.kernels import (
    algebra,
    attention,
    fused,
    grids,
    lists,
    neural,
    products,
    scans,
    sorting,
    sparse,
    training,
)
from tessera.runtime.cuda import driver
from tests.support.cases import kernel_examples as want
from tests.support.cases.kernel_examples import CASES, close

SMALL = (0, 1, 5, 17)  # of every case: none, one, a prime, more than a block
MORE = (2, 3, 8, 13, 16, 31, 33)
MODULES = (
    algebra, attention, fused, grids, lists, neural, products, scans, sorting, sparse, training,
)  # fmt: skip


def bits(x) -> list[bytes]:
    return [t.numpy().tobytes() for t in (x if isinstance(x, tuple) else (x,))]


def check(name: str, size: int, dtype: str, ways: bool) -> None:
    case = CASES[name]
    args, kwargs = case.arguments(np.random.default_rng(size), size, np.dtype(dtype))
    made = case.kernel(*args, **kwargs)
    for got, expected in zip(
        made if isinstance(made, tuple) else (made,), case.expected(*args, **kwargs), strict=True
    ):
        close(got.numpy(), expected, case.tolerance)
    for step in (False, True) if ways else ():
        with ts.interpret(step=step):
            assert bits(case.kernel(*args, **kwargs)) == bits(made), (name, size, step)


@pytest.mark.parametrize("name", CASES)
def test_a_kernel_is_what_numpy_says(name):
    for size in [s for s in SMALL if s >= CASES[name].least]:
        check(name, size, CASES[name].dtypes[0], ways=size == 5)


@pytest.mark.deep
@pytest.mark.parametrize("name", CASES)
def test_a_kernel_is_what_numpy_says_for_more_sizes_and_dtypes(name):
    for dtype in CASES[name].dtypes:
        for size in [s for s in (*SMALL, *MORE) if s >= CASES[name].least]:
            check(name, size, dtype, ways=True)


@pytest.mark.gpu
@pytest.mark.skipif(not driver.available(), reason="there is no GPU")
@pytest.mark.parametrize("name", CASES)
def test_a_kernel_on_a_gpu_is_what_numpy_says(name):
    case = CASES[name]
    for size in [s for s in SMALL if s >= max(case.least, 1)]:
        args, kwargs = case.arguments(np.random.default_rng(size), size, np.dtype(case.dtypes[0]))
        there = ts.tree.map(
            lambda a: ts.tensor(a).to("cuda") if isinstance(a, np.ndarray) else a, args
        )
        made = case.kernel(*there, **kwargs)
        for got, expected in zip(
            made if isinstance(made, tuple) else (made,),
            case.expected(*args, **kwargs),
            strict=True,
        ):
            assert got.device.kind == "cuda"
            close(got.numpy(), expected, max(case.tolerance, 1e-3 if size > 5 else 0.0))


def test_every_kernel_of_the_examples_has_a_case():
    kernels = {f for m in MODULES for f in vars(m).values() if type(f).__name__ == "KernelFunction"}
    assert kernels == {c.kernel for c in CASES.values()} | {
        attention.join_parts,
        sorting.radix_pass,
    }
    assert len(kernels) >= 76


def test_split_keys_are_joined():
    r = np.random.default_rng(0)
    q, k, v = (r.normal(size=s).astype(np.float32) for s in ((2, 8), (2, 21, 8), (2, 21, 8)))
    got = attention.join_parts(*attention.split_decode(q, k, v, parts=4))
    close(got.numpy(), want.attended(q[:, None], k, v)[:, 0], 1e-5)


@pytest.mark.parametrize("n", [1, 64, 131])
def test_a_radix_sort_is_passes_over_digits(n):
    x = np.random.default_rng(n).integers(0, 1 << 16, n).astype(np.int32)
    out = ts.tensor(x)
    for shift in (0, 4, 8, 12):
        out = sorting.radix_pass(out, shift=shift)
    np.testing.assert_array_equal(out.numpy(), np.sort(x))
