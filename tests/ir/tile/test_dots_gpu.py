"""Products of vectors, one for each row, are folds on a GPU; products of matrices stay what they are."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera import op
from tests.support.fakes.gpu_fake import fake_gpu

RUNS_ON = "numpy"


def numbers(*shape: int) -> Any:
    return np.random.default_rng(list(shape)).standard_normal(shape).astype(np.float32)


def tiles_of(f: Any, *xs: Any) -> str:
    return str(ts.jit(f, target="cuda:sm_90").lower(*(ts.tensor(x) for x in xs)).tile)


def test_no_matrix_unit_for_a_number_of_each_row() -> None:
    x = numbers(64, 255)
    assert "tile.dot" not in tiles_of(lambda a, b: op.einsum("ij,ij->i", a, b), x, x)


def test_a_matrix_of_one_row_has_the_bits_that_it_has_among_others() -> None:
    assert "tile.dot" in tiles_of(lambda a, b: a @ b, numbers(1, 255), numbers(255, 1))


@pytest.mark.parametrize("shape", [(5, 7), (1, 1), (3, 5000), (300, 3)], ids=str)
def test_values_and_bits_of_one_row_alone(shape: tuple[int, int]) -> None:
    a, b = numbers(*shape), numbers(*shape) * 2
    with fake_gpu():
        x, y = ts.tensor(a).to("cuda"), ts.tensor(b).to("cuda")
        got = ts.jit(lambda x, y: op.relu(op.einsum("ij,ij->i", x, y) * 2.0 + 1.0))(x, y).numpy()
        rows = ts.jit(lambda x, y: op.einsum("ij,ij->i", x, y))(x, y).numpy()
        last = ts.jit(lambda x, y: op.einsum("j,j->", x, y))(x[-1], y[-1]).numpy()
    want = np.maximum(np.einsum("ij,ij->i", a.astype("f8"), b.astype("f8")) * 2 + 1, 0)
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-3)
    assert last.tobytes() == rows[-1].tobytes()
