"""gather and scatter: an index for every axis of the operand, at every element that is read or written."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tessera.core.dtype import i64
from tessera.interop.jax.rules.table import RULES, Params, rule
from tessera.ir.graph.ir import Value
from tessera.lang import op
from tessera.ops.gather import gather


def _plain(numbers: Sequence[Any]) -> tuple[int, ...]:
    return tuple(map(int, numbers))


class _Windows:
    """Where the windows of a gather or scatter lie: indices of the shape of what is read or written."""

    def __init__(
        self,
        x: Value,
        starts: Value,
        shape: Sequence[int],
        window: Sequence[int],
        axes: tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], tuple[int, ...]],
    ):
        dropped, mapped, batch, batch_of_starts = axes
        self.x, self.shape = x, tuple(shape)
        outer = [a for a in range(len(shape)) if a not in window]  # axes of the starts
        inner = [a for a in range(x.ndim) if a not in dropped and a not in batch]
        places: list[Value | None] = [None] * x.ndim
        for k, a in enumerate(mapped):
            part = op.take(op.cast(starts, i64), k, starts.ndim - 1)
            places[a] = self._spread(part, outer)
        self.starts = {a: v for a, v in enumerate(places) if v is not None}
        offsets: dict[int, Value] = {
            a: op.iota(self.shape, w) for a, w in zip(inner, window, strict=True)
        }
        for a, s in zip(batch, batch_of_starts, strict=True):
            offsets[a] = op.iota(self.shape, outer[s])
        self.offsets = offsets

    def _spread(self, part: Value, outer: Sequence[int]) -> Value:
        wide = [1] * len(self.shape)
        for a, n in zip(outer, part.shape, strict=True):
            wide[a] = n
        return op.broadcast_to(op.reshape(part, tuple(wide)), self.shape)

    def held(self, sizes: Sequence[int]) -> None:
        """Move windows of these sizes to lie inside."""
        for a, v in self.starts.items():
            self.starts[a] = op.minimum(op.maximum(v, 0), self.x.shape[a] - sizes[a])

    def inside(self, sizes: Sequence[int]) -> Value:
        """Whether a whole window lies inside."""
        ok: Value = op.full(self.shape, True)
        for a, v in self.starts.items():
            here = op.logical_and(op.ge(v, 0), op.le(v, self.x.shape[a] - sizes[a]))
            ok = op.logical_and(ok, here)
        return ok

    def indices(self) -> list[Value]:
        """An index along each axis of the operand."""
        out = []
        for a in range(self.x.ndim):
            parts = [d[a] for d in (self.starts, self.offsets) if a in d]
            zero = op.zeros(self.shape, i64)
            out.append(zero if not parts else parts[0] if len(parts) == 1 else op.add(*parts))
        return out


@rule("gather")
def _gather(p: Params, x: Value, starts: Value) -> Value:
    d, sizes = p["dimension_numbers"], _plain(p["slice_sizes"])
    offset = _plain(d.offset_dims)
    batch = iter(starts.shape[:-1])
    dropped = _plain(d.collapsed_slice_dims)
    own = _plain(d.operand_batching_dims)
    inner = iter(n for a, n in enumerate(sizes) if a not in dropped and a not in own)
    rank = len(offset) + starts.ndim - 1
    shape = [next(inner) if a in offset else next(batch) for a in range(rank)]
    if x.ndim == 0:
        return op.broadcast_to(x, tuple(shape))
    axes = dropped, _plain(d.start_index_map), own, _plain(d.start_indices_batching_dims)
    w = _Windows(x, starts, shape, offset, axes)
    fills = getattr(p["mode"], "name", str(p["mode"])) == "FILL_OR_DROP"
    ok = w.inside(sizes) if fills else None
    w.held(sizes)
    y = gather.bind(x, *w.indices(), axes=tuple(range(x.ndim)))
    if ok is None:
        return y
    return op.where(ok, y, _fill(p["fill_value"], y))


def _fill(given: Any, y: Value) -> Value:
    """What stands for elements outside: NaN, or the least whole number."""
    if given is None:
        kind = y.dtype.kind
        held = {"f": np.nan, "c": np.nan, "b": True}
        given = held[kind] if kind in held else _edge(y)
    return op.full(y.shape, given, y.dtype)


def _edge(y: Value) -> int:
    held = np.iinfo(np.dtype(y.dtype.np))
    return int(held.min if y.dtype.kind == "i" else held.max)


_SCATTERS = {
    "scatter": op.scatter, "scatter-add": op.scatter_add, "scatter_add": op.scatter_add,
    "scatter-mul": op.scatter_mul, "scatter_mul": op.scatter_mul, "scatter-min": op.scatter_min,
    "scatter_min": op.scatter_min, "scatter-max": op.scatter_max, "scatter_max": op.scatter_max,
}  # fmt: skip


def _scatter(write: Any, negate: bool = False) -> Callable[..., Any]:
    def run(p: Params, x: Value, starts: Value, value: Value) -> Value:
        d = p["dimension_numbers"]
        window = _plain(d.update_window_dims)
        dropped, own = _plain(d.inserted_window_dims), _plain(d.operand_batching_dims)
        left = iter(value.shape[a] for a in window)
        sizes = [1 if a in dropped or a in own else next(left) for a in range(x.ndim)]
        mapped = _plain(d.scatter_dims_to_operand_dims)
        axes = dropped, mapped, own, _plain(d.scatter_indices_batching_dims)
        w = _Windows(x, starts, value.shape, window, axes)
        if getattr(p["mode"], "name", str(p["mode"])) == "CLIP":
            w.held(sizes)
        ok = w.inside(sizes)
        indices = w.indices()
        first = op.where(ok, indices[0], -1)  # a window that does not fit is not written
        value = op.neg(value) if negate else value
        made: Value = write.bind(x, value, first, *indices[1:], axes=tuple(range(x.ndim)))
        return made

    return run


for _name, _write in _SCATTERS.items():
    RULES[_name] = _scatter(_write)
RULES["scatter-sub"] = RULES["scatter_sub"] = _scatter(op.scatter_add, negate=True)
