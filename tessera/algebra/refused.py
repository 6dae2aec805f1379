"""Refuse Python's operations on elements and numbers, which operators do not have: name what to write."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tessera.core.errors import OperandError, located

# Python's method: how the expression looks, and what to write instead.
_MATRIX = "compare or combine elements of the matrix: "
_REFUSED = {
    **{
        f"__{name}__": (f"A {sign} B", f"{_MATRIX}A.todense() {sign} ...")
        for name, sign in [
            ("lt", "<"), ("le", "<="), ("gt", ">"), ("ge", ">="), ("mod", "%"), ("floordiv", "//"),
            ("and", "&"), ("or", "|"), ("xor", "^"), ("lshift", "<<"), ("rshift", ">>"),
        ]
    },
    **{
        f"__{name}__": (f"b {sign} A", f"{_MATRIX}b {sign} A.todense()")
        for name, sign in [("rmod", "%"), ("rfloordiv", "//"), ("rand", "&"), ("ror", "|"), ("rxor", "^")]
    },
    "__divmod__": ("divmod(A, b)", f"{_MATRIX}A.todense() // b"),
    "__abs__": ("abs(A)", "of the elements op.abs(A.todense()), of the operator op.sqrtm(A.H @ A)"),
    "__round__": ("round(A)", "op.round(A.todense())"),
    "__invert__": ("~A", "A.inverse()"),
    "__rtruediv__": ("b / A", "b * A.inverse(), or A.solve(b)"),
    "__rpow__": ("b ** A", "op.expm(np.log(b) * A)"),
    "__float__": ("float(A)", "a number is A[i, j], op.trace(A), op.norm(A), ..."),
    "__int__": ("int(A)", "a number is A[i, j], op.trace(A), op.norm(A), ..."),
    "__complex__": ("complex(A)", "a number is A[i, j], op.trace(A), op.norm(A), ..."),
    "__len__": ("len(A)", "A.shape[0]"),
    "__bool__": ("bool(A)", "a condition on elements is op.any(A.todense() != 0)"),
}  # fmt: skip


def _refusal(looks: str, write: str) -> Callable[..., Any]:
    def refuse(self: Any, *others: Any) -> Any:
        raise located(OperandError(f"{looks}: an operator is a map, no array; {write}"))

    return refuse


class RefusesElements:
    """`A < B`, `abs(A)` and `len(A)` are errors that say what to write; so is `A == B` of two objects."""

    __slots__ = ()
    __hash__ = object.__hash__

    def __eq__(self, other: Any) -> bool:
        """Whether this is the same object; equality of what operators do is asked of their matrices."""
        if self is other:
            return True
        if other is None or isinstance(
            other, str | bytes | tuple | list | dict | set | frozenset | type
        ):
            return False
        looks = "A == B" if isinstance(other, RefusesElements) else "A == b"
        write = "op.allclose(A.todense(), B.todense()) compares matrices, `is` objects"
        raise located(OperandError(f"{looks}: an operator is a map, no array; {write}"))


for _name, (_looks, _write) in _REFUSED.items():
    setattr(RefusesElements, _name, _refusal(_looks, _write))
