"""Every rule of an ATen op gives what PyTorch gave: calls that tools/record_torch.py recorded."""

from __future__ import annotations

import sys
from collections import defaultdict
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera.core.dtype import f32
from tessera.interop.torch import library
from tessera.interop.torch.rule import RULES, AtenCall
from tests.support.runners.recorded_calls import difference, load, map_arrays

RUNS_ON = "numpy"
CALLS: dict[str, list[Any]] = defaultdict(list)
for _row in load("torch_rules.json.gz"):
    CALLS[_row["op"]].append(_row)


def test_most_rules_are_recorded() -> None:
    assert set(CALLS) <= set(RULES)
    assert len(CALLS) >= 0.92 * len(RULES)


# PyTorch leaves out the products of weights with zeros beyond the ends of x (docs/numerics.md).
WEIGHTS = {
    "aten.convolution.default": 1,
    "aten._convolution.default": 1,
    "aten.convolution_backward.default": 2,
}
_FAR = 8  # elements that x gets at each end, more than any window reaches


def beyond(
    x: Any, w: Any, shape: Any, stride: Any, padding: Any, gap: Any, back: bool, groups: int
) -> Any:
    """Where a weight that is not finite meets a place beyond the ends of x: by counting with and without."""
    rank = x.ndim - 2
    stride, padding, gap = (list(v) * (rank if len(v) == 1 else 1) for v in (stride, padding, gap))
    rest = (None, stride, padding, gap, back, [0] * rank, groups)
    reach = [_FAR if back else _FAR * s for s in stride]
    inner = np.pad(np.ones(x.shape), [(0, 0), (0, 0), *((r, r) for r in reach)])
    call = AtenCall("aten.convolution.default", (ts.f64,), (None,))
    run = RULES["aten.convolution.default"]
    bad = ts.tensor((~np.isfinite(w)).astype(np.float64))
    all_, own = (
        np.asarray(run(call, ts.tensor(v), bad, *rest)) for v in (np.ones_like(inner), inner)
    )
    first = [_FAR * s if back else _FAR for s in stride]
    cut = tuple(slice(f, f + n) for f, n in zip(first, shape[2:], strict=True))
    return (all_ - own)[(..., *cut)] > 0.5


def excused(name: str, row: Any, got: Any) -> Any:
    """What PyTorch gave, and NaN where a weight that is not finite meets a place beyond an end of x."""
    if name not in WEIGHTS or np.isfinite(row["args"][WEIGHTS[name]]).all():
        return row["want"]
    whole = isinstance(row["want"], list)
    wants, gots = (row["want"], got) if whole else ([row["want"]], [got])
    x, w, _, stride, padding, gap, back, _, groups = row["args"][whole : 9 + whole]
    x, back = (row["args"][0], not back) if whole else (x, back)
    outside = beyond(x, w, wants[0].shape, stride, padding, gap, back, groups)
    first = np.where(outside & np.isnan(np.asarray(gots[0])), gots[0], wants[0])
    return [first, *wants[1:]] if whole else first


@pytest.mark.parametrize("name", CALLS)
def test_a_rule_gives_what_pytorch_gave(name: str) -> None:
    for row in CALLS[name]:
        want = row["want"] if isinstance(row["want"], list) else [row["want"]]
        shapes = tuple(None if w is None else w.shape for w in want)
        args, kwargs = map_arrays((row["args"], row["kwargs"]), ts.asarray)
        got = RULES[name](AtenCall(name, tuple(row["dtypes"]), shapes), *args, **kwargs)
        assert not difference(excused(name, row, got), got, 2e-5, 2e-6), (
            row["args"],
            row["kwargs"],
        )


def test_without_pytorch_calls_say_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    library.torch.cache_clear()
    with pytest.raises(ts.TesseraError, match=r"needs the package torch; pip install"):
        ts.torch.to_torch(ts.ones((2,), f32))
    library.torch.cache_clear()
