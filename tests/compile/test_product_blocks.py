"""The blocks of products on a GPU: they fill the device, and change no bit."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import tessera as ts
from tessera import op
from tessera.compile import compile_graph
from tessera.ir.schedule.gpu_blocks import MULTIPROCESSORS
from tessera.ir.tile.gpu.product_blocks import ProductShape, cycles, product_block
from tests.support.fakes.gpu_fake import fake_gpu

RUNS_ON = "numpy"


@pytest.mark.parametrize(
    ("shape", "block"),
    [
        (ProductShape(1, 4096, 4096, 4096, 16), (128, 256)),
        (ProductShape(1, 8192, 8192, 8192, 16), (128, 256)),
        (ProductShape(1, 8192, 16384, 4096, 16, 4), (256, 128)),
        (ProductShape(1, 16384, 768, 768, 16), (128, 256)),
        (ProductShape(64, 512, 512, 512, 16), (128, 128)),
        (ProductShape(1, 8192, 8192, 512, 16), (128, 128)),
        (ProductShape(64, 1024, 1024, 64, 16), (128, 256)),
        (ProductShape(1, 256, 256, 8192, 16), (64, 32)),
        (ProductShape(1, 1000, 2000, 3000, 16), (128, 128)),
        (ProductShape(1, 256, 8192, 8192, 16), (128, 128)),
        (ProductShape(1, 512, 512, 512, 16), (64, 32)),
    ],
    ids=str,
)
def test_large_products_have_large_blocks_and_others_fill_the_device(
    shape: ProductShape, block: tuple[int, int]
) -> None:
    b = product_block(shape)
    assert (b.m, b.n) == block


def test_a_block_that_has_a_multiprocessor_to_itself_fetches_further_ahead() -> None:
    alone, shared = (product_block(ProductShape(1, m, 8192, 8192, 16)) for m in (256, 320))
    assert (alone.m, alone.n, alone.stages) == (128, 128, 4)
    assert shared.stages == 0
    assert product_block(ProductShape(1, 256, 4096, 4096, 16)).k == 128


def test_the_model_counts_the_last_round_as_a_whole_one() -> None:
    rounds = [
        cycles(ProductShape(n, 128, 256, 4096, 16), 128, 256)
        for n in (1, MULTIPROCESSORS, MULTIPROCESSORS + 1)
    ]
    assert rounds[0] == rounds[1] < rounds[2]


def test_a_batch_of_few_rows_reads_long_runs_of_the_matrix() -> None:
    along = product_block(ProductShape(8192, 4096, 1, 8, 16, 1, turned=True))
    assert along.m * along.k >= 4096, "a block has enough to ask for"
    across = product_block(ProductShape(8192, 4096, 1, 1024, 16))
    assert across.k == 256, "256 numbers that follow each other"


@pytest.mark.parametrize(("first", "last"), [(0, 100), (7, 107), (28, 128)])
def test_a_product_of_parts_reads_nothing_behind_them(first: int, last: int) -> None:
    rng = np.random.default_rng(4)
    x, w = (rng.normal(size=s).astype(np.float32) for s in ((40, 128), (128, 24)))
    outside = np.r_[0:first, last:128]
    x[:, outside], w[outside] = np.inf, np.nan
    with fake_gpu():
        f = ts.jit(lambda x, w: x[:, first:last] @ w[first:last])
        got = f(ts.tensor(x).to("cuda"), ts.tensor(w).to("cuda")).numpy()
    want = x[:, first:last].astype(np.float64) @ w[first:last].astype(np.float64)
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("m", "k", "n"), [(130, 67, 129), (128, 72, 135), (129, 65, 136)])
def test_products_of_copied_factors_are_right(m: int, k: int, n: int) -> None:
    rng = np.random.default_rng([m, k, n])
    x, w = (ts.tensor(rng.normal(size=s)).astype("bf16") for s in ((m, k), (k, n)))
    with fake_gpu():
        got = ts.jit(lambda x, w: op.relu(x @ w))(x.to("cuda"), w.to("cuda")).numpy()
    want = np.maximum(x.numpy().astype(np.float64) @ w.numpy().astype(np.float64), 0)
    assert np.linalg.norm(got.astype(np.float64) - want) < 4e-3 * np.linalg.norm(want)


def test_factors_whose_rows_begin_anywhere_are_fetched_as_boxes() -> None:
    g = ts.trace(lambda x, w: x @ w, ts.Tensor[1001, 3001, ts.bf16], ts.Tensor[3001, 2001, ts.bf16])
    sources = compile_graph(g, "cuda:sm_90").target_at([(1001, 3001), (3001, 2001)])
    *copies, product = (sources[n] for n in sources)
    assert len(copies) == 2
    assert product.count("make_tensor_descriptor") == 2
    assert "tl.where" not in product, "zeros are there already"


@pytest.mark.parametrize("bits", [32, 64])
def test_what_steps_of_wide_factors_fetch_ahead_fits_every_gpu(bits: int) -> None:
    """Deep blocks once asked for 98 KB, where an MI300 has 64."""
    sizes = (1, 17, 33, 100, 512, 4096, 100_000)
    for m, n, k in itertools.product(sizes, repeat=3):
        b = product_block(ProductShape(1, m, n, k, bits))
        assert (b.m + b.n) * b.k * bits // 8 * max(b.stages - 1, 1) <= 1 << 16, (m, n, k)
