"""Eager loops: the same bits, errors and effects before and after a loop is compiled as one program."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera import TesseraError, op
from tessera.compile import eager_loop
from tessera.core.flags import override
from tests.support.runners.each import each

W = ts.tensor(np.random.default_rng(0).standard_normal((8, 8)).astype(np.float32) * 0.3)
XS = ts.tensor(np.random.default_rng(1).standard_normal((40, 8)).astype(np.float32))
C = ts.zeros((8,))


@pytest.fixture(autouse=True)
def no_loops(monkeypatch: Any) -> None:
    monkeypatch.setattr(eager_loop, "_AGAIN", 100)
    eager_loop._KNOWN.clear()


def compiled() -> int:
    """How many loops have a program."""
    return sum(x.program is not None for x in eager_loop._KNOWN.values())


def same_bits(a: Any, b: Any) -> None:
    for x, y in zip(ts.tree.leaves(a), ts.tree.leaves(b), strict=True):
        assert x.dtype is y.dtype
        assert x.shape == y.shape
        assert x.numpy().tobytes() == y.numpy().tobytes()


def recurrent(c: Any, x: Any) -> Any:
    h = op.tanh(c @ W + x)
    return h, op.sum(h * x)


def noisy(c: Any, x: Any) -> Any:
    key, h = c
    key, use = ts.split(key)
    return (key, h + op.random.normal(use, (8,)) * x), op.mean(h)


def inner(c: Any, x: Any) -> Any:
    return ts.scan(lambda a, b: (a * 0.5 + b, op.max(a)), c, op.reshape(op.tile(x, (3,)), (3, 8)))


def gathered(c: Any, i: Any) -> Any:
    return c.at[i % 8].add(XS[i % 40, 3]), c[i % 8]


def branching(c: Any, x: Any) -> Any:
    return ts.cond(op.sum(x) > 0, lambda v: v + x, lambda v: v * -0.0, c), op.argmax(x)


LOOPS: dict[str, Callable[[], Any]] = {
    "matrix": lambda: ts.scan(recurrent, C, XS),
    "reverse": lambda: ts.scan(recurrent, C, XS, reverse=True),
    "unrolled": lambda: ts.scan(recurrent, C, XS, unroll=4),
    "random": lambda: ts.scan(noisy, (ts.key(3), C), XS),
    "nested": lambda: ts.scan(inner, C, XS),
    "indices": lambda: ts.scan(gathered, C, ts.arange(40)),
    "branches": lambda: ts.scan(branching, C, XS),
    "no xs": lambda: ts.scan(lambda c, _: (c * 1.01 + 1, c), 0.5, length=40),
    "narrow": lambda: ts.scan(lambda c, x: (c * x + x, c), C.astype("bf16"), XS.astype("bf16")),
    "host": lambda: ts.scan(lambda c, x: (c + op.svd(c)[1][0] * x[0], None), W, XS)[0],
    "fori": lambda: ts.fori_loop(0, 40, lambda i, c: op.sin(c) + i, C),
    "fori of tensors": lambda: ts.fori_loop(0, ts.tensor(40), lambda i, c: op.sin(c) + XS[i], C),
    "while": lambda: ts.while_loop(lambda c: c[0] < 40, lambda c: (c[0] + 1, c[1] @ W + 1), (0, C)),
    "bounded": lambda: ts.while_loop(
        lambda c: op.sum(c) < 900, lambda c: c * 1.1 + 1, C, bound=60
    ),
    "grad": lambda: ts.grad(lambda w: op.sum(ts.scan(lambda c, x: (op.tanh(c @ w + x), c), C, XS)[1]))(W),
    "vmap": lambda: ts.vmap(lambda c: ts.scan(recurrent, c, XS))(op.stack([C, C + 1])),
    "empty": lambda: ts.scan(recurrent, C, XS[:0]),
}  # fmt: skip


@each(LOOPS.items(), by=lambda c: c[0], told=lambda c: c[0])
def test_a_loop_has_its_bits_as_a_program(name: str, f: Callable[[], Any]) -> None:
    before = f()
    assert compiled() == 0 or name == "nested"
    for _ in range(11):
        again = f()
    assert compiled() > 0 or name == "empty"
    same_bits(again, before)


def test_a_while_loop_goes_on_compiled_where_it_is(monkeypatch: Any) -> None:
    def run() -> Any:
        return ts.while_loop(lambda c: c[0] < 2000, lambda c: (c[0] + 1, c[1] * 0.99 + 1), (0, 0.0))

    first = run()
    assert compiled() == 0
    same_bits(run(), first)
    assert compiled() == 1
    assert first[0].item() == 2000
    eager_loop._KNOWN.clear()
    monkeypatch.setattr(eager_loop, "_LONG", 700)
    same_bits(run(), first)
    assert compiled() == 1
    same_bits(ts.jit(run)(), first)


def test_captured_tensors_are_inputs() -> None:
    def run(w: Any) -> Any:
        return ts.scan(lambda c, x: (c * w + x, c), C, XS)

    for _ in range(20):
        run(W[0])
    assert compiled() == 1
    same_bits(run(W[1]), ts.jit(run)(W[1]))
    assert compiled() == len(eager_loop._KNOWN) == 1


def test_equal_bodies_of_other_numbers_are_other_loops() -> None:
    def run(k: float) -> Any:
        return ts.scan(lambda c, x: (c + k, c), C, XS)[0].numpy()[0]

    for _ in range(20):
        run(1.0)
    assert [run(k) for k in (1.0, 2.0, -0.0)] == [40.0, 80.0, 0.0]


def test_effects_happen_at_every_step() -> None:
    seen: list[float] = []

    def body(c: Any, x: Any) -> Any:
        ts.debug.callback(lambda v: seen.append(float(v)), c)
        return c + 1, None

    for _ in range(20):
        ts.scan(body, 0.0, XS)
    assert seen == [float(i) for _ in range(20) for i in range(40)]
    assert compiled() == 0


def test_functions_of_the_user_are_never_taken_for_equal() -> None:
    def run(f: Callable[[Any], Any]) -> Any:
        result = ts.tensor(0.0).type

        def body(c: Any, x: Any) -> Any:
            return c + ts.pure_callback(f, result, x[0]), None

        return ts.scan(body, 0.0, op.ones((40, 1)))[0].item()

    for _ in range(20):
        run(lambda v: np.float32(1))
    assert run(lambda v: np.float32(2)) == 80


@pytest.mark.parametrize("times", [1, 20], ids=["by steps", "compiled"])
def test_errors_are_those_of_the_line_of_the_body(times: int) -> None:
    def run(low: float) -> Any:
        return ts.scan(lambda c, x: (c - 0.1, op.cholesky(op.eye(2) * (c - low))), 5.0, length=40)

    for _ in range(times):
        run(0.0)
    with pytest.raises(TesseraError, match=r"cholesky: .* is not positive definite") as e:
        run(2.0)
    assert "test_eager_loops.py" in str(e.value)
    assert "op.cholesky(op.eye(2)" in str(e.value)


def test_what_is_checked_is_looked_at_step_by_step() -> None:
    def run() -> Any:
        return ts.scan(lambda c, x: (op.log(c - 1), c), 1.0, XS)

    for _ in range(20):
        run()
    for look in (ts.checked, ts.debug_nans):
        with look(), pytest.raises(TesseraError, match="log made"):
            run()
    with ts.checked(), pytest.raises(TesseraError, match="take: index 40 is out of range"):
        ts.scan(lambda c, i: (c, op.take(XS, i, 0)), 0.0, ts.arange(41))


def test_numerics_have_programs_of_their_own() -> None:
    def run() -> Any:
        return ts.scan(recurrent, C, XS)

    for mode in ("deterministic", "strict"):
        with ts.numerics(mode):
            first = run()
            for _ in range(20):
                same_bits(run(), first)
    for _ in range(9):
        with ts.numerics("strict"), pytest.raises(TesseraError, match="svd: numerics 'strict'"):
            LOOPS["host"]()


def test_a_fault_of_the_compiler_leaves_the_loop_to_its_steps(monkeypatch: Any) -> None:
    def fail(*_: Any) -> Any:
        raise RuntimeError("a fault")

    first = ts.scan(recurrent, C, XS)
    monkeypatch.setattr("tessera.compile._compiled", fail)
    monkeypatch.delenv("TESSERA_STRICT", raising=False)
    ts.scan(recurrent, C, XS)
    with override(strict=False), pytest.warns(ts.CompilerFaultWarning, match="op by op"):
        same_bits(ts.scan(recurrent, C, XS), first)
    same_bits(ts.scan(recurrent, C, XS), first)
    assert compiled() == 0
