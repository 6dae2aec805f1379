"""What the lines of calls.txt may name."""

from __future__ import annotations

import linecache
from pathlib import Path
from typing import Any

import numpy as np

import tessera as ts
from tessera import Operator, Schedule, Tensor, f32, kernel, op, tile

CALLS = Path(__file__).with_name("calls.txt")


def annotated(x: Tensor["B", 4, f32]) -> Any:
    """A function with an annotation."""
    return x


@kernel
def doubled(x: Tensor["N", f32]) -> Any:
    """A kernel of one vector."""
    return tile.load(x) * 2


def names() -> dict[str, Any]:
    """A fresh set of names, for one call."""
    bf = ts.ones((2,), "bf16")
    return {
        "np": np, "ts": ts, "op": op, "Tensor": Tensor, "Operator": Operator, "f32": f32, "tile": tile,
        "kernel": kernel, "Schedule": Schedule, "annotated": annotated, "doubled": doubled,
        "X": ts.tensor(np.arange(12.0, dtype=np.float32).reshape(3, 4)), "V": ts.ones((5,)),
        "I": ts.tensor([0, 1, 2]), "M": ts.tensor(np.eye(4, dtype=np.float32)), "K": ts.key(0),
        "img": ts.ones((1, 3, 8, 8)), "bf": bf,
    }  # fmt: skip


def lines() -> list[str]:
    """The wrong calls, one on a line."""
    found = CALLS.read_text(encoding="utf-8").splitlines()
    return [x for x in found if x and not x.startswith("#")]


def run(number: int, line: str) -> str:
    """Run a line as a program of its own, under a file name, which is returned before it runs."""
    file = f"mistake_{number}.py"
    linecache.cache[file] = (len(line), None, [line + "\n"], file)
    exec(compile(line, file, "exec"), names())
    return file


PINNED = Path(__file__).with_name("pinned.txt")


def pinned() -> list[tuple[str, str]]:
    """Typical mistakes, and the messages that they must get, which stand indented below them."""
    found = PINNED.read_text(encoding="utf-8").splitlines()
    return [(call, said.strip()) for call, said in zip(found[::2], found[1::2], strict=True)]
