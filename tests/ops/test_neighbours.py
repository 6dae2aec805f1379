"""An element has the bits that it has alone, whatever stands beside it.

Functions that iterate until all elements have settled are the ones that may break this.
"""

from __future__ import annotations

import inspect
import warnings
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from tessera.core.errors import TesseraError
from tessera.lang.names import distributions, special

SCALES = (0.9, 3.0, 0.9, 2.0)  # of the arguments, so that most distributions take them
COUNT = 24


def arguments(f: Any) -> int:
    """How many arrays a function wants."""
    found = inspect.signature(f).parameters.values()
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return sum(p.default is p.empty and p.kind in kinds for p in found)


def elementwise(module: ModuleType) -> list[str]:
    """The functions of a module that give one number for each."""
    names = []
    for name in module.__all__:
        x = [np.full(3, 0.3 * s) for s in SCALES][: arguments(getattr(module, name))]
        try:
            made = getattr(module, name)(*x)
        except TesseraError:
            continue
        if getattr(made, "shape", None) == (3,):
            names.append(name)
    return names


CASES = [(m, n) for m in (special, distributions) for n in elementwise(m)]


def test_there_are_functions() -> None:
    assert len(CASES) > 50
    assert {"gammainc", "betainc", "fdtr", "zeta"} <= {n for _, n in CASES}


@pytest.mark.parametrize(("module", "name"), CASES, ids=[n for _, n in CASES])
def test_an_element_has_the_bits_that_it_has_alone(module: ModuleType, name: str) -> None:
    f = getattr(module, name)
    for dtype in (np.float32, np.float64):
        rng = np.random.default_rng(0)
        xs = [(rng.random(COUNT) * s + 0.05).astype(dtype) for s in SCALES][: arguments(f)]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            together = np.asarray(f(*xs))
            alone = np.concatenate(
                [np.asarray(f(*(x[i : i + 1] for x in xs))) for i in range(COUNT)]
            )
        np.testing.assert_array_equal(together, alone)
