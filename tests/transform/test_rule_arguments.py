"""Arguments of functions with rules: defaults, and numbers that no derivative flows through."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera import op
from tessera.core.errors import OperandError
from tessera.lang.remat import offload

RUNS_ON = "numpy"


@pytest.mark.parametrize("wrap", [lambda f: f, ts.jit])
def test_a_rule_gets_the_defaults_that_a_call_leaves_out(wrap: Any) -> None:
    @ts.custom_jvp
    def f(x: Any, scale: Any = 3.0) -> Any:
        return x * scale

    f.defjvp(lambda xs, ts_: (f(*xs), ts_[0] * xs[1] * 10))
    g = wrap(lambda x: ts.jvp(f, (x,), (op.ones(()),)))
    assert [float(v) for v in g(op.full((), 2.0))] == [6.0, 30.0]

    @ts.custom_vjp
    def h(x: Any, scale: Any = 3.0) -> Any:
        return x * scale

    h.defvjp(lambda x, scale: (h(x, scale), scale), lambda scale, ct: (ct * scale * 10, None))
    assert float(wrap(ts.grad(h))(op.full((), 2.0))) == 30.0


def test_whole_numbers_among_primals_have_no_tangent_and_keep_their_place() -> None:
    i, x, j = ts.tensor(3), ts.tensor(2.0), ts.tensor([4, 5])
    for order in ((0, 1, 2), (1, 0, 2), (2, 0, 1)):
        given = [(i, x, j)[k] for k in order]

        def f(*xs: Any, order: Any = order) -> Any:
            a, b, c = (xs[order.index(k)] for k in range(3))
            return op.sum(a * b * b * c)

        zeros = [op.zeros_like(v) if v is not x else ts.tensor(1.0) for v in given]
        y, t = ts.jvp(f, tuple(given), tuple(zeros))
        assert (float(y), float(t)) == (3 * 4 * 9, 3 * 4 * 9)
        _, push = ts.linearize(f, *given)
        np.testing.assert_allclose(float(push(*zeros)), 3 * 4 * 9)


@pytest.mark.parametrize("wrong", [["a", 3], [3, "a"], [], [None]])
def test_names_that_are_offloaded_are_all_texts(wrong: Any) -> None:
    with pytest.raises(OperandError, match="offload: policy is"):
        offload(wrong)
