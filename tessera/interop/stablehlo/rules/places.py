"""Reading and writing elements whose place is data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tessera.core.dtype import i64
from tessera.interop.stablehlo.rules.table import rule
from tessera.interop.stablehlo.writer import Ssa, StableHloWriter, ints, listed
from tessera.ir.graph.interp import wide
from tessera.ir.graph.ir import Node


def gathered(w: StableHloWriter, x: Ssa, indices: Sequence[Ssa], axes: Sequence[int]) -> Ssa:
    """The elements of x at indices along axes, the nearest ones where an index is outside."""
    rest = [a for a in range(len(x.shape)) if a not in axes]
    inner = indices[0].shape
    shape = (*inner, *(x.shape[a] for a in rest))
    if 0 in shape:
        return w.full(0, x.dtype, shape)
    numbers = ", ".join(
        [
            f"offset_dims = {listed(range(len(inner), len(shape)))}",
            f"collapsed_slice_dims = {listed(sorted(axes))}",
            f"start_index_map = {listed(axes)}",
            f"index_vector_dim = {len(inner)}",
        ]
    )
    held = {
        "dimension_numbers": f"#stablehlo.gather<{numbers}>",
        "slice_sizes": ints([1 if a in axes else m for a, m in enumerate(x.shape)]),
        "indices_are_sorted": "false",
    }
    return w.op("gather", x, _joined(w, indices), shape=shape, properties=held)


def _joined(w: StableHloWriter, indices: Sequence[Ssa]) -> Ssa:
    """Index tensors side by side along a last axis."""
    shape = (*indices[0].shape, 1)
    return w.concat([w.reshape(_signed(w, i), shape) for i in indices], len(shape) - 1)


def _signed(w: StableHloWriter, i: Ssa) -> Ssa:
    if i.dtype.kind == "u" and i.dtype.bits == 64:
        i = w.op("minimum", i, w.like(np.uint64(2**63 - 1), i))
    return w.cast(i, i64)


@rule("gather")
def _gather(w: StableHloWriter, n: Node, x: Ssa, *indices: Ssa) -> Any:
    return gathered(w, x, indices, n.params["axes"])


_FOLDS = {
    "scatter": None, "scatter_add": "add", "scatter_mul": "multiply", "scatter_max": "maximum",
    "scatter_min": "minimum",
}  # fmt: skip


@rule(*_FOLDS)
def _scatter(w: StableHloWriter, n: Node, x: Ssa, value: Ssa, *indices: Ssa) -> Any:
    """Writes outside of x are dropped, as StableHLO has it."""
    axes, fold = n.params["axes"], _FOLDS[n.op.name]
    if 0 in (*x.shape, *value.shape):
        return x
    at = wide(n.op, n.operands[0].dtype)
    x, value = w.cast(x, at), w.cast(value, at)
    body = w.region([(at, ())] * 2, lambda a, b: [b if fold is None else w.op(fold, a, b)])
    inner = len(indices[0].shape)
    numbers = ", ".join(
        [
            f"update_window_dims = {listed(range(inner, len(value.shape)))}",
            f"inserted_window_dims = {listed(sorted(axes))}",
            f"scatter_dims_to_operand_dims = {listed(axes)}",
            f"index_vector_dim = {inner}",
        ]
    )
    held = {
        "scatter_dimension_numbers": f"#stablehlo.scatter<{numbers}>",
        "indices_are_sorted": "false", "unique_indices": "false",
    }  # fmt: skip
    y = w.op("scatter", x, _joined(w, indices), value, properties=held, regions=[body])
    return w.cast(y, n.results[0].dtype)


@rule("dynamic_slice")
def _dynamic_slice(w: StableHloWriter, n: Node, x: Ssa, *starts: Ssa) -> Any:
    if not starts:
        return x
    sizes = n.params["sizes"]
    where = [_signed(w, s) for s in starts]
    return w.op("dynamic_slice", x, *where, shape=sizes, properties={"slice_sizes": ints(sizes)})


@rule("dynamic_update_slice")
def _dynamic_update(w: StableHloWriter, n: Node, x: Ssa, value: Ssa, *starts: Ssa) -> Any:
    if not starts:
        return value
    return w.op("dynamic_update_slice", x, value, *(_signed(w, s) for s in starts))
