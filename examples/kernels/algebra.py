# ruff: noqa: F821, N806  (sizes have names, and T is the schedule)
"""Linear algebra on small matrices, one for each instance, and sums over pairs of points."""

from tessera import KTile, block, f32, kernel, tile


@kernel
def cholesky(a: KTile["B", "N", "N"]):
    """The lower factor of each matrix, column by column."""
    b = tile.program(a.shape[0])
    n = a.shape[1]
    m = tile.reshape(tile.load(a, at=(b, 0, 0), shape=(1, n, n)), (n, n))
    row = tile.arange(n)
    for k in tile.range(n):
        column = m[:, k] / tile.sqrt(m[k, k])
        column = tile.where(row >= k, column, 0)
        later = (row[None, :] > k) & (row[:, None] > k)
        m = m - tile.where(later, column[:, None] * column[None, :], 0)
        m = tile.where(row[None, :] == k, column[:, None], m)
    out = tile.empty(a.shape, a.dtype)
    tile.store(out, tile.where(row[:, None] >= row[None, :], m, 0)[None], at=(b, 0, 0))
    return out


@kernel
def lu(a: KTile["B", "N", "N"]):
    """L and U of each matrix in one, without exchanges of rows."""
    b = tile.program(a.shape[0])
    n = a.shape[1]
    m = tile.reshape(tile.load(a, at=(b, 0, 0), shape=(1, n, n)), (n, n))
    row = tile.arange(n)
    for k in tile.range(n):
        factor = tile.where(row > k, m[:, k] / m[k, k], 0)
        right = tile.where(row > k, m[k], 0)
        m = m - factor[:, None] * right[None, :]
        m = tile.where((row[None, :] == k) & (row[:, None] > k), factor[:, None], m)
    out = tile.empty(a.shape, a.dtype)
    tile.store(out, m[None], at=(b, 0, 0))
    return out


@kernel
def solve_lower(a: KTile["B", "N", "N"], y: KTile["B", "N"]):
    """x with L x = y, from the top down."""
    b = tile.program(a.shape[0])
    n = a.shape[1]
    m = tile.reshape(tile.load(a, at=(b, 0, 0), shape=(1, n, n)), (n, n))
    x = tile.reshape(tile.load(y, at=(b, 0), shape=(1, n)), (n,))
    row = tile.arange(n)
    for k in tile.range(n):
        found = x[k] / m[k, k]
        x = tile.where(row == k, found, tile.where(row > k, x - m[:, k] * found, x))
    out = tile.empty(y.shape, y.dtype)
    tile.store(out, x, at=(b, 0))
    return out


@kernel.schedule(block(16))
def n_body(at: KTile["N", 3, f32], mass: KTile["N", f32], soft):
    """The pull of all bodies on each."""
    T = tile.context()
    here = tile.load(at, rows=T.m, cols=3)
    pull = tile.zeros((T.m, 3), f32)
    for j in tile.range(at.shape[0]):
        apart = tile.load(at, at=(j, 0), shape=(1, 3)) - tile.place(here, None)
        r = tile.sum(apart * apart, axis=1, keepdims=True) + soft
        pull = pull + mass[j] * apart * tile.rsqrt(r) / r
    return tile.place(pull, here)


@kernel
def fft(re: KTile["B", "N", f32], im: KTile["B", "N", f32]):
    """The Fourier transform of rows of 2^k numbers: exchanges by reversed bits, then butterflies."""
    b = tile.program(re.shape[0])
    n = re.shape[1]
    at = tile.arange(n)
    place, left, width = at * 0, at, 1
    while width < n:
        place, left, width = place * 2 + left % 2, left // 2, width * 2
    x = tile.gather(tile.reshape(tile.load(re, at=(b, 0), shape=(1, n)), (n,)), place)
    y = tile.gather(tile.reshape(tile.load(im, at=(b, 0), shape=(1, n)), (n,)), place)
    half = 1
    while half < n:
        angle = -3.141592653589793 * tile.cast(at % half, f32) / tile.cast(half, f32)
        c, s = tile.cos(angle), tile.sin(angle)
        upper = at % (2 * half) >= half
        low, high = tile.where(upper, at - half, at), tile.where(upper, at, at + half)
        hx, hy = tile.gather(x, high), tile.gather(y, high)
        tx, ty = c * hx - s * hy, c * hy + s * hx
        lx, ly = tile.gather(x, low), tile.gather(y, low)
        x, y = tile.where(upper, lx - tx, lx + tx), tile.where(upper, ly - ty, ly + ty)
        half = half * 2
    out, other = tile.empty(re.shape, f32), tile.empty(re.shape, f32)
    tile.store(out, x, at=(b, 0))
    tile.store(other, y, at=(b, 0))
    return out, other
