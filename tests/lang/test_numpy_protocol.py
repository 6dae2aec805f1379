"""NumPy's functions on tensors, and arrays of every layout as arguments."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera import Tensor, f32, f64, op

X = np.random.default_rng(0).standard_normal((3, 4))
U = np.abs(X) + 0.5

CALLS: dict[str, Any] = {
    "sin": np.sin, "add": lambda x: np.add(x, U), "add of an array": lambda x: np.add(U, x),
    "power": lambda x: np.power(x, 2.0),
    "arctan2": lambda x: np.arctan2(x, U), "maximum": lambda x: np.maximum(x, 0.0), "mean": np.mean,
    "mean along": lambda x: np.mean(x, axis=1),
    "sum kept": lambda x: np.sum(x, axis=0, keepdims=True), "max": lambda x: np.max(x, 0), "std": np.std,
    "argmax": lambda x: np.argmax(x, axis=1),
    "concatenate": lambda x: np.concatenate([x, x], axis=1), "stack": lambda x: np.stack((x, x)),
    "where": lambda x: np.where(x > 0, x, 0.0),
    "reshape": lambda x: np.reshape(x, (4, 3)), "transpose": np.transpose,
    "swapaxes": lambda x: np.swapaxes(x, 0, 1), "clip": lambda x: np.clip(x, -1.0, 1.0),
    "sort": lambda x: np.sort(x, axis=0), "cumsum": lambda x: np.cumsum(x, axis=1),
    "dot": lambda x: np.dot(x, x.T), "tril": np.tril,
    "einsum": lambda x: np.einsum("ij,kj->ik", x, x), "roll": lambda x: np.roll(x, 1, axis=0),
    "take": lambda x: np.take(x, [0, 2], axis=1),
    "squeeze": lambda x: np.squeeze(x[:1]), "outer": lambda x: np.outer(x[0], x[1]),
    "zeros_like": np.zeros_like, "flip": lambda x: np.flip(x, 0),
    "tensordot": lambda x: np.tensordot(x, x, axes=2), "expand_dims": lambda x: np.expand_dims(x, 1),
    "round": np.round,
    "fallback": lambda x: np.gradient(x[0]),
    "concatenate in a row": lambda x: np.concatenate([x, x[:1]], axis=None),
    "concatenate in a row, by place": lambda x: np.concatenate([x, x], None),
    "sort in a row": lambda x: np.sort(x, axis=None), "argsort in a row": lambda x: np.argsort(x, None),
    "sort of no kind": lambda x: np.sort(x, 0, None), "sort by name": lambda x: np.sort(a=x),
    "take_along_axis in a row": lambda x: np.take_along_axis(x, np.array([7, 2]), axis=None),
    "logical_and of numbers": lambda x: np.logical_and(np.round(x), 1),
    "logical_not of numbers": lambda x: np.logical_not(np.round(x)),
    "logical_xor of numbers": lambda x: np.logical_xor(np.round(x), x),
    "float_power": lambda x: np.float_power(np.abs(x), 3),
    "divmod": lambda x: divmod(x, 0.3)[1], "divmod the other way": lambda x: divmod(2, x)[0],
    "fallback with a scalar axis": lambda x: np.apply_along_axis(np.sum, 0, x),
    "add.reduce": lambda x: np.add.reduce(x, axis=0),
    "multiply.outer": lambda x: np.multiply.outer(x[0], x[1]),
    "norm of rows": lambda x: np.linalg.norm(x, axis=1),
}  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
def test_a_function_of_numpy_gives_a_tensor(name: str) -> None:
    f = CALLS[name]
    got, want = f(ts.tensor(X, f64)), f(X)
    assert isinstance(got, Tensor), type(got)
    assert got.shape == np.shape(want)
    np.testing.assert_allclose(got, want, rtol=1e-12)


def test_a_function_of_numpy_is_traced() -> None:
    def f(x: Any) -> Any:
        return np.sum(np.where(np.sin(x) > 0, np.concatenate([x[:1], x[1:]]), 0.0)) + np.mean(
            x, axis=0
        )

    np.testing.assert_allclose(ts.jit(f)(X), f(X), rtol=1e-12)
    np.testing.assert_allclose(ts.grad(lambda x: np.sum(np.square(x)))(ts.tensor(X)), 2 * X)


def test_writing_to_an_array_writes_there() -> None:
    out = np.zeros((3, 4))
    assert np.add(ts.tensor(X, f64), 1.0, out=out) is out
    np.testing.assert_allclose(out, X + 1)
    assert np.allclose(ts.tensor(X, f64), X) is True
    assert np.shape(ts.tensor(X)) == (3, 4)


def test_the_namespace_is_there_before_anybody_asks_for_it() -> None:
    code = "import tessera as ts; x = ts.ones(3).__array_namespace__(); print(x.__name__, x.sum(ts.ones(3)))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout == "tessera.array_api 3.\n"


def read_only() -> Any:
    x = X.copy()
    x.flags.writeable = False
    return x


LAYOUTS = {
    "strided": X[::2, ::-1], "transposed": X.T, "read-only": read_only(), "byte-swapped": X.astype(">f8"),
    "zero-size": X[:0],
    "broadcast": np.broadcast_to(X[0], (5, 4)), "fortran": np.asfortranarray(X), "scalar": X[0, 0],
    "unaligned": np.frombuffer(b"\0" + X.tobytes(), "f8", offset=1),
}  # fmt: skip


@pytest.mark.parametrize("name", LAYOUTS)
def test_arrays_of_every_layout_are_arguments(name: str) -> None:
    x = LAYOUTS[name]
    want = np.asarray(x, np.float64) * 2 + 1
    for got in (
        op.add(op.mul(x, 2), 1),
        ts.jit(lambda x: x * 2 + 1)(x),
        ts.tensor(x) * 2 + 1,
        ts.asarray(x) * 2 + 1,
    ):
        assert got.dtype is f64
        np.testing.assert_array_equal(got, want)


def test_huge_arrays_are_read_in_place() -> None:
    x = np.lib.stride_tricks.as_strided(
        np.ones(1, np.float32), (1 << 40,), (0,)
    )  # 4 TiB that nobody has
    assert ts.asarray(x).shape == (1 << 40,)
    assert ts.asarray(x)[5].dtype is f32


def test_an_element_is_looked_for_among_all() -> None:
    x = ts.tensor(np.arange(6).reshape(2, 3))
    assert 4 in x
    assert 7 not in x
    assert np.array([0, 1, 2]) in x
    assert "4" not in x
    with pytest.raises(ts.TesseraError, match="in on values"):
        ts.jit(lambda x: 4 in x)(x)


def test_universal_functions_have_numpy_s_dtypes() -> None:
    x, n = ts.tensor(np.array([0.5, 2.0], np.float32)), ts.tensor(np.array([-3, 2]))
    functions: Any = np
    assert functions.float_power(x, 2).dtype is f64
    for f in (functions.fabs, functions.rint):
        got = f(n)
        assert got.dtype is f32
        assert np.array_equal(np.asarray(got), f(np.array([-3, 2])))
