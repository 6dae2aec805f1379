"""What ts.onnx.save writes for every sample of every op, as the reference implementation of ONNX runs it;
no sample is refused that was written.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera import f32, op
from tessera.interop.onnx.export import model_bytes
from tests.support.cases import op_cases
from tests.support.pinned import no_more, pinned

onnx = pytest.importorskip("onnx")
reference = pytest.importorskip("onnx.reference")
RUNS_ON = "numpy"
# The reference errs or has no rule: pools (see test_onnx_reference.py), draws, and Resize of f64.
NOT_RUN = {"max_pool"}


def wrong(got: Any, want: Any) -> bool:
    got, want = np.asarray(got), np.asarray(want)
    if got.shape != want.shape or got.dtype != want.dtype:
        return True
    return not np.allclose(got, want, 2e-4, 1e-5, equal_nan=True)


def compared(f: Any, arrays: Any) -> str:
    """How a written function differs from what it is; nothing where it is the same."""
    try:
        data = model_bytes(f, *arrays)
    except ts.onnx.OnnxError as e:
        return f"refused: {str(e).splitlines()[0]:.60}"
    model = onnx.load_model_from_string(data)
    names = [i.name for i in model.graph.input]
    wanted = ts.tree.leaves(f(*arrays))
    with np.errstate(all="ignore"):
        found = reference.ReferenceEvaluator(model).run(None, dict(zip(names, arrays, strict=True)))
    return "differs" if any(map(wrong, found, map(np.asarray, wanted))) else ""


def tried() -> Iterator[str]:
    for c in op_cases.all_cases():
        if (
            c.op is None
            or not c.slots
            or any(0 in s.shape for s in c.slots)
            or c.op.name in NOT_RUN
        ):
            continue
        try:
            how = compared(lambda *xs, c=c: c.call(xs), c.draw(f32))
        except Exception as e:  # what the reference cannot run
            how = f"not run: {type(e).__name__}"
        if how:
            yield f"{c}: {how}"


def test_samples_of_ops_as_the_reference_runs_them() -> None:
    no_more("onnx_written", tried())


X = np.sin(np.arange(2 * 4 * 7 * 6.0)).reshape(2, 4, 7, 6).astype(np.float32)
SHORT = X[:1, :, :4, :3].copy()
WEIGHTS = np.cos(np.arange(6 * 4 * 3 * 2.0)).reshape(6, 4, 3, 2).astype(np.float32)
PADS: list[Any] = [0, ((1, 0), (2, 1)), ((-1, 0), (0, 0))]
OPTIONS: dict[str, list[dict[str, Any]]] = {
    "conv": [{"stride": s, "padding": p, "dilation": d}
             for s in (1, (2, 3)) for p in PADS for d in (1, (2, 1))],
    "avg_pool": [{"size": (3, 2), "stride": s, "padding": p, "ceil_mode": c, "count_include_pad": i}
                 for s in (None, (2, 3)) for p in (0, 1) for c in (False, True) for i in (False, True)],
    "conv_transpose": [{"stride": s, "padding": p, "dilation": d, "output_padding": o}
                       for s in (1, (2, 3)) for p in (0, 1) for d in (1, 2) for o in (0, 1)],
}  # fmt: skip


def windows() -> Iterator[str]:
    for more in OPTIONS["conv"]:
        yield f"conv {more}: {told(lambda x, w, m=more: op.conv(x, w, **m), X, WEIGHTS)}"
    for more in OPTIONS["avg_pool"]:
        yield f"avg_pool {more}: {told(lambda x, m=more: op.avg_pool(x, **m), SHORT)}"
    for more in OPTIONS["conv_transpose"]:
        how = told(lambda x, w, m=more: op.conv_transpose(x, w, **m), X[:1], WEIGHTS[:4])
        yield f"conv_transpose {more}: {how}"
    for more in OPTIONS["conv"]:
        grad = ts.grad(lambda x, w, m=more: op.sum(op.conv(x, w, **m) * 0.5), argnums=(0, 1))
        yield f"gradient of conv {more}: {told(grad, X, WEIGHTS)}"


def told(f: Any, *arrays: Any) -> str:
    try:
        return compared(f, arrays)
    except ts.TesseraError as e:
        return f"no function: {str(e).splitlines()[0]:.80}"
    except Exception as e:  # what the reference cannot run
        return f"not run: {type(e).__name__}"


def test_windows_as_the_reference_runs_them() -> None:
    pinned("onnx_written_windows", windows())


def test_a_scalar_that_is_moved_stays_one() -> None:
    x = np.float32(2.5)
    assert compared(lambda x: op.broadcast_to(op.reshape(x, ()), ()), (np.asarray(x),)) == ""
    c = ts.tensor(3.0)
    for f in (lambda x: x * c, lambda x: ts.cond(x > 0, lambda: x * c, lambda: x - c)):
        assert compared(f, (np.asarray(x),)) == ""
