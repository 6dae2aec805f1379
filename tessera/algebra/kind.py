"""Kind: what is known of one kind of operator, stated once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from tessera.core.dtype import DType
from tessera.core.promotion import promote_all
from tessera.ir.graph.ir import Value

if TYPE_CHECKING:
    from tessera.algebra.operator import Operator
    from tessera.algebra.waves import Spectrum

Shape = tuple[Any, Any]  # rows (the size of a result), columns (the size of an argument)
Parts = tuple["Operator", ...]
Data = tuple[Value, ...]
Static = tuple[Any, ...]


class Cost(NamedTuple):
    """What one application costs."""

    flops: float = 0.0
    bytes: float = 0.0
    launches: float = 0.0

    def plus(self, *others: Cost) -> Cost:
        """The cost of this and of the others."""
        return Cost(*(sum(column) for column in zip(self, *others, strict=True)))


def met_dtype(parts: Parts, data: Data, static: Static) -> DType:
    """The dtype in which the parts and the data meet."""
    return promote_all([*(p.dtype for p in parts), *(v.dtype for v in data)])


def no_flags(a: Operator) -> frozenset[str]:
    """Nothing is known."""
    return frozenset()


def never(a: Operator) -> bool:
    """The matrix is not linear in the tensors."""
    return False


def always(a: Operator) -> bool:
    """The matrix is linear in the tensors."""
    return True


@dataclass(frozen=True, kw_only=True, slots=True)
class Kind:
    """One kind of operator: A has parts (operators), data (tensors) and static (hashable) fields.

    What is left out has a default that is written with the rest: dense is A applied to the identity,
    conj is a wrapper, the adjoint is the conjugate transpose, the queries look at the dense matrix.
    """

    name: str
    doc: str
    shape: Callable[[Parts, Data, Static], Shape]
    apply: Callable[[Operator, Value], Value]  # to the columns of a matrix, written with ops
    # The transpose with a structure of its own; without one it is a wrapper that calls apply_transpose.
    transpose: Callable[[Operator], Operator] | None = None
    apply_transpose: Callable[[Operator, Value], Value] | None = None
    representation: str = "implicit"  # dense, factor, implicit or blocksparse, as in the C layout
    dtype: Callable[[Parts, Data, Static], DType] = met_dtype
    conj: Callable[[Operator], Operator] | None = None
    dense: Callable[[Operator], Value] | None = None
    flags: Callable[[Operator], frozenset[str]] = no_flags
    cost: Callable[[Operator, int], Cost] | None = None
    diagonal: Callable[[Operator], Value] | None = None
    trace: Callable[[Operator], Value] | None = None
    slogdet: Callable[[Operator], tuple[Value, Value]] | None = None
    # A solution of A @ X = B, or None when this A has no direct way.
    solve: Callable[[Operator, Value], Value | None] | None = None
    solve_transpose: Callable[[Operator, Value], Value | None] | None = None
    inverse: Callable[[Operator], Operator | None] | None = None
    # f(A) when f keeps the structure; f works on tensors of eigenvalues, and whether f of a real
    # matrix is real.
    function: Callable[[Operator, Callable[[Value], Value], bool], Operator | None] | None = None
    power: Callable[[Operator, int], Operator | None] | None = None
    slice: Callable[[Operator, Any, Any], Operator | None] | None = None
    rank: Callable[[Operator], Any] | None = None  # a bound of the rank
    # Whether the matrix is a linear function of the tensors and the matrices of the parts together.
    linear: Callable[[Operator], bool] = never
    # Eigenvalues and vectors of a self-adjoint operator that need no search, None when it has none.
    spectrum: Callable[[Operator], Spectrum | None] | None = None
    # The matrix over exact numbers, from matrices of the parts and arrays of the data.
    exact: Callable[[Operator, Sequence[Any], Sequence[Any]], Any] | None = None


KINDS: dict[str, Kind] = {}


def register(kind: Kind) -> Kind:
    """Enter a kind in the table."""
    assert kind.name not in KINDS, kind.name
    KINDS[kind.name] = kind
    return kind
