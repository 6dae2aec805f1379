"""MLIR itself reads the text of Tile kernels, and what it prints is the same kernel to us."""

from __future__ import annotations

import pytest
from hypothesis import given, settings

import tessera as ts
from tessera.ir.tile.text import print_kernel
from tests.oracles.mlir_text import through_mlir
from tests.support.cases.tile_kernels import Program, programs

pytestmark = pytest.mark.oracle


@settings(max_examples=50)
@given(programs())
def test_random_kernels(p: Program) -> None:
    assert ts.ir.parse(through_mlir(p.kernel.text)).text == p.kernel.text
    through_mlir(print_kernel(p.kernel, locations=True))
