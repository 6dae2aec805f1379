"""Few and long rows: instances share a row in several launches, and the bits are those of one."""

from __future__ import annotations

import numpy as np
import pytest

import tessera as ts
from tessera import Tensor, f32, op
from tessera.core.flags import override
from tessera.core.folds import fold
from tessera.ir.schedule.lower import lower
from tessera.ir.schedule.nests import choose
from tessera.ir.schedule.verify import verify
from tessera.ir.tile.cpu.lower import expand
from tessera.ir.tile.verify import verify as verify_tile
from tests.support.cases.random_graphs import same_bits
from tests.support.runners import levels

RNG = np.random.default_rng(0)


def draw(*shape):
    return RNG.normal(size=shape).astype(np.float32)


def launches(p):
    types = {n: b.type for n, b in p.buffers.items()}
    return [launch for s in p.steps for launch in expand(s, types).launches]


def check(f, x, type=None):
    """All levels agree on a program of more launches than steps; the outputs."""
    p = lower(levels.prepared(ts.trace(f, ts.tensor(x) if type is None else type)))
    verify(p)
    assert len(launches(p)) > len(p.steps)
    for launch in launches(p):
        verify_tile(launch.kernel)
    want = levels.by_schedule(p, [x])
    for run in (levels.by_tile, levels.by_llvm):
        assert same_bits(run(p, [x]), want), run.__name__
    return want


CASES = {
    "sum": (op.sum, (2313,)),
    "sum of whole leaves": (op.sum, (4096,)),
    "mean": (op.mean, (3000,)),
    "several folds": (lambda x: (op.max(x), op.sum(x * x), op.min(op.exp(x))), (2048,)),
    "softmax of one row": (op.softmax, (1, 2100)),
    "layernorm": (lambda x: op.layernorm(x) * 2.0, (2, 2049)),
    "columns between": (lambda x: (op.exp(x) * 3.0, op.sum(op.exp(x) * 3.0, -1)), (1, 2060)),
    "column sums": (lambda x: op.sum(x, 0), (2055, 37)),
    "column sums and more": (lambda x: op.exp(op.mean(x, 0)) + 1.0, (1100, 300)),
    "middle axis": (lambda x: op.sum(x, 1), (2, 1600, 5)),
}


@pytest.fixture
def small(monkeypatch):
    """Subtrees of few leaves: their size never shows in the bits."""
    monkeypatch.setattr(choose, "_LANE_LEAVES", 2)
    monkeypatch.setattr(choose, "_CHAIN_LEAVES", 1)


@pytest.mark.parametrize("name", CASES)
def test_all_levels_agree(name, small):
    f, shape = CASES[name]
    x = draw(*shape)
    got = check(f, x)
    for y, want in zip(got, ts.tree.leaves(f(ts.tensor(x))), strict=True):
        np.testing.assert_allclose(y, want, rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize(
    ("f", "axes", "names"),
    [(op.sum, (0,), "N"), (lambda x: op.sum(x, 0), (0,), ("N", 40))],
    ids=["sum", "column sums"],
)
def test_symbolic_sizes(f, axes, names, small):
    g = levels.prepared(ts.trace(f, Tensor[(*names, f32)]))
    p = lower(g)
    assert len(launches(p)) == 2
    for n in (1, 511, 513, 2048, 9000):
        x = draw(n, *names[1:])
        want = [fold("add", x, axes, 0)]
        assert same_bits(levels.by_schedule(p, [x]), want)
        assert same_bits(levels.by_llvm(p, [x]), want)
    x = draw(2100, *names[1:])
    assert same_bits(levels.by_tile(p, [x]), [fold("add", x, axes, 0)])


@pytest.mark.parametrize("name", ["sum", "softmax of one row", "column sums"])
def test_threads_do_not_change_bits(name, small):
    f, shape = CASES[name]
    x = draw(*shape)
    jitted = ts.jit(f, target="cpu")
    found = set()
    for threads in (1, 2, 3, 8):
        with override(threads=threads):
            found.add(jitted(x).numpy().tobytes())
    assert len(found) == 1


@pytest.mark.parametrize("f", [op.softmax, lambda x: op.sum(x, -1)], ids=["softmax", "sum"])
def test_a_row_alone_is_the_row_among_many(f):
    x = draw(17, 65600)
    jitted = ts.jit(f, target="cpu")
    whole = jitted(x).numpy()
    for i in (0, 16):
        np.testing.assert_array_equal(jitted(x[i : i + 1]).numpy()[0], whole[i])


def test_a_sum_of_many_is_the_fold():
    x = draw(1_000_003)
    got = ts.jit(op.sum, target="cpu")(x).numpy()
    assert same_bits([got], [fold("add", x, (0,), 0)])


def test_short_rows_and_many_rows_stay_one_launch():
    for shape in ((60000,), (17, 70000), (2000, 40)):
        p = lower(levels.prepared(ts.trace(lambda x: op.sum(x, -1), Tensor[(*shape, f32)])))
        assert len(launches(p)) == 1, shape
