"""Models of one node: types that onnxruntime's own tools write, and classifiers, with what onnxruntime
answers.

python -m tests.support.onnx_nodes     write the answers anew (needs onnxruntime)
"""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx

RNG = np.random.default_rng(5)
MS = "com.microsoft"


def f(*shape: int) -> Any:
    return RNG.standard_normal(shape).astype(np.float32)


def whole(low: int, high: int, *shape: int, dtype: Any = np.int32) -> Any:
    return RNG.integers(low, high, shape).astype(dtype)


def seven_bits(*shape: int) -> Any:
    """Weights in i8 of 7 bits: without VNNI, onnxruntime adds pairs of u8 times i8 in i16, and
    saturates where weights have 8 bits (255 * 64 * 2 still fits)."""
    return whole(-127, 127, *shape, dtype=np.int8) // np.int8(2)


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


X, W, B = f(2, 5, 12), f(12, 36), f(36)
PAST = f(2, 2, 3, 4, 4)
CODES = whole(0, 255, 6, 2, 16, dtype=np.uint8)
CASES: dict[str, tuple[str, list[Any], int, dict[str, Any]]] = {
    "attention": ("Attention", [X, W, B], 1, {"num_heads": 3}),
    "attention_keys": ("Attention", [X, W, B, np.array([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]], np.int32)], 1,
    {"num_heads": 3}),
    "attention_lengths": ("Attention", [X, W, B, np.array([3, 5], np.int32)], 1, {"num_heads": 3}),
    "attention_causal": ("Attention", [X, W, B], 1, {"num_heads": 3, "unidirectional": 1}),
    "attention_past": ("Attention", [X, W, B, None, PAST], 2, {"num_heads": 3, "unidirectional": 1}),
    "attention_bias": ("Attention", [X, W, B, None, None, f(2, 3, 5, 5)], 1, {"num_heads": 3}),
    "qattention": ("QAttention",
    [whole(0, 255, 2, 5, 12, dtype=np.uint8), seven_bits(12, 36), B, scale(),
    scale(0.01),
                                  None, np.array(120, np.uint8), np.array(0, np.int8)], 1, {"num_heads": 3}),
    "multi_head": ("MultiHeadAttention", [X, f(2, 7, 12), f(2, 7, 12)], 1, {"num_heads": 3}),
    "multi_head_bias": ("MultiHeadAttention", [X, f(2, 7, 12), f(2, 7, 12), f(36)], 1, {"num_heads": 3}),
    "group_query": ("GroupQueryAttention",
    [f(2, 5, 32), f(2, 5, 16), f(2, 5, 16), np.zeros((2, 2, 0, 8), np.float32),
                                            np.zeros((2, 2, 0, 8), np.float32), np.array([4, 4], np.int32),
                                            np.array(5, np.int32)], 3,
                    {"num_heads": 4, "kv_num_heads": 2}),
    "rotary": ("RotaryEmbedding", [f(2, 3, 5, 8), np.tile(np.arange(5), (2, 1)), f(9, 4), f(9, 4)], 1, {}),
    "rotary_pairs": ("RotaryEmbedding", [f(2, 3, 5, 8), np.array([2]), f(9, 4), f(9, 4)], 1,
    {"interleaved": 1}),
    "embed": ("EmbedLayerNormalization",
    [whole(0, 9, 2, 5), whole(0, 2, 2, 5), f(9, 6), f(8, 6), f(2, 6), f(6), f(6), whole(0, 2, 2, 5)], 2,
              {"epsilon": 1e-12}),
    "fused_gemm": ("FusedGemm", [f(3, 4), f(5, 4), f(5)], 1,
    {"transB": 1, "alpha": 0.5, "activation": "Relu"}),
    "matmul_4_bits": ("MatMulNBits", [f(3, 64), CODES, f(12)], 1,
    {"K": 64, "N": 6, "bits": 4, "block_size": 32}),
    "matmul_zeros": ("MatMulNBits", [f(3, 64), CODES, f(12), whole(0, 255, 6, dtype=np.uint8)], 1,
    {"K": 64, "N": 6, "bits": 4, "block_size": 32}),
    "qlinear_average": ("QLinearAveragePool",
    [whole(0, 255, 1, 3, 6, 6, dtype=np.uint8), scale(), np.array(128, np.uint8), scale(0.03),
                                               np.array(100, np.uint8)], 1,
                                               {"kernel_shape": [2, 2], "strides": [2, 2]}),
    "qlinear_softmax": ("QLinearSoftmax",
    [whole(0, 255, 3, 6, dtype=np.uint8), scale(), np.array(128, np.uint8), scale(1 / 256),
                                           np.array(0, np.uint8)], 1, {"opset": 13, "axis": -1}),
    "inverse": ("Inverse", [f(2, 3, 3) + 3 * np.eye(3, dtype=np.float32)], 1, {}),
}  # fmt: skip


