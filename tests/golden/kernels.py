"""Kernels of the kernel language whose code is recorded, with arguments for each."""

from __future__ import annotations

from typing import Any

import numpy as np

from tessera import KTile, block, kernel, tile
from tessera.core.dtype import f32


@kernel.schedule(block(16))
def scaled(x: KTile["N", f32], y: KTile["N", f32], a):
    return tile.load(x) * a + tile.load(y)


@kernel.schedule(block(6, 5).k(4))
def product(a: KTile["M", "K"], b: KTile["K", "N"]):
    T = tile.context()
    acc = tile.zeros((T.m, T.n), f32)
    for kb in tile.range_k(a.shape, T.k):
        acc = tile.dot(tile.load(a, rows=T.m, cols=kb), tile.load(b, rows=kb, cols=T.n), acc)
    return acc


@kernel.schedule(block(4))
def normalised(x: KTile["M", "D"], gain: KTile["D"], *, eps=1e-5):
    row = tile.load(x)
    centred = row - tile.mean(row, axis=1, keepdims=True)
    spread = tile.mean(centred * centred, axis=1, keepdims=True)
    return centred * tile.rsqrt(spread + eps) * tile.load(gain)


@kernel.schedule(block(4, 8))
def sums(x: KTile["M", "N"]):
    T = tile.context()
    total, top = 0.0, tile.full((T.m,), -float("inf"))
    for nb in tile.range_k(x.shape, T.n):
        piece = tile.exp(tile.load(x, rows=T.m, cols=nb))
        total = total + tile.sum(piece, axis=1)
        top = tile.maximum(top, tile.max(-piece, axis=1))
    return total, top


@kernel.schedule(block(4))
def stepwise(x: KTile["M", "N"], limit):
    T = tile.context()
    total = tile.zeros((T.m, 1), f32)
    for j in tile.range(x.shape[1]):
        part = tile.load(x, rows=T.m, cols=tile.span(x.shape[1], j, 1))
        weight = 1.0
        if j % 2 == 1:
            weight = 2.0
        total = total + part * weight
    if tile.sum(total) > limit:
        total = total * 0.0
    return total


@kernel.schedule(block(4))
def store_some(x: KTile["M", "N"], y: KTile["M", "N"]):
    t = tile.load(x)
    tile.store(y, t * 10, mask=t > 0)
    if tile.sum(t) > 0:
        tile.store(y, t)


@kernel.schedule(block(4, 8))
def turned(x: KTile["M", "N"]):
    return tile.transpose(tile.load(x))


@kernel.schedule(block(8))
def picked(x: KTile["M", "N"]):
    row = tile.load(x)
    return tile.argmax(row, axis=1), tile.scan(row, "add", axis=1)


@kernel.schedule(block(48, 64).k(32))
def large_product(a: KTile["M", "K"], b: KTile["K", "N"]):
    T = tile.context()
    acc = tile.zeros((T.m, T.n), f32)
    for kb in tile.range_k(a.shape, T.k):
        acc = tile.dot(tile.load(a, rows=T.m, cols=kb), tile.load(b, rows=kb, cols=T.n), acc)
    return tile.maximum(acc, 0.0)


@kernel.schedule(block(32))
def large_rows(x: KTile["M", "D"], gain: KTile["D"]):
    row = tile.load(x)
    e = tile.exp(row - tile.max(row, axis=1, keepdims=True))
    y = e / tile.sum(e, axis=1, keepdims=True) * tile.load(gain)
    return y, tile.argmax(row, axis=1), tile.scan(row, "add", 1)


@kernel.schedule(block(64, 64))
def large_turned(x: KTile["M", "N"], y: KTile["M", "N"]):
    t = tile.load(x)
    tile.store(y, t * 10, mask=t > 0)
    return tile.transpose(t)


@kernel.schedule(block(64))
def large_gather(ids: KTile["N"], table: KTile["V", "D"]):
    return tile.load(table, rows=tile.load(ids))


def _array(*shape: int, dtype: Any = np.float32) -> Any:
    return np.zeros(shape, dtype)


KERNELS: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "scaled": (scaled, (_array(37), _array(37), 2.0)),
    "product": (product, (_array(13, 7), _array(7, 11))),
    "product in bf16": (product, (_array(13, 7, dtype="f2"), _array(7, 11, dtype="f2"))),
    "normalised": (normalised, (_array(7, 13), _array(13))),
    "sums": (sums, (_array(5, 19),)),
    "stepwise": (stepwise, (_array(5, 7), 3.0)),
    "store_some": (store_some, (_array(6, 5), _array(6, 5))),
    "turned": (turned, (_array(9, 13),)),
    "large product": (large_product, (_array(100, 70), _array(70, 130))),
    "large product in f16": (
        large_product,
        (_array(100, 70, dtype="f2"), _array(70, 130, dtype="f2")),
    ),
    "large rows": (large_rows, (_array(70, 300), _array(300))),
    "large turned": (large_turned, (_array(100, 130), _array(100, 130))),
    "large gather": (large_gather, (_array(100, dtype="i8"), _array(50, 300))),
    "picked": (picked, (_array(9, 13),)),
}
