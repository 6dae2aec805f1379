"""Inline assembly: texts by target under a contract, references in interpreters, refusals by name."""

from __future__ import annotations

import numpy as np
import pytest

import tessera as ts
from tessera import KTile, block, f16, f32, i32, i64, kernel, tile
from tessera.core.errors import OperandError, RuleError, ScheduleError
from tessera.core.processor import machine
from tessera.lang.kernel.values import KernelError

pytestmark = pytest.mark.skipif(
    machine() not in ("x86_64", "aarch64"), reason="the texts are for x86-64 and AArch64"
)

swapped = kernel.assembly(
    "swapped", i32, i32, lambda x: x.byteswap(), x86_64="mov $1, $0\n\tbswap $0",
    aarch64="rev ${0:w}, ${1:w}", ptx="prmt.b32 $0, $1, 0, 0x0123;",
)  # fmt: skip
estimate = kernel.assembly(
    "estimate", f32, f32, lambda x: 1 / np.sqrt(x), within=2.0**-7, like="rsqrt", x86_64="rsqrtss $1, $0",
    aarch64="frsqrte ${0:s}, ${1:s}", ptx="rsqrt.approx.ftz.f32 $0, $1;", amdgcn="v_rsq_f32 $0, $1",
)  # fmt: skip
difference = kernel.assembly(
    "difference", (i64, i64), i64, lambda x, y: x - y, x86_64="mov $1, $0\n\tsub $2, $0",
    aarch64="sub $0, $1, $2",
)  # fmt: skip


@kernel.schedule(block(16))
def swap(x: KTile["N", i32]):
    return swapped(tile.load(x)) + 1


@kernel.schedule(block(4))
def row_estimates(x: KTile["M", "N", f32]):
    return tile.sum(estimate(tile.load(x) * 2), axis=1)


@kernel.schedule(block(8))
def from_the_left(x: KTile["M", "N", i64], y: KTile["M", i64]):
    return difference(tile.load(x), tile.load(y)[:, None])


@pytest.mark.parametrize("n", [0, 1, 16, 37])
def test_a_text_computes_what_its_reference_says(n):
    x = np.random.default_rng(n).integers(-(2**31), 2**31 - 2, n).astype(np.int32)
    want = x.byteswap() + np.int32(1)
    np.testing.assert_array_equal(swap(x).numpy(), want)
    np.testing.assert_array_equal(ts.jit(lambda x: swap(x))(x).numpy(), want)
    for step in (False, True):
        with ts.interpret(step=step):
            np.testing.assert_array_equal(swap(x).numpy(), want)


def test_operands_are_broadcast_and_have_an_order():
    r = np.random.default_rng(0)
    x, y = r.integers(-(2**62), 2**62, (11, 3)), r.integers(-(2**62), 2**62, 11)
    np.testing.assert_array_equal(from_the_left(x, y).numpy(), x - y[:, None])


def test_what_lies_past_an_edge_does_not_count():
    x = np.random.default_rng(1).uniform(0.5, 4, (5, 7)).astype(np.float32)
    want = (1 / np.sqrt(2 * x)).sum(axis=1)
    got = row_estimates(x).numpy()
    assert np.abs(got / want - 1).max() < 2.0**-7
    assert (got != want).any()  # the instruction is an estimate, so it was no reference that ran


def test_the_texts_are_in_the_code_of_their_targets():
    x = np.ones((5, 7), np.float32)
    lowered = row_estimates.lower(x)
    assert 'call float asm "' in lowered.llvm
    assert "tl.inline_asm_elementwise('rsqrt.approx.ftz.f32 $0, $1;', '=f,f', [" in lowered.triton
    assert f"{estimate.contract.scalar}" in lowered.tile


def test_another_text_is_another_kernel():
    def made(text):
        return kernel.assembly("one", i32, i32, lambda x: x, ptx=text).contract.scalar

    assert made("mov.b32 $0, $1;") == made("mov.b32 $0, $1;")
    assert made("mov.b32 $0, $1;") != made("not.b32 $0, $1;")


def test_a_target_without_a_text_refuses_by_name():
    x = np.ones(5, np.int32)
    assert swap.hints(x, target="hip") == [
        "assembly (assembly swapped has a text for ptx, x86_64, aarch64, none for amdgcn)"
    ]
    with pytest.raises(
        ScheduleError,
        match=r"swap: assembly swapped has a text for .* none for amdgcn; give it one",
    ):
        swap.lower(x).assembly("gfx942")
    nowhere = kernel.assembly("nowhere", f32, f32, lambda x: x, ptx="mov.f32 $0, $1;")

    @kernel
    def use(x: KTile["N", f32]):
        return nowhere(tile.load(x))

    with pytest.raises(
        ScheduleError, match=f"use: assembly nowhere has a text for ptx, none for {machine()}"
    ):
        use(np.ones(3, np.float32))
    with ts.interpret():
        np.testing.assert_array_equal(use(np.ones(3, np.float32)).numpy(), np.ones(3))


