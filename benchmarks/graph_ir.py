"""Cost per node of tracing, printing, parsing, verifying and simplifying a graph of 3600 nodes."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable
from typing import Any

import numpy

import tessera as ts
from tessera import f32, op
from tessera.ir.graph.text import print_graph
from tessera.ir.graph.verify import verify
from tessera.transform.simplify import simplify

LAYERS, REPEATS = 300, 7
SQUARE = ts.Tensor[64, 64, f32]


def network(x: Any, w: Any) -> Any:
    """Layers with something in them for every part of simplify."""
    for _ in range(LAYERS):
        y = op.tanh(x @ w) * 2.0 + 1.0
        x = op.reshape(op.transpose(y), (64, 64)) + op.sum(y, axis=0)
        x = x - 0.0
    return x


def best(f: Callable[[], Any]) -> float:
    """The shortest of several runs, in seconds."""
    times = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        f()
        times.append(time.perf_counter() - start)
    return min(times)


def main() -> None:
    """Print microseconds per node."""
    g = ts.trace(network, SQUARE, SQUARE)
    text, count = g.text, len(g.nodes)
    steps: dict[str, Callable[[], Any]] = {
        "trace": lambda: ts.trace(network, SQUARE, SQUARE),
        "print": lambda: print_graph(g),
        "parse": lambda: ts.ir.parse(text),
        "verify": lambda: verify(g),
        "simplify": lambda: simplify(g),
    }
    print(f"{count} nodes, {len(simplify(g).nodes)} after simplify; Python "
          f"{platform.python_version()}, NumPy {numpy.__version__}, {platform.machine()}")  # fmt: skip
    for name, f in steps.items():
        print(f"{name:10} {best(f) / count * 1e6:6.1f} us a node")


if __name__ == "__main__":
    main()
