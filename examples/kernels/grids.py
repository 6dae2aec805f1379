# ruff: noqa: F821  (sizes have names, and T is the schedule)
"""Grids of points: stencils, the game of life, the Mandelbrot set, convolution by Winograd."""

from tessera import KTile, block, f32, i32, kernel, tile


@kernel
def heat(u: KTile["M", "N"], rate):
    """One step of the heat equation with five points; outside it is 0."""
    i = tile.program((u.shape[0] + 7) // 8) * 8
    j = tile.program((u.shape[1] + 7) // 8) * 8
    here = tile.load(u, at=(i, j), shape=(8, 8))
    around = -4 * here
    for a, b in ((-1, 0), (1, 0), (0, -1), (0, 1)):
        around = around + tile.place(tile.load(u, at=(i + a, j + b), shape=(8, 8)), here)
    return here + rate * around


@kernel
def life(world: KTile["M", "N", i32]):
    """One generation of the game of life on a torus."""
    i = tile.program((world.shape[0] + 7) // 8) * 8
    j = tile.program((world.shape[1] + 7) // 8) * 8
    rows, cols = i + tile.arange(8)[:, None], j + tile.arange(8)[None, :]
    count = tile.zeros((8, 8), i32)
    for a in (-1, 0, 1):
        for b in (-1, 0, 1):
            if (a, b) != (0, 0):
                count = count + world[(rows + a) % world.shape[0], (cols + b) % world.shape[1]]
    alive = world[rows, cols]
    after = tile.cast((count == 3) | ((alive == 1) & (count == 2)), i32)
    out = tile.empty(world.shape, i32)
    tile.store(out, after, at=(i, j))
    return out


@kernel.schedule(block(32))
def mandelbrot(re: KTile["N"], im: KTile["N"], most):
    """Rounds that a point stays within 2; a block stops when all of its points have left."""
    cr, ci = tile.load(re), tile.load(im)
    x, y = cr * 0, ci * 0
    count = tile.cast(x, i32)
    for _ in tile.range(most):
        inside = x * x + y * y <= 4
        if not tile.any(inside):
            break
        count = count + tile.cast(inside, i32)
        x, y = tile.where(inside, x * x - y * y + cr, x), tile.where(inside, 2 * x * y + ci, y)
    return count


@kernel
def winograd(image: KTile["H", "W", f32], g: KTile[3, 3, f32]):
    """A convolution with 3 by 3 numbers, F(2, 3): 16 products instead of 36 for 4 results."""
    i, j = tile.program((image.shape[0] - 1) // 2) * 2, tile.program((image.shape[1] - 1) // 2) * 2
    d = tile.place(tile.load(image, at=(i, j), shape=(4, 4)), None)
    k = tile.load(g, rows=3, cols=3)
    v = turned(turned(d).T).T
    u = spread(spread(k).T).T
    y = gathered(gathered(u * v).T).T
    out = tile.empty((image.shape[0] - 2, image.shape[1] - 2), f32)
    tile.store(out, y, at=(i, j))
    return out


def turned(d):
    """B^T d."""
    return tile.stack((d[0] - d[2], d[1] + d[2], d[2] - d[1], d[1] - d[3]))


def spread(g):
    """G g."""
    return tile.stack((g[0], (g[0] + g[1] + g[2]) * 0.5, (g[0] - g[1] + g[2]) * 0.5, g[2]))


def gathered(m):
    """A^T m."""
    return tile.stack((m[0] + m[1] + m[2], m[1] - m[2] - m[3]))


@kernel
def nearest(image: KTile["H", "W"], flow: KTile["M", "N", 2, f32]):
    """A picture read at the places that a flow says, to the nearest point; 0 outside."""
    i, j = tile.program(flow.shape[0]), tile.program((flow.shape[1] + 7) // 8) * 8
    at = tile.reshape(tile.load(flow, at=(i, j, 0), shape=(1, 8, 2)), (8, 2))
    rows, cols = (tile.cast(tile.round(at[:, k]), i32) for k in (0, 1))
    out = tile.empty(flow.shape[:2], image.dtype)
    tile.store(out, image[rows, cols][None, :], at=(i, j))
    return out
