"""The command line: `tessera ops | compile | run | tune | doctor | version`.

Exit status: 0 when all went well, 1 when the user's program or a check failed, 2 when the command
itself was wrong.  A TesseraError is shown as its message and the user's line, without a traceback.
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import json
import os
import platform
import runpy
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, fields
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.table import Table

import tessera
from tessera.compile import PASSES
from tessera.core.dims import substitute
from tessera.core.dtype import f32
from tessera.core.errors import FlagError, TesseraError
from tessera.core.evaluate import is_portable
from tessera.core.flags import flags
from tessera.core.primitives import PRIMITIVES
from tessera.core.scalar import Expr
from tessera.ir.graph.ir import Graph, concrete
from tessera.ir.graph.op import KIND_NAMES, REGISTRY, Op
from tessera.lang import op as namespace
from tessera.lang.annotation import TensorSpec
from tessera.lang.device import devices
from tessera.lang.jit import Jitted, Lowered, jit
from tessera.lang.tuning import Tuning
from tessera.ops.define import FUNCTIONS

WIDE = 320  # columns of a table that is not shown on a terminal


LOWER_LEVELS = ("schedule", "tile", "target")  # below Graph IR, on the target cpu


class UsageError(Exception):
    """The command line asks for something that is not there."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status."""
    args = _parser().parse_args(argv)
    try:
        status: int = args.run(args)
        return status
    except UsageError as e:
        return _fail(str(e), 2)
    except TesseraError as e:
        return _fail(str(e), 1)
    except BrokenPipeError:  # the reader of our output has gone, as in `tessera ops | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _fail(message: str, status: int) -> int:
    Console(stderr=True).print(
        f"[bold red]error:[/] {escape(message)}", soft_wrap=True, highlight=False
    )
    return status


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="tessera",
        description="Operators, tiles and meshes through one compiler.",
        epilog="Settings come from the environment; `tessera doctor` lists them.",
    )
    commands = parser.add_subparsers(metavar="COMMAND", required=True)

    def command(name: str, run: Callable[[argparse.Namespace], int]) -> argparse.ArgumentParser:
        text = (run.__doc__ or "").strip()
        made = commands.add_parser(name, help=text, description=text)
        made.set_defaults(run=run)
        return made

    p = command("ops", list_ops)
    p.add_argument("name", nargs="?", metavar="NAME", help="show all there is about one op")
    p.add_argument("--json", action="store_true", help="print JSON instead of a table")
    p = command("compile", compile_file)
    p.add_argument("file", metavar="FILE[:FUNCTION]", help="a Python file, and a function in it")
    p.add_argument(
        "--stop-at",
        default="graph",
        choices=("trace", *(s.name for s in PASSES), "graph", *LOWER_LEVELS),
        help="the pass or level to print; graph (the default) is Graph IR after its last pass; "
        "schedule, tile and target are those of the target cpu",
    )
    p = command("run", run_file)
    p.add_argument("file", metavar="FILE", help="a Python file")
    p.add_argument("rest", nargs=argparse.REMAINDER, metavar="...", help="arguments for it")
    p = command("tune", tune_file)
    p.add_argument(
        "file",
        nargs="?",
        metavar="FILE[:FUNCTION]",
        help="a Python file, and a function in it; otherwise all of its jitted functions",
    )
    p.add_argument(
        "--budget",
        type=float,
        default=5000,
        metavar="MS",
        help="milliseconds to spend on all kernels together",
    )
    p.add_argument(
        "--size",
        action="append",
        default=[],
        metavar="NAME=N",
        help="the value of a symbolic size, 64 unless given",
    )
    p.add_argument("--again", action="store_true", help="measure what the store knows already, too")
    p.add_argument("--json", action="store_true", help="print JSON instead of a table")
    p.add_argument("--export", metavar="PATH", help="write what is tuned to a file afterwards")
    p.add_argument("--import", metavar="PATH", dest="load", help="take over such a file before")
    p = command("doctor", doctor)
    p.add_argument("--json", action="store_true", help="print JSON instead of tables")
    command("version", version)
    return parser


def _console() -> Console:
    return Console() if sys.stdout.isatty() else Console(width=WIDE)


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for c in columns:
        table.add_column(c, overflow="fold")
    return table


# ops ------------------------------------------------------------------------------------------

RULES = ("linear", "partials", "jvp", "transpose", "batch")


@dataclass(frozen=True)
class Row:
    """What `tessera ops` tells of one op, or of one function that is written with ops."""

    name: str
    axes: str  # the signature of its axes
    meaning: str  # loops, view, decompose, call or function
    rules: tuple[str, ...]
    dtypes: str
    targets: tuple[str, ...]
    doc: str
    call: str  # as it is written in Python


