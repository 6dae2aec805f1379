"""Linear maps: what linearize returns, a derivative that can be applied, transposed and composed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tessera.core import tree
from tessera.ir.graph.ir import Value
from tessera.ops.elementwise import conj

Function = Callable[..., Any]


@dataclass(frozen=True)
class LinearMap:
    """A linear function A of tensors or trees: A(x), A @ x, A @ B, its transpose A.T, adjoint A.H.

    The transpose takes a cotangent of the result to that of the argument, or to a tuple when A takes
    several: the real parts of sum(A(x) * c) and of sum(x * A.T(c)) are equal.  A.H is conj(A.T(conj(c))).
    """

    apply: Function
    pull: Function

    def __call__(self, *xs: Any) -> Any:
        return self.apply(*xs)

    def __matmul__(self, other: Any) -> Any:
        if isinstance(other, LinearMap):
            return LinearMap(
                lambda *xs: self.apply(other.apply(*xs)), lambda ct: other.pull(self.pull(ct))
            )
        return self.apply(other)

    @property
    def T(self) -> LinearMap:  # noqa: N802
        """The transpose."""
        return LinearMap(self.pull, self.apply)

    @property
    def H(self) -> LinearMap:  # noqa: N802
        """The adjoint, which is the transpose for real numbers."""
        return LinearMap(_conjugated(self.pull), _conjugated(self.apply))

    adjoint, transpose = H, T


def _conjugated(f: Function) -> Function:
    return lambda *xs: tree.map(_conj, f(*(tree.map(_conj, x) for x in xs)))


def _conj(x: Any) -> Any:
    return conj(x) if isinstance(x, Value) and x.dtype.kind == "c" else x
