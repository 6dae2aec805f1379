"""Derivatives as arrays: jacfwd, jacrev, hessian, and Hessian-vector products.

For each tensor of the result there is one for each tensor of the argument: its shape is the
result's shape followed by the argument's.  An operator in the result counts as its matrix.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

from tessera.core import tree
from tessera.core.blame import applied, blames_arguments, demand_function
from tessera.core.errors import DTypeError, OperandError
from tessera.ir.graph.ir import Value
from tessera.lang.operator_trees import with_matrices
from tessera.lang.transforms import check_argnums, grad, guarded, jvp, numbered, vjp
from tessera.lang.vmap import vmap
from tessera.ops.arrange import eye
from tessera.ops.define import as_value
from tessera.ops.shape import reshape
from tessera.transform.differentiate import zeros

Argnums = int | Sequence[int]
Function = Callable[..., Any]


def _chosen(
    f: Function, argnums: Argnums, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Function, Any]:
    """f as a function of the chosen arguments, given as one tree, and that tree."""
    numbers = numbered("jacobian", argnums)
    check_argnums(f, numbers, args)

    def run(point: Any) -> Any:
        full = list(args)
        for i, x in zip(numbers, (point,) if isinstance(argnums, int) else point, strict=True):
            full[i] = x
        return applied(getattr(f, "__name__", "jacobian"), f, full, kwargs)

    point = tuple(args[i] for i in numbers)
    return run, point[0] if isinstance(argnums, int) else point


def _in_elements(f: Function, has_aux: bool) -> Function:
    """f with matrices in place of the operators of its result, whose elements are differentiated."""

    def run(point: Any) -> Any:
        out, aux = _split(f(point), has_aux)
        return (with_matrices(out), aux) if has_aux else with_matrices(out)

    return run


def _real(what: str, role: str, leaves: Sequence[Any]) -> list[Value]:
    values = [as_value(x, what) for x in leaves]
    for i, v in enumerate(values):
        if v.dtype.kind != "f":
            raise DTypeError(
                f"{what}: tensor {i} of the {role} is {v.type}, expected real floating-point numbers"
            )
    return values


def _directions(values: Sequence[Value], k: int) -> tuple[Value, Callable[[Value], list[Value]]]:
    """The unit vectors of tensor k, stacked, and the tangent of all tensors that one stands for."""
    n = values[k].type.size
    stacked = reshape(eye(n, dtype=values[k].dtype), (n, *values[k].shape))
    return stacked, lambda e: [e if i == k else zeros(v.type) for i, v in enumerate(values)]


def _split(out: Any, has_aux: bool) -> tuple[Any, Any]:
    return out if has_aux else (out, None)


@blames_arguments
def jacfwd(f: Function, argnums: Argnums = 0, has_aux: bool = False) -> Function:
    """The derivative of f by forward mode, for results that are many compared with the arguments."""
    demand_function("jacfwd", f)

    @wraps(f)
    @guarded
    def run(*args: Any, **kwargs: Any) -> Any:
        g, point = _chosen(f, argnums, args, kwargs)
        g = _in_elements(g, has_aux)
        leaves, s = tree.flatten(point)
        xs = _real("jacfwd", "argument", leaves)
        out, aux = _split(g(point), has_aux)
        ys, made = tree.flatten(out)
        results = _real("jacfwd", "result", ys)

        def push(tangent: list[Value]) -> list[Value]:
            _, t = jvp(g, (tree.unflatten(s, xs),), (tree.unflatten(s, tangent),))
            return tree.leaves(_split(t, has_aux)[0])

        blocks = []  # of each argument: one for each result
        for k, x in enumerate(xs):
            unit, tangent = _directions(xs, k)
            moved = vmap(lambda e, tangent=tangent: push(tangent(e)), out_axes=-1)(unit)
            blocks.append(
                [reshape(m, (*y.shape, *x.shape)) for m, y in zip(moved, results, strict=True)]
            )
        rows = [tree.unflatten(s, row) for row in zip(*blocks, strict=True)]
        jacobian = tree.unflatten(made, rows)
        return (jacobian, aux) if has_aux else jacobian

    return run


@blames_arguments
def jacrev(f: Function, argnums: Argnums = 0, has_aux: bool = False) -> Function:
    """The derivative of f by reverse mode, for results that are few compared with the arguments."""
    demand_function("jacrev", f)

    @wraps(f)
    @guarded
    def run(*args: Any, **kwargs: Any) -> Any:
        g, point = _chosen(f, argnums, args, kwargs)
        g = _in_elements(g, has_aux)
        leaves, s = tree.flatten(point)
        xs = _real("jacrev", "argument", leaves)
        whole, pull_back = vjp(g, tree.unflatten(s, xs))
        out, aux = _split(whole, has_aux)
        ys, made = tree.flatten(out)
        results = _real("jacrev", "result", ys)
        still = tree.map(lambda v: zeros(v.type), aux)

        def pull(ct: list[Value]) -> list[Value]:
            tangent = tree.unflatten(made, ct)
            return tree.leaves(pull_back((tangent, still) if has_aux else tangent))

        rows = []
        for k, y in enumerate(results):
            unit, cotangent = _directions(results, k)
            back = vmap(lambda e, cotangent=cotangent: pull(cotangent(e)))(unit)
            blocks = [reshape(b, (*y.shape, *x.shape)) for b, x in zip(back, xs, strict=True)]
            rows.append(tree.unflatten(s, blocks))
        jacobian = tree.unflatten(made, rows)
        return (jacobian, aux) if has_aux else jacobian

    return run


@blames_arguments
def hessian(f: Function, argnums: Argnums = 0) -> Function:
    """The second derivative of a scalar function: forward mode over reverse mode."""
    demand_function("hessian", f)
    return jacfwd(jacrev(f, argnums), argnums)


@guarded
def hvp(f: Function, primals: Sequence[Any], tangents: Sequence[Any]) -> Any:
    """The Hessian of a scalar function at the primals times the tangents, without the matrix."""
    for name, given in (("primals", primals), ("tangents", tangents)):
        if not isinstance(given, tuple | list):
            raise OperandError(
                f"hvp: {name} is {type(given).__name__}, expected a tuple, as in (x,)"
            )
    numbers = tuple(range(len(primals)))
    _, moved = jvp(grad(f, numbers), tuple(primals), tuple(tangents))
    return moved[0] if len(numbers) == 1 else moved
