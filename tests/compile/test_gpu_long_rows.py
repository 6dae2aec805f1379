"""Long rows that many blocks of threads share have the bits of rows that one block reads piece by piece."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera import op
from tessera.compile import compile_graph
from tessera.ir.tile.gpu import split_reduction
from tests.support.fakes.gpu_fake import at

RUNS_ON = "numpy"


@pytest.mark.parametrize("where", ["fake", pytest.param("device", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("columns", [16385, 16392, 20011])
def test_shared_rows_have_the_bits_of_one_block(
    where: str, columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = np.random.default_rng(columns).standard_normal((2, columns)).astype(np.float32)

    def f(x: Any) -> Any:
        return op.var(x, 1), op.logsumexp(x, 1), op.layernorm(x)

    found = []
    for enough in (split_reduction._ROWS_ENOUGH, 0):
        monkeypatch.setattr(split_reduction, "_ROWS_ENOUGH", enough)
        with at(where):
            found.append([y.numpy() for y in ts.jit(lambda x: f(x))(ts.tensor(x).to("cuda"))])
    for a, b, name in zip(*found, ("var", "logsumexp", "layernorm"), strict=True):
        assert a.tobytes() == b.tobytes(), name
    np.testing.assert_allclose(found[0][0], x.var(1), rtol=1e-5)


@pytest.mark.parametrize(("rows", "shared"), [(1, True), (512, True), (1055, True), (1056, False)])
def test_rows_that_do_not_fill_a_device_are_shared(rows: int, shared: bool) -> None:
    """Groups of a norm, 512 of 49,149 numbers, had four blocks on a multiprocessor, each of which waited."""
    shape = (rows, 49149)
    made: Any = compile_graph(
        ts.trace(lambda x: op.sum(x, 1), ts.Tensor[(*shape, ts.f32)]), "cuda:sm_90"
    )
    assert (len(made.program_at([shape]).tiles) > 1) == shared
