"""Kernels of attention for odd sizes and few queries compile for Hopper, and their tiles stay in
registers.
"""

from __future__ import annotations

import importlib.util
import re
import subprocess
from pathlib import Path

import pytest

import tessera as ts
from tessera.core.dtype import bf16
from tessera.ir.target.gluon.flash_forward_emit import emit as emit_roles
from tessera.ir.target.triton.emit import emit
from tessera.ir.target.triton.triton_source import source_of
from tessera.ir.tile.gpu import attention_launches as kept
from tessera.ir.tile.gpu.attention import AttentionProblem
from tessera.ir.tile.launch import Launch
from tessera.runtime import triton_builder

TRITON = importlib.util.find_spec("triton")
pytestmark = [pytest.mark.oracle, pytest.mark.skipif(TRITON is None, reason="needs triton")]
SM_90 = ("cuda", 90, 32)


def problem(d: int, queries: int = 1024, keys: int = 1024, groups: int = 4) -> AttentionProblem:
    return AttentionProblem(2, 4, groups, queries, keys, d, d, bf16, queries > 1, d**-0.5)


def stacks(launches: list[Launch], folder: Path) -> dict[str, int]:
    """Bytes of the stack of each kernel, where spilled registers go."""
    sources = []
    for x in launches:
        text = emit_roles(x.kernel, x.threads) if x.threads.roles else emit(x.kernel, x.threads)
        sources.append(source_of(x.kernel, text, x.threads, SM_90, 0))
    with ts.core.flags.override(cache_dir=folder):
        codes = triton_builder.build(sources)
    assert TRITON is not None
    assert TRITON.origin is not None
    tool = Path(TRITON.origin).parent / "backends/nvidia/bin/cuobjdump"
    found = {}
    for source, code in zip(sources, codes, strict=True):
        assert code.shared <= 232_448
        place = folder / f"{source.name}.cubin"
        place.write_bytes(code.image)
        told = subprocess.run([tool, "--dump-resource-usage", place], capture_output=True, text=True,
            check=True)  # fmt: skip
        (stack,) = re.findall(r"STACK:(\d+)", told.stdout)
        found[source.name] = int(stack)
    return found


def test_forward_passes_and_parts_of_odd_sizes_spill_nothing(tmp_path: Path) -> None:
    given = ("q", "k", "v"), "o", "logs"
    launches = kept.forward(problem(80), *given, True)[0]
    launches += kept.forward(problem(96, 1, 5000, 2), *given, True)[0]
    assert [x.threads.roles for x in launches] == [True, False, False]
    found = stacks(launches, tmp_path)
    assert found == {"attention": 0, "attention_part": 0, "attention_join": 0}


@pytest.mark.deep
@pytest.mark.parametrize("d", [33, 80, 160, 256])
def test_forward_and_backward_passes_by_triton_compile(d: int, tmp_path: Path) -> None:
    launches = kept.forward(problem(d, 1000, 1000), ("q", "k", "v"), "o", "logs", True)[0]
    launches += kept.backward(problem(d, 1000, 1000), tuple("qkvoc"), ("a", "b", "c"), "l", "d",
        True)  # fmt: skip
    found = stacks(launches, tmp_path)
    assert found["attention"] == 0
    assert all(n <= 128 for n in found.values()), found
