"""Optimisers that step every parameter by itself: a rule for one leaf, and what it remembers.

Steps are computed and remembered in f32 at least.  For narrower parameters the state also keeps a master in
f32, so that steps below their resolution add up.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tessera.core import tree
from tessera.core.dtype import DType, f32, f64
from tessera.core.errors import TreeError
from tessera.ir.graph.ir import Value
from tessera.lang import op
from tessera.learn.optimizer import Optimizer, State, Tree
from tessera.ops.define import as_value

Rate = float | Callable[[Any], Any]
Slots = Mapping[str, Callable[[Any], Any]]


@dataclass(frozen=True)
class StepFacts:
    """What the rules of all leaves share in one step."""

    number: Value  # 0 at the first step
    rate: Any
    shared: Mapping[str, Any]  # numbers that all leaves have in common

    @property
    def count(self) -> Any:
        """1 at the first step, in f64: in f32, 1 - 0.999 would have four digits."""
        return op.cast(self.number + 1, f64)


Rule = Callable[..., tuple[Any, ...]]  # (step, x, gradient, *slots) -> (x, *slots)


def rate_at(lr: Rate, step: Value, dtype: DType = f32) -> Any:
    """A rate, or a schedule at a step, which counts in this dtype."""
    return lr(op.cast(step, dtype)) if callable(lr) else lr


def wide_dtype(dtype: DType) -> DType:
    """The dtype that a step is computed and remembered in: in f16, 1e-8 and the square of 1e-4 are 0."""
    return f32 if is_narrow(dtype) else dtype


def is_narrow(dtype: DType) -> bool:
    """Whether parameters of a dtype have masters."""
    return dtype.kind == "f" and dtype.bits < f32.bits


def widened(x: Any) -> Any:
    """A tensor in the dtype of steps."""
    v = as_value(x, "update")
    return op.cast(v, wide_dtype(v.dtype))


def zeros(x: Any) -> Any:
    """Zeros like a widened parameter."""
    return op.zeros_like(x)


def real_zeros(x: Any) -> Any:
    """Zeros for mean squares, which are real for complex parameters too."""
    return op.zeros_like(x, x.dtype.real)


def power(g: Any) -> Any:
    """|g|**2, so that a step keeps the phase of a complex gradient."""
    return op.square(op.real(g)) + op.square(op.imag(g)) if g.dtype.is_complex else g * g


def moved(x: Any, rate: Any, direction: Any) -> Any:
    """x - rate * direction in the dtype of x."""
    return x - op.cast(rate, x.dtype) * direction


def start() -> Value:
    """The number of the first step."""
    return op.full((), 0, "i32")


def leafwise(
    lr: Rate,
    slots: Slots,
    rule: Rule,
    shared: Mapping[str, float] | None = None,
    next_shared: Callable[[StepFacts], dict[str, Any]] | None = None,
) -> Optimizer:
    """An optimiser whose update is a rule for one leaf, with slots of state for each."""

    def init(params: Tree) -> State:
        state: State = {"step": start()}
        state |= {n: op.full((), x, f64) for n, x in (shared or {}).items()}
        wide = tree.map(widened, params)
        state |= {n: tree.map(make, wide) for n, make in slots.items()}
        masters = _masters(params)
        return state if masters is None else {**state, "master": masters}

    def update(grads: Tree, state: State, params: Tree) -> tuple[Tree, State]:
        leaves, structure = tree.flatten(params)
        exact = f64 if any(as_value(p, "update").dtype.real is f64 for p in leaves) else f32
        step = StepFacts(state["step"], rate_at(lr, state["step"], exact), state)
        given = [tree.leaves(tree.map(lambda p, g: g, params, grads))]
        given += [_column(structure, n, state[n]) for n in slots]
        wide = [_start_of(p, m) for p, m in zip(leaves, _kept(structure, state), strict=True)]
        rows = [rule(step, x, widened(g), *s) for x, g, *s in zip(wide, *given, strict=True)]
        kinds = [as_value(p, "update").dtype for p in leaves]
        new = [op.cast(r[0], d) for r, d in zip(rows, kinds, strict=True)]
        after: State = {"step": state["step"] + 1}
        after |= {
            n: tree.unflatten(structure, [r[i] for r in rows]) for i, n in enumerate(slots, 1)
        }
        after |= next_shared(step) if next_shared else {}
        if "master" in state:
            masters = [r[0] if is_narrow(d) else None for r, d in zip(rows, kinds, strict=True)]
            after["master"] = tree.unflatten(structure, masters)
        return tree.unflatten(structure, new), after

    update.__qualname__ = rule.__qualname__  # adam.<locals>.rule: what a repr calls it
    return Optimizer(init, update)


def _masters(params: Tree) -> Tree | None:
    """Wide copies of narrow parameters, None beside the others; None when there is none."""
    leaves, structure = tree.flatten(params)
    narrow = [is_narrow(as_value(p, "init").dtype) for p in leaves]
    if not any(narrow):
        return None
    copies = [widened(p) if n else None for p, n in zip(leaves, narrow, strict=True)]
    return tree.unflatten(structure, copies)


def _kept(structure: tree.Structure, state: State) -> list[Any]:
    if "master" not in state:
        return [None] * structure.count
    return _column(structure, "master", state["master"])


def _column(structure: tree.Structure, name: str, held: Tree) -> list[Any]:
    """What a part of the state holds for each parameter."""
    found = tree.parts(structure, held)
    if found is None:
        raise TreeError(
            f"update: '{name}' of the state is {tree.structure(held)}, expected {structure} as the "
            "parameters; make "
            "the state anew: opt.init(params)"
        )
    return found


def _start_of(p: Any, master: Any) -> Any:
    """The wide value that a step starts from: the master, unless the parameter was changed since."""
    if master is None:
        return widened(p)
    narrow = as_value(p, "update")
    return op.where(op.cast(master, narrow.dtype) == narrow, master, widened(p))
