"""The semantics matrix: every intrinsic on dtypes, ragged shapes and masks, against NumPy.

Tiles are of fixed size and tensors of any, so that edges lie inside of tiles; results are computed by the
Tile interpreter.  MATRIX has the cases of each intrinsic, which one test runs, and the last test counts them.
"""

from __future__ import annotations

import math
from itertools import product

import ml_dtypes
import numpy as np
import pytest

import tessera as ts
from tessera import KTile, block, kernel, tile
from tessera.core.dtype import FORMATS
from tessera.core.rounding import round_to
from tessera.core.scalar import REINTERPRETS, SCALARS
from tessera.ir.tile.rules import KINDS
from tessera.lang.kernel.compute import RENAMED
from tessera.lang.kernel.random import words_reference
from tessera.lang.kernel.table import INTRINSICS

SHAPES = [(1, 1), (5, 1), (3, 13), (8, 16), (7, 11)]  # in tiles of 8 by 16
TILE = (8, 16)
MASKED = SHAPES[4]  # also run with a mask
FLOATS = ["f32", "f64", "bf16", "f16"]
INTEGERS = ["i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64"]
KIND = {"f": FLOATS, "i": INTEGERS[:4], "u": INTEGERS[4:], "b": ["bool"]}
TOLERANCE = {"f64": 1e-13, "f32": 2e-6, "bf16": 2e-2, "f16": 3e-3}
MATRIX: dict[str, list[tuple]] = {}  # the cases of each intrinsic


def cases(names, *columns):
    """All combinations of the columns, as the cases of intrinsics, which are named with spaces between."""
    made = list(product(*columns))
    for n in names.split():
        MATRIX.setdefault(n, []).extend(made)
    return made


def draw(shape, dtype, seed=0, low=-2.0, high=2.0):
    """Numbers of a dtype, the same ones every time."""
    rng = np.random.default_rng(seed)
    d = FORMATS[dtype]
    if d.kind == "b":
        return rng.random(shape) < 0.5
    if d.kind in "ui":
        return rng.integers(0 if d.kind == "u" else int(low) - 2, int(high) + 3, shape).astype(d.np)
    return round_to(rng.uniform(low, high, shape), d)


def wide(x):
    """Numbers in which NumPy's answer is exact enough: floats in f64."""
    x = np.asarray(x)
    narrow = x.dtype == ml_dtypes.bfloat16 or x.dtype.kind == "f"
    return x.astype(np.float64) if narrow else x


def agree(name, got, want, dtype, what, loose=1.0):
    """A result is of the shape and the values that NumPy has, within what its dtype resolves."""
    got, want = got.numpy(), np.asarray(want)
    assert got.shape == want.shape, (name, what, got.shape, want.shape)
    if dtype in TOLERANCE:
        t = TOLERANCE[dtype] * loose
        np.testing.assert_allclose(wide(got), wide(want), rtol=t, atol=t, err_msg=f"{name} {what}")
    else:
        np.testing.assert_array_equal(got, want, err_msg=f"{name} {what}")


@pytest.fixture(autouse=True)
def interpreted():
    with ts.interpret():
        yield


# Elementwise

DOMAIN = {
    "sqrt": (0, 4), "rsqrt": (0.1, 4), "log": (0.1, 4), "log2": (0.1, 4), "log10": (0.1, 4),
    "log1p": (-0.9, 3), "asin": (-1, 1), "acos": (-1, 1), "acosh": (1, 4), "atanh": (-0.9, 0.9),
    "recip": (0.2, 3), "div": (0.2, 3), "pow": (0.2, 3), "fmod": (0.5, 3), "mod": (0.5, 3),
    "floor_div": (0.5, 3), "erfinv": (-0.9, 0.9), "erfcinv": (0.1, 1.9), "lgamma": (0.5, 4),
    "gamma": (0.5, 4), "digamma": (1.6, 4), "tan": (-1.3, 1.3), "nextafter": (0.5, 3),
}  # fmt: skip
LOOSE = {"digamma": 8.0, "lgamma": 8.0, "gamma": 8.0, "erfcinv": 8.0, "erfinv": 8.0, "pow": 4.0}
# The fill of a mask is no exponent, shift or divisor.
UNMASKED = {"floor_div", "mod", "fmod", "shift_left", "shift_right", "pow"}
ELEMENTWISE = sorted(
    n
    for n in SCALARS
    if n not in ("where", "real", "imag", "conj", "nextafter", "fma", "philox_low", "philox_high")
)


