"""Loops of a few scalar operations are one kernel, with the bits of their steps."""

from __future__ import annotations

import signal
from collections.abc import Callable, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera import op
from tessera.compile.artifact import decode, encode
from tessera.core.dtype import f64
from tessera.core.errors import VerifyError
from tessera.ir.schedule import interp as schedule_interp
from tessera.ir.schedule.ir import HostCall, Program
from tessera.ir.schedule.lower import lower
from tessera.ir.target.triton.emit import emit
from tessera.ir.tile import interp
from tessera.ir.tile.cpu import loops
from tessera.ir.tile.inside import verify_inside
from tessera.ir.tile.ir import Builder, Kernel
from tessera.ir.tile.text import parse_kernel, print_kernel
from tessera.ir.tile.verify import verify
from tessera.runtime.loop import Scan, While
from tests.support.cases.random_graphs import same_bits
from tests.support.runners.levels import by_schedule, prepared, run_llvm

RNG = np.random.default_rng(36)
F, A = Any, Any


def kernels_of(f: F, *xs: A) -> list[Kernel]:
    """The kernels of the loops of a function."""
    steps = lower(prepared(ts.trace(f, *xs))).steps
    made = [loops.loop_kernel(s) for s in steps if isinstance(s, HostCall) and s.node.regions]
    return [k for k in made if k is not None]


Run = Callable[[Kernel, Sequence[Any], Any], None]


def at_all_levels(f: F, *xs: A) -> list[A]:
    """The results of a program, after all levels gave the same bits and its loops ran as kernels."""
    p = lower(prepared(ts.trace(f, *xs)))
    inputs = [x.numpy() for x in xs]
    want = by_schedule(p, inputs)
    for run in (interp.interpret, run_llvm):
        assert same_bits(by_loops(p, inputs, run), want), run.__name__
    jitted = ts.jit(f, target="cpu")
    got = [t.numpy() for t in ts.tree.leaves(jitted(*xs))]
    assert same_bits(got, want)
    assert jitted.lower(*xs)._executable.image.loops
    return got


def by_loops(p: Program, inputs: Sequence[A], run: Run) -> list[A]:
    """The outputs of a program whose loops run as kernels, by the interpreter of Tile IR or by LLVM."""
    arrays = schedule_interp.arguments(p, inputs)
    memory = dict(zip(p.inputs, arrays, strict=True))
    for s in p.steps:
        if isinstance(s, HostCall) and s.node.regions:
            k = loops.loop_kernel(s)
            assert k is not None, s
            made = hosted(s, k, run)(*(memory[x] for x in s.operands))
            memory |= dict(zip(s.results, made, strict=True))
        else:
            memory |= schedule_interp.run_step(s, memory, {})
    return [memory[x] for x in p.outputs]


def hosted(s: HostCall, k: Kernel, run: Run) -> While | Scan:
    """What launches a kernel, which is sound and says all in its text."""
    verify(k)
    verify_inside(k)
    assert print_kernel(parse_kernel(k.text)) == k.text
    n, kernel = s.node, SimpleNamespace(run=partial(run, k))
    captured = [v.storage for r in n.regions for v in r.captured]
    if n.op.name == "scan":
        return Scan(kernel, captured, n.params, [v.type for v in n.results])  # type: ignore[arg-type]
    return While(kernel, captured, len(n.results))  # type: ignore[arg-type]


# Programs ---------------------------------------------------------------------------------------


def t(x: A, dtype: str) -> ts.Tensor:
    return ts.tensor(np.asarray(x), dtype=getattr(ts, dtype))


def newton(x: A) -> A:
    return op.while_loop(lambda y: op.abs(y * y - x) > 1e-12 * x, lambda y: 0.5 * (y + x / y), x)