def byte(*shape: int) -> Any:
    return whole(0, 255, *shape, dtype=np.uint8)


def zero(x: int = 120) -> Any:
    return np.array(x, np.uint8)


CASES |= {
    "gelu": ("Gelu", [f(3, 4)], 1, {}),
    "fast_gelu": ("FastGelu", [f(3, 4)], 1, {}),
    "fast_gelu_bias": ("FastGelu", [f(3, 4), f(4)], 1, {}),
    "bias_gelu": ("BiasGelu", [f(3, 4), f(4)], 1, {}),
    "quick_gelu": ("QuickGelu", [f(3, 4)], 1, {"alpha": 1.5}),
    "fused_matmul": ("FusedMatMul", [f(2, 5, 3), f(2, 4, 5)], 1, {"transA": 1, "transB": 1, "alpha": 0.5}),
    "fused_matmul_plain": ("FusedMatMul", [f(3, 5), f(5, 4)], 1, {}),
    **{
        f"fused_conv_{a}": ("FusedConv", [f(1, 4, 6, 6), f(6, 2, 3, 3), f(6)], 1,
                            {"activation": a, "group": 2, "pads": [1, 1, 1, 1], "strides": [2, 1],
                            **({"activation_params": more} if more else {})})
        for a, more in (("Relu", []), ("Tanh", []), ("Sigmoid", []), ("LeakyRelu", [0.3]),
        ("Clip", [-0.5, 0.75]), ("HardSigmoid", [0.3, 0.4]))
    },
    "skip_norm": ("SkipLayerNormalization", [f(2, 3, 4), f(2, 3, 4), f(4), f(4), f(4)], 1, {"epsilon": 1e-3}),
    "skip_norm_plain": ("SkipLayerNormalization", [f(2, 3, 4), f(2, 3, 4), f(4)], 1, {}),
    "skip_simplified": ("SkipSimplifiedLayerNormalization", [f(2, 3, 4), f(2, 3, 4), f(4), f(4)], 1,
    {"epsilon": 1e-3}),
    "dynamic_quantize": ("DynamicQuantizeMatMul", [f(3, 5), byte(5, 4), scale(), zero(), f(4)], 1, {}),
    "integer_to_float": ("MatMulIntegerToFloat",
    [byte(3, 5), byte(5, 4), scale(), scale(0.03), zero(), zero(90), f(4)], 1, {}),
    "qlinear_add": ("QLinearAdd",
    [byte(3, 5), scale(), zero(), byte(3, 5), scale(0.03), zero(99), scale(0.05), zero(110)], 1, {}),
    "qlinear_mul": ("QLinearMul",
    [byte(3, 5), scale(), zero(), byte(3, 5), scale(0.03), zero(99), scale(0.05), zero(110)], 1, {}),
    "qlinear_sigmoid": ("QLinearSigmoid", [byte(3, 5), scale(), zero(), scale(1 / 256), zero(0)], 1, {}),
    "qlinear_leaky": ("QLinearLeakyRelu", [byte(3, 5), scale(), zero(), scale(0.03), zero(90)], 1,
    {"alpha": 0.2}),
    "qlinear_global": ("QLinearGlobalAveragePool",
    [byte(2, 3, 4, 5), scale(), zero(), scale(0.01), zero(90)], 1, {}),
    "qlinear_global_last": ("QLinearGlobalAveragePool",
    [byte(2, 4, 5, 3), scale(), zero(), scale(0.01), zero(90)], 1, {"channels_last": 1}),
    "qlinear_concat": ("QLinearConcat",
    [scale(0.05), zero(100), byte(3, 2), scale(), zero(), byte(3, 4), scale(0.03), zero(99)], 1, {"axis": 1}),
    "qgemm": ("QGemm", [byte(5, 3), scale(), zero(), byte(4, 5), scale(0.03), zero(99), whole(-99, 99, 4)],
    1, {"transA": 1, "transB": 1, "alpha": 0.5}),
    "qgemm_rounded": ("QGemm",
    [byte(3, 5), scale(), zero(), byte(5, 4), scale(0.03), zero(99), None, scale(0.5), zero(70)], 1, {}),
}  # fmt: skip


