"""Derivatives of kernels that data steer: gathers, scatters, accumulation, scans, scratch, loops that
data end.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import tessera as ts
from examples.kernels.sparse import csr_rows
from tessera import KTile, block, i32, kernel, op, tile
from tessera.core import evaluate
from tessera.core.errors import RuleError
from tessera.ir.tile import interp
from tessera.ir.tile.autodiff import write

RUNS_ON = "numpy"  # what the kernels are compared with; they are machine code themselves


def data(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape)


# Gathers


@kernel.schedule(block(4))
def picked(x: KTile["M", "D"], ids: KTile["N"]):
    return tile.exp(tile.load(x, rows=tile.load(ids)))


@kernel.schedule(block(4))
def edge(x: KTile["M"], ids: KTile["N"]):
    """Indices past the end are 0, and what is computed there is not a number."""
    t = tile.load(ids)
    return x[t] / tile.cast(t, x.dtype)


@kernel.schedule(block(4))
def columns(x: KTile["M", "D"], ids: KTile["N"]):
    T = tile.context()
    t = tile.load(x, rows=T.m, cols=tile.load(ids, rows=3))
    return t * t


@kernel.schedule(block(4))
def pairs(x: KTile["M", "D"], i: KTile["N"], j: KTile["N"], w: KTile["N"]):
    a, b = tile.load(i), tile.load(j)
    return x[a, b] * x[b, a] * tile.load(w)


@kernel.schedule(block(4))
def along(x: KTile["M", 5], i: KTile["M", 3]):
    t = tile.load(x)
    return tile.gather(t * t, tile.load(i), axis=1)


@kernel.schedule(block(4))
def grouped(x: KTile["N", 4], w: KTile["E", 4, 3], expert: KTile["B"]):
    """A block of rows by the matrix that data name."""
    rows = tile.load(x, rows=tile.context().m)
    e = expert[tile.program_of("m")]
    t = tile.reshape(tile.load(w, at=(e, 0, 0), shape=(1, 4, 3)), (4, 3))
    return tile.dot(rows, tile.place(t, None))


@kernel.schedule(block(4))
def shuffled(x: KTile["M", 6]):
    t = tile.load(x)
    a, b = tile.split(tile.flip(t * t, axis=1), 2, axis=1)
    return tile.concat([a * b, tile.sort(t, axis=1)], axis=1)


# Scatters


@kernel.schedule(block(4))
def spread(x: KTile["N", "D"], ids: KTile["N"]):
    y = tile.empty((ids.shape[0] * 2, x.shape[1]), x.dtype, partial=True)
    tile.store(y, tile.sin(tile.load(x)), rows=tile.load(ids), distinct=True)
    return y


@kernel.schedule(block(4))
def added(x: KTile["N", "D"], ids: KTile["N"], y: KTile["M", "D"]):
    t = tile.load(x)
    tile.accumulate(y, t * t, rows=tile.load(ids))


@kernel.schedule(block(4))
def binned(x: KTile["N"], ids: KTile["N"], *, bins: int):
    y = tile.empty((bins,), x.dtype)
    t = tile.load(x)
    tile.accumulate(y, tile.exp(t), at=(tile.load(ids),), mask=t > -1)
    return y


@kernel.schedule(block(4, 3).k(2))
def split_k(a: KTile["M", "K"], b: KTile["K", "N"]):
    T = tile.context()
    y = tile.empty((a.shape[0], b.shape[1]), a.dtype)
    for kb in tile.range_k(a.shape, T.k):
        part = tile.dot(tile.load(a, rows=T.m, cols=kb), tile.load(b, rows=kb, cols=T.n))
        tile.accumulate(y, part, rows=T.m, cols=T.n)
    return y


# Scans and folds


@kernel.schedule(block(4))
def scans(x: KTile["M", "N"]):
    t = tile.load(x)
    low = tile.scan(t, "min", axis=1, reverse=True)
    return tile.scan(t, "max", axis=1) * low + tile.scan(t, "mul", axis=1, exclusive=True)


def decayed(a, b):
    return a[0] * b[0], a[1] * b[0] + b[1]


@kernel.schedule(block(4))
def recurrence(decay: KTile["M", "N"], x: KTile["M", "N"]):
    """h[i] = decay[i] h[i - 1] + x[i], as an associative scan of pairs."""
    rate = tile.sigmoid(tile.load(decay))
    return tile.scan((rate, tile.load(x)), decayed, axis=1)[1]


def softplus(a, b):
    return tile.log(tile.exp(a) + tile.exp(b))


@kernel.schedule(block(4))
def folded(x: KTile["M", "N"]):
    return tile.reduce(tile.load(x), softplus, axis=1)


@kernel.schedule(block(4, 4))
def past_the_end(x: KTile["M", "N"]):
    """Sums so far of a block of columns; past the last column it is 0 / 0."""
    T = tile.context()
    t = tile.load(x, rows=T.m, cols=T.n)
    return tile.scan(t / t * t, "add", axis=1) / t


@kernel.schedule(block(8))
def handed_on(x: KTile["M", "D"]):
    s = tile.alloc((8, 1), x.dtype)
    tile.store(s, tile.ones((8, 1), x.dtype), at=(0, 0))
    for nb in tile.range_k(x.shape, 4):
        part = tile.load(x, cols=nb, rows=tile.context().m)
        tile.store(s, tile.sin(tile.read(s) + tile.sum(part, axis=1, keepdims=True)), at=(0, 0))
    return tile.load(x) * tile.read(s)


# Loops that data end


@kernel
def ragged(x: KTile["M", "N"], count: KTile["M"]):
    """A chain over as many blocks of a row as its count says."""
    i = tile.program(x.shape[0])
    total = tile.zeros((1, 1), x.dtype)
    for nb in tile.range_k(x.shape, 4, stop=count[i]):
        part = tile.load(x, rows=tile.span(x.shape[0], i, 1), cols=nb)
        total = tile.sin(total + tile.sum(part * part, axis=1, keepdims=True))
    y = tile.empty((x.shape[0], 1), x.dtype)
    tile.store(y, total, at=(i, 0))
    return y


@kernel.schedule(block(4))
def powers(x: KTile["M"], n: KTile[()]):
    t = tile.load(x)
    y = tile.ones(t.shape, x.dtype)
    for i in range(n[()]):
        y = tile.cos(y * t) + tile.cast(i, x.dtype)
    return y


@kernel.schedule(block(1))
def newton(x: KTile["M"]):
    """Square roots, until they change no more."""
    t = tile.load(x)
    y = t * 0.5 + 0.5
    change = tile.ones(t.shape, x.dtype)
    while tile.max(change) > 1e-12:
        new = 0.5 * (y + t / y)
        change = tile.abs(new - y)
        y = new
    return y


@kernel
def until(x: KTile["M", "N"]):
    """The product of the elements of a row up to the first that is negative."""
    i = tile.program(x.shape[0])
    t = tile.ones((1, 1), x.dtype)
    for j in tile.range(x.shape[1]):
        part = tile.load(x, at=(i, j), shape=(1, 1))
        t = t * part
        if tile.max(part) < 0:
            break
    y = tile.empty((x.shape[0], 1), x.dtype)
    tile.store(y, t, at=(i, 0))
    return y


@kernel
def triangle(x: KTile["N"], n: KTile["M"]):
    """A loop that data end in a loop that data end, over a scan by a function and a gather."""
    i = tile.program(n.shape[0])
    total = tile.ones((), x.dtype)
    for j in range(n[i]):
        inner = tile.zeros((), x.dtype)
        for k in range(n[j]):
            inner = tile.sin(inner * 0.5 + x[k] * x[j])
        total = total * tile.cos(inner)
    y = tile.empty((n.shape[0],), x.dtype)
    tile.store(y, total, at=(i,))
    return y


@kernel
def bags(x: KTile["N"], rows: KTile["R1", i32], ids: KTile["Z", i32]):
    """Entries of each row, added to the places that they name."""
    i = tile.program(rows.shape[0] - 1)
    y = tile.empty((6,), x.dtype)
    for j in range(rows[i], rows[i + 1]):
        tile.accumulate(y, tile.exp(x[j]), at=(ids[j],))
    return y


# What is loaded after a store


@kernel.schedule(block(4))
def folded_into(x: KTile["N"], ids: KTile["N"], *, how: str):
    y = tile.empty((6,), x.dtype)
    t = tile.load(x)
    tile.accumulate(y, t * t - 0.5, at=(tile.load(ids),), how=how)
    return y


@kernel.schedule(block(4))
def multiplied_into(x: KTile["N", "D"], ids: KTile["N"], y: KTile["M", "D"]):
    tile.accumulate(y, tile.load(x), rows=tile.load(ids), how="mul")


@kernel.schedule(block(4))
def boxes_into(x: KTile["N", "D"], *, how: str):
    """Every block is folded into one box."""
    y = tile.empty((4, x.shape[1]), x.dtype)
    tile.accumulate(y, tile.load(x), at=(0, 0), shape=(4, x.shape[1]), how=how)
    return y


@kernel
def stored_and_loaded(x: KTile["M", 5]):
    """Each instance works on its row of the result, in place."""
    i = tile.program(x.shape[0])
    y = tile.empty(x.shape, x.dtype)
    tile.store(y, tile.load(x, at=(i, 0), shape=(1, 5)), at=(i, 0))
    for j in tile.range(1, 5):
        before, here = (tile.load(y, at=(i, j - d), shape=(1, 1)) for d in (1, 0))
        tile.store(y, tile.sin(tile.place(before, None) * tile.place(here, None)), at=(i, j))
    return y


@kernel.schedule(block(4))
def every_other(x: KTile["N"], n: KTile[()]):
    t = tile.zeros((), x.dtype)
    for i in range(n[()]):
        t = tile.sin(t + x[i // 2] * x[(i * i) % 5])
    return tile.load(x) * t


IDS = np.array([2, 0, 2, 5, 5, 5, 1, 3, 0])
ROWS = np.array([0, 3, 3, 4, 8], np.int32)
COLS = np.array([1, 0, 4, 4, 2, 1, 1, 3], np.int32)


CASES = {
    "picked": (picked, (data(6, 3), IDS), (0,), {}),
    "edge": (edge, (data(6), np.array([1, 2, 5, 5, 3, 1])), (0,), {}),
    "columns": (columns, (data(6, 5), np.array([4, 1, 4])), (0,), {}),
    "pairs": (pairs, (data(6, 6), IDS, IDS[::-1].copy(), data(9, seed=1)), (0, 3), {}),
    "along": (along, (data(6, 5), np.arange(18).reshape(6, 3) * 7 % 5), (0,), {}),
    "grouped": (grouped, (data(10, 4), data(3, 4, 3, seed=1), np.array([2, 0, 2])), (0, 1), {}),
    "shuffled": (shuffled, (data(6, 6),), (0,), {}),
    "spread": (spread, (data(9, 3), np.random.default_rng(1).permutation(18)[:9]), (0,), {}),
    "added": (added, (data(9, 3), IDS, data(6, 3, seed=1)), (0, 2), {}),
    "binned": (binned, (data(9), IDS), (0,), {"bins": 7}),
    "split_k": (split_k, (data(6, 5), data(5, 4, seed=1)), (0, 1), {}),
    "scans": (scans, (data(6, 5),), (0,), {}),
    "recurrence": (recurrence, (data(6, 5), data(6, 5, seed=1)), (0, 1), {}),
    "past_the_end": (past_the_end, (data(6, 6),), (0,), {}),
    "folded": (folded, (data(6, 5),), (0,), {}),
    "handed_on": (handed_on, (data(11, 10),), (0,), {}),
    "csr": (csr_rows, (ROWS, COLS, data(8), data(5, 3, seed=1)), (2, 3), {}),
    "ragged": (ragged, (data(5, 11), np.array([3, 0, 11, 8, 5])), (0,), {}),
    "powers": (powers, (data(6), np.array(5)), (0,), {}),
    "newton": (newton, (np.array([2.0, 0.3, 9.0]),), (0,), {}),
    "until": (until, (data(5, 7) + 0.8,), (0,), {}),
    "triangle": (triangle, (data(5), np.array([2, 4, 0, 3])), (0,), {}),
    "bags": (bags, (data(8), ROWS, COLS), (0,), {}),
    "max": (folded_into, (data(9), IDS), (0,), {"how": "max"}),
    "min": (folded_into, (data(9), IDS), (0,), {"how": "min"}),
    "mul": (multiplied_into, (data(9, 2), IDS, data(6, 2, seed=1)), (0, 2), {}),
    "boxes": (boxes_into, (data(9, 3) + 2,), (0,), {"how": "max"}),
    "stored_and_loaded": (stored_and_loaded, (data(4, 5),), (0,), {}),
    "every_other": (every_other, (data(9), np.array(7)), (0,), {}),
}


def losses(f, args, argnums, kwargs):
    weights = data(*np.shape(f(*args, **kwargs).numpy()), seed=9)

    def loss(*xs):
        given = dict(zip(argnums, xs, strict=True))
        return op.sum(f(*(given.get(i, a) for i, a in enumerate(args)), **kwargs) * weights)

    return loss


_DEEP = ("min", "boxes", "edge", "columns", "pairs", "grouped", "spread", "split_k", "folded", "powers",
    "until", "triangle", "bags")  # fmt: skip


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.deep if n in _DEEP else ()) for n in CASES]
)
def test_the_gradient_is_the_slope(name):
    f, args, argnums, kwargs = CASES[name]
    loss = losses(f, args, argnums, kwargs)
    moved = [args[k] for k in argnums]
    found = ts.grad(loss, argnums=tuple(range(len(argnums))))(*map(ts.tensor, moved))
    for k, g in enumerate(found):
        assert g.shape == moved[k].shape
        step = data(*moved[k].shape, seed=5)
        ends = [
            loss(*(a + h * step if i == k else a for i, a in enumerate(moved))).numpy()
            for h in (1e-6, -1e-6)
        ]
        slope = (ends[0] - ends[1]) / 2e-6
        assert abs(slope - (g.numpy() * step).sum()) < 1e-6 * max(1, abs(slope))


@pytest.mark.parametrize(
    "name", ["picked", "recurrence",
    *(pytest.param(n, marks=pytest.mark.deep) for n in ("csr", "ragged", "newton"))]
)  # fmt: skip
def test_machine_code_has_the_bits_of_the_interpreter(name):
    f, args, argnums, kwargs = CASES[name]
    xs = [ts.tensor(args[k]) for k in argnums]

    def found():
        made = ts.grad(losses(f, args, argnums, kwargs), argnums=tuple(range(len(xs))))(*xs)
        return [g.numpy().tobytes() for g in made]

    got = found()
    with ts.interpret():
        assert found() == got


def test_blocks_change_no_bit_of_what_indices_share():
    """Instances add one after the other, so the order is that of the indices."""
    x = ts.tensor(data(6, 3))

    def of(rows):
        f = picked.with_schedule(block(rows))
        return ts.grad(lambda x: op.sum(f(x, IDS) ** 2.0))(x).numpy().tobytes()

    assert of(2) == of(4) == of(16)


def test_indices_outside_add_nothing():
    x, ids = ts.tensor(data(6, 3)), np.array([-1, 2, 6, 2, 1 << 40])
    got = ts.grad(lambda x: op.sum(picked(x, ids)))(x).numpy()
    want = np.zeros((6, 3))
    want[2] = 2 * np.exp(x.numpy()[2])
    np.testing.assert_allclose(got, want, rtol=1e-14)


@kernel.schedule(block(4))
def through_a_result(x: KTile["N"]):
    """The second result is made of what is loaded of the first."""
    y, z = tile.empty((4,), x.dtype), tile.empty(x.shape, x.dtype)
    t = tile.load(x)
    tile.accumulate(y, t * t, at=(0,), shape=(4,))
    tile.store(z, t + tile.place(tile.load(y, at=(0,), shape=(4,)), None), rows=tile.context().m)
    return y, z


def test_what_passes_through_a_result_has_a_cotangent():
    x, w = data(8), data(8, seed=1)
    got = ts.grad(lambda x: op.sum(through_a_result(x)[1] * w))(x).numpy()
    squares = w[:4] + w[4:]
    want = w + 2 * x * np.concatenate([squares, w[4:]])
    np.testing.assert_allclose(got, want, rtol=1e-13)


# Checkpoints of loops that no size bounds


def slope_of_powers(n):
    """Of powers at one place, by the chain rule."""
    x, y, dy = 0.7, 1.0, 0.0
    for i in range(n):
        y, dy = np.cos(y * x) + i, -np.sin(y * x) * (dy * x + y)
    return dy


@pytest.mark.parametrize("n", [0, 1, 2, 3, 7, 9, 16, 17, 40])
def test_a_long_loop_goes_on_from_checkpoints(n, monkeypatch):
    monkeypatch.setattr(write, "SLOTS", 3)  # so that stretches are of several turns
    f = powers.with_schedule(block(n + 100))  # not the kernel of another test
    got = ts.grad(lambda x: op.sum(f(x, np.array(n))))(np.array([0.7]))
    np.testing.assert_allclose(got.numpy(), [slope_of_powers(n)], rtol=1e-12, atol=1e-12)


def turns(n, monkeypatch):
    """How many cosines the interpreter computes for the gradient of a chain of n."""
    count = [0]

    def counted(name, xs, dtype):
        count[0] += name == "cos"
        return evaluate.scalar(name, xs, dtype)

    with monkeypatch.context() as m, ts.interpret():
        m.setattr(interp, "scalar", counted)
        ts.grad(lambda x: op.sum(powers(x, np.array(n))))(np.array([0.7]))
    return count[0]


def test_the_work_of_a_gradient_grows_as_the_turns_do(monkeypatch):
    few, many = turns(50, monkeypatch), turns(200, monkeypatch)
    assert 3.5 < many / few < 4.5
    assert many < 8 * 200


# What has no derivative


@kernel
def handed_on_by_data(x: KTile["N"], n: KTile[()]):
    s = tile.alloc((1,), x.dtype)
    tile.store(s, tile.ones((1,), x.dtype), at=(0,))
    for i in range(n[()]):
        tile.store(s, tile.sin(tile.read(s) * x[i]), at=(0,))
    return tile.load(x) * tile.read(s)


@pytest.mark.parametrize(
    ("f", "args", "what", "line"),
    [
        (handed_on_by_data, (data(9), np.array(3)),
        "scratch that one turn of a loop that data end hands to the next", "tile.store(s, tile.sin"),
    ],
    ids=["scratch"],
)  # fmt: skip
def test_what_has_no_derivative_is_told_at_its_line(f, args, what, line):
    with pytest.raises(RuleError) as e:
        ts.grad(lambda x: op.sum(f(x, *args[1:])))(args[0])
    assert e.value.message == (
        f"grad: {what} has no derivative in a kernel; give the kernel one with ts.custom_vjp"
    )
    assert e.value.location is not None
    assert e.value.location.file == __file__
    assert line in Path(__file__).read_text().splitlines()[e.value.location.line - 1]


# Forward mode


FORWARD = {
    **CASES,
    "handed_on_by_data": (handed_on_by_data, (data(9), np.array(3)), (0,), {}),
    "through_a_result": (lambda x: through_a_result(x)[1], (data(8),), (0,), {}),
}


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.deep if n in _DEEP else ()) for n in FORWARD]
)
def test_forward_mode_is_the_slope(name):
    f, args, argnums, kwargs = FORWARD[name]
    moved, steps = [args[k] for k in argnums], [data(*args[k].shape, seed=5 + k) for k in argnums]

    def g(*xs):
        given = dict(zip(argnums, xs, strict=True))
        return f(*(given.get(i, a) for i, a in enumerate(args)), **kwargs)

    y, t = ts.jvp(g, [*map(ts.tensor, moved)], [*map(ts.tensor, steps)])
    assert t.shape == y.shape
    ends = [
        g(*(a + h * s for a, s in zip(moved, steps, strict=True))).numpy() for h in (1e-6, -1e-6)
    ]
    slope = (ends[0] - ends[1]) / 2e-6
    assert np.abs(t.numpy() - slope).max() < 1e-6 * max(1, np.abs(slope).max())


@pytest.mark.parametrize("name", ["recurrence", pytest.param("csr", marks=pytest.mark.deep)])
def test_forward_over_reverse_and_reverse_over_forward_are_alike(name):
    f, args, argnums, kwargs = CASES[name]
    loss = losses(lambda *xs, **k: op.sin(f(*xs, **k)), args, argnums, kwargs)
    xs = [ts.tensor(args[k]) for k in argnums]
    steps = [ts.tensor(data(*args[k].shape, seed=5 + k)) for k in argnums]
    every = tuple(range(len(xs)))
    one = ts.jvp(lambda *x: ts.grad(loss, argnums=every)(*x), xs, steps)[1]
    other = ts.grad(lambda *x: ts.jvp(loss, list(x), steps)[1], argnums=every)(*xs)
    for a, b in zip(one, other, strict=True):
        np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-11, atol=1e-11)
