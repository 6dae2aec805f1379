"""dynamic_update_slice on a GPU: a small part is replaced where the tensor lies, and nothing else is touched."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera import op
from tests.gpu_fake import BUILT, fake_gpu, launching_gpus

RUNS_ON = "numpy"
CASES = (
    ((8, 64, 16), (8, 1, 16), (0, 5, 0)), ((8, 64, 16), (8, 1, 16), (0, 99, 0)),
    ((8, 64, 16), (2, 3, 5), (-4, 60, 7)), ((40,), (7,), (38,)), ((6, 7, 8, 9), (2, 7, 1, 9), (3, 0, 4, 0)),
    ((64, 33), (16, 33), (17, 0)), ((2000, 3), (450, 3), (1234, 0)),
)  # fmt: skip


@pytest.fixture
def cuda() -> Iterator[None]:
    BUILT.clear()
    with fake_gpu():
        yield


def there(*arrays: Any) -> list[Any]:
    return [ts.tensor(x).to("cuda") for x in arrays]


def want(x: Any, v: Any, start: tuple[int, ...]) -> Any:
    at = [min(max(s, 0), n - m) for s, n, m in zip(start, x.shape, v.shape, strict=True)]
    out = x.copy()
    out[tuple(slice(a, a + m) for a, m in zip(at, v.shape, strict=True))] = v
    return out


@pytest.mark.parametrize("dtype", ["f4", "i8", "?"])
@pytest.mark.parametrize(("shape", "part", "start"), CASES, ids=str)
def test_an_update_is_numpys(shape: Any, part: Any, start: Any, dtype: str, cuda: None) -> None:
    rng = np.random.default_rng(0)
    x, v = (rng.integers(0, 100, s).astype(dtype) for s in (shape, part))
    a, b = there(x, v)
    at = [ts.tensor(np.int32(s) if i % 2 else np.int64(s)).to("cuda") for i, s in enumerate(start)]
    got = ts.jit(lambda x, v, *s: op.dynamic_update_slice(x, v, s))(a, b, *at)
    np.testing.assert_array_equal(got.numpy(), want(x, v, start))
    np.testing.assert_array_equal(a.numpy(), x)
    assert "update" in {s.name for s in BUILT}


def _step(memory: Any, new: Any, at: Any) -> Any:
    return op.dynamic_update_slice(memory, new * 2, (0, at, 0))


@pytest.mark.parametrize("devices", [fake_gpu, launching_gpus])
def test_a_cache_that_is_given_away_is_not_copied(devices: Any) -> None:
    x, v = np.ones((4, 32, 8), np.float32), np.full((4, 1, 8), 3, np.float32)
    with devices():
        a, b, at = *there(x, v), ts.tensor(np.int64(7)).to("cuda")
        for donate, copies in (((), 1), (("memory",), 0)):
            f: Any = ts.jit(_step, donate=donate)
            (m,) = there(x)
            got = f(m, b, at)
            np.testing.assert_array_equal(got.numpy(), want(x, v * 2, (0, 7, 0)))
            assert _launched(f).count("copy") == copies, donate
        np.testing.assert_array_equal(a.numpy(), x)


def _launched(f: Any) -> str:
    (entry,) = f._variants.values()
    (p,) = entry.executable._prepared.values()
    return " ".join(x.name for s in p.segments for x in s.launches)


def test_tokens_fill_a_cache_one_after_another() -> None:
    """In place many times over, the old values where nothing was written, both updates of a step."""

    def f(k: Any, v: Any, x: Any, at: Any) -> Any:
        k = op.dynamic_update_slice(k, x[None], (at, 0))
        v = op.dynamic_update_slice(v, x[None] + 1, (at, 0))
        return k, v, op.sum(k @ op.transpose(v))

    rng = np.random.default_rng(1)
    with launching_gpus():
        step: Any = ts.jit(f, donate=("k", "v"))
        wide = [np.zeros((16, 8), np.float32) for _ in range(2)]
        k, v = there(*wide)
        for at in range(16):
            x = rng.standard_normal(8).astype(np.float32)
            k, v, s = step(k, v, *there(x), ts.tensor(np.int64(at)).to("cuda"))
            wide[0][at], wide[1][at] = x, x + 1
            np.testing.assert_array_equal(k.numpy(), wide[0])
            np.testing.assert_allclose(s.numpy(), (wide[0] @ wide[1].T).sum(), rtol=1e-3, atol=1e-3)
        np.testing.assert_array_equal(v.numpy(), wide[1])


def test_what_others_still_read_is_copied(cuda: None) -> None:
    x, v = np.arange(64, dtype=np.float32), np.full(4, -1, np.float32)
    f = ts.jit(lambda x, v: (op.dynamic_update_slice(x * 2, v, (3,)), op.sum(x * 2), x))
    new, total, same = f(*there(x, v))
    np.testing.assert_array_equal(new.numpy(), want(x * 2, v, (3,)))
    np.testing.assert_array_equal(same.numpy(), x)
    assert total.numpy() == x.sum() * 2
    both = ts.jit(lambda x, v: [op.dynamic_update_slice(x, v, (i,)) for i in (1, 9)])
    for got, i in zip(both(*there(x, v)), (1, 9), strict=True):
        np.testing.assert_array_equal(got.numpy(), want(x, v, (i,)))


def test_a_large_part_is_a_selection(cuda: None) -> None:
    x, v = np.zeros(64, np.float32), np.ones(33, np.float32)
    f = ts.jit(lambda x, v: op.dynamic_update_slice(x, v, (5,)))
    np.testing.assert_array_equal(f(*there(x, v)).numpy(), want(x, v, (5,)))
    assert "update" not in {s.name for s in BUILT}