def forest(trees: int, prefix: str, targets: int, mode: str, low: float) -> dict[str, Any]:
    """Trees of three leaves over 4 columns; a leaf of a classifier speaks for one class, another for all
    targets.
    """
    rows: dict[str, list[Any]] = {}

    def put(**values: Any) -> None:
        for k, v in values.items():
            rows.setdefault(k, []).append(v)

    for t in range(trees):
        inner = {0: (1, 2), 2: (3, 4)}
        for node in range(5):
            yes, no = inner.get(node, (0, 0))
            put(
                nodes_treeids=t, nodes_nodeids=node, nodes_featureids=(t + node) % 4,
                nodes_modes=mode if node in inner else "LEAF",
                nodes_values=[0.5, -0.25, 0.0][(t + node) % 3], nodes_truenodeids=yes, nodes_falsenodeids=no,
                nodes_missing_value_tracks_true=int(t % 2),
            )  # fmt: skip
            if node not in inner:
                for target in range(targets) if prefix == "target" else [(t + node) % targets]:
                    weight = float(RNG.uniform(low, 1))
                    put(
                        **{
                            f"{prefix}_treeids": t,
                            f"{prefix}_nodeids": node,
                            f"{prefix}_ids": target,
                            f"{prefix}_weights": weight,
                        }
                    )
    return rows


def forests() -> dict[str, tuple[str, list[Any], int, dict[str, Any]]]:
    """Regressions and classifiers by trees."""
    out: dict[str, tuple[str, list[Any], int, dict[str, Any]]] = {}
    x = f(7, 4)
    x[0, :2] = np.nan
    x[1] = [0.5, -0.25, 0.0, 0.5]  # equal to where trees split
    for mode in ("LEQ", "LT", "GTE", "GT", "EQ", "NEQ"):
        more = {"n_targets": 2, "base_values": [0.5, -1.5]}
        out[f"trees {mode}"] = (
            "TreeEnsembleRegressor",
            [x],
            1,
            forest(3, "target", 2, f"BRANCH_{mode}", -1) | more,
        )
    for how in ("SUM", "AVERAGE", "MIN", "MAX"):
        more = {"n_targets": 1, "aggregate_function": how}
        out[f"trees {how}"] = (
            "TreeEnsembleRegressor",
            [x],
            1,
            forest(3, "target", 1, "BRANCH_LEQ", -1) | more,
        )
    for how in ("NONE", "LOGISTIC", "SOFTMAX"):
        labels = {
            "classlabels_int64s": [7, 8, 9],
            "post_transform": how,
            "base_values": [0.1, 0.2, 0.3],
        }
        out[f"classifier {how}"] = (
            "TreeEnsembleClassifier",
            [x],
            2,
            forest(3, "class", 3, "BRANCH_LEQ", -1) | labels,
        )
    # Of two classes with one score onnxruntime leaves a softmax out, and decides by the score
    # before LOGISTIC.
    for how, low in (("NONE", -1), ("NONE", 0), ("LOGISTIC", -1)):
        labels = {"classlabels_strings": ["no", "yes"], "post_transform": how}
        out[f"classifier {how} binary {low}"] = (
            "TreeEnsembleClassifier",
            [x],
            2,
            forest(3, "class", 1, "BRANCH_LEQ", low) | labels,
        )
    return out


