"""Programs on a mesh: partitioned for the layouts of a call, batched for this rank and compiled for its
device.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from tessera.compile import compile_graph
from tessera.compile.executable import Executable, PassResult
from tessera.compile.mesh.array import ShardedArray, block_shape, blocks_of
from tessera.compile.mesh.home import home, rank_target
from tessera.core.constraints import solve
from tessera.core.device import Device
from tessera.core.flags import flags
from tessera.core.layout import Layout, parts, replicated
from tessera.core.mesh import Mesh, Placement, mesh_of, placed
from tessera.core.ranks import engine, placement
from tessera.core.source import warn_caller
from tessera.core.types import TensorType
from tessera.ir.graph.ir import Graph
from tessera.ir.schedule.memory import MemoryPlan
from tessera.ops.local import escaping
from tessera.ops.ranks import shared
from tessera.transform.bucket import bucket
from tessera.transform.inline import inline_all
from tessera.transform.match import check_matched
from tessera.transform.of_rank import of_rank
from tessera.transform.partition import Partitioned, partition
from tessera.transform.reshard import Inserted

Compile = Callable[[Graph], Executable]
Key = tuple[tuple[tuple[int, ...], Layout], ...]


def executable(graph: Graph, record: Sequence[PassResult], which: str, numerics: str) -> Executable:
    """The program of a graph on the mesh of this number."""
    mesh = mesh_of(Device("mesh", int(which)))
    return MeshExecutable(
        graph,
        record,
        mesh,
        lambda g: compile_graph(g, rank_target(), numerics),
        numerics == "fast",
    )


@dataclass(frozen=True)
class RankMemory:
    """Bytes of a rank while a program runs."""

    inputs: int
    run: int  # results and what lies between the steps
    exchange: int  # memory that the local engine shares with other ranks


@runtime_checkable
class PlansMemory(Protocol):
    """An executable that knows the memory of a run."""

    def memory_plan(self, shapes: Sequence[tuple[int, ...]]) -> MemoryPlan:
        """Where everything lies in a run on inputs of these shapes."""


@dataclass(frozen=True)
class MeshProgram:
    """A program for inputs in some layouts."""

    parts: Partitioned
    executable: Executable


class MeshExecutable(Executable):
    """A graph on whole tensors, run on a mesh."""

    def __init__(
        self, graph: Graph, record: Sequence[PassResult], mesh: Mesh, compile: Compile,
        loose: bool = False,
    ):  # fmt: skip
        """`loose` leaves the order of sums between ranks to the engine."""
        self.graph, self.record, self.mesh = graph, tuple(record), mesh
        self._captured = [v.storage for v in graph.captured if v.storage is not None]
        self._plan, self._sized = None, {}
        self._compile, self._loose = compile, loose
        self._programs: dict[tuple[Key, Device], MeshProgram] = {}
        self._inlined = inline_all(graph)
        assert not escaping(self._inlined), f"{graph.name} gives back what a single shard holds"

    def run(self, inputs: Sequence[Any], free: frozenset[int] = frozenset()) -> list[Any]:
        """The outputs for these inputs, which are sharded arrays or whole on every rank; they may take the
        memory of the blocks whose numbers are in `free`.
        """
        program = self.program(self.key(inputs))
        blocks = self._blocks(inputs)
        inner: Any = program.executable
        even = frozenset(
            i for i in free if _is_even(inputs[i])
        )  # others are padded into new memory
        takes = bool(even) and type(inner) is not Executable  # the target numpy keeps its arguments
        made = inner.run(blocks, even) if takes else inner.run(blocks)
        ends = zip(made, program.parts.layouts, program.parts.types, strict=True)
        return [ShardedArray(y, layout, self.mesh, t.shape) for y, layout, t in ends]  # type: ignore[arg-type]

    is_whole = False

    def of_rank(self, data: Sequence[Any]) -> tuple[Executable, Sequence[Any]]:
        """The program that this rank runs on these arrays, and its blocks of them."""
        return self.program(self.key(data)).executable, self._blocks(data)

    def _blocks(self, inputs: Sequence[Any]) -> list[Any]:
        xs = [*inputs, *self._captured]
        return blocks_of(xs)

    def key(self, inputs: Sequence[Any]) -> Key:
        """What a program is made for: the shape and layout of each input and each captured tensor."""
        return tuple((x.shape, _layout(x)) for x in (*inputs, *self._captured))

    def program(self, key: Key) -> MeshProgram:
        """The program for inputs of these shapes and layouts."""
        where = home()
        found = self._programs.get((key, where))
        if found is None:
            found = self._programs[key, where] = self._made(key)
        return found

    def partitioned(self, key: Key) -> Partitioned:
        """The program of one logical shard, and what it moves."""
        g = self._inlined
        pairs = [(str(v), v.shape, s) for v, (s, _) in zip(g.inputs, key, strict=True)]
        return partition(g, [layout for _, layout in key], self.mesh, solve(pairs, g.guards))

    def _made(self, key: Key) -> MeshProgram:
        parts = self.partitioned(key)
        cuts = [frozenset(layout.axes) for _, layout in key]
        check_matched(parts.graph, cuts)
        warn_of_gathers(parts.inserted)
        return MeshProgram(parts, self._compile(self._of_rank(parts, key, placement(self.mesh))))

    def _of_rank(self, parts: Partitioned, key: Key, place: Placement) -> Graph:
        """The program of the rank that owns this part of the mesh."""
        ends = zip(parts.types, parts.layouts, strict=True)
        whole = of_rank(
            parts.graph, place, [layout for _, layout in key], parts.layouts,
            [block_shape(s, layout, place) for s, layout in key],
            [block_shape(t.shape, layout, place) for t, layout in ends],  # type: ignore[arg-type]
            self._loose,
        )  # fmt: skip
        return bucket(whole)

    def memory(self, key: Key, ranks: int) -> RankMemory | None:
        """The memory of the first of so many ranks in a run; None where the target does not plan memory."""
        place = placed(self.mesh, 0, ranks)
        g = self._of_rank(self.partitioned(key), key, place)
        made = self._compile(g)
        if not isinstance(made, PlansMemory):
            return None
        shapes = [tuple(int(n) for n in v.shape) for v in g.inputs[: len(key)]]
        held = sum(_bytes(v.type) for v in g.inputs[: len(key)])
        return RankMemory(held, made.memory_plan(shapes).peak, shared(g))


def warn_of_gathers(inserted: Sequence[Inserted]) -> None:
    """Warn, on the first rank, of gathers beyond TESSERA_GATHER_LIMIT bytes that no one asked for."""
    limit = flags().gather_limit
    for c in inserted if limit and not engine().rank else ():
        if c.kind != "all_gather" or c.is_asked or c.bytes <= limit:
            continue
        text = (
            f"{c.user}: gathers {c.value} over {c.axis}, {c.bytes} bytes a shard, more than "
            f"TESSERA_GATHER_LIMIT ({limit}); cut its operands along other axes, or ask "
            "for the gather with dist.constrain"
        )
        if c.location is None:
            warn_caller(text)
        else:
            warnings.warn_explicit(text, RuntimeWarning, c.location.file, c.location.line)


def _bytes(t: TensorType) -> int:
    return int(t.size) * t.dtype.bits // 8


def _is_even(x: Any) -> bool:
    """Whether every shard of an array, if it has any, is full."""
    cuts = zip(x.shape, x.layout.cuts, strict=True) if isinstance(x, ShardedArray) else ()
    return all(n % parts(names, x.mesh) == 0 for n, names in cuts)


def _layout(x: Any) -> Layout:
    return x.layout if isinstance(x, ShardedArray) else replicated(x.ndim)
