"""faults: inputs at the edges of their bounds, and what goes wrong when a kernel runs on them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from tessera.checks.abstract import limits
from tessera.checks.concrete import Array, Env, instances, run_instance, shown
from tessera.checks.findings import Finding, finding
from tessera.core.dtype import DType
from tessera.core.rounding import round_to
from tessera.ir.tile.interp import Instance
from tessera.ir.tile.ir import Kernel, Operation

TOOL = "numerics"
_WHAT = {
    "overflow": "overflows to infinity",
    "nan": "gives NaN",
    "zero": "divides by zero",
}
_ADVICE = {
    "overflow": "subtract the maximum before exp, scale before the sum, or accumulate in a wider dtype",
    "nan": "keep infinities apart, and arguments inside the domain of the function",
    "zero": "add a small number to the divisor, or subtract the maximum so that a term is 1",
}


def faults_of(
    kernel: Kernel,
    sizes: Env,
    data: Sequence[Array],
    matter: Callable[[Env], set[Operation]],
    label: str,
) -> list[Finding]:
    """What goes wrong at operations that matter when some instances run on these numbers."""
    found: dict[Operation, Finding] = {}
    for instance in instances(kernel, sizes, 2):
        wanted = matter(instance)
        if not wanted:
            continue
        faults: dict[Operation, str] = {}
        run_instance(kernel, sizes, instance, [a.copy() for a in data], _Watch(faults))
        for op, kind in faults.items():
            if op in wanted and op not in found:
                found[op] = _finding(kernel, sizes, instance, op, kind, label)
    return list(found.values())


class _Watch:
    """Notes the faults of a run."""

    def __init__(self, faults: dict[Operation, str]):
        self.faults = faults

    def __call__(self, op: Operation, i: Instance, out: Sequence[Array]) -> None:
        _observe(op, i, out, self.faults)


def _observe(
    op: Operation, i: Instance, out: Sequence[Array], faults: dict[Operation, str]
) -> None:
    """Whether an operation has just made infinity or NaN of finite numbers."""
    if op in faults or len(op.results) != 1 or op.results[0].dtype.kind != "f":
        return
    if op.name not in ("apply", "cast", "fold", "scan", "dot"):
        return
    xs = [i.tiles[t].astype(np.float64) for t in op.operands if t.dtype.kind == "f"]
    y = np.asarray(out[0]).astype(np.float64)
    if op.name in ("apply", "cast"):
        if op.attributes.get("scalar") == "where":
            return
        finite, known = np.ones(y.shape, bool), np.ones(y.shape, bool)
        for x in xs:
            finite, known = finite & np.isfinite(x), known & ~np.isnan(x)
    else:
        finite = np.asarray(all(np.isfinite(x).all() for x in xs))
        known = np.asarray(not any(np.isnan(x).any() for x in xs))
    if np.any(np.isnan(y) & known):
        faults[op] = "nan"
    elif np.any(np.isinf(y) & finite):
        faults[op] = "zero" if _divides(op, xs) else "overflow"


def _divides(op: Operation, xs: Sequence[Array]) -> bool:
    """Whether an infinity is the pole of a function."""
    name = op.attributes.get("scalar")
    if name == "div":
        return bool(np.any(xs[1] == 0))
    return name in ("recip", "rsqrt", "log", "log2", "log10", "log1p", "pow") and bool(
        np.any(xs[0] <= 0)
    )


def edges(
    tensors: Sequence[tuple[tuple[int, ...], DType, float, float]],
) -> Iterator[tuple[str, list[Array]]]:
    """Tensors (shape, dtype, low, high) at edges of their bounds, equal, alternating, random."""
    for name, make in _PATTERNS.items():
        rng = np.random.default_rng(len(name))
        data = []
        for shape, dtype, low, high in tensors:
            least, most = limits(dtype)
            lo, hi = max(low, least, -1e38), min(high, most, 1e38)
            data.append(_within(make(shape, lo, hi, rng), lo, hi, dtype))
        yield name, data


def _within(x: Array, lo: float, hi: float, dtype: DType) -> Array:
    made = np.asarray(round_to(np.clip(x, lo, hi), dtype))
    wide = made.astype(np.float64)
    inside = (wide >= lo) & (wide <= hi)
    return (
        made if inside.all() else np.where(inside, made, round_to(np.asarray((lo + hi) / 2), dtype))
    )


def _alternating(shape: Any, lo: float, hi: float, rng: Any, halves: bool = False) -> Array:
    """Every other element at a bound, or the second half of every row."""
    place = np.arange(math.prod(shape)) % max(shape[-1] if shape else 1, 1)
    low = place < shape[-1] // 2 if halves and shape else place % 2 == 1
    return np.where(low, lo, hi).reshape(shape)


def _one_high(shape: Any, lo: float, hi: float, rng: Any) -> Array:
    x = np.full(math.prod(shape), lo)
    x[:1] = hi
    return x.reshape(shape)


_PATTERNS: dict[str, Any] = {
    "all at the upper bound": lambda s, lo, hi, rng: np.full(s, hi),
    "all at the lower bound": lambda s, lo, hi, rng: np.full(s, lo),
    "all zero or the number next to it": lambda s, lo, hi, rng: np.full(s, min(max(0.0, lo), hi)),
    "alternating bounds": _alternating,
    "one at the upper bound, the rest at the lower": _one_high,
    "the second half at the upper bound": lambda s, lo, hi, rng: _alternating(s, lo, hi, rng, True),
    "all in the middle": lambda s, lo, hi, rng: np.full(s, (lo + hi) / 2),
    "rows of one number each": lambda s, lo, hi, rng: np.broadcast_to(
        rng.uniform(lo, hi, (*s[:-1], 1)) if s else rng.uniform(lo, hi), s
    ),
    "tiny numbers": lambda s, lo, hi, rng: np.full(s, 1e-30) * rng.uniform(0, 1, s),
    "random": lambda s, lo, hi, rng: rng.uniform(lo, hi, s),
}


def _finding(
    kernel: Kernel, sizes: Env, instance: Env, op: Operation, kind: str, name: str
) -> Finding:
    scalar = op.attributes.get("scalar", op.name)
    dtype = op.results[0].dtype
    return finding(
        TOOL, "error", kernel.name, op, f"{scalar} in {dtype} {_WHAT[kind]} for inputs within bounds",
        shown(sizes, instance, inputs=name, kind=kind), _ADVICE[kind], confirmed=True,
    )  # fmt: skip
