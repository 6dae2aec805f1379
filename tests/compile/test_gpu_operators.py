"""Operators whose data lie on a GPU: what asks for numbers finds them there too."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera import op
from tests.support.fakes.gpu_fake import fake_gpu

N = 6
RNG = np.random.default_rng(4)
MATRIX = RNG.normal(size=(N, N)) + 4 * np.eye(N)
LINE = np.array([5.0, 1.0, 0.5, 0.2, 0.5, 1.0])
MADE: dict[str, Callable[[Callable[[Any], Any]], Any]] = {
    "dense": lambda t: op.dense(t(MATRIX)),
    "symmetric": lambda t: op.dense(t(MATRIX + MATRIX.T), flags=("symmetric",)),
    "diagonal": lambda t: op.diag(t(LINE)),
    "circulant": lambda t: op.circulant(t(LINE)),
    "toeplitz": lambda t: op.toeplitz(t(LINE)),
    "kronecker": lambda t: op.kronecker(op.dense(t(MATRIX[:2, :2])), op.diag(t(LINE[:3]))),
    "low rank": lambda t: op.diag(t(LINE)) + op.low_rank(t(MATRIX[:, :2]), t(MATRIX[:, 2:4])),
    "sparse": lambda t: op.sparse(t(MATRIX)),
    "sum": lambda t: op.dense(t(MATRIX)) + 2.0 * op.eye(N),
}
ASKED: dict[str, Callable[[Any, Any], Any]] = {
    "apply": lambda a, v: a @ v,
    "adjoint": lambda a, v: a.T @ v,
    "solve": lambda a, v: op.solve(a, v),
    "inverse": lambda a, v: op.inverse(a) @ v,
    "trace": lambda a, v: op.trace(a),
    "slogdet": lambda a, v: op.slogdet(a)[1],
    "expm": lambda a, v: op.expm(0.1 * a) @ v,
}


pytestmark = pytest.mark.filterwarnings("ignore:.*runs on the host")


@pytest.fixture(scope="module", autouse=True)
def device() -> Iterator[None]:
    with fake_gpu():
        yield


def moved(x: Any) -> Any:
    return ts.tensor(x).to("cuda")


@pytest.mark.parametrize("asked", ASKED)
@pytest.mark.parametrize("made", MADE)
def test_operators_on_a_gpu(made: str, asked: str) -> None:
    v = np.arange(1.0, N + 1)
    want = ASKED[asked](MADE[made](ts.tensor), ts.tensor(v)).numpy()
    got = ASKED[asked](MADE[made](moved), moved(v))
    assert got.device.kind == "cuda"
    np.testing.assert_allclose(got.numpy(), want, rtol=1e-9, atol=1e-9)
