"""Derivatives of kernels by Triton's interpreter, in memory that is watched, against the Tile interpreter.

TRITON_INTERPRET=1 python -m tests.oracles.triton_grads FOLDER [NAME ...]
"""

from __future__ import annotations

import json
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from tessera.ir.tile.autodiff import reverse
from tessera.ir.tile.autodiff.forward import push
from tessera.ir.tile.gpu.written import written
from tessera.ir.tile.interp import interpret, sizes_of
from tessera.ir.tile.ir import Kernel
from tessera.lang.kernel.scalar_grad import pushes, slopes
from tests.lang.kernel.test_kernel_grad_data import CASES
from tests.oracles.triton_guarded import run


def derivatives(name: str) -> list[tuple[Kernel, list[Any]]]:
    """The backward and the forward kernel of a case, each with what it is called with."""
    f, args, argnums, kwargs = CASES[name]
    k = f.lower(*args, **kwargs)
    count, given = len(args), [np.asarray(a) for a in args]
    moved = [i in argnums for i in range(count)]
    made = len(k.parameters) - count + sum(m.writable for m in k.parameters[:count])
    back = reverse(k, count, moved, [True] * made, slopes).kernel
    forward = push(k, count, moved, pushes).kernel
    first = sizes_of(k, [*given, *_results(k, count, given)])
    return [(x, [*given, *_results(x, count, given, first)]) for x in (back, forward)]


def _results(k: Kernel, count: int, given: list[Any], sizes: Any = None) -> list[Any]:
    """Numbers for cotangents and tangents, and zeros for what is written."""
    known = sizes or _known(k, given)
    rng = np.random.default_rng(3)
    out = []
    for m in k.parameters[count:]:
        t = m.type.substitute(known)
        random = m.name.startswith(("ct_", "t_"))
        out.append(
            rng.normal(size=t.shape).astype(t.dtype.np) if random else np.zeros(t.shape, t.dtype.np)
        )
    return out


def _known(k: Kernel, given: list[Any]) -> dict[str, int]:
    pairs = zip(k.parameters, given, strict=False)
    return {str(n): size for m, a in pairs for n, size in zip(m.type.shape, a.shape, strict=True)
            if str(n).isidentifier()}  # fmt: skip


def verdict(name: str, folder: Path) -> str | None:
    """What is wrong with the derivatives of a kernel as Triton, or None."""
    for kernel, arrays in derivatives(name):
        sizes = sizes_of(kernel, arrays)
        want = [a.copy() for a in arrays]
        interpret(kernel, want, sizes)
        got = run(written(kernel), [a.copy() for a in arrays], sizes, folder)
        for x, y, m in zip(got, want, kernel.parameters, strict=True):
            if m.writable and not np.allclose(x, y, rtol=1e-9, atol=1e-9):
                return f"{kernel.name}: {m.name} differs by {np.abs(x - y).max()}"
    return None


def main(folder: Path, names: list[str]) -> None:
    """Tell what was found of every kernel."""
    warnings.simplefilter("ignore")
    wrong = {}
    for name in names or CASES:
        try:
            said = verdict(name, folder)
        except Exception as e:
            cause = e.__cause__ or e
            said = f"{type(cause).__name__}: {cause}"[:400]
        if said is not None:
            wrong[name] = said
    print(json.dumps({"count": len(names or CASES), "wrong": wrong}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
