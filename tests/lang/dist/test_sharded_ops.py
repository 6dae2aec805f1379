"""Every op of the catalogue on a mesh, and its derivative: sharded is whole, whichever axis is cut and whatever divides.

Where no sum was cut, the bits are the same; where one was, the results agree to rounding.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera.compile import compile_graph
from tessera.compile.executable import PassResult
from tessera.compile.mesh.array import cut
from tessera.compile.mesh.executable import MeshExecutable
from tessera.core.flags import override
from tessera.core.layout import Layout
from tessera.core.mesh import Mesh
from tessera.ir.graph.interp import execute
from tessera.ir.graph.ir import Graph, concrete
from tessera.lang.trace import trace
from tessera.transform.inline import inline_all
from tests.ops.test_every_op import NO_REVERSE, Smooth, has_no_rule, like, takes_floats
from tests.support.cases.op_cases import Case, cases
from tests.support.runners.tolerance import assert_close, assert_same_bits

MESHES = {
    "1": Mesh(["x"], shape=(1,)), "2": Mesh(["x"], shape=(2,)), "3": Mesh(["x"], shape=(3,)),
    "4": Mesh(["x"], shape=(4,)), "2x2": Mesh(["x", "y"], shape=(2, 2)),
}  # fmt: skip
# Results that no two algorithms share, or that are drawn: they are compared by what they are made of.
FREE = {"empty", "empty_like"}
SUMS = {"all_reduce", "reduce_scatter"}
# What NumPy and LAPACK compute in an order that depends on the shape, transforms over several axes, which
# are taken one by one, and products, whose cut folds are gathered.
LIBRARY = {"matmul", "contract", "solve", "triangular_solve", "fft", "ifft", "prod"}


def layout_for(rank: int, mesh: Mesh, last: bool) -> Layout:
    """The first axes cut by the mesh axes, or the last ones."""
    cuts: list[tuple[str, ...]] = [()] * rank
    for k, a in enumerate(mesh.axes[:rank]):
        cuts[rank - 1 - k if last else k] = (a,)
    return Layout(tuple(cuts))


def agree(g: Graph, xs: Sequence[Any], mesh: Mesh, last: bool) -> list[str]:
    """Check a graph on a mesh against the graph; the kinds of collectives that it needed."""
    outer: Any = [v.storage for v in g.captured]
    with np.errstate(all="ignore"), override(target="numpy"):
        wanted = execute(g, [*xs, *outer])
        whole = MeshExecutable(
            g, [PassResult("trace", 0.0, g)], mesh, lambda h: compile_graph(h, "numpy")
        )
        laid = [cut(np.asarray(x), layout_for(np.ndim(x), mesh, last), mesh) for x in xs]
        found = whole.run(laid)
    parts = whole.program(whole.key(laid)).parts
    kinds = [c.kind for c in parts.inserted]
    exact = not SUMS & set(kinds) and _has_same_steps(g, parts.graph)
    for y, w in zip(found, wanted, strict=True):
        assert_close(y.numpy(), w)
        if exact:
            assert_same_bits(y.numpy(), w)
    return kinds


def _has_same_steps(whole: Graph, one: Graph) -> bool:
    """Whether no op was replaced by those that define it, and none has bits that vary with the shape."""
    names = {n.op.name for n in inline_all(whole).nodes}
    return names <= {n.op.name for n in one.nodes} and not names & LIBRARY


def run_sharded(case: Case, mesh: Mesh, last: bool) -> None:
    xs = case.draw()
    agree(case.trace([concrete(x).type for x in xs]), xs, mesh, last)


def run_derivative(case: Case, mesh: Mesh, last: bool) -> None:
    """The cotangents of all floating-point operands, for normal cotangents of the results."""
    f = Smooth(case)

    def pulled(*xs: Any) -> Any:
        ys, back = ts.vjp(f, *xs)
        rng = np.random.default_rng(2)
        return back([ts.asarray(like(np.zeros(y.shape, y.dtype.np), rng)) for y in ys])

    types = [concrete(x).type for x in f.point]
    blank = tuple(np.zeros(()) for _ in types)
    agree(trace(pulled, blank, {}, types, case.name).graph, f.point, mesh, last)


WANTED = cases(lambda c: c.name not in FREE)
SLOPES = [
    c for c in WANTED if takes_floats(c) and not has_no_rule(c) and c.name not in NO_REVERSE
]  # fmt: skip


def one_of_each(wanted: Sequence[Case], every: int) -> list[tuple[Case, str, bool]]:
    """A case of some of the ops, the meshes and the axes that are cut in turn; the deep tests have all cases."""
    first: dict[str, Case] = {}
    for c in wanted:
        if c.op is not None and all(s.shape and 0 not in s.shape for s in c.slots):
            first.setdefault(c.op.name, c)
    return [
        (c, ("3", "2x2")[k % 2], bool(k // 2 % 2))
        for k, c in enumerate(list(first.values())[::every])
    ]


@pytest.mark.parametrize(("case", "mesh", "last"), one_of_each(WANTED, 5), ids=str)
def test_sharded_is_whole(case: Case, mesh: str, last: bool) -> None:
    run_sharded(case, MESHES[mesh], last)


@pytest.mark.parametrize(("case", "mesh", "last"), one_of_each(SLOPES, 9), ids=str)
def test_sharded_derivatives_are_whole(case: Case, mesh: str, last: bool) -> None:
    run_derivative(case, MESHES[mesh], last)


@pytest.mark.deep
@pytest.mark.parametrize("case", WANTED, ids=str)
@pytest.mark.parametrize("last", [False, True], ids=["first", "last"])
@pytest.mark.parametrize("mesh", list(MESHES))
def test_sharded_is_whole_on_every_mesh(case: Case, mesh: str, last: bool) -> None:
    run_sharded(case, MESHES[mesh], last)


@pytest.mark.deep
@pytest.mark.parametrize("case", SLOPES, ids=str)
@pytest.mark.parametrize("last", [False, True], ids=["first", "last"])
@pytest.mark.parametrize("mesh", ["3", "2x2"])
def test_sharded_derivatives_are_whole_on_every_mesh(case: Case, mesh: str, last: bool) -> None:
    run_derivative(case, MESHES[mesh], last)
