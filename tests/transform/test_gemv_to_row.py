"""A product with one column is computed as a row on a CPU, with the same bits."""

import numpy as np
import pytest

import tessera as ts
from tessera import op
from tessera.core.folds import contract

RNG = np.random.default_rng(11)


def drawn(*shape):
    return RNG.normal(size=shape).astype(np.float32)


@pytest.mark.parametrize("shape", [(16, 1), (16, 600), (33, 1040), (200, 17)], ids=str)
def test_elements_are_the_sums_of_the_law(shape):
    a, x = drawn(*shape), drawn(shape[1])
    got = ts.jit(op.matmul, target="cpu")(ts.tensor(a), ts.tensor(x)).numpy()
    assert got.tobytes() == contract(a, x).tobytes()


def test_the_kernel_computes_a_row():
    f = ts.jit(lambda a, x: op.matmul(a, x) + 1, target="cpu")
    low = f.lower(ts.tensor(drawn(64, 32)), ts.tensor(drawn(32)))
    (head,) = (s for k in low.schedule.steps for s in k.stages if s.reduced)
    assert [a.size for a in head.axes] == [1, 64]


def test_few_rows_stay_as_they_are():
    low = ts.jit(op.matmul, target="cpu").lower(ts.tensor(drawn(15, 32)), ts.tensor(drawn(32)))
    head = low.schedule.steps[0].stages[0]
    assert [a.size for a in head.axes] == [15, 1]
