"""Symbolic sizes: polynomials that agree with integer arithmetic, facts, guards and solving."""

from __future__ import annotations

import operator

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tessera.core.constraints import Guard, Scope, lone_symbol, require, same, scope, solve, unify
from tessera.core.dims import (
    Dim,
    Symbol,
    bounds,
    call,
    larger,
    product,
    smaller,
    split_terms,
    substitute,
    symbol,
    symbols,
)
from tessera.core.dtype import f32
from tessera.core.errors import AnnotationError, ShapeError
from tessera.core.parse_sizes import parse_dim
from tessera.core.signature import Signature, broadcast_shapes
from tessera.core.types import TensorType

B, S, D = symbol("B"), symbol("S"), symbol("D")
OPERATIONS = [operator.add, operator.sub, operator.mul]
environments = st.fixed_dictionaries({n: st.integers(1, 50) for n in ("B", "S", "D")})


@st.composite
def sizes(draw, depth=3):
    """A size built at random from symbols, numbers and every operation."""
    if depth == 0 or draw(st.integers(0, 3)) == 0:
        return draw(st.sampled_from([B, S, D]) | st.integers(-3, 9))
    f = draw(st.sampled_from([*OPERATIONS, "//", "%", larger, smaller]))
    a = draw(sizes(depth=depth - 1))
    if f in ("//", "%"):
        k = draw(st.integers(1, 5))
        return a // k if f == "//" else a % k
    return f(a, draw(sizes(depth=depth - 1)))


def at(x, env):
    """The number that a size is under an environment."""
    value = substitute(x, env)
    assert isinstance(value, int)
    return value


def by_terms(x, env):
    """A substitution by the operators of sizes, term by term."""
    if isinstance(x, int):
        return x
    total = 0
    for monomial, factor in x.terms:
        term = factor
        for atom, power in monomial:
            if isinstance(atom, Symbol):
                value = env.get(atom.name, symbol(atom.name))
            else:
                value = call(atom.function, by_terms(atom.left, env), by_terms(atom.right, env))
            for _ in range(power):
                term = term * value
        total = total + term
    return total


# Arithmetic is that of integers


@given(sizes(), sizes(2), sizes(2))
def test_a_substitution_has_the_terms_that_the_operators_give_in_their_order(x, a, b):
    for env in ({"B": a}, {"B": a, "D": b}, {"S": 3, "D": b}, {"B": B + 1}):
        got, want = substitute(x, env), by_terms(x, env)
        assert got == want
        assert str(got) == str(want)


@given(sizes(), sizes(), environments)
def test_polynomials_compute_as_integers_do(a, b, env):
    for f in OPERATIONS:
        assert at(f(a, b), env) == f(at(a, env), at(b, env))
    assert at(larger(a, b), env) == max(at(a, env), at(b, env))
    assert at(smaller(a, b), env) == min(at(a, env), at(b, env))


