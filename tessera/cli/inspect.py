"""tessera inspect: write the page that shows a function at every level."""

from __future__ import annotations

import argparse

import numpy as np

from tessera.cli.programs import drawn, execute, found_in, size_of, specs_of, split


def inspect_file(args: argparse.Namespace) -> int:
    """Write a page that shows an annotated function at every level, for any browser."""
    path, name = split(args.file)
    f = found_in(path, name, execute(path, "<tessera inspect>", []))
    sizes, rng = dict(map(size_of, args.size)), np.random.default_rng(0)
    given = {n: drawn(s, sizes, rng) for n, s in specs_of(f).items()}
    print(f.inspect(**given, path=args.out))
    return 0
