"""tessera inspect: a function at every level, as one page."""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np

from tessera.cli.programs import (
    arguments_of,
    execute,
    found_in,
    size_of,
    sizes_of,
    specs_of,
)
from tessera.cli.show import Console, Failure, UsageError, escape, split, write_file
from tessera.cli.subjects import is_of, own_name
from tessera.core.deferred import Deferred
from tessera.inspect.attach import attached
from tessera.inspect.page import demand_folder, render, run_page, write_page
from tessera.inspect.page_compare import Shown, programs_in, with_comparison
from tessera.inspect.page_gpu import ARCHITECTURES
from tessera.inspect.serve import Live, PageError
from tessera.lang.compilations import Compilation, compilations
from tessera.lang.watching import Watched, watching

ERROR = "error: "  # what the command itself begins a complaint with
_inspect_model = Deferred("tessera.cli.onnx:inspect_model")


def inspect_file(args: argparse.Namespace) -> int:
    """Write a page that shows an annotated function at every level; of an ONNX model, print what it is."""
    if args.attach is not None:
        if args.file or args.serve:
            raise UsageError(
                "--attach takes the page of a process that runs: leave out FILE and --serve"
            )
        where = Path(args.out or "attached.html")
        demand_folder(where)
        write_file(str(where), attached(args.attach))
        print(where)
        return 0
    if not args.file:
        raise UsageError("name a file, or --attach PORT")
    if args.file.endswith(".onnx"):
        status: int = _inspect_model(args.file)
        return status
    unknown = [g for g in args.gpu if g not in ARCHITECTURES]
    if unknown:
        raise UsageError(f"--gpu is {unknown[0]!r}, expected one of {', '.join(ARCHITECTURES)}")
    if args.serve:
        return _serve(args)
    before = None if args.compare is None else _before(args)
    where = _saved(args) if args.file.endswith(".html") else _written(args)
    if before is not None:
        now = programs_in(where.read_text(encoding="utf-8"), str(where))
        out = Path(
            args.out or (f"{where.stem}-compared.html" if args.file.endswith(".html") else where)
        )
        demand_folder(out)
        write_file(str(out), render(with_comparison(now, before, Path(args.compare).name)))
        where = out
    print(where)
    return 0


def _saved(args: argparse.Namespace) -> Path:
    """A page that was saved, to be compared with another."""
    if args.compare is None:
        raise UsageError(
            f"{args.file} is a page already; open it in a browser, or add --compare PAGE"
        )
    if not Path(args.file).is_file():
        raise UsageError(f"there is no file {args.file}")
    return Path(args.file)


def _before(args: argparse.Namespace) -> list[Shown]:
    """The programs to compare with: of a saved page, or of a program that is compiled the same way."""
    path, _ = split(args.compare)
    if not Path(path).is_file():
        raise UsageError(f"--compare: there is no file {path}")
    if path.endswith(".html"):
        return programs_in(Path(path).read_text(encoding="utf-8", errors="replace"), path)
    if not path.endswith(".py"):
        raise UsageError(f"--compare is {path}, expected a saved page (.html) or a Python file")
    other = argparse.Namespace(**(vars(args) | {"file": args.compare, "compare": None}))
    try:
        return programs_in(_made(other), path)
    except PageError as e:
        raise Failure(f"--compare {str(e).removeprefix(ERROR)}") from None


def _written(args: argparse.Namespace) -> Path:
    """Write the page of a function, or of a run, and say where."""
    path, name = split(args.file)
    with compilations() as found, watching() as seen:
        defined = execute(path, "<tessera inspect>", [])
    try:
        f = found_in(path, name, defined)
        specs_of(f)
    except UsageError as e:  # it may be made, and called, when the program runs
        return _inspect_run(args, path, name, own_name(defined, name), found, seen, e)
    sizes, rng = sizes_of(args.size, [f]), np.random.default_rng(0)
    written: Path = f.inspect(**arguments_of(f, sizes, rng), path=args.out, gpu=args.gpu)
    return written


def _inspect_run(
    args: argparse.Namespace,
    path: str,
    name: str,
    own: str,
    known: Sequence[Compilation],
    seen: Watched,
    otherwise: UsageError,
) -> Path:
    """Run the program unless reading it did, and write one page of all that it compiled, or of one
    function.
    """
    say = Console(stderr=True).print
    found = list(known)
    if not found:
        say(f"running {escape(path)}; Ctrl-C ends it and shows what was compiled", style="dim")
        # A program that ends by itself, or by Ctrl-C, has compiled what it has compiled.
        with compilations() as made, watching() as during, suppress(SystemExit, KeyboardInterrupt):
            execute(path, "__main__", args.rest)
        found, seen = made, during
    shown = [c for c in found if not name or is_of(c, own)]
    if not shown:
        raise otherwise
    say(_summary(shown), style="dim")
    where = args.out or f"{name or Path(path).stem}.html"
    if args.gpu:
        c = max(
            (c for c in shown if hasattr(c.executable, "sizes_at")),
            key=lambda c: len(c.executable.graph.nodes),
        )
        return write_page(c.executable, c.data, where, (), tuple(args.gpu))
    demand_folder(Path(where))
    write_file(
        where, run_page(shown, Path(path).name, lambda text: say(escape(text), style="dim"), seen)
    )
    return Path(where)


def _summary(found: Sequence[Compilation]) -> str:
    """How many compilations there were, and how they were made."""
    counts: dict[str, int] = {}
    for c in found:
        counts[c.how] = counts.get(c.how, 0) + 1
    said = ", ".join(f"{n} {how}" for how, n in counts.items())
    names = len({c.name for c in found})
    return f"{len(found)} compilation{'s' * (len(found) > 1)} of {names} function{'s' * (names > 1)}: {said}"


def _serve(args: argparse.Namespace) -> int:
    """Show the page to browsers of this machine, made again when a Python file beside it changes."""
    path, _ = split(args.file)
    if args.out is not None:
        raise UsageError("--out and --serve: a page is either written or served")
    if not Path(path).is_file():
        raise UsageError(f"there is no file {path}")
    for size in args.size:
        size_of(size)
    live = Live(lambda: _made(args), lambda: _state(Path(path)), args.port)

    def told() -> None:
        print(f"{live.address} shows {args.file}, version {live.version}; Ctrl-C ends", flush=True)

    try:
        live.run(told)
    except KeyboardInterrupt:
        print("ended")
    return 0


def _state(path: Path) -> dict[str, tuple[int, int]]:
    """When the Python files beside a program were written."""
    out = {}
    for p in sorted(path.absolute().parent.glob("*.py")):
        try:
            s = p.stat()
        except OSError:  # gone since it was listed, as while an editor saves
            continue
        out[str(p)] = (s.st_mtime_ns, s.st_size)
    return out


def _made(args: argparse.Namespace) -> str:
    """The page, made by a process of its own so that modules are read anew."""
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "page.html"
        sizes = [x for s in args.size for x in ("--size", s)]
        sizes += [x for g in args.gpu for x in ("--gpu", g)]
        sizes += ["--compare", args.compare] if args.compare is not None else []
        command = [sys.executable, "-m", "tessera.cli", "inspect", args.file, *sizes, "--out"]
        done = subprocess.run(
            [*command, str(page), "--", *args.rest], capture_output=True, text=True, check=False,
            stdin=subprocess.DEVNULL
        )  # fmt: skip
        if done.returncode:
            raise PageError(done.stderr.strip())
        return page.read_text(encoding="utf-8")