def machine(classes: int, kernel: str, **more: Any) -> dict[str, Any]:
    """The attributes of a classifier of rows of 4 numbers."""
    sizes = [3, 2, 4, 3][:classes]
    count, pairs = sum(sizes), classes * (classes - 1) // 2
    return {
        "classlabels_ints": list(range(5, 5 + classes)), "coefficients": f((classes - 1) * count).tolist(),
        "kernel_type": kernel,
        "kernel_params": [0.3, 0.2, 3.0], "rho": f(pairs).tolist(),
        "support_vectors": f(count * 4).tolist(), "vectors_per_class": sizes, **more,
    }  # fmt: skip


def classifiers() -> dict[str, tuple[str, list[Any], int, dict[str, Any]]]:
    """Machines of support vectors and of lines, and what names their classes."""
    out: dict[str, tuple[str, list[Any], int, dict[str, Any]]] = {}
    for kernel in ("LINEAR", "POLY", "RBF", "SIGMOID"):
        for classes in (2, 4):
            pairs = classes * (classes - 1) // 2
            given = machine(classes, kernel)
            coupled = {"prob_a": (-np.abs(f(pairs))).tolist(), "prob_b": f(pairs).tolist()}
            name = f"svm {kernel} {classes}"
            out[name] = ("SVMClassifier", [f(6, 4)], 2, given)
            out[f"{name} one row"] = ("SVMClassifier", [f(4)], 2, given)
            out[f"{name} coupled"] = ("SVMClassifier", [f(6, 4)], 2, {**given, **coupled})
            # One score of two classes is left as [1 - s, s] by onnxruntime when a softmax is asked
            # for; ours is one.
            for how in ("LOGISTIC", *(("SOFTMAX", "SOFTMAX_ZERO") if classes > 2 else ())):
                out[f"{name} {how}"] = (
                    "SVMClassifier",
                    [f(6, 4)],
                    2,
                    {**given, "post_transform": how},
                )
            for how in ("PROBIT", "SOFTMAX"):
                more = {**given, **coupled, "post_transform": how}
                out[f"{name} coupled {how}"] = ("SVMClassifier", [f(6, 4)], 2, more)
        count = 5
        fits = {
            "kernel_type": kernel,
            "kernel_params": [0.3, 0.2, 3.0],
            "support_vectors": f(count * 4).tolist(),
        }
        fits |= {"coefficients": f(count).tolist(), "n_supports": count, "rho": [0.5]}
        out[f"svm regressor {kernel}"] = ("SVMRegressor", [f(6, 4)], 1, fits)
        out[f"svm one class {kernel}"] = ("SVMRegressor", [f(6, 4)], 1, {**fits, "one_class": 1})
    lines = {
        "coefficients": f(12).tolist(),
        "intercepts": f(3).tolist(),
        "classlabels_ints": [0, 1, 2],
    }
    out["lines"] = ("LinearClassifier", [f(5, 4)], 2, lines)
    out["lines past the columns"] = ("LinearClassifier", [f(3, 2)], 2, lines)
    named = {**lines, "classlabels_strings": ["a", "b", "c"]}
    del named["classlabels_ints"]
    for how in ("LOGISTIC", "SOFTMAX", "SOFTMAX_ZERO"):
        out[f"lines {how}"] = ("LinearClassifier", [f(5, 4)], 2, {**named, "post_transform": how})
    out["regression"] = (
        "LinearRegressor",
        [f(5, 4)],
        1,
        {"coefficients": f(8).tolist(), "intercepts": f(2).tolist(), "targets": 2},
    )
    for norm in ("MAX", "L1", "L2"):
        out[f"normalizer {norm}"] = ("Normalizer", [f(5, 4)], 1, {"norm": norm})
    out["scaler"] = ("Scaler", [f(5, 4)], 1, {"offset": f(4).tolist(), "scale": f(4).tolist()})
    out["scaler of one number"] = ("Scaler", [f(5, 4)], 1, {"offset": [0.5], "scale": [2.0]})
    out["binarizer"] = ("Binarizer", [f(5, 4)], 1, {"threshold": 0.25})
    out["imputer"] = ("Imputer", [np.array([[1, np.nan], [np.nan, 2]], np.float32)], 1,
                      {"imputed_value_floats": [7.0, 8.0], "replaced_value_float": float("nan")})  # fmt: skip
    out["one hot"] = (
        "OneHotEncoder",
        [whole(0, 5, 6, dtype=np.int64)],
        1,
        {"cats_int64s": [0, 2, 4], "zeros": 1},
    )
    out["feature"] = ("ArrayFeatureExtractor", [f(3, 5), np.array([0, 4, 2])], 1, {})
    return out


