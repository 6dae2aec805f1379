"""The time to compile grows with the size of a program and no faster."""

from __future__ import annotations

import numpy as np
import pytest

import tessera as ts
from tessera import op
from tessera.compile.cpu.build import form_of
from tessera.core.errors import ShapeError
from tessera.ir.schedule.ir import Kernel
from tessera.ir.schedule.lower import CHEAP_ON_GPU, _GraphLowering, cost_of, fuse, lower
from tessera.ops.shape import MOST_JOINED
from tests.support.runners.levels import prepared

# Of a value that a loop makes: itself in other places, and what folds and picks make of it.
SEEN = (
    lambda x: x,
    lambda x: op.flip(x, 0),
    lambda x: op.roll(x, 1, 1),
    lambda x: op.reshape(op.transpose(x, (1, 0)), x.shape),
    lambda x: op.concat([x[1:], x[:1]], 0),
    lambda x: op.take(x, np.array([3, 0, 2, 1, 7, 5, 6, 4]), axis=0),
    lambda x: op.broadcast_to(x[:1], x.shape),
    lambda x: op.where(x > 0, x, -x),
    lambda x: op.sin(x),
    lambda x: op.max(x, 1, keepdims=True),
)
MADE = (
    lambda a, b, c: op.where(a > 0, b, c),
    lambda a, b, c: a * b - c,
    lambda a, b, c: (a + b + c) * 0.5,
    lambda a, b, c: op.maximum(op.minimum(a, b), c),
)
USED = (
    lambda x, w: x @ w,
    lambda x, w: (x, x @ w),
    lambda x, w: op.softmax(x) @ w,
    lambda x, w: op.sum(x, 0),
)


def repeated(seed: int, count: int):
    """A program that does the same thing again and again: everything is read several times."""
    r = np.random.default_rng(seed)
    made, used = MADE[r.integers(len(MADE))], USED[r.integers(len(USED))]
    seen = [SEEN[i] for i in r.integers(len(SEEN), size=3)]

    def f(x, w):
        for _ in range(count):
            x = made(*(g(x) for g in seen))
        return used(x, w)

    return f


