"""Names and boxes in printed Triton: names that Python takes, each another one, and loads that hardware
can fetch.
"""

from __future__ import annotations

import ast
import keyword
from typing import Any

import pytest

import tessera as ts
from tessera.core.dims import symbol
from tessera.core.dtype import bf16, f32
from tessera.core.types import TensorType
from tessera.ir.target.triton.emit import emit
from tessera.ir.target.triton.values import _has_units
from tessera.ir.target.triton.writer import plain_name
from tessera.ir.tile.gpu.tma_loads import fetched
from tessera.ir.tile.ir import Builder, Kernel
from tessera.ir.tile.launch import Threads


@pytest.mark.parametrize(
    ("name", "plain"),
    [("x", "x"), ("lambda", "lambda_"), ("for", "for_"), ("tl", "tl_"), ("triton", "triton_"),
     ("libdevice", "libdevice_"), ("range", "range_"), ("float", "float_"), ("3d", "_3d"), ("", "_"),
     ("a.b-c", "a_b_c"), ("_x", "_x"), ("ranges", "ranges"), ("t3", "t3")],
)  # fmt: skip
def test_a_name_is_plain(name: str, plain: str) -> None:
    assert plain_name(name) == plain
    assert plain_name(name).isidentifier()
    assert not keyword.iskeyword(plain_name(name))


def test_parameters_and_sizes_with_odd_names_are_all_there() -> None:
    b = Builder("class")
    n, m = symbol("lambda"), symbol("range")
    x = b.parameter("tl", TensorType(f32, (n, m)))
    y = b.parameter("in", TensorType(f32, (n, m)), writable=True)
    at = b.program((n + 15) // 16) * 16
    with b.loop(0, m, 1) as c:
        t = b.load(x, (at, c.variable), (16, 1), masked=(0,))
        b.store(y, t, (at, c.variable), (16, 1), masked=(0,))
    text = emit(b.finish(), Threads(4, 2))
    (function,) = (f for f in ast.parse(text).body if isinstance(f, ast.FunctionDef))
    names = [a.arg for a in function.args.args]
    assert function.name == "class_"
    assert names == ["tl_", "in_", "lambda_", "range_"]


def product(dtype: Any = bf16, shape: tuple[Any, ...] = (64, 64), **other: Any) -> Kernel:
    """A product of two boxes, of which the first is as asked."""
    b = Builder("product")
    lead = len(shape) - 2
    x = b.parameter("x", TensorType(dtype, shape), writable=other.get("writable", False))
    w = b.parameter("w", TensorType(dtype, (64, 64)))
    y = b.parameter("y", TensorType(f32, (16, 64)), writable=True)
    rows, columns = other.get("box", (16, 64))
    extent, axes = (*[1] * lead, rows, columns), (lead, lead + 1)
    fill = other.get("fill", 0)
    masked = (lead,) if fill else ()
    left = b.load(x, (0,) * len(shape), extent, axes=axes, masked=masked, fill=fill)
    right = b.load(w, (0, 0), (columns, 64))
    b.store(y, b.dot(left, right, b.full(f32, (rows, 64), 0)), (0, 0), (rows, 64))
    return b.finish()


FETCHED: dict[str, tuple[dict[str, Any], bool]] = {
    "a box": ({}, True),
    "more axes": ({"shape": (2, 3, 64, 64)}, True),
    "too many axes": ({"shape": (1, 1, 1, 1, 64, 64)}, False),
    "as many axes as there may be": ({"shape": (1, 1, 1, 64, 64)}, True),
    "rows between words": ({"shape": (64, 66)}, False),
    "rows of 16 bytes": ({"shape": (64, 72)}, True),
    "narrow": ({"box": (16, 4)}, False),
    "just wide enough": ({"box": (16, 8)}, True),
    "f32": ({"dtype": f32, "box": (16, 4)}, True),
    "no power of two": ({"box": (16, 48)}, False),
    "written": ({"writable": True}, False),
    "other numbers outside": ({"fill": 1}, False),
    "rows that are counted at the call": ({"shape": (symbol("N"), 64)}, True),
    "a size that is not known": ({"shape": (2, symbol("N"), 64)}, False),
}


@pytest.mark.parametrize("name", FETCHED)
def test_which_loads_are_boxes(name: str) -> None:
    given, wanted = FETCHED[name]
    found = {op.memory.name for op in fetched(product(**given)) if op.memory is not None}
    assert ("x" in found) == wanted


@pytest.mark.parametrize(
    ("dtype", "acc", "least"),
    [("f8e4m3", "f32", 32), ("f8e5m2", "f32", 32), ("f16", "f32", 16), ("bf16", "f32", 16),
    ("f32", "f32", 16),
     ("f64", "f64", 16), ("i8", "i32", 32), ("i8", "i64", None), ("i16", "i32", None), ("u8", "i32", None)],
)  # fmt: skip
def test_short_sums_have_no_matrix_unit(dtype: str, acc: str, least: int | None) -> None:
    """Below these lengths Triton refuses `tl.dot`, and a chain of products is written instead."""
    b = Builder("k")
    total = b.full(getattr(ts, acc), (16, 16), 0)
    for k in (1, 8, 16, 32, 64):
        tile = b.full(getattr(ts, dtype), (16, k), 0)
        assert _has_units(tile, total) == (least is not None and k >= least)
