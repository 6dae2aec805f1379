"""Quotients by one number are those of a division, to the last bit."""

import numpy as np
import pytest

from tessera.core.dims import symbol
from tessera.core.dtype import FORMATS
from tessera.core.types import TensorType
from tessera.ir.target.cpu.emit import emit
from tessera.ir.target.cpu.program import program
from tessera.ir.tile.ir import Builder
from tessera.runtime.kernel import CompiledKernel

WIDTH = 200


def quotients(dtype):
    """y[r] = x[r] / s[r]."""
    rows = symbol("M")
    b = Builder("quotients")
    x = b.parameter("x", TensorType(dtype, (rows, WIDTH)))
    s = b.parameter("s", TensorType(dtype, (rows, 1)))
    y = b.parameter("y", TensorType(dtype, (rows, WIDTH)), writable=True)
    row = b.program(rows)
    over = b.load(s, (row, 0), (1, 1))
    b.store(y, b.apply("div", b.load(x, (row, 0), (1, WIDTH)), over), (row, 0), (1, WIDTH))
    return b.finish()


def spread(rng, shape, low, high, dtype):
    """Numbers of all mantissas between two powers of two, of both signs."""
    sizes = np.ldexp(rng.uniform(1, 2, shape), rng.integers(low, high, shape))
    return (sizes * rng.choice([-1, 1], shape)).astype(dtype)


@pytest.mark.parametrize(
    ("name", "inner", "normal", "all_of"), [("f32", 90, 126, 149), ("f64", 890, 1022, 1074)]
)
def test_bits_are_those_of_a_division(name, inner, normal, all_of):
    dtype = FORMATS[name]
    kernel = quotients(dtype)
    assert emit(kernel).count("fdiv") == 1 + -(-WIDTH // 16)  # the reciprocal, and the rare way
    code, rng = CompiledKernel(program(kernel)), np.random.default_rng(0)
    info = np.finfo(dtype.np)
    special = [
        0,
        -0.0,
        np.inf,
        -np.inf,
        np.nan,
        info.tiny,
        info.smallest_subnormal,
        info.max,
        1,
        -1,
    ]
    edges = [2.0**-24, 2.0**24, np.nextafter(dtype.np.type(2), 0), 3, info.tiny, *special]
    spans = (-3, 3), (-inner, inner), (-normal, -inner), (-all_of, -inner), (-all_of, all_of // 2)
    for numerators in spans:
        x = spread(rng, (3000, WIDTH), *numerators, dtype.np)
        s = spread(rng, (3000, 1), -24, 24, dtype.np)
        x[::3, : len(special)] = special
        x[1::3] = abs(x[1::3])
        x[2::30, ::7] = 0
        # Alone in a row that is quick otherwise: all in one row are divided for the sake of any of them.
        x[5::30, 0] = np.resize(special, len(x[5::30]))
        s[: len(edges), 0] = edges
        y = np.empty_like(x)
        code.run([x, s, y])
        with np.errstate(all="ignore"):
            want = x / s
        nan = np.isnan(want)
        assert (np.isnan(y) == nan).all()
        assert y[~nan].tobytes() == want[~nan].tobytes()


@pytest.mark.parametrize("shape", [(), (1,)])
def test_a_single_number_is_divided(shape):
    b = Builder("single")
    x, s = (b.parameter(n, TensorType(FORMATS["f32"], shape)) for n in "xs")
    y = b.parameter("y", TensorType(FORMATS["f32"], shape), writable=True)
    at = (0,) * len(shape)
    b.store(y, b.apply("div", b.load(x, at, shape), b.load(s, at, shape)), at, shape)
    xs = [np.full(shape, v, np.float32) for v in (1, 3, 0)]
    CompiledKernel(program(b.finish())).run(xs)
    assert xs[2] == np.float32(1) / np.float32(3)
