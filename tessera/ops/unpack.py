"""Numbers of few bits, several in a byte: where each of them is read, and how it is taken out."""

from __future__ import annotations

from typing import Any

import numpy as np

from tessera.core.dtype import i32, u8
from tessera.core.errors import DTypeError, OperandError
from tessera.ir.graph.ir import Value, bind
from tessera.ir.graph.op import OWN, UNLISTED, Index, Op, Params, Types
from tessera.ops.batching import along
from tessera.ops.creation import iota
from tessera.ops.define import ArrayLike, as_value, axis_of, cast_to, public
from tessera.ops.elementwise import bitwise_and, bitwise_left_shift, bitwise_right_shift, mul, sub


def _repeated_types(types: Types, p: Params) -> list[Any]:
    (x,), a = types, p["axis"]
    return [x.with_shape((*x.shape[:a], x.shape[a] * p["count"], *x.shape[a + 1 :]))]


def _source(index: Index, types: Types, p: Params) -> Index:
    a = p["axis"]
    return (*index[:a], index[a] // p["count"], *index[a + 1 :])


# A pick where a reshaped broadcast would do: kernels read picks where they stand.
REPEATED = Op(
    "repeat_each", "Each element along an axis, so many times.", pick=_source, infer=_repeated_types,
    numpy=lambda x, axis, count: np.repeat(x, count, axis), moves=True, spreads=True, batch=along,
)  # fmt: skip
UNLISTED[REPEATED.name] = REPEATED
OWN.add(REPEATED)


@public
def unpack_ints(x: ArrayLike, bits: int = 4, axis: int = -1, signed: bool = False) -> Value:
    """The numbers of 1, 2 or 4 bits in bytes as i32, one after the other along an axis.

    The first number of a byte is in its lowest bits.  A product that sums over this axis, if it is not
    the last one, takes them apart as it reads the bytes.
    """
    v = as_value(x, "unpack_ints")
    if v.dtype is not u8:
        raise DTypeError(f"unpack_ints: got {v.type}, expected u8")
    if bits not in (1, 2, 4):
        raise OperandError(f"unpack_ints: bits is {bits}, expected 1, 2 or 4")
    a, count = axis_of("unpack_ints", axis, v.ndim), 8 // bits
    each = cast_to(bind(REPEATED, v, axis=a, count=count), i32)
    at = mul(bitwise_and(iota(each.shape, a, i32), count - 1), bits)
    if signed:  # to the end of a word, and back with the sign
        up = sub(32 - bits, at)
        return bitwise_right_shift(bitwise_left_shift(each, up), 32 - bits)
    return bitwise_and(bitwise_right_shift(each, at), (1 << bits) - 1)
