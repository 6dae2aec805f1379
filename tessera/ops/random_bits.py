"""Random bits: keys, and the one op that all of op.random is written with.

A key is a tensor u32[2] and an ordinary operand, so a random op is a pure function: the same key
gives the same numbers, and a key should be used once.  The bits of element i are the block
philox(key, counter = i); they do not depend on how a tensor is cut up or where it is computed.
From bits to numbers, p being the digits of the dtype:

    unit    k 2**-p in [0, 1) for k of p bits: exact and evenly spaced
    fine    (k + 1/2) 2**-32 (f64: 2**-64), at most 1 - 2**-p: dense near 0, never 0 nor 1
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tessera.core.constraints import unify
from tessera.core.dims import Dim, Shape, Size, product
from tessera.core.dtype import DType, as_dtype, f32, f64, u32, u64
from tessera.core.errors import DTypeError, OperandError, ShapeError
from tessera.core.philox import random_words
from tessera.core.signature import broadcast_shapes
from tessera.ir.graph.ir import Value, concrete
from tessera.ir.graph.op import Sample
from tessera.ops.creation import iota
from tessera.ops.define import (
    ArrayLike,
    as_value,
    broadcast,
    cast_to,
    define,
    full_of,
    public,
    shape_of,
)
from tessera.ops.elementwise import add, bitwise_right_shift, minimum, mul
from tessera.ops.key_uses import note_use
from tessera.ops.shape import reshape, slice_, stack

BITS, SPLIT, FOLD = 0, 1, 2  # purposes: the last word of the counter keeps their blocks apart

_KEY_WORD = np.array([7, 7], np.uint32)


@define(
    signature="..., ..., ... -> ...", call="random_bits", total=True, kinds="u", moves=True,
    effects=frozenset(("random",)),
    result=lambda types, p: p["dtype"], partials=lambda y, k0, k1, i: (None, None, None),
    numpy=lambda k0, k1, i, draw, purpose, dtype: random_words(
        k0, k1, i, dtype.bits // 32, draw, purpose
    ),
    samples=(
        Sample(_KEY_WORD, _KEY_WORD, np.array([0, 2**40], np.uint64)),
        Sample(_KEY_WORD[0], _KEY_WORD[0], np.arange(6, dtype=np.uint64).reshape(2, 3), dtype=u64),
        Sample(_KEY_WORD[0], _KEY_WORD[0], np.zeros((0, 2), np.uint64), draw=5),
    ),
)  # fmt: skip
def random_bits(
    k0: ArrayLike, k1: ArrayLike, counter: ArrayLike, draw: int = 0, purpose: int = BITS,
    dtype: Any = u32,
) -> Value:  # fmt: skip
    """Words of Philox4x32-10 for every element of a u64 counter under the key (k0, k1)."""
    i = as_value(counter, "random_bits")
    words = [broadcast(as_value(k, "random_bits"), i.shape) for k in (k0, k1)]
    return random_bits.bind(*words, i, draw=draw, purpose=purpose, dtype=as_dtype(dtype))


def key_words(op: str, key: ArrayLike, purpose: str = "draw", draw: int = 0) -> tuple[Value, Value]:
    """The two words of a key, which is used for this."""
    if not isinstance(key, Value | np.ndarray):
        raise OperandError(
            f"{op}: the key is {type(key).__name__} {key!r:.40}, expected u32[2]; make one with "
            "ts.key(seed)"
        )
    k = as_value(key, op)
    if k.dtype is not u32 or k.ndim == 0 or not unify(k.shape[-1], 2, f"{op}: the key"):
        raise OperandError(
            f"{op}: the key is {k.type}, expected u32[2]; make one with ts.key(seed)"
        )
    if k.ndim != 1:
        raise ShapeError(f"{op}: the key is {k.type}, a stack of keys; pick one, as in keys[0]")
    if purpose != "fold_in":  # whose numbers depend on more than the key
        note_use(op, k, purpose, draw)
    return reshape(slice_(k, (0,), (1,)), ()), reshape(slice_(k, (1,), (2,)), ())


def blocks(op: str, key: ArrayLike, shape: Shape, dtype: DType, draw: int = 0) -> Value:
    """u32 or u64 bits for every element of a shape."""
    counter = reshape(iota((product(shape),), 0, u64), shape)
    return random_bits(*key_words(op, key, draw=draw), counter, draw=draw, dtype=dtype)


def two_blocks(op: str, key: ArrayLike, shape: Shape, wide: DType) -> tuple[Value, Value]:
    """Two independent blocks of as many bits as f32 or f64 has, for every element of a shape."""
    first = blocks(op, key, shape, u64)
    if wide is f64:
        return first, blocks(op, key, shape, u64, draw=1)
    return cast_to(bitwise_right_shift(first, 32), u32), cast_to(first, u32)


def unit(bits: Value, dtype: DType) -> Value:
    """Evenly spaced numbers in [0, 1)."""
    p = dtype.format.digits
    return mul(cast_to(bitwise_right_shift(bits, bits.dtype.bits - p), dtype), 2.0**-p)


def fine(bits: Value, wide: DType) -> Value:
    """Numbers between 0 and 1, dense near 0, in f32 from u32 or in f64 from u64."""
    scaled = mul(add(cast_to(bits, wide), 0.5), 2.0**-wide.bits)
    return minimum(scaled, 1 - 2.0**-wide.format.digits)


def wide_of(dtype: DType) -> DType:
    """Where numbers of a float dtype are made: f64 or f32."""
    return f64 if dtype.name in ("f64", "c128") else f32


def float_dtype(op: str, dtype: Any) -> DType:
    """A floating-point dtype."""
    d = as_dtype(dtype)
    if d.kind != "f":
        raise DTypeError(f"{op}: dtype is {d}, expected a floating-point one such as f32")
    return d


def shape_for(op: str, shape: Any, *parameters: ArrayLike) -> Shape:
    """The shape of the result: as given, or that in which the parameters meet."""
    if shape is not None:
        return shape_of(op, shape)
    return broadcast_shapes(op, [as_value(p, op).type for p in parameters])


def placed(op: str, x: ArrayLike, shape: Shape, dtype: DType) -> Value:
    """A parameter of a distribution, in the dtype and shape of the result."""
    if isinstance(x, int | float):
        return full_of(shape, x, dtype)
    v = as_value(x, op)
    if v.dtype.kind == "c":
        raise DTypeError(f"{op}: a parameter is {v.type}, expected real numbers")
    axes = zip(v.shape[::-1], shape[::-1], strict=False)
    if v.ndim > len(shape) or not all(n == 1 or unify(n, m, op) for n, m in axes):
        raise ShapeError(
            f"{op}: a parameter is {v.type}, which does not broadcast to shape {list(shape)}"
        )
    return broadcast(cast_to(v, dtype), shape)


def _pair(word: Value) -> Value:
    """A key from a u64, low word first."""
    return stack([cast_to(word, u32), cast_to(bitwise_right_shift(word, 32), u32)], axis=-1)


def _word(op: str, x: ArrayLike, what: str) -> Value:
    """An integer as a u64 scalar, negative ones by two's complement."""
    if isinstance(x, int) and not isinstance(x, bool):
        if not -(2**63) <= x < 2**64:
            raise OperandError(f"{op}: the {what} {x} does not fit 64 bits")
        return concrete(np.uint64(x % 2**64))
    v = as_value(x, op)
    if v.dtype.kind not in "iu":
        raise DTypeError(f"{op}: the {what} is {v.type}, expected an integer")
    if v.ndim:
        raise ShapeError(f"{op}: the {what} is {v.type}, expected a scalar")
    return cast_to(v, u64)


