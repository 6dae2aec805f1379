"""Kernels in which two factors pass by two tiles: which they are, what is printed, and that it computes
the kernel.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera import op
from tessera.compile.gpu.tma_tile import parameters
from tessera.core.dtype import bf16, f16, f32
from tessera.ir.schedule.device_steps import Columns
from tessera.ir.target.gluon.flash_forward_emit import box_type, emit, instances
from tessera.ir.tile.gpu.attention import AttentionForward, AttentionProblem
from tessera.ir.tile.gpu.attention_backward import Delta, KeysBackward, QueriesBackward
from tessera.ir.tile.gpu.flash_backward_match import NAMES, double
from tessera.ir.tile.gpu.flash_forward_match import pipeline
from tessera.ir.tile.interp import interpret
from tessera.ir.tile.ir import Kernel
from tessera.ir.tile.launch import Threads
from tests.support.fakes import gluon_fake
from tests.support.fakes.gpu_fake import fake_gpu, launching_gpus, set_roles

ROLES = Threads(4, 4, approximate=True, roles=True)
PROBLEM = AttentionProblem(1, 2, 2, 256, 256, 128, 128, bf16, True, 0.125)
THREE = {"size": 64, "values": 64}  # columns, and groups to a block of threads
KINDS = {"keys": KeysBackward, "queries": QueriesBackward}


def backward(kind: str, m: int = 64, n: int = 64, **other: Any) -> Kernel:
    return KINDS[kind](replace(PROBLEM, **other), m, n).kernel()


@pytest.mark.parametrize("size", [64, 128])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "other",
    [
        {}, {"causal": False}, {"dtype": f16}, {"keys": 384}, {"queries": 128, "keys": 128},
        {"queries": 512, "causal": False}, {"keys": 320},
    ],
    ids=["causal", "full", "f16", "earlier keys", "one block", "few keys", "odd steps"],
)  # fmt: skip
def test_derivatives_of_attention_in_whole_blocks_are_doubles(
    size: int, kind: str, other: Any
) -> None:
    kernel = backward(kind, size=size, values=size, **other)
    p, found = replace(PROBLEM, **other), double(kernel)
    assert found is not None
    assert pipeline(kernel) is None
    assert instances(kernel) == {64: 3, 128: 2}[size]
    assert len(found.passes) == (2 if p.causal else 1)
    assert [b.is_line for b in found.boxes.values()].count(True) == (2 if kind == "keys" else 0)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "other",
    [
        {"queries": 250},
        {"keys": 250, "causal": False},
        {"size": 64},
        {"values": 64},
        {"size": 32, "values": 32},
        {"dtype": f32},
    ],
    ids=["ragged", "ragged keys", "size", "values", "narrow", "wide"],
)
def test_others_are_none(kind: str, other: Any) -> None:
    assert double(backward(kind, **other)) is None


def test_blocks_of_other_sizes_and_heads_one_after_the_other_are_none() -> None:
    assert double(backward("keys", 128, 64, causal=False)) is not None
    assert double(backward("keys", 64, 128)) is None
    assert double(backward("queries", 128, 64)) is None
    assert double(backward("queries", 64, 32)) is None
    assert double(backward("queries", 64, 128)) is None  # neighbours end within a step
    assert double(backward("keys", groups=1)) is None
    assert double(backward("queries", groups=1)) is not None
    assert double(AttentionForward(PROBLEM, 64).kernel()) is None
    assert NAMES.isdisjoint(m.name for m in backward("keys").parameters)


def test_what_is_printed_has_the_places_and_the_arithmetic_of_the_kernel() -> None:
    text = emit(backward("keys"), ROLES)
    # Queries begin where the first of two blocks of keys is seen; the second one begins a step later.
    assert "for i in range(p1 * 64, 256, 64):\n        at = turn % 4" in text
    assert "turn = (p1 * 64 - begin) // 64" in text
    assert (
        "load_box(logs, [(p0 % 2) * 256 + (p0 // 2) * 512 + i], left_full.index(at), ring0" in text
    )
    assert (
        "mbarrier.expect(left_full.index(at), 16896)" in text
    )  # 64 rows of 128, and two of 64 f32
    # Weights with and without a test of places; slopes are made by one function.
    assert text.count("tl.fma(s, ") == 2
    assert text.count(" >= ") == 1
    assert text.count("def part") == 3
    compile(text, "keys", "exec")
    text = emit(backward("queries"), ROLES)
    assert "p = gl.convert_layout(x.to(tl.bfloat16), factor" in text
    assert "line0 = gl.arange(0, 64, gl.SliceLayout(1, cols))" in text
    compile(text, "queries", "exec")


def test_a_line_is_a_descriptor_its_size_and_its_stride() -> None:
    found = double(backward("keys"))
    assert found is not None
    (line,) = [b for m, b in found.boxes.items() if m.name == "logs"]
    with fake_gpu():
        given = parameters(line, 3, 16)
    assert [len(x.data) for x in given] == [128, 4, 8]  # type: ignore[union-attr]
    assert box_type(line).startswith("tensordesc<fp32[64],NVMMASharedLayout(swizzle_byte_width=0")


def data(p: AttentionProblem) -> dict[str, Any]:
    """What the kernels of a problem read, and places for what they write."""
    rng = np.random.default_rng(0)
    lie = dict(p.columns)
    out: dict[str, Any] = {}
    for name in ("q", "k", "v", "o", "d_o", "d_q", "d_k", "d_v"):
        of_keys = name in ("k", "v", "d_k", "d_v")
        heads, rows = (p.groups, p.keys) if of_keys else (p.heads, p.queries)
        shape = (p.batch, rows, lie[name].pitch) if name in lie else (p.batch, heads, rows, p.size)
        made = rng.standard_normal(shape) if name in ("q", "k", "v", "d_o") else np.zeros(shape)
        out[name] = made.astype(p.dtype.np)
    out["logs"], out["delta"] = (np.zeros((p.batch, p.heads, p.queries), np.float32),) * 2
    out["delta"] = out["logs"].copy()
    return out


@pytest.mark.parametrize(
    "other",
    [
        {"causal": False, "heads": 1, "groups": 1}, {"dtype": f16, "heads": 1, "groups": 1},
        {"groups": 1, "queries": 128},
        {"batch": 2, "heads": 1, "groups": 1, "queries": 128},
        {"columns": tuple((n, Columns(384, 128 * i, 128)) for i, n in enumerate(("q", "k", "v"))),
        "heads": 1, "groups": 1},
        {"heads": 1, "groups": 1, "keys": 320, "queries": 320},
        {**THREE, "heads": 1, "groups": 1}, {**THREE, "causal": False, "groups": 1, "queries": 320},
        {**THREE, "heads": 1, "groups": 1, "queries": 320, "keys": 384},
        {**THREE, "dtype": f16, "heads": 1, "groups": 1, "queries": 192},
        {**THREE, "heads": 1, "groups": 1, "queries": 64, "keys": 512},
        {**THREE, "heads": 1, "groups": 1, "queries": 192, "keys": 768},
    ],
    ids=[
        "full", "f16", "groups", "more keys", "columns", "an odd block", "three", "three, full",
        "three, an odd block",
        "three, f16", "three, one block", "three, more steps than stages",
    ],
)  # fmt: skip
def test_printed_roles_compute_the_kernels(other: Any) -> None:
    """Each role is a thread, and products read what they read as late as they may."""
    p = replace(PROBLEM, **other)
    named = data(p)
    for kernel in (
        AttentionForward(p, 64).kernel(), Delta(p).kernel(), KeysBackward(p, 64, 64).kernel(),
        QueriesBackward(p, 64, 64).kernel(),
    ):  # fmt: skip
        given = [m.name for m in kernel.parameters]
        printed = {n: x.copy() for n, x in named.items()}
        interpret(kernel, [named[n] for n in given])
        if pipeline(kernel) is None and double(kernel) is None:
            continue
        for stages in (instances(kernel), 4):
            gluon_fake.run(kernel, replace(ROLES, stages=stages), printed)
            for m in kernel.parameters:
                want, got = (x[m.name].astype(np.float64) for x in (named, printed))
                assert np.abs(got - want).max() <= 0.01 * np.abs(want).max(), (kernel.name, m.name)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("size", [64, 128])
def test_gradients_are_launched_with_roles_and_do_not_depend_on_them(
    size: int, causal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(0)
    given = [rng.standard_normal((1, 1, 128, size)).astype(bf16.np) for _ in range(4)]

    def slopes(q: Any, k: Any, v: Any, ct: Any) -> Any:
        o, back = ts.vjp(lambda q, k, v: op.attention(q, k, v, causal=causal), q, k, v)
        return o, back(ct)

    seen = []
    for roles in (True, False):
        set_roles(monkeypatch, roles)
        with launching_gpus() as library:
            xs = [ts.tensor(x).to("cuda") for x in given]
            leaves = ts.tree.leaves(ts.jit(lambda *xs: slopes(*xs))(*xs))
            seen.append([x.numpy().view(np.uint16) for x in leaves])
            sizes = {name.rsplit("_", 1)[0]: given for name, (given, _) in library.kernels.items()}
        line, box, pointer = (128, 4, 8), (128, 4, 4, 8, 8), (8,)
        boxes = (box * 4 + line * 2 + box * 2) if roles else pointer * 8
        assert sizes["attention_keys"] == (*boxes, 8, 8)
        boxes = (box * 4 + pointer * 2 + box) if roles else pointer * 7
        assert sizes["attention_queries"] == (*boxes, 8, 8)
    for a, b in zip(*seen, strict=True):
        assert np.array_equal(a, b)
