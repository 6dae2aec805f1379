"""Run the node cases that the onnx package carries, and say which fail.

    python tools/onnx_conformance.py [--only TEXT] [--suite node|simple|pytorch] [--json PATH]

A case passes when every output has the expected dtype and shape and lies within the case's tolerance.
"""

from __future__ import annotations

import argparse
import importlib
import json
import pkgutil
import sys
import time
import warnings
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper
from onnx.backend.test.case import node

import tessera as ts


@dataclass(frozen=True)
class Case:
    """A model with inputs and the outputs that they must give."""

    name: str
    model: bytes
    data: list[tuple[list[Any], list[Any]]]
    rtol: float = 1e-3
    atol: float = 1e-7


# Cases whose expected outputs take seconds to compute.
SLOW = ("averagepool", "lppool", "maxpool")
# What cannot pass: a case starts with the text, and the reason.
EXPECTED = {
    "test_image_decoder": "images are not decoded",
    "test_bernoulli": "the expected draws are those of one generator in one state",
    "test_attention_4d_causal_bf16": "expected with a rounding to bf16 after each step of softmax",
    "test_attention_4d_causal_fp16": "expected with a rounding to f16 after each step of softmax",
    "test_attention_3d_causal_bf16": "expected with a rounding to bf16 after each step of softmax",
    "test_attention_4d_attn_mask_causal_bf16": "expected with a rounding to bf16 after each step of softmax",
    "test_attention_4d_causal_padded_kv_bf16": "expected with a rounding to bf16 after each step of softmax",
    "test_attention_4d_padded_kv_bf16": "expected with a rounding to bf16 after each step of softmax",
    "test_attention_4d_padded_kv_fp16": "expected with a rounding to f16 after each step of softmax",
    "test_dft_inverse": "the expected zeros hold rounding errors of an f32 transform",
}


def node_cases(without: Sequence[str] = ()) -> list[Case]:
    """The cases of single nodes, and of the functions that define them."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for module in pkgutil.walk_packages(node.__path__, f"{node.__name__}."):
            if module.name.rpartition(".")[2] not in without:
                importlib.import_module(module.name)
    return [
        Case(c.name, c.model.SerializeToString(), [(list(i), list(o)) for i, o in c.data_sets], c.rtol,
        c.atol)
        for c in node._NodeTestCases
    ]  # fmt: skip


def one_of_each(cases: Sequence[Case]) -> list[Case]:
    """The smallest case of each node type."""
    best: dict[str, Case] = {}
    for c in cases:
        types = {n.op_type for n in onnx.ModelProto.FromString(c.model).graph.node}
        if len(types) == 1 and not is_expected(c.name):
            (op,) = types
            if op not in best or len(c.model) < len(best[op].model):
                best[op] = c
    return [best[op] for op in sorted(best)]


def is_expected(name: str) -> bool:
    """Whether a case is listed as one that cannot pass."""
    return any(name.startswith(start) for start in EXPECTED)


def stored_cases(*folders: str) -> Iterator[Case]:
    """The cases that the package stores as files."""
    root = Path(onnx.__file__).parent / "backend" / "test" / "data"
    for folder in folders:
        for case in sorted((root / folder).iterdir()):
            if (case / "model.onnx").exists():
                sets = [_stored(d) for d in sorted(case.glob("test_data_set_*"))]
                yield Case(f"{folder}/{case.name}", (case / "model.onnx").read_bytes(), sets)


def _stored(folder: Path) -> tuple[list[Any], list[Any]]:
    def read(kind: str) -> list[Any]:
        count = len(list(folder.glob(f"{kind}_*.pb")))
        return [_proto(folder / f"{kind}_{i}.pb") for i in range(count)]

    return read("input"), read("output")


def _proto(path: Path) -> Any:
    """A tensor in a file, or a sequence of them."""
    data = path.read_bytes()
    tensor = onnx.TensorProto()
    try:
        tensor.ParseFromString(data)
        return numpy_helper.to_array(tensor)
    except (ValueError, TypeError, KeyError):
        sequence = onnx.SequenceProto()
        sequence.ParseFromString(data)
        return numpy_helper.to_list(sequence)


def fault(case: Case) -> str | None:
    """What is wrong with the outputs of a case; None when all agree."""
    try:
        model = ts.onnx.load(case.model)
        names = [i.name for i in model.model.graph.inputs]
        for inputs, outputs in case.data:
            found = model.run(dict(zip(names, inputs, strict=False)))
            for name, got, want in zip(found, found.values(), outputs, strict=True):
                wrong = _difference(got, want, case)
                if wrong:
                    return f"{name}: {wrong}"
    except ts.TesseraError as e:
        return e.message
    return None


def _difference(got: Any, want: Any, case: Case) -> str | None:
    if isinstance(want, list | tuple):
        if not isinstance(got, list) or len(got) != len(want):
            return f"a sequence of {len(want)} is {type(got).__name__}"
        found = (_difference(g, w, case) for g, w in zip(got, want, strict=True))
        return next((f for f in found if f), None)
    if want is None or got is None:
        return None if got is want else "an optional is empty in one of the two"
    w = numpy_helper.to_array(want) if isinstance(want, onnx.TensorProto) else np.asarray(want)
    g = np.asarray(got)
    if w.dtype.kind in "OUS":
        same = g.shape == w.shape and bool((g.astype(str) == w.astype(str)).all())
        return None if same else "the text differs"
    if g.dtype != w.dtype or g.shape != w.shape:
        return f"is {g.dtype}{list(g.shape)}, expected {w.dtype}{list(w.shape)}"
    if g.dtype.isbuiltin != 1:
        g, w = g.astype(np.float32), w.astype(np.float32)
    close = np.isclose(g, w, case.rtol, case.atol, equal_nan=True)
    return None if bool(close.all()) else f"{int((~close).sum())} of {close.size} elements differ"


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", default="")
    parser.add_argument("--suite", default="node", choices=("node", "simple", "pytorch"))
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    if given.suite == "node":
        cases: list[Case] = node_cases()
    elif given.suite == "simple":
        cases = list(stored_cases("simple"))
    else:
        cases = list(stored_cases("pytorch-operator", "pytorch-converted"))
    start, faults, passed = time.time(), defaultdict(list), 0
    chosen = [c for c in cases if given.only in c.name]
    for case in chosen:
        wrong = fault(case)
        passed += wrong is None
        if wrong:
            faults[case.name.removeprefix("test_").split("_")[0]].append((case.name, wrong))
    for family, found in sorted(faults.items()):
        print(f"{family}: {len(found)}")
        for name, wrong in found:
            print(f"    {name}: {wrong}"[:200])
    print(f"{passed} of {len(chosen)} cases pass ({time.time() - start:.0f} s)")
    if given.json:
        given.json.write_text(json.dumps(dict(sorted(faults.items())), indent=1) + "\n")
    return 0 if passed == len(chosen) else 1


if __name__ == "__main__":
    sys.exit(main())
