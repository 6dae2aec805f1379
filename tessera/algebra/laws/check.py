"""The checker: both sides of a law, or of a step of a derivation, evaluated over exact numbers.

An instance draws sizes and numbers at random, small ones, as the law says what is given: an operator
that must be unitary is the Cayley transform of a skew one, a positive one is B.H @ B, and so on.  Both
sides are then matrices of exact numbers, and are equal or not; no tolerance is involved.  A false
equation of polynomials holds at a random point modulo 2^61 - 1 with a chance below its degree / 2^61
(Schwartz and Zippel).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import numpy as np

from tessera.algebra.laws import numbers as exact
from tessera.algebra.laws.datum import Datum, exactly, leaf, symbol
from tessera.algebra.laws.law import Law, LetterFacts
from tessera.algebra.laws.numbers import RATIONALS, Matrix, NoInverse, NumberSystem
from tessera.algebra.laws.pattern import build
from tessera.algebra.operator import Operator
from tessera.algebra.table import IndexTable
from tessera.core.dtype import c128
from tessera.core.errors import NumericalError
from tessera.ops.fft import OPPOSITE

Exact = Callable[[Operator, Sequence[Matrix], Sequence[Matrix], NumberSystem], Matrix]


class LawError(NumericalError):
    """A law, or a step of a derivation, that does not hold."""


def _sum(a: Operator, parts: Sequence[Matrix], data: Any, numbers: NumberSystem) -> Matrix:
    total = parts[0]
    for p in parts[1:]:
        total = total + p
    return total


def _scale(a: Operator, parts: Sequence[Matrix], data: Sequence[Matrix], n: NumberSystem) -> Matrix:
    return np.asarray(parts[0] * (data[0].item() if data else n.of(a.static[0])), object)


def _function(a: Operator, parts: Sequence[Matrix], data: Any, numbers: NumberSystem) -> Matrix:
    return EXACT_FUNCTIONS[a.static[0]](parts[0], numbers)


EXACT_FUNCTIONS = {"exp": exact.exponential, "log": exact.logarithm, "sqrt": exact.square_root}


def _fourier(a: Operator, parts: Any, data: Any, numbers: NumberSystem) -> Matrix:
    sizes, norm, inverse, _ = a.static
    out = numbers.eye(1)
    for n in sizes:
        out = np.kron(out, exact.dft(n, numbers))
    scale = {"backward": 0, "ortho": 1, "forward": 2}[OPPOSITE[norm] if inverse else norm]
    factor = numbers.of(1)
    for n in sizes:
        root = numbers.sqrt(n) if scale == 1 else numbers.of(n if scale == 2 else 1)
        factor = factor * root
    out = out * factor.inverse()
    return exact.conjugate(out) if inverse else out


# Kinds whose matrix needs more than sums and products of what they hold.
EXACT: dict[str, Exact] = {
    "plus": _sum,
    "scale": _scale,
    "eye": lambda a, parts, data, n: n.eye(a.shape[0]),
    "zero": lambda a, parts, data, n: n.zeros(*a.shape),
    "compose": lambda a, parts, data, n: exact.product(parts[0], parts[1], n),
    "inverse": lambda a, parts, data, n: exact.inverse(parts[0], n),
    "pseudoinverse": lambda a, parts, data, n: exact.pseudoinverse(parts[0], n),
    "function": _function,
    "fft": _fourier,
}


def matrix(
    a: Operator,
    numbers: NumberSystem,
    given: dict[Any, Matrix],
    memo: dict[int, Matrix] | None = None,
) -> Matrix:
    """The matrix of an operator over exact numbers; `given` holds those of data and of operators."""
    memo = {} if memo is None else memo
    found = memo.get(id(a))
    if found is None:
        found = given[a] if a in given else np.asarray(_matrix(a, numbers, given, memo), object)
        assert found.shape == a.shape, (a.kind, found.shape, a.shape)
        memo[id(a)] = found
    return found


def _matrix(
    a: Operator, numbers: NumberSystem, given: dict[Any, Matrix], memo: dict[int, Matrix]
) -> Matrix:
    parts = [matrix(p, numbers, given, memo) for p in a.parts]
    data = [exactly(leaf(d), numbers, given) for d in a.data]
    rule = EXACT.get(a.kind)
    if rule is not None:
        return rule(a, parts, data, numbers)
    assert a.record.exact is not None, f"{a.kind} has no exact matrix"
    found = np.asarray(a.record.exact(a, parts, data), object)
    return np.asarray(np.frompyfunc(numbers.met, 1, 1)(found), object) if found.size else found


def equal(x: Matrix, y: Matrix) -> bool:
    """Whether all elements are equal."""
    return x.shape == y.shape and bool(np.all(x == y))


# Instances --------------------------------------------------------------------------------------


def random_array(numbers: NumberSystem, rng: Random, *shape: int, real: bool = False) -> Matrix:
    """An array of small random numbers."""
    out = np.empty(shape, object)
    for at in np.ndindex(shape):
        out[at] = numbers.random(rng, real=real)
    return out


def random_matrix(
    numbers: NumberSystem, rng: Random, m: int, n: int, words: frozenset[str]
) -> Matrix:
    """A random matrix that has the flags."""
    if "near" in words:
        return numbers.eye(m) + random_matrix(numbers, rng, m, n, words - {"near"} | {"small"})
    if "small" in words:
        return exact.times_t(random_matrix(numbers, rng, m, n, words - {"small"}))
    return _patterned(numbers, rng, m, n, words)


def _patterned(numbers: NumberSystem, rng: Random, m: int, n: int, words: frozenset[str]) -> Matrix:
    """Matrices that have zeros, or one element in several places; the others follow."""
    real = "real" in words or "symmetric" in words
    a = random_array(numbers, rng, m, n, real=real)
    if "permutation" in words:
        return numbers.eye(m)[rng.sample(range(m), m)]
    if "diagonal" in words:
        return _masked(a, np.eye(m, n, dtype=bool), numbers)
    if "triangular_lower" in words:
        return _masked(a, np.tril(np.ones((m, n), bool)), numbers)
    if "triangular_upper" in words:
        return _masked(a, np.triu(np.ones((m, n), bool)), numbers)
    if "circulant" in words:
        return np.array([[a[(i - j) % m, 0] for j in range(m)] for i in range(m)], object)
    return _related(numbers, rng, a, words)


def _related(numbers: NumberSystem, rng: Random, a: Matrix, words: frozenset[str]) -> Matrix:
    """Matrices whose elements are tied by an equation."""
    (m, n), real = a.shape, "real" in words
    if "projector" in words:
        return _projector(random_array(numbers, rng, m, max(m - 1, 1), real=real), numbers)
    if "unitary" in words:
        return _cayley(a, numbers)
    if "orthogonal_columns" in words:
        if n > m:
            raise NoInverse("more columns than rows are not orthogonal")
        return _cayley(random_array(numbers, rng, m, m, real=real), numbers)[:, :n]
    if "positive" in words:
        return exact.product(exact.conjugate(a.T), a, numbers)
    if "self_adjoint" in words:
        return a + exact.conjugate(a.T)
    return a + a.T if "symmetric" in words else a


def _masked(a: Matrix, mask: Any, numbers: NumberSystem) -> Matrix:
    return np.where(mask, a, numbers.of(0))


def _cayley(a: Matrix, numbers: NumberSystem) -> Matrix:
    """(1 - S) / (1 + S) for skew S is unitary (Cayley)."""
    skew, one = a - exact.conjugate(a.T), numbers.eye(len(a))
    return exact.product(one - skew, exact.inverse(one + skew, numbers), numbers)


def _projector(u: Matrix, numbers: NumberSystem) -> Matrix:
    h = exact.conjugate(u.T)
    inner = exact.inverse(exact.product(h, u, numbers), numbers)
    return exact.product(exact.product(u, inner, numbers), h, numbers)


class LawInstance:
    """The letters of a law, drawn at random."""

    def __init__(self, law: Law, numbers: NumberSystem, rng: Random, order: int):
        self.numbers, self.rng = numbers, rng
        self.bound: dict[str, Any] = {"n": order} if order else {}
        self.given: dict[Datum, Matrix] = {}
        for g in law.given:
            self.bound[g.name] = self._letter(g)

    def _size(self, name: str | int) -> int:
        if isinstance(name, int):
            return name
        if name == "l":  # beside the diagonal of n
            return self._size("n") - 1
        if name == "z":  # diagonals of m by n, or of n by n
            return int(self.bound.get("m", self.bound["n"]) + self.bound["n"] - 1)
        size: int = self.bound.setdefault(name, self.rng.randint(1, 3))
        return size

    def _letter(self, g: LetterFacts) -> Any:
        if "int" in g.words:
            return self.rng.randint(1, 3)
        if g.words & {"grid", "offset", "kernel"}:
            return self._of_grid(g)
        sizes = [self._size(s) for s in g.sizes]
        if g.words & {"transform", "line"}:
            return self._transform(sizes[0], g.words)
        if "index" in g.words:
            return IndexTable([self.rng.randrange(sizes[1]) for _ in range(sizes[0])])
        if "table" in g.words:
            return IndexTable(self.rng.sample(range(sizes[0]), sizes[0]))
        datum = symbol(g.name, tuple(sizes), c128)
        if g.is_operator:
            m, n = sizes
            self.given[datum] = random_matrix(self.numbers, self.rng, m, n, g.words)
            return Operator("dense", data=(datum,)).assume(*g.flags)  # type: ignore[arg-type]
        a = random_array(self.numbers, self.rng, *sizes, real="real" in g.words)
        self.given[datum] = exact.times_t(a) if "small" in g.words else a
        return datum

    def _of_grid(self, g: LetterFacts) -> Any:
        """The sizes of a grid s, an offset on it, or a kernel for it."""
        if "grid" in g.words:
            return tuple(self.rng.randint(1, 3) for _ in range(self.rng.randint(1, 2)))
        draw = tuple(self.rng.randint(1, 3) for _ in self.bound["s"])
        if "offset" in g.words:
            return tuple(k - 1 for k in draw)
        datum = symbol(g.name, draw, c128)
        self.given[datum] = random_array(self.numbers, self.rng, *draw)
        return datum

    def _transform(self, n: int, words: frozenset[str]) -> Any:
        parts = [k for k in range(2, n) if n % k == 0 and "line" not in words]
        k = self.rng.choice((1, *parts))
        sizes = (n,) if k == 1 else (k, n // k)
        norm = self.rng.choice(("backward", "ortho", "forward"))
        return sizes, norm, "back" in words or ("to" not in words and self.rng.random() < 0.5)


def systems(law: Law, rng: Random) -> list[tuple[NumberSystem, int]]:
    """The number systems in which to check a law, each with the order of its roots of unity."""
    if law.numbers == "roots":
        n = rng.choice((2, 3, 4, 5, 6, 8))
        return [(exact.with_roots(n), n)]
    if law.numbers == "series":
        return [(exact.series(exact.modulo()), 0)]
    return [(RATIONALS, 0), (exact.modulo(), 0)]


def prove(law: Law, trials: int = 4, seed: int = 0) -> int:
    """Check a law on random instances; how many were decided.  LawError when one fails."""
    rng = Random(seed)
    decided = 0
    for _ in range(trials):
        for numbers, order in systems(law, rng):
            try:
                holds(law, numbers, rng, order)
            except NoInverse:
                continue
            decided += 1
    return decided


def holds(law: Law, numbers: NumberSystem, rng: Random, order: int = 0) -> None:
    """Check one random instance."""
    drawn = LawInstance(law, numbers, rng, order)
    left, right = (build(side, drawn.bound, c128) for side in law.sides)
    memo: dict[int, Matrix] = {}
    x, y = (matrix(side, numbers, drawn.given, memo) for side in (left, right))
    if not equal(x, y):
        sizes = {k: v for k, v in drawn.bound.items() if isinstance(v, int)}
        raise LawError(f"{law} does not hold over {numbers.name} with {sizes}: {x} is not {y}")
