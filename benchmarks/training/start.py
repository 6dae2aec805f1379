"""What the workloads start from: parameters and data, the same for every library.

The projection to queries, keys and values has no bias: that of the keys has derivative 0, and Adam would
turn the rounding of each library into steps of full size.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

Arrays = dict[str, Any]
LAYERS, WIDTH, HEADS, CONTEXT, BATCH, VOCABULARY = 4, 256, 4, 256, 8, 256
VISCOSITY = 0.01


def _matrix(rng: Any, rows: int, columns: int) -> Any:
    return rng.normal(size=(rows, columns)) / math.sqrt(rows)


def gpt(rng: Any) -> tuple[Arrays, Arrays]:
    """A transformer of 4 layers and width 256 on 8 sequences of 256 bytes."""
    p = {
        "tokens": _matrix(rng, VOCABULARY, WIDTH),
        "places": _matrix(rng, CONTEXT, WIDTH),
        "norm": np.ones(WIDTH),
        "shift": np.zeros(WIDTH),
        "out": _matrix(rng, WIDTH, VOCABULARY),
    }
    for i in range(LAYERS):
        p |= {
            f"norm1.{i}": np.ones(WIDTH), f"shift1.{i}": np.zeros(WIDTH),
            f"qkv.{i}": _matrix(rng, WIDTH, 3 * WIDTH),
            f"mix.{i}": _matrix(rng, WIDTH, WIDTH), f"mix_bias.{i}": np.zeros(WIDTH),
            f"norm2.{i}": np.ones(WIDTH), f"shift2.{i}": np.zeros(WIDTH),
            f"up.{i}": _matrix(rng, WIDTH, 4 * WIDTH), f"up_bias.{i}": np.zeros(4 * WIDTH),
            f"down.{i}": _matrix(rng, 4 * WIDTH, WIDTH), f"down_bias.{i}": np.zeros(WIDTH),
        }  # fmt: skip
    text = rng.integers(0, VOCABULARY, size=(BATCH, CONTEXT + 1))
    return p, {"inputs": text[:, :-1], "targets": text[:, 1:]}


def mlp(rng: Any) -> tuple[Arrays, Arrays]:
    """784-1024-1024-10 on a batch of 512."""
    sizes = (784, 1024, 1024, 10)
    p = {f"w{i}": _matrix(rng, *sizes[i : i + 2]) for i in range(3)}
    p |= {f"b{i}": np.zeros(sizes[i + 1]) for i in range(3)}
    return p, {"x": rng.normal(size=(512, 784)), "y": rng.integers(0, 10, size=512)}


def pinn(rng: Any) -> tuple[Arrays, Arrays]:
    """4 hidden layers of 128 from a point of the plane to stream function and pressure, at 4096 points."""
    sizes = (2, 128, 128, 128, 128, 2)
    p = {f"w{i}": _matrix(rng, *sizes[i : i + 2]) for i in range(5)}
    p |= {f"b{i}": np.zeros(sizes[i + 1]) for i in range(5)}
    return p, {"points": rng.uniform(-1, 1, size=(4096, 2))}


def attention(rng: Any) -> tuple[Arrays, Arrays]:
    """8 heads of 1024 queries and keys of 64 numbers."""
    shape = (1, 8, 1024, 64)
    return {k: rng.normal(size=shape) for k in "qkv"}, {"wanted": rng.normal(size=shape)}


@dataclass(frozen=True)
class Workload:
    """What is trained, and how."""

    title: str
    draw: Callable[[Any], tuple[Arrays, Arrays]]
    rate: float
    adam: bool = False
    goal: float = 1.0  # the ratio to the best peer that it must reach

    def start(self, dtype: str) -> list[Arrays]:
        """Parameters and data; floats have this dtype."""
        drawn = self.draw(np.random.default_rng(0))
        return [
            {k: x.astype(dtype) if x.dtype.kind == "f" else x for k, x in arrays.items()}
            for arrays in drawn
        ]


WORKLOADS = {
    "gpt": Workload("GPT step 4x256, 8x256 tokens", gpt, 1e-3, adam=True, goal=1.2),
    "pinn": Workload("PINN step 4x128, 4096 points", pinn, 1e-3, adam=True, goal=1.3),
    "mlp": Workload("MLP step 784-1024-1024-10, batch 512", mlp, 0.01, goal=1.0),
    "attention": Workload("attention step H8 S1024 D64", attention, 1e-3, goal=1.2),
    "causal": Workload("causal attention step H8 S1024 D64", attention, 1e-3, goal=1.2),
}
