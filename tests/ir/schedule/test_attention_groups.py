"""Attention as groups: what its steps are, and that rows have the same bits in any sequence."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera import op
from tessera.core.errors import VerifyError
from tessera.ir.schedule import lower as schedule_lower
from tessera.ir.schedule.ir import Group, Kernel, Program
from tessera.ir.schedule.lower import CHEAP_ON_GPU, lower
from tessera.ir.schedule.passes.fuse_contractions import hidden_columns
from tessera.ir.schedule.text import parse_program
from tessera.ir.schedule.verify import verify
from tests.support.runners.levels import by_llvm, by_schedule, prepared


def draw(b: int, h: int, s: int, d: int, t: int) -> list[Any]:
    rng = np.random.default_rng(1)
    shapes = ((b, h, s, d), (b, h, t, d), (b, h, t, d))
    return [rng.normal(size=x).astype(np.float32) for x in shapes]


def causal(q: Any, k: Any, v: Any) -> Any:
    return op.attention(q, k, v, causal=True)


def composed(q: Any, k: Any, v: Any) -> Any:
    return op.softmax(q @ op.swapaxes(k, -1, -2) * 0.5) @ v


def gradient(f: Any) -> Any:
    return ts.grad(lambda q, k, v: op.sum(f(q, k, v) ** 2), argnums=(0, 1, 2))


def program(f: Any, xs: list[Any]) -> Program:
    return lower(prepared(ts.trace(f, *map(ts.tensor, xs))))


def groups(p: Program) -> list[Group]:
    return [s for s in p.steps if isinstance(s, Group)]


def run(f: Any, *xs: Any) -> Any:
    return ts.jit(f, target="cpu")(*map(ts.tensor, xs)).numpy()


@pytest.mark.parametrize(
    "f", [op.attention, causal, composed, gradient(causal), gradient(composed)]
)
@pytest.mark.parametrize(
    "size", [(1, 2, 7, 5, 9), (1, 1, 130, 4, 140), (1, 1, 30, 3, 530)], ids=str
)
def test_a_group_has_the_bits_of_its_kernels(
    f: Any, size: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    xs = draw(*size)
    together = program(f, xs)
    monkeypatch.setattr(schedule_lower, "fuse_contractions", lambda p, wide: p)
    alone = program(f, xs)
    assert groups(together)
    assert not groups(alone)
    for a, b in zip(by_llvm(alone, xs), by_llvm(together, xs), strict=True):
        np.testing.assert_array_equal(a, b)


def test_the_scaled_factor_is_made_in_the_group() -> None:
    (step,) = program(op.attention, draw(1, 2, 9, 4, 9)).steps
    assert isinstance(step, Group)
    assert [k.contracts for k in step.kernels] == [False, True, False, True]
    assert step.from_scores == step.kernels[1:]
    before, group = lower(
        prepared(ts.trace(op.attention, *map(ts.tensor, draw(1, 2, 9, 4, 9)))), CHEAP_ON_GPU
    ).steps
    assert isinstance(before, Kernel)
    assert isinstance(group, Group)
    assert group.kernels[0].contracts


def with_factor(q: Any, k: Any, v: Any) -> Any:
    q = q * 0.25
    return composed(q, k, v), q


def with_turned(q: Any, k: Any, v: Any) -> Any:
    return composed(op.swapaxes(q, -1, -2) * 0.25, k, v)


def with_itself(q: Any, k: Any, v: Any) -> Any:
    q = q * 0.25
    return composed(q, q, v)


@pytest.mark.parametrize("f", [with_factor, with_turned, with_itself])
def test_a_factor_that_others_read_or_that_lies_otherwise_is_made_before(f: Any) -> None:
    xs = draw(1, 2, 40, 40, 40)
    p = program(f, xs)
    (g,) = groups(p)
    assert g.kernels[0].contracts
    for a, b in zip(by_llvm(p, xs), by_schedule(p, xs), strict=True):
        np.testing.assert_array_equal(a, b)


def test_as_many_keys_as_columns_of_a_query_hide_nothing_of_the_query() -> None:
    """Rows see some of the 8 keys, and all of the 8 elements of their own factor."""
    xs = draw(1, 2, 40, 8, 8)
    p = program(causal, xs)
    (g,) = groups(p)
    assert hidden_columns(g) is not None
    assert not g.kernels[0].contracts
    for a, b in zip(by_llvm(p, xs), by_schedule(p, xs), strict=True):
        np.testing.assert_array_equal(a, b)


def test_the_backward_pass_is_groups_and_contractions_that_skip() -> None:
    p = program(gradient(causal), draw(1, 2, 20, 4, 20))
    assert [hidden_columns(g) is not None for g in groups(p)] == [True, True]
    products = [s for s in p.steps if isinstance(s, Kernel) and s.contracts]
    assert [[x.side for x in s.seen] for s in products] == [["first"], ["first"]]


def test_the_text_of_groups_reads_back() -> None:
    xs = draw(1, 2, 20, 4, 20)
    p = program(gradient(causal), xs)
    again = parse_program(p.text)
    assert again.text == p.text
    assert [type(s) for s in again.steps] == [type(s) for s in p.steps]
    for a, b in zip(by_schedule(again, xs), by_schedule(p, xs), strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_group_whose_kernels_read_other_rows_is_refused() -> None:
    p = program(composed, draw(1, 2, 9, 4, 9))
    (g,) = groups(p)
    name, (*_, m, _) = g.kernels[1].outputs[0], g.kernels[2].stages[0].axes
    k = g.kernels[2].stages[0].reduced[0]
    broken = p.text.replace(f"{m.name}, {k.name}]", f"{k.name}, {m.name}]")
    assert f"{name}[_r0, _r1, {k.name}, {m.name}]" in broken
    with pytest.raises(VerifyError, match="at rows of others"):
        verify(parse_program(broken))


def test_symbolic_sizes_have_the_bits_of_known_ones() -> None:
    t = ts.Tensor["B", "H", "S", 8, ts.f32]

    @ts.jit(target="cpu")
    def f(q: t, k: t, v: t) -> Any:  # type: ignore[valid-type]
        return causal(q, k, v)

    for size in ((1, 2, 7, 8, 7), (2, 1, 140, 8, 140), (1, 1, 1, 8, 1)):
        xs = draw(*size)
        np.testing.assert_array_equal(f(*map(ts.tensor, xs)).numpy(), run(causal, *xs))


def test_a_row_is_the_same_in_any_sequence() -> None:
    q, k, v = draw(1, 2, 150, 8, 150)
    whole = run(causal, q, k, v)
    for n in (1, 5, 64, 126, 127):
        front = run(causal, *(x[:, :, :n] for x in (q, k, v)))
        np.testing.assert_array_equal(front, whole[:, :, :n])
        np.testing.assert_array_equal(run(causal, q[:, :, -n:], k, v), whole[:, :, -n:])


def test_keys_that_no_query_of_a_block_sees_are_not_read() -> None:
    q, k, v = draw(1, 1, 300, 4, 300)
    poisoned = v.copy()
    poisoned[:, :, 280:] = np.nan
    clean, spoilt = run(causal, q, k, v), run(causal, q, k, poisoned)
    np.testing.assert_array_equal(spoilt[:, :, :100], clean[:, :, :100])
    assert np.isnan(spoilt[:, :, 280:]).all()


def test_two_layers_without_a_batch_are_no_group() -> None:
    xs = [np.ones(s, np.float32) for s in ((20, 8), (8, 30), (30, 5))]
    assert not groups(program(lambda x, a, b: op.tanh(x @ a) @ b, xs))
