"""Takes the picture of the inspector in docs/inspector.md: the overview of a training step, in Chromium.

    python -m tools.picture_of_inspector

Its times are those of the machine that takes it, and no test compares its pixels.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

import tessera as ts
from tessera import nn, op
from tools.browser import Browser

WHERE = Path(__file__).parent.parent / "docs" / "images" / "inspector.png"


class Block(nn.Module):
    """A block of a transformer."""

    norm: nn.LayerNorm
    attention: nn.MultiHeadAttention
    mlp: nn.MLP

    def __init__(self, dim: int, heads: int, *, key: Any):
        a, b = ts.split(key)
        self.norm = nn.LayerNorm(dim)
        self.attention = nn.MultiHeadAttention(dim, heads, causal=True, key=a)
        self.mlp = nn.MLP([dim, 4 * dim, dim], key=b)

    def __call__(self, x: Any) -> Any:
        x = x + self.attention(self.norm(x))
        return x + self.mlp(self.norm(x))


@ts.jit
def step(blocks: Any, x: Any) -> Any:
    """A training step."""

    def loss(blocks: Any) -> Any:
        h = x
        for b in blocks:
            h = b(h)
        return op.mean(op.square(h))

    value, grads = ts.value_and_grad(loss)(blocks)
    return value, ts.tree.map(lambda p, g: p - 0.01 * g, blocks, grads)


def main() -> int:
    """Write the picture."""
    blocks = [Block(128, 4, key=k) for k in ts.split(ts.key(0), 3)]
    x = ts.tensor(np.random.default_rng(0).standard_normal((8, 128, 128), dtype=np.float32))
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "step.html"
        step.inspect(blocks, x, path=page)
        with Browser() as b, b.page(page, width=1080, height=640) as p:
            p.evaluate('show("overview")')
            p.screenshot(WHERE)
    return 0


if __name__ == "__main__":
    sys.exit(main())
