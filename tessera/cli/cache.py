"""tessera cache: list, export, import, trim and clear the folder of compiled code and tuned nests."""

from __future__ import annotations

import argparse
import json
import os
import re
import time
from typing import Any

from tessera import cache
from tessera.cli.show import Failure, UsageError, console, table_of
from tessera.core.flags import flags
from tessera.ir.schedule.memory import readable
from tessera.runtime import tuned
from tessera.runtime.folder import KINDS

_WHAT = {
    "code": "machine code of kernels", "programs": "compiled programs",
    "gpu": "machine code of kernels on GPUs", "failed": "LLVM IR that could not be built",
    "faults": "what reproduces faults of the compiler",
}  # fmt: skip
_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "KI": 2**10, "MI": 2**20, "GI": 2**30}


def list_cache(args: argparse.Namespace) -> int:
    """Show what is kept, and how much room it takes."""
    found = examine()
    if args.json:
        print(json.dumps(found))
        return 0
    table = table_of("kind", "entries", "size", "unused for", "what it is")
    for kind, row in found["kinds"].items():
        age = "" if row["oldest"] is None else f"{row['oldest'] / 86400:.1f} days at most"
        table.add_row(kind, str(row["entries"]), readable(row["bytes"]), age, row["what"])
    screen = console()
    screen.print(table)
    limit = "no limit" if not found["limit"] else f"limit {readable(found['limit'])}"
    screen.print(f"\n{found['folder']}: {readable(found['bytes'])}, {limit}", highlight=False)
    return 0


def examine() -> dict[str, Any]:
    """What lies in the cache, by kind."""
    entries, now = cache.entries(), time.time()
    kinds: dict[str, dict[str, Any]] = {}
    for kind in KINDS:
        own = [e for e in entries if e.kind == kind]
        oldest = max((now - e.used for e in own), default=None)
        size = sum(e.bytes for e in own)
        kinds[kind] = {"entries": len(own), "bytes": size, "oldest": oldest, "what": _WHAT[kind]}
    file = tuned.path()
    kinds["tuned"] = {
        "entries": len(tuned.entries()), "bytes": file.stat().st_size if file.exists() else 0,
        "oldest": None, "what": "nests that the tuner found on this machine",
    }  # fmt: skip
    total = sum(k["bytes"] for k in kinds.values())
    return {
        "folder": str(flags().cache_dir), "bytes": total, "limit": flags().cache_limit, "kinds": kinds,
    }  # fmt: skip


def export_cache(args: argparse.Namespace) -> int:
    """Write all that is kept to one file."""
    try:
        n = cache.export_all(args.path)
    except OSError as e:
        raise Failure(f"{args.path} cannot be written ({e.strerror or e})") from None
    print(f"{n} entries written to {args.path}, {readable(os.path.getsize(args.path))}")
    return 0


def import_cache(args: argparse.Namespace) -> int:
    """Take over such a file."""
    try:
        taken, damaged = cache.load_all(args.path)
    except OSError as e:
        raise Failure(f"{flags().cache_dir} cannot be written ({e.strerror or e})") from None
    print(f"{taken} entries taken over from {args.path}")
    if damaged:
        raise Failure(f"{damaged} entries of {args.path} are damaged and were left out")
    return 0


def trim_cache(args: argparse.Namespace) -> int:
    """Remove what was not used for longest, down to a size."""
    limit = flags().cache_limit if args.to is None else size_of(args.to, "--to")
    if args.to is None and not limit:
        raise UsageError("TESSERA_CACHE_LIMIT is 0, which is no limit; give a size: --to 500MB")
    return _removed(*cache.trim(limit))


def clear_cache(args: argparse.Namespace) -> int:
    """Remove compiled code and programs, which are built again when they are needed."""
    status = _removed(*cache.clear_code())
    if args.tuned:
        cache.clear()
        print("all that was tuned is forgotten")
    return status


def _removed(files: int, size: int) -> int:
    print(f"{files} files removed, {readable(size)}")
    return 0


def size_of(text: str, option: str) -> int:
    """The bytes that a size such as 2GiB names."""
    m = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMG]I?)?B?", text.strip().upper())
    if m is None:
        raise UsageError(f"{option} is {text!r}, expected a size such as 500MB or 2GiB")
    return int(float(m[1]) * _UNITS[m[2] or ""])
