"""Loss scaling that adapts: gradients are carried multiplied by a number that stays as large as it can.

    opt = loss_scaled(adam(1e-3))
    state = opt.init(params)
    loss, grads = opt.value_and_grad(f)(state, params, batch)     grads are multiplied by the scale
    params, state = opt.update(grads, state, params)              and divided by it here

A step with a gradient that is not finite is skipped and makes the scale smaller; after `every` steps in
a row that were taken it grows.  It starts at 2**16, as in PyTorch: where that overflows, a few steps are
skipped, and where it would be less, small gradients are lost for `every` steps before it grows.  Tensors
of dtype f16 @ loss_scale(k) multiply their cotangents by k besides: start at 1 with them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from tessera.core import tree
from tessera.core.blame import wanting
from tessera.core.dtype import f32
from tessera.core.errors import OperandError, located
from tessera.ir.graph.ir import Value
from tessera.lang import op
from tessera.lang.transforms import vjp
from tessera.learn.optimizer import Optimizer, State, Tree

SMALLEST, LARGEST = 2.0**-24, 2.0**24  # where the scale stays
START = 2.0**16  # the scale of the first step


@dataclass(frozen=True)
class LossScaled(Optimizer):
    """An optimiser with a scale in its state, and the gradients that go with it."""

    _mark: ClassVar[str] = "scale"

    def value_and_grad(self, f: Callable[..., Any], has_aux: bool = False) -> Callable[..., Any]:
        """(state, params, *args) -> f(params, *args) and its gradient in params times the scale."""

        def run(state: State, params: Tree, *args: Any, **kwargs: Any) -> tuple[Any, Tree]:
            out, back = vjp(lambda p: f(p, *args, **kwargs), params)
            loss = out[0] if has_aux else out
            ct = op.cast(state["scale"], loss.dtype)
            return out, back((ct, tree.map(op.zeros_like, out[1])) if has_aux else ct)[0]

        return run


@wanting
def loss_scaled(
    opt: Optimizer, start: float = START, grow: float = 2.0, shrink: float = 0.5, every: int = 2000
) -> LossScaled:
    """An optimiser that skips steps whose gradients are not finite and adapts the scale of the loss."""
    if not (start > 0 and grow >= 1 and 0 < shrink <= 1 and every >= 1):
        raise located(
            OperandError(
                f"loss_scaled: start {start}, grow {grow}, shrink {shrink}, every {every}; expected "
                "start > 0, grow >= 1, 0 < shrink <= 1 and every >= 1"
            )
        )

    def init(params: Tree) -> State:
        return {
            "scale": op.full((), start, f32),
            "steps": op.full((), 0, "i32"),  # taken since the scale last changed
            "skipped": op.full((), 0, "i32"),
            "inner": opt.init(params),
        }

    def update(grads: Tree, state: State, params: Tree) -> tuple[Tree, State]:
        grads = tree.map(lambda g: _unscaled(g, state["scale"]), grads)
        good = finite(grads)
        clean = tree.map(lambda g: op.where(good, g, 0), grads)
        stepped = opt.update(clean, state["inner"], params)
        kept, inner = tree.map(lambda a, b: op.where(good, a, b), stepped, (params, state["inner"]))
        steps = op.where(good, state["steps"] + 1, 0)
        full = steps >= every
        by = op.where(good, op.where(full, grow, 1.0), shrink)
        return kept, {
            "scale": op.clip(state["scale"] * by, SMALLEST, LARGEST),
            "steps": op.where(full, 0, steps),
            "skipped": state["skipped"] + op.cast(op.logical_not(good), "i32"),
            "inner": inner,
        }

    return LossScaled(init, update)


def _unscaled(g: Any, scale: Any) -> Any:
    """g / scale in f32 at least, where neither the scale overflows nor the quotient vanishes."""
    wide = g if g.dtype.bits >= f32.bits else op.cast(g, f32)
    return wide / op.cast(scale, wide.dtype)


def finite(grads: Tree) -> Value:
    """Whether all elements of all tensors of a tree are finite."""
    each = [op.all(op.isfinite(g)) for g in tree.leaves(grads)]
    return op.all(op.stack(each)) if each else op.full((), True, "bool")