def test_a_text_that_is_none_is_an_error_of_the_user():
    wrong = kernel.assembly("wrong", f32, f32, lambda x: x, **{machine(): "no_such_word $0, $1"})

    @kernel
    def use(x: KTile["N", f32]):
        return wrong(tile.load(x))

    with pytest.raises(
        OperandError, match=r"assembly wrong: the text for .*no_such_word.* is none that LLVM takes"
    ):
        use(np.ones(3, np.float32))


def test_a_derivative_is_that_of_the_function_it_is_like():
    x = np.linspace(0.5, 4, 12).astype(np.float32).reshape(3, 4)
    got = ts.grad(lambda x: ts.op.sum(row_estimates(x)))(x).numpy()
    assert np.abs(got / (-((2 * x) ** -1.5)) - 1).max() < 2.0**-5
    _, tangent = ts.jvp(row_estimates, (x,), (np.ones_like(x),))
    assert np.abs(tangent.numpy() / got.sum(axis=1) - 1).max() < 1e-5
    plain = kernel.assembly(
        "plain", f32, f32, lambda x: x, aarch64="fmov ${0:s}, ${1:s}", x86_64="movaps $1, $0",
    )  # fmt: skip

    @kernel
    def use(x: KTile["N", f32]):
        return plain(tile.load(x))

    with pytest.raises(RuleError, match="assembly plain has no derivative; say like="):
        ts.grad(lambda x: ts.op.sum(use(x)))(x.reshape(-1))


def test_the_checker_compares_and_says_what_it_cannot_prove():
    x = np.ones((5, 7), np.float32)
    (verdict,) = ts.check(row_estimates, x, tools=("races",)).of("assembly")
    assert verdict.ok
    assert not verdict.is_proof
    assert f"estimate is not proved: compared with its reference on {machine()}, not on ptx" in str(
        verdict
    )
    false = kernel.assembly(
        "false",
        f32,
        f32,
        lambda x: 1 / np.sqrt(x),
        x86_64="rsqrtss $1, $0",
        aarch64="frsqrte ${0:s}, ${1:s}",
    )

    @kernel
    def use(x: KTile["N", f32]):
        return false(tile.load(x))

    (found,) = ts.check(use, x.reshape(-1), tools=("races",)).findings
    assert "differs from its reference by 0.00" in found.message
    assert found.confirmed
    assert "$1" in found.witness


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"name": "two words"}, "the name is 'two words', expected a word"),
        ({"takes": f16}, "takes and gives f32, f64, i32, i64, u32, u64, got f16; cast"),
        ({"takes": ()}, "takes nothing"),
        ({"reference": 3}, "reference is 3, expected a function of NumPy arrays"),
        ({"within": -1}, "within is -1, expected a number of 0 or more"),
        ({"pure": False}, "pure is False, expected True: tiles are computed when and as often"),
        ({"like": "rsqr"}, "like is 'rsqr', expected a function of tile"),
        ({"ptx": ""}, "the text is '', expected a string of instructions"),
        ({"ptx": "mov.f32 $0, $2;"}, r"\$2 is used, and there are 1 operands"),
        ({"ptx": "mov.f32 %f0, $1;"}, r"\$0, the result, is not written"),
    ],
)
def test_a_contract_that_says_nothing_is_an_error(change, message):
    given = {"name": "word", "takes": f32, "gives": f32, "reference": lambda x: x, **change}
    with pytest.raises(OperandError, match=message):
        kernel.assembly(**given)


@kernel
def of_two(x: KTile["N", i32]):
    return swapped(tile.load(x), tile.load(x))


@kernel
def of_floats(x: KTile["N", f32]):
    return swapped(tile.load(x))


def test_operands_are_those_of_the_contract():
    with pytest.raises(KernelError, match="swapped: got 2 operands, expected 1"):
        of_two(np.ones(3, np.int32))
    with pytest.raises(
        KernelError, match=r"swapped: got a tile of f32, expected i32; write tile.cast\(x, i32\)"
    ):
        of_floats(np.ones(3, np.float32))
    grows = kernel.assembly("grows", i32, i32, lambda x: np.zeros(9), **{machine(): "mov $0, $1"})

    @kernel
    def use(x: KTile["N", i32]):
        return grows(tile.load(x))

    with (
        ts.interpret(),
        pytest.raises(
            OperandError, match=r"its reference gives shape \(9,\) for operands of shape"
        ),
    ):
        use(np.ones(3, np.int32))
