"""Failures that are explained: what Tessera may refuse, and faults that are known and not mended yet."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple


class Known(NamedTuple):
    """Failures of one cause: patterns for check, message and one of the ops, and why."""

    check: str
    message: str
    op: str
    why: str


# Faults of the list "Trust" (issue 25) by item, to be emptied as they are mended.
_PRODUCTS = r"einsum|contract|tensordot|vecdot|outer|kron|matmul|resize|interpolate|adaptive_.*"
KNOWN: tuple[Known, ...] = (
    Known(
        "batched", "vmap and loop", _PRODUCTS, "item 12: vmap of complex einsum: the host's order"
    ),
    Known(
        ".*", "Broken.*nan", "conv_transpose.*|conv_input", "item 13: conv_transpose spreads a NaN"
    ),
    Known("references", "Broken", "conv.*", "item 22: conv of tf32 is not rounded to tf32"),
)

# What may be refused: a way to run a program, the error's text, and why that is no fault.
ALLOWED: tuple[Known, ...] = (
    Known(
        "symbolic",
        r"symbolic|is not known|guard|give the axis a number|assum|size",
        ".*",
        "needs numbers for its sizes",
    ),
)


def known(check: str, kind: str, message: str, ops: Sequence[str]) -> str | None:
    """Why a failure is known, if it is."""
    return _found(KNOWN, check, f"{kind}: {message}", ops)


def allowed(check: str, message: str, ops: Sequence[str]) -> str | None:
    """Why a refusal is right, if it is."""
    return _found(ALLOWED, check, message, ops)


def _found(table: Sequence[Known], check: str, message: str, ops: Sequence[str]) -> str | None:
    for k in table:
        if (
            re.fullmatch(k.check, check)
            and re.search(k.message, message, re.S)
            and any(re.fullmatch(k.op, o) for o in ops)
        ):
            return k.why
    return None
