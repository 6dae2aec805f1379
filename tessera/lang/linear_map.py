"""Linear maps: what linearize returns, a derivative that can be applied, transposed and composed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tessera.algebra.apply import dense_cost
from tessera.algebra.constructors.implicit import by_parts
from tessera.algebra.kind import Kind, register
from tessera.algebra.linear_graph import over_columns, zeros
from tessera.algebra.operator import Operator
from tessera.core import tree
from tessera.core.dtype import f32
from tessera.core.promotion import promote_all
from tessera.core.types import TensorType
from tessera.ir.graph.ir import Value
from tessera.lang.operator_trees import map_operators, with_matrices
from tessera.ops.define import as_value, cast_to, full_of
from tessera.ops.elementwise import conj
from tessera.ops.shape import concat, expand_dims, reshape, slice_, squeeze

Function = Callable[..., Any]


class TreeSpace:
    """The trees of tensors that a map takes or gives, and vectors of their elements.

    Operators of arguments hold tangents of their tensors; those of results are tangents as a whole.
    """

    __slots__ = ("dtype", "moving", "of_results", "structure", "types")

    def __init__(
        self, structure: tree.Structure, types: Sequence[TensorType], of_results: bool = False
    ):
        self.structure, self.types, self.of_results = structure, tuple(types), of_results
        self.moving = tuple(t for t in types if t.dtype.kind in "fc")  # integers do not move
        self.dtype = promote_all([t.dtype for t in self.moving]) if self.moving else f32

    @property
    def size(self) -> Any:
        """How many numbers."""
        return sum(t.size for t in self.moving)

    def holds(self, x: Any) -> bool:
        """Whether x is one of these trees."""
        leaves, structure = tree.flatten(x)
        types = [getattr(v, "type", None) for v in leaves]
        return structure == self.structure and types == list(self.types)

    def tree_of(self, x: Value) -> Any:
        """The tree with the elements of a vector."""
        leaves, start = [], 0
        for t in self.types:
            if t.dtype.kind not in "fc":
                leaves.append(zeros(t))
                continue
            piece = slice_(x, (start,), (start + t.size,))
            leaves.append(cast_to(reshape(piece, t.shape), t.dtype))
            start = start + t.size
        return tree.unflatten(self.structure, leaves)

    def vector_of(self, whole: Any) -> Value:
        """The elements of a tree as a vector."""
        leaves = [v for v in tree.leaves(with_matrices(whole)) if v.dtype.kind in "fc"]
        flat = [cast_to(reshape(v, (v.type.size,)), self.dtype) for v in leaves]
        return concat(flat, 0) if flat else full_of((0,), 0, self.dtype)


class LinearMap(Operator):
    """A linear function A of tensors or trees: A(x), A @ x, A @ B, its transpose A.T, adjoint A.H.

    The transpose takes a cotangent of the result to that of the argument, or to a tuple when A takes
    several: the real parts of sum(A(x) * c) and of sum(x * A.T(c)) are equal.  A.H is conj(A.T(conj(c))).
    It is an operator on vectors of all elements too, which the algebra and the solvers take.
    """

    __slots__ = ("domain", "pull", "push", "several", "space")

    push: Function
    pull: Function
    domain: TreeSpace  # of the argument, or of the tuple of several
    space: TreeSpace  # of the result
    several: bool

    def __init__(
        self,
        push: Function,
        pull: Function,
        domain: TreeSpace,
        space: TreeSpace,
        several: bool = False,
    ):
        put = object.__setattr__
        for name, x in (("push", push), ("pull", pull), ("domain", domain), ("space", space)):
            put(self, name, x)
        put(self, "several", several)
        dtype = promote_all([domain.dtype, space.dtype])
        super().__init__(
            "linear_map", static=(self._vector, self._covector, space.size, domain.size, dtype)
        )

    def _made(self, assumed: frozenset[str]) -> LinearMap:
        made = LinearMap(self.push, self.pull, self.domain, self.space, self.several)
        object.__setattr__(made, "assumed", assumed)
        return made

    def _vector(self, x: Value) -> Value:
        arguments = self.domain.tree_of(x)
        return self.space.vector_of(self.push(*arguments) if self.several else self.push(arguments))

    def _covector(self, y: Value) -> Value:
        return self.domain.vector_of(self.pull(self.space.tree_of(y)))

    def __call__(self, *xs: Any) -> Any:
        return self.push(*xs)

    def __matmul__(self, other: Any) -> Any:
        if isinstance(other, LinearMap):
            return LinearMap(
                lambda *xs: self.push(other.push(*xs)), lambda ct: other.pull(self.pull(ct)),
                other.domain, self.space, other.several,
            )  # fmt: skip
        sizes = tuple(getattr(other, "shape", ()))
        flat = sizes[-2:][:1] == (self.shape[1],) and not self.domain.holds(other)
        return super().__matmul__(other) if flat else self.push(other)

    @property
    def T(self) -> LinearMap:  # noqa: N802
        """The transpose."""
        return LinearMap(self.pull, _spread(self.push, self.several), self.space, self.domain)

    @property
    def H(self) -> LinearMap:  # noqa: N802
        """The adjoint, which is the transpose for real numbers."""
        push = _spread(_conjugated(self.push, self.domain, self.space), self.several)
        pull = _conjugated(self.pull, self.space, self.domain)
        return LinearMap(pull, push, self.space, self.domain)

    def conj(self) -> Operator:
        """The map with conjugated elements."""
        return self.H.T

    adjoint, transpose = H, T


def _spread(f: Function, several: bool) -> Function:
    """f of several arguments as one of their tuple, which it takes apart too."""
    return f if not several else lambda *xs: f(*(xs[0] if len(xs) == 1 else xs))


def _conjugated(f: Function, before: TreeSpace, after: TreeSpace) -> Function:
    first, last = (_conj_whole if s.of_results else _conj_leaves for s in (before, after))
    return lambda *xs: last(f(*(first(x) for x in xs)))


def _conj_leaves(x: Any) -> Any:
    """Tangents or cotangents of an argument conjugated, tensor by tensor."""
    return map_operators(_conj_held, _conj, x)


def _conj_held(a: Any) -> Any:
    if isinstance(a, Operator) and a.kind == "tangent":
        return Operator(a.kind, a.parts, tuple(map(_conj, a.data)), a.static)
    return tree.map(_conj, a)


def _conj_whole(x: Any) -> Any:
    """Tangents or cotangents of a result conjugated: operators by their matrices."""
    return map_operators(
        lambda a: a.conj() if isinstance(a, Operator) else tree.map(_conj, a), _conj, x
    )


def _conj(x: Any) -> Any:
    v = as_value(x, "linearize")
    return conj(v) if v.dtype.kind == "c" else v


def _columns(a: Operator, f: Function, x: Value) -> Value:
    if x.shape[1] == 1:
        return by_parts(a, x, lambda v: expand_dims(f(squeeze(v, 1)), 1))
    return by_parts(a, x, lambda v: over_columns(f, v, (), "linearize"))


register(Kind(
    name="linear_map", doc="The derivative of a function of trees at a point.",
    shape=lambda parts, data, static: (static[2], static[3]),
    dtype=lambda parts, data, static: static[4],
    apply=lambda a, x: _columns(a, a.static[0], x), apply_transpose=lambda a, x: _columns(a, a.static[1], x),
    cost=dense_cost,
))  # fmt: skip
tree.register(LinearMap, lambda a: ((), a), lambda a, _: a)
