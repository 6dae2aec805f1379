"""Counts on a GPU: NumPy's, for every number of parts, with numbers that are none."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera import op
from tessera.compile.passes import GRAPH
from tessera.compile.pipeline import passes_of
from tessera.core.dtype import as_dtype
from tessera.core.types import TensorType
from tessera.ir.schedule.ir import Primitive
from tessera.ir.tile.gpu import count
from tessera.ir.tile.interp import interpret
from tessera.ir.tile.verify import verify
from tests.support.fakes.gpu_fake import at, fake_gpu

RUNS_ON = "numpy"


def launched(x: Any, size: int, dtype: Any = ts.i64) -> Any:
    """The counts by the kernels, by the Tile interpreter."""
    types = {"x": TensorType(as_dtype(x.dtype), x.shape), "y": TensorType(dtype, (size,))}
    step = Primitive("s", "count_places", {"size": size, "dtype": dtype}, ("x",), ("y",))
    e = count.count_places(step, types)
    memory = {"x": x, "y": np.full(size, 7, dtype.np)}
    for n, t in e.between.items():
        memory[n] = np.full(t.shape, 3).astype(t.dtype.np)  # type: ignore[arg-type]
    for launch in e.launches:
        verify(launch.kernel)
        names = (*launch.inputs, *launch.outputs)
        given = zip(launch.kernel.parameters, names, strict=True)
        interpret(launch.kernel, [memory[n].reshape(m.type.shape) for m, n in given])  # type: ignore[arg-type]
    return memory["y"]


@pytest.mark.parametrize("size", [1, 10, 257, 5000])
@pytest.mark.parametrize("kind", ["i8", "i4", "u1"])
def test_counts_are_numpys(size: int, kind: str) -> None:
    rng = np.random.default_rng(0)
    low = 0 if kind == "u1" else -3
    for n in (1, 700, 1024) if size < 5000 else (700,):
        x = rng.integers(low, min(size + 5, 255), n).astype(kind)
        inside = x[(x >= 0) & (x.astype("i8") < size)].astype("i8")
        want = np.bincount(inside, minlength=size)
        np.testing.assert_array_equal(launched(x, size), want)


def test_no_number_of_parts_changes_a_count(monkeypatch: pytest.MonkeyPatch) -> None:
    x = np.random.default_rng(1).integers(0, 300, 3001)
    want = np.bincount(x, minlength=300)
    for parts in (1, 16):
        monkeypatch.setattr(count, "PARTS", parts)
        np.testing.assert_array_equal(launched(x, 300, ts.i32), want)


@pytest.mark.parametrize("bins", [1, 2, 30, 31, 255, 256])
@pytest.mark.parametrize("kind", ["f4", "f8", "bf16"])
def test_elements_between_edges_are_placed_and_counted_at_once(kind: str, bins: int) -> None:
    rng = np.random.default_rng(bins)
    dtype = as_dtype(kind if kind == "bf16" else np.dtype(kind))
    edges = np.sort(np.round(rng.normal(size=bins + 1) * 2, 1)).astype(dtype.np)
    for n in (1, 2048, 2049, 5003):
        v = np.round(rng.normal(size=n) * 2, 1)
        v[rng.random(n) < 0.05] = rng.choice([np.nan, np.inf, -np.inf])
        v[rng.random(n) < 0.1] = rng.choice(edges.astype("f8"))
        v = v.astype(dtype.np)
        types = {
            "e": TensorType(dtype, edges.shape), "v": TensorType(dtype, v.shape),
            "y": TensorType(ts.i64, (bins,)),
        }  # fmt: skip
        e = count.count_between(Primitive("s", "count_between", {}, ("e", "v"), ("y",)), types)
        memory = {"e": edges, "v": v, "y": np.full(bins, 7)}
        memory |= {n: np.full(t.shape, 3, t.dtype.np) for n, t in e.between.items()}  # type: ignore[arg-type]
        for launch in e.launches:
            verify(launch.kernel)
            names = zip(launch.kernel.parameters, (*launch.inputs, *launch.outputs), strict=True)
            interpret(launch.kernel, [memory[n].reshape(m.type.shape) for m, n in names])  # type: ignore[arg-type]
        inside = v[~np.isnan(v.astype("f8"))].astype("f8")
        np.testing.assert_array_equal(memory["y"], np.histogram(inside, edges.astype("f8"))[0])


def _counted(f: Any, *specs: Any) -> set[str]:
    g = ts.trace(f, *specs)
    for p in passes_of("cuda", GRAPH):
        g = p.run(g)
    return {n.op.name for n in g.nodes}


def test_a_histogram_writes_no_places_and_a_count_tests_nothing_twice() -> None:
    """Places and numbers that were put out of the way went through memory, twice what they were made of."""
    v, i = ts.Tensor[1 << 16, ts.f32], ts.Tensor[1 << 16, ts.i64]
    names = _counted(lambda v: op.histogram(v, 100, (-3.0, 3.0))[0], v)
    assert "count_between" in names
    assert names.isdisjoint({"searchsorted", "count_places", "scatter_add"})
    assert "count_between" not in _counted(lambda v: op.histogram(v, 257, (-3.0, 3.0))[0], v)
    assert _counted(lambda i: op.bincount(i, length=256), i) == {"count_places"}
    kept = _counted(lambda i: op.bincount(op.where(i < 3, 7, i), length=256), i)
    assert "where" in kept


@pytest.mark.parametrize("other", [-1, 3, 40])
@pytest.mark.parametrize("end", [20, 33, 50])
def test_tests_that_change_a_count_stay(end: int, other: int) -> None:
    """A number that is counted in place of another is no test of what is counted."""
    i = np.random.default_rng(end).integers(-60, 60, 5000)

    def f(i: Any) -> Any:
        kept = op.where(op.logical_and(i >= 0, i < end), i, other)
        return op.scatter_add(op.zeros((33,), ts.i64), op.ones((5000,), ts.i64), kept)

    with fake_gpu():
        got = ts.jit(f)(ts.tensor(i).to("cuda")).numpy()
    kept = np.where((i >= 0) & (i < end), i, other)
    kept = np.where(kept < 0, kept + 33, kept)
    want = np.bincount(kept[kept < 33], minlength=33)
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("where", ["fake", pytest.param("device", marks=pytest.mark.gpu)])
def test_programs_count_on_the_device(where: str) -> None:
    rng = np.random.default_rng(2)
    x, v = rng.integers(-4, 40, 5000), rng.standard_normal(5000).astype("f4")

    def f(x: Any, v: Any) -> Any:
        counts, _ = op.histogram(v, 30, (-2.0, 2.0))
        return op.bincount(x, length=33), op.bincount(op.abs(x), v, length=50), counts

    with at(where):
        got = ts.jit(f)(ts.tensor(x).to("cuda"), ts.tensor(v).to("cuda"))
    want = f(ts.tensor(x), ts.tensor(v))
    np.testing.assert_array_equal(
        want[0].numpy(), np.bincount(x[(x >= 0) & (x < 33)], minlength=33)
    )
    for i in (0, 2):
        np.testing.assert_array_equal(got[i].numpy(), want[i].numpy())
    np.testing.assert_allclose(got[1].numpy(), want[1].numpy(), rtol=1e-5, atol=1e-5)


def test_counts_have_no_order_and_no_values() -> None:
    """Neither a sort nor a scatter, and no tensor of ones; sums of other values, or of floats, stay
    scatters.
    """
    i, few = ts.Tensor[1 << 16, ts.i64], ts.Tensor[64, ts.i64]
    zeros = lambda n, d: op.zeros((n,), d)  # noqa: E731
    for f, t, counts in (
        (lambda x: op.bincount(x, length=256), i, True),
        (lambda x: op.scatter_add(zeros(9, ts.u32), op.ones((1 << 16,), ts.u32), x), i, True),
        (lambda x: op.scatter_add(zeros(9, ts.i64), op.full((1 << 16,), 2, ts.i64), x), i, False),
        (lambda x: op.scatter_add(zeros(9, ts.f32), op.ones((1 << 16,), ts.f32), x), i, False),
        (lambda x: op.scatter_add(op.ones((9,), ts.i64), op.ones((1 << 16,), ts.i64), x), i, False),
        (lambda x: op.bincount(x, length=1 << 13), i, True),
        (lambda x: op.bincount(x, length=256), few, False),
    ):
        g = ts.trace(f, t)
        for p in passes_of("cuda", GRAPH):
            g = p.run(g)
        names = {n.op.name for n in g.nodes}
        assert ("count_places" in names) == counts, g.text
        assert ("scatter_add" in names) != counts, g.text


@pytest.mark.parametrize("begin", [0, 1, 2])
@pytest.mark.parametrize("each", [1, 0, 3])
@pytest.mark.parametrize("size", [1, 5])
def test_only_ones_that_are_added_to_zeros_are_counts(size: int, each: int, begin: int) -> None:
    i = np.random.default_rng(size).integers(0, size, 2048)
    given = ts.tensor(i)

    def f(i: Any) -> Any:
        full = op.full((size,), begin, dtype=ts.i64)
        return op.scatter_add(full, op.full(i.shape, each, dtype=ts.i64), i)

    with fake_gpu():
        got = ts.jit(f)(given.to("cuda")).numpy()
    np.testing.assert_array_equal(got, begin + each * np.bincount(i, minlength=size))
