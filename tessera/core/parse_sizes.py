"""Sizes from text: 'B', '2*S+1' and 'max(S, 8)' of annotations, programs and files."""

from __future__ import annotations

import ast
from collections.abc import Callable
from functools import cache

from tessera.core.dims import Size, checked_divisor, extreme, power, symbol
from tessera.core.errors import AnnotationError, ShapeError


@cache
def parse_dim(text: str) -> Size:
    """The size that a text such as 'B', '2*S+1' or 'max(S, 8)' means."""
    try:
        return _from_ast(ast.parse(text.strip(), mode="eval").body)
    except (SyntaxError, KeyError, TypeError, ValueError, RecursionError, MemoryError) as e:
        if isinstance(e, ShapeError):
            raise AnnotationError(f"{text!r:.60}: {e.message}") from None
        raise AnnotationError(
            f"{text!r:.60} is not a size; write a name, a number or a polynomial such as '2*S+1'"
        ) from e


_BINARY: dict[type, Callable[[Size, Size], Size]] = {
    ast.Add: lambda a, b: a + b,
    ast.Sub: lambda a, b: a - b,
    ast.Mult: lambda a, b: a * b,
    ast.FloorDiv: lambda a, b: a // checked_divisor(a, b),
    ast.Mod: lambda a, b: a % checked_divisor(a, b),
}


def _from_ast(n: ast.expr) -> Size:
    match n:
        case ast.Name(id=name):
            return symbol(name)
        case ast.Constant(value=int(value)) if not isinstance(n.value, bool):
            return value
        case ast.BinOp(left=a, op=ast.Pow(), right=ast.Constant(value=int(k))):
            return power(_from_ast(a), k)
        case ast.BinOp(left=a, op=o, right=b):
            return _BINARY[type(o)](_from_ast(a), _from_ast(b))
        case ast.UnaryOp(op=ast.USub(), operand=a):
            return 0 - _from_ast(a)
        case ast.Call(func=ast.Name(id=f), args=[a, b], keywords=[]) if f in ("max", "min"):
            return extreme(f, _from_ast(a), _from_ast(b))
    raise TypeError(ast.dump(n))
