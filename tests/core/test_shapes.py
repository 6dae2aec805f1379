"""Symbolic sizes: inference, facts, guards, and the report of ts.shapes."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tessera as ts
from tessera import Tensor, f32, op
from tessera.core.constraints import Scope, scope, unify
from tessera.core.dims import substitute, symbol
from tessera.core.errors import AnnotationError, ShapeError
from tessera.core.parse_sizes import parse_dim
from tessera.core.types import TensorType


def ones(*shape):
    return ts.tensor(np.ones(shape, np.float32))


def returns(f, *types):
    return [str(t) for t in ts.shapes(f, *types).outputs]


B, S, D = symbol("B"), symbol("S"), symbol("D")


@pytest.mark.parametrize(
    ("program", "expected"),
    [
        (lambda x: x @ op.transpose(x, (0, 2, 1)), "f32[B,S,S]"),
        (lambda x: x.reshape(-1, x.shape[-1]), "f32[B*S,D]"),
        (lambda x: x.reshape(x.shape[0], -1), "f32[B,D*S]"),
        (lambda x: op.concat([x, x[:, :1]], axis=1), "f32[B,S + 1,D]"),
        (lambda x: op.concat([x, x, x[:, :1]], axis=1), "f32[B,2*S + 1,D]"),
        (lambda x: op.concat([x, x], axis=1)[:, ::2], "f32[B,S,D]"),
        (lambda x: op.pad(x, ((0, 0), (1, 2), (0, 0))), "f32[B,S + 3,D]"),
        (lambda x: op.mean(x, axis=(1, 2)), "f32[B]"),
        (lambda x: op.expand_dims(x, 1) + op.expand_dims(x, 2), "f32[B,S,S,D]"),
        (lambda x: op.outer(op.flatten(x), op.flatten(x)), "f32[B*D*S,B*D*S]"),
        (lambda x: op.stack([x, x], axis=-1), "f32[B,S,D,2]"),
        (lambda x: x[:, :-1] * x[:, 1:], "f32[B,S - 1,D]"),
        (lambda x: op.einsum("bsd,btd->bst", x, x), "f32[B,S,S]"),
        (lambda x: op.split(op.concat([x, x], 2), 2, axis=2)[0], "f32[B,S,D]"),
    ],
)
def test_inference_gives_polynomials(program, expected):
    assert returns(program, Tensor["B", "S", "D", f32]) == [expected]


def test_inferred_sizes_are_the_sizes_that_come_out():
    def program(x, w):
        y = op.concat([x @ w, x @ w], axis=1)
        return y.reshape(-1)[::2], op.pad(y, 1)

    report = ts.shapes(program, Tensor["B", "D", f32], Tensor["D", "H", f32])
    got = program(ones(3, 4), ones(4, 5))
    env = {"B": 3, "D": 4, "H": 5}
    assert [t.substitute(env).shape for t in report.outputs] == [t.shape for t in got]


def test_the_report_names_lines_and_guards():
    def program(x, w, b):
        h = x @ w
        return h + b

    report = ts.shapes(program, Tensor["B", "D", f32], Tensor["D", "H", f32], Tensor["K", f32])
    rows = {r.what: r for r in report.rows}
    assert [r.what for r in report.rows[:3]] == ["x", "w", "b"]
    assert str(rows["matmul"].type) == "f32[B,H]"
    assert rows["matmul"].location.line == program.__code__.co_firstlineno + 1
    assert [str(g) for g in report.guards] == ["H == K"]
    assert report.guards[0].location.line == program.__code__.co_firstlineno + 2
    text = str(report)
    assert "returns f32[B,H]" in text
    assert "needs H == K: add: axis -1 of operand 1 at " in text


def test_annotations_are_enough():
    def program(x: Tensor["B", "2*S+1", f32]):
        return x[:, ::2]

    assert returns(program) == ["f32[B,S + 1]"]


def test_guards_hold_or_tell_both_sizes():
    @ts.jit
    def f(x: Tensor["B", "N", f32], y: Tensor["M", f32]):
        return op.reshape(x, (-1, 2)).sum() + (x * y).sum()

    assert float(f(ones(2, 4), ones(4))) == 16
    with pytest.raises(ShapeError) as e:
        f(ones(2, 4), ones(3))
    assert e.value.message == (
        "mul: axis -1 of operand 1: needs N == M, but M = 3 from axis 0 of y, N = 4 from axis 1 of x"
    )
    with pytest.raises(ShapeError) as e:
        f(ones(3, 3), ones(3))
    assert e.value.message == (
        "reshape: the size for -1: needs B*N is a multiple of 2, but B = 3 from axis 0 of x, "
        "N = 3 from axis 1 of x"
    )
    assert f.compiled == 1


def test_polynomial_annotations_are_solved():
    @ts.jit
    def f(x: Tensor["2*S+1", f32], y: Tensor["S", f32]):
        return op.sum(x) + op.sum(y)

    assert float(f(ones(7), ones(3))) == 10
    with pytest.raises(ShapeError) as e:
        f(ones(8), ones(3))
    assert e.value.message == "axis 0 of x is 8, but 2*S + 1 is 7 (S = 3 from axis 0 of y)"

    g = ts.jit(only_odd)
    assert g(ones(5)).shape == (5,)
    with pytest.raises(ShapeError) as e:
        g(ones(6))
    assert e.value.message == "axis 0 of x is 6, which is no value of 2*S + 1"


def only_odd(x: Tensor["2*S+1", f32]):
    return x


def test_facts_are_used_in_the_rest_of_the_trace():
    facts = Scope()
    with scope(facts):
        assert unify(B, S, "test")
        assert facts.same(B * D, S * D) is True
        assert facts.same(B + 1, S) is False
        assert unify(S, 4, "test")
        assert facts.same(B, 4) is True
        assert unify(B, 5, "test") is False
    assert [str(g) for g in facts.guards] == ["B == S", "S == 4"]


def test_impossible_sizes_fail_while_tracing():
    with pytest.raises(ShapeError) as e:
        ts.shapes(lambda x: x[:, 1:] + x, Tensor["B", "S", f32])
    assert "do not broadcast: axis -1 is S - 1 and S" in e.value.message


def test_bad_sizes_in_annotations():
    for text in ("2*", "S+", "f(S)", "S/2", "", "'a'", "True"):
        with pytest.raises(AnnotationError, match="is not a size"):
            Tensor[text, f32]


sizes = st.recursive(
    st.sampled_from(["B", "S", "D"]).map(symbol) | st.integers(0, 5),
    lambda inner: st.tuples(inner, inner, st.sampled_from("+-*")).map(
        lambda t: {"+": t[0] + t[1], "-": t[0] - t[1], "*": t[0] * t[1]}[t[2]]
    ),
    max_leaves=6,
)


@given(sizes, st.integers(1, 6), st.tuples(*[st.integers(1, 9)] * 3))
@settings(max_examples=200)
def test_division_is_that_of_integers(size, k, values):
    env = dict(zip("BSD", values, strict=True))
    n = substitute(size, env)
    for by, m in ((k, k), (S, env["S"]), (2 * B, 2 * env["B"])):
        assert substitute(size // by, env) == n // m
        assert substitute(size % by, env) == n % m


@given(sizes, st.tuples(*[st.integers(1, 9)] * 3))
@settings(max_examples=200)
def test_text_of_a_size_is_the_size(size, values):
    assert parse_dim(str(size)) == size
    env = dict(zip("BSD", values, strict=True))
    again = parse_dim(str(size))
    assert substitute(size, env) == substitute(again, env)


def test_a_trace_takes_what_a_jitted_function_takes():
    f = lambda x, s, y=1.0: x * s + y  # noqa: E731
    x = np.ones((2, 3), np.float32)
    for args, kwargs in (((x, 2.0), {}), ((ts.tensor(x), x), {}), ((x, np.float64(3)), {"y": x})):
        assert str(ts.trace(f, *args, **kwargs)) == str(ts.jit(f).lower(*args, **kwargs).traced)
    assert str(ts.shapes(f, Tensor[2, 3, f32], x.astype(np.float64)).outputs[0]) == "f64[2,3]"


@pytest.mark.parametrize("make", [
    lambda n: TensorType(f32, (n, n)), lambda n: op.broadcast_to(ts.ones((), f32), (n, n)),
    lambda n: ts.trace(lambda x: op.outer(x, x), Tensor[n, f32]), lambda n: op.zeros((n, n)),
    lambda n: ts.trace(lambda x: x, Tensor[n, n, 2, f32]),
    lambda n: ts.trace(lambda x: op.tile(x, (n,)), Tensor[n, f32]),
], ids=["type", "broadcast", "outer", "zeros", "annotation", "tile"])  # fmt: skip
def test_shapes_with_more_elements_than_an_index_reaches_are_refused(make):
    with pytest.raises(ShapeError) as e:
        make(1 << 32)
    assert "elements, more than the 2**63 - 1 that an index reaches" in e.value.message
    assert TensorType(f32, (1 << 31, 1 << 31)).size == 1 << 62
