"""Our ATen rules on PyTorch's own samples of its operators."""

from __future__ import annotations

from collections import Counter

import pytest

torch = pytest.importorskip("torch")
from tests.support.cases.torch_opinfo import NAMES, outcomes  # noqa: E402

pytestmark = pytest.mark.oracle

# One of each family; `make test-deep` runs them all.
SOME = (
    "add", "div.floor_rounding", "clamp", "where", "masked_fill", "sum", "var_mean", "amax", "cumsum", "sort",
    "topk", "cat", "index_select", "gather", "scatter_add", "index_put", "nn.functional.conv2d",
    "nn.functional.max_pool2d", "nn.functional.layer_norm", "nn.functional.interpolate.bilinear", "baddbmm",
)  # fmt: skip


@pytest.mark.parametrize("name", SOME)
def test_samples_agree(name):
    found = outcomes(name, torch.float32, 2)
    assert found
    assert set(found) == {"agrees"}


@pytest.mark.deep
@pytest.mark.parametrize("dtype", ["float32", "int64", "bool", "bfloat16"])
def test_of_the_samples_that_rules_take_nearly_all_agree(dtype):
    """At least 95 in 100 of the samples whose ops all have rules, over every operator of PyTorch's
    database.
    """
    told = Counter()
    for name in NAMES:
        told.update(o.partition(":")[0] for o in outcomes(name, getattr(torch, dtype), 3))
    claimed = told["agrees"] + told["differs"]
    assert claimed > 100
    assert told["agrees"] >= 0.95 * claimed
