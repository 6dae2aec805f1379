"""Convolution against naive loops; its laws, adjoints and errors."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import scipy.signal

import tessera as ts
from tessera import op
from tessera.core.flags import override
from tests.support.runners.tolerance import Tolerance, assert_close, assert_same_bits

RUNS_ON = "numpy"


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng([5, *shape]).normal(size=shape)


def naive_conv(
    x: Any, w: Any, stride: Any, padding: Any, dilation: Any, inner: Any, groups: int
) -> np.ndarray:
    """Every output element by its own loop; what lies outside x, or between its elements, is 0."""
    rank = x.ndim - 2
    long = [(n - 1) * i + 1 if n else 0 for n, i in zip(x.shape[2:], inner, strict=True)]
    sizes = [
        (low + m + high - (k - 1) * d - 1) // s + 1
        for m, (low, high), k, d, s in zip(
            long, padding, w.shape[2:], dilation, stride, strict=True
        )
    ]
    out = np.zeros((x.shape[0], w.shape[0], *sizes))
    share, each = w.shape[0] // groups, w.shape[1]
    for n, o, *at in np.ndindex(*out.shape):
        for c, *k in np.ndindex(*w.shape[1:]):
            place = [at[i] * stride[i] + k[i] * dilation[i] - padding[i][0] for i in range(rank)]
            if all(0 <= p < m and p % i == 0 for p, m, i in zip(place, long, inner, strict=True)):
                source = [p // i for p, i in zip(place, inner, strict=True)]
                out[(n, o, *at)] += x[(n, o // share * each + c, *source)] * w[(o, c, *k)]
    return out


@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize("padding", [(0, 0), (2, 2), (0, 3)])
@pytest.mark.parametrize("dilation", [1, 2])
@pytest.mark.parametrize("inner", [1, 3])
@pytest.mark.parametrize("groups", [1, 2])
def test_conv_is_its_sum(stride: int, padding: Any, dilation: int, inner: int, groups: int) -> None:
    x, w = normal(2, 4, 7), normal(6, 4 // groups, 3)
    got = op.conv(x, w, None, stride, (padding,), dilation, groups, inner)
    want = naive_conv(x, w, (stride,), (padding,), (dilation,), (inner,), groups)
    assert_close(got, want, times=10)


@pytest.mark.parametrize("rank", [2, 3])
def test_conv_in_more_axes(rank: int) -> None:
    x, w = normal(2, 2, *(5, 4, 6)[:rank]), normal(4, 1, *(2, 3, 2)[:rank])
    stride, dilation = (2, 1, 3)[:rank], (1, 1, 2)[:rank]
    padding = ((1, 0), (2, 1), (0, 2))[:rank]
    want = naive_conv(x, w, stride, padding, dilation, (1,) * rank, 2)
    f = (op.conv2d, op.conv3d)[rank - 2]
    assert_close(f(x, w, None, stride, padding, dilation, 2), want, times=10)


def test_conv_adds_a_bias_for_each_channel() -> None:
    x, w, b = normal(2, 3, 5), normal(4, 3, 2), normal(4)
    assert_close(op.conv1d(x, w, b), np.asarray(op.conv1d(x, w)) + b[:, None])


def test_conv_is_the_correlation_of_scipy() -> None:
    x, w = normal(1, 1, 8, 9), normal(1, 1, 3, 4)
    want = scipy.signal.correlate2d(x[0, 0], w[0, 0], mode="valid")
    assert_close(np.asarray(op.conv2d(x, w))[0, 0], want, times=10)


@pytest.mark.parametrize("size", [1, 2, 3, 4])
@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize("dilation", [1, 2])
def test_same_padding_makes_as_many_windows_as_strides(
    size: int, stride: int, dilation: int
) -> None:
    x, w = normal(1, 1, 10), normal(1, 1, size)
    y = op.conv1d(x, w, stride=stride, padding="same", dilation=dilation)
    assert y.shape == (1, 1, -(-10 // stride))


def test_conv_is_linear_in_both_operands() -> None:
    x, y, w = normal(1, 2, 6), normal(2, 2, 6)[:1], normal(3, 2, 3)
    both = op.conv1d(2.0 * x + 3.0 * y, w)
    assert_close(both, 2 * np.asarray(op.conv1d(x, w)) + 3 * np.asarray(op.conv1d(y, w)), times=10)
    assert_close(op.conv1d(x, -4.0 * w), -4 * np.asarray(op.conv1d(x, w)))


def test_conv_moves_with_its_input() -> None:
    x, w = np.zeros((1, 1, 12)), normal(1, 1, 3)
    x[..., 3:6] = normal(3)
    moved = np.roll(x, 2, axis=-1)
    assert_close(op.conv1d(moved, w)[..., 2:], op.conv1d(x, w)[..., :-2])


def test_a_grouped_conv_is_one_conv_for_each_group() -> None:
    x, w = normal(2, 6, 5), normal(9, 2, 3)
    parts = [op.conv1d(x[:, 2 * g : 2 * g + 2], w[3 * g : 3 * g + 3]) for g in range(3)]
    assert_close(op.conv1d(x, w, groups=3), np.concatenate([np.asarray(p) for p in parts], 1))


OPTIONS = [
    {"stride": s, "padding": p, "dilation": d, "groups": g}
    for s, p, d, g in itertools.product((1, 2, 3), (0, 1, ((2, 0),)), (1, 2), (1, 2))
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_adjoints_of_conv_are_adjoint(options: Any) -> None:
    """<ct, conv(x, w)> = <x', x> = <w', w> with the cotangents x' and w'."""
    x, w = ts.asarray(normal(2, 4, 9)), ts.asarray(normal(4, 4 // options["groups"], 3))
    y, pull_back = ts.vjp(lambda x, w: op.conv1d(x, w, **options), x, w)
    ct = ts.asarray(normal(*y.shape))
    total = float(op.sum(op.mul(ct, y)))
    back_x, back_w = pull_back(ct)
    assert_close(float(op.sum(op.mul(back_x, x))), total, times=100)
    assert_close(float(op.sum(op.mul(back_w, w))), total, times=100)


def test_derivatives_of_conv_are_convs_to_any_order() -> None:
    x, w = ts.asarray(normal(1, 2, 6)), ts.asarray(normal(2, 1, 3))
    options = {"stride": 2, "padding": 1, "groups": 2}

    def energy(x: Any, w: Any) -> Any:
        y = op.conv1d(x, w, **options)
        return op.sum(op.mul(op.mul(y, y), y))

    def first(w: Any) -> Any:
        return op.sum(op.mul(ts.grad(energy)(x, w), normal(1, 2, 6)))

    got = np.asarray(ts.grad(first)(w))
    h = 1e-5
    for k in np.ndindex(*w.shape):
        step = np.zeros(w.shape)
        step[k] = h
        slope = (float(first(w + step)) - float(first(w - step))) / (2 * h)
        assert_close(got[k], slope, Tolerance(1e-6, 1e-6))
    g = ts.jit(ts.grad(first), target="numpy").lower(w).graph
    assert {n.op.name for n in g.nodes} & {"windows", "fold_windows"} == set()


# The transpose ----------------------------------------------------------------------------------


@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize("padding", [0, 1])
@pytest.mark.parametrize("dilation", [1, 2])
@pytest.mark.parametrize("groups", [1, 2])
def test_conv_transpose_is_the_adjoint_of_conv(
    stride: int, padding: int, dilation: int, groups: int
) -> None:
    options = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
    w, checked = normal(6, 4 // groups, 3), 0
    for size in (8, 9, 10):
        x = ts.asarray(normal(2, 4, size))
        y, pull_back = ts.vjp(lambda x: op.conv1d(x, w, **options), x)
        made = (y.shape[2] - 1) * stride - 2 * padding + 2 * dilation + 1
        if size - made < max(stride, dilation):
            ct = ts.asarray(normal(*y.shape))
            got = op.conv_transpose1d(ct, w, output_padding=size - made, **options)
            assert_close(got, pull_back(ct)[0], times=10)
            checked += 1
    assert checked


def test_conv_transpose_spreads_one_element_into_the_kernel() -> None:
    w = normal(1, 1, 2, 3)
    y = np.asarray(op.conv_transpose2d(np.array([[[[1.0, 2.0]]]]), w, stride=(1, 3)))
    assert_same_bits(y[0, 0, :, :3], w[0, 0])
    assert_same_bits(y[0, 0, :, 3:], 2 * w[0, 0])


# Sizes, dtypes, tracing -------------------------------------------------------------------------


def test_conv_of_no_batch_has_the_shape_and_zero_derivatives() -> None:
    x, w = ts.asarray(np.zeros((0, 2, 5))), ts.asarray(normal(3, 2, 2))
    assert op.conv1d(x, w).shape == (0, 3, 4)
    g = ts.grad(lambda w: op.sum(op.conv1d(x, w)))(w)
    assert_same_bits(g, np.zeros((3, 2, 2)))


def test_conv_with_symbolic_sizes_is_one_node() -> None:
    @ts.jit
    def f(x: ts.Tensor["B", "C", "H", "W"], w: ts.Tensor["O", "C", 3, 3]) -> Any:  # type: ignore[name-defined]
        return op.conv2d(x, w, stride=2, padding=1)

    for b, c, h, wide in ((1, 2, 5, 6), (3, 1, 8, 7)):
        x, w = normal(b, c, h, wide).astype("f4"), normal(4, c, 3, 3).astype("f4")
        assert_same_bits(f(x, w), op.conv2d(x, w, stride=2, padding=1))
    assert [n.op.name for n in f.lower(x, w).traced.nodes] == ["conv"]


def test_gradients_of_conv_with_symbolic_sizes() -> None:
    def loss(x: Any, w: Any) -> Any:
        y = op.conv1d(x, w, stride=2, padding=1)
        return op.sum(op.mul(y, y))

    @ts.jit
    def f(x: ts.Tensor["B", 2, "L", ts.f64], w: ts.Tensor[3, 2, 3, ts.f64]) -> Any:  # type: ignore[name-defined, misc]
        return ts.grad(loss)(x, w), ts.grad(lambda w: loss(x, w))(w)

    for b, size in ((1, 6), (2, 7)):
        x, w = ts.asarray(normal(b, 2, size)), ts.asarray(normal(3, 2, 3))
        for got, want in zip(
            f(x, w), (ts.grad(loss)(x, w), ts.grad(lambda w, x=x: loss(x, w))(w)), strict=True
        ):
            assert_close(got, want)


def test_conv_of_half_precision_accumulates_wide_and_rounds_once() -> None:
    x, w = (ts.tensor(v, dtype=ts.bf16) for v in (normal(1, 64, 6), normal(2, 64, 3)))
    wide = op.conv1d(x.astype(ts.f32), w.astype(ts.f32))
    assert_same_bits(op.conv1d(x, w), wide.astype(ts.bf16))


def test_conv_of_integers_is_exact() -> None:
    x, w = np.arange(10).reshape(1, 2, 5), np.arange(-6, 6).reshape(2, 2, 3)
    want = naive_conv(x, w, (1,), ((0, 0),), (1,), (1,), 1)
    assert_same_bits(op.conv1d(x, w), want.astype(np.int64))


def test_windows_and_fold_windows_are_adjoint() -> None:
    x = ts.asarray(normal(2, 7, 6))
    seen = op.windows(x, (3, 2), (2, 1), (1, 2))
    for p, q, i, j in np.ndindex(3, 4, 3, 2):
        assert_same_bits(seen[:, p, q, i, j], x[:, 2 * p + i, q + 2 * j])
    ct = normal(*seen.shape)
    back = op.fold_windows(ct, (7, 6), (2, 1), (1, 2))
    assert_close(float(op.sum(op.mul(back, x))), float((ct * np.asarray(seen)).sum()), times=100)


WRONG = [
    (lambda: op.conv1d(normal(1, 3, 5), normal(4, 2, 3)),
     "conv: x f64[1,3,5] has 3 channels but w f64[4,2,3] takes 2 in each of 1 groups, 2 in all"),
    (lambda: op.conv1d(normal(1, 4, 5), normal(3, 2, 3), groups=2),
     "conv: groups 2 do not divide the 3 out channels of w f64[3,2,3]"),
    (lambda: op.conv1d(normal(1, 1, 3), normal(1, 1, 5)),
     "conv: a window of 5 with dilation 1 spans 5 elements, but spatial axis 0 has 3 with its padding; "
     "pad more or use a smaller window"),
    (lambda: op.conv2d(normal(1, 1, 3), normal(1, 1, 3)),
     "conv2d: operands f64[1,1,3], f64[1,1,3] must be (batch, channels, ...) and (out, in, ...) with "
     "2 spatial axes"),
    (lambda: op.conv1d(normal(1, 1, 3), normal(1, 1, 2), stride=0),
    "conv1d: stride is 0, expected at least 1"),
    (lambda: op.conv2d(normal(1, 1, 3, 3), normal(1, 1, 2, 2), stride=(1, 2, 3)),
     "conv2d: stride is (1, 2, 3), expected one number or one for each of 2 axes"),
    (lambda: op.conv1d(normal(1, 1, 3), normal(1, 1, 2), padding="full"),
     "conv1d: padding is 'full', expected 'same', 'valid' or numbers"),
    (lambda: op.conv1d(normal(1, 1, 3), normal(2, 1, 2), normal(3)),
     "conv1d: the bias is f64[3], expected one number for each of 2 out channels"),
    (lambda: op.conv_transpose1d(normal(1, 2, 3), normal(2, 1, 2), output_padding=1),
     "conv_transpose1d: output_padding 1 must be below stride 1 or dilation 1"),
    (lambda: op.conv1d(normal(1, 1, 3), normal(1, 1, 2), dilation=1.5),
     "conv1d: dilation is 1.5, expected whole numbers"),
]  # fmt: skip


@pytest.mark.parametrize(("wrong", "message"), WRONG, ids=[str(i) for i in range(len(WRONG))])
def test_errors_say_what_was_wanted(wrong: Any, message: str) -> None:
    with pytest.raises(ts.TesseraError) as e:
        wrong()
    assert e.value.message == message


# Sizes at which 512 products are no whole number of images, rows or channels: the leaves of a
# primitive end elsewhere.
UNEVEN = [(32, 8, 16, 5), (32, 8, 16, 6), (16, 1, 8, 12), (2, 72, 3, 7), (3, 100, 4, 9)]


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize(("batch", "into", "made", "side"), UNEVEN)
@pytest.mark.parametrize("stride", [1, 2])
def test_eager_convolutions_and_their_gradients_have_the_bits_of_jitted_ones(
    batch: int, into: int, made: int, side: int, stride: int
) -> None:
    rng = np.random.default_rng(side)
    x = ts.tensor(rng.standard_normal((batch, into, side, side)).astype(np.float32))
    w = ts.tensor(rng.standard_normal((made, into, 3, 3)).astype(np.float32))

    y = op.conv(x, w, stride=stride, padding=1)
    of_one = [
        (lambda x, w: op.conv(x, w, stride=stride, padding=1), (x, w)),
        (lambda x, y: op.conv_weights(x, y, 3, stride=stride, padding=1), (x, y)),
        (lambda w: ts.grad(lambda w: op.sum(op.sin(op.conv(x, w, stride=stride, padding=1))))(w), (w,)),
        (lambda x: ts.grad(lambda x: op.sum(op.sin(op.conv(x, w, stride=stride, padding=1))))(x), (x,)),
    ]  # fmt: skip
    for f, args in of_one:
        assert_same_bits(f(*args), ts.jit(f)(*args))


def spread_by_hand(x: Any, w: Any, options: dict[str, int]) -> Any:
    """conv_transpose1d, product by product: what the stride lets reach a place, zeros beyond the ends."""
    stride, padding, dilation, groups, extra = options.values()
    length = (x.shape[2] - 1) * stride + (w.shape[2] - 1) * dilation + 1 - 2 * padding + extra
    y = np.zeros((x.shape[0], w.shape[1] * groups, length))
    for c, o, q, k in np.ndindex(x.shape[1], w.shape[1], length, w.shape[2]):
        n, off = divmod(q + padding - k * dilation, stride)
        if off == 0:
            given = x[:, c, n] if 0 <= n < x.shape[2] else np.zeros(x.shape[0])
            with np.errstate(invalid="ignore"):
                y[:, c // (x.shape[1] // groups) * w.shape[1] + o, q] += given * w[c, o, k]
    return y


@pytest.mark.parametrize("target", ["numpy", "cpu"])
@pytest.mark.parametrize("bad", [np.inf, np.nan])
@pytest.mark.parametrize("place", ["x", "w"])
@pytest.mark.parametrize("made", [2, 9])
def test_what_is_not_finite_goes_where_its_products_go(
    target: str, bad: float, place: str, made: int
) -> None:
    rng = np.random.default_rng(3)
    cases = itertools.product((1, 2, 3), (0, 1), (1, 2), (1, 2), (0, 1))
    names = ("stride", "padding", "dilation", "groups", "output_padding")
    for i, case in enumerate(cases):
        options = dict(zip(names, case, strict=True))
        if case[-1] >= max(case[0], case[2]) or (target == "cpu" and i % 3):
            continue
        x, w = rng.normal(size=(2, 4, 5)), rng.normal(size=(4, made, 3))
        (x if place == "x" else w)[1, 1, 1] = bad
        with override(target=target):
            got = op.conv_transpose1d(x, w, **options)
        want = spread_by_hand(x, w, options)
        np.testing.assert_allclose(got.numpy(), want, rtol=1e-12, atol=1e-12)


def test_few_channels_and_many_are_of_one_order() -> None:
    """Kernels of a batch are out channels, enough for another kernel; the sums are the same ones."""
    rng = np.random.default_rng(5)
    for channels, window, stride in [(90, 4, 2), (300, 3, 3), (600, 2, 2), (7, 5, (2, 3))]:
        axes = 2 if isinstance(stride, tuple) else 1
        x = ts.tensor(rng.normal(size=(2, channels, *(5, 4)[:axes])).astype(np.float32))
        w = rng.normal(size=(5, channels, 3, *(window,) * axes)).astype(np.float32)

        def f(x: Any, w: Any, stride: Any = stride) -> Any:
            return op.conv_transpose(x, w, stride=stride, padding=1)

        each = [f(x, ts.tensor(v)).numpy() for v in w]
        assert_same_bits(ts.vmap(f, in_axes=(None, 0))(x, ts.tensor(w)), np.stack(each))


@pytest.mark.parametrize("padding", ["same", "valid", 1, (2,), ((2, 1),)], ids=str)
@pytest.mark.parametrize(("size", "stride", "dilation", "inner"), [
    (3, 1, 1, 1), (2, 1, 3, 1), (4, 2, 1, 1), (3, 3, 2, 1), (2, 2, 3, 2), (5, 1, 1, 2),
], ids=str)  # fmt: skip
def test_derivatives_of_a_convolution_take_its_padding(size, stride, dilation, inner, padding):
    """A word means the same to a convolution and to its derivatives in x and in the kernel."""
    x, w = normal(2, 3, 11), normal(4, 3, size)
    given = {"stride": stride, "padding": padding, "dilation": dilation, "inner": inner}
    y, pull = ts.vjp(lambda x, w: op.conv(x, w, None, **given), x, w)
    ct = normal(*y.shape)
    dx, dw = pull(ts.tensor(ct))
    assert_close(op.conv_weights(x, ct, size, **given), dw, times=10)
    if inner == 1:
        del given["inner"]
        assert_close(op.conv_input(ct, w, 11, **given), dx, times=10)


@pytest.mark.parametrize("stride", [2, 3])
@pytest.mark.parametrize("dilation", [1, 2])
def test_a_kernel_of_an_open_size_may_be_shorter_than_the_stride(stride, dilation):
    """Of a convolution and its transpose, with derivatives."""
    given = {"stride": stride, "dilation": dilation, "padding": 1}

    @ts.jit
    def up(x: ts.Tensor[1, 2, "N", ts.f64], w: ts.Tensor[2, 3, "K", ts.f64]):
        return op.conv_transpose(x, w, output_padding=1, **given)

    @ts.jit
    def down(x: ts.Tensor[1, 2, "N", ts.f64], w: ts.Tensor[3, 2, "K", ts.f64]):
        return op.conv(x, w, **given)

    plain = {
        up: lambda x, w: op.conv_transpose(x, w, output_padding=1, **given),
        down: lambda x, w: op.conv(x, w, **given),
    }
    for size in (1, 2, 4):
        for f, shape in ((up, (2, 3, size)), (down, (3, 2, size))):
            x, w = ts.tensor(normal(1, 2, 9)), ts.tensor(normal(*shape))
            for g in (
                lambda h: h(x, w),  # noqa: B023
                lambda h: ts.grad(lambda x, w: op.sum(op.square(h(x, w))), (0, 1))(x, w),  # noqa: B023
            ):
                for got, want in zip(
                    ts.tree.leaves(g(f)), ts.tree.leaves(g(plain[f])), strict=True
                ):
                    assert_close(got, want, times=20)
