"""Operators are values: random expressions, derivatives, jit and vmap, and the C layout."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.linalg
from hypothesis import given
from hypothesis import strategies as st

import tessera as ts
from tessera import op
from tests.support.cases.operator_cases import (
    CASES,
    DTYPES,
    EPS,
    Draw,
    is_regular,
    near,
    skew_part,
    symmetric_part,
    wide,
)

RUNS_ON = "numpy"  # what is compared here is algebra, not machine code
Array = np.ndarray[Any, Any]


# Trees ------------------------------------------------------------------------------------------

# Operations that keep the size n, so that any of them fits any other; each with its matrix.
N = 4
LEAVES = (
    "dense",
    "diag",
    "lower",
    "circulant",
    "toeplitz",
    "permutation",
    "low_rank",
    "kronecker",
    "eye",
)
Pair = tuple[Any, Array]


def leaf(name: str, seed: int, complex_: bool) -> Pair:
    d = Draw(np.complex128 if complex_ else np.float64, seed)
    a = (d(N, N) / 2).astype(d.dtype)
    c, r = a[0], np.concatenate([a[0, :1], a[1, 1:]])
    u, v, p = a[:, :2], a[:, 2:], d.rng.permutation(N)
    found: dict[str, Callable[[], Pair]] = {
        "dense": lambda: (op.dense(a), a),
        "diag": lambda: (op.diag(c), np.diag(c)),
        "lower": lambda: (op.triangular(a), np.tril(a)),
        "circulant": lambda: (op.circulant(c), scipy.linalg.circulant(c)),
        "toeplitz": lambda: (op.toeplitz(c, r), scipy.linalg.toeplitz(c, r)),
        "permutation": lambda: (op.permutation(p, ts.f64), np.eye(N)[p]),
        "low_rank": lambda: (op.low_rank(u, v), u @ v.conj().T),
        "kronecker": lambda: (op.kronecker(a[:2, :2], a[2:, 2:]), np.kron(a[:2, :2], a[2:, 2:])),
        "eye": lambda: (op.eye(N, ts.f64), np.eye(N)),
    }
    return found[name]()


def fitted(name: str, complex_: bool) -> Pair:
    """Any constructor as a square operator of size N: cut where it is larger, filled up where it is not."""
    a, m = CASES[name](Draw(np.complex128 if complex_ else np.float64))
    a, m = a[:N, :N], m[:N, :N]
    p, q = (N - k for k in a.shape)
    if p or q:
        a, m = op.direct_sum(a, op.zero(p, q, ts.f64)), np.pad(m, ((0, p), (0, q)))
    return a, m


def steady(a: Any) -> Any:
    """2 I + A / 400, whose eigenvalues lie within 1 of 2: no element of a tree is larger than 100."""
    return 2 * op.eye(N, ts.f64) + a / 400


def of_steady(f: Callable[[Array], Array]) -> Callable[[Array], Array]:
    return lambda m: f(2 * np.eye(N) + m / 400)


def sine(m: Array) -> Array:
    w, v = np.linalg.eigh(symmetric_part(m) / 100)
    return (v * np.sin(w)) @ v.conj().T


UNARY: dict[str, tuple[Callable[[Any], Any], Callable[[Array], Array]]] = {
    "H": (lambda a: a.H, lambda m: m.conj().T),
    "T": (lambda a: a.T, lambda m: m.T),
    "conj": (lambda a: a.conj(), lambda m: m.conj()),
    "half": (lambda a: 0.5 * a, lambda m: 0.5 * m),
    "turn": (lambda a: 1j * a, lambda m: 1j * m),
    "square": (lambda a: a**2, lambda m: m @ m),
    "sym": (op.sym, symmetric_part),
    "skew": (op.skew, skew_part),
    "expm": (lambda a: op.expm(0.1 * a), lambda m: scipy.linalg.expm(0.1 * m)),
    "resolvent": (lambda a: op.resolvent(a, 1e3), lambda m: np.linalg.inv(1e3 * np.eye(N) - m)),
    "cube": (lambda a: a**3, lambda m: m @ m @ m),
    "inverse": (lambda a: op.inverse(steady(a)), of_steady(np.linalg.inv)),
    "pseudoinverse": (lambda a: op.pseudoinverse(steady(a)), of_steady(np.linalg.inv)),
    "sqrtm": (lambda a: op.sqrtm(steady(a)), of_steady(scipy.linalg.sqrtm)),
    "logm": (lambda a: op.logm(steady(a)), of_steady(scipy.linalg.logm)),
    "sign": (lambda a: op.sign(-steady(a)), lambda m: -np.eye(N)),
    "function": (lambda a: op.function(op.sym(a) / 100, op.sin), sine),
    "rows": (lambda a: a[[2, 0, 3, 1]], lambda m: m[[2, 0, 3, 1]]),
    "corner": (lambda a: op.direct_sum(a[:2, :2], a[2:, 2:]),
    lambda m: scipy.linalg.block_diag(m[:2, :2], m[2:, 2:])),
}  # fmt: skip
BINARY: dict[str, tuple[Callable[[Any, Any], Any], Callable[[Array, Array], Array]]] = {
    "plus": (lambda a, b: a + b, lambda m, n: m + n),
    "minus": (lambda a, b: a - b, lambda m, n: m - n),
    "compose": (lambda a, b: a @ b, lambda m, n: m @ n),
    "commutator": (op.commutator, lambda m, n: m @ n - n @ m),
    "anticommutator": (op.anticommutator, lambda m, n: m @ n + n @ m),
    "blocks": (
        lambda a, b: op.block([[a[:2, :2], b[:2, 2:]], [None, b[2:, 2:]]]),
        lambda m, n: np.block([[m[:2, :2], n[:2, 2:]], [np.zeros((2, 2)), n[2:, 2:]]]),
    ),
    "kronecker": (
        lambda a, b: op.kronecker(a[:2, :2], b[2:, 2:]), lambda m, n: np.kron(m[:2, :2], n[2:, 2:]),
    ),
    "kronsum": (
        lambda a, b: op.kronsum(a[:2, :2], b[:2, :2]),
        lambda m, n: np.kron(m[:2, :2], np.eye(2)) + np.kron(np.eye(2), n[:2, :2]),
    ),
}  # fmt: skip

leaves = st.one_of(
    st.tuples(st.sampled_from(LEAVES), st.integers(0, 50), st.booleans()),
    st.tuples(st.just("any"), st.sampled_from(sorted(CASES)), st.booleans()),
)


def deeper(inner: Any) -> Any:
    return st.one_of(
        st.tuples(st.sampled_from(sorted(UNARY)), inner),
        st.tuples(st.sampled_from(sorted(BINARY)), inner, inner),
    )


trees = leaves
for _ in range(6):
    trees = st.one_of(leaves, deeper(trees))


def build(tree: Any) -> Pair:
    head, *rest = tree
    if head == "any":
        return fitted(*rest)
    if head in LEAVES and not isinstance(rest[0], tuple):
        return leaf(head, *rest)
    pairs = [build(t) for t in rest]
    table: Any = UNARY if len(pairs) == 1 else BINARY
    f, g = table[head]
    a, m = f(*(p[0] for p in pairs)), g(*(p[1] for p in pairs))
    size = np.max(np.abs(m), initial=0.0)
    return (
        (a, m) if size < 100 else (a * (1 / size), m / size)
    )  # powers grow, and rounding with them


@given(trees)
def test_expressions_of_operators_are_those_of_matrices(tree: Any) -> None:
    """Applied, dense, adjoint, trace and flags, for random expressions up to six operations deep."""
    a, m = build(tree)
    d = Draw(np.complex128, 5)
    x, y = d(N, 2), d(N)
    size = 1 + np.max(np.abs(m))
    near(a.todense(), m, 1e-9 * size, str(a))
    near(a @ x, m @ x, 1e-8 * size, f"{a} applied")
    near(a.H @ y, m.conj().T @ y, 1e-8 * size, f"the adjoint of {a} applied")
    near(op.trace(a), np.trace(m), 1e-8 * size, f"the trace of {a}")
    near(a.diagonal(), np.diagonal(m), 1e-8 * size, f"the diagonal of {a}")
    if np.max(np.abs(m)) > 1e-3:
        assert op.check_flags(a, 1e-6) == ()


# As values --------------------------------------------------------------------------------------

GRADIENTS = (
    "dense", "diag", "tridiagonal", "lower", "projector", "conv_same", "conv_ring", "toeplitz_square",
    "circulant", "kronecker", "kronsum", "kronsum_symmetric", "direct_sum", "block", "low_rank_positive",
    "sparse", "matvec_adjoint", "inverse", "power", "expm", "scale", "woodbury", "product", "gram",
)  # fmt: skip


def floats(a: Any) -> list[Array]:
    return [np.asarray(v) for v in ts.tree.leaves(a)]


@pytest.mark.parametrize("name", GRADIENTS)
def test_gradients_by_an_operator_are_operators_of_its_structure(name: str) -> None:
    """Against central differences in a random direction of all its tensors and of x."""
    a, m = CASES[name](Draw(np.float64))
    d = Draw(np.float64, 7)
    x, w = d(m.shape[1]), d(m.shape[0])
    regular = is_regular(m)

    def loss(a: Any, x: Any) -> Any:
        y = op.sum(op.sin(a @ x) * w)
        return y + op.sum(op.cos(a.solve(x))) + op.logdet(a) if regular else y

    by_a, by_x = ts.grad(loss, argnums=(0, 1))(a, x)
    assert ts.tree.structure(by_a) == ts.tree.structure(a)
    assert [v.shape for v in floats(by_a)] == [v.shape for v in floats(a)]
    if not floats(a):
        return
    steps, dx, h = [d(*v.shape) for v in floats(a)], d(*x.shape), 1e-6

    def at(t: float) -> float:
        leaves, s = ts.tree.flatten(a)
        moved = [ts.tensor(np.asarray(v) + t * u) for v, u in zip(leaves, steps, strict=True)]
        return float(loss(ts.tree.unflatten(s, moved), x + t * dx))

    if name == "projector":  # its columns are promised to be orthonormal, which a step breaks
        steps = [0 * u for u in steps]
    want = (at(h) - at(-h)) / (2 * h)
    got = sum(float(np.sum(g * u)) for g, u in zip(floats(by_a), steps, strict=True))
    assert got + float(np.sum(np.asarray(by_x) * dx)) == pytest.approx(want, rel=1e-5, abs=1e-6)


@pytest.mark.parametrize(
    "name", ["kronecker", "woodbury", "circulant", "conv_same", "sparse", "jacobian"]
)
def test_operators_pass_through_jit_and_vmap(name: str) -> None:
    a, m = CASES[name](Draw(np.float64))
    x = Draw(np.float64, 7)(3, m.shape[1])
    f = ts.jit(lambda a, x: a.H @ (a @ x), target="cpu")
    near(f(a, x[0]), m.T @ (m @ x[0]), 1e-12, "jit")
    near(f(2 * a, x[1]), 4 * m.T @ (m @ x[1]), 1e-12, "jit of another structure")
    assert f.compiled == 2
    near(ts.vmap(lambda v: a @ v)(ts.tensor(x)), x @ m.T, 1e-12, "vmap over vectors")


def test_vmap_over_operators_applies_each() -> None:
    d = Draw(np.float64)
    a, x = d(3, 4, 5), d(3, 5)
    many = ts.tree.map(lambda *vs: op.stack(vs), *(op.kronecker(v, [[2.0]]) for v in a))
    got = ts.vmap(lambda a, v: a @ v)(many, ts.tensor(x))
    near(got, 2 * np.einsum("bij,bj->bi", a, x), 1e-12, "vmap")


def test_operators_are_made_inside_of_traces() -> None:
    d = Draw(np.float64)
    c, x = d(6) + 4, d(6)

    @ts.jit
    def f(c: Any, x: Any) -> Any:
        a = op.circulant(c) + op.diag(c)
        return a.solve(a @ x), op.logdet(op.circulant(c)), op.expm(op.diag(c)) @ x

    m = scipy.linalg.circulant(c)
    near(f(c, x)[0], x, 1e-10, "solve")
    near(f(c, x)[1], np.linalg.slogdet(m)[1], 1e-12, "logdet")
    near(f(c, x)[2], np.exp(c) * x, 1e-12, "expm")


def test_the_product_rule_of_the_specification() -> None:
    """dy = dA x + A dx, and dL/dx = A.H dL/dy."""
    d = Draw(np.float64)
    a, da, x, dx, ct = d(3, 4), d(3, 4), d(4), d(4), d(3)
    y, dy = ts.jvp(lambda a, x: a @ x, (op.dense(a), ts.tensor(x)), (op.dense(da), ts.tensor(dx)))
    near(dy, da @ x + a @ dx, 1e-12, "jvp")
    _, back = ts.vjp(lambda x: op.dense(a) @ x, ts.tensor(x))
    near(back(ts.tensor(ct))[0], a.T @ ct, 1e-12, "vjp")
    near(y, a @ x, 1e-12, "value")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", CASES)
def test_descriptors_tell_the_operator(name: str, dtype: str) -> None:
    a, m = CASES[name](Draw(DTYPES[dtype]))
    told = op.describe(a)
    back = op.undescribe(told.desc)
    near(back.todense(), wide(m), EPS[dtype], told.representation)
    assert back.flags >= a.flags - {"low_rank"}
    want = {"dense": "dense", "low_rank": "factor", "diag": "implicit", "tiles": "blocksparse"}
    assert told.representation == want.get(name, told.representation)


def test_operators_are_copied_and_kept_in_files() -> None:
    a, m = CASES["woodbury"](Draw(np.float64))
    for b in (
        copy.copy(a),
        copy.deepcopy(a),
        pickle.loads(pickle.dumps(op.permutation([1, 0]) @ op.eye(2))),
    ):
        want = m if b.shape == a.shape else np.eye(2)[[1, 0]]
        near(b.todense(), want, 1e-12, str(b))
        assert b.flags == (a.flags if b.shape == a.shape else b.flags)


def test_what_is_left_where_terms_cancel_breaks_no_flag() -> None:
    """The skew part of a number is 0, of which two orders of a product leave a rounding."""
    u, v, s = np.array([[-0.40923608037091447, -1.937977753453367]]), np.array([[1.9763179454506075,
        1.721725650736275]]), np.array([-0.28722413225936466, 0.11541457262312874])  # fmt: skip
    a = op.skew(op.low_rank(u, v, s))
    assert "skew_adjoint" in a.flags
    assert op.check_flags(a) == ()
    assert op.check_flags(op.dense(a.todense() + 1e-9, flags=("skew_adjoint",))) == (
        "skew_adjoint",
    )
