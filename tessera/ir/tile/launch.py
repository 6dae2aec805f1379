"""Launches: the kernels that a step of the Schedule IR becomes, and the buffers they run on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tessera.core.tables import Table
from tessera.core.types import TensorType
from tessera.ir.tile.ir import Kernel


@dataclass(frozen=True)
class Threads:
    """How a GPU runs the blocks of a kernel: what does not change its results."""

    warps: int = 4
    stages: int | None = None  # steps of a loop that overlap
    descriptors: bool = False  # whether factors of products are fetched as boxes of memory
    approximate: bool = False  # whether functions are the GPU's own instructions
    roles: bool = False  # whether one group of threads fetches what others multiply (Hopper)
    early: bool = False  # whether it begins before the last launch ends, and waits for that itself
    ahead: bool = False  # whether it fetches a matrix that nothing writes before it waits
    registers: int | None = (
        None  # of a thread, at most, where more blocks are to run beside each other (NVIDIA)
    )
    # Whether Triton gives the warps of loops roles, which their source says.
    specialise: bool = field(default=False, repr=False)


def threads_said(said: Sequence[int]) -> Threads:
    """Launch options of a user's kernel: warps, stages, and TMA, warp roles and registers if asked for."""
    warps, stages, tma, specialise, registers = (*said, 0, 0, 0)[:5]
    return Threads(
        warps,
        stages,
        descriptors=bool(tma),
        registers=registers or None,
        specialise=bool(specialise),
    )


@dataclass(frozen=True)
class Launch:
    """A kernel and the buffer of each of its parameters: those that it reads, then those it makes.

    A parameter sees its buffer in row-major order in its own shape, which may be another one of as
    many elements, and complex numbers as pairs of real ones.
    """

    kernel: Kernel
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    threads: Threads = Threads()  # on a GPU


@dataclass(frozen=True)
class Expansion:
    """Kernels that run one after another, the tensors that exist between them, and their tables."""

    launches: tuple[Launch, ...]
    between: Mapping[str, TensorType] = field(default_factory=dict)
    tables: Mapping[str, Table] = field(default_factory=dict)  # by the names that launches read

    def named(self, step: str) -> list[tuple[str, Kernel]]:
        """The kernels under the name of their step, numbered when there are several."""
        kernels = [launch.kernel for launch in self.launches]
        if len(kernels) == 1:
            return [(step, kernels[0])]
        return [(f"{step}_{i}", k) for i, k in enumerate(kernels)]
