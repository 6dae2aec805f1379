"""Loops that are one kernel: launches of a part of the steps, with Python between them.

A launch runs so many steps that its own cost is nothing, and so few that a user who interrupts the
program need not wait.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tessera.runtime.kernel import CompiledKernel
from tessera.runtime.pool_ir import TIDY

Array = np.ndarray[Any, np.dtype[Any]]

ROWS = 1 << 18  # steps of a scan in one launch


def _in_order(x: Any) -> Array:
    if type(x) is np.ndarray and x.flags.num & TIDY == TIDY:
        return x
    made: Array = np.require(x, requirements=("C", "A"))
    return made


class While:
    """A while_loop: (*carry, *outer, *captured) -> (*carry, going), until it does not go on."""

    def __init__(self, kernel: CompiledKernel, captured: Sequence[Any], count: int):
        self.kernel, self.captured, self.count = kernel, captured, count

    def __call__(self, *xs: Array) -> list[Array]:
        given = [_in_order(x) for x in (*xs, *self.captured)]
        carry, rest = given[: self.count], given[self.count :]
        going = np.ones((), np.bool_)
        while going:
            made = [np.empty(x.shape, x.dtype) for x in carry]
            self.kernel.run([*carry, *rest, *made, going], {})
            carry = made
        return carry


class Scan:
    """A scan: (*carry, *xs, *outer, *captured) -> (*carry, *ys), part after part of xs and ys."""

    def __init__(
        self, kernel: CompiledKernel, captured: Sequence[Any], params: dict[str, Any],
        types: Sequence[Any],
    ):  # fmt: skip
        self.kernel, self.captured = kernel, captured
        self.count, self.length = params["carry"], params["length"]
        self.stop, self.reverse = self.count + params["xs"], params["reverse"]
        self.rows = [(t.shape, np.dtype(t.dtype.np)) for t in types[self.count :]]

    def __call__(self, *operands: Array) -> list[Array]:
        given = [_in_order(x) for x in (*operands, *self.captured)]
        carry, xs, rest = given[: self.count], given[self.count : self.stop], given[self.stop :]
        ys = [np.empty(shape, dtype) for shape, dtype in self.rows]
        starts = range(0, self.length, ROWS)
        for start in reversed(starts) if self.reverse else starts:
            part = slice(start, min(start + ROWS, self.length))
            made = [np.empty(x.shape, x.dtype) for x in carry]
            arrays = [*carry, *(x[part] for x in xs), *rest, *made, *(y[part] for y in ys)]
            self.kernel.run(arrays, {"steps": part.stop - part.start})
            carry = made
        return [*carry, *ys]
