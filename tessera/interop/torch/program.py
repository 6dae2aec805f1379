"""A graph of PyTorch as compiled programs, called with PyTorch's tensors.

Sizes that PyTorch leaves open are symbolic sizes of one program.  Where the rule of an op wants numbers for
them, or a size is below one, there is a program for each set of sizes.  Axes that are in memory in another
order than they are numbered in (channels last, transposed weights) are put in order by the program, which
costs nothing where it reads them, and results are laid out as PyTorch expects them.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tessera.core.dims import Dim, Size, substitute, symbols
from tessera.core.dtype import i8
from tessera.core.errors import TesseraError, located
from tessera.interop.torch.evaluate import OpenSizeError, evaluate
from tessera.interop.torch.exchange import from_torch, to_torch
from tessera.interop.torch.flat import owned
from tessera.interop.torch.library import torch
from tessera.interop.torch.plan import Input, StepRef, TorchPlan
from tessera.interop.torch.report import COUNTS
from tessera.interop.torch.sizes import is_name
from tessera.ir.graph.ir import Value
from tessera.lang import op
from tessera.lang.annotation import TensorSpec
from tessera.lang.create import asarray
from tessera.lang.jit import Jitted


class TorchProgram:
    """A plan that runs on PyTorch's tensors."""

    def __init__(self, plan: TorchPlan, name: str):
        self.plan, self.name = plan, name
        self._tensors = [i for i, x in enumerate(plan.inputs) if x.is_tensor]
        self._sizes = [i for i, x in enumerate(plan.inputs) if _is_size(x)]
        self._variants: dict[tuple[Any, ...], PlanVariant] = {}
        self._is_open = _can_be_open(plan.inputs)
        COUNTS.graphs += 1

    def __call__(self, *args: Any) -> list[Any]:
        numbers = tuple(args[i] for i in self._sizes)
        tensors = [args[i] for i in self._tensors]
        try:
            if self._is_open and _are_sizes(numbers, tensors):
                before = COUNTS if None in self._variants else COUNTS.copy()
                try:
                    return self._variant(None, numbers)(tensors, numbers)
                except OpenSizeError as e:
                    COUNTS.take_back(before)
                    COUNTS.fixed[e.name] = e.reason
                    self._is_open = False
            return self._variant(numbers, numbers)(tensors, numbers)
        except TesseraError as e:
            error = located(e)
        raise error

    def _variant(self, key: Any, numbers: tuple[Any, ...]) -> PlanVariant:
        found = self._variants.get(key)
        if found is None:
            found = self._variants[key] = PlanVariant(self, None if key is None else numbers)
        return found

    def names(self) -> list[str]:
        """The inputs that are tensors, by name."""
        return [self.plan.inputs[i].name for i in self._tensors]


def _can_be_open(inputs: Sequence[Input]) -> bool:
    """Whether one program can serve all sizes: there are symbolic ones, and all inputs state theirs."""
    shapes = [x.shape for x in inputs if x.is_tensor]
    some = any(isinstance(s, Dim) for shape in shapes for s in shape or ())
    return (
        (some or any(isinstance(x.size, Dim) for x in inputs))
        and None not in shapes
        and all(not _is_size(x) or x.size is not None for x in inputs)
    )


def _is_size(x: Input) -> bool:
    """Whether an input is a number; the others are tensors, and tokens, which carry nothing."""
    return not x.is_tensor and not x.is_token


def _are_sizes(numbers: tuple[Any, ...], tensors: list[Any]) -> bool:
    """Whether every size is one of a symbolic axis, which has an element at least."""
    return all(type(n) is int and n > 0 for n in numbers) and all(x.numel() for x in tensors)


