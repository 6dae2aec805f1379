"""Sums of products as dot_general, two operands at a time."""

from __future__ import annotations

from collections.abc import Sequence

from tessera.core.signature import Axes
from tessera.interop.stablehlo.rules.table import rule
from tessera.interop.stablehlo.writer import Ssa, StableHloWriter, listed
from tessera.ir.graph.interp import wide
from tessera.ir.graph.ir import Node

Named = tuple[Ssa, Axes]
_PRECISE = "[#stablehlo<precision HIGHEST>, #stablehlo<precision HIGHEST>]"


@rule("complex_contract")
def _complex(w: StableHloWriter, n: Node, x: Ssa, y: Ssa) -> Ssa:
    return contracted(w, n, [x, y])


def contracted(w: StableHloWriter, n: Node, xs: Sequence[Ssa]) -> Ssa:
    """A contraction: what operands share and nothing later needs is summed."""
    sig = n.op.sig(n.types, n.params)
    assert sig is not None
    sig, sizes = sig.bind(n.op.name, n.types)
    at = wide(n.op, n.operands[0].dtype)
    left = [_alone(w, w.cast(x, at), axes) for x, axes in zip(xs, sig.ins, strict=True)]
    total = left[0]
    for i, other in enumerate(left[1:], 1):
        later = {a for _, axes in left[i + 1 :] for a in axes} | set(sig.out)
        total = _pair(w, total, other, later)
    x, axes = _summed(w, *total, set(sig.out))
    x = w.transpose(x, [axes.index(a) for a in sig.out if a in axes])
    sizes = {**dict(n.params.get("sizes", ())), **sizes}
    shape = [int(sizes[a]) for a in sig.out]
    x = w.broadcast(x, shape, [k for k, a in enumerate(sig.out) if a in axes])
    return w.cast(x, n.results[0].dtype)


def _alone(w: StableHloWriter, x: Ssa, axes: Axes) -> Named:
    """An operand whose axes have different names: what it has twice is a diagonal."""
    while len(set(axes)) < len(axes):
        j = next(k for k, a in enumerate(axes) if a in axes[:k])
        i = axes.index(axes[j])
        same = w.compare("EQ", w.iota(x.shape, i), w.iota(x.shape, j))
        x = _sum(w, w.select(same, x, w.like(0, x)), [j])
        axes = (*axes[:j], *axes[j + 1 :])
    return x, axes


def _sum(w: StableHloWriter, x: Ssa, over: Sequence[int]) -> Ssa:
    return w.reduce(x, over, 0, lambda a, b: w.op("add", a, b)) if over else x


def _summed(w: StableHloWriter, x: Ssa, axes: Axes, wanted: set[str]) -> Named:
    over = [k for k, a in enumerate(axes) if a not in wanted]
    return _sum(w, x, over), tuple(a for a in axes if a in wanted)


def _pair(w: StableHloWriter, left: Named, right: Named, later: set[str]) -> Named:
    """The product of two operands, summed over what only they have."""
    (x, a), (y, b) = (
        _summed(w, *mine, later | set(other[1])) for mine, other in ((left, right), (right, left))
    )
    both = [k for k in a if k in b]
    batch, folded = [k for k in both if k in later], [k for k in both if k not in later]
    free = [k for k in a if k not in both], [k for k in b if k not in both]
    out = (*batch, *free[0], *free[1])
    sizes = dict(zip((*a, *b), (*x.shape, *y.shape), strict=True))
    numbers = ", ".join(
        f"{side}_{what}_dimensions = {listed([axes.index(k) for k in names])}"
        for what, names in (("batching", batch), ("contracting", folded))
        for side, axes in (("lhs", a), ("rhs", b))
    )
    held = {"dot_dimension_numbers": f"#stablehlo.dot<{numbers}>", "precision_config": _PRECISE}
    y = w.op("dot_general", x, y, dtype=x.dtype, shape=[sizes[k] for k in out], properties=held)
    return y, out
