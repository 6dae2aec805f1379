"""Texts that tests pin: what a module says over all of its cases, beside a file that a person reviewed.

TESSERA_PIN=1 pytest tests/plan/test_plan_pinned.py     writes the files anew: read the difference
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

_NUMBER = re.compile(r"-?\d+\.\d+(?:e[+-]?\d+)?|-?\d+e[+-]?\d+")
FOLDER = Path(__file__).parent / "data" / "pinned"


def pinned(name: str, lines: Iterable[str], near: float = 0.0) -> None:
    """Fail with the first line that differs from the pinned ones; fractions may differ by `near`."""
    found = "\n".join(lines).split("\n")
    file = FOLDER / f"{name}.txt"
    if os.environ.get("TESSERA_PIN"):
        file.write_text("\n".join(found) + "\n")
    want = file.read_text().split("\n")[:-1]
    for i, (a, b) in enumerate(zip(found, want, strict=False)):
        if near and a != b and _same(a, b, near):
            continue
        assert a == b, f"{file.name}, line {i + 1}"
    assert len(found) == len(want), f"{file.name}: the number of lines"


def no_more(name: str, lines: Iterable[str]) -> None:
    """Fail with lines that are not among the pinned ones: what is lacking may become less."""
    found = list(lines)
    file = FOLDER / f"{name}.txt"
    if os.environ.get("TESSERA_PIN"):
        file.write_text("\n".join(found) + "\n")
    known = set(file.read_text().split("\n"))
    assert [x for x in found if x not in known] == []


def _same(a: str, b: str, near: float) -> bool:
    """Whether two lines are equal but for numbers that are near each other."""
    p, q = _NUMBER.findall(a), _NUMBER.findall(b)
    if _NUMBER.sub("#", a) != _NUMBER.sub("#", b) or len(p) != len(q):
        return False
    return all(
        abs(float(x) - float(y)) <= near * (abs(float(y)) + 1) for x, y in zip(p, q, strict=True)
    )


def short(x: Any) -> str:
    """Values in few characters, floats with eight digits: the last bits depend on the machine."""
    if isinstance(x, float):
        return f"{x:.8g}"
    if isinstance(x, dict):
        return "{" + " ".join(f"{k}={short(v)}" for k, v in x.items()) + "}"
    if isinstance(x, tuple | list):
        return "(" + " ".join(map(short, x)) + ")"
    return str(x)
