"""What ts.stablehlo.export writes, as XLA runs it: every op of the catalogue, dtypes, a training step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera import bf16, f16, f32, f64, i8, i32, op, u8
from tessera.core.dtype import DType
from tessera.core.flags import override
from tessera.interop.stablehlo.export import module_text
from tessera.ir.graph.ir import concrete
from tessera.lang.trace import trace
from tests.oracles.xla import run_text
from tests.support.cases.op_cases import Case, all_cases
from tests.support.cases.stablehlo_cases import NO_FORM, chosen, differ

pytest.importorskip("jax")
pytestmark = pytest.mark.oracle

GROUP = 16  # programs in one module: compiling is most of the time


def compare(cases: Sequence[Case], dtype: DType) -> list[str]:
    """The cases of one module whose results differ from eager code."""
    drawn = [c.draw(dtype) for c in cases]
    flat = [x for xs in drawn for x in xs]

    def all_of(xs: list[Any]) -> Any:
        left = iter(xs)
        return [c.run([next(left) for _ in own]) for c, own in zip(cases, drawn, strict=True)]

    types = [concrete(x).type for x in flat]
    g = trace(all_of, (flat,), {}, types, "cases").graph
    with override(target="numpy"):
        wanted = [c.run([ts.tensor(x) for x in xs]) for c, xs in zip(cases, drawn, strict=True)]
    found = iter(run_text(module_text(g), flat))
    wrong = []
    for c, values in zip(cases, wanted, strict=True):
        apart = [differ(next(found), np.asarray(v)) for v in values]
        wrong += [str(c)] * any(apart)
    return wrong


@pytest.mark.parametrize("part", range(4))
def test_every_op_agrees_with_eager_code(part: int) -> None:
    cases = chosen(1)
    assert len(cases) >= 200
    mine = cases[part::4]
    wrong = [w for k in range(0, len(mine), GROUP) for w in compare(mine[k : k + GROUP], f64)]
    assert not wrong


@pytest.mark.deep
@pytest.mark.parametrize("dtype", [f64, f32], ids=str)
@pytest.mark.parametrize("part", range(8))
def test_every_sample_agrees_with_eager_code(part: int, dtype: DType) -> None:
    mine = chosen(9, True)[part::8]
    wrong = [w for k in range(0, len(mine), GROUP) for w in compare(mine[k : k + GROUP], dtype)]
    assert not wrong


def test_what_has_no_form_is_an_error_that_names_the_op() -> None:
    for c in all_cases():
        if c.name in NO_FORM and c.op is not None and all(0 not in s.shape for s in c.slots):
            with pytest.raises(ts.stablehlo.StableHloError, match="has no StableHLO form"):
                module_text(c.trace([concrete(x).type for x in c.draw(f64)]))


@pytest.mark.parametrize("dtype", [f32, f16, bf16, i8, u8, i32], ids=str)
def test_dtypes(dtype: DType) -> None:
    x = np.array([[0, 1, 2], [3, 5, 7]]).astype(dtype.np)

    def f(x: Any) -> Any:
        return (
            x + x * x, op.sum(x, 0), op.max(x, 1), x @ x.T, op.sort(x, 1, descending=True),
            x // 2, x % 3, op.cumsum(x, 1), x.astype(f64) / 3,
        )  # fmt: skip

    with override(target="numpy"):
        wanted = f(ts.tensor(x))
    got = run_text(ts.stablehlo.export(f, x), [x])
    assert not [
        k for k, (a, b) in enumerate(zip(got, wanted, strict=True)) if differ(a, np.asarray(b))
    ]


def test_special_values() -> None:
    x = np.array(
        [np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -2.5, 3.0]
    )  # XLA takes numbers below the normal ones for 0

    def f(x: Any) -> Any:
        y = op.flip(x)
        return (
            op.sort(x), op.argsort(x, descending=True), op.maximum(x, y), op.floor_divide(x, y),
            op.remainder(x, y),
            op.sign(x), op.signbit(x), op.isnan(x), op.isinf(x), op.trunc(x), op.round(x), op.cummax(x),
            op.logaddexp(x, x), op.hypot(x, 2.0), op.searchsorted(op.sort(x), x), op.nextafter(x, y),
        )  # fmt: skip

    with override(target="numpy"):
        wanted = f(ts.tensor(x))
    got = run_text(ts.stablehlo.export(f, x), [x])
    assert not [
        k for k, (a, b) in enumerate(zip(got, wanted, strict=True)) if differ(a, np.asarray(b))
    ]


def test_random_numbers_have_the_same_bits() -> None:
    def f(key: Any) -> Any:
        a, b = ts.split(key)
        return (
            op.random.bits(a, (5, 3)),
            op.random.uniform(b, (7,)),
            op.random.randint(a, (4,), 0, 9),
        )

    k = ts.key(7)
    for got, want in zip(run_text(ts.stablehlo.export(f, k), [k]), f(k), strict=True):
        np.testing.assert_array_equal(got, want)


def test_a_training_step() -> None:
    """Convolution, attention, a scan, a loss and the gradient of all parameters."""
    rng = np.random.default_rng(0)
    params = {
        "k": rng.standard_normal((4, 3, 3, 3)), "q": rng.standard_normal((4, 12)),
        "w": rng.standard_normal((4, 4)), "o": rng.standard_normal((4, 5)),
    }  # fmt: skip
    x, labels = rng.standard_normal((2, 3, 6, 6)), np.array([1, 3])

    def loss(p: Any, x: Any, labels: Any) -> Any:
        y = op.max_pool(op.gelu(op.conv(x, p["k"], padding=1)), 2)
        rows = op.transpose(op.reshape(y, (2, 4, 9)), (0, 2, 1))
        q, k, v = op.split(rows @ p["q"], 3, -1)
        z = op.layernorm(op.attention(q[:, None], k[:, None], v[:, None], causal=True)[:, 0])
        h, _ = ts.scan(
            lambda c, r: (op.tanh(c @ p["w"] + r), None),
            op.zeros((2, 4), f64),
            op.transpose(z, (1, 0, 2)),
        )
        return op.cross_entropy(h @ p["o"], labels)

    step = ts.value_and_grad(loss)
    want = [np.asarray(v) for v in ts.tree.leaves(ts.jit(step)(params, x, labels))]
    got = run_text(
        ts.stablehlo.export(step, params, x, labels), [*ts.tree.leaves(params), x, labels]
    )
    for k, (a, b) in enumerate(zip(got, want, strict=True)):
        most = np.abs(b).max()  # sums of terms that cancel are rounded as their terms are
        assert not differ(a / most, b / most), k