@given(sizes(), st.integers(1, 7), environments)
def test_division_computes_as_integers_do(a, k, env):
    assert at(a // k, env) == at(a, env) // k
    assert at(a % k, env) == at(a, env) % k


@given(sizes(), environments)
def test_division_by_a_size_computes_as_integers_do(a, env):
    assert at(a * S // S, env) == at(a, env)
    assert at((a * S + D) // S, env) == (at(a, env) * env["S"] + env["D"]) // env["S"]
    assert at(7 // S, env) == 7 // env["S"]
    assert at(7 % S, env) == 7 % env["S"]


# The form is canonical


@given(sizes(), sizes(), sizes())
def test_equal_polynomials_are_equal_objects(a, b, c):
    for left, right in ((a + b, b + a), (a * b, b * a), ((a + b) * c, a * c + b * c), (a - a, 0)):
        assert left == right
        assert hash(left) == hash(right)
        assert str(left) == str(right)


@given(sizes())
def test_the_text_of_a_size_parses_to_it(a):
    assert parse_dim(str(a)) == a


@given(sizes())
def test_a_constant_is_a_plain_int(a):
    assert type(a - a) is int
    assert type(a * 0) is int
    assert isinstance(a, int) or symbols(a)


@given(sizes(), environments)
def test_bounds_hold_the_value(a, env):
    low, high = bounds(a)
    assert low <= at(a, env) <= high


@given(sizes(), sizes(), environments)
def test_an_order_that_is_known_is_right(a, b, env):
    assume(isinstance(a, Dim) or isinstance(b, Dim))
    for f in (operator.lt, operator.le, operator.gt, operator.ge):
        try:
            known = f(a, b)
        except ShapeError:
            continue
        assert known == f(at(a, env), at(b, env))


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (2 * S + 1, "2*S + 1"), (S - 1, "S - 1"), (B * S * 4, "4*B*S"), (S * S, "S**2"),
        (1 - S, "-S + 1"), (S // 2, "S // 2"), (larger(S, 8), "max(S, 8)"),
        ((S + 3) % 4, "(S + 3) % 4"), (2 * (S // 2) + 1, "2*(S // 2) + 1"), (-(S // 2), "-(S // 2)"),
        (S // 2 + B, "S // 2 + B"), (B - S // 2, "-(S // 2) + B"), ((S // 2) % 3, "(S // 2) % 3"),
        (larger(S, 8) // 3, "max(S, 8) // 3"), (2 * B * S // 3, "(2*B*S) // 3"),
    ],
)  # fmt: skip
def test_text(size, text):
    assert parse_dim(text) == size
    assert str(size) == text


def test_exact_division_stays_polynomial():
    assert (4 * B * S) // (2 * S) == 2 * B
    assert (4 * B * S) % B == 0
    assert (6 * S + 3) // 3 == 2 * S + 1
    assert S**2 // S == S
    assert product((B, 2, S)) == 2 * B * S


@pytest.mark.parametrize("text", ["", "2*", "S.x", "1.5", "S/2", "f(S)", "S and B", "True"])
def test_what_is_no_size_says_so(text):
    with pytest.raises(AnnotationError, match="is not a size; write a name, a number or a poly"):
        parse_dim(text)


def test_a_symbol_has_no_number():
    with pytest.raises(ShapeError, match="size S is symbolic and has no number while tracing"):
        int(S)
    with pytest.raises(ShapeError, match=r"whether S > 4 is not known while tracing"):
        S > 4  # noqa: B015
    assert S > 0
    assert S + 1 > S


# Facts and guards


def test_a_lone_symbol():
    assert lone_symbol(S) == "S"
    assert [lone_symbol(x) for x in (2 * S, S + 1, S * S, S // 2, 3)] == [None] * 5


def test_unify_records_what_the_sizes_do_not_settle():
    with scope(Scope()) as facts:
        assert unify(B, B, "same")
        assert unify(2 * S + 1, S + S + 1, "same")
        assert not unify(S, S + 1, "never")
        assert facts.guards == []
        assert unify(B, S, "matmul")
        assert [str(g) for g in facts.guards] == ["B == S"]
        assert same(2 * B, 2 * S) is True
        assert same(B, D) is None
        assert unify(B, S, "again")
        assert len(facts.guards) == 1


def test_equations_chain():
    with scope(Scope()) as facts:
        unify(B, 2 * S, "a")
        unify(S, D + 1, "b")
        assert same(B, 2 * D + 2) is True
        assert same(B, 2 * D) is False
        assert facts.normal(B + S) == 3 * D + 3


def test_require_knows_what_always_or_never_holds():
    with scope(Scope()) as facts:
        assert require("divisible", 6 * S, 3, "split")
        assert require("at_least", S, 1, "slice")
        assert not require("at_least", 0 - S, 0, "slice")
        assert not require("divisible", 7, 2, "split")
        assert facts.guards == []
        assert require("divisible", S, 4, "split")
        assert require("at_least", S, 8, "slice")
        assert [str(g) for g in facts.guards] == ["S is a multiple of 4", "S >= 8"]


@given(environments)
def test_a_guard_holds_when_its_numbers_do(env):
    assert Guard("equal", B, S, "").holds(env) == (env["B"] == env["S"])
    assert Guard("divisible", B, S, "").holds(env) == (env["B"] % env["S"] == 0)
    assert Guard("at_least", B, S + 1, "").holds(env) == (env["B"] > env["S"])


def test_scopes_nest_and_close():
    with scope(Scope()) as outer:
        with scope(Scope()) as inner:
            unify(B, S, "inside")
        assert len(inner.guards) == 1
        assert outer.guards == []
        assert same(B, S) is None


# Solving a call


@given(environments)
def test_solve_inverts_substitute(env):
    shapes = [("x", (B, 2 * S + 1, B * D)), ("y", (D, S, 3))]
    actual = [(n, s, tuple(at(v, env) for v in s)) for n, s in shapes]
    assert solve(actual, []) == env


@pytest.mark.parametrize(
    ("shapes", "guards", "message"),
    [
        ([("x", (B, 3), (2, 4))], [], "axis 1 of x is 4, expected 3"),
        ([("x", (B,), (2, 4))], [], "x has rank 2 [2, 4], expected rank 1 [B]"),
        ([("x", (B,), (2,)), ("y", (B,), (3,))], [],
         "axis 0 of y is 3, but B is 2 (B = 2 from axis 0 of x)"),
        ([("x", (2 * S,), (5,))], [], "axis 0 of x is 5, which is no value of 2*S"),
        (
            [("x", (S // 2,), (5,))],
            [],
            "axis 0 of x is 5, but S does not follow from S // 2; name S on another axis, or give this axis "
            "a name of its own",
        ),
        ([("x", (B, S), (2, 6))], [Guard("equal", B, S, "matmul: axis 'k'")],
         "matmul: axis 'k': needs B == S, but B = 2 from axis 0 of x, S = 6 from axis 1 of x"),
    ],
)  # fmt: skip
def test_a_call_that_breaks_a_size_says_where(shapes, guards, message):
    with pytest.raises(ShapeError) as e:
        solve(shapes, guards)
    assert e.value.message == message


# Signatures


@pytest.mark.parametrize(
    "text", ["m k, k n -> m n", "..., ... -> ...", "... n! -> ... n!", "i j -> ", "b i i -> b i"]
)
def test_a_signature_prints_as_it_parses(text):
    assert str(Signature.parse(text)) == text
    assert Signature.parse(text) is Signature.parse(text)


def test_a_signature_binds_and_reduces():
    sig = Signature.parse("... m k, ... k n -> ... m n")
    bound, got = sig.bind("matmul", [TensorType(f32, (B, 2, S)), TensorType(f32, (B, S, 5))])
    assert str(bound) == "d0 m k, d0 k n -> d0 m n"
    assert got == {"d0": B, "m": 2, "k": S, "n": 5}
    assert bound.reduced == ("k",)


def test_a_signature_names_the_axis_that_disagrees():
    with pytest.raises(ShapeError) as e:
        Signature.parse("m k, k n -> m n").bind(
            "matmul", [TensorType(f32, (2, 3)), TensorType(f32, (4, 5))]
        )
    assert (
        e.value.message == "matmul: axis 'k' is 3 in operand 0 f32[2,3] but 4 in operand 1 f32[4,5]"
    )


def test_broadcasting_follows_numpy():
    def met(*shapes):
        return broadcast_shapes("add", [TensorType(f32, s) for s in shapes])

    assert met((2, 1), (3,), ()) == (2, 3)
    assert met((B, 1), (1, S)) == (B, S)
    assert met((0, 2), (1,)) == (0, 2)
    with scope(Scope()) as facts:
        assert met((B,), (4,)) == (4,)
        assert [str(g) for g in facts.guards] == ["B == 4"]
    with pytest.raises(ShapeError, match=r"do not broadcast: axis -1 is 2 and 3"):
        met((2,), (3,))


@given(sizes(), st.sampled_from([B, S, 2 * B, 3 * B * S, B * B, -2 * S, symbol("D")]), environments)
def test_split_terms_is_a_division_with_rest(a, b, env):
    """a = q*b + r for all sizes; what is a multiple leaves nothing."""
    q, r = split_terms(a, b)
    assert at(q, env) * at(b, env) + at(r, env) == at(a, env)
    q, r = split_terms(a * b, b)
    assert at(q, env) == at(a, env)
    assert r == 0
