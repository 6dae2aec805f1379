"""Launches that become a CUDA graph when they come again with the same addresses, or nearly so.

In a graph launches wait for those whose memory they touch, not for all that were launched before.

A graph is captured on a stream of its own, so that nothing else gets into it, and runs on the main
stream.  It holds addresses, no memory: those that a call brings otherwise are changed in the kernels that
have them, as of a result that the caller keeps.  Few such kernels are changed at once; where many have new
addresses, calls are remembered first, so that those which take turns get a graph each.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from itertools import islice

from tessera.runtime.cuda.device import Gpu
from tessera.runtime.cuda.graph import LaunchGraph
from tessera.runtime.cuda.launch import DeviceLaunch, Launcher
from tessera.runtime.cuda.stream import DriverStream

FEWEST = 8  # launches that are worth a graph
_MOST = 8  # graphs, and sets of addresses that are remembered
_LATELY = 2  # of them that a call is compared with
_FEW = 12  # launches with other addresses, that are no reason to wait for more calls
Cells = tuple[int, ...]
Waits = Callable[
    [], Sequence[Sequence[int]]
]  # which launches each one waits for, all of one before it


class Replayed(Launcher):
    """A launcher that replays what it did before."""

    def __init__(self, launches: Sequence[DeviceLaunch], gpu: Gpu, waits: Waits | None = None):
        super().__init__(launches, gpu)
        self._waits = waits
        self._known: OrderedDict[Cells, LaunchGraph | None] = OrderedDict()
        self._aside: DriverStream | None = None
        self._one = (
            threading.Lock()
        )  # of what is known, and of the memory that a graph is changed from

    def run(self, cells: Sequence[int], stream: DriverStream | None = None) -> None:
        """As Launcher.run; addresses that came before, or most of them, run as a graph."""
        if len(self.launches) < FEWEST:
            super().run(cells, stream)
            return
        with self._one:
            graph = self._graph(tuple(cells))
            if graph is None:
                super().run(cells, stream)
            else:
                graph.launch(stream)

    def _graph(self, key: Cells) -> LaunchGraph | None:
        """The graph of these addresses; None where nothing like them came before."""
        again = key in self._known
        near = key if again else self._near(key)
        if near is None:
            graph = None
        else:
            graph = self._known.pop(near)
            if graph is None:
                graph = self._captured(key)
            elif not again:
                graph.update([key])
        self._known[key] = graph
        self._known.move_to_end(key)
        while len(self._known) > _MOST:
            self._known.popitem(last=False)
        return graph

    def _near(self, key: Cells) -> Cells | None:
        """Addresses that came lately, if few launches have others now, or as many came as are remembered.

        New addresses cost a launch in a graph half of what it costs alone.
        """
        lately = list(islice(reversed(self._known), _LATELY))
        if not lately:
            return None
        changed = [self._changed(known, key) for known in lately]
        few = min(changed) <= min(_FEW, len(self.launches) // 4)
        return lately[changed.index(min(changed))] if few or len(self._known) == _MOST else None

    def _changed(self, known: Cells, key: Cells) -> int:
        """How many launches have other addresses."""
        cells = [i for i, (a, b) in enumerate(zip(known, key, strict=True)) if a != b]
        return len(set().union(*(self.users.get(i, ()) for i in cells)))

    def _captured(self, cells: Sequence[int]) -> LaunchGraph:
        if self._aside is None:
            self._aside = DriverStream(self.gpu)
        waits = None if self._waits is None else self._waits()
        with LaunchGraph.capture(self._aside) as graph:
            graph.run(self, cells, waits)
        graph.instantiate()
        return graph
