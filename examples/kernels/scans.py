# ruff: noqa: F821  (sizes have names, and T is the schedule)
"""Scans and folds by functions over tuples: state-space models, segments, online softmax, argmax."""

from tessera import KTile, block, f32, i32, kernel, tile


def affine(a, b):
    """First x -> a0 x + a1, then x -> b0 x + b1."""
    return a[0] * b[0], a[1] * b[0] + b[1]


@kernel.schedule(block(8))
def linear_recurrence(decay: KTile["M", "L", f32], x: KTile["M", "L", f32]):
    """h[t] = decay[t] h[t - 1] + x[t] along rows, as an associative scan of pairs."""
    return tile.scan((tile.load(decay), tile.load(x)), affine, axis=1)[1]


@kernel
def selective_scan(x: KTile["L", "C", f32], delta: KTile["L", "C", f32], a: KTile["C", "N", f32],
                   b: KTile["L", "N", f32], c: KTile["L", "N", f32]):  # fmt: skip
    """The scan of Mamba: a state of n numbers for each of 8 channels of an instance, carried over time."""
    ch = tile.program((x.shape[1] + 7) // 8) * 8
    n = a.shape[1]
    rates = tile.load(a, at=(ch, 0), shape=(8, n))
    state = tile.zeros((8, n), f32)
    out = tile.empty(x.shape, f32)
    for t in tile.range(x.shape[0]):
        step = tile.reshape(tile.load(delta, at=(t, ch), shape=(1, 8)), (8, 1))
        u = tile.reshape(tile.load(x, at=(t, ch), shape=(1, 8)), (8, 1))
        inward, outward = (
            tile.load(b, at=(t, 0), shape=(1, n)),
            tile.load(c, at=(t, 0), shape=(1, n)),
        )
        state = tile.exp(step * rates) * state + step * u * inward
        tile.store(out, tile.sum(state * outward, axis=1)[None, :], at=(t, ch))
    return out


def segment(a, b):
    """Sums that begin again at a flag."""
    return a[0] | b[0], tile.where(b[0] != 0, b[1], a[1] + b[1])


@kernel.schedule(block(8))
def segmented_sum(flags: KTile["M", "L", i32], x: KTile["M", "L"]):
    """Running sums of rows that begin again where a flag is 1."""
    return tile.scan((tile.load(flags), tile.load(x)), segment, axis=1)[1]


def better(a, b):
    """The larger of two numbers with its place, the first of equal ones."""
    more = b[0] > a[0]
    return tile.where(more, b[0], a[0]), tile.where(more, b[1], a[1])


@kernel.schedule(block(8))
def row_argmax(x: KTile["M", "N"]):
    """The largest element of each row, and its column."""
    t = tile.load(x)
    return tile.reduce((t, tile.arange(x.shape[1], i32)[None, :]), better, axis=1)


def rescaled(a, b):
    """Two pieces of a softmax: the maximum, and the sum of exponentials below it."""
    m = tile.maximum(a[0], b[0])
    return m, a[1] * tile.exp(a[0] - m) + b[1] * tile.exp(b[0] - m)


@kernel.schedule(block(8))
def online_softmax(x: KTile["M", "N", f32]):
    """A softmax whose maximum and sum come from one fold."""
    t = tile.load(x)
    m, total = tile.reduce((t, tile.ones(t.shape, f32)), rescaled, axis=1, keepdims=True)
    return tile.exp(t - m) / total


@kernel.schedule(block(8))
def discounted(rewards: KTile["M", "L", f32], discount):
    """Returns of episodes: sums from each step to the end, backwards."""
    t = tile.load(rewards)
    return tile.scan((tile.zeros(t.shape, f32) + discount, t), affine, axis=1, reverse=True)[1]


@kernel.schedule(block(8))
def exclusive_sum(x: KTile["M", "L", i32]):
    """What comes before each element of a row."""
    return tile.scan(tile.load(x), "add", axis=1, exclusive=True)
