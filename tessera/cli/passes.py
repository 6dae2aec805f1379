"""tessera passes: every pass of every level, in the order in which a target runs them."""

from __future__ import annotations

import argparse
import json

from tessera.cli.show import UsageError, console, escape, table_of
from tessera.compile.target import REGISTRY


def list_passes(args: argparse.Namespace) -> int:
    """List every pass of the compiler with its level and what it does."""
    known = {name: t for name, t in REGISTRY.items() if t.listed}
    if args.target is not None and args.target not in known:
        raise UsageError(f"--target is {args.target!r}, expected one of {', '.join(known)}")
    chosen = [t for n, t in known.items() if args.target in (None, n)]
    rows = [(t.name, p.level, p.name, p.about) for t in chosen for p in t.passes]
    if args.json:
        keys = ("target", "level", "name", "about")
        print(json.dumps([dict(zip(keys, r, strict=True)) for r in rows], indent=1))
        return 0
    table = table_of("target", "level", "pass", "what it does")
    for row in rows:
        table.add_row(*map(escape, row))
    console().print(table)
    return 0