def list_ops(args: argparse.Namespace) -> int:
    """List every op with its axes, meaning, rules, dtypes and targets."""
    rows = op_rows()
    if args.name is not None:
        wanted = args.name.removeprefix("op.")
        rows = [r for r in rows if r.name == wanted]
        if not rows:
            raise UsageError(f"no op is named '{args.name}'; `tessera ops` lists them")
    if args.json:
        print(json.dumps([{f.name: getattr(r, f.name) for f in fields(Row)} for r in rows]))
    elif args.name is not None:
        _console().print(_one_op(rows[0]))
    else:
        _console().print(_all_ops(rows))
        ops = sum(r.meaning != "function" for r in rows)
        _console().print(f"\n{ops} ops and {len(rows) - ops} functions written with them")
    return 0


def _all_ops(rows: Sequence[Row]) -> Table:
    table = _table("op", "axes", "meaning", "rules", "dtypes", "targets", "what it is")
    for r in rows:
        cells = (r.name, r.axes, r.meaning, " ".join(r.rules), r.dtypes, " ".join(r.targets), r.doc)
        table.add_row(*map(escape, cells))
    return table


def _one_op(r: Row) -> Table:
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


def op_rows() -> list[Row]:
    """One row per op and per public function, by name."""
    public = {f.op.name: n for n, f in FUNCTIONS.items()}
    rows = [_op_row(op, public.get(name)) for name, op in REGISTRY.items()]
    taken = {r.name for r in rows} | set(FUNCTIONS)
    for name, f in _functions():
        if name not in taken:
            doc = (inspect.getdoc(f) or "").partition("\n\n")[0]
            rows.append(
                Row(name, "", "function", (), "", ("numpy", "cpu"), doc, f"op.{name}{_args(f)}")
            )
    return sorted(rows, key=lambda r: r.name)


def _functions() -> list[tuple[str, Any]]:
    """The functions of op, and of the modules in it, that are written with ops."""
    found = inspect.getmembers(namespace, inspect.isfunction)
    for prefix, module in inspect.getmembers(namespace, inspect.ismodule):
        members = inspect.getmembers(module, inspect.isfunction)
        found += [(f"{prefix}.{n}", f) for n, f in members if n in getattr(module, "__all__", ())]
    return [(n, f) for n, f in found if not n.startswith("_") and _is_ours(f)]


def _is_ours(f: Any) -> bool:
    module: str = f.__module__
    return module == namespace.__name__ or (
        module.startswith("tessera.ops.") and hasattr(f, "__wrapped__")
    )


def _op_row(op: Op, public: str | None) -> Row:
    call = "" if public is None else f"op.{public}{_args(FUNCTIONS[public].front)}"
    rules = tuple(r for r in RULES if getattr(op, r))
    doc = " ".join(op.doc.partition("\n\n")[0].split())
    return Row(op.name, _axes(op), _meaning(op), rules, _dtypes(op), _targets(op), doc, call)


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


# compile and run --------------------------------------------------------------------------------


def compile_file(args: argparse.Namespace) -> int:
    """Print the IR of a jitted function whose parameters are all annotated."""
    f = _find(*_split(args.file))
    examples = {n: _example(s) for n, s in _specs(f).items()}
    if args.stop_at in LOWER_LEVELS:
        lowered = jit(inspect.unwrap(f), target="cpu").lower(**examples)
        print(getattr(lowered, args.stop_at).text)
    else:
        print(_stop_at(f.lower(**examples), args.stop_at))
    return 0


def _split(text: str) -> tuple[str, str]:
    """The file and the function; a colon before anything but a name belongs to the file."""
    path, _, name = text.rpartition(":")
    return (path, name) if path and name.isidentifier() else (text, "")


def _stop_at(lowered: Lowered, where: str) -> Graph:
    steps: dict[str, Graph] = {s.name: s.graph for s in lowered.record}
    return steps.get(where, lowered.graph)


def _find(path: str, name: str) -> Jitted:
    return _found(path, name, _execute(path, "<tessera compile>", []))


def _found(path: str, name: str, defined: Mapping[str, Any]) -> Jitted:
    jitted = {k: v for k, v in defined.items() if isinstance(v, Jitted)}
    if not name:
        if len(jitted) == 1:
            return next(iter(jitted.values()))
        found = f"has {', '.join(jitted)}" if jitted else "has no jitted function"
        raise UsageError(f"{path} {found}; name one: {path}:function")
    if name not in defined:
        raise UsageError(
            f"{path} defines no '{name}'; it has {', '.join(jitted) or 'no functions'}"
        )
    if not callable(defined[name]):
        raise UsageError(f"'{name}' in {path} is {type(defined[name]).__name__}, not a function")
    f: Jitted = jitted.get(name) or jit(defined[name])
    return f


