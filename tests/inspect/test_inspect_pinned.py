"""What profiles and pictures say of given times and values, to the last word and number."""

from __future__ import annotations

import base64
import json
import os
import re
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera import op
from tessera.core.errors import OperandError
from tessera.inspect import profile_tracks
from tessera.inspect.pictures import html
from tessera.inspect.profile import VERSION, Profile, load
from tessera.inspect.profile_rows import ProfileRow
from tessera.inspect.work import StepWork, described, work_of
from tests.support.pinned import pinned, short

RUNS_ON = "cpu"


def span(
    kind: str, name: str, begin: int, end: int, thread: int = 0, *stack: str, **more: Any
) -> Any:
    times = {"begin": begin, "end": end, "thread": thread, "stack": stack}
    return {"kind": kind, "name": name, **times, **more}


CALLS = ("main (/home/x/a.py:3)", "step (/home/x/a.py:9)")
SPANS = [
    span("call", "f", 0, 5_000_000, 0, *CALLS), span("program", "f", 100_000, 4_000_000, 0, *CALLS),
    span("kernel", "exp_sum", 200_000, 1_200_000, 0, *CALLS, row=0), span("host", "sort", 1_200_000,
    1_900_001, 0, *CALLS, row=1),
    span("kernel", "exp_sum", 2_000_000, 3_000_000, 0, *CALLS, row=0), span("op", "tanh", 5_000_000,
    5_400_000, 0, "main (/home/x/a.py:4)"),
    span("compile", "g <h>", 6_000_000, 8_000_000, 0), span("trace", "g", 6_100_000, 6_300_000, 0),
    span("tune", "g", 6_400_000, 6_500_000, 0), span("profiler", "note", 8_000_000, 8_100_000, 0),
    span("other", "odd", 8_200_000, 8_300_000, 0),
    span("kernel", "thin", 9_000_000, 9_000_500, 0, *CALLS, row=2), span("copy", "move", 9_100_000,
    9_300_000, 0, *CALLS, row=3),
    span("program", "f", 300_000, 2_300_000, 2, *CALLS), span("kernel", "exp_sum", 300_000, 1_300_000, 2,
    row=0),
    span("launch", "mm", 1_000_000, 2_000_000, 0, row=4, device="cuda:0"), span("launch", "mm",
    2_500_000, 2_750_000, 0, row=4, device="cuda:0"),
]  # fmt: skip


NOTHING = StepWork()


def row(program: str, name: str, kind: str, what: str, lines: dict[str, float], runs: list[float],
        work: StepWork = NOTHING, least: float = 0.0, bound: str = "") -> dict[str, Any]:  # fmt: skip
    return {
        "program": program, "name": name, "kind": kind, "what": what, "lines": lines,
        "launches": len(runs), "runs": runs, "work": vars(work), "least": least, "bound": bound,
    }  # fmt: skip


A, B = f"{os.sep}home{os.sep}x{os.sep}a.py:3", f"{os.sep}home{os.sep}x{os.sep}b.py:7"
ROWS = [
    row("f", "exp_sum", "kernel", "sum over 4096", {A: 0.75, B: 0.25}, [1e-3, 1e-3, 2e-3], StepWork(3e6,
    4e6, 6e6), 1e-3, "memory"),
    row("f", "sort", "host", "", {A: 1.0}, [7e-4], StepWork(bytes=1e5), 1e-5, "memory"),
    row("f", "thin", "kernel", "", {}, [5e-7]),
    row("f", "move", "copy", "", {"": 1.0}, [2e-4], StepWork(bytes=3e6)),
    row("f", "mm", "launch", "products", {B: 1.0}, [1e-3, 2.5e-4], StepWork(flops=2e9, cost=2e9,
    bytes=1e6), 1e-3, "arithmetic"),
    row("f", "never", "kernel", "", {B: 1.0}, []),
]  # fmt: skip
HELD = {
    "name": "t",
    "type": "f32[8]",
    "bytes": 32,
    "kind": "arena",
    "first": 0,
    "last": 2,
    "line": "a.py:3",
}
WHOLE: dict[str, Any] = {
    "version": VERSION, "wall": 0.0101, "spans": SPANS, "kernels": ROWS,
    "memory": [{"program": "f", "peak": 2048, "tensors": [HELD], "points": [[100, 32], [2000, 2048]]},
               {"program": "g", "peak": 1024, "tensors": [], "points": []}],
}  # fmt: skip


@pytest.fixture
def saved(tmp_path: Path) -> Profile:
    (tmp_path / "p.json").write_text(json.dumps(WHOLE))
    return load(tmp_path / "p.json")


def test_the_tables_of_a_profile(saved: Profile) -> None:
    made = [*str(saved).splitlines(), "", repr(saved), saved.table(2)]
    made += [f"{k} {short(v)}" for k, v in (*saved.totals.items(), *saved.busy.items())]
    made += [
        short(saved.total),
        *(f"{x.where} {short([x.seconds, x.flops, x.bytes])}" for x in saved.lines),
    ]
    made += [
        short([r.name, r.seconds, r.usual, r.flops, r.bytes, r.fraction]) for r in saved.kernels
    ]
    pinned("profile_tables", made)


