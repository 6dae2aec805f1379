"""A result lies in the place of an operand only where no instance loads what another has stored."""

from __future__ import annotations

import numpy as np
import pytest

import tessera as ts
from tessera import op
from tessera.core.dims import smaller, symbol
from tessera.core.dtype import f32
from tessera.core.errors import VerifyError
from tessera.core.types import TensorType
from tessera.ir.schedule.lower import lower
from tessera.ir.tile.clashes import verify_shares
from tessera.ir.tile.ir import Builder, Kernel
from tessera.ir.tile.sharing import shareable
from tests.support.cases.random_programs import program
from tests.support.runners.levels import kernels, prepared


@pytest.mark.parametrize("rows", [15, 16, 17, 20, 31, 33, 47, 100])
@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 7, 8, 9])
def test_transforms_of_short_rows_of_an_intermediate(rows: int, n: int) -> None:
    """Rows of 2 to 8 numbers, more than 16 and no multiple of 16: 15 of 17 rows were wrong."""
    draw = np.random.default_rng(rows * n)
    x = draw.standard_normal((rows, n)) + 1j * draw.standard_normal((rows, n))
    for name in ("fft", "ifft"):
        got = ts.jit(lambda v, name=name: getattr(op, name)(v * 2))(ts.tensor(x)).numpy()
        np.testing.assert_allclose(got, getattr(np.fft, name)(x * 2), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("shape", [(17, 4), (3, 19, 8), (33, 5)])
def test_transforms_of_several_axes_and_of_real_numbers(shape: tuple[int, ...]) -> None:
    x = np.random.default_rng(0).standard_normal(shape)
    t = ts.tensor(x)
    close = {"rtol": 1e-12, "atol": 1e-12}
    np.testing.assert_allclose(op.fft2(t).numpy(), np.fft.fft2(x), **close)
    np.testing.assert_allclose(op.fftn(t).numpy(), np.fft.fftn(x), **close)
    np.testing.assert_allclose(op.ifft2(t).numpy(), np.fft.ifft2(x), **close)
    got = ts.jit(lambda v: op.irfft(op.rfft(v * 2) * 3, n=shape[-1]))(t).numpy()
    np.testing.assert_allclose(got, x * 6, **close)
    grad = ts.jit(ts.grad(lambda v: op.sum(op.abs(op.fft(v * 2)) ** 2)))(t).numpy()
    np.testing.assert_allclose(grad, 8 * shape[-1] * x, rtol=1e-10, atol=1e-10)


def twice(at, count: int, n: int, extent: int = 16) -> Kernel:
    """A kernel that stores where it has just loaded."""
    b = Builder("twice")
    x = b.parameter("x", TensorType(f32, (n,)))
    y = b.parameter("y", TensorType(f32, (n,)), writable=True)
    p = b.program(count)
    tile = b.load(x, (at(p),), (extent,))
    b.store(y, b.apply("add", tile, tile), (at(p),), (extent,))
    return b.finish()


def test_a_block_that_is_moved_back_shares_nothing() -> None:
    apart, back = twice(lambda p: 16 * p, 6, 96), twice(lambda p: smaller(16 * p, 84), 7, 100)
    assert shareable(apart) == ((0, 1),)
    assert shareable(back) == ()
    verify_shares(apart, ((0, 1),))
    with pytest.raises(VerifyError, match=r"twice: y in the place of x: the load at .* may follow"):
        verify_shares(back, ((0, 1),))


def test_what_a_loop_loads_again_clashes() -> None:
    """Boxes that overlap from turn to turn, and a last one over the one before."""

    def walk(step: int, tail: int | None) -> Kernel:
        b = Builder("walk")
        x = b.parameter("x", TensorType(f32, (100,)))
        y = b.parameter("y", TensorType(f32, (100,)), writable=True)
        with b.loop(0, 80, step) as loop:
            tile = b.load(x, (loop.variable,), (16,))
            b.store(y, tile, (loop.variable,), (16,))
        if tail is not None:
            b.store(y, b.load(x, (tail,), (16,)), (tail,), (16,))
        return b.finish()

    verify_shares(walk(16, None), ((0, 1),))
    verify_shares(walk(16, 80), ((0, 1),))
    for bad in (walk(8, None), walk(16, 79)):
        with pytest.raises(VerifyError, match="may follow"):
            verify_shares(bad, ((0, 1),))


def test_rows_of_other_instances_clash() -> None:
    b = Builder("turned")
    x = b.parameter("x", TensorType(f32, (8, 16)))
    y = b.parameter("y", TensorType(f32, (8, 16)), writable=True)
    p = b.program(8)
    b.store(y, b.load(x, (7 - p, 0), (1, 16)), (p, 0), (1, 16))
    with pytest.raises(VerifyError, match="may follow"):
        verify_shares(b.finish(), ((0, 1),))
    assert symbol("_p0") == p


def test_random_kernels_share_what_is_proved() -> None:
    shared = 0
    for seed in range(80):
        for _, kernel in kernels(lower(prepared(program(seed).graph))):
            found = shareable(kernel)
            verify_shares(kernel, found)
            shared += len(found)
    assert shared > 20
