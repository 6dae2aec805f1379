"""What must hold of every expression of operators: it is its matrix, in all that can be asked of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import tessera as ts
from tessera import op
from tessera.core.flags import override
from tests.support.cases.random_expressions import Expression, as_test, expression, shrunk

Array = np.ndarray[Any, Any]
TOLERANCE, SLOPES = 1e-8, 1e-5


class Broken(AssertionError):
    """A law that does not hold."""


def near(got: Any, want: Any, what: str, tolerance: float = TOLERANCE, size: float = 0.0) -> None:
    x, y = np.asarray(got), np.asarray(want)
    if x.shape != y.shape:
        raise Broken(f"{what}: shape {x.shape}, expected {y.shape}")
    size = 1 + size + float(np.max(np.abs(y), initial=0.0))
    off = float(np.max(np.abs(x - y), initial=0.0))
    if not off <= tolerance * size:
        raise Broken(f"{what}: off by {off:.3g} of {size:.3g}")


class Subject:
    """An expression with its numbers, its operator and its matrix."""

    def __init__(self, make: Callable[..., Any], want: Callable[..., Array], xs: Sequence[Array]):
        self.make, self.want, self.xs = make, want, [np.asarray(x) for x in xs]
        self.tensors = [ts.tensor(x) for x in self.xs]
        self.operator, self.matrix = make(*self.tensors), np.asarray(want(*self.xs))
        self.rng = np.random.default_rng(len(self.xs))

    def draw(self, like: Array, *shape: int) -> Array:
        x = self.rng.normal(size=shape)
        return np.asarray(x + 1j * self.rng.normal(size=shape) if np.iscomplexobj(like) else x)

    @property
    def is_regular(self) -> bool:
        m = self.matrix
        known = (
            m.shape[0] == m.shape[1] and np.abs(m).max(initial=0.0) > 1e-6
        )  # what is smaller is rounding
        return known and bool(np.linalg.cond(m) < 1e4)


def _matrix(s: Subject) -> None:
    a, m = s.operator, s.matrix
    near(a.todense(), m, "todense")
    if a.shape != m.shape or (a.dtype.kind != "c" and np.abs(m.imag).max(initial=0.0) > TOLERANCE):
        raise Broken(f"the operator is {a}, the matrix {m.dtype}{m.shape}")


def _application(s: Subject) -> None:
    a, m = s.operator, s.matrix
    rows, cols = m.shape
    v, block, w = s.draw(m, cols), s.draw(m, cols, 3), s.draw(m, rows)
    near(a @ v, m @ v, "A @ v")
    near(a @ block, m @ block, "A @ X")
    near(a.H @ w, m.conj().T @ w, "A.H @ w")
    near(a.T @ w, m.T @ w, "A.T @ w")
    near(w @ a, w @ m, "w @ A")
    near(a.H.todense(), m.conj().T, "A.H")
    near((2 * a).conj().todense(), 2 * m.conj(), "conj")


def _flags(s: Subject) -> None:
    if np.abs(s.matrix).max(initial=0.0) <= 1e-6:
        return  # what is left of a difference that is 0 is rounding, which has no structure
    broken = op.check_flags(s.operator, tolerance=1e-8)
    if broken:
        raise Broken(f"flags that the numbers break: {broken}")
    if s.operator.rank < np.linalg.matrix_rank(s.matrix, tol=1e-8 * (1 + np.abs(s.matrix).max())):
        raise Broken(f"rank {s.operator.rank} of a matrix of higher rank")


def _queries(s: Subject) -> None:
    a, m = s.operator, s.matrix
    near(a.diagonal(), np.diagonal(m), "diagonal")
    if m.shape[0] == m.shape[1]:
        near(op.trace(a), np.trace(m), "trace")


def _solutions(s: Subject) -> None:
    a, m = s.operator, s.matrix
    if not s.is_regular:
        return
    size = float(np.linalg.cond(m))
    b = s.draw(m, m.shape[0], 2)
    near(a.solve(b), np.linalg.solve(m, b), "solve", TOLERANCE, size)
    near(a.H.solve(b), np.linalg.solve(m.conj().T, b), "solve with A.H", TOLERANCE, size)
    near(a.inverse() @ b, np.linalg.solve(m, b), "inverse", TOLERANCE, size)
    sign, log = np.linalg.slogdet(m)
    got = op.slogdet(a)
    near(got[0], sign, "sign of the determinant", 1e-6)
    near(got[1], log, "logdet", 1e-7)


def _simplified(s: Subject) -> None:
    for columns in (1, 30, None):
        near(
            ts.simplify(s.operator, columns=columns).todense(),
            s.matrix,
            f"simplify, {columns} columns",
        )


def _jitted(s: Subject) -> None:
    v = ts.tensor(s.draw(s.matrix, s.matrix.shape[1]))

    def run(v: Any, *xs: Any) -> Any:
        a = s.make(*xs)
        return a @ v, a.todense()

    got = ts.jit(run)(v, *s.tensors)
    near(got[0], s.matrix @ np.asarray(v), "jitted A @ v")
    near(got[1], s.matrix, "jitted todense")
    near(
        ts.jit(lambda a, v: a @ v)(s.operator, v),
        s.matrix @ np.asarray(v),
        "A as an argument of jit",
    )


def slope(s: Subject, ds: Sequence[Array], h: float = 1e-3) -> Array:
    """The derivative of the matrix along ds, by differences of fourth order."""
    at = [
        np.asarray(s.want(*(x + k * h * d for x, d in zip(s.xs, ds, strict=True))))
        for k in (-2, -1, 1, 2)
    ]
    return np.asarray((at[0] - 8 * at[1] + 8 * at[2] - at[3]) / (12 * h))


def _derivatives(s: Subject) -> None:
    ds = [s.draw(x, *x.shape) for x in s.xs]
    want = slope(s, ds)
    rough = 1 + float(np.abs(want - slope(s, ds, 5e-4)).max(initial=0.0)) / SLOPES
    moving = [ts.tensor(d) for d in ds]
    _, moved = ts.jvp(s.make, s.tensors, moving)
    near(moved.todense(), want, "jvp", SLOPES * rough)
    v = s.draw(s.matrix, s.matrix.shape[1])
    near(moved @ v, want @ v, "jvp @ v", SLOPES * rough)
    ct = s.draw(s.matrix, *s.matrix.shape)
    _, back = ts.vjp(s.make, *s.tensors)
    cast = ts.tensor(ct.astype(s.operator.dtype.np))
    got = sum(np.sum(np.asarray(g) * d) for g, d in zip(back(cast), ds, strict=True))
    near(
        np.real(got),
        np.real(np.sum(ct * want)),
        "vjp",
        SLOPES * rough,
        float(np.sum(np.abs(ct * want))),
    )


LAWS: dict[str, Callable[[Subject], None]] = {
    "matrix": _matrix, "application": _application, "flags": _flags, "queries": _queries,
    "solutions": _solutions,
    "simplify": _simplified, "jit": _jitted, "derivatives": _derivatives,
}  # fmt: skip


def check(make: Callable[..., Any], want: Callable[..., Array], xs: Sequence[Array]) -> None:
    """Every law of one expression."""
    for law in LAWS.values():
        law(Subject(make, want, xs))


def broken_law(e: Expression, laws: Sequence[str] = tuple(LAWS)) -> tuple[str, str] | None:
    """The first law that an expression breaks, and how."""
    for name in laws:
        try:
            with np.errstate(all="ignore"):
                LAWS[name](
                    Subject(lambda *x: e.operator(x), lambda *x: e.matrix(x), e.every_array())
                )
        except Exception as error:
            return name, f"{type(error).__name__}: {error}"
    return None


def examine(seed: int, target: str = "numpy", only: Sequence[str] = ()) -> dict[str, Any] | None:
    """What the expression of a seed breaks, made small; None when every law holds."""
    with override(target=target):
        e = expression(seed, only=only)
        found = broken_law(e)
        if found is None:
            return None
        law, how = found
        kind = how.split(":")[0]

        def fails(s: Expression) -> bool:
            again = broken_law(s, [law])
            return again is not None and again[1].split(":")[0] == kind

        small = shrunk(e, fails) if fails(e) else e
        _, how = broken_law(small, [law]) or found
    return {"seed": seed, "law": law, "how": how, "text": small.text(),
        "test": as_test(small, seed, f"{law}: {how}".splitlines()[0])}  # fmt: skip
