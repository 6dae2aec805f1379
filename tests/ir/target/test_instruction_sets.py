"""Kernels on processors that are not here: their code compiles, and their sums stay in registers."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera import op
from tessera.core.dtype import f32, f64
from tessera.core.processor import SETS, registers
from tessera.ir.schedule.ir import HostCall
from tessera.ir.schedule.lower import lower
from tessera.ir.schedule.nests import blocks
from tessera.ir.schedule.nests.blocks import block
from tessera.ir.target.cpu.emit import emit
from tessera.ir.target.cpu.machine import assembly
from tessera.ir.tile.cpu.lower import expand
from tests.support.runners.levels import by_llvm, by_schedule, prepared

PROCESSORS = {
    "avx512f": ("x86_64-unknown-linux-gnu", "sapphirerapids"),
    "avx2": ("x86_64-unknown-linux-gnu", "haswell"),
    "asimd": ("aarch64-unknown-linux-gnu", "neoverse-n1"),
}
FEATURES = {
    "avx512f": frozenset(["avx512f", "avx512dq", "avx512vnni", "avx512vl"]),
    "avx2": frozenset[str](),
    "asimd": frozenset[str](),
}
PROGRAMS: dict[str, tuple[Any, tuple[tuple[int, ...], ...]]] = {
    "matmul": (lambda a, b: a @ b, ((600, 600), (600, 600))),
    "matmul nt": (lambda a, b: a @ b.T, ((100, 80), (90, 80))),
    "matmul tn": (lambda a, b: op.gelu(a.T @ b), ((600, 300), (600, 300))),
    "few rows": (lambda a, b: a @ b, ((1, 600), (600, 600))),
    "attention": (lambda q, k, v: op.attention(q, k, v, causal=True), ((2, 70, 16),) * 3),
    "layernorm": (op.layernorm, ((70, 600),)),
    "softmax": (op.softmax, ((70, 600),)),
    "sum": (op.sum, ((70000,),)),
    "cumsum": (lambda x: op.cumsum(x, 1), ((70, 60),)),
    "sort": (lambda x: op.sort(x, 1), ((70, 60),)),
    "fft": (lambda x: op.abs(op.rfft(x)), ((70, 64),)),
}


@pytest.fixture(params=SETS)
def other(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(blocks, "registers", lambda: SETS[request.param])
    return str(request.param)


def kernels(name: str, dtype: Any = np.float32) -> Iterator[Any]:
    f, shapes = PROGRAMS[name]
    p = lower(prepared(ts.trace(f, *(ts.tensor(np.zeros(s, dtype)) for s in shapes))))
    types = {n: b.type for n, b in p.buffers.items()}
    for s in p.steps:
        if not isinstance(s, HostCall):
            yield from (launch.kernel for launch in expand(s, types).launches)


def inner_loop(text: str) -> str:
    """The block with most multiply-adds."""
    return max(
        re.split(r"(?m)^\.?L?BB", text), key=lambda b: len(re.findall(r"\bfmla\b|\bvfmadd\w*", b))
    )


@pytest.mark.parametrize("name", PROGRAMS)
def test_kernels_compile_for_other_processors(name: str, other: str) -> None:
    for k in kernels(name):
        assert "ret" in assembly(emit(k, FEATURES[other]), *PROCESSORS[other])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_sums_of_a_contraction_stay_in_registers(dtype: Any, other: str) -> None:
    (k,) = kernels("matmul", dtype)
    loop = inner_loop(assembly(emit(k, FEATURES[other]), *PROCESSORS[other]))
    assert len(re.findall(r"vfmadd\w*ps|vfmadd\w*pd|fmla", loop)) >= SETS[other].sums // 2
    spilled = re.findall(
        r"(?:[zy]mm\d+|\bq\d+).*(?:\(%rsp\)|\[sp)|(?:\(%rsp\)|\[sp).*[zy]mm\d+", loop
    )
    assert not spilled, loop


@pytest.mark.parametrize("name", PROGRAMS)
def test_nothing_is_read_through_the_base_pointer_where_that_is_slow(name: str) -> None:
    for k in kernels(name):
        text = assembly(emit(k, FEATURES["avx512f"]), *PROCESSORS["avx512f"])
        is_frame = re.search(r"movq\s+%rsp, %rbp", text)  # for vectors on the stack
        assert "%rbp" not in text or is_frame, name


@pytest.mark.parametrize("name", ["matmul", "matmul tn", "attention", "softmax"])
def test_blocks_of_other_processors_have_the_same_bits(name: str, other: str) -> None:
    f, shapes = PROGRAMS[name]
    rng = np.random.default_rng(3)
    xs = [rng.normal(size=tuple(min(n, 90) for n in s)).astype(np.float32) for s in shapes]
    p = lower(prepared(ts.trace(f, *map(ts.tensor, xs))))
    np.testing.assert_array_equal(by_llvm(p, xs)[0], by_schedule(p, xs)[0])


def test_blocks_fit_the_registers() -> None:
    assert registers() in SETS.values()
    assert block(f32, of=SETS["avx512f"]) == (6, 64)
    assert block(f64, of=SETS["avx512f"]) == (6, 32)
    assert block(f32, of=SETS["avx2"]) == (6, 16)
    assert block(f32, of=SETS["asimd"]) == (5, 16)
    assert block(f64, of=SETS["avx2"]) == (2, 16)
    assert block(f64, of=SETS["asimd"]) == (2, 16)
