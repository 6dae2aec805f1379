"""A program of named sizes has the bits of eager code, also where no kernel serves all sizes."""

import numpy as np
import pytest

import tessera as ts
from tessera import Tensor, c64, f32, f64, op
from tests.tolerance import assert_same_bits

X = np.random.default_rng(3).standard_normal((3, 6))


@pytest.mark.parametrize(
    "f",
    [op.rfft, op.fft, lambda x: op.hfft(op.cast(x, c64)), op.sort, op.cumsum],
    ids=["rfft", "fft", "hfft", "sort", "cumsum"],
)
def test_transforms_and_scans_of_a_named_size_have_the_bits_of_eager_code(f):
    def g(x: Tensor["B", "N", f32]):
        return f(x) if f is not op.cumsum else op.cumsum(x, 1)

    named = ts.jit(g)
    for shape in ((3, 6), (2, 4), (1, 5)):
        x = ts.tensor(np.resize(X, shape), dtype=f32)
        assert_same_bits(named(x), g(x))
    assert named.compiled == 1


def test_conv_of_named_windows_has_the_bits_of_eager_code():
    @ts.jit
    def named(x: Tensor[1, 2, "N", f64], w: Tensor[1, 2, "K", f64]):
        return op.conv(x, w)

    for n, k in ((9, 3), (11, 4)):
        x, w = (ts.tensor(np.resize(X, (1, 2, m))) for m in (n, k))
        assert_same_bits(named(x, w), op.conv(x, w))


@pytest.mark.parametrize("f", [op.layernorm_safe, op.rmsnorm], ids=["layernorm", "rmsnorm"])
def test_rows_of_a_named_length_are_folded_leaf_by_leaf(f):
    """Of several leaves at once, after a pass of another width."""

    @ts.jit
    def named(x: Tensor["B", "N", f64], w: Tensor["N", f64]):
        return f(x, w)

    for n in (1, 511, 2600):
        x, w = (ts.tensor(np.resize(X, s)) for s in ((2, n), (n,)))
        one = ts.jit(lambda x, w: f(x, w))
        assert_same_bits(named(x, w), one(x, w))
