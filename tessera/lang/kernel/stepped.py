"""stepped: a function of a kernel, for running it step by step with the operators that Python keeps.

    a < b < c, p and q, not p, x if p else y, max(a, b), f(a)   ->   what they mean of tiles

In `and`, `or`, `not`, chained comparisons and its own functions Python asks for one truth value or one
number.  The function that steps is compiled from the same syntax at the same lines, with calls in their
places, so that a debugger shows the user's source.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from types import CellType, CodeType, FunctionType
from typing import Any

from tessera.core.errors import TesseraError
from tessera.lang.kernel.source import FunctionSource, source_of

_JOIN, _NOT, _COMPARE, _CHOOSE, _CALL = (
    "_tessera_join", "_tessera_not", "_tessera_compare", "_tessera_choose", "_tessera_call",
)  # fmt: skip


@dataclass(frozen=True)
class TileMeanings:
    """What the calls that are put in do."""

    join: Callable[..., Any]  # (whether it is `and`, *functions of no argument)
    negate: Callable[[Any], Any]
    compare: Callable[..., Any]  # (kinds of syntax in a text, *operands)
    choose: Callable[..., Any]  # (test, function, function)
    call: Callable[[Any], Any]  # a function as it is called on tiles

    def cells(self) -> dict[str, CellType]:
        """By the names in the syntax."""
        found = (self.join, self.negate, self.compare, self.choose, self.call)
        return {
            n: CellType(f)
            for n, f in zip((_JOIN, _NOT, _COMPARE, _CHOOSE, _CALL), found, strict=True)
        }


class _Rewriter(ast.NodeTransformer):
    """Puts calls in the place of what Python does not ask a tile."""

    def visit_BoolOp(self, n: ast.BoolOp) -> ast.AST:
        self.generic_visit(n)
        if _names(n):
            return n
        conjunction = ast.Constant(isinstance(n.op, ast.And))
        return _call(n, _JOIN, [conjunction, *map(_later, n.values)])

    def visit_UnaryOp(self, n: ast.UnaryOp) -> ast.AST:
        self.generic_visit(n)
        return _call(n, _NOT, [n.operand]) if isinstance(n.op, ast.Not) else n

    def visit_Compare(self, n: ast.Compare) -> ast.AST:
        self.generic_visit(n)
        if len(n.ops) == 1:
            return n
        kinds = ast.Constant(" ".join(type(op).__name__ for op in n.ops))
        return _call(n, _COMPARE, [kinds, n.left, *n.comparators])

    def visit_IfExp(self, n: ast.IfExp) -> ast.AST:
        self.generic_visit(n)
        return n if _names(n) else _call(n, _CHOOSE, [n.test, _later(n.body), _later(n.orelse)])

    def visit_Call(self, n: ast.Call) -> ast.AST:
        self.generic_visit(n)
        n.func = _call(n.func, _CALL, [n.func])
        return n


def _names(n: ast.AST) -> bool:
    """Whether an expression gives names, which a function around it would keep."""
    return any(isinstance(x, ast.NamedExpr) for x in ast.walk(n))


def _later(x: ast.expr) -> ast.Lambda:
    """An expression as a function of no argument."""
    none = ast.arguments(posonlyargs=[], args=[], kwonlyargs=[], kw_defaults=[], defaults=[])
    return ast.copy_location(ast.Lambda(none, x), x)


def _call(at: ast.expr, name: str, args: Sequence[ast.expr]) -> ast.Call:
    return ast.copy_location(ast.Call(ast.Name(name, ast.Load()), list(args), []), at)


@lru_cache(maxsize=1024)
def _code(source: FunctionSource) -> CodeType:
    """The code of a function with the calls in it."""
    assert isinstance(source.tree, ast.FunctionDef)
    tree = copy.deepcopy(source.tree)
    tree.decorator_list, tree.returns = [], None
    for a in ast.walk(tree.args):
        if isinstance(a, ast.arg):
            a.annotation = None
    tree.args.defaults = [ast.Constant(None) for _ in tree.args.defaults]
    tree.args.kw_defaults = [x and ast.Constant(None) for x in tree.args.kw_defaults]
    tree.body = [_Rewriter().visit(s) for s in tree.body]
    held = [*source.function.__code__.co_freevars, _JOIN, _NOT, _COMPARE, _CHOOSE, _CALL]
    given = ast.arguments(
        posonlyargs=[], args=[ast.arg(n) for n in dict.fromkeys(held)], kwonlyargs=[], kw_defaults=[],
        defaults=[],
    )  # fmt: skip
    around = ast.FunctionDef("around", given, [tree], [])
    module = ast.fix_missing_locations(ast.Module([ast.copy_location(around, tree)], []))
    ast.increment_lineno(module, source.first - 1)
    outer = compile(module, source.file, "exec").co_consts[0]
    assert isinstance(outer, CodeType)
    return next(c for c in outer.co_consts if isinstance(c, CodeType) and c.co_name == tree.name)


def stepped(f: Callable[..., Any], meanings: TileMeanings) -> Callable[..., Any]:
    """A function with the meanings of tiles; a function whose source cannot be read is as it was."""
    if not isinstance(f, FunctionType):
        return f
    try:
        code = _code(source_of(f))
    except TesseraError:  # without its source, Python's own meanings
        return f
    held = dict(zip(f.__code__.co_freevars, f.__closure__ or (), strict=True)) | meanings.cells()
    cells = tuple(held[n] for n in code.co_freevars)
    made = FunctionType(code, f.__globals__, f.__name__, f.__defaults__, cells)
    made.__kwdefaults__ = f.__kwdefaults__
    return made
