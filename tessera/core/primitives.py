"""The primitives: every computation that the targets know beside loop nests."""

from __future__ import annotations

from typing import Any

from tessera.core.convolutions import CONVOLUTIONS
from tessera.core.copies import COPIES
from tessera.core.dims import Dim, substitute, symbols
from tessera.core.draws import DRAWS
from tessera.core.filters import FILTERS
from tessera.core.movement import MOVEMENT
from tessera.core.pairs import COMPLEX
from tessera.core.pools import POOLS
from tessera.core.primitive import Definition, Params, Types
from tessera.core.scans import SCANS
from tessera.core.scatters import SCATTERS
from tessera.core.searches import SEARCHES
from tessera.core.small_matrices import SMALL_MATRICES
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
        *POOLS,
        *SMALL_MATRICES,
        *SEARCHES,
    )
}


def is_primitive(name: str | None, types: Types, params: Params) -> bool:
    """Whether a call of this name on operands of these types is a primitive."""
    return name in PRIMITIVES and PRIMITIVES[name].supports(types, params)


_TRIED = (1, 2, 64)  # sizes that a symbol may turn out to be


def is_open(name: str | None, types: Types, params: Params) -> bool:
    """Whether sizes that are still symbols decide if such a call is a primitive."""
    if name not in PRIMITIVES or is_primitive(name, types, params):
        return False
    free = _free([t.shape for t in types]) | _free(tuple(params.values()))
    return any(
        _is_primitive_at(name, types, params, dict.fromkeys(free, n)) for n in _TRIED if free
    )


def _is_primitive_at(name: str, types: Types, params: Params, sizes: dict[str, int]) -> bool:
    known = {k: _at(v, sizes) for k, v in params.items()}
    return is_primitive(name, [t.substitute(sizes) for t in types], known)


def _free(x: Any) -> frozenset[str]:
    """The symbols in sizes, which may stand in tuples."""
    if isinstance(x, tuple | list):
        return frozenset().union(*map(_free, x))
    return frozenset(symbols(x)) if isinstance(x, Dim) else frozenset()


def _at(x: Any, sizes: dict[str, int]) -> Any:
    if isinstance(x, tuple):
        return tuple(_at(y, sizes) for y in x)
    return substitute(x, sizes) if isinstance(x, Dim) else x
