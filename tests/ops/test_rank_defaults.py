"""Functions that state their number of axes have the defaults of the function that does not."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from tessera import nn, op


def defaults(f: Any) -> dict[str, Any]:
    found = inspect.signature(f).parameters.values()
    return {p.name: p.default for p in found if p.default is not p.empty}


@pytest.mark.parametrize("name", ["conv", "conv_transpose", "max_pool", "avg_pool"])
def test_functions_of_one_to_three_axes(name: str) -> None:
    general = defaults(getattr(op, name))
    assert general
    found = [f for k in (1, 2, 3) if (f := getattr(op, f"{name}{k}d", None)) is not None]
    assert found
    for f in found:
        own = defaults(f)
        assert {k: general[k] for k in own if k in general} == {
            k: v for k, v in own.items() if k in general
        }, f


@pytest.mark.parametrize("name", ["Conv", "ConvTranspose"])
def test_layers_have_the_defaults_of_their_functions(name: str) -> None:
    general = defaults(op.conv if name == "Conv" else op.conv_transpose)
    for k in (1, 2, 3):
        own = defaults(getattr(nn, f"{name}{k}d"))
        shared = [n for n in own if n in general and n != "bias"]
        assert len(shared) > 2
        assert {n: own[n] for n in shared} == {n: general[n] for n in shared}
