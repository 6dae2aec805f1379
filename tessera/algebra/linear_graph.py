"""Linear functions of tensors: their transposes and their derivatives, by the rules of the ops."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tessera.core import tree
from tessera.core.types import TensorType
from tessera.ir.graph.ir import Value, current_builder
from tessera.ops.define import full_of
from tessera.ops.region import Traced, trace
from tessera.ops.shape import broadcast_to, expand_dims
from tessera.ops.shape import matrix_transpose as transpose_of
from tessera.transform.batch import batch_graph
from tessera.transform.differentiate import Linearized, linearize
from tessera.transform.inline import copy_into, inline

Function = Callable[..., Any]


def zeros(t: TensorType) -> Value:
    """Zeros of a type."""
    return full_of(t.shape, 0, t.dtype)


def traced(f: Function, args: tuple[Any, ...], name: str) -> tuple[Traced, list[Value]]:
    """The graph of f at values, and what its inputs stand for."""
    values = tree.leaves(args)
    t = trace(f, args, {}, [v.type for v in values], name)
    return t, [*values, *t.outer]


def linearized(f: Function, args: tuple[Any, ...], name: str) -> tuple[Traced, Linearized]:
    """f at values, with its derivative in all of them that are of floating-point numbers."""
    t, values = traced(f, args, name)
    count = len(values) - len(t.outer)
    wanted = [i for i in range(count) if values[i].dtype.kind in "fc"]
    return t, linearize(inline(t.graph), values, wanted)


def closed(f: Function, args: tuple[Any, ...], name: str) -> tuple[Function, tuple[Value, ...]]:
    """f with the traced values that it takes from around it as further arguments, and these values."""
    if current_builder() is None:
        return f, ()
    t, _ = traced(f, args, name)
    if all(v.storage is not None for v in t.outer):
        return f, ()

    def run(*xs: Any) -> Any:
        return tree.unflatten(t.structure, copy_into(t.graph, tuple(tree.leaves(xs))))

    return run, t.outer


def apply_transposed(f: Callable[[Value], Value], ct: Value, size: Any) -> Value:
    """The transpose of a linear f of a matrix of `size` rows, applied to a matrix of columns."""
    start = zeros(TensorType(ct.dtype, (size, ct.shape[1])))
    _, lin = linearized(f, (start,), "transpose")
    (found,) = lin.pull_back([ct])
    return zeros(start.type) if found is None else found


def over_columns(f: Function, x: Value, others: Sequence[Value], name: str) -> Value:
    """f(column, *others) for every column of x; the results are columns."""
    first = zeros(TensorType(x.dtype, (x.shape[0],)))
    t, values = traced(f, (first, *others), name)
    rows = transpose_of(x)
    outs, (batched,) = batch_graph(
        inline(t.graph), [rows, *values[1:]], [True, *(False for _ in values[1:])]
    )
    (y,) = outs
    if not batched:  # the result does not depend on the column
        return broadcast_to(expand_dims(y, 1), (y.shape[0], x.shape[1]))
    return transpose_of(y)
