"""ts.record: keep what a run computed, so that another machine or version can repeat it."""

from __future__ import annotations

import os
import platform
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from tessera.core import tree
from tessera.core.blame import blames_arguments
from tessera.core.errors import OperandError, ParseError
from tessera.core.processor import cores
from tessera.core.source import warn_caller
from tessera.ir.graph.ir import Graph, Value, data_of, on_host
from tessera.ir.graph.text import parse_graph, print_graph
from tessera.lang.jit import Jitted
from tessera.lang.observe import CALLS
from tessera.replay.file import Array, Called, OpTold, Record, RecordWriter, Told, places
from tessera.replay.ops import is_repeatable, ways_of


class Recording:
    """Writes down the calls of jitted functions while a block runs."""

    def __init__(self, path: str | os.PathLike[str], ops: bool):
        machine = {
            "system": platform.system(),
            "machine": platform.machine(),
            "cores": str(cores()),
        }
        self._file, self._ops = RecordWriter(path, machine), ops
        self._known: set[str] = set()  # arrays that the file holds, or that a call gives
        self._programs: dict[Graph, str] = {}
        self._lock = threading.Lock()

    @property
    def record(self) -> Record:
        """What has been recorded so far."""
        return self._file.record

    def around(self, call: Any, f: Jitted, args: Any, kwargs: Any) -> Any:
        """A call, recorded."""
        executable, tensors = f.program(*args, **kwargs)
        target, numerics = f.mode_of(tensors)
        g = executable.written
        captured = [v.storage for v in g.captured if v.storage is not None]
        given = [
            np.array(on_host(x)) for x in (*(data_of(v, "record") for v in tensors), *captured)
        ]
        result = call(f, args, kwargs)
        outs = [np.asarray(on_host(x.storage)) for x in tree.leaves(result) if isinstance(x, Value)]
        with self._lock:
            self._file.record.calls.append(self._called(f.name, g, given, outs, target, numerics))
        return result

    def close(self) -> None:
        """End the file."""
        self._file.close()

    def _called(
        self, name: str, g: Graph, given: list[Array], outs: list[Array], target: str, numerics: str
    ) -> Called:
        program = self._program(name, g)
        inputs = tuple(self._given(x, bool(program)) for x in given)
        outputs = tuple(map(Told.of, outs))
        self._known |= {t.digest for t in outputs} if program else set()
        for x, t in zip(outs, outputs, strict=True):
            self._keep(x, t)
        ops = self._told(g, given, target, numerics) if self._ops and program else ()
        return Called(name, program, target, numerics, inputs, outputs, ops)

    def _program(self, name: str, g: Graph) -> str:
        """The digest of a program, whose text is in the file; nothing where text cannot say what it does."""
        if g not in self._programs:
            text = print_graph(g, locations=True)
            try:
                same = is_repeatable(g) and parse_graph(text).hash == g.hash
            except ParseError:
                same = False
            self._programs[g] = g.hash if same else ""
            if same:
                self._file.put(f"programs/{g.hash}.mlir", text.encode())
            else:
                warn_caller(
                    f"record: {name} calls functions of the host or changes state, so a replay cannot "
                    "repeat it; its "
                    "inputs and outputs are recorded"
                )
        return self._programs[g]

    def _given(self, x: Array, needed: bool) -> Told:
        t = Told.of(x)
        if needed and t.digest not in self._known:
            self._file.put(f"arrays/{t.digest}", np.ascontiguousarray(x).tobytes())
            self._known.add(t.digest)
        return t

    def _keep(self, x: Array, t: Told) -> None:
        """Some elements of a value, to be shown beside those of a replay."""
        flat = np.ascontiguousarray(x).reshape(-1)
        self._file.put(f"values/{t.digest}", flat[places(flat.size)].tobytes())

    def _told(self, g: Graph, given: list[Array], target: str, numerics: str) -> tuple[OpTold, ...]:
        found = []
        for n, results in ways_of(target)(g, given, target, numerics):
            told = tuple(map(Told.of, results))
            for x, t in zip(results, told, strict=True):
                self._keep(x, t)
            found.append(OpTold(n.op.name, str(n.location or ""), told))
        return tuple(found)


@contextmanager
def _recording(path: str | os.PathLike[str], ops: bool) -> Iterator[Recording]:
    r = Recording(path, ops)
    try:
        with CALLS.by(r.around):
            yield r
    finally:
        r.close()


@blames_arguments
def record(path: str | os.PathLike[str], *, ops: bool = False) -> Any:
    """Record the calls of jitted functions while the block runs, for `tessera replay PATH`.

    The file holds programs, digests of inputs and outputs, and the arrays that no call of the run gives.
    With `ops` it also holds digests of every op's results, which takes a second run op by op, and a replay
    names the first that differs.
    """
    if not isinstance(path, str | os.PathLike):
        raise OperandError(f"record: path is {path!r}, expected the name of a file")
    return _recording(path, ops)
