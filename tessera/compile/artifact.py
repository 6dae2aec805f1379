"""Images: compiled programs as data, and the store of them on disk.

An image says all that running a program takes: its buffers, its calls of kernels and of the host in
order, how each kernel is launched, and which machine code it is.  It is kept under the SHA-256 of
everything that it follows from, so that a second process traces, finds the image and loads the code.

The sources of Tessera are part of that key by their bytes, all of them: reading and hashing them takes
4 ms, and anything cheaper (times, sizes, a version to be bumped by hand) can be wrong.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cache, partial
from typing import Any, TypeVar

from tessera.compile.passes import Pass
from tessera.compile.pipeline import passes_of
from tessera.core.deferred import Deferred
from tessera.core.dims import Dim, Size, substitute
from tessera.core.dtype import DType, as_dtype, bool_
from tessera.core.errors import TesseraError
from tessera.core.flags import Flags, flags
from tessera.core.matrix_units import may_use_tiles
from tessera.core.parse_sizes import parse_dim
from tessera.core.processor import expected_threads
from tessera.core.reference import Reference
from tessera.core.tables import Table
from tessera.core.types import TensorType
from tessera.ir.graph.ir import Graph
from tessera.ir.graph.op import OWN
from tessera.ir.schedule.ir import HostCall
from tessera.ir.target.cpu.entry import Entry, Parameter
from tessera.ir.target.cpu.machine import architecture
from tessera.runtime import tuned
from tessera.runtime.code import Key, Store

T = TypeVar("T")
_STARTED = time.time_ns()
_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))  # tessera
_IMMATERIAL = (
    "cache_dir",
    "cache_limit",
    "log",
    "memory",
    "strict",
    "verify",
)  # flags that no image depends on


@dataclass(frozen=True)
class KernelCall:
    """A call of a kernel: the buffers of its parameters, those that it reads and then those it makes."""

    name: str
    kernel: int  # which one of the image's kernels
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


@dataclass(frozen=True)
class Image:
    """A program that can run: buffers, calls in order, and the kernels that they name."""

    buffers: Mapping[str, TensorType]
    steps: tuple[KernelCall | HostCall, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    kernels: tuple[Entry, ...]
    codes: tuple[Key, ...]  # the machine code of each kernel
    tables: tuple[Table, ...] = ()  # what the last inputs are
    loops: Mapping[int, int] = field(
        default_factory=dict
    )  # kernels of steps that the host would run


# What an image follows from --------------------------------------------------------------------


def key_of(g: Graph, numerics: str | None = None) -> bytes | None:
    """The key of a graph's image on the CPU; None when its text does not say all that it means.

    Numerics are those in force unless given.
    """
    common = material(g, "cpu", numerics)
    if common is None:
        return None
    # Kernels with matrix registers are for processes that may use them, and loops for so many threads.
    units = f"tiles={may_use_tiles()} threads={expected_threads()}"
    return digest_of([*common, architecture(), units, g.text])


def material(g: Graph, target: str, numerics: str | None = None) -> list[str] | None:
    """What the image of a graph follows from on every target, beside the text of the graph; None when
    that does not say it all.
    """
    sources = _sources()
    if sources is None or not _is_said(g) or not are_own(passes_of(target)):
        return None
    settings = {f.name: getattr(flags(), f.name) for f in fields(Flags)}
    settings["numerics"] = numerics or settings["numerics"]
    said = [f"{k}={v}" for k, v in settings.items() if k not in _IMMATERIAL]
    # Kernels have the schedules that were tuned, so the store of those is part of the key.
    return [sources, target.partition(":")[0], tuned.stamp(), *said]


def digest_of(material: Sequence[str]) -> bytes:
    """The key that these texts make."""
    return hashlib.sha256("\n".join(material).encode()).digest()


def _is_said(g: Graph) -> bool:
    """Whether every op is defined by our sources and no parameter refers to an object in memory."""
    return all(
        n.op in OWN
        and not any(isinstance(x, Reference) for x in n.params.values())
        and all(map(_is_said, n.regions))
        for n in g.nodes
    )


@cache
def are_own(passes: tuple[Pass, ...]) -> bool:
    """Whether every pass is a function of our sources, which the key has; one that the user adds is not."""
    return all(_module_of(p.run).partition(".")[0] == __name__.partition(".")[0] for p in passes)


def _module_of(f: Any) -> str:
    if isinstance(f, Deferred):
        return f.path
    return _module_of(f.func) if isinstance(f, partial) else str(f.__module__)


# The packages that generated code follows from; those above them only make graphs, which the key has as text.
_COMPILER = ("compile", "core", "ir", "ops", "runtime", "transform")


@cache
def _sources() -> str | None:
    """SHA-256 of the compiler's sources; None when one was written after this process began to load them."""
    if not os.path.isfile(__file__):
        return None  # an archive, or compiled files alone
    total = hashlib.sha256()
    for path in (p for name in _COMPILER for p in _files(os.path.join(_PACKAGE, name))):
        if os.stat(path).st_mtime_ns > _STARTED:
            return None
        with open(path, "rb") as file:
            digest = hashlib.sha256(file.read()).digest()
        total.update(os.path.relpath(path, _PACKAGE).encode() + digest)
    return total.hexdigest()


