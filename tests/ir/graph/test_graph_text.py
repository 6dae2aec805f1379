"""The text of Graph IR: printing is canonical, parsing is its inverse, errors say where and what."""

from __future__ import annotations

import hashlib
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tessera as ts
from tessera import op
from tessera.core.constant import Constant
from tessera.core.dims import symbol
from tessera.core.dtype import FORMATS, accum, as_dtype, bf16, f32, loss_scale, saturate
from tessera.core.errors import OperandError, ParseError
from tessera.core.parse_sizes import parse_dim
from tessera.core.text import Reader, attribute_text, type_text
from tessera.core.types import TensorType
from tessera.ir.graph.interp import interpret
from tessera.ir.graph.ir import Graph, concrete
from tessera.ir.graph.text import print_graph
from tests.support.breadth import examples
from tests.support.cases.op_cases import Case, cases
from tests.support.cases.random_graphs import Program, data_for, programs, same_bits
from tests.support.runners.each import each

EXAMPLE = """\
"builtin.module"() ({
  "tessera.graph"() ({
  ^bb0(%0: tensor<?x3xf32, ["B", 3]>, %1: tensor<3xf32>):
    %2 = "tessera.reshape"(%1) {shape = [1, 3]} : (tensor<3xf32>) -> tensor<1x3xf32>
    %3 = "tessera.broadcast_to"(%2) {shape = [#tessera.dim<"B">, 3]} : (tensor<1x3xf32>) -> \
tensor<?x3xf32, ["B", 3]>
    %4 = "tessera.add"(%0, %3) : (tensor<?x3xf32, ["B", 3]>, tensor<?x3xf32, ["B", 3]>) -> \
tensor<?x3xf32, ["B", 3]>
    %5 = "tessera.sum"(%4) {axes = [1]} : (tensor<?x3xf32, ["B", 3]>) -> tensor<?xf32, ["B"]>
    "tessera.return"(%5) : (tensor<?xf32, ["B"]>) -> ()
  }) {guards = [], input_names = ["x", "y"], level = "graph", name = "f", version = 1 : i64} : () -> ()
}) : () -> ()"""


def _example() -> Graph:
    def f(x: Any, y: Any) -> Any:
        return op.sum(op.add(x, op.reshape(y, (1, 3))), 1)

    return ts.trace(f, ts.Tensor["B", 3, f32], ts.Tensor[3, f32])


# Laws


@given(programs())
def test_text_round_trip_of_random_programs(p: Program) -> None:
    text = p.graph.text
    parsed = ts.ir.parse(text)
    assert parsed.text == text
    assert parsed.hash == p.graph.hash
    assert same_bits(interpret(parsed, p.inputs), p.run())


@each(cases())
def test_text_round_trip_of_every_op(case: Case) -> None:
    xs = case.draw()
    g = case.trace([concrete(x).type for x in xs])
    parsed = ts.ir.parse(str(g))
    assert str(parsed) == str(g)
    inputs = [*xs, *(v.storage for v in g.captured)]
    if case.name in ("watch", "host_call"):  # what it calls is no part of the text
        with pytest.raises(OperandError, match="is only its name here"):
            interpret(parsed, inputs)
        return
    assert same_bits(interpret(parsed, inputs), interpret(g, xs))


scalars = st.one_of(
    st.integers(), st.floats(), st.booleans(), st.text(), st.none(), st.complex_numbers(),
    st.sampled_from([*FORMATS.values(), as_dtype("tf32"), bf16 @ accum(bf16) @ loss_scale(0.1)]),
    st.sampled_from(["B", "2*S + 1", "B*S", "max(S, 8)", "(2*S + 1) // 4", "S**2 - S"]).map(parse_dim),
)  # fmt: skip


@examples(300)
@given(st.recursive(scalars, lambda s: st.lists(s, max_size=4).map(tuple), max_leaves=8))
def test_attributes_read_back_as_themselves(x: Any) -> None:
    text = attribute_text(x)
    reader = Reader(text)
    back = reader.attribute()
    assert reader.next.kind == "end"
    assert attribute_text(back) == text
    assert _exactly(back) == _exactly(x)


