"""The kernels of examples/kernels by Triton's interpreter, in memory that is watched, against NumPy.

TRITON_INTERPRET=1 python -m tests.oracles.triton_examples FOLDER SIZE [NAME ...]
"""

from __future__ import annotations

import json
import sys
import warnings
from pathlib import Path

import numpy as np

from tests.oracles.triton_guarded import prepared, run
from tests.support.cases.kernel_examples import CASES, close


def verdict(name: str, size: int, folder: Path) -> str | None:
    """What is wrong with a kernel as Triton, or None."""
    case = CASES[name]
    dtype = np.dtype(case.dtypes[0])
    args, kwargs = case.arguments(np.random.default_rng(size), size, dtype)
    kernel, arrays, sizes = prepared(case.kernel, args, kwargs)
    got = run(kernel, arrays, sizes, folder)
    made = [a for a, m in zip(got, kernel.parameters, strict=True) if m.writable]
    try:
        for x, want in zip(made, case.expected(*args, **kwargs), strict=True):
            close(x, want, case.tolerance)
    except AssertionError as e:
        return " ".join(str(e).split())[:300]
    return None


def main(folder: Path, size: int, names: list[str]) -> None:
    """Tell what was found of every kernel."""
    warnings.simplefilter("ignore")
    wrong, count = {}, 0
    for name in names or CASES:
        if size < CASES[name].least:
            continue
        count += 1
        try:
            said = verdict(name, size, folder)
        except Exception as e:
            cause = e.__cause__ or e
            said = f"{type(cause).__name__}: {cause}"[:300]
        if said is not None:
            wrong[name] = said
    print(json.dumps({"count": count, "wrong": wrong}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])
