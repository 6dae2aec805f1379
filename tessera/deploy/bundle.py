"""ts.bundle: a function as one file that another machine, process or language runs with the same bits."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tessera.compile.artifact import encode
from tessera.core.blame import blames_arguments
from tessera.core.dtype import DType
from tessera.core.errors import OperandError
from tessera.core.modules import answer
from tessera.deploy import container, ed25519
from tessera.deploy import modules as modules_of
from tessera.deploy.device_code import device_sections
from tessera.deploy.entries import TracedEntry, entries_of
from tessera.deploy.load import Bundle, load
from tessera.deploy.load import EntryPoint as Entry
from tessera.deploy.machine_code import Compiled, compile_for
from tessera.deploy.modules import ImportedEntry as Imported
from tessera.deploy.modules import imported
from tessera.deploy.plan import Hosted, NoPlanError, Planner
from tessera.deploy.shares import shares_of
from tessera.deploy.targets import check_targets, check_threads, processor, tools_of
from tessera.deploy.weights import WeightWriter, pieces
from tessera.runtime.tuned import ExportedNests, giving

__all__ = ["Bundle", "Entry", "Imported", "imported", "link", "load", "save"]

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
    tuned: str | os.PathLike[str] | None = None,
    threads: int | None = None,
) -> str:
    """Write a bundle of f for these arguments, or annotations such as Tensor["B", 64]; its digest.

    `f` may be a dict of entry points, {"name": (function, *arguments)}.  With weights, every function takes
    them before its arguments, and they are part of the file.  Steps that have no machine code, which only
    Python can run, are an error unless `python_only`.  `key` signs the bundle: 32 secret bytes.  `tuned` is
    a file of `tessera tune --export`: kernels have its nests where a target has the vectors they are for.
    `threads` is how many threads its loops on CPUs are chosen for, 4 unless given; any number can run them,
    with the same bits.
    """
    chosen = check_targets(targets)
    check_threads(threads)
    _check_key(key)
    given = None if tuned is None else ExportedNests(tuned)
    with giving(given):
        traced = entries_of(f, args, weights)
        return _write(traced, path, chosen, python_only, key, threads, given)


@blames_arguments
def link(
    path: str | os.PathLike[str],
    bundles: Mapping[str, Any],
    exports: Mapping[str, str] | Sequence[str] | None = None,
    targets: Sequence[str] | None = None,
    python_only: bool = False,
    key: bytes | None = None,
    threads: int | None = None,
) -> str:
    """Write one bundle of several, each import replaced by the entry point that it names; its digest.

    `bundles` maps the names of modules to bundles or their paths; the import "text.encode" is the entry
    point `encode` of the module `text`.  `exports` lists entry points as "module.entry", or maps new names
    to them; all unless given.  Code is compiled from Graph IR for `targets` and `threads`, as `save` says,
    and equal weights are kept once.
    """
    chosen = check_targets(targets)
    check_threads(threads)
    _check_key(key)
    opened = {n: b if isinstance(b, Bundle) else load(b) for n, b in bundles.items()}
    names = [(n, e) for n, b in opened.items() for e in b.entries]
    modules = {f"{n}.{e}": opened[n].entry(e).module(f"{n}.{e}") for n, e in names}
    called = _exported(list(modules) if exports is None else exports)
    entries = [modules_of.linked(name, which, modules) for name, which in called.items()]
    return _write(entries, path, chosen, python_only, key, threads)


def _exported(exports: Iterable[str]) -> dict[str, str]:
    """The entry points of a linked bundle by their new names."""
    if isinstance(exports, Mapping) and all(isinstance(x, str) for x in exports.values()):
        return dict(exports)
    out: dict[str, str] = {}
    for which in exports:
        name = which.rpartition(".")[2]
        if name in out:
            raise OperandError(
                f"bundle: {out[name]} and {which} have one name; give them others: "
                f'exports={{"{name}": "{out[name]}", "other": "{which}"}}'
            )
        out[name] = which
    return out


def _check_key(key: bytes | None) -> None:
    if key is not None and not ed25519.is_key(key):
        raise OperandError(
            f"bundle: key is {type(key).__name__} of {len(key)}, expected 32 secret bytes of ed25519"
        )


def _write(
    entries: Sequence[TracedEntry], path: str | os.PathLike[str], chosen: list[str], python_only: bool,
    key: bytes | None, threads: int | None, given: ExportedNests | None = None,
) -> str:  # fmt: skip
    sections, told, held = [], {}, WeightWriter()
    for e in entries:
        own, row = _entry_sections(e, chosen, held, python_only, threads)
        sections += own
        told[e.name] = row
    manifest = {
        "format": container.VERSION, "entries": told, "targets": chosen, "tensors": held.manifest(),
        "tools": tools_of(chosen),
    }  # fmt: skip
    if threads is not None:
        manifest["threads"] = threads
    if given is not None:
        manifest["tuned"] = _taken(given, chosen)
    text = json.dumps(manifest, sort_keys=True, separators=(",", ":")).encode()
    file = held.file()
    whole = [
        ("manifest", "manifest", text), *sections, ("manifest", "pieces/weights", pieces(file)),
        ("weights", "weights", file),
    ]  # fmt: skip
    return container.write(Path(path), whole, key).hex()


def _taken(given: ExportedNests, targets: Sequence[str]) -> dict[str, int]:
    """How many kernels of each target have a nest that was tuned."""
    counts = {t: sum(f"cpu:{name}" == t for _, name in given.taken) for t in targets}
    if not any(counts.values()):
        raise OperandError(
            f"bundle: no kernel for {', '.join(targets)} has a nest in the file of tuned ones; it has "
            f"{len(given.rows)}; tune this program at these sizes, or leave the file out"
        )
    return counts


def _entry_sections(
    e: TracedEntry,
    targets: Sequence[str],
    held: WeightWriter,
    python_only: bool,
    threads: int | None,
) -> tuple[list[Section], dict[str, Any]]:
    names = [held.keep(np.ascontiguousarray(x), t.dtype, n) for n, x, t in e.weights]
    row = {**e.manifest(), "weights": names, "hosted": {}}
    sections: list[Section] = [("graph", f"graph/{e.name}", e.graph.text.encode())]
    imports = modules_of.imports_of(e.name, e.graph)
    if imports:  # code comes when they are linked
        return sections, {**row, "imports": imports}
    for t in targets:
        kind, _, which = t.partition(":")
        if kind != "cpu":
            sections += device_sections(e, t, _keeper(held, e.name))
            continue
        c = compile_for(e.graph, processor(which, threads), e.numerics)
        made, hosted = _cpu_sections(e, c, t, held, python_only)
        sections += made
        if hosted:
            row["hosted"][t] = hosted
    return sections, row


def _cpu_sections(
    e: TracedEntry, c: Compiled, target: str, held: WeightWriter, python_only: bool
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
                f"or replace these ops{_instead(error.steps)}, or pass python_only=True for a bundle that "
                "Python alone loads"
            ) from None
        return made, list(dict.fromkeys(s.what for s in error.steps))  # places are of this machine
    shares = shares_of(c.program)
    return [*made, ("plan", f"plan/{where}", plan), ("plan", f"shares/{where}", shares)], []


def _instead(steps: Sequence[Hosted]) -> str:
    """What to write in the place of complex steps."""
    if not any(s.is_complex for s in steps):
        return ""
    return " (write those of complex numbers by op.real, op.imag and op.complex)"


def _keeper(held: WeightWriter, entry: str) -> Callable[[Any, DType], int]:
    def keep(x: Any, dtype: DType) -> int:
        return held.offset(held.keep(x, dtype, f"{entry}.constant"))

    return keep


answer(__name__, "bundle")
