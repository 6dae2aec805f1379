"""cond, scan, while_loop and fori_loop against Python's own control flow."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tessera as ts
from tessera import Tensor, op
from tessera.core.errors import (
    DTypeError,
    OperandError,
    RuleError,
    ShapeError,
    TesseraError,
    TraceError,
    TreeError,
)
from tessera.ir.graph.verify import verify
from tests.support.runners.tolerance import (
    DIFFERENCE,
    DIFFERENCE_STEP,
    assert_close,
    assert_same_bits,
)

RNG = np.random.default_rng(0)
BIG = ts.tensor(RNG.normal(size=(10, 10)))  # more than a graph holds as a constant
X = ts.tensor([1.0, 2.0, 3.0])
SCALE = ts.tensor(0.3)


class State(NamedTuple):
    """A carry with named parts."""

    total: Any
    steps: Any


def step(c: State, x: dict[str, Tensor]) -> tuple[State, tuple[Tensor, Tensor]]:
    total = op.sin(c.total) + x["a"] * x["b"]
    return State(total, c.steps + 1), (total, c.steps)


def python_scan(
    f: Callable[..., Any], carry: Any, xs: Any, length: int, reverse: bool = False
) -> tuple[Any, list[Any]]:
    """The meaning of scan, step by step on concrete tensors."""
    ys: list[Any] = [None] * length
    for i in reversed(range(length)) if reverse else range(length):
        carry, ys[i] = f(carry, ts.tree.map(lambda v, i=i: v[i], xs))
    return carry, ys


def both(f: Callable[..., Any], *args: Any) -> Any:
    """f(*args), checked to be the same bits eagerly and compiled."""
    eager = f(*args)
    for got, want in zip(ts.tree.leaves(ts.jit(f)(*args)), ts.tree.leaves(eager), strict=True):
        assert_same_bits(got, want)
    return eager


# The law: what Python's own loops compute -------------------------------------------------------


@given(st.integers(0, 6), st.booleans(), st.integers(0, 3))
def test_scan_is_a_loop(length: int, reverse: bool, width: int) -> None:
    rng = np.random.default_rng([length, width])
    xs = {
        "a": ts.tensor(rng.normal(size=(length, width))),
        "b": ts.tensor(rng.normal(size=(length,))),
    }
    init = State(ts.tensor(rng.normal(size=(width,))), ts.tensor(0))
    last, ys = both(lambda c, x: ts.scan(step, c, x, reverse=reverse), init, xs)
    want, rows = python_scan(step, init, xs, length, reverse)
    assert isinstance(last, State)
    for got, w in zip(last, want, strict=True):
        assert_same_bits(got, w)
    for k, y in enumerate(ys):
        assert y.shape[0] == length
        for i in range(length):
            assert_same_bits(y[i], rows[i][k])


@given(st.integers(-3, 9), st.integers(-3, 9))
def test_fori_loop_is_a_loop_over_a_range(low: int, high: int) -> None:
    want = 7
    for i in range(low, high):
        want = want * 3 - i

    def body(i: Tensor, x: Tensor) -> Tensor:
        return x * 3 - i

    assert int(both(lambda x: ts.fori_loop(low, high, body, x), ts.tensor(7))) == want
    traced = both(lambda a, b: ts.fori_loop(a, b, body, 7), ts.tensor(low), ts.tensor(high))
    assert int(traced) == want


@given(st.integers(1, 10**6))
def test_while_loop_is_a_loop(n: int) -> None:
    want, steps = n, 0
    while want != 1:
        want, steps = (want // 2 if want % 2 == 0 else 3 * want + 1), steps + 1

    def collatz(c: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        x, k = c
        return op.cond(op.eq(x % 2, 0), lambda: x // 2, lambda: 3 * x + 1), k + 1

    run = ts.jit(lambda x: ts.while_loop(lambda c: c[0] != 1, collatz, (x, 0)))
    assert int(run(ts.tensor(n))[1]) == steps


@pytest.mark.parametrize("flag", [True, False])
def test_cond_runs_one_branch(flag: bool) -> None:
    def f(p: Tensor, x: Tensor) -> Any:
        return op.cond(p, lambda x: {"y": x + 1, "n": 1}, lambda x: {"y": x * SCALE, "n": 2}, x)

    out = both(f, ts.tensor(flag), X)
    assert int(out["n"]) == (1 if flag else 2)
    want = X + 1 if flag else X * SCALE
    assert_same_bits(out["y"], want)
    assert op.cond(flag, lambda: 1, lambda: 0).item() == int(flag)


def test_the_other_branch_does_not_run() -> None:
    """An endless loop in the branch that is not taken does no harm."""

    def endless(x: Tensor) -> Tensor:
        return ts.while_loop(lambda c: op.all(op.eq(c, c)), lambda c: c, x)

    assert_same_bits(op.cond(True, lambda x: x, endless, X), X)


# Trees, captures, nesting -----------------------------------------------------------------------


def test_captured_tensors_become_operands() -> None:
    def f(w: Tensor, x: Tensor) -> Tensor:
        def body(c: Tensor, _: None) -> tuple[Tensor, None]:
            return op.tanh(op.matmul(w, c)) + op.matmul(BIG, c), None

        return ts.scan(body, x, length=3)[0]

    w, x = ts.tensor(RNG.normal(size=(10, 10))), ts.tensor(RNG.normal(size=10))
    want = x
    for _ in range(3):
        want = op.tanh(op.matmul(w, want)) + op.matmul(BIG, want)
    assert_same_bits(both(f, w, x), want)
    g = ts.jit(f).lower(w, x).graph
    verify(g)
    (node,) = [n for n in g.nodes if n.op.name == "scan"]
    assert [v.type for v in node.regions[0].inputs] == [v.type for v in node.operands]


def test_regions_of_one_node_have_the_same_inputs() -> None:
    a, b = ts.tensor(RNG.normal(size=100)), ts.tensor(RNG.normal(size=(2, 100)))

    def f(p: Tensor, x: Tensor) -> Tensor:
        return op.cond(p, lambda: op.sum(a * x), lambda: op.sum(b * x) + op.sum(a))

    x = ts.tensor(RNG.normal(size=100))
    assert_close(both(f, ts.tensor(True), x), float(op.sum(a * x)))
    assert_close(both(f, ts.tensor(False), x), float(op.sum(b * x) + op.sum(a)))
    g = ts.jit(f).lower(ts.tensor(True), x).graph
    verify(g)
    (node,) = [n for n in g.nodes if n.op.name == "cond"]
    yes, no = node.regions
    assert [v.type for v in yes.inputs] == [v.type for v in no.inputs]


def test_loops_nest_and_see_outer_values() -> None:
    def f(x: Tensor) -> Tensor:
        def outer(total: Tensor, row: Tensor) -> tuple[Tensor, Tensor]:
            def inner(i: Tensor, c: Tensor) -> Tensor:
                return op.cond(
                    op.sum(row) > 0, lambda c: c + op.sum(row * x), lambda c: c - total, c
                )

            return ts.fori_loop(0, 3, inner, total), op.sum(row)

        return ts.scan(outer, ts.tensor(0.5, ts.f64), x)

    x = RNG.normal(size=(4, 3))
    total = 0.5
    for row in x:
        start = total
        for _ in range(3):
            total = total + (row * x).sum() if row.sum() > 0 else total - start
    last, sums = both(f, ts.tensor(x))
    assert_close(last, total)
    assert_close(sums, x.sum(1))


def test_jitted_functions_run_inside_regions() -> None:
    double = ts.jit(lambda x: x * 2)
    assert_same_bits(both(lambda x: ts.fori_loop(0, 3, lambda i, c: double(c), x), X), X * 8)


def test_symbolic_sizes_inside_regions() -> None:
    @ts.jit
    def f(x: Tensor["S", "D", ts.f32]) -> Any:
        def body(c: Tensor, row: Tensor) -> tuple[Tensor, Tensor]:
            return c + op.sum(row) * x.shape[0], op.concat([row, op.ones((x.shape[0],))])

        total, ys = ts.scan(body, op.zeros((x.shape[0],)), x)
        return total, ys, ts.fori_loop(0, x.shape[0], lambda i, c: c + i, 0)

    for s, d in ((3, 2), (5, 4)):
        x = np.ones((s, d), np.float32)
        total, ys, count = f(ts.tensor(x))
        assert_close(total, np.full(s, s * s * d, np.float32))
        assert ys.shape == (s, d + s)
        assert int(count) == s * (s - 1) // 2
    assert f.compiled == 1


def test_a_scan_of_no_steps_returns_its_carry_and_empty_rows() -> None:
    last, ys = both(lambda x: ts.scan(lambda c, v: (c + v, (c, v > 0)), 2.0, x), op.zeros((0,)))
    assert float(last) == 2
    assert [y.type for y in ys] == [op.zeros((0,)).type, (op.zeros((0,)) > 0).type]
    assert ts.fori_loop(5, 2, lambda i, c: c * 0, 3).item() == 3


def test_python_numbers_take_the_dtype_of_the_body() -> None:
    x = ts.tensor(np.array([0.5, 1.5]))
    last, _ = ts.scan(lambda c, v: (c + v, None), 0, x)
    assert (last.dtype, float(last)) == (ts.f64, 2.0)
    assert ts.while_loop(lambda c: c < 3, lambda c: op.cast(c + 1, ts.i8), 0).dtype is ts.i8


def test_narrow_dtypes_pass_through_unchanged() -> None:
    x = ts.tensor([1.0, 2.0, 3.0], ts.bf16)
    last, ys = both(lambda x: ts.scan(lambda c, v: (c * v, c), x[0], x), x)
    assert (last.dtype, ys.dtype) == (ts.bf16, ts.bf16)
    assert float(last) == 6


def test_results_may_be_empty_trees() -> None:
    assert op.cond(True, lambda: None, lambda: None) is None
    assert ts.scan(lambda c, _: (c, None), (), length=3) == ((), None)


# Derivatives ------------------------------------------------------------------------------------

W = ts.tensor(RNG.normal(size=(4, 4)))


def rnn(x: Tensor) -> Tensor:
    def step(h: Tensor, row: Tensor) -> tuple[Tensor, Tensor]:
        h = op.tanh(op.matmul(W, h) + row * x[0])
        return h, h * h

    h, ys = ts.scan(step, op.zeros((4,), ts.f64), x)
    return op.sum(h) + op.sum(ys * ys)


def nested(x: Tensor) -> Tensor:
    def outer(c: Tensor, row: Tensor) -> tuple[Tensor, Tensor]:
        def inner(d: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
            return op.cond(v > 0, lambda d: d * v, lambda d: d + op.sin(v) * c, d), d

        d, ys = ts.scan(inner, c, row, reverse=True)
        return d, op.sum(ys)

    c, ys = ts.scan(outer, x[0, 0], x)
    return c + op.sum(ys)


def integers(x: Tensor) -> Tensor:
    """A carry with parts that have no derivative."""

    def body(c: tuple[Tensor, Tensor, Tensor], v: Tensor) -> Any:
        n, flag, y = c
        return (n + 1, op.logical_not(flag), op.where(flag, y * v, y + v)), (n, y)

    (_, _, y), (_, ys) = ts.scan(body, (0, True, x[0]), x)
    return y + op.sum(ys * ys)


DIFFERENTIABLE: dict[str, tuple[Callable[[Tensor], Tensor], tuple[int, ...]]] = {
    "rnn": (rnn, (6, 4)),
    "nested": (nested, (3, 4)),
    "integers": (integers, (5,)),
    "no_carry": (lambda x: op.sum(ts.scan(lambda c, v: (c, op.sin(v) * v), (), x)[1]), (5,)),
    "no_steps": (lambda x: ts.scan(lambda c, v: (c * v, None), op.sum(x), x[:0])[0], (3,)),
    "reverse": (
        lambda x: op.sum(ts.scan(lambda c, v: (c * v + 1, op.sin(c)), x[0], x, reverse=True)[1]),
        (5,),
    ),
    "fori": (lambda x: op.sum(ts.fori_loop(0, 4, lambda i, c: op.sin(c) * x + i, x)), (3,)),
    "constant_carry": (lambda x: ts.scan(lambda c, v: (op.exp(v), c * v), 1.0, x)[0], (4,)),
    "yes": (lambda x: op.sum(op.cond(True, lambda v: op.exp(v) * x, lambda v: v, x)), (3,)),
    "no": (lambda x: op.sum(op.cond(False, lambda v: v, lambda v: op.exp(v) * x, x)), (3,)),
    "flat_branch": (
        lambda x: op.sum(op.cond(True, lambda v: v * 0 + 1.0, op.sin, x)) + op.sum(x * x), (3,),
    ),
    "large_constant": (
        lambda x: ts.scan(lambda c, v: (c + op.sum(BIG * v * c), None), x[0] / 99, x / 99)[0], (3,),
    ),
    "call": (lambda x: ts.fori_loop(0, 3, lambda i, c: ts.jit(op.sin)(c) * c, op.sum(x)), (3,)),
}  # fmt: skip


def difference(f: Callable[[Tensor], Tensor], x: Tensor, v: Tensor) -> Any:
    """The derivative of f at x along v by a central difference."""
    h = DIFFERENCE_STEP
    return (f(x + v * h) - f(x - v * h)).numpy() / (2 * h)


@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_derivatives_are_differences(name: str) -> None:
    """Forward, reverse, linearized and compiled, and again of the gradient."""
    f, shape = DIFFERENTIABLE[name]
    rng = np.random.default_rng(1)
    x, v = ts.tensor(rng.normal(size=shape)), ts.tensor(rng.normal(size=shape))
    want = difference(f, x, v)
    assert_close(ts.jvp(f, (x,), (v,))[1], want, DIFFERENCE, times=10)
    slope = ts.jvp(f, (x,), (v,))[1].numpy()
    assert_close(op.sum(ts.grad(f)(x) * v), slope)
    assert_close(op.sum(ts.jit(ts.grad(f))(x) * v), slope)
    assert_close(ts.linearize(f, x)[1](v), slope)

    def along(x: Tensor) -> Tensor:
        return op.sum(ts.grad(f)(x) * v)

    second = difference(along, x, v)
    assert_close(ts.jvp(along, (x,), (v,))[1], second, DIFFERENCE, times=100)
    assert_close(op.sum(ts.grad(along)(x) * v), second, DIFFERENCE, times=100)


def test_while_loop_without_a_bound_has_forward_derivatives_only() -> None:
    def f(x: Tensor) -> Tensor:
        def more(c: tuple[Tensor, Tensor]) -> Tensor:
            return c[0] < 4

        return op.sum(ts.while_loop(more, lambda c: (c[0] + 1, op.sin(c[1]) * x), (0, x))[1])

    x, v = ts.tensor(RNG.normal(size=3)), ts.tensor(RNG.normal(size=3))
    assert_close(ts.jvp(f, (x,), (v,))[1], difference(f, x, v), DIFFERENCE, times=10)
    with pytest.raises(RuleError) as caught:
        ts.grad(f)(x)
    assert caught.value.message == (
        "while_loop: reverse mode needs to know the most steps that it takes; pass bound=n, or use "
        "op.scan or op.fori_loop"
    )


def root(a: Any, bound: Any = None) -> Any:
    """Newton's iteration for a square root, which takes more steps for larger numbers."""
    return ts.while_loop(
        lambda x: op.abs(x * x - a) > 1e-12 * a, lambda x: 0.5 * (x + a / x), a, bound=bound
    )


