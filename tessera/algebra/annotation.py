"""Annotations: Operator["Din", "Dout", T, P] states the sizes, the dtype and the policy of an operator."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tessera.core.dims import Dim, Size
from tessera.core.dtype import DType, as_dtype
from tessera.core.errors import AnnotationError, located
from tessera.core.parse_sizes import parse_dim


@dataclass(frozen=True)
class OperatorSpec:
    """What an annotation says of an operator."""

    columns: Size  # the size of what it is applied to
    rows: Size
    dtype: DType | None  # None: any

    def __str__(self) -> str:
        sizes = [repr(str(s)) if isinstance(s, Dim) else str(s) for s in (self.columns, self.rows)]
        return f"Operator[{', '.join([*sizes, *([str(self.dtype)] if self.dtype else [])])}]"

    __repr__ = __str__

    def check(self, name: str, a: Any) -> None:
        """Refuse an argument that is no such operator."""
        if not (hasattr(a, "shape") and hasattr(a, "kind") and hasattr(a, "parts")):
            raise AnnotationError(f"argument '{name}' is {type(a).__name__}, expected {self}")
        for want, got, what in (
            (self.columns, a.shape[1], "argument"),
            (self.rows, a.shape[0], "result"),
        ):
            if isinstance(want, int) and want != got:
                raise AnnotationError(
                    f"argument '{name}' is {a}: the size of its {what} is {got}, expected {want} as "
                    f"in {self}"
                )
        if self.dtype is not None and a.dtype is not self.dtype:
            raise AnnotationError(
                f"argument '{name}' is {a}, expected dtype {self.dtype} as in {self}"
            )
        if self.columns == self.rows and a.shape[0] != a.shape[1]:
            raise AnnotationError(f"argument '{name}' is {a}, which is not square, expected {self}")


def operator_spec(items: tuple[Any, ...]) -> OperatorSpec:
    """The annotation with these items: two sizes, then a dtype and a policy if wanted."""
    if not 2 <= len(items) <= 4:
        raise located(
            AnnotationError(
                f"Operator[...]: got {len(items)} items, expected the sizes of argument and result, a "
                'dtype and a policy, as in Operator["N", "M", f32]'
            )
        )
    columns, rows = (_size(s) for s in items[:2])
    dtype = as_dtype(items[2]) if len(items) > 2 else None
    if len(items) == 4:
        dtype = _with_policy(dtype, items[3])
    return OperatorSpec(columns, rows, dtype)


def _with_policy(dtype: DType | None, policy: Any) -> DType:
    """T and P = T @ accum(...): P says all that T does, and how to accumulate."""
    whole = as_dtype(policy)
    if dtype is not None and whole.base is not dtype.base:
        raise located(
            AnnotationError(f"Operator[...]: the policy {whole} is not one of the dtype {dtype}")
        )
    return whole


def _size(s: Any) -> Size:
    if isinstance(s, Dim) or (isinstance(s, int) and not isinstance(s, bool) and s >= 0):
        return s
    if isinstance(s, str):
        return parse_dim(s)
    raise located(AnnotationError(f"Operator[...]: {s!r} is not a size"))
