"""Kernels with roles for groups of threads: which kernels they are, and what is printed and launched."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera import op
from tessera.compile.gpu.context import roles_on
from tessera.compile.gpu.tma_tile import parameters
from tessera.core.dtype import bf16, f16, f32
from tessera.core.types import TensorType
from tessera.ir.target.gluon.flash_forward_emit import box_type, emit
from tessera.ir.target.gluon.writer import RoleWriter
from tessera.ir.target.triton.triton_source import blocks_of, source_of
from tessera.ir.tile.gpu.attention import AttentionForward, AttentionProblem, forward_block
from tessera.ir.tile.gpu.flash_forward_match import (
    GROUPS,
    NAMES,
    ROWS,
    boxes,
    pipeline,
    shared_out,
)
from tessera.ir.tile.ir import Builder, Kernel
from tessera.ir.tile.launch import Launch, Threads
from tests.support.fakes.gpu_fake import BUILT, fake_gpu, set_roles

ROLES = Threads(4, 2, approximate=True, roles=True)
PROBLEM = AttentionProblem(2, 4, 2, 512, 512, 128, 128, bf16, True, 0.125)


def attention(rows: int = ROWS, **other: Any) -> Kernel:
    return AttentionForward(replace(PROBLEM, **other), rows, 128).kernel()


@pytest.mark.parametrize(
    "other",
    [
        {"causal": False}, {"dtype": f16}, {"groups": 4}, {"keys": 640}, {"queries": 128},
        {"causal": False, "keys": 128}, {"causal": False, "queries": 1024}, {"queries": 576, "keys": 640},
    ],
    ids=["full", "f16", "all heads", "earlier keys", "one block", "one step", "few keys", "odd"],
)  # fmt: skip
@pytest.mark.parametrize("size", [64, 128])
def test_attention_with_whole_blocks_is_a_pipeline(size: int, other: Any) -> None:
    kernel = attention(size=size, values=size, **other)
    found = pipeline(kernel)
    assert found is not None
    p = replace(PROBLEM, **other)
    blocks = -(-p.queries // (ROWS * GROUPS[size]))
    assert blocks_of(Launch(kernel, (), (), ROLES), {}) == p.batch * p.heads * blocks
    assert [m.name for m in boxes(found)] == ["q", "k", "v", "o"]
    assert len(found.steps) == (2 if p.causal else 1)


@pytest.mark.parametrize(
    "other",
    [
        {"queries": 500}, {"queries": 576, "keys": 576}, {"keys": 500}, {"keys": 576},
        {"queries": 448, "keys": 480}, {"keys": 256}, {"size": 64}, {"values": 64},
        {"size": 32, "values": 32},
    ],
    ids=[
        "ragged", "ragged step", "ragged keys", "other steps", "blocks between steps",
        "rows that see nothing",
        "size", "values", "narrow",
    ],
)  # fmt: skip
def test_other_attention_is_none(other: Any) -> None:
    assert pipeline(attention(**other)) is None


def test_tiles_of_more_rows_and_other_kernels_are_none() -> None:
    assert pipeline(attention(128)) is None
    b = Builder("double")
    x = b.parameter("x", TensorType(f32, (8, 8)), writable=True)
    assert pipeline(b.finish()) is None
    assert x.name not in NAMES


def test_what_is_printed_has_the_places_and_the_arithmetic_of_the_kernel() -> None:
    text = emit(attention(), ROLES)
    # Two neighbours of the grid are one block of threads; later queries see more keys and begin first.
    assert "p1 = (rest % 4) * 2 + which" in text
    assert "load_box(q, [(p0 % 4) * 512 + (p0 // 4) * 2048 - p1 * 64 + 448, 0]" in text
    # Keys pass by from the last to the first; only the first step asks who sees them.
    steps = "((tl.maximum((-p1 * 64 + 512), 0) + 127) // 128)"
    assert (
        f"fetch(k, [(((p0 % 4)) // 2) * 512 + (p0 // 4) * 1024 + {steps} * 128 - i * 128 - 128, 0]"
        in text
    )
    loop = text.index(f"    for i in range(1, {steps}):")
    assert text.index("= between0(s") < loop < text.index("= between1(s")
    # Scores, then weights, by the operations of the Tile kernel; sums by halves.
    assert "v3 = v1 >= v2" in text
    assert "tl.fma(s, " in text
    assert text.count("(64, 2, 64)") == 2
    assert text.count("def between") == 2
    assert text.count(">= v2") == 1
    compile(text, "attention", "exec")


def test_a_launch_has_a_descriptor_its_sizes_and_its_strides_for_each_box() -> None:
    found = pipeline(attention())
    assert found is not None
    with fake_gpu():
        given = [parameters(b, 3, 16) for b in boxes(found).values()]
    assert [[len(x.data) for x in p] for p in given] == [[128, 4, 4, 8, 8]] * 4  # type: ignore[union-attr]
    assert box_type(next(iter(boxes(found).values()))).startswith("tensordesc<bf16[64, 128],")


def test_a_bound_on_registers_is_asked_of_nvidia_alone() -> None:
    p = replace(PROBLEM, size=64, values=64, queries=500)
    kernel, (_, threads) = AttentionForward(p, 64, 128).kernel(), forward_block(p)
    assert threads.registers == 168
    for arch, asked in ((("cuda", 80, 32), 168), (("hip", "gfx942", 64), None)):
        request = source_of(kernel, "", threads, arch, 0).request()
        assert request["options"].get("maxnreg") == asked
    assert (
        "maxnreg" not in source_of(kernel, "", Threads(4), ("cuda", 90, 32), 0).request()["options"]
    )


@pytest.mark.parametrize(
    "target",
    [("cuda", 80, 32), ("cuda", 100, 32), ("hip", "gfx942", 64)],
    ids=["sm_80", "sm_100", "gfx942"],
)
def test_other_devices_have_no_roles(target: Any) -> None:
    assert not roles_on(target)
    assert roles_on(("cuda", 90, 32))


class _Twice(AttentionForward):
    """Two steps with an f of their own."""

    def steps(self, at: Any) -> Any:
        return 2, super().steps(at)[1]


class _Apart(AttentionForward):
    """Blocks of queries that see keys of their own."""

    def steps(self, at: Any) -> Any:
        self.begin = at
        return super().steps(at)

    def tile(self, m: Any, z: Any, h: Any, at: Any, n: int, turned: bool = False) -> Any:
        own = self.begin if m is self.k else 0
        return super().tile(m, z, h, at + own, n, turned)


def test_instances_that_do_not_keep_pace_or_share_factors_are_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    full = replace(PROBLEM, causal=False)
    assert pipeline(AttentionForward(full, ROWS).kernel()) is not None
    assert pipeline(attention(keys=640)) is not None
    assert pipeline(_Twice(replace(PROBLEM, keys=640), ROWS).kernel()) is None
    assert pipeline(_Apart(full, ROWS).kernel()) is None
    narrow = attention(size=64, values=64)
    assert pipeline(narrow) is not None
    monkeypatch.setitem(GROUPS, 64, 5)  # of which the last begins two steps after the first
    assert pipeline(narrow) is None


def test_the_last_instance_fills_its_block() -> None:
    assert shared_out([1, 2, 3, 4], 3) == [[1, 2, 3], [4, 4, 4]]
    assert shared_out([1, 2], 2) == [[1, 2]]
    text = emit(attention(size=64, values=64), ROLES)
    assert "p1 = gl.minimum((rest % 3) * 3 + which, 7)" in text
    assert "], [4, 4, 1], [160, 160, 24])" in text


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("size", [64, 128])
def test_results_do_not_depend_on_roles(
    size: int, causal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(0)
    data = [rng.standard_normal((1, 2, 256, size)).astype(np.float32) for _ in range(3)]
    seen = []
    for roles in (True, False):
        set_roles(monkeypatch, roles)
        with fake_gpu():
            BUILT.clear()
            xs = [ts.tensor(x).to("cuda").astype(bf16) for x in data]
            y = ts.jit(lambda q, k, v: op.attention(q, k, v, causal=causal))(*xs)
            seen.append(y.numpy().view(np.uint16))
            (source,) = [s for s in BUILT if s.name == "attention"]
            assert ("gluon" in source.text) == roles
            assert source.aligned == ((4,) if roles else (0, 1, 2, 3, 4))
    assert np.array_equal(*seen)


@pytest.mark.parametrize("groups", [1, 2, 3])
@pytest.mark.parametrize("grid", [(7,), (6,), (3, 4), (4, 3), (2, 3, 5), (1, 1, 2)])
def test_the_blocks_of_a_launch_compute_every_instance(grid: tuple[int, ...], groups: int) -> None:
    """The printed lines, run for every block and every group of its threads."""
    writer: Any = object.__new__(RoleWriter)
    names = [f"p{i}" for i in range(len(grid))]
    writer.names, writer.groups = dict(zip(names, names, strict=True)), groups
    writer.k = SimpleNamespace(grid=list(zip(names, grid, strict=True)))
    blocks = math.prod(grid[:-1]) * -(-grid[-1] // groups)
    found = []
    for block, group in itertools.product(range(blocks), range(groups)):
        gl = SimpleNamespace(program_id=lambda axis, block=block: block, minimum=min)
        known: dict[str, Any] = {"gl": gl}
        exec("\n".join(writer.grid(str(group))), known)
        found.append(tuple(known[n] for n in names))
    assert set(found) == set(itertools.product(*map(range, grid)))
    if grid[-1] % groups == 0:
        assert len(found) == math.prod(grid)
