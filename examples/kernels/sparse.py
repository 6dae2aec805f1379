# ruff: noqa: F821  (sizes have names, and T is the schedule)
"""Sparse products and sums over what indices name: CSR, BSR, COO, segments, bags of embeddings."""

from tessera import KTile, block, f32, i32, kernel, tile


@kernel
def csr_product(rows: KTile["R1", i32], cols: KTile["Z", i32], values: KTile["Z"], x: KTile["N"]):
    """A matrix in CSR times a vector, one row for each instance, eight elements at a time."""
    i = tile.program(rows.shape[0] - 1)
    total = tile.zeros((8,), values.dtype)
    for nb in tile.range_n(values.shape, 8, start=rows[i], stop=rows[i + 1]):
        total = total + tile.load(values, nb) * x[tile.load(cols, nb)]
    y = tile.empty((rows.shape[0] - 1,), values.dtype)
    tile.store(y, tile.sum(total), at=(i,))
    return y


@kernel
def csr_rows(rows: KTile["R1", i32], cols: KTile["Z", i32], values: KTile["Z"], x: KTile["N", "D"]):
    """A matrix in CSR times a matrix: the rows of x that an entry names, added up in order."""
    i = tile.program(rows.shape[0] - 1)
    total = tile.zeros((1, x.shape[1]), values.dtype)
    for j in range(rows[i], rows[i + 1]):
        total = total + values[j] * tile.load(x, at=(cols[j], 0), shape=(1, x.shape[1]))
    y = tile.empty((rows.shape[0] - 1, x.shape[1]), values.dtype)
    tile.store(y, total, at=(i, 0))
    return y


@kernel
def bsr_product(
    rows: KTile["R1", i32], cols: KTile["Z", i32], blocks: KTile["Z", "P", "Q"], x: KTile["N", "D"]
):
    """Blocks of p by q in CSR order times a matrix."""
    i = tile.program(rows.shape[0] - 1)
    p, q, d = blocks.shape[1], blocks.shape[2], x.shape[1]
    total = tile.zeros((p, d), f32)
    for j in range(rows[i], rows[i + 1]):
        a = tile.reshape(tile.load(blocks, at=(j, 0, 0), shape=(1, p, q)), (p, q))
        b = tile.load(x, at=(cols[j] * q, 0), shape=(q, d))
        total = tile.dot(tile.place(a, None), tile.place(b, None), total)
    y = tile.empty(((rows.shape[0] - 1) * p, d), f32)
    tile.store(y, total, at=(i * p, 0))
    return y


@kernel.schedule(block(16))
def coo_product(
    rows: KTile["Z", i32], cols: KTile["Z", i32], values: KTile["Z"], x: KTile["N"], y: KTile["M"]
):
    """y + A x for entries in any order: entries are added one after the other, so the bits are fixed."""
    tile.accumulate(y, tile.load(values) * x[tile.load(cols)], at=(tile.load(rows),))


@kernel.schedule(block(8))
def scatter_rows(ids: KTile["N", i32], x: KTile["N", "D"], y: KTile["M", "D"]):
    """y[ids[i]] += x[i], the derivative of an embedding."""
    tile.accumulate(y, tile.load(x), rows=tile.load(ids))


@kernel
def embedding_bag(table: KTile["V", "D"], ids: KTile["N", i32], offsets: KTile["B1", i32]):
    """The mean of the rows of each bag; an empty bag gives 0."""
    b = tile.program(offsets.shape[0] - 1)
    d = table.shape[1]
    total, count = tile.zeros((1, d), f32), 0
    for j in range(offsets[b], offsets[b + 1]):
        total = total + tile.load(table, at=(ids[j], 0), shape=(1, d))
        count += 1
    out = tile.empty((offsets.shape[0] - 1, d), f32)
    tile.store(out, total / tile.maximum(tile.cast(count, f32), 1.0), at=(b, 0))
    return out


@kernel.schedule(block(16))
def histogram(x: KTile["N", i32], *, bins: int):
    """How often each number from 0 to bins - 1 occurs; others are left out."""
    counts = tile.empty((bins,), i32)
    ids = tile.load(x)
    tile.accumulate(counts, tile.ones(ids.shape, i32), at=(ids,))
    return counts