@kernel
def elementwise(x: KTile, y: KTile, z: KTile, *, f, arity):
    xs = [tile.load(t, at=(0, 0), shape=TILE) for t in (x, y, z)]
    return f(*xs[:arity])


@kernel
def elementwise_masked(x: KTile, y: KTile, z: KTile, m: KTile, *, f, arity, fill):
    mask = tile.load(m, at=(0, 0), shape=TILE)
    xs = [tile.load(t, at=(0, 0), shape=TILE, mask=mask, fill=fill) for t in (x, y, z)]
    return f(*xs[:arity])


def dtypes_of(name):
    if name in REINTERPRETS:
        return list(REINTERPRETS[name])
    kinds = KINDS.get(name, "f")
    every = [d for k in kinds for d in KIND[k]]
    return every if len(every) <= 5 else [d for d in every if d not in ("i16", "u16", "i64", "u32")]


def operands(name, dtype, shape):
    """Three operands in the domain of a scalar op; the second of integers may divide, shift and raise."""
    low, high = DOMAIN.get(name, (-2.0, 2.0))
    xs = [draw(shape, dtype, s, low, high) for s in range(3)]
    if name in UNMASKED and FORMATS[dtype].kind in "ui":
        xs[1] = np.maximum(np.abs(xs[1]), 1).astype(xs[1].dtype)
    return xs


def expected(name, xs, dtype):
    """What NumPy computes, floats in f64 and integers as they are."""
    if name in REINTERPRETS:
        return SCALARS[name].numpy(*xs)
    with np.errstate(all="ignore"):
        want = SCALARS[name].numpy(*(wide(x) for x in xs))
    d = FORMATS[dtype]
    return want.astype(d.np) if d.kind in "ui" and want.dtype != bool else want


for _name in ELEMENTWISE:
    cases(RENAMED.get(_name, _name), dtypes_of(_name), SHAPES)


@pytest.mark.parametrize("name", ELEMENTWISE)
def test_elementwise(name):
    row, f = SCALARS[name], INTRINSICS[RENAMED.get(name, name)]
    for dtype, shape in MATRIX[f.name]:
        xs = operands(name, dtype, shape)
        got = elementwise(*xs, f=f, arity=row.arity)
        kind = "bool" if got.dtype is ts.bool_ or name in REINTERPRETS else dtype
        loose, what = LOOSE.get(name, 1.0), (dtype, shape)
        agree(f.name, got, expected(name, xs[: row.arity], dtype), kind, what, loose)
        if shape != MASKED or name in UNMASKED:
            continue
        m, fill = draw(shape, "bool", 9), xs[0].reshape(-1)[0].item()
        filled = [np.where(m, x, np.asarray(fill, x.dtype)) for x in xs[: row.arity]]
        got = elementwise_masked(*xs, m, f=f, arity=row.arity, fill=fill)
        agree(f.name, got, expected(name, filled, dtype), kind, (*what, "mask"), loose)


EXACT = cases("fma nextafter", ["f32", "f64"], SHAPES)


def test_fma_and_nextafter():
    for dtype, shape in EXACT:
        x, y, z = (draw(shape, dtype, s) for s in range(3))
        got = elementwise(x, y, z, f=tile.fma, arity=3)
        agree("fma", got, wide(x) * wide(y) + wide(z), dtype, (dtype, shape))
        got = elementwise(x, y, z, f=tile.nextafter, arity=2)
        agree("nextafter", got, np.nextafter(x, y), "exact", (dtype, shape))


# Selecting and casting


@kernel
def select(c: KTile, x: KTile, y: KTile):
    c, x, y = (tile.load(t, at=(0, 0), shape=TILE) for t in (c, x, y))
    return tile.where(c, x, y)


cases("where", [*FLOATS, *INTEGERS, "bool"], SHAPES)


def test_where():
    for dtype, shape in MATRIX["where"]:
        c, x, y = draw(shape, "bool", 7), draw(shape, dtype, 1), draw(shape, dtype, 2)
        agree("where", select(c, x, y), np.where(c, x, y), "exact", (dtype, shape))


