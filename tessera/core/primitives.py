"""The primitives: every computation that the targets know beside loop nests."""

from __future__ import annotations

from tessera.core.convolutions import CONVOLUTIONS
from tessera.core.copies import COPIES
from tessera.core.draws import DRAWS
from tessera.core.filters import FILTERS
from tessera.core.movement import MOVEMENT
from tessera.core.pairs import COMPLEX
from tessera.core.primitive import Definition, Params, Types
from tessera.core.scans import SCANS
from tessera.core.scatters import SCATTERS
from tessera.core.sorts import SORTS
from tessera.core.transforms import TRANSFORMS
from tessera.core.writes import WRITES

PRIMITIVES: dict[str, Definition] = {
    d.name: d
    for d in (
        *COPIES,
        *SCANS,
        *SCATTERS,
        *SORTS,
        *TRANSFORMS,
        *COMPLEX,
        *CONVOLUTIONS,
        *FILTERS,
        *DRAWS,
        *WRITES,
        *MOVEMENT,
    )
}


def is_primitive(name: str | None, types: Types, params: Params) -> bool:
    """Whether a call of this name on operands of these types is a primitive."""
    return name in PRIMITIVES and PRIMITIVES[name].supports(types, params)
