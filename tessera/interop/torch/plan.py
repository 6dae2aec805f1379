"""A graph of PyTorch as a list of steps, without PyTorch's objects in what rules see."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from tessera.core.dims import Size
from tessera.core.dtype import DType
from tessera.interop.torch.exchange import dtype_of
from tessera.interop.torch.library import is_random, torch
from tessera.interop.torch.rule import AtenCall
from tessera.interop.torch.sizes import size_of

# Random ops that checkpoints run again: the first saves the state of the generator, the other restores it.
SAVES_STATE, TAKES_STATE = "higher_order.run_and_save_rng_state", "higher_order.run_with_rng_state"


@dataclass(frozen=True)
class StepRef:
    """The result of a step, by its number."""

    at: int


@dataclass(frozen=True)
class PlanStep:
    """One node: an op's call, an input, or a constant."""

    kind: str  # input, constant, call, effect (a call whose results follow a token)
    name: str
    call: AtenCall
    run: Callable[..., Any] | None  # what PyTorch runs
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    random: bool = False
    constant: Any = None
    order: tuple[int, ...] | None = None  # of the axes of the first result in memory


@dataclass(frozen=True)
class Input:
    """What is known of an argument: a tensor's type and its order of axes in memory, or a size."""

    name: str
    is_tensor: bool
    order: tuple[int, ...] | None = (
        None  # of the axes, from the one of the largest stride; None: as they are
    )
    size: Size | None = None  # of an argument that is a symbolic size
    dtype: DType | None = None
    shape: tuple[Size, ...] | None = None  # None: a size is no size of ours
    is_token: bool = False  # what orders effects; PyTorch passes None for it


@dataclass(frozen=True)
class TorchPlan:
    """A graph: its steps in order, what it takes and what it gives."""

    steps: tuple[PlanStep, ...]
    inputs: tuple[Input, ...]
    outputs: tuple[Any, ...]  # Refs, numbers or None
    orders: tuple[tuple[int, ...] | None, ...]  # of the axes of outputs in memory


def plan_of(graph_module: Any) -> TorchPlan:
    """The plan of a functional graph module of ATen ops."""
    numbers: dict[Any, int] = {}
    steps: list[PlanStep] = []
    inputs: list[Input] = []
    outputs: tuple[Any, ...] = ()
    orders: tuple[Any, ...] = ()
    for node in graph_module.graph.nodes:
        if node.op == "output":
            found = node.args[0] if isinstance(node.args[0], list | tuple) else (node.args[0],)
            outputs = tuple(_argument(x, numbers) for x in found)
            orders = tuple(_order(_meta(x)) for x in found)
            continue
        numbers[node] = len(steps)
        steps.append(_step(graph_module, node, numbers))
        if node.op == "placeholder":
            inputs.append(_input(node))
    return TorchPlan(tuple(steps), tuple(inputs), outputs, orders)


def _meta(x: Any) -> Any:
    return x.meta.get("val") if hasattr(x, "meta") else None


def _input(node: Any) -> Input:
    val = _meta(node)
    if node.users and all(_is_effect(x) and x.args[0] is node for x in node.users):
        return Input(node.name, False, is_token=True)
    if isinstance(val, torch().Tensor):
        return Input(node.name, True, _order(val), None, dtype_of(val.dtype), _shape(val))
    return Input(node.name, False, None, size_of(val) if isinstance(val, torch().SymInt) else None)


def _is_effect(node: Any) -> bool:
    """Whether a node is an op with an effect, which takes a token and gives the next one."""
    return node.op == "call_function" and _name(node.target) == "higher_order.with_effects"


def _order(val: Any) -> tuple[int, ...] | None:
    """The order of axes in memory of a dense tensor; None where it is that of the axes."""
    order = _memory(val)
    if order is None or len(order) < 2:
        return None
    moving = [i for i in order if _hint(val.shape[i]) != 1]
    return None if moving == sorted(moving) else order


