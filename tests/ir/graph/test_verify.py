"""The verifier accepts what the compiler makes and names what breaks each invariant."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given

import tessera as ts
from tessera import op
from tessera.core.constraints import Guard
from tessera.core.dims import symbol
from tessera.core.dtype import f32
from tessera.core.errors import VerifyError
from tessera.core.types import TensorType
from tessera.ir.graph.ir import Builder, Graph, Node, Value, concrete
from tessera.ir.graph.op import REGISTRY, Params
from tessera.ir.graph.verify import verify
from tessera.transform.inline import inline
from tessera.transform.simplify import simplify
from tests.support.cases.op_cases import Case, cases
from tests.support.cases.random_graphs import Program, programs
from tests.support.runners.each import each

V2 = TensorType(f32, (2,))
N, M = symbol("N"), symbol("M")
EXP, ADD, RESHAPE = REGISTRY["exp"], REGISTRY["add"], REGISTRY["reshape"]


@given(programs())
def test_accepts_random_programs_after_every_pass(p: Program) -> None:
    verify(p.graph)
    verify(ts.ir.parse(p.graph.text))
    flat = inline(p.graph)
    verify(flat)
    verify(simplify(flat))
    verify(simplify(p.graph))


@each(cases())
def test_accepts_every_op(case: Case) -> None:
    g = case.trace([concrete(x).type for x in case.draw()])
    verify(g)
    verify(simplify(inline(g)))


# Graphs that break one invariant each


def _node(
    op: Any, operands: tuple[Value, ...], *types: TensorType, params: Params | None = None, **k: Any
) -> Node:
    return Builder().node(op, operands, params or {}, k.get("regions", ()), types, None)


def _inputs(*types: TensorType) -> list[Value]:
    b = Builder()
    return [b.input(t) for t in types]


def _input_twice() -> Graph:
    (x,) = _inputs(V2)
    return Graph([x, x], [], [x], "f")


def _input_is_a_result() -> Graph:
    (x,) = _inputs(V2)
    n = _node(EXP, (x,), V2)
    return Graph([x, n.results[0]], [], [x], "f")


def _input_holds_data() -> Graph:
    x = concrete(np.zeros(2, np.float32))
    return Graph([x], [], [x], "f")


def _too_many_names() -> Graph:
    (x,) = _inputs(V2)
    return Graph([x], [], [x], "f", ["x", "y"])


def _captured_type() -> Graph:
    (x,) = _inputs(V2)
    return Graph([x], [], [x], "f", [], [concrete(np.zeros(3, np.float32))])


def _captured_without_data() -> Graph:
    (x,) = _inputs(V2)
    return Graph([x], [], [x], "f", [], [x])


def _too_many_captured() -> Graph:
    return Graph([], [], [], "f", [], [concrete(np.zeros(2, np.float32))])


def _use_before_definition() -> Graph:
    (x,) = _inputs(V2)
    a = _node(EXP, (x,), V2)
    b = _node(EXP, (a.results[0],), V2)
    return Graph([x], [b, a], [b.results[0]], "f")


def _operand_of_another_graph() -> Graph:
    (x,), (y,) = _inputs(V2), _inputs(V2)
    n = _node(ADD, (x, y), V2)
    return Graph([x], [n], n.results, "f")


def _operand_holds_data() -> Graph:
    (x,) = _inputs(V2)
    n = _node(ADD, (x, concrete(np.zeros(2, np.float32))), V2)
    return Graph([x], [n], n.results, "f")


def _output_of_another_graph() -> Graph:
    (x,), (y,) = _inputs(V2), _inputs(V2)
    return Graph([x], [], [y], "f")


def _defined_twice() -> Graph:
    (x,) = _inputs(V2)
    n = _node(EXP, (x,), V2)
    return Graph([x], [n, n], n.results, "f")


def _result_of_another_node() -> Graph:
    (x,) = _inputs(V2)
    n = _node(EXP, (x,), V2)
    stolen = Node(EXP, (x,), {}, (), None)
    stolen.results = n.results
    return Graph([x], [stolen], n.results, "f")


def _wrong_result_type() -> Graph:
    (x,) = _inputs(V2)
    n = _node(EXP, (x,), TensorType(f32, (3,)))
    return Graph([x], [n], n.results, "f")


def _operands_do_not_fit() -> Graph:
    x, y = _inputs(V2, TensorType(f32, (3,)))
    n = _node(ADD, (x, y), V2)
    return Graph([x, y], [n], n.results, "f")


def _missing_guard() -> Graph:
    x, y = _inputs(TensorType(f32, (N,)), TensorType(f32, (M,)))
    n = _node(ADD, (x, y), x.type)
    return Graph([x, y], [n], n.results, "f")


def _guard_of_unknown_size() -> Graph:
    (x,) = _inputs(TensorType(f32, (N,)))
    return Graph([x], [], [x], "f", guards=[Guard("equal", N, M, "add")])


def _unknown_size() -> Graph:
    full = REGISTRY["full"]
    n = _node(full, (), TensorType(f32, (N,)), params={"shape": (N,), "value": 0.0, "dtype": f32})
    return Graph([], [n], n.results, "f")


def _parameter_without_text() -> Graph:
    (x,) = _inputs(V2)
    n = _node(RESHAPE, (x,), TensorType(f32, (2, 1)), params={"shape": [2, 1]})
    return Graph([x], [n], n.results, "f")


def _unregistered_op() -> Graph:
    (x,) = _inputs(V2)
    n = _node(dataclasses.replace(EXP), (x,), V2)
    return Graph([x], [n], n.results, "f")


def _region_with_guards() -> Graph:
    (x,), (y,) = _inputs(V2), _inputs(V2)
    region = Graph([y], [], [y], "inner", guards=[Guard("equal", N, 2, "add")])
    n = _node(REGISTRY["call"], (x,), V2, params={"name": "inner"}, regions=(region,))
    return Graph([x], [n], n.results, "f")


def _region_sees_outside() -> Graph:
    (x,), (y,) = _inputs(V2), _inputs(V2)
    inner = _node(EXP, (x,), V2)
    region = Graph([y], [inner], inner.results, "inner")
    n = _node(REGISTRY["call"], (x,), V2, params={"name": "inner"}, regions=(region,))
    return Graph([x], [n], n.results, "f")


def _region_input_types() -> Graph:
    (x,), (y,) = _inputs(V2), _inputs(TensorType(f32, (3,)))
    region = Graph([y], [], [y], "inner")
    n = _node(REGISTRY["call"], (x,), y.type, params={"name": "inner"}, regions=(region,))
    return Graph([x], [n], n.results, "f")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (_input_twice, "f: input 1 f32[2] is given twice"),
        (_input_is_a_result, "f: input 1 f32[2] is a result of exp"),
        (_input_holds_data, "f: input 0 f32[2] holds data"),
        (_too_many_names, "f: 2 names for 1 inputs"),
        (_captured_type, "f: captured tensor 0 is f32[3], but its input is f32[2]"),
        (_captured_without_data, "f: captured tensor 0 f32[2] holds no data"),
        (_too_many_captured, "f: 1 captured tensors for 0 inputs"),
        (
            _use_before_definition,
            "f: node 0 exp(f32[2]) -> f32[2]: operand 0 f32[2] is not defined before its use",
        ),
        (
            _operand_of_another_graph,
            "f: node 0 add(f32[2], f32[2]) -> f32[2]: operand 1 f32[2] is of another graph",
        ),
        (
            _operand_holds_data,
            "f: node 0 add(f32[2], f32[2]) -> f32[2]: operand 1 f32[2] holds data; inside a graph "
            "only constants do",
        ),
        (_output_of_another_graph, "f: output 0 f32[2] is of another graph"),
        (_defined_twice, "f: node 1 exp(f32[2]) -> f32[2]: result 0 f32[2] is defined twice"),
        (
            _result_of_another_node,
            "f: node 0 exp(f32[2]) -> f32[2]: result 0 f32[2] does not point back to its node",
        ),
        (_wrong_result_type, "f: node 0 exp(f32[2]) -> f32[3]: expected results f32[2]"),
        (
            _operands_do_not_fit,
            "f: node 0 add(f32[2], f32[3]) -> f32[2]: add: axis 'd0' is 2 in operand 0 f32[2] but 3 "
            "in operand 1 f32[3]",
        ),
        (
            _missing_guard,
            "f: node 0 add(f32[N], f32[M]) -> f32[N]: needs N == M, which no guard states",
        ),
        (_guard_of_unknown_size, "f: the guard N == M has the size M, which is in no input"),
        (_unknown_size, "f: node 0 full() -> f32[N]: the size N is in no input"),
        (
            _parameter_without_text,
            "f: node 0 reshape(f32[2]) -> f32[2,1]: parameter 'shape' is [2, 1], which has no text",
        ),
        (_unregistered_op, "f: node 0 exp(f32[2]) -> f32[2]: the op is not registered"),
        (
            _region_with_guards,
            "f: node 0 call(f32[2]) -> f32[2]: region 0 has guards or captured tensors of its own",
        ),
        (
            _region_sees_outside,
            "inner: node 0 exp(f32[2]) -> f32[2]: operand 0 f32[2] is of another graph",
        ),
        (
            _region_input_types,
            "f: node 0 call(f32[2]) -> f32[3]: call: got (f32[2]), expected (f32[3])",
        ),
    ],
)
def test_names_what_is_broken(make: Callable[[], Graph], message: str) -> None:
    with pytest.raises(VerifyError) as e:
        verify(make())
    assert e.value.message == message


def test_unknown_effects_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    odd = dataclasses.replace(EXP, name="odd", effects=frozenset(("magic",)))
    monkeypatch.setitem(REGISTRY, "odd", odd)
    (x,) = _inputs(V2)
    n = _node(odd, (x,), V2)
    with pytest.raises(VerifyError) as e:
        verify(Graph([x], [n], n.results, "f"))
    assert e.value.message == (
        "f: node 0 odd(f32[2]) -> f32[2]: the effect 'magic' is none of collective, io, movement, "
        "random, state"
    )


def test_the_error_points_at_the_line_of_the_node() -> None:
    g = ts.trace(lambda x: op.exp(x), ts.Tensor[2, f32])
    (n,) = g.nodes
    bad = Builder().node(EXP, n.operands, {}, (), [TensorType(f32, (3,))], n.location)
    with pytest.raises(VerifyError) as e:
        verify(Graph(g.inputs, [bad], bad.results))
    assert e.value.location == n.location
    assert n.location is not None
    assert n.location.file == __file__
