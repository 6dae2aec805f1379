"""How dtypes are called in Triton, as values and as what pointers point to."""

from __future__ import annotations

from tessera.core.dtype import DType

# Of values.  A bool in memory is a byte, and so is an i4.
VALUES = {
    "bool": "tl.int1", "i4": "tl.int8", "i8": "tl.int8", "i16": "tl.int16", "i32": "tl.int32",
    "i64": "tl.int64", "u8": "tl.uint8", "u16": "tl.uint16", "u32": "tl.uint32", "u64": "tl.uint64",
    "f8e4m3": "tl.float8e4nv", "f8e5m2": "tl.float8e5", "f16": "tl.float16", "bf16": "tl.bfloat16",
    "f32": "tl.float32", "f64": "tl.float64",
}  # fmt: skip
_MEMORY = {
    "bool": "u8", "i4": "i8", "f8e4m3": "fp8e4nv", "f8e5m2": "fp8e5", "f16": "fp16", "f32": "fp32",
    "f64": "fp64",
}  # fmt: skip
# Floats of 8 bits: past the middle between the largest number and the one after it, a number has this code.
SMALL = {"f8e4m3": (464.0, 127), "f8e5m2": (61439.996, 124)}


def value(dtype: DType) -> str:
    """The type of a value."""
    return VALUES[dtype.name]


def pointer(dtype: DType) -> str:
    """The type of a pointer, as signatures write it."""
    return f"*{_MEMORY.get(dtype.name, dtype.name)}"


def padded(n: int) -> int:
    """The power of two that a tile's axis of n elements takes."""
    return 1 << (n - 1).bit_length()


def physical(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape that a tile has in Triton, whose sizes are powers of two."""
    return tuple(map(padded, shape))
