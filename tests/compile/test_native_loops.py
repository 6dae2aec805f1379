"""Loops without Python between their steps: the bits of steps that Python runs, whatever a body hands on."""

from __future__ import annotations

import random
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera import op
from tessera.compile.cpu import native_loop
from tessera.compile.cpu.bound_program import PROGRAMS, Prepared
from tessera.compile.cpu.native_loop import NativeLoop
from tessera.core import tree
from tessera.core.errors import NumericalError

SMALL, LARGE = (6, 11), (130, 257)  # steps of Python write over large ones in place
SEEDS = 36


def arrays(found: Any) -> list[np.ndarray[Any, Any]]:
    return [np.asarray(x) for x in tree.leaves(found)]


def by_python(run: Callable[[], Any]) -> Any:
    """A call while somebody observes programs: every step is a run of one."""
    seen = []

    def observer(p: Prepared) -> Any:
        def watched(inputs: Any) -> Any:
            seen.append(p)
            return p.own(inputs)

        return watched

    with PROGRAMS.by(observer):
        made = run()
    assert seen
    return made


def agree(f: Callable[..., Any], *args: Any) -> None:
    """Native loops, steps of Python and eager calls give the same bits, twice and on two threads."""
    jitted = ts.jit(f)
    given = [np.array(a) for a in args]
    wanted = arrays(by_python(lambda: jitted(*args)))
    for made in (jitted(*args), jitted(*args), f(*args)):
        for a, b in zip(arrays(made), wanted, strict=True):
            np.testing.assert_array_equal(a, b, strict=True)
    with ts.threads(2):
        for a, b in zip(arrays(jitted(*args)), wanted, strict=True):
            np.testing.assert_array_equal(a, b, strict=True)
    for a, b in zip(args, given, strict=True):
        np.testing.assert_array_equal(np.asarray(a), b, strict=True)


