"""Nothing is found in the kernels that our own compiler makes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera import op
from tessera.checks.kernel import check_kernel
from tessera.stdlib.kernels import attention as flash
from tessera.stdlib.kernels import rows as library

T = ts.Tensor


def rows(*shape: int) -> Any:
    return ts.tensor(np.random.default_rng(0).standard_normal(shape).astype(np.float32))


def softmax(x: T["B", "N", ts.f32]):
    return op.softmax(x, axis=-1)


def layernorm(x: T["B", "N", ts.f32], g: T["N", ts.f32], b: T["N", ts.f32]):
    return op.layernorm(x, g, b)


def matmul(x: T["M", "K", ts.f32], y: T["K", "N", ts.f32]):
    return x @ y


def attention(q, k, v):
    return op.softmax(q @ op.transpose(k, (0, 2, 1)) * 0.125, axis=-1) @ v


def taken_sum(x):
    return op.sum(op.take(x, ts.tensor(np.array([1, 1, 0])), axis=0))


CASES: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "softmax": (softmax, (rows(7, 50),)),
    "softmax of numbers": (lambda x: op.softmax(x, axis=-1), (rows(7, 50),)),
    "layernorm": (layernorm, (rows(7, 50), rows(50), rows(50))),
    "matmul": (matmul, (rows(7, 50), rows(50, 9))),
    "matmul of numbers": (lambda x, y: x @ y, (rows(30, 40), rows(40, 20))),
    "attention": (attention, (rows(2, 20, 8), rows(2, 20, 8), rows(2, 20, 8))),
    "convolution": (lambda x, w: op.conv2d(x, w, padding=1), (rows(2, 3, 8, 8), rows(4, 3, 3, 3))),
    "strided convolution": (
        lambda x, w: op.conv2d(x, w, padding=1, stride=2), (rows(1, 16, 9, 9), rows(8, 16, 3, 3))),
    "derivatives of a convolution": (
        ts.grad(lambda x, w: op.sum(op.conv2d(x, w, padding=1)), argnums=(0, 1)),
        (rows(1, 3, 8, 8), rows(4, 3, 3, 3))),
    "fft": (lambda x: op.abs(op.fft(x)), (rows(4, 60),)),
    "fft of a prime": (lambda x: op.real(op.fft(x)), (rows(3, 37),)),
    "sums": (lambda x: (op.cumsum(x, 1), op.sum(x), op.mean(x, 0), op.var(x, 1)), (rows(20, 33),)),
    "sums of many columns": (lambda x: op.sum(x, 0), (rows(40, 1000),)),
    "sort": (lambda x: op.sort(x, axis=0), (rows(200, 33),)),
    "take": (lambda x, i: op.take(x, i, axis=0), (rows(5, 33), ts.tensor(np.array([1, 2, 0])))),
    "scatter": (ts.grad(taken_sum), (rows(6, 40),)),
    "shapes": (lambda x: op.concat([op.transpose(x, (1, 0)), op.transpose(x, (1, 0))], axis=0),
    (rows(9, 20),)),
    "perceptron": (lambda x, w, b: op.gelu(x @ w + b), (rows(33, 40), rows(40, 24), rows(24))),
    "pooling": (lambda x: op.max_pool2d(x, 2), (rows(2, 3, 8, 8),)),
    "cross entropy": (op.cross_entropy, (rows(6, 10), ts.tensor(np.array([1, 2, 0, 3, 4, 5])))),
    "derivative of softmax": (ts.grad(lambda x: op.sum(op.softmax(x, axis=-1) ** 2)), (rows(6, 40),)),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_no_kernel_of_the_compiler_has_a_finding(name: str) -> None:
    f, args = CASES[name]
    kernels = ts.jit(f, target="cpu").lower(*args).tile
    assert kernels
    for kernel in kernels.values():
        report = check_kernel(kernel, machine="h200")
        assert report.ok, report
        (bounds,) = report.of("bounds")
        # What is left are positions of packed panels, for which no witness is found.
        assert len(bounds.unproved) <= 0.02 * bounds.proved + 1, bounds


def test_sizes_of_the_cases_are_symbolic_where_they_can_be() -> None:
    f, args = CASES["softmax"]
    (kernel,) = ts.jit(f, target="cpu").lower(*args).tile.values()
    assert set(kernel.sizes) == {"B", "N"}


def zeros(*shape: int) -> Any:
    return np.zeros(shape, np.float32)


HEADS = (zeros(2, 3, 20, 8), zeros(2, 20, 8), zeros(2, 20, 8), None)
PLAIN = {"scale": 0.125, "causal": False, "window": None, "sink": 0, "dropout": 0.0, "seed": 0,
         "stats": False}  # fmt: skip
# Kernels of the library, their arguments, and what the functions that launch them see to.
LIBRARY: dict[str, tuple[Any, tuple[Any, ...], dict[str, Any], dict[str, str]]] = {
    "softmax": (library.softmax, (zeros(10, 40),), {}, {}),
    "softmax_back": (library.softmax_back, (zeros(10, 40), zeros(10, 40)), {}, {}),
    "layernorm": (
        library.layernorm, (zeros(10, 40), zeros(40), zeros(40)), {"eps": 1e-5, "stats": True}, {}),
    "rmsnorm": (library.rmsnorm, (zeros(10, 40), zeros(40)), {"eps": 1e-5, "stats": True}, {}),
    "norm_back": (
        library.norm_back, (zeros(10, 40), zeros(10), zeros(10), zeros(40), zeros(10, 40)),
        {"sums": True}, {}),
    "attention": (flash.attention, HEADS, PLAIN, {}),
    "causal attention": (flash.attention, HEADS, PLAIN | {"causal": True, "stats": True}, {}),
    "attention in a window": (
        flash.attention, HEADS, PLAIN | {"causal": True, "window": 7, "sink": 2}, {}),
}  # fmt: skip


@pytest.mark.parametrize("name", LIBRARY)
def test_no_kernel_of_the_library_has_a_finding(name: str) -> None:
    f, args, static, given = LIBRARY[name]
    report = ts.check(f, *args, machine="h200", given=given, **static)
    assert report.ok, report
    assert report.of("races")[0].is_proof
    (verdict,) = ts.verify.numerics(bounded=[-100, 100])(f).report(*args, **static)
    assert verdict.is_proof, verdict
