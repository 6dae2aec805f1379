"""Hand-written kernels as ONNX functions, and nodes of training and boxes, as onnxruntime and PyTorch
compute them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera.interop.onnx.export import model_bytes
from tests.support.cases.kernel_examples import CASES, close

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
from tests.oracles.test_onnx_export import run  # noqa: E402

pytestmark = pytest.mark.oracle
helper = onnx.helper
SIZE = 5
QUICK = (
    "quantize_rows",
    "kl_divergence",
    "rotary",
    "swiglu",
    "online_softmax",
    "split_k",
    "winograd",
)


def saved(name: str) -> tuple[bytes, list[Any], Any]:
    """The ONNX file of a kernel, its arrays, and what NumPy says."""
    case = CASES[name]
    args, kwargs = case.arguments(np.random.default_rng(SIZE), SIZE, np.dtype(case.dtypes[0]))
    arrays = [a for a in ts.tree.leaves(args) if isinstance(a, np.ndarray)]

    def f(*xs: Any) -> Any:
        given = iter(xs)
        put = ts.tree.map(lambda a: next(given) if isinstance(a, np.ndarray) else a, args)
        return case.kernel(*put, **kwargs)

    return model_bytes(f, *arrays), arrays, case.expected(*args, **kwargs)


@pytest.mark.parametrize("name", QUICK)
def test_a_kernel_is_a_function_with_a_body(name: str) -> None:
    data, arrays, want = saved(name)
    made = onnx.ModelProto.FromString(data)
    assert {f.domain for f in made.functions} == {"tessera"}
    assert any(n.domain == "tessera" for n in made.graph.node)
    for got, x in zip(run(data, *arrays), want, strict=True):
        close(got, x, CASES[name].tolerance)


@pytest.mark.deep
def test_kernels_of_the_examples_have_a_body_or_say_why_not() -> None:
    wrong, refused = {}, {}
    for name, case in CASES.items():
        if case.least > SIZE:
            continue
        try:
            data, arrays, want = saved(name)
            for got, x in zip(run(data, *arrays), want, strict=True):
                close(got, x, case.tolerance)
        except ts.onnx.OnnxError as e:
            refused[name] = e.message
        except Exception as e:
            wrong[name] = f"{type(e).__name__}: {e}"[:200]
    assert wrong == {}
    assert all("has no ONNX form" in m or "more than" in m for m in refused.values())
    assert len(refused) < len(CASES) / 2, refused


def test_one_function_serves_two_calls() -> None:
    case = CASES["swiglu"]
    args, _ = case.arguments(np.random.default_rng(0), 4, np.dtype("float32"))
    data = model_bytes(lambda x: case.kernel(x) + case.kernel(x * 2), *args)
    made = onnx.ModelProto.FromString(data)
    assert len(made.functions) == 1
    assert sum(n.domain == "tessera" for n in made.graph.node) == 2


def roi_model(pooled: list[int], scale: float) -> Any:
    node = helper.make_node(
        "MaxRoiPool", ["x", "r"], ["y"], pooled_shape=pooled, spatial_scale=scale
    )
    ins = [helper.make_tensor_value_info(n, 1, None) for n in ("x", "r")]
    graph = helper.make_graph([node], "g", ins, [helper.make_tensor_value_info("y", 1, None)])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


@pytest.mark.parametrize(
    ("pooled", "scale"), [([2, 3], 1.0), ([1, 1], 0.5), ([7, 4], 0.0625), ([3, 3], 2.0)]
)
def test_pools_of_boxes_are_those_of_onnxruntime(pooled: list[int], scale: float) -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((2, 3, 9, 11)).astype(np.float32)
    corners = rng.uniform(-3, 14, (6, 4)).astype(np.float32) / np.float32(scale)
    boxes = np.concatenate([rng.integers(0, 2, (6, 1)).astype(np.float32), corners], 1)
    data = roi_model(pooled, scale).SerializeToString()
    (want,) = run(data, x, boxes)
    got = ts.onnx.load(data).run({"x": x, "r": boxes})["y"]
    np.testing.assert_array_equal(np.asarray(got), want)


def test_a_gradient_node_is_the_gradient_of_pytorch() -> None:
    torch = pytest.importorskip("torch")
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"]),
        helper.make_node("Tanh", ["a"], ["b"]),
        helper.make_node("Mul", ["b", "c"], ["d"]),
        helper.make_node("ReduceSum", ["d"], ["y"], keepdims=0),
        helper.make_node("Gradient", ["x", "w"], ["dx", "dw"], domain="ai.onnx.preview.training",
        xs=["x", "w"], y="y"),
        helper.make_node("Sub", ["w", "dw"], ["next"]),
    ]  # fmt: skip
    ins = [helper.make_tensor_value_info(n, 1, s) for n, s in (("x", [4, 3]), ("w", [3, 2]))]
    outs = [helper.make_tensor_value_info(n, 1, None) for n in ("y", "dx", "dw", "next")]
    c = np.array([2.0, -1.0], np.float32)
    graph = helper.make_graph(nodes, "g", ins, outs, [onnx.numpy_helper.from_array(c, "c")])
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("ai.onnx.preview.training", 1)]
    m = ts.onnx.load(helper.make_model(graph, opset_imports=opsets))
    rng = np.random.default_rng(0)
    x, w = (
        torch.tensor(rng.standard_normal(s).astype(np.float32), requires_grad=True)
        for s in ((4, 3), (3, 2))
    )
    y = (torch.tanh(x @ w) * torch.tensor(c)).sum()
    y.backward()
    got = m.run({"x": x.detach().numpy(), "w": w.detach().numpy()})
    want = {"y": y, "dx": x.grad, "dw": w.grad, "next": w - w.grad}
    for name, v in want.items():
        np.testing.assert_allclose(np.asarray(got[name]), v.detach().numpy(), rtol=1e-5, atol=1e-6)
