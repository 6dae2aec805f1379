"""Algebraic identities, as a table: each row is a law, before -> after.

Every law is exact: for all inputs, NaN, infinities and signed zeros included, both sides have the
same bits (a NaN stays a NaN) under the dtypes that the row names.  Hence x + 0.0 is missing for
floats (-0.0 + 0.0 is 0.0), and so are x ** 1 and x ** 2 (NumPy's float power is not exact), x * 0,
x - x and exp(log(x)).  Rows do not apply to dtypes that saturate or round stochastically.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any

from tessera.core.dtype import DType
from tessera.core.promotion import embeds
from tessera.core.rewrite import Rule
from tessera.ir.graph.ir import Node, Value
from tessera.ir.graph.op import Op, known
from tessera.transform.maker import Found, Maker

Apply = Callable[[Node, Maker], Found]
REAL, WHOLE = "uif", "ui"  # kinds of dtypes


def plain(dtype: DType) -> bool:
    """Whether arithmetic on the dtype rounds to nearest and does not clamp."""
    return not (dtype.policy.saturate or dtype.policy.stochastic_round)


def _applies(n: Node, kinds: str) -> bool:
    dtype = n.operands[0].dtype
    return dtype.kind in kinds and plain(dtype)


def _is(m: Maker, v: Value, value: Any) -> bool:
    """Whether every element of v is this number, with the sign of a zero."""
    x = m.number(v)
    if x is None or x != value:
        return False
    if isinstance(x, complex):
        return str(x) == str(complex(value))
    return not isinstance(x, float) or math.copysign(1, x) == math.copysign(1, value)


@cache
def _ops(*names: str) -> frozenset[Op | None]:
    """The records of ops that a law names."""
    return frozenset(map(known, names))


def _made_by(v: Value, *names: str) -> Node | None:
    """The node that made v, when it is of one of the ops that a law names."""
    return v.node if v.node is not None and v.node.op in _ops(*names) else None


# Kinds of rows


def neutral(kinds: str, value: Any, sides: tuple[int, ...] = (1,)) -> Apply:
    """f(x, value) -> x, for the sides that the value may be on."""

    def apply(n: Node, m: Maker) -> Found:
        if _applies(n, kinds):
            for side in sides:
                if _is(m, n.operands[side], value):
                    return (n.operands[1 - side],)
        return None

    return apply


def absorbing(kinds: str, value: Any) -> Apply:
    """f(x, value) -> value."""

    def apply(n: Node, m: Maker) -> Found:
        if _applies(n, kinds):
            for v in n.operands:
                if _is(m, v, value):
                    return (v,)
        return None

    return apply


def all_ones(identity: bool) -> Apply:
    """f(x, every bit set) -> x, or -> every bit set."""

    def apply(n: Node, m: Maker) -> Found:
        dtype = n.operands[0].dtype
        ones = (1 << dtype.bits) - 1 if dtype.kind == "u" else -1 if dtype.kind == "i" else 1
        return (neutral if identity else absorbing)("bui", ones, *((0, 1),) * identity)(n, m)

    return apply


def same_operands(kinds: str, value: Any = None) -> Apply:
    """f(x, x) -> x, or -> the number."""

    def apply(n: Node, m: Maker) -> Found:
        x, y = n.operands
        if x is not y or not _applies(n, kinds):
            return None
        return (x,) if value is None else m.full(n.results[0].type, value)

    return apply


def becomes(kinds: str, value: Any, side: int, after: str) -> Apply:
    """f(x, value) -> after(x), with the value on this side."""

    def apply(n: Node, m: Maker) -> Found:
        if _applies(n, kinds) and _is(m, n.operands[side], value):
            return m.apply(after, n.operands[1 - side])
        return None

    return apply


def constant_result(kinds: str, value: Any) -> Apply:
    """f(x) -> the number."""
    return lambda n, m: m.full(n.results[0].type, value) if _applies(n, kinds) else None


def itself(kinds: str) -> Apply:
    """f(x) -> x."""
    return lambda n, m: (n.operands[0],) if _applies(n, kinds) else None


def undone(kinds: str = "buifc") -> Apply:
    """f(f(x)) -> x."""

    def apply(n: Node, m: Maker) -> Found:
        inner = _made_by(n.operands[0], n.op.name)
        return (inner.operands[0],) if inner is not None and _applies(n, kinds) else None

    return apply


def repeated(kinds: str, *inner: str) -> Apply:
    """f(g(x)) -> g(x), for g among inner."""

    def apply(n: Node, m: Maker) -> Found:
        made = _made_by(n.operands[0], *inner)
        return (n.operands[0],) if made is not None and _applies(n, kinds) else None

    return apply


def through(kinds: str, *inner: str) -> Apply:
    """f(g(x)) -> f(x), for g among inner."""

    def apply(n: Node, m: Maker) -> Found:
        made = _made_by(n.operands[0], *inner)
        if made is None or not _applies(n, kinds):
            return None
        return m.make(n.op, made.operands, **n.params)

    return apply


def negated(kinds: str, after: dict[str, str]) -> Apply:
    """not(f(x, y)) -> g(x, y), for each f and its opposite g."""

    def apply(n: Node, m: Maker) -> Found:
        made = _made_by(n.operands[0], *after)
        if made is None or made.operands[0].dtype.kind not in kinds:
            return None
        return m.apply(after[made.op.name], *made.operands)

    return apply


# Rows of their own


def _both_negated(n: Node, m: Maker) -> Found:
    a, b = (_made_by(v, "neg") for v in n.operands)
    if a is None or b is None or not _applies(n, REAL):
        return None
    return m.make(n.op, (a.operands[0], b.operands[0]), **n.params)


def _add_negated(n: Node, m: Maker) -> Found:
    for x, y in (n.operands, n.operands[::-1]):
        inner = _made_by(y, "neg")
        if inner is not None and _applies(n, "uifc"):
            return m.apply("sub", x, inner.operands[0])
    return None


def _subtract_negated(n: Node, m: Maker) -> Found:
    x, y = n.operands
    inner = _made_by(y, "neg")
    return m.apply("add", x, inner.operands[0]) if inner and _applies(n, "uifc") else None


def _divide_by_power_of_two(n: Node, m: Maker) -> Found:
    """Exact when the reciprocal is a normal number of the dtype: both sides round one real number."""
    x, y = n.operands
    c = m.number(y) if _applies(n, "f") else None
    if c is None or not math.isfinite(c) or abs(math.frexp(c)[0]) != 0.5 or abs(c) in (0.0, 1.0):
        return None
    if (
        not -14 < math.frexp(c)[1] - 1 < 14 or x.dtype.bits < 16
    ):  # in the range of every wide format
        return None
    by = m.full(y.type, 1 / c)
    return None if by is None else m.apply("mul", x, by[0])


def _select_known(n: Node, m: Maker) -> Found:
    c = m.number(n.operands[0])
    return None if c is None else (n.operands[1 if c else 2],)


def _select_same(n: Node, m: Maker) -> Found:
    return (n.operands[1],) if n.operands[1] is n.operands[2] else None


def _select_negated(n: Node, m: Maker) -> Found:
    c, x, y = n.operands
    inner = _made_by(c, "logical_not")
    return None if inner is None else m.make(n.op, (inner.operands[0], y, x))


def _cast_of_cast(n: Node, m: Maker) -> Found:
    """x of A as W as B is x as B, when W holds all of A and a wrap or clamp is the same from both."""
    inner = _made_by(n.operands[0], "cast")
    if inner is None:
        return None
    x, w, b = inner.operands[0], inner.results[0].dtype, n.results[0].dtype
    a = x.dtype
    if not (plain(a) and plain(w) and plain(b) and embeds(a, w)):
        return None
    if a is b:
        return (x,)
    alike = a.kind == "b" or (a.kind in "iu") == (w.kind in "iu")
    return m.make(n.op, (x,), **n.params) if alike or b.kind in "fc" or embeds(a, b) else None


def _cast_to_itself(n: Node, m: Maker) -> Found:
    x = n.operands[0]
    return (x,) if x.dtype is n.results[0].dtype else None


def _number_of_its_dtype(n: Node, m: Maker) -> Found:
    """`full` states its number in the kind of its dtype, so that equal fills are equal nodes."""
    value, dtype = n.params["value"], n.params["dtype"]
    if dtype.kind == "f" and isinstance(value, int) and abs(value) <= 1 << 53:
        return m.full(n.results[0].type, float(value))
    if dtype.kind in "iu" and isinstance(value, bool):
        return m.full(n.results[0].type, int(value))
    return None


ROUNDINGS = ("floor", "ceil", "trunc", "round")
OPPOSITE = {"lt": "ge", "ge": "lt", "gt": "le", "le": "gt"}

ARITHMETIC: tuple[Rule[Node, Value], ...] = (
    Rule("full_kind", "full 2 of f32 -> full 2.0", ("full",), _number_of_its_dtype),
    Rule("mul_one", "x * 1 -> x", ("mul",), neutral("buif", 1, (0, 1))),
    Rule("mul_zero", "x * 0 -> 0, whole", ("mul",), absorbing("bui", 0)),
    Rule("mul_minus_one", "x * -1 -> -x", ("mul",), becomes("if", -1, 1, "neg")),
    Rule("minus_one_mul", "-1 * x -> -x", ("mul",), becomes("if", -1, 0, "neg")),
    Rule("mul_negated", "-x * -y -> x * y", ("mul", "div"), _both_negated),
    Rule("div_one", "x / 1 -> x", ("div",), neutral("f", 1)),
    Rule("div_minus_one", "x / -1 -> -x", ("div",), becomes("f", -1, 1, "neg")),
    Rule("div_power", "x / 2**k -> x * 2**-k", ("div",), _divide_by_power_of_two),
    Rule("floor_divide_one", "x // 1 -> x, whole", ("floor_divide",), neutral(WHOLE, 1)),
    Rule("add_zero", "x + 0 -> x, whole", ("add",), neutral("bui", 0, (0, 1))),
    Rule("add_minus_zero", "x + -0.0 -> x", ("add",), neutral("f", -0.0, (0, 1))),
    Rule("add_negated", "x + -y -> x - y", ("add",), _add_negated),
    Rule("sub_zero", "x - 0 -> x", ("sub",), neutral("uifc", 0)),
    Rule("sub_negated", "x - -y -> x + y", ("sub",), _subtract_negated),
    Rule("sub_self", "x - x -> 0, whole", ("sub",), same_operands(WHOLE, 0)),
    Rule("zero_sub", "0 - x -> -x, whole", ("sub",), becomes(WHOLE, 0, 0, "neg")),
    Rule("minus_zero_sub", "-0.0 - x -> -x", ("sub",), becomes("f", -0.0, 0, "neg")),
    Rule("neg_neg", "-(-x) -> x", ("neg",), undone()),
    Rule("positive", "+x -> x", ("positive",), itself("uifc")),
    Rule("abs_abs", "abs(abs(x)) -> abs(x)", ("abs",), repeated(REAL, "abs")),
    Rule("abs_neg", "abs(-x) -> abs(x)", ("abs",), through("if", "neg")),
    Rule("abs_unsigned", "abs(x) -> x, unsigned", ("abs",), itself("u")),
    Rule("square_neg", "square(-x) -> square(x)", ("square",), through("if", "neg", "abs")),
    Rule("sign_sign", "sign(sign(x)) -> sign(x)", ("sign",), repeated(REAL, "sign")),
    Rule("conj_conj", "conj(conj(x)) -> x", ("conj",), undone()),
    Rule("conj_real", "conj(x) -> x, real", ("conj",), itself(REAL)),
    Rule("real_real", "real(x) -> x, real", ("real",), itself("buif")),
    Rule("pow_zero", "x ** 0 -> 1", ("pow",), lambda n, m: m.full(n.results[0].type, 1)
         if _applies(n, REAL) and m.number(n.operands[1]) == 0 else None),
    Rule("pow_one", "x ** 1 -> x, whole", ("pow",), neutral(WHOLE, 1)),
    Rule("pow_two", "x ** 2 -> square(x), whole", ("pow",), becomes(WHOLE, 2, 1, "square")),
    Rule("round_round", "floor(ceil(x)) -> ceil(x)", ROUNDINGS, repeated(REAL, *ROUNDINGS)),
    Rule("round_whole", "floor(x) -> x, whole", ROUNDINGS, itself(WHOLE)),
    Rule("extreme_self", "max(x, x) -> x", ("maximum", "minimum"), same_operands("buif")),
    Rule("whole_not_finite", "isnan(x) -> false, whole", ("isnan", "isinf"),
         constant_result("bui", False)),
    Rule("whole_finite", "isfinite(x) -> true, whole", ("isfinite",), constant_result("bui", True)),
)  # fmt: skip

LOGIC: tuple[Rule[Node, Value], ...] = (
    Rule("eq_self", "x == x -> true, whole", ("eq", "le", "ge"), same_operands("bui", True)),
    Rule("ne_self", "x != x -> false, whole", ("ne",), same_operands("bui", False)),
    Rule("lt_self", "x < x -> false", ("lt", "gt"), same_operands("buif", False)),
    Rule("not_not", "not(not(x)) -> x", ("logical_not", "bitwise_invert"), undone()),
    Rule("not_eq", "not(x == y) -> x != y", ("logical_not",), negated("buifc", {"eq": "ne", "ne": "eq"})),
    Rule("not_lt", "not(x < y) -> x >= y, whole", ("logical_not",), negated("bui", OPPOSITE)),
    Rule("and_true", "x and true -> x", ("logical_and",), neutral("b", True, (0, 1))),
    Rule("and_false", "x and false -> false", ("logical_and",), absorbing("b", False)),
    Rule("or_false", "x or false -> x", ("logical_or",), neutral("b", False, (0, 1))),
    Rule("or_true", "x or true -> true", ("logical_or",), absorbing("b", True)),
    Rule("xor_false", "x xor false -> x", ("logical_xor",), neutral("b", False, (0, 1))),
    Rule("xor_true", "x xor true -> not(x)", ("logical_xor",), becomes("b", True, 1, "logical_not")),
    Rule("bits_zero", "x | 0 -> x", ("bitwise_or", "bitwise_xor"), neutral("bui", 0, (0, 1))),
    Rule("bits_ones", "x & ~0 -> x", ("bitwise_and",), all_ones(True)),
    Rule("and_zero", "x & 0 -> 0", ("bitwise_and",), absorbing("bui", 0)),
    Rule("or_ones", "x | ~0 -> ~0", ("bitwise_or",), all_ones(False)),
    Rule("shift_zero", "x << 0 -> x", ("bitwise_left_shift", "bitwise_right_shift"), neutral(WHOLE, 0)),
    Rule("logic_self", "x and x -> x", ("logical_and", "logical_or", "bitwise_and", "bitwise_or"),
         same_operands("bui")),
    Rule("xor_self", "x xor x -> 0", ("logical_xor", "bitwise_xor"), same_operands("bui", 0)),
    Rule("select_known", "where(true, x, y) -> x", ("where",), _select_known),
    Rule("select_same", "where(c, x, x) -> x", ("where",), _select_same),
    Rule("select_not", "where(not(c), x, y) -> where(c, y, x)", ("where",), _select_negated),
)  # fmt: skip

CASTS: tuple[Rule[Node, Value], ...] = (
    Rule("cast_same", "x of f32 as f32 -> x", ("cast",), _cast_to_itself),
    Rule("cast_cast", "x of bf16 as f32 as bf16 -> x", ("cast",), _cast_of_cast),
)
