"""GPU images: programs of a GPU at known sizes, as data that the store keeps.

An image has what binding it to a device takes (planned.py, bind.py): the types and views of buffers, and
launches and calls of the host in order.  A launch says what Triton builds and what the driver is given, so
that a program from the disk needs no lowering.  Calls of the host are nodes of the graph, by their number.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tessera.compile import artifact
from tessera.compile.passes import Context
from tessera.core.dtype import as_dtype
from tessera.core.tables import Table
from tessera.core.types import TensorType
from tessera.ir.graph.ir import Graph, Node
from tessera.ir.schedule.ir import HostCall
from tessera.ir.schedule.memory import StepAccess, View
from tessera.ir.target.triton.triton_source import TritonSource
from tessera.runtime.cuda.tma import TmaDescriptor


@dataclass(frozen=True)
class TmaParameter:
    """A parameter that is a box of the copy engine, and the bytes of the sizes and strides behind it."""

    at: int  # among the parameters
    map: TmaDescriptor
    rest: tuple[bytes, ...]


@dataclass(frozen=True)
class GpuCall:
    """A launch: its buffers, the code that it runs, and what the driver is told of it."""

    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    writable: tuple[bool, ...]  # whether the kernel writes the buffer, for each of them
    source: TritonSource
    scratch: int  # bytes of a block
    blocks: int  # of threads
    sizes: tuple[int, ...] = ()  # that a kernel for all sizes is given
    boxes: tuple[TmaParameter, ...] = ()
    early: bool = False  # whether it begins while the launch before it ends
    spreads: bool = False  # whether its blocks keep others from their multiprocessor

    @property
    def buffers(self) -> tuple[str, ...]:
        """The buffer of each parameter."""
        return (*self.inputs, *self.outputs)


@dataclass
class GpuImage:
    """A program for a GPU at known sizes: its buffers, and its launches and calls in order."""

    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    sizes: Mapping[str, int]
    donated: frozenset[str]
    types: dict[str, TensorType]
    views: dict[str, View] = field(default_factory=dict)
    tables: dict[str, Table | Node] = field(default_factory=dict)  # there before a run
    steps: list[tuple[StepAccess, GpuCall | HostCall]] = field(default_factory=list)

    @property
    def calls(self) -> list[GpuCall]:
        """The launches in order."""
        return [c for _, c in self.steps if isinstance(c, GpuCall)]


def array_of(t: Table | Node) -> Any:
    """The numbers of a table, or of a node that is data."""
    return t.array() if isinstance(t, Table) else t.params["value"].array


# What an image follows from ---------------------------------------------------------------------


def key_of(g: Graph, c: Context) -> bytes | None:
    """The key of a program's image; None when the graph's text does not say all that it means."""
    common = artifact.material(g, c.target, None)
    if common is None:
        return None
    own = [
        f"device={c.device} roles={c.roles} buckets={c.buckets}",
        f"sizes={sorted(c.sizes.items())} donated={sorted(c.donated)}",
    ]
    return artifact.digest_of([*common, *own, g.text])


def load(key: bytes, g: Graph) -> GpuImage | None:
    """The image of a graph, if it is on disk and can be trusted."""

    def read(data: bytes) -> GpuImage:
        image = decode(data, g)
        demand_fit(image, g)
        return image

    return artifact.stored(key, read)


def save(key: bytes, image: GpuImage, g: Graph) -> None:
    """Keep an image for the next process, where it can be said."""
    data = encode(image, g)
    if data is not None:
        artifact.keep(key, data)


def demand_fit(image: GpuImage, g: Graph) -> None:
    """Raise ValueError unless an image could be one of this graph: every name and type fits."""
    fits = [image.types[n] for n in image.inputs] == _types(g.inputs, image.sizes)
    fits &= [image.types[n] for n in image.outputs] == _types(g.outputs, image.sizes)
    known = {*image.inputs, *image.tables}
    fits &= all(v.base in image.types for v in image.views.values())
    for access, s in image.steps:
        ins, outs = (s.inputs, s.outputs) if isinstance(s, GpuCall) else (s.operands, s.results)
        bases = {image.views[n].base if n in image.views else n for n in ins}
        fits &= (access.reads, access.writes) == (ins, outs) and known.issuperset(bases)
        fits &= image.types.keys() >= {*ins, *outs}
        known.update(image.views[n].base if n in image.views else n for n in outs)
        if isinstance(s, GpuCall):
            fits &= len(s.writable) == len(s.buffers) and s.blocks >= 0 <= s.scratch
    made = {image.views[n].base if n in image.views else n for n in image.outputs}
    if not (fits and known.issuperset(made)):
        raise ValueError("image")


def _types(values: Sequence[Any], sizes: Mapping[str, int]) -> list[TensorType]:
    return [v.type.substitute(sizes) for v in values]


# As bytes ---------------------------------------------------------------------------------------


def encode(image: GpuImage, g: Graph) -> bytes | None:
    """An image as JSON; None where that would not say it all, as of a node that a pass has made."""
    types: dict[TensorType, int] = {}
    places = {n: i for i, n in enumerate(g.nodes)}
    sources: dict[TritonSource, int] = {}
    hosted = [s.node for _, s in image.steps if isinstance(s, HostCall)]
    data = [t for t in image.tables.values() if isinstance(t, Node)]
    if not places.keys() >= {*hosted, *data} or not all(t.static for t in image.types.values()):
        return None

    def number(t: TensorType) -> int:
        return types.setdefault(t, len(types))

    def call(c: GpuCall) -> list[Any]:
        return [
            c.name, c.inputs, c.outputs, c.writable, sources.setdefault(c.source, len(sources)),
            c.scratch, c.blocks, c.sizes, list(map(_box, c.boxes)), c.early, c.spreads,
        ]  # fmt: skip

    whole = {
        "target": "gpu", "name": image.name, "inputs": image.inputs, "outputs": image.outputs,
        "sizes": dict(image.sizes), "donated": sorted(image.donated),
        "views": {n: [v.base, v.offset, v.strides] for n, v in image.views.items()},
        "buffers": {n: number(t) for n, t in image.types.items()},
        "tables": {
            n: places[t] if isinstance(t, Node) else [t.maker, t.arguments, number(t.type)]
            for n, t in image.tables.items()
        },
        "steps": [
            [_access(a), [places[s.node], s.operands, s.results] if isinstance(s, HostCall) else call(s)]
            for a, s in image.steps
        ],
        "sources": [
            [s.text, s.name, s.signature, s.aligned, s.target, s.warps, s.stages, s.registers]
            for s in sources
        ],
        "types": [[str(t.dtype), t.shape] for t in types],
    }  # fmt: skip
    return json.dumps(whole, separators=(",", ":")).encode()


def decode(data: bytes, g: Graph) -> GpuImage:
    """The image that `encode` wrote for this graph."""
    whole: dict[str, Any] = json.loads(data)
    types = [TensorType(as_dtype(d), tuple(s)) for d, s in whole["types"]]
    sources = [
        TritonSource(
            text, name, tuple((n, k) for n, k in signature), tuple(aligned), _device(target), *rest
        )
        for text, name, signature, aligned, target, *rest in whole["sources"]
    ]

    def step(s: list[Any]) -> GpuCall | HostCall:
        if len(s) == 3:
            return HostCall(g.nodes[s[0]], tuple(s[1]), tuple(s[2]))
        name, ins, outs, writable, source, scratch, blocks, sizes, boxes, early, spreads = s
        return GpuCall(
            name, tuple(ins), tuple(outs), tuple(writable), sources[source], scratch, blocks,
            tuple(sizes), tuple(map(_boxed, boxes)), early, spreads,
        )  # fmt: skip

    return GpuImage(
        whole["name"], tuple(whole["inputs"]), tuple(whole["outputs"]), whole["sizes"],
        frozenset(whole["donated"]), {n: types[i] for n, i in whole["buffers"].items()},
        {n: View(base, offset, tuple(strides)) for n, (base, offset, strides) in whole["views"].items()},
        {n: g.nodes[t] if isinstance(t, int) else Table(t[0], tuple(t[1]), types[t[2]])
         for n, t in whole["tables"].items()},
        [(_accessed(a), step(s)) for a, s in whole["steps"]],
    )  # fmt: skip


def _access(a: StepAccess) -> list[Any]:
    assert not a.temporary, a
    return [a.name, a.reads, a.writes, sorted(a.in_place), a.host, a.copies]


def _accessed(a: list[Any]) -> StepAccess:
    name, reads, writes, shared, host, copies = a
    in_place = frozenset((x, y) for x, y in shared)
    return StepAccess(name, tuple(reads), tuple(writes), in_place, host, copies=copies)


def _box(b: TmaParameter) -> list[Any]:
    m = b.map
    return [
        b.at, np.dtype(m.dtype).name, m.shape, m.strides, m.box, m.swizzle, [x.hex() for x in b.rest]
    ]  # fmt: skip


def _boxed(b: list[Any]) -> TmaParameter:
    at, dtype, shape, strides, box, swizzle, rest = b
    whole = TmaDescriptor(as_dtype(dtype).np, tuple(shape), tuple(strides), tuple(box), swizzle)
    return TmaParameter(at, whole, tuple(map(bytes.fromhex, rest)))


def _device(target: list[Any]) -> tuple[str, int | str, int]:
    kind, architecture, warp = target
    return kind, architecture, warp
