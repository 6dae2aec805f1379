"""The timeline of a run on several ranks: when each one ran programs and exchanged data, as measured.

Ranks of one machine read one clock (CLOCK_MONOTONIC), so that their spans can be laid side by side.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

from tessera.core.ranks import Array, RankEngine, engine, start_on
from tessera.core.spans import SPANS
from tessera.lang.jit import Jitted
from tessera.lang.observe import CALLS

MOST = 20_000  # spans of a rank, beyond which a page would be slow to open
_now = time.perf_counter_ns


class _Timed(RankEngine):
    """An engine that notes when it exchanges what."""

    def __init__(self, inner: RankEngine, spans: list[list[Any]]):
        self.inner, self.spans = inner, spans
        self.rank, self.size, self.name = inner.rank, inner.size, inner.name
        self.place = inner.place

    def exchange(self, what: str, group: Sequence[int], sent: Sequence[Array]) -> list[Array]:
        """Exchange as the engine does, and note it; what stays on this rank is not counted."""
        moved = sum(x.nbytes for r, x in zip(group, sent, strict=True) if r != self.rank)
        begin = _now()
        try:
            return self.inner.exchange(what, group, sent)
        finally:
            self.spans.append([what, begin, _now(), moved, len(group)])

    def close(self) -> None:
        """Leave the run."""
        self.inner.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


@contextmanager
def rank_recorded(folder: str) -> Iterator[None]:
    """Write what this rank does in the block to a file of the folder, also when the block fails."""
    programs: list[list[Any]] = []
    exchanges: list[list[Any]] = []
    builds: list[list[Any]] = []
    start_on(_Timed(engine(), exchanges))

    def around(call: Any, f: Jitted, args: Any, kwargs: Any) -> Any:
        begin = _now()
        try:
            return call(f, args, kwargs)
        finally:
            programs.append([f.name, begin, _now()])

    def built(kind: str, name: str, begin: int, end: int) -> None:
        builds.append([f"{kind} {name}", begin, end])

    begin = _now()
    try:
        with SPANS.by(built), CALLS.by(around):
            yield
    finally:
        told = {
            "rank": engine().rank, "begin": begin, "end": _now(),
            "programs": programs[:MOST], "exchanges": exchanges[:MOST], "builds": builds[:MOST],
            "left": max(0, len(programs) - MOST) + max(0, len(exchanges) - MOST),
        }  # fmt: skip
        path = Path(folder) / f"rank-{engine().rank}.json"
        path.write_text(json.dumps(told))


def rank_page(folder: Path, title: str) -> str:
    """The page of the ranks that have written to a folder."""
    ranks = sorted(
        (json.loads(p.read_text()) for p in folder.glob("rank-*.json")), key=lambda r: r["rank"]
    )
    first = min(r["begin"] for r in ranks)
    for r in ranks:
        r["begin"], r["end"] = r["begin"] - first, r["end"] - first
        for s in (*r["programs"], *r["exchanges"], *r["builds"]):
            s[1], s[2] = s[1] - first, s[2] - first
    data = json.dumps({"title": title, "ranks": ranks}, separators=(",", ":")).replace(
        "<", "\\u003c"
    )
    template = files("tessera.inspect").joinpath("ranks.html").read_text(encoding="utf-8")
    return template.replace("@NAME@", escape(title)).replace("@DATA@", data)