def _files(folder: str) -> Iterator[str]:
    for entry in sorted(os.scandir(folder), key=lambda e: e.name):
        if entry.is_dir():
            yield from _files(entry.path)
        elif entry.name.endswith(".py"):
            yield entry.path


# The store -------------------------------------------------------------------------------------


def _store() -> Store:
    return Store(flags().cache_dir / "programs", "program")


def stored(key: bytes, read: Callable[[bytes], T]) -> T | None:
    """What `read` makes of an entry, if it is on disk and can be trusted; `read` raises where it cannot."""
    store = _store()
    data = store.get(key)
    if data is None:
        return None
    try:
        return read(data)
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError, TesseraError):
        store.distrust(key, "holds no program that fits the graph")
        return None


def keep(key: bytes, data: bytes) -> None:
    """Keep an entry for the next process."""
    _store().put(key, data)


def load(key: bytes, g: Graph) -> Image | None:
    """The image of a graph on the CPU, if it is on disk and can be trusted."""

    def read(data: bytes) -> Image:
        image = decode(data, g)
        demand_fit(image, g)
        return image

    return stored(key, read)


def demand_fit(image: Image, g: Graph) -> None:
    """Raise ValueError unless an image could be one of this graph: every name, number and type fits."""
    types = [*(v.type for v in g.inputs), *(t.type for t in image.tables)]
    fits = [image.buffers[n] for n in image.inputs] == types
    fits &= [image.buffers[n] for n in image.outputs] == [v.type for v in g.outputs]
    made = set(image.inputs)
    for s in image.steps:
        given, out = (s.operands, s.results) if isinstance(s, HostCall) else (s.inputs, s.outputs)
        fits &= made.issuperset(given)
        made.update(out)
        taken = [image.buffers[n] for n in (*given, *out)]
        fits &= [_bits(t, g) for t in taken] == [_bits(t, g) for t in _types_of(s, image)]
    for i, k in image.loops.items():
        wanted = _loop_types(image.steps[i])
        fits &= [_row(p.type) for p in image.kernels[k].parameters] == list(map(_row, wanted))
    if not (fits and made.issuperset(image.outputs)):
        raise ValueError("image")


def _bits(t: TensorType, g: Graph) -> Size:
    """How large a tensor is; a kernel may see one of fewer axes, or complex numbers as pairs.

    Sizes that a guard of the graph makes numbers are numbers.
    """
    known = {
        str(x): n
        for guard in g.guards
        if guard.kind == "equal"
        for x, n in ((guard.left, guard.right), (guard.right, guard.left))
        if isinstance(x, Dim) and isinstance(n, int)
    }
    return math.prod((substitute(n, known) for n in t.shape), start=t.dtype.bits)


def _types_of(s: KernelCall | HostCall, image: Image) -> list[TensorType]:
    """What the buffers of a step must be."""
    if isinstance(s, HostCall):
        return [v.type for v in (*s.node.operands, *s.node.results)]
    return [p.type for p in image.kernels[s.kernel].parameters]


