"""Index arithmetic: intervals hold every value, and what is simplified has the same values."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tessera as ts
from tessera import op
from tessera.core.dims import larger, smaller, substitute, symbol
from tessera.core.intervals import extremes, inside
from tessera.ir.schedule.index import narrow, rejoined

AXES = {"_i": 8, "_j": 3, "_k": symbol("N")}


@st.composite
def positions(draw, depth=3):
    """A position built at random from axes, a size, numbers and every operation."""
    if depth == 0 or draw(st.integers(0, 4)) == 0:
        return draw(st.sampled_from([*map(symbol, AXES), symbol("N")]) | st.integers(-9, 9))
    f = draw(st.sampled_from(["+", "-", "*", "//", "%", "max", "min"]))
    a, b = draw(positions(depth=depth - 1)), draw(positions(depth=depth - 1))
    if f in ("//", "%"):
        b = draw(st.integers(1, 9) | st.just(symbol("N")) | st.just(symbol("_i") + 1))
        return a // b if f == "//" else a % b
    return {"+": a + b, "-": a - b, "*": a * b, "max": larger(a, b), "min": smaller(a, b)}[f]


def values(x, n):
    """All values of a position when N is n."""
    ranges = [range(int(substitute(s, {"N": n}))) for s in AXES.values()]
    for point in product(*ranges):
        yield int(substitute(x, {"N": n, **dict(zip(AXES, point, strict=True))}))


@given(positions(), st.integers(1, 5))
def test_an_interval_holds_every_value(x, n):
    low, high = (None if e is None else int(substitute(e, {"N": n})) for e in extremes(x, AXES))
    found = list(values(x, n))
    assert low is None or low <= min(found)
    assert high is None or max(found) <= high


@settings(max_examples=100)
@given(positions(), st.integers(1, 5))
def test_a_simplified_position_has_the_same_values(x, n):
    wanted = list(values(x, n))
    assert list(values(narrow(x, AXES), n)) == wanted
    assert list(values(rejoined(x), n)) == wanted


@given(positions(), st.integers(1, 12), st.integers(1, 5))
def test_what_is_inside_is_inside(x, limit, n):
    if inside(x, limit, AXES):
        assert all(0 <= v < limit for v in values(x, n))


def test_a_remainder_has_its_own_range() -> None:
    """Not that of its ends: 7*((7*i + 7) % 8) is 49 at both ends of i and 0 and 49 within."""
    i = symbol("_i")
    assert extremes((7 * i + 7) % 8, {"_i": 8}) == (0, 7)
    assert extremes((i - 4) // 3, {"_i": 8}) == (-2, 1)
    assert narrow((7 - i) % 8, {"_i": 8}) == 7 - i
    assert narrow((i - 1) // 8, {"_i": 8}) == (i - 1) // 8


@pytest.mark.parametrize("shape", [(8,), (1, 8), (8, 1), (2, 4), (2, 2, 2)])
def test_a_flip_of_a_flip_reads_inside(shape: tuple[int, ...]) -> None:
    x = np.arange(8, dtype=np.float32).reshape(shape)
    f = ts.jit(lambda v: op.flip(op.reshape(op.flip(op.reshape(v, (8,))), (8, 1)), 0) * 2)
    assert f(ts.tensor(x)).numpy().ravel().tolist() == (x.ravel() * 2).tolist()


@pytest.mark.parametrize("shift", [1, 3, -2, 7])
@pytest.mark.parametrize("shape", [(1, 12), (12, 1), (3, 4), (2, 6)])
def test_rolls_and_flips_between_reshapes_read_inside(shape: tuple[int, ...], shift: int) -> None:
    x = np.arange(12, dtype=np.float32).reshape(shape)

    def f(v, lib, flip, roll):
        w = roll(lib.reshape(flip(lib.reshape(v, (12,))), (4, 3)), shift, 0)
        return flip(roll(lib.reshape(w, (2, 6)), -shift, 1)) * 2

    got = ts.jit(lambda v: f(v, op, op.flip, op.roll))(ts.tensor(x)).numpy()
    assert got.tolist() == f(x, np, np.flip, np.roll).tolist()


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("rank", [1, 2])
def test_a_transposed_convolution_with_more_padding_than_stride(stride: int, rank: int) -> None:
    """`output_padding` of at least the stride: gradients were off by 0.3 to 4."""
    draw = np.random.default_rng(stride)
    for size, padding, extra in product((4, 5), (0, 1), (stride, 3)):
        x = ts.tensor(draw.standard_normal((2, 2, *(size,) * rank)))
        w = ts.tensor(draw.standard_normal((2, 2, *(2,) * rank)))

        def loss(x, w, padding=padding, extra=extra):
            return op.sum(op.conv_transpose(x, w, None, stride, padding, extra, dilation=4))

        gradient = ts.grad(loss, argnums=(0, 1))
        wanted = ts.jit(gradient, target="numpy")(x, w)
        for a, b in zip(ts.jit(gradient)(x, w), wanted, strict=True):
            np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-9, atol=1e-9)
