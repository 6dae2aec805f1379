"""Transforms, sorts and convolutions along cut axes: what they move, and that they are those of the whole program."""

from __future__ import annotations

import numpy as np
import pytest

import tessera as ts
from tessera import dist, op

SPEC = dist.ShardSpec
MESH = dist.Mesh(["x"], shape=(4,))
GRID = dist.Mesh(["x", "y"], shape=(2, 2))


@pytest.fixture(autouse=True)
def _interpreted():
    with ts.core.flags.override(target="numpy"):
        yield


def normal(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape)


def test_a_transform_over_a_cut_axis_is_an_all_to_all():
    u = normal(8, 12) + 1j * normal(8, 12, seed=1)
    t = dist.tensor(u, SPEC((0,), ("x",)), MESH)
    report = dist.explain(op.fft2, t)
    assert (report.counts, report.results) == ({"all_to_all": 1}, ("c128[8, 12@x]",))
    assert report.bytes == 8 * 12 * 16 // 4 * 3 // 4
    np.testing.assert_allclose(ts.jit(op.fft2)(t).full(), np.fft.fft2(u), rtol=1e-11, atol=1e-12)

    def smoothed(u):
        return op.real(op.ifft2(op.fft2(u) * 0.5))

    report = dist.explain(smoothed, t)
    assert (report.counts, report.results) == ({"all_to_all": 2}, ("f64[8@x, 12]",))
    np.testing.assert_allclose(ts.jit(smoothed)(t).full(), 0.5 * u.real, rtol=1e-11, atol=1e-12)


def test_a_sort_along_a_cut_axis_is_an_all_to_all():
    x = normal(8, 12)
    t = dist.tensor(x, SPEC((1,), ("x",)), MESH)
    report = dist.explain(lambda t: op.sort(t, axis=1), t)
    assert (report.counts, report.results) == ({"all_to_all": 1}, ("f64[8@x, 12]",))
    np.testing.assert_array_equal(op.sort(t, axis=1).full(), np.sort(x, 1))


CONVOLUTIONS = [
    {"padding": 1}, {"padding": "same", "dilation": 2}, {"padding": ((0, 1), (0, 1)), "stride": 2},
    pytest.param({"padding": ((2, 0), (0, 2))}, marks=pytest.mark.deep),
    pytest.param({"padding": 1, "groups": 2}, marks=pytest.mark.deep),
]  # fmt: skip


@pytest.mark.parametrize("options", CONVOLUTIONS, ids=str)
@pytest.mark.parametrize(
    ("mesh", "spec"),
    [(MESH, SPEC((2,), ("x",))), (GRID, SPEC((2, 3), ("x", "y")))],
    ids=["4", "2x2"],
)
def test_a_convolution_along_cut_space_moves_halos(mesh, spec, options):
    x, w = normal(2, 4, 16, 8), normal(6, 4 // options.get("groups", 1), 3, 3, seed=1)

    def f(x, w):
        return op.sum(op.sin(op.conv2d(x, w, **options)))

    g = ts.jit(ts.value_and_grad(f, argnums=(0, 1)))
    args = dist.tensor(x, spec, mesh), dist.replicate(w, mesh)
    value, grads = g(*args)
    wanted, others = g(ts.tensor(x), ts.tensor(w))
    np.testing.assert_allclose(float(value), float(wanted), rtol=1e-11)
    for a, b in zip(grads, others, strict=True):
        np.testing.assert_allclose(a.full(), b, rtol=1e-9, atol=1e-12)
    ahead = dist.explain(lambda x, w: op.conv2d(x, w, **options), *args)
    assert set(ahead.counts) == {"permute"}
    assert ahead.bytes <= 2 * 2 * x.size * 8 // (
        4 * 2
    )  # two rows of four a side at most, both axes
    back = dist.explain(g, *args)
    if options.get("stride", 1) == 1:
        assert set(back.counts) <= {"permute", "all_reduce"}, str(back)
