"""MLIR itself reads our text, and what it prints is the same program to us."""

from __future__ import annotations

import pytest
from hypothesis import given

import tessera as ts
from tessera.ir.graph.ir import Graph, concrete
from tessera.ir.graph.text import print_graph
from tests.oracles.mlir_text import through_mlir
from tests.support.cases.op_cases import Case, cases
from tests.support.cases.random_graphs import Program, programs

pytestmark = pytest.mark.oracle


def _check(g: Graph) -> None:
    assert ts.ir.parse(through_mlir(g.text)).text == g.text
    through_mlir(print_graph(g, locations=True))


@given(programs())
def test_random_programs(p: Program) -> None:
    _check(p.graph)


@pytest.mark.parametrize("case", cases(), ids=str)
def test_every_op(case: Case) -> None:
    _check(case.trace([concrete(x).type for x in case.draw()]))
