"""The law of bits for functions of matrices: what a matrix gives does not depend on its neighbours in a
batch.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera import op
from tests.support.cases.random_graphs import same_bits


def _definite(x: Any) -> Any:
    return x @ op.conj(op.matrix_transpose(x))


FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "adjugate": op.adjugate, "tangent of adjugate": lambda x: ts.jvp(op.adjugate, (x,), (x,))[1],
    "inv": op.inv,
    "det": op.det, "slogdet": op.slogdet, "lu": op.lu, "cholesky": lambda x: op.cholesky(_definite(x)),
    "eigh": lambda x: op.eigh(_definite(x)), "eig": op.eig, "svd": op.svd, "qr": op.qr, "pinv": op.pinv,
    "expm": op.expm, "expm_frechet": lambda x: op.expm_frechet(x, x),
    "sqrtm": lambda x: op.sqrtm(_definite(x)),
    "logm": lambda x: op.logm(_definite(x)), "solve": lambda x: op.solve(x, x),
    "triangular_solve": lambda x: op.triangular_solve(x, x), "matrix_power": lambda x: op.matrix_power(x, 3),
    "tangent of svd": lambda x: ts.jvp(op.svd, (x,), (x,))[1][1],
}  # fmt: skip


SLOW = {"pinv"}  # 48 programs of a thousand ops


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.deep] * (n in SLOW)) for n in FUNCTIONS]
)
def test_a_matrix_in_a_batch_has_the_bits_of_the_matrix_alone(name: str) -> None:
    f = FUNCTIONS[name]
    for d, n in itertools.product((np.float32, np.complex64, np.complex128), (1, 2, 3, 5)):
        x = _numbers((4, n, n), d)
        whole = [np.asarray(v) for v in ts.tree.leaves(f(ts.tensor(x)))]
        for i in range(4):
            alone = [np.asarray(v) for v in ts.tree.leaves(f(ts.tensor(x[i])))]
            assert same_bits(alone, [w[i] for w in whole]), (d, n, i)


def _numbers(shape: tuple[int, ...], d: Any) -> Any:
    rng = np.random.default_rng(0)
    x = rng.normal(size=shape)
    return (x + 1j * rng.normal(size=shape) if np.issubdtype(d, np.complexfloating) else x).astype(
        d
    )
