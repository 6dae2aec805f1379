"""What a `with` sets holds for its thread or task alone, in compiled calls too."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

import numpy as np
import pytest

import tessera as ts
from tessera.core import call_guard
from tessera.core.flags import carried, flags, override
from tessera.ir.graph.numbers import checking
from tessera.lang.device import as_device, current_device
from tessera.lang.kernel.launch import interpreting
from tessera.lang.stream import current_stream
from tessera.runtime.threads import thread_count


def _in_steps(*scripts: list[Callable[[], None]]) -> None:
    """Run each script in a thread of its own, their steps in turn: the first of each, the second of each
    ...
    """
    turns = threading.Barrier(len(scripts))
    errors: list[BaseException] = []

    def run(mine: int) -> None:
        for step in range(max(map(len, scripts))):
            for whose in range(len(scripts)):
                turns.wait()
                if whose == mine and step < len(scripts[mine]) and not errors:
                    try:
                        scripts[mine][step]()
                    except BaseException as e:
                        errors.append(e)

    threads = [threading.Thread(target=run, args=(i,)) for i in range(len(scripts))]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    if errors:
        raise errors[0]


def test_two_threads_that_leave_in_the_order_they_entered_change_nothing():
    before = flags()
    a, b = ts.numerics("fast"), ts.numerics("strict")
    seen: list[str] = []
    _in_steps(
        [lambda: a.__enter__(), lambda: seen.append(flags().numerics), lambda: a.__exit__(None, None, None),
        lambda: seen.append(flags().numerics)],
        [lambda: b.__enter__(), lambda: seen.append(flags().numerics), lambda: b.__exit__(None, None, None),
        lambda: seen.append(flags().numerics)],
    )  # fmt: skip
    assert seen == ["fast", "strict", before.numerics, before.numerics]
    assert flags() is before


def test_threads_that_share_one_device_object_return_to_their_own_devices():
    """The second thread enters last and leaves last: each returns to the device that it came from."""
    shared, own = ts.device("cpu:2"), ts.device("cpu:1")
    seen: list[str] = []

    def enter(*blocks: ts.device) -> None:
        for block in (override(cpu_devices=3), *blocks):
            block.__enter__()

    def leave() -> None:
        shared.__exit__(None, None, None)
        seen.append(str(current_device()))

    _in_steps([lambda: enter(shared), leave], [lambda: enter(own, shared), leave])
    assert seen == ["cpu:0", "cpu:1"]


def test_one_device_object_nests_in_itself():
    with override(cpu_devices=2):
        here = ts.device("cpu:1")
        with here:
            with here:
                assert str(current_device()) == "cpu:1"
            assert str(current_device()) == "cpu:1"
    assert str(current_device()) == "cpu:0"


@pytest.mark.parametrize(
    ("enter", "ask", "inside"),
    [
        (lambda: ts.numerics("fast"), lambda: flags().numerics, "fast"),
        (lambda: ts.threads(3), thread_count, 3),
        (lambda: override(target="numpy"), lambda: flags().target, "numpy"),
        (lambda: ts.checked(), lambda: flags().checked, True),
        (lambda: ts.debug_nans(), checking, True),
        (lambda: ts.interpret(), interpreting, True),
        (lambda: ts.device("cpu"), current_device, as_device("cpu")),
        (ts.Stream, lambda: current_stream() is not None, True),
    ],
)
def test_a_thread_started_in_a_block_has_the_defaults_of_the_environment(enter, ask, inside):
    default, seen = ask(), []
    with enter():
        assert ask() == inside
        t = threading.Thread(target=lambda: seen.append(ask()))
        t.start()
        t.join()
    assert seen == [default]
    assert ask() == default


def test_tasks_that_await_inside_a_block_keep_their_own():
    async def task(mode: str) -> list[str]:
        seen = []
        with ts.numerics(mode):
            for _ in range(3):
                await asyncio.sleep(0)
                seen.append(flags().numerics)
        return seen

    async def main() -> list[list[str]]:
        return await asyncio.gather(task("fast"), task("strict"), task("deterministic"))

    assert asyncio.run(main()) == [["fast"] * 3, ["strict"] * 3, ["deterministic"] * 3]


def test_strict_in_one_thread_refuses_nothing_in_another():
    x = ts.tensor(np.eye(3, dtype="f4") * 2)
    strict = ts.numerics("strict")

    def refused() -> None:
        with pytest.raises(ts.TesseraError, match="strict"):
            ts.op.eigh(x)

    def allowed() -> None:
        assert ts.op.eigh(x)[0].numpy().tolist() == [2, 2, 2]

    _in_steps(
        [lambda: strict.__enter__(), refused, lambda: strict.__exit__(None, None, None), allowed],
        [lambda: None, allowed, allowed, allowed],
    )  # fmt: skip


def test_a_compiled_call_of_one_thread_does_not_take_the_mode_of_another():
    """The call is machine code in both modes; each thread must get the bits of its own."""
    x = ts.tensor(np.random.default_rng(0).standard_normal(40_000).astype("f4"))
    f = ts.jit(lambda v: ts.op.sum(v * v) * 3)
    want = {}
    for mode in ("deterministic", "fast"):
        with ts.numerics(mode):
            for _ in range(5):
                want[mode] = f(x).numpy().tobytes()
    assert f._caller is not None, "the call never became machine code"
    got: dict[str, set[bytes]] = {"deterministic": set(), "fast": set()}
    stop = threading.Barrier(2)

    def run(mode: str) -> None:
        stop.wait()
        for _ in range(50):
            with ts.numerics(mode):
                for _ in range(20):
                    got[mode].add(f(x).numpy().tobytes())

    threads = [threading.Thread(target=run, args=(m,)) for m in got]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert {m: {want[m]} for m in want} == got


def test_compiled_calls_stay_compiled_inside_a_block_that_is_entered_again():
    x, f = ts.ones((8,)), ts.jit(lambda v: v + 1)
    asked = []
    for _ in range(3):
        with ts.numerics("fast"):
            for _ in range(4):
                f(x)
            asked.append(f._caller is not None and call_guard.configuration())
    assert len(set(asked)) == 1
    assert asked[0] is not False


def test_what_a_worker_of_ours_runs_has_the_settings_of_who_asked():
    with override(verify=not flags().verify), ts.threads(2):
        f = carried(lambda: (flags().verify, thread_count()))
        want = (flags().verify, 2)
    seen: list[tuple[bool, int]] = []
    t = threading.Thread(target=lambda: seen.append(f()))
    t.start()
    t.join()
    assert seen == [want]
    with ts.numerics("fast"), ts.Stream() as s:
        got: list[str] = []
        s.submit(lambda xs: got.append(flags().numerics) or xs, [], [], "t")
        s.synchronize()
    assert got == ["fast"]