@pytest.mark.parametrize("bound", [10, 11, 64])
def test_a_bounded_while_loop_runs_backwards(bound: int) -> None:
    xs = ts.tensor(np.array([2.0, 7.3, 900.0]))
    want = 0.5 / np.sqrt(xs.numpy())
    f = lambda a: root(a, bound)  # noqa: E731
    for x, w in zip(xs, want, strict=True):
        np.testing.assert_array_equal(f(x), root(x))
        assert_close(ts.grad(f)(x), w, times=10)
        assert_close(ts.jit(ts.grad(f))(x), w, times=10)
        assert_close(ts.grad(ts.grad(f))(x), -0.25 * x.numpy() ** -1.5, times=100)
    assert_close(ts.vmap(ts.grad(f))(xs), want, times=10)
    assert_close(ts.grad(lambda x: op.sum(ts.vmap(f)(x)))(xs), want, times=10)


def test_a_bounded_while_loop_stops_at_its_bound() -> None:
    x = ts.tensor(np.array(7.0))
    by_hand = lambda a: 0.5 * (0.5 * (a + 1) + a / (0.5 * (a + 1)))  # noqa: E731
    assert_close(root(x, 2), by_hand(x))
    assert_close(ts.grad(lambda a: root(a, 2))(x), ts.grad(by_hand)(x))
    assert float(root(x, 0)) == 7.0
    assert float(ts.grad(lambda a: root(a, 0))(x)) == 1.0


