"""Codes of dtypes in bundles, for ever; tessera.h has the same."""

from __future__ import annotations

from tessera.core.dtype import as_dtype

DTYPES = {
    "bool": 1, "i4": 2, "i8": 3, "i16": 4, "i32": 5, "i64": 6, "u8": 7, "u16": 8, "u32": 9, "u64": 10,
    "f8e4m3": 11, "f8e5m2": 12, "f16": 13, "bf16": 14, "f32": 15, "f64": 16, "c64": 17, "c128": 18,
    "tf32": 19,
}  # fmt: skip
BY_CODE = {code: as_dtype(name) for name, code in DTYPES.items()}