ML = classifiers() | forests()
RECORD = Path(__file__).parent / "data" / "onnx_nodes.json"


def built(name: str) -> tuple[bytes, dict[str, Any]]:
    """The model of a case and its inputs."""
    op, inputs, outputs, attributes = CASES.get(name) or ML[name]
    domain = MS if name in CASES else "ai.onnx.ml"
    given = {f"x{i}": x for i, x in enumerate(inputs) if x is not None}
    return model(op, inputs, outputs, domain, attributes), given


def answers(name: str) -> list[Any]:
    """What onnxruntime says."""
    import onnxruntime

    data, inputs = built(name)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    return [np.asarray(x) for x in session.run(None, inputs)]


def recorded() -> dict[str, list[Any]]:
    """What it said when the record was written."""

    def read(row: Any) -> Any:
        if isinstance(row, list):
            return np.array(row)
        return np.frombuffer(base64.b64decode(row["data"]), row["dtype"]).reshape(row["shape"])

    return {k: [read(r) for r in rows] for k, rows in json.loads(RECORD.read_text()).items()}


def differences(name: str, got: list[Any], want: list[Any]) -> None:
    """Raise where answers differ by more than sums of f32 in another order.

    The inverse of the error function of onnxruntime is right to 2e-3.
    """
    near = 4e-3 if "PROBIT" in name else 2e-4
    for a, b in zip(got, want, strict=True):
        a, b = np.asarray(a), np.asarray(b)
        assert a.shape == b.shape
        if b.dtype.kind in "OU":
            assert a.astype(str).tolist() == b.astype(str).tolist()
            continue
        assert a.dtype == b.dtype
        if b.dtype.kind in "iu" and b.dtype.itemsize == 1:
            assert int(np.abs(a.astype(np.int64) - b).max(initial=0)) <= 1  # ties of a rounding
        elif b.dtype.kind in "iu":
            np.testing.assert_array_equal(a, b)
        else:
            np.testing.assert_allclose(a, b, rtol=near, atol=near)


if __name__ == "__main__":

    def row(x: Any) -> Any:
        if x.dtype.kind in "OU":
            return x.tolist()
        data = base64.b64encode(np.ascontiguousarray(x).tobytes()).decode()
        return {"dtype": x.dtype.str, "shape": list(x.shape), "data": data}

    whole_record = {name: [row(x) for x in answers(name)] for name in (*CASES, *ML)}
    RECORD.parent.mkdir(exist_ok=True)
    RECORD.write_text(json.dumps(whole_record, indent=0) + "\n")
