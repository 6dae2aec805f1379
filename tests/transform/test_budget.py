"""checkpoint under a budget of bytes: what is kept fits, least is computed again, bits stay."""

from __future__ import annotations

import itertools
from collections import Counter
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera import Tensor, f64, op
from tessera.core.errors import OperandError
from tessera.ir.graph.ir import Graph
from tessera.transform.budget import EXACT, flops, plan, walk
from tests.support.runners.tolerance import assert_same_bits

RNG = np.random.default_rng(0)
X, W = (ts.tensor(RNG.normal(size=s) * 0.5) for s in ((8, 16), (16, 16)))


def net(x: Any, w: Any) -> Any:
    """Layers whose values have different sizes and costs."""
    h = op.tanh(x @ w)
    h = op.sin(h @ w) * op.exp(op.mean(h, axis=1, keepdims=True))
    return op.sum(op.softmax(h @ w) * op.cos(h))


def graph_of(f: Any, *args: Any) -> Graph:
    return ts.jit(f, target="numpy").lower(*args).traced  # type: ignore[no-any-return]


def graph_after(f: Any, *args: Any) -> Graph:
    """The graph before its ops are decomposed for a machine."""
    return ts.jit(f, target="numpy").lower(*args).graph  # type: ignore[no-any-return]


def stored(f: Any, *args: Any) -> float:
    """The bytes that checkpoints of a traced gradient hand on from forward to backward."""
    nodes = graph_of(f, *args).nodes
    again = [n for n in nodes if n.op.name == "checkpoint" and n.params["again"]]
    first = {
        v for n in nodes if n.op.name == "checkpoint" and not n.params["again"] for v in n.results
    }
    used = {v for n in again for v in n.operands if v in first}
    return sum(float(np.prod(v.shape)) * v.dtype.itemsize for v in used)


def ops(f: Any, *args: Any) -> Counter[str]:
    return Counter(n.op.name for n in graph_after(f, *args).nodes)


BUDGETS = [0, 7, 64, 1024, 2048, 3000, 5000, 1 << 20]


@pytest.mark.parametrize("nbytes", BUDGETS)
def test_what_is_kept_fits_and_the_bits_stay(nbytes: int) -> None:
    f = ts.checkpoint(net, policy=ts.budget(nbytes))
    kept = ts.value_and_grad(f, argnums=(0, 1))
    assert stored(kept, X, W) <= nbytes
    for a, b in zip(
        ts.tree.leaves(ts.jit(kept)(X, W)),
        ts.tree.leaves(ts.jit(ts.value_and_grad(net, argnums=(0, 1)))(X, W)),
        strict=True,
    ):
        assert_same_bits(a, b)


def test_more_bytes_never_mean_more_work() -> None:
    costs = [
        sum(flops(n) for n in graph_after(ts.value_and_grad(ts.checkpoint(net, policy=ts.budget(b))), X,
        W).nodes)
        for b in BUDGETS
    ]  # fmt: skip
    for less, more in itertools.pairwise(costs):
        assert more <= 1.01 * less  # what is merged afterwards differs a little
    assert costs[0] > 1.2 * costs[-1]


def test_the_ends_are_nothing_and_everything() -> None:
    def grad_ops(policy: Any) -> Counter[str]:
        found = ops(ts.value_and_grad(ts.checkpoint(net, policy=policy)), X, W)
        return Counter(
            {k: n for k, n in found.items() if k != "broadcast_to"}
        )  # which costs nothing

    assert grad_ops(ts.budget(0)) == grad_ops("nothing")
    assert grad_ops(ts.budget(1 << 30)) == grad_ops("everything")


def test_products_are_kept_before_cheap_values() -> None:
    """One value of 1 KiB fits: that of a product of 16 terms, not that of a sine."""

    def f(x: Any, w: Any) -> Any:
        return op.sum(op.exp(op.sin(x @ w)))

    found = ops(ts.value_and_grad(ts.checkpoint(f, policy=ts.budget(1024))), X, W)
    assert found["matmul"] == ops(ts.value_and_grad(f), X, W)["matmul"]
    assert found["sin"] == 2


