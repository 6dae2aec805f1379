"""Which parameters of kernels may be one memory, as the C runtime reads it (docs/abi.md, section 4).

A section of its own, which a runtime that does not know it passes over: it runs with the same bits, and
copies more.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from tessera.deploy.machine_code import CodePart
from tessera.ir.target.cpu.entry import Entry

MAGIC, VERSION = b"TSSH", 1


def shares_of(program: CodePart) -> bytes:
    """What the kernels of a program and of its regions share, in the order of their code."""
    rows = dict(sorted(_kernels(program)))
    told = {at: row for at, row in rows.items() if row[0] or row[1]}
    made = b"".join(
        struct.pack("<QII", at, int(copies), len(pairs))
        + b"".join(struct.pack("<II", *pair) for pair in sorted(pairs))
        for at, (pairs, copies) in told.items()
    )
    return MAGIC + struct.pack("<II", VERSION, len(told)) + made


def _kernels(part: CodePart) -> Iterator[tuple[int, tuple[tuple[tuple[int, int], ...], bool]]]:
    for i, e in enumerate(part.image.kernels):
        yield part.functions[i], (e.shares, _is_copy(e))
    for r in part.regions.values():
        yield from _kernels(r)


def _is_copy(e: Entry) -> bool:
    """Whether a kernel only copies one parameter to another."""
    return e.copies and [p.writable for p in e.parameters] == [False, True]


__all__ = ["shares_of"]
