"""Methods that tensors share with NumPy's arrays: the same answers, eager and jitted, and errors of ours."""

from __future__ import annotations

from inspect import getattr_static
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera import op
from tessera.lang.array_methods import ArrayMethods
from tessera.lang.habits import _Absent

X = np.random.default_rng(3).normal(size=(4, 5)) * 10
CALLS: dict[str, list[tuple[Any, ...]]] = {
    "cumsum": [(), (0,), (-1,)], "cumprod": [(), (1,)], "argsort": [(), (0,)],
    "clip": [(-1.0, 2.0), (None, 1.0), (0.5,)], "round": [(), (2,), (-1,)], "conj": [()],
    "conjugate": [()], "copy": [()], "dot": [(X.T,), (X[0],)], "ravel": [()], "swapaxes": [(0, 1), (-1, 0)],
    "take": [([3, 0, 7],), ([1, 1], 0)], "searchsorted": [], "nonzero": [()],
}  # fmt: skip


def test_every_method_is_compared() -> None:
    assert set(CALLS) == {n for n in vars(ArrayMethods) if not n.startswith("_")}


@pytest.mark.parametrize(("name", "args"), [(n, a) for n, calls in CALLS.items() for a in calls])
def test_a_method_gives_what_numpy_gives(name: str, args: tuple[Any, ...]) -> None:
    want = getattr(X, name)(*args)
    got = getattr(ts.tensor(X), name)(*args)
    np.testing.assert_allclose(np.asarray(got), np.asarray(want), rtol=1e-14)
    if name != "nonzero":  # its size depends on data
        jitted = ts.jit(lambda x: getattr(x, name)(*args))(ts.tensor(X))
        np.testing.assert_array_equal(jitted, got)


def test_searchsorted_is_of_a_sorted_vector() -> None:
    x, v = np.sort(X[0]), X[1]
    for side in ("left", "right"):
        np.testing.assert_array_equal(ts.tensor(x).searchsorted(v, side), x.searchsorted(v, side))


@pytest.mark.parametrize("dtype", ["f32", "f64", "i32", "u8"])
@pytest.mark.parametrize("decimals", [-2, -1, 0, 1, 3])
def test_round_to_decimals_is_numpys(dtype: str, decimals: int) -> None:
    x = ts.tensor(np.abs(X) * 5).astype(dtype)
    with np.errstate(all="ignore"):
        want = np.round(x.numpy(), decimals)
    for got in (
        op.round(x, decimals),
        x.round(decimals),
        round(x, decimals),
        np.round(x, decimals),
    ):
        assert got.dtype == x.dtype
        np.testing.assert_array_equal(got, want)
    np.testing.assert_array_equal(ts.jit(lambda x: op.round(x, decimals=decimals))(x), want)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda x: x.cumsum(dim=0), "cumsum: got an unexpected keyword argument 'dim'; use 'axis'"),
        (lambda x: x.round(1.5), "round: decimals is float 1.5, expected a whole number"),
        (lambda x: x.sort(), "write y = op.sort(x, axis): tensors are values"),
        (
            lambda x: x.repeat(2),
            "op.tile(x, counts) for PyTorch's, op.repeat(x, count, axis) for NumPy's",
        ),
        (lambda x: x.take([99]), "take"),
    ],
)
def test_mistakes_say_what_to_write(call: Any, said: str) -> None:
    with pytest.raises(ts.TesseraError) as e:
        call(ts.tensor(X))
    assert said in str(e.value)


def test_dir_shows_what_is_there_and_nothing_else() -> None:
    shown = [n for n in dir(ts.tensor(X)) if not n.startswith("_")]
    assert {"all", "any", "cumsum", "sum"} <= set(shown)
    kinds = {type(getattr_static(ts.Tensor, n)) for n in shown}
    assert _Absent not in kinds
