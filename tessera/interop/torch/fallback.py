"""Steps that PyTorch runs, in host calls of our programs: what no rule takes, and random numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tessera.core.dims import Dim, Size, substitute
from tessera.core.dtype import DType, bool_
from tessera.core.errors import OperandError
from tessera.core.types import TensorType
from tessera.interop.torch.exchange import array_of, tensor_of, torch_dtype
from tessera.interop.torch.library import torch
from tessera.interop.torch.plan import SAVES_STATE, TAKES_STATE, PlanStep
from tessera.interop.torch.report import COUNTS
from tessera.interop.torch.rule import RULES, number
from tessera.ir.graph.ir import Value
from tessera.lang import op
from tessera.lang.callbacks import callback

# Random ops that read only the shape of their first argument.
_SHAPED = frozenset(
    f"aten.{name}"
    for name in (
        "rand_like.default", "randn_like.default", "randint_like.default", "randint_like.low_dtype",
        "bernoulli.p", "uniform.default", "normal_functional.default", "exponential.default",
        "log_normal.default", "cauchy.default", "geometric.default", "random.default",
    )
)  # fmt: skip


def by_pytorch(
    step: PlanStep, args: list[Any], kwargs: dict[str, Any], sizes: Mapping[str, Size], reason: str
) -> Any:
    """The results of a step that PyTorch runs, in a host call of the program."""
    name, call = step.call.target, step.call
    if name in (SAVES_STATE, TAKES_STATE):
        return _with_state(step, args, kwargs, sizes)
    if step.random and name not in RULES:
        COUNTS.random[name] += 1
        if name == "aten.native_dropout.default":
            return _dropout(step, sizes, *args)
    else:
        COUNTS.fell_back(name, reason)
    schema = getattr(step.run, "_schema", None)
    if schema is not None and not schema.returns:
        return _checked(step, args, kwargs)
    if not any(call.dtypes) or None in call.shapes:
        raise OperandError(f"torch: {name} cannot cross: {reason}")
    shapes = [tuple(substitute(s, sizes) for s in shape or ()) for shape in call.shapes]
    dtypes = [d for d in call.dtypes if d is not None]
    operands: list[Value] = []
    if name in _SHAPED:
        args = [_Blank(shapes[0], dtypes[0], step.order), *args[1:]]
    bound = _bound((args, kwargs), operands)
    types = [TensorType(d, s) for s, d in zip(shapes, dtypes, strict=True)]
    run = _OnArrays(step.run, bound, [v.dtype for v in operands], types, name)
    if step.random:
        found = op.host_call(*operands, to=run, shapes=tuple(shapes), dtypes=tuple(dtypes))
    else:
        found = callback(run, types, vjp=run.vjp)(*operands)
    return tuple(found) if _is_several(step) else found[0]


def _checked(step: PlanStep, args: list[Any], kwargs: dict[str, Any]) -> None:
    """Run a step that returns nothing and raises where a condition does not hold."""
    operands: list[Value] = []
    bound = _bound((args, kwargs), operands)
    dtypes = [v.dtype for v in operands]

    def check(*arrays: Any) -> list[Any]:
        tensors = [tensor_of(a, d) for a, d in zip(arrays, dtypes, strict=True)]
        given, named = _unbound(bound, tensors)
        assert step.run is not None
        step.run(*given, **named)
        return [np.zeros((), bool)]

    check.__name__ = step.call.target
    op.host_call(*operands, to=check, shapes=((),), dtypes=(bool_,))


def _dropout(
    step: PlanStep, sizes: Mapping[str, Size], x: Value, p: float, train: Any = True
) -> Any:
    """x where a mask holds that PyTorch draws, over the chance of that, and the mask."""
    if train is False:
        return x, op.full(x.shape, True)
    shape = tuple(substitute(s, sizes) for s in step.call.shapes[0] or ())
    operands: list[Value] = []
    blank = _bound(_Blank(shape, bool_, step.order), operands)

    def draw(*numbers: Any) -> list[Any]:
        return [np.array(array_of(_unbound(blank, numbers).bernoulli_(1 - p)))]

    draw.__name__ = step.call.target
    (mask,) = op.host_call(*operands, to=draw, shapes=(shape,), dtypes=(bool_,))
    scale = number(1 / (1 - p) if p < 1 else 0.0, x.dtype)
    return op.mul(op.mul(x, op.cast(mask, x.dtype)), scale), mask


def _with_state(
    step: PlanStep, args: list[Any], kwargs: dict[str, Any], sizes: Mapping[str, Size]
) -> Any:
    """The results of a random op that saves the state of the generator first, or starts from a saved one."""
    saves, operands = step.call.target == SAVES_STATE, list[Value]()
    run: Any = args[0] if saves else args[1]
    COUNTS.random[str(run)] += 1
    bound = _bound((args[1:] if saves else args[2:], kwargs), operands)
    given = [v.dtype for v in operands]
    operands += [] if saves else [args[0]]

    def draw(*arrays: Any) -> list[Any]:
        t = torch()
        before = t.get_rng_state()
        if not saves:
            t.set_rng_state(t.from_numpy(np.array(arrays[-1])))
        tensors = [
            _in_order(tensor_of(a, d), step.order) for a, d in zip(arrays, given, strict=False)
        ]
        inputs, named = _unbound(bound, tensors)
        with t.no_grad():
            found = run(*inputs, **named)
        if not saves:
            t.set_rng_state(before)
        found = list(found) if isinstance(found, list | tuple) else [found]
        return [np.array(array_of(x)) for x in ([before, *found] if saves else found)]

    draw.__name__ = str(run)
    shapes = tuple(tuple(substitute(s, sizes) for s in shape or ()) for shape in step.call.shapes)
    dtypes = tuple(d for d in step.call.dtypes if d is not None)
    made = op.host_call(*operands, to=draw, shapes=shapes, dtypes=dtypes)
    results = tuple(made[1:]) if saves else tuple(made)
    one = results if _returns_several(run) else results[0]
    return (made[0], one) if saves else one


def _in_order(x: Any, order: tuple[int, ...] | None) -> Any:
    """A tensor with its axes in memory as those of the result: random numbers are drawn in that order."""
    if order is None or x.ndim != len(order):
        return x
    return x.permute(order).contiguous().permute(sorted(range(x.ndim), key=lambda i: order[i]))


def _is_several(step: PlanStep) -> bool:
    return _returns_several(step.run)


def _returns_several(run: Any) -> bool:
    """Whether an op gives a list or several results."""
    returns: list[Any] = list(getattr(getattr(run, "_schema", None), "returns", ()))
    return len(returns) != 1 or isinstance(returns[0].type, torch().ListType)


class _Blank:
    """A tensor of which only the type is read."""

    def __init__(self, shape: Any, dtype: DType, order: tuple[int, ...] | None):
        self.shape, self.dtype, self.order = shape, dtype, order

    def made(self, shape: Sequence[int]) -> Any:
        """A tensor of this type; random numbers fill it in the order of memory."""
        order = self.order or tuple(range(len(shape)))
        empty = torch().empty([shape[i] for i in order], dtype=torch_dtype(self.dtype))
        return empty.permute(sorted(range(len(order)), key=lambda i: order[i]))


class _Slot:
    """The place of an operand, which may be a size."""

    def __init__(self, at: int, is_size: bool = False):
        self.at, self.is_size = at, is_size


def _bound(x: Any, operands: list[Value]) -> Any:
    """Arguments with a slot for each tensor and each size without a number, which go to operands."""
    if isinstance(x, list | tuple):
        return type(x)(_bound(v, operands) for v in x)
    if isinstance(x, dict):
        return {k: _bound(v, operands) for k, v in x.items()}
    if isinstance(x, Value):
        operands.append(x)
        return _Slot(len(operands) - 1)
    if isinstance(x, Dim):
        operands.append(op.dim(x))
        return _Slot(len(operands) - 1, True)
    if isinstance(x, _Blank):
        return _Blank(_bound(tuple(x.shape), operands), x.dtype, x.order)
    return torch_dtype(x) if isinstance(x, DType) else x


def _unbound(x: Any, tensors: Sequence[Any]) -> Any:
    if isinstance(x, list | tuple):
        return type(x)(_unbound(v, tensors) for v in x)
    if isinstance(x, dict):
        return {k: _unbound(v, tensors) for k, v in x.items()}
    if isinstance(x, _Blank):
        return x.made(_unbound(x.shape, tensors))
    if isinstance(x, _Slot):
        return int(tensors[x.at]) if x.is_size else tensors[x.at]
    return x


class _OnArrays:
    """An op of PyTorch on NumPy arrays."""

    def __init__(
        self, run: Any, bound: Any, operands: list[DType], results: list[TensorType], name: str
    ):
        self._run, self._bound, self._operands, self._results = run, bound, operands, results
        self.__name__ = name

    def _tensors(self, arrays: Sequence[Any]) -> list[Any]:
        return [tensor_of(a, d) for a, d in zip(arrays, self._operands, strict=True)]

    def _applied(self, tensors: Sequence[Any]) -> list[Any]:
        args, kwargs = _unbound(self._bound, tensors)
        found = self._run(*args, **kwargs)
        return [found] if isinstance(found, torch().Tensor) else [x for x in found if x is not None]

    def __call__(self, *arrays: Any) -> list[Any]:
        with torch().no_grad():
            return [np.array(array_of(x)) for x in self._applied(self._tensors(arrays))]

    def vjp(self, cts: Any, *arrays: Any) -> list[Any]:
        """The cotangents of the operands, by PyTorch's autograd."""
        t = torch()
        with t.enable_grad():
            tensors = [x.requires_grad_(_flows(x)) for x in self._tensors(arrays)]
            pairs = zip(self._applied(tensors), cts, self._results, strict=True)
            kept = [(x, tensor_of(np.asarray(c), r.dtype)) for x, c, r in pairs if x.requires_grad]
            moved = [x for x in tensors if x.requires_grad]
            found = iter(
                t.autograd.grad(
                    [x for x, _ in kept], moved, [c for _, c in kept], allow_unused=True
                )
                if kept
                else [None] * len(moved)
            )
            made = [next(found) if x.requires_grad else None for x in tensors]
        both = zip(made, arrays, strict=True)
        return [np.zeros_like(a) if g is None else np.array(array_of(g)) for g, a in both]


def _flows(x: Any) -> bool:
    return bool(x.is_floating_point() or x.is_complex())
