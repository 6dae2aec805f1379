"""ts.debug: printing and calling from inside programs, as jax.debug spells it."""

from __future__ import annotations

import builtins
import re
import string
from collections.abc import Callable
from typing import Any

from tessera.core import tree
from tessera.core.blame import blames_arguments, demand_function
from tessera.core.errors import OperandError
from tessera.core.modules import answer
from tessera.ir.graph.ir import Value, concrete, current_builder, host_data
from tessera.lang import op


@blames_arguments
def print(text: str, *args: Any, **kwargs: Any) -> None:
    """Print text.format(*args, **kwargs) each time the program runs, with the numbers it has then."""
    if not isinstance(text, str):
        raise OperandError(
            f"debug.print: the text is {type(text).__name__}, expected a format such as 'x is {{}}'; "
            "ts.print takes values alone"
        )
    _check_fields(text, args, kwargs)
    _watch(lambda *a, **k: builtins.print(text.format(*a, **k)), args, kwargs)


def _check_fields(text: str, args: Any, kwargs: Any) -> None:
    """Refuse a text with fields that no value is for, or that is no format."""
    try:
        fields = [f for _, f, _, _ in string.Formatter().parse(text) if f is not None]
    except ValueError as e:
        raise OperandError(f"debug.print: {text!r} is no format: {str(e).lower()}") from None
    names = [re.split(r"[.\[]", f)[0] for f in fields]
    plain = sum(n == "" for n in names)
    far = max([plain, *(int(n) + 1 for n in names if n.isdigit())])
    if far > len(args):
        raise OperandError(
            f"debug.print: {text!r} has places for {far} values, but {len(args)} are given"
        )
    for n in names:
        if n and not n.isdigit() and n not in kwargs:
            raise OperandError(
                f"debug.print: {text!r} names {n!r}, which is not given; write {n}=value"
            )


@blames_arguments
def callback(f: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
    """Call f with NumPy arrays each time the program runs; what it returns is dropped."""
    demand_function("debug.callback", f)
    _watch(f, args, kwargs)


def _watch(f: Callable[..., Any], args: Any, kwargs: Any) -> None:
    leaves, structure = tree.flatten((args, kwargs))
    tensors = [x for x in leaves if isinstance(x, Value)]

    def call(*arrays: Any) -> None:
        left = iter(arrays)
        a, k = tree.unflatten(
            structure, [next(left) if isinstance(x, Value) else x for x in leaves]
        )
        f(*a, **k)

    if current_builder() is None:
        call(*(host_data(x) for x in tensors))
    else:
        op.watch(tensors[0] if tensors else concrete(0.0), *tensors, to=call)


answer(__name__, "debug")