def _memory(val: Any) -> tuple[int, ...] | None:
    """The axes of a dense tensor from the one of the largest stride on; None where it is not dense."""
    t = torch()
    if not isinstance(val, t.Tensor) or val.layout is not t.strided:
        return None
    sizes, strides = [_hint(s) for s in val.shape], [_hint(s) for s in val.stride()]
    if None in sizes or None in strides:  # sizes that data decides
        return None
    order = sorted(range(val.ndim), key=lambda i: (-strides[i], -sizes[i], i))
    expected = 1
    for i in reversed(order):
        if sizes[i] != 1 and strides[i] != expected:
            return None
        expected *= sizes[i]
    return tuple(order)


def _hint(s: Any) -> Any:
    """A size as it is in the example, without a guard on it."""
    return s if isinstance(s, int) else s.node.hint


def _step(graph_module: Any, node: Any, numbers: dict[Any, int]) -> PlanStep:
    if node.op == "placeholder":
        return PlanStep("input", node.name, _described("input", _meta(node)), None, (), {})
    if node.op == "get_attr":
        value: Any = graph_module
        for name in str(node.target).split("."):
            value = getattr(value, name)
        value = plan_of(value) if isinstance(value, torch().fx.GraphModule) else value
        return PlanStep(
            "constant", node.name, _described("constant", None), None, (), {}, False, value
        )
    args = tuple(_argument(x, numbers) for x in node.args)
    kwargs = {k: _argument(x, numbers) for k, x in node.kwargs.items()}
    if _is_effect(node):  # (token, op, *args) -> (token, *results)
        results = tuple(_meta(node))[1:]
        run = args[1]
        call = _described(_name(run), results)
        random = is_random(run)
        return PlanStep("effect", node.name, call, run, args[2:], kwargs, random)
    val = _meta(node)
    call = _described(_name(node.target), val)
    if call.target.startswith("aten.as_strided"):
        call = replace(call, memory=_memory(_meta(node.args[0])))
    if call.target in (SAVES_STATE, TAKES_STATE):
        val = _drawn(node)
        saved = [torch().get_rng_state()] if call.target == SAVES_STATE else []
        call = _described(call.target, (*saved, *val))
    order = _order(val[0] if isinstance(val, list | tuple) and val else val)
    random = is_random(node.target) or call.target in (SAVES_STATE, TAKES_STATE)
    return PlanStep("call", node.name, call, node.target, args, kwargs, random, None, order)


def _drawn(node: Any) -> tuple[Any, ...]:
    """The types of what a random op gives beside the state of the generator: PyTorch does not note them."""
    t = torch()
    start = 1 if node.target.__name__ == "run_with_rng_state" else 0
    run, *args = t.fx.node.map_arg(node.args[start:], _meta)
    kwargs = t.fx.node.map_arg(node.kwargs, _meta)
    fake = next(x.fake_mode for x in (*args, *kwargs.values()) if hasattr(x, "fake_mode"))
    with fake:
        found = run(*args, **kwargs)
    return tuple(found) if isinstance(found, list | tuple) else (found,)


def _name(target: Any) -> str:
    if isinstance(target, torch()._ops.OpOverload):
        return str(target)
    if isinstance(target, torch()._ops.HigherOrderOperator):
        return f"higher_order.{target.__name__}"
    return f"{getattr(target, '__module__', '')}.{getattr(target, '__name__', target)}"


def _argument(x: Any, numbers: dict[Any, int]) -> Any:
    if isinstance(x, list | tuple):
        return [_argument(v, numbers) for v in x]
    if isinstance(x, torch().dtype):
        return dtype_of(x)
    return StepRef(numbers[x]) if hasattr(x, "meta") and x in numbers else x


def _described(target: str, val: Any) -> AtenCall:
    found = val if isinstance(val, list | tuple) else (val,)
    is_tensor = torch().Tensor
    tensors = [x if isinstance(x, is_tensor) else None for x in found]
    return AtenCall(
        target,
        tuple(None if x is None else dtype_of(x.dtype) for x in tensors),
        tuple(None if x is None else _shape(x) for x in tensors),
    )


def _shape(x: Any) -> tuple[Size, ...] | None:
    found = [size_of(s) for s in x.shape]
    sizes = tuple(s for s in found if s is not None)
    return sizes if len(sizes) == len(found) else None
