"""Stages of collectives, which devices run, have the bits of collectives on the host: every dtype and cut."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
import pytest

from tessera.core.dtype import as_dtype
from tessera.core.ranks import engine
from tessera.core.types import TensorType
from tessera.ir.graph.interp import execute
from tessera.ops import ranks
from tessera.ops.rank_stages import STAGES, stages_of
from tests.support.fakes.nccl_fake import on_threads

RUNS_ON = "numpy"
DTYPES = ["f32", "f64", "f16", "bf16", "f8e4m3", "i8", "bool", "u32", "i64", "c64"]
CUTS = [
    ((0, 1), (1, 2)),
    ((0, 2), (2, 3)),
    ((0, 1), (1, 3), (3, 4)),
    ((0, 3), (3, 5), (5, 6), (6, 7)),
]
KINDS = [op.name for op in STAGES]


def drawn(shape: Sequence[int], dtype: Any, seed: int) -> Any:
    rng = np.random.default_rng(seed)
    if dtype.kind in "iub":
        return rng.integers(0, 100, shape).astype(dtype)
    return rng.normal(size=shape).astype(dtype)


def seen(g: Any, x: Any) -> Any:
    """An array as a graph sees it."""
    return x.view(g.inputs[0].type.dtype.np)


def run_stages(op: Any, t: TensorType, params: Any, x: Any) -> Any:
    """What the stages make of an array, on this rank."""
    plan = stages_of(op, t, params)
    out = x
    for stage in plan.stages:
        (sent,) = (out,) if stage.pack is None else execute(stage.pack, [seen(stage.pack, out)])
        parts = [np.asarray(sent).view(x.dtype).reshape(-1)[a : a + n] for a, n in stage.parts]
        got = engine().exchange(plan.what, plan.group, parts)
        row = np.empty(sum(stage.counts), x.dtype)
        for (a, b), y in zip(pairwise(accumulate(stage.counts, initial=0)), got, strict=True):
            row[a:b] = y
        (out,) = (
            (row,) if stage.unpack is None else execute(stage.unpack, [seen(stage.unpack, row)])
        )
    return np.asarray(out).view(x.dtype)


def operand_of(
    kind: str, low: int, high: int, total: int, rest: Sequence[int], dtype: Any, rank: int
) -> Any:
    held = len(ranks.nodes(low, high, total))
    shape = {
        "ranks_sum": (held, *rest), "ranks_max": (held, *rest), "ranks_scatter": (held, total, *rest),
        "ranks_all_to_all": (high - low, total, *rest),
    }.get(kind, (high - low, *rest))  # fmt: skip
    return drawn(shape, dtype, rank)


@pytest.mark.parametrize("rest", [(), (0,), (1,), (3, 5)], ids=str)
@pytest.mark.parametrize("ranges", CUTS, ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_stages_have_the_bits_of_the_host(kind: str, ranges: Any, rest: Any) -> None:
    op = next(op for op in STAGES if op.name == kind)
    total, group = ranges[-1][1], tuple(range(len(ranges)))
    names = [d for d in DTYPES if kind != "ranks_max" or not d.startswith("c")]

    def run(rank: int) -> list[tuple[Any, Any]]:
        low, high = ranges[rank]
        params: dict[str, Any] = {"group": group, "ranges": ranges, "mine": rank}
        if op is ranks.PERMUTE:
            params["perm"] = tuple((i, (i + 2) % total) for i in range(total) if i != 1)
        found = []
        for name in names:
            dtype = as_dtype(name)
            x = operand_of(kind, low, high, total, rest, dtype.np, rank)
            want = op.numpy(x, **params)
            t = TensorType(dtype, x.shape)
            made = run_stages(op, t, params, x)
            if not made.size and want.size:  # nothing comes: zeros
                made = np.zeros_like(want)
            found.append((want, made.reshape(want.shape)))
        return found

    for each in on_threads(len(ranges), run):
        for name, (want, made) in zip(names, each, strict=True):
            assert made.dtype == want.dtype
            assert made.tobytes() == want.tobytes(), name


def test_long_sums_of_two_ranks_go_in_halves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranks, "_ONE_ROUND", 16)
    ranges = ((0, 2), (2, 3))

    def run(rank: int) -> Any:
        x = drawn((1, 3, 5), np.dtype("f4"), rank)
        params = {"group": (0, 1), "ranges": ranges, "mine": rank}
        plan = stages_of(ranks.SUM, TensorType(as_dtype("f32"), x.shape), params)
        assert [sum(n for _, n in s.parts) for s in plan.stages] == [15, 14 if rank == 0 else 16]
        return run_stages(
            ranks.SUM, TensorType(as_dtype("f32"), x.shape), params, x
        ), ranks.SUM.numpy(x, **params)

    for made, want in on_threads(2, run):
        assert made.tobytes() == want.tobytes()
