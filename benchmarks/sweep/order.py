"""Scans, sorts, selections, counts, gathers and scatters."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from sweep.case import Case, Operand, size_name
from tessera import op

LINES: tuple[tuple[tuple[int, ...], int], ...] = (
    ((4096, 4096), 1), ((4096, 4096), 0), ((16384, 1021), 1), ((1021, 16384), 0), ((1 << 24,), 0),
    ((64, 300_007), 1), ((300_007, 64), 0), ((32, 257, 511), 1), ((100_000, 16), 1), ((3, 1 << 22), 1),
)  # fmt: skip
SCANS: dict[str, tuple[Any, Any, str]] = {
    "cumsum": (op.cumsum, lambda t, x, a: x.cumsum(a), "normal"),
    "cumprod": (op.cumprod, lambda t, x, a: x.cumprod(a), "near"),
    "cummax": (op.cummax, lambda t, x, a: x.cummax(a)[0], "normal"),
    "logcumsumexp": (op.logcumsumexp, lambda t, x, a: x.logcumsumexp(a), "normal"),
}


def cases() -> Iterator[Case]:
    """All of the family."""
    for name, (f, g, draw) in SCANS.items():
        for i, (shape, axis) in enumerate(LINES):
            if name not in ("cumsum", "cummax") and i not in (0, 1, 5):
                continue
            for dtype in ("f32", "bf16") if name == "cumsum" and i < 2 else ("f32",):
                x = Operand(shape, dtype, draw)
                yield Case("scan", f"{name} axis {axis} {size_name(x)}",
                           lambda x, f=f, a=axis: f(x, a), lambda t, x, g=g, a=axis: g(t, x, a), (x,),
                           tolerance=0.03 if dtype == "bf16" else 1e-4)  # fmt: skip
    i = Operand((4096, 4096), "i64", "index", 100)
    yield Case("scan", f"cumsum axis 1 {size_name(i)}", lambda x: op.cumsum(x, 1),
               lambda t, x: x.cumsum(1), (i,))  # fmt: skip
    x = Operand((4096, 4096))
    yield Case("scan", f"cumsum from the end {size_name(x)}", lambda x: op.cumsum(x, 1, reverse=True),
               lambda t, x: x.flip(1).cumsum(1).flip(1), (x,), compiled=True)  # fmt: skip
    yield from _sorts()
    yield from _selections()
    yield from _indexed()


def _sorts() -> Iterator[Case]:
    shapes: tuple[tuple[tuple[int, ...], str], ...] = (
        ((1 << 20,), "f32"), ((4096, 1000), "f32"), ((128, 32768), "f32"), ((65536, 33), "f32"),
        ((4096, 4096), "bf16"), ((1 << 22,), "i32"), ((1_000_003,), "i64"), ((7, 13), "f32"),
    )  # fmt: skip
    for shape, dtype in shapes:
        x = Operand(shape, dtype, "index" if dtype[0] == "i" else "normal", 1 << 30)
        yield Case("sort", f"sort {size_name(x)}", op.sort, lambda t, x: x.sort(-1)[0], (x,),
                   checked="same")  # fmt: skip
    for shape in ((1 << 20,), (2048, 2047), (3, 400_000)):
        x = Operand(shape)
        yield Case("sort", f"argsort {size_name(x)}", op.argsort,
                   lambda t, x: x.argsort(dim=-1, stable=True), (x,), checked="same")  # fmt: skip
    x = Operand((3000, 700))
    yield Case("sort", f"sort columns {size_name(x)}", lambda x: op.sort(x, 0), lambda t, x: x.sort(0)[0],
               (x,), checked="same")  # fmt: skip


def _selections() -> Iterator[Case]:
    for shape, k in (((4096, 4096), 8), ((64, 50304), 50), ((1, 128_256), 1), ((1, 128_256), 64),
        ((1 << 22,), 100),
                     ((65536, 64), 2), ((65536, 128), 8), ((1021, 1021), 100), ((32, 1 << 20), 16),
                     ((128, 32768), 2048)):  # fmt: skip
        x = Operand(shape)
        yield Case("select", f"top {k} of {size_name(x)}", lambda x, k=k: op.topk(x, k),
                   lambda t, x, k=k: tuple(x.topk(k)), (x,), checked="same")  # fmt: skip
    x = Operand((64, 50304), "bf16")
    yield Case("select", f"top 50 of {size_name(x)}", lambda x: op.topk(x, 50)[0],
               lambda t, x: x.topk(50)[0], (x,), checked="same")  # fmt: skip
    x = Operand((4096, 1025))
    yield Case("select", f"median {size_name(x)}", lambda x: op.median(x, 1),
               lambda t, x: x.median(1)[0], (x,), checked="same")  # fmt: skip
    yield Case("select", f"quantile {size_name(x)}", lambda x: op.quantile(x, 0.3, 1),
               lambda t, x: t.quantile(x, 0.3, 1), (x,))  # fmt: skip
    for n, m in ((1 << 20, 1 << 20), (1 << 24, 255), (4096, 1_000_003)):
        v, s = Operand((n,)), Operand((m,), "f32", "sorted")
        yield Case("select", f"searchsorted {n} in {m}", op.searchsorted,
                   lambda t, s, v: t.searchsorted(s, v), (s, v), checked="same")  # fmt: skip
    for n, bins in ((1 << 24, 256), (1 << 22, 50_000), (1_000_003, 10)):
        x = Operand((n,), "i64", "index", bins)
        yield Case("count", f"bincount {n} of {bins}", lambda x, b=bins: op.bincount(x, length=b),
                   lambda t, x, b=bins: t.bincount(x, minlength=b), (x,), captured=False)  # fmt: skip
    x = Operand((1 << 22,))
    # As numbers, since histc places what lies next to an edge by another rounding than edges that
    # are compared.
    yield Case("count", f"histogram {size_name(x)}",
               lambda x: op.histogram(x, 100, (-3.0, 3.0))[0].astype("f32"),
               lambda t, x: t.histc(x, 100, -3.0, 3.0), (x,), checked="same", tolerance=1e-4)  # fmt: skip
    i = Operand((1 << 20,), "i64", "index", 5000)
    yield Case("count", f"unique {size_name(i)}", op.unique, lambda t, x: t.unique(x), (i,),
               captured=False, moved=8.0 * (1 << 20), eager=True)  # fmt: skip


def _indexed() -> Iterator[Case]:
    for dtype in ("bf16", "f32"):
        table, ids = Operand((50304, 768), dtype), Operand((16384,), "i64", "index", 50304)
        size = 2.0 * 16384 * 768 * (2 if dtype == "bf16" else 4)
        yield Case("gather", f"embedding {size_name(table)}", op.embedding,
                   lambda t, w, i: t.nn.functional.embedding(i, w), (table, ids), moved=size)  # fmt: skip
        rows = Operand((16384, 768), dtype)
        yield Case("scatter", f"embedding gradient {size_name(table)}",
                   lambda v, i, d=dtype: op.scatter_add(op.zeros((50304, 768), v.dtype), v, i, axes=(0,)),
                   lambda t, v, i: t.zeros((50304, 768), dtype=v.dtype, device=v.device).index_add_(0, i, v),
                   (rows, ids), tolerance=2e-2 if dtype == "bf16" else 0.0)  # fmt: skip
    x, i = Operand((4096, 4096)), Operand((4096, 4096), "i64", "index", 4096)
    yield Case("gather", f"take_along_axis {size_name(x)}", lambda x, i: op.take_along_axis(x, i, 1),
               lambda t, x, i: x.gather(1, i), (x, i))  # fmt: skip
    r = Operand((100_003,), "i64", "index", 4096)
    yield Case("gather", f"rows {size_name(x)}", lambda x, i: op.take(x, i, 0),
               lambda t, x, i: x.index_select(0, i), (x, r), moved=8.0 * 100_003 * 4096)  # fmt: skip
    c = Operand((1000,), "i64", "index", 4096)
    yield Case("gather", f"columns {size_name(x)}", lambda x, i: op.take(x, i, 1),
               lambda t, x, i: x.index_select(1, i), (x, c), moved=8.0 * 4096 * 1000)  # fmt: skip
    v, s = Operand((1 << 20, 16)), Operand((1 << 20,), "i64", "index", 10_000)
    yield Case("scatter", f"segment sum {size_name(v)}", lambda v, s: op.segment_sum(v, s, count=10_000),
               lambda t, v, s: t.zeros((10_000, 16), dtype=v.dtype, device=v.device).index_add_(0, s, v),
               (v, s))  # fmt: skip
    n, s = Operand((1 << 22,)), Operand((1 << 22,), "i64", "index", 1000)
    yield Case("scatter", f"sums by number {size_name(n)}", lambda v, s: op.segment_sum(v, s, count=1000),
               lambda t, v, s: t.zeros((1000,), dtype=v.dtype, device=v.device).index_add_(0, s, v),
               (n, s))  # fmt: skip
    x, i = Operand((65536, 256)), Operand((8192,), "i64", "distinct", 65536)
    v = Operand((8192, 256))
    yield Case("scatter", f"set rows {size_name(x)}", lambda x, v, i: op.scatter(x, v, i, axes=(0,)),
               lambda t, x, v, i: x.index_copy(0, i, v), (x, v, i), moved=2.0 * x.nbytes)  # fmt: skip
    yield Case("scatter", f"largest by row {size_name(x)}", lambda x, v,
        i: op.scatter_max(x, v, i, axes=(0,)),
               lambda t, x, v, i: x.index_reduce(0, i, v, "amax"), (x, v, i),
               moved=2.0 * x.nbytes)  # fmt: skip
    i = Operand((65536,), "i64", "index", 1000)
    yield Case("gather", "one hot 65536 of 1000", lambda i: op.one_hot(i, 1000),
               lambda t, i: t.nn.functional.one_hot(i, 1000).float(), (i,), captured=False)  # fmt: skip
