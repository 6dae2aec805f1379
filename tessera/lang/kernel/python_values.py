"""Python's own values in kernels: tuples, lists, dictionaries, texts, comprehensions, lambda and def.

All of them are known before the kernel runs; the tiles within them are not.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from tessera.lang.kernel.closures import Closure, signature_of
from tessera.lang.kernel.containers import CONTAINERS, put
from tessera.lang.kernel.control import Control
from tessera.lang.kernel.values import KernelArray, KernelError, TileValue


class PythonValues(Control):
    """Parses expressions that make Python's values, and what they are assigned to."""

    function: Callable[..., Any]  # (source, variables, frame around) -> what the function returns

    # Making values

    def _constant(self, n: ast.Constant) -> Any:
        return n.value

    def _elements(self, nodes: Sequence[ast.expr]) -> list[Any]:
        out: list[Any] = []
        for e in nodes:
            if isinstance(e, ast.Starred):
                out += _several(self.expr(e.value))
            else:
                out.append(self.expr(e))
        return out

    def _tuple(self, n: ast.Tuple) -> tuple[Any, ...]:
        return tuple(self._elements(n.elts))

    def _list(self, n: ast.List) -> list[Any]:
        return self._elements(n.elts)

    def _set(self, n: ast.Set) -> set[Any]:
        return set(self._elements(n.elts))

    def _dict(self, n: ast.Dict) -> dict[Any, Any]:
        out: dict[Any, Any] = {}
        for k, v in zip(n.keys, n.values, strict=True):
            if k is None:
                out.update(self.expr(v))
            else:
                out[self.expr(k)] = self.expr(v)
        return out

    def _listcomp(self, n: ast.ListComp) -> list[Any]:
        return [self.expr(n.elt) for _ in self._turns(n, n.generators)]

    def _setcomp(self, n: ast.SetComp) -> set[Any]:
        return {self.expr(n.elt) for _ in self._turns(n, n.generators)}

    def _generatorexp(self, n: ast.GeneratorExp) -> list[Any]:
        return [self.expr(n.elt) for _ in self._turns(n, n.generators)]

    def _dictcomp(self, n: ast.DictComp) -> dict[Any, Any]:
        return {self.expr(n.key): self.expr(n.value) for _ in self._turns(n, n.generators)}

    def _turns(self, n: ast.expr, loops: Sequence[ast.comprehension]) -> Iterator[None]:
        """The rounds of a comprehension; its names are gone after it, but those that := gives stay."""
        kept = dict(self.frame.variables)
        yield from self._rounds(loops)
        made = self.frame.variables
        named = {x.target.id for x in ast.walk(n) if isinstance(x, ast.NamedExpr)}
        self.frame.variables = {**kept, **{x: made[x] for x in named & made.keys()}}

    def _rounds(self, loops: Sequence[ast.comprehension]) -> Iterator[None]:
        if not loops:
            yield
            return
        first, *rest = loops
        for each in _several(self.expr(first.iter)):
            self.assign(first.target, each)
            if all(self.truth(self.expr(t)) for t in first.ifs):
                yield from self._rounds(rest)

    def _joinedstr(self, n: ast.JoinedStr) -> str:
        return "".join(self.expr(e) for e in n.values)

    def _formattedvalue(self, n: ast.FormattedValue) -> str:
        value = self.expr(n.value)
        if isinstance(value, TileValue):
            raise KernelError(
                f"a text of {value} is known when the kernel runs; tile.print takes tiles beside texts"
            )
        spec = "" if n.format_spec is None else self.expr(n.format_spec)
        return format(_AS_TEXT[n.conversion](value), spec)

    def _namedexpr(self, n: ast.NamedExpr) -> Any:
        value = self.expr(n.value)
        self.assign(n.target, value)
        return value

    # Functions

    def _lambda(self, n: ast.Lambda) -> Closure:
        return self._closure(n)

    def _functiondef(self, s: ast.FunctionDef) -> None:
        if s.decorator_list:
            raise KernelError(f"{s.name} has a decorator; a function within a kernel has none")
        self.frame.variables[s.name] = self._closure(s)

    def _closure(self, n: ast.Lambda | ast.FunctionDef) -> Closure:
        signature = signature_of(n.args, self.expr)
        return Closure(self.frame.source.nested(n), self.frame, signature, self.function)

    # Assigning

    def assign(self, target: ast.expr, value: Any) -> None:
        """Give a name, or several, or an element of a list or dictionary, a value."""
        if isinstance(target, ast.Name):
            self.frame.variables[target.id] = value
        elif isinstance(target, ast.Tuple | ast.List):
            self._take_apart(target.elts, value)
        else:
            owner = self.expr(target.value) if isinstance(target, ast.Subscript) else None
            if isinstance(owner, TileValue | KernelArray) or not isinstance(owner, CONTAINERS):
                raise KernelError("a kernel assigns to names alone; use tile.store for memory")
            assert isinstance(target, ast.Subscript)
            put(owner, self.expr(target.slice), value, self.region)

    def _take_apart(self, targets: Sequence[ast.expr], value: Any) -> None:
        if not isinstance(value, tuple | list):
            raise KernelError(f"{value!r:.60} cannot be taken apart")
        star = next((i for i, t in enumerate(targets) if isinstance(t, ast.Starred)), None)
        if star is None and len(value) != len(targets):
            raise KernelError(f"{len(value)} values for {len(targets)} names")
        if star is None:
            for t, v in zip(targets, value, strict=True):
                self.assign(t, v)
            return
        after = len(targets) - star - 1
        if len(value) < star + after:
            raise KernelError(f"{len(value)} values for at least {star + after} names")
        self._take_apart(targets[:star], value[:star])
        held = targets[star]
        assert isinstance(held, ast.Starred)
        self.assign(held.value, list(value[star : len(value) - after]))
        self._take_apart(targets[star + 1 :], value[len(value) - after :])


def _several(x: Any) -> list[Any]:
    """The elements of a Python value."""
    if isinstance(x, TileValue | KernelArray) or not hasattr(x, "__iter__"):
        raise KernelError(f"{x!r:.60} is not a sequence that Python knows before the kernel runs")
    return list(x)


# What the number of a conversion in the syntax of f-strings means: !s, !r, !a, or none.
_AS_TEXT: dict[int, Callable[[Any], Any]] = {
    ord("s"): str,
    ord("r"): repr,
    ord("a"): ascii,
    -1: lambda x: x,
}
