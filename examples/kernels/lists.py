# ruff: noqa: F821  (sizes have names)
"""Lists, lines and graphs: filters of signals, what is kept of a list, running sums of segments, boxes that
hide others, paths, systems of three diagonals, common subsequences.
"""

from tessera import KTile, block, f32, i32, kernel, tile


@kernel.schedule(block(8))
def sliding_median(x: KTile["N"]):
    """The median of five neighbours; the ends are repeated."""
    tile.load(x)
    at = tile.row_index() - 2 + tile.arange(5)[None, :]
    return tile.sort(x[min(max(at, 0), x.shape[0] - 1)], axis=1)[:, 2]


@kernel
def compaction(x: KTile["N", f32]):
    """What is above 0, in order, and how many there are: places are running sums of what is kept."""
    out, count = tile.empty(x.shape, f32, partial=True), tile.empty((1,), i32)
    before = 0
    for i in tile.range(0, x.shape[0], 8):
        t = tile.load(x, at=(i,), shape=(8,))
        kept = tile.cast(t > 0, i32)
        at = tile.scan(kept, "add", axis=0, exclusive=True) + before
        tile.store(out, t, at=(at,), mask=t > 0, distinct=True)
        before = before + tile.sum(kept)
    tile.store(count, before, at=(0,))
    return out, count


@kernel
def segment_sums(x: KTile["N", f32], ids: KTile["N", i32]):
    """Running sums that begin anew where the number of the segment changes, in blocks of 4."""
    out = tile.empty(x.shape, f32)
    carried = 0.0

    def join(a, b):
        return a[0] or b[0], tile.where(b[0], b[1], a[1] + b[1])

    for i in tile.range(0, x.shape[0], 4):
        here, before = (tile.load(ids, at=(i - d,), shape=(4,), fill=-1) for d in (0, 1))
        begins = tile.place(here, None) != tile.place(before, None)
        t = tile.place(tile.load(x, at=(i,), shape=(4,)), None)
        begun, sums = tile.scan((begins, t), join, axis=0)
        sums = tile.where(begun, sums, sums + carried)
        tile.store(out, sums, at=(i,))
        carried = sums[3]
    return out


@kernel
def suppressed(boxes: KTile["N", 4, f32], most):
    """Which of the boxes, the best first, share at most so much with one before them that stays."""
    n = boxes.shape[0]
    t = tile.load(boxes, at=(0, 0), shape=(n, 4))
    y0, x0, y1, x1 = (t[:, k] for k in range(4))
    area, number = (y1 - y0) * (x1 - x0), tile.arange(n, i32)
    stays = tile.ones((n,), i32)
    for i in tile.range(n):
        high = max(min(y1, boxes[i, 2]) - max(y0, boxes[i, 0]), 0)
        wide = max(min(x1, boxes[i, 3]) - max(x0, boxes[i, 1]), 0)
        shared = high * wide
        both = area + (boxes[i, 2] - boxes[i, 0]) * (boxes[i, 3] - boxes[i, 1]) - shared
        here = tile.max(tile.where(number == i, stays, 0))
        stays = tile.where(here > 0 and number > i and shared > most * both, 0, stays)
    out = tile.empty((n,), i32)
    tile.store(out, stays, at=(0,))
    return out


@kernel
def shortest_paths(far: KTile["N", "N"]):
    """Floyd and Warshall: the shortest way between all pairs of nodes, in one tile."""
    n = far.shape[0]
    t = tile.load(far, at=(0, 0), shape=(n, n))
    for k in range(n):
        t = min(t, t[:, k : k + 1] + t[k : k + 1, :])
    out = tile.empty(far.shape, far.dtype)
    tile.store(out, t, at=(0, 0))
    return out


@kernel
def tridiagonal(
    low: KTile["B", "N"], mid: KTile["B", "N"], high: KTile["B", "N"], y: KTile["B", "N"]
):
    """Thomas' algorithm: systems of three diagonals, one for each instance."""
    b, n = tile.program(mid.shape[0]), mid.shape[1]
    out, ratios = tile.empty(mid.shape, mid.dtype), tile.alloc((n,), mid.dtype)
    ratio, value = 0.0, 0.0
    for i in tile.range(n):
        pivot = mid[b, i] - low[b, i] * ratio
        ratio, value = high[b, i] / pivot, (y[b, i] - low[b, i] * value) / pivot
        tile.store(ratios, ratio, at=(i,))
        tile.store(out, value, at=(b, i))
    tile.barrier()
    value = 0.0
    for j in tile.range(n):
        i = n - 1 - j
        value = out[b, i] - ratios[i] * value
        tile.store(out, value, at=(b, i))
    return out


@kernel
def common_subsequence(a: KTile["B", "M", i32], b: KTile["B", "N", i32]):
    """The length of the longest common subsequence: each row of the table is a running maximum."""
    k, n = tile.program(a.shape[0]), b.shape[1]
    y = tile.reshape(tile.load(b, at=(k, 0), shape=(1, n)), (n,))
    row = tile.zeros((n,), i32)
    for i in tile.range(a.shape[1]):
        before = tile.concat((tile.zeros((1,), i32), row[: n - 1]), axis=0)
        row = tile.scan(max(row, tile.where(y == a[k, i], before + 1, 0)), "max", axis=0)
    out = tile.empty((a.shape[0],), i32)
    tile.store(out, row[n - 1], at=(k,))
    return out
