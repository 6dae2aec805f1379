"""The collector rests while a program is compiled, and is as before afterwards."""

from __future__ import annotations

import gc
import threading

import numpy as np
import pytest

import tessera as ts
from tessera.core.garbage import collected_later


def test_collector_rests_inside_and_runs_afterwards() -> None:
    with collected_later():
        assert not gc.isenabled()
        with collected_later():
            pass
        assert not gc.isenabled()  # the outer block still runs
    assert gc.isenabled()
    with pytest.raises(KeyError), collected_later():
        raise KeyError
    assert gc.isenabled()


def test_a_collector_that_is_off_stays_off() -> None:
    gc.disable()
    try:
        with collected_later():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_the_last_of_several_threads_turns_it_on() -> None:
    inside, leave = threading.Event(), threading.Event()

    def other() -> None:
        with collected_later():
            inside.set()
            leave.wait()

    thread = threading.Thread(target=other)
    with collected_later():
        thread.start()
        inside.wait()
    assert not gc.isenabled()
    leave.set()
    thread.join()
    assert gc.isenabled()


def test_tracing_does_not_search_for_garbage() -> None:
    seen = []

    def f(x: ts.Tensor) -> ts.Tensor:
        seen.append(gc.isenabled())
        return x + 1.0

    ts.jit(f)(ts.tensor(np.ones(3, np.float32)))
    assert seen == [False]
    assert gc.isenabled()
