"""tessera ops: every op with its axes, meaning, rules, dtypes and targets."""

from __future__ import annotations

import argparse
import difflib
import inspect
import itertools
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any

from tessera.cli.show import Table, UsageError, console, escape, table_of
from tessera.core.dtype import f32
from tessera.core.evaluate import is_portable
from tessera.core.primitives import PRIMITIVES
from tessera.core.scalar import Expr
from tessera.ir.graph.op import KIND_NAMES, OWN, REGISTRY, Op
from tessera.lang import op as namespace
from tessera.lang import operators
from tessera.ops.define import FUNCTIONS

RULES = ("linear", "partials", "jvp", "transpose", "batch")


@dataclass(frozen=True)
class OpRow:
    """What `tessera ops` tells of one op, or of one function that is written with ops."""

    name: str
    axes: str  # the signature of its axes
    meaning: str  # loops, view, decompose, call or function
    rules: tuple[str, ...]
    dtypes: str
    targets: tuple[str, ...]
    doc: str
    call: str  # as it is written in Python
    family: str  # the module of ops that defines it


def list_ops(args: argparse.Namespace) -> int:
    """List every op with its axes, meaning, rules, dtypes and targets."""
    rows = op_rows()
    if args.name is not None:
        wanted = args.name.removeprefix("op.")
        rows = [r for r in rows if r.name == wanted]
        if not rows:
            near = difflib.get_close_matches(wanted, [r.name for r in op_rows()], 1)
            hint = f"did you mean {near[0]}?" if near else "`tessera ops` lists them"
            raise UsageError(f"no op is named '{args.name}'; {hint}")
    rows = _chosen(rows, args.family, args.find)
    if args.json:
        print(json.dumps([{f.name: getattr(r, f.name) for f in fields(OpRow)} for r in rows]))
    elif args.name is not None:
        console().print(_one_op(rows[0]))
    else:
        for family, found in itertools.groupby(
            sorted(rows, key=lambda r: (r.family, r.name)), key=lambda r: r.family
        ):
            console().print(f"[bold underline]{family.replace('_', ' ')}[/]")
            console().print(_all_ops(list(found)))
            console().print()
        ops = sum(r.meaning != "function" for r in rows)
        console().print(f"{ops} ops and {len(rows) - ops} functions written with them")
    return 0


def _chosen(rows: Sequence[OpRow], family: str | None, text: str | None) -> list[OpRow]:
    """The rows of a family, and those whose name or meaning has a text in it."""
    families = sorted({r.family for r in rows})
    if family is not None and family.replace(" ", "_") not in families:
        near = difflib.get_close_matches(family, families, 1)
        hint = f"did you mean {near[0]}?" if near else f"families are {', '.join(families)}"
        raise UsageError(f"no family of ops is named '{family}'; {hint}")
    found = [r for r in rows if family is None or r.family == family.replace(" ", "_")]
    words = (text or "").lower()
    return [r for r in found if words in r.name.lower() or words in r.doc.lower()]


def _all_ops(rows: Sequence[OpRow]) -> Table:
    table = table_of("op", "axes", "meaning", "rules", "dtypes", "targets", "what it is")
    for r in rows:
        cells = (r.name, r.axes, r.meaning, " ".join(r.rules), r.dtypes, " ".join(r.targets), r.doc)
        table.add_row(*map(escape, cells))
    return table


def _one_op(r: OpRow) -> Table:
    table = Table(box=None, pad_edge=False, show_header=False)
    cells = {
        "op": r.name,
        "call": r.call,
        "what it is": r.doc,
        "axes": r.axes,
        "meaning": r.meaning,
        "rules": ", ".join(r.rules) or "none given",
        "dtypes": r.dtypes,
        "targets": ", ".join(r.targets),
    }
    for k, v in cells.items():
        table.add_row(f"[bold]{k}[/]", escape(v))
    return table


def op_rows() -> list[OpRow]:
    """One row per op and per public function, by name."""
    public = {f.op.name: n for n, f in FUNCTIONS.items()}
    rows = [_op_row(op, public.get(name)) for name, op in REGISTRY.items()]
    taken = {r.name for r in rows} | set(FUNCTIONS)
    for name, f in _functions():
        if name not in taken:
            doc = (inspect.getdoc(f) or "").partition("\n\n")[0]
            rows.append(
                OpRow(name, "", "function", (), "", ("numpy", "cpu"), doc, f"op.{name}{_args(f)}",
                    _family(f))
            )  # fmt: skip
    return sorted(rows, key=lambda r: r.name)


def _functions() -> list[tuple[str, Any]]:
    """The functions of op, and of the modules in it, that are written with ops."""
    found = inspect.getmembers(namespace, inspect.isfunction)
    for prefix, module in inspect.getmembers(namespace, inspect.ismodule):
        members = inspect.getmembers(module, inspect.isfunction)
        found += [(f"{prefix}.{n}", f) for n, f in members if n in getattr(module, "__all__", ())]
    tensors = [(n, _of_tensors(f)) for n, f in found if not n.startswith("_")]
    return [(n, f) for n, f in tensors if _is_ours(f)]


def _of_tensors(f: Any) -> Any:
    """The form for tensors of a function that takes operators too."""
    return getattr(f, "__wrapped__", f) if f.__module__ == operators.__name__ else f


def _is_ours(f: Any) -> bool:
    module: str = f.__module__
    return module == namespace.__name__ or (
        module.startswith(("tessera.ops.", "tessera.lang.names.")) and hasattr(f, "__wrapped__")
    )


def _op_row(op: Op, function: str | None) -> OpRow:
    hidden = function is None or (op in OWN and not hasattr(namespace, function))
    public = None if hidden else function
    call = "" if public is None else f"op.{public}{_args(FUNCTIONS[public].front)}"
    rules = tuple(r for r in RULES if getattr(op, r))
    doc = " ".join(op.doc.partition("\n\n")[0].split())
    family = "inside of programs" if public is None else _family(FUNCTIONS[public].front)
    return OpRow(
        op.name, _axes(op), _meaning(op), rules, _dtypes(op), _targets(op), doc, call, family
    )


def _family(f: Callable[..., Any]) -> str:
    return f.__module__.rpartition(".")[2]


def _args(f: Callable[..., Any]) -> str:
    signature = inspect.signature(f)
    plain = [p.replace(annotation=p.empty) for p in signature.parameters.values()]
    return str(inspect.Signature(plain))


def _axes(op: Op) -> str:
    return op.signature if isinstance(op.signature, str) else "by parameters"


def _targets(op: Op) -> tuple[str, ...]:
    """Every op runs on both targets; on the cpu as kernels, or on the host if it has none."""
    body = op.body if isinstance(op.body, Expr) else None
    called = op.call is not None and op.call not in PRIMITIVES
    on_host = called or (body is not None and not is_portable(body, f32))
    return "numpy", "cpu (host)" if on_host else "cpu"


def _meaning(op: Op) -> str:
    if op.body is not None:
        return "loops" if op.combine is None else f"loops, {op.combine}"
    if op.view is not None:
        return "view"
    if op.pick is not None:
        return "pick"
    if op.decompose is not None:
        return "decompose"
    return "primitive" if op.call is None else f"call {op.call}"


def _dtypes(op: Op) -> str:
    kinds = (op.kinds,) if isinstance(op.kinds, str) else op.kinds
    return "; ".join(
        "all" if k == "buifc" else " ".join(KIND_NAMES[c] for c in k) for k in kinds
    )  # fmt: skip
