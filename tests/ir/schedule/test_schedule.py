"""Schedule IR: every level below the graph gives the same bits, text reads back, errors are pinned."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tessera as ts
from tessera import Tensor, op
from tessera.core.dims import substitute, symbol
from tessera.core.dtype import bf16, bool_, f16, f32, f64, i8, i32, i64, u8
from tessera.core.errors import ParseError, VerifyError
from tessera.core.types import TensorType
from tessera.ir.graph.interp import interpret
from tessera.ir.schedule.index import rejoined
from tessera.ir.schedule.ir import (
    Apply,
    Axis,
    Buffer,
    HostCall,
    Kernel,
    Literal,
    Position,
    Program,
    Read,
    Stage,
)
from tessera.ir.schedule.lower import lower
from tessera.ir.schedule.terms import parse_stage
from tessera.ir.schedule.text import print_program
from tessera.ir.schedule.verify import verify
from tests.support.cases.random_graphs import LoopSteps, data_for, programs, same_bits
from tests.support.cases.random_graphs import Program as RandomProgram
from tests.support.runners.levels import by_graph, by_llvm, by_schedule, by_tile, prepared
from tests.support.runners.tolerance import TOLERANCE, assert_close

# Laws


def agree(g: Any, p: Program, inputs: list[Any]) -> list[Any]:
    """The outputs, which all levels must give with the same bits."""
    want = by_schedule(p, inputs)
    for run in (by_tile, by_llvm):
        got = run(p, inputs)
        assert same_bits(got, want), f"{run.__name__}\n{p}\n{inputs}\n{got}\n{want}"
    graph = by_graph(g, inputs)
    assert same_bits(graph, want), f"graph\n{p}\n{inputs}\n{graph}\n{want}"
    return want


@settings(max_examples=100)
@given(st.one_of(programs(), programs(12, LoopSteps)))
def test_all_levels_give_the_same_bits_on_random_programs(r: RandomProgram) -> None:
    g = prepared(r.graph)
    p = lower(g)
    verify(p)
    agree(g, p, r.inputs)


@given(st.one_of(programs(), programs(12, LoopSteps)))
def test_text_round_trip_of_random_programs(r: RandomProgram) -> None:
    p = lower(prepared(r.graph))
    parsed = ts.ir.parse(p.text)
    assert isinstance(parsed, Program)
    verify(parsed)
    assert parsed.text == p.text
    assert parsed.hash == p.hash
    assert parsed.readable == p.readable
    captured = [v.storage for v in p.captured]
    assert same_bits(by_schedule(parsed, [*r.inputs, *captured]), by_schedule(p, r.inputs))


FLOATS: dict[str, Callable[..., Any]] = {
    "softmax": lambda x: op.softmax(x),
    "softmax of columns": lambda x: op.softmax(x, 0),
    "layernorm and residual": lambda x: op.layernorm(x, x[0], x[0] * 0.5) + x,
    "rmsnorm": lambda x: x / op.sqrt(op.mean(op.square(x), -1, keepdims=True) + 1e-5),
    "gelu chain": lambda x: op.gelu(x * 2.0 + 1.0) * op.tanh(x),
    "sum of columns": lambda x: op.sum(x, 0),
    "sum of all": lambda x: op.sum(x),
    "max less mean": lambda x: op.max(x, 1) - op.mean(x, 1),
    "two outputs": lambda x: (op.sum(op.exp(x), 1), op.exp(x) * 2.0),
    "product": lambda x: op.prod(x, 0),
    "transposed": lambda x: op.sum(op.exp(x.T) + 1.0, 0),
    "slices": lambda x: op.tanh(x[1:, 2:] - x[:-1, :-2]),
    "broadcast": lambda x: x[:, None, :] - x[None, :, :],
    "middle axis": lambda x: op.sum(x[:, None, :] * x[None, :, :], 1),
    "contraction": lambda x: op.gelu(x @ x.T + 0.5),
    "batch of contractions": lambda x: x[None] @ op.stack([x.T, x.T + 1.0]),
}
CASES = ((f32, (1, 3)), (f32, (2, 17)), (f32, (13, 37)), (f64, (5, 19)), (bf16, (5, 19)),
         (f16, (3, 16)))  # fmt: skip


@pytest.mark.parametrize(("dtype", "shape"), CASES, ids=str)
@pytest.mark.parametrize("name", FLOATS)
def test_functions_of_floats(name: str, dtype: Any, shape: tuple[int, ...]) -> None:
    x = np.random.default_rng(0).normal(size=shape).astype(dtype.np)
    g = prepared(ts.trace(FLOATS[name], Tensor[(*shape, dtype)]))
    p = lower(g)
    verify(p)
    for got, want in zip(agree(g, p, [x]), interpret(g, [x]), strict=True):
        assert_close(got, want, TOLERANCE[dtype.name], times=4)


@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (0, 0)], ids=str)
@pytest.mark.parametrize("name", ["sum of columns", "sum of all", "gelu chain", "contraction",
                                  "product", "transposed", "middle axis"])  # fmt: skip
def test_functions_of_nothing(name: str, shape: tuple[int, ...]) -> None:
    x = np.zeros(shape, np.float32)
    g = prepared(ts.trace(FLOATS[name], Tensor[(*shape, f32)]))
    assert same_bits(agree(g, lower(g), [x]), interpret(g, [x]))


# More than one leaf of a fold, and a number of leaves that is no power of two.
@pytest.mark.parametrize(
    ("name", "shape"),
    [("softmax", (2, 512)), ("softmax", (2, 513)), ("sum of all", (2, 2741)),
     ("sum of columns", (1543, 3)), ("sum of all", (1543, 3)), ("contraction", (2, 513)),
     ("contraction", (2, 1543))],
)  # fmt: skip
def test_long_folds(name: str, shape: tuple[int, ...]) -> None:
    x = np.random.default_rng(1).normal(size=shape).astype(np.float32)
    g = prepared(ts.trace(FLOATS[name], Tensor[(*shape, f32)]))
    (got,), (want,) = agree(g, lower(g), [x]), interpret(g, [x])
    assert_close(got, want, times=10)


# Kernels without rows, whose instances share the columns.
@pytest.mark.parametrize("shape", [(9001,), (3, 1100)], ids=str)
def test_many_columns(shape: tuple[int, ...]) -> None:
    x = np.random.default_rng(5).normal(size=shape).astype(np.float32)
    f = (lambda v: op.exp(v) * 2.0) if len(shape) == 1 else (lambda v: op.exp(op.sum(v, 0)) + 1.0)
    for types in (Tensor[(*shape, f32)], Tensor[(*"NM"[: len(shape)], f32)]):
        g = prepared(ts.trace(f, types))
        (got,), (want,) = agree(g, lower(g), [x]), interpret(g, [x])
        assert_close(got, want, times=4)


@pytest.mark.parametrize("dtype", [i8, u8, i32, i64, bool_], ids=str)
@pytest.mark.parametrize("axis", [None, 0, 1, (0, 2)], ids=str)
def test_folds_of_whole_numbers_are_numpys(dtype: Any, axis: Any) -> None:
    names = ("any", "all", "max", "min", "sum") if dtype is bool_ else ("sum", "prod", "max", "min")
    x = data_for(TensorType(dtype, (3, 19, 5)), np.random.default_rng(2))
    g = prepared(
        ts.trace(lambda v: tuple(getattr(op, n)(v, axis) for n in names), Tensor[3, 19, 5, dtype])
    )
    p = lower(g)
    assert not any(isinstance(s, HostCall) and s.node.op.combine for s in p.steps), str(p)
    got = agree(g, p, [x])
    for name, y in zip(names, got, strict=True):
        np.testing.assert_array_equal(y, getattr(np, name)(x, axis=axis))


SYMBOLIC: dict[str, Callable[..., Any]] = {
    "softmax": lambda x, y: op.softmax(x) + y,
    "mean of all": lambda x, y: op.mean(x) * y,
    "columns": lambda x, y: op.sum(x * y, 0),
    "contraction": lambda x, y: x @ x.T + op.sum(y),
    "flat": lambda x, y: op.exp(op.reshape(x, (-1,))) + 1.0,
    "positions": lambda x, y: x * op.iota(x.shape, 1, f32) + y,
}


@pytest.mark.parametrize("name", SYMBOLIC)
def test_one_program_serves_all_sizes(name: str) -> None:
    g = prepared(ts.trace(SYMBOLIC[name], Tensor["N", "M", f32], Tensor["M", f32]))
    p = lower(g)
    verify(p)
    rng = np.random.default_rng(3)
    for n, m in ((1, 1), (3, 16), (7, 45), (2, 1100)):
        inputs = [rng.normal(size=s).astype(np.float32) for s in ((n, m), (m,))]
        for got, want in zip(agree(g, p, inputs), interpret(g, inputs), strict=True):
            assert_close(got, want, times=10)


@pytest.mark.parametrize("dtype", [f32, bf16, f16], ids=str)
def test_neighbours_of_narrow_numbers_are_narrow(dtype: Any) -> None:
    x = data_for(TensorType(dtype, (40,)), np.random.default_rng(6))
    g = prepared(ts.trace(lambda v: op.nextafter(v, v[::-1]), Tensor[40, dtype]))
    assert same_bits(agree(g, lower(g), [x]), interpret(g, [x]))


def test_what_is_read_with_other_strides() -> None:
    base = np.random.default_rng(4).normal(size=(40, 60)).astype(np.float32)
    x = base[::2, ::3].T
    g = prepared(ts.trace(lambda v: op.softmax(v) + v.T[0, 0], Tensor[20, 20, f32]))
    want = agree(g, lower(g), [np.ascontiguousarray(x)])
    assert same_bits(agree(g, lower(g), [x]), want)


# Examples

SOFTMAX = """\
program softmax
  x0: f32[R,64]
  t4: f32[R,64]
  kernel softmax_0, rows 1, writes t4
    t1[_r0<R]: f32 = max over _t1_1<64 of x0[_r0, _t1_1]
    t2[_r0<R, _t2_1<64]: f32 = exp(sub(x0[_r0, _t2_1], t1[_r0]))
    t3[_r0<R]: f32 = add over _t3_1<64 of t2[_r0, _t3_1]
    t4[_r0<R, _t4_1<64]: f32 = mul(t2[_r0, _t4_1], div(1.0, t3[_r0]))
  returns t4"""
SCALE = """\
"builtin.module"() ({
  "schedule.program"() ({
    "schedule.buffer"() {name = "x0", type = tensor<?x3xf32, ["B", 3]>} : () -> ()
    "schedule.buffer"() {name = "t1", type = tensor<?x3xf32, ["B", 3]>} : () -> ()
    "schedule.buffer"() {name = "t2", type = tensor<?xbf16, ["B"]>} : () -> ()
    "schedule.host"() {op = "sort", params = {axis = 0 : i64, descending = false}, reads = ["x0"], \
writes = ["t1"]} : () -> ()
    "schedule.kernel"() ({
      "schedule.stage"() {computes = "t2[_t2_0<B]: bf16 = bf16(mul(t1[_t2_0, 0], 2.0))"} : () -> ()
    }) {name = "scale_1", rows = 0 : i64, writes = ["t2"]} : () -> ()
  }) {guards = [], inputs = ["x0"], level = "schedule", name = "scale", outputs = ["t2"], \
version = 1 : i64} : () -> ()
}) : () -> ()"""


def softmax(x: Any) -> Any:
    return op.softmax(x)


def scale(x: Any) -> Any:
    return (op.sort(x, 0)[:, 0] * 2.0).astype(bf16)


def scaled() -> Program:
    return lower(prepared(ts.trace(scale, Tensor["B", 3, f32])))


def test_softmax_is_one_kernel() -> None:
    assert lower(prepared(ts.trace(softmax, Tensor["R", 64, f32]))).readable == SOFTMAX


def test_the_text_of_a_program() -> None:
    p = scaled()
    assert p.text == SCALE
    assert p.hash == hashlib.sha256(SCALE.encode()).hexdigest()


def test_locations_are_printed_on_request_and_read_back() -> None:
    p = scaled()
    text = print_program(p, locations=True)
    assert "test_schedule.py" in text
    parsed = ts.ir.parse(text)
    assert parsed.text == p.text
    assert parsed.steps[1].stages[0].location == p.steps[1].stages[0].location


@pytest.mark.parametrize(
    "text",
    [
        "t1[]: f32 = 0.5",
        "t1[]: f32 = add(nan, -inf)",
        "t1[]: i64 = add(3, (2*N + 1))",
        "t1[]: bool = True",
        "t1[_i<N, _j<max(8, N)]: f64 = mul(x[_i + 1, _j // 2], 1e-05:f64)",
        "t1[_i<N]: f32 = min over _j<N // 2 of where(lt(x[_i, _j], 0.0:f64), 1.0, 2.0)",
        "t1[_i<4]: bf16 = bf16(-0.0)",
        "t1[]: f32 = neg(0:f32)",
    ],
)
def test_stages_read_back(text: str) -> None:
    types = {"x": TensorType(f64, (symbol("N"), symbol("N")))}
    assert str(parse_stage(text, types)) == text


# Errors


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("t1[_t2_0, 0]", "t1[_t2_0, 0", "line 8, column 7: '2.0' is not a size;"),
        ("t1[_t2_0, 0]", "t7[_t2_0, 0]", "line 8, column 7: 't7' is no buffer and no earlier stage"),
        ("mul(", "mull(", "line 8, column 7: 'mull' is no scalar op of 2 operands"),
        ("mul(", "exp(", "line 8, column 7: 'exp' is no scalar op of 2 operands"),
        ("2.0)", "2.0:f33)", "line 8, column 7: 'f33' is no dtype"),
        ("_t2_0<B]", "_t2_0]", "line 8, column 7: expected '<' at ']: bf16 = bf16(mul(t' in the stage"),
        ("B]: bf16 =", "B]: f16 =", "line 8, column 7: the term is bf16, expected f16,"),
        ('op = "sort"', 'op = "sord"', 'line 6, column 5: unknown op "sord"'),
        ('["x0"], writes', '["x1"], writes',
         "line 6, column 5: schedule.host: reads has 'x1', which is no buffer"),
        ('writes = ["t1"]', 'writes = ["t2"]',
         'line 6, column 5: sort: the result is tensor<?x3xf32, ["B", 3]>, but writes is '
         'tensor<?xbf16, ["B"]>'),
        ("rows = 0 : i64", "rows = 0.5 : f64", "line 7, column 5: schedule.kernel: rows is no whole"),
        ("schedule.stage", "schedule.step",
         'line 8, column 7: expected "schedule.stage", got "schedule.step"'),
        ('inputs = ["x0"], ', "", "line 2, column 3: schedule.program: the attribute inputs is missing"),
        ('{name = "t1"', '{name = "x0"', "line 4, column 5: schedule.buffer: 'x0' is there twice"),
    ],
)  # fmt: skip
def test_a_parse_error_says_where_and_what(old: str, new: str, message: str) -> None:
    assert SCALE.count(old) >= 1
    with pytest.raises(ParseError) as e:
        ts.ir.parse(SCALE.replace(old, new, 1))
    assert e.value.message.startswith(message), e.value.message


ROWS = (Axis("_r0", 4),)
X, Y = TensorType(f32, (4, 8)), TensorType(f32, (4,))


def at(source: str, *index: Any, dtype: Any = f32) -> Read:
    return Read(dtype, source, tuple(symbol(i) if isinstance(i, str) else i for i in index))


def one(*stages: Stage, outputs: tuple[str, ...] = ("y",), rows: int = 1) -> Program:
    """A program of one kernel from x: f32[4,8] to y: f32[4]."""
    buffers = {"x": Buffer("x", X), "y": Buffer("y", Y)}
    return Program("p", buffers, (Kernel("k", rows, stages, outputs),), ("x",), ("y",))


def row(term: Any, *reduced: Axis, name: str = "y", combine: str | None = None) -> Stage:
    return Stage(name, ROWS, reduced, combine or ("add" if reduced else None), term)


COLUMN = Axis("_c", 8)
WIDE = Stage("w", (*ROWS, COLUMN), (), None, at("x", "_r0", "_c"))
GOOD = one(row(at("x", "_r0", "_c"), COLUMN))


@pytest.mark.parametrize(
    ("program", "message"),
    [
        (replace(GOOD, outputs=("z",)), "p: output z is never written"),
        (replace(GOOD, inputs=("x", "y")), "p: kernel k stage y: is there twice"),
        (replace(GOOD, steps=GOOD.steps * 2), "p: kernel k stage y: is there twice"),
        (replace(GOOD, inputs=()), "p: kernel k stage y: reads x, which is not written before"),
        (replace(GOOD, buffers={"x": Buffer("x", X), "y": Buffer("z", Y)}),
         "p: buffer z is listed as y"),
        (replace(GOOD, buffers={"x": Buffer("x", X), "y": Buffer("y", TensorType(f32, (symbol("N"),)))}),
         "p: buffer y: N has N, which is no axis of it and no size of an input"),
        (replace(GOOD, buffers={"x": Buffer("x", X), "y": Buffer("y", TensorType(f32, (5,)))}),
         "p: kernel k: writes f32[4] to y, which is f32[5]"),
        (one(), "p: kernel k: has no stages"),
        (one(row(at("x", "_r0", 0)), outputs=("z",)),
         "p: kernel k: writes z, which is no stage of it"),
        (one(row(at("x", "_r0"))), "p: kernel k stage y: reads x[_r0], but x is f32[4,8]"),
        (one(row(at("x", "_r0", "_c"))),
         "p: stage y reads x[_r0, _c]: _c has _c, which is no axis of it and no size of an input"),
        (one(row(at("x", "_r0", 8))),
         "p: kernel k stage y: reads x[_r0, 8]: elements 8 to 8 of axis 1 of size 8"),
        (one(row(at("x", symbol("_r0") - 1, 0))),
         "p: kernel k stage y: reads x[_r0 - 1, 0]: elements -1 to 2 of axis 0 of size 4"),
        (one(row(at("x", "_r0", 0, dtype=f64))),
         "p: kernel k stage y: reads x[_r0, 0] as f64, but x is f32[4,8]"),
        (one(row(at("x", "_r0", "_c"), COLUMN, Axis("_d", 2))),
         "p: kernel k stage y: folds [_c<8, _d<2] at once, expected one axis"),
        (one(row(at("x", "_r0", "_c"), COLUMN, combine="sub")),
         "p: kernel k stage y: sub is no scalar op that folds"),
        (one(row(at("x", "_r0", 0), combine="add")),
         "p: kernel k stage y: a fold needs a scalar op and an axis"),
        (one(row(at("x", "_r0", 0), Axis("_r0", 8))),
         "p: kernel k stage y: axes _r0, _r0 are not distinct"),
        (one(WIDE, replace(row(at("w", "_q", 0)), axes=(Axis("_q", 4),))),
         "p: kernel k stage y: rows are [_q<4], expected [_r0<4]"),
        (one(WIDE, replace(WIDE, name="v", axes=(*ROWS, COLUMN, Axis("_d", 2)))),
         "p: kernel k stage v: has the columns [_c<8, _d<2], expected at most one"),
        (one(WIDE, row(at("w", "_r0", 0))),
         "p: kernel k stage y: reads w[_r0, 0] of its own kernel out of place"),
        (one(WIDE, row(at("w", "_r0", "_c"), Axis("_c", 7))),
         "p: kernel k stage y: reads w[_r0, _c] along _c<7, but w has 8"),
        (one(row(at("w", "_r0", "_c"), COLUMN), WIDE),
         "p: kernel k stage y: reads w, which is not written before"),
        (one(WIDE, Stage("y", (*ROWS, COLUMN), (Axis("_d", 8),), "add", at("w", "_r0", "_d"))),
         "p: kernel k stage y: folds for each column, so it cannot read w of its own kernel"),
        (one(row(Apply(f32, "add", (Literal(f32, 1.0), Literal(f64, 1.0))))),
         "p: kernel k stage y: add of f32, f64 needs one dtype"),
        (one(row(Apply(f32, "where", (Literal(f32, 1.0),) * 3))),
         "p: kernel k stage y: the condition of where is no bool"),
        (one(row(Apply(f32, "lt", (Literal(f32, 1.0),) * 2))),
         "p: kernel k stage y: lt gives bool, not f32"),
        (one(row(Apply(f32, "exp", (Literal(f32, 1.0),) * 2))),
         "p: kernel k stage y: exp is no scalar op of 2 operands"),
        (one(row(Position(f32, symbol("_r0")))),
         "p: kernel k stage y: the index (_r0) is f32, expected i64"),
    ],
)  # fmt: skip
def test_a_broken_program_is_refused(program: Program, message: str) -> None:
    verify(GOOD)
    with pytest.raises(VerifyError) as e:
        verify(program)
    assert e.value.message == message


def test_stages_after_a_contraction_keep_its_axes() -> None:
    p = lower(prepared(ts.trace(lambda x: op.exp(x @ x.T), Tensor[4, 8, f32])))
    verify(p)
    (k,) = p.steps
    assert isinstance(k, Kernel)
    assert k.contracts
    last = replace(k.stages[-1], reduced=(COLUMN,), combine="add")
    with pytest.raises(VerifyError, match="follows a contraction, so it has its axes and folds"):
        verify(replace(p, steps=(replace(k, stages=(*k.stages[:-1], last)),)))


def test_a_host_call_of_other_types_is_refused() -> None:
    p = scaled()
    host = p.steps[0]
    assert isinstance(host, HostCall)
    with pytest.raises(VerifyError, match=r"step 0 sort: reads t2, which is not written before"):
        verify(replace(p, steps=(replace(host, operands=("t2",)), p.steps[1])))
    with pytest.raises(VerifyError, match=r"step 0 sort: writes f32\[B,3\] to t2, which is bf16"):
        verify(replace(p, steps=(replace(host, results=("t2",)), p.steps[1])))


def test_quotients_and_remainders_are_rejoined() -> None:
    """With the same values, and as short as a person would write them."""
    i, j = symbol("i"), symbol("j")
    for x, short in (
        (64 * (i // 64) + i % 64, i),
        (64 * j + 32 * (i // 32) + i % 32 + 5, 64 * j + i + 5),
        (2 * ((i // 5) % 3) + 6 * ((i // 5) // 3) + j, 2 * (i // 5) + j),
        ((32 * (i // 32) + i % 32 + 32) // 64, (i + 32) // 64),
        (3 * (i % 4) - 5 * (j % 4) + 12 * (i // 4), 3 * i - 5 * (j % 4)),
        (8 * (i // 4) + i % 4, 8 * (i // 4) + i % 4),
        (4 * (i // 4) - i % 4, 4 * (i // 4) - i % 4),
    ):
        found = rejoined(x)
        assert found == short, x
        for env in ({"i": a, "j": b} for a in range(-70, 200, 7) for b in (0, 3, 11)):
            assert substitute(found, env) == substitute(x, env)
