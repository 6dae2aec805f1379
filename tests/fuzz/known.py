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


# To be emptied as they are mended.
KNOWN: tuple[Known, ...] = ()

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
