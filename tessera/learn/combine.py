"""Optimisers made of others: chains, groups of parameters, accumulation, averages.

opt = chain(clip_norm(1.0), adamw(3e-4))
opt = groups({"decay": adamw(3e-4, decay=0.1), "plain": adamw(3e-4, decay=0.0)},
             lambda name, p: "decay" if p.ndim > 1 else "plain")
opt = accumulate(opt, every=4)
opt = ema(opt, 0.999)                averaged parameters in state["ema"]
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from tessera.core import tree
from tessera.core.blame import applied, brief, wanting
from tessera.core.errors import OperandError
from tessera.lang import op
from tessera.learn.clipping import clip_by_global_norm, clip_by_value
from tessera.learn.leafwise import start, widened
from tessera.learn.optimizer import Optimizer, State, Tree
from tessera.ops.control import cond
from tessera.ops.define import as_value

Label = Callable[[str, Any], Any]


@dataclass(frozen=True)
class Combined(Optimizer):
    """An optimiser with the states of others in its own."""

    _mark: ClassVar[str] = "inner"


@dataclass(frozen=True)
class Gradients:
    """A step on gradients, for chains: (gradients, parameters) -> gradients."""

    apply: Callable[[Tree, Tree], Tree]


def _demand_optimizer(name: str, given: Any) -> None:
    if not (hasattr(given, "init") and hasattr(given, "update")):
        raise OperandError(
            f"{name}: optimizer is {type(given).__name__} {brief(given, 40)}, expected an optimiser such as "
            "optim.adam(1e-3)"
        )


def _demand_limit(name: str, limit: float) -> None:
    if not limit > 0:
        raise OperandError(f"{name}: limit is {limit}, expected a number above 0")


@wanting
def clip_norm(limit: float) -> Gradients:
    """Clip gradients by their joint norm, in a chain."""
    _demand_limit("clip_norm", limit)
    return Gradients(lambda grads, params: clip_by_global_norm(grads, limit))


@wanting
def clip_value(limit: float) -> Gradients:
    """Clip every element of the gradients, in a chain."""
    _demand_limit("clip_value", limit)
    return Gradients(lambda grads, params: clip_by_value(grads, limit))


@wanting
def weight_decay(by: float) -> Gradients:
    """Add a share of the parameters to the gradients (an L2 penalty), in a chain."""
    return Gradients(
        lambda grads, params: tree.map(
            lambda g, p: op.cast(widened(g) + by * widened(p), as_value(g, "update").dtype),
            grads,
            params,
        )
    )


@wanting
def chain(*parts: Any) -> Optimizer:
    """Steps on gradients (clip_norm, weight_decay, any function of the gradients), then an optimiser."""
    if not parts or not isinstance(parts[-1], Optimizer):
        raise OperandError("chain: the last part must be an optimiser, such as optim.adam(1e-3)")
    steps = [_as_gradients(p) for p in parts[:-1]]
    last = parts[-1]

    def init(params: Tree) -> State:
        return {"inner": last.init(params)}

    def update(grads: Tree, state: State, params: Tree) -> tuple[Tree, State]:
        for s in steps:
            grads = s.apply(grads, params)
        params, inner = last.update(grads, state["inner"], params)
        return params, {"inner": inner}

    return Combined(init, update)


def _as_gradients(part: Any) -> Gradients:
    if isinstance(part, Gradients):
        return part
    if isinstance(part, Optimizer) or not callable(part):
        raise OperandError(
            f"chain: got {type(part).__name__} before the last part, expected optim.clip_norm(...) or a "
            "function of "
            "the gradients"
        )
    return Gradients(lambda grads, params: part(grads))


def _labels(params: Tree, label: Label | Tree) -> list[Any]:
    """The label of each leaf: from a function of its name and value, or from a tree of labels."""
    leaves, structure = tree.flatten(params)
    if callable(label):
        named = zip(tree.names(params), leaves, strict=True)
        return [applied("groups: label(name, parameter)", label, (n, p), {}) for n, p in named]
    found = tree.parts(structure, label)
    if found is None:
        raise OperandError(
            f"groups: the labels are {tree.structure(label)}, expected {structure} as the parameters, or a "
            "function "
            "of the name and the parameter"
        )
    return found


@wanting
def groups(optimizers: Mapping[Any, Any], label: Any) -> Optimizer:
    """An optimiser for each group of parameters; label(name, parameter) says which, None for a frozen one."""
    for each in optimizers.values():
        _demand_optimizer("groups", each)

    def split(params: Tree) -> dict[Any, list[int]]:
        labels = _labels(params, label)
        unknown = [x for x in labels if x is not None and x not in optimizers]
        if unknown:
            raise OperandError(
                f"groups: a parameter has the label {unknown[0]!r}, expected None or one of "
                f"{', '.join(map(repr, optimizers))}"
            )
        return {g: [i for i, x in enumerate(labels) if x == g] for g in optimizers}

    def init(params: Tree) -> State:
        leaves = tree.leaves(params)
        found = split(params).items()
        return {"inner": {g: optimizers[g].init([leaves[i] for i in at]) for g, at in found}}

    def update(grads: Tree, state: State, params: Tree) -> tuple[Tree, State]:
        leaves, structure = tree.flatten(params)
        given, inner = tree.leaves(tree.map(lambda p, g: g, params, grads)), {}
        for g, at in split(params).items():
            mine = [leaves[i] for i in at], [given[i] for i in at]
            new, inner[g] = optimizers[g].update(mine[1], state["inner"][g], mine[0])
            for i, x in zip(at, new, strict=True):
                leaves[i] = x
        return tree.unflatten(structure, leaves), {"inner": inner}

    return Combined(init, update)


@wanting
def masked(optimizer: Any, mask: Any) -> Optimizer:
    """Step only the parameters with mask(name, parameter), or True in a tree of bools; the others stay."""
    if callable(mask):
        return groups({"on": optimizer}, lambda n, p: "on" if mask(n, p) else None)
    if not all(isinstance(m, bool) for m in tree.leaves(mask)):
        raise OperandError(
            f"masked: mask is {type(mask).__name__} {brief(mask, 40)}, "
            "expected mask(name, parameter), or a tree of bools"
        )
    return groups({"on": optimizer}, tree.map(lambda m: "on" if m else None, mask))


@wanting
def accumulate(optimizer: Any, every: int) -> Optimizer:
    """A step of the optimiser for each `every` updates, with the mean of their gradients."""
    _demand_optimizer("accumulate", optimizer)
    if every < 1:
        raise OperandError(f"accumulate: every is {every}, expected at least 1")

    def init(params: Tree) -> State:
        total = tree.map(lambda p: op.zeros_like(widened(p)), params)
        return {"count": start(), "total": total, "inner": optimizer.init(params)}

    def update(grads: Tree, state: State, params: Tree) -> tuple[Tree, State]:
        total = tree.map(lambda t, g: t + op.cast(g, t.dtype), state["total"], grads)
        count = state["count"] + 1

        def step(total: Tree, inner: State, params: Tree) -> Any:
            mean = tree.map(lambda t, g: op.cast(t / every, g.dtype), total, grads)
            params, inner = optimizer.update(mean, inner, params)
            return params, inner, tree.map(op.zeros_like, total)

        def wait(total: Tree, inner: State, params: Tree) -> Any:
            return params, inner, total

        params, inner, total = cond(count >= every, step, wait, total, state["inner"], params)
        return params, {"count": op.where(count >= every, 0, count), "total": total, "inner": inner}

    return Combined(init, update)


@wanting
def ema(optimizer: Any, decay: float = 0.999) -> Optimizer:
    """The optimiser, with an exponential moving average of the parameters in state["ema"].

    It starts at the first parameters; early on it forgets faster: min(decay, (1 + n) / (10 + n)) after n
    steps.
    """
    _demand_optimizer("ema", optimizer)
    if not 0 <= decay <= 1:
        raise OperandError(f"ema: decay is {decay}, expected 0 to 1")

    def init(params: Tree) -> State:
        return {"count": start(), "ema": tree.map(widened, params), "inner": optimizer.init(params)}

    def update(grads: Tree, state: State, params: Tree) -> tuple[Tree, State]:
        params, inner = optimizer.update(grads, state["inner"], params)
        n = op.cast(state["count"], "f64")
        keep = op.minimum(decay, (1 + n) / (10 + n))

        def blend(a: Any, p: Any) -> Any:
            return a + op.cast(1 - keep, a.dtype) * (op.cast(p, a.dtype) - a)

        average = tree.map(blend, state["ema"], params)
        return params, {"count": state["count"] + 1, "ema": average, "inner": inner}

    return Combined(init, update)
