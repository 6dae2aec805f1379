"""The table of primitives: what makes the kernels of each one."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tessera.core.types import TensorType
from tessera.ir.schedule.ir import Primitive
from tessera.ir.tile.cpu.complexes import COMPLEX
from tessera.ir.tile.cpu.conv.convolution import CONVOLUTIONS
from tessera.ir.tile.cpu.conv.pools import POOLS
from tessera.ir.tile.cpu.copies import COPIES
from tessera.ir.tile.cpu.draws import DRAWS
from tessera.ir.tile.cpu.fft import TRANSFORMS
from tessera.ir.tile.cpu.filter import FILTERS
from tessera.ir.tile.cpu.movement import MOVEMENT
from tessera.ir.tile.cpu.scan import SCANS
from tessera.ir.tile.cpu.scatter import SCATTERS
from tessera.ir.tile.cpu.search import SEARCHES
from tessera.ir.tile.cpu.small_matrices import SMALL_MATRICES
from tessera.ir.tile.cpu.sort import SORTS
from tessera.ir.tile.cpu.writes import WRITES
from tessera.ir.tile.launch import Expansion

# From the name of a primitive to a function of the step and the types of all buffers.
LOWERINGS: dict[str, Callable[[Primitive, Mapping[str, TensorType]], Expansion]] = {
    **COPIES,
    **SCANS,
    **SCATTERS,
    **SORTS,
    **TRANSFORMS,
    **COMPLEX,
    **CONVOLUTIONS,
    **FILTERS,
    **DRAWS,
    **WRITES,
    **MOVEMENT,
    **POOLS,
    **SMALL_MATRICES,
    **SEARCHES,
}


def lower_primitive(step: Primitive, types: Mapping[str, TensorType]) -> Expansion:
    """The kernels of a primitive."""
    return LOWERINGS[step.primitive](step, types)
