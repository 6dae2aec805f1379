"""Nothing is written behind the last element of a tensor, whatever its size: neighbours belong to others."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera import Tensor, op
from tessera.core.dtype import FORMATS
from tessera.ir.schedule.lower import lower
from tessera.ir.target.cpu.program import program
from tessera.runtime.kernel import CompiledKernel
from tests.support.runners.levels import expanded, prepared

SIZES = (1, 2, 3, 15, 17, 18, 31, 33, 65, 81)
BEHIND = 64  # elements


def written(f: Any, source: str, result: str, n: int) -> Any:
    """The bytes of a tensor's neighbours after a kernel has filled it, which were all 0x4d."""
    given, made = FORMATS[source], FORMATS[result]
    p = lower(prepared(ts.trace(f, Tensor[3, n, given])))
    ((launch,),) = (e.launches for e in expanded(p))
    memory = np.full((3 * n + BEHIND) * made.np.itemsize, 0x4D, np.uint8)
    x = np.random.default_rng(n).integers(0, 2, (3, n)).astype(given.np)
    y = memory.view(made.np)[: 3 * n].reshape(3, n)
    CompiledKernel(program(launch.kernel)).run([x, y])
    return memory[3 * n * made.np.itemsize :]


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize(
    "name", ["bool", "i8", "u8", "i16", "bf16", "f16", "f8e4m3", "f8e5m2", "i32", "f32", "f64"]
)
def test_what_lies_behind_a_tensor_stays(name: str, n: int) -> None:
    f = op.logical_not if name == "bool" else lambda x: x + x
    assert (written(f, name, name, n) == 0x4D).all()


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("name", ["bf16", "f16", "f8e4m3", "i8", "i16"])
def test_casts_too(name: str, n: int) -> None:
    """A narrow result of wide numbers: LLVM took one element of a known mask for 32 bits."""
    for source in ("bool", "f32"):
        found = written(lambda x: op.cast(x, FORMATS[name]), source, name, n)
        assert (found == 0x4D).all()