@kernel
def converted(x: KTile, *, dtype):
    return tile.cast(tile.load(x, at=(0, 0), shape=TILE), dtype)


_EVERY = [*FLOATS, *INTEGERS, "bool", "f8e4m3", "f8e5m2", "i4"]
cases("cast", _EVERY, _EVERY)


def test_cast():
    for a, b in MATRIX["cast"]:
        shape = MASKED
        source = draw(shape, "f32", 3, 0, 2) if FORMATS[a].kind == "f" else draw(shape, a, 3, 0, 2)
        x = round_to(np.asarray(source), FORMATS[a])
        target = FORMATS[b]
        want = x.astype(np.float32) != 0 if b == "bool" else round_to(np.asarray(x), target)
        got = converted(x, dtype=target)
        assert got.numpy().dtype == target.np
        np.testing.assert_array_equal(wide(got.numpy()), wide(want), err_msg=f"{a} to {b}")


# Folds and scans


@kernel
def folded(x: KTile, *, how, axis, keepdims):
    return tile.reduce(tile.load(x, at=(0, 0), shape=TILE) + 0, how, axis, keepdims)


@kernel
def folded_bits(x: KTile, *, how, axis, keepdims):
    return tile.reduce(tile.load(x, at=(0, 0), shape=TILE), how, axis, keepdims)


@kernel
def named_fold(x: KTile, *, f, axis, keepdims):
    return f(tile.load(x, at=(0, 0), shape=TILE), axis, keepdims)


FOLDS = {
    "add": (np.sum, FLOATS + INTEGERS), "mul": (np.prod, ["f32", "f64", "i32", "u64"]),
    "max": (np.max, FLOATS + INTEGERS), "min": (np.min, FLOATS + INTEGERS),
    "and": (np.bitwise_and.reduce, ["i32", "u8"]), "or": (np.bitwise_or.reduce, ["i32", "u8"]),
    "xor": (np.bitwise_xor.reduce, ["i32", "u8"]), "any": (np.any, ["bool"]),
    "all": (np.all, ["bool"]), "logaddexp": (np.logaddexp.reduce, ["f32", "f64"]),
}  # fmt: skip


def numpy_fold(f, x, axis, keepdims):
    if axis is not None or f in (np.sum, np.prod, np.max, np.min, np.any, np.all):
        return f(x, axis=axis, keepdims=keepdims)
    return f(x, axis=(0, 1), keepdims=keepdims) if f.__name__ != "reduce" else _both(f, x, keepdims)


def _both(f, x, keepdims):
    return f(f(x, axis=1, keepdims=keepdims), axis=0, keepdims=keepdims)


for _how, (_, _dtypes) in FOLDS.items():
    cases("reduce", [_how], _dtypes, SHAPES, (0, 1, None))


@pytest.mark.parametrize("chosen", FOLDS)
def test_reduce(chosen):
    f, dtypes = FOLDS[chosen]
    for how, dtype, shape, axis in MATRIX["reduce"]:
        if how != chosen:
            continue
        x = draw(shape, dtype, 1)
        run = folded_bits if FORMATS[dtype].kind == "b" else folded
        for keepdims in (False, True) if dtype == dtypes[0] else (False,):
            want = numpy_fold(f, wide(x), axis, keepdims)
            got = run(x, how=how, axis=axis, keepdims=keepdims)
            if FORMATS[dtype].kind in "ui":
                want = np.asarray(want).astype(got.numpy().dtype)
            agree("reduce", got, want, dtype, (how, dtype, shape, axis), 20.0)


NAMED = cases("sum prod max min mean", SHAPES, (0, 1, None))
TRUTHS = cases("any all", SHAPES, (0, 1))
ARGS = cases("argmax argmin", ["f32", "bf16", "i32"], SHAPES, (0, 1))