def test_symbolic_sizes_are_computed_again() -> None:
    """How large they will be is not known, so that nothing but fixed sizes can be promised to fit."""

    @ts.checkpoint(policy=ts.budget(1 << 30))
    def block(x: Any, w: Any) -> Any:
        return op.sum(op.sin(x @ op.tanh(w)))

    @ts.jit
    def g(x: Tensor["N", 16, f64], w: Tensor[16, 16, f64]) -> Any:
        return ts.value_and_grad(block, argnums=1)(x, w)

    for n in (2, 5):
        x = ts.tensor(RNG.normal(size=(n, 16)))
        want = ts.grad(lambda w, x=x: op.sum(op.sin(x @ op.tanh(w))))(W)
        np.testing.assert_allclose(g(x, W)[1], want, rtol=1e-12)
    assert g.compiled == 1
    names = Counter(n.op.name for n in g.lower(X, W).graph.nodes)
    assert names["tanh"] == 1
    assert names["matmul"] == 3


def random_program(seed: int) -> Graph:
    """A graph of products and elementwise ops over values of different sizes."""
    rng = np.random.default_rng(seed)

    def f(*xs: Any) -> Any:
        values = list(xs)
        for _ in range(int(rng.integers(4, 7))):
            a, b = (values[i] for i in rng.integers(len(values), size=2))
            choice = rng.integers(4)
            if choice == 0:
                values.append(op.sin(a))
            elif choice == 1:
                values.append(op.sum(a, axis=1, keepdims=True))
            elif choice == 2 and a.shape[1] == 4 and b.shape == (4, 4):
                values.append(a @ b)
            else:
                values.append(op.exp(a) * b)
        return values[-3:]

    return graph_of(f, ts.tensor(np.ones((4, 4))), ts.tensor(np.ones((4, 1))))


@pytest.mark.parametrize("seed", range(30))
def test_greedy_against_all_choices(seed: int) -> None:
    """The exact search is the best of all subsets; the greedy one fits too and is near it."""
    g = random_program(seed)
    nothing = walk(g.nodes, g.outputs, frozenset())
    choices = itertools.chain.from_iterable(
        itertools.combinations(nothing.again, k) for k in range(len(nothing.again) + 1)
    )
    walks = [walk(g.nodes, g.outputs, frozenset(c)) for c in choices]
    for nbytes in (0, 32, 64, 128, 200, 300):
        best = min(w.cost for w in walks if w.bytes <= nbytes)
        greedy = walk(g.nodes, g.outputs, plan(g.nodes, g.outputs, nbytes, exact=0))
        if len(nothing.again) <= EXACT:
            exact = walk(g.nodes, g.outputs, plan(g.nodes, g.outputs, nbytes))
            assert exact.cost == best
            assert exact.bytes <= nbytes
        assert greedy.bytes <= nbytes
        assert best <= greedy.cost <= nothing.cost
        assert nothing.cost - greedy.cost >= 0.5 * (nothing.cost - best)


def test_a_long_chain_is_planned_quickly_and_evenly() -> None:
    def f(x: Any) -> Any:
        for _ in range(300):
            x = op.sin(x)
        return op.sum(x)

    x = ts.tensor(RNG.normal(size=8))
    kept = ts.checkpoint(f, policy=ts.budget(64 * 10))
    assert stored(ts.grad(kept), x) == 64 * 10
    again, plain = (ts.jit(ts.grad(g), target="numpy") for g in (kept, f))
    assert_same_bits(again(x), plain(x))


def test_one_checkpoint_under_a_budget_needs_a_third_of_the_memory() -> None:
    """Kept values are spread evenly, and what lies between two of them is computed again at its turn."""
    x, w = ts.tensor(RNG.normal(size=(512, 32))), ts.tensor(RNG.normal(size=(32, 32)) * 0.2)

    def deep(w: Any) -> Any:
        h = x
        for _ in range(64):
            h = op.tanh(h @ w)
        return op.sum(h)

    kept = ts.checkpoint(deep, policy=ts.budget(8 * 8 * x.size))
    plain, again = (ts.jit(ts.grad(f), target="cpu") for f in (deep, kept))
    assert_same_bits(again(w), plain(w))
    assert plain.lower(w).memory.peak > 3 * again.lower(w).memory.peak


def test_a_budget_of_something_else() -> None:
    for wrong in (-1, 2.5, True, "1k"):
        with pytest.raises(OperandError) as e:
            ts.budget(wrong)  # type: ignore[arg-type]
        assert e.value.message == f"budget: {wrong!r} is not a number of bytes"
