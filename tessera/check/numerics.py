"""numerics: no overflow, no NaN and no division by what underflowed, for inputs within bounds.

Bounds are followed through every instance at given sizes.  Where they leave a doubt, inputs at the
edges of the ranges are run in the interpreter, and one that shows the fault is the witness.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tessera.check.abstract import Abstract, Doubt, hull, limits
from tessera.check.concrete import Array, Env, instances, run_instance, shape_at, shown
from tessera.check.findings import Finding, Verdict, finding
from tessera.check.intervals import Hull
from tessera.check.relations import Relations
from tessera.core.dtype import DType
from tessera.core.rounding import round_to
from tessera.ir.tile.interp import Instance
from tessera.ir.tile.ir import Kernel, Memory, Operation

TOOL = "numerics"
_STEPS = 20_000  # operations that are followed; a proof needs all
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


@dataclass(frozen=True)
class Bound:
    """What is known of a tensor: bounds of its values and of their error."""

    lo: float
    hi: float
    err: float = 0.0
    nan: bool = False


Bounds = Mapping[str, Bound]


def check_numerics(
    kernel: Kernel,
    sizes: Mapping[str, int],
    inputs: Bounds,
    arrays: Sequence[Array] | None = None,
) -> tuple[Verdict, dict[str, Bound]]:
    """Prove that nothing goes wrong for inputs within bounds, or show an input where it does.

    Parameters that `inputs` does not name may hold anything.  Also the bounds of what is written.
    """
    env = dict(sizes)
    every, memories = instances(kernel, env, 1 << 30), _memories(kernel, env, inputs)
    followed, doubts = _follow(kernel, env, every, memories)
    outs = {
        m.name: _hull_of(memories[m], followed == len(every))
        for m in kernel.parameters
        if m.writable
    }
    found = _witness(kernel, env, inputs, doubts, arrays) if doubts else []
    left = [] if found else [_text(d) for d in doubts]
    if followed < len(every):
        left.append(f"{len(every) - followed} of {len(every)} instances")
    note = "" if found or left else _note(outs, env)
    verdict = Verdict(TOOL, kernel.name, followed, tuple(left), tuple(found), note)
    return verdict, outs


def _text(d: Doubt) -> str:
    what = d.op.attributes.get("scalar", d.op.name)
    return f"{what} in [{d.lo:.3g}, {d.hi:.3g}]: {d.kind}"


def _note(outs: Mapping[str, Bound], sizes: Env) -> str:
    at = ", ".join(f"{k} = {v}" for k, v in sizes.items())
    parts = [
        f"{name} in [{b.lo:.3g}, {b.hi:.3g}] with "
        + ("no bound of the error" if math.isinf(b.err) else f"an error of at most {b.err:.2g}")
        for name, b in outs.items()
    ]
    return f"proved{f' for {at}' if at else ''}: {'; '.join(parts)}"


def _follow(
    kernel: Kernel, sizes: Env, some: Sequence[Env], memories: dict[Memory, Hull]
) -> tuple[int, list[Doubt]]:
    """Run instances on bounds, as many as there is time for; the doubts that reach a result."""
    found, fresh, facts = dict[Any, Doubt](), _Fresh(), Relations()
    steps = 0
    with np.errstate(all="ignore"):
        for count, instance in enumerate(some):
            if steps > _STEPS:
                return count, list(found.values())
            run = Abstract({**sizes, **instance}, dict(memories), fresh, facts)
            run.block(kernel.body, ())
            live = [d for i, d in enumerate(run.doubts) if i + 1 in run.live]
            found |= {(d.kind, d.op): d for d in live}
            steps += run.steps
    return len(some), list(found.values())


class _Fresh:
    """Keys that no other element has."""

    def __init__(self) -> None:
        self.count = 1

    def __call__(self, shape: Sequence[int]) -> Array:
        n = math.prod(shape)
        self.count += n
        return np.arange(self.count - n, self.count, dtype=np.uint64).reshape(tuple(shape))


def _memories(kernel: Kernel, sizes: Env, inputs: Bounds) -> dict[Memory, Hull]:
    made: dict[Memory, Hull] = {}
    fresh = _Fresh()
    fresh.count = 1 << 40
    for m in kernel.parameters:
        shape, b = shape_at(m, sizes), inputs.get(m.name)
        if b is None:
            b = Bound(*limits(m.type.dtype), nan=m.type.dtype.kind == "f")
        h = hull(b.lo, b.hi, shape, fresh(shape), b.nan)
        h.err = np.full(shape, b.err)
        made[m] = h
    return made


def _hull_of(h: Hull, whole: bool) -> Bound:
    if not h.lo.size or not whole:
        return Bound(-math.inf, math.inf, math.inf, True)
    return Bound(float(h.lo.min()), float(h.hi.max()), float(h.err.max()), bool(h.nan.any()))


# Witnesses ------------------------------------------------------------------------------------


def _witness(
    kernel: Kernel, sizes: Env, inputs: Bounds, doubts: Sequence[Doubt],
    arrays: Sequence[Array] | None,
) -> list[Finding]:  # fmt: skip
    """The first fault of each operation in doubt that an input within the bounds shows."""
    wanted = {d.op for d in doubts}
    found: dict[Operation, Finding] = {}
    for name, data in _inputs(kernel, sizes, inputs, arrays):
        for instance in instances(kernel, sizes, 2):
            if not _matters(kernel, sizes, instance, data):
                continue
            faults: dict[Operation, str] = {}
            run_instance(kernel, sizes, instance, [a.copy() for a in data], _Watch(faults))
            for op, kind in faults.items():
                if op in wanted and op not in found:
                    found[op] = _finding(kernel, sizes, instance, op, kind, name)
        if found:
            break
    return list(found.values())


def _matters(kernel: Kernel, sizes: Env, instance: Env, data: Sequence[Array]) -> bool:
    """Whether what goes wrong on these numbers reaches a result; masked elements do not."""
    memories = {}
    for m, a in zip(kernel.parameters, data, strict=True):
        x = a.astype(np.float64)
        bad = np.zeros(x.shape, np.int64)
        memories[m] = Hull(x.copy(), x.copy(), 0 * x, np.isnan(x), _Fresh()(x.shape), bad)
    return bool(_follow(kernel, sizes, [instance], memories)[1])


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
    xs = [i.tiles[t].astype(np.float64) for (t,) in zip(op.operands) if t.dtype.kind == "f"]
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


def _inputs(
    kernel: Kernel, sizes: Env, inputs: Bounds, arrays: Sequence[Array] | None
) -> Iterator[tuple[str, list[Array]]]:
    """Inputs within the bounds: their edges, equal numbers, alternating ones, random ones."""
    if arrays is not None:
        yield "the arguments", list(arrays)
    for name, make in _PATTERNS.items():
        rng = np.random.default_rng(len(name))
        data = []
        for m in kernel.parameters:
            shape, b = shape_at(m, sizes), inputs.get(m.name)
            low, high = limits(m.type.dtype)
            lo, hi = (max(b.lo, low), min(b.hi, high)) if b is not None else (0.0, 1.0)
            lo, hi = max(lo, -1e38), min(hi, 1e38)
            data.append(_within(make(shape, lo, hi, rng), lo, hi, m.type.dtype))
        yield name, data


def _within(x: Array, lo: float, hi: float, dtype: DType) -> Array:
    made = np.asarray(round_to(np.clip(x, lo, hi), dtype))
    wide = made.astype(np.float64)
    inside = (wide >= lo) & (wide <= hi)
    return (
        made if inside.all() else np.where(inside, made, round_to(np.asarray((lo + hi) / 2), dtype))
    )


def _alternating(shape: Any, lo: float, hi: float, rng: Any) -> Array:
    return np.where(np.arange(math.prod(shape)) % 2, lo, hi).reshape(shape)


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
