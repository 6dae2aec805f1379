"""Scalar ops that are written as ONNX and as StableHLO are the ops themselves, special values included."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera.core.dtype import as_dtype
from tessera.core.flags import override
from tessera.core.scalar import Expr
from tessera.interop.onnx.export import model_bytes
from tests.support.cases import op_cases
from tests.support.runners.tolerance import TOLERANCE

pytest.importorskip("onnx")
RUNS_ON = "numpy"
_SPECIAL = [0.0, -0.0, 1.0, -1.0, 0.25, -0.75, 1.5, -2.5, 7.0, -7.0, 1e-6, np.inf, -np.inf, np.nan]
_WHOLE = [0, 1, -1, 2, -3, 7, -7, 12]
VALUES: dict[str, list[Any]] = {
    "float32": [*_SPECIAL, 1e25, -3e-30],
    "float64": [*_SPECIAL, 1e200, -3e-200],
    "int32": _WHOLE,
    "int64": _WHOLE,
    "uint8": [0, 1, 2, 3, 7, 200, 255],
    "bool": [False, True],
}


def elementwise() -> dict[str, op_cases.Case]:
    """One case of each op that is a scalar expression."""
    found: dict[str, op_cases.Case] = {}
    for c in op_cases.all_cases():
        if c.op is not None and isinstance(c.op.body, Expr) and c.op.combine is None:
            found.setdefault(c.op.name, c)
    return {n: c for n, c in found.items() if 1 <= len(c.slots) <= 3 and n != "from_bits"}


def operands(c: op_cases.Case, dtype: str) -> list[Any] | None:
    """All combinations of the values of a dtype; None for an op that does not take it."""
    kind = as_dtype(dtype).kind
    of = [dtype if kind in s.kinds else "bool" if s.kinds == "b" else None for s in c.slots]
    if dtype not in of or None in of:
        return None
    wide = len(of) == 3
    values = [VALUES[d][:: 1 + wide] if d == dtype else VALUES["bool"] for d in of if d]
    grid = zip(*itertools.product(*values), strict=True)
    return [np.array(x).astype(d) for x, d in zip(grid, of, strict=True)]


def defined(name: str, dtype: str, xs: list[Any]) -> list[Any]:
    """Without what has no result: quotients of whole numbers by 0, shifts by more than the width."""
    if dtype[0] in "iu" and name in ("floor_divide", "remainder", "fmod"):
        keep = xs[1] != 0
    elif name in ("bitwise_left_shift", "bitwise_right_shift"):
        keep = (xs[1] >= 0) & (xs[1] < 8)
    elif dtype[0] in "iu" and name == "pow":
        keep = (xs[1] >= 0) & (xs[1] < 4)
    else:
        return xs
    return [x[keep] for x in xs]


def onnx_of(f: Any, *xs: Any) -> Any:
    m = ts.onnx.load(model_bytes(f, *xs))
    names = [i.name for i in m.model.graph.inputs]
    return next(iter(m.run(dict(zip(names, xs, strict=True))).values()))


def stablehlo_of(f: Any, *xs: Any) -> Any:
    return ts.stablehlo.load(ts.stablehlo.export(f, *xs))(*map(ts.tensor, xs))


def differ(got: Any, want: Any) -> Any:
    """Where results differ: in what is finite by tolerances, in what is not at all."""
    t = TOLERANCE[as_dtype(want.dtype).name]
    with np.errstate(all="ignore"):
        near = np.isclose(got, want, 8 * t.rtol, 0, equal_nan=True)
        return ~near & ~(np.abs(np.float64(got) - np.float64(want)) <= t.atol)


@pytest.mark.parametrize("dtype", VALUES)
@pytest.mark.parametrize("form", [onnx_of, stablehlo_of], ids=["onnx", "stablehlo"])
def test_a_scalar_op_that_is_written_has_its_values(form: Any, dtype: str) -> None:
    wrong, seen = {}, set()
    with override(target="numpy"):
        for name, c in elementwise().items():
            if (given := operands(c, dtype)) is None:
                continue
            xs = defined(name, dtype, given)
            try:
                want = np.asarray(c.call(list(map(ts.tensor, xs))))
                got = np.asarray(form(lambda *ys, c=c: c.call(ys), *xs))
            except (ts.onnx.OnnxError, ts.stablehlo.StableHloError):
                continue  # has no form
            seen.add(name)
            if got.dtype != want.dtype or (bad := differ(got, want)).any():
                i = int(np.argmax(bad)) if got.dtype == want.dtype else 0
                wrong[name] = (int(bad.sum()), [x[i] for x in xs], got[i], want[i])
            elif dtype[0] == "f" and name not in ("floor_divide", "erfcinv"):
                zero = want == 0
                if (np.signbit(got) != np.signbit(want))[zero].any():
                    wrong[name] = "signs of zeros"
    assert wrong == {}
    assert len(seen) >= {"f": 76, "i": 38, "u": 38, "b": 26}[dtype[0]]


@pytest.mark.parametrize("name", ["log1p", "expm1", "sinh", "tanh", "asinh", "atanh"])
@pytest.mark.parametrize("form", [onnx_of, stablehlo_of], ids=["onnx", "stablehlo"])
def test_digits_near_zero_are_kept(form: Any, name: str) -> None:
    x = np.array([1e-3, -2e-4, 3e-7, -4e-9, 5e-20])
    for dtype, rtol in (("f4", 2e-6), ("f8", 1e-14)):
        z = x.astype(dtype)
        got = np.asarray(form(getattr(ts.op, name), z))
        want = {"asinh": np.arcsinh, "atanh": np.arctanh}.get(name) or getattr(np, name)
        np.testing.assert_allclose(got, want(z.astype("f8")), rtol)
