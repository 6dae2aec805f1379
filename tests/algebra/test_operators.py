"""Operators are their matrices: every constructor, every operation and query, every dtype."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.linalg

import tessera as ts
from tessera import op
from tessera.algebra.apply import cost_of
from tessera.core.errors import NumericalError
from tests.support.cases.operator_cases import (
    CASES,
    DTYPES,
    EPS,
    Draw,
    is_regular,
    is_square,
    near,
    skew_part,
    symmetric_part,
    wide,
)

RUNS_ON = "numpy"  # what is compared here is algebra, not machine code
Array = np.ndarray[Any, Any]


def is_right(m: Array) -> bool:
    """Square, with eigenvalues right of zero, so that real logarithms and roots exist."""
    return is_regular(m) and bool(np.min(np.linalg.eigvals(m).real) > 0.1)


def anything(m: Array) -> bool:
    return True


def sine_of(m: Array) -> Array:
    w, v = np.linalg.eigh(m)
    return (v * np.sin(w)) @ v.conj().T


def small(a: Any) -> Any:
    return 0.1 * a


def middle(m: Array) -> float:
    """Half of the way over the widest gap between eigenvalues of the self-adjoint part."""
    w = np.linalg.eigvalsh(symmetric_part(wide(np.asarray(m))))
    at = int(np.argmax(np.round(np.diff(w), 3)))  # of equal gaps the first
    return float((w[at] + w[at + 1]) / 2)


def has_gap(m: Array) -> bool:
    return is_square(m) and bool(
        np.max(np.diff(np.linalg.eigvalsh(symmetric_part(m))), initial=0.0) > 0.3
    )


def has_eigenvectors(m: Array) -> bool:
    return is_square(m) and bool(np.linalg.cond(np.linalg.eig(m)[1]) < 50)


def indefinite(a: Any) -> Any:
    """The self-adjoint part with eigenvalues on both sides of zero."""
    return op.sym(a) - middle(np.asarray(a)) * op.eye(a.shape[0])


def sign_of(m: Array) -> Array:
    w, v = np.linalg.eigh(symmetric_part(m) - middle(m) * np.eye(len(m)))
    return (v * np.sign(w)) @ v.conj().T


Check = tuple[Callable[[Any], Any], Callable[[Array], Any], Callable[[Array], bool]]
CHECKS: dict[str, Check] = {
    "H": (lambda a: a.H, lambda m: m.conj().T, anything),
    "T": (lambda a: a.T, lambda m: m.T, anything),
    "conj": (lambda a: a.conj(), lambda m: m.conj(), anything),
    "H.H": (lambda a: a.H.H, lambda m: m, anything),
    "T.conj": (lambda a: a.T.conj(), lambda m: m.conj().T, anything),
    "negative": (lambda a: -a, lambda m: -m, anything),
    "2 * A": (lambda a: 2 * a / 4, lambda m: m / 2, anything),
    "complex": (lambda a: 2j * a, lambda m: 2j * m, anything),
    "scale by a tensor": (lambda a: ts.tensor(0.5) * a, lambda m: 0.5 * m, anything),
    "A + A": (lambda a: a + a - 3 * a, lambda m: -m, anything),
    "A + matrix": (lambda a: a + np.ones(a.shape, "f4"), lambda m: m + 1, anything),
    "A @ matrix": (lambda a: a @ op.dense(np.ones((a.shape[1], 2), "f4")),
    lambda m: m @ np.ones((m.shape[1], 2)), anything),
    "matrix @ A": (lambda a: op.dense(np.ones((2, a.shape[0]), "f4")) @ a,
    lambda m: np.ones((2, m.shape[0])) @ m, anything),
    "A.H @ A": (lambda a: a.H @ a, lambda m: m.conj().T @ m, anything),
    "tensor": (lambda a: op.tensor(a, op.eye(2)), lambda m: np.kron(m, np.eye(2)), anything),
    "tensor on the left": (lambda a: op.kronecker([[2.0, 1.0]], a), lambda m: np.kron([[2, 1]], m), anything),
    "direct_sum": (lambda a: op.direct_sum(a, [[3.0]]), lambda m: scipy.linalg.block_diag(m, 3.0), anything),
    "block": (lambda a: op.block([[a, a]]), lambda m: np.concatenate([m, m], 1), anything),
    "block of columns": (lambda a: op.block([[a], [a]]), lambda m: np.concatenate([m, m], 0), anything),
    "rows": (lambda a: a[1:3], lambda m: m[1:3], anything),
    "both": (lambda a: a[::2, [0, -1]], lambda m: m[::2][:, [0, -1]], anything),
    "corner": (lambda a: a[:2, :2], lambda m: m[:2, :2], anything),
    "kronsum": (lambda a: op.kronsum(a, [[2.0]]), lambda m: m + 2 * np.eye(len(m)), is_square),
    "A ** 2": (lambda a: a**2, lambda m: m @ m, is_square),
    "A ** 0": (lambda a: a**0, lambda m: np.eye(len(m)), is_square),
    "commutator": (lambda a: op.commutator(a, a.H), lambda m: m @ m.conj().T - m.conj().T @ m, is_square),
    "anticommutator": (lambda a: op.anticommutator(a, a), lambda m: 2 * m @ m, is_square),
    "sym": (op.sym, symmetric_part, is_square),
    "skew": (op.skew, skew_part, is_square),
    "inverse": (lambda a: a.inverse(), np.linalg.inv, is_regular),
    "inverse of adjoint": (lambda a: a.H.inverse(), lambda m: np.linalg.inv(m).conj().T, is_regular),
    "A ** -2": (lambda a: a**-2, lambda m: np.linalg.matrix_power(np.linalg.inv(m), 2), is_regular),
    "resolvent": (lambda a: op.resolvent(a, 50.0), lambda m: np.linalg.inv(50 * np.eye(len(m)) - m),
    is_square),
    "complex resolvent": (lambda a: op.resolvent(a, 40 + 30j),
    lambda m: np.linalg.inv((40 + 30j) * np.eye(len(m)) - m), is_square),
    "pseudoinverse": (op.pseudoinverse, lambda m: np.linalg.pinv(m, 1e-5), anything),
    "expm": (lambda a: op.expm(small(a)), lambda m: scipy.linalg.expm(0.1 * m), is_square),
    "expm of the symmetric part": (lambda a: op.expm(small(op.sym(a))),
    lambda m: scipy.linalg.expm(0.1 * symmetric_part(m)), is_square),
    "sqrtm": (op.sqrtm, scipy.linalg.sqrtm, is_right),
    "logm": (op.logm, scipy.linalg.logm, is_right),
    "sign": (op.sign, lambda m: np.eye(len(m)), is_right),
    "sign of an indefinite one": (lambda a: op.sign(indefinite(a)), sign_of, has_gap),
    "function of any": (lambda a: op.function(small(a), op.exp), lambda m: scipy.linalg.expm(0.1 * m),
    has_eigenvectors),
    "adjoint of a function": (lambda a: op.function(small(a), op.exp).H,
    lambda m: scipy.linalg.expm(0.1 * m.conj().T), has_eigenvectors),
    "function": (
        lambda a: op.function(op.sym(a), op.sin),
        lambda m: sine_of(symmetric_part(m)), is_square,
    ),
}  # fmt: skip
QUERIES: dict[str, Check] = {
    "diagonal": (lambda a: a.diagonal(), np.diagonal, anything),
    "trace": (op.trace, np.trace, is_square),
    "logdet": (op.logdet, lambda m: np.linalg.slogdet(m)[1], is_regular),
    "sign of the determinant": (lambda a: op.slogdet(a)[0], lambda m: np.linalg.slogdet(m)[0], is_regular),
    "element": (lambda a: a[1, 0], lambda m: m[1, 0], anything),
    "row": (lambda a: a[-1], lambda m: m[-1], anything),
    "column": (lambda a: a[1:, 0], lambda m: m[1:, 0], anything),
    "norm": (op.norm, lambda m: np.linalg.norm(m, 2), anything),
    "norm of the elements": (lambda a: op.norm(a, "fro"), np.linalg.norm, anything),
    "condition": (lambda a: 1 / op.cond(a), lambda m: 1 / np.linalg.cond(m), is_regular),
    "radius": (op.spectral_radius, lambda m: np.max(np.abs(np.linalg.eigvals(m))), is_square),
    "singular values": (lambda a: op.spectral(a, method="svd").S, lambda m: np.linalg.svd(m)[1], anything),
    "the adjoint test": (lambda a: op.adjoint_test(a), lambda m: 0.0, anything),
    "whether unitary": (lambda a: float(op.is_unitary(a, tol=1e-4)),
    lambda m: float(is_square(m) and np.allclose(m.conj().T @ m, np.eye(len(m)), atol=1e-4)), anything),
    "rank": (lambda a: max(np.linalg.matrix_rank(np.asarray(a)) - a.rank, 0), lambda m: 0, anything),
}  # fmt: skip

every_case = pytest.mark.parametrize("name", CASES)
every_dtype = pytest.mark.parametrize("dtype", DTYPES)


def made(name: str, dtype: str) -> tuple[Any, Array, float]:
    a, m = CASES[name](Draw(DTYPES[dtype]))
    return a, wide(m), EPS[dtype]


@every_dtype
@every_case
def test_an_operator_applies_its_matrix(name: str, dtype: str) -> None:
    """To a vector, columns, a stack and rows, and so does its adjoint; <A x, y> = <x, A.H y>."""
    a, m, eps = made(name, dtype)
    d = Draw(DTYPES[dtype], 1)
    assert a.shape == m.shape
    assert (
        a.dtype.name == {"f32": "f32", "f64": "f64", "c128": "c128"}[dtype] or a.dtype.kind == "c"
    )
    near(a.todense(), m, eps, "todense")
    x, y = d(m.shape[1]), d(m.shape[0])
    near(a @ x, m @ x, eps, "A @ x")
    xs, stack = d(m.shape[1], 3), d(2, m.shape[1], 2)
    near(a @ xs, m @ xs, eps, "A @ X")
    near(a @ stack, m @ stack, eps, "A @ stack")
    near(y @ a, y @ m, eps, "y @ A")
    near(a.H @ y, m.conj().T @ y, eps, "A.H @ y")
    left, right = np.vdot(y, np.asarray(a @ x)), np.vdot(np.asarray(a.H @ y), x)
    near(left, right, eps * (1 + np.abs(m).sum()), "the adjoint identity")
    assert a.H.H is a or name == "linear_map"
    assert op.check_flags(a, 1e-3 if dtype == "f32" else None) == ()


@every_dtype
@every_case
def test_every_operation_and_query_is_that_of_the_matrix(name: str, dtype: str) -> None:
    a, m, eps = made(name, dtype)
    for what, (of_operator, of_matrix, fits) in CHECKS.items():
        if fits(m):
            got = of_operator(a)
            near(got.todense(), of_matrix(m), 30 * eps, f"{what} of {a}")
            x = Draw(DTYPES[dtype], 2)(got.shape[1], 2)
            near(got @ x, of_matrix(m) @ x, 30 * eps * max(m.shape), f"{what} of {a}, applied")
            if (
                np.max(np.abs(of_matrix(m)), initial=0.0) > 1e-6
            ):  # nothing but rounding has no shape
                broken = op.check_flags(got, 2e-3 if dtype == "f32" else 1e-7)
                assert broken == (), f"{what} of {a} has not the flags {broken}"
    for what, (of_operator, of_matrix, fits) in QUERIES.items():
        if fits(m):
            near(of_operator(a), of_matrix(m), 30 * eps, f"{what} of {a}")
    if is_regular(m):
        b = Draw(DTYPES[dtype], 3)(m.shape[0])
        near(a.solve(b), np.linalg.solve(m, b), 30 * eps, f"solve with {a}")
        many = Draw(DTYPES[dtype], 4)(m.shape[0], 3)
        near(a.solve(many), np.linalg.solve(m, many), 30 * eps, f"solve columns with {a}")
        near(
            a.H.solve(b), np.linalg.solve(m.conj().T, b), 30 * eps, f"solve with the adjoint of {a}"
        )


def exact(a: Any) -> Array | None:
    """The matrix by the rules for exact numbers, None when a part has none."""
    parts = [exact(p) for p in a.parts]
    if a.record.exact is None or any(p is None for p in parts):
        return None
    found: Array = a.record.exact(a, parts, [np.asarray(v).astype(object) for v in a.data])
    return found


@every_case
def test_the_rules_for_exact_numbers_give_the_matrix(name: str) -> None:
    a, m = CASES[name](Draw(np.complex128))
    found = exact(a)
    if found is None:
        assert a.record.exact is None or a.parts
        return
    assert found.dtype == object
    near(found.astype(complex), m, 1e-9, str(a))


@every_case
def test_costs_grow_with_the_columns(name: str) -> None:
    a, _ = CASES[name](Draw(np.float64))
    one, many = cost_of(a, 1), cost_of(a, 10)
    assert all(np.isfinite(x) and x >= 0 for x in (*one, *many))
    assert many.flops >= one.flops
    assert many.bytes >= one.bytes


@pytest.mark.parametrize("seed", range(30))
def test_a_slice_is_that_of_the_matrix_and_keeps_what_structure_it_can(seed: int) -> None:
    rng = np.random.default_rng(seed)
    n = int(rng.integers(2, 8))
    v, w = rng.normal(size=n), rng.normal(size=n)
    made = {
        "diag": op.diag(v), "toeplitz": op.toeplitz(v, w), "dense": op.dense(np.outer(v, w)),
        "scale": 2.5 * op.diag(v), "plus": op.diag(v) + op.toeplitz(v, w),
    }  # fmt: skip
    first, other = (np.sort(rng.integers(0, n + 1, 2)) for _ in range(2))
    rows = slice(int(first[0]), max(int(first[1]), int(first[0]) + 1))
    columns = rows if seed % 2 else slice(int(other[0]), max(int(other[1]), int(other[0]) + 1))
    rows, columns = (slice(min(s.start, n - 1), s.stop) for s in (rows, columns))
    for kind, a in made.items():
        part = a[rows, columns]
        np.testing.assert_allclose(np.asarray(part), np.asarray(a)[rows, columns])
        if rows == columns or kind != "diag":
            assert part.kind == kind


HOLDS: dict[str, Callable[[Any], bool]] = {
    "real": lambda d: np.allclose(d.imag, 0),
    "symmetric": lambda d: np.allclose(d, d.T),
    "self_adjoint": lambda d: np.allclose(d, d.conj().T),
    "normal": lambda d: np.allclose(d @ d.conj().T, d.conj().T @ d),
    "unitary": lambda d: np.allclose(d @ d.conj().T, np.eye(len(d))),
    "diagonal": lambda d: np.allclose(d, np.diag(np.diag(d))),
    "triangular_lower": lambda d: np.allclose(d, np.tril(d)),
    "triangular_upper": lambda d: np.allclose(d, np.triu(d)),
    "toeplitz": lambda d: np.allclose(d[1:, 1:], d[:-1, :-1]),
    "circulant": lambda d: np.allclose(d, np.roll(d, (1, 1), (0, 1))),
    "positive": lambda d: np.linalg.eigvalsh((d + d.conj().T) / 2).min() > -1e-9,
    "invertible": lambda d: np.linalg.matrix_rank(d) == len(d),
}


def _part(rng: np.random.Generator, n: int) -> Any:
    """An operator of some structure, often a special one."""
    v, m = rng.normal(size=n), rng.normal(size=(n, n))
    made: list[Callable[[], Any]] = [
        lambda: op.dense(m), lambda: op.dense(m + m.T).assume("symmetric"), lambda: op.diag(v),
        lambda: op.eye(n, dtype=ts.f64), lambda: op.zero(n, n, dtype=ts.f64), lambda: op.triangular(m),
        lambda: op.triangular(m, lower=False), lambda: op.circulant(v), lambda: op.toeplitz(v),
        lambda: op.permutation(rng.permutation(n), dtype=ts.f64), lambda: op.dense(m + 1j * m.T),
        lambda: op.diag(np.abs(v)).assume("positive"),
    ]  # fmt: skip
    return made[int(rng.integers(len(made)))]()


@pytest.mark.parametrize("seed", range(150))
def test_the_flags_of_joined_operators_hold_for_their_matrices(seed: int) -> None:
    rng = np.random.default_rng(seed)
    n = int(rng.integers(1, 4))
    a, b, c, d = (_part(rng, n) for _ in range(4))
    if seed % 3 == 0:  # off the diagonal what mirrors, or nothing
        c = b.H if seed % 2 else op.zero(n, n, dtype=ts.f64)
    z = op.zero(n, n, dtype=ts.f64)
    made = {
        "block": lambda: op.block([[a, b], [c, d]]), "row": lambda: op.block([[a, b]]),
        "direct sum": lambda: op.direct_sum(a, b, c), "kron": lambda: op.kronecker(a, b),
        "kronsum": lambda: op.kronsum(a, b), "sum": lambda: a + 2.0 * b - c, "product": lambda: a @ b,
        "twice": lambda: a.H @ a, "between": lambda: a @ b @ a.H, "adjoint": lambda: (a + b).H,
        "three": lambda: op.block([[a, b, z], [c, a, b], [z, d, a]]),
        "three mirrored": lambda: op.block([[a, b, d], [b.H, a, z], [d, z, a]]),
        "three below": lambda: op.block([[a, z, z], [b, c, [z, d][seed % 2]], [c, d, a]]),
    }  # fmt: skip
    for name, make in made.items():
        x = make()
        dense = np.asarray(x.todense()).astype(complex)
        for flag in sorted(x.flags & HOLDS.keys()):
            assert HOLDS[flag](dense), (name, flag, [str(p) for p in (a, b, c, d)])


def _square(n=4, seed=0):
    return np.random.default_rng(seed).standard_normal((n, n)) + 2 * np.eye(n)


POWERS = {
    "dense": lambda: op.dense(_square()),
    "diagonal": lambda: op.diag(np.array([2.0, -1, 0.5, 3])),
    "circulant": lambda: op.circulant(np.array([3.0, 1, 0, -1])),
    "identity": lambda: op.dense(np.eye(4)),
    "permutation": lambda: op.permutation(np.array([2, 0, 3, 1])),
    "projector": lambda: op.projector(np.linalg.qr(_square())[0][:, :2]),
    "whole projector": lambda: op.projector(np.linalg.qr(_square())[0]),
    "orthogonal": lambda: op.dense(np.linalg.qr(_square())[0]),
    "kronecker": lambda: op.kronecker(op.dense(_square(2)), op.diag(np.array([2.0, -1]))),
    "power": lambda: op.power(op.dense(_square()), 2),
    "scaled": lambda: 2 * op.dense(_square()),
}


@pytest.mark.parametrize("k", [-3, -2, -1, 0, 1, 2, 3])
@pytest.mark.parametrize("name", sorted(POWERS))
def test_whole_powers_are_those_of_the_matrix(name, k):
    a = POWERS[name]()
    m = np.asarray(a.todense())
    if k < 0 and np.linalg.matrix_rank(m) < len(m):
        with pytest.raises(NumericalError, match="is singular: its rank is at most"):
            op.power(a, k)
        return
    want = np.linalg.matrix_power(m, k)
    np.testing.assert_allclose(op.power(a, k).todense(), want, rtol=1e-9, atol=1e-9)
