"""Operators in the trees that transforms take and give: their tangents and cotangents are operators.

An argument or a result is a tree whose leaves are tensors.  The outline of its structure has a leaf for each
operator too, where a tangent operator or a cotangent matrix stands for the tensors of the operator.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from tessera.algebra.operator import Operator
from tessera.algebra.spectral import SpectralOperator
from tessera.algebra.tangent import directions, pulled_back, tangent_of
from tessera.core import tree
from tessera.core.errors import OperandError
from tessera.core.types import TensorType
from tessera.ir.graph.ir import Value
from tessera.ops.define import kept_value

Function = Callable[[Any], Any]


class Outline:
    """A structure of trees with its operators as leaves."""

    __slots__ = ("parts", "structure", "whole")

    def __init__(self, whole: tree.Structure):
        self.whole = whole
        self.parts: list[tree.Structure] = []  # what each leaf stands for
        self.structure = self._outlined(whole)

    def of_results(self) -> Outline:
        """This outline, of results that are differentiated."""
        _refuse_maps(self.structure)
        return self

    def _outlined(self, s: tree.Structure) -> tree.Structure:
        if s.kind in (None, SpectralOperator) or (s.kind is Operator and not s.aux.is_gradient):
            self.parts.append(s)
            return tree.LEAF
        return tree.Structure(s.kind, s.aux, tuple(self._outlined(c) for c in s.children))

    def cut(self, leaves: Sequence[Value]) -> Iterator[tuple[tree.Structure, list[Value]]]:
        """What each leaf stands for, with its tensors."""
        start = 0
        for s in self.parts:
            yield s, list(leaves[start : start + s.count])
            start += s.count

    def tangents(self, leaves: Sequence[Value], moved: Sequence[Value]) -> Any:
        """The tree of tangents: tensors, and tangent operators."""
        pairs = zip(self.cut(leaves), self.cut(moved), strict=True)
        found = [_tangent(s, xs, ts) for (s, xs), (_, ts) in pairs]
        return tree.unflatten(self.structure, found)

    def _given(self, whole: Any) -> list[Any] | None:
        """What stands in a tree for each leaf, None when the tree is another one."""
        parts = tree.parts(self.structure, whole)
        if parts is None:
            return None
        pairs = zip(self.parts, parts, strict=True)
        wrong = any(s.kind is None and tree.structure(x) != tree.LEAF for s, x in pairs)
        return None if wrong else parts

    def directions(self, user: str, leaves: Sequence[Value], given: Any) -> list[Value] | None:
        """Tangents of all tensors from a tree like this one, None when it is none."""
        parts = self._given(given)
        if parts is None:
            return None
        out: list[Value] = []
        for i, ((s, xs), t) in enumerate(zip(self.cut(leaves), parts, strict=True)):
            out += _own(s, t) or directions(user, i, tree.unflatten(s, xs), t)
        return out

    def cotangents(self, user: str, leaves: Sequence[Value], given: Any) -> list[Value] | None:
        """Cotangents of all tensors from a tree like this one, None when it is none."""
        parts = self._given(given)
        if parts is None:
            return None
        out: list[Value] = []
        for i, ((s, xs), c) in enumerate(zip(self.cut(leaves), parts, strict=True)):
            out += _own(s, c) or pulled_back(user, i, tree.unflatten(s, xs), c)
        return out

    def types(self, leaves: Sequence[Value]) -> list[TensorType]:
        """The types of the tensors and of the matrices of the operators."""
        return [_type(s, xs) for s, xs in self.cut(leaves)]


def _refuse_maps(s: tree.Structure) -> None:
    """A linear map is a function of trees and holds no tensors that could move."""
    if s.kind is not None and s.kind is not Operator and issubclass(s.kind, Operator):
        raise OperandError(
            "jvp, vjp and linearize: the function returns what linearize gave, which has no tangent; return "
            "its "
            "matrix A.todense(), or op.jacobian(f, x)"
        )
    for c in s.children:
        _refuse_maps(c)


def _tangent(s: tree.Structure, leaves: Sequence[Value], tangents: Sequence[Value]) -> Any:
    if s.kind is None:
        return tangents[0]
    whole = tree.unflatten(s, leaves)
    if isinstance(whole, SpectralOperator):
        return whole.moving(tangents)
    return tangent_of(whole, tangents)


def _own(s: tree.Structure, x: Any) -> list[Value] | None:
    """Tangents or cotangents of a tensor, or of the tensors of a decomposition; None for an operator."""
    if s.kind is None:
        return [kept_value(x)]
    if s.kind is Operator:
        return None
    if not isinstance(x, SpectralOperator) or len(tree.leaves(x)) < s.count:
        shown = x if isinstance(x, Operator) else type(x).__name__
        raise OperandError(
            f"jvp, vjp and linearize: got {shown} beside a SpectralOperator, expected one that holds those "
            "of U, S and V"
        )
    return [kept_value(v) for v in tree.leaves(x)[: s.count]]


def _type(s: tree.Structure, leaves: Sequence[Value]) -> TensorType:
    if s.kind is None:
        return leaves[0].type
    a = tree.unflatten(s, leaves)
    return TensorType(a.dtype, a.shape)


def map_operators(of_operator: Function, of_tensor: Function, x: Any) -> Any:
    """A tree with functions of its operators and of its other tensors in their place."""
    leaves, s = tree.flatten(x)
    outline = Outline(s)
    found = [
        of_tensor(xs[0]) if part.kind is None else of_operator(tree.unflatten(part, xs))
        for part, xs in outline.cut(leaves)
    ]
    return tree.unflatten(outline.structure, found)


def with_matrices(result: Any) -> Any:
    """A result with the matrices of its operators in their place."""
    return map_operators(_matrix, lambda x: x, result)


def _matrix(a: Any) -> Any:
    return (a.reconstruct() if isinstance(a, SpectralOperator) else a).todense()
