"""Guards: each wrong call of calls.txt and kernels.txt ends in the text beside it; the call next to it is
taken.

A line of calls.txt is a wrong call; `= ` begins its message; `+ ` begins a call just inside of what is
taken, which must run.  So a guard that is dropped, moved by one or turned round is seen.
"""

from __future__ import annotations

import linecache
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera import TesseraError, array_api

sys.path.insert(0, str(Path(__file__).parent.parent / "mistakes"))
from setup import names

RUNS_ON = "numpy"
HERE = Path(__file__).parent


def rows(file: str) -> Iterator[tuple[str, str]]:
    """The calls of a file, each with its message; "" for one that must run."""
    wrong = ""
    for x in (HERE / file).read_text(encoding="utf-8").splitlines():
        if x.startswith("+ "):
            yield x[2:], ""
        elif x.startswith("= "):
            yield wrong, x[2:]
        elif not x.startswith("#"):
            wrong = x


def run(name: str, text: str, given: dict[str, Any]) -> dict[str, Any]:
    """Run a text as a file of its own."""
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    exec(compile(text, name, "exec"), given)
    return given


CALLS = list(rows("calls.txt"))
KERNELS = list(rows("kernels.txt"))


def test_each_wrong_line_has_its_message() -> None:
    for file, found in (("calls.txt", CALLS), ("kernels.txt", KERNELS)):
        text = (HERE / file).read_text(encoding="utf-8").splitlines()
        wrong = [x for x in text if x and not x.startswith(("#", "=", "+"))]
        assert wrong == [x for x, message in found if message]
        assert len(set(wrong)) == len(wrong)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("line", "message"), CALLS, ids=[x for x, _ in CALLS])
def test_a_guard_stands_where_it_says(line: str, message: str) -> None:
    given = {**names(), "xp": array_api}
    if not message:
        run("guarded.py", line + "\n", given)
        return
    with pytest.raises(TesseraError) as e:
        run("guarded.py", line + "\n", given)
    assert e.value.message == message


HEAD = '@kernel\ndef f(x: KTile["N"], y: KTile["A", "B"], z: KTile["P", "Q", "R"]):\n'


@pytest.mark.parametrize(("body", "message"), KERNELS, ids=[x for x, _ in KERNELS])
def test_a_guard_of_the_kernel_language_stands_where_it_says(body: str, message: str) -> None:
    given = {"kernel": ts.kernel, "KTile": ts.KTile, "tile": ts.tile}
    f = run(f"body_{hash(body)}.py", f"{HEAD}    {body}\n", given)["f"]
    shapes = ((5,), (3, 4), (2, 3, 4))
    with pytest.raises(TesseraError) as e, ts.interpret():
        f(*(np.ones(s, np.float32) for s in shapes))
    assert e.value.message == message
