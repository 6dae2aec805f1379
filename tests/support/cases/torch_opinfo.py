"""torch's own samples of its operators, through our rules: which agree, which PyTorch runs, which differ."""

from __future__ import annotations

import sys
import types
import unittest
import warnings
from collections.abc import Iterator
from typing import Any

import torch
from torch.fx.experimental.proxy_tensor import make_fx

import tessera as ts
from tessera.core.errors import TesseraError
from tessera.interop.torch.backend import table
from tessera.interop.torch.evaluate import evaluate
from tessera.interop.torch.plan import plan_of
from tests.support.cases.torch_models import tensors_of

# A package that PyTorch's own tests want at import; the samples do not need it.
if "expecttest" not in sys.modules:
    sys.modules["expecttest"] = types.ModuleType("expecttest")
    sys.modules["expecttest"].TestCase = unittest.TestCase  # type: ignore[attr-defined]

from torch.testing._internal.common_methods_invocations import op_db

NAMES = tuple(
    dict.fromkeys(
        f"{o.name}{'.' + o.variant_test_name if o.variant_test_name else ''}" for o in op_db
    )
)


def infos(name: str) -> Iterator[Any]:
    for o in op_db:
        if f"{o.name}{'.' + o.variant_test_name if o.variant_test_name else ''}" == name:
            yield o


def outcomes(name: str, dtype: torch.dtype, most: int) -> list[str]:
    """What becomes of the first samples of an operator: agrees, leaves it to PyTorch, cannot be traced,
    or differs.
    """
    (info,) = infos(name)
    if "empty" in name:  # numbers that nobody has written
        return []
    if dtype not in info.supported_dtypes("cpu"):
        return []
    torch.manual_seed(0)
    found = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        samples = list(
            zip(range(most), info.sample_inputs("cpu", dtype, requires_grad=False), strict=False)
        )
        for _, sample in samples:
            found.append(_outcome(info, sample))
    return found


def _outcome(info: Any, sample: Any) -> str:
    flat, spec = torch.utils._pytree.tree_flatten((sample.input, sample.args, sample.kwargs))
    at = [i for i, x in enumerate(flat) if isinstance(x, torch.Tensor)]
    tensors = [flat[i].detach().clone() for i in at]

    def call(*xs: Any) -> Any:
        leaves = list(flat)
        for i, x in zip(at, xs, strict=True):
            leaves[i] = x
        first, args, kwargs = torch.utils._pytree.tree_unflatten(leaves, spec)
        return info.op(first, *args, **kwargs)

    try:
        torch.manual_seed(42)  # as PyTorch's samples of random ops do
        want = tensors_of(call(*[x.clone() for x in tensors]))
        apart = make_fx(call, table(), tracing_mode="fake")(*tensors)
        traced = make_fx(torch.func.functionalize(apart), tracing_mode="fake")(*tensors)
    except Exception as e:  # PyTorch's own limits: sparse results, shapes that data decides
        return f"untraced: {type(e).__name__}"
    if any(
        getattr(getattr(n.target, "_schema", None), "is_mutable", False) for n in traced.graph.nodes
    ):
        return "untraced: writes to its inputs"
    ts.torch.report(reset=True)
    torch.manual_seed(42)
    try:
        got = evaluate(plan_of(traced), [ts.torch.from_torch(x) for x in tensors], {})
    except TesseraError as e:
        return f"refused: {e.message[:90]}"
    told = ts.torch.report(reset=True)
    if told.fallbacks:
        name = next(iter(told.fallbacks))
        return f"fallback: {name}: {told.reasons[name][:90]}"
    return _compared(want, [x for x in got if isinstance(x, ts.Tensor)])


def _compared(want: list[torch.Tensor], got: list[Any]) -> str:
    if len(want) != len(got):
        return f"differs: {len(got)} results for {len(want)}"
    for w, g in zip(want, got, strict=True):
        theirs = ts.torch.to_torch(ts.asarray(g))
        if tuple(w.shape) != tuple(theirs.shape) or w.dtype != theirs.dtype:
            return f"differs: {theirs.dtype} {tuple(theirs.shape)} for {w.dtype} {tuple(w.shape)}"
        try:
            torch.testing.assert_close(
                theirs, w.resolve_conj(), rtol=2e-4, atol=2e-5, equal_nan=True
            )
        except AssertionError as e:
            return f"differs: {' '.join(str(e).split())[:120]}"
    return "agrees"
