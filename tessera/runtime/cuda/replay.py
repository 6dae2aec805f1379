"""Launches that become a CUDA graph when they come again with the same addresses.

A graph is captured on a stream of its own, so that nothing else gets into it, and runs on the main
stream.  It holds addresses, no memory: it runs only where a call brings just these addresses.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence

from tessera.runtime.cuda.device import Gpu
from tessera.runtime.cuda.graph import Graph
from tessera.runtime.cuda.launch import Launch, Launcher
from tessera.runtime.cuda.stream import Stream

_FEWEST = 8  # launches that are worth a graph
_MOST = 8  # graphs, and sets of addresses that are remembered


class Replayed(Launcher):
    """A launcher that replays what it did before."""

    def __init__(self, launches: Sequence[Launch], gpu: Gpu):
        super().__init__(launches, gpu)
        self._known: OrderedDict[tuple[int, ...], Graph | None] = OrderedDict()
        self._aside: Stream | None = None
        self._one = threading.Lock()  # of what is known: one thread captures at a time

    def run(self, cells: Sequence[int], stream: Stream | None = None) -> None:
        """As Launcher.run; addresses that came before run as a graph."""
        if len(self.launches) < _FEWEST:
            super().run(cells, stream)
            return
        key = tuple(cells)
        with self._one:
            again = key in self._known
            graph = self._known.get(key)
            if again and graph is None:
                graph = self._captured(cells)
            self._remember(key, graph)
        if graph is None:
            super().run(cells, stream)
        else:
            graph.launch(stream)

    def _remember(self, key: tuple[int, ...], graph: Graph | None) -> None:
        self._known[key] = graph
        self._known.move_to_end(key)
        while len(self._known) > _MOST:
            self._known.popitem(last=False)

    def _captured(self, cells: Sequence[int]) -> Graph:
        if self._aside is None:
            self._aside = Stream(self.gpu)
        with Graph.capture(self._aside) as graph:
            super().run(cells, self._aside)
        graph.instantiate()
        return graph
