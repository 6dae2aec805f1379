"""Schedule IR: buffers, stages, kernels, and the order in which they run.

A stage says what is computed at each point of its axes: a term over reads of buffers and of earlier
stages, folded over its reduced axes.  A kernel is a list of stages that share their row axes, so
that one program instance computes all of them for one row.  A program is a list of kernels, of
primitives and of calls to host functions.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from tessera.core.constraints import Guard
from tessera.core.dims import Dim, Size, substitute, symbol
from tessera.core.dtype import FORMATS, DType, bool_, f32, i64
from tessera.core.picture import Pictured
from tessera.core.provided import Provided
from tessera.core.scalar import REINTERPRETS, TESTS, Number
from tessera.core.source import Location
from tessera.core.types import TensorType
from tessera.ir.graph.ir import Node
from tessera.ir.schedule.nests.nest import Nest


@dataclass(frozen=True)
class Axis:
    """A loop: its variable and how often it runs."""

    name: str
    size: Size

    @property
    def variable(self) -> Dim:
        """The number of the iteration."""
        return symbol(self.name)


@dataclass(frozen=True)
class Buffer:
    """A tensor in memory."""

    name: str
    type: TensorType


@dataclass(frozen=True)
class Term:
    """A scalar expression: what is computed at one point."""

    dtype: DType

    def children(self) -> tuple[Term, ...]:
        """The terms inside."""
        return ()

    def at(self, env: Mapping[str, Size]) -> Term:
        """This term with its axes replaced."""
        raise AssertionError(self)


@dataclass(frozen=True)
class Read(Term):
    """An element of a buffer or of an earlier stage, at sizes or at places that are data."""

    source: str
    index: tuple[Any, ...]  # a Size, or an i64 Term where data says the place

    def children(self) -> tuple[Term, ...]:
        return tuple(i for i in self.index if isinstance(i, Term))

    def at(self, env: Mapping[str, Size]) -> Read:
        moved = (i.at(env) if isinstance(i, Term) else substitute(i, env) for i in self.index)
        return Read(self.dtype, self.source, tuple(moved))

    def __str__(self) -> str:
        places = (f"@{i}" if isinstance(i, Term) else str(i) for i in self.index)
        return f"{self.source}[{', '.join(places)}]"


@dataclass(frozen=True)
class Literal(Term):
    """A number."""

    value: Number

    def at(self, env: Mapping[str, Size]) -> Literal:
        return self

    def __str__(self) -> str:
        plain = self.dtype is default_dtype(self.value)
        return repr(self.value) if plain else f"{self.value!r}:{self.dtype}"


def default_dtype(value: Number) -> DType:
    """What a number is taken for when the text does not say it."""
    return {bool: bool_, int: i64}.get(type(value), f32)


@dataclass(frozen=True)
class Position(Term):
    """A size or an index as a number."""

    value: Size

    def at(self, env: Mapping[str, Size]) -> Position:
        return Position(self.dtype, substitute(self.value, env))

    def __str__(self) -> str:
        return f"({self.value})"


@dataclass(frozen=True)
class Apply(Term):
    """A scalar op on terms."""

    scalar: str
    operands: tuple[Term, ...]

    def children(self) -> tuple[Term, ...]:
        return self.operands

    def at(self, env: Mapping[str, Size]) -> Apply:
        return Apply(self.dtype, self.scalar, tuple(t.at(env) for t in self.operands))

    def __str__(self) -> str:
        return f"{self.scalar}({', '.join(map(str, self.operands))})"


def result_dtype(scalar: str, operands: Sequence[Term]) -> DType:
    """The dtype that a scalar op gives."""
    if scalar in TESTS:
        return bool_
    first = operands[1 if scalar == "where" else 0].dtype
    return FORMATS[REINTERPRETS[scalar][first.name]] if scalar in REINTERPRETS else first


@dataclass(frozen=True)
class Cast(Term):
    """A term in another dtype."""

    operand: Term

    def children(self) -> tuple[Term, ...]:
        return (self.operand,)

    def at(self, env: Mapping[str, Size]) -> Cast:
        return Cast(self.dtype, self.operand.at(env))

    def __str__(self) -> str:
        return f"{self.dtype}({self.operand})"


def walk(term: Term) -> Iterator[Term]:
    """A term and every term inside."""
    waiting = [term]
    while waiting:
        t = waiting.pop()
        yield t
        waiting += t.children()[::-1]


def reads(term: Term) -> Iterator[Read]:
    """Every read in a term."""
    return (t for t in walk(term) if isinstance(t, Read))


def with_reads(t: Term, change: Callable[[Read], Term]) -> Term:
    """A term whose reads are replaced."""
    match t:
        case Read():
            inner = (with_reads(i, change) if isinstance(i, Term) else i for i in t.index)
            return change(replace(t, index=tuple(inner)))
        case Apply():
            return replace(t, operands=tuple(with_reads(o, change) for o in t.operands))
        case Cast():
            return replace(t, operand=with_reads(t.operand, change))
    return t


@dataclass(frozen=True)
class Stage:
    """stage[axes] = fold over the reduced axes of the term (the term itself when none is)."""

    name: str
    axes: tuple[Axis, ...]
    reduced: tuple[Axis, ...]
    combine: str | None
    term: Term
    location: Location | None = field(default=None, compare=False)

    @property
    def dtype(self) -> DType:
        return self.term.dtype

    @property
    def type(self) -> TensorType:
        """The tensor that the stage is."""
        return TensorType(self.dtype, tuple(a.size for a in self.axes))

    def __str__(self) -> str:
        head = f"{self.name}[{', '.join(f'{a.name}<{a.size}' for a in self.axes)}]: {self.dtype}"
        if self.combine is None:
            return f"{head} = {self.term}"
        over = ", ".join(f"{a.name}<{a.size}" for a in self.reduced)
        return f"{head} = {self.combine} over {over} of {self.term}"


@dataclass(frozen=True)
class KRange:
    """That a factor of a contraction is 0 before or after some k, which therefore need not be read.

    first: only k >= axis + offset count; last: only k <= axis + offset do.  The axis is m or n.
    """

    side: str
    axis: str
    offset: Size

    def __str__(self) -> str:
        return f"{self.side} k at {self.axis} + {self.offset}"


LAW, ANY = "law", "any"


@dataclass(frozen=True)
class Kernel:
    """Stages that share their first `rows` axes; an instance computes all of them for one row."""

    name: str
    rows: int
    stages: tuple[Stage, ...]
    outputs: tuple[str, ...]  # stages that are written to the buffer of the same name
    nest: Nest | None = None  # the loops that compute it; None: those of choose.default_nest
    seen: tuple[KRange, ...] = ()  # which k of a contraction count
    order: str = LAW  # of its folds: that of core/folds.py, or any
    tile: tuple[int, int, int] | None = (
        None  # rows, columns and depth of a block that the user asked for; 0: as the compiler likes
    )
    asked: str = ""  # settings of the user's schedule, as JSON, before they are assigned

    @property
    def contracts(self) -> bool:
        """Whether the first stage is a contraction: a sum of products over two axes beside the rows."""
        s = self.stages[0]
        product = isinstance(s.term, Apply) and s.term.scalar == "mul"
        return s.combine == "add" and len(s.axes) == self.rows + 2 and product

    def inputs(self) -> list[str]:
        """The buffers that the kernel reads, in order of first use."""
        return list(self._inputs)

    @cached_property
    def _inputs(self) -> tuple[str, ...]:
        """Asked for by every other kernel that may join this one."""
        own = {s.name for s in self.stages}
        found = [r.source for s in self.stages for r in reads(s.term) if r.source not in own]
        return tuple(dict.fromkeys(found))

    def __str__(self) -> str:
        lines = [f"kernel {self.name}, rows {self.rows}, writes {', '.join(self.outputs)}"]
        lines[0] += "" if self.order == LAW else f", folds in {self.order} order"
        lines += [] if self.nest is None else [f"  nest {self.nest}"]
        lines += [] if self.tile is None else [f"  tile {' by '.join(map(str, self.tile))}"]
        lines += [f"  asked {self.asked}"] if self.asked else []
        return "\n".join([*lines, *(f"  {s}" for s in self.stages)])


@dataclass(frozen=True)
class HostCall:
    """An op that runs on the host, on whole tensors."""

    node: Node
    operands: tuple[str, ...]
    results: tuple[str, ...]

    def __str__(self) -> str:
        return f"host {self.node.op.name}({', '.join(self.operands)}) -> {', '.join(self.results)}"


@dataclass(frozen=True)
class Primitive:
    """A computation of core/primitives.py on whole tensors, which the target has kernels for.

    Its epilogue computes every point of the results from the same point of what the primitive makes, which
    then exists in this step alone, and from tensors that stand behind the primitive's own operands.
    """

    name: str
    primitive: str
    params: Mapping[str, Any]
    operands: tuple[str, ...]
    results: tuple[str, ...]
    location: Location | None = field(default=None, compare=False)
    order: str = LAW  # any: products and sums may be fused
    epilogue: Kernel | None = None
    made: str = ""  # what the primitive makes, under the name that the epilogue reads

    @property
    def own(self) -> tuple[str, ...]:
        """The operands of the primitive itself."""
        return self.operands[: len(self.operands) - len(self.others)]

    @property
    def others(self) -> tuple[str, ...]:
        """The tensors that the epilogue reads beside."""
        if self.epilogue is None:
            return ()
        return tuple(n for n in self.epilogue.inputs() if n != self.made)

    def __str__(self) -> str:
        given = "".join(f", {k}={self.params[k]}" for k in sorted(self.params))
        called = f"{self.primitive}({', '.join(self.own)}{given})"
        order = "" if self.order == LAW else f", in {self.order} order"
        made = self.made or ", ".join(self.results)
        line = f"primitive {self.name}: {called} -> {made}{order}"
        if self.epilogue is None:
            return line
        return "\n".join([line, *(f"  {x}" for x in str(self.epilogue).split("\n"))])


@dataclass(frozen=True)
class Group:
    """Kernels that run together, block by block of their rows: what passes between stays close.

    They share `rows` leading axes, the last of which is cut into blocks; a kernel reads what an
    earlier one makes at its own rows only.  What is not among the outputs exists in the group alone.
    """

    name: str
    rows: int
    kernels: tuple[Kernel, ...]
    outputs: tuple[str, ...]

    def inputs(self) -> list[str]:
        """The buffers that the group reads, in order of first use."""
        own = {s.name for k in self.kernels for s in k.stages}
        found = [name for k in self.kernels for name in k.inputs() if name not in own]
        return list(dict.fromkeys(found))

    @property
    def from_scores(self) -> tuple[Kernel, ...]:
        """The kernels from the first contraction on; one before it makes its left factor."""
        return self.kernels if self.kernels[0].contracts else self.kernels[1:]

    @property
    def stages(self) -> tuple[Stage, ...]:
        """The stages of all kernels."""
        return tuple(s for k in self.kernels for s in k.stages)

    @property
    def local(self) -> dict[str, TensorType]:
        """What exists in the group alone."""
        made = {s.name: s.type for k in self.kernels for s in k.stages if s.name in k.outputs}
        return {name: t for name, t in made.items() if name not in self.outputs}

    def __str__(self) -> str:
        lines = [f"group {self.name}, rows {self.rows}, writes {', '.join(self.outputs)}"]
        return "\n".join(
            [*lines, *(f"  {line}" for k in self.kernels for line in str(k).split("\n"))]
        )


Step = Kernel | Group | Primitive | HostCall


@dataclass(frozen=True)
class Program(Pictured):
    """Buffers and steps; inputs and outputs name buffers."""

    name: str
    buffers: Mapping[str, Buffer]
    steps: tuple[Step, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    captured: tuple[Any, ...] = ()
    guards: Sequence[Guard] = ()

    @cached_property
    def text(self) -> str:
        """The canonical text: MLIR generic syntax, without locations and captured data."""
        return CANONICAL_TEXT.get()(self)

    @cached_property
    def hash(self) -> str:
        """SHA-256 of the canonical text: the identity of the program."""
        return hashlib.sha256(self.text.encode()).hexdigest()

    def __str__(self) -> str:
        return self.text

    @property
    def readable(self) -> str:
        """The program for people to read; it leaves out what runs do not show, so nothing parses it."""
        lines = [f"program {self.name}"]
        lines += [f"  {b.name}: {b.type}" for b in self.buffers.values()]
        lines += ["  " + line for s in self.steps for line in str(s).split("\n")]
        return "\n".join([*lines, f"  returns {', '.join(self.outputs)}"])


CANONICAL_TEXT: Provided[Callable[[Program], str]] = Provided(
    "schedule text", "the canonical text of a program"
)
