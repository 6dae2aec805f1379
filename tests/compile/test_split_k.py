"""Long sums of products on a GPU: leaves that follow from the length alone, whatever computes them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera import op
from tessera.compile.gpu.executable import GpuExecutable
from tessera.ir.tile.gpu import split_k
from tests.support.fakes.gpu_fake import fake_gpu

RUNS_ON = "numpy"


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """A device on which sums are long soon."""
    monkeypatch.setattr(split_k, "LONG", 200)
    monkeypatch.setattr(split_k, "LEAF", 128)
    with fake_gpu():
        yield monkeypatch


def normal(*shape: int) -> Any:
    return np.random.default_rng(shape).standard_normal(shape).astype(np.float32)


def run(f: Any, *xs: Any) -> tuple[Any, int]:
    """What a GPU makes of arrays, and in how many launches."""
    given = [ts.tensor(x).to("cuda") for x in xs]
    jitted = ts.jit(f)
    out = jitted(*given).numpy()
    executable = jitted.lower(*given)._executable
    assert isinstance(executable, GpuExecutable)
    return out, len(executable.lowered({}).image.steps)


@pytest.mark.parametrize("blocks", [1, 132], ids=["in one block", "side by side"])
@pytest.mark.parametrize(("m", "k", "n"), [(5, 200, 7), (18, 300, 33), (1, 257, 20)])
def test_long_sums_are_right(m: int, k: int, n: int, blocks: int, cuda: pytest.MonkeyPatch) -> None:
    cuda.setattr(split_k, "MULTIPROCESSORS", blocks)
    x, w, b = normal(m, k), normal(k, n), normal(n)
    got, launches = run(lambda x, w, b: op.tanh(x @ w + b) * x[:, :1], x, w, b)
    want = np.tanh(x.astype(np.float64) @ w + b) * x[:, :1]
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)
    assert launches == (1 if blocks == 1 else 2)


def test_a_sum_has_the_bits_that_it_has_alone(cuda: pytest.MonkeyPatch) -> None:
    x, w = normal(40, 300), normal(300, 24)

    def product(x: Any, w: Any) -> Any:
        return x @ w

    whole, _ = run(product, x, w)
    for m, n in ((1, 24), (40, 1), (17, 9)):
        assert np.array_equal(run(product, x[:m].copy(), w[:, :n].copy())[0], whole[:m, :n])
    stack, _ = run(lambda x, w: x @ w, np.stack([x[:3], x[3:6]]), np.stack([w, w]))
    assert np.array_equal(stack.reshape(6, 24), whole[:6])
    cuda.setattr(split_k, "MULTIPROCESSORS", 1)
    assert np.array_equal(run(lambda x, w: x @ w, x, w)[0], whole), "by one block of threads"


def test_a_short_sum_is_one_chain(cuda: pytest.MonkeyPatch) -> None:
    _, launches = run(lambda x, w: x @ w, normal(4, 199), normal(199, 4))
    assert launches == 1
