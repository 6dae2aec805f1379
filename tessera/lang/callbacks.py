"""Host functions in programs: ts.callback with results and derivatives, and ts.print."""

from __future__ import annotations

import builtins
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from tessera.core import tree
from tessera.core.blame import blames_arguments, demand_function, unfit
from tessera.core.dtype import as_dtype
from tessera.core.errors import OperandError, RuleError
from tessera.core.types import TensorType
from tessera.ir.graph.ir import Value, concrete, current_builder, host_data
from tessera.lang import op
from tessera.lang.annotation import TensorSpec
from tessera.lang.custom_rules import custom_jvp, custom_vjp
from tessera.ops.define import as_value

Types = (
    Any  # a tree of Tensor[...], types or tensors, or a function of the arguments that gives one
)


@blames_arguments
def callback(
    f: Callable[..., Any],
    result_types: Types,
    vjp: Callable[..., Any] | None = None,
    jvp: Callable[..., Any] | None = None,
) -> Callable[..., Any]:
    """f, a function on NumPy arrays, as a function on tensors that programs call: in order, and each time
    they run.

    result_types states what it returns, as in Tensor[3, f32] or lambda x: x.type.  Derivatives are host
    functions too: vjp(cotangent, *args) gives a cotangent for each argument, for reverse mode; jvp(primals,
    tangents) gives the tangent of the result, for forward mode.
    """
    demand_function("callback", f)
    if vjp is not None and jvp is not None:
        raise OperandError("callback: give vjp for reverse mode or jvp for forward mode, not both")
    call = _caller(f, result_types)
    if vjp is not None:
        return _reverse(call, vjp)
    return _without(call) if jvp is None else _forward(call, jvp, result_types)


@blames_arguments
def pure_callback(f: Callable[..., Any], result_types: Types, *args: Any, **kwargs: Any) -> Any:
    """What f, a function on NumPy arrays without side effects, returns for these tensors.

    It has no derivative: ts.callback takes one.  A batch calls it for each element.
    """
    return _called("pure_callback", f, result_types, args, kwargs)


@blames_arguments
def io_callback(
    f: Callable[..., Any], result_types: Types, *args: Any, ordered: bool = True, **kwargs: Any
) -> Any:
    """What f, a function on NumPy arrays that may read, write and print, returns: called once each time a
    program runs.

    Calls keep the order of the program; ordered=False allows another, which is not made use of.
    """
    return _called("io_callback", f, result_types, args, kwargs)


def _called(name: str, f: Callable[..., Any], types: Types, args: Any, kwargs: Any) -> Any:
    demand_function(name, f)
    given = {k: v for k, v in kwargs.items() if not isinstance(v, Value)}
    if len(given) != len(kwargs):
        raise OperandError(f"{name}: pass tensors by position; keywords are for plain values")
    bound = partial(f, **given) if given else f
    error = unfit(name, bound, args)
    if error is not None:
        raise error
    return _without(_caller(bound, types))(*args)


def _caller(f: Callable[..., Any], result_types: Types) -> Callable[..., Any]:
    def call(*args: Any) -> Any:
        values = [as_value(x, "callback") for x in tree.leaves(args)]
        types, structure = _types(result_types, args)
        shape = tree.structure(args)

        def on_arrays(*arrays: Any) -> Any:
            return tree.leaves(f(*tree.unflatten(shape, arrays)))

        on_arrays.__name__ = getattr(f, "__name__", "function")
        shapes, dtypes = tuple(t.shape for t in types), tuple(t.dtype for t in types)
        out = op.host_call(*values, to=on_arrays, shapes=shapes, dtypes=dtypes)
        return tree.unflatten(structure, out)

    call.__name__ = getattr(f, "__name__", "function")
    return call


def _types(given: Types, args: tuple[Any, ...]) -> tuple[list[TensorType], tree.Structure]:
    found = given(*args) if callable(given) and not isinstance(given, TensorSpec) else given
    leaves, structure = tree.flatten(found)
    return [_type(x) for x in leaves], structure


def _type(x: Any) -> TensorType:
    if isinstance(x, TensorType):
        return x
    if isinstance(x, Value):
        return x.type
    if isinstance(x, TensorSpec) and x.dtype is not None:
        if x.symbols and current_builder() is None:
            raise OperandError(
                f"callback: {x} has sizes without numbers; give a function of the arguments, as in lambda "
                "x: x.type"
            )
        return TensorType(x.dtype, x.shape)
    if hasattr(x, "shape") and hasattr(
        x, "dtype"
    ):  # an array, or what another library describes one by
        return TensorType(as_dtype(x.dtype), tuple(x.shape))
    raise OperandError(
        f"callback: a result type is {type(x).__name__} {x!r:.40}, expected Tensor[3, f32] with a dtype, "
        "the type of a "
        "tensor, or a function of the arguments"
    )


def _without(call: Callable[..., Any]) -> Callable[..., Any]:
    """A callback whose derivative is asked for in vain."""
    made = custom_jvp(call)

    def rule(primals: Any, tangents: Any) -> Any:
        raise RuleError(
            f"callback: {call.__name__} is a function of the host, and has no derivative; give one with "
            "ts.callback(f, types, vjp=...), or hold its arguments with ts.stop_gradient"
        )

    made.defjvp(rule)
    return made


def _reverse(call: Callable[..., Any], vjp: Callable[..., Any]) -> Callable[..., Any]:
    made = custom_vjp(call)

    def backward(args: Any, ct: Any) -> Any:
        flat, structure = tree.flatten(tuple(args))
        moved = [isinstance(x, Value) and x.dtype.kind in "fc" for x in flat]

        def on_arrays(ct: Any, *xs: Any) -> Any:
            got = tree.leaves(vjp(ct, *xs))
            if len(got) != len(moved):
                raise OperandError(
                    f"callback: vjp returned {len(got)} arrays, expected one for each of {len(moved)} "
                    "arguments"
                )
            return [np.asarray(x) for x, m in zip(got, moved, strict=True) if m]

        types = [x.type for x, m in zip(flat, moved, strict=True) if m]
        cts = iter(_caller(on_arrays, types)(ct, *args))
        return tree.unflatten(structure, [next(cts) if m else None for m in moved])

    made.defvjp(lambda *args: (call(*args), args), backward)
    return made


def _forward(
    call: Callable[..., Any], jvp: Callable[..., Any], result_types: Types
) -> Callable[..., Any]:
    made = custom_jvp(call)

    def rule(primals: Any, tangents: Any) -> Any:
        types, structure = _types(result_types, tuple(primals))
        push = _caller(jvp, tree.unflatten(structure, types))
        return call(*primals), push(tuple(primals), tuple(tangents))

    made.defjvp(rule)
    return made


@blames_arguments
def print_(*values: Any, sep: str = " ", end: str = "\n") -> None:
    """Print values as Python does; in a traced function, each time the program runs, with the numbers it
    has then.
    """
    tensors = [x for x in values if isinstance(x, Value)]

    def show(*arrays: Any) -> None:
        left = iter(arrays)
        builtins.print(
            *(next(left) if isinstance(x, Value) else x for x in values), sep=sep, end=end
        )

    if current_builder() is None:
        show(*map(host_data, tensors))
    else:
        op.watch(tensors[0] if tensors else concrete(0.0), *tensors, to=show)
