"""hoist keeps every bit and error, and computes once what every step of a loop would compute."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tessera as ts
from tessera import Tensor, f64, op
from tessera.core.errors import NumericalError
from tessera.ir.graph.interp import interpret
from tessera.ir.graph.ir import Graph, Node
from tessera.ir.graph.verify import verify
from tessera.transform.budget import flops
from tessera.transform.hoist import hoist, may_fail
from tessera.transform.simplify import simplify
from tests.support.cases.random_graphs import same_bits

RUNS_ON = "numpy"
N, STEPS = 12, 7
RNG = np.random.default_rng(0)
A, B, X = (RNG.normal(size=(N, N)) for _ in range(3))
Loop = Callable[[Any, Any, Any], Any]


def graphs(f: Callable[..., Any], *args: Any) -> tuple[Graph, Graph]:
    """A function before and after hoist."""
    g = simplify(ts.trace(f, *map(ts.tensor, args)))
    moved = hoist(g)
    verify(moved)
    return g, moved


def work(g: Graph) -> float:
    return sum(flops(n) for n in g.nodes)


def inside(g: Graph) -> list[str]:
    """The ops in the last region of the only loop of a graph."""
    (loop,) = (n for n in g.nodes if n.regions)
    return [n.op.name for n in loop.regions[-1].nodes]


def same(f: Callable[..., Any], *args: Any) -> tuple[Graph, Graph]:
    """Both graphs, after a look at their bits."""
    g, moved = graphs(f, *args)
    assert same_bits(interpret(moved, args), interpret(g, args))
    return g, moved


def by_scan(a: Any, b: Any, x: Any) -> Any:
    return ts.scan(lambda c, row: (op.tanh(c + a @ b), op.sum(row * c[0])), x, b)


def by_fori(a: Any, b: Any, x: Any) -> Any:
    return ts.fori_loop(0, STEPS, lambda i, c: op.tanh(c + a @ b) * i, x)


def by_while(a: Any, b: Any, x: Any) -> Any:
    return ts.while_loop(lambda c: c[0] < op.trace(op.abs(a @ b)),
                         lambda c: (c[0] + 1, op.tanh(c[1] + a @ b)), (0.0, x))  # fmt: skip


def by_nested(a: Any, b: Any, x: Any) -> Any:
    inner = lambda c, s: ts.fori_loop(0, 3, lambda _, d: op.tanh(d + s * (a @ b)), c)  # noqa: E731
    return ts.fori_loop(0, STEPS, lambda i, c: inner(c, 0.5), x)


def by_kept_carry(a: Any, b: Any, x: Any) -> Any:
    return ts.fori_loop(0, STEPS, lambda i, c: (c[0], op.tanh(c[1] + c[0] @ b)), (a, x))


def by_branch(a: Any, b: Any, x: Any) -> Any:
    step = lambda i, c: ts.fori_loop(0, STEPS, lambda j, d: d + a @ b, c)  # noqa: E731
    return ts.cond(op.sum(a) > 0, lambda c: step(0, c), lambda c: c, x)


LOOPS = {"scan": by_scan, "fori": by_fori, "while": by_while, "nested": by_nested,
         "kept": by_kept_carry}  # fmt: skip


@pytest.mark.parametrize("name", LOOPS)
def test_an_invariant_product_is_computed_once(name: str) -> None:
    g, moved = same(LOOPS[name], A, B, X)
    assert work(g) >= N**3 * (STEPS if name != "while" else 2)
    products = [n for n in moved.nodes if n.op.name == "matmul"]
    assert 1 <= len(products) <= 2  # a while loop has it in its test too, merged later
    assert "matmul" not in inside(moved)
    if name != "while":  # its steps are not known
        assert work(moved) <= N**3 + work(g) - STEPS * N**3 * (3 if name == "nested" else 1)
    assert hoist(moved) is moved


def test_loops_in_branches_keep_their_work_in_the_branch() -> None:
    g, moved = same(by_branch, A, B, X)
    assert [n.op.name for n in moved.nodes] == [n.op.name for n in g.nodes]
    assert work(moved) < 0.3 * work(g)


def test_whole_loops_move() -> None:
    def f(a: Tensor, x: Tensor) -> Any:
        total = lambda: ts.fori_loop(0, 5, lambda i, c: op.sin(c @ a), a)  # noqa: E731
        return ts.fori_loop(0, STEPS, lambda i, c: op.cos(c + total()), x)

    g, moved = same(f, A, X)
    assert work(moved) < 0.3 * work(g)
    assert [n.op.name for n in moved.nodes if n.regions] == ["scan", "scan"]


def test_operands_that_are_no_longer_used_leave_the_loop() -> None:
    _, moved = graphs(by_fori, A, B, X)
    (loop,) = (n for n in moved.nodes if n.regions)
    assert [v.shape for v in loop.operands] == [(N, N), (STEPS,), (N, N)]


@pytest.mark.parametrize("steps", [0, 1, STEPS])
def test_gradients_and_batches_keep_their_bits(steps: int) -> None:
    def loss(a: Any, x: Any) -> Any:
        return op.sum(ts.fori_loop(0, steps, lambda i, c: op.tanh(c @ (a @ a.mT)), x))

    same(ts.grad(loss), A, X)
    same(ts.vmap(loss, in_axes=(None, 0)), A, np.stack([X, B]))


# What stays


def test_effects_stay_where_they_are_and_happen_as_often() -> None:
    seen: list[float] = []

    def f(a: Tensor, x: Tensor) -> Any:
        def body(i: Any, c: Any) -> Any:
            told = op.watch(op.sum(a), op.sum(a), to=lambda v: seen.append(float(v)))
            return c + told * (a @ a)

        return ts.fori_loop(0, STEPS, body, x)

    _, moved = graphs(f, A, X)
    assert "watch" in inside(moved)
    assert "matmul" not in inside(moved)
    interpret(moved, [A, X])
    assert len(seen) == STEPS


def solving(steps: Any, guard: bool = False) -> Callable[..., Any]:
    def f(a: Tensor, x: Tensor) -> Any:
        def body(i: Any, c: Any) -> Any:
            c = op.ensure(c, op.sum(c) < 1e9, message="too large") if guard else c
            return c + op.inv(a)

        return ts.fori_loop(0, steps, body, x)

    return f


def test_what_may_fail_moves_only_if_a_step_is_certain() -> None:
    _, moved = same(solving(STEPS), A, X)
    assert "inv" not in inside(moved)
    for f, args in ((solving(0), (A, X)), (solving(STEPS, guard=True), (A, X))):
        _, moved = same(f, *args)
        assert "inv" in inside(moved)


@pytest.mark.parametrize("steps", [0, 3])
def test_a_loop_of_unknown_length_fails_only_at_a_step(steps: int) -> None:
    zero = np.zeros((N, N))

    def f(a: Tensor, x: Tensor, n: Tensor) -> Any:
        return solving(n)(a, x)

    _, moved = graphs(f, zero, X, np.int64(steps))
    assert "inv" in inside(moved)
    if steps:
        with pytest.raises(NumericalError, match="singular"):
            interpret(moved, [zero, X, np.int64(steps)])
    else:
        assert same_bits(interpret(moved, [zero, X, np.int64(0)]), [X])


def test_cheap_and_growing_things_stay() -> None:
    def f(v: Tensor, x: Tensor) -> Any:
        spread = op.reshape(v, (N, 1)) * op.reshape(v, (1, N))  # n numbers that become n * n
        return ts.fori_loop(
            0, STEPS, lambda i, c: c + (op.reshape(v, (N, 1)) * v + 1.0) + spread, x
        )

    g, moved = same(f, A[0], X)
    assert moved is g


def test_numbers_are_widened_where_they_are_read() -> None:
    """A matrix of bytes stays one: a loop reads a quarter of what it would read of words."""

    def f(w: Tensor, x: Tensor) -> Any:
        return ts.fori_loop(0, STEPS, lambda i, c: c @ op.cast(w, f64), x)

    w = RNG.integers(-3, 3, (N, N)).astype(np.int8)
    g, moved = same(f, w, X)
    assert moved is g


def test_ops_that_may_fail_are_known() -> None:
    def first(f: Callable[..., Any]) -> Node:
        return ts.trace(f, Tensor[4, 4, f64]).nodes[-1]

    failing = (op.cholesky, op.inv, op.pinv, lambda a: op.solve(a, a),
               lambda a: op.ensure(a, op.sum(a) > 0, message="no"), op.eigvalsh)  # fmt: skip
    total = (op.softmax, lambda a: op.fft(a), op.sort, lambda a: a @ a, op.cumsum)
    assert all(any(map(may_fail, ts.trace(f, Tensor[4, 4, f64]).nodes)) for f in failing)
    assert not any(any(map(may_fail, ts.trace(f, Tensor[4, 4, f64]).nodes)) for f in total)
    assert not may_fail(first(op.softmax))


# Random bodies

UNARY = (
    op.sin,
    op.tanh,
    lambda v: op.sum(v, axis=0, keepdims=True) + v,
    lambda v: v.mT,
    lambda v: op.cumsum(v, axis=0),
)
BINARY = (lambda v, w: v @ w, lambda v, w: v + w, lambda v, w: op.maximum(v, w), lambda v, w: v * w)


@given(st.lists(st.tuples(st.integers(0, 8), st.integers(0, 9), st.integers(0, 9)), min_size=2, max_size=9),
       st.integers(0, 3), st.booleans())  # fmt: skip
def test_random_bodies_keep_their_bits(
    steps: list[tuple[int, int, int]], length: int, reverse: bool
) -> None:
    a, b, x = A[:4, :4], B[:4, :4], X[:4, :4]

    def body(b: Any, c: Any, row: Any) -> Any:
        held = [c, ts.tensor(np.eye(4)) + a, op.ones((4, 4), dtype=f64) * row, b]
        for kind, i, j in steps:
            v, w = held[i % len(held)], held[j % len(held)]
            held.append(UNARY[kind](v) if kind < 5 else BINARY[kind - 5](v, w))
        return op.tanh(held[-1]), held[-2][0]

    def f(b: Any, c: Any, rows: Any) -> Any:
        return ts.scan(lambda c, row: body(b, c, row), c, rows, reverse=reverse)

    same(f, b, x, X[0, :length].copy())