def test_a_symbolic_bound() -> None:
    @ts.jit
    def g(x: Tensor["N", ts.f64]) -> Any:
        return ts.grad(lambda x: ts.while_loop(
            lambda c: c < 5, lambda c: c * op.sum(x), op.sum(x), bound=x.shape[0]
        ))(x)  # fmt: skip

    for n, power in ((2, 3), (9, 4)):
        x = ts.tensor(np.full(n, 1.5 / n))
        assert_close(g(x), np.full(n, power * 1.5 ** (power - 1)))
    assert g.compiled == 1


def test_a_bounded_loop_keeps_few_carries() -> None:
    """Of 400 carries some 20 at the ends of blocks are stored, and 20 of one block at a time."""
    x = ts.tensor(RNG.normal(size=5))

    def f(x: Tensor) -> Tensor:
        return op.sum(ts.while_loop(lambda c: c[0] < 1e9, lambda c: op.sin(c) + x, x, bound=400))

    sizes = [
        v.shape[0]
        for n in ts.jit(ts.grad(f)).lower(x).graph.nodes
        for v in n.results
        if v.ndim == 2
    ]
    assert max(sizes) == 20


def test_the_primal_runs_once_in_a_gradient() -> None:
    """One scan forward and one backward: the joint node is cut, not repeated."""
    x = ts.tensor(RNG.normal(size=(6, 4)))
    g = ts.jit(ts.grad(rnn)).lower(x).graph
    assert [n.params["reverse"] for n in g.nodes if n.op.name == "scan"] == [False, True]


