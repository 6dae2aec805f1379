"""Kernels that stream through memory once: rotary positions and the step of Adam."""

from __future__ import annotations

from tessera.lang import tile
from tessera.lang.kernel.decorate import kernel
from tessera.lang.kernel.signature import KTile
from tessera.stdlib.kernels.rows import wide


@kernel
def rope(x: KTile["B", "S", 2, "H"], cos: KTile["S", "H"], sin: KTile["S", "H"], *, back: bool):
    """Pairs (x[0, i], x[1, i]) turned by an angle for each row, or turned back."""
    T, b = tile.context(), tile.program(x.shape[0])
    c, s = tile.load(cos, rows=T.m), tile.load(sin, rows=T.m)
    first, box = tile.program_of("m") * T.m, (1, T.m, 1, x.shape[3])
    left = wide(tile.reshape(tile.load(x, at=(b, first, 0, 0), shape=box), c.shape))
    right = wide(tile.reshape(tile.load(x, at=(b, first, 1, 0), shape=box), c.shape))
    if back:
        s = -s
    y = tile.empty(x.shape, x.dtype)
    for i, half in enumerate((left * c - right * s, right * c + left * s)):
        tile.store(y, tile.reshape(tile.cast(half, x.dtype), box), at=(b, first, i, 0))
    return y


@kernel
def adam(
    p: KTile["N"], g: KTile["N"], m: KTile["N"], v: KTile["N"], step, root, kept,
    *, b1: float, b2: float, eps: float,
):  # fmt: skip
    """A parameter and its two moments after a step: `root` scales sqrt(v), `kept` decays the parameter."""
    grad = wide(tile.load(g))
    first = tile.load(m) * b1 + grad * (1 - b1)
    second = tile.load(v) * b2 + grad * grad * (1 - b2)
    moved = tile.load(step) * first / (tile.sqrt(second) * tile.load(root) + eps)
    new = wide(tile.load(p)) * tile.load(kept) - moved
    return tile.cast(new, p.dtype), first, second
