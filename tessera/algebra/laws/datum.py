"""Symbolic data: what the tensors of a rewritten operator are computed from.

A law that joins two diagonals has to multiply them.  While laws are tried nothing is computed: the new
operator holds a Datum, which knows its shape and dtype, what it costs, how ops compute it, and how it is
computed over exact numbers.  Equal data are one object, so that what is shared is computed once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import count
from typing import Any
from weakref import WeakValueDictionary

import numpy as np

from tessera.algebra.constructors.convolution import wrapped_kernel
from tessera.algebra.laws import numbers as exact
from tessera.algebra.laws import products
from tessera.algebra.laws.numbers import Matrix, NumberSystem
from tessera.core.dims import substitute, symbols
from tessera.core.dtype import DType, complex_of, f32
from tessera.core.promotion import promote_all
from tessera.ir.graph.ir import Value
from tessera.ops import arrange, contraction, elementwise, fft, indexing, matrix, shape
from tessera.ops.creation import full
from tessera.ops.gather import take

Shape = tuple[Any, ...]
Static = tuple[Any, ...]
UNKNOWN = 64  # what a symbolic size counts for in a cost


class Datum:
    """A tensor, a number, or a function of such."""

    __slots__ = ("__weakref__", "args", "dtype", "fn", "serial", "shape", "static", "weak")

    fn: str
    args: tuple[Datum, ...]
    static: Static
    shape: Shape
    dtype: DType
    weak: bool  # whether it is made of Python numbers only
    serial: int  # in the order of making

    def __repr__(self) -> str:
        if self.fn == "leaf":
            return f"{self.dtype}{list(self.shape)}"
        if self.fn == "number":
            return str(self.static[0])
        return f"{self.fn}({', '.join(map(repr, (*self.args, *self.static)))})"

    @property
    def tensor(self) -> Value:
        """The tensor of a leaf."""
        assert self.fn == "leaf", self
        held: Value = self.static[0]
        return held


@dataclass(frozen=True, slots=True)
class DatumFunction:
    """A function of data: shape, cost, how ops compute it, how exact numbers do."""

    shape: Callable[..., Shape]
    compute: Callable[..., Value]
    exact: Callable[..., Matrix]  # numbers first, then the arrays, then static fields
    flops: Callable[..., float] | None = (
        None  # from the shapes and static fields; else one an element
    )
    dtype: Callable[[DType], DType] = lambda met: met


_SERIAL = count()
_MADE: WeakValueDictionary[Any, Datum] = WeakValueDictionary()


def _make(fn: str, args: tuple[Datum, ...], static: Static, shape: Shape, dtype: DType) -> Datum:
    new = object.__new__(Datum)
    new.fn, new.args, new.static, new.shape, new.dtype = fn, args, static, shape, dtype
    new.serial = next(_SERIAL)
    new.weak = fn == "number" or (fn != "leaf" and bool(args) and all(a.weak for a in args))
    return new


def symbol(name: str, shape: Shape, dtype: DType) -> Datum:
    """The datum that stands for some tensor."""
    return _make("leaf", (), (name,), shape, dtype)


def leaf(tensor: Value | Datum) -> Datum:
    """The datum that is a tensor."""
    if isinstance(tensor, Datum):
        return tensor
    key = ("leaf", id(tensor))
    found = _MADE.get(key)
    if found is None:
        found = _make("leaf", (), (tensor,), tuple(tensor.shape), tensor.dtype)
        _MADE[key] = found
    return found


def number(x: Any) -> Datum:
    """The datum that is a fraction or a complex number."""
    key = ("number", type(x), x)
    found = _MADE.get(key)
    if found is None:
        dtype = complex_of(f32) if isinstance(x, complex) else f32
        found = _make("number", (), (x,), (), dtype)
        _MADE[key] = found
    return found


def make(fn: str, *args: Datum, static: Static = ()) -> Datum:
    """A function of data; fractions are computed at once."""
    if fn in _PLAIN and all(isinstance(a.static[0], Fraction) for a in args if a.fn == "number"):
        if all(a.fn == "number" for a in args):
            return number(_PLAIN[fn](*(a.static[0] for a in args), *static))
    if fn in ("add", "mul"):  # either order has the same bits
        args = tuple(sorted(args, key=lambda a: (a.fn != "number", a.serial)))
    shorter = _shorter(fn, args)
    if shorter is not None:
        return shorter
    key = (fn, tuple(map(id, args)), static)
    found = _MADE.get(key)
    if found is None:
        record = FUNCTIONS[fn]
        strong = [a.dtype for a in args if not a.weak or a.dtype.kind == "c"]
        met = promote_all(strong) if strong else f32
        size = record.shape(*(a.shape for a in args), *static)
        found = _make(fn, args, static, size, record.dtype(met))
        _MADE[key] = found
    return found


def _shorter(fn: str, args: tuple[Datum, ...]) -> Datum | None:
    """What a function of a function is, when it is something simpler."""
    first = args[0]
    if fn in ("conj", "transpose", "reflect", "reciprocal") and first.fn == fn:
        return first.args[0]
    if fn == "conj" and first.dtype.kind != "c":
        return first
    if fn == "conj" and first.fn == "transpose":
        return make("transpose", make("conj", first.args[0]))
    if fn == "mul" and first.fn == "number" and first.static[0] == 1:
        return args[1]
    if fn == "matmul":
        return _turned_product(*args)
    return None


def _turned_product(x: Datum, y: Datum) -> Datum | None:
    """A product that is written otherwise: of (x @ y), (y.T @ x.T).T and their conjugates one is made.

    So a matrix and its adjoint are computed once, whichever way each of them is written.
    """
    if _is_conj(y):
        return make("conj", make("matmul", make("conj", x), make("conj", y)))
    # A row times a matrix is quicker than the transposed matrix times a column.
    vector = len(y.shape) == 1 or 1 in (x.shape[0], y.shape[1])
    if not vector and _base(y).serial < _base(x).serial:
        return make("transpose", make("matmul", make("transpose", y), make("transpose", x)))
    return None


def _is_conj(d: Datum) -> bool:
    return d.fn == "conj" or (d.fn == "transpose" and d.args[0].fn == "conj")


def _base(d: Datum) -> Datum:
    return _base(d.args[0]) if d.fn in ("transpose", "conj") else d


# What it costs


def flops(d: Datum) -> float:
    """Scalar operations of one function, not counting its arguments."""
    if d.fn in ("leaf", "number") or d.weak:
        return 0.0
    rule = FUNCTIONS[d.fn].flops
    if rule is None:
        return elements(d.shape)
    return float(rule(*(tuple(map(size, a.shape)) for a in d.args), *d.static))


def size(n: Any) -> float:
    """A size as a number; a symbolic one counts for a typical one."""
    return (
        float(n) if isinstance(n, int) else float(substitute(n, dict.fromkeys(symbols(n), UNKNOWN)))
    )


def elements(shape: Iterable[Any]) -> float:
    """How many elements."""
    return math.prod(map(size, shape))


def closure(data: Iterable[Datum]) -> list[Datum]:
    """The data with all that they are computed from, each once, arguments first."""
    out: dict[Datum, None] = {}

    def visit(d: Datum) -> None:
        if d not in out:
            for a in d.args:
                visit(a)
            out[d] = None

    for d in data:
        visit(d)
    return list(out)


# What it is


def computed(d: Datum, memo: dict[Datum, Any]) -> Any:
    """The tensor (or the Python number) that a datum stands for."""
    if d.fn == "leaf":
        return d.tensor
    if d.fn == "number":
        x = d.static[0]
        return x if isinstance(x, complex) else int(x) if x.denominator == 1 else float(x)
    if d not in memo:
        args = [computed(a, memo) for a in d.args]
        memo[d] = _PLAIN[d.fn](*args) if d.weak else FUNCTIONS[d.fn].compute(*args, *d.static)
    return memo[d]


def exactly(d: Datum, numbers: NumberSystem, given: dict[Datum, Matrix]) -> Matrix:
    """The array of exact numbers that a datum stands for, given the leaves."""
    found = given.get(d)
    if found is None:
        if d.fn == "leaf":
            found = numbers.array(d.tensor)
        elif d.fn == "number":
            found = np.array(numbers.of(d.static[0]), object)
        else:
            args = [exactly(a, numbers, given) for a in d.args]
            found = np.asarray(FUNCTIONS[d.fn].exact(numbers, *args, *d.static), object)
        given[d] = found
    return found


# The functions

_PLAIN: dict[str, Callable[..., Any]] = {  # of Python numbers
    "add": lambda a, b: a + b,
    "mul": lambda a, b: a * b,
    "conj": lambda a: a.conjugate(),
    "reciprocal": lambda a: 1 / a,
    "power": lambda a, k: a**k,
}


def _same(*shapes: Any) -> Shape:
    """The longest shape; static fields are no shapes."""
    longest: Shape = max((s for s in shapes if isinstance(s, tuple)), key=len)
    return longest


def _element(f: Callable[[Any], Any]) -> Callable[..., Matrix]:
    return lambda numbers, a, *static: np.frompyfunc(f, 1, 1)(a) if a.size else a


def _kron_shape(a: Shape, b: Shape) -> Shape:
    return tuple(x * y for x, y in zip(a, b, strict=True))


def _exact_kron(_: NumberSystem, a: Matrix, b: Matrix) -> Matrix:
    grid = np.multiply.outer(a, b)
    axes = [i for pair in zip(range(a.ndim), range(a.ndim, 2 * a.ndim), strict=True) for i in pair]
    sizes = [x * y for x, y in zip(a.shape, b.shape, strict=True)]
    return np.asarray(grid.transpose(axes).reshape(sizes), object)


def _reflect(c: Value) -> Value:
    return arrange.roll(shape.flip(c, 0), 1, 0)


def _rows_and_columns(a: Any, rows: Any, columns: Any) -> Any:
    return indexing.index(a, (slice(*rows), slice(*columns)))


def _cut_shape(_: Shape, rows: Any, columns: Any) -> Shape:
    return len(range(*rows)), len(range(*columns))


def _entry_exp(numbers: NumberSystem, a: Matrix) -> Matrix:
    out = np.empty(a.shape, object)
    for at in np.ndindex(a.shape):
        out[at] = exact.exponential(np.array([[a[at]]], object), numbers)[0, 0]
    return out


def _fft_flops(a: Sequence[float]) -> float:
    return 5 * a[0] * math.log2(max(a[0], 2))


def _triangle_flops(a: Sequence[float], b: Sequence[float]) -> float:
    return 2 * math.prod(a) * b[1] * products.part_done(a[0])


def _transform(inverse: bool) -> Callable[[NumberSystem, Matrix], Matrix]:
    def f(numbers: NumberSystem, c: Matrix) -> Matrix:
        n = len(c)
        w = exact.dft(n, numbers)
        if not inverse:
            return exact.product(w, c, numbers)
        back = exact.product(exact.conjugate(w), c, numbers) * numbers.of(n).inverse()
        return np.asarray(back, object)

    return f


def _joined(axis: int) -> Callable[..., Shape]:
    def f(*shapes: Shape) -> Shape:
        total = sum(s[axis] for s in shapes)
        return tuple(total if i == axis else n for i, n in enumerate(shapes[0]))

    return f


def _exact_ones(numbers: NumberSystem, like: Matrix) -> Matrix:
    return np.full(like.shape, numbers.of(1), object)


def _unit(like: Value, at: tuple[Any, ...]) -> Value:
    """1 at one place and 0 at all others."""
    one = full((1,) * like.ndim, 1, like.dtype)
    return shape.pad(one, [(i, n - 1 - i) for i, n in zip(at, like.shape, strict=True)])


def _exact_unit(numbers: NumberSystem, like: Matrix, at: tuple[int, ...]) -> Matrix:
    out = np.full(like.shape, numbers.of(0), object)
    out[at] = numbers.of(1)
    return out


def _identity(like: Value) -> Value:
    return matrix.matrix_diag(full(like.shape[:1], 1, like.dtype))


def _exact_triangle(cut: Callable[[Any], Any]) -> Callable[[NumberSystem, Matrix], Matrix]:
    def f(numbers: NumberSystem, a: Matrix) -> Matrix:
        return np.where(cut(np.ones(a.shape, bool)), a, numbers.of(0))

    return f


FUNCTIONS: dict[str, DatumFunction] = {
    "add": DatumFunction(_same, elementwise.add, lambda _, a, b: a + b),
    "mul": DatumFunction(_same, elementwise.mul, lambda _, a, b: a * b),
    "conj": DatumFunction(_same, elementwise.conj, _element(lambda x: x.conjugate()),
                     lambda a: 0.0),
    "reciprocal": DatumFunction(_same, elementwise.reciprocal, _element(lambda x: x.inverse())),
    "exp": DatumFunction(_same, elementwise.exp, _entry_exp),
    "ones": DatumFunction(_same, lambda d: full(d.shape, 1, d.dtype), _exact_ones, lambda a: 0.0),
    "unit": DatumFunction(lambda a, at: a, _unit, _exact_unit, lambda a, at: 0.0),
    "identity": DatumFunction(_same, _identity, lambda n, a: n.eye(len(a)), lambda a: 0.0),
    "power": DatumFunction(_same, elementwise.pow,
                      lambda n, a, k: np.frompyfunc(lambda x: exact.raised(x, k), 1, 1)(a)),
    "transpose": DatumFunction(lambda a: (a[1], a[0]), shape.matrix_transpose, lambda _, a: a.T,
                          lambda a: 0.0),
    "matmul": DatumFunction(lambda a, b: (a[0], *b[1:]), contraction.matmul,
                       lambda n, a, b: exact.product(a, b, n),
                       lambda a, b: 2 * math.prod(a) * math.prod(b[1:])),
    "rows": DatumFunction(lambda d, a: a, lambda d, a: elementwise.mul(shape.expand_dims(d, 1), a),
                     lambda _, d, a: d[:, None] * a, lambda d, a: math.prod(a)),
    "columns": DatumFunction(lambda a, d: a, lambda a, d: elementwise.mul(a, shape.expand_dims(d, 0)),
                        lambda _, a, d: a * d[None, :], lambda a, d: math.prod(a)),
    "kron": DatumFunction(_kron_shape, contraction.kron, _exact_kron),
    "place": DatumFunction(lambda d: (d[0], d[0]), matrix.matrix_diag,
                      lambda n, d: np.where(np.eye(len(d), dtype=bool), d[:, None], n.of(0)),
                      lambda d: 0.0),
    "fft": DatumFunction(_same, fft.fft, _transform(False), _fft_flops, complex_of),
    "ifft": DatumFunction(_same, fft.ifft, _transform(True), _fft_flops, complex_of),
    "reflect": DatumFunction(_same, _reflect, lambda _, c: np.roll(c[::-1], 1), lambda a: 0.0),
    "cut": DatumFunction(_cut_shape, _rows_and_columns,
                    lambda _, a, r, c: a[slice(*r), slice(*c)], lambda a, r, c: 0.0),
    "join": DatumFunction(_joined(0), lambda *xs: shape.concat(xs, 0),
                     lambda _, *xs: np.concatenate(xs), lambda *xs: 0.0),
    "beside": DatumFunction(_joined(1), lambda *xs: shape.concat(xs, 1),
                       lambda _, *xs: np.concatenate(xs, 1), lambda *xs: 0.0),
    "convolve": DatumFunction(_same, products.convolve, products.exact_convolve,
                         lambda a, b: 3 * _fft_flops(a)),
    "deconvolve": DatumFunction(_same, products.deconvolve, products.exact_deconvolve,
                           lambda a: 2 * _fft_flops(a)),
    "bands": DatumFunction(lambda low, d, up, b: b, products.bands_times, products.exact_bands_times,
                      lambda low, d, up, b: 5 * math.prod(b)),
    "below": DatumFunction(lambda a, b: b, lambda a, b: products.triangle_times(a, b, True),
                      lambda n, a, b: products.exact_triangle_times(n, a, b, True), _triangle_flops),
    "above": DatumFunction(lambda a, b: b, lambda a, b: products.triangle_times(a, b, False),
                      lambda n, a, b: products.exact_triangle_times(n, a, b, False), _triangle_flops),
    "flip": DatumFunction(_same, lambda c: shape.flip(c, 0), lambda _, c: c[::-1], lambda a: 0.0),
    "tril": DatumFunction(_same, arrange.tril, _exact_triangle(np.tril)),
    "triu": DatumFunction(_same, arrange.triu, _exact_triangle(np.triu)),
    "picked": DatumFunction(lambda d, at: (len(at),), lambda d, at: take(d, at.value, 0),
                       lambda _, d, at: d[at.array], lambda d, at: float(len(at))),
    "grid": DatumFunction(lambda w, sizes, o: sizes, wrapped_kernel, products.exact_grid,
                          lambda w, sizes, o: 0.0),
    "rings": DatumFunction(_same, products.rings, products.exact_rings,
                      lambda a, b: 15 * math.prod(a) * math.log2(max(math.prod(a), 2))),
    "gram": DatumFunction(lambda a: (a[1], a[1]), products.gram,
                     lambda n, a: exact.product(exact.conjugate(a.T), a, n),
                     lambda a: 2 * a[0] * a[1] ** 2 * products.part_done(min(a))),
}  # fmt: skip