def _specs(f: Jitted) -> dict[str, TensorSpec]:
    """The annotation of every parameter that has no default."""
    specs, bare = {}, []
    for p in inspect.signature(f, eval_str=True).parameters.values():
        if isinstance(p.annotation, TensorSpec):
            specs[p.name] = p.annotation
        elif p.default is p.empty:
            bare.append(p.name)
    name = getattr(f, "__name__", "the function")
    if bare:
        raise UsageError(
            f"{name} has parameters without a Tensor annotation: {', '.join(bare)}; "
            f'write {bare[0]}: Tensor["B", 64, f32], or call {name}.lower(...) in Python'
        )
    return specs


def _example(spec: TensorSpec, sizes: Mapping[str, int] | None = None) -> Any:
    """An argument that fits: zeros that take no memory, of f32 where any dtype will do."""
    values = dict.fromkeys(spec.symbols, 64) | dict(sizes or {})
    shape = tuple(substitute(n, values) for n in spec.shape)
    dtype = spec.dtype or f32
    return concrete(np.broadcast_to(np.zeros((), dtype.np), shape), dtype)  # type: ignore[arg-type]


def run_file(args: argparse.Namespace) -> int:
    """Run a Python file; errors of Tessera show the user's line and no traceback."""
    _execute(args.file, "__main__", args.rest)
    return 0


def _execute(path: str, name: str, argv: Sequence[str]) -> dict[str, Any]:
    """The names that a Python file defines when it is run as module `name`."""
    if not Path(path).is_file():
        raise UsageError(f"there is no file {path}")
    before, sys.argv = sys.argv, [path, *argv]
    sys.path.insert(0, str(Path(path).resolve().parent))
    try:
        return runpy.run_path(path, run_name=name)
    except SyntaxError as e:
        raise UsageError(f"{e.filename}, line {e.lineno}: {e.msg}") from None
    finally:
        sys.argv = before
        sys.path.pop(0)


# tune -------------------------------------------------------------------------------------------


def tune_file(args: argparse.Namespace) -> int:
    """Find the fastest nests of a file's kernels on this machine, and keep them."""
    if args.file is None and not (args.load or args.export):
        raise UsageError("name a file to tune, or give --import or --export")
    if not args.budget > 0:
        raise UsageError(f"--budget is {args.budget:g}, expected more than 0")
    sizes = dict(map(_size, args.size))
    if args.load:
        _say(args, f"{_cache().load(args.load)} kernels taken over from {args.load}")
    found = _tune_all(args, sizes) if args.file else []
    if args.export:
        _say(args, f"{_cache().export(args.export)} kernels written to {args.export}")
    if args.json:
        print(json.dumps([_outcome(t, o) for t in found for o in t]))
    return 0


def _cache() -> Any:
    """The store of tuned nests, which needs LLVM."""
    return importlib.import_module("tessera.cache")


def _say(args: argparse.Namespace, text: str) -> None:
    if not args.json:
        print(text)


def _size(text: str) -> tuple[str, int]:
    name, _, value = text.partition("=")
    if not (name.isidentifier() and value.isdecimal() and int(value)):
        raise UsageError(f"--size is {text!r}, expected one like B=32")
    return name, int(value)


def _tune_all(args: argparse.Namespace, sizes: Mapping[str, int]) -> list[Tuning]:
    path, name = _split(args.file)
    defined = _execute(path, "<tessera tune>", [])
    jitted = [k for k, v in defined.items() if isinstance(v, Jitted)]
    functions = [_found(path, n, defined) for n in ([name] if name else jitted or [""])]
    examples = [{n: _example(s, sizes) for n, s in _specs(f).items()} for f in functions]
    console, found = _console(), []
    for f, given in zip(functions, examples, strict=True):
        shown = console.is_terminal and not args.json
        with Live(console=console, transient=True) if shown else nullcontext() as live:
            report = (lambda p, live=live: live.update(_candidates(p))) if live else None
            found.append(tessera.tune(f, budget_ms=args.budget / len(functions), again=args.again,
                                      report=report, **given))  # fmt: skip
        if not args.json:
            console.print(_outcomes(found[-1]))
    return found


