"""Control flow by function, as JAX spells it: switch, map, associative_scan, reduce, and eval_shape."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from tessera.core import tree
from tessera.core.blame import applied, blames_arguments, demand_function
from tessera.core.errors import DTypeError, OperandError, ShapeError
from tessera.ir.graph.ir import Value
from tessera.lang import op
from tessera.lang.shapes import results_of
from tessera.lang.vmap import vmap
from tessera.ops.control import agreeing, cond, scan
from tessera.ops.define import ArrayLike, as_value, kept_value

Tree = Any  # nested tuples, lists, dicts of tensors


@blames_arguments
def eval_shape(f: Callable[..., Any], *args: Any, **kwargs: Any) -> Tree:
    """The types of what f returns, in its structure; nothing is computed.

    Arguments are tensors, arrays, or types that stand for them, such as Tensor["B", 64, f32].
    """
    demand_function("eval_shape", f)
    return results_of(f, args, kwargs)


@blames_arguments
def switch(index: ArrayLike, branches: Sequence[Callable[..., Any]], *operands: Tree) -> Tree:
    """branches[index](*operands); an index out of range takes the first or the last branch.

    All branches return the same structure and types.  The branches are the leaves of a tree of cond.
    """
    if not isinstance(branches, list | tuple) or not branches:
        raise OperandError("switch: branches must be a list of at least one function")
    for f in branches:
        demand_function("switch", f)
    at = as_value(index, "switch")
    if at.dtype.kind not in "iu" or at.ndim:
        raise DTypeError(f"switch: the index is {at.type}, expected an integer scalar")
    agreeing("switch", branches, operands)

    def among(start: int, stop: int) -> Callable[..., Any]:
        if stop - start == 1:
            only: Callable[..., Any] = branches[start]
            return only
        middle = (start + stop) // 2
        low, high = among(start, middle), among(middle, stop)
        return lambda *xs: cond(at < middle, low, high, *xs)

    return among(0, len(branches))(*operands)


@blames_arguments
def map(f: Callable[..., Any], xs: Tree, *, batch_size: Any = None) -> Tree:
    """f of each slice of xs along the first axis, one after another; batch_size slices at a time by vmap."""
    demand_function("map", f)
    if batch_size is None:
        return scan(lambda _, x: (None, f(x)), None, xs)[1]
    if not isinstance(batch_size, int) or batch_size < 1:
        raise OperandError(f"map: batch_size is {batch_size!r}, expected a number of at least 1")
    n = _static("map", "xs", xs, 0)
    whole = n // batch_size * batch_size
    parts = []
    if whole:
        shape = (n // batch_size, batch_size)
        rows = tree.map(lambda x: op.reshape(x[:whole], (*shape, *x.shape[1:])), xs)
        made = scan(lambda _, x: (None, vmap(f)(x)), None, rows)[1]
        parts.append(tree.map(lambda y: op.reshape(y, (whole, *y.shape[2:])), made))
    if whole < n or not parts:
        parts.append(vmap(f)(tree.map(lambda x: x[whole:], xs)))
    return tree.map(lambda *ys: op.concatenate(ys), *parts) if len(parts) > 1 else parts[0]


@blames_arguments
def associative_scan(
    fn: Callable[[Any, Any], Any], elems: Tree, reverse: bool = False, axis: int = 0
) -> Tree:
    """All prefixes of elems along an axis under an associative fn(a, b), in a tree of logarithmic depth.

    fn takes and returns the structure of elems, and treats the axis as a batch.
    """
    demand_function("associative_scan", fn)
    leaves, structure = tree.flatten(elems)
    values = [kept_value(x, "associative_scan") for x in leaves]
    if not values:
        raise OperandError("associative_scan: elems has no tensors")
    n = _static("associative_scan", "elems", tree.unflatten(structure, values), axis)
    a = axis % values[0].ndim

    def joined(left: list[Any], right: list[Any]) -> list[Any]:
        pair = (tree.unflatten(structure, left), tree.unflatten(structure, right))
        made = applied("associative_scan: fn", fn, pair, {})
        out, got = tree.flatten(made)
        if got != structure:
            raise OperandError(f"associative_scan: fn returns {got}, expected {structure}")
        return [as_value(x, "associative_scan") for x in out]

    turned = [op.flip(x, a) for x in values] if reverse else values
    made = _prefixes(joined, turned, a, n)
    return tree.unflatten(structure, [op.flip(x, a) for x in made] if reverse else made)


def _prefixes(
    join: Callable[[list[Any], list[Any]], list[Any]], xs: list[Any], axis: int, n: int
) -> list[Any]:
    """Join neighbours, scan half as many, and fill in what lies between."""
    if n < 2:
        return xs

    def cut(values: list[Any], start: int, stop: int, step: int = 1) -> list[Any]:
        places = (*(slice(None) for _ in range(axis)), slice(start, stop, step))
        return [x[places] for x in values]

    pairs = join(cut(xs, 0, n - n % 2, 2), cut(xs, 1, n, 2))
    odd = _prefixes(join, pairs, axis, n // 2)
    first = cut(xs, 0, 1)
    if n == 2:
        even = first
    else:
        later = join(cut(odd, 0, (n - 1) // 2), cut(xs, 2, n, 2))
        even = [op.concatenate([a, b], axis) for a, b in zip(first, later, strict=True)]
    return [_woven(a, b, axis, n) for a, b in zip(even, odd, strict=True)]


def _woven(even: Any, odd: Any, axis: int, n: int) -> Value:
    """The elements of two tensors in turn."""
    half = n // 2
    places = (*(slice(None) for _ in range(axis)),)
    shape = (*even.shape[:axis], 2 * half, *even.shape[axis + 1 :])
    pairs = op.reshape(op.stack([even[(*places, slice(0, half))], odd], axis + 1), shape)
    return op.concatenate([pairs, even[(*places, slice(half, None))]], axis) if n % 2 else pairs


@blames_arguments
def reduce(
    operands: Tree, init_values: Tree, computation: Callable[[Any, Any], Any], dimensions: Any
) -> Tree:
    """Fold axes of operands by computation(a, b), which takes scalars, in a tree over neighbours.

    operands and init_values have one structure; computation is associative, and takes and returns it.
    """
    demand_function("reduce", computation)
    leaves, structure = tree.flatten(operands)
    start, same = tree.flatten(init_values)
    if same != structure or not leaves:
        raise OperandError(f"reduce: init_values are {same}, but operands are {structure}")
    values = [as_value(x, "reduce") for x in leaves]
    over = [dimensions] if isinstance(dimensions, int) else list(dimensions)
    if any(v.shape != values[0].shape for v in values):
        raise ShapeError(f"reduce: operands have shapes {[list(v.shape) for v in values]}")
    over = [d % values[0].ndim for d in over]
    rest = [d for d in range(values[0].ndim) if d not in over]
    kept = tuple(values[0].shape[d] for d in rest)
    count = math.prod(values[0].shape[d] for d in over)
    size = math.prod(kept)
    rows = [op.reshape(op.transpose(v, (*over, *rest)), (count, size)) for v in values]

    def joined(left: list[Any], right: list[Any]) -> list[Any]:
        each = vmap(vmap(lambda a, b: computation(a, b)))
        made, got = tree.flatten(each(*(tree.unflatten(structure, x) for x in (left, right))))
        if got != structure:
            raise OperandError(f"reduce: computation returns {got}, expected {structure}")
        return made

    while count > 1:
        pairs = joined([r[: count - count % 2 : 2] for r in rows], [r[1::2] for r in rows])
        left = [r[count - count % 2 :] for r in rows]
        rows = [op.concatenate(p) for p in zip(pairs, left, strict=True)] if count % 2 else pairs
        count = (count + 1) // 2
    begin = [
        op.broadcast_to(op.cast(as_value(x, "reduce"), v.dtype), (1, size))
        for x, v in zip(start, values, strict=True)
    ]
    total = joined(begin, rows) if count else begin
    return tree.unflatten(structure, [op.reshape(x, kept) for x in total])


def _static(name: str, what: str, xs: Tree, axis: int) -> int:
    """The size of an axis that all leaves share, as a number."""
    found: dict[Any, str] = {}
    for path, x in zip(
        tree.structure_paths(tree.structure(xs), what), tree.leaves(xs), strict=True
    ):
        v = as_value(x, name)
        if not -v.ndim <= axis < v.ndim:
            raise ShapeError(f"{name}: {path} is {v.type}, which has no axis {axis}")
        found.setdefault(v.shape[axis], path)
    if len(found) != 1:
        told = ", ".join(f"{n} of {path}" for n, path in found.items())
        raise ShapeError(f"{name}: axis {axis} has sizes {told or 'of no tensor'}; make them equal")
    (n,) = found
    if not isinstance(n, int):
        raise ShapeError(f"{name}: axis {axis} has the symbolic size {n}; give the axis a number")
    return n
