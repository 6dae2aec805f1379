"""Products and convolutions of f32 on a GPU, which threads multiply: other blocks and layouts, one result."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera import op
from tessera.compile import compile_graph
from tessera.core.dtype import bf16, f32, tf32
from tessera.core.types import TensorType
from tessera.ir.tile.gpu import align_factors, conv_plan, product_blocks
from tessera.ir.tile.gpu.channels_last import pack_weights
from tessera.ir.tile.gpu.product_blocks import ProductShape, product_block
from tests.support.fakes.gpu_fake import at

RUNS_ON = "numpy"
PLACES = ["fake", pytest.param("device", marks=pytest.mark.gpu)]


def launches(f: Any, *specs: Any) -> list[str]:
    """The names of the kernels of a program."""
    shapes = [tuple(map(int, s.shape)) for s in specs]
    made: Any = compile_graph(ts.trace(f, *specs), "cuda:sm_90")
    return [k.name for k in made.program_at(shapes).tiles.values()]


def drawn(*shape: int) -> Any:
    return np.random.default_rng(shape).standard_normal(shape).astype(np.float32)


def test_a_right_factor_that_lies_along_k_is_turned_first() -> None:
    """Its columns would come from one bank of shared memory, one after the other."""
    x, w = ts.Tensor[512, 256, f32], ts.Tensor[512, 256, f32]
    assert len(launches(lambda x, w: x @ w.T, x, w)) == 2
    assert len(launches(lambda x, w: x.T @ w, x, w)) == 1
    few = ts.Tensor[63, 256, f32]
    assert len(launches(lambda x, w: x @ w.T, few, w)) == 1
    units = TensorType(tf32, (512, 256))  # which two launches round
    assert len(launches(lambda x, w: x @ w.T, units, units)) == 3
    b, c = ts.Tensor[64, 196, 100, f32], ts.Tensor[64, 50, 100, f32]
    assert len(launches(lambda x, y: op.einsum("bnd,bmd->bnm", x, y), b, c)) == 2


@pytest.mark.parametrize("where", PLACES)
@pytest.mark.parametrize(("m", "k", "n"), [(64, 37, 67), (101, 1, 13), (64, 64, 1)], ids=str)
def test_turned_factors_change_no_bit(
    where: str, m: int, k: int, n: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, w, y = drawn(2, m, k), drawn(2, n, k), drawn(n, k)

    def f(x: Any, w: Any, y: Any) -> Any:
        return op.einsum("bmk,bnk->bmn", x, w) + 1.0, op.exp(x[0] @ y.T)

    found = []
    for least in (1, 1 << 40):
        monkeypatch.setattr(align_factors, "_TURNED_FROM", least)
        with at(where):
            given = [ts.tensor(a).to("cuda") for a in (x, w, y)]
            found.append([z.numpy().tobytes() for z in ts.jit(lambda *xs: f(*xs))(*given)])
    assert found[0] == found[1]


@pytest.mark.parametrize("where", PLACES)
@pytest.mark.parametrize(
    ("m", "k", "n"), [(1, 600, 70), (3, 513, 5), (17, 1031, 19), (40, 520, 1), (2, 0, 3)], ids=str
)
def test_blocks_of_few_rows_change_no_bit(
    where: str, m: int, k: int, n: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, w = drawn(m, k), drawn(k, n)
    found = []
    for longest in (product_blocks._LONG, 1 << 40):
        monkeypatch.setattr(product_blocks, "_LONG", longest)
        with at(where):
            y = ts.jit(lambda x, w: x @ w)(ts.tensor(x).to("cuda"), ts.tensor(w).to("cuda"))
            found.append(y.numpy())
    assert found[0].tobytes() == found[1].tobytes()
    np.testing.assert_allclose(found[0], x @ w, rtol=1e-4, atol=1e-4)


def test_blocks_of_f32_have_no_rows_that_are_not_there() -> None:
    """A vector times a matrix took 16 rows; 17 rows of 19 with long sums had 13 blocks on a device."""
    vector = product_block(ProductShape(1, 1, 4096, 4096, 32))
    assert (vector.m, vector.n, vector.k, vector.warps) == (1, 32, 128, 1)
    leaves = product_block(ProductShape(13, 17, 19, 8192, 32))
    assert (leaves.m, leaves.n, leaves.warps) == (8, 8, 1)
    whole = product_block(ProductShape(1, 2048, 2048, 2048, 32))
    assert (whole.m, whole.n) == (64, 64)


def test_weights_of_wide_convolutions_lie_with_what_they_make_last() -> None:
    p = {"groups": 1, "dilation": (1,), "stride": (1,), "padding": ((1, 1),)}
    for dtype, last in ((f32, 5), (bf16, 64), (tf32, 64)):
        x, w, y = (TensorType(dtype, s) for s in ((2, 64, 9), (5, 64, 3), (2, 5, 9)))
        plan = conv_plan.forward(x, w, y, p)
        (out,) = (m for m in pack_weights(plan, (1, 1, 3)).parameters if m.writable)
        assert out.type.shape[-1] == last, dtype
        assert plan.images.step == (32 if dtype is f32 else 64)


@pytest.mark.parametrize("where", PLACES)
@pytest.mark.parametrize("groups", [1, 2])
def test_wide_convolutions_are_their_definition(where: str, groups: int) -> None:
    x, w = drawn(3, 6, 11, 7), drawn(10, 6 // groups, 3, 2)

    def f(x: Any, w: Any) -> Any:
        y, pull = ts.vjp(lambda x: op.conv2d(x, w, stride=2, padding=1, groups=groups), x)
        return y, pull(y)[0]

    want = [y.numpy() for y in ts.jit(f)(ts.tensor(x), ts.tensor(w))]
    with at(where):
        got = [y.numpy() for y in ts.jit(f)(ts.tensor(x).to("cuda"), ts.tensor(w).to("cuda"))]
    for a, b in zip(got, want, strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-5)
