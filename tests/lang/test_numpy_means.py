"""A function of NumPy on tensors means what it means on arrays, or is refused."""

from __future__ import annotations

import contextlib
import copy
import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera.lang.numpy_protocol import _COUNTS, NAMES

RUNS_ON = "numpy"
ARRAYS: list[Any] = [
    *(np.random.default_rng(1).normal(size=s) for s in ((3,), (3, 3), (2, 3, 3), ())),
    np.array([[0, 1, 2], [2, 1, 1]]), np.eye(3, dtype=bool),
]  # fmt: skip
SECOND = (
    (),
    (0,),
    (1,),
    (-1,),
    (0, 1),
    (1, 0, 2),
    ((0, 1),),
    (2,),
    *((a,) for a in ARRAYS),
    (ARRAYS[4], 1),
)
ANY_ORDER = {"unique_values"}


def calls_like(name: str) -> Iterator[tuple[tuple[Any, ...], dict[str, Any], Any]]:
    """Calls that NumPy answers, and its answers."""
    for x in ARRAYS:
        firsts = (x, [x, x])
        for first, second in itertools.product(firsts, SECOND):
            for named in ({}, {"axis": 0}, {"keepdims": True}):
                given = copy.deepcopy((first, *second))  # a second argument may be written to
                with contextlib.suppress(Exception):
                    want = getattr(np, name)(*copy.deepcopy(given), **named)
                    yield given, named, want


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", sorted({*_COUNTS, *NAMES} - ANY_ORDER))
def test_a_function_of_numpy_means_the_same_or_is_refused(name: str) -> None:
    """Also of more axes, where op follows the array API and NumPy does not."""
    answered = 0
    for given, named, want in calls_like(name):
        try:
            got = getattr(np, name)(*_as_tensors(given), **named)
        except ts.TesseraError:
            continue
        answered += 1
        for a, b in zip(_listed(got), _listed(want), strict=True):
            # NumPy takes whole numbers as f64 and booleans as f16, op both as f32.
            sizes = [np.asarray(v).dtype.itemsize for v in (a, b)]
            near = {2: 2e-3, 4: 1e-6}.get(min(sizes), 1e-12) if sizes[0] != sizes[1] else 1e-12
            np.testing.assert_allclose(a, b, rtol=near, err_msg=f"{given} {named}")
    assert answered


def _listed(x: Any) -> list[Any]:
    return list(x) if isinstance(x, tuple | list) else [x]


def _as_tensors(x: Any) -> Any:
    if isinstance(x, tuple | list):
        return type(x)(map(_as_tensors, x))
    return ts.tensor(x) if isinstance(x, np.ndarray | np.generic) else x