def _exactly(x: Any) -> Any:
    """x with its type, and floats by their bits."""
    if isinstance(x, tuple):
        return tuple(map(_exactly, x))
    if isinstance(x, complex):
        return complex, np.complex128(x).tobytes()
    return type(x), np.float64(x).tobytes() if isinstance(x, float) else x


@given(
    st.sampled_from([*FORMATS.values(), bf16 @ saturate]),
    st.sampled_from([(), (0,), (1,), (2, 3), (17,), (3, 0), (5, 5)]),
    st.integers(0, 99),
    st.booleans(),
)
def test_constants_read_back_with_the_same_bits(
    dtype: Any, shape: tuple[int, ...], seed: int, equal: bool
) -> None:
    data = data_for(TensorType(dtype, shape), np.random.default_rng(seed))
    if equal and data.size:
        data = np.broadcast_to(data.reshape(-1)[0], shape)
    text = attribute_text(Constant(np.array(data), dtype))
    back = Reader(text).attribute()
    assert back == Constant(np.array(data), dtype)
    assert attribute_text(back) == text


# Examples


def test_the_text_of_a_graph() -> None:
    g = _example()
    assert str(g) == g.text == EXAMPLE
    assert g.hash == hashlib.sha256(EXAMPLE.encode()).hexdigest()


def test_locations_are_printed_on_request_and_are_no_part_of_the_identity() -> None:
    g = _example()
    located = print_graph(g, locations=True)
    assert f'loc("{__file__}":' in located
    parsed = ts.ir.parse(located)
    assert [n.location for n in parsed.nodes] == [n.location for n in g.nodes]
    assert parsed.text == g.text


def test_captured_data_is_no_part_of_the_identity() -> None:
    def using(data: Any) -> Graph:
        w = ts.tensor(data)
        return ts.trace(lambda x: op.matmul(x, w), ts.Tensor[4, 100, f32])

    g, h = using(np.zeros((100, 2), np.float32)), using(np.ones((100, 2), np.float32))
    assert g.hash == h.hash
    assert g.input_names == ("x", "captured0")
    assert g.hash != using(np.ones((100, 3), np.float32)).hash


def test_guards_are_part_of_the_text() -> None:
    g = ts.trace(lambda x, y: op.add(x, y), ts.Tensor["N", f32], ts.Tensor["M", f32])
    assert [str(c) for c in g.guards] == [str(c) for c in ts.ir.parse(g.text).guards] == ["N == M"]
    assert '{kind = "equal", left = #tessera.dim<"N">, reason = ' in g.text


def test_several_results_are_one_group() -> None:
    def f(x: Any) -> Any:
        low, high = op.topk(x, 2)
        return high, low

    text = ts.trace(f, ts.Tensor[5, f32]).text
    assert '%1:2 = "tessera.topk"(%0)' in text
    assert '"tessera.return"(%1#1, %1#0)' in text
    assert ts.ir.parse(text).text == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (3, "3 : i64"),
        (2**64 - 1, "18446744073709551615 : ui64"),
        (-(2**63) - 1, "-9223372036854775809 : i128"),
        (1.0, "1.0 : f64"),
        (1e-5, "1.0e-05 : f64"),
        (-0.0, "0x8000000000000000 : f64"),
        (math.inf, "0x7FF0000000000000 : f64"),
        (True, "true"),
        (None, "unit"),
        ('a"\\\n\u00e9', '"a\\22\\5C\\0A\\C3\\A9"'),
        ((1, 2.5, True, ()), "[1, 2.5, true, []]"),
        (1 - 2j, "#tessera.complex<1.0, -2.0>"),
        (symbol("S") * 2 + 1, '#tessera.dim<"2*S + 1">'),
        (FORMATS["bool"], "i1"),
        (FORMATS["u8"], "ui8"),
        (FORMATS["c64"], "complex<f32>"),
        (FORMATS["f8e4m3"], "f8E4M3FN"),
        (bf16 @ accum(bf16), '!tessera.dtype<"bf16 @ accum(bf16)">'),
        (TensorType(f32, ()), "tensor<f32>"),
        (TensorType(f32, (2, symbol("S"))), 'tensor<2x?xf32, [2, "S"]>'),
        (Constant(np.float32([1, np.nan]), f32), "dense<[1.0, 0x7FC00000]> : tensor<2xf32>"),
        (Constant(np.full((2, 3), 1.5, np.float32), f32), "dense<1.5> : tensor<2x3xf32>"),
        (Constant(np.zeros((0,), np.float32), f32), "dense<> : tensor<0xf32>"),
        (
            Constant(np.arange(17, dtype=np.uint8), FORMATS["u8"]),
            'dense<"0x000102030405060708090A0B0C0D0E0F10"> : tensor<17xui8>',
        ),
    ],
)
def test_the_text_of_an_attribute(value: Any, text: str) -> None:
    assert attribute_text(value) == text


