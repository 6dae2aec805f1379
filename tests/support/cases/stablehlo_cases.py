"""Cases of ops and functions that StableHLO has a form for."""

from __future__ import annotations

from typing import Any

import numpy as np

from tessera.core.dtype import as_dtype
from tests.support.cases.op_cases import Case, all_cases
from tests.support.runners.tolerance import TOLERANCE

# Functions without a form: decompositions that StableHLO lacks and whose rules are not written, calls of
# the host, kernels, and checks that stop a program.
NO_FORM = {
    "adjugate", "adjugate_slope", "checked_index", "cluster_turn", "clusters", "cond_number", "eig", "eigh",
    "eigvals", "eigvalsh", "ensure", "expm_frechet", "gauged", "host_call", "kernel", "loggamma_slope",
    "logm", "lstsq", "matrix_function", "matrix_function_frechet", "matrix_norm", "matrix_rank", "pinv",
    "polar", "same_in_every_gauge", "signm", "singular_follow", "sqrtm", "svd", "svdvals",
    "toeplitz_slogdet", "toeplitz_solve", "watch",
}  # fmt: skip


def chosen(each: int, functions: bool = False) -> list[Case]:
    """So many cases of each op, and of each function that is written with ops, those with elements first."""
    found: dict[str, list[Case]] = {}
    for c in all_cases():
        found.setdefault(c.name, []).append(c)
    return [
        c
        for name, mine in found.items()
        if name not in NO_FORM and (functions or mine[0].op is not None)
        for c in sorted(mine, key=lambda c: any(0 in s.shape for s in c.slots))[:each]
    ]


def differ(got: Any, want: Any, times: float = 20) -> bool:
    """Whether arrays differ in shape, dtype, or by more than so many tolerances."""
    if got.shape != want.shape or got.dtype != want.dtype:
        return True
    t = TOLERANCE[as_dtype(want.dtype).name]
    a, b = (x.astype(np.complex128) for x in (got, want))
    return not np.allclose(a, b, rtol=times * t.rtol, atol=times * t.atol, equal_nan=True)
