"""The largest of windows below Graph IR: one kernel, whose bits are those of NumPy's maximum."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera import Tensor, f16, f32, f64, op
from tessera.ir.schedule.ir import Primitive
from tessera.ir.schedule.lower import lower
from tessera.ir.schedule.text import parse_program
from tessera.ir.schedule.verify import verify
from tests.support.cases.random_graphs import same_bits
from tests.support.runners import levels

CASES: dict[str, tuple[tuple[int, ...], dict[str, Any]]] = {
    "2 by 2": ((2, 3, 8, 10), {"size": 2}),
    "5 by 5 around": ((1, 4, 10, 10), {"size": 5, "stride": 1, "padding": 2}),
    "strides and dilation": ((1, 2, 23, 70), {"size": (3, 2), "stride": (2, 3), "dilation": (2, 4)}),
    "a last window that does not fit": ((1, 2, 7, 7), {"size": 2, "ceil_mode": True}),
    "one axis": ((2, 5, 130), {"size": 7, "stride": 2, "padding": 3}),
    "three axes": ((1, 2, 4, 5, 6), {"size": (2, 3, 2), "stride": 1, "padding": 1}),
    "larger than a leaf": ((1, 1, 30, 40), {"size": (25, 30), "stride": 1}),
}  # fmt: skip


def draw(shape: tuple[int, ...], dtype: Any) -> Any:
    x = np.random.default_rng(shape).normal(size=shape).astype(dtype.np)
    x.flat[::7] = np.asarray(-0.0, dtype.np)
    x.flat[1::11] = -np.inf
    return x


@pytest.mark.parametrize("dtype", [f32, f64, f16])
@pytest.mark.parametrize("name", CASES)
def test_every_level_has_the_largest(name: str, dtype: Any) -> None:
    shape, given = CASES[name]
    x = draw(shape, dtype)
    p = lower(levels.prepared(ts.trace(lambda x: op.max_pool(x, **given), ts.tensor(x))))
    assert [s.primitive for s in p.steps if isinstance(s, Primitive)] == ["max_pool"]
    assert len(p.steps) == 1
    verify(p)
    assert parse_program(p.text).text == p.text
    want = ts.jit(lambda x: op.max_pool(x, **given), target="numpy")(ts.tensor(x)).numpy()
    for run in (levels.by_schedule, levels.by_tile, levels.by_llvm):
        (got,) = run(p, [x])
        np.testing.assert_array_equal(got, want)
        assert same_bits([got], levels.by_schedule(p, [x])), run.__name__


def test_nan_is_the_largest() -> None:
    x = draw((1, 2, 9, 40), f32)
    x[0, 1, 4, 7] = np.nan
    y = ts.jit(lambda x: op.max_pool(x, 3, 1, 1))(ts.tensor(x)).numpy()
    want = np.full_like(x, False, dtype=bool)
    want[0, 1, 3:6, 6:9] = True
    np.testing.assert_array_equal(np.isnan(y), want)


def test_open_sizes_and_derivatives() -> None:
    def f(x: Any) -> Any:
        return op.sum(op.square(op.max_pool(x, 3, 2, 1)))

    x = ts.tensor(np.random.default_rng(0).normal(size=(2, 3, 11, 20)))
    want = ts.jit(ts.grad(f), target="numpy")(x)
    np.testing.assert_allclose(ts.jit(ts.grad(f))(x), want, rtol=1e-12)
    p = lower(
        levels.prepared(ts.trace(lambda x: op.max_pool(x, 3, 2, 1), Tensor[1, "C", "H", "W", f32]))
    )
    verify(p)
    y = draw((1, 3, 14, 9), f32)
    assert same_bits(levels.by_llvm(p, [y]), levels.by_schedule(p, [y]))