def test_the_trace_the_timeline_and_the_flames_of_a_profile(saved: Profile) -> None:
    pinned("profile_trace", map(json.dumps, saved.trace()["traceEvents"]))
    body = re.findall(r"<p>.*|<svg id.*|<g data.*", saved.flame())
    pinned("profile_flame", body)
    tracks, left = profile_tracks.tracks_of(saved.spans)
    pinned("profile_tracks", [str(left), *(json.dumps(t) for t in tracks)])
    assert html(saved).startswith("<pre>")
    page = saved.timeline(title="a <b>")
    assert "a &lt;b&gt;" in page
    assert "g <h>" not in page
    shown = saved._repr_html_()
    assert shown.startswith("<iframe srcdoc=")
    assert shown.endswith("</pre>")


def test_a_timeline_shows_so_many_spans_of_a_track(
    saved: Profile, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(profile_tracks, "_MOST", 3)
    tracks, left = profile_tracks.tracks_of(saved.spans)
    assert [len(t["spans"]) for t in tracks] == [3, 2, 2]
    assert left == len(SPANS) - 7


def test_profiles_are_saved_whole(saved: Profile, tmp_path: Path) -> None:
    saved.save(tmp_path / "q.json")
    again = load(tmp_path / "q.json")
    assert again.as_dict() == saved.as_dict()
    for bad in (
        "{}",
        "[]",
        json.dumps({**WHOLE, "version": VERSION + 1}),
        "x",
        json.dumps({**WHOLE, "kernels": 3}),
    ):
        (tmp_path / "bad.json").write_text(bad)
        with pytest.raises(OperandError, match=r"profile: .*bad.json is no profile that was saved"):
            load(tmp_path / "bad.json")
    with pytest.raises(
        OperandError, match=r"profile: .*none.json cannot be read \(No such file or directory\)"
    ):
        load(tmp_path / "none.json")


def test_two_profiles_side_by_side(saved: Profile, tmp_path: Path) -> None:
    slower = [dict(r) for r in ROWS if r["name"] != "thin"]
    slower[0] = {**slower[0], "runs": [2e-3, 2e-3, 4e-3]}
    slower[1] = {**slower[1], "runs": [7.1e-4]}
    slower[3] = {**slower[3], "runs": [5e-4, 5e-4]}
    slower.append(row("g", "new", "kernel", "", {}, [1e-4]))
    (tmp_path / "q.json").write_text(json.dumps({**WHOLE, "kernels": slower}))
    c = load(tmp_path / "q.json").compare(saved)
    made = str(c).splitlines()
    for limit in (0.1, 0.01, 0.5, 1.5):
        made.append(f"{limit}: {short([(x.name, x.ratio, x.lost) for x in c.regressions(limit)])}")
    made.append(short([(x.name, x.before, x.now, x.runs, x.ratio, x.lost) for x in c.changes]))
    pinned("profile_comparison", made)


def test_a_row_adds_up_its_runs() -> None:
    r = ProfileRow("p", "n", "kernel", "", {})
    assert (r.usual, r.fraction, r.bound) == (0.0, 0.0, "")
    r.ran(2_000_000_000, StepWork(4.0, 8.0, 6.0), (4.0, 2.0))
    assert (r.least, r.bound, r.fraction) == (3.0, "memory", 1.5)
    r.ran(1_000_000_000, StepWork(4.0, 80.0, 6.0), (4.0, 2.0))
    assert (r.least, r.bound) == (23.0, "arithmetic")
    r.ran_often(3, 6_000_000_000, StepWork(1.0, 1.0, 1.0))
    assert r.runs == [2.0, 1.0, 2.0, 2.0, 2.0]
    assert (r.work, r.usual, r.seconds) == (StepWork(11.0, 91.0, 15.0), 2.0, 9.0)
    r.needs(StepWork(1.0, 8.0, 1.0), (4.0, 1.0), "L2")
    assert (r.least, r.bound) == (10.0, "arithmetic")
    s = ProfileRow("p", "n", "kernel", "", {})
    s.ran(1, StepWork(), None)
    s.needs(StepWork(), (1.0, 1.0), "L1")
    assert (s.least, s.bound) == (0.0, "")


# Work ---------------------------------------------------------------------------------------------


def drawn(*shape: int, dtype: Any = np.float32) -> Any:
    return ts.tensor((np.arange(int(np.prod(shape))) % 7 / 8).reshape(shape).astype(dtype))


X, M, SQUARE, T = drawn(6, 10), drawn(10, 8), drawn(2, 5, 5), drawn(1, 2, 8, 4)
IMAGE, KERNEL = drawn(1, 2, 8, 8), drawn(3, 2, 3, 3)
PROGRAMS: dict[str, tuple[Any, ...]] = {
    "exp": (op.exp, X), "sums": (lambda x: op.sum(x, axis=0) + op.sum(x, axis=0) * 2, X),
    "matmul": (lambda a, b: a @ b, X, M),
    "matmul64": (lambda a, b: a @ b, drawn(6, 10, dtype=np.float64), drawn(10, 8, dtype=np.float64)),
    "complex": (lambda a: a * a + a / (a + 2), drawn(6, dtype=np.complex64)), "softmax": (op.softmax, X),
    "attention": (lambda q: op.attention(q, q, q), T), "causal": (lambda q: op.attention(q, q, q,
    causal=True), T),
    "gradient": (ts.grad(lambda q: op.sum(op.attention(q, q, q, causal=True))), T), "conv": (op.conv2d,
    IMAGE, KERNEL),
    "pool": (lambda x: op.max_pool2d(x, 2), IMAGE), "fft": (op.rfft, drawn(6, 12)), "fft2": (op.fft2,
    drawn(6, 12)),
    "sort": (op.sort, X), "cumsum": (lambda x: op.cumsum(x, axis=1), X), "solve": (op.solve, SQUARE,
    SQUARE), "cholesky": (op.cholesky, SQUARE),
    "inverse": (op.inv, SQUARE), "take": (lambda x: op.take(x, np.array([1, 1, 3]), axis=0), X),
    "scatter": (lambda x: x.at[1].add(2.0), X),
    "concat": (lambda x: op.concat([x, x], axis=1), X), "gather": (lambda x, i: x[i], X,
    ts.tensor(np.array([0, 5]))), "slices": (lambda x: x[:, :5] + x[:, 5:], X),
    "layernorm": (op.rmsnorm, X), "argmax": (lambda x: op.argmax(x, axis=1), X),
    "where": (lambda x: op.where(x > 0.5, x, op.sin(x)), X), "einsum": (lambda x: op.einsum("ab,ac->bc",
    x, x), X),
    "scan": (lambda x: op.scan(lambda c, r: (c + r, c), x[0], x)[1], X),
    "random": (lambda x: x + op.random.normal(op.random.key(1), x.shape), X),
}  # fmt: skip


def counted() -> Iterator[str]:
    for name, (f, *xs) in PROGRAMS.items():
        lowered = ts.jit(f, target="cpu").lower(*xs)
        types = {n: b.type for n, b in lowered.schedule.buffers.items()}
        yield name
        for s in lowered.schedule.steps:
            w = work_of(s, types, {})
            yield f"  {described(s)}: {short((w.flops, w.cost, w.bytes, w.wide))}"


def test_the_work_of_steps() -> None:
    pinned("step_work", counted())


# Values -------------------------------------------------------------------------------------------


def pixels(text: str) -> str:
    """Images as their size and the sum of their pixels: how they are packed is the library's."""

    def plain(m: re.Match[str]) -> str:
        raw = base64.b64decode(m.group(1))
        wide, tall = struct.unpack(">II", raw[16:24])
        at, data = 8, b""
        while at < len(raw):
            size = struct.unpack(">I", raw[at : at + 4])[0]
            data += raw[at + 8 : at + 8 + size] if raw[at + 4 : at + 8] == b"IDAT" else b""
            at += size + 12
        values = np.frombuffer(zlib.decompress(data), np.uint8).reshape(tall, -1)[:, 1:]
        weights = np.arange(values.size).reshape(values.shape) % 101
        return f"image {wide} x {tall}: {(values * weights).sum()}"

    return re.sub(r"data:image/png;base64,([A-Za-z0-9+/=]+)", plain, text)


def values() -> Iterator[Any]:
    r = np.arange
    yield from (
        ts.tensor(3.5),
        ts.tensor(r(5.0)),
        ts.tensor(r(12.0)),
        ts.tensor(r(13.0)),
        ts.tensor(np.array([np.nan, np.inf, 1])),
    )
    yield from (
        ts.tensor(np.array([True, False])),
        ts.tensor(np.array([1 + 2j])),
        ts.zeros((0, 3)),
        ts.tensor(r(24).reshape(2, 3, 4)),
    )
    yield from (
        ts.tensor(r(13.0 * 12).reshape(13, 12)),
        ts.tensor(np.sin(r(13.0 * 14)).reshape(13, 14)),
        ts.tensor(np.full(3, np.nan)),
    )
    yield from (
        ts.tensor(np.sin(r(400.0 * 20) / 9).reshape(400, 20).T.copy()),
        ts.tensor(np.zeros((20, 20))),
    )
    yield op.dense(ts.tensor(np.sin(r(9.0)).reshape(3, 3))) @ op.diag(ts.tensor(r(3.0)))
    yield 3


def pictures() -> Iterator[str]:
    for v in values():
        yield re.sub(r"(<tr>|<li>|<img|<g>|<path)", r"\n\1", pixels(html(v)))
    for f, *xs in (PROGRAMS["softmax"], PROGRAMS["matmul"], PROGRAMS["sort"]):
        lowered = ts.jit(f, target="cpu").lower(*xs)
        yield re.sub(r"(<tr>|<li>|<img|<g>|<path)", r"\n\1", html(lowered.graph))


def test_values_in_notebooks() -> None:
    pinned("notebook_html", pictures())
