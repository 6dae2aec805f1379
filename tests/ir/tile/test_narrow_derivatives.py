"""Derivatives of ops that are defined by other ops, in formats and under policies that are narrow."""

from __future__ import annotations

from typing import Any

import numpy as np

import tessera as ts
from tessera import accum, bf16, f8e4m3, f16, op, saturate
from tessera.core.dtype import DType
from tessera.core.errors import DTypeError
from tests.support.cases.op_cases import THROUGH, Case, cases
from tests.support.runners.each import each

RUNS_ON = "numpy"
FORMATS = (bf16, bf16 @ accum(bf16), f16 @ saturate, f8e4m3)


def _decomposes(c: Case) -> bool:
    return c.op is not None and c.op.decompose is not None and c.name not in THROUGH


@each(
    ((c, d) for c in cases(_decomposes) for d in FORMATS),
    by=lambda c: str(c[0].name),
    told=lambda c: f"{c[0]}, {c[1]}",
)
def test_tangents_have_the_types_of_values(case: Case, d: DType) -> None:
    """A decomposition may compute in f32: what is differentiated still ends in the op's own dtype."""
    xs = [ts.tensor(x, dtype=d) if x.dtype.kind == "f" else ts.tensor(x) for x in case.draw()]
    where = [i for i, x in enumerate(xs) if x.dtype.kind == "f"]

    def f(*floats: Any) -> Any:
        full = list(xs)
        for i, x in zip(where, floats, strict=True):
            full[i] = x
        return case.run(full)

    point = [xs[i] for i in where]
    try:
        f(*point)
    except DTypeError:
        return
    ys, tangents = ts.jvp(f, point, point)
    assert [t.type for t in tangents] == [y.type for y in ys]


def test_second_derivatives_of_attention_keep_their_policy() -> None:
    d = bf16 @ accum(bf16)
    x = ts.tensor(np.linspace(-1, 1, 8).reshape(1, 2, 4), dtype=d)
    tangent = lambda q: op.sum(op.abs(op.attention_tangent(q, x, x, x, x, x, x, scale=0.5)))  # noqa: E731
    assert ts.grad(tangent)(x).dtype is d
    grads = lambda q: op.sum(op.abs(op.attention_grad(q, x, x, x, x, scale=0.5)[1]))  # noqa: E731
    assert ts.grad(grads)(x).dtype is d
