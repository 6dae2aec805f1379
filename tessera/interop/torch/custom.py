"""ts.torch.custom_op: a function or kernel of ours as an op of PyTorch, which torch.compile keeps whole or
takes in.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from tessera.core import tree
from tessera.core.blame import blames_arguments, demand_function
from tessera.core.errors import OperandError, located
from tessera.core.types import TensorType
from tessera.interop.torch.exchange import dtype_of, torch_dtype
from tessera.interop.torch.flat import Flat
from tessera.interop.torch.library import part, torch
from tessera.interop.torch.rule import RULES, pulled
from tessera.interop.torch.wrapped import demand_name
from tessera.lang.shapes import shapes

_kept: list[Any] = []  # libraries; PyTorch forgets an op with its library


@blames_arguments
def custom_op(name: str, f: Callable[..., Any], outputs: int = 1) -> Any:
    """f, a function of tensors with this many results, as the op torch.ops.<namespace>.<name> with
    derivatives.

    Under torch.compile(backend="tessera") it is part of the program; other backends call it whole.
    """
    demand_function("torch.custom_op", f)
    demand_name(name)
    names = _parameters(f)
    space, _, short = name.partition("::")
    library = torch().library.Library(space, "FRAGMENT")
    _kept.append(library)
    ins = ", ".join(f"Tensor {n}" for n in names)
    cts = ", ".join(f"Tensor ct{i}" for i in range(outputs))
    library.define(f"{short}({ins}) -> {_returns(outputs)}")
    library.define(f"{short}_pullback({ins}, {cts}) -> {_returns(len(names))}")

    def pullback(*args: Any) -> Any:
        xs, given = args[: len(names)], args[len(names) :]
        return pulled(lambda *xs: _one(f(*xs)), _one(given), *xs)

    ours = {short: f, f"{short}_pullback": pullback}
    for op_name, run in ours.items():
        _register(library, space, op_name, run)
    torch().library.register_autograd(
        name, _backward(space, short), setup_context=_setup, lib=library
    )
    return getattr(getattr(torch().ops, space), short)


def _register(library: Any, space: str, name: str, f: Callable[..., Any]) -> None:
    flat = Flat(f, name)

    def run(*tensors: Any) -> Any:
        return _one(tuple(flat([x.contiguous() for x in tensors])))

    def fake(*tensors: Any) -> Any:
        types = [TensorType(dtype_of(x.dtype), tuple(int(s) for s in x.shape)) for x in tensors]
        found = shapes(lambda *xs: tree.leaves(f(*xs)), *types).outputs
        made = [tensors[0].new_empty(t.shape, dtype=torch_dtype(t.dtype)) for t in found]
        return _one(tuple(made))

    library.impl(name, run, "CompositeExplicitAutograd")
    part("library").register_fake(f"{space}::{name}", fake, lib=library)
    RULES[f"{space}.{name}.default"] = lambda n, *xs: _one(tuple(tree.leaves(f(*xs))))


def _setup(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.save_for_backward(*inputs)


def _backward(space: str, name: str) -> Callable[..., Any]:
    def backward(ctx: Any, *cts: Any) -> Any:
        pullback = getattr(getattr(torch().ops, space), f"{name}_pullback")
        return pullback(*ctx.saved_tensors, *cts)

    return backward


def _one(x: Any) -> Any:
    return x[0] if isinstance(x, tuple) and len(x) == 1 else x


def _returns(k: int) -> str:
    return "Tensor" if k == 1 else f"({', '.join(['Tensor'] * k)})"


def _parameters(f: Callable[..., Any]) -> list[str]:
    found = inspect.signature(f).parameters.values()
    bad = [p.name for p in found if p.kind not in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    if bad or not found:
        raise located(
            OperandError(
                f"torch.custom_op: the function takes {', '.join(bad) or 'nothing'}, expected tensors by "
                "position alone; "
                "close over what is no tensor"
            )
        )
    return [p.name for p in found]