class PlanVariant:
    """The program of a plan: for these sizes, or for all with None."""

    def __init__(self, program: TorchProgram, sizes: tuple[Any, ...] | None):
        plan = program.plan
        self._plan, self._numbers = plan, sizes
        self._inputs = [x for x in plan.inputs if x.is_tensor]
        self._sizes = [x for x in plan.inputs if _is_size(x)]
        self._fixed: list[Any] = []  # outputs that are no tensors, None where there is one
        self._passed = _passed_through(plan)
        self._orders: list[Any] = []  # of the axes of results in memory
        self._held: dict[int, tuple[Any, int, Value]] = {}
        self._carried: list[int] = []  # sizes that only an input without data tells

        def graph(*tensors: Any) -> list[Any]:
            return self._traced(tensors[: len(self._inputs)])

        if sizes is None:
            graph.__signature__ = self._signature()  # type: ignore[attr-defined]
        graph.__name__ = program.name
        self._run = Jitted(graph)

    def _signature(self) -> inspect.Signature:
        """The tensors with their symbolic sizes, and one more for each size that no axis of theirs is."""
        told: set[str] = set()
        shapes: list[tuple[str, tuple[Size, ...], Any]] = []
        for k, x in enumerate(self._inputs):
            shape = tuple(x.shape or ())
            shapes.append((f"t{k}", _moved(shape, x.order), x.dtype))
            told.update(str(s) for s in shape if is_name(s))
        for k, x in enumerate(self._sizes):
            if x.size is not None and is_name(x.size) and str(x.size) not in told:
                told.add(str(x.size))
                self._carried.append(k)
                shapes.append((f"n{k}", (x.size,), i8))
        wanted = set().union(*(symbols(s) for x in self._inputs for s in x.shape or ()))
        wanted.update(*(symbols(x.size) for x in self._sizes if x.size is not None))
        if not wanted <= told:
            name = sorted(wanted - told)[0]
            raise OpenSizeError("input", f"no axis and no argument is the size {name} alone")
        only = inspect.Parameter.POSITIONAL_ONLY
        return inspect.Signature(
            [inspect.Parameter(n, only, annotation=TensorSpec(s, d)) for n, s, d in shapes]
        )

    def _environment(self, numbers: Sequence[Any], tensors: Sequence[Any]) -> Mapping[str, Size]:
        """The symbolic sizes of a call by name."""
        found = {
            str(x.size): n for x, n in zip(self._sizes, numbers, strict=True) if is_name(x.size)
        }
        for x, t in zip(self._inputs, tensors, strict=True):
            found |= {str(s): n for s, n in zip(x.shape or (), t.shape, strict=False) if is_name(s)}
        return found

    def _traced(self, tensors: Sequence[Any]) -> list[Any]:
        COUNTS.programs += 1
        ordered = [
            x if i.order is None else op.transpose(x, _inverse(i.order))
            for x, i in zip(tensors, self._inputs, strict=True)
        ]
        numbers: Sequence[Any] = [x.size for x in self._sizes]
        known: Mapping[str, Size] = {}
        if self._numbers is not None:
            numbers, known = self._numbers, self._environment(self._numbers, ordered)
        given, left = iter(ordered), iter(numbers)
        rows = [given if x.is_tensor else None if x.is_token else left for x in self._plan.inputs]
        args = [None if row is None else next(row) for row in rows]
        found = evaluate(self._plan, args, known)
        self._fixed, self._orders, made = [], [], []
        for k, (v, order) in enumerate(zip(found, self._plan.orders, strict=True)):
            is_result = isinstance(v, Value) and k not in self._passed
            self._fixed.append(None if isinstance(v, Value) else v)
            if is_result:
                order = order if order is not None and len(order) == v.ndim else None
                self._orders.append((k, order))
                made.append(v if order is None else op.transpose(v, order))
        return made

    def __call__(self, tensors: list[Any], numbers: tuple[Any, ...]) -> list[Any]:
        given = [self._taken(k, x) for k, x in enumerate(tensors)]
        blank = [asarray(np.empty(numbers[k], np.int8)) for k in self._carried]
        found = owned(given, self._run(*given, *blank))
        results = list(self._fixed)
        if any(isinstance(x, Dim) for x in results):
            known = self._environment(numbers, tensors)
            results = [substitute(x, known) if isinstance(x, Dim) else x for x in results]
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


def _moved(shape: tuple[Size, ...], order: tuple[int, ...] | None) -> tuple[Size, ...]:
    return shape if order is None else tuple(shape[i] for i in order)


def _inverse(order: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(sorted(range(len(order)), key=lambda i: order[i]))


def _passed_through(plan: TorchPlan) -> dict[int, int]:
    """Outputs that are inputs, with the number of the tensor."""
    tensors: dict[int, int] = {}
    for at, step in enumerate(plan.steps):
        if step.kind == "input" and plan.inputs[len(tensors) + _before(plan, at)].is_tensor:
            tensors[at] = len(tensors)
    found = ((k, x) for k, x in enumerate(plan.outputs) if isinstance(x, StepRef))
    return {k: tensors[x.at] for k, x in found if x.at in tensors}


def _before(plan: TorchPlan, at: int) -> int:
    """How many inputs before a step are no tensors."""
    kinds = iter(plan.inputs)
    return sum(not next(kinds).is_tensor for s in plan.steps[:at] if s.kind == "input")
