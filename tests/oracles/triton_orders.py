"""Folds and scans of tiles over neighbours, and sums of rows, by Triton's interpreter and by ours.

TRITON_INTERPRET=1 python -m tests.oracles.triton_orders FOLDER
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from tessera.core.dtype import DType, f16, f32, f64
from tessera.core.types import TensorType
from tessera.ir.tile.gpu.written import written
from tessera.ir.tile.interp import interpret
from tessera.ir.tile.ir import Builder, Kernel, walk
from tests.oracles.triton_interpreter import run

LINES = (1, 2, 3, 5, 8, 13, 64, 100, 768)
TABLES = ((3, 7), 0), ((3, 7), 1), ((1, 5), 0), ((4, 16), 1), ((5, 40), 1)
SHAPES = [*(((n,), 0) for n in LINES), *TABLES, ((2, 3, 9), 1), ((2, 3, 9), 2), ((1, 1, 6), 2)]


def cases() -> Iterator[tuple[str, Kernel, list[Any]]]:
    """Kernels as a GPU gets them, and what they are run on."""
    for (shape, axis), dtype in zip(SHAPES, (f32, f64, f16) * len(SHAPES), strict=False):
        for scalar in ("add", "mul"):
            for name in ("fold", "scan"):
                yield _case(shape, axis, dtype, scalar, name)
    for columns in (16, 32, 64):
        yield _sums(columns)


def _case(
    shape: tuple[int, ...], axis: int, dtype: DType, scalar: str, name: str
) -> tuple[str, Kernel, list[Any]]:
    b = Builder("f")
    x = b.parameter("x", TensorType(dtype, shape))
    at = (0,) * len(shape)
    t = getattr(b, name)(scalar, b.load(x, at, shape), axis)
    y = b.parameter("y", t.type, writable=True)
    b.store(y, t, at, t.shape)
    rng = np.random.default_rng(len(shape))
    given = 1 + rng.normal(size=shape) / 8 if scalar == "mul" else rng.normal(size=shape)
    arrays = [given.astype(dtype.np), np.zeros(t.shape, dtype.np)]
    return f"{name} {scalar} {dtype}{list(shape)} axis {axis}", written(b.finish()), arrays


def _sums(columns: int) -> tuple[str, Kernel, list[Any]]:
    """Sums of rows that a chain adds up."""
    b = Builder("f")
    x = b.parameter("x", TensorType(f32, (4, columns)))
    y = b.parameter("y", TensorType(f32, (4, 1)), writable=True)
    ones = b.full(f32, (columns, 1), 1)
    t = b.dot(b.load(x, (0, 0), (4, columns)), ones, b.full(f32, (4, 1), 0.5))
    b.store(y, t, (0, 0), (4, 1))
    given = np.random.default_rng(columns).normal(size=(4, columns)).astype(np.float32)
    return f"sums of {columns}", written(b.finish()), [given, np.zeros((4, 1), np.float32)]


def main(folder: Path) -> None:
    """Tell which differ, and how many have an order of their own."""
    count, ordered, wrong = 0, 0, []
    for name, k, arrays in cases():
        want = [a.copy() for a in arrays]
        interpret(k, want, {})
        got = run(k, [a.copy() for a in arrays], folder)
        count += 1
        ordered += any("order" in op.attributes for op in walk(k.body))
        if got[1].tobytes() != want[1].tobytes():
            wrong.append(name)
    print(json.dumps({"count": count, "ordered": ordered, "wrong": wrong}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
