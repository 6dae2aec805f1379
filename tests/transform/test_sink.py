"""sink keeps every bit, and moves broadcasts and reshapes where they cost least."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given

import tessera as ts
from tessera import Tensor, f32, op
from tessera.compile import PASSES
from tessera.core.dtype import bf16, stochastic_round
from tessera.ir.graph.ir import Graph, concrete
from tessera.transform.decompose import decompose
from tessera.transform.simplify import simplify
from tessera.transform.sink import groups, sink_on_cpu, sink_on_gpu
from tests.support.cases.op_cases import Case, cases
from tests.support.cases.random_graphs import LoopSteps, Program, programs, same_bits
from tests.support.runners.each import each
from tests.support.runners.levels import by_graph


def before(g: Graph) -> Graph:
    """g as sink gets it."""
    for p in PASSES:
        g = p.run(g)
    return decompose(g)


def ops(f: Callable[..., Any], *types: Any) -> list[str]:
    """The ops of a function after sink, with the shapes that they make."""
    return [
        f"{n.op.name}{list(n.results[0].shape)}"
        for n in sink_on_gpu(before(ts.trace(f, *types))).nodes
    ]


# The law


@given(programs(steps_class=LoopSteps))
def test_random_programs_keep_their_bits(p: Program) -> None:
    g = before(p.graph)
    for sink in (sink_on_cpu, sink_on_gpu):
        small = sink(g)
        assert same_bits(by_graph(small, p.inputs), by_graph(simplify(g), p.inputs))
        assert sink(small).text == small.text


@each(cases())
def test_every_op_keeps_its_bits(case: Case) -> None:
    xs = case.draw()
    g = before(case.trace([concrete(x).type for x in xs]))
    if any(v.dtype.kind == "c" for n in g.nodes for v in (*n.operands, *n.results)):
        pytest.skip("complex numbers have no bodies of scalars")
    arrays = [concrete(x).storage for x in xs]
    for sink in (sink_on_cpu, sink_on_gpu):
        assert same_bits(by_graph(sink(g), arrays), by_graph(simplify(g), arrays))


def _normalised(x: Any, w: Any, b: Any, g: Any) -> Any:
    h = op.gelu(x @ w + b, approximate="tanh")
    return op.layernorm(h, g) + h


def test_derivatives_of_a_layer_keep_their_bits() -> None:
    def step(x: Any, w: Any, b: Any, g: Any) -> Any:
        return ts.grad(lambda w, b, g: op.sum(op.square(_normalised(x, w, b, g))), (0, 1, 2))(
            w, b, g
        )

    rng = np.random.default_rng(0)
    xs = [rng.normal(size=s).astype(np.float32) for s in ((2, 3, 5), (5, 7), (7,), (7,))]
    g = before(ts.trace(step, *map(ts.tensor, xs)))
    fired: Counter[str] = Counter()
    assert same_bits(by_graph(sink_on_gpu(g, fired), xs), by_graph(simplify(g), xs))
    assert {"open", "broadcast_later", "reshape_later"} <= set(fired)


# What moves


def test_a_number_of_a_row_is_computed_once() -> None:
    def scaled(x: Any, s: Any) -> Any:
        return x * op.rsqrt(op.broadcast_to(op.reshape(s, (4, 1)), (4, 8)) + 1.0)

    assert ops(scaled, Tensor[4, 8, f32], Tensor[4, f32]) == [
        "full[4]", "add[4]", "rsqrt[4]", "reshape[4, 1]", "broadcast_to[4, 8]", "mul[4, 8]",
    ]  # fmt: skip


def test_what_follows_a_product_has_its_axes() -> None:
    def layer(x: Any, w: Any, b: Any) -> Any:
        return op.relu(x @ w + b) @ w

    found = ops(layer, Tensor[2, 3, 5, f32], Tensor[5, 5, f32], Tensor[5, f32])
    assert found.count("reshape[2, 3, 5]") == 1, found
    assert "add[6, 5]" in found


def test_rows_are_folded_before_they_are_cut_but_columns_are_not() -> None:
    def folds(x: Any) -> Any:
        y = op.reshape(op.exp(x), (2, 3, 5))
        return op.sum(y, -1), op.sum(y, (0, 1))

    found = ops(folds, Tensor[6, 5, f32])
    assert "sum[6]" in found  # each row by itself
    assert {"sum[5]", "reshape[2, 3, 5]"} <= set(found)  # in the order of two axes, not of one


def test_what_is_computed_in_a_derivative_too_is_one_node() -> None:
    def slope(x: Any) -> Any:
        y, pull = ts.vjp(lambda x: op.gelu(x, approximate="tanh"), x)
        return y, pull(y)

    assert sum(o.startswith("sigmoid") for o in ops(slope, Tensor[4, f32])) == 1


def test_the_derivative_of_parts_is_joined_not_added() -> None:
    def parts(x: Any, y: Any) -> Any:
        _, pull = ts.vjp(lambda x: tuple(op.split(x, 3, axis=1)), x)
        return pull(tuple(op.split(y, 3, axis=1)))

    g = before(ts.trace(parts, Tensor[2, 6, f32], Tensor[2, 6, f32]))
    fired: Counter[str] = Counter()
    small = sink_on_gpu(g, fired)
    assert fired["join"] == 2
    assert not {"pad", "concat"} <= {n.op.name for n in small.nodes}
    y = np.array([[-0.0, 0.0, np.nan, np.inf, -np.inf, 1.0]] * 2, np.float32)
    assert same_bits(by_graph(small, [y, y]), by_graph(simplify(g), [y, y]))


@pytest.mark.parametrize("low", [0, 1, 3])  # over each other, and with a gap
def test_windows_that_do_not_touch_are_added(low: int) -> None:
    def added(x: Any, y: Any) -> Any:
        return op.pad(x, ((0, low + 2),)) + op.pad(y, ((low, 2),))

    assert ops(added, Tensor[2, f32], Tensor[2, f32])[-1].startswith("add")


def test_elements_that_are_rounded_at_random_stay_apart() -> None:
    dtype = bf16 @ stochastic_round

    def rounded(x: Any) -> Any:
        return op.exp(op.broadcast_to(x, (4, 8)))

    assert ops(rounded, Tensor[8, dtype])[-1] == "exp[4, 8]"


@pytest.mark.parametrize(
    ("shape", "merged", "expected"),
    [
        ((2, 3, 5), (6, 5), [[0, 1], [2]]),
        ((2, 3, 1), (2, 3), [[0], [1, 2]]),
        ((1, 1, 4), (4,), [[0, 1, 2]]),
        ((2, 3), (3, 2), None),
        ((2, 3), (), None),
        ((4, 6), (8, 3), None),
    ],
)
def test_groups(shape: Any, merged: Any, expected: Any) -> None:
    assert groups(shape, merged) == expected


def test_casts_stand_between_reshapes_and_a_product() -> None:
    """What is read and written by a product of narrow numbers is narrow; bits are those of the casts
    elsewhere.
    """

    def f(x: Any, w: Any) -> Any:
        wide = op.reshape(op.cast(x, f32), (4, 6)) @ op.cast(w, f32)
        return op.cast(op.reshape(wide, (2, 2, 3)), bf16)

    g = before(ts.trace(f, Tensor[2, 2, 6, bf16], Tensor[6, 3, bf16]))
    fired: Counter[str] = Counter()
    small = sink_on_gpu(g, fired)
    assert fired["cast_after_reshape"] == 1
    assert all(v.dtype is bf16 for n in small.nodes if n.op.name == "reshape" for v in n.operands)
    rng = np.random.default_rng(0)
    xs = [rng.normal(size=s).astype(bf16.np) for s in ((2, 2, 6), (6, 3))]
    assert same_bits(by_graph(small, xs), by_graph(simplify(g), xs))
    assert sink_on_gpu(small).text == small.text
