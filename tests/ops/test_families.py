"""Functions of one family take what the others take, and ops of floats take whole numbers."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera import Tensor, bool_, f32, i32, op
from tessera.ir.graph.op import REGISTRY

RUNS_ON = "numpy"
FAMILIES = ["conv", "conv_transpose", "max_pool", "avg_pool"]


@pytest.mark.parametrize("family", FAMILIES)
def test_defaults_do_not_depend_on_the_number_of_axes(family: str) -> None:
    def defaults(name: str) -> dict[str, Any]:
        found = inspect.signature(getattr(op, name)).parameters.values()
        return {p.name: p.default for p in found if p.default is not p.empty}

    names = [n for n in (f"{family}{k}d" for k in (1, 2, 3)) if hasattr(op, n)]
    whole = defaults(family)
    for n in names:
        assert defaults(n) == {k: whole[k] for k in defaults(n)}, n


def test_an_op_of_whole_numbers_gives_what_it_gives_of_the_same_floats() -> None:
    """As floats, or exactly."""
    tried = 0
    x = np.array([1, 0, 3], np.int32)
    for name, o in sorted(REGISTRY.items()):
        made = getattr(op, name, None)
        if made is None or str(o.signature) != "... -> ...":
            continue
        try:
            want = made(ts.tensor(x.astype(np.float32)))
        except (TypeError, ts.TesseraError):  # it wants more, or other numbers
            continue
        if not isinstance(want, ts.Tensor) or want.dtype not in (f32, bool_):
            continue
        tried += 1
        got = made(ts.tensor(x))
        assert got.dtype in (want.dtype, i32), name
        np.testing.assert_array_equal(got.numpy(), want.numpy(), name)
    assert tried > 40


def test_choices_among_a_size_that_is_open() -> None:
    key = ts.key(3)

    @ts.jit
    def f(x: Tensor["N", f32]) -> Any:
        return op.random.choice(key, x.shape[0], (40,)), op.random.choice(key, x, (40,))

    for n in (3, 7):
        places, values = f(op.arange(n, dtype=f32))
        np.testing.assert_array_equal(places.numpy(), values.numpy())
        np.testing.assert_array_equal(places.numpy(), op.random.choice(key, n, (40,)).numpy())
        assert set(places.numpy().tolist()) == set(range(n))
