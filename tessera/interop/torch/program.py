"""A graph of PyTorch as one compiled program, called with PyTorch's tensors.

Sizes that PyTorch leaves open are whole numbers when a call comes: there is a program for each set of them.
Axes that lie in memory in another order than they are numbered in (channels last, transposed weights) are
put in order by the program, which costs nothing where it reads them, and results lie in memory as PyTorch
expects them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tessera.core.errors import TesseraError, located
from tessera.interop.torch.evaluate import evaluate
from tessera.interop.torch.exchange import from_torch, to_torch
from tessera.interop.torch.flat import owned
from tessera.interop.torch.library import torch
from tessera.interop.torch.plan import Plan, Ref
from tessera.interop.torch.report import COUNTS
from tessera.ir.graph.ir import Value
from tessera.lang import op
from tessera.lang.jit import Jitted


class Program:
    """A plan that runs on PyTorch's tensors."""

    def __init__(self, plan: Plan, name: str):
        self.plan, self.name = plan, name
        self._tensors = [i for i, x in enumerate(plan.inputs) if x.is_tensor]
        self._sizes = [i for i, x in enumerate(plan.inputs) if not x.is_tensor]
        self._variants: dict[tuple[Any, ...], Variant] = {}
        COUNTS.graphs += 1

    def __call__(self, *args: Any) -> list[Any]:
        try:
            key = tuple(args[i] for i in self._sizes)
            found = self._variants.get(key)
            if found is None:
                found = self._variants[key] = Variant(self, key)
            return found([args[i] for i in self._tensors])
        except TesseraError as e:
            error = located(e)
        raise error

    def names(self) -> list[str]:
        """The inputs that are tensors, by name."""
        return [self.plan.inputs[i].name for i in self._tensors]


class Variant:
    """The program of a plan for given sizes."""

    def __init__(self, program: Program, sizes: tuple[Any, ...]):
        plan = program.plan
        self._plan, self._numbers = plan, sizes
        self._inputs = [x for x in plan.inputs if x.is_tensor]
        self._symbols = {
            x.symbol: s
            for x, s in zip((x for x in plan.inputs if not x.is_tensor), sizes, strict=True)
            if x.symbol is not None
        }
        self._fixed: list[Any] = []  # outputs that are no tensors, None where there is one
        self._passed = _passed_through(plan)
        self._orders: list[Any] = []  # of the axes of results in memory
        self._held: dict[int, tuple[Any, int, Value]] = {}
        COUNTS.programs += 1

        def graph(*tensors: Any) -> list[Any]:
            return self._traced(tensors)

        graph.__name__ = program.name
        self._run = Jitted(graph)

    def _traced(self, tensors: Sequence[Any]) -> list[Any]:
        ordered = [
            x if i.order is None else op.transpose(x, _inverse(i.order))
            for x, i in zip(tensors, self._inputs, strict=True)
        ]
        given, numbers = iter(ordered), iter(self._numbers)
        args = [next(given) if x.is_tensor else next(numbers) for x in self._plan.inputs]
        found = evaluate(self._plan, args, self._symbols)
        self._fixed, self._orders, made = [], [], []
        for k, (v, order) in enumerate(zip(found, self._plan.orders, strict=True)):
            is_result = isinstance(v, Value) and k not in self._passed
            self._fixed.append(None if isinstance(v, Value) else v)
            if is_result:
                order = order if order is not None and len(order) == v.ndim else None
                self._orders.append((k, order))
                made.append(v if order is None else op.transpose(v, order))
        return made

    def __call__(self, tensors: list[Any]) -> list[Any]:
        given = [self._taken(k, x) for k, x in enumerate(tensors)]
        found = owned(given, self._run(*given))
        results = list(self._fixed)
        for k, at in self._passed.items():
            results[k] = tensors[at]
        for (k, order), v in zip(self._orders, found, strict=True):
            y = to_torch(v)
            results[k] = y if order is None else y.permute(_inverse(order))
        return results

    def _taken(self, k: int, x: Any) -> Value:
        """An argument as a value, in the order of axes that the program was made for; parameters are kept."""
        held = self._held.get(k)
        if held is not None and held[0] is x and held[1] == x.data_ptr():
            return held[2]
        order = self._inputs[k].order
        moved = x.detach() if order is None else x.detach().permute(order)
        v = from_torch(moved if order is None else moved.contiguous())
        if isinstance(x, torch().nn.Parameter) and (order is None or moved.is_contiguous()):
            self._held[k] = (x, x.data_ptr(), v)
        return v


def _inverse(order: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(sorted(range(len(order)), key=lambda i: order[i]))


def _passed_through(plan: Plan) -> dict[int, int]:
    """Outputs that are inputs, with the number of the tensor."""
    tensors: dict[int, int] = {}
    for at, step in enumerate(plan.steps):
        if step.kind == "input" and plan.inputs[len(tensors) + _before(plan, at)].is_tensor:
            tensors[at] = len(tensors)
    found = ((k, x) for k, x in enumerate(plan.outputs) if isinstance(x, Ref))
    return {k: tensors[x.at] for k, x in found if x.at in tensors}


def _before(plan: Plan, at: int) -> int:
    """How many inputs before a step are no tensors."""
    kinds = iter(plan.inputs)
    return sum(not next(kinds).is_tensor for s in plan.steps[:at] if s.kind == "input")
