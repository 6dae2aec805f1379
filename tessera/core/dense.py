"""The data of constants as text, in the forms that MLIR has for dense elements.

    dense<>                       no elements
    dense<1.5>                    every element has these bits
    dense<[[1.0, 2.0], ...]>      up to 16 elements, and formats of less than a byte at any size
    dense<"0x0000803F...">        the bytes of the elements, little-endian, in order

A float that decimal cannot say (nan, inf, -0.0) is written by its bits: 0x7FC00000 in f32.  A
complex element is a pair (re, im).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from tessera.core.constant import Array
from tessera.core.dtype import DType
from tessera.core.promotion import holds

_LISTED = 16  # elements up to which data is a list that people can read


def dense_text(x: Array, dtype: DType, decimal: Callable[[float], str]) -> str:
    """Data of a plain dtype; `decimal` writes a finite float."""
    if x.size == 0:
        return "dense<>"
    flat = np.ascontiguousarray(x).reshape(-1)
    raw = flat.view(np.uint8).reshape(flat.size, -1)
    if (raw == raw[0]).all():
        return f"dense<{_element_text(flat[0], dtype, decimal)}>"
    if x.size <= _LISTED or dtype.name in ("bool", "i4"):
        texts = iter([_element_text(e, dtype, decimal) for e in flat])
        return f"dense<{_nested(texts, x.shape)}>"
    return f'dense<"0x{raw.tobytes().hex().upper()}">'


def _nested(texts: Any, shape: tuple[int, ...]) -> str:
    if not shape:
        text: str = next(texts)
        return text
    return f"[{', '.join([_nested(texts, shape[1:]) for _ in range(shape[0])])}]"


def _element_text(x: Any, dtype: DType, decimal: Callable[[float], str]) -> str:
    if dtype.kind == "b":
        return "true" if x else "false"
    if dtype.kind in "iu":
        return str(int(x))
    if dtype.kind == "c":
        parts = (_element_text(p, dtype.real, decimal) for p in (x.real, x.imag))
        return f"({', '.join(parts)})"
    number = float(x)
    if math.isfinite(number) and (number or not math.copysign(1, number) < 0):
        return decimal(number)
    bits = int(np.asarray(x, dtype.np).view(f"u{dtype.bits // 8}"))
    return f"0x{bits:0{dtype.bits // 4}X}"


def read_elements(elements: Any, dtype: DType, shape: tuple[int, ...]) -> Array:
    """The array that parsed elements stand for; ValueError says what does not fit.

    Elements are None, one literal, nested lists of them, or the bytes of all; a literal is a bool,
    an int, a float, a (re, im) pair, or the text of a hex number.
    """
    size, width = math.prod(shape), np.dtype(dtype.np).itemsize
    if elements is None:
        raw = b""
    elif isinstance(elements, bytes):
        raw = elements * size if len(elements) == width else elements
    elif isinstance(elements, list):
        raw = b"".join(_in_order(elements, dtype, shape))
    else:
        raw = _element_bytes(elements, dtype) * size
    if len(raw) != size * width:
        raise ValueError(f"{len(raw)} bytes of data, expected {size * width}")
    return np.frombuffer(raw, dtype.np).reshape(shape)


def _in_order(elements: Any, dtype: DType, shape: tuple[int, ...]) -> Iterator[bytes]:
    if not shape:
        yield _element_bytes(elements, dtype)
        return
    if not isinstance(elements, list) or len(elements) != shape[0]:
        raise ValueError(f"the elements do not form the shape {list(shape)}")
    for e in elements:
        yield from _in_order(e, dtype, shape[1:])


def _element_bytes(x: Any, dtype: DType) -> bytes:
    """One element in the storage format."""
    if dtype.kind == "c" and isinstance(x, tuple) and len(x) == 2:
        return b"".join(_element_bytes(p, dtype.real) for p in x)
    if dtype.kind == "f" and isinstance(x, str):
        if len(x) != 2 + dtype.bits // 4:
            raise ValueError(f"{x} has not the {dtype.bits} bits of {dtype}")
        return int(x, 16).to_bytes(dtype.bits // 8, "little")
    if type(x) is not _LITERALS.get(dtype.kind):
        raise ValueError(f"the element {x} is not of type {dtype}")
    if isinstance(x, int) and not holds(dtype, x):
        raise ValueError(f"the element {x} does not fit {dtype}")
    return np.array(x).astype(dtype.np).tobytes()


_LITERALS: dict[str, type] = {"b": bool, "i": int, "u": int, "f": float}
