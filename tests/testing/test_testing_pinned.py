"""What checks of tessera.testing say, and at which bound each begins to say it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

import tessera as ts
from tessera import KTile, block, f32, kernel, op, tile
from tessera.testing import (
    adjoint_check,
    assert_close,
    assert_same_bits,
    golden,
    gradcheck,
    invariant,
    mutate,
)
from tessera.testing.close import tolerance
from tests.support.pinned import pinned

RUNS_ON = "numpy"
A = np.arange(6, dtype=np.float32).reshape(2, 3)
NAN = np.array([np.nan, 1.0, np.inf, -np.inf])


def said(f: Callable[[], Any]) -> str:
    """What a check says, or how it ended."""
    try:
        return str(f())
    except Exception as e:  # errors of users and failed checks alike
        return f"{type(e).__name__}: {str(e).splitlines()[0]}"


PAIRS: list[tuple[Any, Any]] = [
    (A, A), (A, A + 1), (A, A[:1]), (A, A.astype(np.float64) + 1e-7), (NAN, NAN), (NAN,
    NAN[::-1].copy()), (A > 2, A > 3), (A.astype(np.int32), A.astype(np.int64)),
    ({"a": A, "b": A}, {"a": A, "b": A * 2}), ({"a": A}, {"a": A, "b": A}), ([A, A], (A, A)), (A, 3.0),
    (3.0, 3.0), (2**60, 2**60 + 1), (A * 1j, A * 1j + 1e-3),
    (np.float32(0.0), np.float32(-0.0)), (A.astype(ml_dtypes.bfloat16), A), (A.astype(np.float16),
    A * 1.01), (np.zeros((0, 3)), np.zeros((0, 3))),
]  # fmt: skip
LIMITS: list[dict[str, Any]] = [
    {},
    {"rtol": 0.5},
    {"atol": 1.5, "rtol": 0.0},
    {"check_dtype": True},
    {"equal_nan": False},
]


def close() -> Iterator[str]:
    for name in (
        "f64",
        "f32",
        "f16",
        "bf16",
        "f8e4m3",
        "f8e5m2",
        "c64",
        "c128",
        "i32",
        "bool_",
        "tf32",
    ):
        yield f"{name} {tolerance(getattr(ts, name)):g}"
    for i, (a, b) in enumerate(PAIRS):
        for more in LIMITS:
            yield f"{i} {more}: {said(lambda a=a, b=b, m=more: assert_close(a, b, **m))}"
        yield f"{i} bits: {said(lambda a=a, b=b: assert_same_bits(a, b, 'what'))}"
    for by in (0.5, 0.999, 1.001, 2.0):
        yield f"{by}: {said(lambda by=by: assert_close(np.float64(1 + by * 2e-12), np.float64(1.0)))[:40]}"
        yield f"{by}: {said(lambda by=by: assert_close(np.array([3.0 + by]), np.array([3.0]), 0.25, 0.25))}"


def test_closeness_and_bits() -> None:
    pinned("testing_close", close())


@ts.custom_jvp
def crooked(x: Any) -> Any:
    return op.sin(x)


@crooked.defjvp
def _crooked(primals: Any, tangents: Any) -> Any:
    (x,), (t,) = primals, tangents
    return op.sin(x), op.cos(x) * t * 1.001


X = np.linspace(0.2, 1.1, 6).reshape(2, 3)
LONG = np.linspace(0.2, 1.1, 30)
CHECKED: dict[str, tuple[Any, ...]] = {
    "sin": (op.sin, X), "f32": (op.sin, X.astype(np.float32)), "two": (lambda a, b: (a * b, a + b), X,
    X + 1), "long": (op.exp, LONG), "int": (op.sin, np.arange(3)),
    "mixed": (lambda a, i: a[i], X, np.array([1, 0])), "complex": (lambda z: z * z, X + 1j),
    "abs at zero": (op.abs, np.zeros(3)), "wrong": (crooked, X), "wrong f32": (crooked,
    X.astype(np.float32)),
    "wrong long": (crooked, LONG), "tree": (lambda t: t["a"] * t["b"], {"a": X, "b": X}),
    "wrong tree": (lambda t: crooked(t["b"]), {"a": X, "b": X}),
    "constant": (lambda a: a * 0 + 1, X), "scalar": (op.sin, np.float64(0.5)), "wrong scalar": (crooked,
    np.float64(0.5)),
}  # fmt: skip


def slopes() -> Iterator[str]:
    for name, (f, *xs) in CHECKED.items():
        for more in ({}, {"order": 2}, {"rtol": 1e-2}, {"step": 1.0}, {"directions": 1, "seed": 3}):
            how = said(lambda f=f, xs=xs, m=more: gradcheck(f, *xs, **m))
            yield f"{name} {more}: {re.sub(r'<lambda>', 'f', how)}"
    yield said(lambda: gradcheck(op.sin, X, order=3))
    square = np.arange(9.0).reshape(3, 3)
    for name, args in {
        "dense": (op.dense(ts.tensor(square)),), "f": (lambda v: square @ v, lambda v: square.T @ v,
        np.zeros(3)), "wrong": (lambda v: square @ v, lambda v: square @ v, np.zeros(3)),
        "bent": (lambda v: v * v, lambda v: v, np.zeros(3)), "none": (lambda v: v,),
        "half": (lambda v: v, lambda v: v),
    }.items():  # fmt: skip
        for more in ({}, {"rtol": 10.0}, {"trials": 1}):
            yield f"{name} {more}: {said(lambda a=args, m=more: adjoint_check(*a, **m))}"


def test_derivatives_and_adjoints() -> None:
    pinned("testing_slopes", slopes(), near=1e-3)


@kernel.schedule(block(8))
def clipped(x: KTile["M", "D", f32]) -> Any:
    T = tile.context()
    t = tile.load(x, rows=T.m, cols=T.d)
    return tile.maximum(tile.exp(t) * 2.0 - tile.sum(t, axis=1)[:, None], 0.0)


def test_faults_of_a_kernel() -> None:
    x = np.linspace(-1, 1, 55).astype(np.float32).reshape(11, 5)
    want = np.maximum(np.exp(x) * 2 - x.sum(1, keepdims=True), 0)
    checks: dict[str, Callable[[Any], Any]] = {
        "good": lambda k: np.testing.assert_allclose(np.asarray(k(ts.tensor(x))), want, rtol=1e-5),
        "poor": lambda k: np.testing.assert_allclose(np.asarray(k(ts.tensor(x)))[:1], want[:1]),
        "idle": lambda k: k(ts.tensor(x)),
    }
    made = []
    for name, check in checks.items():
        for more in ({}, {"count": 3}, {"count": 3, "seed": 5}):
            text = said(lambda c=check, m=more: mutate(clipped, c, **m))
            made += [f"{name} {more}", *re.sub(r", at .*", "", text).splitlines()]
    made.append(said(lambda: mutate(op.sin, checks["good"])))
    made.append(said(lambda: mutate(clipped, lambda k: None)))
    pinned("testing_mutants", made)


def test_how_often_a_function_ran() -> None:
    x = np.ones((3, 4), np.float32)
    made = [
        said(lambda: invariant(op.sin, x, of="runs")),
        said(lambda: invariant(op.sin, x, of=["runs", "threads"], repeats=5)),
        said(lambda: invariant(op.sin, x, of="batch", batch=0)),
        said(lambda: invariant(lambda a, b: a + b, x, x[0], of="batch", batch=(0,))),
        said(lambda: invariant(lambda a: a - op.sum(a), x * 1.1, of="batch", batch=0)),
        said(lambda: invariant(op.sin, x, of="batch")),
        said(lambda: invariant(op.sin, x, of="x")),
        said(lambda: invariant(lambda a, b: a, x, x[:2], batch=(0, 1), of="batch")),
        said(lambda: invariant(op.sum, x, batch=0, of="batch")),
    ]
    pinned("testing_invariance", made)


def test_records(tmp_path: Path) -> None:
    file = tmp_path / "deep" / "golden.json"
    for name, value in (("one", A), ("two", {"a": A, "b": [A[0], np.float32(2)]})):
        golden(file, name, value, update=True)
        golden(file, name, value)
    made = [file.read_text()]
    made += [said(lambda n=n, v=v: golden(file, n, v)) for n, v in (
        ("one", A + 1), ("one", {"a": A}), ("two", {"a": A, "b": [A[0], np.float32(3)]}), ("three", A),
        ("one", A.astype(np.float64)),
    )]  # fmt: skip
    pinned("testing_records", made)