@pytest.fixture
def native_runs(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """One entry for each run of a native loop."""
    runs: list[int] = []
    own = NativeLoop.run

    def counted(self: NativeLoop, *args: Any) -> Any:
        runs.append(1)
        return own(self, *args)

    monkeypatch.setattr(NativeLoop, "run", counted)
    return runs


class Body:
    """A random body of a scan over four carries of one shape, two of another and a number."""

    def __init__(self, seed: int, shape: tuple[int, int]):
        self.draw, self.shape = random.Random(seed), shape

    def value(self, pool: list[Any]) -> Any:
        draw = self.draw
        x, y = draw.choice(pool), draw.choice(pool)
        kind = draw.randrange(12)
        match kind:
            case 0 | 1 | 2:
                return x  # handed on
            case 3:
                return op.tanh(x + y)
            case 4:
                return x * 0.5 - y * 0.25
            case 5:
                return op.roll(x, draw.choice((-1, 1, 3)), draw.randrange(2))
            case 6:
                return op.reshape(op.transpose(x), self.shape)
            case 7:
                return op.flip(x, draw.randrange(2))
            case 8:
                return x.at[draw.randrange(self.shape[0])].set(y[0] * 0.5)
            case 9:
                return x - op.mean(y, axis=1, keepdims=True)
            case 10:
                return op.cond(op.sum(x) > 0, lambda a, b: a * 0.5, lambda a, b: b, x, y)
            case _:
                inner = op.scan(lambda c, r: (c * 0.5 + r, c - r), x[0], y)
                return inner[1] if draw.random() < 0.5 else y + inner[0]

    def step(self, carry: Any, x: Any) -> Any:
        self.draw = random.Random(self.draw.random())
        a, b, c, d, n = carry
        pool = [a, b, c, d, x]
        pool += [self.value(pool) for _ in range(self.draw.randrange(1, 6))]
        new = [self.value(pool) for _ in range(4)]
        ys = [self.draw.choice(pool + new) for _ in range(2)]
        return (*new, n + 1), (*ys, n)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_random_bodies(seed: int, native_runs: list[int]) -> None:
    rng, shape = np.random.default_rng(seed), LARGE if seed % 3 == 2 else SMALL
    xs = rng.standard_normal((5, *shape)).astype(np.float32)
    begin = [rng.standard_normal(shape).astype(np.float32) for _ in range(4)]
    reverse = bool(seed % 2)

    def run(xs: Any, *begin: Any) -> Any:
        body = Body(seed, shape)
        state = body.draw.getstate()

        def step(carry: Any, x: Any) -> Any:
            body.draw.setstate(state)
            return body.step(carry, x)

        return op.scan(step, (*begin, 0), xs, reverse=reverse)

    agree(run, xs, *begin)
    assert native_runs


def branch_and_write(x: Any, p: Any) -> Any:
    """A branch may give the operand itself, which is written over while the result of the branch lives."""
    y = op.cond(p, lambda a: a, lambda a: a * 2, x)
    s = op.sum(op.svd(y[:3, :3])[1])
    return x.at[0].set(7.0), y * 1.0 + s * 0, y[0, :3]


@pytest.mark.parametrize("p", [True, False])
def test_what_a_branch_hands_on_outlives_a_donated_operand(p: bool) -> None:
    x = np.arange(200 * 200, dtype=np.float32).reshape(200, 200)
    wanted = arrays(branch_and_write(ts.tensor(x), np.bool_(p)))
    donating = ts.jit(branch_and_write, donate=("x",))
    for made in (
        donating(ts.tensor(x.copy()), np.bool_(p)),
        ts.jit(branch_and_write)(x, np.bool_(p)),
    ):
        for a, b in zip(arrays(made), wanted, strict=True):
            np.testing.assert_array_equal(a, b)


def test_steps_of_python_write_over_nothing_that_lives(native_runs: list[int]) -> None:
    """A body that calls the host, on carries that are large enough to be written in place."""

    def run(x: Any, y: Any) -> Any:
        def step(c: Any, _: Any) -> Any:
            x, y = c
            z = op.cond(op.sum(y) > 0, lambda a, b: a, lambda a, b: b, x, y)
            s = op.svd(z[:2, :2])[1]
            return (x.at[1].set(y[0] * 0.5), z * 0.5 + s[0]), s

        return op.scan(step, (x, y), None, length=4)

    rng = np.random.default_rng(0)
    x, y = (rng.standard_normal(LARGE).astype(np.float32) for _ in range(2))
    made, wanted = arrays(ts.jit(run)(x, y)), arrays(run(x, y))
    assert not native_runs
    for a, b in zip(made, wanted, strict=True):
        np.testing.assert_array_equal(a, b)


def test_what_is_handed_on_moves_without_copies(native_runs: list[int]) -> None:
    def rotate(a: Any, b: Any, c: Any) -> Any:
        return op.scan(
            lambda s, _: ((s[1], s[2], op.sin(s[0]) * 0.5), s[0]), (a, b, c), None, length=7
        )

    agree(rotate, *(np.full((3, 40), i, np.float32) for i in range(3)))
    agree(lambda a, b: op.scan(lambda s, _: ((s[0], s[0]), None), (a, b), None, length=3)[0],
          np.ones((70,), np.float32), np.zeros((70,), np.float32))  # fmt: skip
    assert native_runs


def test_while_loops_and_kernels_in_them(native_runs: list[int]) -> None:
    def newton(b: Any) -> Any:
        def step(y: Any, x: Any) -> Any:
            z, n = op.while_loop(
                lambda s: (s[1] < 20) & (op.max(op.abs(s[0] ** 3 + s[0] - x * b - y)) > 1e-5),
                lambda s: (s[0] - (s[0] ** 3 + s[0] - x * b - y) / (3 * s[0] * s[0] + 1), s[1] + 1),
                (y, 0),
            )
            return z, n

        return op.scan(step, b * 0, op.linspace(0, 1, 9).astype("float32"))

    agree(newton, np.random.default_rng(0).standard_normal(90).astype(np.float32))

    def collatz(n: Any) -> Any:
        """The inner loops are of scalars: each is a kernel of its own."""

        def length(best: Any, start: Any) -> Any:
            end = op.while_loop(
                lambda s: s[0] != 1,
                lambda s: (op.where(s[0] % 2 == 0, s[0] // 2, 3 * s[0] + 1), s[1] + 1),
                (start, op.full((), 0, dtype="int64")),
            )
            table = op.full((80,), 0, dtype="int64").at[start % 80].set(end[1])
            return op.maximum(best, table), end[1]

        return op.scan(length, op.full((80,), 0, dtype="int64"), n)

    agree(collatz, np.arange(1, 60))

    def powers(a: Any) -> Any:
        return op.while_loop(
            lambda s: s[2] > 1e-6,
            lambda s: _power(a, s),
            (op.ones((70,)), op.zeros(()), op.ones(())),
        )[1]

    agree(powers, np.random.default_rng(1).random((70, 70)).astype(np.float32))
    assert native_runs


def _power(a: Any, s: Any) -> Any:
    w = a @ s[0]
    n = op.sqrt(op.sum(w * w))
    return w / n, n, op.abs(n - s[1]) / n


@pytest.mark.parametrize("length", [0, 1, 2])
def test_few_steps_and_no_elements(length: int, native_runs: list[int]) -> None:
    def f(x: Any, e: Any) -> Any:
        return op.scan(
            lambda s, _: ((s[0] * 2, s[1] + 1), (s[0], s[1])), (x, e), None, length=length
        )

    agree(f, np.ones((70,), np.float32), np.ones((0, 3), np.float32))
    assert native_runs


def test_strided_operands_and_captured_arrays() -> None:
    table = np.arange(700, dtype=np.float32).reshape(70, 10)

    def f(x: Any, xs: Any) -> Any:
        return op.scan(lambda s, r: (s * 0.5 + r @ table, s[:5]), x, xs)

    agree(f, np.ones((10,), np.float32), np.asfortranarray(np.ones((6, 70), np.float32)))


def test_results_belong_to_the_caller() -> None:
    """Results of a call stay when the loop runs again."""
    f = ts.jit(lambda x: op.scan(lambda s, _: (s * 2, s), x, None, length=3))
    first = arrays(f(np.ones((70,), np.float32)))
    kept = [a.copy() for a in first]
    f(np.full((70,), 5, np.float32))
    for a, b in zip(first, kept, strict=True):
        np.testing.assert_array_equal(a, b)


def test_threads_run_one_loop_at_once() -> None:
    f = ts.jit(lambda x: op.scan(lambda s, _: (op.sin(s) + x, None), x, None, length=400)[0])
    xs = [np.full((100,), i, np.float32) for i in range(4)]
    wanted = [np.asarray(f(x)) for x in xs]
    wrong: list[int] = []

    def work(i: int) -> None:
        for _ in range(20):
            if not np.array_equal(np.asarray(f(xs[i])), wanted[i]):
                wrong.append(i)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="no timers")
def test_an_endless_loop_is_interrupted(native_runs: list[int]) -> None:
    class StopError(Exception):
        pass

    def stop(*_: Any) -> None:
        raise StopError

    def outer(x: Any) -> Any:
        def step(s: Any, _: Any) -> Any:
            return op.while_loop(lambda v: op.sum(v) > -1.0, lambda v: op.abs(op.sin(v)), s), None

        return op.scan(step, x, None, length=3)[0]

    f = ts.jit(outer)
    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, 1.0)
    begun = time.monotonic()
    try:
        with pytest.raises(StopError):
            f(np.ones((100,), np.float32))
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert native_runs
    assert time.monotonic() - begun < 30
    g = ts.jit(lambda x: op.scan(lambda s, _: (s + 1, None), x, None, length=3)[0])
    np.testing.assert_array_equal(
        np.asarray(g(np.zeros(100, np.float32))), np.full(100, 3, np.float32)
    )


def test_a_body_that_calls_the_host_runs_step_by_step(native_runs: list[int]) -> None:
    f = ts.jit(lambda x: op.scan(lambda s, _: (s * 2, op.svd(s)[1]), x, None, length=2))
    made = arrays(f(np.eye(9, dtype=np.float32)))
    assert not native_runs
    np.testing.assert_allclose(made[1], [[1] * 9, [2] * 9], rtol=1e-6)


def test_a_matrix_without_a_factor_ends_the_loop(native_runs: list[int]) -> None:
    def factors(shifts: Any) -> Any:
        base = np.eye(4, dtype=np.float32)

        def step(c: Any, s: Any) -> Any:
            return c + op.solve(base * (s + 1), base), op.cholesky(base * s)

        return op.scan(step, base * 0, shifts)

    agree(factors, np.array([1, 2, 3], np.float32))
    assert native_runs
    jitted = ts.jit(factors)
    for f in (jitted, factors):
        with pytest.raises(NumericalError, match=r"cholesky: f32\[4,4\] is not positive definite"):
            f(np.array([1, -2, 3], np.float32))
    np.testing.assert_array_equal(arrays(jitted(np.array([4, 9], np.float32)))[1][0], 2 * np.eye(4))


def test_layouts_are_made_once() -> None:
    """A second call makes no words again."""
    f = ts.jit(lambda x: op.scan(lambda s, _: (s + 1, None), x, None, length=3)[0])
    x = np.zeros(100, np.float32)
    f(x)
    made: list[Any] = []
    own = native_loop.LoopState.__init__

    def counted(self: Any, *args: Any) -> None:
        made.append(1)
        own(self, *args)

    native_loop.LoopState.__init__ = counted  # type: ignore[method-assign]
    try:
        f(x)
    finally:
        native_loop.LoopState.__init__ = own  # type: ignore[method-assign]
    assert not made
