"""plan: what a call of a kernel needs, kept for arguments of the same types and sizes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tessera.core.flags import flags
from tessera.core.statics import static_key
from tessera.ir.graph.ir import Value, current_builder, holding
from tessera.lang.kernel.launch import compiled, covered, in_order, interpreting
from tessera.lang.kernel.reports import speak
from tessera.lang.kernel.translate import Translated, known_sizes
from tessera.lang.tensor import Tensor
from tessera.runtime import memory
from tessera.runtime.threads import thread_count

_PLAIN = (bool, int, float, str, type(None))
_NUMBER = {bool: np.dtype(np.bool_), int: np.dtype(np.int64), float: np.dtype(np.float32)}


def token(args: Sequence[Any], kwargs: Mapping[str, Any], static: frozenset[str]) -> Any:
    """A key for the usual call: tensors, numbers and None by position, static keywords; None for others."""
    mode = flags()
    if interpreting() or mode.verify or current_builder() is not None:
        return None
    out: list[Any] = [mode.numerics, mode.matrix_units, thread_count()]
    for x in args:
        kind = type(x)
        if kind is np.ndarray:
            out.append((x.dtype, x.shape))
        elif kind is Tensor and x.storage is not None:
            if x.device.kind != "cpu":
                return None
            out.append(x.type)
        elif kind in _NUMBER or x is None:
            out.append(kind)
        else:
            return None
    for name, x in kwargs.items():
        if name not in static or type(x) not in _PLAIN:
            return None
        out.append((name, static_key(x)))
    return tuple(out)


def heard(t: Translated, made: Sequence[Any], written: int | None = None) -> list[Any]:
    """What a kernel made, without what it says, which is said."""
    kept = (len(t.written) if written is None else written) + t.shown
    if t.reports:
        speak(t.kernel.name, t.reports, made[kept:])
    return list(made[:kept])


class KernelPlan:
    """A compiled kernel at known sizes."""

    def __init__(self, t: Translated, sizes: Mapping[str, int], single: bool):
        self.t, self.single = t, single
        self.sizes = known_sizes(t, sizes)
        self.kernel = compiled(t.kernel)
        made = [r.substitute(self.sizes) for r in t.results]
        whole = covered(t.kernel, len(t.inputs))
        self.made = [
            (r, memory.maker(_bytes(r)) if w else np.zeros, np.dtype(r.dtype.np))
            for r, w in zip(made, whole, strict=True)
        ]
        self.written = [(i, t.inputs[i].substitute(self.sizes)) for i in t.written]

    def run(self, args: Sequence[Any]) -> Any:
        """The results for arguments that fit the token of this plan."""
        arrays = []
        for x in args:
            if x is None:
                continue
            a = x.storage if isinstance(x, Value) else x
            if type(a) is not np.ndarray:
                a = np.asarray(x, _NUMBER[type(x)])
            arrays.append(in_order(a))
        for i, _ in self.written:
            arrays[i] = arrays[i].copy()
        outs = [make(t.shape, dtype) for t, make, dtype in self.made]
        self.kernel.run([*arrays, *outs], self.sizes)
        if self.t.reports:
            outs = heard(self.t, outs, 0)
        results = [holding(t, arrays[i]) for i, t in self.written]
        results += [holding(t, a) for (t, _, _), a in zip(self.made, outs, strict=False)]
        return results[0] if self.single else tuple(results)


def _bytes(t: Any) -> int:
    return math.prod(int(n) for n in t.shape) * int(np.dtype(t.dtype.np).itemsize)
