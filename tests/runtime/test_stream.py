"""Streams: in order within one, side by side between them, and nothing that fails is lost."""

from __future__ import annotations

import threading
import time
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera import Tensor, f32, op
from tessera.core.errors import OperandError, TesseraError
from tessera.lang.stream import Pending

X = ts.tensor(np.random.default_rng(0).normal(size=(33, 33)).astype("f"))


def slow(x: Any, seconds: float = 0.05) -> Any:
    """A jitted identity whose run takes a while."""
    f = ts.jit(lambda x: x * 1)
    f(x)
    entry = next(iter(f._entries.values()))
    kept = entry.executable.run

    def run(*given: Any) -> Any:
        time.sleep(seconds)
        return kept(*given)

    entry.executable.run = run
    return f


def test_a_call_returns_before_it_has_run_and_gives_the_same_bits() -> None:
    f, g = slow(X), ts.jit(lambda x: op.softmax(x @ x))
    want = g(X).numpy()
    s = ts.Stream()
    before = s.record()
    start = time.perf_counter()
    with s:
        y = g(f(X))
    after = s.record()
    assert time.perf_counter() - start < 0.04
    assert isinstance(y, Pending)
    assert not after.done
    assert (y.shape, y.dtype) == ((33, 33), f32)
    assert (y.numpy() == want).all()
    s.synchronize()
    assert after.done
    assert before.elapsed(after) >= 50
    with s:
        pass
    assert not isinstance(g(X), Pending)


def test_calls_of_one_stream_keep_their_order() -> None:
    seen: list[int] = []
    s = ts.Stream()
    for i in range(40):
        s.submit(lambda xs, i=i: seen.append(i) or xs, [X], [X.type], "test")  # type: ignore[misc]
    s.synchronize()
    assert seen == list(range(40))


def test_two_streams_run_side_by_side() -> None:
    meet = threading.Barrier(2, timeout=20)

    def run(xs: Any) -> Any:
        meet.wait()
        return xs

    streams = [ts.Stream(), ts.Stream()]
    outs = [s.submit(run, [X], [X.type], "test")[0] for s in streams]
    for y in outs:
        assert (y.numpy() == X.numpy()).all()


def test_an_event_orders_two_streams() -> None:
    seen: list[str] = []

    def told(text: str, seconds: float) -> Any:
        def run(xs: Any) -> Any:
            time.sleep(seconds)
            seen.append(text)
            return xs

        return run

    first, second = ts.Stream(), ts.Stream()
    first.submit(told("first", 0.05), [X], [X.type], "test")
    second.wait(first.record(ts.Event()))
    second.submit(told("second", 0), [X], [X.type], "test")
    second.synchronize()
    assert seen == ["first", "second"]


def test_results_are_tensors_for_ops_functions_derivatives_and_other_streams() -> None:
    f = ts.jit(lambda x: op.exp(x))
    want = f(X)
    with ts.Stream():
        y = f(X)
        with ts.Stream():
            z = f(y)
    assert (op.sum(y).numpy() == op.sum(want).numpy()).all()
    assert (np.asarray(z) == f(want).numpy()).all()
    assert (ts.grad(lambda x: op.sum(x * x))(y).numpy() == 2 * want.numpy()).all()
    assert repr(y) == repr(want)
    assert (f(y).numpy() == f(want).numpy()).all()


def test_symbolic_sizes_and_trees() -> None:
    @ts.jit
    def f(x: Tensor["N", "M", f32]) -> Any:
        return {"t": x.T, "both": op.concat([x, x], 0)}

    with ts.Stream():
        out = f(X[:5])
    assert {k: v.shape for k, v in out.items()} == {"t": (33, 5), "both": (10, 33)}
    assert (out["t"].numpy() == X.numpy()[:5].T).all()


def test_threads_and_donation_are_those_of_the_caller() -> None:
    f = ts.jit(lambda x: x + 1, donate=("x",))
    seen: list[int] = []
    s = ts.Stream()
    with s:
        y = f(ts.tensor(X.numpy().copy()))
    assert not isinstance(y, Pending)
    with ts.threads(3):
        s.submit(
            lambda xs: seen.append(ts.runtime.threads.thread_count()) or xs, [X], [X.type], "t"
        )  # type: ignore[func-returns-value]
    s.synchronize()
    assert seen == [3]


def test_a_result_of_a_stream_may_be_donated() -> None:
    with ts.Stream():
        y = ts.jit(lambda x: x + 1)(X)
    z = ts.jit(lambda x: x * 2, donate=("x",))(y)
    assert (z.numpy() == (X.numpy() + 1) * 2).all()
    with pytest.raises(OperandError, match="was donated"):
        ts.jit(lambda x: x + 3)(y)


def test_what_fails_is_raised_where_it_is_waited_for() -> None:
    def run(xs: Any) -> Any:
        raise TesseraError("no luck")

    s = ts.Stream()
    (y,) = s.submit(run, [X], [X.type], "test")
    (z,) = s.submit(lambda xs: xs, [y], [X.type], "test")
    for t in (y, z):
        with pytest.raises(TesseraError, match="no luck"):
            t.numpy()
    with pytest.raises(TesseraError, match="no luck"):
        s.synchronize()
    s.synchronize()
    with s:
        assert (ts.jit(lambda x: x * 2)(X).numpy() == 2 * X.numpy()).all()


def test_an_event_that_was_not_recorded() -> None:
    wanted = "event: it was recorded in no stream; call stream.record(event) first"
    for use in (ts.Event().wait, lambda: ts.Stream().wait(ts.Event())):
        with pytest.raises(OperandError) as e:
            use()
        assert e.value.message == wanted
    assert not ts.Event().done
