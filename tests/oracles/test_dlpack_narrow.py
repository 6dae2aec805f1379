"""16- and 8-bit floats cross DLPack in both directions, without a copy."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tessera as ts
from tessera import bf16, f8e4m3, f8e5m2, op

torch = pytest.importorskip("torch")
jax = pytest.importorskip("jax")
pytestmark = pytest.mark.oracle

FORMATS = [(bf16, "bfloat16"), (f8e4m3, "float8_e4m3fn"), (f8e5m2, "float8_e5m2")]


@pytest.mark.parametrize(("dtype", "name"), FORMATS, ids=str)
def test_torch(dtype: Any, name: str) -> None:
    theirs = torch.arange(6, dtype=torch.float32).reshape(2, 3).to(getattr(torch, name))
    ours = ts.from_dlpack(theirs)
    assert ours.dtype is dtype
    assert np.asarray(ours).ctypes.data == theirs.data_ptr()
    np.testing.assert_array_equal(ours.astype("f32"), np.arange(6.0).reshape(2, 3))
    back = torch.from_dlpack(ts.tensor(np.arange(6.0), dtype))
    assert back.dtype is getattr(torch, name)
    assert back.float().tolist() == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize(("dtype", "name"), FORMATS, ids=str)
def test_jax(dtype: Any, name: str) -> None:
    theirs = jax.numpy.arange(6).astype(name)
    ours = ts.from_dlpack(theirs)
    assert ours.dtype is dtype
    np.testing.assert_array_equal(ours.astype("f32"), np.arange(6.0))
    back = jax.dlpack.from_dlpack(ts.tensor(np.arange(6.0), dtype))
    assert back.dtype == getattr(ml_dtypes, name)
    assert back.astype("float32").tolist() == [0, 1, 2, 3, 4, 5]


def test_a_tensor_of_torch_in_bf16_is_an_argument() -> None:
    x = torch.arange(4, dtype=torch.float32).to(torch.bfloat16)
    assert (ts.tensor([1, 1, 1, 1], bf16) + x).dtype is bf16
    np.testing.assert_array_equal(op.add(x, x).astype("f32"), [0, 2, 4, 6])
    np.testing.assert_array_equal(ts.jit(lambda x: x * 2)(x).astype("f32"), [0, 2, 4, 6])
    np.testing.assert_array_equal(ts.from_dlpack(x[::2]).astype("f32"), [0, 2])
    assert ts.from_dlpack(torch.zeros((0, 3), dtype=torch.bfloat16)).shape == (0, 3)
