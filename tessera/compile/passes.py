"""What a pass is: a named step from IR to IR at one of the four levels."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:  # the numpy target prints nothing
    from tessera.ir.target.triton.emit_source import Texts
    from tessera.ir.target.triton.triton_source import Device
    from tessera.runtime.code import ModuleBuilder

GRAPH: Final = "graph"
SCHEDULE: Final = "schedule"
TILE: Final = "tile"
TARGET: Final = "target"
LEVELS = (GRAPH, SCHEDULE, TILE, TARGET)


@dataclass(frozen=True)
class Context:
    """What a pass may ask of the compilation beside the IR."""

    target: str = "cpu"  # as the user wrote it, such as cuda:sm_90
    numerics: str = "deterministic"
    sizes: Mapping[str, int] = field(default_factory=dict)  # of a call, where they are known
    donated: frozenset[int] = frozenset()  # the numbers of the inputs whose memory may be used
    buckets: bool = False  # whether kernels of a GPU are to serve several sizes
    roles: bool = False  # whether groups of threads of the GPU may have roles
    device: Device | None = None  # what Triton builds for
    texts: Texts | None = None  # what was printed already
    schedules: tuple[tuple[str, str], ...] = ()  # the user's, by the names of kernels
    loading: ModuleBuilder | None = None  # where machine code is built


@dataclass(frozen=True)
class Pass:
    """One line of a pipeline.

    A pass of the Graph and Schedule levels takes a whole program; one of the Tile level takes a unit
    (ir/tile/unit.py) and one of the Target level the code of a launch (ir/target/code.py), kernel by kernel.
    """

    level: str
    name: str
    run: Callable[..., Any]
    about: str
    given: tuple[str, ...] = ()  # the fields of Context that `run` takes after the IR
    batch: bool = False  # whether it takes all kernels at once
    when: Callable[[Context], bool] | None = None  # whether it runs at all; None: always

    def runs(self, c: Context) -> bool:
        """Whether the pass is part of such a compilation."""
        return self.when is None or self.when(c)


def is_fast(c: Context) -> bool:
    """Whether folds may have any order."""
    return c.numerics == "fast"


def has_roles(c: Context) -> bool:
    """Whether groups of threads may have roles."""
    return c.roles
