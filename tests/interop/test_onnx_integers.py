"""Products of quantised numbers in ONNX: exact with zero points of every kind, by bytes and by f32."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tessera as ts
from tessera import op
from tessera.core.dtype import f32, i32, u8
from tessera.core.flags import override
from tessera.interop.onnx.rule import Quantised
from tessera.interop.onnx.rules import integers
from tessera.ir.schedule.ir import Group, Kernel
from tessera.ir.schedule.lower import lower
from tessera.ir.schedule.nests.matrix import is_of_bytes
from tests.support.fakes.gpu_fake import at

RUNS_ON = "cpu"
RNG = np.random.default_rng(0)
BYTES = (np.int8, np.uint8)


def drawn(dtype: Any, *shape: int) -> Any:
    """Numbers over the whole range of a dtype."""
    info = np.iinfo(dtype)
    return RNG.integers(info.min, info.max, shape, dtype, endpoint=True)


def zeros_of(dtype: Any, n: int) -> list[Any]:
    """No zero point, one for all at the ends and in the middle, one for each of n places."""
    info = np.iinfo(dtype)
    middle = 128 if dtype is np.uint8 else 0
    return [None, *(np.array(z, dtype) for z in (info.min, middle, info.max)), drawn(dtype, n)]


def wide(x: Any, zero: Any, axis: int) -> Any:
    """Numbers less their zero point in i64."""
    if zero is None:
        return x.astype(np.int64)
    shape = [1] * x.ndim
    shape[axis] = -1
    point = zero.astype(np.int64)
    return x.astype(np.int64) - (point.reshape(shape) if point.ndim else point)


def paired(left: list[Any], right: list[Any], turn: int) -> list[tuple[Any, Any]]:
    """Each of some zero points with one of others; five turns are all pairs."""
    return [(p, right[(i + turn) % len(right)]) for i, p in enumerate(left)]


@pytest.mark.parametrize("turn", range(5))
@pytest.mark.parametrize("known", [False, True], ids=["weights given", "weights known"])
@pytest.mark.parametrize(("left", "right"), list(itertools.product(BYTES, BYTES)))
def test_products_of_bytes_are_exact(left: Any, right: Any, known: bool, turn: int) -> None:
    a, b = drawn(left, 2, 5, 70), drawn(right, 70, 19)
    for p, q in paired(zeros_of(left, 5), zeros_of(right, 19), turn):
        want = wide(a, p, 1) @ wide(b, q, 1)
        for product in (integers._byte_matmul, integers._float_matmul):

            def run(x: Any, y: Any, f: Any = product, p: Any = p, q: Any = q) -> Any:
                return f(x, p, b if known else y, q)

            got = np.asarray(ts.jit(run)(ts.tensor(a), ts.tensor(b)))
            assert got.dtype == np.int32
            np.testing.assert_array_equal(got, want)


ONE = {"stride": (1, 1), "dilation": (1, 1), "padding": ((0, 0), (0, 0))}
WINDOWS = [
    {"stride": (1, 1), "dilation": (1, 1), "padding": ((1, 1), (1, 1))},
    {"stride": (2, 1), "dilation": (1, 2), "padding": ((0, 2), (3, 0))},
    {"stride": (1, 3), "dilation": (2, 1), "padding": ((0, 0), (0, 0))},
]


@pytest.mark.parametrize("turn", range(5))
@pytest.mark.parametrize("p", WINDOWS, ids=["same", "uneven", "dilated"])
@pytest.mark.parametrize("weights", BYTES)
def test_convolutions_of_bytes_are_exact(weights: Any, p: dict[str, Any], turn: int) -> None:
    """Padding is the zero point of the image, whatever it is."""
    x, w = drawn(np.uint8, 2, 4, 9, 11), drawn(weights, 6, 4, 3, 3)
    for x_zero, w_zero in paired(zeros_of(np.uint8, 4)[:4], zeros_of(weights, 6), turn):
        want = convolved(wide(x, x_zero, 1), wide(w, w_zero, 0), p)
        for conv in (integers._byte_conv, lambda *args: integers._float_conv(1, *args)):

            def run(x: Any, z: Any, f: Any = conv, w_zero: Any = w_zero) -> Any:
                return f(x, z, w, w_zero, p)

            zero = np.array(0, np.uint8) if x_zero is None else x_zero
            got = np.asarray(ts.jit(run)(ts.tensor(x), ts.tensor(zero)))
            np.testing.assert_array_equal(got, want)


def convolved(x: Any, w: Any, p: dict[str, Any]) -> Any:
    """A convolution, place by place."""
    x = np.pad(x, [(0, 0), (0, 0), *p["padding"]])
    (down, across), (dy, dx) = p["stride"], p["dilation"]
    high, broad = (w.shape[2] - 1) * dy + 1, (w.shape[3] - 1) * dx + 1
    rows = range(0, x.shape[2] - high + 1, down)
    columns = range(0, x.shape[3] - broad + 1, across)
    out = np.empty((x.shape[0], w.shape[0], len(rows), len(columns)), np.int64)
    for (i, r), (j, c) in itertools.product(enumerate(rows), enumerate(columns)):
        out[:, :, i, j] = np.einsum(
            "nckl,ockl->no", x[:, :, r : r + high : dy, c : c + broad : dx], w
        )
    return out


@pytest.mark.parametrize("each", [False, True], ids=["one scale", "a scale for each column"])
def test_products_of_dequantised_numbers_are_scaled_once(each: bool) -> None:
    """Closer to the exact product than that of rounded factors may be."""
    a, b = drawn(np.uint8, 7, 96), drawn(np.int8, 96, 20)
    by = RNG.uniform(0.001, 0.1, 20 if each else ()).astype(np.float32)
    left = Quantised(ts.tensor(a), np.array(0.02, np.float32), np.array(131, np.uint8), 1, 0)
    right = Quantised(ts.tensor(b), by, None, 1, 0)
    got = integers.scaled_matmul(left, right)
    if got is None:
        pytest.skip("this processor has no instruction for bytes")
    want = (a.astype(np.float64) - 131) @ b * np.float64(np.float32(0.02)) * by
    np.testing.assert_allclose(np.asarray(got), want, rtol=4e-7, atol=1e-30)


def test_other_scales_and_long_sums_are_left_to_floats() -> None:
    a, b = ts.tensor(drawn(np.int8, 4, 64)), ts.tensor(drawn(np.int8, 64, 8))
    scale = np.array(0.5, np.float32)
    whole = Quantised(b, scale, None, 1, 0)
    for other in (
        Quantised(a, np.ones(64, np.float32), None, 1, 0),  # along the sum
        Quantised(a, np.ones((4, 2), np.float32), None, 1, 32),  # in blocks of it
        Quantised(a, np.array(1, np.float16), None, 1, 0),
        Quantised(ts.tensor(np.zeros((4, 64), np.int16)), scale, None, 1, 0),
    ):
        assert integers.scaled_matmul(other, whole) is None
    deep = 1 << 17  # of 128 * 128
    long = [ts.tensor(np.zeros(s, np.int8)) for s in ((2, deep), (deep, 2))]
    assert integers.scaled_matmul(*(Quantised(x, scale, None, 1, 0) for x in long)) is None


def test_formats_that_are_no_dtypes_are_left_to_floats() -> None:
    """Weights of 4 bits without a sign, floats of 8 bits that no dtype is."""
    a = Quantised(ts.tensor(drawn(np.uint8, 4, 64)), np.array(0.5, np.float32), None, 1, 0)
    for name in ("uint4", "float8_e4m3fnuz"):
        w = np.arange(64 * 8).reshape(64, 8) % 7
        foreign = replace(a, numbers=w.astype(getattr(ml_dtypes, name)))
        assert integers.scaled_matmul(a, foreign) is None
        assert integers.scaled_matmul(foreign, a) is None
        image, kernel = (replace(q, numbers=q.numbers[None, ..., None]) for q in (a, foreign))
        assert integers.scaled_conv(1, image, kernel, ONE) is None


def test_numbers_dequantised_to_other_floats_are_multiplied_in_those() -> None:
    """An f32 scale, and f16 as output_dtype says."""
    onnx = pytest.importorskip("onnx")
    helper, kinds = onnx.helper, onnx.TensorProto
    a, b = drawn(np.uint8, 4, 64), drawn(np.int8, 64, 8)
    node = helper.make_node
    for to, want in ((kinds.FLOAT16, np.float16), (kinds.FLOAT, np.float32), (0, np.float32)):
        nodes = [
            node("DequantizeLinear", ["a", "s"], ["x"], output_dtype=to),
            node("DequantizeLinear", ["b", "s"], ["w"], output_dtype=to),
            node("MatMul", ["x", "w"], ["y"]),
        ]
        graph = helper.make_graph(
            nodes,
            "g",
            [helper.make_tensor_value_info("a", kinds.UINT8, a.shape)],
            [helper.make_tensor_value_info("y", to, None)],
            [
                onnx.numpy_helper.from_array(x, n)
                for x, n in ((b, "b"), (np.array(2**-6, np.float32), "s"))
            ],
        )
        m = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)])
        got = np.asarray(ts.onnx.load(m.SerializeToString()).run({"a": a})["y"])
        assert got.dtype == want
        np.testing.assert_allclose(got, a.astype(np.float64) @ b / 4096, rtol=2e-3, atol=1e-2)


@pytest.mark.parametrize(
    ("sizes", "padding", "text"),
    [
        ((2, 2), ((0, 0), (0, 0)), "a window of 3 with dilation 1 spans 3 elements"),
        ((1, 1), ((0, 0), (0, 0)), "a window of 3 with dilation 1 spans 3 elements"),
        ((5, 5), ((-1, 0), (0, 0)), "expected at least 0"),
    ],
    ids=["none", "fewer than none", "cut"],
)
def test_windows_that_do_not_fit_are_an_error(sizes: Any, padding: Any, text: str) -> None:
    """That of convolutions of floats, not an empty image."""
    x, w = drawn(np.uint8, 1, 8, *sizes), drawn(np.int8, 4, 8, 3, 3)
    with pytest.raises(ts.TesseraError, match=text):
        integers.whole_conv(1, x, None, w, None, {**ONE, "padding": padding})


def test_rounded_factors_are_stored_as_bytes() -> None:
    """A product reads the bytes that another kernel rounds to, and no chain of products takes them apart."""

    def f(x: Any, v: Any, w: Any) -> Any:
        def rounded(y: Any) -> Any:
            return op.cast(op.cast(op.clip(op.round(y), 0.0, 255.0), u8), i32)

        y = op.matmul(rounded(x), op.cast(v, i32))
        return op.matmul(rounded(op.gelu(op.mul(op.cast(y, f32), 0.1))), op.cast(w, i32))

    x = RNG.normal(size=(64, 96)).astype(np.float32)
    weights = [ts.tensor(drawn(np.int8, *s)) for s in ((96, 80), (80, 96))]
    p = lower(ts.trace(f, ts.tensor(x), *weights))
    kernels = [s for s in p.steps if isinstance(s, Kernel)]
    assert not any(isinstance(s, Group) for s in p.steps)
    assert [is_of_bytes(k) for k in kernels if k.contracts] == [True, True]


def test_only_the_processor_of_this_machine_multiplies_bytes(monkeypatch: Any) -> None:
    """References and GPUs have no such instruction: there the product is one of floats."""
    monkeypatch.setattr(integers, "multiplies_bytes", lambda: True)
    x = ts.tensor(np.ones((2, 40), np.int8))
    assert integers._by_bytes(x, x)
    assert not integers._by_bytes(x, x.astype("f32"))
    with override(target="numpy"):
        assert not integers._by_bytes(x, x)
    with at("fake"):
        assert not integers._by_bytes(x.to("cuda"), x.to("cuda"))


@pytest.mark.parametrize("sizes", [("H", "W"), (8, "W"), ("H", 8), (8, 8)], ids=str)
def test_convolutions_of_bytes_take_open_sizes(sizes: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(integers, "multiplies_bytes", lambda: True)
    onnx = pytest.importorskip("onnx")
    helper, TensorProto = onnx.helper, onnx.TensorProto
    rng = np.random.default_rng(0)
    w = rng.integers(-9, 9, (5, 96, 3, 3)).astype(np.int8)
    node = helper.make_node("ConvInteger", ["x", "w"], ["y"], pads=[1, 1, 1, 1])
    graph = helper.make_graph(
        [node], "g", [helper.make_tensor_value_info("x", TensorProto.UINT8, ["N", 96, *sizes])],
        [helper.make_tensor_value_info("y", TensorProto.INT32, None)], [onnx.numpy_helper.from_array(w, "w")],
    )  # fmt: skip
    m = ts.onnx.load(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)]).SerializeToString()
    )

    @ts.jit
    def f(x: ts.Tensor["N", 96, sizes[0], sizes[1], ts.u8]) -> Any:
        return m(x)

    x = rng.integers(0, 255, (2, 96, 8, 8)).astype(np.uint8)
    want = op.conv(x.astype(np.float64), w.astype(np.float64), padding=1)
    with override(target="cpu"):
        np.testing.assert_array_equal(f(x), want)
        np.testing.assert_array_equal(m(x), want)
