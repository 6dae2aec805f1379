"""The op of a hand-written kernel in a graph: its tensors go in, what it makes comes out.

The parameter `program` is the text of its Tile IR, so that a graph holds all that it computes; `threads`,
if there, says how many warps of a GPU run a block and how many steps of a loop overlap, which changes no
result.  What reads and runs such a text is above this layer: the package says how it is found.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from tessera.core.provided import Provided
from tessera.core.types import TensorType
from tessera.ir.graph.ir import Value
from tessera.ir.graph.op import Params, Types
from tessera.ops.define import define


@dataclass(frozen=True)
class Backward:
    """The kernel of a derivative: it takes operands, cotangents of the results, and zeros."""

    program: str
    zeros: tuple[TensorType, ...]
    gradients: tuple[tuple[int, int, int], ...]  # operand, result, leading axes to add up


@dataclass(frozen=True)
class TangentKernel:
    """The kernel that pushes tangents: it takes operands, and tangents of some of them."""

    program: str
    tangents: tuple[int, ...]  # the operands whose tangents it takes
    results: tuple[int | None, ...]  # for each result of the kernel, which one here is its tangent


class TileEngine(Protocol):
    """What knows Tile IR."""

    def types(self, program: str, operands: Types) -> Sequence[TensorType]:
        """The types of the results of a kernel for operands of these types."""

    def run(self, program: str, arrays: Sequence[Any]) -> tuple[Any, ...]:
        """The results of a kernel on arrays."""

    def backward(
        self, program: str, operands: Types, wanted: Sequence[bool], given: Sequence[bool]
    ) -> Backward:
        """The gradients of the wanted operands from the cotangents that are given."""

    def forward(self, program: str, count: int, moved: Sequence[bool]) -> TangentKernel:
        """The tangents of the results from those of the moved ones of `count` operands."""

    def updated(self, program: str, count: int) -> Sequence[int]:
        """Which of the first parameters a kernel stores to."""

    def loaded(self, program: str, count: int) -> Sequence[int]:
        """Which results a kernel loads too: their cotangents matter even where they are 0."""


ENGINE: Provided[Callable[[], TileEngine]] = Provided(
    "tile engine", "what reads and runs Tile IR inside a graph, found when a kernel is first met"
)


def engine() -> TileEngine:
    """What reads and runs Tile IR."""
    return ENGINE.get()()


def _types(types: Types, p: Params) -> Sequence[TensorType]:
    return engine().types(p["program"], types)


def _run(*xs: Any, program: str, threads: Any = None) -> tuple[Any, ...]:
    return engine().run(program, xs)


@define(infer=_types, multiple=True, call="kernel", moves=True, numpy=_run, kinds="buif")
def kernel(
    *operands: Value, program: str, threads: tuple[int, ...] | None = None
) -> tuple[Value, ...]:
    """The results of a hand-written kernel, whose Tile IR is given as text."""
    more = {} if threads is None else {"threads": threads}
    return kernel.bind_many(*operands, program=program, **more)
