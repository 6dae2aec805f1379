"""vmap: a function of one element as a function of a batch, with the meaning it has in JAX."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

from tessera.core import tree
from tessera.core.blame import blames_arguments, demand_function
from tessera.core.constraints import unify
from tessera.core.dims import Size
from tessera.core.errors import AxisError, OperandError, ShapeError, TreeError, located
from tessera.ir.graph.ir import Value
from tessera.lang.trace import is_tensor, trace
from tessera.lang.transforms import guarded
from tessera.ops.batching import adding, in_front
from tessera.ops.collective import naming
from tessera.ops.define import kept_value
from tessera.ops.shape import moveaxis
from tessera.transform.batch import batch_graph

Axes = Any  # an axis, None, or a tree of them that is a prefix of the argument's or result's


@blames_arguments
def vmap(
    f: Callable[..., Any], in_axes: Axes = 0, out_axes: Axes = 0, axis_name: str | None = None
) -> Callable[..., Any]:
    """f applied to every element along an axis of its arguments, the results joined along a new one.

    in_axes gives the axis of all arguments, or one for each (None: the same for all elements), or
    trees of them; keyword arguments are mapped along axis 0.  out_axes does so for the results.
    With an axis_name, collectives (op.psum, op.pmean, ...) inside of f see all elements.
    """
    demand_function("vmap", f)
    if axis_name is not None and not isinstance(axis_name, str):
        raise located(OperandError(f"vmap: axis_name is {axis_name!r:.40}, expected a string"))

    @wraps(f)
    @guarded
    def run(*args: Any, **kwargs: Any) -> Any:
        given = tuple(in_axes) if isinstance(in_axes, list) else in_axes
        axes = [*_spread("in_axes", given, args), *_spread("in_axes", 0, kwargs)]
        leaves, structure = tree.flatten((args, kwargs))
        given_args, given_kwargs = structure.children
        names = tree.structure_paths(given_args, "args") + tree.structure_paths(
            given_kwargs, "kwargs"
        )
        mapped = [_Mapped(n, x, a) for n, x, a in zip(names, leaves, axes, strict=True)]
        size = _size(mapped)
        tensors = [m for m in mapped if m.value is not None]
        inner_args, inner_kwargs = tree.unflatten(structure, leaves)
        name = getattr(f, "__name__", "vmap")
        with naming(axis_name, size):
            t = trace(f, inner_args, inner_kwargs, [m.inner for m in tensors], name)
        values = [m.front for m in tensors]
        batched = [m.axis is not None for m in tensors]
        outer = [False] * len(t.outer)
        with adding(axis_name, size):
            outs, mask = batch_graph(t.graph, [*values, *t.outer], [*batched, *outer])
        joined = _joined(outs, mask, out_axes, t.structure, size)
        return tree.unflatten(t.structure, joined)

    return run


def _is_axis(x: Any) -> bool:
    return x is None or (isinstance(x, int) and not isinstance(x, bool))


def _spread(what: str, prefix: Axes, whole: Any) -> list[int | None]:
    """One axis for each leaf of a tree, from a prefix of it."""
    return _axes(what, prefix, tree.structure(whole))


def _axes(what: str, prefix: Axes, s: tree.Structure) -> list[int | None]:
    if _is_axis(prefix):
        return [prefix] * s.count
    found = tree.root(prefix)
    if s.kind is None or found is None or found[0].kind is not s.kind or found[0].aux != s.aux:
        raise TreeError(
            f"vmap: {what} has {prefix!r:.60} where the tree is {s}; use an axis or None"
        )
    children = found[1]
    if len(children) != len(s.children):
        raise TreeError(
            f"vmap: {what} has {len(children)} entries {prefix!r:.60} for {len(s.children)} in {s}"
        )
    pairs = zip(children, s.children, strict=True)
    return [a for p, c in pairs for a in _axes(what, p, c)]


class _Mapped:
    """An argument's leaf with the axis along which it is mapped."""

    def __init__(self, name: str, x: Any, axis: int | None):
        self.name = name
        self.value = kept_value(x, "vmap") if axis is not None or is_tensor(x) else None
        self.axis = axis if self.value is None or axis is None else self._checked(self.value, axis)

    def _checked(self, v: Value, axis: int) -> int:
        if not -v.ndim <= axis < v.ndim:
            raise AxisError(
                f"vmap: {self.name} is {v.type}, which has no axis {axis}; give in_axes an axis that "
                "it has, or None"
            )
        return axis % v.ndim

    @property
    def size(self) -> Size:
        """How many elements there are."""
        assert self.value is not None
        assert self.axis is not None
        size: Size = self.value.shape[self.axis]
        return size

    @property
    def inner(self) -> Any:
        """The type that the function sees."""
        assert self.value is not None
        t = self.value.type
        if self.axis is None:
            return t
        return t.with_shape((*t.shape[: self.axis], *t.shape[self.axis + 1 :]))

    @property
    def front(self) -> Value:
        """The value with the mapped axis in front."""
        assert self.value is not None
        return moveaxis(self.value, self.axis, 0) if self.axis else self.value


def _size(mapped: Sequence[_Mapped]) -> Size:
    moving = [m for m in mapped if m.axis is not None]
    if not moving:
        raise OperandError(
            "vmap: no argument is mapped; give at least one an axis with in_axes, or call the function"
        )
    first = moving[0]
    for m in moving[1:]:
        if not unify(first.size, m.size, f"vmap: the mapped axes of {first.name} and {m.name}"):
            raise ShapeError(
                f"vmap: the mapped axis is {first.size} in {first.name} {_type(first)} but "
                f"{m.size} in {m.name} {_type(m)}; map one of them with None, or give another axis"
            )
    return next((m.size for m in moving if isinstance(m.size, int)), first.size)


def _type(m: _Mapped) -> str:
    assert m.value is not None
    return f"{m.value.type} (axis {m.axis})"


def _joined(
    outs: Sequence[Value], mask: Sequence[bool], out_axes: Axes, s: tree.Structure, size: Size
) -> list[Value]:
    """Results with the new axis where out_axes wants it."""
    given = tuple(out_axes) if isinstance(out_axes, list) and s.kind is tuple else out_axes
    axes = _axes("out_axes", given, s)
    joined = []
    for path, v, b, a in zip(tree.structure_paths(s, "result"), outs, mask, axes, strict=True):
        if a is None:
            if b:
                raise AxisError(
                    f"vmap: {path} differs between the elements of the batch, so out_axes cannot be "
                    "None for it"
                )
            joined.append(v)
            continue
        whole = in_front(v, b, size)
        if not -whole.ndim <= a < whole.ndim:
            raise AxisError(
                f"vmap: out_axes {a} is out of range for {path} {whole.type}; use {-whole.ndim} to "
                f"{whole.ndim - 1}"
            )
        joined.append(moveaxis(whole, 0, a) if a % whole.ndim else whole)
    return joined
