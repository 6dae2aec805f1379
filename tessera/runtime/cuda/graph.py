"""CUDA graphs: work that is captured once from a stream and then launched by one call."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from tessera.runtime.cuda.launch import Launcher
from tessera.runtime.cuda.stream import DriverStream

_SET = 1  # CU_STREAM_SET_CAPTURE_DEPENDENCIES
_EARLY = (12, 3)  # the first version whose graphs have launches that begin before others end
_RELAXED = 2  # CU_STREAM_CAPTURE_MODE_RELAXED: memory may be asked for meanwhile


class LaunchGraph:
    """Captured work.  It keeps what it was told of, but not the memory that its kernels use."""

    def __init__(self, stream: DriverStream):
        self.gpu, self._stream = stream.gpu, stream
        self._graph, self._exec = 0, 0
        self._parts: list[_Part] = []

    @classmethod
    @contextmanager
    def capture(cls, stream: DriverStream) -> Iterator[LaunchGraph]:
        """Capture the work that is given to a stream in the block, in place of doing it."""
        graph, driver = cls(stream), stream.gpu.driver
        stream.gpu.make_current()
        driver.check("cuStreamBeginCapture", driver.cuStreamBeginCapture(stream.handle, _RELAXED))
        gpu, made = stream.gpu, ctypes.c_void_p()
        gpu.capturing = stream is gpu.main
        whole = False
        try:
            yield graph
            whole = True
        finally:
            code = driver.cuStreamEndCapture(stream.handle, ctypes.byref(made))
            graph._graph = made.value or 0
            if not whole:  # what was captured of a block that failed is of no use
                graph.destroy()
            gpu.capturing = False
            while gpu.deferred:
                gpu.deferred.pop()()
        driver.check("cuStreamEndCapture", code)

    def run(
        self, launcher: Launcher, cells: Sequence[int], waits: Sequence[Sequence[int]] | None = None
    ) -> None:
        """Capture the launches of a program, so that `update` can change their addresses.

        Each waits for the one before it, or for those that `waits` names.  An early one that waits for the
        one before it and nothing else may begin before that one ends.
        """
        launcher.bind(cells)
        part, before = _Part(launcher, list(cells)), self._last_nodes()
        some_early = self.gpu.driver.version >= _EARLY
        for i in range(len(launcher.launches)):
            follows = i > 0 and (waits is None or tuple(waits[i]) == (i - 1,))
            if waits is not None and not follows:
                self._wait_for([part.nodes[j] for j in waits[i]] or before)
            early = some_early and follows and launcher.launches[i].early
            launcher.run_one(i, self._stream, early)
            part.nodes += self._last_nodes()
            part.params.append(launcher.node_params(i))
        if waits is not None:  # what comes next waits for all
            inner = {j for w in waits for j in w}
            self._wait_for([n for i, n in enumerate(part.nodes) if i not in inner])
        self._parts.append(part)

    def _last_nodes(self) -> list[int]:
        """The nodes that the next one would wait for."""
        status, graph, nodes = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_void_p()
        number, count = ctypes.c_uint64(), ctypes.c_size_t()
        out = [ctypes.byref(x) for x in (status, number, graph, nodes, count)]
        code = self.gpu.driver.cuStreamGetCaptureInfo(self._stream.handle, *out)
        self.gpu.driver.check("cuStreamGetCaptureInfo", code)
        if not count.value:
            return []
        return list((ctypes.c_size_t * count.value).from_address(nodes.value or 0))

    def _wait_for(self, nodes: Sequence[int]) -> None:
        """Let the next node wait for these."""
        given = (ctypes.c_size_t * max(len(nodes), 1))(*nodes)
        code = self.gpu.driver.cuStreamUpdateCaptureDependencies(
            self._stream.handle, given, len(nodes), _SET
        )
        self.gpu.driver.check("cuStreamUpdateCaptureDependencies", code)

    def instantiate(self) -> None:
        """Make the graph ready for launches."""
        assert self._graph, "a graph is captured before it is instantiated"
        assert not self._exec, "a graph is instantiated once"
        self.gpu.make_current()
        made = ctypes.c_void_p()
        code = self.gpu.driver.cuGraphInstantiate(ctypes.byref(made), self._graph, 0)
        self.gpu.driver.check("cuGraphInstantiate", code, held=self.gpu.pool.used)
        self._exec = made.value or 0

    def update(self, cells: Sequence[Sequence[int]]) -> None:
        """Give each program that was captured by `run` new addresses."""
        self.gpu.make_current()
        for part, new in zip(self._parts, cells, strict=True):
            changed = {i for i, (a, b) in enumerate(zip(part.cells, new, strict=True)) if a != b}
            if not changed:
                continue
            part.launcher.bind(new)
            part.cells = list(new)
            for i in sorted(set().union(*(part.users.get(cell, ()) for cell in changed))):
                self._set(part.nodes[i], part.params[i])

    def _set(self, node: int, params: Any) -> None:
        set_params = self.gpu.driver.cuGraphExecKernelNodeSetParams
        code = set_params(self._exec, node, ctypes.byref(params))
        self.gpu.driver.check("cuGraphExecKernelNodeSetParams", code)

    def launch(self, stream: DriverStream | None = None) -> None:
        """Do the captured work on a stream (the main one, if none is given)."""
        gpu = self.gpu
        gpu.make_current()
        code = gpu.driver.cuGraphLaunch(self._exec, (stream or gpu.stream).handle)
        if code:
            gpu.driver.check("cuGraphLaunch", code, held=gpu.pool.used)

    @property
    def nodes(self) -> int:
        """How many nodes were captured."""
        count = ctypes.c_size_t()
        code = self.gpu.driver.cuGraphGetNodes(self._graph, None, ctypes.byref(count))
        self.gpu.driver.check("cuGraphGetNodes", code)
        return count.value

    def destroy(self) -> None:
        """Let go of what the driver keeps for this graph."""
        executable, self._exec = self._exec, 0
        graph, self._graph = self._graph, 0
        if executable:
            self.gpu.driver.cuGraphExecDestroy(executable)
        if graph:
            self.gpu.driver.cuGraphDestroy(graph)

    def __del__(self) -> None:
        if not self.gpu.driver.ended:
            self.destroy()


class _Part:
    """A program in a graph: its nodes, and the addresses that they have now."""

    def __init__(self, launcher: Launcher, cells: list[int]):
        self.launcher, self.cells = launcher, cells
        self.nodes: list[int] = []
        self.params: list[Any] = []
        self.users = launcher.users
