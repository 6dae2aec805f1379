"""Pointwise kernels of odd rows along one axis: whole blocks without masks, then a tail; bits are those
of rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera import op
from tessera.compile.passes import GRAPH
from tessera.compile.pipeline import passes_of
from tessera.ir.schedule.gpu_blocks import RowsBlock
from tessera.ir.schedule.lower import fuse_for_gpu
from tessera.ir.tile.clashes import verify_shares
from tessera.ir.tile.gpu.flat import FlatRows, flat_rows
from tessera.ir.tile.gpu.rows import Rows, computes_long
from tessera.ir.tile.interp import interpret
from tessera.ir.tile.ir import walk
from tessera.ir.tile.sharing import shareable
from tessera.ir.tile.verify import verify
from tests.support.fakes.gpu_fake import at

RUNS_ON = "numpy"
SHAPES = [(300, 3), (129,), (5, 7, 33), (1, 1031), (2, 3), (40, 1, 27), (17, 129)]


@pytest.fixture(params=["fake", pytest.param("device", marks=pytest.mark.gpu)])
def place(request: pytest.FixtureRequest) -> Iterator[None]:
    """A device, where an op that runs on the host is an error."""
    with at(request.param):
        yield


def kernel_of(f: Any, *types: Any) -> tuple[Any, dict[str, Any]]:
    """The one kernel of a function on a GPU, and the types of its buffers."""
    g = ts.trace(f, *types)
    for p in passes_of("cuda", GRAPH):
        g = p.run(g)
    made = fuse_for_gpu(g)
    (k,) = made.steps
    return k, {n: b.type for n, b in made.buffers.items()}


def chain(x: Any, y: Any) -> Any:
    return op.maximum(x * 2.0 + y, 0.25) - op.exp(x)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("columns", [32, 64, 512])
def test_blocks_change_no_bit(shape: tuple[int, ...], columns: int) -> None:
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((2, *shape)).astype(np.float32)
    k, types = kernel_of(chain, *(ts.Tensor[(*shape, ts.f32)] for _ in range(2)))
    flat = flat_rows(k, types)
    assert flat is not None
    found = []
    for made in (Rows(k, types), FlatRows(flat.k, flat.types, RowsBlock(1, columns)), flat):
        tile = made.kernel()
        verify(tile)
        shares = shareable(tile)
        assert shares
        verify_shares(tile, shares)
        arrays = [np.ascontiguousarray(a) for a in (x, y, np.full_like(x, 7))]
        interpret(
            tile,
            [a.reshape(m.type.shape) for a, m in zip(arrays, tile.parameters, strict=True)],  # type: ignore[arg-type]
            {},
        )
        found.append(arrays[2])
    for other in found[1:]:
        np.testing.assert_array_equal(other, found[0])


def test_whole_blocks_have_no_masks() -> None:
    k, types = kernel_of(chain, ts.Tensor[4099, 2053, ts.bf16], ts.Tensor[4099, 2053, ts.bf16])
    flat = flat_rows(k, types)
    assert flat is not None
    tile = flat.kernel()
    found = [o for o in walk(tile.body) if o.name in ("load", "store")]
    masked = {o.attributes["extent"]: bool(o.attributes["masked"]) for o in found}
    assert masked == {(4096,): False, (128,): True}
    ((_, count),) = tile.grid
    assert count == 4099 * 2053 // 4096 + -(-(4099 * 2053 % 4096) // 128)


def test_what_is_no_point_of_one_axis_stays_in_rows() -> None:
    t, row = ts.Tensor[33, 7, ts.f32], ts.Tensor[7, ts.f32]
    square = ts.Tensor[33, 33, ts.f32]
    even = ts.Tensor[33, 4096, ts.f32]
    for f, types in (
        (lambda x, b: x + b, (t, row)),
        (lambda x, y: x + y.T, (square, square)),
        (lambda x: x[0, 3] + x, (square,)),
        (lambda x: op.iota((33, 7), 1, ts.i64) * 3 + x.astype(ts.i64), (t,)),
        (lambda x: x * 2.0, (even,)),
        (lambda x: op.sum(x, 1), (t,)),
    ):
        k, known = kernel_of(f, *types)
        assert flat_rows(k, known) is None, k


FUNCTIONS: dict[str, Any] = {
    "narrow": lambda x, y: (x.astype(ts.bf16) * 3.0).astype(ts.f32) + y,
    "number": lambda x, y: x * y[(0,) * y.ndim] + 1.0,
    "test": lambda x, y: (x > y) | (x < -1.0),
    "function": lambda x, y: op.sin(x) + op.log1p(op.abs(y)),
    "places": lambda x, y: op.reshape(op.iota(x.size, 0, ts.f32), x.shape) * x,
    "slope": lambda x, y: ts.grad(lambda v: op.sum(op.tanh(v) * y))(x),
}


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("shape", [(300, 3), (1037,), (3, 5, 77)], ids=str)
def test_results_are_those_of_the_cpu(name: str, shape: tuple[int, ...], place: None) -> None:
    f = FUNCTIONS[name]
    x, y = (
        ts.tensor(a)
        for a in np.random.default_rng(1).standard_normal((2, *shape)).astype(np.float32)
    )
    want, got = ts.jit(f, target="cpu")(x, y), ts.jit(f)(x.to("cuda"), y.to("cuda"))
    np.testing.assert_array_equal(got.numpy(), want.numpy())


def test_a_donated_tensor_is_written_over(place: None) -> None:
    x = np.random.default_rng(2).standard_normal((41, 19)).astype(np.float32)
    t = ts.tensor(x).to("cuda")
    got = ts.jit(lambda v: v * 2.0 + 1.0, donate=("v",))(t)
    np.testing.assert_array_equal(got.numpy(), x * np.float32(2) + np.float32(1))


def test_threads_with_long_functions_have_few_elements() -> None:
    """Gelu of 32 elements took 156 registers a thread, and a normal draw 255 and memory beside them."""
    n = 1 << 20
    for f, dtype, want in (
        (op.abs, ts.f32, False), (op.gelu, ts.f32, True), (op.atan, ts.f32, True),
        (op.tanh, ts.bf16, False), (op.atan, ts.bf16, False), (op.lgamma, ts.bf16, True),
        (op.rsqrt, ts.f32, False),
    ):  # fmt: skip
        k, types = kernel_of(f, ts.Tensor[n, dtype])
        rows = Rows(k, types)
        assert computes_long(k) == want, f
        each = rows.block.rows * rows.block.columns // (32 * rows.threads.warps)
        assert each == (8 if want else 32), (f, each)
