"""Node types that onnxruntime's own tools write, and maps of classifiers, beside onnxruntime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tessera as ts

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")
pytestmark = pytest.mark.oracle

RNG = np.random.default_rng(5)
MS = "com.microsoft"


def f(*shape: int) -> Any:
    return RNG.standard_normal(shape).astype(np.float32)


def whole(low: int, high: int, *shape: int, dtype: Any = np.int32) -> Any:
    return RNG.integers(low, high, shape).astype(dtype)


def scale(x: float = 0.02) -> Any:
    return np.array(x, np.float32)


def model(
    op: str, inputs: list[Any], outputs: int, domain: str, attributes: dict[str, Any]
) -> bytes:
    """A model of one node; an input that is None is left out."""
    names = [f"x{i}" if x is not None else "" for i, x in enumerate(inputs)]
    outs = [f"y{i}" for i in range(outputs)]
    node = onnx.helper.make_node(op, names, outs, domain=domain, **attributes)
    given = [
        onnx.helper.make_tensor_value_info(
            n, onnx.helper.np_dtype_to_tensor_dtype(x.dtype), x.shape
        )
        for n, x in zip(names, inputs, strict=True)
        if n
    ]
    made = [onnx.helper.make_empty_tensor_value_info(o) for o in outs]
    graph = onnx.helper.make_graph([node], "g", given, made)
    sets = [onnx.helper.make_opsetid("", 17), onnx.helper.make_opsetid("ai.onnx.ml", 3)]
    sets.append(onnx.helper.make_opsetid(MS, 1))
    return onnx.helper.make_model(graph, opset_imports=sets, ir_version=9).SerializeToString()


def both(data: bytes, inputs: dict[str, Any]) -> tuple[list[Any], list[Any]]:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    return list(ts.onnx.load(data).run(inputs).values()), session.run(None, inputs)


X, W, B = f(2, 5, 12), f(12, 36), f(36)
PAST = f(2, 2, 3, 4, 4)
CODES = whole(0, 255, 6, 2, 16, dtype=np.uint8)
CASES: dict[str, tuple[str, list[Any], int, dict[str, Any]]] = {
    "attention": ("Attention", [X, W, B], 1, {"num_heads": 3}),
    "attention_keys": ("Attention", [X, W, B, np.array([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]], np.int32)], 1, {"num_heads": 3}),
    "attention_lengths": ("Attention", [X, W, B, np.array([3, 5], np.int32)], 1, {"num_heads": 3}),
    "attention_causal": ("Attention", [X, W, B], 1, {"num_heads": 3, "unidirectional": 1}),
    "attention_past": ("Attention", [X, W, B, None, PAST], 2, {"num_heads": 3, "unidirectional": 1}),
    "attention_bias": ("Attention", [X, W, B, None, None, f(2, 3, 5, 5)], 1, {"num_heads": 3}),
    "qattention": ("QAttention", [whole(0, 255, 2, 5, 12, dtype=np.uint8), whole(-127, 127, 12, 36, dtype=np.int8), B, scale(), scale(0.01),
                                  None, np.array(120, np.uint8), np.array(0, np.int8)], 1, {"num_heads": 3}),
    "multi_head": ("MultiHeadAttention", [X, f(2, 7, 12), f(2, 7, 12)], 1, {"num_heads": 3}),
    "multi_head_bias": ("MultiHeadAttention", [X, f(2, 7, 12), f(2, 7, 12), f(36)], 1, {"num_heads": 3}),
    "group_query": ("GroupQueryAttention", [f(2, 5, 32), f(2, 5, 16), f(2, 5, 16), np.zeros((2, 2, 0, 8), np.float32),
                                            np.zeros((2, 2, 0, 8), np.float32), np.array([4, 4], np.int32), np.array(5, np.int32)], 3,
                    {"num_heads": 4, "kv_num_heads": 2}),
    "rotary": ("RotaryEmbedding", [f(2, 3, 5, 8), np.tile(np.arange(5), (2, 1)), f(9, 4), f(9, 4)], 1, {}),
    "rotary_pairs": ("RotaryEmbedding", [f(2, 3, 5, 8), np.array([2]), f(9, 4), f(9, 4)], 1, {"interleaved": 1}),
    "embed": ("EmbedLayerNormalization", [whole(0, 9, 2, 5), whole(0, 2, 2, 5), f(9, 6), f(8, 6), f(2, 6), f(6), f(6), whole(0, 2, 2, 5)], 2,
              {"epsilon": 1e-12}),
    "fused_gemm": ("FusedGemm", [f(3, 4), f(5, 4), f(5)], 1, {"transB": 1, "alpha": 0.5, "activation": "Relu"}),
    "matmul_4_bits": ("MatMulNBits", [f(3, 64), CODES, f(12)], 1, {"K": 64, "N": 6, "bits": 4, "block_size": 32}),
    "matmul_zeros": ("MatMulNBits", [f(3, 64), CODES, f(12), whole(0, 255, 6, dtype=np.uint8)], 1, {"K": 64, "N": 6, "bits": 4, "block_size": 32}),
    "qlinear_average": ("QLinearAveragePool", [whole(0, 255, 1, 3, 6, 6, dtype=np.uint8), scale(), np.array(128, np.uint8), scale(0.03),
                                               np.array(100, np.uint8)], 1, {"kernel_shape": [2, 2], "strides": [2, 2]}),
    "qlinear_softmax": ("QLinearSoftmax", [whole(0, 255, 3, 6, dtype=np.uint8), scale(), np.array(128, np.uint8), scale(1 / 256),
                                           np.array(0, np.uint8)], 1, {"opset": 13, "axis": -1}),
    "inverse": ("Inverse", [f(2, 3, 3) + 3 * np.eye(3, dtype=np.float32)], 1, {}),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_fused_nodes(name: str) -> None:
    op, inputs, outputs, attributes = CASES[name]
    data = model(op, inputs, outputs, MS, attributes)
    got, want = both(data, {f"x{i}": x for i, x in enumerate(inputs) if x is not None})
    for a, b in zip(got, want, strict=True):
        a, b = np.asarray(a), np.asarray(b)
        assert (a.dtype, a.shape) == (b.dtype, b.shape)
        if b.dtype.kind in "iu":
            assert int(np.abs(a.astype(np.int64) - b).max(initial=0)) <= 1  # ties of a rounding
        else:
            np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-4)


def test_a_signal_without_an_axis_of_parts_is_real() -> None:
    frame = {"x0": f(2, 64), "x1": np.array(16), "x2": np.hanning(32).astype(np.float32)}
    data = model("STFT", list(frame.values()), 1, "", {})
    (got,), (want,) = both(data, frame)
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)


def test_what_a_classifier_says_is_a_dictionary_for_each_row() -> None:
    x = f(3, 2)
    for labels in ({"classlabels_strings": ["cat", "dog"]}, {"classlabels_int64s": [4, 9]}):
        data = model("ZipMap", [x], 1, "ai.onnx.ml", labels)
        (got,), (want,) = both(data, {"x0": x})
        assert got == want


def test_coefficients_past_the_columns_are_not_read() -> None:
    x, attributes = (
        f(3, 2),
        {
            "coefficients": f(12).tolist(),
            "intercepts": f(3).tolist(),
            "classlabels_ints": [0, 1, 2],
        },
    )
    data = model("LinearClassifier", [x], 2, "ai.onnx.ml", attributes)
    (label, scores), (want, wanted) = both(data, {"x0": x})
    np.testing.assert_array_equal(label, want)
    np.testing.assert_allclose(scores, wanted, rtol=1e-5)
    few = model("LinearClassifier", [f(3, 9)], 2, "ai.onnx.ml", attributes)
    with pytest.raises(ts.onnx.OnnxError, match="12 coefficients for 3 classes and 9 columns"):
        ts.onnx.load(few).run({"x0": f(3, 9)})


def machine(classes: int, kernel: str, **more: Any) -> dict[str, Any]:
    """The attributes of a classifier of rows of 4 numbers."""
    sizes = [3, 2, 4, 3][:classes]
    count, pairs = sum(sizes), classes * (classes - 1) // 2
    return {
        "classlabels_ints": list(range(5, 5 + classes)), "coefficients": f((classes - 1) * count).tolist(), "kernel_type": kernel,
        "kernel_params": [0.3, 0.2, 3.0], "rho": f(pairs).tolist(), "support_vectors": f(count * 4).tolist(), "vectors_per_class": sizes, **more,
    }  # fmt: skip


@pytest.mark.parametrize("kernel", ["LINEAR", "POLY", "RBF", "SIGMOID"])
@pytest.mark.parametrize("classes", [2, 4])
def test_support_vector_machines(kernel: str, classes: int) -> None:
    x = f(6, 4)
    given = machine(classes, kernel)
    pairs = classes * (classes - 1) // 2
    coupled = {**given, "prob_a": (-np.abs(f(pairs))).tolist(), "prob_b": f(pairs).tolist()}
    for attributes in (given, coupled):
        (label, scores), (want, wanted) = both(
            model("SVMClassifier", [x], 2, "ai.onnx.ml", attributes), {"x0": x}
        )
        np.testing.assert_array_equal(label, want)
        np.testing.assert_allclose(scores, wanted, rtol=2e-4, atol=1e-5)
    count = sum(given["vectors_per_class"])
    fits = {k: given[k] for k in ("kernel_type", "kernel_params", "support_vectors")}
    fits |= {"coefficients": f(count).tolist(), "n_supports": count, "rho": [0.5]}
    (got,), (want,) = both(model("SVMRegressor", [x], 1, "ai.onnx.ml", fits), {"x0": x})
    np.testing.assert_allclose(got, want, rtol=2e-4, atol=1e-5)
