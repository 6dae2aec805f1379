"""Every op of the catalogue on a mesh: sharded is whole, whichever axis is cut and whatever divides."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tessera.compile import compile_graph
from tessera.compile.executable import Step
from tessera.compile.mesh.array import cut
from tessera.compile.mesh.executable import MeshExecutable
from tessera.core.layout import Layout
from tessera.core.mesh import Mesh
from tessera.ir.graph.interp import execute
from tessera.ir.graph.ir import concrete
from tests.support.cases.op_cases import Case, cases
from tests.support.runners.tolerance import assert_close

MESHES = {
    "1": Mesh(["x"], shape=(1,)), "2": Mesh(["x"], shape=(2,)), "3": Mesh(["x"], shape=(3,)),
    "4": Mesh(["x"], shape=(4,)), "2x2": Mesh(["x", "y"], shape=(2, 2)),
}  # fmt: skip
# Results that no two algorithms share, or that are drawn: they are compared by what they are made of.
FREE = {"empty", "empty_like"}


def layout_for(rank: int, mesh: Mesh, last: bool) -> Layout:
    """The first axes cut by the mesh axes, or the last ones."""
    cuts: list[tuple[str, ...]] = [()] * rank
    for k, a in enumerate(mesh.axes[:rank]):
        cuts[rank - 1 - k if last else k] = (a,)
    return Layout(tuple(cuts))


def run_sharded(case: Case, mesh: Mesh, last: bool) -> None:
    xs = case.draw()
    g = case.trace([concrete(x).type for x in xs])
    outer: Any = [v.data for v in g.captured]
    with np.errstate(all="ignore"):
        wanted = execute(g, [*xs, *outer])
        whole = MeshExecutable(
            g, [Step("trace", 0.0, g)], mesh, lambda h: compile_graph(h, "numpy")
        )
        found = whole.run(
            [cut(np.asarray(x), layout_for(np.ndim(x), mesh, last), mesh) for x in xs]
        )
    for y, w in zip(found, wanted, strict=True):
        assert_close(y.numpy(), w)


WANTED = cases(lambda c: c.name not in FREE)


def one_of_each() -> list[tuple[Case, str, bool]]:
    """A case of every fifth op, the meshes and the axes that are cut in turn; the deep tests have all cases."""
    first: dict[str, Case] = {}
    for c in WANTED:
        if c.op is not None and all(s.shape and 0 not in s.shape for s in c.slots):
            first.setdefault(c.op.name, c)
    return [
        (c, ("3", "2x2")[k % 2], bool(k // 2 % 2)) for k, c in enumerate(list(first.values())[::5])
    ]


@pytest.mark.parametrize(("case", "mesh", "last"), one_of_each(), ids=str)
def test_sharded_is_whole(case: Case, mesh: str, last: bool) -> None:
    run_sharded(case, MESHES[mesh], last)


@pytest.mark.deep
@pytest.mark.parametrize("case", WANTED, ids=str)
@pytest.mark.parametrize("last", [False, True], ids=["first", "last"])
@pytest.mark.parametrize("mesh", list(MESHES))
def test_sharded_is_whole_on_every_mesh(case: Case, mesh: str, last: bool) -> None:
    run_sharded(case, MESHES[mesh], last)