def test_folds_by_name():
    fs = {"sum": np.sum, "prod": np.prod, "max": np.max, "min": np.min, "mean": np.mean}
    for (name, f), (shape, axis) in product(fs.items(), NAMED):
        x = draw(shape, "f32", 2)
        got = named_fold(x, f=INTRINSICS[name], axis=axis, keepdims=False)
        agree(name, got, f(wide(x), axis=axis), "f32", (shape, axis), 20.0)
    for (name, f), (shape, axis) in product({"any": np.any, "all": np.all}.items(), TRUTHS):
        x = draw(shape, "bool", 2)
        got = named_fold(x, f=INTRINSICS[name], axis=axis, keepdims=False)
        agree(name, got, f(x, axis=axis), "bool", (shape, axis))
    fs = {"argmax": np.argmax, "argmin": np.argmin}
    for (name, f), (dtype, shape, axis) in product(fs.items(), ARGS):
        x = draw(shape, dtype, 2)
        got = named_fold(x, f=INTRINSICS[name], axis=axis, keepdims=False)
        agree(name, got, f(wide(x), axis=axis), "i64", (dtype, shape, axis))


@kernel
def scanned(x: KTile, *, how, axis):
    return tile.scan(tile.load(x, at=(0, 0), shape=TILE), how, axis)


SCANS = cases("scan", ["add", "mul", "max", "min"], ["f32", "f64", "i32"], SHAPES, (0, 1))


def test_scan():
    fs = {
        "add": np.cumsum, "mul": np.cumprod, "max": np.maximum.accumulate,
        "min": np.minimum.accumulate,
    }  # fmt: skip
    for how, dtype, shape, axis in SCANS:
        x = draw(shape, dtype, 4)
        want = fs[how](wide(x), axis=axis)
        if dtype == "i32":
            want = want.astype(np.int32)
        agree("scan", scanned(x, how=how, axis=axis), want, dtype, (how, dtype, shape), 20.0)


# Products


@kernel
def product_of(a: KTile, b: KTile):
    x = tile.load(a, at=(0, 0), shape=(8, 16))
    return tile.dot(x, tile.load(b, at=(0, 0), shape=(16, 8)))


@kernel
def product_onto(a: KTile, b: KTile, c: KTile):
    x, y = tile.load(a, at=(0, 0), shape=(8, 16)), tile.load(b, at=(0, 0), shape=(16, 8))
    return tile.mma(x + 0, y, tile.load(c, at=(0, 0), shape=(8, 8)))


_SIZES = (1, 7), (1, 13, 16), (1, 5, 8)
cases("dot", [*FLOATS, "i8", "i32", "u8"], *_SIZES)
cases("mma", ["f32", "f64", "i32"], *_SIZES)


def test_sums_of_products_are_kept_wide_whatever_the_policy_says():
    for base in (ts.f16, ts.bf16):
        a, b = (ts.tensor(draw(s, base.name, 1), dtype=base) for s in ((5, 13), (13, 4)))
        plain = product_of(a, b)
        narrow = product_of(*(x.astype(base @ ts.accum(base)) for x in (a, b)))
        assert plain.dtype is narrow.dtype is ts.f32
        assert plain.numpy().tobytes() == narrow.numpy().tobytes()


def test_dot_and_mma():
    for dtype, m, k, n in MATRIX["dot"]:
        a, b = draw((m, k), dtype, 1), draw((k, n), dtype, 2)
        accum = FORMATS[dtype].accum
        want = wide(a) @ wide(b) if dtype in FLOATS else a.astype(np.int64) @ b.astype(np.int64)
        got = product_of(a, b)
        assert got.dtype is accum
        agree("dot", got, want, accum.name, (dtype, m, k, n), 20.0)
        if (dtype, m, k, n) in MATRIX["mma"]:
            c = draw((m, n), dtype, 3)
            agree("mma", product_onto(a, b, c), want + c, dtype, (dtype, m, k, n), 20.0)


# Shapes


@kernel
def turned(x: KTile):
    return tile.load(x, at=(0, 0), shape=TILE).T


@kernel
def spread(x: KTile, y: KTile):
    row = tile.load(x, at=(0,), shape=(16,))
    return tile.broadcast(row, TILE) + tile.load(y, at=(0, 0), shape=TILE)[:, :]


@kernel
def reshaped(x: KTile[4, 6], *, shape):
    return tile.reshape(tile.load(x, at=(0, 0), shape=(4, 6)), shape)


