"""Nodes that a GPU has kernels for as they are: attention, pooling, updates of a small part."""

from __future__ import annotations

import math

from tessera.core.convolutions import MOST_AXES
from tessera.core.gpu_kernels import ATTENDS, LARGEST_HEAD, UPDATE
from tessera.core.primitive import are_plain
from tessera.core.types import TensorType
from tessera.ir.graph.ir import Node

_PART = 4  # of a tensor, at most, that is replaced where it lies


def is_kept(n: Node) -> bool:
    """Whether a node stays whole: an attention on narrow floats with heads of a size that has kernels, a
    pooling, or an update of a small part.
    """
    if n.op.kernel == UPDATE:
        return _is_small(*n.types[:2])
    if n.op.kernel == "pool":
        return _is_pool(n)
    if n.op.kernel not in ATTENDS:
        return False
    q, _, v = n.types[:3]
    sizes = all(isinstance(s, int) and 0 < s <= LARGEST_HEAD for s in (q.shape[-1], v.shape[-1]))
    scale = n.params["scale"]
    narrow = q.dtype.bits == 16 and (scale is None or scale > 0)
    return narrow and sizes


def _is_pool(n: Node) -> bool:
    """Whether a pooling has kernels: floats of a machine, up to three axes, known windows, no negative
    padding.
    """
    t, p = n.types[0], n.params
    known = [*p["size"], *p["stride"], *p["dilation"], *(k for pair in p["padding"] for k in pair)]
    plain = are_plain(n.types, p) and t.dtype.kind == "f" and t.rank - 2 <= MOST_AXES
    whole = 0 not in (*t.shape, *n.results[0].shape)
    return plain and whole and all(isinstance(k, int) and k >= 0 for k in known)


def _is_small(whole: TensorType, part: TensorType) -> bool:
    """Whether a part is worth a kernel of its own, which leaves the rest of a tensor alone."""
    if not (whole.static and part.static) or whole.dtype.kind == "c" or whole.dtype.bits < 8:
        return False
    n, m = (math.prod(int(k) for k in t.shape) for t in (whole, part))
    return 0 < m * _PART <= n
