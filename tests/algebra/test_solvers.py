"""Iterative solvers: they solve, they say when they do not, and their derivatives are those of dense
algebra.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera import Tensor, f64, op
from tests.support.cases.operator_cases import close
from tests.support.runners.tolerance import assert_same_bits

RUNS_ON = "numpy"  # where no test says otherwise: the bits are the same
RNG = np.random.default_rng(7)
N = 14
Q, B = RNG.normal(size=(2, N, N))
SPD = Q @ Q.T / N + np.eye(N)
INDEFINITE = SPD - 1.7 * np.eye(N)
GENERAL = Q / 2 + 3 * np.eye(N)
HERMITIAN = SPD + 0.05j * (B - B.T)
RIGHT = RNG.normal(size=N)
BOUNDS = (0.5, 12.0)

Solve = Callable[..., Any]
CASES: dict[str, tuple[Solve, Any]] = {
    "cg": (op.cg, SPD),
    "cg-complex": (op.cg, HERMITIAN),
    "minres": (op.minres, INDEFINITE),
    "minres-complex": (op.minres, HERMITIAN - 1.7 * np.eye(N)),
    "gmres": (op.gmres, GENERAL),
    "gmres-complex": (op.gmres, GENERAL + 0.5j * B),
    "bicgstab": (op.bicgstab, GENERAL),
    "bicgstab-complex": (op.bicgstab, GENERAL + 0.5j * B),
    "chebyshev": (lambda a, b, **o: op.chebyshev(a, b, BOUNDS, **o), SPD),
    "lsmr": (op.lsmr, GENERAL),
    "lsmr-complex": (op.lsmr, GENERAL + 0.5j * B),
}
every_solver = pytest.mark.parametrize("name", CASES)


def tensors(name: str, columns: int = 0) -> tuple[Solve, Tensor, Tensor]:
    solve, a = CASES[name]
    b = RNG.normal(size=(N, columns)) if columns else RIGHT
    return solve, ts.tensor(a), ts.tensor(b.astype(a.dtype))


# They solve ---------------------------------------------------------------------------------------


@pytest.mark.usefixtures("compiled")
@every_solver
def test_the_solution_is_that_of_lapack(name: str) -> None:
    solve, a, b = tensors(name)
    x, info = solve(a, b)
    close(x, np.linalg.solve(a, b))
    assert bool(info.converged)
    assert int(info.reason) == 1
    assert 0 < int(info.iterations) <= 5 * N
    again, told = ts.jit(solve)(a, b)
    assert_same_bits(again, x)
    assert int(told.iterations) == int(info.iterations)


@every_solver
def test_columns_are_solved_each_by_itself(name: str) -> None:
    solve, a, b = tensors(name, columns=3)
    x, info = solve(a, b)
    close(x, np.linalg.solve(a, b))
    assert info.iterations.shape == (3,)
    alone, told = solve(a, b[:, 1])
    close(x[:, 1], alone, 1e-12)
    assert int(told.iterations) == int(info.iterations[1])


@pytest.mark.parametrize("name", [n for n in CASES if "complex" not in n])
def test_narrow_numbers_reach_their_own_tolerance(name: str) -> None:
    solve, a, b = tensors(name)
    x, info = solve(a.astype("f32"), b.astype("f32"))
    assert x.dtype is ts.f32
    close(x, np.linalg.solve(a, b), 2e-4)
    assert bool(info.converged)


@every_solver
def test_nothing_is_needed_for_zero_and_less_for_a_good_start(name: str) -> None:
    solve, a, b = tensors(name)
    x, info = solve(a, b * 0)
    assert int(info.iterations) == 0
    close(x, np.zeros(N))
    if "lsmr" not in name:
        _, warm = solve(a, b, x0=ts.tensor(np.linalg.solve(a, b)))
        assert int(warm.iterations) == 0


def test_a_function_is_an_operator_too() -> None:
    a, b = ts.tensor(SPD), ts.tensor(RIGHT)
    close(op.cg(lambda x: a @ x, b)[0], np.linalg.solve(SPD, RIGHT))
    close(op.lsmr(lambda x: a @ x, b)[0], np.linalg.solve(SPD, RIGHT))


@pytest.mark.parametrize("shape", [(9, 5), (5, 9)], ids=str)
def test_lsmr_is_the_pseudoinverse(shape: tuple[int, int]) -> None:
    a, b = RNG.normal(size=shape), RNG.normal(size=shape[0])
    close(op.lsmr(ts.tensor(a), ts.tensor(b))[0], np.linalg.pinv(a) @ b)
    thin = a[:, :2] @ RNG.normal(size=(2, shape[1]))
    close(op.lsmr(ts.tensor(thin), ts.tensor(b))[0], np.linalg.pinv(thin) @ b)
    damped = np.linalg.solve(a.T @ a + 0.25 * np.eye(shape[1]), a.T @ b)
    close(op.lsmr(ts.tensor(a), ts.tensor(b), damp=0.5)[0], damped)


@pytest.mark.parametrize("shape", [(6, 4), (4, 6)], ids=str)
def test_lsmr_makes_no_nan_of_a_side_of_zeros_among_others(shape: tuple[int, int]) -> None:
    """A batch goes on where one of it has ended: its quotients are of zeros then."""
    a = ts.tensor(RNG.normal(size=shape))
    sides = RNG.normal(size=(3, shape[0])) * np.array([[1.0], [0.0], [2.0]])
    with ts.debug_nans():
        x = np.asarray(ts.vmap(lambda b: op.lsmr(a, b)[0])(ts.tensor(sides)))
    close(x, sides @ np.linalg.pinv(np.asarray(a)).T)
    assert not x[1].any()


# Derivatives --------------------------------------------------------------------------------------


def dense(a: Any, b: Any) -> Any:
    return op.solve(a, b)


def loss(solve: Solve, hermitian: bool) -> Callable[..., Any]:
    def f(a: Any, b: Any) -> Any:
        # What is self-adjoint stays so as it moves.
        held = (a + op.conj(a).mT) / 2 if hermitian else a
        x = solve(held, b)
        return op.sum(op.square(op.abs(x - 0.3)))

    return f


@every_solver
def test_derivatives_are_those_of_the_dense_solution(name: str) -> None:
    solve, a, b = tensors(name)
    hermitian = name.split("-", maxsplit=1)[0] in ("cg", "minres", "chebyshev")
    mine = loss(lambda a, b: solve(a, b, tol=1e-12)[0], hermitian)
    want = loss(dense, hermitian)
    for got, expected in zip(ts.grad(mine, (0, 1))(a, b), ts.grad(want, (0, 1))(a, b), strict=True):
        close(got, expected)
    moved = (a * 0.1 + 0.05, b + 1.0)
    close(ts.jvp(mine, (a, b), moved)[1], ts.jvp(want, (a, b), moved)[1])


@pytest.mark.parametrize("name", ["cg", "gmres", "lsmr"])
def test_second_derivatives_batches_and_jit(name: str) -> None:
    solve, a, b = tensors(name)

    def curve(s: Solve) -> Callable[..., Any]:
        inner = loss(s, name == "cg")
        return ts.grad(lambda a, b: op.sum(op.square(ts.grad(inner)(a, b))))

    def mine(a, b):
        return solve(a, b, tol=1e-12)[0]

    close(curve(mine)(a, b), curve(dense)(a, b), 1e-6)
    rows = ts.tensor(RNG.normal(size=(3, N)))
    one, ref = ts.grad(loss(mine, False), 1), ts.grad(loss(dense, False), 1)
    batched = ts.jit(ts.vmap(lambda b: one(a, b)))(rows)
    close(batched, np.stack([np.asarray(ref(a, r)) for r in rows]))
    shared = ts.vmap(lambda b: solve(a, b)[0])(rows)
    close(shared, np.linalg.solve(a, np.asarray(rows).T).T)


@pytest.mark.parametrize("shape", [(9, 5), (5, 9)], ids=str)
def test_lsmr_has_the_derivative_of_the_pseudoinverse(shape: tuple[int, int]) -> None:
    a, b = ts.tensor(RNG.normal(size=shape)), ts.tensor(RNG.normal(size=shape[0]))
    weight = ts.tensor(RNG.normal(size=shape[1]))
    got = ts.grad(lambda a, b: op.sum(op.sin(op.lsmr(a, b)[0]) * weight), (0, 1))(a, b)
    want = ts.grad(lambda a, b: op.sum(op.sin(op.pinv(a) @ b) * weight), (0, 1))(a, b)
    for g, w in zip(got, want, strict=True):
        close(g, w)


def test_the_gradient_by_an_operator_is_an_operator() -> None:
    d, u = ts.tensor(np.linspace(1, 3, N)), ts.tensor(RNG.normal(size=(N, 2)))
    b = ts.tensor(RIGHT)

    def f(a: Any) -> Any:
        return op.sum(op.sin(op.cg(a, b)[0]))

    g = ts.grad(f)(op.diag(d) + op.low_rank(u))
    assert isinstance(g, ts.Operator)
    by_hand = ts.grad(
        lambda d, u: op.sum(op.sin(op.solve(op.diag(d).todense() + u @ u.T, b))), (0, 1)
    )
    for got, want in zip(ts.tree.leaves(g), by_hand(d, u), strict=True):
        close(got, want)


# When they do not ---------------------------------------------------------------------------------

SINGULAR = np.diag([1.0, 0.0, 2.0])
SHIFT = np.roll(np.eye(8), 1, 0)
FAILURES = {
    "indefinite": (op.cg, np.diag([1.0, -2.0, 3.0]), {}, "cg: dense f64[3,3]: met a direction p with "
        "p^H A p <= 0 at step 2, but the method needs a positive definite self-adjoint operator; use "
        "minres (self-adjoint) or gmres"),
    "limit": (op.cg, np.diag([1.0, 20.0, 300.0]), {"limit": 2}, "cg: dense f64[3,3]: took all 2 steps and "
        "the residual is 1.31, wanted 1.73e-10; allow more with limit=, give a preconditioner, or ask "
        "for less with tol="),
    "not finite": (op.gmres, np.full((3, 3), np.nan), {}, "gmres: dense f64[3,3]: met NaN or an infinity "
        "at step 1; check the operator, the right-hand side and the preconditioner"),
    "singular minres": (op.minres, SINGULAR, {}, "minres: dense f64[3,3]: cannot make the residual "
        "smaller than 1 (step 3), wanted 1.73e-10: A is singular and b is not in its range; use lsmr for "
        "least squares"),
    "singular gmres": (op.gmres, SINGULAR, {}, "gmres: dense f64[3,3]: cannot make the residual smaller "
        "than 1 (step 2), wanted 1.73e-10: A is singular and b is not in its range; use lsmr for least "
        "squares"),
    "breakdown": (op.bicgstab, SINGULAR, {}, "bicgstab: dense f64[3,3]: broke down at step 3 with a "
        "residual of 1, wanted 1.73e-10; use gmres, another preconditioner, or start from another x0"),
    "preconditioner": (op.cg, np.eye(3), {"precondition": ts.tensor(-np.eye(3))}, "cg: dense f64[3,3]: "
        "met r^H M r <= 0 at step 0, but the method needs a positive definite self-adjoint "
        "preconditioner M; use gmres or another M"),
    "bounds": (op.chebyshev, np.diag([1.0, 2.0, 30.0]), {"bounds": (1, 3)}, "chebyshev: dense f64[3,3]: "
        "has a growing residual, 5.06e+04 at step 4, wanted 1.73e-10; the eigenvalues are not all within "
        "the bounds that were given"),
    "stagnation": (op.gmres, SHIFT, {"restart": 4}, "gmres: dense f64[8,8]: made no progress in a whole "
        "cycle that ended at step 4: the residual is 1, wanted 1e-10; give a larger restart= or a "
        "preconditioner; A may be singular"),
    "least squares": (op.lsmr, np.diag([1.0, 20.0, 300.0]), {"limit": 1}, "lsmr: dense f64[3,3]: took all "
        "1 steps and A^H (b - A x) has size 19.9, wanted 3.01e-08; allow more with limit=, or ask for "
        "less with tol="),
}  # fmt: skip


@pytest.mark.parametrize("name", FAILURES)
@pytest.mark.parametrize("how", ["eager", "jit"])
def test_failure_is_an_error_that_says_what_to_do(name: str, how: str) -> None:
    solve, a, options, text = FAILURES[name]
    b = np.eye(8)[0] if len(a) == 8 else np.ones(3)

    def run(a, b):
        return solve(a, b, **options)

    with pytest.raises(ts.TesseraError) as e:
        (ts.jit(run) if how == "jit" else run)(ts.tensor(a), ts.tensor(b))
    assert e.value.message == text


def test_without_a_check_the_info_tells() -> None:
    a, b = ts.tensor(np.diag([1.0, -2.0, 3.0])), ts.tensor(np.ones(3))
    _, info = op.cg(a, b, check=False)
    assert not bool(info.converged)
    assert int(info.reason) == 3
    both = ts.tensor(np.stack([np.ones(3), [1.0, 0, 0]], 1))
    _, each = op.cg(a, both, check=False)
    assert np.asarray(each.converged).tolist() == [False, True]
    with pytest.raises(ts.TesseraError, match="at step 2"):
        op.cg(a, both)


def test_an_accuracy_beyond_the_dtype_is_not_claimed() -> None:
    hilbert = 1 / (np.arange(12)[:, None] + np.arange(12) + 1.0) + 1e-9 * np.eye(12)
    _, info = op.cg(ts.tensor(hilbert), ts.tensor(np.ones(12)), tol=1e-16, check=False)
    assert not bool(info.converged)


WRONG = {
    "rows": (lambda: op.cg(np.eye(4), np.ones(3)), "cg: dense f64[4,4] has 4 rows but b is f64[3]; give b "
        "4 elements along axis 0"),
    "not square": (lambda: op.gmres(np.ones((3, 2)), np.ones(3)), "gmres: dense f64[3,2] is not square; "
        "use lsmr for least squares"),
    "scalar": (lambda: op.cg(np.eye(3), np.float64(1.0)), "cg: b is f64[], expected a vector or a matrix "
        "of columns"),
    "start": (lambda: op.cg(np.eye(3), np.ones(3), x0=np.ones(2)), "cg: x0 is f64[2], expected f64[3] as b"),
    "preconditioner": (lambda: op.cg(np.eye(3), np.ones(3), precondition=np.eye(2)), "cg: the "
        "preconditioner dense f64[2,2] does not fit dense f64[3,3]; it stands for the inverse and has the "
        "same shape"),
    "tolerance": (lambda: op.cg(np.eye(3), np.ones(3), tol=-1.0), "cg: tol is -1.0, expected a number that "
        "is not negative"),
    "limit": (lambda: op.cg(np.eye(3), np.ones(3), limit=1.5), "cg: limit is 1.5, expected a number of "
        "steps"),
    "progress": (lambda: op.cg(np.eye(3), np.ones(3), progress=3), "cg: progress is 3, expected True or a "
        "function of step, residual, wanted"),
    "function": (lambda: op.cg(lambda x: op.sum(x), np.ones(3)), "cg: the function gives f64[] for f64[3], "
        "expected f64[3]"),
    "restart": (lambda: op.gmres(np.eye(3), np.ones(3), restart=0), "gmres: restart is 0, expected a "
        "number of steps"),
    "bounds": (lambda: op.chebyshev(np.eye(3), np.ones(3), (-1, 2)), "chebyshev: bounds are (-1, 2), "
        "expected 0 < low <= high"),
    "method": (lambda: op.dense(np.eye(3)).solve(np.ones(3), method="magic"), "solve: method is 'magic', "
        "expected one of cg, minres, gmres, bicgstab, chebyshev, lsmr"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_wrong_arguments_are_refused(name: str) -> None:
    call, text = WRONG[name]
    with pytest.raises(ts.TesseraError) as e:
        call()
    assert e.value.message == text


@pytest.mark.usefixtures("compiled")
def test_progress_is_told_in_compiled_loops_too() -> None:
    seen: list[tuple[int, float]] = []

    def tell(step, size, wanted):
        return seen.append((int(step), float(size)))

    a, b = ts.tensor(SPD), ts.tensor(RIGHT)
    _, info = ts.jit(lambda a, b: op.cg(a, b, progress=tell))(a, b)
    assert [s for s, _ in seen] == list(range(1, int(info.iterations) + 1))
    assert seen[-1][1] <= 1e-10 * np.linalg.norm(RIGHT)


def test_progress_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    op.cg(ts.tensor(SPD), ts.tensor(RIGHT), progress=True)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith("cg: step 1, residual ")
    assert "wanted" in lines[-1]


def test_a_solution_is_chosen_by_flags() -> None:
    steps: list[str] = []
    for flags, method in ((("positive",), "cg"), (("self_adjoint",), "minres"), ((), "gmres")):
        a = op.dense(SPD, flags=flags)
        with pytest.raises(ts.TesseraError, match="took all 1 steps") as e:
            a.solve(RIGHT, limit=1)
        steps.append(e.value.message.split(":")[0])
        assert steps[-1] == method
        close(a.solve(RIGHT, tol=1e-12), np.linalg.solve(SPD, RIGHT))


# Preconditioners ----------------------------------------------------------------------------------

STEEP = np.diag(np.logspace(0, 4, 24)) + 0.01 * np.ones((24, 24))


def test_preconditioners_save_steps() -> None:
    a = op.dense(STEEP, flags=("positive",))
    b = ts.tensor(RNG.normal(size=24))
    plain = int(op.cg(a, b)[1].iterations)
    for m in (op.jacobi(a), op.block_jacobi(a, 5), op.nystrom(a, 16)):
        x, info = op.cg(a, b, precondition=m)
        close(x, np.linalg.solve(STEEP, b))
        assert int(info.iterations) < plain
        for solve in (op.minres, op.gmres, op.bicgstab):
            close(solve(a, b, precondition=m)[0], np.linalg.solve(STEEP, b))
    blocks = np.zeros_like(STEEP)
    for i in range(0, 24, 5):
        blocks[i : i + 5, i : i + 5] = np.linalg.inv(STEEP[i : i + 5, i : i + 5])
    close(op.block_jacobi(a, 5).todense(), blocks)
    close(op.jacobi(a) @ b, np.asarray(b) / np.diag(STEEP))


def test_derivatives_do_not_depend_on_the_preconditioner() -> None:
    a, b = ts.tensor(STEEP), ts.tensor(RNG.normal(size=24))

    def f(a, m):
        return op.sum(op.sin(op.cg(a, b, precondition=m, tol=1e-12)[0]))

    close(
        ts.grad(lambda a: f(a, op.jacobi(a)))(a),
        ts.grad(lambda a: op.sum(op.sin(op.solve(a, b))))(a),
    )
    with pytest.raises(ts.TesseraError, match="zero on its diagonal"):
        op.jacobi(np.zeros((2, 2)))
    with pytest.raises(ts.TesseraError, match="not known to be positive"):
        op.nystrom(np.eye(3), 2)


# Krylov spaces, functions, traces -----------------------------------------------------------------


def test_lanczos_and_arnoldi_span_krylov_spaces() -> None:
    t = op.lanczos(SPD, RIGHT, 6)
    q = np.asarray(t.basis)
    close(q.T @ q, np.eye(6), 1e-13)
    beside = np.asarray(t.beside)[:-1]
    close(q.T @ SPD @ q, np.diag(t.diagonal) + np.diag(beside, 1) + np.diag(beside, -1), 1e-12)
    h = op.arnoldi(GENERAL, RIGHT, 6)
    v = np.asarray(h.basis)
    close(v.T @ GENERAL @ v, h.hessenberg, 1e-12)
    rest = GENERAL @ v - v @ np.asarray(h.hessenberg)
    close(np.linalg.norm(rest, axis=0), [0, 0, 0, 0, 0, float(h.rest)], 1e-12)


def test_a_krylov_space_that_ends_is_no_trouble() -> None:
    t = op.lanczos(np.eye(5), np.ones(5), 4)
    assert np.asarray(t.diagonal).tolist() == pytest.approx([1, 1, 1, 1])
    assert np.abs(np.asarray(t.beside)).max() == 0
    assert np.abs(np.asarray(t.basis)[:, 1:]).max() == 0


@pytest.mark.parametrize("matrix", [SPD, np.eye(N)], ids=["apart", "equal"])
def test_functions_of_operators_act_as_those_of_matrices(matrix: Any) -> None:
    a, b = ts.tensor(matrix), ts.tensor(RIGHT)

    def sym(a):
        return (a + a.T) / 2

    def mine(a, b):
        return op.sum(op.sin(op.apply_function(sym(a), op.exp, b)))

    def want(a, b):
        return op.sum(op.sin(op.expm(sym(a)) @ b))

    close(mine(a, b), want(a, b))
    for g, w in zip(ts.grad(mine, (0, 1))(a, b), ts.grad(want, (0, 1))(a, b), strict=True):
        close(g, w)
    close(ts.jvp(mine, (a, b), (a, b))[1], ts.jvp(want, (a, b), (a, b))[1])


def test_functions_of_large_operators_are_never_matrices() -> None:
    n = 5000
    d, u = np.linspace(1, 3, n), RNG.normal(size=(n, 2)) / n**0.5
    a = (op.diag(d) + op.low_rank(ts.tensor(u))).assume("self_adjoint")
    x = RNG.normal(size=n)
    half = op.function(a, "sqrt")
    close(half @ (half @ x), a @ x, 1e-8)


@pytest.mark.parametrize(
    ("f", "bounds", "text"),
    [
        (op.exp, (1.0, 2.0), "eigenvalues beyond the bounds"),
        (op.log, (-1.0, 9.0), "f is not finite"),
        (lambda x: op.abs(x - 2.0), None, "raise degree="),
        (lambda x: op.exp(-4 * x), (-20.0, 20.0), "rounding leaves no digits"),
    ],
    ids=["bounds", "domain", "degree", "digits"],
)
def test_a_function_that_is_not_resolved_is_an_error(f: Any, bounds: Any, text: str) -> None:
    with pytest.raises(ts.TesseraError, match=text):
        op.apply_function(SPD, f, RIGHT, bounds=bounds, degree=160)


def test_traces_are_within_their_errors() -> None:
    for method in ("hutchinson", "hutch++"):
        found = op.stochastic_trace(SPD, samples=60, method=method)
        assert abs(float(found.value) - np.trace(SPD)) < 4 * float(found.error) + 1e-12
    thin = RNG.normal(size=(40, 3))
    exact = op.stochastic_trace(op.low_rank(ts.tensor(thin)), samples=12)
    assert float(exact.value) == pytest.approx(np.sum(thin**2), rel=1e-12)
    assert float(exact.error) < 1e-10
    g = ts.grad(lambda a: op.stochastic_trace(a, samples=3 * N)[0])(ts.tensor(SPD))
    close(g, np.eye(N), 1e-12)


@pytest.mark.parametrize(
    "values", [np.linspace(1, 9, 20), np.full(20, 3.0)], ids=["apart", "equal"]
)
def test_determinants_of_diagonals_are_exact_with_their_gradients(values: Any) -> None:
    """The signs of a probe square to 1, so that every probe gives the logarithm itself."""

    def f(d):
        return op.stochastic_logdet(op.diag(d), samples=3)[0]

    value, g = ts.value_and_grad(f)(ts.tensor(values))
    assert float(value) == pytest.approx(np.sum(np.log(values)), rel=1e-10)
    close(g, 1 / values, 1e-7)


def test_determinants_are_within_their_errors() -> None:
    found = op.stochastic_logdet(SPD, samples=200)
    assert abs(float(found.value) - np.linalg.slogdet(SPD)[1]) < 4 * float(found.error)
    g = ts.grad(lambda a: op.stochastic_logdet(a, samples=2000)[0])(ts.tensor(SPD))
    close(g, np.linalg.inv(SPD), 0.1)
    with pytest.raises(ts.TesseraError, match="is not positive definite"):
        op.stochastic_logdet(INDEFINITE)


# What programs tell -------------------------------------------------------------------------------


@pytest.mark.usefixtures("compiled")
def test_ensure_raises_with_the_numbers_that_fail() -> None:
    def f(x):
        return op.ensure(x, x > 0, x, message="root: {} is negative")

    assert_same_bits(ts.jit(f)(ts.tensor([1.0, 2.0])), ts.tensor([1.0, 2.0]))
    for run in (f, ts.jit(f), ts.vmap(f)):
        with pytest.raises(ts.TesseraError, match="root: -3\\.0 is negative"):
            run(ts.tensor([1.0, -3.0], dtype=f64))
    close(ts.grad(lambda x: op.sum(f(x) ** 2))(ts.tensor([1.0, 2.0])), [2, 4])
    with pytest.raises(ts.TesseraError, match="expected bool"):
        op.ensure(ts.tensor(1.0), ts.tensor(1.0), message="")


@pytest.mark.parametrize("shape", [(7,), (40, 1), (1, 9), (31, 22), (3, 4, 5)], ids=str)
def test_the_laplacian_is_solved_to_rounding_without_a_matrix(shape: tuple[int, ...]) -> None:
    a = op.laplacian(shape, spacing=tuple(0.1 + 0.3 * i for i in range(len(shape))), dtype=f64)
    x = RNG.normal(size=(a.shape[0], 3))
    b = a @ ts.tensor(x)
    close(a.solve(b), x, 1e-12)
    close(a.solve(b[:, 0]), x[:, 0], 1e-12)
    graph = ts.trace(lambda b: a.solve(b), b)
    assert max(np.prod(v.shape) for n in graph.nodes for v in n.results) <= 8 * b.shape[0] * 3


def test_the_laplacian_preconditions_what_is_near_it() -> None:
    side = 24
    a = -op.laplacian((side, side), spacing=1 / (side + 1), dtype=f64)
    rough = (a + op.diag(ts.tensor(RNG.random(side**2) * 50))).assume("positive")
    b = ts.tensor(RNG.normal(size=side**2))
    x, info = op.cg(rough, b, tol=1e-10, precondition=a.inverse())
    assert int(info.iterations) < 0.4 * int(op.cg(rough, b, tol=1e-10)[1].iterations)
    close(rough @ x, b, 1e-8)


def test_a_large_kronecker_sum_goes_by_the_spectra_of_its_parts() -> None:
    n = 48  # 2304 rows in all
    line = op.tridiagonal(-np.ones(n - 1), 2.5 * np.ones(n), -np.ones(n - 1))
    whole = op.kronsum(line, line)
    b = RNG.normal(size=n * n)
    close(whole @ whole.solve(b), b, 1e-11)
    w = np.linalg.eigvalsh(np.asarray(line.todense()))
    close(op.logdet(whole), np.log(w[:, None] + w).sum(), 1e-12)


@pytest.mark.parametrize("scale", [1e-25, 1e-15, 1.0, 1e15, 1e25], ids=str)
@pytest.mark.parametrize("name", ["cg", "minres", "gmres", "bicgstab", "lsmr", "chebyshev"])
def test_the_size_of_a_right_side_is_no_matter(name: str, scale: float) -> None:
    """Squares of small elements vanish in f32: zeros were given for the solution, as one that converged."""
    a, b = SPD.astype(np.float32), RIGHT.astype(np.float32)
    ends = np.linalg.eigvalsh(SPD)[[0, -1]]
    more = {"bounds": (float(ends[0]) * 0.9, float(ends[1]) * 1.1)} if name == "chebyshev" else {}

    def solved(a: Any, b: Any, **given: Any) -> Any:
        return getattr(op, name)(a, b, **more, **given)

    f32 = np.float32
    small = (b * scale).astype(f32)
    for run in (solved, ts.jit(lambda a, b: solved(a, b))):
        x, info = run(ts.tensor(a), ts.tensor(small))
        assert bool(info.converged)
        want = np.linalg.solve(SPD, RIGHT)
        np.testing.assert_allclose(np.asarray(x, float) / scale, want, rtol=2e-3, atol=1e-4)
        assert float(info.residual) <= 2e-5 * np.linalg.norm(SPD) * np.linalg.norm(RIGHT) * scale
    rows = np.stack([small, b, small * 0]).T
    x = np.asarray(solved(ts.tensor(a), ts.tensor(rows))[0], float)
    np.testing.assert_allclose(
        x / [scale, 1, 1], np.stack([want, want, 0 * want]).T, rtol=2e-3, atol=1e-4
    )
    g = ts.grad(lambda b: op.sum(solved(ts.tensor(a), b)[0]) * f32(scale))(ts.tensor(b))
    np.testing.assert_allclose(
        np.asarray(g, float) / scale, np.linalg.solve(SPD, np.ones(N)), rtol=2e-3, atol=1e-4
    )
    far = solved(
        ts.tensor(a),
        ts.tensor(small),
        atol=float(10 * scale * np.linalg.norm(RIGHT) * np.linalg.norm(SPD)),
    )
    assert not np.asarray(far[0]).any()  # nothing is left to do


@pytest.mark.parametrize("scale", [1e-30, 1e-20, 1e20, 1e30], ids=str)
def test_least_squares_have_any_scale(scale: float) -> None:
    a, b = RNG.normal(size=(6, 4)), RNG.normal(size=6)
    want = np.linalg.lstsq(a, b, rcond=None)[0]
    x = op.lsmr(ts.tensor((a * scale).astype(np.float32)), ts.tensor(b.astype(np.float32)))[0]
    np.testing.assert_allclose(np.asarray(x, float) * scale, want, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("scale", [1e-25, 1e25], ids=str)
@pytest.mark.parametrize("name", ["lanczos", "arnoldi"])
def test_krylov_spaces_are_whole_at_any_scale(name: str, scale: float) -> None:
    for a, b in ((SPD * scale, RIGHT), (SPD, RIGHT * scale)):
        q = np.asarray(getattr(op, name)(a.astype(np.float32), b.astype(np.float32), 6)[0], float)
        np.testing.assert_allclose(q.T @ q, np.eye(6), atol=1e-4)
