"""The place of an extreme by parts is the place that NumPy finds: the first one, NaN before all others."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera import op
from tessera.ir.graph.interp import interpret
from tessera.ir.graph.ir import Graph
from tessera.ir.graph.verify import verify
from tessera.transform import argmax_in_parts
from tessera.transform.decompose import decompose_on_gpu
from tests.support.fakes.gpu_fake import fake_gpu

RUNS_ON = "numpy"
SHAPES = [((64,), 0), ((67,), 0), ((3, 80), 1), ((41, 1), 0), ((2, 37, 1), 1)]


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts of tensors that a test can look through."""
    for name, n in (("LARGE", 1), ("PART", 4)):
        monkeypatch.setattr(argmax_in_parts, name, n)


def drawn(shape: tuple[int, ...], kind: str, seed: int) -> Any:
    rng = np.random.default_rng([seed, *shape])
    x = rng.integers(-3, 4, shape).astype(kind)
    if kind == "f4":
        x = np.where(x == 0, np.where(rng.random(shape) < 0.5, -0.0, 0.0), x).astype(kind)
        x[rng.random(shape) < (0.03 if seed % 2 else 0.0)] = np.nan
        x[rng.random(shape) < 0.05] = (np.inf, -np.inf)[seed % 2]
    return x


def graph(name: str, shape: tuple[int, ...], axis: int, dtype: Any) -> Graph:
    g = ts.trace(lambda x: getattr(op, name)(x, axis), ts.Tensor[(*shape, dtype)])
    return decompose_on_gpu(g)


@pytest.mark.parametrize("kind", ["f4", "i4", "u1"])
@pytest.mark.parametrize("name", ["argmax", "argmin"])
@pytest.mark.parametrize(("shape", "axis"), SHAPES, ids=str)
def test_the_first_extreme_is_found(
    name: str, kind: str, shape: tuple[int, ...], axis: int
) -> None:
    g = graph(name, shape, axis, {"f4": ts.f32, "i4": ts.i32, "u1": ts.u8}[kind])
    verify(g)
    assert any(n.op.name == "gather" for n in g.nodes), g.text
    for seed in range(12):
        x = (
            np.abs(drawn(shape, "i4", seed)).astype(kind)
            if kind == "u1"
            else drawn(shape, kind, seed)
        )
        (got,) = interpret(g, [x])
        np.testing.assert_array_equal(got, getattr(np, name)(x, axis))


def test_nan_and_extremes_of_the_last_part_count() -> None:
    g = graph("argmax", (67,), 0, ts.f32)
    for places, want in (
        ({66: 5.0}, 66), ({66: np.nan}, 66), ({3: np.nan, 66: np.nan}, 3), ({9: 5.0, 66: 5.0}, 9),
        ({66: np.nan, 3: np.inf}, 66), ({}, 0),
    ):  # fmt: skip
        x = np.zeros(67, np.float32)
        for i, value in places.items():
            x[i] = value
        assert int(interpret(g, [x])[0]) == want == int(np.argmax(x)), places


@pytest.mark.parametrize("shape", [(31,), (64, 1), (64, 3)], ids=str)
def test_small_tensors_and_few_parts_are_folded_as_ever(
    shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Columns too: one fold more of them in another launch took longer than to read them twice."""
    monkeypatch.setattr(argmax_in_parts, "LARGE", 1 if shape != (64, 1) else 1 << 20)
    g = graph("argmax", shape, 0, ts.f32)
    assert not any(n.op.name == "gather" for n in g.nodes), g.text


@pytest.mark.parametrize(("f", "parts"), [
    (lambda x: op.argmax(op.reshape(x, (64,)), 0), True),
    (lambda x: op.argmax(op.exp(x), 0), False),
    (lambda x: op.argmax(op.softmax(x, 0), 0), False),
    (lambda x: op.argmax(op.sort(x, 0), 0), True),
    (lambda x: op.argmax(x @ op.transpose(x), 1), True),
])  # fmt: skip
def test_what_is_computed_point_by_point_is_not_written_for_it(f: Any, parts: bool) -> None:
    g = decompose_on_gpu(ts.trace(f, ts.Tensor[64, 1, ts.f32]))
    assert any(n.op.name == "gather" for n in g.nodes) == parts, g.text


def test_programs_on_a_gpu_find_the_place() -> None:
    x = drawn((67, 40), "f4", 3)

    def f(x: Any) -> Any:
        return op.argmin(x), op.argmax(x, 0), op.argmin(x, 1), op.argmax(x * 2.0, 0)

    with fake_gpu():
        got = [y.numpy() for y in ts.jit(f)(ts.tensor(x).to("cuda"))]
    want = np.argmin(x), np.argmax(x, 0), np.argmin(x, 1), np.argmax(x, 0)
    for a, b in zip(got, want, strict=True):
        np.testing.assert_array_equal(a, b)
