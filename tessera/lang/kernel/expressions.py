"""Operators, comparisons, attributes and Python's own functions, on numbers, positions and tiles."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from tessera.core.dims import Dim, bounds, larger, smaller
from tessera.core.dtype import as_dtype, f32, i64
from tessera.lang.kernel.values import KernelArray, KernelError, RunTimeCount, TileValue
from tessera.lang.kernel.writer import KernelWriter

_BINARY: dict[type, tuple[str, Callable[[Any, Any], Any]]] = {
    ast.Add: ("add", operator.add), ast.Sub: ("sub", operator.sub), ast.Mult: ("mul", operator.mul),
    ast.Div: ("div", operator.truediv), ast.FloorDiv: ("floor_div", operator.floordiv),
    ast.Mod: ("mod", operator.mod), ast.Pow: ("pow", operator.pow),
    ast.BitAnd: ("and", operator.and_), ast.BitOr: ("or", operator.or_),
    ast.BitXor: ("xor", operator.xor), ast.LShift: ("shift_left", operator.lshift),
    ast.RShift: ("shift_right", operator.rshift), ast.MatMult: ("dot", operator.matmul),
}  # fmt: skip
_COMPARE: dict[type, tuple[str, Callable[[Any, Any], Any]]] = {
    ast.Eq: ("eq", operator.eq), ast.NotEq: ("ne", operator.ne), ast.Lt: ("lt", operator.lt),
    ast.LtE: ("le", operator.le), ast.Gt: ("gt", operator.gt), ast.GtE: ("ge", operator.ge),
}  # fmt: skip
_UNARY: dict[type, tuple[str, Callable[[Any], Any]]] = {
    ast.USub: ("neg", operator.neg), ast.UAdd: ("pos", operator.pos),
    ast.Invert: ("invert", operator.invert),
}  # fmt: skip
_PLAIN: dict[type, Callable[[Any, Any], Any]] = {
    ast.Is: operator.is_, ast.IsNot: operator.is_not,
    ast.In: lambda a, b: a in b, ast.NotIn: lambda a, b: a not in b,
}  # fmt: skip
_EXACT = (ast.Add, ast.Sub, ast.Mult, ast.FloorDiv, ast.Mod)  # what positions are closed under


class TileMethod:
    """A method of a tile."""

    def __init__(self, run: Callable[..., Any]):
        self.run = run


def is_number(x: Any) -> bool:
    """Whether x is a tile or can become one."""
    return isinstance(x, TileValue | Dim | bool | int | float)


def is_whole(x: Any) -> bool:
    """Whether x is a whole number that has no dtype of its own."""
    return isinstance(x, RunTimeCount | Dim) or (isinstance(x, int) and not isinstance(x, bool))


def is_static(x: Any) -> bool:
    """Whether x is known to Python before a kernel runs."""
    if isinstance(x, tuple | list | set):
        return all(map(is_static, x))
    if isinstance(x, dict):
        return all(map(is_static, x.values()))
    return not isinstance(x, TileValue | Dim | KernelArray)


def words(x: Any) -> str:
    """How messages call a value."""
    return repr(x) if isinstance(x, TileValue | KernelArray) else f"{x!r:.60}"


def _refuse_arrays(name: str, *xs: Any) -> None:
    for x in xs:
        if isinstance(x, KernelArray):
            raise KernelError(f"{name}: {x} lies in memory; load a tile of it with tile.load")


def binary(w: KernelWriter, kind: type, a: Any, b: Any) -> Any:
    """a op b."""
    name, python = _BINARY[kind]
    _refuse_arrays(name, a, b)
    if isinstance(a, TileValue) or isinstance(b, TileValue):
        if kind is ast.MatMult:
            return w.dot(w.tile(a), w.tile(b), None)
        made = power(w, a, b) if kind is ast.Pow else w.apply(name, a, b)
        return (
            RunTimeCount(made.tile, (), ())
            if kind in _EXACT and is_whole(a) and is_whole(b)
            else made
        )
    if isinstance(a, Dim) or isinstance(b, Dim):
        whole = all(isinstance(x, Dim | int) for x in (a, b))
        if whole and (kind in _EXACT or (kind is ast.Pow and isinstance(b, int) and b >= 0)):
            return python(a, b)
        return w.apply(name, a, b)
    return python(a, b)


def power(w: KernelWriter, x: Any, e: Any) -> Any:
    """x ** e; a power that the kernel writes as a number is one operation where op.pow has it."""
    if not (isinstance(x, TileValue) and x.tile.dtype.kind == "f" and type(e) in (int, float)):
        return w.apply("pow", x, e)
    short = {2: "square", -1: "recip"}
    if e == 1:
        return x
    return w.apply(short[e], x) if e in short else w.apply("pow", x, e)


def unary(w: KernelWriter, kind: type, x: Any) -> Any:
    """op x."""
    _refuse_arrays("operator", x)
    if kind is ast.Not:
        found = truth(x)
        return (
            w.apply("logical_not", w.condition(found))
            if isinstance(found, TileValue)
            else not found
        )
    if isinstance(x, TileValue):
        return w.apply(_UNARY[kind][0], x)
    if isinstance(x, Dim) and kind is ast.Invert:
        return -x - 1
    return _UNARY[kind][1](x)


def compare(w: KernelWriter, kind: type, a: Any, b: Any) -> Any:
    """Whether a op b: known now, or a tile."""
    if kind in (ast.In, ast.NotIn) and isinstance(b, TileValue | KernelArray):
        raise KernelError(f"in: got {b}, expected a sequence of Python; write tile.any(t == x)")
    if kind in _PLAIN:
        return _PLAIN[kind](a, b)
    name, python = _COMPARE[kind]
    _refuse_arrays(name, a, b)
    if isinstance(a, TileValue) or isinstance(b, TileValue):
        return w.apply(name, a, b)
    if not (isinstance(a, Dim) or isinstance(b, Dim)):
        return python(a, b)
    if isinstance(a, float) or isinstance(b, float):
        return w.apply(name, a, b)
    low, high = bounds(a - b)
    if low == high or low > 0 or high < 0:
        return python(low, 0)
    if (low, kind) in ((0, ast.GtE), (0, ast.Lt)) or (high, kind) in ((0, ast.LtE), (0, ast.Gt)):
        return kind in (ast.GtE, ast.LtE)
    return w.apply(name, a, b)


def compared(w: KernelWriter, kinds: Sequence[type], operands: Sequence[Any]) -> Any:
    """Whether a < b < c: the comparisons of neighbours, all of which must hold."""
    out: Any = None
    for kind, a, b in zip(kinds, operands[:-1], operands[1:], strict=True):
        found = compare(w, kind, a, b)
        out = found if out is None else _both(w, True, out, found)
    return out


def _both(w: KernelWriter, conjunction: bool, a: Any, b: Any) -> Any:
    if isinstance(a, TileValue) or isinstance(b, TileValue):
        name = "logical_and" if conjunction else "logical_or"
        return w.apply(name, w.condition(a), w.condition(b))
    return (a and b) if conjunction else (a or b)


def joined(w: KernelWriter, conjunction: bool, values: Iterable[Any]) -> Any:
    """a and b and c, or a or b or c: element by element for tiles, as far as needed for what is known."""
    out: Any = None
    for i, value in enumerate(values):
        out = value if i == 0 else _both(w, conjunction, out, value)
        known = truth(out)
        if not isinstance(known, TileValue) and bool(known) != conjunction:
            return out
    return out


def chosen(w: KernelWriter, name: str, test: TileValue, a: Any, b: Any) -> Any:
    """One of two values, by one truth value."""
    if a is b or (is_static(a) and is_static(b) and type(a) is type(b) and a == b):
        return a
    if isinstance(a, tuple | list) and isinstance(b, tuple | list) and len(a) == len(b):
        parts = [chosen(w, name, test, x, y) for x, y in zip(a, b, strict=True)]
        return parts if isinstance(a, list) else tuple(parts)
    if not is_number(a) or not is_number(b):
        raise KernelError(f"{name} is {words(a)} in one branch and {words(b)} in the other")
    made = w.apply("where", test, a, b)
    return RunTimeCount(made.tile, (), ()) if all(map(is_whole, (a, b))) else made


def truth(x: Any) -> Any:
    """A value as a condition: a tile if it is known when the kernel runs."""
    if isinstance(x, TileValue):
        return x
    if isinstance(x, Dim):
        if bounds(x)[0] > 0:
            return True
        raise KernelError(f"whether {x} is 0 is known when the kernel runs; compare it: {x} != 0")
    if isinstance(x, KernelArray):
        raise KernelError(f"{x} lies in memory; load a tile of it with tile.load")
    return bool(x)


# Python's functions


def _extreme(name: str, sizes: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    def run(w: KernelWriter, *xs: Any) -> Any:
        items = xs[0] if len(xs) == 1 and isinstance(xs[0], tuple | list) else xs
        out = items[0]
        for x in items[1:]:
            whole = all(isinstance(v, Dim | int) for v in (out, x))
            out = sizes(out, x) if whole else w.apply(name, out, x)
        return out

    return run


def _float(w: KernelWriter, x: Any) -> TileValue:
    t = w.tile(x)
    return t if t.dtype.kind == "f" else w.cast(t, f32)


def _int(w: KernelWriter, x: Any) -> Any:
    if isinstance(x, Dim | RunTimeCount):
        return x
    t = w.cast(w.tile(x), i64)
    return t if any(n != 1 for n in t.shape) else RunTimeCount(w.reshape(t, ()).tile, (), ())


def _len(w: KernelWriter, x: Any) -> Any:
    return len(x) if isinstance(x, tuple | list) else x.shape[0]


def _sum(w: KernelWriter, xs: Any, start: Any = 0) -> Any:
    out = start
    for x in _sequence("sum", xs):
        out = binary(w, ast.Add, out, x)
    return out


def _sequence(name: str, xs: Any) -> Any:
    if isinstance(xs, TileValue):
        raise KernelError(f"{name}: got {xs}, expected several values; write tile.{name}(x)")
    return xs


def _divmod(w: KernelWriter, a: Any, b: Any) -> tuple[Any, Any]:
    return binary(w, ast.FloorDiv, a, b), binary(w, ast.Mod, a, b)


BUILTINS: dict[Any, Callable[..., Any]] = {
    min: _extreme("min", smaller),
    max: _extreme("max", larger),
    float: _float,
    int: _int,
    abs: lambda w, x: w.apply("abs", x),
    pow: power,
    round: lambda w, x: w.apply("round", x),
    len: _len,
    bool: lambda w, x: w.condition(x),
    tuple: lambda w, x: tuple(x),
    list: lambda w, x: list(x),
    zip: lambda w, *xs: list(zip(*xs, strict=False)),
    enumerate: lambda w, x, start=0: list(enumerate(x, start)),
    reversed: lambda w, x: list(reversed(x)),
    dict: lambda w, *xs, **named: dict(*xs, **named),
    sum: _sum,
    any: lambda w, xs: joined(w, False, _sequence("any", xs)),
    all: lambda w, xs: joined(w, True, _sequence("all", xs)),
    divmod: _divmod,
    isinstance: lambda w, x, kind: isinstance(x, kind),
}

ATTRIBUTES: dict[str, Callable[[KernelWriter, TileValue], Any]] = {
    "T": lambda w, x: w.transpose(x),
    "shape": lambda w, x: x.shape,
    "dtype": lambda w, x: x.dtype,
    "ndim": lambda w, x: x.rank,
    "astype": lambda w, x: TileMethod(lambda dtype: w.cast(x, as_dtype(dtype))),
}
