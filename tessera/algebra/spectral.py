"""SpectralOperator: an operator as U diag(S) V.H, and how one is found."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from tessera.algebra.annotation import OperatorSpec, operator_spec
from tessera.algebra.apply import applied, as_operator, dense_of
from tessera.algebra.combinators import inverse as inverses
from tessera.algebra.combinators.functions import SELF_ADJOINT
from tessera.algebra.constructors.basic import dense
from tessera.algebra.constructors.factored import low_rank
from tessera.algebra.operator import Operator, checked_flags, function
from tessera.algebra.solvers.closed import Apply, close
from tessera.algebra.solvers.implicit import SolverSettings
from tessera.algebra.solvers.krylov import steps_of
from tessera.algebra.solvers.outcome import CONVERGED, SolveInfo
from tessera.algebra.solvers.ritz import RitzSearch, some_eigenpairs
from tessera.algebra.tangent import tangent_of
from tessera.algebra.waves import Spectrum, spectrum_of
from tessera.core import tree
from tessera.core.dims import Dim
from tessera.core.dtype import DType, bool_, i64
from tessera.core.errors import AnnotationError, OperandError
from tessera.core.types import TensorType
from tessera.ir.graph.ir import Value, current_builder
from tessera.ops.callbacks import ensure
from tessera.ops.creation import constant
from tessera.ops.define import cast_to, full_of
from tessera.ops.elementwise import abs as absolute
from tessera.ops.elementwise import gt, mul, reciprocal, stop_gradient, where
from tessera.ops.factor import eig, eigh, svd
from tessera.ops.gather import take
from tessera.ops.linalg import epsilon, pinv
from tessera.ops.matrix import adjoint, hermitian_part
from tessera.ops.random import normal
from tessera.ops.random_bits import key as key_of
from tessera.ops.reduction import max as largest
from tessera.ops.reduction import min as smallest
from tessera.ops.shape import concat, slice_
from tessera.ops.solve import inv
from tessera.ops.sorting import argsort
from tessera.transform.funm import singular_function, spectral_function

Scalar = Callable[[Value], Value]  # a function of numbers, element by element


class SpectralSpec(OperatorSpec):
    """What SpectralOperator["D", T] says: a size and a dtype."""

    def __str__(self) -> str:
        size = repr(str(self.rows)) if isinstance(self.rows, Dim) else str(self.rows)
        return f"SpectralOperator[{size}{f', {self.dtype}' if self.dtype else ''}]"

    __repr__ = __str__

    def check(self, name: str, a: Any) -> None:
        """Refuse an argument that is no such operator."""
        fits = (
            isinstance(a, SpectralOperator)
            and a.shape[0] == a.shape[1]
            and (isinstance(self.rows, Dim) or self.rows == a.shape[0])
            and self.dtype in (None, a.dtype)
        )
        if not fits:
            shown = a if isinstance(a, SpectralOperator) else type(a).__name__
            raise AnnotationError(f"argument '{name}' is {shown}, expected {self}")


@dataclass(frozen=True)
class WholeMatrix:
    """Ways to the matrix with derivatives that are right at equal values, which U, S and V have not."""

    matrix: Callable[[], Value]
    function: Callable[[Scalar], Value] | None = None  # f -> U f(S) V.H

    def mapped(self, f: Scalar) -> WholeMatrix | None:
        """The same of f of the values."""
        known = self.function
        if known is None:
            return None
        return WholeMatrix(lambda: known(f), lambda g: known(lambda w: g(f(w))))


class SpectralOperator:
    """U diag(S) V.H: eigenvalues with U = V for self-adjoint operators, else singular values.

    `SpectralOperator["D", T]` is an annotation.  It is a tree with the leaves U, S and V.
    """

    __slots__ = ("S", "U", "V", "_whole", "flags", "info", "tangent_at")
    U: Value
    S: Value
    V: Value
    flags: frozenset[str]
    info: SolveInfo | None  # how the search for some of the values went
    _whole: WholeMatrix | None  # the matrix itself, where it is known
    tangent_at: SpectralOperator | None  # if U, S and V are tangents: of this one

    def __init__(
        self,
        u: Value,
        s: Value,
        v: Value,
        flags: Iterable[str] = (),
        info: SolveInfo | None = None,
        whole: WholeMatrix | None = None,
    ):
        put = object.__setattr__
        put(self, "U", u)
        put(self, "S", s)
        put(self, "V", v)
        put(self, "flags", checked_flags("SpectralOperator", flags))
        put(self, "info", info)
        put(self, "_whole", whole)
        put(self, "tangent_at", None)

    def __class_getitem__(cls, items: Any) -> SpectralSpec:
        size, *rest = items if isinstance(items, tuple) else (items,)
        spec = operator_spec((size, size, *rest))
        return SpectralSpec(spec.columns, spec.rows, spec.dtype)

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"a SpectralOperator is immutable; cannot set {name!r}")

    @property
    def shape(self) -> tuple[Any, Any]:
        """Rows and columns."""
        return self.U.shape[0], self.V.shape[0]

    @property
    def dtype(self) -> DType:
        """The dtype of the vectors."""
        return self.U.dtype

    @property
    def rank(self) -> Any:
        """How many values there are."""
        return self.S.shape[0]

    def __matmul__(self, x: Any) -> Any:
        return self.reconstruct() @ x

    def truncate(self, k: int) -> SpectralOperator:
        """The k values of largest magnitude: the nearest operator of rank k."""
        _refuse_tangent("truncate", self)
        count = steps_of("truncate", k, self.rank, "k")
        u = slice_(self.U, (0, 0), (self.U.shape[0], count))
        same = self.V is self.U
        v = u if same else slice_(self.V, (0, 0), (self.V.shape[0], count))
        return SpectralOperator(u, slice_(self.S, (0,), (count,)), v, self.flags, self.info)

    def filter(self, f: Callable[[Value], Any]) -> SpectralOperator:
        """f of the values, with the same vectors: f(A) for a self-adjoint operator."""
        _refuse_tangent("filter", self)
        s = f(self.S)
        if not isinstance(s, Value) or s.shape != self.S.shape:
            shown = s.type if isinstance(s, Value) else type(s).__name__
            raise OperandError(f"filter: f gives {shown} for {self.S.type}, expected its shape")
        whole = None if self._whole is None else self._whole.mapped(f)
        return SpectralOperator(self.U, s, self.V, self.flags - {"positive"}, self.info, whole)

    def reconstruct(self) -> Operator:
        """The operator U diag(S) V.H; of a tangent dU diag(S) V.H + U diag(dS) V.H + U diag(S) dV.H."""
        if self.tangent_at is not None:
            moved = (cast_to(v, self.U.dtype) for v in tree.leaves(self)[: self._count])
            return tangent_of(self.tangent_at.reconstruct(), list(moved))
        if self._whole is not None and current_builder() is not None:
            made: Operator = dense(self._whole.matrix(), flags=self.flags)
            return made
        same = self.V is self.U
        s = cast_to(self.S, self.U.dtype)
        factors: Operator = low_rank(self.U, None if same else self.V, s)
        return factors.assume(*self.flags)

    def pseudoinverse(self, rtol: float | None = None) -> SpectralOperator:
        """V diag(1 / S) U.H, without the values up to rtol times the largest."""
        _refuse_tangent("pseudoinverse", self)
        size = absolute(self.S)
        limit = max(self.shape) * epsilon(self.S.dtype) if rtol is None else rtol
        kept = gt(size, stop_gradient(mul(largest(size), limit)))
        s = where(kept, reciprocal(where(kept, self.S, 1)), 0)
        known = self._whole
        whole = None if known is None else WholeMatrix(lambda: pinv(known.matrix(), limit))
        return SpectralOperator(self.V, s, self.U, self.flags, None, whole)

    @property
    def _count(self) -> int:
        """How many tensors it holds of its own."""
        return 2 if self.V is self.U else 3

    def moving(self, tangents: Sequence[Value]) -> SpectralOperator:
        """The tangent here, from those of U, S and V."""
        u, s, *v = tangents
        made = SpectralOperator(u, s, v[0] if v else u)
        object.__setattr__(made, "tangent_at", self)
        return made

    def __repr__(self) -> str:
        m, n = self.shape
        flags = f" {{{', '.join(sorted(self.flags))}}}" if self.flags else ""
        return f"SpectralOperator({self.dtype}[{m},{n}] of {self.rank} values{flags})"


def _refuse_tangent(user: str, a: SpectralOperator) -> None:
    if a.tangent_at is not None:
        raise OperandError(
            f"{user}: got a tangent, whose values are no eigenvalues; differentiate the function that calls "
            f"{user}"
        )


def _flatten(a: SpectralOperator) -> tuple[Any, Any]:
    same, moving = a.V is a.U, a.tangent_at is not None
    own = (a.U, a.S) if same else (a.U, a.S, a.V)
    return (*own, a.tangent_at) if moving else own, (same, a.flags, moving)


def _unflatten(aux: Any, xs: Any) -> SpectralOperator:
    same, flags, moving = aux
    new: SpectralOperator = object.__new__(SpectralOperator)
    u, s, *v = xs
    fields = (
        ("U", u), ("S", s), ("V", u if same else v[0]), ("flags", flags),
        ("tangent_at", v[-1] if moving else None),
    )  # fmt: skip
    for name, x in (*fields, ("info", None), ("_whole", None)):
        object.__setattr__(new, name, x)
    return new


tree.register(SpectralOperator, _flatten, _unflatten)


# How one is found ---------------------------------------------------------------------------------

_KEPT = frozenset(("self_adjoint", "positive", "normal", "real"))


@function
def spectral(
    a: Any, k: int | None = None, *, method: str | None = None, which: str = "magnitude",
    tol: float | None = None, limit: int = 400, oversample: int = 8, key: Any = None,
    check: bool = True, progress: Any = None,
) -> SpectralOperator:  # fmt: skip
    """Eigenvalues (eigh) of a self-adjoint operator, else singular values (svd), largest size first.

    With k only so many are found: by the structure where it tells them (stencils of neighbours), else by
    random blocks and Krylov spaces, from products with A alone.
    method="eig" gives the eigenvalues of any square operator: complex, with V = inv(U).H.
    """
    found = as_operator("spectral", a)
    chosen = method or ("eigh" if "self_adjoint" in found.flags else "svd")
    if chosen not in ("eigh", "svd", "eig"):
        raise OperandError(f"spectral: method is {chosen!r}, expected 'eigh', 'svd' or 'eig'")
    if which not in ("magnitude", "largest", "smallest"):
        raise OperandError(
            f"spectral: which is {which!r}, expected 'magnitude', 'largest' or 'smallest'"
        )
    if chosen != "svd" and found.shape[0] != found.shape[1]:
        raise OperandError(f"spectral: {found} is not square and has no eigenvalues; use 'svd'")
    least = min(found.shape)
    known = spectrum_of(found) if k is not None and chosen == "eigh" else None
    if known is not None:
        return _known(found, known, steps_of("spectral", k, least, "k"), which)
    count = least if k is None else steps_of("spectral", k, least, "k")
    size = found.shape[0] if chosen == "eigh" else sum(found.shape)
    if k is None or chosen == "eig" or 3 * (count + oversample) > size:
        return _whole(found, chosen, which, count)
    if chosen == "svd" and which == "smallest":
        raise OperandError("spectral: some of the smallest singular values need k=None")
    s = SolverSettings(
        f"spectral: {found}", _tol(found, tol), 0.0, int(limit), check, progress or None
    )
    draw = lambda n: cast_to(  # noqa: E731
        normal(key_of(0) if key is None else key, (n, count + oversample), dtype=found.dtype.real),
        found.dtype,
    )
    if chosen == "svd":
        return _some_singular(found, count, s, draw)
    apply = lambda x: applied("spectral", found, x)  # noqa: E731
    w, v, info = _some(apply, found.shape[0], found.dtype, count, which, s, draw)
    return _ordered(v, w, v, found.flags & _KEPT | {"self_adjoint"}, which, info)


def _known(a: Operator, s: Spectrum, count: int, which: str) -> SpectralOperator:
    """Some of the values that the structure tells."""
    at = s.chosen(count, which)
    w, v = cast_to(constant(s.values[at]), a.dtype.real), s.vectors(at, a.dtype)
    info = SolveInfo(full_of((), True, bool_), full_of((), 0, i64), full_of((), 0, a.dtype.real),
                full_of((), CONVERGED, i64))  # fmt: skip
    return _ordered(v, w, v, a.flags & _KEPT | {"self_adjoint"}, which, info)


def _tol(a: Operator, tol: float | None) -> float:
    rough = 1e-9 if epsilon(a.dtype) < 1e-12 else 1e-5
    return rough if tol is None else float(tol)


def _some(
    apply: Apply, n: int, dtype: DType, count: int, which: str, s: SolverSettings, draw: Any
) -> tuple[Value, Value, SolveInfo]:
    start = draw(n)
    depth = max(2, min(6, n // start.shape[1]))
    search = RitzSearch(count, depth, which, close(apply, TensorType(dtype, (n,))), s)
    return some_eigenpairs(search, start)


def _some_singular(a: Operator, count: int, s: SolverSettings, draw: Any) -> SpectralOperator:
    """The largest eigenvalues of [[0, A], [A.H, 0]] are the singular values of A."""
    m, n = a.shape
    adj = a.H

    def apply(x: Value) -> Value:
        top, bottom = slice_(x, (0,), (m,)), slice_(x, (m,), (m + n,))
        return concat([applied("spectral", a, bottom), applied("spectral", adj, top)], 0)

    w, v, info = _some(apply, m + n, a.dtype, count, "largest", s, draw)
    least = smallest(w)
    w = ensure(
        w, gt(least, mul(largest(w), (m + n) * epsilon(a.dtype) * 10)),
        message=f"spectral: {a} has fewer than {count} singular values that are not zero; ask for a "
        "smaller k",
    )  # fmt: skip
    root = 2**0.5
    u = mul(slice_(v, (0, 0), (m, count)), root)
    right = mul(slice_(v, (m, 0), (m + n, count)), root)
    return _ordered(u, w, right, a.flags & {"real"}, "magnitude", info)


def _whole(a: Operator, method: str, which: str, count: int) -> SpectralOperator:
    matrix = dense_of(a)
    if method == "svd":
        u, s, vh = svd(matrix, full_matrices=False)
        whole = WholeMatrix(lambda: matrix, lambda f: singular_function("spectral", matrix, f))
        made = SpectralOperator(u, s, adjoint(vh), a.flags & {"real"}, None, whole)
    elif method == "eigh":
        w, v = eigh(matrix)
        held = WholeMatrix(
            lambda: hermitian_part(matrix), lambda f: spectral_function("spectral", matrix, f)
        )
        made = _ordered(v, w, v, a.flags & _KEPT | {"self_adjoint"}, which, None, held)
    else:
        w, v = eig(matrix)
        made = _ordered(v, w, adjoint(inv(v)), a.flags & {"normal"}, which)
    return made if count == made.rank else made.truncate(count)


def _ordered(
    u: Value, s: Value, v: Value, flags: Iterable[str], which: str, info: SolveInfo | None = None,
    whole: WholeMatrix | None = None,
) -> SpectralOperator:  # fmt: skip
    size = s if which != "magnitude" and s.dtype.kind == "f" else absolute(s)
    order = argsort(size, descending=which != "smallest")
    left = take(u, order, 1)
    right = left if v is u else take(v, order, 1)
    return SpectralOperator(left, take(s, order, 0), right, flags, info, whole)


# As functions -------------------------------------------------------------------------------------


def _spectral(user: str, s: Any) -> SpectralOperator:
    return s if isinstance(s, SpectralOperator) else spectral(as_operator(user, s))


@function
def truncate(s: Any, k: int) -> SpectralOperator:
    """The k values of largest magnitude of a SpectralOperator, or of the spectrum of an operator."""
    return _spectral("truncate", s).truncate(k)


@function
def reconstruct(s: Any) -> Operator:
    """The operator U diag(S) V.H of a SpectralOperator."""
    if isinstance(s, SpectralOperator):
        return s.reconstruct()
    raise OperandError(f"reconstruct: got {type(s).__name__}, expected a SpectralOperator")


@function
def spectral_filter(s: Any, f: Callable[[Value], Any]) -> SpectralOperator:
    """f of the values of a SpectralOperator, or of the spectrum of an operator."""
    return _spectral("spectral_filter", s).filter(f)


_of_operator = inverses.pseudoinverse


@function
def pseudoinverse(a: Any, rtol: float | None = None) -> Operator:
    """The inverse of Moore and Penrose of an operator or of a SpectralOperator."""
    if isinstance(a, SpectralOperator):
        return a.pseudoinverse(rtol).reconstruct()
    made: Operator = _of_operator(a)
    return made


SELF_ADJOINT.provide(lambda x, f: spectral_function("function", x, f))