@pytest.mark.parametrize("cheap", [4, CHEAP_ON_GPU], ids=["cpu", "gpu"])
def test_what_is_looked_at_grows_with_the_program(
    cheap: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nine turns of `where(flip(x) > 0, roll(x), flip(x))` before a product took 7 s, and each more three
    times as long: each value was looked at in all the places that the end of the program reads it in.
    """
    looked = []
    whole = _GraphLowering.read
    monkeypatch.setattr(
        _GraphLowering, "read", lambda self, *at: looked.append(1) or whole(self, *at)
    )

    def count(seed: int, turns: int) -> int:
        looked.clear()
        square = ts.Tensor[8, 8, ts.f32]
        fuse(prepared(ts.trace(repeated(seed, turns), square, square)), cheap)
        return len(looked)

    for seed in range(60):
        few, many = count(seed, 6), count(seed, 12)
        assert many <= 4 * few + 500, f"seed {seed}: {few} for 6 turns, {many} for 12"


def sines(count: int):
    def f(v):
        for _ in range(count):
            v = op.sin(v) + 0.5
        return v

    return f


@pytest.mark.parametrize("count", [60, 400, 3000])
def test_a_long_chain_is_cut_into_kernels_of_one_form(count: int) -> None:
    """400 of them took 25 s in one kernel, 3,000 did not end."""
    p = lower(prepared(ts.trace(sines(count), ts.Tensor[8, ts.f32])))
    types = {n: b.type for n, b in p.buffers.items()}
    kernels = [s for s in p.steps if isinstance(s, Kernel)]
    assert all(sum(cost_of(t.term) for t in k.stages) <= 1000 for k in kernels)
    assert len({form_of(k, types) for k in kernels}) <= 3


def test_a_chain_that_is_cut_computes_the_same() -> None:
    """Bits are those of the ops one by one.  Double precision would say no more and take LLVM ten times
    as long.
    """
    x = ts.tensor(np.linspace(-1, 1, 8, dtype=np.float32))
    f = ts.jit(sines(60), target="cpu")
    kernels = [s for s in f.lower(x).schedule.steps if isinstance(s, Kernel)]
    assert len(kernels) > 1
    got, eager = f(x).numpy(), sines(60)(x).numpy()
    assert got.tobytes() == eager.tobytes()
    want = np.linspace(-1, 1, 8)
    for _ in range(60):
        want = np.sin(want) + 0.5
    np.testing.assert_allclose(got, want, rtol=1e-6)


def euler(x, v):
    for _ in range(120):
        a = -x * 1.5 - 0.1 * v
        x, v = x + 0.01 * v, v + 0.01 * a
    return x, v


def residual(x, v):
    """A value that is part of two factors; the ops of one of them come after it."""
    first = op.exp(op.sin(x))
    other, y = (first * 2) @ v, v
    for _ in range(600):
        y = op.maximum(0.5 * y, x)
    return other, (y + first) @ v


def turned(x):
    for _ in range(130):
        x = op.flip(op.roll(x, 1, 0), 1)
    return x


@pytest.mark.parametrize(
    "f",
    [
        euler,
        residual,
        lambda x, v: turned(x) @ v,
        ts.grad(lambda x, v: op.sum(turned(x) * v)),
        ts.grad(lambda x, v: op.sum(euler(x, v)[0] ** 2)),
    ],
    ids=["steps", "factors", "views", "gradient of views", "gradient of steps"],
)
def test_ops_one_within_another_are_cut_before_the_compiler_calls_itself_too_often(f) -> None:
    """100 unrolled steps of an integration and 200 views of views reached Python's recursion limit, and ran
    op by op after it; the cost of a term counts neither.
    """
    x, v = (
        ts.tensor(np.random.default_rng(i).normal(size=(4, 4)).astype(np.float32)) for i in (0, 1)
    )
    for got, eager in zip(
        ts.tree.leaves(ts.jit(f, target="cpu")(x, v)), ts.tree.leaves(f(x, v)), strict=True
    ):
        assert got.numpy().tobytes() == eager.numpy().tobytes()


def test_many_sums_of_rows_are_no_one_kernel() -> None:
    """Stages that would all join one kernel of rows."""

    def f(x):
        for _ in range(120):
            x = op.exp(x - op.max(x, -1, keepdims=True))
        return x

    p = lower(prepared(ts.trace(f, ts.Tensor[4, 16, ts.f32])))
    kernels = [s for s in p.steps if isinstance(s, Kernel)]
    assert len(kernels) > 1
    assert all(sum(cost_of(t.term) for t in k.stages) <= 1000 for k in kernels)


@pytest.mark.parametrize("count", [64, 65, 300])
def test_many_tensors_are_joined_in_groups(count: int) -> None:
    """One kernel with a loop for each of 800 tensors took LLVM 9 s, for each of 1,600 69 s."""
    r = np.random.default_rng(count)
    xs = [r.normal(size=(r.integers(0, 4), 2)).astype(np.float32) for _ in range(count)]
    whole = np.concatenate(xs)
    weight = r.normal(size=whole.shape).astype(np.float32)

    def join(xs):
        return op.concat(xs, 0)

    f, given = ts.jit(join, target="cpu"), [ts.tensor(x) for x in xs]
    steps = f.lower(given).schedule.steps
    assert max(len(s.operands) for s in steps) <= MOST_JOINED
    assert len(steps) <= 1 + (count > MOST_JOINED) * (count // MOST_JOINED + 1)
    for g in (join, f):
        assert g(given).numpy().tobytes() == whole.tobytes()
        back = ts.grad(lambda xs, g=g: op.sum(g(xs) * weight))(given)
        assert np.concatenate([y.numpy() for y in back]).tobytes() == weight.tobytes()
    with pytest.raises(
        ShapeError, match=rf"axis 1 is 2 in operand 0 .* but 3 in operand {count - 1} "
    ):
        op.concat([*given[1:], ts.ones((1, 3))], 0)


def test_joins_of_joins_become_one_up_to_a_bound() -> None:
    x = ts.ones((1, 2))
    for count, want in ((20, 1), (60, 2)):
        f = ts.jit(lambda x, n=count: op.concat([op.concat([x] * n, 0), op.concat([x] * n, 0)], 0))
        assert len(f.lower(x).schedule.steps) == want
        assert f(x).shape == (2 * count, 2)