@kernel
def expanded(x: KTile, *, axis):
    return tile.expand(tile.load(x, at=(0, 0), shape=TILE), axis)


@kernel
def columns(x: KTile, y: KTile):
    a, b = tile.load(x, at=(0,), shape=(8,)), tile.load(y, at=(0,), shape=(16,))
    return a[:, None] * 2 + b[None, :]


TURNED = cases(
    "transpose broadcast expand index", ["f32", "f64", "bf16", "i8", "i64", "u32"], SHAPES
)
cases("reshape", [*FLOATS, *INTEGERS], [(24,), (6, 4), (2, -1), (2, 3, 4)])


def test_shapes():
    for dtype, shape in TURNED:
        x = draw(shape, dtype, 5)
        agree("transpose", turned(x), x.T, "exact", (dtype, shape))
        row = draw(shape[1:], dtype, 6)
        agree("broadcast", spread(row, x), row + x, "exact", (dtype, shape))
        agree("expand", expanded(x, axis=1), x[:, None], "exact", (dtype, shape))
        a, b = draw(shape[:1], dtype, 7), draw(shape[1:], dtype, 8)
        want = round_to(a[:, None] * np.asarray(2, a.dtype) + b[None, :], FORMATS[dtype])
        agree("index", columns(a, b), want, "exact", (dtype, shape))
    for dtype, shape in MATRIX["reshape"]:
        x = draw((4, 6), dtype, 9)
        agree("reshape", reshaped(x, shape=shape), x.reshape(shape), "exact", (dtype, shape))


@kernel
def made(x: KTile, *, f, dtype, value):
    t = tile.load(x, at=(0, 0), shape=TILE)
    new = f(TILE, value, dtype) if value is not None else f(TILE, dtype)
    return tile.where(t > 0, new, new)


@kernel
def counted(x: KTile, *, dtype):
    return tile.arange(16, dtype) + tile.cast(tile.load(x, at=(0,), shape=(16,)), dtype) * 0


MADE = cases("zeros ones full arange", [*FLOATS, *INTEGERS], SHAPES)


def test_making_tiles():
    for dtype, shape in MADE:
        d = FORMATS[dtype]
        x = np.zeros(shape, np.float32)
        for f, value, want in ((tile.zeros, None, 0), (tile.ones, None, 1), (tile.full, 3, 3)):
            got = made(x, f=f, dtype=d, value=value)
            agree(f.name, got, np.full(shape, want, d.np), "exact", (dtype, shape))
        got = counted(x[0], dtype=d)
        agree("arange", got, np.arange(shape[1]).astype(d.np), "exact", (dtype, shape))


# Memory


@kernel.schedule(block(4, 5))
def copied(x: KTile["M", "N"]):
    T = tile.context()
    return tile.load(x, rows=T.m, cols=T.n)


@kernel.schedule(block(4))
def stored(x: KTile["M", "N"], y: KTile["M", "N"], m: KTile["M", "N"]):
    tile.store(y, tile.load(x), mask=tile.load(m))


@kernel.schedule(block(4))
def stored_whole(x: KTile["M", "N"], y: KTile["M", "N"]):
    tile.store(y, tile.load(x))


@kernel.schedule(block(4))
def picked(ids: KTile["N"], table: KTile["V", "D"]):
    return tile.load(table, rows=tile.load(ids))


@kernel.schedule(block(4, 3))
def places(x: KTile["M", "N"]):
    T = tile.context()
    t = tile.load(x, rows=T.m, cols=T.n)
    return t * 0 + tile.row_index() * 100 + tile.col_index()


MOVED = cases("load store", [*FLOATS, *INTEGERS, "bool", "f8e4m3", "f8e5m2"], SHAPES)
PLACES = cases("row_index col_index", SHAPES)


def test_memory():
    for dtype, shape in MOVED:
        x, y, m = draw(shape, dtype, 1), draw(shape, dtype, 2), draw(shape, "bool", 3)
        agree("load", copied(x), x, "exact", (dtype, shape))
        agree("store", stored_whole(x, y), x, "exact", (dtype, shape))
        agree("store", stored(x, y, m), np.where(m, x, y), "exact", (dtype, shape, "mask"))
        ids = np.random.default_rng(4).integers(0, shape[0], 7)
        agree("load", picked(ids, x), x[ids], "exact", (dtype, shape, "rows"))
    for (shape,) in PLACES:
        want = np.arange(shape[0])[:, None] * 100 + np.arange(shape[1])
        agree("row_index", places(np.zeros(shape, np.int64)), want, "exact", shape)


