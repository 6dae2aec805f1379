"""Models with open sizes: what they compute of the sizes of their inputs, cut and fill by them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tessera as ts
from tests.interop.test_onnx import FLOAT, INT64, helper, model

RUNS_ON = "numpy"
INT32 = 6
N = helper.make_node
W = np.arange(40, dtype=np.float32).reshape(10, 4) / 7
ONE, ZERO = ("one", np.array([1], np.int64)), ("zero", np.array([0], np.int64))
AX0 = ("ax", np.array([0], np.int64))
# Nodes that follow s = Shape(x) and n = s[:1], with their weights, the output, and what it is.
CASES: dict[str, tuple[Any, Any, Any, Any]] = {
    "slice const float": (
        [N("Slice", ["W", "zero", "n", "ax"], ["p"]), N("Add", ["x", "p"], ["y"])],
        [("W", W), ZERO, AX0],
        [("y", FLOAT, ["N", 4])],
        lambda x: x + W[: len(x)],
    ),
    "slice const only": (
        [N("Slice", ["W", "zero", "n", "ax"], ["y"])],
        [("W", W), ZERO, AX0],
        [("y", FLOAT, ["N", 4])],
        lambda x: W[: len(x)],
    ),
    "slice last": (
        [N("Neg", ["n"], ["mn"]), N("Slice", ["W", "mn", "big", "ax"], ["y"])],
        [("W", W), ("big", np.array([1 << 62])), AX0],
        [("y", FLOAT, ["N", 4])],
        lambda x: W[-len(x) :],
    ),
    "expand const": (
        [N("Expand", ["c", "s"], ["y"])],
        [("c", np.array(0.5, np.float32))],
        [("y", FLOAT, ["N", 4])],
        lambda x: np.full(x.shape, 0.5, np.float32),
    ),
    "expand row": (
        [N("Concat", ["n", "one"], ["t"], axis=0), N("Expand", ["c", "t"], ["y"])],
        [("c", W[0]), ONE],
        [("y", FLOAT, ["N", 4])],
        lambda x: np.broadcast_to(W[0], (len(x), 4)),
    ),
    "gather const": (
        [N("Sub", ["n", "one"], ["k"]), N("Gather", ["W", "k"], ["y"], axis=0)],
        [("W", W), ONE],
        [("y", FLOAT, [1, 4])],
        lambda x: W[len(x) - 1 : len(x)],
    ),
    "constantofshape": (
        [N("ConstantOfShape", ["s"], ["y"], value=helper.make_tensor("v", FLOAT, [1], [2.5]))],
        [],
        [("y", FLOAT, ["N", 4])],
        lambda x: np.full(x.shape, 2.5, np.float32),
    ),
    "range": (
        [N("Squeeze", ["n"], ["nn"]), N("Range", ["z0", "nn", "o1"], ["y"])],
        [("z0", np.array(0)), ("o1", np.array(1))],
        [("y", INT64, ["N"])],
        lambda x: np.arange(len(x)),
    ),
    "cast float": (
        [N("Cast", ["s"], ["f"], to=FLOAT), N("Mul", ["f", "h"], ["y"])],
        [("h", np.array(0.5, np.float32))],
        [("y", FLOAT, [2])],
        lambda x: np.array([len(x) / 2, 2], np.float32),
    ),
    "cast i32": (
        [N("Cast", ["s"], ["y"], to=6)],
        [],
        [("y", 6, [2])],
        lambda x: np.array([len(x), 4], np.int32),
    ),
    "i32 add": (
        [N("Cast", ["s"], ["i"], to=6), N("Add", ["i", "k"], ["y"])],
        [("k", np.array(3, np.int32))],
        [("y", 6, [2])],
        lambda x: np.array([len(x) + 3, 7], np.int32),
    ),
    "i32 add tensor": (
        [
            N("Cast", ["s"], ["i"], to=6),
            N("ReduceSum", ["x"], ["r"], keepdims=0),
            N("Cast", ["r"], ["ri"], to=6),
            N("Add", ["i", "ri"], ["y"]),
        ],
        [],
        [("y", 6, [2])],
        lambda x: np.array([len(x) + int(x.sum()), 4 + int(x.sum())], np.int32),
    ),
    "i32 back": (
        [
            N("Cast", ["s"], ["i"], to=6),
            N("Cast", ["i"], ["j"], to=7),
            N("Reshape", ["x", "j"], ["y"]),
        ],
        [],
        [("y", FLOAT, ["N", 4])],
        lambda x: x,
    ),
    "castlike": (
        [N("CastLike", ["s", "c"], ["y"])],
        [("c", np.array(1, np.float32))],
        [("y", FLOAT, [2])],
        lambda x: np.array([len(x), 4], np.float32),
    ),
    "sqrt of size": (
        [N("Cast", ["n"], ["f"], to=FLOAT), N("Sqrt", ["f"], ["q"]), N("Div", ["x", "q"], ["y"])],
        [],
        [("y", FLOAT, ["N", 4])],
        lambda x: x / np.sqrt(np.float32(len(x))),
    ),
    "where": (
        [N("Equal", ["s", "k"], ["c"]), N("Where", ["c", "k", "s"], ["y"])],
        [("k", np.array([-1, 4]))],
        [("y", INT64, [2])],
        lambda x: np.array([len(x), 4]),
    ),
    "where float": (
        [N("Cast", ["s"], ["f"], to=FLOAT), N("Where", ["c", "f", "h"], ["y"])],
        [("c", np.array([True, False])), ("h", np.array([0.5, 0.25], np.float32))],
        [("y", FLOAT, [2])],
        lambda x: np.array([len(x), 0.25], np.float32),
    ),
    "greater": (
        [N("Greater", ["s", "k"], ["c"]), N("Cast", ["c"], ["y"], to=FLOAT)],
        [("k", np.array([3, 3]))],
        [("y", FLOAT, [2])],
        lambda x: np.array([len(x) > 3, True], np.float32),
    ),
    "tile": (
        [N("Concat", ["n", "one"], ["t"], axis=0), N("Tile", ["c", "t"], ["y"])],
        [("c", W[:1]), ONE],
        [("y", FLOAT, ["N", 4])],
        lambda x: np.tile(W[:1], (len(x), 1)),
    ),
    "reduceprod": (
        [N("ReduceProd", ["s"], ["y"], keepdims=0)],
        [],
        [("y", INT64, [])],
        lambda x: np.array(4 * len(x)),
    ),
    "reducesum": (
        [N("ReduceSum", ["s"], ["y"], keepdims=0)],
        [],
        [("y", INT64, [])],
        lambda x: np.array(4 + len(x)),
    ),
    "floor div": (
        [N("Div", ["s", "two"], ["y"])],
        [("two", np.array([2, 2]))],
        [("y", INT64, [2])],
        lambda x: np.array([len(x) // 2, 2]),
    ),
    "max": (
        [N("Max", ["s", "k"], ["y"])],
        [("k", np.array([4, 9]))],
        [("y", INT64, [2])],
        lambda x: np.array([max(len(x), 4), 9]),
    ),
    "reshape const": (
        [
            N("Div", ["twelve", "n"], ["q"]),
            N("Concat", ["n", "q"], ["t"], axis=0),
            N("Reshape", ["W", "t2"], ["y"]),
        ],
        [("twelve", np.array([15])), ("W", W), ("t2", np.array([4, 10]))],
        [("y", FLOAT, [4, 10])],
        lambda x: W.reshape(4, 10),
    ),
    "pad": (
        [N("Concat", ["zero", "zero", "n", "zero"], ["p"], axis=0), N("Pad", ["x", "p"], ["y"])],
        [ZERO],
        [("y", FLOAT, ["M", 4])],
        lambda x: np.pad(x, ((0, len(x)), (0, 0))),
    ),
    "onehot": (
        [N("Squeeze", ["n"], ["d"]), N("OneHot", ["i", "d", "v"], ["y"])],
        [("i", np.array([0, 2])), ("v", np.array([0, 1], np.float32))],
        [("y", FLOAT, [2, "N"])],
        lambda x: np.eye(len(x), dtype=np.float32)[[0, 2]],
    ),
    "split": (
        [
            N("Sub", ["n", "one"], ["m"]),
            N("Concat", ["one", "m"], ["t"], axis=0),
            N("Split", ["x", "t"], ["y", "z"], axis=0),
        ],
        [ONE],
        [("y", FLOAT, [1, 4])],
        lambda x: x[:1],
    ),
    "trilu": (
        [N("Squeeze", ["one"], ["k"]), N("Trilu", ["x", "k"], ["y"])],
        [ONE],
        [("y", FLOAT, ["N", 4])],
        lambda x: np.triu(x, 1),
    ),
    "size op": (
        [N("Size", ["x"], ["z"]), N("Cast", ["z"], ["y"], to=FLOAT)],
        [],
        [("y", FLOAT, [])],
        lambda x: np.array(4 * len(x), np.float32),
    ),
    "shape of const expand": (
        [N("Expand", ["c", "s"], ["e"]), N("Shape", ["e"], ["y"])],
        [("c", np.array(0.5, np.float32))],
        [("y", INT64, [2])],
        lambda x: np.array([len(x), 4]),
    ),
    "topk": (
        [N("Min", ["n", "two"], ["k"]), N("TopK", ["x", "two"], ["y", "z"], axis=1)],
        [("two", np.array([2]))],
        [("y", FLOAT, ["N", 2])],
        lambda x: x[:, :2],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_sizes_are_numbers_of_a_model(name: str) -> None:
    nodes, weights, outputs, want = CASES[name]
    nodes = [N("Shape", ["x"], ["s"]), N("Gather", ["s", "zero"], ["n"], axis=0), *nodes]
    known = {n for n, _ in weights}
    weights = [*weights, *([] if "zero" in known else [ZERO])]
    m = ts.onnx.load(model(nodes, [("x", FLOAT, ["N", 4])], outputs, weights))

    @ts.jit
    def f(x: ts.Tensor["N", 4, ts.f32]) -> Any:
        return m(x)

    for rows in (3, 5):
        x = np.full((rows, 4), 1.5, np.float32)
        for g in (f, m):
            found = g(x)
            got = np.asarray(found[0] if isinstance(found, tuple | list) else found)
            assert (got.dtype, got.shape) == (want(x).dtype, want(x).shape)
            np.testing.assert_allclose(got, want(x), rtol=1e-6)
