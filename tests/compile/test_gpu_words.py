"""Random words and places in a sorted axis by kernels of a GPU: those of the references."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera import op
from tessera.core.dtype import as_dtype, bf16, u32, u64
from tessera.core.philox import random_words
from tessera.core.types import TensorType
from tessera.ir.schedule.ir import Primitive
from tessera.ir.target.triton.emit import emit
from tessera.ir.tile.gpu.primitives import kernels_of
from tessera.ir.tile.interp import interpret
from tessera.ir.tile.verify import verify
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


@pytest.mark.parametrize("dtype", [u32, u64], ids=str)
@pytest.mark.parametrize("draw", [0, 3])
def test_random_words_are_those_of_philox(dtype: Any, draw: int) -> None:
    rng = np.random.default_rng(0)
    k0, k1 = rng.integers(0, 1 << 32, (2, 7, 100), np.uint32)
    counter = rng.integers(0, 1 << 63, (7, 100), np.uint64)
    params = {"draw": draw, "purpose": 2, "dtype": dtype}
    got = launched("random_bits", params, [k0, k1, counter], TensorType(dtype, (7, 100)))
    np.testing.assert_array_equal(got, random_words(k0, k1, counter, dtype.bits // 32, draw, 2))


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


@pytest.fixture(params=["fake", pytest.param("device", marks=pytest.mark.gpu)])
def place(request: pytest.FixtureRequest) -> Iterator[None]:
    """A device, where an op that runs on the host is an error."""
    with at(request.param):
        yield


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