# Attention and random numbers


@kernel.schedule(block(4, 5))
def attended(q: KTile["M", "D"], k: KTile["N", "D"], v: KTile["N", "D"], *, causal):
    T = tile.context()
    rows = tile.load(q, rows=T.m)
    acc = tile.zeros((T.m, T.d))
    top, total = tile.full((T.m,), -math.inf), tile.zeros((T.m,))
    for nb in tile.range_n(k.shape, T.n):
        s = tile.dot(rows, tile.load(k, nb).T)
        if causal:
            tile.mask_causal(s, tile.row_index(), tile.col_index(nb))
        e, m, l = tile.softmax_online(s)
        acc, top, total = tile.softmax_accumulate(acc, top, total, e, tile.load(v, nb), m, l)
    return acc / total[:, None]


ATTENTION = cases(
    "softmax_online softmax_accumulate",
    ["f32", "bf16", "f16"], (1, 6, 8), (8, 9, 13), (1, 7), (False, True),
)  # fmt: skip
MATRIX["mask_causal"] = [c for c in ATTENTION if c[-1]]


def test_attention():
    for dtype, m, n, size, causal in ATTENTION:
        q, k, v = draw((m, size), dtype, 1), draw((n, size), dtype, 2), draw((n, size), dtype, 3)
        s = wide(q) @ wide(k).T
        if causal:
            s = np.where(np.tri(m, n, n - m, dtype=bool), s, -np.inf)
        e = np.exp(s - s.max(1, keepdims=True))
        want = e / e.sum(1, keepdims=True) @ wide(v)
        got = attended(q, k, v, causal=causal)
        agree("softmax_online", got, want, "f32", (dtype, m, n, size), 4.0)


@kernel.schedule(block(3, 5))
def dropped(x: KTile["M", "N"], *, p, seed):
    T = tile.context()
    return tile.dropout_in_kernel(tile.load(x, rows=T.m, cols=T.n), p=p, seed=seed)


@kernel.schedule(block(3))
def uniform(x: KTile["B", "M", "N"]):
    return tile.random_uniform(tile.load(x))


DROPPED = cases("dropout_in_kernel", SHAPES, (0.1, 0.5, 0.9), (0, 1 << 40))
DRAWN = cases("random_uniform", SHAPES)


def test_random_numbers_are_a_function_of_the_element():
    for shape, p, seed in DROPPED:
        x = draw(shape, "f32", 1)
        drawn = words_reference(np.arange(x.size).reshape(shape), seed)
        kept = drawn >= np.uint64(int(p * 2**32))
        got = dropped(x, p=p, seed=seed)
        agree("dropout_in_kernel", got, np.where(kept, wide(x) / (1 - p), 0), "f32", (shape, p))
    for (shape,) in DRAWN:
        x = np.zeros((2, *shape), np.float32)
        want = (words_reference(np.arange(x.size).reshape(x.shape)) >> np.uint64(8)) * 2.0**-24
        agree("random_uniform", uniform(x), want, "f64", shape)


NOT_HERE = {  # structure, which tests/lang/kernel/test_kernel_language.py has
    "alloc", "barrier", "batch_index", "context", "copy_async", "empty", "per_block", "place", "prefetch",
    "program", "program_of", "range",
    "range_k", "range_m", "range_n", "read", "span", "wait",
    # tests/lang/kernel/test_kernel_parts.py and, for accumulate, tests/lang/kernel/test_kernel_data.py
    "accumulate", "argsort", "bitcast", "concat", "flip", "gather", "join", "sort", "split", "stack", "topk",
    "dot_scaled",  # tests/lang/kernel/test_scaled_dot.py
    "check", "print",  # tests/lang/kernel/test_reports.py
}  # fmt: skip


def test_every_intrinsic_has_cases():
    assert set(INTRINSICS) - NOT_HERE == set(MATRIX) - {"index"}
    assert sum(map(len, MATRIX.values())) >= 1500
