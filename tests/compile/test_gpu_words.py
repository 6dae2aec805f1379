"""Random words and places in a sorted axis by kernels of a GPU: those of the references."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera import op
from tessera.compile.passes import GRAPH
from tessera.compile.pipeline import passes_of
from tessera.core.dtype import as_dtype, bf16, u32, u64
from tessera.core.philox import random_words
from tessera.core.types import TensorType
from tessera.ir.graph.interp import interpret as graph_interpret
from tessera.ir.schedule.interp import interpret as schedule_interpret
from tessera.ir.schedule.ir import Kernel, Primitive
from tessera.ir.schedule.lower import fuse_for_gpu
from tessera.ir.target.triton.emit import emit
from tessera.ir.tile.gpu.primitives import kernels_of
from tessera.ir.tile.interp import interpret
from tessera.ir.tile.verify import verify
from tessera.ops.random_bits import random_bits
from tests.support.fakes.gpu_fake import at

RUNS_ON = "numpy"


def launched(name: str, params: dict[str, Any], given: list[Any], out: TensorType) -> Any:
    """The result of the kernel of an op, by the Tile interpreter."""
    names = [f"x{i}" for i in range(len(given))]
    types = {n: TensorType(as_dtype(x.dtype), x.shape) for n, x in zip(names, given, strict=True)}
    e = kernels_of(Primitive("s", name, params, tuple(names), ("y",)), {**types, "y": out})
    assert e is not None
    (launch,) = e.launches
    verify(launch.kernel)
    ast.parse(emit(launch.kernel, launch.threads))
    made = np.zeros(out.shape, out.dtype.np)  # type: ignore[arg-type]
    memory = dict(zip((*names, "y"), (*given, made), strict=True))
    used = (*launch.inputs, *launch.outputs)
    shapes = [m.type.shape for m in launch.kernel.parameters]
    interpret(launch.kernel, [memory[n].reshape(s) for n, s in zip(used, shapes, strict=True)])  # type: ignore[arg-type]
    return made


def for_gpu(g: Any) -> Any:
    """A graph after the passes of the Graph level."""
    for p in passes_of("cuda", GRAPH):
        g = p.run(g)
    return g


@pytest.fixture(params=["fake", pytest.param("device", marks=pytest.mark.gpu)])
def place(request: pytest.FixtureRequest) -> Iterator[None]:
    """A device, where an op that runs on the host is an error."""
    with at(request.param):
        yield


@pytest.mark.parametrize("dtype", [u32, u64], ids=str)
@pytest.mark.parametrize("draw", [0, 1, 2, 3, 5])
def test_random_words_are_those_of_philox(dtype: Any, draw: int) -> None:
    """Keys and counters that differ from element to element, through the graph passes of a GPU."""
    rng = np.random.default_rng(0)
    k0, k1 = rng.integers(0, 1 << 32, (2, 7, 30), np.uint32)
    counter = rng.integers(0, 1 << 63, (7, 30), np.uint64)
    drawn = ts.trace(
        lambda *xs: random_bits(*xs, draw=draw, purpose=2, dtype=dtype),
        *(ts.Tensor[7, 30, d] for d in (u32, u32, u64)),
    )
    g = for_gpu(drawn)
    assert "random_bits" not in g.text
    want = random_words(k0, k1, counter, dtype.bits // 32, draw, 2)
    np.testing.assert_array_equal(graph_interpret(g, [k0, k1, counter])[0], want)
    scheduled = schedule_interpret(fuse_for_gpu(g), [k0, k1, counter])
    np.testing.assert_array_equal(scheduled[0], want)


DRAWS: dict[str, Any] = {
    "uniform": lambda k: op.random.uniform(k, (30, 7)),
    "f64": lambda k: op.random.uniform(k, (5, 2, 7), dtype=ts.f64),
    "between": lambda k: op.random.uniform(k, (41,), -1.0, 3.0, ts.bf16),
    "normal": lambda k: op.random.normal(k, (3, 50), 1.0, 2.0),
    "normal in f64": lambda k: op.random.normal(k, (60,), dtype=ts.f64),
    "bernoulli": lambda k: op.random.bernoulli(k, 0.3, (101,)),
    "whole": lambda k: op.random.randint(k, (33,), -5, 17),
    "bits": lambda k: op.random.bits(k, (4, 5), ts.u8),
    "exponential": lambda k: op.random.exponential(k, (6, 11)),
    "folded": lambda k: op.random.laplace(ts.fold_in(k, 5), (20,)),
    "one": lambda k: op.random.uniform(k, ()),
    "dropout": lambda k: op.dropout(k, op.reshape(op.iota(60, 0, ts.f32), (4, 3, 5)), 0.4),
    "slope": lambda k: ts.grad(lambda x: op.sum(op.dropout(k, op.sin(x), 0.4) * x))(
        op.reshape(op.iota(60, 0, ts.f32), (12, 5))
    ),
}


@pytest.mark.parametrize("name", DRAWS)
def test_draws_are_those_of_the_cpu(name: str, place: None) -> None:
    """Bits, signs and masks; what draws is one launch, but for keys that are folded first."""
    f, key = DRAWS[name], ts.key(7)
    want, got = ts.jit(f, target="cpu")(key), ts.jit(f)(key.to("cuda"))
    assert got.dtype is want.dtype
    np.testing.assert_array_equal(got.numpy(), want.numpy())
    if name not in ("folded", "whole"):
        steps = fuse_for_gpu(for_gpu(ts.trace(f, ts.Tensor[2, u32]))).steps
        assert len([s for s in steps if isinstance(s, Kernel)]) == 1, steps
        assert not any(isinstance(s, Primitive) for s in steps), steps


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("kind", ["bool", "i1", "u8", "i4", "f2", "bf16", "f4", "f8"])
def test_places_in_a_sorted_axis(kind: str, side: str) -> None:
    rng = np.random.default_rng(1)
    dtype = np.dtype(bf16.np if kind == "bf16" else kind)
    for n in (1, 2, 33):
        x = rng.integers(0, 5, n)
        v = rng.integers(0, 7, (3, 20))
        if kind[0] in "fb" and kind != "bool":
            x, v = x.astype(np.float64), v.astype(np.float64)
            x[n // 2 :], v[0, :3], v[1, 0] = np.nan, np.nan, -np.inf
        x, v = np.sort(x).astype(dtype), v.astype(dtype)
        wide = np.float64 if kind == "bf16" else dtype
        want = np.searchsorted(x.astype(wide), v.astype(wide), side)
        out = TensorType(ts.i64, v.shape)
        np.testing.assert_array_equal(launched("searchsorted", {"side": side}, [x, v], out), want)


def test_programs_draw_and_search_on_the_device(place: None) -> None:
    key, x = ts.key(3), np.linspace(-2, 2, 40, dtype=np.float32)

    def f(key: Any, x: Any) -> Any:
        drawn = op.random.uniform(key, (50, 7))
        return drawn, op.searchsorted(x, drawn), op.random.split(key), op.isin(x, drawn)

    want = f(key, ts.tensor(x))
    got = ts.jit(f)(key.to("cuda"), ts.tensor(x).to("cuda"))
    for a, b in zip(ts.tree.leaves(got), ts.tree.leaves(want), strict=True):
        assert a.device.kind == "cuda"
        np.testing.assert_array_equal(a.numpy(), b.numpy())
