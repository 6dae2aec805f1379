"""ts.bundle: a function as one file that another machine, process or language runs with the same bits."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tessera.compile.artifact import encode
from tessera.core.blame import blames_arguments
from tessera.core.dtype import DType
from tessera.core.errors import OperandError
from tessera.deploy import container
from tessera.deploy.device_code import device_sections
from tessera.deploy.entries import Traced, entries_of
from tessera.deploy.load import Bundle, Entry, load
from tessera.deploy.machine_code import Compiled, compile_for
from tessera.deploy.plan import NoPlanError, Planner
from tessera.deploy.targets import PROCESSORS, check_targets, tools_of
from tessera.deploy.weights import Weights, pieces

__all__ = ["Bundle", "Entry", "load", "save"]

Section = tuple[str, str, bytes]


@blames_arguments
def save(
    f: Any,
    path: str | os.PathLike[str],
    *args: Any,
    targets: Sequence[str] | None = None,
    weights: Any = None,
    python_only: bool = False,
    key: bytes | None = None,
) -> str:
    """Write a bundle of f for these arguments, or annotations such as Tensor["B", 64]; its digest.

    `f` may be a dict of entry points, {"name": (function, *arguments)}.  With weights, every function takes
    them before its arguments, and they are part of the file.  Steps that have no machine code, which only
    Python can run, are an error unless `python_only`.  `key` signs the bundle: 32 secret bytes.
    """
    chosen = check_targets(targets)
    if key is not None and len(key) != 32:
        raise OperandError(f"bundle: key has {len(key)} bytes, expected 32 secret ones of ed25519")
    entries = entries_of(f, args, weights)
    sections, told, held = [], {}, Weights()
    for e in entries:
        own, row = _entry_sections(e, chosen, held, python_only)
        sections += own
        told[e.name] = row
    manifest = {
        "format": container.VERSION, "entries": told, "targets": chosen, "tensors": held.manifest(),
        "tools": tools_of(chosen),
    }  # fmt: skip
    text = json.dumps(manifest, sort_keys=True, separators=(",", ":")).encode()
    file = held.file()
    whole = [
        ("manifest", "manifest", text), *sections, ("manifest", "pieces/weights", pieces(file)),
        ("weights", "weights", file),
    ]  # fmt: skip
    return container.write(Path(path), whole, key).hex()


def _entry_sections(
    e: Traced, targets: Sequence[str], held: Weights, python_only: bool
) -> tuple[list[Section], dict[str, Any]]:
    names = [held.keep(np.ascontiguousarray(x), t.dtype, n) for n, x, t in e.weights]
    row = {**e.manifest(), "weights": names, "hosted": {}}
    sections: list[Section] = [("graph", f"graph/{e.name}", e.graph.text.encode())]
    for t in targets:
        kind, _, which = t.partition(":")
        if kind != "cpu":
            sections += device_sections(e, t, _keeper(held, e.name))
            continue
        c = compile_for(e.graph, PROCESSORS[which], e.numerics)
        made, hosted = _cpu_sections(e, c, t, held, python_only)
        sections += made
        if hosted:
            row["hosted"][t] = hosted
    return sections, row


def _cpu_sections(
    e: Traced, c: Compiled, target: str, held: Weights, python_only: bool
) -> tuple[list[Section], list[str]]:
    where = f"{e.name}/{target}"
    facts = {
        "image": json.loads(encode(c.image, c.graph)), "graph": c.graph.text,
        "functions": [c.functions[i] for i in range(len(c.functions))], "imports": dict(c.code.imports),
    }  # fmt: skip
    made: list[Section] = [
        ("image", f"image/{where}", json.dumps(facts, sort_keys=True, separators=(",", ":")).encode()),
        ("code", f"code/{where}", c.code.code),
    ]  # fmt: skip
    data = [(x, t.dtype) for _, x, t in e.weights]
    data += [(t.array(), t.type.dtype) for t in c.image.tables]
    keep = _keeper(held, e.name)
    try:
        plan = Planner(
            c.program, c.code.imports, keep, e.inputs, e.outputs, data, e.numerics,
        ).encode()  # fmt: skip
    except NoPlanError as error:
        if not python_only:
            raise OperandError(
                f"bundle: {e.name} for {target} has steps that only Python can run: {error}; give sizes as "
                "numbers "
                "or replace these ops, or pass python_only=True for a bundle that Python alone loads"
            ) from None
        return made, error.steps
    return [*made, ("plan", f"plan/{where}", plan)], []


def _keeper(held: Weights, entry: str) -> Callable[[Any, DType], int]:
    def keep(x: Any, dtype: DType) -> int:
        return held.offset(held.keep(x, dtype, f"{entry}.constant"))

    return keep
