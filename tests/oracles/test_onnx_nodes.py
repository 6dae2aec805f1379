"""Node types that onnxruntime's own tools write, and maps of classifiers, beside onnxruntime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tessera as ts

pytest.importorskip("onnx")
from tests.support.onnx_nodes import CASES, ML, answers, built, differences, f, model, recorded

onnxruntime = pytest.importorskip("onnxruntime")
pytestmark = pytest.mark.oracle


def both(data: bytes, inputs: dict[str, Any]) -> tuple[list[Any], list[Any]]:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    return list(ts.onnx.load(data).run(inputs).values()), session.run(None, inputs)


@pytest.mark.parametrize("name", [*CASES, *ML])
def test_nodes(name: str) -> None:
    """Against onnxruntime, which still says what the record says."""
    data, inputs = built(name)
    want = answers(name)
    differences(name, list(ts.onnx.load(data).run(inputs).values()), want)
    differences(name, recorded()[name], want)


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
