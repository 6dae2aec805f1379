"""tessera bundle: build, inspect, verify, run and compare bundles."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np

from tessera.cli.programs import execute, found_in, specs_of
from tessera.cli.show import Failure, UsageError, check_place, console, escape, split, table_of
from tessera.core import tree
from tessera.deploy import bundle, tsol
from tessera.deploy.container import Container
from tessera.ir.schedule.memory import readable
from tessera.native import HEADERS, SOURCE


def build_bundle(args: argparse.Namespace) -> int:
    """Write a bundle of an annotated function."""
    path, name = split(args.file)
    f = found_in(path, name, execute(path, "<tessera bundle>", []))
    out = args.out or f"{getattr(f, '__name__', 'main')}.tess"
    check_place(out)
    key = None if args.key is None else _bytes(args.key)
    digest = bundle.save(
        f,
        out,
        *specs_of(f).values(),
        targets=args.target,
        python_only=args.python_only,
        key=key,
        tuned=args.tuned,
        threads=args.threads,
    )
    print(f"{out}: {readable(Path(out).stat().st_size)}, sha256 {digest}")
    return 0


def _bytes(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as e:
        raise UsageError(f"{path} cannot be read ({e.strerror or e})") from None


def inspect_bundle(args: argparse.Namespace) -> int:
    """Show what a bundle takes, gives and holds."""
    b = bundle.load(args.bundle)
    if args.json:
        print(json.dumps({"digest": b.digest, **b.manifest}))
        return 0
    screen = console()
    for name in b.entries:
        e = b.entry(name)
        ins, outs = (", ".join(f"{n}: {t}" for n, t in x) for x in (e.inputs, e.outputs))
        line = escape(f"{name}({ins}) -> {outs}   numerics {e.row['numerics']}")
        screen.print(line, highlight=False)
        for target, steps in e.row["hosted"].items():
            screen.print(f"  only Python runs, for {target}: {', '.join(steps)}", highlight=False)
    table = table_of("section", "kind", "size", "sha256")
    for s in b.container.sections:
        table.add_row(s.name, s.kind, readable(s.size), s.digest.hex()[:16])
    screen.print(table)
    signer = b.container.signer
    signed = f"signed by {signer.hex()}" if signer else "not signed"
    screen.print(f"\nsha256 {b.digest}, {signed}", highlight=False)
    return 0


def verify_bundle(args: argparse.Namespace) -> int:
    """Compare every byte of a bundle with its digests."""
    try:
        keys = [bytes.fromhex(k) for k in args.trust]
    except ValueError:
        raise UsageError("--trust is expected to be a public key in hexadecimal") from None
    b = bundle.load(args.bundle, trusted=keys or None)
    print(f"{args.bundle}: sha256 {b.digest}, all {len(b.container.sections)} sections are whole")
    return 0


def run_bundle(args: argparse.Namespace) -> int:
    """Run an entry point on arrays from .npy files."""
    b = bundle.load(args.bundle)
    name = args.entry or (b.entries[0] if len(b.entries) == 1 else None)
    if name is None:
        raise UsageError(
            f"{args.bundle} has the entries {', '.join(b.entries)}; say which: --entry"
        )
    e = b.entry(name)
    outs = tree.leaves(e.run(*[_array(p) for p in args.input]))
    for k, ((n, _), x) in enumerate(zip(e.outputs, outs, strict=True)):
        print(f"{n}: {x.type}")
        if args.output:
            folder = Path(args.output)
            folder.mkdir(parents=True, exist_ok=True)
            np.save(folder / f"{k}_{n}.npy", np.asarray(x))
    return 0


def _array(path: str) -> Any:
    try:
        return np.load(path, allow_pickle=False)
    except (OSError, ValueError) as e:
        raise UsageError(f"{path} is no array in a .npy file ({e})") from None


def link_bundles(args: argparse.Namespace) -> int:
    """Write one bundle of several."""
    wrong = [x for x in args.module if not x.partition("=")[2]]
    if wrong:
        raise UsageError(f"{wrong[0]} is expected to be NAME=PATH")
    check_place(args.out)
    given = {x.partition("=")[0]: x.partition("=")[2] for x in args.module}
    digest = bundle.link(args.out, given, args.export, args.target, threads=args.threads)
    print(f"{args.out}: {readable(Path(args.out).stat().st_size)}, sha256 {digest}")
    return 0


def diff_bundles(args: argparse.Namespace) -> int:
    """Say in which parts two bundles differ."""
    one, two = Container(args.bundle), Container(args.other)
    lines = differences(one, two)
    for line in lines:
        print(line)
    if not lines:
        same = "the same" if one.digest == two.digest else "the same but for the signature"
        print(f"{same}: sha256 {one.digest.hex()}")
    return int(bool(lines))


def differences(one: Container, two: Container) -> list[str]:
    """How two bundles differ, one line each."""
    out = []
    for name in sorted({*one.named, *two.named}):
        a, b = one.named.get(name), two.named.get(name)
        if a is None or b is None:
            out.append(f"{name}: only in {one.path if b is None else two.path}")
        elif a.digest != b.digest:
            out += _within(name, one.read(name), two.read(name))
    return out


def _within(name: str, a: bytes, b: bytes) -> list[str]:
    """What differs in a section: the keys of a manifest, the first line of text, or the first byte."""
    if name == "manifest":
        x, y = json.loads(a), json.loads(b)
        return [f"manifest: {path}" for path in _paths(x, y)] or ["manifest: written otherwise"]
    if name.startswith("image/"):
        found = _paths(json.loads(a), json.loads(b))
        more = [f"{name}: and {len(found) - 3} more"] if len(found) > 3 else []
        return [f"{name}: {path}" for path in found[:3]] + more
    if name.startswith("graph/"):
        lines = zip(a.decode().splitlines(), b.decode().splitlines(), strict=False)
        for i, (p, q) in enumerate(lines, 1):
            if p != q:
                return [f"{name}: line {i}: {p.strip()}  |  {q.strip()}"]
    at = next(
        (i for i, (p, q) in enumerate(zip(a, b, strict=False)) if p != q), min(len(a), len(b))
    )
    return [f"{name}: {len(a)} and {len(b)} bytes, different from byte {at} on"]


def _paths(x: Any, y: Any, path: str = "") -> list[str]:
    if isinstance(x, dict) and isinstance(y, dict):
        return [p for k in sorted({*x, *y}) for p in _paths(x.get(k), y.get(k), f"{path}.{k}")]
    if isinstance(x, list) and isinstance(y, list) and len(x) == len(y):
        return [p for i in range(len(x)) for p in _paths(x[i], y[i], f"{path}.{i}")]
    return [] if x == y else [f"{path.lstrip('.')} is {x!r:.60} and {y!r:.60}"]


def write_library(args: argparse.Namespace) -> int:
    """Write a library of ops."""
    check_place(args.out)
    calls = None if args.op is None else [tsol.parse_call(text) for text in args.op]
    made = tsol.save(args.out, calls, args.target)
    if args.list:
        print("\n".join(c.key for c in made))
    print(f"{args.out}: {len(made)} calls, {readable(Path(args.out).stat().st_size)}")
    return 0


def write_runtime(args: argparse.Namespace) -> int:
    """Write the C runtime to a folder."""
    folder = Path(args.folder)
    files = {SOURCE.name: SOURCE, **{f"tessera/{h.name}": h for h in HEADERS}}
    try:
        (folder / "tessera").mkdir(parents=True, exist_ok=True)
        for name, source in files.items():
            (folder / name).write_bytes(source.read_bytes())
    except OSError as e:
        raise Failure(f"{folder} cannot be written ({e.strerror or e})") from None
    print("\n".join(str(folder / name) for name in sorted(files, reverse=True)))
    return 0
