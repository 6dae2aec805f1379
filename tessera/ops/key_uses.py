"""Which keys were drawn from: under ts.checked() a key that gives the same numbers twice is an error."""

from __future__ import annotations

import threading
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from tessera.core.errors import OperandError
from tessera.core.flags import checked_block
from tessera.core.held import held
from tessera.core.source import Location, caller
from tessera.ir.graph.ir import Value, host_data

_FOLD = 2  # the purpose of random_bits that folds a number in
_DEEPEST = 8  # nodes between a key and what it was picked from


@dataclass(frozen=True)
class KeyUse:
    """A use of a key: by which op, how the key came to be, and where."""

    op: str
    key: str
    location: Location | None

    def __str__(self) -> str:
        return f"{self.op} from {self.key}" + (f" at {self.location}" if self.location else "")


class _Uses(threading.local):
    """The uses of keys within one block of ts.checked()."""

    block: object | None = None
    places: dict[Any, tuple[str, Location | None]]
    kept: list[Value]  # whose identities are in `places`
    own: bool = False  # whether Tessera draws for itself
    record: list[KeyUse] | None = None  # of a block of recording()


_USES = _Uses()


def own_draws() -> AbstractContextManager[None]:
    """Let Tessera draw from keys of its own, again and again, such as the probes of a check."""
    return held(_USES, "own", True)


def recording(record: list[KeyUse]) -> AbstractContextManager[None]:
    """Note every use of a key in a block."""
    return held(_USES, "record", record)


def origin(v: Value, deep: int = 32) -> str:
    """How a key came to be: a seed, an argument, or what it was split or folded from."""
    if v.storage is not None:
        return _seed(host_data(v))
    if v.node is None or not deep:
        return f"argument {v}"
    n = v.node
    if n.op.name == "constant":
        return _seed(n.params["value"].array)
    if n.op.name == "random_bits":
        made = origin(n.operands[0], deep - 1)
        folded = f", {origin(n.operands[2], deep - 1).removeprefix('seed ')}"
        return f"fold_in({made}{folded})" if n.params["purpose"] == _FOLD else f"split({made})"
    return origin(n.operands[0], deep - 1) if n.operands else n.op.name


def _seed(words: Any) -> str:
    """The seed of a key's two words, low one first; of one word: itself."""
    flat = words.reshape(-1).tolist()
    return f"seed {flat[0] + (flat[1] << 32) if len(flat) == 2 else flat[0]}"


def note_use(op: str, key: Value, purpose: str, draw: int) -> None:
    """Refuse a second draw of the same numbers from a key, in a block of ts.checked()."""
    block, record = checked_block(), _USES.record
    if record is not None and not _USES.own:
        record.append(KeyUse(op, origin(key), caller()))
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
            f"{op}: the key was already used by {first[0]}{where}, so that both draw the same numbers; give "
            "each a key of "
            "its own with ts.split(key)"
        )
    _USES.places[use] = op, caller()


def _identity(v: Value, deep: int) -> Any:
    """What tells keys apart: their words, or how they were made."""
    if v.storage is not None:
        return host_data(v).tobytes()
    if v.node is None or not deep:
        return id(v)
    if v.node.op.name == "constant":
        return v.node.params["value"].array.tobytes()
    made = tuple(_identity(x, deep - 1) for x in v.node.operands)
    return v.node.op.name, str(sorted(v.node.params.items(), key=str)), v.index, made
