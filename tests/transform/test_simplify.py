"""simplify keeps every bit: on random programs, on every op, and law by law on all special values."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings

import tessera as ts
from tessera import op
from tessera.core.constraints import Scope, scope
from tessera.core.dims import symbol
from tessera.core.dtype import (
    FORMATS,
    DType,
    bf16,
    bool_,
    c64,
    f8e4m3,
    f8e5m2,
    f16,
    f32,
    f64,
    i4,
    i8,
    i32,
    i64,
    saturate,
    stochastic_round,
    u8,
)
from tessera.core.types import TensorType
from tessera.ir.graph.interp import interpret
from tessera.ir.graph.ir import Builder, Graph, Node, Value, bind, building, concrete
from tessera.ir.graph.op import REGISTRY
from tessera.ir.graph.verify import verify
from tessera.transform.inline import inline
from tessera.transform.simplify import RULES, simplify
from tests.support.cases.op_cases import Case, cases
from tests.support.cases.random_graphs import Program, data_for, programs, same_bits
from tests.support.runners.each import each

# Laws


@settings(max_examples=100)
@given(programs())
def test_random_programs_keep_their_bits(p: Program) -> None:
    expected = p.run()
    for g in (p.graph, inline(p.graph)):
        assert same_bits(interpret(g, p.inputs), expected)
        small = simplify(g)
        assert same_bits(interpret(small, p.inputs), expected)
        assert simplify(small).text == small.text


@each(cases())
def test_every_op_keeps_its_bits(case: Case) -> None:
    xs = case.draw()
    g = case.trace([concrete(x).type for x in xs])
    assert same_bits(interpret(simplify(inline(g)), xs), interpret(g, xs))


# Law by law -----------------------------------------------------------------------------------

SOME = {"f": (f32, f64, bf16, f16, f8e4m3, f8e5m2), "i": (i32, i64, i8, i4), "u": (u8,),
        "b": (bool_,), "c": (c64,)}  # fmt: skip


class Example(NamedTuple):
    """A program on which a rule fires, and the kinds of its operands."""

    rule: str
    kinds: str
    f: Callable[..., Any]


def _raw(name: str, *xs: Value, **params: Any) -> Any:
    """An op bound as it is: public functions take some of these steps by themselves."""
    return bind(REGISTRY[name], *xs, **params)


def _like(x: Value, value: Any) -> Any:
    return op.full(x.shape, value, x.dtype)


def _ones(x: Value) -> Any:
    return _like(x, {"u": (1 << x.dtype.bits) - 1, "i": -1, "b": True}[x.dtype.kind])


EXAMPLES = (
    Example("full_kind", "f", lambda x: op.add(x, _like(x, 2))),
    Example("full_kind", "i", lambda x: op.add(x, _like(x, True))),
    Example("fold", "f", lambda x: op.add(x, op.mul(_like(x, 3.0), _like(x, 0.1)))),
    Example("fold", "i", lambda x: op.add(x, op.neg(op.iota((1,), dtype=x.dtype)))),
    Example("merge", "uif", lambda x: op.add(op.square(x), op.square(x))),
    Example("mul_one", "buif", lambda x: op.mul(x, 1)),
    Example("mul_one", "uif", lambda x: op.mul(1, x)),
    Example("mul_zero", "bui", lambda x: op.mul(x, 0 if x.dtype.kind != "b" else False)),
    Example("mul_minus_one", "if", lambda x: op.mul(x, -1)),
    Example("minus_one_mul", "if", lambda x: op.mul(-1, x)),
    Example("mul_negated", "uif", lambda x, y: op.mul(op.neg(x), op.neg(y))),
    Example("mul_negated", "f", lambda x, y: op.div(op.neg(x), op.neg(y))),
    Example("div_one", "f", lambda x: op.div(x, 1.0)),
    Example("div_minus_one", "f", lambda x: op.div(x, -1.0)),
    Example("floor_divide_one", "ui", lambda x: op.floor_divide(x, 1)),
    Example("add_zero", "bui", lambda x: op.add(x, _like(x, False))),
    Example("add_minus_zero", "f", lambda x: op.add(-0.0, x)),
    Example("add_negated", "uifc", lambda x, y: op.add(x, op.neg(y))),
    Example("add_negated", "uifc", lambda x, y: op.add(op.neg(x), y)),
    Example("sub_zero", "uifc", lambda x: op.sub(x, _like(x, 0))),
    Example("sub_negated", "uifc", lambda x, y: op.sub(x, op.neg(y))),
    Example("sub_self", "ui", lambda x: op.sub(x, x)),
    Example("zero_sub", "ui", lambda x: op.sub(0, x)),
    Example("minus_zero_sub", "f", lambda x: op.sub(-0.0, x)),
    Example("neg_neg", "uifc", lambda x: op.neg(op.neg(x))),
    Example("positive", "uifc", lambda x: op.positive(x)),
    Example("abs_abs", "if", lambda x: op.abs(op.abs(x))),
    Example("abs_neg", "if", lambda x: op.abs(op.neg(x))),
    Example("abs_unsigned", "u", lambda x: op.abs(x)),
    Example("square_neg", "if", lambda x: op.square(op.neg(x))),
    Example("square_neg", "if", lambda x: op.square(op.abs(x))),
    Example("sign_sign", "uif", lambda x: op.sign(op.sign(x))),
    Example("conj_conj", "c", lambda x: op.conj(op.conj(x))),
    Example("conj_real", "uif", lambda x: _raw("conj", x)),
    Example("real_real", "buif", lambda x: _raw("real", x)),
    Example("pow_zero", "uif", lambda x: op.pow(x, 0)),
    Example("pow_one", "ui", lambda x: op.pow(x, 1)),
    Example("pow_two", "ui", lambda x: op.pow(x, 2)),
    *(Example("round_round", "f", lambda x, f=f, g=g: f(g(x)))
      for f in (op.floor, op.ceil, op.trunc, op.round) for g in (op.floor, op.ceil, op.trunc, op.round)),
    *(Example("round_whole", "ui", lambda x, f=f: f(x)) for f in (op.floor, op.ceil, op.trunc, op.round)),
    Example("extreme_self", "buif", lambda x: op.maximum(x, x)),
    Example("extreme_self", "buif", lambda x: op.minimum(x, x)),
    Example("whole_not_finite", "bui", lambda x: op.isnan(x)),
    Example("whole_not_finite", "bui", lambda x: op.isinf(x)),
    Example("whole_finite", "bui", lambda x: op.isfinite(x)),
    *(Example("eq_self", "bui", lambda x, f=f: f(x, x)) for f in (op.eq, op.le, op.ge)),
    Example("ne_self", "bui", lambda x: op.ne(x, x)),
    Example("lt_self", "buif", lambda x: op.lt(x, x)),
    Example("lt_self", "buif", lambda x: op.gt(x, x)),
    Example("not_not", "b", lambda x: op.logical_not(op.logical_not(x))),
    Example("not_not", "bui", lambda x: op.bitwise_invert(op.bitwise_invert(x))),
    Example("not_eq", "buifc", lambda x, y: op.logical_not(op.eq(x, y))),
    Example("not_eq", "buifc", lambda x, y: op.logical_not(op.ne(x, y))),
    *(Example("not_lt", "bui", lambda x, y, f=f: op.logical_not(f(x, y)))
      for f in (op.lt, op.le, op.gt, op.ge)),
    Example("and_true", "b", lambda x: op.logical_and(x, True)),
    Example("and_false", "b", lambda x: op.logical_and(False, x)),
    Example("or_false", "b", lambda x: op.logical_or(x, False)),
    Example("or_true", "b", lambda x: op.logical_or(x, True)),
    Example("xor_false", "b", lambda x: op.logical_xor(x, False)),
    Example("xor_true", "b", lambda x: op.logical_xor(x, True)),
    Example("bits_zero", "bui", lambda x: op.bitwise_or(x, _like(x, False))),
    Example("bits_zero", "bui", lambda x: op.bitwise_xor(x, _like(x, False))),
    Example("bits_ones", "bui", lambda x: op.bitwise_and(x, _ones(x))),
    Example("and_zero", "bui", lambda x: op.bitwise_and(x, _like(x, False))),
    Example("or_ones", "bui", lambda x: op.bitwise_or(x, _ones(x))),
    Example("shift_zero", "ui", lambda x: op.bitwise_left_shift(x, 0)),
    Example("shift_zero", "ui", lambda x: op.bitwise_right_shift(x, 0)),
    Example("logic_self", "bui", lambda x: op.bitwise_and(x, x)),
    Example("logic_self", "bui", lambda x: op.bitwise_or(x, x)),
    Example("xor_self", "bui", lambda x: op.bitwise_xor(x, x)),
    Example("xor_self", "b", lambda x: op.logical_xor(x, x)),
    Example("select_known", "buifc", lambda x, y: op.where(_like(op.eq(x, x), True), x, y)),
    Example("select_known", "buifc", lambda x, y: op.where(_like(op.eq(x, x), False), x, y)),
    Example("select_same", "buif", lambda x, y: op.where(op.lt(x, y), x, x)),
    Example("select_not", "f", lambda x, y: op.where(op.logical_not(op.lt(x, y)), x, y)),
    Example("cast_same", "buifc", lambda x: _raw("cast", x, dtype=x.dtype)),
    Example("reshape_same", "f", lambda x: _raw("reshape", x, shape=x.shape)),
    Example("reshape_same", "f", lambda x: _raw("broadcast_to", x, shape=x.shape)),
    Example("reshape_reshape", "f", lambda x: op.reshape(op.reshape(x, (1, -1)), (-1, 1))),
    Example("reshape_reshape", "f",
    lambda x: op.broadcast_to(op.broadcast_to(x, (1, *x.shape)), (2, *x.shape))),
    Example("transpose_none", "f", lambda x: op.transpose(op.transpose(op.reshape(x, (1, -1))))),
    Example("transpose_transpose", "f",
            lambda x: op.transpose(op.transpose(op.reshape(x, (1, -1, 1)), (1, 2, 0)), (1, 0, 2))),
    Example("flip_none", "f", lambda x: op.flip(op.reshape(x, (1, -1)), 0)),
    Example("flip_flip", "f", lambda x: op.flip(op.flip(x))),
    Example("flip_flip", "f", lambda x: op.flip(op.flip(op.reshape(x, (2, -1)), 0), (0, 1))),
    Example("slice_all", "f", lambda x: _raw("slice", x, start=(0,), stop=x.shape, step=(1,))),
    Example("slice_slice", "f", lambda x: op.slice_(op.slice_(x, (1,), (15,), (3,)), (1,), (4,), (2,))),
    Example("slice_slice", "f", lambda x: op.slice_(op.slice_(x, (1,), (9,)), (3,), (3,))),
    Example("concat_one", "f", lambda x: _raw("concat", x, axis=0)),
    Example("concat_empty", "f", lambda x: op.concat([x, op.slice_(x, (0,), (0,)), x])),
    Example("concat_concat", "f", lambda x, y: op.concat([op.concat([x, y]), op.concat([y, x]), y])),
    Example("pad_none", "f", lambda x: op.pad(x, 0)),
    *(Example("fold_one", "uif", lambda x, f=f: f(op.reshape(x, (-1, 1)), 1)) for f in (op.max, op.min)),
    *(Example("fold_one", "b", lambda x, f=f: f(op.reshape(x, (-1, 1)), 1)) for f in (op.any, op.all)),
    *(Example("fold_one", "i", lambda x, f=f: f(op.reshape(op.cast(x, "i64"), (-1, 1)), 1, True))
      for f in (op.sum, op.prod)),
)  # fmt: skip


@cache
def _all_values(dtype: DType) -> Any:
    """Every value of a format of up to 16 bits; special and random bits of the wider ones."""
    if dtype.kind == "b":
        return np.array([False, True] * 8)
    if dtype is i4:
        return np.arange(-8, 8).astype(i4.np)
    if dtype.bits <= 16:
        return np.arange(1 << dtype.bits).astype(f"u{dtype.bits // 8}").view(dtype.np)
    rng = np.random.default_rng(0)
    special = data_for(TensorType(dtype, (256,)), rng)
    return np.concatenate(
        [special, rng.integers(0, 256, (256, dtype.bits // 8), np.uint8).view(dtype.np)[:, 0]]
    )


def _graph(f: Callable[..., Any], *types: TensorType) -> Graph:
    builder, facts = Builder(), Scope()
    with scope(facts), building(builder):
        out = f(*(builder.input(t) for t in types))
        graph, _ = builder.finish(list(out) if isinstance(out, tuple) else [out], "f", facts.guards)
    return graph


def _pairs(dtype: DType, count: int) -> list[Any]:
    """Operands that run through many pairs of values."""
    values = _all_values(dtype)
    return [values, np.random.default_rng(1).permutation(values)][:count]


def _fires(g: Graph, xs: list[Any]) -> Counter[str]:
    """The rules that fire on g, which keeps its bits."""
    fired: Counter[str] = Counter()
    small = simplify(g, fired)
    verify(small)
    assert same_bits(interpret(small, xs), interpret(g, xs))
    return fired


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda e: f"{e.rule}-{e.kinds}")
def test_each_law_is_exact_for_all_special_values(example: Example) -> None:
    count = example.f.__code__.co_argcount - len(example.f.__defaults__ or ())
    for dtype in (d for kind in example.kinds for d in SOME[kind]):
        xs = _pairs(dtype, count)
        g = _graph(example.f, *(TensorType(dtype, x.shape) for x in xs))
        assert example.rule in _fires(g, xs), dtype


@pytest.mark.parametrize("dtype", [f32, f64, bf16, f16], ids=str)
@pytest.mark.parametrize("c", [2.0, -4.0, 0.5, 1024.0, 2.0**-13])
def test_division_by_a_power_of_two(dtype: DType, c: float) -> None:
    xs = _pairs(dtype, 1)
    g = _graph(lambda x: op.div(x, c), TensorType(dtype, xs[0].shape))
    assert _fires(g, xs)["div_power"] == 1


def test_every_pair_of_casts_is_exact() -> None:
    """All A as W as B: the rule fires where A embeds in W, and nowhere changes a bit."""
    formats = [d for d in FORMATS.values() if d.kind != "c"]
    fired: Counter[str] = Counter()
    for a in formats:
        xs = [_all_values(a)[:: 9 if a.bits == 16 else 1]]
        t = TensorType(a, xs[0].shape)
        g = _graph(lambda x: tuple(op.cast(op.cast(x, w), b) for w in formats for b in formats), t)
        fired += _fires(g, xs)
    assert fired["cast_cast"] > 900


def test_every_rule_has_an_example_and_looks_at_ops_that_exist() -> None:
    shown = {e.rule for e in EXAMPLES} | {"div_power", "cast_cast"}
    assert {r.name for r in RULES.rules} == shown - {"merge"}
    assert {h for r in RULES.rules for h in r.heads} <= set(REGISTRY)
    assert all("->" in r.law for r in RULES.rules)


# What is not a law ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "f",
    [
        lambda x: op.add(x, 0.0), lambda x: op.sub(x, -0.0), lambda x: op.mul(x, 0.0),
        lambda x: op.sub(x, x), lambda x: op.sub(0.0, x), lambda x: op.eq(x, x),
        lambda x: op.div(x, x), lambda x: op.div(x, 3.0), lambda x: op.pow(x, op.ones_like(x)),
        lambda x: op.pow(x, op.full_like(x, 2.0)), lambda x: op.logical_not(op.lt(x, 1.0)),
        lambda x: op.sum(op.reshape(x, (-1, 1)), 1), lambda x: op.log(op.exp(x)),
        lambda x: op.cast(op.cast(x, bf16), f32), lambda x: op.div(x, 2.0**100),
    ],
)  # fmt: skip
def test_what_is_not_exact_is_left_alone(f: Callable[..., Any]) -> None:
    xs = _pairs(f32, 1)
    g = _graph(f, TensorType(f32, xs[0].shape))
    assert not set(_fires(g, xs)) - {"full_kind"}


@pytest.mark.parametrize("dtype", [f16 @ saturate, bf16 @ stochastic_round, i8 @ saturate], ids=str)
def test_no_law_for_policies_that_clamp_or_draw(dtype: DType) -> None:
    xs = _pairs(dtype.base, 1)
    t = TensorType(dtype, xs[0].shape)
    for f in (
        lambda x: op.mul(x, 1),
        lambda x: op.sub(x, 0),
        lambda x: op.cast(op.cast(x, f32), dtype),
    ):
        assert not set(_fires(_graph(f, t), xs)) - {"full_kind"}


# Folding --------------------------------------------------------------------------------------


def _nodes(g: Graph) -> list[str]:
    return [n.op.name for n in g.nodes]


def test_fills_of_any_size_fold_to_fills() -> None:
    n = symbol("N")
    g = _graph(
        lambda x: op.add(x, op.transpose(op.add(op.full((3, n), 1.5), op.full((3, n), 0.25)))),
        TensorType(f32, (n, 3)),
    )
    small = simplify(g)
    assert _nodes(small) == ["full", "add"]
    assert small.nodes[0].params == {"shape": (n, 3), "value": 1.75, "dtype": f32}


def test_small_results_fold_to_constants_and_large_ones_do_not() -> None:
    def f(n: int) -> Graph:
        return simplify(_graph(lambda: op.sqrt(op.iota((n,), dtype=f32))))

    assert _nodes(f(64)) == ["constant"]
    assert _nodes(f(65)) == ["iota", "sqrt"]


def test_what_targets_compute_in_their_own_way_is_not_folded() -> None:
    x = np.float32([1, 2, 3])
    for f in (op.exp, op.sum, op.softmax):
        assert _nodes(simplify(_graph(lambda f=f: f(concrete(x)))))[-1] == f.__name__
    assert _nodes(simplify(_graph(lambda: op.sum(concrete(np.int64([1, 2])))))) == ["full"]


def test_a_constant_of_equal_bits_becomes_a_fill() -> None:
    def f(data: Any) -> Graph:
        return simplify(_graph(lambda x: op.add(x, concrete(data)), TensorType(f32, (2,))))

    assert _nodes(f(np.float32([2, 2]))) == ["full", "add"]
    assert _nodes(f(np.float32([0.0, -0.0]))) == ["constant", "add"]


def test_what_raises_is_left_to_the_run() -> None:
    g = _graph(lambda: op.pow(op.full((2,), 2, i32), op.full((2,), -1, i32)))
    assert _nodes(simplify(g)) == ["full", "full", "pow"]


def test_host_calls_are_not_folded() -> None:
    g = _graph(lambda: _raw("inv", op.full((2, 2), 1.0)))
    assert _nodes(simplify(g))[-1] == "inv"


# Merging and dropping -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("a", "b", "equal"),
    [
        (0.0, -0.0, False), (float("nan"), float("nan"), True), (0.5, 0.5, True), (1j, -1j, False),
        (complex(0.0, 0.0), complex(0.0, -0.0), False),
    ],
)  # fmt: skip
def test_fills_merge_only_when_their_bits_are_equal(a: Any, b: Any, equal: bool) -> None:
    dtype = c64 if isinstance(a, complex) else f32
    g = _graph(lambda: (op.full((2,), a, dtype), op.full((2,), b, dtype)))
    assert len(simplify(g).nodes) == (1 if equal else 2)


def test_parameters_of_different_types_do_not_merge() -> None:
    """1, 1.0 and True are equal and hash alike in Python, but are not the same parameter."""
    (x,) = (Builder().input(TensorType(f32, (2,))),)
    odd = dataclasses.replace(REGISTRY["exp"], name="odd", call="odd", body=None)
    nodes = [
        Builder().node(odd, (x,), {"k": k}, (), [x.type], None)
        for k in (1, 1.0, True, (1,), (True,))
    ]
    g = Graph([x], nodes, [n.results[0] for n in nodes])
    assert len(simplify(g).nodes) == 5


def _effect(x: Value, effect: str) -> Node:
    noisy = dataclasses.replace(REGISTRY["exp"], name="noisy", effects=frozenset((effect,)))
    return Builder().node(noisy, (x,), {}, (), [x.type], None)


@pytest.mark.parametrize("effect", ["state", "movement", "collective", "io"])
def test_effects_are_neither_merged_nor_dropped(effect: str) -> None:
    x = Builder().input(TensorType(f32, (2,)))
    nodes = [_effect(x, effect), _effect(x, effect)]
    assert _nodes(simplify(Graph([x], nodes, [x]))) == ["noisy", "noisy"]


def test_draws_of_one_key_are_one_draw_and_dropped_when_dead() -> None:
    """A draw is a function of its key (docs/decisions/034): two of the same key are the same numbers."""
    x, y = (Builder().input(TensorType(f32, (2,))) for _ in range(2))
    draw = _effect(x, "random").op
    nodes = [Builder().node(draw, (v,), {}, (), [v.type], None) for v in (x, x, y)]
    g = simplify(Graph([x, y], nodes, [nodes[0].results[0], nodes[1].results[0]]))
    assert list(g.nodes) == [nodes[0]]
    assert g.outputs == (nodes[0].results[0],) * 2


def test_effects_inside_a_region_count() -> None:
    x, y = (Builder().input(TensorType(f32, (2,))) for _ in range(2))
    noisy = _effect(y, "io")
    body = Graph([y], [noisy], noisy.results)
    calls = [
        Builder().node(REGISTRY["call"], (x,), {"name": "f"}, (body,), [x.type], None)
        for _ in range(2)
    ]
    assert len(simplify(Graph([x], calls, [x])).nodes) == 2


def test_equal_calls_merge() -> None:
    @ts.jit
    def f(x: Any) -> Any:
        return op.exp(x)

    g = ts.trace(lambda x: op.add(f(x), f(x)), ts.Tensor[2, f32])
    assert _nodes(g) == ["call", "call", "add"]
    assert _nodes(simplify(g)) == ["call", "add"]


# What is kept ---------------------------------------------------------------------------------


def test_regions_are_simplified() -> None:
    @ts.jit
    def f(x: Any) -> Any:
        return op.exp(op.neg(op.neg(x)))

    g = simplify(ts.trace(lambda x: f(x), ts.Tensor[2, f32]))
    assert _nodes(g.nodes[0].regions[0]) == ["exp"]


def test_names_guards_captured_and_lines_are_kept() -> None:
    w = ts.tensor(np.ones((100, 2), np.float32))
    g = ts.trace(
        lambda x, y: op.neg(op.neg(op.matmul(op.add(x, y), w) * 1.0)) + op.neg(0.0 + x[:1, :2]),
        ts.Tensor["N", 100, f32],
        ts.Tensor["M", 100, f32],
    )
    small = simplify(g)
    verify(small)
    assert len(small.nodes) < len(g.nodes)
    assert (small.inputs, small.input_names, small.name) == (g.inputs, g.input_names, g.name)
    assert (small.captured, small.guards) == (g.captured, g.guards)
    assert {n.location for n in small.nodes} <= {n.location for n in g.nodes}
    assert all(n.location is not None for n in small.nodes)


def test_a_graph_in_normal_form_is_returned_as_it_is() -> None:
    g = ts.trace(lambda x: op.exp(x), ts.Tensor[2, f32])
    assert simplify(g) is g


def test_the_graph_given_is_not_changed() -> None:
    g = ts.trace(lambda x: op.exp(op.neg(op.neg(x))), ts.Tensor[2, f32])
    before = print_of(g)
    simplify(g)
    assert print_of(g) == before


def print_of(g: Graph) -> str:
    return Graph(g.inputs, g.nodes, g.outputs).text


def test_a_replacement_needs_no_guard_that_the_graph_lacks() -> None:
    """reshape(reshape(x)) of sizes that a guard makes equal: still a valid graph."""
    n, m = symbol("N"), symbol("M")
    g = _graph(
        lambda x, y: op.add(op.reshape(op.reshape(x, (n * 2,)), (2, n)), y),
        TensorType(f32, (n, 2)),
        TensorType(f32, (2, m)),
    )
    small = simplify(g)
    verify(small)
    xs = [np.arange(6, dtype=np.float32).reshape(3, 2), np.ones((2, 3), np.float32)]
    assert same_bits(interpret(small, xs), interpret(g, xs))


# inline


def test_inline_keeps_the_lines_of_the_callee_and_reaches_nested_calls() -> None:
    @ts.jit
    def inner(x: Any) -> Any:
        return op.exp(x)

    @ts.jit
    def outer(x: Any) -> Any:
        return inner(inner(x))

    g = ts.trace(lambda x: outer(x), ts.Tensor[2, f32])
    flat = inline(g)
    assert _nodes(flat) == ["exp", "exp"]
    lines = {n.location for n in flat.nodes}
    (body,) = g.nodes[0].regions
    (deep,) = body.nodes[0].regions
    assert lines == {deep.nodes[0].location}
