"""Tile IR: kernels, memories, and operations on tiles.

A kernel is one program that runs for every point of its grid.  It reads and writes memories: its
parameters in global memory, and scratch of its own.  Values are tiles: small arrays of static shape
(a scalar is a tile of shape ()).  Sizes and positions are polynomials over the sizes of the
parameters, the grid variables and the loop variables.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from tessera.core.dims import Dim, Shape, Size, symbol, symbols
from tessera.core.dtype import DType, i64
from tessera.core.errors import VerifyError
from tessera.core.provided import Provided
from tessera.core.scalar import Number
from tessera.core.source import Location
from tessera.core.types import TensorType
from tessera.ir.tile.rules import canonical, infer
from tessera.ir.tile.traits import TRAITS, Traits

NOWHERE = 1 << 40  # a place that no tensor has: masked elements of indexed accesses are sent there


class Memory:
    """Where tiles are loaded from and stored to: a parameter, or scratch of a program instance."""

    __slots__ = ("name", "space", "type", "writable")

    def __init__(self, name: str, type: TensorType, space: str = "global", writable: bool = False):
        self.name, self.type, self.space, self.writable = name, type, space, writable

    def __repr__(self) -> str:
        return f"{self.space} {self.name}: {self.type}"


class Tile:
    """A value: the result of an operation, or a value that a loop carries."""

    __slots__ = ("type",)

    def __init__(self, type: TensorType):
        self.type = type

    def __repr__(self) -> str:
        return f"<tile {self.type}>"

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes, all static."""
        return self.type.shape  # type: ignore[return-value]

    @property
    def dtype(self) -> DType:
        """What the elements are."""
        return self.type.dtype


class Operation:
    """One operation.  Immutable but for its place in a block."""

    __slots__ = ("attributes", "block", "location", "memory", "name", "operands", "results")

    def __init__(
        self,
        name: str,
        operands: Sequence[Tile],
        attributes: Mapping[str, Any],
        results: Sequence[Tile],
        memory: Memory | None = None,
        block: Block | None = None,
        location: Location | None = None,
    ):
        self.name, self.operands, self.results = name, tuple(operands), tuple(results)
        self.attributes, self.memory, self.block = attributes, memory, block
        self.location = location

    @property
    def traits(self) -> Traits:
        """What the operation does."""
        return TRAITS[self.name]

    def __repr__(self) -> str:
        return f"{self.name}({', '.join(str(t.type) for t in self.operands)})"


@dataclass(frozen=True)
class Block:
    """The body of a kernel or of a loop: what it carries in, its operations, what it carries out."""

    arguments: tuple[Tile, ...]
    operations: tuple[Operation, ...]
    outputs: tuple[Tile, ...]


@dataclass(frozen=True)
class Kernel:
    """A program that runs once for every point of its grid."""

    name: str
    parameters: tuple[Memory, ...]
    grid: tuple[tuple[str, Size], ...]  # variable and how many instances, outermost first
    body: Block

    def __str__(self) -> str:
        return self.text

    @cached_property
    def text(self) -> str:
        """The canonical text: MLIR generic syntax, without locations."""
        return CANONICAL_TEXT.get()(self)

    @cached_property
    def hash(self) -> str:
        """SHA-256 of the canonical text: the identity of the kernel."""
        return hashlib.sha256(self.text.encode()).hexdigest()

    @cached_property
    def sizes(self) -> tuple[str, ...]:
        """The symbols that the kernel must know, in alphabetic order; counters begin with _."""
        shapes = [m.type.shape for m in (*self.parameters, *self.scratch())]
        values: list[Any] = [n for shape in shapes for n in shape] + [n for _, n in self.grid]
        for op in walk(self.body):
            for x in op.attributes.values():
                values += x if isinstance(x, tuple) else (x,)
        found = {s for n in values if isinstance(n, Dim) for s in symbols(n)}
        return tuple(sorted(s for s in found if not s.startswith("_")))

    def scratch(self) -> Iterator[Memory]:
        """The memories that an instance allocates."""
        for op in walk(self.body):
            if op.name == "alloc":
                assert op.memory is not None
                yield op.memory


def walk(block: Block) -> Iterator[Operation]:
    """Every operation of a block and of the loops in it."""
    for op in block.operations:
        yield op
        if op.block is not None:
            yield from walk(op.block)


CANONICAL_TEXT: Provided[Callable[[Kernel], str]] = Provided(
    "tile text", "the canonical text of a kernel"
)


