"""PyTorch's symbolic sizes as ours: expressions of sympy, and the functions of sizes that graphs call."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from functools import reduce
from typing import Any

from tessera.core.dims import Dim, Size, larger, power, smaller, symbol
from tessera.core.dtype import f64, i64
from tessera.interop.torch.library import torch
from tessera.ir.graph.ir import Value
from tessera.lang import op


def size_of(s: Any) -> Size | None:
    """A whole number or a SymInt as a size of ours; None where it is no polynomial, quotient or extreme."""
    if isinstance(s, int):
        return s
    try:
        return _of_expression(s.node.expr)
    except (KeyError, TypeError, ValueError):
        return None


_FUNCTIONS: dict[str, Callable[..., Size]] = {
    "Add": lambda *xs: reduce(operator.add, xs),
    "Mul": lambda *xs: reduce(operator.mul, xs),
    "FloorDiv": operator.floordiv,
    "CleanDiv": operator.floordiv,
    "Mod": operator.mod,
    "PythonMod": operator.mod,
    "Max": lambda *xs: reduce(larger, xs),
    "Min": lambda *xs: reduce(smaller, xs),
}


def _of_expression(e: Any) -> Size:
    kind = type(e).__name__
    if e.is_Symbol:
        return symbol(str(e))
    if e.is_Integer:
        return int(e)
    if kind in ("Pow", "PowByNatural"):
        exponent = int(e.args[1])
        if exponent < 0:
            raise ValueError(e)  # no whole number
        return power(_of_expression(e.args[0]), exponent)
    return _FUNCTIONS[kind](*map(_of_expression, e.args))


def is_name(s: Any) -> bool:
    """Whether a size is one symbol alone."""
    return isinstance(s, Dim) and len(s.terms) == 1 and s == symbol(str(s))


def _as_float(x: Any) -> Any:
    return op.cast(op.dim(x), f64) if isinstance(x, Dim) else op.cast(x, f64)


def _as_whole(f: Callable[[Value], Value]) -> Callable[[Any], Any]:
    def run(x: Any) -> Any:
        return x if isinstance(x, Dim) else op.cast(f(x), i64)

    return run


def arithmetic(run: Callable[..., Any]) -> Callable[..., Any]:
    """A function of sizes that a graph calls, on sizes of ours that may be symbolic."""
    return _symbolic().get(run, run)


def _symbolic() -> dict[Any, Callable[..., Any]]:
    t = torch()
    return {
        t.sym_max: larger,
        t.sym_min: smaller,
        max: larger,
        min: smaller,
        t.sym_float: _as_float,
        t.sym_int: _as_whole(op.trunc),
        math.trunc: _as_whole(op.trunc),
        math.floor: _as_whole(op.floor),
        math.ceil: _as_whole(op.ceil),
        math.sqrt: lambda x: op.sqrt(_as_float(x)),
        t._sym_sqrt: lambda x: op.sqrt(_as_float(x)),
    }
