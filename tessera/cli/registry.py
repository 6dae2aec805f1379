"""tessera registry: put, get, list, verify and prune bundles."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from tessera.cli.show import Failure, check_place, console, table_of
from tessera.deploy import ed25519
from tessera.deploy.registry import Registry
from tessera.ir.schedule.memory import readable


def put_bundle(args: argparse.Namespace) -> int:
    """Take a bundle over under a name."""
    print(f"{args.name}@{Registry(args.registry).put(args.bundle, args.name)}")
    return 0


def get_bundle(args: argparse.Namespace) -> int:
    """Write a bundle to a file."""
    out = args.out or f"{args.name.partition('@')[0]}.tess"
    check_place(out)
    print(f"{out}: sha256 {Registry(args.registry).get(args.name, out)}")
    return 0


def sign_bundle(args: argparse.Namespace) -> int:
    """Sign a bundle."""
    try:
        key = Path(args.key).read_bytes()
    except OSError as e:
        raise Failure(f"{args.key} cannot be read ({e.strerror})") from None
    digest = Registry(args.registry).sign(args.name, key)
    print(f"{args.name}: sha256 {digest}, signed by {ed25519.public(key).hex()}")
    return 0


def list_bundles(args: argparse.Namespace) -> int:
    """List every bundle."""
    rows = Registry(args.registry).rows()
    if args.json:
        print(json.dumps([r._asdict() for r in rows]))
        return 0
    table = table_of("name", "sha256", "size", "")
    for r in rows:
        table.add_row(r.name, r.digest, readable(r.bytes), "newest" if r.newest else "")
    console().print(table)
    return 0


def verify_bundles(args: argparse.Namespace) -> int:
    """Compare every byte with its digest."""
    faults = Registry(args.registry).verify()
    if faults:
        raise Failure(f"{len(faults)} faults: {'; '.join(faults)}")
    print("every bundle is whole")
    return 0


def collect(args: argparse.Namespace) -> int:
    """Forget old bundles and remove what none needs."""
    files, size = Registry(args.registry).gc(args.keep)
    print(f"{files} files removed, {readable(size)}")
    return 0
