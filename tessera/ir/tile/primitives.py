"""The table of primitives: what makes the kernels of each one."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tessera.core.types import TensorType
from tessera.ir.schedule.ir import Primitive
from tessera.ir.tile.complexes import COMPLEX
from tessera.ir.tile.convolution import CONVOLUTIONS
from tessera.ir.tile.copies import COPIES
from tessera.ir.tile.draws import DRAWS
from tessera.ir.tile.fft import TRANSFORMS
from tessera.ir.tile.filter import FILTERS
from tessera.ir.tile.launch import Expansion
from tessera.ir.tile.movement import MOVEMENT
from tessera.ir.tile.pools import POOLS
from tessera.ir.tile.scan import SCANS
from tessera.ir.tile.scatter import SCATTERS
from tessera.ir.tile.sort import SORTS
from tessera.ir.tile.writes import WRITES

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
}


def lower_primitive(step: Primitive, types: Mapping[str, TensorType]) -> Expansion:
    """The kernels of a primitive."""
    return LOWERINGS[step.primitive](step, types)
