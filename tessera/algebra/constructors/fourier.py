"""Discrete Fourier and cosine transforms as operators."""

from __future__ import annotations

import cmath
import math
from typing import Any

from tessera.algebra.apply import light_cost
from tessera.algebra.constructors.basic import float_dtype, size_of
from tessera.algebra.kind import Kind, register
from tessera.algebra.linear_graph import apply_transposed
from tessera.algebra.operator import Operator, function
from tessera.core.dtype import c64, complex_of, f32
from tessera.core.errors import OperandError, ShapeError
from tessera.ir.graph.ir import Value
from tessera.ops.define import cast_to, full_of
from tessera.ops.fft import OPPOSITE, norm_of
from tessera.ops.fft import fft as forward
from tessera.ops.fft import ifft as backward
from tessera.ops.shape import reshape
from tessera.ops.spectrum import dct as cosine

# Fourier ----------------------------------------------------------------------------------------


def sizes_of(user: str, shape: Any) -> tuple[int, ...]:
    """Sizes of a grid from one number or several."""
    sizes = tuple(shape) if isinstance(shape, tuple | list) else (shape,)
    found = tuple(size_of(user, n) for n in sizes)
    if not found or any(isinstance(n, int) and n < 1 for n in found):
        raise ShapeError(
            f"{user}: got the sizes {found}, expected at least one element along each axis"
        )
    return found


@function
def fft(shape: Any, norm: str | None = None, dtype: Any = c64) -> Operator:
    """The Fourier transform of vectors of n, or of flattened grids of a shape."""
    return _transform("fft", shape, norm, dtype, False)


@function
def ifft(shape: Any, norm: str | None = None, dtype: Any = c64) -> Operator:
    """The inverse Fourier transform of vectors of n, or of flattened grids of a shape."""
    return _transform("ifft", shape, norm, dtype, True)


def _transform(user: str, shape: Any, norm: str | None, dtype: Any, inverse: bool) -> Operator:
    sizes = sizes_of(user, shape)
    found = complex_of(float_dtype(user, dtype))
    return Operator("fft", static=(sizes, norm_of(user, norm), inverse, found))


def _apply(a: Operator, x: Value) -> Value:
    sizes, norm, inverse, _ = a.static
    op = backward if inverse else forward
    v = reshape(cast_to(x, complex_of(x.dtype)), (*sizes, x.shape[1]))
    return reshape(op.bind(v, axes=tuple(range(len(sizes))), norm=norm), x.shape)


def _conj(a: Operator) -> Operator:
    sizes, norm, inverse, dtype = a.static
    return Operator("fft", static=(sizes, OPPOSITE[norm], not inverse, dtype))


def _inverse(a: Operator) -> Operator:
    sizes, norm, inverse, dtype = a.static
    return Operator("fft", static=(sizes, norm, not inverse, dtype))


def _flags(a: Operator) -> frozenset[str]:
    own = {"symmetric", "normal", "invertible"}
    return frozenset(own | {"unitary"} if a.static[1] == "ortho" else own)


# How often -1, -i and i are eigenvalues of the unitary transform of 4 m + r, beyond m (McClellan and
# Parks 1972); 1 makes up the rest.
_EXTRA = {0: (0, 0, -1), 1: (0, 0, 0), 2: (1, 0, 0), 3: (1, 1, 0)}


def _phase(n: int, inverse: bool) -> complex:
    m, r = divmod(n, 4)
    minus, down, up = (m + e for e in _EXTRA[r])
    turns = 2 * minus - down + up  # in quarters
    return cmath.exp(0.5j * math.pi * ((-turns if inverse else turns) % 4))


def _slogdet(a: Operator) -> tuple[Value, Value]:
    """Along each axis the determinant of its transform, as often as the others have elements."""
    sizes, norm, inverse, _ = a.static
    total = math.prod(sizes)
    sign, size = 1 + 0j, 0.0
    unscaled = {"backward": 0.0, "ortho": 0.5, "forward": 1.0}[OPPOSITE[norm] if inverse else norm]
    for n in sizes:
        sign *= _phase(n, inverse) ** (total // n)
        size += total * math.log(n) * (0.5 - unscaled)
    return full_of((), sign, a.dtype), full_of((), size, a.dtype.real)


def _fft_cost(a: Operator, k: int) -> Any:
    n = math.prod(a.static[0])
    return light_cost(a, k, 1.25 * n * math.log2(max(n, 2)) * k)


register(Kind(
    name="fft", doc="A Fourier transform over one or several axes.",
    shape=lambda parts, data, static: (math.prod(static[0]),) * 2,
    dtype=lambda parts, data, static: static[3], apply=_apply, transpose=lambda a: a, conj=_conj,
    flags=_flags, cost=_fft_cost, slogdet=_slogdet, inverse=_inverse,
    solve=lambda a, b: _apply(_inverse(a), b),
))  # fmt: skip


# Cosines ----------------------------------------------------------------------------------------

_INVERSE_TYPE = {1: 1, 2: 3, 3: 2, 4: 4}


@function
def dct(n: Any, type: int = 2, norm: str | None = None, dtype: Any = f32) -> Operator:
    """The cosine transform of vectors of n; orthogonal with norm "ortho"."""
    (size,) = sizes_of("dct", n if isinstance(n, tuple | list) and len(n) == 1 else (n,))
    if type not in _INVERSE_TYPE:
        raise OperandError(f"dct: type is {type!r}, expected 1, 2, 3 or 4")
    if type == 1 and size < 2:
        raise ShapeError(f"dct: a transform of type 1 has at least 2 elements, got {size}")
    return Operator("dct", static=(size, type, norm_of("dct", norm), float_dtype("dct", dtype)))


@function
def idct(n: Any, type: int = 2, norm: str | None = None, dtype: Any = f32) -> Operator:
    """The inverse of dct of the same type and norm."""
    return _dct_inverse(dct(n, type, norm, dtype))


def _dct_inverse(a: Operator) -> Operator:
    n, type, norm, dtype = a.static
    return Operator("dct", static=(n, _INVERSE_TYPE[type], OPPOSITE[norm], dtype))


def _cosines(a: Operator, x: Value) -> Value:
    return cosine.bind(x, type=a.static[1], axis=0, norm=a.static[2])


def _dct_flags(a: Operator) -> frozenset[str]:
    _, type, norm, _ = a.static
    found = {"real", "invertible"}
    if norm == "ortho":
        found |= {"unitary"}
    if type == 4 or (norm == "ortho" and type == 1):
        found |= {"symmetric"}
    return frozenset(found)


register(Kind(
    name="dct", doc="A cosine transform.",
    shape=lambda parts, data, static: (static[0],) * 2,
    dtype=lambda parts, data, static: static[3], apply=_cosines,
    apply_transpose=lambda a, x: apply_transposed(lambda v: _cosines(a, v), x, a.shape[1]),
    conj=lambda a: a, flags=_dct_flags, inverse=_dct_inverse,
    cost=lambda a, k: light_cost(a, k, 2.5 * a.shape[0] * math.log2(max(a.shape[0], 2)) * k),
    solve=lambda a, b: _cosines(_dct_inverse(a), b),
))  # fmt: skip