@public
def key(seed: ArrayLike) -> Value:
    """The key of a seed, a 64-bit integer."""
    return _pair(_word("key", seed, "seed"))


@public
def split(key: ArrayLike, n: Size = 2) -> Value:
    """n new keys u32[n,2] whose streams have nothing to do with each other nor with the key's."""
    (count,) = shape_of("split", n if isinstance(n, Dim) or hasattr(n, "__index__") else (n,))
    counter = iota((count,), 0, u64)
    return _pair(random_bits(*key_words("split", key, "split"), counter, purpose=SPLIT, dtype=u64))


@public
def fold_in(key: ArrayLike, data: ArrayLike) -> Value:
    """A new key from a key and an integer, such as the number of a step or of a layer."""
    counter = _word("fold_in", data, "data")
    return _pair(
        random_bits(*key_words("fold_in", key, "fold_in"), counter, purpose=FOLD, dtype=u64)
    )


@public
def bits(key: ArrayLike, shape: Any, dtype: Any = u32) -> Value:
    """Random bits in an unsigned dtype."""
    d = as_dtype(dtype)
    if d.kind != "u":
        raise DTypeError(f"bits: dtype is {d}, expected an unsigned one such as u32")
    raw = blocks("bits", key, shape_of("bits", shape), u64 if d.bits == 64 else u32)
    return cast_to(raw, d)
