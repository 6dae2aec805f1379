"""Golden bits: digests of results that a file keeps, so that a change of a bit is seen."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import numpy as np

from tessera.core import tree
from tessera.core.blame import blames_arguments
from tessera.core.errors import FileError, located
from tessera.core.flags import flags
from tessera.testing.close import Array, CheckFailed, array_of

_SHOWN = 3  # numbers of a tensor that a record has, for people


@blames_arguments
def golden(
    path: str | os.PathLike[str], name: str, value: Any, *, update: bool | None = None
) -> None:
    """Raise unless a tree of tensors has the bits that a file has under this name.

    With `update`, or TESSERA_UPDATE_GOLDEN=1 in the environment, the file is written instead.  Under
    ts.numerics("strict") the bits are those of every machine, otherwise of one kind of CPU.
    """
    file = Path(path)
    known = _read(file)
    found = {
        place or "result": _record(array_of(x))
        for place, x in zip(tree.paths(value), tree.leaves(value), strict=True)
    }
    if flags().update_golden if update is None else update:
        known[name] = found
        file.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps(dict(sorted(known.items())), indent=1) + "\n"
        file.write_text(text, encoding="utf-8")
        return
    if name not in known:
        raise CheckFailed(
            f"golden: {file.name} has no record of '{name}'; write it with TESSERA_UPDATE_GOLDEN=1"
        )
    _compare(file.name, name, found, known[name])


def _read(file: Path) -> dict[str, Any]:
    if not file.exists():
        return {}
    try:
        found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as e:
        raise located(FileError(f"golden: {file} is not JSON that golden wrote ({e})")) from None
    return found


def _record(a: Array) -> dict[str, Any]:
    """What a file keeps of a tensor: enough to tell it from others, and some numbers to look at."""
    flat = np.ascontiguousarray(a).reshape(-1)
    first = [str(x) for x in flat[:_SHOWN]]
    return {
        "dtype": str(a.dtype), "shape": list(a.shape), "first": first,
        "sha256": hashlib.sha256(flat.tobytes()).hexdigest(),
    }  # fmt: skip


def _compare(file: str, name: str, found: dict[str, Any], known: dict[str, Any]) -> None:
    if found.keys() != known.keys():
        raise CheckFailed(
            f"golden: '{name}' of {file} has {', '.join(known)}, but the result has {', '.join(found)}"
        )
    for place, now in found.items():
        then = known[place]
        if now != then:
            which = "" if place == "result" else f" at {place}"
            raise CheckFailed(
                f"golden: '{name}'{which} has other bits than {file} says: {_said(now)} for {_said(then)}; "
                "if that is "
                "meant, write the file again with TESSERA_UPDATE_GOLDEN=1"
            )


def _said(r: dict[str, Any]) -> str:
    return f"{r['dtype']}{r['shape']} [{', '.join(r['first'])}, ...] {r['sha256'][:12]}"
