"""tessera.testing: each check passes on what is right and names what is wrong."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera import KTile, block, f32, kernel, op, tile
from tessera.core.errors import OperandError
from tessera.ir.schedule.ir import Kernel
from tessera.testing import (
    CheckFailed,
    adjoint_check,
    assert_close,
    assert_same_bits,
    golden,
    gradcheck,
    invariant,
    mutate,
    random_programs,
    tolerance,
)
from tessera.testing.invariants import _schedules, nests

RNG = np.random.default_rng(0)


def draw(*shape: int, dtype: Any = np.float32) -> Any:
    return ts.tensor(RNG.normal(size=shape).astype(dtype))


# assert_close


@pytest.mark.parametrize("dtype", ["f64", "f32", "f16", "bf16", "f8e4m3", "f8e5m2", "c64", "c128"])
def test_one_unit_is_near_and_two_tolerances_are_not(dtype: str) -> None:
    x = ts.tensor(np.array([1.0, -2.0, 0.5]), dtype=dtype)
    off = ts.tensor(np.asarray(x).astype(np.complex128 if dtype[0] == "c" else np.float64)
        * (1 + 2.2 * tolerance(dtype)), dtype=dtype)  # fmt: skip
    assert_close(x, x)
    with pytest.raises(CheckFailed, match="elements differ"):
        assert_close(off, x)


@pytest.mark.parametrize(
    ("got", "want", "text"),
    [
        (np.array([1, 2, 3]), np.array([1, 2, 4]),
        "1 of 3 elements differ (rtol=0, atol=0): the most at [2], where 3 stands for 4, off by 1; first "
        "[2]: 3 for 4"),
        (np.zeros(3), np.zeros(4), "shapes differ: got (3,), expected (4,)"),
        ({"a": np.zeros(2)}, {"a": np.array([0.0, np.nan])},
        "1 of 2 elements differ at ['a'] (rtol=1e-12, atol=1e-12): the most at [1], where 0.0 stands for "
        "nan, off by nan; first [1]: 0.0 for nan"),
        ((np.zeros(1),), (np.zeros(1), np.zeros(1)), "trees differ: got (*,), expected (*, *)"),
        (2**62 + 1, 2**62, "1 of 1 elements differ (rtol=0, atol=0): the most at [], where "
                           "4611686018427387905 stands for 4611686018427387904, off by 1; first []: "
                           "4611686018427387905 for 4611686018427387904"),
    ],
    ids=["whole", "shapes", "nan", "trees", "wide"],
)  # fmt: skip
def test_what_differs_is_said(got: Any, want: Any, text: str) -> None:
    with pytest.raises(CheckFailed) as e:
        assert_close(got, want)
    assert str(e.value) == text


def test_dtypes_are_compared_when_asked() -> None:
    x = draw(3)
    assert_close(x, np.asarray(x).astype(np.float64))
    with pytest.raises(CheckFailed, match="dtypes differ: got f32, expected f64"):
        assert_close(x, np.asarray(x).astype(np.float64), check_dtype=True)


def test_the_coarser_dtype_decides() -> None:
    x = draw(100)
    assert_close(x.astype("bf16"), x)
    with pytest.raises(CheckFailed):
        assert_close(x.astype("bf16"), x, rtol=1e-4, atol=0.0)


def test_bits_tell_zeros_apart_and_nans_do_not() -> None:
    assert_same_bits(np.array([np.nan]), np.array([-np.nan]))
    with pytest.raises(
        CheckFailed, match=r"bits differ: 1 of 2 elements, the first at \[1\]: .*0x80000000"
    ):
        assert_same_bits(np.float32([1, -0.0]), np.float32([1, 0.0]))


def test_numbers_that_have_no_dtype_here_are_compared_exactly() -> None:
    x = np.array([1, 2.5], object)
    assert_close(x, x.copy())
    with pytest.raises(CheckFailed, match="rtol=0, atol=0"):
        assert_close(x, np.array([1, 2.5 + 1e-12], object))


# gradcheck and adjoint_check


def test_derivatives_of_ops_pass() -> None:
    gradcheck(
        lambda x, y: op.tanh(x @ y),
        draw(3, 4, dtype=np.float64),
        draw(4, 2, dtype=np.float64),
        order=2,
    )
    gradcheck(lambda p: op.softmax(p["x"]) * p["y"], {"x": draw(40), "y": draw(40)})
    gradcheck(lambda z: op.exp(z), ts.tensor(np.array([0.3 + 0.2j, -1.0 + 1j])))


@ts.custom_vjp
def halved(x: Any) -> Any:
    return op.sin(x)


halved.defvjp(lambda x: (op.sin(x), x), lambda x, ct: (0.5 * ct * op.cos(x),))


@ts.custom_jvp
def wrong(x: Any) -> Any:
    return op.sin(x)


wrong.defjvp(lambda primals, tangents: (op.sin(primals[0]), op.sin(primals[0]) * tangents[0]))


def test_a_wrong_rule_is_found() -> None:
    with pytest.raises(CheckFailed,
        match=r"wrong: the derivative of result 0\[0\] by argument \[0\]\[0\] is 0\.\d+, but differences give"):  # fmt: skip  # noqa: E501
        gradcheck(wrong, ts.tensor(np.array([0.5, 1.0])))


@ts.custom_jvp
def bent(x: Any) -> Any:
    return op.sin(x)


@ts.custom_jvp
def bent_slope(x: Any) -> Any:
    return op.cos(x)


bent.defjvp(lambda primals, tangents: (op.sin(primals[0]), bent_slope(primals[0]) * tangents[0]))
bent_slope.defjvp(lambda primals, tangents: (op.cos(primals[0]), 2.0 * tangents[0]))


def test_a_wrong_second_derivative_is_found_by_order_two_alone() -> None:
    x = ts.tensor(np.array([0.5, 1.0]))
    gradcheck(bent, x)
    with pytest.raises(CheckFailed, match="gradient of bent"):
        gradcheck(bent, x, order=2)


def test_an_argument_to_differentiate_in_is_wanted() -> None:
    with pytest.raises(OperandError, match="gradcheck: no argument has floating-point numbers"):
        gradcheck(lambda x: x, ts.tensor([1, 2]))


def test_adjoints_of_operators_and_functions() -> None:
    adjoint_check(op.circulant(draw(7)))
    adjoint_check(op.dense(ts.tensor(np.array([[1j, 2.0], [0.5, 1.0]]))))
    adjoint_check(
        lambda x: x[1:] - x[:-1], lambda y: op.pad(-y, ((0, 1),)) + op.pad(y, ((1, 0),)), draw(9)
    )
    with pytest.raises(CheckFailed, match="the adjoint is not one"):
        adjoint_check(lambda x: x[1:] - x[:-1], lambda y: op.pad(y, ((0, 1),)), draw(9))
    with pytest.raises(CheckFailed, match=r"^abs: is not linear"):
        adjoint_check(op.abs, op.abs, draw(9))


def test_errors_name_the_function_or_the_kind_of_the_operator() -> None:
    def difference(x: Any) -> Any:
        return x[1:] - x[:-1]

    with pytest.raises(CheckFailed, match=r"^difference: the adjoint is not one"):
        adjoint_check(difference, lambda y: op.pad(y, ((0, 1),)), draw(9))
    with pytest.raises(CheckFailed, match=r"^dense: the adjoint is not one"):
        adjoint_check(op.dense(draw(3, 3)).assume("symmetric"))


# invariant


def test_a_function_keeps_its_bits() -> None:
    r = invariant(
        lambda x, w: op.softmax(op.gelu(x @ w)), draw(9, 300), draw(300, 40), batch=0, schedules=3
    )
    assert r.runs == {"runs": 3, "threads": 3, "batch": 10, "schedule": 3}
    assert (
        str(r)
        == "<lambda>: the same bits in 19 runs (3 by runs, 3 by threads, 10 by batch, 3 by schedule)"
    )


def test_what_depends_on_neighbours_is_found() -> None:
    with pytest.raises(CheckFailed, match=r"row 0 of the batch alone has other bits"):
        invariant(lambda x: x / op.sum(x), draw(4, 5), of="batch", batch=0)


def test_what_depends_on_the_run_is_found() -> None:
    count = [0]

    def tick(x: Any) -> Any:
        count[0] += 1
        return np.asarray(x) + np.float32(count[0])

    def counting(x: Any) -> Any:
        return ts.callback(tick, lambda x: x.type)(x)

    with pytest.raises(CheckFailed, match="counting: run 2 has other bits"):
        invariant(counting, draw(4), of="runs")


# Kernels


@kernel.schedule(block(8))
def rmsnorm(x: KTile["M", "D", f32], gain: KTile["D", f32]) -> Any:
    T = tile.context()
    t = tile.load(x, rows=T.m, cols=T.d)
    scale = tile.rsqrt(tile.mean(t * t, axis=1) + 1e-3)
    return t * scale[:, None] * tile.load(gain, rows=T.d)[None, :]


X, GAIN = draw(11, 12), draw(12)


def normed(x: Any, gain: Any) -> Any:
    x = np.asarray(x).astype(np.float64)
    return x / np.sqrt((x * x).mean(1, keepdims=True) + 1e-3) * np.asarray(gain)


def test_a_good_test_kills_the_mutants_of_a_kernel() -> None:
    found = mutate(rmsnorm, lambda k: assert_close(k(X, GAIN), normed(X, GAIN), 1e-5, 1e-5))
    assert len(found.killed) >= 12
    # What a masked load fills with is in rows that are not stored.
    assert all("fills" in m.change for m in found.survived), str(found)
    assert found.score > 0.9


def test_a_poor_test_lets_mutants_live() -> None:
    found = mutate(rmsnorm, lambda k: k(X, GAIN).shape == (11, 12))
    assert found.score < 0.7
    assert "survived: apply mul -> add, at " in str(found)
    assert mutate(rmsnorm, lambda k: k(X, GAIN), count=4).killed.__len__() <= 4


def test_a_test_must_call_the_kernel() -> None:
    with pytest.raises(OperandError, match="mutate: the test did not call the kernel"):
        mutate(rmsnorm, lambda k: None)
    with pytest.raises(OperandError, match="mutate: got function, expected a @kernel"):
        mutate(normed, lambda k: None)


def test_a_kernel_keeps_its_bits() -> None:
    assert invariant(rmsnorm, X, GAIN).runs["schedule"] >= 3


# Random programs


def test_programs_around_an_op() -> None:
    checked = random_programs(
        lambda x, y: op.softmax(x) * y, lambda r: (r.normal(size=(3, 5)), r.normal(size=5)), count=1
    )
    assert checked == 4


def test_a_program_that_breaks_a_law_is_named() -> None:
    def eager_only(x: Any) -> Any:
        return x * 2 if x.storage is not None else x * 3

    with pytest.raises(CheckFailed, match=r"jit fails in program 0: y = eager_only\("):
        random_programs(eager_only, lambda r: r.normal(size=4), laws=["jit"])
    with pytest.raises(CheckFailed, match="differences fails in program 0"):
        random_programs(wrong, lambda r: r.normal(size=3), laws=["differences"], count=1)


# Golden bits


def test_golden_bits_are_kept_and_compared(tmp_path: Any) -> None:
    path = tmp_path / "folder" / "bits.json"
    value = {"loss": ts.tensor(1.5), "grad": draw(4)}
    with pytest.raises(
        CheckFailed,
        match=r"bits.json has no record of 'step'; write it with TESSERA_UPDATE_GOLDEN=1",
    ):
        golden(path, "step", value)
    golden(path, "step", value, update=True)
    golden(path, "step", value)
    with pytest.raises(
        CheckFailed,
        match=r"golden: 'step' at \['loss'\] has other bits than bits.json says: float32\[\] \[2.5",
    ):
        golden(path, "step", {**value, "loss": ts.tensor(2.5)})
    with pytest.raises(CheckFailed, match=r"'step' of bits\.json has"):
        golden(path, "step", ts.tensor(1.0))


def test_a_damaged_golden_file_is_told(tmp_path: Any) -> None:
    (tmp_path / "x.json").write_text("{")
    with pytest.raises(ts.TesseraError, match="is not JSON that golden wrote"):
        golden(tmp_path / "x.json", "a", ts.tensor(1.0))


@pytest.mark.parametrize("count", [1, 2, 3, 5, 10**6])
def test_schedules_are_from_all_over_the_space_and_all_of_it_where_more_are_asked_for(
    count: int,
) -> None:
    program = ts.jit(op.softmax).lower(draw(6, 40)).schedule
    (k,) = (s for s in program.steps if isinstance(s, Kernel))
    space = list(nests(k))
    assert len(space) > 5
    found = [
        space.index(s.nest)
        for p in _schedules(program, count)
        for s in p.steps
        if isinstance(s, Kernel)
    ]
    assert len(found) == len(set(found)) == min(count, len(space) - 1)
    assert 0 not in found  # the program itself
    if count >= len(space):
        assert found == list(range(1, len(space)))
    gaps = np.diff([0, *found, len(space)])
    assert gaps.max() - gaps.min() <= 1
