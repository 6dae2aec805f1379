"""psum, pmean, pmax and their kin: collectives over an axis that vmap names, as in JAX."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tessera.core import tree
from tessera.core.constraints import unify
from tessera.core.dims import Size
from tessera.core.errors import OperandError, ShapeError
from tessera.ir.graph.ir import Value, bind
from tessera.ir.graph.op import Op
from tessera.ops.collective import (
    ALL_GATHER,
    AXIS_INDEX,
    PMAX,
    PPERMUTE,
    PSUM,
    PSUM_SCATTER,
    axis_size_of,
)
from tessera.ops.define import ArrayLike, as_value, public
from tessera.ops.elementwise import div, neg

Names = str | Sequence[str]
Tree = Any


def _names(who: str, axis_name: Names) -> tuple[str, ...]:
    names = axis_name if isinstance(axis_name, tuple | list) else (axis_name,)
    for n in names:
        if not isinstance(n, str):
            raise OperandError(
                f"{who}: axis_name is {n!r:.40}, expected the name of an axis of vmap or a mesh"
            )
    return tuple(names)


def _each(who: str, op: Op, x: Tree, axis_name: Names) -> Tree:
    for name in _names(who, axis_name):
        axis_size_of(who, name)
        x = tree.map(lambda v, name=name: bind(op, as_value(v, who), axis=name), x)
    return x


@public
def psum(x: Tree, axis_name: Names) -> Tree:
    """The sum of the tensors of x over the elements of the batch."""
    return _each("psum", PSUM, x, axis_name)


@public
def pmean(x: Tree, axis_name: Names) -> Tree:
    """The mean of the tensors of x over the elements of the batch."""
    total = _each("pmean", PSUM, x, axis_name)
    for name in _names("pmean", axis_name):
        total = tree.map(lambda v, name=name: div(v, axis_size_of("pmean", name)), total)
    return total


@public
def pmax(x: Tree, axis_name: Names) -> Tree:
    """The largest of each element of the tensors of x over the elements of the batch."""
    return _each("pmax", PMAX, x, axis_name)


@public
def pmin(x: Tree, axis_name: Names) -> Tree:
    """The smallest of each element of the tensors of x over the elements of the batch."""
    return tree.map(neg, _each("pmin", PMAX, tree.map(neg, x), axis_name))


@public
def all_gather(x: ArrayLike, axis_name: str) -> Value:
    """What all elements of the batch hold, along a new first axis."""
    size = axis_size_of("all_gather", axis_name)
    made: Value = bind(ALL_GATHER, as_value(x, "all_gather"), axis=axis_name, size=size)
    return made


@public
def psum_scatter(x: ArrayLike, axis_name: str) -> Value:
    """The sum of x over the elements of the batch, of which element i gets x[i]."""
    return scattered("psum_scatter", x, axis_name)


def scattered(who: str, x: ArrayLike, axis_name: str) -> Value:
    """psum_scatter under the name that the user called it by."""
    v, size = as_value(x, who), axis_size_of(who, axis_name)
    if v.ndim == 0 or not unify(v.shape[0], size, f"{who}: the first axis"):
        raise ShapeError(
            f"{who}: {v.type} must have the size {size} of axis {axis_name!r} along axis 0"
        )
    made: Value = bind(PSUM_SCATTER, v, axis=axis_name, size=size)
    return made


@public
def ppermute(x: ArrayLike, axis_name: str, perm: Sequence[tuple[int, int]]) -> Value:
    """What element a sends to element b, for pairs (a, b) in perm; zeros where nothing comes."""
    return permuted("ppermute", x, axis_name, perm)


def permuted(who: str, x: ArrayLike, axis_name: str, perm: Sequence[tuple[int, int]]) -> Value:
    """ppermute under the name that the user called it by."""
    size = axis_size_of(who, axis_name)
    pairs = tuple((int(a), int(b)) for a, b in perm)
    for side in zip(*pairs, strict=True):
        inside = isinstance(size, int) and all(0 <= i < size for i in side)
        if len(set(side)) != len(side) or not inside:
            raise OperandError(
                f"{who}: {list(pairs)} must name each sender and each receiver once, from 0 to {size} - 1"
            )
    made: Value = bind(PPERMUTE, as_value(x, who), axis=axis_name, perm=pairs)
    return made


@public
def axis_index(axis_name: str) -> Value:
    """Which element of the batch this is."""
    axis_size_of("axis_index", axis_name)
    made: Value = bind(AXIS_INDEX, axis=axis_name)
    return made


@public
def axis_size(axis_name: str) -> Size:
    """How many elements the batch has."""
    return axis_size_of("axis_size", axis_name)