def collatz(n: A) -> A:
    return op.while_loop(
        lambda c: c[0] > 1,
        lambda c: (op.where(c[0] % 2 == 0, c[0] // 2, 3 * c[0] + 1), c[1] + 1),
        (n, 0),
    )


def flags_and_numbers(x: A) -> A:
    return op.while_loop(
        lambda c: op.logical_and(c[0], c[1] < 40),
        lambda c: (
            op.logical_not(c[2] > 9.0),
            c[1] + 1,
            op.where(c[1] > 3, c[2] + x, op.sin(c[2])),
        ),
        (True, t(0, "u8"), x),
    )


def fibonacci(n: A) -> A:
    return op.fori_loop(0, n, lambda i, c: (c[1], c[0] + c[1] + 0 * i), (0, 1))


def rotated(x: A) -> A:
    turn = t([[0.8, -0.6], [0.6, 0.8]], "f64")
    return op.scan(lambda c, _: (op.sin(turn @ c), op.sum(c * c)), x, length=20)


def logistic(x: A) -> A:
    return op.scan(
        lambda c, r: (r * c * (1.0 - c), c), x[0], op.linspace(2.5, 4.0, 50, dtype=x.dtype)
    )


def backwards(x: A) -> A:
    return op.scan(
        lambda c, y: (0.5 * c + op.max(y), c - y[::-1]),
        x[0],
        op.stack([x, x + 1.0, x * x]),
        reverse=True,
    )


def chosen(x: A) -> A:
    def body(c: A, i: A) -> A:
        return op.cond(op.sum(c) > 0, lambda c: c - op.exp(c), lambda c: c.T + c * i, c), None

    return op.scan(body, x, op.arange(7, dtype=x.dtype))[0]


def euler(y: A) -> A:
    def step(_: A, y: A) -> A:
        return y + 0.01 * op.reshape(op.flip(op.reshape(y, (2, 2)), 0), (4,)) * op.mean(y)

    return op.fori_loop(0, 30, step, y)


def softmaxed(x: A) -> A:
    return op.fori_loop(0, 4, lambda i, x: op.softmax(x + i.astype(x.dtype)) @ op.softmax(x.T), x)


def folds(x: A) -> A:
    def body(c: A, _: A) -> A:
        return c * 0.5 + op.sum(c) * 0.01 + op.prod(c), (op.any(c > 0), op.min(c))

    return op.scan(body, x, length=5)


PROGRAMS: dict[str, tuple[Callable[..., Any], ts.Tensor]] = {
    "newton f64": (newton, t(2.0, "f64")),
    "no step": (collatz, t(1, "i64")),
    "collatz i64": (collatz, t(27, "i64")),
    "collatz i32": (collatz, t(97, "i32")),
    "bools, u8 and f32": (flags_and_numbers, t(0.7, "f32")),
    "trip count from data": (fibonacci, t(40, "i64")),
    "no trips": (fibonacci, t(-1, "i64")),
    "small products": (rotated, t([0.5, -0.25], "f64")),
    "rows of a tensor": (logistic, t([0.3, 0.4], "f64")),
    "backwards": (backwards, t([0.3, -0.0, 2.0], "f32")),
    "cond": (chosen, t([[0.5, -0.25], [0.1, 0.2]], "f32")),
    "views": (euler, t([1.0, 2.0, 3.0, 4.0], "f64")),
    "softmax": (softmaxed, t([[0.5, -0.25], [0.1, 0.2]], "f64")),
    "folds of 17 elements": (folds, t(RNG.normal(size=17), "f32")),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_loop_of_a_few_numbers_is_one_kernel_with_the_bits_of_its_steps(name: str) -> None:
    at_all_levels(*PROGRAMS[name])


def test_values_are_those_of_python() -> None:
    n, steps = at_all_levels(collatz, t(27, "i64"))
    assert (int(n), int(steps)) == (1, 111)
    assert int(at_all_levels(fibonacci, t(40, "i64"))[0]) == 102334155
    assert float(at_all_levels(newton, t(2.0, "f64"))[0]) == pytest.approx(2**0.5, rel=1e-15)


# Random loops -----------------------------------------------------------------------------------

_UNARY = ("neg", "abs", "sin", "cos", "tanh", "exp", "sqrt", "floor", "square", "sign")
_BINARY = ("add", "sub", "mul", "maximum", "minimum", "div")


class Draw:
    """A random body over carries of several dtypes."""

    def __init__(self, seed: int):
        self.rng = np.random.default_rng(seed)

    def term(self, xs: Sequence[A], depth: int) -> Callable[[Sequence[A]], A]:
        i = int(self.rng.integers(len(xs)))
        if depth == 0:
            if self.rng.random() < 0.3:
                number = float(np.round(self.rng.normal(), 2))
                return lambda c: c[i] * 0 + (number if c[i].dtype.kind == "f" else int(number * 3))
            return lambda c: c[i]
        x, y, z = (self.term(xs, depth - 1) for _ in range(3))
        kind = self.rng.random()
        if kind < 0.35:
            name = str(self.rng.choice(_UNARY))
            return lambda c: _fit(getattr(op, name), x(c))
        if kind < 0.8:
            name = str(self.rng.choice(_BINARY))
            return lambda c: _pair(name, x(c), y(c))
        return lambda c: op.where(*_same(x(c) < _like(y(c), x(c)), y(c), z(c)))

    def loop(self) -> tuple[F, list[ts.Tensor]]:
        dtypes = [str(d) for d in self.rng.choice(["f32", "f64", "i32", "i64"], 3)]
        shape = [(), (3,), (2, 2)][int(self.rng.integers(3))]
        xs = [t(self.rng.normal(size=shape) * 2, "f64").astype(d) for d in dtypes]
        bodies = [self.term(xs, 2) for _ in xs]
        limit, steps = float(self.rng.uniform(1, 50)), int(self.rng.integers(0, 30))

        def on(c: A) -> A:
            return op.logical_and(c[0] < steps, op.all(op.abs(c[1].astype(ts.f64)) < limit))

        def f(*xs: A) -> A:
            def body(c: A) -> A:
                new = [b(c[1:]).astype(x.dtype) for b, x in zip(bodies, c[1:], strict=True)]
                return (c[0] + 1, *new)

            return op.while_loop(on, body, (0, *xs))

        return f, xs


def _like(x: A, y: A) -> A:
    return x if x.dtype is y.dtype else x.astype(y.dtype)


def _same(p: A, x: A, y: A) -> tuple[A, A, A]:
    return p, x, _like(y, x)


def _fit(f: F, x: A) -> A:
    return f(x.astype(ts.f64)).astype(x.dtype) if x.dtype.kind != "f" else f(x)


def _pair(name: str, x: A, y: A) -> A:
    y = _like(y, x)
    return x // y if name == "div" and x.dtype.kind != "f" else getattr(op, name)(x, y)


@pytest.mark.parametrize("seed", range(24))
def test_random_loops_have_one_result_at_all_levels(seed: int) -> None:
    f, xs = Draw(seed).loop()
    if not kernels_of(f, *xs):
        pytest.skip("too long for one kernel")
    with np.errstate(all="ignore"):
        at_all_levels(f, *xs)


# What stays as it was ---------------------------------------------------------------------------


def test_a_loop_with_a_symbolic_size_or_large_tensors_keeps_its_regions() -> None:
    def double(x: A) -> A:
        return op.fori_loop(0, 3, lambda i, x: x + x, x)

    @ts.jit
    def symbolic(x: ts.Tensor["N", ts.f32]) -> A:
        return double(x)

    x = t(np.ones(5), "f32")
    np.testing.assert_array_equal(symbolic(x).numpy(), 8 * np.ones(5))
    assert not symbolic.lower(x)._executable.image.loops
    assert not kernels_of(double, t(np.ones(100), "f32"))
    assert not kernels_of(
        lambda x: op.fori_loop(0, 3, lambda i, x: op.inv(x) + i, x), t(np.eye(2), "f64")
    )


def test_a_symbolic_number_of_steps_is_one_kernel() -> None:
    @ts.jit
    def total(x: ts.Tensor["N", ts.f64]) -> A:
        return op.scan(lambda c, y: (c + y, c), 0.0, x)

    for n in (0, 1, 7):
        x = np.arange(n) + 0.5
        last, before = total(t(x, "f64"))
        assert float(last) == x.sum()
        np.testing.assert_array_equal(before.numpy(), np.cumsum(x) - x)
    assert total.lower(t(x, "f64"))._executable.image.loops


def test_derivatives_and_batches_of_such_loops() -> None:
    def power(x: A) -> A:
        return op.while_loop(
            lambda c: c[0] < 3, lambda c: (c[0] + 1, c[1] * x), (0, 1.0 + 0 * x), bound=5
        )[1]

    x = t(2.0, "f64")
    assert float(ts.jit(ts.grad(power))(x)) == 12.0
    assert float(ts.jit(lambda x: ts.jvp(power, (x,), (x,))[1])(x)) == 24.0
    xs = t([1.0, 2.0, 3.0], "f64")
    np.testing.assert_array_equal(ts.jit(ts.vmap(power))(xs).numpy(), [1.0, 8.0, 27.0])


def test_checked_loops_still_raise() -> None:
    def f(x: A) -> A:
        return op.while_loop(lambda c: c < 100.0, lambda c: c + 1.0, x, bound=5)

    with ts.checked(), pytest.raises(ts.TesseraError, match="still holds after 5 steps"):
        ts.jit(f)(t(0.0, "f64"))


def test_many_steps_take_several_launches(monkeypatch: pytest.MonkeyPatch) -> None:
    n = loops.STEPS * 2 + 3
    f = ts.jit(lambda n: op.while_loop(lambda i: i < n, lambda i: i + 1, 0))
    assert int(f(t(n, "i64"))) == n
    monkeypatch.setattr("tessera.runtime.loop.ROWS", 3)
    for reverse in (False, True):
        g = ts.jit(lambda x, r=reverse: op.scan(lambda c, y: (c * 0.5 + y, c), 0.0, x, reverse=r))
        x = RNG.normal(size=8)
        now, want = 0.0, np.empty(8)
        for i in reversed(range(8)) if reverse else range(8):
            want[i], now = now, now * 0.5 + x[i]
        last, ys = g(t(x, "f64"))
        assert float(last) == now
        np.testing.assert_array_equal(ys.numpy(), want)


def test_a_loop_without_end_can_be_interrupted() -> None:
    class Enough(Exception):
        pass

    def stop(*_: Any) -> None:
        raise Enough

    f = ts.jit(lambda x: op.while_loop(lambda c: c > 0, lambda c: op.abs(op.sin(c)) + 1.0, x))
    f(t(-1.0, "f64"))
    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, 0.2)
    try:
        with pytest.raises(Enough):
            f(t(1.0, "f64"))
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_an_image_keeps_its_loops() -> None:
    e = ts.jit(collatz).lower(t(27, "i64"))._executable
    again = decode(encode(e.image, e.graph), e.graph)
    assert again.loops == e.image.loops != {}
    assert any("going" in k.text for k in e.tiles.values())
    assert set(e.tiles) == set(e.target)


# The loop of Tile IR ----------------------------------------------------------------------------


def test_the_verifier_refuses_a_loop_that_goes_on_by_a_number() -> None:
    b = Builder("kernel")
    x = b.full(f64, (), 1.0)
    with b.loop(0, 3, carried=(x,), going=True) as loop:
        loop.carry(loop.carried[0])
    with pytest.raises(VerifyError, match="goes on by is f64\\[\\], expected bool\\[\\]"):
        verify(b.finish())


def test_triton_has_such_a_loop_as_while() -> None:
    (k,) = kernels_of(collatz, t(27, "i64"))
    assert f"while (i1 < {loops.STEPS}) & " in emit(k)
    assert "        i1 += 1\n" in emit(k)


# Constants of a body ----------------------------------------------------------------------------


def test_a_constant_tensor_of_a_body_is_made_once_before_the_loop() -> None:
    a = t(np.eye(40) * 0.5, "f64")

    def f(x: A) -> A:
        return op.scan(lambda c, _: (op.inv(a) @ c + a @ c, None), x, length=3)[0]

    g = prepared(ts.trace(f, t(np.ones(40), "f64")))
    (loop,) = [n for n in g.nodes if n.regions]
    assert "constant" not in {n.op.name for n in loop.regions[0].nodes}
    np.testing.assert_allclose(ts.jit(f)(t(np.ones(40), "f64")).numpy(), np.full(40, 2.5**3))


def test_a_symbolic_size_as_a_number_of_a_step_keeps_its_regions() -> None:
    @ts.jit
    def f(x: ts.Tensor["N", ts.f64]) -> A:
        n = x.shape[0]
        return op.scan(lambda c, y: (c + y / n, None), 0.0, x)[0]

    for count in (2, 5):
        assert float(f(t(np.ones(count), "f64"))) == pytest.approx(1.0)
