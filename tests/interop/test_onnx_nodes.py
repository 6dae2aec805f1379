"""Nodes that onnxruntime's own tools write, and classifiers, beside the answers that onnxruntime gave."""

from __future__ import annotations

import pytest

import tessera as ts

pytest.importorskip("onnx")

from tests.support import onnx_nodes

RUNS_ON = "numpy"
ANSWERS = onnx_nodes.recorded()


def test_every_case_has_an_answer() -> None:
    assert list(ANSWERS) == [*onnx_nodes.CASES, *onnx_nodes.ML]


@pytest.mark.parametrize("name", ANSWERS)
def test_a_node_answers_as_onnxruntime_did(name: str) -> None:
    data, inputs = onnx_nodes.built(name)
    onnx_nodes.differences(name, list(ts.onnx.load(data).run(inputs).values()), ANSWERS[name])
