"""Discrete Fourier transforms: which operations on which elements, a function of the length alone.

A length of factors 2, 3, 5 and 7 is a list of passes (Stockham: no reordering), each a small
transform of r elements at a time, then a product with roots of unity.  Any other length is a
convolution with a chirp (Bluestein), made of two transforms of such a length.  A real transform of
even length is a complex one of half the length and a last step that takes it apart.  The inverse is
the transform with real and imaginary parts exchanged.  There are only additions, subtractions and
products, each rounded once and none fused, so that every target has the same bits.

The functions on pairs say what is computed; NumPy runs them on arrays here, kernels on tiles.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache
from math import sqrt
from typing import Any

import numpy as np

from tessera.core.pairs import Pair, joined, parted
from tessera.core.roots import roots

Array = np.ndarray[Any, np.dtype[Any]]

_ODD = (7, 5, 3)
# Passes over powers of two come first: then all later ones move runs of 8 elements and more.
_POWERS = {0: (), 1: (2,), 2: (4,)}
_CHUNK = 16  # a convolution of a chirp has a length that this divides, for the same reason
_HALF = sqrt(0.5)
_KEPT = 64  # tables that are remembered

# Small transforms -------------------------------------------------------------------------------


def small(x: Sequence[Pair]) -> list[Pair]:
    """The transform of 2, 3, 4, 5, 7 or 8 elements."""
    match len(x):
        case 2:
            return [x[0].plus(x[1]), x[0].minus(x[1])]
        case 4:
            return _four(x)
        case 8:
            return _eight(x)
        case _:
            return _odd(x)


def _four(x: Sequence[Pair]) -> list[Pair]:
    a, b = x[0].plus(x[2]), x[0].minus(x[2])
    c, d = x[1].plus(x[3]), x[1].minus(x[3])
    return [a.plus(c), b.plus_turned(d), a.minus(c), b.minus_turned(d)]


def _eight(x: Sequence[Pair]) -> list[Pair]:
    even, odd = _four(x[::2]), _four(x[1::2])
    half = _HALF
    b, d = odd[1], odd[3]
    first = Pair((b.re + b.im) * half, (b.im - b.re) * half)
    third = Pair((d.im - d.re) * half, (d.re + d.im) * half)  # its imaginary part is negative
    return [
        even[0].plus(odd[0]),
        even[1].plus(first),
        even[2].plus_turned(odd[2]),
        Pair(even[3].re + third.re, even[3].im - third.im),
        even[0].minus(odd[0]),
        even[1].minus(first),
        even[2].minus_turned(odd[2]),
        Pair(even[3].re - third.re, even[3].im + third.im),
    ]


def _odd(x: Sequence[Pair]) -> list[Pair]:
    """Elements j and n - j share the cosine of their root and differ in the sign of its sine."""
    n = len(x)
    pairs = range(1, n // 2 + 1)
    sums = [x[j].plus(x[n - j]) for j in pairs]
    differences = [x[j].minus(x[n - j]) for j in pairs]
    total = x[0]
    for s in sums:
        total = total.plus(s)
    out, (cosine, sine) = [total] * n, _circle(n)
    for k in pairs:
        even, odd = x[0], differences[0].scaled(sine[k])
        for j, s in zip(pairs, sums, strict=True):
            even = even.plus(s.scaled(cosine[j * k % n]))
        for j, d in zip(pairs[1:], differences[1:], strict=True):
            odd = odd.plus(d.scaled(sine[j * k % n]))
        out[k], out[n - k] = even.plus_turned(odd), even.minus_turned(odd)
    return out


@cache
def _circle(n: int) -> tuple[list[float], list[float]]:
    """cos and sin of 2 pi k / n for k < n."""
    re, im = roots(np.arange(n), n)
    return re.tolist(), (-im).tolist()


def split(a: Pair, b: Pair, root: Pair, factor: float | None) -> tuple[Pair, Pair]:
    """Elements k and m - k between a complex transform and the real one of twice the length.

    a and b are the elements before; a factor of 1/2 leads to the real transform, none leads back
    from it to twice the complex one, with the root conjugate.
    """
    even = Pair(a.re + b.re, a.im - b.im)
    odd = Pair(a.re - b.re, a.im + b.im).times(root)
    if factor is not None:
        even = even.scaled(factor)
    return even.plus(odd), Pair(even.re - odd.re, odd.im - even.im)


# The plan of a length ---------------------------------------------------------------------------


@cache
def factors(n: int) -> tuple[int, ...] | None:
    """The radices of the passes of a length, or None if it has a prime factor above 7."""
    twos = (n & -n).bit_length() - 1
    rest = n >> twos
    if twos % 3 == 1 and twos > 1:
        found = (8,) * (twos // 3 - 1) + (4, 4)
    else:
        found = (8,) * (twos // 3) + _POWERS[twos % 3]
    for r in _ODD:
        while rest % r == 0:
            found, rest = (*found, r), rest // r
    return found if rest == 1 else None


def _next_length(n: int) -> int:
    """The least multiple of 16 that is at least n and has passes."""
    count = -(-n // _CHUNK)
    while factors(count) is None:
        count += 1
    return count * _CHUNK


@dataclass(frozen=True)
class FourierPass:
    """x[q + stride (p + count j)] -> y[q + stride (radix p + k)] for all p < count, q < stride.

    The numbers j and k run over the radix; element k is then multiplied by the root number
    p (radix - 1) + k - 1 from `roots` on in the table, unless there is only one p.
    """

    radix: int
    count: int
    stride: int
    roots: int


@dataclass(frozen=True)
class FourierPlan:
    """How n elements are transformed, and where the table holds what: first the roots of passes."""

    n: int
    real: bool = False  # for n elements that belong to 2 n real ones

    @cached_property
    def chirped(self) -> bool:
        return factors(self.n) is None

    @cached_property
    def length(self) -> int:
        """Elements that the passes transform."""
        return _next_length(2 * self.n - 1) if self.chirped else self.n

    @cached_property
    def passes(self) -> tuple[FourierPass, ...]:
        found, stride, at = [], 1, 0
        radices = factors(self.length)
        assert radices is not None
        for r in radices:
            count = self.length // stride // r
            found.append(FourierPass(r, count, stride, at))
            at += count * (r - 1) if count > 1 else 0
            stride *= r
        return tuple(found)

    @cached_property
    def chirp(self) -> int:
        """Where the table holds the chirp."""
        return sum(p.count * (p.radix - 1) for p in self.passes if p.count > 1)

    @cached_property
    def spectrum(self) -> int:
        """Where it holds the transform of the chirp, over the length."""
        return self.chirp + (self.n if self.chirped else 0)

    @cached_property
    def halves(self) -> int:
        """Where it holds the roots that take a real transform apart, times -i."""
        return self.spectrum + (self.length if self.chirped else 0)

    @property
    def size(self) -> int:
        """How many numbers it holds."""
        return self.halves + (self.n // 2 + 1 if self.real else 0)

    def table(self, dtype: Any) -> Array:
        """The numbers that a transform multiplies by, real parts first: (2, count)."""
        return _table(self, np.dtype(dtype))

    def table_by_root(self, dtype: Any) -> Array:
        """The same numbers as pairs, those of a pass by k and then by p: neighbours p lie side by side."""
        out = self.table(dtype).copy()
        for p in self.passes:
            part = slice(p.roots, p.roots + p.count * (p.radix - 1))
            if p.count > 1:
                cut = out[:, part].reshape(2, p.count, p.radix - 1)
                out[:, part] = cut.transpose(0, 2, 1).reshape(2, -1)
        pairs = np.ascontiguousarray(out.T)
        pairs.flags.writeable = False
        return pairs


@lru_cache(_KEPT)
def _table(plan: FourierPlan, dtype: Any) -> Array:
    parts = [_pass_roots(plan)]
    if plan.chirped:
        parts += _chirp(plan)
    if plan.real:
        k = np.arange(plan.n // 2 + 1)
        re, im = roots(k, 2 * plan.n)
        parts.append(np.stack([im, -re]))
    out: Array = np.concatenate(parts, axis=1).astype(dtype)
    out.flags.writeable = False
    return out


def _pass_roots(plan: FourierPlan) -> Array:
    every = np.stack(roots(np.arange(plan.length), plan.length))
    found = [np.zeros((2, 0))]
    for p in plan.passes:
        if p.count > 1:
            turns = np.arange(p.count)[:, None] * np.arange(1, p.radix) * p.stride
            found.append(every[:, turns.ravel()])
    return np.concatenate(found, axis=1)


def _chirp(plan: FourierPlan) -> list[Array]:
    """exp(-pi i j^2 / n), and the transform of its conjugate, there and back again."""
    j = np.arange(plan.n, dtype=np.int64)
    re, im = roots(j * j % (2 * plan.n), 2 * plan.n)
    around = np.zeros((2, plan.length))
    around[:, : plan.n] = re, -im
    around[:, plan.length - plan.n + 1 :] = np.stack([re, -im])[:, :0:-1]
    spectrum = _run_passes(Pair(*around), FourierPlan(plan.length), np.float64)
    return [np.stack([re, im]), np.stack(spectrum) / plan.length]


# Arrays -----------------------------------------------------------------------------------------


def _run_passes(x: Pair, plan: FourierPlan, dtype: Any) -> Pair:
    """The transform of the last axis of a plan without chirp."""
    table, lead = plan.table(dtype), x.re.shape[:-1]
    for p in plan.passes:
        cut = [part.reshape(*lead, p.radix, p.count, p.stride) for part in x]
        made = small([Pair(*(c[..., j, :, :] for c in cut)) for j in range(p.radix)])
        if p.count > 1:
            size = p.count * (p.radix - 1)
            w = table[:, p.roots : p.roots + size].reshape(2, p.count, p.radix - 1, 1)
            made[1:] = [y.times(Pair(*w[:, :, k])) for k, y in enumerate(made[1:])]
        x = Pair(
            *(np.stack(part, -2).reshape(*lead, plan.length) for part in zip(*made, strict=True))
        )
    return x


def _transform(x: Pair, plan: FourierPlan, dtype: Any) -> Pair:
    """The transform of the last axis."""
    if not plan.chirped:
        return _run_passes(x, plan, dtype)
    table, n = plan.table(dtype), plan.n
    chirp = Pair(*table[:, plan.chirp : plan.chirp + n])
    spectrum = Pair(*table[:, plan.spectrum : plan.spectrum + plan.length])
    room = [(0, 0)] * (x.re.ndim - 1) + [(0, plan.length - n)]
    long = Pair(*(np.pad(part, room) for part in x.times(chirp)))
    inner = FourierPlan(plan.length)
    there = _run_passes(long, inner, dtype).times(spectrum)
    back = _run_passes(there.swapped, inner, dtype).swapped
    return Pair(*(part[..., :n] for part in back)).times(chirp)


def factor_of(n: int, norm: str, inverse: bool) -> float | None:
    """What the elements of a transform are multiplied by at the end; None: by nothing."""
    if norm == "ortho":
        return None if n == 1 else 1 / sqrt(n)
    return 1 / n if (norm == "backward") == inverse and n > 1 else None


def _joined(x: Pair, factor: float | None) -> Array:
    return joined(x if factor is None else x.scaled(factor))


def fft(x: Array, axis: int, norm: str, inverse: bool = False) -> Array:
    """The transform along an axis of complex elements, or its inverse."""
    moved = np.moveaxis(x, axis, -1)
    n, pair = x.shape[axis], parted(moved)
    plan, dtype = FourierPlan(n), pair.re.dtype
    y = _transform(pair.swapped, plan, dtype).swapped if inverse else _transform(pair, plan, dtype)
    return np.moveaxis(_joined(y, factor_of(n, norm, inverse)), -1, axis)


def fftn(x: Array, axes: Sequence[int], norm: str, inverse: bool = False) -> Array:
    """The transform along axes, from the last of them to the first."""
    for axis in reversed(axes):
        x = fft(x, axis, norm, inverse)
    return x


def rfft(x: Array, axis: int, norm: str) -> Array:
    """The first n // 2 + 1 elements of the transform of real elements."""
    real, n = np.moveaxis(x, axis, -1), x.shape[axis]
    factor = factor_of(n, norm, False)
    if n % 2:
        y = _transform(Pair(real, np.zeros_like(real)), FourierPlan(n), x.dtype)
        out = _joined(Pair(*(part[..., : n // 2 + 1] for part in y)), factor)
    else:
        z = _transform(Pair(real[..., ::2], real[..., 1::2]), FourierPlan(n // 2, True), x.dtype)
        out = _joined(_split_all(z, n // 2, x.dtype), factor)
    return np.moveaxis(out, -1, axis)


def _halves(plan: FourierPlan, dtype: Any, scale: float) -> Pair:
    table = plan.table(dtype)[:, plan.halves + 1 :]
    return Pair(*table).scaled(scale)


def _split_all(z: Pair, m: int, dtype: Any) -> Pair:
    """The m + 1 elements of a real transform from a complex one of m elements."""
    out = Pair(*(np.zeros((*z.re.shape[:-1], m + 1), dtype) for _ in z))
    out.re[..., 0], out.re[..., m] = z.re[..., 0] + z.im[..., 0], z.re[..., 0] - z.im[..., 0]
    k = np.arange(1, m // 2 + 1)
    a, b = (Pair(*(part[..., i] for part in z)) for i in (k, m - k))
    for i, made in zip(
        (k, m - k), split(a, b, _halves(FourierPlan(m, True), dtype, 0.5), 0.5), strict=True
    ):
        out.re[..., i], out.im[..., i] = made
    return out


def irfft(x: Array, axis: int, n: int, norm: str) -> Array:
    """The n real elements of which the first n // 2 + 1 complex ones are given."""
    pair = parted(np.moveaxis(x, axis, -1))
    dtype, factor = pair.re.dtype, factor_of(n, norm, True)
    if n % 2:
        out = _transform(_mirrored(pair, n).swapped, FourierPlan(n), dtype).swapped.re
    else:
        plan = FourierPlan(n // 2, True)
        z = _transform(_join_all(pair, n // 2, dtype).swapped, plan, dtype).swapped
        out = np.stack(z, -1).reshape(*z.re.shape[:-1], n)
    return np.moveaxis(out if factor is None else out * factor, -1, axis)


def _mirrored(x: Pair, n: int) -> Pair:
    """All elements of a transform of real numbers from the first half of them."""
    back = range(n // 2, 0, -1)
    im = np.concatenate([np.zeros_like(x.im[..., :1]), x.im[..., 1:], -x.im[..., back]], -1)
    return Pair(np.concatenate([x.re, x.re[..., back]], -1), im)


def _join_all(x: Pair, m: int, dtype: Any) -> Pair:
    """Twice the complex transform of m elements from the m + 1 of a real one."""
    out = Pair(*(np.zeros((*x.re.shape[:-1], m), dtype) for _ in x))
    first, last = x.re[..., 0], x.re[..., m]
    out.re[..., 0], out.im[..., 0] = first + last, first - last
    k = np.arange(1, m // 2 + 1)
    a, b = (Pair(*(part[..., i] for part in x)) for i in (k, m - k))
    root = _halves(FourierPlan(m, True), dtype, 1.0)
    for i, made in zip((k, m - k), split(a, b, Pair(root.re, -root.im), None), strict=True):
        out.re[..., i], out.im[..., i] = made
    return out
