"""Pooling and resize against naive loops; their laws, derivatives and errors."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import scipy.ndimage

import tessera as ts
from tessera import op
from tests.support.runners.tolerance import assert_close, assert_same_bits


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng([9, *shape]).normal(size=shape)


def naive_pool(
    x: np.ndarray, size: int, stride: int, padding: int, dilation: int, ceil: bool, fold: Any
) -> np.ndarray:
    """Windows of the last axis one by one: fold(elements in x, elements of x and padding)."""
    n, span = x.shape[-1], (size - 1) * dilation + 1
    last = (n + 2 * padding - span) / stride
    starts = range(0, (math.ceil(last) if ceil else math.floor(last)) * stride + 1, stride)
    columns = []
    for start in starts:
        if start >= n + padding:
            continue  # a window must start in x or in the padding before it
        places = [start + k * dilation - padding for k in range(size)]
        inside = [p for p in places if 0 <= p < n]
        padded = [p for p in places if -padding <= p < n + padding]
        columns.append(fold(x[..., inside], len(padded)))
    return np.stack(columns, -1)


WINDOWS = [
    (size, stride, padding, ceil)
    for size in (1, 2, 3)
    for stride in (1, 2, 3)
    for padding in (0, 1)
    for ceil in (False, True)
    if padding < size
]


@pytest.mark.parametrize(("size", "stride", "padding", "ceil"), WINDOWS)
def test_max_pool_is_the_largest_of_each_window(
    size: int, stride: int, padding: int, ceil: bool
) -> None:
    x = normal(2, 3, 8) - 5  # below 0, so that a padding of zeros would show
    for dilation in (1, 2):
        want = naive_pool(x, size, stride, padding, dilation, ceil, lambda e, _: e.max(-1))
        assert_same_bits(op.max_pool1d(x, size, stride, padding, dilation, ceil), want)


@pytest.mark.parametrize(("size", "stride", "padding", "ceil"), WINDOWS)
@pytest.mark.parametrize("include", [False, True])
def test_avg_pool_is_the_mean_of_each_window(
    size: int, stride: int, padding: int, ceil: bool, include: bool
) -> None:
    x = normal(2, 3, 8)
    fold = lambda e, n: e.sum(-1) / (n if include else e.shape[-1])  # noqa: E731
    want = naive_pool(x, size, stride, padding, 1, ceil, fold)
    assert_close(op.avg_pool1d(x, size, stride, padding, ceil, include), want)


def test_pools_in_more_axes_are_pools_of_pools() -> None:
    x = normal(2, 2, 4, 6, 6)
    rows = [naive_pool(x, 2, 2, 0, 1, False, lambda e, _: e.max(-1))]
    rows.append(naive_pool(np.swapaxes(rows[0], 3, 4), 3, 3, 0, 1, False, lambda e, _: e.max(-1)))
    assert_same_bits(op.max_pool3d(x, (1, 3, 2)), np.swapaxes(rows[1], 3, 4))
    blocks = x.reshape(2, 2, 2, 2, 3, 2, 2, 3)
    assert_close(op.avg_pool3d(x, (2, 2, 3)), blocks.mean((3, 5, 7)))
    assert_close(op.avg_pool2d(x[:, :, 0], 2), x[:, :, 0].reshape(2, 2, 3, 2, 3, 2).mean((3, 5)))
    assert_same_bits(op.max_pool2d(x[:, :, 0], 2), x[:, :, 0].reshape(2, 2, 3, 2, 3, 2).max((3, 5)))


def test_max_pool_is_the_filter_of_scipy() -> None:
    x = normal(1, 1, 9, 8)
    want = scipy.ndimage.maximum_filter(x[0, 0], size=3, mode="constant", cval=-np.inf)
    assert_same_bits(np.asarray(op.max_pool2d(x, 3, 1, 1))[0, 0], want)


def test_the_mean_of_all_is_kept_by_pools_that_tile() -> None:
    x = normal(2, 3, 6, 4)
    assert_close(np.asarray(op.avg_pool2d(x, 2)).mean((2, 3)), x.mean((2, 3)))
    assert_close(op.global_avg_pool(x), x.mean((2, 3), keepdims=True))
    assert_same_bits(op.global_max_pool(x, keepdims=False), x.max((2, 3)))
    assert_close(op.lp_pool(x, 2, 1.0), 4 * np.asarray(op.avg_pool2d(np.abs(x), 2)))
    assert_close(op.lp_pool(x, (6, 4)), np.sqrt((x * x).sum((2, 3), keepdims=True)))


def test_the_gradient_of_max_pool_goes_to_the_winners() -> None:
    x = ts.tensor(np.array([[[1.0, 3.0, 2.0, 2.0, 0.0]]]))
    g = ts.grad(lambda x: op.sum(op.mul(op.max_pool1d(x, 2, 1), np.array([1.0, 10, 100, 1000]))))(x)
    assert np.asarray(g).tolist() == [[[0.0, 11.0, 50.0, 1050.0, 0.0]]]


def test_avg_pool_is_linear_and_its_adjoint_spreads_evenly() -> None:
    x = ts.asarray(normal(1, 1, 6))
    g = ts.grad(lambda x: op.sum(op.avg_pool1d(x, 3, 3)))(x)
    assert_close(g, np.full((1, 1, 6), 1 / 3))


def test_max_pool_of_integers_and_bf16() -> None:
    x = np.array([[[-5, -7, -6, -8]]])
    assert_same_bits(op.max_pool1d(x, 3, 2, 1), np.array([[[-5, -6]]]))
    narrow = ts.tensor(normal(1, 2, 8), dtype=ts.bf16)
    assert_same_bits(op.max_pool1d(narrow, 2), np.asarray(narrow).reshape(1, 2, 4, 2).max(-1))
    assert_same_bits(
        op.avg_pool1d(narrow, 4), op.avg_pool1d(narrow.astype(ts.f32), 4).astype(ts.bf16)
    )


def test_pools_take_symbolic_sizes() -> None:
    @ts.jit
    def f(x: ts.Tensor["B", "C", "H", "W"]) -> Any:  # type: ignore[name-defined]
        return op.max_pool2d(x, 2, ceil_mode=True), op.avg_pool2d(x, 3, 2, 1, True, False)

    for shape in ((1, 2, 5, 6), (2, 1, 7, 4)):
        x = normal(*shape).astype("f4")
        want = op.max_pool2d(x, 2, ceil_mode=True), op.avg_pool2d(x, 3, 2, 1, True, False)
        for got, w in zip(f(x), want, strict=True):
            assert_same_bits(got, w)


@pytest.mark.parametrize(("n", "made"), [(7, 3), (6, 3), (4, 4), (3, 5), (5, 1)])
def test_adaptive_avg_pool_covers_the_axis(n: int, made: int) -> None:
    x = normal(2, 1, n)
    want = [
        x[..., i * n // made : math.ceil((i + 1) * n / made)].mean(-1) for i in range(made)
    ]  # fmt: skip
    assert_close(op.adaptive_avg_pool1d(x, made), np.stack(want, -1))


def test_adaptive_avg_pool_to_one_is_global() -> None:
    x = normal(2, 3, 5, 4)
    assert_close(op.adaptive_avg_pool2d(x, 1), op.global_avg_pool(x))


# Resize -----------------------------------------------------------------------------------------


def naive_resize(x: np.ndarray, made: int, mode: str, corners: bool) -> np.ndarray:
    """The last axis, element by element."""
    n = x.shape[-1]
    out = np.zeros((*x.shape[:-1], made))
    for i in range(made):
        at = i * (n - 1) / max(made - 1, 1) if corners else (i + 0.5) * n / made - 0.5
        if mode == "nearest":
            out[..., i] = x[..., i * n // made]
        elif mode == "linear":
            at = min(max(at, 0.0), n - 1.0)
            low = int(at)
            high = min(low + 1, n - 1)
            out[..., i] = x[..., low] * (1 - (at - low)) + x[..., high] * (at - low)
        else:
            for k in range(math.floor(at) - 1, math.floor(at) + 3):
                d, a = abs(at - k), -0.75
                w = (
                    (a + 2) * d**3 - (a + 3) * d**2 + 1
                    if d <= 1
                    else a * (d**3 - 5 * d**2 + 8 * d - 4)
                )
                out[..., i] += w * x[..., min(max(k, 0), n - 1)]
    return out


MODES = [("nearest", False), ("linear", False), ("linear", True), ("cubic", False), ("cubic", True)]


@pytest.mark.parametrize(("mode", "corners"), MODES)
@pytest.mark.parametrize(("n", "made"), [(5, 5), (4, 8), (5, 9), (8, 3), (3, 1), (1, 4)])
def test_resize_reads_between_elements(mode: str, corners: bool, n: int, made: int) -> None:
    x = normal(2, 3, n)
    got = op.resize(x, made, mode=mode, align_corners=corners)
    assert_close(got, naive_resize(x, made, mode, corners), times=10)


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
def test_resize_is_separable_and_keeps_constants(mode: str) -> None:
    x = normal(1, 2, 4, 5)
    both = op.resize(x, (7, 3), mode=mode)
    rows = naive_resize(np.swapaxes(x, 2, 3), 7, mode, False)
    assert_close(both, naive_resize(np.swapaxes(rows, 2, 3), 3, mode, False), times=10)
    assert_close(op.resize(np.full((1, 1, 6), 2.5), 11, mode=mode), np.full((1, 1, 11), 2.5))


def test_linear_resize_with_corners_keeps_lines() -> None:
    line = np.linspace(0.0, 3.0, 4).reshape(1, 1, 4)
    assert_close(op.resize(line, 7, mode="linear", align_corners=True)[0, 0], np.linspace(0, 3, 7))


def test_nearest_resize_keeps_the_dtype_and_scales_repeat() -> None:
    x = np.arange(6).reshape(1, 2, 3)
    assert_same_bits(op.resize(x, scale=2), np.repeat(x, 2, axis=-1))
    assert_same_bits(op.interpolate(x, scale=2), np.repeat(x, 2, axis=-1))
    assert op.resize(ts.tensor(normal(1, 1, 3), dtype=ts.bf16), 5, mode="linear").dtype is ts.bf16


def test_resize_has_the_adjoint_of_its_weights() -> None:
    x = ts.asarray(normal(1, 1, 5))
    for mode in ("nearest", "linear", "cubic"):
        y, pull_back = ts.vjp(lambda x, mode=mode: op.resize(x, 8, mode=mode), x)
        ct = ts.asarray(normal(1, 1, 8))
        left = float(op.sum(op.mul(ct, y)))
        assert_close(float(op.sum(op.mul(pull_back(ct)[0], x))), left, times=100)


WRONG = [
    (lambda: op.max_pool2d(normal(1, 1, 4), 2),
     "max_pool2d: x is f64[1,1,4], expected (batch, channels, ...) with 2 spatial axes"),
    (lambda: op.max_pool1d(normal(1, 1, 4), 2, padding=2),
     "max_pool: padding (2, 2) must be smaller than the window, which spans 2"),
    (lambda: op.avg_pool1d(normal(1, 1, 2), 3),
     "avg_pool: a window of 3 with dilation 1 spans 3 elements, but spatial axis 0 has 2 with its "
     "padding; pad more or use a smaller window"),
    (lambda: op.resize(normal(1, 1, 4), 8, mode="area"),
     "resize: mode is 'area', expected 'nearest', 'linear' or 'cubic'"),
    (lambda: op.resize(normal(1, 1, 4)), "resize: give either size or scale"),
    (lambda: op.resize(normal(1, 1, 4), scale=-1.0),
     "resize: scale is -1.0, expected a positive number or one for each of 1 axes"),
    (lambda: op.resize(normal(4, 4), 8), "resize: x is f64[4,4], expected (batch, channels, ...)"),
    (lambda: op.resize(normal(1, 1, 4), 8, align_corners=True),
     "resize: align_corners has no meaning for mode 'nearest'"),
]  # fmt: skip


@pytest.mark.parametrize(("wrong", "message"), WRONG, ids=[str(i) for i in range(len(WRONG))])
def test_errors_say_what_was_wanted(wrong: Any, message: str) -> None:
    with pytest.raises(ts.TesseraError) as e:
        wrong()
    assert e.value.message == message
