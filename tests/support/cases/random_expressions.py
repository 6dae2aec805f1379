"""Random expressions of operators over every constructor and combinator, beside the same with NumPy and
SciPy.

A row of the table writes one constructor twice, as text: for operators and for matrices.  `{0}`, `{1}` ...
are tensors of the expression, `{A}`, `{B}` ... its parts.  An expression is drawn with the shapes that are
asked for, so every part fits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

import numpy as np
import scipy.fft
import scipy.linalg
import scipy.sparse

import tessera as ts
from tessera import op

Array = np.ndarray[Any, Any]
Shape = tuple[int, int]
SIZES = (1, 2, 3, 4, 5, 6)


@dataclass(frozen=True)
class Draw:
    """What rows draw from: numbers of one dtype."""

    rng: Random
    complex: bool

    def array(self, *shape: int) -> Array:
        r = np.random.default_rng(self.rng.randrange(2**32))
        x = r.normal(size=shape)
        return x + 1j * r.normal(size=shape) if self.complex else x

    def real(self, *shape: int) -> Array:
        return np.random.default_rng(self.rng.randrange(2**32)).normal(size=shape)


Arrays = Callable[[Draw, int, int], Sequence[Array]]
Parts = Callable[[Draw, int, int], Sequence[Shape] | None]


@dataclass(frozen=True)
class Row:
    """One constructor or combinator."""

    operator: str
    matrix: str
    fits: Callable[[int, int], bool] = lambda m, n: True
    arrays: Arrays = lambda d, m, n: ()
    parts: Parts = lambda d, m, n: ()
    static: Callable[[Draw, int, int], dict[str, Any]] = lambda d, m, n: {}
    real: bool = False  # only for real numbers
    complex: bool = False  # only for complex ones
    asks: Callable[..., bool] = lambda *matrices: True  # of the matrices of its parts


@dataclass(frozen=True)
class Expression:
    """A row with what was drawn for it."""

    name: str
    shape: Shape
    arrays: tuple[Array, ...] = ()
    parts: tuple[Expression, ...] = ()
    static: dict[str, Any] = field(default_factory=dict)

    @property
    def row(self) -> Row:
        return ROWS[self.name]

    def every_array(self) -> list[Array]:
        return [*self.arrays, *(x for p in self.parts for x in p.every_array())]

    def walk(self) -> Iterator[Expression]:
        yield self
        for p in self.parts:
            yield from p.walk()

    def text(self, matrix: bool = False, first: int = 0) -> str:
        """The expression in Python; tensors are x[first], x[first + 1] ..."""
        own = [f"x[{first + i}]" for i in range(len(self.arrays))]
        first += len(own)
        parts = {}
        for letter, p in zip("ABCD", self.parts, strict=False):
            parts[letter] = f"({p.text(matrix, first)})"
            first += len(p.every_array())
        m, n = self.shape
        template = self.row.matrix if matrix else self.row.operator
        return template.format(*own, m=m, n=n, **parts, **self.static)

    def operator(self, xs: Sequence[Any]) -> Any:
        dtype = ts.c128 if any(np.iscomplexobj(x) for x in self.every_array()) else ts.f64
        return eval(self.text(), {**OPERATORS, "x": xs, "dtype": dtype})

    def matrix(self, xs: Sequence[Any]) -> Array:
        return np.asarray(eval(self.text(matrix=True), {**MATRICES, "x": xs}))


# The two worlds -----------------------------------------------------------------------------------

OPERATORS = {"op": op, "ts": ts, "np": np}


def _columns(f: Callable[[Array], Array], n: int) -> Array:
    return np.stack([np.asarray(f(e)).ravel() for e in np.eye(n)], 1)


def _toeplitz(c: Array, r: Array) -> Array:
    return np.array(
        [[c[i - j] if i >= j else r[j - i] for j in range(len(r))] for i in range(len(c))]
    )


def _periodic(w: Array, sizes: Any) -> Array:
    sizes = tuple(sizes)
    out = np.zeros((*sizes, *sizes), w.dtype)
    for j in np.ndindex(sizes):
        for q in np.ndindex(w.shape):
            i = tuple(
                (b + k - (s - 1) // 2) % n for b, k, s, n in zip(j, q, w.shape, sizes, strict=True)
            )
            out[(*i, *j)] += w[q]
    return out.reshape(math.prod(sizes), math.prod(sizes))


def _convolution(w: Array, sizes: Any, mode: str) -> Array:
    sizes = tuple(sizes)
    return _columns(lambda e: _convolved(e.reshape(sizes), w, mode), math.prod(sizes))


def _convolved(e: Array, w: Array, mode: str) -> Array:
    full = np.zeros(
        [a + b - 1 for a, b in zip(e.shape, w.shape, strict=True)], np.result_type(e, w)
    )
    for q in np.ndindex(w.shape):
        full[tuple(slice(k, k + n) for k, n in zip(q, e.shape, strict=True))] += w[q] * e
    if mode == "full":
        return full
    if mode == "same":
        return full[
            tuple(
                slice((k - 1) // 2, (k - 1) // 2 + n) for k, n in zip(w.shape, e.shape, strict=True)
            )
        ]
    return full[tuple(slice(k - 1, n) for k, n in zip(w.shape, e.shape, strict=True))]


def _laplacian(n: int, boundary: str) -> Array:
    m = -2 * np.eye(n) + np.eye(n, k=1) + np.eye(n, k=-1)
    if boundary == "periodic":
        m[0, -1] += 1
        m[-1, 0] += 1
    if boundary == "neumann":
        m[0, 0] += 1
        m[-1, -1] += 1
    return m


def _projector(u: Array) -> Array:
    return u @ np.linalg.solve(u.conj().T @ u, u.conj().T)


def _signm(m: Array) -> Array:
    for _ in range(60):
        m = (m + np.linalg.inv(m)) / 2
    return m


def _of_values(f: Callable[[Array], Array], m: Array) -> Array:
    w, v = np.linalg.eigh((m + m.conj().T) / 2)
    return (v * f(w)) @ v.conj().T


def _log(m: Array) -> Array:
    """By a root near the identity, so that differences of it are smooth to the last digits."""
    r = m
    for _ in range(6):
        r = _root(r)
    one = np.eye(len(m))
    x = (r - one) @ np.linalg.inv(r + one)
    out, power = 0 * x, x
    for k in range(25):
        out, power = out + power / (2 * k + 1), power @ x @ x
    return 128 * out


def _root(m: Array) -> Array:
    y, z = m, np.eye(len(m))
    for _ in range(40):
        y, z = (y + np.linalg.inv(z)) / 2, (z + np.linalg.inv(y)) / 2
    return y


MATRICES = {
    "np": np, "sl": scipy.linalg, "sf": scipy.fft, "kron": np.kron, "inv": np.linalg.inv,
    "toeplitz": _toeplitz,
    "periodic": _periodic, "convolution": _convolution, "laplacian": _laplacian, "projector": _projector,
    "signm": _signm, "of_values": _of_values, "log": _log, "root": _root, "pinv": np.linalg.pinv,
    "H": lambda a: a.conj().T, "I": np.eye, "block_diag": scipy.linalg.block_diag, "columns": _columns,
    "power": np.linalg.matrix_power,
}  # fmt: skip


# The table ----------------------------------------------------------------------------------------


def _square(m: int, n: int) -> bool:
    return m == n


def _one(*shapes: Shape) -> Parts:
    return lambda d, m, n: shapes


def _like(d: Draw, m: int, n: int) -> Sequence[Shape]:
    return ((m, n),)


def _two(d: Draw, m: int, n: int) -> Sequence[Shape]:
    return ((m, n), (m, n))


def _tall(d: Draw, m: int, n: int) -> Sequence[Array]:
    return (d.array(m, d.rng.randint(1, m)),)


def _chain(d: Draw, m: int, n: int) -> Sequence[Shape]:
    k = d.rng.choice(SIZES)
    return ((m, k), (k, n))


def _cut(d: Draw, m: int, n: int) -> Sequence[Shape] | None:
    p = [k for k in range(1, m + 1) if m % k == 0]
    q = [k for k in range(1, n + 1) if n % k == 0]
    a, b = d.rng.choice(p), d.rng.choice(q)
    return ((a, b), (m // a, n // b))


def _square_cut(d: Draw, m: int, n: int) -> Sequence[Shape]:
    k = d.rng.choice([k for k in range(1, m + 1) if m % k == 0])
    return ((k, k), (m // k, m // k))


def _halves(d: Draw, m: int, n: int) -> Sequence[Shape]:
    a, b = d.rng.randint(1, m - 1), d.rng.randint(1, n - 1)
    return ((a, b), (m - a, n - b))


def _square_halves(d: Draw, m: int, n: int) -> Sequence[Shape]:
    a = d.rng.randint(1, m - 1)
    return ((a, a), (m - a, m - a))


def _grid(d: Draw, m: int, n: int) -> Sequence[Shape]:
    a, b = d.rng.randint(1, m - 1), d.rng.randint(1, n - 1)
    return ((a, b), (a, n - b), (m - a, b), (m - a, n - b))


def _at_least(k: int) -> Callable[[int, int], bool]:
    return lambda m, n: m >= k and n >= k


def _square_at_least(k: int) -> Callable[[int, int], bool]:
    return lambda m, n: m == n >= k


def _regular(a: Array) -> bool:
    return bool(np.linalg.cond(a) < 30)


def _on_the_right(a: Array) -> bool:
    w, size = np.linalg.eigvals(a), np.linalg.norm(a, 2)
    return bool(np.all(w.real > 0.2) and size < 20 and np.linalg.cond(a) < 30)


def _split(a: Array) -> bool:
    w = np.linalg.eigvals(a)
    return bool(
        np.all(np.abs(w.real) > 0.3) and np.linalg.cond(a) < 30 and np.linalg.norm(a, 2) < 20
    )


def _small(a: Array) -> bool:
    return bool(np.linalg.norm(a, 2) < 4)


def _full_rank(a: Array) -> bool:
    s = np.linalg.svd(a, compute_uv=False)
    return bool(s[-1] > 0.1 * s[0] > 0)


def _boundary(d: Draw, m: int, n: int) -> dict[str, Any]:
    return {"boundary": d.rng.choice(("dirichlet", "neumann", "periodic"))}


def _sizes(d: Draw, m: int, n: int) -> dict[str, Any]:
    k = d.rng.choice([k for k in range(1, n + 1) if n % k == 0])
    return {"sizes": (k, n // k)}


def _pattern(d: Draw, m: int, n: int) -> dict[str, Any]:
    places = sorted(d.rng.sample(range(m * n), d.rng.randint(1, min(m * n, 8))))
    rows = [p // n for p in places]
    starts = [sum(r < i for r in rows) for i in range(m + 1)]
    return {"cols": [p % n for p in places], "starts": starts, "rows": rows}


ROWS: dict[str, Row] = {
    "eye": Row("op.eye({n}, dtype)", "I({n})", _square),
    "zero": Row("op.zero({m}, {n}, dtype)", "np.zeros(({m}, {n}))"),
    "dense": Row("op.dense({0})", "{0}", arrays=lambda d, m, n: (d.array(m, n),)),
    "regular": Row(
        "op.dense({0})", "{0}", _square, arrays=lambda d, m, n: (d.array(n, n) / n + 2 * np.eye(n),)
    ),
    "held": Row(
        "op.dense(({0} + op.conj({0}).T) / 2, flags=('self_adjoint',))", "({0} + H({0})) / 2", _square,
        arrays=lambda d, m, n: (d.array(n, n),),
    ),
    "positive": Row(
        "op.dense({0} @ op.conj({0}).T + 0.5 * np.eye({n}), flags=('positive',))",
        "{0} @ H({0}) + 0.5 * I({n})", _square,
        arrays=lambda d, m, n: (d.array(n, n) / n**0.5,),
    ),
    "diag": Row("op.diag({0})", "np.diag({0})", _square, lambda d, m, n: (d.array(n) + 2,)),
    "tridiagonal": Row(
        "op.tridiagonal({0}, {1}, {2})", "np.diag({0}, -1) + np.diag({1}) + np.diag({2}, 1)",
        _square_at_least(2),
        lambda d, m, n: (d.array(n - 1), d.array(n) + 4, d.array(n - 1)),
    ),
    "lower": Row("op.triangular({0})", "np.tril({0})", _square, lambda d, m,
    n: (d.array(n, n) + 2 * np.eye(n),)),
    "upper": Row(
        "op.triangular({0}, lower=False)", "np.triu({0})", _square, lambda d, m,
        n: (d.array(n, n) + 2 * np.eye(n),)
    ),
    "unit": Row(
        "op.triangular({0}, unit_diagonal=True)", "np.tril({0}, -1) + I({n})", _square,
        lambda d, m, n: (d.array(n, n),),
    ),
    "permutation": Row(
        "op.permutation({p}, dtype)", "I({n})[{p}]", _square,
        static=lambda d, m, n: {"p": d.rng.sample(range(n), n)},
    ),
    "select": Row(
        "op.select({p}, {n}, dtype)", "I({n})[{p}]",
        static=lambda d, m, n: {"p": [d.rng.randrange(n) for _ in range(m)]},
    ),
    "projector": Row("op.projector({0})", "projector({0})", _square, _tall),
    "low_rank": Row(
        "op.low_rank({0}, {1})", "{0} @ H({1})",
        arrays=lambda d, m, n: (d.array(m, 2), d.array(n, 2)),
    ),
    "low_rank with a middle": Row(
        "op.low_rank({0}, {1}, {2})", "({0} * {2}) @ H({1})",
        arrays=lambda d, m, n: (d.array(m, 2), d.array(n, 2), d.array(2)),
    ),
    "low_rank of one": Row("op.low_rank({0})", "{0} @ H({0})", _square, lambda d, m, n: (d.array(n, 1),)),
    "fft": Row("op.fft({n}, dtype=dtype)", "sf.fft(I({n}), axis=0)", _square, complex=True),
    "ifft": Row("op.ifft({n}, 'ortho', dtype)", "sf.ifft(I({n}), axis=0, norm='ortho')", _square,
    complex=True),
    "fft of a grid": Row(
        "op.fft({sizes}, dtype=dtype)", "columns(lambda e: sf.fftn(e.reshape({sizes})), {n})", _square,
        static=_sizes,
        complex=True,
    ),
    "dct": Row(
        "op.dct({n}, {kind}, 'ortho', dtype)", "sf.dct(I({n}), {kind}, axis=0, norm='ortho')",
        _square_at_least(2),
        static=lambda d, m, n: {"kind": d.rng.randint(1, 4)},
    ),
    "idct": Row("op.idct({n}, dtype=dtype)", "sf.idct(I({n}), axis=0)", _square),
    "conv1d": Row(
        "op.conv1d({0}, {n}, mode={mode!r})", "convolution({0}, ({n},), {mode!r})", _square,
        lambda d, m, n: (d.array(d.rng.randint(1, 4)),), static=lambda d, m, n: {"mode": "same"},
    ),
    "conv1d full": Row(
        "op.conv1d({0}, {n}, mode='full')", "convolution({0}, ({n},), 'full')", lambda m, n: m >= n,
        lambda d, m, n: (d.array(m - n + 1),),
    ),
    "conv1d valid": Row(
        "op.conv1d({0}, {n}, mode='valid')", "convolution({0}, ({n},), 'valid')", lambda m, n: m <= n,
        lambda d, m, n: (d.array(n - m + 1),),
    ),
    "conv1d periodic": Row(
        "op.conv1d({0}, {n}, boundary='periodic')", "periodic({0}, ({n},))", _square,
        lambda d, m, n: (d.array(d.rng.randint(1, 7)),),
    ),
    "conv2d": Row(
        "op.conv2d({0}, {sizes})", "convolution({0}, {sizes}, 'same')", _square,
        lambda d, m, n: (d.array(d.rng.randint(1, 3), d.rng.randint(1, 3)),), static=_sizes,
    ),
    "conv2d periodic": Row(
        "op.conv2d({0}, {sizes}, boundary='periodic')", "periodic({0}, {sizes})", _square,
        lambda d, m, n: (d.array(d.rng.randint(1, 3), d.rng.randint(1, 3)),), static=_sizes,
    ),
    "toeplitz": Row(
        "op.toeplitz({0}, {1})", "toeplitz({0}, {1})", arrays=lambda d, m, n: (d.array(m), d.array(n))
    ),
    "toeplitz of one": Row("op.toeplitz({0})", "toeplitz({0}, {0}.conj())", _square, lambda d, m,
    n: (d.array(n),)),
    "circulant": Row("op.circulant({0})", "sl.circulant({0})", _square, lambda d, m, n: (d.array(n),)),
    "sparse": Row(
        "op.sparse(({0}, {cols}, {starts}), shape=({m}, {n}))",
        "(lambda out: [out.__setitem__((i, j), v) for i, j, v in zip({rows}, {cols}, {0})] and "
        "out)(np.zeros(({m}, {n}), {0}.dtype))",
        arrays=lambda d, m, n: (), static=_pattern,
    ),
    "stencil": Row(
        "{0} * op.stencil({{-1: 1.0, 0: -2.0, 1: 1.0}}, {n}, {boundary!r}, dtype)",
        "{0} * laplacian({n}, {boundary!r})",
        _square_at_least(2), lambda d, m, n: (d.array(),), static=_boundary,
    ),
    "laplacian": Row(
        "op.laplacian({n}, boundary={boundary!r}, dtype=dtype)", "laplacian({n}, {boundary!r})",
        _square_at_least(2),
        static=_boundary,
    ),
    "differences": Row(
        "op.divergence({n}, dtype=dtype) @ op.diag({0}) @ op.gradient({n}, dtype=dtype)",
        "-np.diff(I({n} + 2), axis=0)[:, 1:-1].T @ np.diag({0}) @ np.diff(I({n} + 2), axis=0)[:, 1:-1]",
        _square,
        lambda d, m, n: (d.array(n + 1),),
    ),
    "from_matvec": Row(
        "op.from_matvec(lambda v, w: w @ v, ({m}, {n}), dtype=dtype, params={0})", "{0}",
        arrays=lambda d, m, n: (d.array(m, n),),
    ),
    "from_matvec of a closure": Row(
        "(lambda w: op.from_matvec(lambda v: 2 * (w @ v), ({m}, {n}), dtype=dtype))({0})", "2 * {0}",
        arrays=lambda d, m, n: (d.array(m, n),),
    ),
    "jacobian": Row(
        "(lambda w, v: op.jacobian(lambda u: op.sin(w @ u), v))({0}, {1})",
        "np.cos({0} @ {1})[:, None] * {0}",
        arrays=lambda d, m, n: (d.array(m, n), d.array(n) / 3),
    ),
    "hessian": Row(
        "(lambda w, v: op.hessian(lambda u: op.sum(op.sin(w @ u)), v))({0}, {1})",
        "-({0}.T * np.sin({0} @ {1})) @ {0}", _square, lambda d, m, n: (d.array(2, n), d.array(n) / 3),
        real=True,
    ),
    # Combinators
    "plus": Row("({A} + {B})", "({A} + {B})", parts=_two),
    "minus": Row("({A} - {B})", "({A} - {B})", parts=_two),
    "and a multiple of the identity": Row(
        "({A} + {0} * op.eye({n}, dtype))", "({A} + {0} * I({n}))", _square, lambda d, m, n: (d.real(),),
        _like
    ),
    "with a matrix": Row("({A} + {0})", "({A} + {0})", arrays=lambda d, m, n: (d.array(m, n),), parts=_like),
    "scale": Row(
        "({c} * {A})", "({c} * {A})", parts=_like,
        static=lambda d, m, n: {"c": d.rng.choice((2, -1, 0.5, -0.3, 0))},
    ),
    "scale by a tensor": Row("({0} * {A})", "({0} * {A})", arrays=lambda d, m, n: (d.array(),), parts=_like),
    "divide": Row("({A} / {0})", "({A} / {0})", arrays=lambda d, m, n: (d.real() + 4.0,), parts=_like),
    "compose": Row("({A} @ {B})", "({A} @ {B})", parts=_chain),
    "twice": Row("(lambda a: a @ a)({A})", "(lambda a: a @ a)({A})", _square, parts=_like),
    "gram": Row(
        "(lambda a: a.H @ a)({A})", "(lambda a: H(a) @ a)({A})", _square,
        parts=lambda d, m, n: ((d.rng.choice(SIZES), n),),
    ),
    "like terms": Row("(lambda a: a + 3 * a)({A})", "4 * {A}", parts=_like),
    "common factor": Row(
        "(lambda a: a @ {B} + a @ {C})({A})", "(lambda a: a @ {B} + a @ {C})({A})",
        parts=lambda d, m, n: ((m, 3), (3, n), (3, n)),
    ),
    "adjoint": Row("{A}.H", "H({A})", parts=lambda d, m, n: ((n, m),)),
    "transpose": Row("{A}.T", "({A}).T", parts=lambda d, m, n: ((n, m),)),
    "conj": Row("{A}.conj()", "({A}).conj()", parts=_like),
    "power": Row(
        "({A} ** {k})", "power({A}, {k})", _square, parts=_like, static=lambda d, m,
        n: {"k": d.rng.choice((0, 2, 3))}
    ),
    "negative power": Row("({A} ** -2)", "inv({A} @ {A})", _square, parts=_like, asks=_regular),
    "kronecker": Row("op.kronecker({A}, {B})", "kron({A}, {B})", parts=_cut),
    "kronsum": Row(
        "op.kronsum({A}, {B})", "(lambda a, b: kron(a, I(len(b))) + kron(I(len(a)), b))({A}, {B})", _square,
        parts=_square_cut,
    ),
    "direct_sum": Row("op.direct_sum({A}, {B})", "block_diag({A}, {B})", _at_least(2), parts=_halves),
    "square direct_sum": Row(
        "op.direct_sum({A}, {B})", "block_diag({A}, {B})", _square_at_least(2), parts=_square_halves
    ),
    "block": Row(
        "op.block([[{A}, {B}], [{C}, {D}]])", "np.block([[{A}, {B}], [{C}, {D}]])", _at_least(2), parts=_grid
    ),
    "blocks with a hole": Row(
        "op.block([[{A}, None], [{B}, {C}]])",
        "(lambda a, b, c: np.block([[a, np.zeros((len(a), c.shape[1]))], [b, c]]))({A}, {B}, {C})",
        _at_least(2),
        parts=lambda d, m, n: ((1, 1), (m - 1, 1), (m - 1, n - 1)),
    ),
    "inverse": Row("op.inverse({A})", "inv({A})", _square, parts=_like, asks=_regular),
    "pseudoinverse": Row("op.pseudoinverse({A})", "pinv({A})", parts=lambda d, m, n: ((n, m),),
    asks=_full_rank),
    "resolvent": Row(
        "op.resolvent({A}, {0})", "inv({0} * I({n}) - {A})", _square, lambda d, m, n: (np.asarray(9.0),),
        _like, asks=_small
    ),
    "expm": Row("op.expm({A})", "sl.expm({A})", _square, parts=_like, asks=_small),
    "logm": Row("op.logm({A})", "log({A})", _square, parts=_like, asks=_on_the_right),
    "sqrtm": Row("op.sqrtm({A})", "root({A})", _square, parts=_like, asks=_on_the_right),
    "sign": Row("op.sign({A})", "signm({A})", _square, parts=_like, asks=_split),
    "function": Row("op.function(op.sym({A}), op.sin)", "of_values(np.sin, {A})", _square, parts=_like,
    asks=_small),
    "exponential and back": Row(
        "(lambda a: op.expm(a) @ op.expm(-a))({A})", "(lambda a: sl.expm(a) @ sl.expm(-a))({A})", _square,
        parts=_like, asks=_small
    ),
    "commutator": Row("op.commutator({A}, {B})", "({A} @ {B} - {B} @ {A})", _square, parts=_two),
    "anticommutator": Row("op.anticommutator({A}, {B})", "({A} @ {B} + {B} @ {A})", _square, parts=_two),
    "sym": Row("op.sym({A})", "(lambda a: (a + H(a)) / 2)({A})", _square, parts=_like),
    "skew": Row("op.skew({A})", "(lambda a: (a - H(a)) / 2)({A})", _square, parts=_like),
    "slice": Row("{A}[1:, ::2]", "({A})[1:, ::2]", parts=lambda d, m, n: ((m + 1, 2 * n - 1),)),
    "simplified": Row("ts.simplify({A})", "{A}", parts=_like),
    "filtered": Row(
        "op.spectral(op.sym({A})).filter(op.cos).reconstruct()", "of_values(np.cos, {A})", _square,
        parts=_like, asks=_small
    ),
}  # fmt: skip


def _sparse_arrays(d: Draw, static: dict[str, Any]) -> tuple[Array, ...]:
    return (d.array(len(static["cols"])),)


LEAVES = [name for name, row in ROWS.items() if "{A}" not in row.operator]
JOINTS = [name for name, row in ROWS.items() if "{A}" in row.operator]


# Drawing ------------------------------------------------------------------------------------------


def expression(seed: int, depth: int = 4, only: Sequence[str] = ()) -> Expression:
    """The expression of a seed, of which no part is wild."""
    rng = Random(f"operators {seed}")
    d = Draw(rng, rng.random() < 0.35)
    while True:
        shape = (rng.choice(SIZES), rng.choice(SIZES))
        if rng.random() < 0.8:
            shape = (shape[0], shape[0])
        found = _drawn(d, shape, rng.randint(1, depth), only)
        if found is not None and found.every_array():
            return found


def _drawn(d: Draw, shape: Shape, depth: int, only: Sequence[str]) -> Expression | None:
    names = LEAVES if depth <= 1 else JOINTS
    for _ in range(20):
        name = d.rng.choice([n for n in names if not only or n in only or names is LEAVES])
        row = ROWS[name]
        if not row.fits(*shape) or (row.real and d.complex) or (row.complex and not d.complex):
            continue
        found = _filled(d, name, row, shape, depth, only)
        if found is not None and _is_tame(found):
            return found
    return None


def _filled(
    d: Draw, name: str, row: Row, shape: Shape, depth: int, only: Sequence[str]
) -> Expression | None:
    shapes = row.parts(d, *shape) or ()
    if any(not 1 <= k <= 12 for s in shapes for k in s):
        return None
    parts = [_drawn(d, s, depth - d.rng.randint(1, 2), only) for s in shapes]
    if any(p is None for p in parts):
        return None
    static = row.static(d, *shape)
    arrays = _sparse_arrays(d, static) if name == "sparse" else tuple(row.arrays(d, *shape))
    held = tuple(p for p in parts if p is not None)
    if not row.asks(*(p.matrix(p.every_array()) for p in held)):
        return None
    return Expression(name, shape, arrays, held, static)


def _is_tame(e: Expression) -> bool:
    try:
        m = e.matrix(e.every_array())
    except np.linalg.LinAlgError:
        return False
    return m.shape == e.shape and bool(np.all(np.abs(m) < 1e3))


# Shrinking ----------------------------------------------------------------------------------------


def shrunk(e: Expression, fails: Callable[[Expression], bool]) -> Expression:
    """A smaller expression that fails too: a part of it, or with a matrix in place of a part."""
    while True:
        smaller = next(
            (s for s in _smaller(e) if s.every_array() and _is_tame(s) and fails(s)), None
        )
        if smaller is None:
            return e
        e = smaller


def _smaller(e: Expression) -> Iterator[Expression]:
    yield from e.parts
    for i, p in enumerate(e.parts):
        for q in (_plain(p), *_smaller(p)):
            if q is not None and q.shape == p.shape:
                yield replace(e, parts=(*e.parts[:i], q, *e.parts[i + 1 :]))


def _plain(e: Expression) -> Expression | None:
    """A matrix of the same numbers; None when it is one already."""
    if not e.parts and e.name in ("dense", "eye"):
        return None
    m = e.matrix(e.every_array())
    return Expression("dense", e.shape, (m,))


def as_test(e: Expression, seed: int, law: str) -> str:
    """The expression as a test."""
    numbers = ",\n        ".join(f"np.array({np.asarray(x).tolist()!r})" for x in e.every_array())
    return (
        f"def test_operators_{seed}() -> None:\n"
        f"    # {law}\n"
        f"    x = [\n        {numbers},\n    ]\n"
        f"    make = lambda *x: {e.text()}\n"
        f"    want = lambda *x: {e.text(matrix=True)}\n"
        f"    check(make, want, x)\n"
    )
