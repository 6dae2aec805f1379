"""Torch's counterparts in the cliff detector give the shapes and dtypes that ours give, without data."""

from __future__ import annotations

import importlib
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")
pytestmark = pytest.mark.oracle
BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
KINDS = {
    "f16": torch.float16, "bf16": torch.bfloat16, "f32": torch.float32, "i32": torch.int32,
    "i64": torch.int64,
    "bool": torch.bool, "c64": torch.complex64,
}  # fmt: skip
NAMES = {v: k for k, v in KINDS.items()}


@pytest.fixture(scope="module")
def sweep() -> Iterator[Any]:
    """The script as a module."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(BENCHMARKS))
        yield importlib.import_module("gpu_sweep")
    for name in [n for n in sys.modules if n == "gpu_sweep" or n.split(".")[0] == "sweep"]:
        del sys.modules[name]


def leaves(y: Any) -> list[Any]:
    return [v for x in y for v in leaves(x)] if isinstance(y, tuple | list) else [y]


def test_both_sides_of_every_case_have_the_same_types(sweep: Any) -> None:
    for c in sweep.all_cases():
        if c.family == "count":
            continue  # torch counts what it has only
        xs = [torch.empty(o.shape, dtype=KINDS[o.dtype], device="meta") for o in c.operands]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            theirs = [(tuple(y.shape), NAMES[y.dtype]) for y in leaves(c.theirs(torch, *xs))]
        ours = [(tuple(map(int, v.type.shape)), str(v.type.dtype)) for v in c.graph.outputs]
        assert ours == theirs, str(c)


def test_a_case_is_built_for_sm_90(sweep: Any) -> None:
    (c,) = [c for c in sweep.all_cases() if str(c) == "unary: tanh sizes 1023 f32"]
    assert sweep.hosted(c, build=True) == {}
