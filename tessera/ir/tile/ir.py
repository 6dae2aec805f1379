"""Tile IR: kernels, memories, and operations on tiles.

A kernel is one program that runs for every point of its grid.  It reads and writes memories: its
parameters in global memory, and scratch of its own.  Values are tiles: small arrays of static shape
(a scalar is a tile of shape ()).  Sizes and positions are polynomials over the sizes of the
parameters, the grid variables and the loop variables.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from tessera.core.dims import Dim, Shape, Size, symbol
from tessera.core.dtype import DType, bool_, i64
from tessera.core.errors import VerifyError
from tessera.core.scalar import Number
from tessera.core.source import Location
from tessera.core.types import TensorType

SPACES = ("global", "shared", "private")


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


def broadcast(op: str, shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    """The shape that tiles meet in: sizes are equal or 1, ranks are equal or 0."""
    rank = max(map(len, shapes), default=0)
    if any(len(s) not in (0, rank) for s in shapes):
        raise VerifyError(f"{op}: tiles of shapes {list(shapes)} differ in rank")
    out = []
    for column in zip(*(s for s in shapes if len(s) == rank), strict=True):
        sizes = {n for n in column if n != 1}
        if len(sizes) > 1:
            raise VerifyError(f"{op}: tiles of shapes {list(shapes)} do not broadcast")
        out.append(sizes.pop() if sizes else 1)
    return tuple(out)


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
        name = f"p{len(self.grid)}"
        self.grid.append((name, count))
        return symbol(name)

    def alloc(self, dtype: DType, shape: Shape, space: str = "private") -> Memory:
        """Scratch memory of this instance."""
        self._count += 1
        m = Memory(f"s{self._count}", TensorType(dtype, shape), space, True)
        self._emit("alloc", (), {"space": space}, (), m)
        return m

    @contextmanager
    def loop(
        self, start: Size, stop: Size, step: int = 1, carried: Sequence[Tile] = ()
    ) -> Iterator[Loop]:
        """A loop; inside, `loop.variable` counts and `loop.carried` holds the carried tiles."""
        self._count += 1
        inner = Loop(f"i{self._count}", tuple(Tile(t.type) for t in carried))
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
        op = Operation("for", carried, attributes, inner.results, None, block, self.location)
        self._blocks[-1].append(op)

    def finish(self) -> Kernel:
        """The kernel."""
        assert len(self._blocks) == 1
        block = Block((), tuple(self._blocks[0]), ())
        return Kernel(self.name, tuple(self.parameters), tuple(self.grid), block)

    def _emit(
        self,
        name: str,
        operands: Sequence[Tile],
        attributes: Mapping[str, Any],
        types: Sequence[TensorType],
        memory: Memory | None = None,
    ) -> tuple[Tile, ...]:
        results = tuple(Tile(t) for t in types)
        op = Operation(name, operands, attributes, results, memory, None, self.location)
        self._blocks[-1].append(op)
        return results

    # Memory

    def load(
        self,
        memory: Memory,
        at: Sequence[Size],
        extent: Sequence[int],
        axes: Sequence[int] | None = None,
        masked: Sequence[int] = (),
        fill: Number = 0,
    ) -> Tile:
        """The elements from `at` on; the tile keeps `axes` of the memory, in that order.

        Axes in `masked` may reach past the end of the memory: there the tile holds `fill`.
        """
        kept = tuple(range(len(extent)) if axes is None else axes)
        attributes = {
            "at": tuple(at), "extent": tuple(extent), "axes": kept, "masked": tuple(masked),
            "fill": fill,
        }  # fmt: skip
        shape = tuple(extent[a] for a in kept)
        return self._emit("load", (), attributes, [TensorType(memory.type.dtype, shape)], memory)[0]

    def store(
        self,
        memory: Memory,
        value: Tile,
        at: Sequence[Size],
        extent: Sequence[int],
        axes: Sequence[int] | None = None,
        masked: Sequence[int] = (),
    ) -> None:
        """Write a tile from `at` on; what reaches past the end along `masked` axes is dropped."""
        kept = tuple(range(len(extent)) if axes is None else axes)
        attributes = {
            "at": tuple(at), "extent": tuple(extent), "axes": kept, "masked": tuple(masked),
        }  # fmt: skip
        self._emit("store", (value,), attributes, (), memory)

    # Values

    def full(self, dtype: DType, shape: Sequence[int], value: Number) -> Tile:
        """A tile of one number."""
        return self._emit("full", (), {"value": value}, [TensorType(dtype, tuple(shape))])[0]

    def index(self, at: Size, shape: Sequence[int] = (), axis: int | None = None) -> Tile:
        """A position as an i64 tile: `at`, plus the element's own number along an axis if given."""
        attributes = {"at": at} | ({} if axis is None else {"axis": axis})
        return self._emit("index", (), attributes, [TensorType(i64, tuple(shape))])[0]

    def apply(self, scalar: str, *operands: Tile) -> Tile:
        """A scalar op on every element, after broadcasting."""
        shape = broadcast(scalar, [t.shape for t in operands])
        dtype = result_dtype(scalar, [t.dtype for t in operands])
        return self._emit("apply", operands, {"scalar": scalar}, [TensorType(dtype, shape)])[0]

    def cast(self, x: Tile, dtype: DType) -> Tile:
        """A tile in another dtype."""
        return (
            x if x.dtype is dtype else self._emit("cast", (x,), {}, [TensorType(dtype, x.shape)])[0]
        )

    def fold(self, scalar: str, x: Tile, axis: int) -> Tile:
        """A fold along an axis as a balanced tree; the axis stays, with size 1."""
        shape = (*x.shape[:axis], 1, *x.shape[axis + 1 :])
        attributes = {"scalar": scalar, "axis": axis}
        return self._emit("fold", (x,), attributes, [TensorType(x.dtype, shape)])[0]

    def reshape(self, x: Tile, shape: Sequence[int]) -> Tile:
        """A tile with axes of size 1 added or removed."""
        if tuple(shape) == x.shape:
            return x
        return self._emit("reshape", (x,), {}, [TensorType(x.dtype, tuple(shape))])[0]


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


_COMPARE = {"eq", "ne", "lt", "le", "gt", "ge", "is_nan", "is_inf", "is_finite", "signbit"}


def result_dtype(scalar: str, dtypes: Sequence[DType]) -> DType:
    """The dtype that a scalar op gives on operands of these dtypes."""
    if scalar in _COMPARE:
        return bool_
    if scalar == "where":
        return dtypes[1]
    first = dtypes[0]
    if any(d is not first for d in dtypes):
        raise VerifyError(f"{scalar}: operands {list(map(str, dtypes))} must be of one dtype")
    return first