class Builder:
    """Writes a kernel, operation by operation."""

    def __init__(self, name: str, location: Location | None = None):
        self.name, self.location = name, location
        self.parameters: list[Memory] = []
        self.grid: list[tuple[str, Size]] = []
        self._blocks: list[list[Operation]] = [[]]
        self._count = 0

    # Structure

    def parameter(self, name: str, type: TensorType, writable: bool = False) -> Memory:
        """A tensor that the kernel is called with."""
        m = Memory(name, type, "global", writable)
        self.parameters.append(m)
        return m

    def program(self, count: Size) -> Dim:
        """A grid axis: the number of this instance along it."""
        name = f"_p{len(self.grid)}"
        self.grid.append((name, count))
        return symbol(name)

    def alloc(self, dtype: DType, shape: Shape, space: str = "private") -> Memory:
        """Scratch memory of this instance."""
        self._count += 1
        m = Memory(f"s{self._count}", TensorType(dtype, shape), space, True)
        self._append("alloc", (), {"space": space}, m)
        return m

    @contextmanager
    def loop(
        self,
        start: Size,
        stop: Size,
        step: int = 1,
        carried: Sequence[Tile] = (),
        bound: Tile | None = None,
        going: bool = False,
        like: Operation | None = None,
    ) -> Iterator[Loop]:
        """A loop; inside, `loop.variable` counts and `loop.carried` holds the carried tiles.

        One with a bound, an i64 number that is data, ends there if that is before `stop`.  One that is
        `going` carries a bool first, and ends where that is false.  A loop `like` another one ends as that
        does: by the first tile that it carries.
        """
        if bound is not None:
            with self.loop(start, stop, step, (bound, *carried)) as inner:
                limit = inner.carried[0]
                inner.carried = inner.carried[1:]
                inner.outputs = inner.carried
                yield inner
                inner.carried = (limit, *inner.carried)
                inner.carry(limit, *inner.outputs)
            inner.results = inner.results[1:]
            last = self._blocks[-1][-1]
            last.attributes = {**last.attributes, "bounded": True}
            return
        self._count += 1
        inner = Loop(f"_i{self._count}", tuple(Tile(t.type) for t in carried))
        self._blocks.append([])
        yield inner
        operations = self._blocks.pop()
        if [t.type for t in inner.outputs] != [t.type for t in carried]:
            raise VerifyError(
                f"for: carries {[str(t.type) for t in carried]} in but "
                f"{[str(t.type) for t in inner.outputs]} out"
            )
        block = Block(inner.carried, tuple(operations), tuple(inner.outputs))
        inner.results = tuple(Tile(t.type) for t in carried)
        attributes = {"variable": inner.name, "start": start, "stop": stop, "step": step}
        attributes |= {"going": True} if going else {}
        if like is not None:
            attributes |= {k: True for k in ("bounded", "going") if like.attributes.get(k)}
        op = Operation("for", carried, attributes, inner.results, None, block, self.location)
        self._blocks[-1].append(op)

    def finish(self) -> Kernel:
        """The kernel."""
        assert len(self._blocks) == 1
        block = Block((), tuple(self._blocks[0]), ())
        return Kernel(self.name, tuple(self.parameters), tuple(self.grid), block)

    def _append(
        self,
        name: str,
        operands: Sequence[Tile],
        attributes: Mapping[str, Any],
        memory: Memory | None = None,
        stated: TensorType | None = None,
    ) -> tuple[Tile, ...]:
        place = None if memory is None else memory.type
        types = infer(name, [t.type for t in operands], attributes, place, stated)
        results = tuple(map(Tile, types))
        op = Operation(name, operands, attributes, results, memory, None, self.location)
        self._blocks[-1].append(op)
        return results

    def _value(
        self,
        name: str,
        operands: Sequence[Tile],
        attributes: Mapping[str, Any],
        stated: TensorType | None = None,
    ) -> Tile:
        return self._append(name, operands, attributes, None, stated)[0]

    def repeat(
        self,
        op: Operation,
        operands: Sequence[Tile],
        attributes: Mapping[str, Any],
        memory: Memory | None,
    ) -> tuple[Tile, ...]:
        """An operation again, on other tiles of the same types and in another place."""
        stated = op.results[0].type if len(op.results) == 1 else None
        return self._append(op.name, operands, attributes, memory, stated)

    # Memory

    def load(
        self,
        memory: Memory,
        at: Sequence[Size],
        extent: Sequence[int],
        axes: Sequence[int] | None = None,
        masked: Sequence[int] = (),
        fill: Number = 0,
        vector: int | None = None,
    ) -> Tile:
        """The elements from `at` on; the tile keeps `axes` of the memory, in that order.

        Along axes in `masked` the box may reach out of the memory: there the tile holds `fill`.  At most
        `vector` elements are accessed at once, if given.
        """
        fill = canonical("load", fill, memory.type.dtype)
        attributes = _box(at, extent, axes, masked) | {"fill": fill}
        if vector is not None:
            attributes["vector"] = vector
        return self._append("load", (), attributes, memory)[0]

    def store(
        self,
        memory: Memory,
        value: Tile,
        at: Sequence[Size],
        extent: Sequence[int],
        axes: Sequence[int] | None = None,
        masked: Sequence[int] = (),
        vector: int | None = None,
    ) -> None:
        """Write a tile from `at` on; along `masked` axes, what is out of the memory is dropped.  At most
        `vector` elements are accessed at once, if given.
        """
        attributes = _box(at, extent, axes, masked)
        if vector is not None:
            attributes["vector"] = vector
        self._write("store", memory, (value,), attributes)

    def store_async(
        self,
        memory: Memory,
        value: Tile,
        at: Sequence[Size],
        extent: Sequence[int],
        axes: Sequence[int] | None = None,
        masked: Sequence[int] = (),
    ) -> None:
        """As store, but the elements arrive at the latest in the wait that covers it."""
        self._write("store_async", memory, (value,), _box(at, extent, axes, masked))

    def _write(
        self, name: str, memory: Memory, tiles: Sequence[Tile], attributes: Mapping[str, Any]
    ) -> None:
        if not memory.writable:
            raise VerifyError(f"{name}: {memory} is not writable")
        self._append(name, tiles, attributes, memory)

    def wait(self, pending: int = 0) -> None:
        """Wait until all but the last `pending` asynchronous stores have arrived."""
        self._append("wait", (), {"pending": pending})

    def barrier(self) -> None:
        """Every thread of this instance comes here before any goes on: what they wrote is seen."""
        self._append("barrier", (), {})

    def gather(
        self,
        memory: Memory,
        picked: Mapping[int, Tile],
        at: Sequence[Size],
        extent: Sequence[int],
        axes: Sequence[int] = (),
        masked: Sequence[int] = (),
        fill: Number = 0,
    ) -> Tile:
        """As load, but an i64 tile moves each element along every picked axis."""
        fill = canonical("gather", fill, memory.type.dtype)
        attributes = _box(at, extent, axes, masked) | {"picked": tuple(picked), "fill": fill}
        return self._append("gather", tuple(picked.values()), attributes, memory)[0]

    def scatter(
        self,
        memory: Memory,
        value: Tile,
        picked: Mapping[int, Tile],
        at: Sequence[Size],
        extent: Sequence[int],
        axes: Sequence[int] = (),
        masked: Sequence[int] = (),
        distinct: bool = False,
        atomic: str | None = None,
    ) -> None:
        """As store, to where gather would read; of several elements for a place the last stays.

        Where they are `distinct`, there is one element for a place at most.  `atomic` is a scalar op by which
        all of them are folded into what is there, in any order.
        """
        attributes = _box(at, extent, axes, masked) | {"picked": tuple(picked)}
        if distinct:
            attributes["distinct"] = True
        if atomic is not None:
            attributes["atomic"] = atomic
        self._write("scatter", memory, (value, *picked.values()), attributes)

    def prefetch(
        self, memory: Memory, at: Sequence[Size], extent: Sequence[int], write: bool = False,
        far: bool = False,
    ) -> None:  # fmt: skip
        """Say that a box will be read soon, or written, or later (far); it may reach out of the memory."""
        attributes = {"at": tuple(at), "extent": tuple(extent), "write": write}
        attributes |= {"far": True} if far else {}
        self._append("prefetch", (), attributes, memory)

    # Values

    def full(self, dtype: DType, shape: Sequence[int], value: Number) -> Tile:
        """A tile of one number."""
        t = TensorType(dtype, tuple(shape))
        return self._value("full", (), {"value": canonical("full", value, dtype)}, t)

    def index(self, at: Size, shape: Sequence[int] = (), axis: int | None = None) -> Tile:
        """A position as an i64 tile: `at`, plus the element's own number along an axis if given."""
        t = TensorType(i64, tuple(shape))
        return self._value("index", (), {"at": at, "axis": axis}, t)

    def apply(self, scalar: str, *operands: Tile) -> Tile:
        """A scalar op on every element, after broadcasting."""
        return self._value("apply", operands, {"scalar": scalar})

    def cast(self, x: Tile, dtype: DType) -> Tile:
        """A tile in another dtype."""
        if x.dtype is dtype:
            return x
        return self._value("cast", (x,), {}, TensorType(dtype, x.shape))

    def fold(self, scalar: str, x: Tile, axis: int, order: str = "") -> Tile:
        """A fold along an axis as a balanced tree; the axis stays, with size 1.

        The upper part is folded onto the lower, or neighbours with each other where the order says so.
        """
        attributes = {"scalar": scalar, "axis": axis} | ({"order": order} if order else {})
        return self._value("fold", (x,), attributes)

    def scan(self, scalar: str, x: Tile, axis: int, order: str = "") -> Tile:
        """Folds of the elements up to each one along an axis: ascending, or down a tree of neighbours."""
        attributes = {"scalar": scalar, "axis": axis} | ({"order": order} if order else {})
        return self._value("scan", (x,), attributes)

    def dot(self, a: Tile, b: Tile, acc: Tile) -> Tile:
        """acc + a b for (m, k), (k, n) and (m, n): one chain of fused multiply-adds in ascending k."""
        return self._value("dot", (a, b, acc), {})

    def dot_parts(self, x: Tile, y: Tile, acc: Tile, parts: int) -> Tile:
        """acc + the products of the parts of each word of x and y: 2 halves with a sign, or 4 bytes.

        The bytes of x have no sign, those of y have one.
        """
        return self._value("dot_parts", (x, y, acc), {"parts": parts})

    def words(self, x: Tile, axis: int) -> Tile:
        """Neighbours along an axis as words of 32 bits: 4 bytes or 2 bf16, the first in the lowest bits."""
        return self._value("words", (x,), {"axis": axis})

    def dot_words(self, x: Tile, y: Tile, acc: Tile, left: DType, right: DType) -> Tile:
        """acc + x y for words (m, k), (k, n) of parts of these dtypes, as core/dot_words.py has it."""
        return self._value("dot_words", (x, y, acc), {"left": left.name, "right": right.name})

    def reshape(self, x: Tile, shape: Sequence[int]) -> Tile:
        """The same elements in row-major order, in another shape."""
        if tuple(shape) == x.shape:
            return x
        return self._value("reshape", (x,), {}, TensorType(x.dtype, tuple(shape)))

    def expand(self, x: Tile, axis: int) -> Tile:
        """A tile with one more axis, of size 1."""
        return self.reshape(x, (*x.shape[:axis], 1, *x.shape[axis:]))

    def broadcast(self, x: Tile, shape: Sequence[int]) -> Tile:
        """A tile repeated along its axes of size 1, or a scalar everywhere."""
        if tuple(shape) == x.shape:
            return x
        return self._value("broadcast", (x,), {}, TensorType(x.dtype, tuple(shape)))

    def transpose(self, x: Tile) -> Tile:
        """Rows as columns."""
        return self._value("transpose", (x,), {})

    def take(self, x: Tile, place: Tile) -> Tile:
        """The elements of a tile at places in it, which must be inside: of other threads, on a GPU."""
        return self._value("take", (x, place), {})

    def count(self, x: Tile, size: int) -> Tile:
        """How many elements of an i32 tile are 0, 1, ... size - 1; others are not counted."""
        return self._value("count", (x,), {"size": size})

    def exchange(
        self, tiles: Sequence[Tile], shape: Sequence[int], order: Sequence[int], count: int
    ) -> tuple[Tile, ...]:
        """Elements of several tiles as those of other tiles: on a GPU, threads exchange what they hold.

        The number of a tile and the place in it are split into axes of a shape; in the order given, the
        first of them number `count` tiles of the result, and the others are places.
        """
        attributes = {"shape": tuple(shape), "order": tuple(order), "count": count}
        return self._append("exchange", tiles, attributes)


def _box(
    at: Sequence[Size], extent: Sequence[int], axes: Sequence[int] | None, masked: Sequence[int]
) -> dict[str, Any]:
    kept = tuple(range(len(extent)) if axes is None else axes)
    return {"at": tuple(at), "extent": tuple(extent), "axes": kept, "masked": tuple(masked)}


class Loop:
    """A loop being written."""

    def __init__(self, name: str, carried: tuple[Tile, ...]):
        self.name, self.carried = name, carried
        self.outputs: Sequence[Tile] = carried
        self.results: tuple[Tile, ...] = ()

    @property
    def variable(self) -> Dim:
        """The counter."""
        return symbol(self.name)

    def carry(self, *outputs: Tile) -> None:
        """Say what the next iteration gets, and the loop returns at its end."""
        self.outputs = outputs
