"""Nodes of ONNX over all of their attributes, beside the reference implementation of ONNX.

    python -m tests.interop.test_onnx_reference     where the reference errs, ask onnxruntime anew

The reference errs on Softmax before opset 13, on pools of lines, on norms of absolute values, and on the
clip of RNNs; it refuses negative pads.  (Onnxruntime errs on Resize.)  Where it and
onnxruntime differ, the answers of the latter are in a file.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import pytest

import tessera as ts
from tessera.core.errors import TesseraError

onnx = pytest.importorskip("onnx")
reference = pytest.importorskip("onnx.reference")
helper = onnx.helper
RUNS_ON = "numpy"
MOST = 24  # combinations of the attributes of a row that are tried
ML = "ai.onnx.ml"
FILE = Path(__file__).parents[1] / "support" / "data" / "onnx_reference.json"
ANSWERS: dict[str, Any] = json.loads(FILE.read_text()) if FILE.exists() else {}


class Row(NamedTuple):
    """Kinds of nodes that take the same inputs and attributes; every combination of the values is tried."""

    kinds: str
    inputs: list[list[Any]]
    attributes: Mapping[str, list[Any]] = MappingProxyType({})
    opsets: tuple[int, ...] = (21,)
    outputs: int = 1
    domain: str = ""


def f(*shape: int, seed: int = 0, low: float | None = None) -> Any:
    r = np.random.default_rng((seed, *shape))
    x = r.normal(size=shape) if low is None else r.uniform(low, low + 2, shape)
    return x.astype(np.float32)


def i(*values: Any, dtype: Any = np.int64) -> Any:
    return np.array(values, dtype)


def whole(low: int, high: int, *shape: int, dtype: Any = np.int64) -> Any:
    return np.random.default_rng((low + 99, high, *shape)).integers(low, high, shape).astype(dtype)


NO = None  # an input or an attribute that is left out
X, IMAGE, LINE = f(2, 3, 4), f(2, 4, 7, 6), f(2, 4, 9)
MASK = whole(0, 2, 2, 3, 4).astype(bool)
EDGES = np.array([0.0, -0.0, 1.5, 2.5, -1.5, 0.49, -3.2, 88.0, -88.0, 3.0, -3.0, 6.0], np.float32)
SPECIAL = np.array([np.inf, -np.inf, np.nan, 1.0], np.float32)
REDUCTIONS = ("ReduceSum ReduceMean ReduceMax ReduceMin ReduceProd ReduceL1 ReduceL2 ReduceSumSquare "
              "ReduceLogSumExp")  # fmt: skip
AXES: list[Any] = [NO, [0], [-1], [1, 2], [-3, 1]]

ELEMENTWISE = [
    Row("Relu Sigmoid Tanh Softplus Softsign Erf Abs Neg Exp Floor Ceil Round Sign Sin Cos Tan Sinh Cosh "
        "Asinh Atan Mish HardSwish Identity Softplus", [[EDGES / 8], [X]], opsets=(22,)),
    Row("Acos Asin Atanh", [[EDGES / 100]]),
    Row("Sqrt Log Reciprocal Acosh", [[np.abs(EDGES) + 1]]),
    Row("LeakyRelu Elu ThresholdedRelu Celu", [[EDGES]], {"alpha": [NO, 0.3, 2.0]}),
    Row("Selu", [[EDGES / 8]], {"alpha": [NO, 0.5], "gamma": [NO, 2.0]}),
    Row("HardSigmoid", [[EDGES]], {"alpha": [NO, 0.5], "beta": [NO, 0.25]}),
    Row("Gelu", [[EDGES]], {"approximate": [NO, "none", "tanh"]}),
    Row("Shrink", [[EDGES], [i(-3, -1, 0, 1, 2, 5)]], {"lambd": [NO, 1.0], "bias": [NO, 0.5]}),
    Row("PRelu", [[X, f(4)], [X, f(3, 1)]]),
    Row("Clip", [[X], [X, np.float32(-0.5)], [X, NO, np.float32(0.5)], [X, np.float32(0.1),
        np.float32(0.4)],
                 [i(1, 5, 9), i(2)[0], i(6)[0]]]),
    Row("Clip", [[X]], {"min": [NO, -0.5], "max": [NO, 0.5]}, (6,)),
    Row("Add Sub Mul Div Max Min Pow Equal Less Greater LessOrEqual GreaterOrEqual",
        [[X, f(3, 1, seed=1, low=0.5)], [np.abs(X), f(4, low=0.5)]]),
    Row("Add Sub Mul Div Max Min Equal Less Greater",
        [[i(7, -7, 8, 0), i(2, 2, -3, 5)], [i(7, 255, 8, 0, dtype=np.uint8), i(2, 3, 9, 7, dtype=np.uint8)]]),
    Row("Max Min Sum Mean", [[X], [X, f(4), f(3, 1)]]),
    Row("Mod", [[i(7, -7, 8, -8), i(3, 3, -5, -5)]], {"fmod": [NO, 0, 1]}),
    Row("Mod", [[f(4) * 5, f(4, seed=1)]], {"fmod": [1]}),
    Row("BitShift", [[i(1, 7, 200, dtype=np.uint8), i(1, 3, 7, dtype=np.uint8)]],
        {"direction": ["LEFT", "RIGHT"]}),
    Row("BitwiseAnd BitwiseOr BitwiseXor", [[i(12, 10, -1), i(10, 3, 5)]]),
    Row("BitwiseNot", [[i(12, -10, 0)]]), Row("Not", [[MASK]]), Row("And Or Xor", [[MASK, MASK[:,
        ::-1].copy()]]),
    Row("IsNaN", [[SPECIAL]]), Row("IsInf", [[SPECIAL]], {"detect_negative": [NO, 0, 1],
        "detect_positive": [NO, 0, 1]}),
    Row("Where", [[MASK, X, f(4)], [MASK[0], np.float32(2), X]]),
    Row("Softmax LogSoftmax Hardmax", [[X]], {"axis": [NO, 0, 1, -1]}, (11, 13)),
    Row("CumSum", [[X, i(1)[0]], [X, i(-1)[0]], [whole(0, 9, 5), i(0)[0]]], {"exclusive": [NO, 1],
        "reverse": [NO, 1]}),
]  # fmt: skip

SHAPES = [
    Row("Reshape", [[X, i(4, -1)], [X, i(0, -1)], [X, i(-1, 0, 2)]], {"allowzero": [NO, 0]}),
    Row("Reshape", [[f(0, 3), i(3, 0)]], {"allowzero": [1]}),
    Row("Transpose", [[X]], {"perm": [NO, [1, 0, 2], [2, 0, 1]]}),
    Row("Flatten", [[X]], {"axis": [NO, 0, 2, 3, -1, -2]}),
    Row("Squeeze", [[f(1, 3, 1)], [f(1, 3, 1), i(0)], [f(1, 3, 1), i(-1, 0)]]),
    Row("Squeeze", [[f(1, 3, 1)]], {"axes": [NO, [0], [0, 2]]}, (11,)),
    Row("Unsqueeze", [[X, i(0, -1)], [X, i(1)], [X, i(4, 1)]]),
    Row("Unsqueeze", [[X]], {"axes": [[0], [1, 3], [-1]]}, (11,)),
    Row("Concat", [[X, X + 1], [X]], {"axis": [0, 1, -1]}),
    Row("Split", [[f(6, 6), i(1, 2, 3)]], {"axis": [NO, 1, -2]}, outputs=3),
    Row("Split", [[f(7, 6)]], {"axis": [NO, 1], "num_outputs": [3]}, outputs=3),
    Row("Split", [[f(6, 6)]], {"axis": [NO, 1], "split": [NO, [1, 2, 3]]}, (11,), outputs=3),
    Row("Slice", [[X, i(0, 1), i(2, 3)], [X, i(-1), i(-9), i(-1), i(-1)], [X, i(1), i(100), i(1)],
                  [X, i(3, 2), i(0, -9), i(2, 1), i(-2, -1)], [X, i(0), i(-1), i(2), i(2)]]),
    Row("Slice", [[X]], {"axes": [NO, [1, 2]], "starts": [[0, 1], [-2, 0]], "ends": [[2, 3], [9, -1]]},
        (9,)),
    Row("Gather", [[X, whole(-2, 2, 2, 2)], [X, i(1)[0]]], {"axis": [NO, 1, -1]}),
    Row("GatherElements", [[X, whole(-2, 2, 2, 3, 4)]], {"axis": [NO, 1, -1]}),
    Row("GatherND", [[X, whole(0, 2, 2, 2)], [X, whole(0, 2, 2, 1)]], {"batch_dims": [NO, 1]}),
    Row("ScatterElements", [[X, whole(0, 2, 2, 3, 4), f(2, 3, 4, seed=1)], [X, whole(0, 1, 1, 2, 3),
        f(1, 2, 3)]],
        {"axis": [NO, 1, -1], "reduction": ["add", "mul", "min", "max"]}),
    Row("ScatterElements", [[X, np.argsort(f(2, 3, 4), -1), f(2, 3, 4, seed=1)]], {"axis": [2, -1],
        "reduction": [NO]}),
    Row("ScatterND", [[X, i([0], [1]), f(2, 3, 4, seed=2)], [X, i([0, 2], [1, 0]), f(2, 4)]],
        {"reduction": [NO, "add", "mul", "min", "max"]}),
    Row("Pad", [[X, i(1, 0, 2, 0, 2, 1)], [X, i(1, 0, 2, 0, 2, 1), np.float32(7)],
                [X, i(1, 2), NO, i(-1)], [X, i(1, 0, 1, 2), NO, i(2, 1)]],
        {"mode": [NO, "constant", "reflect", "edge", "wrap"]}),
    Row("Pad", [[X, i(-1, 0, 1, 0, -1, 0)]]), Row("Tile", [[X, i(1, 2, 3)]]),
    Row("Pad", [[X]], {"pads": [[1, 0, 2, 0, 2, 1]], "value": [NO, 3.0], "mode": [NO, "edge",
        "reflect"]}, (2,)),
    Row("Expand", [[f(3, 1), i(2, 1, 4)], [f(3, 1), i(4)]]), Row("Shape", [[X]], {"start": [NO, 1, -2],
        "end": [NO, 2, -1, 9]}),
    Row("Size", [[X]]), Row("NonZero", [[MASK], [i(0, 3, 0, 1)]]), Row("EyeLike", [[f(3, 4)]],
        {"k": [NO, 1, -2]}),
    Row("DepthToSpace", [[f(1, 8, 2, 3)]], {"blocksize": [2], "mode": [NO, "DCR", "CRD"]}),
    Row("SpaceToDepth", [[f(1, 2, 4, 6)]], {"blocksize": [2]}),
    Row("ConstantOfShape", [[i(2, 3)]], {"value": [NO, helper.make_tensor("v", 7, [1], [5])]}),
    Row("Range", [[i(1)[0], i(9)[0], i(3)[0]], [i(9)[0], i(1)[0], i(-2)[0]]]),
    Row("Trilu", [[X], [X, i(1)[0]], [X, i(-1)[0]]], {"upper": [NO, 0, 1]}),
    Row("OneHot", [[i(1, -1, 5), i(4)[0], i(2, 9)], [whole(0, 3, 2, 2), i(3)[0], np.float32([0.5,
        1.5])]], {"axis": [NO, 0, 1]}),
    Row("Compress", [[X, np.array([True, False, True])], [X, np.array([False, True])]], {"axis": [NO,
        1, -1]}),
    Row("Unique", [[i(3, 1, 3, 2, 1)], [i(3, 1, 1, 3).reshape(2, 2)]], {"sorted": [NO, 1]}, outputs=4),
    Row("Unique", [[i([3, 1], [2, 1], [3, 1])]], {"axis": [0, 1, -1]}, outputs=4),
    Row("TopK", [[X, i(2)]], {"axis": [NO, 1, 0], "largest": [NO, 0, 1], "sorted": [NO, 1]}, outputs=2),
    Row("ReverseSequence", [[f(4, 3, 2), i(1, 4, 2)]], {"time_axis": [0], "batch_axis": [1]}),
    Row("ReverseSequence", [[f(4, 3, 2), i(1, 3, 2, 1)]], {"time_axis": [1], "batch_axis": [0]}),
    Row("ArgMax ArgMin", [[X], [i(2, 5, 5, 1, 1)]], {"axis": [NO, 0, -1], "keepdims": [NO, 0],
        "select_last_index": [NO, 1]}),
    Row("CenterCropPad", [[f(5, 4, 3), i(3, 6, 3)]]), Row("CenterCropPad", [[f(5, 4, 3), i(3, 6)]],
        {"axes": [[0, 1], [1, -1]]}),
]  # fmt: skip

FOLDS = [
    Row(REDUCTIONS, [[X], [X, i(1)], [X, i(0, -1)], [X, np.zeros(0, np.int64)]],
        {"keepdims": [NO, 0], "noop_with_empty_axes": [NO, 1]}, (18,)),
    Row(REDUCTIONS, [[X]], {"axes": AXES, "keepdims": [NO, 0]}, (11,)),
    Row("ReduceLogSum", [[np.abs(X)], [np.abs(X), i(1)]], {"keepdims": [NO, 0]}, (18,)),
    Row("ReduceSum", [[whole(0, 9, 2, 3), i(1)]], {"keepdims": [NO, 0]}),
    Row("MatMul", [[f(3), f(3)], [f(3), f(3, 2)], [f(2, 3), f(3)], [f(2, 1, 3, 4), f(5, 4, 2)]]),
    Row("Gemm", [[f(3, 3), f(3, 3, seed=1)], [f(3, 3), f(3, 3, seed=1), f(3)], [f(3, 3), f(3, 3,
        seed=1), f(3, 1)]],
        {"alpha": [NO, 0.5], "beta": [NO, 2.0], "transA": [NO, 1], "transB": [NO, 1]}),
    Row("Einsum", [[X, f(4, 5)]], {"equation": ["abc,cd->abd", "abc,cd->d", "...c,cd->...d",
        "abc,cd"]}),
    Row("GlobalAveragePool GlobalMaxPool", [[IMAGE], [LINE]]), Row("Det", [[f(2, 3, 3)]]),
    Row("LpNormalization", [[X]], {"axis": [NO, 0, 1], "p": [NO, 1]}),
    Row("LRN", [[f(1, 5, 2, 2)]], {"size": [3, 1, 5], "alpha": [NO, 0.1], "beta": [NO, 0.5],
        "bias": [NO, 2.0]}),
    Row("MeanVarianceNormalization", [[IMAGE]], {"axes": [NO, [1], [0, 2]]}),
    Row("LayerNormalization", [[X, f(4)], [X, f(4), f(4, seed=1)]], {"axis": [NO, -1], "epsilon": [NO,
        0.1]}, outputs=3),
    Row("LayerNormalization", [[X, f(3, 4)]], {"axis": [1], "epsilon": [NO, 0.1]}),
    Row("InstanceNormalization", [[IMAGE, f(4), f(4, seed=1)]], {"epsilon": [NO, 0.1]}),
    Row("GroupNormalization", [[IMAGE, f(4), f(4, seed=1)]], {"num_groups": [1, 2, 4], "epsilon": [NO,
        0.1]}),
    Row("BatchNormalization", [[IMAGE, f(4), f(4, seed=1), f(4, seed=2), f(4, low=0.5)]],
        {"epsilon": [NO, 0.1]}),
    Row("BatchNormalization", [[IMAGE, f(4), f(4, seed=1), f(4, seed=2), f(4, low=0.5)]],
        {"training_mode": [1], "momentum": [NO, 0.5]}, outputs=3),
    Row("RMSNormalization", [[X, f(4)]], {"axis": [NO, -1], "epsilon": [NO, 0.1]}, (23,)),
]  # fmt: skip

PADS: list[Any] = [NO, [1, 0, 2, 1], [0, 1, 1, 0]]
WINDOWS = [
    Row("Conv", [[IMAGE, f(6, 4, 3, 2)], [IMAGE, f(6, 4, 3, 2), f(6)]], {"strides": [NO, [2, 1]],
        "dilations": [NO, [1, 2]], "pads": PADS}),
    Row("Conv", [[IMAGE, f(6, 2, 3, 2)]], {"group": [2], "auto_pad": [NO, "SAME_UPPER", "SAME_LOWER",
        "VALID"], "strides": [NO, [2, 3]]}),
    Row("Conv", [[LINE, f(3, 4, 2)]], {"kernel_shape": [NO, [2]], "pads": [NO, [1, 2]]}),
    Row("ConvTranspose", [[IMAGE, f(4, 3, 3, 2)], [IMAGE, f(4, 3, 3, 2), f(3)]],
        {"strides": [NO, [2, 3]], "dilations": [NO, [2, 1]], "pads": [NO, [1, 0, 2, 1]]}),
    Row("ConvTranspose", [[f(1, 2, 3, 4), f(2, 3, 3, 2)]], {"strides": [[2, 3]], "output_padding": [[1,
        0], [1, 2], [0, 1]], "pads": [NO, [1, 0, 2, 1]]}),
    Row("ConvTranspose", [[f(1, 2, 3, 4), f(2, 3, 3, 2)]], {"strides": [[2, 2]], "output_shape": [[7,
        8], [5, 6]], "auto_pad": ["SAME_UPPER", "SAME_LOWER"]}),
    Row("ConvTranspose", [[f(1, 4, 3, 2), f(4, 3, 3, 2)]], {"group": [NO, 2], "strides": [[2, 2]],
        "auto_pad": [NO, "VALID"]}),
    Row("MaxPool", [[f(1, 2, 7, 6)]], {"kernel_shape": [[3, 2]], "strides": [NO, [2, 3]], "pads": PADS,
        "ceil_mode": [NO, 1], "dilations": [NO, [1, 2]]}),
    Row("MaxPool", [[f(1, 2, 7, 6)]], {"kernel_shape": [[2, 2]], "strides": [NO, [2, 2]],
        "auto_pad": ["SAME_UPPER", "SAME_LOWER", "VALID"]}),
    Row("AveragePool", [[IMAGE]], {"kernel_shape": [[3, 2]], "strides": [NO, [2, 3]], "pads": [NO, [1,
        0, 1, 1]], "count_include_pad": [NO, 1]}),
    Row("AveragePool", [[IMAGE]], {"kernel_shape": [[2, 2]], "strides": [NO, [2, 2]],
        "auto_pad": ["SAME_UPPER", "SAME_LOWER", "VALID"]}),
    Row("LpPool", [[IMAGE]], {"kernel_shape": [[3, 2]], "strides": [NO, [2, 3]], "p": [NO, 1, 3]}),
    Row("Resize", [[IMAGE, NO, np.float32([1, 1, 2, 0.6])], [IMAGE, NO, NO, i(2, 4, 5, 9)]],
        {"mode": ["nearest", "linear", "cubic"],
         "coordinate_transformation_mode": [NO, "asymmetric", "align_corners", "pytorch_half_pixel",
         "half_pixel_symmetric"]}),
    Row("Resize", [[IMAGE, NO, np.float32([1, 1, 1.7, 0.6])]],
        {"mode": ["nearest"], "nearest_mode": [NO, "floor", "ceil", "round_prefer_ceil"],
        "coordinate_transformation_mode": ["asymmetric", "half_pixel"]}),
    Row("Resize", [[IMAGE, NO, np.float32([1, 1, 0.7, 0.6])]], {"mode": ["linear", "cubic"],
        "antialias": [NO, 1], "cubic_coeff_a": [NO, -0.5]}),
    Row("Resize", [[IMAGE, NO, np.float32([1, 1, 1.7, 1.6])]], {"mode": ["cubic"],
        "exclude_outside": [NO, 1], "cubic_coeff_a": [NO, -0.5]}),
    Row("Resize", [[IMAGE, NO, np.float32([2, 0.5])], [IMAGE, NO, NO, i(5, 9)]],
        {"mode": ["linear"], "axes": [[2, 3]], "keep_aspect_ratio_policy": [NO, "not_larger",
        "not_smaller"]}),
    Row("GridSample", [[f(1, 2, 5, 6), f(1, 3, 2, 2)]],
        {"mode": [NO, "nearest", "cubic"], "padding_mode": [NO, "border", "reflection"],
        "align_corners": [NO, 1]}),
    Row("AffineGrid", [[f(2, 2, 3), i(2, 3, 4, 5)]], {"align_corners": [NO, 1]}),
    Row("Col2Im", [[f(1, 12, 6), i(4, 4)[:2], i(2, 3)]], {"strides": [NO], "pads": [NO]}),
    Row("HannWindow HammingWindow BlackmanWindow", [[i(7)[0]], [i(8)[0]]], {"periodic": [NO, 0]}),
    Row("DFT", [[f(2, 6, 1)], [f(2, 6, 2)]], {"axis": [NO, 1], "onesided": [NO]}, (17,)),
    Row("DFT", [[f(2, 6, 2)]], {"inverse": [1], "axis": [NO, 1]}, (17,)), Row("DFT", [[f(2, 6, 1)]],
        {"onesided": [1]}, (17,)),
]  # fmt: skip

LABELS = i(0, 2, 1, 1)
GATES = f(5, 2, 3)


def cell(gates: int, directions: int, bias: bool = True) -> list[Any]:
    made = [GATES, f(directions, gates * 4, 3), f(directions, gates * 4, 4)]
    return [*made, f(directions, gates * 8)] if bias else made


NETWORKS = [
    Row("NegativeLogLikelihoodLoss", [[f(4, 3), LABELS], [f(4, 3), LABELS, f(3, low=0.5)]],
        {"ignore_index": [NO, 1], "reduction": [NO, "sum", "none", "mean"]}),
    Row("SoftmaxCrossEntropyLoss", [[f(4, 3), LABELS], [f(4, 3), LABELS, f(3, low=0.5)], [f(2, 3, 5),
        whole(0, 3, 2, 5)]],
        {"ignore_index": [NO, 1], "reduction": [NO, "sum", "none", "mean"]}, outputs=2),
    Row("RNN", [cell(1, 1), cell(1, 1, False), [*cell(1, 1), NO, f(1, 2, 4)]], {"hidden_size": [4],
        "clip": [NO, 0.5]}, outputs=2),
    Row("GRU", [cell(3, 1), [*cell(3, 1), NO, f(1, 2, 4)]], {"hidden_size": [4],
        "linear_before_reset": [NO, 1]}, outputs=2),
    Row("LSTM", [cell(4, 1), cell(4, 1, False), [*cell(4, 1), NO, f(1, 2, 4), f(1, 2, 4, seed=3), f(1,
        12)]], {"hidden_size": [4]}, outputs=2),
    Row("QuantizeLinear", [[X * 9, np.float32(0.5)], [X * 9, np.float32(0.5), np.uint8(9)], [X * 9,
        np.float32(0.1), np.int8(-9)]]),
    Row("QuantizeLinear", [[X * 9, f(3, low=0.5), i(1, 9, 200, dtype=np.uint8)]], {"axis": [NO, 1,
        -2]}),
    Row("DequantizeLinear", [[whole(0, 255, 2, 3, 4, dtype=np.uint8), f(3, low=0.5), i(1, 9, 200,
        dtype=np.uint8)]], {"axis": [NO, 1, -2]}),
    Row("DequantizeLinear", [[whole(-99, 99, 5, dtype=np.int32), np.float32(0.5)], [whole(-99, 99, 5,
        dtype=np.int8), np.float32(0.5), np.int8(3)]]),
    Row("DynamicQuantizeLinear", [[X], [np.abs(X)], [-np.abs(X)]], outputs=3),
    Row("MatMulInteger", [[whole(0, 255, 3, 4, dtype=np.uint8), whole(0, 255, 4, 2, dtype=np.uint8),
        np.uint8(12), np.uint8(3)],
                          [whole(0, 255, 3, 4, dtype=np.uint8), whole(-9, 9, 4, 2, dtype=np.int8)]]),
    Row("ConvInteger", [[whole(0, 255, 1, 1, 4, 4, dtype=np.uint8), whole(0, 9, 1, 1, 2, 2,
        dtype=np.uint8), np.uint8(3)]], {"pads": [NO, [1, 1, 1, 1]]}),
    Row("QLinearMatMul", [[whole(0, 255, 2, 4, dtype=np.uint8), np.float32(0.1), np.uint8(9), whole(0,
        255, 4, 3, dtype=np.uint8), np.float32(0.2),
                           np.uint8(100), np.float32(3.0), np.uint8(118)]]),
    Row("NonMaxSuppression", [[np.float32([[[0, 0, 1, 1], [0, 0.1, 1, 1.1], [0, 9, 1, 10]]]),
        np.float32([[[0.9, 0.8, 0.5], [0.1, 0.9, 0.7]]]), i(2),
                               np.float32([0.5]), np.float32([0.3])]], {"center_point_box": [NO, 1]}),
    Row("Dropout", [[X]], outputs=1),
]  # fmt: skip

CLASSES = [
    Row("Binarizer", [[X[0]]], {"threshold": [NO, 0.5]}, domain=ML), Row("Normalizer", [[X[0]]],
        {"norm": [NO, "MAX", "L1", "L2"]}, domain=ML),
    Row("Scaler", [[X[0]]], {"offset": [[1.0], [1.0, 2.0, 3.0, 4.0]], "scale": [[2.0], [2.0, 3.0, 4.0,
        5.0]]}, domain=ML),
    Row("Imputer", [[np.float32([[1, np.nan], [-5, 2]])]],
        {"imputed_value_floats": [[7.0], [7.0, 8.0]], "replaced_value_float": [float("nan"), -5.0]},
        domain=ML),
    Row("ArrayFeatureExtractor", [[X[0], i(2, 0)]], domain=ML),
    Row("LabelEncoder", [[i(1, 2, 9)]], {"keys_int64s": [[1, 2]], "values_floats": [[0.5, 1.5]],
        "default_float": [NO, 3.0]}, domain=ML),
    Row("OneHotEncoder", [[i(1, 3, 9)]], {"cats_int64s": [[3, 1, 2]], "zeros": [NO, 1]}, domain=ML),
    Row("LinearRegressor", [[X[0]]], {"coefficients": [[1.0, 2.0, 3.0, 4.0]], "intercepts": [NO,
        [0.5]], "targets": [NO, 1],
                                      "post_transform": [NO, "NONE"]}, domain=ML),
    Row("FeatureVectorizer", [[X[0], X[1]]], {"inputdimensions": [[4, 4]]}, domain=ML),
]  # fmt: skip

TABLES = {
    "elementwise": ELEMENTWISE, "shapes": SHAPES, "folds": FOLDS, "windows": WINDOWS,
    "networks": NETWORKS, "classes": CLASSES,
}  # fmt: skip


def settings(row: Row) -> Iterator[dict[str, Any]]:
    """Combinations of attributes, at most MOST, spread evenly."""
    made = [
        dict(zip(row.attributes, c, strict=True))
        for c in itertools.product(*row.attributes.values())
    ]
    step = -(-len(made) // MOST)
    yield from made[::step]


def built(
    row: Row, kind: str, xs: list[Any], given: dict[str, Any], opset: int
) -> tuple[Any, dict[str, Any]]:
    names = [f"x{k}" if x is not None else "" for k, x in enumerate(xs)]
    outs = [f"y{k}" for k in range(row.outputs)]
    said = {k: v for k, v in given.items() if v is not None}
    node = helper.make_node(kind, names, outs, domain=row.domain, **said)
    infos = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)
        for n, x in zip(names, xs, strict=True) if n
    ]  # fmt: skip
    graph = helper.make_graph(
        [node], "g", infos, [helper.make_empty_tensor_value_info(o) for o in outs]
    )
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid(ML, 3)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    return model, {n: np.asarray(x) for n, x in zip(names, xs, strict=True) if n}


def negative(xs: list[Any]) -> bool:
    return any(x is not None and x.ndim == 1 and x.size == 6 and (x < 0).any() for x in xs)


def tried(row: Row) -> Iterator[tuple[str, Any, dict[str, Any]]]:
    for kind, opset in itertools.product(row.kinds.split(), row.opsets):
        for xs, given in itertools.product(row.inputs, settings(row)):
            sizes = [getattr(x, "shape", None) for x in xs]
            said = {k: v for k, v in given.items() if v is not None}
            yield (
                f"{kind}-{opset} {sizes} {said}{' cut' if negative(xs) else ''}",
                *built(row, kind, xs, given, opset),
            )


def wanted(model: Any, feeds: dict[str, Any]) -> Any:
    with np.errstate(all="ignore"):
        return reference.ReferenceEvaluator(model).run(None, feeds)


def same(got: Any, want: Any) -> str:
    got, want = np.asarray(got), np.asarray(want)
    if got.shape != want.shape or got.dtype != want.dtype:
        return f"{got.dtype}{got.shape}, expected {want.dtype}{want.shape}"
    if got.dtype.kind in "fc":
        near = np.allclose(got, want, rtol=2e-4, atol=2e-5, equal_nan=True)
    else:
        near = bool((got == want).all())
    return "" if near else f"{got.ravel()[:5]}, expected {want.ravel()[:5]}"


def answer(name: str, model: Any, feeds: dict[str, Any]) -> Any:
    """What onnxruntime said where the reference errs, else what the reference says."""
    if name in ANSWERS:
        return [np.array(v, t).reshape(s) for v, t, s in ANSWERS[name]]
    return wanted(model, feeds)


def compared(row: Row) -> Iterator[str]:
    for name, model, feeds in tried(row):
        want = answer(name, model, feeds)
        try:
            got = list(ts.onnx.load(model.SerializeToString()).run(feeds).values())
        except TesseraError as e:
            yield f"{name}: {e}"
            continue
        for k, (a, b) in enumerate(zip(got, want, strict=False)):
            if b is not None and (wrong := same(a, b)):
                yield f"{name} output {k}: {wrong}"


CASES = [
    pytest.param(row, id=f"{table}-{n}-{row.kinds.split()[0]}") for table, rows in TABLES.items()
    for n, row in enumerate(rows)
]  # fmt: skip


@pytest.mark.parametrize("row", CASES)
def test_nodes_are_those_of_the_reference(row: Row) -> None:
    assert "\n".join(compared(row)) == ""


def record() -> None:
    """Write what onnxruntime says where the reference errs."""
    import onnxruntime

    found = {}
    for rows in TABLES.values():
        listed = (case for row in rows if row.kinds != "Resize" for case in tried(row))
        for name, model, feeds in listed:
            try:
                want = wanted(model, feeds)
            except Exception as e:  # the reference has no rule for all cases
                want = [str(e)]
            try:
                session = onnxruntime.InferenceSession(model.SerializeToString())
                got = session.run(None, feeds)
            except Exception:  # nothing to compare with
                continue
            if any(
                b is not None and (isinstance(b, str) or same(a, b))
                for a, b in zip(got, want, strict=False)
            ):
                assert name not in found
                found[name] = [
                    (x.ravel().tolist(), x.dtype.name, x.shape) for x in map(np.asarray, got)
                ]
    FILE.write_text(
        "{\n" + ",\n".join(f"{json.dumps(k)}: {json.dumps(v)}" for k, v in found.items()) + "\n}\n"
    )


if __name__ == "__main__":
    record()
