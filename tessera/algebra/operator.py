"""Operator: a linear map as a value with structure.

An operator has a kind, parts (operators), data (tensors) and static fields; the record of its kind
says the rest.  It is immutable and a tree: its leaves are its tensors, so that functions of operators
are traced, compiled and differentiated, and the derivative by an operator is an operator.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, ParamSpec, TypeVar

import numpy as np

from tessera.algebra.annotation import OperatorSpec, operator_spec
from tessera.algebra.flags import FLAGS, closure
from tessera.algebra.kind import KINDS, Kind
from tessera.algebra.refused import RefusesElements
from tessera.core import tree
from tessera.core.blame import MISFITS, blamed, methods_blame_arguments
from tessera.core.counterparts import lacking
from tessera.core.dims import Dim
from tessera.core.dtype import DType
from tessera.core.errors import OperandError, TesseraError, located
from tessera.core.flags import flags as settings
from tessera.core.picture import Plotted
from tessera.ir.graph.ir import Value

P = ParamSpec("P")
R = TypeVar("R")
FUNCTIONS: dict[str, Callable[..., Any]] = {}  # every public function of operators by name
_ARRAYS = (Value, Dim, np.ndarray, np.generic, int, float, complex)


@methods_blame_arguments
class Operator(Plotted, RefusesElements):
    """A linear operator of shape (rows, columns): A @ x, A @ B, A + B, 2 * A, A.H, A ** k, A.solve(b).

    `Operator["Din", "Dout", T, P]` is an annotation: the size of arguments, that of results, a dtype
    and a policy.
    """

    __slots__ = (
        "_flags", "_turned", "assumed", "data", "dtype", "is_gradient", "kind", "memo", "parts", "shape",
        "static",
    )  # fmt: skip
    __array_ufunc__ = None  # NumPy arrays leave mixed operators to Operator

    kind: str
    parts: tuple[Operator, ...]
    data: tuple[Value, ...]
    static: tuple[Any, ...]
    shape: tuple[Any, Any]
    dtype: DType
    assumed: frozenset[str]  # flags that somebody vouches for
    memo: dict[Any, Any]  # what a kind computed of this operator once
    is_gradient: (
        bool  # whether its tensors are cotangents of those of an operator, as grad gives them
    )
    _flags: frozenset[str] | None
    _turned: dict[str, Operator]

    def __init__(
        self,
        kind: str,
        parts: Sequence[Operator] = (),
        data: Sequence[Value] = (),
        static: tuple[Any, ...] = (),
        assumed: Iterable[str] = (),
    ):
        record = KINDS[kind]
        fields = (tuple(parts), tuple(data), static)
        _fill(self, kind, *fields, record.shape(*fields), record.dtype(*fields), frozenset(assumed))

    def __class_getitem__(cls, items: Any) -> OperatorSpec:
        return operator_spec(items if isinstance(items, tuple) else (items,))

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"an Operator is immutable; cannot set {name!r}")

    def __getattr__(self, name: str) -> Any:
        raise lacking("an operator", name, dir(type(self)), {"op": FUNCTIONS})

    # What it is

    @property
    def record(self) -> Kind:
        """What is known of its kind."""
        return KINDS[self.kind]

    @property
    def flags(self) -> frozenset[str]:
        """What is known of its matrix without looking at numbers."""
        known = self._flags
        if known is None and self.is_gradient:  # a gradient by a unitary operator is not unitary
            return frozenset(("real",) if self.dtype.kind != "c" else ())
        if known is None:
            found = self.record.flags(self) | self.assumed
            if self.dtype.kind != "c":
                found |= {"real"}
            if self.record.rank is not None and _less(self.record.rank(self), self.shape):
                found |= {"low_rank"}
            known = closure(found, self.shape[0] == self.shape[1])
            object.__setattr__(self, "_flags", known)
        return known

    @property
    def rank(self) -> Any:
        """A bound of the rank."""
        return FUNCTIONS["rank_bound"](self)

    @property
    def ndim(self) -> int:
        """2, as of a matrix."""
        return 2

    def assume(self, *flags: str) -> Operator:
        """This operator with flags that the caller vouches for."""
        made = self._made(self.assumed | checked_flags("assume", flags))
        return _operator("check_claims", made) if getattr(settings(), "checked", False) else made

    def _made(self, assumed: frozenset[str]) -> Operator:
        new: Operator = object.__new__(type(self))
        _fill(
            new, self.kind, self.parts, self.data, self.static, self.shape, self.dtype, assumed
        )  # fmt: skip
        return new

    @property
    def H(self) -> Operator:  # noqa: N802
        """The adjoint."""
        return self._turn("adjoint")

    @property
    def T(self) -> Operator:  # noqa: N802
        """The transpose."""
        return self._turn("adjoint" if self.dtype.kind != "c" else "transpose")

    def conj(self) -> Operator:
        """The operator with conjugated elements."""
        return self if self.dtype.kind != "c" else self._turn("conj")

    def _turn(self, how: str) -> Operator:
        """The adjoint, transpose or conjugate, made once: A.H.H is A."""
        found = self._turned.get(how)
        if found is None:
            found = _operator(f"{how}_of", self)
            self._turned[how] = found
            found._turned.setdefault(how, self)
        return found

    # What it does

    def __call__(self, x: Any) -> Any:
        return _call("apply", self, x)

    def __matmul__(self, other: Any) -> Any:
        composes = isinstance(other, Operator) or is_sparse(other)
        return _call("compose" if composes else "apply", self, other)

    def __rmatmul__(self, other: Any) -> Any:
        return _call("apply_left", other, self)

    def solve(self, b: Any, **options: Any) -> Any:
        """The x with A @ x = b, by the cheapest way that the structure allows."""
        return _call("solve", self, b, **options)

    def __add__(self, other: Any) -> Any:
        _refuse_number(self, other)
        return _call("plus", self, other) if _is_matrix(other) else NotImplemented

    def __radd__(self, other: Any) -> Any:
        if isinstance(other, int) and other == 0:  # the start of sum()
            return self
        _refuse_number(self, other)
        return _call("plus", other, self) if _is_matrix(other) else NotImplemented

    def __sub__(self, other: Any) -> Any:
        _refuse_number(self, other)
        return _call("minus", self, other) if _is_matrix(other) else NotImplemented

    def __rsub__(self, other: Any) -> Any:
        _refuse_number(self, other)
        return _call("minus", other, self) if _is_matrix(other) else NotImplemented

    def __mul__(self, other: Any) -> Any:
        if isinstance(other, Operator):
            raise located(OperandError("mul: got two operators; compose them with A @ B"))
        if isinstance(other, str | bytes | list | tuple):
            what = type(other).__name__
            raise located(OperandError(f"mul: cannot take {what} {other!r:.40} beside an operator"))
        return _call("scale", self, other) if isinstance(other, _ARRAYS) else NotImplemented

    __rmul__ = __mul__

    def __truediv__(self, other: Any) -> Any:
        if isinstance(other, Operator):
            raise located(OperandError("A / B: got two operators; write A @ B.inverse()"))
        return _call("divide", self, other) if isinstance(other, _ARRAYS) else NotImplemented

    def __neg__(self) -> Operator:
        return _operator("scale", self, -1)

    def __pos__(self) -> Operator:
        return self

    def __pow__(self, k: Any) -> Operator:
        return _operator("power", self, k)

    # What can be asked

    def todense(self) -> Any:
        """The matrix as a tensor."""
        return _call("todense", self)

    def diagonal(self) -> Any:
        """The elements at (i, i)."""
        return _call("diagonal", self)

    def trace(self) -> Any:
        """The sum of the diagonal."""
        return _call("trace", self)

    def logdet(self) -> Any:
        """The logarithm of the absolute value of the determinant."""
        return _call("logdet", self)

    def inverse(self) -> Operator:
        """The inverse."""
        return _operator("inverse", self)

    def __getitem__(self, key: Any) -> Any:
        return _call("getitem", self, key)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        return np.asarray(self.todense(), dtype=dtype)

    def __tessera_value__(self) -> Any:
        """The matrix, for ops that take tensors."""
        return self.todense()

    def __reduce__(self) -> tuple[Any, ...]:
        children, aux = _flatten(self)
        return _unflatten, (aux, children)

    def __repr__(self) -> str:
        flags = f" {{{', '.join(sorted(self.flags))}}}" if self.flags else ""
        return f"Operator({self}{flags})"

    def __str__(self) -> str:
        inner = f"({', '.join(map(str, self.parts))})" if self.parts else ""
        return f"{self.kind}{inner} {self.type}"

    @property
    def type(self) -> str:
        """dtype and sizes as text, as in f32[3,4]."""
        return f"{self.dtype}[{self.shape[0]},{self.shape[1]}]"


def are_adjoint(p: Operator, q: Operator) -> bool:
    """Whether one was made as the adjoint of the other, without making it."""
    if p is q:
        return "self_adjoint" in p.flags
    return q._turned.get("adjoint") is p or p._turned.get("adjoint") is q


def _less(rank: Any, shape: tuple[Any, Any]) -> bool:
    """Whether a bound of the rank is below both sizes."""
    return all(isinstance(n, int) for n in (rank, *shape)) and rank < min(shape)


def _refuse_number(a: Operator, x: Any) -> None:
    if isinstance(x, int | float | complex | np.generic | Dim):
        raise located(
            OperandError(
                f"plus: got the number {x!r:.40} beside {a}; add a multiple of the identity: "
                "A + 2 * op.eye(n)"
            )
        )


def _is_matrix(x: Any) -> bool:
    return isinstance(x, Operator | Value | np.ndarray) or is_sparse(x)


def is_sparse(x: Any) -> bool:
    """Whether x is a matrix of scipy.sparse."""
    return hasattr(x, "tocsr")


def _fill(
    a: Operator, kind: str, parts: Any, data: Any, static: Any, shape: Any, dtype: Any, assumed: Any
) -> None:
    put = object.__setattr__
    put(a, "kind", kind)
    put(a, "parts", parts)
    put(a, "data", data)
    put(a, "static", static)
    put(a, "shape", shape)
    put(a, "dtype", dtype)
    put(a, "assumed", assumed)
    put(a, "_flags", None)
    put(a, "_turned", {})
    put(a, "memo", {})
    put(a, "is_gradient", False)


def _call(name: str, *args: Any, **kwargs: Any) -> Any:
    return FUNCTIONS[name](*args, **kwargs)


def _operator(name: str, *args: Any) -> Operator:
    found: Operator = FUNCTIONS[name](*args)
    return found


def _verified(x: Any) -> Any:
    """A value, looked at if it is an operator for which somebody vouches something."""
    return FUNCTIONS["check_claims"].__wrapped__(x) if isinstance(x, Operator) else x  # type: ignore[attr-defined]


def function(f: Callable[P, R]) -> Callable[P, R]:
    """Decorator: a public function of operators, whose errors point at the user's line."""

    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            if getattr(settings(), "checked", False):
                found: R = _verified(f(*map(_verified, args), **kwargs))
                return found
            return f(*args, **kwargs)
        except TesseraError as e:
            error: Exception = located(e)
        except MISFITS as e:
            error = blamed(name, f, args, kwargs, e)
        raise error

    name = f.__name__.rstrip("_")
    call.__name__ = call.__qualname__ = name
    call.__doc__, call.__module__ = f.__doc__, f.__module__
    call.__wrapped__ = f  # type: ignore[attr-defined]
    FUNCTIONS[name] = call
    return call


