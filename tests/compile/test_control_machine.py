"""Control flow on the target cpu: regions are programs, with the bits of the unrolled program."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera import Tensor, f32, op
from tessera.ir.schedule.ir import HostCall
from tessera.ir.schedule.lower import lower
from tests.support.cases.random_graphs import same_bits
from tests.support.runners.levels import by_graph, by_llvm, by_schedule, by_tile, prepared

RNG = np.random.default_rng(0)


def draw(*shape: int) -> Tensor:
    return ts.tensor(RNG.normal(size=shape).astype(np.float32))


W = draw(32, 32) / 6.0
STEPS = 5


def cell(h: Any, x: Any) -> tuple[Any, Any]:
    h = op.tanh(h @ W + op.softmax(x))
    return h, op.sum(h * h, 1)


def scanned(h: Any, xs: Any) -> Any:
    return op.scan(cell, h, xs)


def unrolled(h: Any, xs: Any) -> Any:
    ys = []
    for i in range(STEPS):
        h, y = cell(h, xs[i])
        ys.append(y)
    return h, op.stack(ys)


def backwards(h: Any, xs: Any) -> Any:
    return op.scan(cell, h, xs, reverse=True)


def unrolled_backwards(h: Any, xs: Any) -> Any:
    h, ys = unrolled(h, op.flip(xs, 0))
    return h, op.flip(ys, 0)


def looped(h: Any, xs: Any) -> Any:
    return op.fori_loop(0, STEPS, lambda i, h: op.layernorm(op.gelu(h) @ W) + op.mean(xs), h)


def unrolled_loop(h: Any, xs: Any) -> Any:
    for _ in range(STEPS):
        h = op.layernorm(op.gelu(h) @ W) + op.mean(xs)
    return h


def until(h: Any, xs: Any) -> Any:
    return op.while_loop(
        lambda c: c[0] < STEPS, lambda c: (c[0] + 1, op.softmax(c[1] @ W)), (0, h)
    )[1]


def unrolled_until(h: Any, xs: Any) -> Any:
    for _ in range(STEPS):
        h = op.softmax(h @ W)
    return h


def nested(h: Any, xs: Any) -> Any:
    def body(h: Any, x: Any) -> Any:
        h = op.cond(op.sum(x) > 0, lambda h: op.softmax(h), lambda h: op.tanh(h + x), h)
        return h, op.fori_loop(0, 2, lambda i, s: s + op.sum(op.exp(h), 0), x[0])

    return op.scan(body, h, xs)


def unrolled_nested(h: Any, xs: Any) -> Any:
    ys = []
    for i in range(STEPS):
        x = xs[i]
        h = op.softmax(h) if POSITIVE[i] else op.tanh(h + x)
        s = x[0]
        for _ in range(2):
            s = s + op.sum(op.exp(h), 0)
        ys.append(s)
    return h, op.stack(ys)


def derived(h: Any, xs: Any) -> Any:
    return ts.grad(lambda h: op.sum(scanned(h, xs)[1]))(h)


def derived_unrolled(h: Any, xs: Any) -> Any:
    return ts.grad(lambda h: op.sum(unrolled(h, xs)[1]))(h)


PAIRS = {
    "scan": (scanned, unrolled),
    "scan in reverse": (backwards, unrolled_backwards),
    "fori_loop": (looped, unrolled_loop),
    "while_loop": (until, unrolled_until),
    "cond and a loop in a scan": (nested, unrolled_nested),
    "gradient of a scan": (derived, derived_unrolled),
}
H, XS = draw(4, 32), draw(STEPS, 4, 32)
POSITIVE = XS.numpy().sum((1, 2)) > 0


@pytest.mark.parametrize("name", PAIRS)
def test_regions_have_the_bits_of_the_unrolled_program(name: str) -> None:
    f, g = PAIRS[name]
    got, want = (ts.jit(k, target="cpu")(H, XS) for k in (f, g))
    a, b = ([t.numpy() for t in ts.tree.leaves(x)] for x in (got, want))
    if name == "gradient of a scan":  # sums of cotangents come in another order
        for x, y in zip(a, b, strict=True):
            np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-6)
    else:
        assert same_bits(a, b)


@pytest.mark.parametrize("name", PAIRS)
def test_all_levels_agree_on_regions(name: str) -> None:
    g = prepared(ts.trace(PAIRS[name][0], H, XS))
    p, inputs = lower(g), [H.numpy(), XS.numpy()]
    want = by_schedule(p, inputs)
    for run in (by_tile, by_llvm):
        assert same_bits(run(p, inputs), want), run.__name__
    assert same_bits(by_graph(g, inputs), want)
    got = ts.jit(PAIRS[name][0], target="cpu")(H, XS)
    assert same_bits([t.numpy() for t in ts.tree.leaves(got)], want)


@pytest.mark.parametrize("name", PAIRS)
def test_nothing_in_a_region_runs_on_the_host_that_has_a_kernel(name: str) -> None:
    """Regions are decomposed too, so that their ops are loop nests."""

    def hosts(g: Any) -> set[str]:
        nodes = [s.node for s in lower(g).steps if isinstance(s, HostCall)]
        here = {n.op.name for n in nodes if not n.regions and n.op.view is None}
        return here.union(*(hosts(r) for n in nodes for r in n.regions))

    g = prepared(ts.trace(PAIRS[name][0], H, XS))
    assert hosts(g) <= {"stack", "flip", "concat", "constant"}


def test_symbolic_sizes_in_regions() -> None:
    @ts.jit(target="cpu")
    def f(h: Tensor["B", 32, f32], xs: Tensor["T", "B", 32, f32]):
        return op.scan(cell, h, xs)

    for b, t in ((4, 5), (7, 2), (1, 9)):
        h, xs = draw(b, 32), draw(t, b, 32)
        got, want = f(h, xs), ts.jit(scanned, target="numpy")(h, xs)
        for x, y in zip(ts.tree.leaves(got), ts.tree.leaves(want), strict=True):
            np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-5)
    assert f.compiled == 1


def test_a_carry_that_is_passed_on_unchanged_keeps_its_value() -> None:
    """Regions may return what they were given, which must not be written over."""

    def f(a: Any, b: Any) -> Any:
        return op.fori_loop(0, 4, lambda i, c: (c[1], op.exp(c[0] * 0.1)), (a, b))

    a, b = draw(50), draw(50)
    got = ts.jit(f, target="cpu")(a, b)
    for _ in range(4):
        a, b = b, op.exp(a * 0.1)
    for x, y in zip(got, (a, b), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-5)


def test_what_a_loop_needs_is_in_the_plan() -> None:
    f = ts.jit(lambda x: op.fori_loop(0, 3, lambda i, x: op.softmax(x @ x), x), target="cpu")
    plan = f.lower(draw(300, 300)).memory
    assert plan.peak >= 3 * 300 * 300 * 4  # the carry in, the carry out and the product between


def test_a_name_for_checkpoint_is_nothing_in_a_program() -> None:
    f = ts.jit(lambda a, b: op.exp(op.checkpoint_name(a @ b, "h")) + 1.0, target="cpu")
    low = f.lower(draw(30, 40), draw(40, 50))
    assert len(low.schedule.steps) == 1
    assert "checkpoint_name" not in low.graph.text
    (kernel,) = low.schedule.steps
    assert len(kernel.outputs) == 1
    g = ts.jit(lambda x: op.checkpoint_name(op.exp(x), "h"), target="cpu").lower(draw(9))
    assert [n.op.name for n in g.graph.nodes] == ["exp"]
