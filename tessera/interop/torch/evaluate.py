"""Run the steps of a plan, under a trace or eagerly: each by its rule, or else by PyTorch."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tessera.core.dims import Dim, Size
from tessera.core.dtype import i64
from tessera.core.errors import OperandError, TesseraError
from tessera.interop.torch.exchange import from_torch
from tessera.interop.torch.fallback import by_pytorch
from tessera.interop.torch.library import torch
from tessera.interop.torch.plan import PlanStep, StepRef, TorchPlan
from tessera.interop.torch.report import COUNTS
from tessera.interop.torch.rule import RULES
from tessera.interop.torch.sizes import arithmetic
from tessera.ir.graph.ir import Value
from tessera.lang import op

# What a rule raises on arguments that do not fit it.
_MISFITS = (TesseraError, TypeError, ValueError, LookupError, ArithmeticError, AttributeError)


class OpenSizeError(Exception):
    """An op whose rule does not take these sizes while they have no numbers."""

    def __init__(self, name: str, reason: str):
        super().__init__(f"{name}: {reason}")
        self.name, self.reason = name, reason


def evaluate(plan: TorchPlan, args: Sequence[Any], sizes: Mapping[str, Size]) -> list[Any]:
    """The outputs of a plan for its inputs: values, sizes or None."""
    values: list[Any] = []
    given = iter(args)
    for step in plan.steps:
        if step.kind == "input":
            values.append(next(given))
        elif step.kind == "constant":
            values.append(_constant(step))
        elif step.kind == "effect":
            found = _run(step, values, sizes)
            values.append((None, *found) if isinstance(found, tuple | list) else (None, found))
        else:
            values.append(_run(step, values, sizes))
    return [_filled(x, values) for x in plan.outputs]


def _constant(step: PlanStep) -> Any:
    if isinstance(step.constant, TorchPlan):
        return step.constant
    if not isinstance(step.constant, torch().Tensor):
        raise OperandError(
            f"torch: '{step.name}' is {type(step.constant).__name__}, expected a tensor; a function inside "
            "of the graph "
            "cannot cross"
        )
    return from_torch(step.constant)


def _filled(x: Any, values: list[Any]) -> Any:
    if isinstance(x, StepRef):
        return values[x.at]
    return [_filled(v, values) for v in x] if isinstance(x, list) else x


def _run(step: PlanStep, values: list[Any], sizes: Mapping[str, Size]) -> Any:
    args = [_filled(x, values) for x in step.args]
    kwargs = {k: _filled(x, values) for k, x in step.kwargs.items()}
    name = step.call.target
    if step.run is operator.getitem:
        return args[0][args[1]]
    if name in _CONTROL:
        COUNTS.translated[name] += 1
        return _CONTROL[name](sizes, *args)
    rule = RULES.get(name)
    if (
        rule is None
        and not _holds_tensors((args, kwargs))
        and not isinstance(step.run, torch()._ops.OpOverload)
    ):
        assert step.run is not None
        is_known = not _holds_values(
            (args, kwargs)
        )  # a number that symbolic sizes give is a tensor
        run = step.run if is_known else arithmetic(step.run)
        found = run(*args, **kwargs)
        if isinstance(found, Value) and found.dtype is i64 and not sizes:
            raise OpenSizeError(name, "a size is a float that is rounded")
        return found
    if rule is None:
        return by_pytorch(step, args, kwargs, sizes, "there is no rule for it")
    try:
        found = rule(step.call, *args, **kwargs)
    except _MISFITS as e:
        text = e.message if isinstance(e, TesseraError) else f"{type(e).__name__}: {e}"
        told = text.partition("\n")[0]
        if _open((args, kwargs)):
            raise OpenSizeError(name, told) from None
        return by_pytorch(step, args, kwargs, sizes, told)
    COUNTS.translated[name] += 1
    return found


def _graph(plan: TorchPlan, sizes: Mapping[str, Size]) -> Any:
    """A graph inside of a graph as a function."""

    def run(*xs: Any) -> tuple[Any, ...]:
        return tuple(evaluate(plan, xs, sizes))

    return run


def _cond(
    sizes: Mapping[str, Size], pred: Any, yes: TorchPlan, no: TorchPlan, operands: Any
) -> Any:
    return op.cond(pred, _graph(yes, sizes), _graph(no, sizes), *operands)


def _while_loop(
    sizes: Mapping[str, Size], goes_on: TorchPlan, body: TorchPlan, carried: Any, others: Any = ()
) -> Any:
    def test(xs: Any) -> Any:
        return evaluate(goes_on, [*xs, *others], sizes)[0]

    def step(xs: Any) -> Any:
        return tuple(evaluate(body, [*xs, *others], sizes))

    return op.while_loop(test, step, tuple(carried))


_CONTROL: dict[str, Callable[..., Any]] = {
    "higher_order.cond": _cond,
    "higher_order.while_loop": _while_loop,
}


def _open(x: Any) -> bool:
    """Whether a size among arguments, or of a tensor among them, has no number yet."""
    if isinstance(x, list | tuple):
        return any(map(_open, x))
    if isinstance(x, dict):
        return any(map(_open, x.values()))
    return isinstance(x, Dim) or (isinstance(x, Value) and any(isinstance(s, Dim) for s in x.shape))


def _holds_values(x: Any) -> bool:
    """Whether what no number is known of yet is among arguments: a symbolic size, or a tensor."""
    if isinstance(x, list | tuple):
        return any(map(_holds_values, x))
    if isinstance(x, dict):
        return any(map(_holds_values, x.values()))
    return isinstance(x, Dim | Value)


def _holds_tensors(x: Any) -> bool:
    """Whether a tensor with axes is among arguments; a number that sizes give may be one without."""
    if isinstance(x, list | tuple):
        return any(map(_holds_tensors, x))
    if isinstance(x, dict):
        return any(map(_holds_tensors, x.values()))
    return isinstance(x, Value) and x.ndim > 0
