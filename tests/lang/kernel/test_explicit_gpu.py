"""On a GPU: boxes by TMA, limits of registers and inline assembly give what a CPU gives."""

from __future__ import annotations

import numpy as np
import pytest

import tessera as ts
from tessera import KTile, bf16, block, f32, kernel, tile
from tessera.runtime.cuda import driver
from tests.lang.kernel.test_assembly import row_estimates, swap

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not driver.available(), reason="there is no GPU"),
]
BASE = block(64, 64).k(64).warps(4).stages(3)
R = np.random.default_rng(0)


@kernel
def product(a: KTile["M", "K", bf16], b: KTile["K", "N", bf16]):
    T = tile.context()
    acc = tile.zeros((T.m, T.n), f32)
    for kb in tile.range_k(a.shape, T.k):
        left, right = tile.load(a, rows=T.m, cols=kb), tile.load(b, rows=kb, cols=T.n)
        acc = tile.dot(tile.cast(left, f32), tile.cast(right, f32), acc)
    return acc


@pytest.mark.parametrize("schedule", [BASE.tma(), BASE.registers(128)], ids=["tma", "registers"])
@pytest.mark.parametrize("sizes", [(64, 64, 64), (200, 136, 72)], ids=str)
def test_a_product_has_the_bits_that_it_has_without_the_knob(schedule, sizes):
    m, k, n = sizes
    a, b = (
        ts.tensor(R.normal(size=s).astype(np.float32)).astype(bf16).to("cuda")
        for s in ((m, k), (k, n))
    )
    plain, asked = (
        product.with_schedule(block(16, 16), gpu=s)(a, b).numpy() for s in (BASE, schedule)
    )
    np.testing.assert_array_equal(plain, asked)


def test_inline_assembly_runs_as_ptx():
    x = R.integers(-(2**31), 2**31 - 2, 100).astype(np.int32)
    np.testing.assert_array_equal(swap(ts.tensor(x).to("cuda")).numpy(), x.byteswap() + np.int32(1))
    y = R.uniform(0.5, 4, (5, 7)).astype(np.float32)
    got = row_estimates(ts.tensor(y).to("cuda")).numpy()
    assert np.abs(got / (1 / np.sqrt(2 * y)).sum(axis=1) - 1).max() < 1e-5
