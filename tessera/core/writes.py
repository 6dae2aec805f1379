"""Parts of a tensor replaced, the rest left alone: a box at a start that is data, and rows of caches."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tessera.core.primitive import FORMATS, Array, Definition, Params, Types


def _supports(types: Types, p: Params) -> bool:
    """Elements that machines move whole, floats of eight bits as bytes; places are integers of machines."""
    x, _, *places = (t.dtype for t in types)
    moved = x is x.base and (x.name in FORMATS or (x.kind == "f" and x.bits == 8))
    return moved and types[0].rank > 0 and all(d.name in FORMATS for d in places)


def _write_slice(xs: Sequence[Array], p: Params) -> list[Array]:
    x, part, *starts = xs
    out = x.copy()
    sizes = zip(starts, x.shape, part.shape, strict=True)
    at = [min(max(int(s), 0), n - m) for s, n, m in sizes]
    out[tuple(slice(a, a + m) for a, m in zip(at, part.shape, strict=True))] = part
    return [out]


def _write_rows(xs: Sequence[Array], p: Params) -> list[Array]:
    """Position by position, in ascending order."""
    held, new, first, count = xs
    out, (batch, _, room, _) = held.copy(), held.shape
    starts, counts = (np.broadcast_to(x, (batch,)) for x in (first, count))
    for b, (start, n) in enumerate(zip(starts, counts, strict=True)):
        for i in range(min(int(n), new.shape[2])):
            at = (int(start) + i) % room if p["wrap"] else int(start) + i
            if 0 <= at < room:
                out[b, :, at] = new[b, :, i]
    return [out]


WRITES = (
    Definition("write_slice", _supports, lambda types, p: types[:1], _write_slice),
    Definition("write_rows", _supports, lambda types, p: types[:1], _write_rows),
)
