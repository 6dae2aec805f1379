"""Running folds on a GPU: NumPy's results, and the same bits for every size of parts, batch and width."""

from __future__ import annotations

import ast
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera import op
from tessera.core.dtype import as_dtype, bf16
from tessera.core.types import TensorType
from tessera.ir.schedule.ir import Primitive
from tessera.ir.target.triton.emit import emit
from tessera.ir.tile.gpu import scan
from tessera.ir.tile.interp import interpret
from tessera.ir.tile.verify import verify
from tests.support.fakes.gpu_fake import at, fake_gpu

RUNS_ON = "numpy"
FOLDS = {
    "cumsum": np.add, "cumprod": np.multiply, "cummax": np.maximum, "cummin": np.minimum,
    "logcumsumexp": np.logaddexp,
}  # fmt: skip


def launched(name: str, x: Any, axis: int, reverse: bool = False) -> Any:
    """The result of the kernels, by the Tile interpreter."""
    t = TensorType(as_dtype(x.dtype), x.shape)
    params = {"axis": axis, "reverse": reverse}
    e = scan.SCANS[name](Primitive("s", name, params, ("x",), ("y",)), {"x": t, "y": t})
    assert e is not None
    memory = {"x": x, "y": np.full(x.shape, 7).astype(x.dtype)}
    for n, u in e.between.items():
        memory[n] = np.full(u.shape, 3).astype(u.dtype.np)  # type: ignore[arg-type]
    for launch in e.launches:
        verify(launch.kernel)
        ast.parse(emit(launch.kernel, launch.threads))
        names = (*launch.inputs, *launch.outputs)
        given = [
            memory[n].reshape(m.type.shape)
            for m, n in zip(launch.kernel.parameters, names, strict=True)
        ]
        interpret(launch.kernel, given)
    return memory["y"]


def wanted(name: str, x: Any, axis: int, reverse: bool) -> Any:
    wide = x.astype("f8") if x.dtype.kind in "fV" else x
    wide = np.flip(wide, axis) if reverse else wide
    y = FOLDS[name].accumulate(wide, axis)
    return np.flip(y, axis) if reverse else y


@pytest.mark.parametrize("reverse", [False, True], ids=["up", "down"])
@pytest.mark.parametrize("name", FOLDS)
def test_a_running_fold_is_numpys(name: str, reverse: bool) -> None:
    rng = np.random.default_rng(3)
    for shape, axis in (((5,), 0), ((3, 37), 1), ((37, 3), 0), ((2, 33, 5), 1), ((2, 3, 5003), 2),
        ((1, 70, 130), 1)):  # fmt: skip
        for kind in ("f4", bf16.np) if name == "logcumsumexp" else ("f4", "i8", "u1", bf16.np):
            low = 0 if np.dtype(kind).kind == "u" else -3
            x = rng.integers(low, 4, shape) if np.dtype(kind).kind in "iu" else rng.uniform(0.9, 1.1,
                shape)  # fmt: skip
            x = x.astype(kind)
            got, want = launched(name, x, axis, reverse), wanted(name, x, axis, reverse)
            if np.dtype(kind).kind in "iu":
                assert (got == want.astype(kind)).all(), (shape, axis, kind)
            else:
                bound = x.shape[axis] * 2.0**-24 if kind == "f4" else 8e-3  # a rounding a step
                scale = np.maximum(np.abs(want), 1)
                assert (np.abs(got.astype("f8") - want) / scale).max() < bound, (shape, axis, kind)


@pytest.mark.parametrize("name", ["cumsum", "cumprod", "logcumsumexp"])
def test_no_size_of_parts_changes_a_bit(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(4)
    x = rng.normal(size=(3, 135 if name == "logcumsumexp" else 1003)).astype("f4")
    x[:, ::71] = -0.0
    for reverse in (False, True):
        want = launched(name, x, 1, reverse)
        for whole, part in (
            ((0, 16), (0, 64), (512, 256), (1000, 4)) if x.size > 1000 else ((0, 16), (64, 4))
        ):
            monkeypatch.setattr(scan, "WHOLE", whole)
            monkeypatch.setattr(scan, "PART", part)
            assert launched(name, x, 1, reverse).tobytes() == want.tobytes(), (whole, part)
        monkeypatch.undo()
        for steps in (2, 16, 64):
            monkeypatch.setattr(scan, "STEPS", steps)
            got = launched(name, np.ascontiguousarray(x.T), 0, reverse)
            assert got.T.tobytes() == want.tobytes(), steps
        monkeypatch.undo()
        alone = launched(name, x[1:2], 1, reverse)
        assert alone.tobytes() == want[1:2].tobytes()


def test_special_values_stay_where_they_are() -> None:
    inf = np.inf
    x = np.array([[1, np.nan, 2, 3], [inf, 1, -inf, 2], [-0.0, -0.0, 0.0, -0.0], [-inf, -inf, -3, inf]],
        "f4")  # fmt: skip
    with np.errstate(invalid="ignore"):
        for name, fold in FOLDS.items():
            got, want = launched(name, x, 1), fold.accumulate(x, 1)
            assert (np.isnan(got) == np.isnan(want)).all(), name
            here = ~np.isnan(want)
            most = 3e-7 if name == "logcumsumexp" else 0
            np.testing.assert_allclose(got[here], want[here], rtol=most, atol=most, err_msg=name)
    assert np.signbit(launched("cumsum", x, 1)[2]).tolist() == [True, True, False, False]


def test_a_program_has_the_bits_of_the_kernels() -> None:
    x = np.random.default_rng(5).normal(size=(7, 300)).astype("f4")
    with fake_gpu():
        y = ts.jit(lambda x: op.cumsum(x * 2.0, 1))(ts.tensor(x, device="cuda")).numpy()
    assert y.tobytes() == launched("cumsum", x * np.float32(2), 1).tobytes()


@pytest.mark.parametrize("where", ["fake", pytest.param("device", marks=pytest.mark.gpu)])
def test_logarithms_of_running_sums_are_no_step_of_the_host(where: str) -> None:
    with at(where):
        for shape in (
            ((3, 37), (70, 5)) if where == "fake" else ((3, 37), (70, 5), (2, 9001), (4096, 130))
        ):
            x = (np.random.default_rng(6).normal(size=shape) * 30).astype("f4")
            for axis in (0, 1):
                y = ts.jit(lambda x, a=axis: op.logcumsumexp(x, a))(ts.tensor(x).to("cuda")).numpy()
                want = np.logaddexp.accumulate(x.astype("f8"), axis)
                np.testing.assert_allclose(y, want, rtol=1e-5, atol=1e-5)
