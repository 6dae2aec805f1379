"""Views in schedules: read where they lie, copied by kernels, and never in the way of a row's numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera import Tensor, f32, op
from tessera.ir.schedule.interp import interpret
from tessera.ir.schedule.ir import HostCall, Kernel, Program
from tessera.ir.schedule.lower import lower
from tessera.ir.schedule.verify import verify
from tests.support.cases.random_graphs import same_bits
from tests.support.runners.levels import by_llvm, by_tile, prepared


def schedule(f: Any, *types: Any) -> Program:
    p = lower(prepared(ts.trace(f, *types)))
    verify(p)
    return p


def agrees(p: Program, shapes: Any) -> bool:
    """Whether the levels of a program give the same bits."""
    rng = np.random.default_rng(0)
    xs = [rng.normal(size=s).astype(np.float32) for s in shapes]
    expected = interpret(p, xs)
    return same_bits(by_tile(p, xs), expected) and same_bits(by_llvm(p, xs), expected)


def _heads(x: Any, w: Any) -> Any:
    """Products of heads that are cut out of one product."""
    b, s = x.shape[:2]
    parts = op.reshape(x @ w, (b, s, 3, 2, 5))
    q, k, v = (op.transpose(parts[:, :, j], (0, 2, 1, 3)) for j in range(3))
    return (q @ op.swapaxes(k, 2, 3)) @ v


@pytest.mark.parametrize(("b", "s"), [(2, 3), (1, 17), (3, 40)])
def test_heads_are_read_where_they_lie(b: int, s: int) -> None:
    p = schedule(_heads, Tensor[b, s, 4, f32], Tensor[4, 30, f32])
    kernels = [k for step in p.steps if not isinstance(step, HostCall) for k in _kernels(step)]
    assert all(k.contracts for k in kernels), p
    assert agrees(p, [(b, s, 4), (4, 30)])


def test_heads_of_any_length() -> None:
    p = schedule(_heads, Tensor["B", "S", 4, f32], Tensor[4, 30, f32])
    assert agrees(p, [(2, 19, 4), (4, 30)])


def _kernels(step: Any) -> list[Kernel]:
    return [step] if isinstance(step, Kernel) else list(step.kernels)


def _both_in_one(x: Any, y: Any) -> Any:
    return op.reshape(x, (6, 4)) @ y, op.reshape(op.flip(x, 0), (6, 4)) @ y


def test_a_view_that_no_lines_are_in_is_copied() -> None:
    """A step along its axis is a step of several elements, or back."""

    def strided(x: Any, y: Any) -> Any:
        return x[:, ::2] @ y

    assert agrees(schedule(strided, Tensor[5, 8, f32], Tensor[4, 3, f32]), [(5, 8), (4, 3)])
    assert agrees(schedule(_both_in_one, Tensor[24, f32], Tensor[4, 3, f32]), [(24,), (4, 3)])


def test_what_is_turned_and_reshaped_is_copied_by_a_kernel() -> None:
    def joined(x: Any) -> Any:
        return op.reshape(op.transpose(op.exp(x), (1, 0, 2)), (3, 10))

    p = schedule(joined, Tensor[2, 3, 5, f32])
    hosted = [s.node.op.name for s in p.steps if isinstance(s, HostCall)]
    assert hosted == ["reshape"]  # of a tensor in order: the same memory
    assert agrees(p, [(2, 3, 5)])


def test_a_number_of_a_row_has_no_columns() -> None:
    def normed(x: Any) -> Any:
        scale = op.rsqrt(op.mean(op.square(x), axis=-1, keepdims=True) + 1e-5)
        return x * scale, op.exp(x) * scale

    p = schedule(normed, Tensor[6, 8, f32])
    roots = [
        s for k in p.steps if isinstance(k, Kernel) for s in k.stages if "rsqrt" in str(s.term)
    ]
    assert [len(s.axes) for s in roots] == [1]
    assert agrees(p, [(6, 8)])


CUT = {
    "a flipped row": lambda f, x: f.reshape(f.flip(x.reshape(-1), 0), (4, 6)),
    "rows from the end": lambda f, x: f.reshape(f.flip(x, 0), (2, 3, 4)),
    "columns from the end": lambda f, x: f.reshape(f.flip(x, 1), (6, 2, 2)),
    "both from the end": lambda f, x: f.reshape(f.flip(f.flip(x, 0), 1), (8, 3)),
    "every other from the end": lambda f, x: f.reshape(x[::-2, ::-1], (2, 6)),
    "flipped and turned": lambda f, x: f.reshape(f.transpose(f.flip(x, 1)), (12, 2)),
}


@pytest.mark.parametrize("name", CUT)
def test_axes_that_run_backwards_are_cut_and_joined(name: str) -> None:
    f, x = CUT[name], np.arange(24, dtype=np.float32).reshape(6, 4)
    want = f(np, x) * 2
    got = ts.jit(lambda x: f(op, x) * 2, target="cpu")(ts.tensor(x))
    np.testing.assert_array_equal(got.numpy(), want)
    p = schedule(lambda x: f(op, x) * 2, ts.tensor(x))
    assert same_bits(by_tile(p, [x]), [want])
    assert same_bits(by_llvm(p, [x]), [want])


@pytest.mark.parametrize(
    "cut", [np.s_[::2], np.s_[1::2], np.s_[:, ::2], np.s_[:2, :2], np.s_[::-2]], ids=str
)
def test_a_kernel_reads_a_part_of_what_the_host_made(cut: Any) -> None:
    x = np.random.default_rng(1).normal(size=(4, 4)).astype(np.float32) + 4 * np.eye(4, dtype="f")

    def f(x: Any) -> Any:
        part = op.inv(x)[cut]
        return part, op.sin(part) + 1, op.sum(part * part, 0)

    part, sine, square = (y.numpy() for y in ts.jit(f, target="cpu")(ts.tensor(x)))
    want = np.linalg.inv(x)[cut]
    np.testing.assert_allclose(part, want, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(sine, np.sin(part) + 1, rtol=1e-6)
    np.testing.assert_allclose(square, (part * part).sum(0), rtol=1e-5)
