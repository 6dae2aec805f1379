"""Every op over every dtype: it computes as its record says, or refuses with an error."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np

import tessera as ts
from tessera.core.dtype import FORMATS, DType, as_dtype
from tessera.core.errors import DTypeError
from tessera.core.rounding import round_to
from tessera.core.types import TensorType
from tessera.ir.graph.interp import kernel
from tessera.ir.graph.ir import REGISTRY, Node, Value
from tessera.ir.graph.op import Op
from tests.support.cases.op_cases import THROUGH, Application, Case, all_cases, applications, draw
from tests.support.runners.each import each
from tests.support.runners.tolerance import TOLERANCE, assert_close, assert_same_bits

RUNS_ON = "numpy"

# Ops for which "the wide result, rounded once" is not the meaning.
OWN_MEANING = {
    "nextafter": "the next number of the format itself",
    "cast": "rounds from its operand's format, not from a wider one",
    "float_bits": "the bits of the format itself",
    "from_bits": "the same, back",
    "call": "a graph, whose types are fixed",
    "host_call": "a function of the user, whose types are stated",
    "custom": "as call",
    "checkpoint": "as call",
    "kernel": "a Tile program, whose types are fixed",
    "cond": "as call",
    "scan": "as call",
    "while_loop": "as call",
}


def accepts(op: Op, i: int, dtype: DType) -> bool:
    kinds = op.kinds if isinstance(op.kinds, str) else op.kinds[min(i, len(op.kinds) - 1)]
    return dtype.kind in kinds


@cache
def applied(name: str) -> tuple[Application, ...]:
    """What the cases of an op bind it on."""
    mine = [c for c in all_cases() if c.op is not None and c.op.name == name]
    return tuple(a for c in mine for a in applications(c, c.draw()))


def main_dtype(n: Node) -> DType | None:
    """The dtype of the operands that carry data: floats if there are any."""
    dtypes = [t.dtype for t in n.types]
    return next((d for d in dtypes if d.kind in "fc"), dtypes[0] if dtypes else None)


OPS_AND_DTYPES = [
    (op.name, d)
    for op in REGISTRY.values()
    for d in FORMATS.values()
    if op.name not in OWN_MEANING and any(accepts(op, i, d) for i in range(3))
]


@each(OPS_AND_DTYPES, by=lambda c: str(c[0]))
def test_a_result_is_the_wide_result_rounded_once(name: str, dtype: DType) -> None:
    for a in applied(name):
        main = main_dtype(a.node)
        if main is None:
            check_made_from_nothing(a.node, dtype)
            continue
        changed = [t.dtype is main for t in a.node.types]
        if not fits(a.node.op, changed, dtype):
            continue
        xs = [convert(x, dtype) if c else x for x, c in zip(a.operands, changed, strict=True)]
        check_rounded_once(a.node, xs, changed, dtype)


def fits(op: Op, changed: Sequence[bool], dtype: DType) -> bool:
    return all(accepts(op, i, dtype) for i, c in enumerate(changed) if c)


def convert(x: np.ndarray, dtype: DType) -> np.ndarray:
    """Small whole numbers for integers, the sign for bools, and an imaginary part for complex."""
    if dtype.kind == "b":
        return np.asarray(x > 0)
    if dtype.kind in "iu":
        whole = np.rint(np.real(x).astype(np.float64))
        return round_to(np.abs(whole) if dtype.kind == "u" else whole, dtype)
    if dtype.kind == "c":
        return np.asarray(x * (1 + 0.5j), dtype.np)
    return round_to(np.real(x).astype(np.float64), dtype)


def wide_of(op: Op, dtype: DType) -> DType:
    """Where the op computes on dtype; for what is not narrow, the widest format of its kind."""
    if dtype.is_narrow:
        return dtype.accum if op.combine is not None else dtype.compute
    return as_dtype({"b": "bool", "u": "u64", "i": "i64", "f": "f64", "c": "c128"}[dtype.kind])


def attempt(f: Callable[[], Any]) -> tuple[Any, DTypeError | None]:
    """What f gives, or the error with which it refuses a dtype."""
    try:
        return f(), None
    except DTypeError as e:
        return None, e


def run(n: Node, xs: Sequence[np.ndarray], types: Sequence[TensorType]) -> list[Any] | None:
    """Results as (array, type), or None when the record refuses the types."""
    outs, error = attempt(lambda: n.op.result_types(types, n.params))
    if error is not None:
        assert error.message.startswith(n.op.name), error.message
        return None
    with np.errstate(all="ignore"):
        ys = kernel(n.op, types, outs, n.params)(*xs)
    return list(zip(ys if n.op.multiple else [ys], outs, strict=True))


def check_rounded_once(
    n: Node, xs: Sequence[np.ndarray], changed: Sequence[bool], dtype: DType
) -> None:
    def types(d: DType) -> list[TensorType]:
        return [t.with_dtype(d) if c else t for t, c in zip(n.types, changed, strict=True)]

    wide = wide_of(n.op, dtype)
    got = run(n, xs, types(dtype))
    want = run(
        n, [x.astype(wide.np) if c else x for x, c in zip(xs, changed, strict=True)], types(wide)
    )
    assert (got is None) == (want is None)
    for (y, t), (w, _) in zip(got or [], want or [], strict=True):
        assert y.shape == t.shape
        assert y.dtype == t.dtype.np
        if dtype.is_narrow or dtype.kind in "biu":
            assert_same_bits(y, round_to(np.asarray(w), t.dtype))
        else:
            assert_close(y, w, TOLERANCE[dtype.name], times=20)


def check_made_from_nothing(n: Node, dtype: DType) -> None:
    """An op without operands makes the dtype that it is asked for."""
    if "dtype" not in n.params:
        return
    p = {**n.params, "dtype": dtype}
    (t,) = n.op.result_types((), p)
    y = kernel(n.op, (), (t,), p)()
    assert t.dtype is dtype
    assert y.dtype == dtype.np


PUBLIC = [
    (c, d)
    for c in {
        c.name: c for c in reversed(all_cases()) if c.name not in {*THROUGH, "host_call"}
    }.values()
    for d in FORMATS.values()
    if any(s.given is None for s in c.slots)
]


@each(PUBLIC, by=lambda c: str(c[0].name), told=lambda c: f"{c[0]}, {c[1]}")
def test_a_function_runs_or_refuses_the_dtype(case: Case, dtype: DType) -> None:
    rng = np.random.default_rng(3)
    xs = [
        ts.asarray(draw(s.shape, dtype, case.domain, rng) if s.given is None else s.given)
        for s in case.slots
    ]
    ys, error = attempt(lambda: case.run(xs))
    if error is not None:
        mine = [d.name for d in FORMATS.values() if d.kind == dtype.kind]  # it may be promoted
        assert any(name in error.message for name in mine), error.message
        assert ": " in error.message, error.message
        return
    for y in ys:
        assert isinstance(y, Value)
        assert isinstance(y.storage, np.ndarray)
        assert y.storage.dtype == y.dtype.np
        assert y.storage.shape == y.shape
