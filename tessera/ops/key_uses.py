"""Which keys were drawn from: under ts.checked() a key that gives the same numbers twice is an error."""

from __future__ import annotations

import threading
from contextlib import AbstractContextManager
from typing import Any

from tessera.core.errors import OperandError
from tessera.core.flags import checked_block
from tessera.core.held import held
from tessera.core.source import Location, caller
from tessera.ir.graph.ir import Value, host_data

_DEEPEST = 8  # nodes between a key and what it was picked from


class _Uses(threading.local):
    """The uses of keys within one block of ts.checked()."""

    block: object | None = None
    places: dict[Any, tuple[str, Location | None]]
    kept: list[Value]  # whose identities are in `places`
    own: bool = False  # whether Tessera draws for itself


_USES = _Uses()


def own_draws() -> AbstractContextManager[None]:
    """Let Tessera draw from keys of its own, again and again, such as the probes of a check."""
    return held(_USES, "own", True)


def note_use(op: str, key: Value, purpose: str, draw: int) -> None:
    """Refuse a second draw of the same numbers from a key, in a block of ts.checked()."""
    block = checked_block()
    if block is None or _USES.own:
        return
    if _USES.block is not block:
        _USES.block, _USES.places, _USES.kept = block, {}, []
    _USES.kept.append(key)
    use = (_identity(key, _DEEPEST), purpose, draw)
    first = _USES.places.get(use)
    if first is not None:
        where = f" at {first[1].file}:{first[1].line}" if first[1] else ""
        raise OperandError(
            f"{op}: the key was already used by {first[0]}{where}, so that both draw the same numbers; give each a key of "
            "its own with ts.split(key)"
        )
    _USES.places[use] = op, caller()


def _identity(v: Value, deep: int) -> Any:
    """What tells keys apart: their words, or how they were made."""
    if v.data is not None:
        return host_data(v).tobytes()
    if v.node is None or not deep:
        return id(v)
    if v.node.op.name == "constant":
        return v.node.params["value"].array.tobytes()
    made = tuple(_identity(x, deep - 1) for x in v.node.operands)
    return v.node.op.name, str(sorted(v.node.params.items(), key=str)), v.index, made
