"""Fourier and cosine transforms: inverses, Parseval, adjoints, and SciPy's values."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.fft
import scipy.signal

import tessera as ts
from tessera import op
from tessera.core.dims import symbol
from tessera.core.errors import AxisError, DTypeError, OperandError, ShapeError, TesseraError
from tests.support.runners.each import over

RUNS_ON = "numpy"

DTYPES = (np.float32, np.float64, np.complex64, np.complex128)
SIZES = (1, 2, 3, 7, 8, 31)
NORMS = ("backward", "ortho", "forward")
TOLERANCE = {4: 5e-6, 8: 1e-13}


def draw(shape: tuple[int, ...], dtype: Any = np.float64, seed: int = 0) -> Any:
    rng = np.random.default_rng([seed, *shape])
    x = rng.normal(size=shape)
    return (x + 1j * rng.normal(size=shape) if np.dtype(dtype).kind == "c" else x).astype(dtype)


def close(got: Any, want: Any) -> None:
    g, w = np.asarray(got), np.asarray(want)
    assert (g.shape, g.dtype) == (w.shape, w.dtype)
    t = TOLERANCE[g.real.dtype.itemsize]
    np.testing.assert_allclose(g, w, rtol=t, atol=t * max(np.abs(w).max(initial=0), 1))


def word(x: Any) -> str:
    return x.__name__ if isinstance(x, type) else str(x)


over_dtypes = pytest.mark.parametrize("dtype", DTYPES, ids=word)
over_reals = pytest.mark.parametrize("dtype", DTYPES[:2], ids=word)
over_sizes, over_norms = over(n=SIZES), over(norm=NORMS)


# Values and laws --------------------------------------------------------------------------------


@over_dtypes
@over(n=SIZES, norm=NORMS)
@pytest.mark.parametrize("name", ["fft", "ifft"])
def test_values_are_those_of_scipy(dtype: Any, n: int, norm: str, name: str) -> None:
    x = draw((2, n, 3), dtype)
    reference = getattr(scipy.fft, name)
    close(getattr(op, name)(x, axis=1, norm=norm), reference(x, axis=1, norm=norm))
    for other in (1, n + 2, max(n - 1, 1)):
        close(getattr(op, name)(x, n=other, axis=-2), reference(x, n=other, axis=-2))


@over_reals
@over(n=SIZES, norm=NORMS)
def test_real_transforms_are_those_of_scipy(dtype: Any, n: int, norm: str) -> None:
    x, c = draw((2, n), dtype), draw((2, n), np.result_type(dtype, np.complex64))
    close(op.rfft(x, norm=norm), scipy.fft.rfft(x, norm=norm))
    close(op.ihfft(x, norm=norm), scipy.fft.ihfft(x, norm=norm))
    for size in (1, n, 2 * n - 1, 2 * n + 3):
        close(op.irfft(c, size, norm=norm), scipy.fft.irfft(c, size, norm=norm))
        close(op.hfft(c, size, norm=norm), scipy.fft.hfft(c, size, norm=norm))
        close(op.rfft(x, size, norm=norm), scipy.fft.rfft(x, size, norm=norm))
    if n > 1:
        close(op.irfft(c), scipy.fft.irfft(c))
        close(op.hfft(c), scipy.fft.hfft(c))


@over_dtypes
@over(n=SIZES, norm=NORMS)
def test_inverse_undoes_the_transform(dtype: Any, n: int, norm: str) -> None:
    x = draw((3, n), dtype)
    close(op.ifft(op.fft(x, norm=norm), norm=norm), x.astype(np.result_type(dtype, np.complex64)))
    if np.dtype(dtype).kind == "f":
        close(op.irfft(op.rfft(x, norm=norm), n, norm=norm), x)
        close(op.hfft(op.ihfft(x, norm=norm), n, norm=norm), x)
        close(op.irfftn(op.rfftn(x, norm=norm), x.shape, norm=norm), x)


@over_sizes
def test_parseval(n: int) -> None:
    x = draw((n,), np.complex128)
    y = op.fft(x, norm="ortho")
    np.testing.assert_allclose(op.l2norm(y).item(), np.linalg.norm(x), rtol=1e-13)


@over_dtypes
@over_norms
@pytest.mark.parametrize(
    ("s", "axes"),
    [(None, None), ((3, 6), None), ((3, 6), (0, -1)), (None, (1,)), ((2, 2, 5), None)],
)
def test_many_axes_are_those_of_scipy(dtype: Any, norm: str, s: Any, axes: Any) -> None:
    x = draw((2, 4, 5), dtype)
    close(op.fftn(x, s, axes, norm), scipy.fft.fftn(x, s, axes, norm))
    close(op.ifftn(x, s, axes, norm), scipy.fft.ifftn(x, s, axes, norm))
    close(op.irfftn(x, s, axes, norm), scipy.fft.irfftn(x, s, axes, norm))
    if np.dtype(dtype).kind == "f":
        close(op.rfftn(x, s, axes, norm), scipy.fft.rfftn(x, s, axes, norm))
    close(op.fft2(x), scipy.fft.fft2(x))
    close(op.ifft2(x, axes=(0, 1)), scipy.fft.ifft2(x, axes=(0, 1)))


def test_batches_of_none() -> None:
    x = np.zeros((0, 4), np.float32)
    assert [op.fft(x).shape, op.rfft(x).shape, op.irfft(x).shape] == [(0, 4), (0, 3), (0, 6)]
    assert op.dct(x).shape == (0, 4)


@pytest.mark.parametrize("dtype", [ts.bf16, ts.f16, ts.i32, ts.bool_])
def test_other_dtypes_are_transformed_in_single_precision(dtype: Any) -> None:
    x = ts.tensor([1, 0, 3, 2]).astype(dtype)
    wide = op.cast(x, ts.f32)
    for f in (op.fft, op.rfft):
        assert f(x).dtype is ts.c64
        assert np.array_equal(np.asarray(f(x)), np.asarray(f(wide)))


# Frequencies and shifts -------------------------------------------------------------------------


@over_sizes
def test_frequencies(n: int) -> None:
    close(op.fftfreq(n, 0.3, ts.f64), scipy.fft.fftfreq(n, 0.3))
    close(op.rfftfreq(n, 0.3, ts.f64), scipy.fft.rfftfreq(n, 0.3))
    assert op.fftfreq(n).dtype is ts.f32


@over_sizes
def test_shifts(n: int) -> None:
    x = draw((n, 4, 3))
    for axes in (None, 0, (0, 2)):
        close(op.fftshift(x, axes), np.fft.fftshift(x, axes))
        close(op.ifftshift(x, axes), np.fft.ifftshift(x, axes))
        close(op.ifftshift(op.fftshift(x, axes), axes), x)


# Short-time transforms --------------------------------------------------------------------------


@pytest.mark.parametrize("periodic", [True, False])
@over_sizes
def test_hann_window(n: int, periodic: bool) -> None:
    close(op.hann_window(n, periodic, ts.f64), scipy.signal.windows.hann(n, sym=not periodic))


@pytest.mark.parametrize(("size", "hop"), [(8, 2), (8, 4), (7, 3), (5, 1), (1, 1)])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.complex128], ids=word)
def test_istft_undoes_stft(size: int, hop: int, dtype: Any) -> None:
    x = draw((2, 29), dtype)
    y = op.stft(x, size, hop)
    assert y.shape == (2, size if np.dtype(dtype).kind == "c" else size // 2 + 1,
        (29 + 2 * (size // 2) - size) // hop + 1)  # fmt: skip
    back = op.istft(y, size, hop, length=29, onesided=np.dtype(dtype).kind == "f")
    close(back, x)


def test_stft_is_the_transform_of_each_windowed_frame() -> None:
    x, w = draw((20,)), draw((6,), seed=1)
    y = np.asarray(op.stft(x, w, hop=3, center=False))
    for t in range(y.shape[-1]):
        np.testing.assert_allclose(y[:, t], np.fft.rfft(x[3 * t : 3 * t + 6] * w), atol=1e-13)
    centred = np.asarray(op.stft(x, w, hop=3))
    np.testing.assert_allclose(centred, op.stft(np.pad(x, 3), w, hop=3, center=False), atol=1e-13)


def test_stft_is_that_of_scipy() -> None:
    x = draw((64,))
    w = scipy.signal.windows.hann(16, sym=False)
    ours = scipy.signal.ShortTimeFFT(w, 4, 1.0)
    want = ours.stft(x, p0=0, p1=17)
    close(np.abs(np.asarray(op.stft(x, 16, 4))), np.abs(want))


def test_overlap_add_is_the_transpose_of_frame() -> None:
    x, y = draw((2, 11)), draw((2, 4, 5), seed=1)
    left = np.sum(np.asarray(op.frame(x, 5, 2)) * y)
    right = np.sum(x * np.asarray(op.overlap_add(y, 2)))
    np.testing.assert_allclose(left, right, rtol=1e-13)


# Cosine transforms ------------------------------------------------------------------------------


@over_dtypes
@over(n=SIZES[1:], norm=NORMS)
@pytest.mark.parametrize("type", [1, 2, 3, 4])
def test_cosine_transforms_are_those_of_scipy(dtype: Any, n: int, norm: str, type: int) -> None:
    x = draw((2, n, 3), dtype)
    close(op.dct(x, type, axis=1, norm=norm), scipy.fft.dct(x, type, axis=1, norm=norm))
    close(op.idct(x, type, axis=1, norm=norm), scipy.fft.idct(x, type, axis=1, norm=norm))
    close(op.dct(x, type, n + 1, 1), scipy.fft.dct(x, type, n + 1, 1))
    close(op.idct(op.dct(x, type, norm=norm), type, norm=norm), x)


# jit, sizes and derivatives ---------------------------------------------------------------------

LINEAR: dict[str, Callable[[Any], Any]] = {
    "fft": lambda x: op.fft(x, norm="forward"),
    "ifft": lambda x: op.ifft(x, n=9),
    "fftn": lambda x: op.fftn(x, (3, 5)),
    "rfft": op.rfft,
    "rfft_short": lambda x: op.rfft(x, 4, norm="ortho"),
    "irfft": lambda x: op.irfft(op.fft(x), 11),
    "irfft_even": lambda x: op.irfft(op.fft(x), 12, norm="forward"),
    "irfftn": lambda x: op.irfftn(op.fft(x)),
    "hfft": lambda x: op.hfft(op.fft(x), norm="ortho"),
    "ihfft": op.ihfft,
    "stft": lambda x: op.stft(x, 4, 2),
    "istft": lambda x: op.istft(op.rfft(x), 12, 3),
    "shift": op.fftshift,
    **{f"dct{t}_{m}": lambda x, t=t, m=m: op.dct(x, t, norm=m) for t in (1, 2, 3, 4) for m in NORMS},
}  # fmt: skip


@pytest.mark.parametrize("name", LINEAR)
def test_a_transform_is_its_own_derivative(name: str) -> None:
    f, x, t = LINEAR[name], ts.tensor(draw((7, 7))), ts.tensor(draw((7, 7), seed=1))
    y, tangent = ts.jvp(f, (x,), (t,))
    close(y, f(x))
    close(tangent, f(t))


@pytest.mark.parametrize("name", LINEAR)
def test_vjp_is_the_adjoint(name: str) -> None:
    """Re sum(ct * f(x)) = Re sum(f'(ct) * x), without conjugation."""
    f, x = LINEAR[name], ts.tensor(draw((7, 7)))
    y, pull_back = ts.vjp(f, x)
    ct = draw(y.shape, np.asarray(y).dtype, seed=2)
    (back,) = pull_back(ts.tensor(ct))
    assert back.type == x.type
    left = np.sum(ct * np.asarray(y)).real
    np.testing.assert_allclose(np.sum(np.asarray(back) * np.asarray(x)), left, rtol=1e-11)


@pytest.mark.parametrize("name", LINEAR)
def test_jit_is_eager(name: str) -> None:
    f, x = LINEAR[name], ts.tensor(draw((7, 7), np.float32))
    assert np.array_equal(np.asarray(ts.jit(f)(x)), np.asarray(f(x)))


def test_one_compilation_serves_every_size() -> None:
    @ts.jit
    def f(x: ts.Tensor["B", "S", ts.f32]) -> Any:
        half = op.rfft(x)
        return half, op.irfft(half, x.shape[-1]), op.fftshift(x), op.dct(x), op.stft(x, 4)

    for n in (4, 7, 16):
        x = draw((2, n), np.float32)
        half, back, shifted, cosines, frames = f(ts.tensor(x))
        close(half, scipy.fft.rfft(x))
        close(back, x)
        close(shifted, np.fft.fftshift(x))
        close(cosines, scipy.fft.dct(x))
        close(frames, op.stft(x, 4))
    assert f.compiled == 1
    (half, *_) = f.lower(ts.tensor(x)).graph.outputs
    assert half.shape == (symbol("B"), symbol("S") // 2 + 1)


# Errors -----------------------------------------------------------------------------------------

X, C = np.zeros((2, 4)), np.zeros((2, 4), complex)
WRONG: list[tuple[Callable[[], Any], type[TesseraError], str]] = [
    (lambda: op.rfft(16), OperandError, "rfft: got the integer 16, expected a tensor to transform"),
    (lambda: op.fft(1.5), AxisError, "fft: axis -1 is out of range for rank 0; a scalar has no axes"),
    (lambda: op.fft(np.zeros((2, 0))), ShapeError,
     "fft: axis 1 of c128[2,0] has 0 elements to transform, expected at least 1"),
    (lambda: op.fft(X, n=0), ShapeError,
     "fft: axis 1 of c128[2,4] has 0 elements to transform, expected at least 1"),
    (lambda: op.fft(X, axis=2), AxisError, "fft: axis 2 is out of range for rank 2; use -2 to 1"),
    (lambda: op.fft(X, norm="unit"), OperandError,
     "fft: norm is 'unit', expected 'backward', 'ortho' or 'forward'"),
    (lambda: op.rfft(C), DTypeError,
     "rfft: operand 0 is c128[2,4], expected a real dtype; use op.fft"),
    (lambda: op.irfft(np.zeros(1)), ShapeError,
     "irfft: c128[1] gives 0 elements, expected at least 1; pass n"),
    (lambda: op.fft2(X[0]), AxisError, "fft2: axis -2 is out of range for rank 1; use -1 to 0"),
    (lambda: op.ifft2(X, norm="unit"), OperandError,
     "ifft2: norm is 'unit', expected 'backward', 'ortho' or 'forward'"),
    (lambda: op.rfftn(X, norm="unit"), OperandError,
     "rfftn: norm is 'unit', expected 'backward', 'ortho' or 'forward'"),
    (lambda: op.irfftn(X, norm="unit"), OperandError,
     "irfftn: norm is 'unit', expected 'backward', 'ortho' or 'forward'"),
    (lambda: op.fftn(X, s=(2,), axes=(0, 1)), ShapeError, "fftn: s has 1 sizes for 2 axes"),
    (lambda: op.fftn(X, axes=(0, -2)), AxisError, "fftn: axis (0, -2) names an axis twice"),
    (lambda: op.rfftn(X, axes=()), AxisError,
     "rfftn: f64[2,4] is transformed over no axes, expected at least 1"),
    (lambda: op.fftfreq(0), OperandError, "fftfreq: n is 0, expected a positive integer"),
    (lambda: op.hann_window(0), OperandError, "hann_window: n is 0, expected a positive integer"),
    (lambda: op.dct(X, type=5), OperandError, "dct: type is 5, expected 1, 2, 3 or 4"),
    (lambda: op.dct(np.zeros(1), type=1), ShapeError,
     "dct: axis 0 of f64[1] has 1 element, type 1 needs at least 2"),
    (lambda: op.stft(X, 16, center=False), ShapeError,
     "frame: f64[2,4] has no piece of 16 elements along its last axis"),
    (lambda: op.stft(X, X), ShapeError, "stft: the window is f64[2,4], expected one axis or a size"),
    (lambda: op.stft(X, 4, hop=0), OperandError, "stft: hop is 0, expected a positive integer"),
    (lambda: op.istft(X, 8), ShapeError,
     "istft: f64[2,4] has not the 5 frequencies of a window of 8"),
    (lambda: op.overlap_add(np.zeros(3), 1), ShapeError,
     "overlap_add: f64[3] has no frames; its last axes are frames, elements"),
    (lambda: op.frame(X, 0, 1), OperandError, "frame: size is 0, expected a positive integer"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "kind", "text"), WRONG, ids=[w[2][:40] for w in WRONG])
def test_errors(call: Callable[[], Any], kind: type[TesseraError], text: str) -> None:
    with pytest.raises(kind, match=f"^{re.escape(text)}\n  at {re.escape(__file__)}"):
        call()
