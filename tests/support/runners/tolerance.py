"""How far apart two computations of one thing may lie, per dtype: the only table of tolerances."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from tessera.core.dtype import FORMATS, as_dtype


class Tolerance(NamedTuple):
    """Relative and absolute distance."""

    rtol: float
    atol: float


# About 50 units in the last place, and near zero the same share of a value of size 1.
TOLERANCE = {
    "f64": Tolerance(1e-13, 1e-14),
    "f32": Tolerance(6e-6, 2e-6),
    "bf16": Tolerance(8e-3, 8e-3),
    "f16": Tolerance(1e-3, 1e-3),
    "f8e4m3": Tolerance(0.0625, 0.0625),
    "f8e5m2": Tolerance(0.125, 0.125),
    "c64": Tolerance(6e-6, 2e-6),
    "c128": Tolerance(1e-13, 1e-14),
}
EXACT = Tolerance(0.0, 0.0)
for _d in FORMATS.values():
    TOLERANCE.setdefault(_d.name, EXACT)  # integers and bools

# A central difference with step h errs by h**2 and by rounding over h; h = 1e-6 balances the two.
DIFFERENCE_STEP = 1e-6
DIFFERENCE = Tolerance(2e-6, 2e-6)


def assert_close(got: Any, want: Any, tolerance: Tolerance | None = None, times: float = 1) -> None:
    """Compare within a tolerance (of got's dtype unless given), NaN equal to NaN."""
    g, w = np.asarray(got), np.asarray(want)
    t = TOLERANCE[as_dtype(g.dtype).name] if tolerance is None else tolerance
    if g.dtype.kind not in "biufc":
        g, w = g.astype(np.float64), w.astype(np.float64)
    assert g.shape == w.shape, (g.shape, w.shape)
    np.testing.assert_allclose(g, w, rtol=times * t.rtol, atol=times * t.atol, equal_nan=True)


def assert_same_bits(got: Any, want: Any) -> None:
    """The same dtype, shape and bits; any NaN is as good as another."""
    g, w = np.asarray(got), np.asarray(want)
    assert (g.dtype, g.shape) == (w.dtype, w.shape)
    if g.tobytes() == w.tobytes():
        return
    assert g.dtype.kind not in "biu", f"{g} is not {w}"
    for a, b in ((g.real, w.real), (g.imag, w.imag)) if g.dtype.kind == "c" else ((g, w),):
        a, b = a.astype(np.float64), b.astype(np.float64)
        np.testing.assert_array_equal(a, b)
        signs = np.isnan(a) | (np.signbit(a) == np.signbit(b))
        assert signs.all(), f"zeros of different sign: {g} is not {w}"
