"""What tracing learns about symbolic sizes: facts that it may use, guards that a call must pass.

While a function is traced a Scope is open.  Where an op needs two sizes to agree and the
polynomials do not settle it, the scope records an equation with its reason and the user's line,
orients it as a substitution when it can, and a call checks it as a guard.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tessera.core.dims import DECISIONS, Dim, Shape, Size, Symbol, bounds, substitute, symbols
from tessera.core.errors import ShapeError
from tessera.core.source import Location, caller

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


@dataclass(frozen=True)
class Guard:
    """A relation between sizes that a call must satisfy."""

    kind: str  # "equal", "divisible" or "at_least"
    left: Size
    right: Size
    reason: str
    location: Location | None = None

    def holds(self, env: Mapping[str, int]) -> bool:
        left, right = substitute(self.left, env), substitute(self.right, env)
        if self.kind == "equal":
            return left == right
        return left % right == 0 if self.kind == "divisible" else bool(left >= right)

    def __str__(self) -> str:
        relation = {"equal": "==", "divisible": "is a multiple of", "at_least": ">="}[self.kind]
        return f"{self.left} {relation} {self.right}"


@dataclass
class Scope:
    """Facts and guards of one trace."""

    equal: dict[str, Size] = field(default_factory=dict)
    guards: list[Guard] = field(default_factory=list)

    @staticmethod
    def of(guards: Iterable[Guard], around: Scope | None = None) -> Scope:
        """A scope of its own in which these guards, and those of the scope around, hold."""
        made = Scope() if around is None else Scope(dict(around.equal), list(around.guards))
        for g in guards:
            made.guards.append(g)
            if g.kind == "equal":
                made._orient(made.normal(g.left), made.normal(g.right))
        return made

    def normal(self, x: Size) -> Size:
        """x under the equations known so far."""
        return substitute(x, self.equal) if isinstance(x, Dim) and self.equal else x

    def same(self, a: Size, b: Size) -> bool | None:
        """Whether two sizes are equal; None when that depends on the call."""
        if a == b:
            return True
        difference = self.normal(a) - self.normal(b)
        low, high = bounds(difference)
        if low == high == 0:
            return True
        return False if low > 0 or high < 0 else None

    def require(self, kind: str, a: Size, b: Size, reason: str) -> None:
        """Record a guard; an equation with a lone symbol also becomes a fact."""
        guard = Guard(kind, a, b, reason, caller())
        if any((g.kind, g.left, g.right) == (kind, a, b) for g in self.guards):
            return
        self.guards.append(guard)
        if kind == "equal":
            self._orient(self.normal(a), self.normal(b))

    def _orient(self, a: Size, b: Size) -> None:
        for x, y in ((b, a), (a, b)):
            name = lone_symbol(x)
            if name is not None and name not in symbols(y):
                self.equal = {k: substitute(v, {name: y}) for k, v in self.equal.items()}
                self.equal[name] = y
                return


def lone_symbol(x: Size) -> str | None:
    """The name when x is a single symbol."""
    if isinstance(x, Dim) and len(x.terms) == 1:
        (m, c) = x.terms[0]
        if c == 1 and len(m) == 1 and m[0][1] == 1 and isinstance(m[0][0], Symbol):
            return m[0][0].name
    return None


class _TraceState(threading.local):
    scopes: tuple[Scope, ...] = ()


_STATE = _TraceState()


@contextmanager
def scope(new: Scope) -> Iterator[Scope]:
    """Collect facts and guards in `new` while the block runs."""
    before, deciding = _STATE.scopes, DECISIONS.same
    _STATE.scopes, DECISIONS.same = (*before, new), new.same
    try:
        yield new
    finally:
        _STATE.scopes, DECISIONS.same = before, deciding


def current_scope() -> Scope:
    """The innermost open scope; where none is open, one that nobody reads again."""
    return _STATE.scopes[-1] if _STATE.scopes else Scope()


def same(a: Size, b: Size) -> bool | None:
    """Whether two sizes are equal; None when that depends on the call."""
    if isinstance(a, int) and isinstance(b, int):
        return a == b
    return current_scope().same(a, b)


def unify(a: Size, b: Size, reason: str) -> bool:
    """Make two sizes equal: False when they cannot be, a guard when it depends on the call."""
    known = same(a, b)
    if known is None:
        current_scope().require("equal", a, b, reason)
    return known is not False


def require(kind: str, a: Size, b: Size, reason: str) -> bool:
    """Demand `divisible` or `at_least` of two sizes: False when it cannot hold."""
    if isinstance(a, int) and isinstance(b, int):
        return Guard(kind, a, b, reason).holds({})
    if kind == "at_least":
        low, high = bounds(current_scope().normal(a) - b)
        if low >= 0 or high < 0:
            return low >= 0
    if kind == "divisible" and a % b == 0:
        return True
    current_scope().require(kind, a, b, reason)
    return True


def solve(
    shapes: Sequence[tuple[str, Shape, tuple[int, ...]]], guards: Sequence[Guard]
) -> dict[str, int]:
    """The value of every symbol, from (name, symbolic shape, actual shape) of each argument.

    Raises the error that names the axis, both values and where the first one came from.
    """
    env: dict[str, int] = {}
    witness: dict[str, str] = {}
    pending: list[tuple[str, Dim, int]] = []
    for name, shape, actual in shapes:
        if len(shape) != len(actual):
            raise ShapeError(
                f"{name} has rank {len(actual)} {list(actual)}, expected rank {len(shape)} "
                f"[{', '.join(map(str, shape))}]"
            )
        for axis, (size, n) in enumerate(zip(shape, actual, strict=True)):
            if isinstance(size, Dim):
                pending.append((f"axis {axis} of {name}", size, n))
            elif size != n:
                raise ShapeError(f"axis {axis} of {name} is {n}, expected {size}")
    pending.sort(key=lambda p: lone_symbol(p[1]) is None)
    for where, size, n in pending:
        _bind_size(where, size, n, env, witness)
    for g in guards:
        if not g.holds(env):
            values = ", ".join(
                f"{s} = {env[s]} from {witness[s]}"
                for s in sorted(symbols(g.left) | symbols(g.right))
            )
            raise ShapeError(f"{g.reason}: needs {g}, but {values}").at(g.location)
    return env


def _bind_size(where: str, size: Dim, n: int, env: dict[str, int], witness: dict[str, str]) -> None:
    rest = substitute(size, env)
    if rest == n:
        return
    if isinstance(rest, int):
        known = ", ".join(f"{s} = {env[s]} from {witness[s]}" for s in sorted(symbols(size)))
        raise ShapeError(f"{where} is {n}, but {size} is {rest} ({known})")
    value = _solve_linear(rest, n)
    if value is None and not _is_linear(rest):
        names = ", ".join(sorted(symbols(rest)))
        raise ShapeError(
            f"{where} is {n}, but {names} does not follow from {size}; name {names} on another axis, "
            "or give this axis a name of its own"
        )
    if value is None:
        raise ShapeError(f"{where} is {n}, which is no value of {size}")
    env[value[0]], witness[value[0]] = value[1], where


def _is_linear(size: Dim) -> bool:
    """Whether a size is a multiple of one symbol and a number: k N + c."""
    names = symbols(size)
    at = [substitute(size, dict.fromkeys(names, i)) for i in range(3)]
    return len(names) == 1 and at[2] - at[1] == at[1] - at[0] != 0


def _solve_linear(size: Dim, n: int) -> tuple[str, int] | None:
    """The symbol and its value that make k*symbol + c equal to n."""
    names = symbols(size)
    if len(names) != 1:
        return None
    (name,) = names
    c = substitute(size, {name: 0})
    k = substitute(size, {name: 1}) - c
    if not isinstance(c, int) or not isinstance(k, int) or k == 0 or (n - c) % k:
        return None
    value = (n - c) // k
    return (name, value) if value >= 1 and substitute(size, {name: value}) == n else None
