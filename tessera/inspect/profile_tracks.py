"""The timeline of a profile as a page: a track for each thread, stream and device, copies among them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from html import escape
from importlib.resources import files
from typing import Any

from tessera.inspect.profile_rows import TimeSpan

_MOST = 20_000  # spans of a track, beyond which a page would be slow to open


def tracks_of(spans: Sequence[TimeSpan]) -> tuple[list[dict[str, Any]], int]:
    """The tracks with their spans, [kind, name, begin, end, depth], and how many spans are left out."""
    found: dict[tuple[int, str], list[TimeSpan]] = {}
    for s in spans:
        found.setdefault((s.thread, s.device), []).append(s)
    tracks, left = [], 0
    for (thread, device), own in sorted(found.items(), key=lambda x: (bool(x[0][1]), *x[0])):
        name = device or ("main" if thread == 0 else f"thread {thread}")
        own.sort(key=lambda s: (s.begin, -s.end))
        left += max(0, len(own) - _MOST)
        tracks.append({"name": name, "spans": _nested(own[:_MOST])})
    return tracks, left


def _nested(spans: Sequence[TimeSpan]) -> list[list[Any]]:
    out: list[list[Any]] = []
    around: list[int] = []  # ends of the spans that are open
    for s in spans:
        while around and around[-1] <= s.begin:
            around.pop()
        out.append([s.kind, s.name, s.begin, s.end, len(around)])
        around.append(s.end)
    return out


def tracks_page(spans: Sequence[TimeSpan], title: str) -> str:
    """The timeline as one file that needs no network."""
    tracks, left = tracks_of(spans)
    data = json.dumps({"tracks": tracks, "left": left}, separators=(",", ":")).replace(
        "<", "\\u003c"
    )
    template = files("tessera.inspect").joinpath("tracks.html").read_text(encoding="utf-8")
    return template.replace("@NAME@", escape(title)).replace("@DATA@", data)
