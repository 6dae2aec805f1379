"""A call that NumPy and SciPy take as well means the same here, or is refused: never a third thing.

Every function of `op` that has a namesake is called with the same odd arguments: numbers, tuples, arrays and
keywords in every place.  Where both answer, the answers are equal, or `OTHERWISE` says why they are not.
"""

from __future__ import annotations

import itertools
import re
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.special

import tessera as ts
from tessera import TesseraError, op

RUNS_ON = "numpy"
_RNG = np.random.default_rng(1)
_M = _RNG.normal(size=(3, 4))
ARRAYS: dict[str, Any] = {
    "v": np.array([3.0, 1.0, 2.0, 2.0, 5.0]), "m": _M, "square": _RNG.normal(size=(3, 3)) + 3 * np.eye(3),
    "batch": _RNG.normal(size=(2, 3, 3)), "i": np.array([2, 0, 1]),
    "k": np.array([[0, 1, 2, 0], [1, 1, 0, 2]]),
    "z": _M + 1j * _M[::-1], "nan": np.array([np.nan, 1, 2, -2.0]), "empty": np.zeros((0, 3)),
    "number": np.float64(1.5), "rows": [np.arange(3.0), np.ones(3)],
}  # fmt: skip
SECOND = (0, 1, 2, -1, (0, 1), (1, 0), (1, 2), ((1, 2), (0, 1)), (3,), [2, 1], 0.5, (0.2, 0.8), True,
          "v", "m", "square", "i", "k", "number")  # fmt: skip
THIRD = (0, 1, -1, 2, (0, 1), True)
KEYWORDS: tuple[dict[str, Any], ...] = (
    {}, {"axis": 0}, {"axis": -1}, {"axis": (0, 1)}, {"axis": None}, {"keepdims": True},
    {"axis": 1, "keepdims": True}, {"k": 1}, {"ddof": 1}, {"side": "right"}, {"n": 2}, {"mode": "same"},
    {"mode": "wrap"}, {"decimals": 1}, {"ord": 1}, {"ord": 2, "axis": 0}, {"offset": 1}, {"indexing": "ij"},
    {"initial": 3.0}, {"bins": 4}, {"rowvar": False}, {"increasing": True}, {"norm": "ortho"}, {"s": (4, 4)},
)  # fmt: skip
OTHERWISE = {
    "argpartition": "any order on either side of the k-th element will do",
    "corrcoef": "an empty x beside y is no variable",
    "cov": "an empty x beside y is no variable",
    "bdtr": "at most k of fewer than k events is certain",
    "bdtrc": "more than k of fewer than k events is impossible",
    "cholesky": "the matrix is made symmetric first, as in JAX",
    "convolve": "a NaN meets the zeros of the padding, as in JAX",
    "diagonal": "of the last two axes, as in the array API",
    "divmod": "floor of the quotient, which keeps an infinity",
    "dot": "0 times NaN is NaN",
    "eigh": "the matrix is made symmetric first, as in JAX",
    "eigvalsh": "the matrix is made symmetric first, as in JAX",
    "floor_divide": "floor of the quotient, which keeps an infinity",
    "geomspace": "between numbers of two signs there is no ratio",
    "huber": "the loss, as in PyTorch",
    "inner": "0 times NaN is NaN",
    "interp": "places that do not rise have no meaning",
    "kl_div": "the loss, as in PyTorch",
    "log_softmax": "along the last axis, as in JAX",
    "logsumexp": "the third argument is keepdims, as in PyTorch",
    "lstsq": "residuals have a size that data do not decide, as in JAX",
    "nan_to_num": "the second argument is the number for NaN, as in PyTorch",
    "partition": "any order on either side of the k-th element will do",
    "poly": "a NaN meets the zeros of the padding",
    "polydiv": "leading zeros stay, as in JAX: data do not decide a size",
    "polymul": "leading zeros stay, as in JAX: data do not decide a size",
    "reciprocal": "of integers it is a fraction",
    "resize": "the resampling of images",
    "softmax": "along the last axis, as in JAX",
    "split": "numbers are the sizes of the parts, as in PyTorch; array_split takes places",
    "trace": "of the last two axes, as in the array API",
    "trapezoid": "places of more axes than the values have no meaning",
    "unique_values": "in ascending order",
}
NOT_TRIED = {"empty", "empty_like", "eye", "identity", "random", "save", "load"}
_SPECIAL = [f for f in vars(scipy.special).values() if callable(f)]
LIBRARIES = (np, np.linalg, np.fft, scipy.special)


