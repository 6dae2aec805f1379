# ruff: noqa: F821, SIM108  (sizes have names)
"""Orders: rows sorted, the largest elements, radix sort, search, edit distance."""

from tessera import KTile, block, f32, i32, i64, kernel, tile


@kernel.schedule(block(4))
def sort_rows(x: KTile["M", "N"]):
    """Rows in ascending order, and where their elements were."""
    t = tile.load(x)
    return tile.sort(t, axis=1), tile.argsort(t, axis=1)


@kernel.schedule(block(4))
def top_rows(x: KTile["M", "N"], *, k: int):
    """The k largest elements of each row with their columns, the largest first."""
    return tile.topk(tile.load(x), k, axis=1)


@kernel
def radix_pass(keys: KTile["N", i32], *, shift: int):
    """One pass of a radix sort: keys in the order of four of their bits, equal ones as they were."""
    tile.program(1)
    starts = tile.zeros((16,), i64)
    for nb in tile.range_n(keys.shape, 64):
        digit = (tile.load(keys, nb) >> shift) & 15
        hits = digit[:, None] == tile.arange(16, i32)[None, :]
        starts = starts + tile.sum(tile.cast(hits, i64), axis=0)
    starts = tile.scan(starts, "add", exclusive=True)
    out = tile.empty(keys.shape, i32)
    for nb in tile.range_n(keys.shape, 64):
        t = tile.load(keys, nb)
        digit = (t >> shift) & 15
        real = tile.col_index(nb)[0] < keys.shape[0]
        hits = (digit[:, None] == tile.arange(16, i32)[None, :]) & real[:, None]
        before = tile.scan(tile.cast(hits, i64), "add", axis=0, exclusive=True)
        place = tile.sum(tile.where(hits, before + starts[None, :], 0), axis=1)
        tile.store(out, t, at=(place,), mask=real, distinct=True)
        starts = starts + tile.sum(tile.cast(hits, i64), axis=0)
    return out


@kernel.schedule(block(16))
def search(edges: KTile["K"], x: KTile["N"]):
    """How many of the sorted edges are below each number: halves until nothing is left."""
    t = tile.load(x)
    low = tile.cast(t * 0, i64)
    high = low + edges.shape[0]
    while tile.any(low < high):
        middle = (low + high) // 2
        below = edges[middle] < t
        going = low < high
        low = tile.where(going & below, middle + 1, low)
        high = tile.where(going & ~below, middle, high)
    return low


@kernel
def edit_distance(a: KTile["B", "M", i32], b: KTile["B", "N", i32], sizes: KTile["B", 2, i32]):
    """Levenshtein's distance of pairs of words, row after row of the table; lengths are data."""
    p = tile.program(a.shape[0])
    n = b.shape[1]
    m, last = sizes[p, 0], sizes[p, 1]
    word = tile.reshape(tile.load(b, at=(p, 0), shape=(1, n)), (n,))
    at = tile.arange(n + 1, i32)
    row = at
    for i in range(m):
        other = tile.cast(word != a[p, i], i32)
        diagonal, above = row[:n] + other, row[1:] + 1
        best = tile.concat((row[:1] + 1, tile.minimum(diagonal, above)))
        row = (
            tile.scan(best - at, "min") + at
        )  # insertions: the least so far, one more for each step
    out = tile.empty((a.shape[0],), i32)
    tile.store(out, row[last], at=(p,))
    return out


@kernel
def collatz(x: KTile["N", i64]):
    """Steps until a number is 1."""
    i = tile.program(x.shape[0])
    n, steps = x[i], 0
    while n > 1:
        if n % 2 == 0:
            n = n // 2
        else:
            n = 3 * n + 1
        steps += 1
    out = tile.empty(x.shape, i64)
    tile.store(out, steps, at=(i,))
    return out


@kernel
def power_iteration(a: KTile["N", "N", f32], tolerance):
    """The largest eigenvalue of a matrix: products until it moves by less than a tolerance."""
    tile.program(1)
    n = a.shape[0]
    m = tile.load(a, at=(0, 0), shape=(n, n))
    x, value, rounds = tile.full((n, 1), 1.0, f32), 0.0, 0
    while True:
        y = tile.dot(tile.place(m, None), x)
        size = tile.sqrt(tile.sum(y * y))
        x, moved, value = y / size, tile.abs(size - value), size
        rounds += 1
        if moved < tolerance:
            break
        if rounds == 500:
            break
    out = tile.empty((1,), f32)
    tile.store(out, value, at=(0,))
    return out
