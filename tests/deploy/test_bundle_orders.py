"""Sorts in C: every dtype, ties, NaN and zeros, views, symbolic sizes and loops have the bits of Python's
results.
"""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera import Tensor, op
from tessera.deploy.container import Container
from tessera.deploy.targets import usable
from tests.deploy.test_bundle_c import COMPILER, build, record

pytestmark = pytest.mark.skipif(
    not (COMPILER and usable()), reason="no C compiler for this processor"
)
RNG = np.random.default_rng(12)
DTYPES = [
    ts.bool_, ts.i8, ts.i16, ts.i32, ts.i64, ts.u8, ts.u16, ts.u32, ts.u64, ts.f8e4m3, ts.f8e5m2, ts.f16,
    ts.bf16,
    ts.f32, ts.f64,
]  # fmt: skip


def values(dtype: Any, *shape: int) -> Any:
    """Many equal elements; of floats also NaN, both zeros and both infinities; of integers the ends."""
    x = RNG.integers(-4, 5, shape).astype(np.float64) / 2
    kind = np.dtype(dtype.np)
    if dtype.name.startswith(("f", "bf")):
        odd = np.array([np.nan, -0.0, 0.0, np.inf, -np.inf])
        odd = odd[:3] if dtype is ts.f8e4m3 else odd
        x = np.where(RNG.random(shape) < 0.4, RNG.choice(odd, shape), x)
        return ts.tensor(x.astype(np.float32).astype(kind), dtype=dtype)
    if dtype is ts.bool_:
        return ts.tensor(x > 0)
    ends = np.array([np.iinfo(kind).min, np.iinfo(kind).max], kind)
    y = (2 * x).astype(np.int64).astype(kind)
    return ts.tensor(np.where(RNG.random(shape) < 0.3, RNG.choice(ends, shape), y), dtype=dtype)


def orders(x: Any) -> Any:
    first, second = op.topk(x, 3, axis=-1), op.topk(x, 1, axis=0, largest=False)
    down = op.sort(x, axis=0, descending=True)
    return op.sort(x), op.argsort(x), down, op.argsort(x, descending=True), first, second


def sizes(x: Tensor["n", "m"], k: Tensor["k"]) -> Any:
    """Symbolic sizes, views of what is sorted, and places that are used."""
    t = op.transpose(x, (1, 0))
    v, i = op.topk(x[:, 1:], 2)
    best = op.topk(k, 5)
    return (
        op.sort(t),
        op.argsort(t, axis=0),
        v,
        op.take_along_axis(x, i + 1, axis=1),
        best,
        op.sort(k[::-1]),
    )


def inside(x: Tensor["n", 6]) -> Any:
    """Sorts in the body of a loop and in a branch."""

    def step(c: Any, row: Any) -> Any:
        c = op.sort(op.concat([c, row], axis=0))[2:8]
        return ts.cond(
            op.sum(c) > 0.0, lambda y: op.sort(y, descending=True), lambda y: y + 1.0, c
        ), op.argsort(c)

    return ts.scan(step, ts.zeros((6,)), x)


def runs(program: Path, folder: Path, name: str, args: Any, want: Any) -> None:
    record(folder / "record", [*args, *ts.tree.leaves(want)])
    at = [str(folder / "f.tess"), str(folder / "record"), name, "2", "2"]
    done = subprocess.run([str(program), *at], capture_output=True, text=True, check=False)
    assert "the same bits" in done.stderr, (name, done.stderr)


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("orders") / "run", "run.c", "-O1")


def test_every_dtype_is_sorted_as_in_python(program: Path, tmp_path: Path):
    given = {d.name: values(d, 4, 9) for d in DTYPES}
    ts.bundle.save({n: (orders, x) for n, x in given.items()}, tmp_path / "f.tess")
    for name, x in given.items():
        want = ts.jit(orders)(x)
        plain = np.asarray(x).astype(np.float64)
        if x.dtype is not ts.i64 and x.dtype is not ts.u64:
            assert (np.asarray(want[1]) == np.argsort(plain, axis=-1, kind="stable")).all()
        runs(program, tmp_path, name, [x], want)


def test_sizes_views_and_places(program: Path, tmp_path: Path):
    ts.bundle.save({"f": (sizes, Tensor["n", "m"], Tensor["k"])}, tmp_path / "f.tess")
    plan = Container(tmp_path / "f.tess").read(f"plan/f/cpu:{usable()[0]}")
    assert plan[4] == 3
    for n, m, k in [(3, 4, 5), (1, 3, 700), (20, 9, 40)]:
        args = [values(ts.f32, n, m), values(ts.f32, k)]
        runs(program, tmp_path, "f", args, ts.jit(sizes)(*args))


def test_sorts_inside_of_loops_and_branches(program: Path, tmp_path: Path):
    ts.bundle.save({"f": (inside, Tensor["n", 6])}, tmp_path / "f.tess")
    for n in (1, 5):
        x = ts.tensor(RNG.normal(size=(n, 6)).astype(np.float32))
        runs(program, tmp_path, "f", [x], ts.jit(inside)(x))
