"""Loops that run without Python between their steps are profiled as they run."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera import op
from tessera.compile.cpu.native_loop import NativeLoop
from tessera.inspect import profile_loop
from tessera.inspect.profile import Profile, profile
from tessera.inspect.profile_rows import self_times
from tessera.tune.measure import Timed

RNG = np.random.default_rng(0)
X = ts.tensor(RNG.normal(size=(48, 48)).astype(np.float32) / 7)


def steps(x: Any) -> Any:
    return ts.fori_loop(0, 9, lambda i, c: op.tanh(c @ x) + c, x)


def nested(x: Any) -> Any:
    def inner(c: Any) -> Any:
        return ts.fori_loop(0, 7, lambda i, c: op.tanh(c @ x), c)

    return ts.fori_loop(0, 3, lambda i, c: op.cos(inner(c)), x)


def until(x: Any) -> Any:
    return ts.while_loop(lambda c: op.sum(c * c) < 1e6, lambda c: c * 2 + x, x)


def choosing(x: Any) -> Any:
    def step(i: Any, c: Any) -> Any:
        return ts.cond(op.sum(c) > 0, lambda c: op.tanh(c @ x) - 1, lambda c: op.exp(c) + 1, c)

    return ts.fori_loop(0, 8, step, x)


def rows(x: Any) -> Any:
    return op.scan(lambda c, row: (op.tanh(c @ x + row), op.sum(c)), x[0], x)


def sides(x: Any) -> Any:
    """Kernels of a step that need nothing of each other, worth two threads."""

    def step(i: Any, c: Any) -> Any:
        a, b = c
        return op.tanh(op.sin(a) * 2), op.cumsum(b, axis=1) / 48

    big = op.tile(x, (8, 8))
    return ts.fori_loop(0, 6, step, (big, big))


def profiled(f: Callable[[Any], Any], x: Any = X, calls: int = 2) -> Profile:
    jitted = ts.jit(f, target="cpu")
    jitted(x)
    with profile() as p:
        for _ in range(calls):
            jitted(x)
    return p


def runs_by_part(p: Profile) -> list[int]:
    ran = p.loops[-1]
    return [ran.runs(i) for i in range(len(ran.parts))]


@pytest.mark.parametrize(
    "f", [steps, nested, until, choosing, rows, sides], ids=lambda f: f.__name__
)
@pytest.mark.parametrize("threads", [1, 2])
def test_a_profile_changes_no_bit_and_runs_no_step_in_python(
    f: Callable[[Any], Any], threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> Any:
        raise AssertionError("a step was run by Python")

    with ts.threads(threads):
        jitted = ts.jit(f, target="cpu")
        plain = jitted(X)
        monkeypatch.setattr(NativeLoop, "observed", _native_only(NativeLoop.observed, refuse))
        with profile() as p:
            again = jitted(X)
    assert p.loops
    for a, b in zip(ts.tree.leaves(plain), ts.tree.leaves(again), strict=True):
        np.testing.assert_array_equal(np.asarray(a), np.asarray(b))


def _native_only(observed: Any, refuse: Any) -> Any:
    def run(self: NativeLoop, operands: Any) -> Any:
        slow, self.slow = self.slow, refuse
        try:
            return observed(self, operands)
        finally:
            self.slow = slow

    return run


@pytest.mark.parametrize(
    ("f", "wanted"), [(steps, [9]), (nested, [3, 21]), (rows, [48])], ids=["loop", "nested", "scan"]
)
def test_every_step_is_counted(f: Callable[[Any], Any], wanted: list[int]) -> None:
    p = profiled(f)
    assert len(p.loops) == 2
    assert runs_by_part(p) == wanted
    names = {part.program.name for part in p.loops[0].parts}
    launches = [r.launches for r in p.kernels if r.kind == "kernel" and r.program in names]
    assert launches
    assert all(n in {2 * w for w in wanted} for n in launches)


def test_the_test_of_a_loop_runs_once_more_than_its_steps() -> None:
    turns, c = 0, np.asarray(X)
    while (c * c).sum() < 1e6:
        turns, c = turns + 1, c * 2 + np.asarray(X)
    assert sorted(runs_by_part(profiled(until))) == [turns, turns + 1]


def test_branches_are_counted_as_they_were_taken() -> None:
    ran = profiled(choosing).loops[-1]
    (body,) = [i for i, part in enumerate(ran.parts) if part.parent == -1]
    branches = [ran.runs(i) for i, part in enumerate(ran.parts) if part.parent == body]
    assert ran.runs(body) == 8
    assert len(branches) == 2
    assert sum(branches) == 8
    assert min(branches) > 0


@pytest.mark.parametrize(
    "f", [steps, nested, until, choosing, rows, sides], ids=lambda f: f.__name__
)
def test_what_a_loop_does_lies_inside_of_it(f: Callable[[Any], Any]) -> None:
    p = profiled(f)
    assert min(self_times(p.spans)) >= 0
    assert sum(p.totals.values()) == pytest.approx(p.wall)
    loops = [s for s in p.spans if s.kind == "loop"]
    assert len(loops) == 2
    inner = [s for s in p.spans if s.row >= 0 and s.kind == "kernel"]
    assert any(loops[0].begin <= s.begin and s.end <= loops[0].end for s in inner)
    for r in p.kernels:
        assert r.seconds >= 0


def test_short_steps_are_counted_one_by_one_and_timed_now_and_then() -> None:
    """5,000 steps of a microsecond: the log has room for 2,000, and clocks do not fill the loop."""

    def short(x: Any) -> Any:
        return ts.fori_loop(0, 5000, lambda i, c: op.tanh(c @ x) * 0.5 + c[0], x)

    p = profiled(short, X[:8, :8])
    ran = p.loops[-1]
    assert runs_by_part(p) == [5000]
    assert not ran.whole
    assert len(ran.log) <= 2000
    (row,) = [r for r in p.kernels if r.program == ran.parts[0].program.name]
    assert row.launches == 10_000
    assert len(row.runs) == 10_000
    loops = [s for s in p.spans if s.kind == "loop"]
    # The estimate of all runs is near what they took; this machine may be busy.
    within = sum(s.end - s.begin for s in loops) / 1e9
    assert 0.02 * within < row.seconds < 2 * within


def test_jobs_side_by_side_share_the_time_of_their_phase() -> None:
    with ts.threads(2):
        ran = profiled(sides).loops[-1]
    for own in ran.steps:
        for s in own:
            assert s.runs == 6
            assert s.nanoseconds > 0
            assert 1 <= s.busy <= 2.1


def test_without_a_clock_steps_run_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profile_loop, "clock", lambda: None)
    p = profiled(steps)
    assert not p.loops
    (body,) = {s.name for s in p.spans if s.kind == "program" and "body" in s.name}
    assert sum(s.name == body and s.kind == "program" for s in p.spans) == 18


def test_a_result_is_dropped_before_the_next_run_begins() -> None:
    """Two results alive at once take memory in turn, and large ones came from the system each time."""

    class Result:
        pass

    last: list[Any] = []

    def run() -> Any:
        assert not last or last[-1]() is None
        made = Result()
        last.append(weakref.ref(made))
        return made

    timed = Timed(run, least=1e-4)
    timed.sampled(0.005)
    assert timed.repeats > 1
    assert len(timed.times) >= 3
