"""The methods of NumPy's and JAX's arrays that are one op each, and mean the same there and in PyTorch.

`sort` and `repeat` are left out: the one changes a NumPy array in place, the other repeats elements in NumPy
and the whole in PyTorch.  `diagonal` and `trace` of more than two axes differ between libraries, too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tessera.core.blame import unexpected
from tessera.core.deferred import Deferred
from tessera.ops import accumulate, elementwise, gather, sets, shape, sorting
from tessera.ops.define import ArrayLike

if TYPE_CHECKING:
    from tessera.lang.tensor import Tensor

_dot = Deferred("tessera.lang.names.numeric:dot")


class ArrayMethods:
    """What a tensor has beside reductions and shapes."""

    __slots__ = ()

    def cumsum(self, axis: int | None = None, **wrong: Any) -> Tensor:
        """Sums of the elements so far, of the flattened tensor unless an axis is given."""
        if wrong:
            raise unexpected("cumsum", wrong, ArrayMethods.cumsum)
        return accumulate.cumsum(self, axis)  # type: ignore[return-value]

    def cumprod(self, axis: int | None = None, **wrong: Any) -> Tensor:
        """Products of the elements so far, of the flattened tensor unless an axis is given."""
        if wrong:
            raise unexpected("cumprod", wrong, ArrayMethods.cumprod)
        return accumulate.cumprod(self, axis)  # type: ignore[return-value]

    def argsort(self, axis: int = -1, descending: bool = False, **wrong: Any) -> Tensor:
        """The order that sorts the elements along an axis; equal ones keep theirs."""
        if wrong:
            raise unexpected("argsort", wrong, ArrayMethods.argsort)
        return sorting.argsort(self, axis, descending)  # type: ignore[return-value]

    def clip(self, min: ArrayLike = None, max: ArrayLike = None, **wrong: Any) -> Tensor:
        """The elements, but at least min and at most max."""
        if wrong:
            raise unexpected("clip", wrong, ArrayMethods.clip)
        return elementwise.clip(self, min, max)  # type: ignore[return-value]

    def round(self, decimals: int = 0, **wrong: Any) -> Tensor:
        """Nearest whole numbers, or multiples of 10**-decimals; ties to even."""
        if wrong:
            raise unexpected("round", wrong, ArrayMethods.round)
        return elementwise.round(self, decimals)  # type: ignore[return-value]

    def __round__(self, decimals: int | None = None) -> Tensor:
        return elementwise.round(self, decimals or 0)  # type: ignore[return-value]

    def conj(self) -> Tensor:
        """Complex conjugates."""
        return elementwise.conj(self)  # type: ignore[return-value]

    conjugate = conj

    def copy(self) -> Tensor:
        """The tensor itself, which never changes."""
        return self  # type: ignore[return-value]

    def dot(self, other: ArrayLike) -> Tensor:
        """The product with a vector or a matrix, as np.dot has it."""
        return _dot(self, other)  # type: ignore[no-any-return]

    def ravel(self) -> Tensor:
        """The elements as a vector."""
        return shape.flatten(self)  # type: ignore[return-value]

    def swapaxes(self, a: int, b: int) -> Tensor:
        """The tensor with two axes exchanged."""
        return shape.swapaxes(self, a, b)  # type: ignore[return-value]

    def take(self, indices: ArrayLike, axis: int | None = None, **wrong: Any) -> Tensor:
        """The elements at indices along an axis, of the flattened tensor unless one is given."""
        if wrong:
            raise unexpected("take", wrong, ArrayMethods.take)
        return gather.take(self, indices, axis)  # type: ignore[return-value]

    def searchsorted(self, values: ArrayLike, side: str = "left", **wrong: Any) -> Tensor:
        """Where values belong in this sorted vector."""
        if wrong:
            raise unexpected("searchsorted", wrong, ArrayMethods.searchsorted)
        return sorting.searchsorted(self, values, side)  # type: ignore[return-value]

    def nonzero(self) -> tuple[Tensor, ...]:
        """The places of the elements that are not zero, a vector for each axis."""
        return sets.nonzero(self)  # type: ignore[return-value]
