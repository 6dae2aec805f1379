"""Pictures of runs: streams in time, a profile and a GPU from their records, a server's slots."""

from __future__ import annotations

import json
import math
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import tessera as ts
from tessera.models.sampling import Sampling
from tessera.models.text import TextStream
from tessera.serve.engine import ServeEngine, ServeLimits
from tessera.serve.job import ReplyJob
from tessera.serve.metrics import Metrics
from tests.support.cases.model_files import SMALL, llama_gguf
from tools.drawing import BLUE, GREEN, GREY, ORANGE, PINK, YELLOW, Drawing

RECORDS = Path(__file__).parent.parent / "benchmarks" / "records"


@cache
def _record(name: str) -> Any:
    return json.loads((RECORDS / name).read_text())


# Two streams -------------------------------------------------------------------------------------


def streams() -> Drawing:
    """What the host and two streams did, batch by batch, in a run that was profiled."""
    run = _record("pictured-x86-2.json")["streams"]
    spans: list[tuple[int, str, float, float, int]] = []  # row, words, begin, end, batch
    spans += [(0, "load", a / 1e6, b / 1e6, i) for i, (a, b) in enumerate(run["loads"])]
    rows = {"encode": 1, "score": 2}
    seen = dict.fromkeys(rows, 0)
    for track in run["tracks"]:
        for kind, name, begin, end, _ in track["spans"]:
            if kind == "program":
                spans.append((rows[name], name, begin / 1e6, end / 1e6, seen[name]))
                seen[name] += 1
    last = max(end for _, _, _, end, _ in spans)
    d = Drawing(760, 214, "Two streams in time")
    d.text(10, 22, "four batches through two streams", "head")
    d.text(300, 22, "encode on a; b.wait(a.record()); score on b", "code")
    x0, wide = 90.0, 650.0
    for i, name in enumerate(("host", "stream a", "stream b")):
        d.text(10, 64 + 44 * i, name)
        d.line((x0, 82 + 44 * i), (x0 + wide, 82 + 44 * i))
    colours = (BLUE, ORANGE, GREEN, PINK)
    for row, words, begin, end, batch in spans:
        x, w = x0 + wide * begin / last, wide * (end - begin) / last
        d.box(x, 44 + 44 * row, w, 34, colours[batch])
        said = f"{words} {batch}" if w > 50 else str(batch)
        d.text(x + w / 2, 65 + 44 * row, said, "code", middle=True)
    for ms in range(0, int(last) + 1, 50):
        d.text(x0 + wide * ms / last, 188, f"{ms} ms", "note", middle=True)
    alone = sum(end - begin for _, _, begin, end, _ in spans)
    d.text(10, 207, f"{alone:.0f} ms of work in {last:.0f} ms, on two cores", "note")
    return d


# A profile ---------------------------------------------------------------------------------------


def profile() -> Drawing:
    """Where the time of ten training steps went: the totals as one bar, kernels beside their roof."""
    run = _record("pictured-x86-2.json")["profile"]
    kernels, wall = run["kernels"][:8], run["wall"]
    d = Drawing(760, 128 + 24 * len(kernels), "A profile")
    d.text(10, 22, f"ten training steps, {1e3 * wall:.0f} ms: p.totals", "head")
    x = 10.0
    colours = iter((BLUE, ORANGE, GREEN, PINK, YELLOW, GREY))
    notes = []
    for name, seconds in sorted(run["totals"].items(), key=lambda kv: -kv[1]):
        if seconds > 0:
            w, colour = 730 * seconds / wall, next(colours)
            d.box(x, 34, max(w, 1), 26, colour, rx=2)
            notes.append((colour, f"{name} {100 * seconds / wall:.1f}%"))
            x += w
    x = 10.0
    for colour, words in notes:
        d.parts.append(f'<rect x="{x:.0f}" y="70" width="10" height="10" fill="{colour}"/>')
        d.text(x + 15, 79, words, "note")
        x += 27 + 6.4 * len(words)
    d.text(10, 108, "p.kernels: seconds, and how much the machine needs at best", "head")
    longest = kernels[0]["seconds"]
    for i, k in enumerate(kernels):
        y = 118 + 24 * i
        d.text(10, y + 14, k["name"], "code")
        d.text(70, y + 14, k["what"], "code")
        w = 330 * k["seconds"] / longest
        d.box(260, y, w, 18, BLUE, rx=2)
        d.parts.append(
            f'<rect x="260" y="{y}" width="{w * k["fraction"]:.1f}" height="18" rx="2" '
            f'fill="{BLUE}" fill-opacity=".6"/>'
        )
        d.text(268 + w, y + 14, f"{1e3 * k['seconds']:.0f} ms, {100 * k['fraction']:.0f}%", "note")
    return d


# Times on a GPU ----------------------------------------------------------------------------------


