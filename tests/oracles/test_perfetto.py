"""Traces through Perfetto's own trace processor, whose totals must be those of the profiler.

`pip install perfetto` brings its Python side, which downloads the program itself when first used; TRACE_PROCESSOR may name one that is
there already.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

import tessera as ts
from tessera import op

perfetto = pytest.importorskip("perfetto.trace_processor", reason="needs pip install perfetto")
pytestmark = pytest.mark.oracle


def opened(path: Path) -> Any:
    config = perfetto.TraceProcessorConfig(bin_path=os.environ.get("TRACE_PROCESSOR"))
    try:
        return perfetto.TraceProcessor(trace=str(path), config=config)
    except (OSError, subprocess.SubprocessError, perfetto.TraceProcessorException) as e:
        pytest.skip(f"the trace processor cannot be had here ({e})")


def test_the_trace_processor_reads_every_event_and_finds_the_same_totals(tmp_path: Path) -> None:
    f = ts.jit(lambda x: op.softmax(op.gelu(x @ x)))
    x = op.ones((64, 64))
    with ts.profile() as p:
        for _ in range(5):
            f(x)
    p.trace(tmp_path / "trace.json")
    with opened(tmp_path / "trace.json") as trace:
        lost = (
            "select name, value from stats where severity in ('error', 'data_loss') and value > 0"
        )
        assert [(r.name, r.value) for r in trace.query(lost)] == []
        found = {
            r.category: (r.n, r.dur)
            for r in trace.query("select category, count(*) n, sum(dur) dur from slice group by 1")
        }
        peak = next(iter(trace.query("select max(value) as most from counter"))).most
    for kind in {s.kind for s in p.spans}:
        own = [s.end - s.begin for s in p.spans if s.kind == kind]
        assert found[kind] == (len(own), sum(own)), kind
    assert found["kernel"][1] / 1e9 == pytest.approx(p.totals["kernels"])
    assert peak == max(used for m in p.memory for _, used in m.points)
