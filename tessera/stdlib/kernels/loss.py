"""Kernels of cross entropy: rows of logits are read once, and no probabilities are stored."""

from __future__ import annotations

from tessera.lang import tile
from tessera.lang.kernel.decorate import kernel
from tessera.lang.kernel.signature import KTile
from tessera.stdlib.kernels.rows import wide


@kernel
def cross_entropy(x: KTile["M", "V"], labels: KTile["M"], *, smoothing: float):
    """The loss of each row, and the log of its sum of exponentials; 0 where the label is no class."""
    T = tile.context()
    row, label = wide(tile.load(x, rows=T.m)), tile.load(labels, rows=T.m)
    top = tile.max(row, axis=1)
    sums = top + tile.log(tile.sum(tile.exp(row - top[:, None]), axis=1))
    hit = tile.arange(x.shape[1])[None, :] == label[:, None]
    loss = sums - tile.sum(tile.where(hit, row, 0.0), axis=1)
    if smoothing:
        loss = loss * (1 - smoothing) + (sums - tile.mean(row, axis=1)) * smoothing
    known = (label >= 0) & (label < x.shape[1])
    return tile.where(known, loss, 0.0), sums


@kernel
def cross_entropy_back(
    x: KTile["M", "V"], labels: KTile["M"], sums: KTile["M"], ct: KTile["M"], *, smoothing: float
):
    """The cotangent of logits: probabilities less what the label says, times that of the row."""
    T = tile.context()
    label, count = tile.load(labels, rows=T.m), x.shape[1]
    known = (label >= 0) & (label < count)
    weight = tile.where(known, tile.load(ct, rows=T.m), 0.0)[:, None]
    p = tile.exp(wide(tile.load(x, rows=T.m)) - tile.load(sums, rows=T.m)[:, None])
    hit = tile.arange(count)[None, :] == label[:, None]
    low = smoothing / count
    return tile.cast((p - tile.where(hit, 1 - smoothing + low, low)) * weight, x.dtype)
