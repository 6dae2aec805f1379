"""Fused multiply-add equals exact arithmetic rounded once, and the machine's instruction."""

import ctypes
from fractions import Fraction

import numpy as np
import pytest

from tessera.core.fma import fma
from tessera.ir.target.cpu.machine import build
from tessera.runtime.loaded import Loaded

FORMATS = {np.float32: (24, -149, 128), np.float64: (53, -1074, 1024)}


def rounded(value, kind):
    """A Fraction in a float format, nearest ties to even."""
    digits, lowest, highest = FORMATS[kind]
    if value == 0:
        return kind(0)
    size = abs(value)
    exponent = size.numerator.bit_length() - size.denominator.bit_length()
    exponent -= size < Fraction(2) ** exponent
    unit = max(exponent - digits + 1, lowest)
    steps = round(size / Fraction(2) ** unit)  # Python rounds a Fraction to even
    out = Fraction(steps) * Fraction(2) ** unit
    top = np.inf if out >= Fraction(2) ** highest else float(out)
    return kind(top if value > 0 else -top)


def exact(x, y, z):
    kind = x.dtype.type
    return np.array(
        [
            rounded(Fraction(float(a)) * Fraction(float(b)) + Fraction(float(c)), kind)
            for a, b, c in zip(x, y, z, strict=True)
        ],
        x.dtype,
    )


def machine(x, y, z):
    """llvm.fma on every element."""
    kind, suffix = ("float", "f32") if x.dtype == np.float32 else ("double", "f64")
    body = "".join(
        f"  %p{i} = getelementptr ptr, ptr %arrays, i64 {i}\n  %a{i} = load ptr, ptr %p{i}\n"
        for i in range(4)
    )
    step = "".join(
        f"  %q{i} = getelementptr {kind}, ptr %a{i}, i64 %i\n  %x{i} = load {kind}, ptr %q{i}\n"
        for i in range(3)
    )
    text = f"""declare {kind} @llvm.fma.{suffix}({kind}, {kind}, {kind})
define void @run(ptr %arrays, ptr %sizes, i64 %begin, i64 %end, ptr %scratch) {{
entry:
{body}  br label %loop
loop:
  %i = phi i64 [ %begin, %entry ], [ %next, %loop ]
{step}  %r = call {kind} @llvm.fma.{suffix}({kind} %x0, {kind} %x1, {kind} %x2)
  %q3 = getelementptr {kind}, ptr %a3, i64 %i
  store {kind} %r, ptr %q3
  %next = add i64 %i, 1
  %more = icmp slt i64 %next, %end
  br i1 %more, label %loop, label %done
done:
  ret void
}}
"""
    out = np.empty_like(x)
    arrays = (ctypes.c_void_p * 4)(*(a.ctypes.data for a in (x, y, z, out)))
    code = Loaded(build(text), "run")  # a name, since the code lives as long as the object
    code.call(ctypes.addressof(arrays), None, 0, len(x), None)
    return out


def same(a, b):
    """Equal bits, or both NaN."""
    view = f"u{a.dtype.itemsize}"
    assert ((a.view(view) == b.view(view)) | (np.isnan(a) & np.isnan(b))).all()


def patterns(kind, n, seed):
    """Random bit patterns: every exponent, infinities and NaNs among them."""
    unsigned = np.uint32 if kind is np.float32 else np.uint64
    g = np.random.default_rng(seed)
    return [g.integers(0, np.iinfo(unsigned).max, n, unsigned).view(kind) for _ in range(3)]


def cancelling(kind, n, seed):
    """z near -x y, a few units away, so that the error of the product is the result."""
    g = np.random.default_rng(seed)
    scale = 2.0 ** g.integers(-40, 40, n)
    x, y = ((g.uniform(1, 2, n) * s).astype(kind) for s in (scale, 1 / scale**2))
    z = -(x * y)
    for _ in range(2):
        z = np.where(g.random(n) < 0.4, np.nextafter(z, kind(np.inf)), z)
    return x, y, z.astype(kind)


def halfway(kind, n, seed):
    """Sums that lie on a tie, or one last bit of the product beside it."""
    digits, _, _ = FORMATS[kind]
    g = np.random.default_rng(seed)
    z = (g.integers(2 ** (digits - 1), 2**digits, n) * g.choice([-1, 1], n)).astype(kind)
    x = (0.5 + g.integers(-1, 2, n) * 2.0 ** (1 - digits)).astype(kind)
    y = (g.choice([-1, 1], n) * (1 + g.integers(-1, 2, n) * 2.0 ** (2 - digits))).astype(kind)
    return x, y, z


def subnormal(kind, n, seed):
    """Products and sums around the smallest numbers, ties among them."""
    _, lowest, _ = FORMATS[kind]
    g = np.random.default_rng(seed)
    half = lowest // 2
    a, b = (g.integers(1, 2**12, n) for _ in range(2))
    x = np.ldexp(a.astype(kind), half + g.integers(-8, 20, n)).astype(kind)
    y = np.ldexp(b.astype(kind), half - g.integers(0, 20, n)).astype(kind)
    z = np.ldexp(g.integers(-9, 10, n).astype(kind), lowest + g.integers(0, 30, n)).astype(kind)
    return x, y, z


def overflowing(kind, n, seed):
    """Products past the largest number that the sum may bring back."""
    g = np.random.default_rng(seed)
    top = np.finfo(kind).max
    x = (g.uniform(0.5, 1, n) * top).astype(kind)
    return x, g.uniform(0.9, 2.1, n).astype(kind), (-g.uniform(0.4, 1, n) * top).astype(kind)


FAMILIES = [patterns, cancelling, halfway, subnormal, overflowing]


@pytest.mark.parametrize("kind", FORMATS, ids=lambda k: k.__name__)
@pytest.mark.parametrize("family", FAMILIES, ids=lambda f: f.__name__)
def test_equals_exact_arithmetic_rounded_once(family, kind):
    x, y, z = family(kind, 3000, 11)
    finite = np.isfinite(x) & np.isfinite(y) & np.isfinite(z)
    x, y, z = x[finite], y[finite], z[finite]
    got, wanted = fma(x, y, z), exact(x, y, z)
    assert np.array_equal(got, wanted)


@pytest.mark.parametrize("kind", FORMATS, ids=lambda k: k.__name__)
@pytest.mark.parametrize("family", FAMILIES, ids=lambda f: f.__name__)
def test_equals_the_machine(family, kind):
    x, y, z = (np.ascontiguousarray(v) for v in family(kind, 100_000, 12))
    same(fma(x, y, z), machine(x, y, z))


@pytest.mark.parametrize("kind", FORMATS, ids=lambda k: k.__name__)
def test_special_values_equal_the_machine(kind):
    tiny = np.finfo(kind).smallest_subnormal
    some = np.array([0, -0.0, 1, -1, 3, np.inf, -np.inf, np.nan, tiny, -tiny, np.finfo(kind).max])
    x, y, z = (np.ascontiguousarray(v.ravel()) for v in np.meshgrid(*[some.astype(kind)] * 3))
    same(fma(x, y, z), machine(x, y, z))


def test_operands_broadcast():
    x = np.float32([[1, 2], [3, 4]])
    assert np.array_equal(fma(x, np.float32(2), np.float32([1, 0])), [[3, 4], [7, 8]])
