"""Counts and times of a server, in the text format of Prometheus."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Mapping

# Seconds: from a decode step of a small model to a long reply; each bucket about twice the last.
BOUNDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
TEXTS = {
    "requests_total": "Requests by path and status.",
    "prompt_tokens_total": "Tokens of prompts.",
    "shared_tokens_total": "Tokens of prompts that the prefix cache had.",
    "generated_tokens_total": "Tokens that were generated.",
    "preemptions_total": "Replies that gave their pages back and were continued later.",
    "cancelled_total": "Replies whose client went away.",
    "step_seconds": "Time of a step of the model.",
    "first_token_seconds": "Time from a request to its first token.",
    "reply_seconds": "Time from a request to the end of its reply.",
    "running": "Replies that are generated now.",
    "waiting": "Replies that wait for pages.",
    "pages": "Pages of the cache.",
    "pages_used": "Pages that replies hold.",
    "pages_idle_or_free": "Pages that can be taken.",
}


class Metrics:
    """Counters and histograms; any thread may add."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: dict[str, dict[tuple[tuple[str, str], ...], float]] = defaultdict(dict)
        self._times: dict[str, list[int]] = {}
        self._sums: dict[str, float] = defaultdict(float)

    def add(self, name: str, amount: float = 1, **labels: str) -> None:
        """Add to a counter."""
        at = tuple(sorted(labels.items()))
        with self._lock:
            row = self._counts[name]
            row[at] = row.get(at, 0) + amount

    def time(self, name: str, seconds: float) -> None:
        """Add to a histogram."""
        with self._lock:
            buckets = self._times.setdefault(name, [0] * (len(BOUNDS) + 1))
            buckets[bisect_left(BOUNDS, seconds)] += 1
            self._sums[name] += seconds

    def value(self, name: str, **labels: str) -> float:
        """A counter as it is."""
        with self._lock:
            return self._counts[name].get(tuple(sorted(labels.items())), 0)

    def text(self, gauges: Mapping[str, float]) -> str:
        """All of them, and gauges, as Prometheus reads them."""
        out: list[str] = []
        with self._lock:
            for name in sorted(self._counts):
                out += _head(name, "counter")
                for labels, n in sorted(self._counts[name].items()):
                    out.append(f"tessera_{name}{_labels(labels)} {n:.15g}")
            for name in sorted(self._times):
                out += _head(name, "histogram")
                total = 0
                for bound, n in zip((*BOUNDS, "+Inf"), self._times[name], strict=True):
                    total += n
                    out.append(f'tessera_{name}_bucket{{le="{bound}"}} {total}')
                out.append(f"tessera_{name}_sum {self._sums[name]:.6f}")
                out.append(f"tessera_{name}_count {total}")
        for name, x in gauges.items():
            out += [*_head(name, "gauge"), f"tessera_{name} {x:.15g}"]
        return "\n".join(out) + "\n"


def _head(name: str, kind: str) -> list[str]:
    return [f"# HELP tessera_{name} {TEXTS[name]}", f"# TYPE tessera_{name} {kind}"]


def _labels(labels: tuple[tuple[str, str], ...]) -> str:
    return "{" + ",".join(f'{k}="{v}"' for k, v in labels) + "}" if labels else ""
