"""The standard library, kernels with schedules and updates on a GPU, at sizes that fill its registers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera import KTile, bf16, f32, kernel, op, stdlib, tile
from tessera.runtime.cuda import driver
from tests.support.runners.tolerance import assert_close

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not driver.available(), reason="there is no GPU"),
]


def draw(*shape: int, seed: int = 0, dtype: Any = bf16.np) -> Any:
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(dtype)


def there(*arrays: Any) -> list[Any]:
    return [ts.tensor(x, device="cuda") for x in arrays]


def wide(x: Any) -> Any:
    return np.asarray(x, np.float64)


def near(got: Any, want: Any, bound: float) -> None:
    """Close beside the largest number: sums of many terms cancel."""
    assert np.abs(wide(got.numpy()) - want).max() <= bound * np.abs(want).max()


@pytest.mark.parametrize(("dtype", "bound"), [(bf16.np, 1e-2), (np.float32, 1e-5)])
@pytest.mark.parametrize("shape", [(512, 384, 640), (130, 70, 190)], ids=str)
def test_products(shape: tuple[int, int, int], dtype: Any, bound: float) -> None:
    m, k, n = shape
    a, b, c = (
        draw(m, k, dtype=dtype),
        draw(k, n, seed=1, dtype=dtype),
        draw(n, seed=2, dtype=dtype),
    )
    near(stdlib.matmul(*there(a, b)), wide(a) @ wide(b), bound)
    plain = np.maximum(wide(a) @ wide(b) + wide(c), 0)
    near(stdlib.matmul(*there(a, b, c), activation="relu"), plain, bound)


def test_products_of_groups_and_of_bytes() -> None:
    x, w, sizes = draw(300, 256), draw(3, 256, 320, seed=1), np.array([100, 150, 50])
    parts = zip(np.split(wide(x), np.cumsum(sizes)[:-1]), wide(w), strict=True)
    near(
        stdlib.grouped_matmul(*there(x, w, sizes)), np.concatenate([a @ b for a, b in parts]), 1e-2
    )
    q, s = stdlib.quantise(ts.tensor(wide(w[0]).astype(np.float32)), group=64)
    whole = wide(q.numpy()) * np.repeat(wide(s.numpy()), 64, 0)
    got = stdlib.quantised_matmul(*there(x), q.to("cuda"), s.to("cuda"))
    near(got, wide(x) @ whole, 1e-2)


@pytest.mark.parametrize("width", [4096, 1000])
def test_rows(width: int) -> None:
    x, g, b = draw(300, width), draw(width, seed=1), draw(width, seed=2)
    e = np.exp(wide(x) - wide(x).max(1, keepdims=True))
    near(stdlib.stable_softmax(*there(x)), e / e.sum(1, keepdims=True), 1e-2)
    c = wide(x) - wide(x).mean(1, keepdims=True)
    norm = c / np.sqrt((c * c).mean(1, keepdims=True) + 1e-5) * wide(g) + wide(b)
    near(stdlib.efficient_layernorm(*there(x, g, b)), norm, 1e-2)
    rate = np.sqrt((wide(x) ** 2).mean(1, keepdims=True) + 1e-6)
    near(stdlib.rmsnorm(*there(x, g)), wide(x) / rate * wide(g), 1e-2)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dtype", [bf16.np, np.float32])
def test_attention_and_its_window(causal: bool, dtype: Any) -> None:
    q, k, v = (draw(1, 4, 256, 64, seed=i, dtype=dtype) for i in range(3))
    host = [ts.tensor(np.asarray(x, np.float32)) for x in (q, k, v)]
    bound = 2e-2 if dtype is not np.float32 else 1e-4
    for more in ({}, {"window": 40}):
        want = stdlib.flash_attention_2(*host, causal=causal, **more).numpy()
        near(stdlib.flash_attention_2(*there(q, k, v), causal=causal, **more), wide(want), bound)


def test_adam_and_losses() -> None:
    xs = [draw(5000, seed=i, dtype=np.float32) for i in range(4)]
    xs[3] = xs[3] ** 2
    want = stdlib.fused_adam(*(ts.tensor(x) for x in xs), 3)
    for a, b in zip(stdlib.fused_adam(*there(*xs), 3), want, strict=True):
        assert_close(a.numpy(), b.numpy(), times=4)
    x, y = draw(64, 5000), np.arange(64) * 7
    loss = stdlib.fused_cross_entropy(ts.tensor(np.asarray(x, np.float32)), ts.tensor(y)).numpy()
    near(stdlib.fused_cross_entropy(*there(x, y)), wide(loss), 1e-2)


def test_a_kernel_is_tuned_on_the_device(tmp_path: Any) -> None:
    @kernel.autotune(
        space={"BM": [64, 512], "BN": [64, 512], "k": [32], "warps": [4]}, budget_ms=3000,
        cache=tmp_path,
    )  # fmt: skip
    def product(a: KTile["M", "K"], b: KTile["K", "N"]):
        T = tile.context()
        acc = tile.zeros((T.m, T.n), f32)
        for kb in tile.range_k(a.shape, T.k):
            acc = tile.dot(tile.load(a, rows=T.m, cols=kb), tile.load(b, rows=kb, cols=T.n), acc)
        return tile.cast(acc, a.dtype)

    a, b = draw(1024, 512), draw(512, 1024, seed=1)
    near(product(*there(a, b)), wide(a) @ wide(b), 1e-2)
    (found,) = product.found.values()
    assert found.schedule.block != (
        512,
        512,
    )  # 1 MiB of sums in registers: it spills, or finds no room
    assert found.seconds < 1e-2


def test_updates_fill_a_cache_in_place() -> None:
    f: Any = ts.jit(
        lambda memory, x, at: op.dynamic_update_slice(memory, x * 2, (0, at, 0)), donate=("memory",)
    )
    want = draw(8, 300, 64)
    (m,) = there(want)
    for at in (0, 17, 299, 5):
        row = draw(8, 1, 64, seed=at)
        m = f(m, *there(row), ts.tensor(np.int64(at), device="cuda"))
        want[:, at : at + 1] = (wide(row) * 2).astype(want.dtype)
    np.testing.assert_array_equal(np.asarray(m.numpy(), np.float32), np.asarray(want, np.float32))


def test_branches_of_a_graph_meet_again() -> None:
    def f(x: Any, y: Any) -> Any:
        parts = [op.softmax(op.sin(x * (i + 1)) @ y) for i in range(6)]
        sums = [op.cumsum(p, axis=0) + op.sort(p, axis=1) for p in parts]
        return op.max(op.stack(sums), axis=0), sums[0] @ sums[1] - parts[2]

    x, y = there(*(draw(256, 256, seed=i, dtype=np.float32) for i in range(2)))
    g: Any = ts.jit(f)
    first = [v.numpy().tobytes() for v in g(x, y)]
    for _ in range(20):
        assert [v.numpy().tobytes() for v in g(x, y)] == first