def _candidates(p: Any) -> Table:
    """The candidates of a kernel while it is tuned, the fastest first."""
    table = _table("ms", "samples", "nest")
    table.title = f"{p.kernel}: {len(p.candidates)} of {p.space} nests, {p.spent:.0%} of its time"
    for c in p.candidates[:12]:
        table.add_row(f"{c.seconds * 1e3:.3f}", str(len(c.times)), escape(str(c.nest)))
    return table


def _outcomes(t: Tuning) -> Table:
    table = _table("kernel", "default ms", "best ms", "gain", "tried", "nest")
    for o in t:
        nest = str(o.best) if o.best != o.default else "the default"
        tried = "known" if o.known else str(o.tried)
        cells = (f"{o.before * 1e3:.3f}", f"{o.seconds * 1e3:.3f}", f"{o.gain:.2f}x", tried, nest)
        table.add_row(escape(o.kernel), *map(escape, cells))
    return table


def _outcome(t: Tuning, o: Any) -> dict[str, Any]:
    return {
        "function": t.function, "kernel": o.kernel, "default": str(o.default), "nest": str(o.best),
        "default_ms": o.before * 1e3, "best_ms": o.seconds * 1e3, "gain": o.gain, "tried": o.tried,
        "known": o.known,
    }  # fmt: skip


# doctor and version -----------------------------------------------------------------------------

# name of the distribution, whether Tessera needs it, and what for
PACKAGES = (
    ("numpy", True, "arrays and the reference of every op"),
    ("ml_dtypes", True, "bf16, fp8 and int4 storage"),
    ("scipy", True, "linear algebra, special functions, FFT"),
    ("rich", True, "tables and progress bars"),
    ("torch", False, "an oracle of make test-oracles"),
    ("jax", False, "an oracle of make test-oracles"),
)


def version(args: argparse.Namespace) -> int:
    """Print the version."""
    print(f"tessera {tessera.__version__}")
    return 0


def doctor(args: argparse.Namespace) -> int:
    """Show what Tessera finds on this machine, its settings and what is missing."""
    report = examine()
    if args.json:
        print(json.dumps(report, default=str))
    else:
        _show(report)
    return 1 if report["missing"] else 0


def examine() -> dict[str, Any]:
    """All that `tessera doctor` shows."""
    missing = []
    packages = {}
    for name, needed, purpose in PACKAGES:
        found = _installed(name)
        packages[name] = {"version": found, "needed": needed, "purpose": purpose}
        if needed and found is None:
            missing.append(f"package {name} ({purpose}); install it: pip install {name}")
    try:
        settings, places = _settings(), [str(d) for d in devices()]
    except FlagError as e:
        settings, places = {}, []
        missing.append(f"a valid setting: {e.message}")
    return {
        "system": {
            "tessera": tessera.__version__,
            "python": platform.python_version(),
            "platform": platform.platform(),
            "cores": _cores(),
            "memory": _memory(),
        },
        "packages": packages,
        "settings": settings,
        "devices": places,
        "missing": missing,
    }


def _installed(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _cores() -> int | None:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()


def _memory() -> str:
    names = getattr(os, "sysconf_names", {})
    if "SC_PHYS_PAGES" not in names or "SC_PAGE_SIZE" not in names:
        return "unknown"
    return f"{os.sysconf('SC_PHYS_PAGES') * os.sysconf('SC_PAGE_SIZE') / 2**30:.1f} GiB"


def _settings() -> dict[str, dict[str, Any]]:
    now = flags()
    return {
        f"TESSERA_{f.name.upper()}": {
            "value": getattr(now, f.name),
            "source": "environment" if os.environ.get(f"TESSERA_{f.name.upper()}") else "default",
        }
        for f in fields(now)
    }


def _show(report: dict[str, Any]) -> None:
    console = _console()

    def section(title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
        table = _table(*columns)
        for row in rows:
            table.add_row(*(escape(str(x)) for x in row))
        console.print(f"[bold underline]{title}[/]")
        console.print(table)
        console.print()

    section("System", ("what", "value"), list(report["system"].items()))
    section(
        "Packages",
        ("name", "version", "what for"),
        [(n, p["version"] or "not installed", p["purpose"]) for n, p in report["packages"].items()],
    )
    section(
        "Settings",
        ("variable", "value", "from"),
        [(n, s["value"], s["source"]) for n, s in report["settings"].items()],
    )
    section("Devices", ("name",), [(d,) for d in report["devices"]])
    for m in report["missing"]:
        console.print(f"[bold red]missing:[/] {escape(m)}", highlight=False)
    if not report["missing"]:
        console.print("[bold green]Nothing is missing.[/]")


if __name__ == "__main__":
    sys.exit(main())
