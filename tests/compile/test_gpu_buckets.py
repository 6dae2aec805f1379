"""A program that is called with many sizes has kernels for buckets of them: few builds, the same bits."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera import bf16, f32, op
from tessera.compile import compile_graph
from tessera.compile.gpu import compilation
from tests.support.fakes.gpu_fake import BUILT, fake_gpu

RUNS_ON = "numpy"
WIDE = 8


@pytest.fixture
def cuda() -> Iterator[None]:
    BUILT.clear()
    with fake_gpu():
        yield


def layer(x: Any, w: Any, b: Any) -> Any:
    h = op.gelu(op.layernorm(x) @ w + b)
    return op.softmax(h) + x, op.sum(h, 1)


PLAIN = ts.jit(layer, target="numpy")


def given(n: int) -> list[Any]:
    rng = np.random.default_rng(n)
    return [rng.normal(size=s).astype(np.float32) for s in ((n, WIDE), (WIDE, WIDE), (WIDE,))]


def build_count(lengths: Any) -> int:
    """The kernels that Triton is asked for in a loop over lengths; every result is compared."""

    @ts.jit
    def f(x: ts.Tensor["N", WIDE, f32], w: ts.Tensor[WIDE, WIDE, f32], b: ts.Tensor[WIDE, f32]):  # type: ignore[valid-type]
        return layer(x, w, b)

    BUILT.clear()
    for n in lengths:
        xs = given(n)
        got = f(*(ts.tensor(x).to("cuda") for x in xs))
        want = PLAIN(*map(ts.tensor, xs))
        for a, b in zip(got, want, strict=True):
            np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=2e-5, atol=2e-5)
    return len(BUILT)


def test_a_loop_over_lengths_builds_few_kernels(cuda: None) -> None:
    one = build_count([7])
    assert build_count(range(40, 48)) <= (compilation._FEW_SIZES + 1) * one


@pytest.mark.deep
def test_a_loop_over_64_lengths_builds_few_kernels(cuda: None) -> None:
    one = build_count([7])
    # Lengths up to 64 lie in 7 buckets.
    assert build_count(range(1, 65)) <= (compilation._FEW_SIZES + 7) * one


def test_kernels_of_buckets_have_the_bits_of_those_for_one_size(cuda: None) -> None:
    def f(x: Any, w: Any) -> Any:
        return op.softmax(x @ w)

    sized = ts.Tensor["N", WIDE, f32]
    g = ts.trace(f, sized, ts.Tensor[WIDE, WIDE, f32])
    many, one = compile_graph(g, "cuda"), compile_graph(g, "cuda")
    for n in (1, 2, 3, 4, 5, 19, 32):
        x, w, _ = given(n)
        one._lowered.clear()
        one._prepared.clear()
        (a,), (b,) = many.run([x, w]), one.run([x, w])
        assert np.array_equal(a.numpy(), b.numpy())


def test_the_copy_engine_fetches_rows_that_are_counted_at_the_call() -> None:
    g = ts.trace(lambda x, w: x @ w, ts.Tensor["N", 512, bf16], ts.Tensor[512, 512, bf16])
    e = compile_graph(g, "cuda:sm_90")
    for n in (1000, 1100, 1200, 1300, 1400, 1500):
        source = str(e.target_at([(n, 512), (512, 512)]))
    assert "make_tensor_descriptor(x0, [N, 512], [512, 1]" in source


def test_what_folds_a_symbolic_axis_has_code_for_each_size(cuda: None) -> None:
    f = ts.jit(lambda x: op.sum(x, 0))
    BUILT.clear()
    for n in range(2, 9):
        x = np.ones((n, 4), np.float32)
        assert np.array_equal(f(ts.tensor(x).to("cuda")).numpy(), x.sum(0))
    assert len(BUILT) == 7
