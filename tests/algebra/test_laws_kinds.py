"""Operators of every kind go through simplify: equal, with derivations that replay and are exact."""

import numpy as np
import pytest
import scipy.sparse

import tessera as ts
from tessera import op
from tessera.algebra.laws.simplify import search
from tessera.algebra.operator import FUNCTIONS


class Make:
    """Operators by the name of their constructor: make.diag(d)."""

    def __getattr__(self, name):
        return FUNCTIONS[name]


make = Make()
R = np.random.default_rng(0)


def real(*shape):
    return ts.tensor(R.standard_normal(shape))


def cplx(*shape):
    return ts.tensor(R.standard_normal(shape) + 1j * R.standard_normal(shape))


def two():
    return make.dense(real(2, 2))


KINDS = {
    "dense": lambda: make.dense(real(4, 4)),
    "dense complex": lambda: make.dense(cplx(4, 4)),
    "diag": lambda: make.diag(cplx(4)),
    "tridiagonal": lambda: make.tridiagonal(real(3), real(4), real(3)),
    "triangular": lambda: make.triangular(cplx(4, 4)),
    "unit triangular": lambda: make.triangular(real(4, 4), False, True),
    "permutation": lambda: make.permutation([2, 0, 1, 3], ts.f64),
    "projector": lambda: make.projector(real(4, 2)),
    "fft": lambda: make.fft(4, dtype=ts.c128),
    "fft of a grid": lambda: make.fft((2, 2), "ortho", ts.c128),
    "dct": lambda: make.dct(4, dtype=ts.f64),
    "toeplitz": lambda: make.toeplitz(real(4), real(4)),
    "circulant": lambda: make.circulant(real(4)),
    "circulant complex": lambda: make.circulant(cplx(4)),
    "low_rank": lambda: make.low_rank(real(4, 2), real(4, 2), real(2)),
    "low_rank of one factor": lambda: make.low_rank(cplx(4, 2)),
    "kronecker": lambda: make.kronecker(two(), two()),
    "kronsum": lambda: make.kronsum(two(), two()),
    "direct_sum": lambda: make.direct_sum(two(), make.diag(real(1)), make.eye(1, ts.f64)),
    "block": lambda: make.block([[two(), 0], [two(), make.diag(real(2))]]),
    "inverse": lambda: make.inverse(make.dense(real(4, 4))),
    "pseudoinverse": lambda: make.pseudoinverse(make.dense(real(4, 4))),
    "expm": lambda: make.expm(make.dense(real(4, 4))),
    "power": lambda: make.power(make.dense(real(4, 4)), 3),
    "scale by a tensor": lambda: make.dense(real(4, 4)) * ts.tensor(2.0),
    "laplacian": lambda: make.laplacian(4, dtype=ts.f64),
    "sparse": lambda: make.sparse(scipy.sparse.random(4, 4, 0.5, random_state=0).tocsr()),
    "select": lambda: make.select([0, 2, 1], 4, ts.f64),
}


def expressions(a):
    yield a
    yield a.H @ a
    yield 2 * a + a
    yield a.T
    if a.shape[0] == a.shape[1]:
        pair = make.kronecker(a, make.eye(2, a.dtype))
        yield pair @ pair
        yield a - 2 * make.eye(a.shape[0], a.dtype)


@pytest.mark.parametrize("name", KINDS)
def test_every_kind_is_simplified(name):
    for a in expressions(KINDS[name]()):
        for columns in (1, None):
            found = search(a, columns)
            found.derivation.replay()
            assert found.derivation.check() == len(found.derivation.steps)
            want, got = (np.asarray(x.todense()) for x in (a, found.operator()))
            assert np.allclose(got, want, rtol=1e-8, atol=1e-8)
            assert a.flags <= found.operator().flags


LAWS_AT_WORK = {
    "fft and back": lambda: make.fft(8, dtype=ts.c128) @ make.ifft(8, dtype=ts.c128),
    "projector twice": lambda: (p := make.projector(real(8, 2))) @ p @ p,
    "unitary and its adjoint": lambda: (q := make.fft(8, "ortho", ts.c128)).H @ q,
    "adjoint of an adjoint": lambda: make.dense(cplx(8, 8)).H.H,
}


@pytest.mark.parametrize("name", LAWS_AT_WORK)
def test_the_laws_of_the_specification(name):
    found = ts.simplify(LAWS_AT_WORK[name]())
    assert found.kind in ("eye", "projector", "dense")


def test_a_circulant_between_transforms_is_one():
    f = make.fft(8, dtype=ts.c128)
    d = cplx(8)
    found = ts.simplify(make.ifft(8, dtype=ts.c128) @ make.diag(d) @ f)
    want = np.fft.ifft(np.diag(np.asarray(d)) @ np.fft.fft(np.eye(8), axis=0), axis=0)
    assert np.allclose(found.todense(), want)


@pytest.mark.parametrize("norm", ["backward", "ortho", "forward"])
@pytest.mark.parametrize("size", [60, (8, 9)], ids=["line", "grid"])
def test_two_transforms_are_a_multiple_of_the_identity_or_of_a_mirror(size, norm):
    f = op.fft(size, norm=norm, dtype=ts.c128)
    for a, kind in (
        (f.H @ f, "eye"),
        (f @ f.H, "eye"),
        (f @ f, "permutation"),
        (f @ f @ f @ f, "eye"),
    ):
        found = ts.simplify(a)
        assert (found.parts[0] if found.kind == "scale" else found).kind == kind
        assert np.allclose(found.todense(), a.todense())


def test_woodbury_is_taken_when_the_rank_is_small():
    n = 400
    u, v = make.dense(real(n, 2)), make.dense(real(2, n))
    d = make.diag(ts.tensor(R.uniform(1, 2, n)))
    a = search(type(d)("inverse", (d + u @ v,)), 1)
    assert "Woodbury" in [s.name for s in a.derivation.steps]
    cost = a.derivation.cost
    assert cost(a.derivation.end).flops < 0.01 * cost(a.derivation.start).flops
    x = R.standard_normal(n)
    dense = np.diag(np.asarray(d.data[0])) + np.asarray((u @ v).todense())
    assert np.allclose(a.operator() @ ts.tensor(x), np.linalg.solve(dense, x))


def test_the_exponential_of_a_kronecker_sum_is_a_kronecker_product():
    a, b = (make.dense(real(4, 4)) for _ in range(2))
    whole = type(a)("function", (type(a)("kronsum", (a, b)),), static=("exp",))
    found = search(whole, 1)
    assert found.term.kind == "kronecker"
    assert found.derivation.check() == len(found.derivation.steps) == 1


def test_an_identity_or_zero_of_another_dtype_goes_too() -> None:
    a = op.dense(ts.tensor(np.arange(9.0).reshape(3, 3)))
    for found in (ts.simplify(a @ op.eye(3)), ts.simplify(op.eye(3) @ a)):
        assert (found.kind, found.dtype) == ("dense", ts.f64)
    assert (a @ op.eye(3)).dtype is ts.f64
    assert ts.simplify(a @ op.zero(3, 3)).kind == "zero"