def test_comments_and_spacing_do_not_matter() -> None:
    spaced = EXAMPLE.replace("\n", " // a comment\n\n   ").replace(",", " ,  ")
    assert ts.ir.parse(spaced).text == EXAMPLE


# Errors


def _broken(old: str, new: str) -> str:
    assert old in EXAMPLE
    return EXAMPLE.replace(old, new, 1)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "line 1, column 1: expected an operation's name in quotes, got the end of the text"),
        ("func", "line 1, column 1: expected an operation's name in quotes, got 'func'"),
        ('"f"() : () -> ()', 'line 1, column 1: expected "builtin.module", got "f"'),
        (EXAMPLE + " ;", 'line 10, column 15: unexpected character ";"'),
        (EXAMPLE + " x", "line 10, column 15: expected the end of the text, got 'x'"),
        (
            _broken("version = 1", "version = 2"),
            "line 2, column 3: the text is of format version 2, but this Tessera reads version 1",
        ),
        (
            _broken('level = "graph"', 'level = "vector"'),
            "line 2, column 3: level 'vector' is unknown; levels are graph, schedule, tile",
        ),
        (
            _broken('"tessera.add"', '"tessera.bad"'),
            'line 6, column 5: unknown op "tessera.bad"',
        ),
        (_broken('"tessera.add"', '"arith.add"'), 'line 6, column 5: unknown op "arith.add"'),
        (
            _broken("(%0, %3)", "(%0, %9)"),
            "line 6, column 5: tessera.add: operand 1 %9 is not defined before its use",
        ),
        (_broken("%4 =", "%3 ="), "line 6, column 5: %3 is defined twice"),
        (
            _broken("(%1) {shape = [1, 3]} : (tensor<3xf32>)", "(%1) {shape = [1, 3]} : (tensor<3xf64>)"),
            "line 4, column 5: tessera.reshape: operand 0 %1 is tensor<3xf32>, but its type is "
            "written tensor<3xf64>",
        ),
        (
            _broken("-> tensor<1x3xf32>", "-> tensor<1x4xf32>"),
            "line 4, column 5: tessera.reshape: the result is tensor<1x4xf32>, expected "
            "tensor<1x3xf32>",
        ),
        (
            _broken("shape = [1, 3]", "shape = [1, 4]"),
            "line 4, column 5: reshape: f32[3] has 3 elements but shape [1, 4] has 4",
        ),
        (
            _broken(" {axes = [1]}", ""),
            "line 7, column 5: tessera.sum: the attribute axes is missing",
        ),
        (
            _broken("axes = [1]", 'axes = 1 : i64'),
            "line 7, column 5: tessera.sum: operands and attributes do not fit the op (argument of "
            "type 'int' is not iterable)",
        ),
        (
            _broken('"tessera.return"', '"tessera.exp"'),
            "line 2, column 3: tessera.graph: the region does not end in tessera.return",
        ),
        (_broken("(%0, %3)", "(%0 %3)"), "line 6, column 27: expected ')', got '%3'"),
        (_broken("[1]} :", "[1]}"), "line 7, column 41: expected ':' before the types, got '('"),
        (_broken("axes = [1]", "axes [1]"),
        "line 7, column 34: expected '=' after the attribute axes, got '['"),
        (_broken("axes = [1]", "axes = ["), "line 7, column 37: expected an attribute, got '}'"),
        (_broken("axes = [1]", "axes = 1 : f64"),
        "line 7, column 40: the number is of type f64, expected an integer type"),
        (_broken("axes = [1]", "axes = 1.5 : i64"),
        "line 7, column 42: the number is of type i64, expected f64"),
        (_broken("axes = [1]", "a = 1, a = 2"), "line 7, column 36: the attribute a is given twice"),
        (_broken("[1, 3]", '[1, #tessera.x<"3">]'),
        "line 4, column 45: unknown attribute '#tessera.x'; there are #tessera.dim, #tessera.complex, "
        "#tessera.constant"),
        (_broken('#tessera.dim<"B">', '#tessera.dim<"B+">'),
        "line 5, column 60: 'B+' is not a size; write a name, a number or a polynomial such as '2*S+1'"),
        (_broken("tensor<3xf32>", "tensor<3xf33>"), "line 3, column 52: expected a type, got 'f33'"),
        (_broken("tensor<3xf32>", "tensor<?xf32>"),
        "line 3, column 50: a symbolic size '?' needs a name: tensor<?xf32, [\"N\"]>"),
        (_broken('["B", 3]', '["B"]'), "line 3, column 28: 1 sizes are named, expected 2"),
        (_broken('["B", 3]', '["B", 4]'), "line 3, column 28: the size 3 is named 4"),
        (_broken("tensor<3xf32>", '3xf32'), "line 3, column 43: expected a tensor type, got '3'"),
        (_broken("(%0, %3) :", "(%0) :"), "line 6, column 5: tessera.add: 1 operands but 2 operand types"),
        (_broken("%4 =", "%4:2 ="), "line 6, column 5: tessera.add: 2 results but 1 result types"),
        (_broken("guards = []", "guards = [1]"),
        "line 2, column 3: a guard needs kind, left, right and reason"),
    ],
)  # fmt: skip
def test_a_parse_error_says_where_and_what(text: str, message: str) -> None:
    with pytest.raises(ParseError) as e:
        ts.ir.parse(text)
    assert e.value.message == message


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("dense<[1.0]> : tensor<2xf32>", "dense: the elements do not form the shape [2]"),
        ("dense<1> : tensor<2xf32>", "dense: the element 1 is not of type f32"),
        ("dense<300> : tensor<2xi8>", "dense: the element 300 does not fit i8"),
        ("dense<0x7F> : tensor<2xf32>", "dense: 0x7F has not the 32 bits of f32"),
        ('dense<"0x0011"> : tensor<2xf32>', "dense: 2 bytes of data, expected 8"),
        ('dense<"0x1"> : tensor<2xf32>', 'expected bytes as "0x" and pairs of hex digits'),
        ("dense<> : tensor<2xf32>", "dense: 0 bytes of data, expected 8"),
        ('dense<1.0> : tensor<?xf32, ["N"]>', "data of type f32[N] needs sizes that are numbers"),
        ('!tessera.dtype<"bf16 @ fast">', "'bf16 @ fast': 'fast' is not a policy"),
        ('!llvm.ptr<"x">', "unknown type '!llvm.ptr'; Tessera has !tessera.dtype<...>"),
        (
            '#tessera.constant<"bf16 @ saturate", dense<1.0> : tensor<f32>>',
            "the data is f32, expected bf16 for bf16 @ saturate",
        ),
        ("0x1FFFFFFFFFFFFFFFF : f64", "0x1FFFFFFFFFFFFFFFF has more than 64 bits"),
        ('"\\FF"', "the string is not UTF-8"),
    ],
)
def test_a_wrong_attribute_is_refused(text: str, message: str) -> None:
    with pytest.raises(ParseError) as e:
        Reader(text).attribute()
    assert e.value.message.partition(": ")[2] == message


def test_a_region_sees_only_its_own_inputs() -> None:
    @ts.jit
    def inner(x: Any) -> Any:
        return op.exp(x)

    text = ts.trace(lambda x: inner(x), ts.Tensor[2, f32]).text
    broken = text.replace('"tessera.exp"(%2)', '"tessera.exp"(%0)')
    assert broken != text
    with pytest.raises(ParseError) as e:
        ts.ir.parse(broken)
    assert e.value.message == (
        "line 6, column 7: tessera.exp: operand 0 %0 is of an enclosing graph; regions see only "
        "their own inputs"
    )


def test_what_has_no_text_is_refused() -> None:
    with pytest.raises(TypeError, match=r"list \[1\] has no text"):
        attribute_text([1])


def test_type_text_is_what_the_parser_reads() -> None:
    for dtype in FORMATS.values():
        t = TensorType(dtype, (2, symbol("N")))
        assert Reader(type_text(t)).type() is t
