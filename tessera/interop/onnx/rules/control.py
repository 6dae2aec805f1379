"""Control flow: If, Loop, Scan.

What is known while tracing is decided there: one branch, or a loop that is unrolled by Python where it
is eager or carries sequences.  What is traced becomes cond, scan or while_loop.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tessera.core.errors import DTypeError, ShapeError, TesseraError, TreeError
from tessera.interop.onnx.model import DataDependentError, OnnxError, OnnxGraph
from tessera.interop.onnx.rule import (
    NodeCall,
    axis_of,
    is_foreign,
    is_known,
    one,
    rule,
    tensor,
    tracing,
)
from tessera.lang import op
from tessera.ops.define import as_value

_UNLIKE = (ShapeError, DTypeError, TreeError)
_MOST = 1 << 31  # steps of a loop that only its condition ends


@rule("If", fold=False)
def _if(n: NodeCall, condition: Any) -> Any:
    yes, no = n.need("then_branch"), n.need("else_branch")
    if is_known(condition):
        return tuple(n.run(yes if bool(one(condition, "the condition")) else no, []))
    try:
        out = op.cond(
            op.reshape(condition, ()),
            lambda: _values(n.run(yes, [])),
            lambda: _values(n.run(no, [])),
        )
    except TesseraError as e:  # only the branch that is taken needs to fit its inputs
        raise DataDependentError(f"its branches differ: {e.message}") from None
    return tuple(out)


def _values(xs: Sequence[Any]) -> list[Any]:
    """Results of a traced region, which are tensors."""
    if any(isinstance(x, list) or is_foreign(x) or x is None for x in xs):
        raise DataDependentError(
            "a sequence, an optional or text leaves a branch that is decided by data; run the model outside "
            "of jit"
        )
    return [as_value(tensor(x)) for x in xs]


@rule("Loop", fold=False)
def _loop(n: NodeCall, trips: Any = None, condition: Any = None, *state: Any) -> Any:
    body: OnnxGraph = n.need("body")
    known = all(map(is_known, (trips, condition)))
    if not tracing() or any(isinstance(s, list) or is_foreign(s) for s in state):
        return _steps_in_python(n, body, trips, condition, state)
    if known and (condition is None or bool(one(condition, "the condition"))) and trips is not None:
        try:
            return _scanned(n, body, int(one(trips, "the trip count")), state)
        except _NotAScan:
            pass
        except _UNLIKE as e:
            raise DataDependentError(f"its state changes type: {e.message}") from None
    if len(body.outputs) > len(state) + 1:
        raise DataDependentError(
            "the number of steps is decided by data and a value of each step is kept; run the model outside "
            "of jit"
        )
    return _while(n, body, trips, condition, state)


class _NotAScan(Exception):
    """The body of a loop decides when it ends."""


def _steps_in_python(n: NodeCall, body: OnnxGraph, trips: Any, condition: Any, state: Any) -> Any:
    most = _MOST if trips is None else int(one(trips, "the trip count"))
    go = True if condition is None else bool(one(condition, "the condition"))
    carried, count = list(state), len(state)
    kept: list[list[Any]] = [[] for _ in body.outputs[count + 1 :]]
    i = 0
    while go and i < most:
        out = n.run(body, [np.array(i, np.int64), np.array(True), *carried])
        go = bool(one(out[0], "the condition of the loop"))
        carried = out[1 : count + 1]
        for all_of, x in zip(kept, out[count + 1 :], strict=True):
            all_of.append(x)
        i += 1
    return (*carried, *(_stacked(xs, body, k + count + 1) for k, xs in enumerate(kept)))


def _stacked(xs: list[Any], body: OnnxGraph, k: int) -> Any:
    if not xs:
        info = body.outputs[k]
        sizes = [s if isinstance(s, int) else 0 for s in info.shape or ()]
        return np.zeros((0, *sizes), info.dtype or np.float32)
    return np.stack(xs) if is_foreign(xs[0]) else op.stack([tensor(x) for x in xs])


def _scanned(n: NodeCall, body: OnnxGraph, trips: int, state: Sequence[Any]) -> Any:
    """A loop of a known number of steps whose body never ends it."""

    def step(carry: list[Any], i: Any) -> tuple[list[Any], list[Any]]:
        out = n.run(body, [i, np.array(True), *carry])
        if not is_known(out[0]) or not bool(one(out[0], "the condition")):
            raise _NotAScan
        values = _values(out[1:])
        return values[: len(state)], values[len(state) :]

    last, kept = op.scan(step, _values(state), op.arange(trips))
    return (*last, *kept)


def _while(n: NodeCall, body: OnnxGraph, trips: Any, condition: Any, state: Sequence[Any]) -> Any:
    most = np.array(_MOST) if trips is None else op.reshape(trips, ())
    go = np.array(True) if condition is None else op.reshape(condition, ())

    def test(c: Any) -> Any:
        return op.logical_and(c[1], op.lt(c[0], most))

    def step(c: Any) -> Any:
        i, on, carry = c
        out = _values(n.run(body, [i, on, *carry]))
        return op.add(i, 1), op.reshape(out[0], ()), out[1:]

    try:
        return tuple(op.while_loop(test, step, (np.array(0), go, _values(state)))[2])
    except _UNLIKE as e:
        raise DataDependentError(f"its state changes type: {e.message}") from None


@rule("Scan", fold=False)
def _scan(n: NodeCall, *args: Any) -> Any:
    if n.version < 9:
        return _scan_of_batches(n, *args)
    return _scan_along(n, n.need("body"), args)


def _scan_of_batches(n: NodeCall, lengths: Any, *args: Any) -> Any:
    """Version 8: a scan for each element of the batch, along axis 1."""
    if lengths is not None:
        raise OnnxError("sequence_lens of version 8 is not run")
    body, count = n.need("body"), n.need("num_scan_inputs")
    parts = [
        _scan_along(n, body, [op.index(x, b) for x in args], directions=n.get("directions"))
        for b in range(int(args[-1].shape[0]))
    ]
    assert count
    return tuple(op.stack(list(xs)) for xs in zip(*parts, strict=True))


def _scan_along(
    n: NodeCall, body: OnnxGraph, args: Sequence[Any], directions: list[int] | None = None
) -> tuple[Any, ...]:
    count = n.need("num_scan_inputs")
    state, xs = list(args[: len(args) - count]), list(args[len(args) - count :])
    kept = len(body.outputs) - len(state)
    axes = n.get("scan_input_axes", [0] * count)
    ways = directions or n.get("scan_input_directions", [0] * count)
    rows = []
    for x, axis, way in zip(xs, axes, ways, strict=True):
        moved = op.moveaxis(x, axis_of(axis, len(x.shape)), 0)
        rows.append(op.flip(moved, 0) if way else moved)

    def step(carry: list[Any], row: list[Any]) -> tuple[list[Any], list[Any]]:
        out = _values(n.run(body, [*carry, *row]))
        return out[: len(state)], out[len(state) :]

    last, ys = op.scan(step, _values(state), rows)
    out_axes = n.get("scan_output_axes", [0] * kept)
    out_ways = n.get("scan_output_directions", [0] * kept)
    done = []
    for y, axis, way in zip(ys, out_axes, out_ways, strict=True):
        turned = op.flip(y, 0) if way else y
        done.append(op.moveaxis(turned, 0, axis_of(axis, len(y.shape))))
    return (*last, *done)
