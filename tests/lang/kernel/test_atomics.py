"""tile.accumulate(..., atomic=True): atomics of GPUs for those who ask, under fast numerics alone."""

from __future__ import annotations

import numpy as np
import pytest

import tessera as ts
from tessera import KTile, block, f16, f32, i32, kernel, op, tile
from tessera.core.errors import RuleError
from tessera.ir.tile.autodiff import reverse
from tessera.ir.tile.interp import interpret
from tessera.lang.kernel.scalar_grad import slopes
from tessera.lang.kernel.values import KernelError
from tessera.runtime.cuda import driver


@kernel.schedule(block(8))
def histogram(x: KTile["N", i32], *, bins: int):
    counts = tile.empty((bins,), i32)
    ids = tile.load(x)
    tile.accumulate(counts, tile.ones(ids.shape, i32), at=(ids,), atomic=True)
    return counts


@kernel.schedule(block(4))
def rows_into(x: KTile["N", "D", f32], ids: KTile["N", i32], y: KTile["M", "D", f32]):
    tile.accumulate(y, tile.load(x) * 2, rows=tile.load(ids), atomic=True)


@kernel.schedule(block(4))
def column_sums(x: KTile["M", "N", f32]):
    y = tile.empty((x.shape[1],), f32)
    t = tile.load(x)
    tile.accumulate(y, tile.sum(t, axis=0), at=(0,), shape=(x.shape[1],), atomic=True)
    return y


@kernel.schedule(block(4))
def largest(x: KTile["N", f32], ids: KTile["N", i32], y: KTile["M", f32]):
    t = tile.load(x)
    tile.accumulate(y, t, at=(tile.load(ids),), how="max", mask=t > 0, atomic=True)


R = np.random.default_rng(0)
IDS = np.array([2, 0, 2, -1, 4, 4, 9, 1, 0, 2, 3], np.int32)
X = R.integers(-8, 9, (11, 3)).astype(
    np.float32
)  # whole numbers: sums have one value in every order
CASES = {
    "histogram": (histogram, (IDS,), {"bins": 5}, 1),
    "rows": (rows_into, (X, IDS, np.ones((5, 3), np.float32)), {}, 0),
    "columns": (column_sums, (X,), {}, 1),
    "max": (largest, (X[:, 0].copy(), IDS, np.zeros(5, np.float32)), {}, 0),
}


@pytest.mark.parametrize("name", CASES)
def test_a_gpu_runs_instances_side_by_side_and_folds_by_atomics(name):
    f, args, keywords, made = CASES[name]
    with ts.numerics("fast"):
        want = f(*args, **keywords).numpy()  # in order, on a CPU
        lowered = f.lower(*args, **keywords)
        assert "tl.atomic_" in lowered.triton
        there, _, sizes = lowered.there()
    assert "_serial" not in dict(there.grid)
    arrays = [a.copy() for a in args] + [np.zeros_like(want)] * made
    interpret(there, arrays, {n: sizes[n] for n in there.sizes})
    np.testing.assert_array_equal(arrays[-1], want)


@pytest.mark.gpu
@pytest.mark.skipif(not driver.available(), reason="there is no GPU")
@pytest.mark.parametrize("name", CASES)
def test_atomics_of_a_gpu_give_the_sums(name):
    f, args, keywords, _ = CASES[name]
    with ts.numerics("fast"):
        want = f(*args, **keywords).numpy()
        got = f(*(ts.tensor(a).to("cuda") for a in args), **keywords)
    np.testing.assert_array_equal(got.numpy(), want)


def test_only_fast_numerics_let_go_of_the_order():
    with pytest.raises(
        KernelError, match=r"accumulate: atomic=True folds in any order, .* ts.numerics\(\"fast\"\)"
    ):
        histogram(IDS, bins=5)


@kernel.schedule(block(8))
def products(x: KTile["N", f32]):
    y = tile.empty((1,), f32)
    tile.accumulate(y, tile.load(x), at=(tile.cast(tile.load(x) * 0, i32),), how="mul", atomic=True)
    return y


@kernel.schedule(block(8))
def halves(x: KTile["N", f16]):
    y = tile.empty((1,), f16)
    tile.accumulate(y, tile.load(x), at=(tile.cast(tile.load(x) * 0, i32),), atomic=True)
    return y


@pytest.mark.parametrize(("f", "dtype", "what"),
    [(products, np.float32, "mul of f32"), (halves, np.float16, "add of f16")])  # fmt: skip
def test_what_has_no_atomic_is_refused_on_a_gpu(f, dtype, what):
    with (
        ts.numerics("fast"),
        pytest.raises(KernelError, match=f"there is no atomic {what}; there are add, max"),
    ):
        f.lower(np.ones(9, dtype)).triton  # noqa: B018


def test_the_derivative_of_a_sum_is_there_on_a_cpu():
    with ts.numerics("fast"):
        got = ts.grad(lambda x: op.sum(column_sums(x) * np.arange(3, dtype=np.float32)))(X)
    np.testing.assert_array_equal(got.numpy(), np.broadcast_to(np.arange(3), X.shape))


def test_reversed_for_a_gpu_a_sum_passes_its_cotangent_on():
    with ts.numerics("fast"):
        f, args, _, _ = CASES["rows"]
        there, _, sizes = f.lower(*args).there()
        made = reverse(there, 3, [True, False, True], [True], slopes)
        g, ct = np.zeros_like(X), R.integers(-4, 5, (5, 3)).astype(np.float32)
        kept = ct.copy()
        arrays = [*args, ct, *(np.zeros(t.shape, np.float32) for t in made.zeros)]
        arrays += [g] if len(arrays) < len(made.kernel.parameters) else []
        interpret(made.kernel, arrays, {n: sizes[n] for n in made.kernel.sizes})
        want = np.zeros_like(X)
        inside = (IDS >= 0) & (IDS < 5)
        want[inside] = 2 * kept[IDS[inside]]
        np.testing.assert_array_equal(arrays[-1], want)
        np.testing.assert_array_equal(ct, kept)
        worst = CASES["max"]
        with pytest.raises(RuleError, match="an atomic max has no derivative"):
            reverse(worst[0].lower(*worst[1]).there()[0], 3, [True, False, False], [True], slopes)
