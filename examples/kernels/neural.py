# ruff: noqa: F821  (sizes have names, and T is the schedule)
"""Layers and their derivatives: layernorm backward, dropout, cross entropy, rotary positions, Adam."""

from dataclasses import dataclass
from typing import Any

from tessera import KTile, block, f32, i32, kernel, tile


@kernel.schedule(block(4))
def layernorm_backward(
    x: KTile["M", "D", f32], gain: KTile["D", f32], ct: KTile["M", "D", f32], eps
):
    """The cotangent of x, and parts of that of the gain: one for each block, to be added up."""
    t, g, c = tile.load(x), tile.load(gain), tile.load(ct)
    centred = t - tile.mean(t, axis=1, keepdims=True)
    scale = tile.rsqrt(tile.mean(centred * centred, axis=1, keepdims=True) + eps)
    normal, cg = centred * scale, c * g
    inner = tile.mean(cg * normal, axis=1, keepdims=True)
    dx = scale * (cg - tile.mean(cg, axis=1, keepdims=True) - normal * inner)
    return dx, tile.per_block(tile.sum(c * normal, axis=0))


@kernel.schedule(block(8))
def dropout_add(x: KTile["M", "D", f32], residual: KTile["M", "D", f32], *, p: float, seed: int):
    """Dropout, then a residual."""
    return tile.dropout_in_kernel(tile.load(x), p=p, seed=seed) + tile.load(residual)


@kernel.schedule(block(8))
def cross_entropy(logits: KTile["M", "V", f32], labels: KTile["M", i32]):
    """The loss of each row, and its derivative."""
    t, ids = tile.load(logits), tile.load(labels)
    top = tile.max(t, axis=1)
    e = tile.exp(t - top[:, None])
    total = tile.sum(e, axis=1)
    hit = tile.arange(logits.shape[1], i32)[None, :] == ids[:, None]
    own = tile.sum(tile.where(hit, t, 0), axis=1)
    return top + tile.log(total) - own, e / total[:, None] - tile.cast(hit, f32)


@kernel.schedule(block(8))
def rotary(x: KTile["S", "D", f32], cos: KTile["S", "H", f32], sin: KTile["S", "H", f32]):
    """Rotary positions: the first half of a row turns with the second."""
    a, b = tile.split(tile.load(x), 2, axis=1)
    c, s = tile.load(cos), tile.load(sin)
    return tile.concat((a * c - b * s, b * c + a * s), axis=1)


@dataclass
class Moments:
    """The state of Adam."""

    first: Any
    second: Any


@kernel.schedule(block(16))
def adam(x: KTile["N", f32], g: KTile["N", f32], moments, rate, correction):
    """A step of Adam: numbers and both moments, in one pass."""
    t, d = tile.load(x), tile.load(g)
    m = 0.9 * tile.load(moments.first) + 0.1 * d
    v = 0.999 * tile.load(moments.second) + 0.001 * d * d
    return t - rate * correction * m / (tile.sqrt(v) + 1e-8), m, v


@kernel.schedule(block(16))
def mean_of(tensors):
    """The mean of a tuple of tensors."""
    total = tile.load(tensors[0])
    for x in tensors[1:]:
        total = total + tile.load(x)
    return total / len(tensors)


@kernel.schedule(block(4))
def softmax_backward(y: KTile["M", "N", f32], ct: KTile["M", "N", f32]):
    """The cotangent of what a softmax was of."""
    t, c = tile.load(y), tile.load(ct)
    return t * (c - tile.sum(t * c, axis=1, keepdims=True))


@kernel
def swiglu(x: KTile["M", "D2", f32]):
    """Half of a row gates the other half."""
    i = tile.program((x.shape[0] + 7) // 8) * 8
    half = x.shape[1] // 2
    a, b = tile.load(x, at=(i, 0), shape=(8, half)), tile.load(x, at=(i, half), shape=(8, half))
    out = tile.empty((x.shape[0], half), f32)
    tile.store(out, tile.place(a * tile.sigmoid(a), None) * tile.place(b, None), at=(i, 0))
    return out
