"""What names in a kernel stand for: tiles with the places of their elements, tensors, spans, blocks.

A tile knows, for each of its axes, which elements of a tensor it holds.  So a sum leaves out what is past
the end, and a result knows where it belongs.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tessera.core.dims import Shape, Size, symbols
from tessera.core.dtype import DType
from tessera.core.errors import TesseraError
from tessera.core.scalar import Number
from tessera.core.types import TensorType
from tessera.ir.tile.ir import Memory, Tile


class KernelError(TesseraError, ValueError):
    """A kernel says something that tiles cannot do."""


@dataclass(frozen=True)
class Moved:
    """Data in a place: how far it is moved, and where it ends before its axis does."""

    by: Tile | None = field(default=None, compare=False)  # an i64 number
    until: Tile | None = field(default=None, compare=False)
    key: Any = None  # what two places are compared by


@dataclass(frozen=True)
class AxisElements:
    """Elements `start`, `start + 1`, ... of an axis of `size` elements.

    Tiles of different places that meet, and edges that are reshaped, leave no place: `lost` says why, and
    whatever needs the place refuses.
    """

    size: Size
    first: Size = 0
    exact: bool = False  # whether none of them lies outside
    lost: str | None = None
    moved: Moved | None = None  # data that the place depends on

    @property
    def start(self) -> Size:
        """The first element; an error where the place is lost, or is data."""
        if self.lost is not None:
            raise KernelError(f"{self.lost}; {_PLACE_IT}")
        if self.moved is not None:
            raise KernelError(
                "a tile that was loaded at a place that is data has no place of its own in a result; "
                + _PLACE_IT
            )
        return self.first

    def symbols(self) -> frozenset[str]:
        """The counters that the place depends on, none where it is lost."""
        return frozenset() if self.lost is not None else symbols(self.first)


_PLACE_IT = (
    "say where it lies by tile.place(x, like), drop its place by tile.place(x, None), "
    "or store it with at="
)


def meet(a: AxisElements, b: AxisElements) -> AxisElements:
    """The axis of what is computed from two tiles: where both lie, or nowhere."""
    if a.lost is not None or b.lost is not None:
        known = a if a.lost is not None else b
        return AxisElements(a.size, 0, a.exact and b.exact, known.lost)
    if a.size != b.size:  # both lie inside: part of a long axis beside a short one
        sizes = " and ".join(map(str, sorted((a.size, b.size), key=str)))
        return AxisElements(
            a.size, 0, True, f"tiles of axes of {sizes} elements have no place together"
        )
    if a.first == b.first and a.moved == b.moved:
        return a if not a.exact else b
    low, high = sorted((_words(a), _words(b)))
    said = f"tiles that start at {low} and at {high} of an axis of {a.size} have no place together"
    return AxisElements(a.size, 0, a.exact and b.exact, said)


def _words(a: AxisElements) -> str:
    return str(a.first) if a.moved is None else "a place that is data"


Axes = tuple[AxisElements | None, ...]  # None: no elements of a tensor
Pads = tuple[Number | None, ...]  # what lies past the end of an axis, where that is known


@dataclass(frozen=True, eq=False)
class TileValue:
    """A tile, where its elements belong, and what the elements past the end hold."""

    tile: Tile
    axes: Axes
    pads: Pads
    constant: Number | None = None  # set when all elements are this number

    @property
    def type(self) -> TensorType:
        """Dtype and sizes."""
        return self.tile.type

    @property
    def dtype(self) -> DType:
        """What the elements are."""
        return self.tile.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes, all numbers."""
        return self.tile.shape

    @property
    def rank(self) -> int:
        """How many axes."""
        return len(self.tile.shape)

    def __repr__(self) -> str:
        return f"tile {self.type}"

    def __bool__(self) -> bool:
        raise KernelError(
            f"{self} is known when the kernel runs, not before; use tile.where or an if statement"
        )


class RunTimeCount(TileValue):
    """A whole number that is known when the kernel runs, and meets tiles as a number of Python does."""


@dataclass(frozen=True, eq=False)
class KernelArray:
    """A tensor that a kernel is called with, or scratch."""

    name: str
    memory: Memory
    parameter: bool = True
    attributes: dict[str, Any] = field(default_factory=dict)

    @property
    def shape(self) -> Shape:
        """Sizes, numbers or symbolic."""
        return self.memory.type.shape

    @property
    def dtype(self) -> DType:
        """What the elements are."""
        return self.memory.type.dtype

    @property
    def ndim(self) -> int:
        """How many axes."""
        return len(self.shape)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        raise AttributeError(
            f"{self} is a tensor in memory and has no {name!r}; it has shape, dtype and ndim, and tile.load "
            "gives a tile of it"
        )

    def __repr__(self) -> str:
        return f"{self.name}: {self.memory.type}"


@dataclass(frozen=True)
class Struct:
    """An argument that holds several tensors, such as a KVCache."""

    name: str
    fields: dict[str, Any]

    def __getattr__(self, name: str) -> Any:
        fields: dict[str, Any] = self.__dict__["fields"]
        if name in fields:
            return fields[name]
        raise AttributeError(f"{self.__dict__['name']} has no {name!r}")


@dataclass(frozen=True)
class AxisSpan:
    """`length` elements of an axis from `start` on."""

    size: Size
    start: Size
    length: int
    exact: bool = False
    moved: Moved | None = None

    @property
    def axis(self) -> AxisElements:
        """As an axis of a tile."""
        return AxisElements(self.size, self.start, self.exact, None, self.moved)


class BlockSize(int):
    """A block size of the schedule: a number that knows which axis it cuts."""

    role: str

    def __new__(cls, value: int, role: str) -> BlockSize:
        made = super().__new__(cls, value)
        made.role = role
        return made


@dataclass(frozen=True)
class LoopRange:
    """What a for statement runs over: positions, or spans of an axis."""

    start: Size
    stop: Size
    step: int
    variable: Callable[[Any], Any]  # what the loop variable is, of the counter
    ahead: int | None = None  # rounds ahead that tiles of the loop are asked for
    bound: TileValue | None = None  # where data end the counter before its stop


class _LiveNumber(threading.local):
    session: Any = None  # the instance that is being stepped through, if any


LIVE = _LiveNumber()


class Restart(Exception):
    """Parsing must begin again, knowing more of the sizes."""


class NeedNumber(Restart):
    """The number of a symbolic size is needed: the kernel is made for it."""

    def __init__(self, name: str):
        super().__init__(name)
        self.name = name


class NeedGrid(Restart):
    """What the kernel says has a place for each instance: it is parsed knowing their number."""

    def __init__(self, grid: tuple[tuple[str, Size], ...]):
        super().__init__(grid)
        self.grid = grid


class NeedEqual(Restart):
    """Two sizes that nobody named are the same one."""

    def __init__(self, name: str, other: Size):
        super().__init__(name)
        self.name, self.other = name, other
