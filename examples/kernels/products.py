# ruff: noqa: F821, N806  (sizes have names, and T is the schedule)
"""Products of matrices: ragged groups, split depth, numbers of four bits."""

from tessera import KTile, block, f32, i32, i64, kernel, tile, u8


@kernel.schedule(block(8, 16).k(8))
def grouped_product(x: KTile["T", "K"], w: KTile["E", "K", "N"], offsets: KTile["E1", i32]):
    """Rows offsets[e] to offsets[e + 1] of x times the matrix of expert e."""
    T = tile.context()
    e, n = tile.program(w.shape[0]), tile.program((w.shape[2] + T.n - 1) // T.n) * T.n
    out = tile.empty((x.shape[0], w.shape[2]), f32)
    for mb in tile.range_m(x.shape, T.m, start=offsets[e], stop=offsets[e + 1]):
        acc = tile.zeros((T.m, T.n), f32)
        cols = tile.span(w.shape[2], n, T.n)
        for kb in tile.range_k(x.shape, T.k):
            acc = tile.dot(tile.load(x, mb, kb), tile.load(w, kb, cols, batch=e), acc)
        tile.store(out, acc, rows=mb, cols=cols, distinct=True)
    return out


@kernel.schedule(block(8, 8).k(4))
def split_k(a: KTile["M", "K"], b: KTile["K", "N"], *, parts: int):
    """A product whose depth is cut in parts that are added up in order."""
    T = tile.context()
    m, n = (a.shape[0] + T.m - 1) // T.m, (b.shape[1] + T.n - 1) // T.n
    part, i, j = tile.program(parts), tile.program(m) * T.m, tile.program(n) * T.n
    rows, cols = tile.span(a.shape[0], i, T.m), tile.span(b.shape[1], j, T.n)
    stretch = (a.shape[1] + parts * T.k - 1) // (parts * T.k) * T.k
    acc = tile.zeros((T.m, T.n), f32)
    for kb in tile.range_k(a.shape, T.k, start=part * stretch, stop=(part + 1) * stretch):
        acc = tile.dot(tile.load(a, rows, kb), tile.load(b, kb, cols), acc)
    out = tile.empty((a.shape[0], b.shape[1]), f32)
    tile.accumulate(out, acc, rows=rows, cols=cols)
    return out


@kernel.schedule(block(8, 8).k(16))
def int8_product(a: KTile["M", "K"], b: KTile["K", "N"], scale: KTile["N", f32]):
    """i8 times i8 adds up in i32, and each column has a scale."""
    T = tile.context()
    acc = tile.zeros((T.m, T.n), i32)
    for kb in tile.range_k(a.shape, T.k):
        acc = tile.dot(tile.load(a, rows=T.m, cols=kb), tile.load(b, rows=kb, cols=T.n), acc)
    return tile.cast(acc, f32) * tile.load(scale, rows=T.n)[None, :]


@kernel.schedule(block(8, 16))
def int4_product(
    x: KTile["M", "K", f32],
    packed: KTile["K2", "N", u8],
    scale: KTile["G", "N", f32],
    *,
    group: int,
):
    """Weights of four bits, two in a byte, minus 8, with a scale for each group of rows."""
    T = tile.context()
    acc = tile.zeros((T.m, T.n), f32)
    half = group // 2
    for g in tile.range(scale.shape[0]):
        bytes_ = tile.load(packed, rows=tile.span(packed.shape[0], g * half, half), cols=T.n)
        low, high = (tile.cast(bytes_ & 15, f32) - 8, tile.cast(bytes_ >> 4, f32) - 8)
        w = tile.reshape(tile.stack((low, high), axis=1), (group, T.n))
        s = tile.load(scale, rows=tile.span(scale.shape[0], g, 1), cols=T.n)
        rows = tile.load(x, rows=T.m, cols=tile.span(x.shape[1], g * group, group))
        acc = tile.dot(tile.place(rows, None), tile.place(w, None) * tile.place(s, None), acc)
    i, j = tile.program_of("m") * T.m, tile.program_of("n") * T.n
    out = tile.empty((x.shape[0], packed.shape[1]), f32)
    tile.store(out, acc, at=(i, j))
    return out


def fp4(code):
    """The number of a code of f4e2m1: a sign, two bits of exponent, one of mantissa."""
    exponent, mantissa = (code >> 1) & 3, tile.cast(code & 1, f32)
    normal = (1 + mantissa * 0.5) * tile.exp2(tile.cast(exponent, f32) - 1)
    size = tile.where(exponent == 0, mantissa * 0.5, normal)
    return tile.where(code >= 8, -size, size)


@kernel.schedule(block(8, 8))
def mxfp4_product(x: KTile["M", "K", f32], codes: KTile["N", "H", u8], scales: KTile["N", "G", u8]):
    """x times the transpose of weights in mxfp4: 32 numbers of four bits share a power of two."""
    T = tile.context()
    acc = tile.zeros((T.m, T.n), f32)
    for g in tile.range(scales.shape[1]):
        packed = tile.load(codes, rows=T.n, cols=tile.span(codes.shape[1], g * 16, 16))
        packed = tile.cast(packed, i32)
        w = tile.reshape(tile.join(fp4(packed & 15), fp4(packed >> 4)), (T.n, 32))
        e = tile.load(scales, rows=T.n, cols=tile.span(scales.shape[1], g, 1))
        w = tile.place(w, None) * tile.place(
            tile.exp2(tile.cast(tile.cast(e, i64) - 127, f32)), None
        )
        rows = tile.load(x, rows=T.m, cols=tile.span(x.shape[1], g * 32, 32))
        acc = tile.dot(tile.place(rows, None), w.T, acc)
    out = tile.empty((x.shape[0], codes.shape[0]), f32)
    tile.store(out, acc, at=(tile.program_of("m") * T.m, tile.program_of("n") * T.n))
    return out