def _loop_types(s: KernelCall | HostCall) -> list[TensorType]:
    """What the parameters of the kernel of a loop are: what it is given and has captured, what it makes,
    its flag.
    """
    if not isinstance(s, HostCall):
        raise ValueError("image")
    n = s.node
    captured = [v.type for r in n.regions for v in r.captured]
    flag = [TensorType(bool_, ())] * (n.op.control == "while")
    return [*(v.type for v in n.operands), *captured, *(v.type for v in n.results), *flag]


def _row(t: TensorType) -> tuple[DType, int, tuple[Size, ...]]:
    """A type but for its first size, which may be the number of steps."""
    return t.dtype, t.rank, t.shape[1:]


def save(key: bytes, image: Image, g: Graph) -> None:
    """Keep an image of the CPU for the next process."""
    keep(key, encode(image, g))


# As bytes --------------------------------------------------------------------------------------


def encode(image: Image, g: Graph) -> bytes:
    """An image as JSON; types are numbered, and nodes that the host runs are places in the graph."""
    types: dict[TensorType, int] = {}

    def number(t: TensorType) -> int:
        return types.setdefault(t, len(types))

    places = {n: i for i, n in enumerate(g.nodes)}
    steps = [
        [places[s.node], s.operands, s.results]
        if isinstance(s, HostCall)
        else [s.name, s.kernel, s.inputs, s.outputs]
        for s in image.steps
    ]
    kernels = [
        [
            e.name, e.symbol, [[p.name, number(p.type), p.writable] for p in e.parameters],
            e.sizes, _size(e.count), _size(e.scratch), _size(e.work), e.shares,
            e.copies, key.hex(), functions,
        ]
        for e, (key, functions) in zip(image.kernels, image.codes, strict=True)
    ]  # fmt: skip
    whole = {
        "buffers": {name: number(t) for name, t in image.buffers.items()},
        "steps": steps, "kernels": kernels, "inputs": image.inputs, "outputs": image.outputs,
        "loops": list(image.loops.items()),
        "tables": [[t.maker, t.arguments, number(t.type)] for t in image.tables],
        "types": [[str(t.dtype), list(map(_size, t.shape))] for t in types],
    }  # fmt: skip
    return json.dumps(whole, separators=(",", ":")).encode()


def decode(data: bytes, g: Graph) -> Image:
    """The image that `encode` wrote for this graph."""
    whole: dict[str, Any] = json.loads(data)
    types = [TensorType(as_dtype(d), tuple(map(_sized, s))) for d, s in whole["types"]]
    kernels = tuple(_entry(k, types) for k in whole["kernels"])
    return Image(
        {name: types[i] for name, i in whole["buffers"].items()},
        tuple(_step(s, g) for s in whole["steps"]),
        tuple(whole["inputs"]),
        tuple(whole["outputs"]),
        kernels,
        tuple((bytes.fromhex(k[-2]), tuple(k[-1])) for k in whole["kernels"]),
        tuple(Table(maker, tuple(given), types[i]) for maker, given, i in whole["tables"]),
        dict(whole["loops"]),
    )


def _step(s: list[Any], g: Graph) -> KernelCall | HostCall:
    *head, ins, outs = s
    if len(head) == 1:
        return HostCall(g.nodes[head[0]], tuple(ins), tuple(outs))
    name, kernel = head
    return KernelCall(name, kernel, tuple(ins), tuple(outs))


def _entry(k: list[Any], types: list[TensorType]) -> Entry:
    # Bundles of format 1 may lack `copies`.
    name, symbol, parameters, sizes, count, scratch, work, shares, *copies = k[:-2]
    made = tuple(Parameter(n, types[i], writable) for n, i, writable in parameters)
    return Entry(
        name, symbol, made, tuple(sizes), _sized(count), _sized(scratch),
        work=_sized(work), shares=tuple((i, j) for i, j in shares), copies=copies == [True],
    )  # fmt: skip


def _size(x: Size) -> int | str:
    return x if isinstance(x, int) else str(x)


def _sized(x: int | str) -> Size:
    return x if isinstance(x, int) else parse_dim(x)