def _namesake(name: str) -> Any:
    return next((f for lib in LIBRARIES if callable(f := getattr(lib, name, None))), None)


def names() -> list[str]:
    """The functions that NumPy or SciPy has too."""
    found = [n for n in dir(op) if callable(getattr(op, n)) and _namesake(n) is not None]
    return [n for n in found if n not in OTHERWISE.keys() | NOT_TRIED]


def calls(f: Any) -> Iterator[tuple[tuple[Any, ...], dict[str, Any]]]:
    """Arguments; a place that is an output of a ufunc has none."""
    inputs = f.nin if isinstance(f, np.ufunc) else 3
    if f in _SPECIAL:  # within the domain of all of them
        yield from (
            ((*more, "v"), {})
            for n in range(inputs)
            for more in itertools.product((1, 2, "v"), repeat=n)
        )
        return
    for a in ARRAYS:
        for k in KEYWORDS:
            yield (a,), k
        for b in SECOND if inputs > 1 else ():
            yield (a, b), {}
            yield (a, b), {"axis": 0}
            for c in THIRD if inputs > 2 and a in ("v", "m", "square", "i") else ():
                yield (a, b, c), {}


def _theirs(x: Any) -> Any:
    x = ARRAYS.get(x, x) if isinstance(x, str) else x
    return [a.copy() for a in x] if isinstance(x,
        list) and x is ARRAYS["rows"] else np.copy(x) if isinstance(x, np.ndarray) else x  # fmt: skip


def _ours(x: Any) -> Any:
    x = ARRAYS.get(x, x) if isinstance(x, str) else x
    many = isinstance(x, list) and x is ARRAYS["rows"]
    return (
        [ts.tensor(a) for a in x]
        if many
        else ts.tensor(x)
        if isinstance(x, np.ndarray | np.generic)
        else x
    )


def _parts(found: Any) -> list[np.ndarray[Any, Any]]:
    return (
        [p for f in found for p in _parts(f)]
        if isinstance(found, tuple | list)
        else [np.asarray(found)]
    )


def _equal(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any]) -> bool:
    """Equal to single precision: the dtypes of sizes and of bools are our own."""
    if a.shape != b.shape:
        return False
    if a.dtype == bool or b.dtype == bool:
        return bool((a == b).all())
    return np.allclose(a, b, rtol=1e-4, atol=1e-4, equal_nan=True)


@pytest.mark.parametrize("name", names())
def test_the_same_call_has_the_same_answer(name: str) -> None:
    theirs, ours, wrong = _namesake(name), getattr(op, name), []
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        for args, kwargs in calls(theirs):
            try:
                want = _parts(theirs(*map(_theirs, args), **kwargs))
            except Exception:
                continue
            if any(w.dtype == object or w.size > 10_000 for w in want):
                continue
            try:
                got = _parts(ours(*map(_ours, args), **kwargs))
            except TesseraError:
                continue
            if len(got) != len(want) or not all(map(_equal, got, want)):
                wrong.append((args, kwargs, got, want))
    assert not wrong, f"{name}: {len(wrong)} calls, first {wrong[0]}"


def test_there_are_many() -> None:
    assert len(names()) > 250


def test_the_page_for_users_of_numpy_says_what_differs() -> None:
    page = Path(__file__).parents[2] / "docs" / "from-numpy.md"
    told = page.read_text().partition("| function | here |")[2]
    assert set(re.findall(r"`(\w+)`", told)) >= OTHERWISE.keys()
