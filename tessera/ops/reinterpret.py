"""The bits of numbers: floats as the unsigned integers of their width, and back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tessera.core.dtype import FORMATS, as_dtype
from tessera.core.errors import DTypeError
from tessera.core.scalar import REINTERPRETS
from tessera.core.types import TensorType
from tessera.ir.graph.ir import Value
from tessera.ir.graph.op import Params, Sample
from tessera.ops.define import ArrayLike, as_value, cast_to, public, unary

Infer = Callable[[Sequence[TensorType], Params], Sequence[TensorType]]


def _infer(name: str) -> Infer:
    formats = REINTERPRETS[name]

    def infer(types: Sequence[TensorType], params: Params) -> list[TensorType]:
        t = types[0]
        if t.dtype.name not in formats:
            raise DTypeError(f"{name}: got {t}, expected {' or '.join(formats)}; cast with astype")
        return [t.with_dtype(FORMATS[formats[t.dtype.name]])]

    return infer


float_bits = unary(
    "float_bits", "The bits of a float as an unsigned integer: f32 gives u32, f64 gives u64.",
    scalar="bits", infer=_infer("bits"), kinds="f", moves=True, jvp=lambda n, ts: None,
    samples=(Sample((3,)), Sample((2, 3)), Sample((0, 2)),
             Sample(np.array([0.0, -0.0, np.inf, -np.inf, 5e-324, -1.5]))),
)  # fmt: skip
from_bits = unary(
    "from_bits", "The float that bits make: u32 gives f32, u64 gives f64.",
    infer=_infer("from_bits"), kinds="u", moves=True, jvp=lambda n, ts: None,
    samples=(Sample(np.array([0, 1, 0x3F800000, 0x80000000, 0x7F7FFFFF], np.uint32)),
             Sample(np.array([[1, 2**62]], np.uint64))),
)  # fmt: skip
_UNSIGNED = {32: FORMATS["u32"], 64: FORMATS["u64"]}


@public
def bitcast(x: ArrayLike, dtype: Any) -> Value:
    """The bits of x as numbers of another format of the same width, 32 or 64 bits."""
    v, to = as_value(x, "bitcast"), as_dtype(dtype)
    for d in (v.dtype, to):
        if d.bits not in _UNSIGNED or d.kind not in "uif" or d.bits != v.dtype.bits:
            raise DTypeError(
                f"bitcast: {v.type} to {to}: expected two formats of one width, of f32, i32 and u32 "
                "or of f64, i64 and u64; cast with astype to change the width"
            )
    raw = (
        float_bits(cast_to(v, v.dtype.base))
        if v.dtype.kind == "f"
        else cast_to(v, _UNSIGNED[to.bits])
    )
    return from_bits(raw) if to.kind == "f" else cast_to(raw, to)
