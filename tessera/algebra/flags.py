"""Flags: what is known of an operator without looking at its numbers, and what follows from it.

A flag is a promise about the matrix.  Constructors state some, combinators pass on what their rules
allow, users may add more (A.assume); `check_flags` looks whether the numbers keep them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

FLAGS = {
    "real": "no element has an imaginary part",
    "unitary": "A.H @ A is the identity and A is square",
    "orthogonal_columns": "A.H @ A is the identity",
    "self_adjoint": "A.H is A",
    "skew_adjoint": "A.H is -A",
    "symmetric": "A.T is A",
    "normal": "A.H @ A is A @ A.H",
    "positive": "A.H is A and no eigenvalue is negative",
    "invertible": "A is square and has an inverse",
    "projector": "A @ A is A and A.H is A",
    "diagonal": "zero off the diagonal",
    "triangular_lower": "zero above the diagonal",
    "triangular_upper": "zero below the diagonal",
    "circulant": "each row is the one above, turned by one",
    "toeplitz": "each diagonal has one value",
    "permutation": "one 1 in each row and in each column",
    "low_rank": "the rank is at most A.rank, which is less than both sizes",
}

# If all on the left hold then so does the right; "square" is a fact of the shape.
_IMPLIES: tuple[tuple[tuple[str, ...], str], ...] = (
    (("permutation",), "unitary"),
    (("permutation",), "real"),
    (("unitary",), "normal"),
    (("unitary",), "invertible"),
    (("unitary",), "orthogonal_columns"),
    (("orthogonal_columns", "square"), "unitary"),
    (("projector",), "positive"),
    (("positive",), "self_adjoint"),
    (("self_adjoint",), "normal"),
    (("skew_adjoint",), "normal"),
    (("self_adjoint", "real"), "symmetric"),
    (("symmetric", "real"), "self_adjoint"),
    (("diagonal",), "triangular_lower"),
    (("diagonal",), "triangular_upper"),
    (("diagonal", "square"), "symmetric"),
    (("diagonal", "square"), "normal"),
    (("triangular_lower", "triangular_upper"), "diagonal"),
    (("triangular_lower", "symmetric"), "diagonal"),
    (("triangular_upper", "symmetric"), "diagonal"),
    (("triangular_lower", "normal"), "diagonal"),
    (("triangular_upper", "normal"), "diagonal"),
    (("circulant",), "toeplitz"),
    (("circulant",), "normal"),
)


def closure(flags: Iterable[str], square: bool) -> frozenset[str]:
    """The flags with everything that follows from them."""
    known = {*flags, "square"} if square else set(flags)
    grown = True
    while grown:
        new = {r for left, r in _IMPLIES if r not in known and known.issuperset(left)}
        known |= new
        grown = bool(new)
    return frozenset(known - {"square"})


_LINEAR = {
    "real", "self_adjoint", "skew_adjoint", "symmetric", "positive", "diagonal", "triangular_lower",
    "triangular_upper", "circulant", "toeplitz",
}  # fmt: skip
_MULTIPLICATIVE = {
    "real", "unitary", "orthogonal_columns", "invertible", "diagonal", "triangular_lower",
    "triangular_upper", "circulant", "permutation",
}  # fmt: skip
_TENSOR = {
    "real", "unitary", "orthogonal_columns", "self_adjoint", "symmetric", "normal", "positive",
    "invertible", "projector", "diagonal", "triangular_lower", "triangular_upper", "permutation",
}  # fmt: skip
_SHAPES = {
    "symmetric", "normal", "diagonal", "triangular_lower", "triangular_upper", "circulant", "toeplitz",
}  # fmt: skip
_INVERSE = {
    "real", "unitary", "self_adjoint", "skew_adjoint", "symmetric", "normal", "positive", "diagonal",
    "triangular_lower", "triangular_upper", "circulant", "permutation",
}  # fmt: skip
# What every function of a matrix keeps.
_FUNCTION = {
    "symmetric", "normal", "diagonal", "triangular_lower", "triangular_upper", "circulant",
}  # fmt: skip
_TURNED = {"triangular_lower": "triangular_upper", "triangular_upper": "triangular_lower"}


def common(parts: Sequence[Any], names: Iterable[str]) -> set[str]:
    """Those of the names that all parts have."""
    return {n for n in names if all(n in p.flags for p in parts)}


def of_sum(parts: Sequence[Any]) -> frozenset[str]:
    """What a sum has of its terms."""
    found = common(parts, _LINEAR)
    if "positive" in found and any("invertible" in p.flags for p in parts):
        found.add("invertible")
    return frozenset(found)


def of_product(parts: Sequence[Any]) -> frozenset[str]:
    """What a product has of its factors."""
    return frozenset(common(parts, _MULTIPLICATIVE))


def of_tensor(parts: Sequence[Any]) -> frozenset[str]:
    """What a Kronecker product has of its parts."""
    return frozenset(_by_position(common(parts, _TENSOR), parts))


def of_kronsum(parts: Sequence[Any]) -> frozenset[str]:
    """What a Kronecker sum has of its parts."""
    return frozenset(common(parts, (_LINEAR - {"circulant", "toeplitz"}) | {"normal"}))


def of_transpose(a: Any) -> frozenset[str]:
    """What a transpose or an adjoint has of the operator."""
    square = a.shape[0] == a.shape[1]
    kept = {_TURNED.get(f, f) for f in a.flags}
    return frozenset(kept if square else kept - {"orthogonal_columns"})


def of_scale(a: Any, factor: Any) -> frozenset[str]:
    """What a multiple has of the operator; factor is None when it is a tensor."""
    kept = a.flags & _SHAPES
    if factor is None:
        return frozenset(kept)
    is_real = not isinstance(factor, complex)
    if is_real:
        kept |= a.flags & {"real", "self_adjoint", "skew_adjoint"}
    if is_real and factor >= 0:
        kept |= a.flags & {"positive"}
    if factor != 0:
        kept |= a.flags & {"invertible"}
    if abs(factor) == 1:
        kept |= a.flags & {"unitary", "orthogonal_columns"}
    return frozenset(kept)


def of_inverse(a: Any) -> frozenset[str]:
    """What an inverse has of the operator."""
    return frozenset({"invertible", *(a.flags & _INVERSE)})


def of_pseudoinverse(a: Any) -> frozenset[str]:
    """What a pseudoinverse has of the operator: triangles are lost where the matrix is singular."""
    kept = a.flags & _INVERSE
    return frozenset(kept if "diagonal" in kept else kept - set(_TURNED))


def of_blocks(parts: Sequence[Any]) -> frozenset[str]:
    """What a direct sum has of its parts."""
    return frozenset(_by_position(common(parts, _TENSOR | {"skew_adjoint"}), parts))


def _by_position(found: set[str], parts: Sequence[Any]) -> set[str]:
    """Parts that are not square move the diagonals of those after them."""
    if all(p.shape[0] == p.shape[1] for p in parts):
        return found
    return found - {"diagonal", "triangular_lower", "triangular_upper"}


def of_function(a: Any) -> frozenset[str]:
    """What any function of the matrix has."""
    return frozenset(a.flags & _FUNCTION)