def gpu() -> Drawing:
    """The speeds of all cases of the sweep beside torch, family by family."""
    families: dict[str, list[float]] = {}
    for row in _record("sweep-h200.json")["rows"]:
        family = row["case"].partition(":")[0]
        if row.get("ratio") and family != "candidate":
            families.setdefault(family, []).append(row["ratio"])
    means = {f: math.exp(sum(map(math.log, r)) / len(r)) for f, r in families.items()}
    order = sorted(means, key=lambda f: -means[f])
    x0, unit, top = 190.0, 130.0, 66.0  # unit: a factor of ten

    def place(ratio: float) -> float:
        return x0 + unit * (math.log10(min(max(ratio, 0.01), 100)) + 2)

    d = Drawing(740, int(top + 19 * len(order) + 16), "Speeds on an H200")
    d.text(
        10, 20, f"an H200 beside torch: {sum(map(len, families.values()))} cases by family", "head"
    )
    words = (
        "right of the middle line Tessera is faster; each dot is a case, the bar the geometric mean"
    )
    d.text(10, 38, words, "note")
    for power in range(-2, 3):
        x = place(10.0**power)
        d.line((x, top - 8), (x, top + 19 * len(order)))
        d.text(x, top - 12, f"{10.0**power:g}", "note", middle=True)
    for i, family in enumerate(order):
        y = top + 19 * i + 8
        d.text(10, y + 4, family, "code")
        dots = "".join(f"M{place(r):.0f} {y:.0f}h0" for r in sorted(families[family]))
        d.parts.append(
            f'<path d="{dots}" stroke="{BLUE}" stroke-width="7" stroke-opacity=".5" '
            'stroke-linecap="round"/>'
        )
        x = place(means[family])
        d.parts.append(f'<path d="M{x:.1f} {y - 7:.0f}v14" stroke="{ORANGE}" stroke-width="3"/>')
    return d


# A server's slots --------------------------------------------------------------------------------

_REPLIES = ((20, 6), (9, 3), (150, 9), (5, 2), (12, 8), (30, 4), (7, 5))  # prompt, new tokens
_SLOTS = 3


def slots() -> Drawing:
    """Which reply had which slot of a server, round by round."""
    rounds = list(_rounds())
    side, x0, y0 = 42.0, 96.0, 64.0
    d = Drawing(
        int(x0 + side * len(rounds) + 16), int(y0 + side * (_SLOTS + 1) + 52), "Continuous batching"
    )
    d.text(10, 22, f"{len(_REPLIES)} replies, --max-batch {_SLOTS}", "head")
    d.text(
        10,
        40,
        "each column is a round of the engine; a reply that ends makes room for the next at once",
        "note",
    )
    colours = (BLUE, ORANGE, GREEN, PINK, YELLOW, GREY, "#56b4e9")
    for i in range(_SLOTS):
        d.text(10, y0 + side * i + 25, f"slot {i}", "code")
    d.text(10, y0 + side * _SLOTS + 30, "waiting", "code")
    for k, (held, waiting) in enumerate(rounds):
        x = x0 + side * k
        d.text(x + side / 2, y0 - 6, str(k + 1), "note", middle=True)
        for slot, (job, prompt, tokens) in held.items():
            y = y0 + side * slot
            d.box(x + 1, y + 1, side - 2, side - 2, colours[job])
            d.text(x + side / 2, y + 14, "ABCDEFG"[job], "code", middle=True)
            if prompt:
                d.text(x + side / 2, y + 26, f"{prompt}p", "note", middle=True)
            d.text(x + side / 2, y + 38, "•" * tokens, "note", middle=True)
        d.text(x + side / 2, y0 + side * _SLOTS + 30, str(waiting or ""), "code", middle=True)
    words = "20p: a round reads so many tokens of the prompt; •: it writes a token of the reply"
    d.text(10, y0 + side * (_SLOTS + 1) + 34, words, "note")
    return d


def _rounds() -> Any:
    """The slots of an engine after each round: which reply, tokens of the prompt and new ones in it."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "tiny.gguf"
        path.write_bytes(llama_gguf(config=SMALL))
        model = ts.models.load(path)
    engine = ServeEngine(model, ServeLimits(batch=_SLOTS), Metrics())
    jobs = [
        ReplyJob(
            [1 + (7 * i + j) % 90 for j in range(prompt)], new, Sampling(), lambda event: None,
            TextStream(model.tokenizer),
        )
        for i, (prompt, new) in enumerate(_REPLIES)
    ]  # fmt: skip
    engine.submit(*jobs)
    places: dict[ReplyJob, int] = {}
    while engine.gauges()["running"] or engine.gauges()["waiting"]:
        before = {j: (j.computed, len(j.new)) for j in jobs}
        engine._round()
        ran = [j for j in jobs if (j.computed, len(j.new)) != before[j]]
        for j in ran:
            if j not in places:
                places[j] = min(set(range(_SLOTS)) - set(places.values()))
        held = {}
        for j in ran:
            computed, new = before[j]
            read = min(max(j.computed, computed), len(j.prompt)) - computed
            if computed < len(j.prompt) and len(j.new) > new and not j.computed:
                read = len(j.prompt) - computed
            held[places[j]] = (jobs.index(j), max(read, 0), len(j.new) - new)
        running = engine._running
        places = {j: k for j, k in places.items() if j in running}
        yield held, int(engine.gauges()["waiting"])
