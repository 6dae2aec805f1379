"""Every rule of an ATen op gives what PyTorch gave: calls that tools/record_torch.py recorded."""

from __future__ import annotations

import sys
from collections import defaultdict
from typing import Any

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
    assert len(CALLS) >= 0.8 * len(RULES)


@pytest.mark.parametrize("name", CALLS)
def test_a_rule_gives_what_pytorch_gave(name: str) -> None:
    for row in CALLS[name]:
        want = row["want"] if isinstance(row["want"], list) else [row["want"]]
        shapes = tuple(None if w is None else w.shape for w in want)
        args, kwargs = map_arrays((row["args"], row["kwargs"]), ts.asarray)
        got = RULES[name](AtenCall(name, tuple(row["dtypes"]), shapes), *args, **kwargs)
        assert not difference(row["want"], got, 2e-5, 2e-6), (row["args"], row["kwargs"])


def test_without_pytorch_calls_say_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    library.torch.cache_clear()
    with pytest.raises(ts.TesseraError, match=r"needs the package torch; pip install"):
        ts.torch.to_torch(ts.ones((2,), f32))
    library.torch.cache_clear()
