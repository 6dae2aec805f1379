"""Traces in Perfetto's own trace processor: it reads every event, and finds the times of the profiler."""

from __future__ import annotations

import json
import runpy
import threading
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

import tessera as ts
from tessera import KTile, block, f32, kernel, op, tile
from tessera.inspect.profile import TOTALS, Profile
from tessera.inspect.profile_rows import self_times
from tests.oracles.trace_processor import asked

pytest.importorskip("perfetto", reason="needs pip install perfetto")
pytestmark = pytest.mark.oracle
GPT = Path(__file__).parent.parent.parent / "examples" / "gpt.py"

LOST = "select name, value from stats where severity in ('error', 'data_loss') and value > 0"
# The time of each slice, and without that of the slices inside, as the trace processor nests them.
SLICES = """
select category as kind, count(*) as n, sum(dur) as dur, sum(dur - inner_dur) as own
from (select s.category, s.dur, coalesce((select sum(c.dur) from slice c where c.parent_id = s.id), 0) as inner_dur
      from slice s)
group by 1"""  # noqa: E501
TRACKS = "select t.name, count(*) as n from slice s join thread_track k on s.track_id = k.id join thread t using (utid) group by 1"  # noqa: E501
COUNTERS = "select t.name, max(c.value) as most, count(*) as n from counter c join counter_track t on c.track_id = t.id group by 1"  # noqa: E501


@kernel.schedule(block(16))
def scaled(x: KTile["N", f32], a):
    return tile.load(x) * a


def everything() -> Profile:
    """Compilation, calls, loops, host calls, single ops, a kernel by hand and threads."""

    @ts.jit
    def f(x):
        return op.sort(op.softmax(op.gelu(x @ x)))

    @ts.jit
    def loop(x):
        return ts.fori_loop(0, 5, lambda i, y: op.tanh(y @ x) + y, x)

    x = op.ones((64, 64))
    with ts.profile() as p:
        for _ in range(5):
            f(x)
        loop(x)
        op.tanh(x)
        scaled(x[0], 3.0)
        workers = [threading.Thread(target=f, args=(x,)) for _ in range(2)]
        for w in workers:
            w.start()
        for w in workers:
            w.join()
    return p


def demo() -> Profile:
    """Steps of the demo transformer, with derivatives."""
    gpt = runpy.run_path(str(GPT), run_name="gpt")
    params = gpt["init"](ts.key(0), 20, 16, 16, 2)
    tokens = ts.tensor(np.zeros((2, 16), np.int64))
    step = ts.jit(ts.grad(lambda p, x: op.mean(gpt["model"](p, x, heads=2))))
    with ts.profile() as p:
        for _ in range(3):
            step(params, tokens)
    return p


@pytest.mark.parametrize("made", [everything, demo], ids=["everything", "demo"])
def test_the_trace_processor_reads_every_event_and_finds_the_same_totals(made, tmp_path):
    p = made()
    p.trace(tmp_path / "trace.json")
    lost, slices, tracks, counters = asked(tmp_path / "trace.json", LOST, SLICES, TRACKS, COUNTERS)
    assert [(r.name, r.value) for r in lost] == []
    found = {r.kind: (r.n, r.dur, r.own) for r in slices}
    kinds = {s.kind for s in p.spans}
    assert found.keys() == kinds
    own = self_times(p.spans)
    for kind in kinds:
        mine = [(s.end - s.begin, t) for s, t in zip(p.spans, own, strict=True) if s.kind == kind]
        assert found[kind] == (len(mine), sum(d for d, _ in mine), sum(t for _, t in mine)), kind
    for name, parts in TOTALS.items():
        assert sum(found.get(k, (0, 0, 0))[2] for k in parts) / 1e9 == pytest.approx(p.totals[name])
    threads = Counter("main" if s.thread == 0 else f"thread {s.thread}" for s in p.spans)
    assert {r.name: r.n for r in tracks} == threads
    used: dict[str, list[int]] = {}
    for m in p.memory:  # bodies of loops may share a name
        used.setdefault(f"memory of {m.program} bytes", []).extend(b for _, b in m.points)
    most = {name: (max(b), len(b)) for name, b in used.items()}
    assert {r.name: (r.most, r.n) for r in counters} == most


def test_the_trace_processor_notices_what_is_wrong(tmp_path):
    """Slices that overlap, and events without a kind: the test above would not pass with them."""
    event = {"ph": "X", "name": "a", "cat": "k", "pid": 1, "tid": 1}
    wrong = [{**event, "ts": 1, "dur": 10}, {**event, "ts": 5, "dur": 10}, {"name": "b"}]
    path = tmp_path / "wrong.json"
    path.write_text(json.dumps({"traceEvents": wrong}))
    lost, slices = asked(path, LOST, SLICES)
    assert {r.name for r in lost} == {
        "slice_drop_overlapping_complete_event",
        "json_tokenizer_failure",
    }
    assert [(r.kind, r.n, r.own) for r in slices] == [("k", 1, 10_000)]