def checked_flags(user: str, flags: Iterable[str]) -> frozenset[str]:
    """Names of flags that exist."""
    for f in flags:
        if f not in FLAGS:
            raise located(OperandError(f"{user}: no flag {f!r}; there are {', '.join(FLAGS)}"))
    return frozenset(flags)


# Trees ------------------------------------------------------------------------------------------


class _Aux(tuple[Any, ...]):
    """What an operator is beside its tensors; a gradient has the structure of what it is a gradient by."""

    is_gradient = False


def _flatten(a: Operator) -> tuple[Sequence[Any], Any]:
    # Flags that follow from parts being the same object would be lost with the objects.
    flags = a.assumed if a.is_gradient else a.flags
    aux = _Aux((a.kind, len(a.data), a.static, a.shape, a.dtype, flags))
    if a.is_gradient:
        aux.is_gradient = True
    return (*a.data, *a.parts), aux


def _unflatten(aux: Any, children: Sequence[Any]) -> Operator:
    kind, count, static, shape, dtype, assumed = aux
    new: Operator = object.__new__(Operator)
    rest = tuple(children)
    _fill(new, kind, rest[count:], rest[:count], static, shape, dtype, assumed)
    if aux.is_gradient:
        object.__setattr__(new, "is_gradient", True)
    return new


def gradients(s: tree.Structure) -> tree.Structure:
    """A structure of trees whose operators hold cotangents of their tensors."""
    aux = s.aux
    if s.kind is Operator:
        aux = _Aux(aux)
        aux.is_gradient = True
    return tree.Structure(s.kind, aux, tuple(gradients(c) for c in s.children))


tree.register(Operator, _flatten, _unflatten)