# Messages ---------------------------------------------------------------------------------------

WRONG: dict[str, tuple[Callable[[], Any], type[TesseraError], str]] = {
    "cond_of_a_vector": (
        lambda: op.cond(X > 0, lambda: 1, lambda: 2), DTypeError,
        "cond: the condition is bool[3], expected bool[]; compare, as in x > 0, or reduce with "
        "op.any or op.all",
    ),
    "cond_of_a_number": (
        lambda: op.cond(1.0, lambda: 1, lambda: 2), DTypeError,
        "cond: the condition is f32[], expected bool[]; compare, as in x > 0, or reduce with "
        "op.any or op.all",
    ),
    "cond_without_function": (
        lambda: op.cond(True, 1, lambda: 2), OperandError,
        "cond: true_fn is int, expected a function",
    ),
    "branches_of_other_structure": (
        lambda: op.cond(True, lambda x: (x, x), lambda x: [x], X), TreeError,
        "cond: true_fn returns (*, *) but false_fn returns [*]; make both return the same structure",
    ),
    "branches_of_other_dtype": (
        lambda: op.cond(True, lambda x: {"a": x}, lambda x: {"a": x.astype(ts.f64)}, X), DTypeError,
        "cond: result['a'] is f32[3] from true_fn but f64[3] from false_fn; cast one with "
        "astype('f32')",
    ),
    "branches_of_other_shape": (
        lambda: op.cond(True, lambda x: x, op.sum, X), ShapeError,
        "cond: result is f32[3] from true_fn but f32[] from false_fn; make the shapes equal, for "
        "example with op.broadcast_to",
    ),
    "branch_returns_a_string": (
        lambda: op.cond(True, lambda: "yes", lambda: "no"), TraceError,
        "cond: true_fn returned str 'yes', expected tensors in tuples, lists or dicts",
    ),
    "operand_is_a_string": (
        lambda: op.cond(True, lambda x: 1, lambda x: 2, {"a": "b"}), OperandError,
        "cond: operands[0]['a'] is str, expected a tensor",
    ),
    "carry_changes_dtype": (
        lambda: ts.scan(lambda c, x: ((c[0] > x, c[1]), x), (X[0], X), X), DTypeError,
        "scan: carry[0] enters f as f32[] but leaves it as bool[]; cast one with astype('f32')",
    ),
    "carry_changes_shape": (
        lambda: ts.scan(lambda c, x: ({"h": op.stack([x, x])}, x), {"h": X[0]}, X), ShapeError,
        "scan: carry['h'] enters f as f32[] but leaves it as f32[2]; make the shapes equal, for "
        "example with op.broadcast_to",
    ),
    "named_carry_changes_dtype": (
        lambda: ts.scan(lambda c, x: (State(c.total, x), x), State(X[0], 0), X > 0), DTypeError,
        "scan: carry.steps enters f as i64[] but leaves it as bool[]; cast one with astype('i64')",
    ),
    "carry_changes_structure": (
        lambda: ts.scan(lambda c, x: ((c, c), x), X[0], X), TreeError,
        "scan: f returns the carry (*, *) but init is *; make both the same structure",
    ),
    "scan_returns_one_thing": (
        lambda: ts.scan(lambda c, x: c, X[0], X), TreeError,
        "scan: f returns *, expected (carry, y)",
    ),
    "a_counted_loop_changes_shape": (
        lambda: ts.fori_loop(0, 3, lambda i, c: op.sum(c), X), ShapeError,
        "fori_loop: carry enters body_fn as f32[3] but leaves it as f32[]; make the shapes equal, for "
        "example with op.broadcast_to",
    ),
    "a_counted_loop_to_a_tensor_changes_structure": (
        lambda: ts.jit(lambda n: ts.fori_loop(0, n, lambda i, c: (c, c), X))(3), TreeError,
        "fori_loop: body_fn returns the carry (*, (*, *)) but init is (*, *); make both the same structure",
    ),
    "scan_without_length": (
        lambda: ts.scan(lambda c, x: (c, x), X[0]), OperandError,
        "scan: xs has no tensors, so that length must be given",
    ),
    "scan_along_a_scalar": (
        lambda: ts.scan(lambda c, x: (c, x), X[0], {"a": X[0]}), ShapeError,
        "scan: xs['a'] is f32[], a scalar; scan runs along the first axis",
    ),
    "scan_along_unequal_axes": (
        lambda: ts.scan(lambda c, x: (c, x), X[0], (X, X[:2])), ShapeError,
        "scan: xs[1] f32[2] has 2 along axis 0 but xs[0] f32[3] has 3",
    ),
    "scan_of_another_length": (
        lambda: ts.scan(lambda c, x: (c, x), X[0], X, length=4), ShapeError,
        "scan: xs f32[3] has 3 along axis 0 but length is 4",
    ),
    "scan_of_negative_length": (
        lambda: ts.scan(lambda c, x: (c, x), X[0], length=-1), OperandError,
        "scan: length -1 is not a size",
    ),
    "while_changes_dtype": (
        lambda: ts.while_loop(lambda c: c < 3, lambda c: c * 0.5, ts.tensor(1)), DTypeError,
        "while_loop: carry enters body_fn as i64[] but leaves it as f32[]; cast one with "
        "astype('i64')",
    ),
    "number_that_does_not_fit": (
        lambda: ts.while_loop(lambda c: c < 3, lambda c: op.cast(c, ts.i64), 0.5), DTypeError,
        "while_loop: carry enters body_fn as f32[] but leaves it as i64[]; cast one with "
        "astype('f32')",
    ),
    "while_on_a_vector": (
        lambda: ts.while_loop(lambda c: c < 3, lambda c: c, X), DTypeError,
        "while_loop: the condition is bool[3], expected bool[]; compare, as in x > 0, or reduce "
        "with op.any or op.all",
    ),
    "while_on_a_tree": (
        lambda: ts.while_loop(lambda c: (c, c), lambda c: c, X), TreeError,
        "while_loop: cond_fn returns (*, *), expected one bool[]",
    ),
    "while_bound_is_a_tensor": (
        lambda: ts.while_loop(lambda c: c < 3, lambda c: c + 1, 0, bound=ts.tensor(3)), OperandError,
        "while_loop: bound is Tensor(3, i64[]), expected a number of steps that is known while tracing",
    ),
    "bounded_while_on_a_vector": (
        lambda: ts.while_loop(lambda c: c < 3, lambda c: c, X, bound=3), DTypeError,
        "while_loop: the condition is bool[3], expected bool[]; compare, as in x > 0, or reduce "
        "with op.any or op.all",
    ),
    "fori_to_a_float": (
        lambda: ts.fori_loop(0, 2.5, lambda i, c: c, X), DTypeError,
        "fori_loop: upper is f32[], expected an integer scalar",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_wrong_programs_say_what_is_wrong(name: str) -> None:
    call, kind, text = WRONG[name]
    with pytest.raises(kind) as caught:
        call()
    assert caught.value.message == text
    assert caught.value.location is not None
    assert caught.value.location.file == __file__


def test_an_error_inside_a_body_is_at_the_line_of_the_body() -> None:
    with pytest.raises(ShapeError) as caught:
        ts.scan(lambda c, x: (c + op.ones((2,)), x), op.ones((3,)), X)
    assert caught.value.location is not None
    assert "op.ones((2,))" in str(caught.value.location)
