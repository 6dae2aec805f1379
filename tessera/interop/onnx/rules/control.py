"""Control flow: If, Loop, Scan.

What is known while tracing is decided there: one branch, or a loop that is unrolled by Python where it
is eager or carries sequences.  What is traced becomes cond, scan or while_loop.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tessera.core.dtype import i64
from tessera.core.errors import DTypeError, ShapeError, TesseraError, TreeError
from tessera.interop.onnx import assume
from tessera.interop.onnx.evaluate import reads
from tessera.interop.onnx.model import DataDependentError, OnnxError, OnnxGraph, OnnxInfo
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
from tessera.lang.control import eval_shape
from tessera.ops.define import as_value

_UNLIKE = (ShapeError, DTypeError, TreeError)
_FEW = 8  # nodes of a branch that is computed whichever is taken
_MOST = 1 << 31  # steps of a loop that only its condition ends


@rule("If", fold=False)
def _if(n: NodeCall, condition: Any) -> Any:
    yes, no = n.need("then_branch"), n.need("else_branch")
    if is_known(condition):
        return tuple(n.run(yes if bool(one(condition, "the condition")) else no, []))
    try:
        return _chosen(n, op.reshape(condition, ()), yes, no)
    except TesseraError as e:  # only the branch that is taken needs to fit its inputs
        raise DataDependentError(f"its branches differ: {e.message}") from None


def _chosen(n: NodeCall, condition: Any, yes: OnnxGraph, no: OnnxGraph) -> tuple[Any, ...]:
    """A branch; where each is a few nodes that give single numbers, both are computed."""
    if tracing() and all(len(g.nodes) <= _FEW and not _nests(g) for g in (yes, no)):
        with assume.collected() as held:
            both = [_declared(n.run(g, []), g.outputs) for g in (yes, no)]
        if not held and all(a.type == b.type and not a.ndim for a, b in zip(*both, strict=True)):
            return tuple(op.where(condition, a, b) for a, b in zip(*both, strict=True))

    def branches(run: Callable[[Callable[[], Any]], Any]) -> Any:
        parts = [lambda g=g: run(lambda: _declared(n.run(g, []), g.outputs)) for g in (yes, no)]
        return op.cond(condition, *parts)

    with assume.collected() as held:
        out = branches(lambda f: f())
    if held:
        out, holds = branches(assume.answered)
        assume.assume(holds)
    return tuple(out)


def _declared(found: Sequence[Any], outputs: Sequence[OnnxInfo]) -> list[Any]:
    """Results of a region, single numbers in the shape that it declares for them."""
    out = []
    for x, info in zip(_values(found), outputs, strict=True):
        single = info.shape is not None and set(info.shape) <= {1} and set(x.shape) <= {1}
        out.append(op.reshape(x, info.shape) if single and x.shape != info.shape else x)
    return out


def _nests(g: OnnxGraph) -> bool:
    return any(True for n in g.nodes for _ in n.graphs())


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
    if not tracing() or any(isinstance(s, list) or is_foreign(s) for s in state):
        return _steps_in_python(n, body, trips, condition, state)
    loop = _Loop(n, body, state)
    starts = is_known(condition) and (condition is None or bool(one(condition, "the condition")))
    if starts and is_known(trips) and trips is not None:
        try:
            return _scanned(loop, int(one(trips, "the trip count")))
        except _NotAScan:
            pass
        except _UNLIKE as e:
            raise DataDependentError(f"its state changes type: {e.message}") from None
    if len(body.outputs) > len(state) + 1:
        raise DataDependentError(
            "the number of steps is decided by data and a value of each step is kept; run the model outside "
            "of jit"
        )
    runs = starts and is_known(trips) and (trips is None or one(trips, "the trip count") > 0)
    return _while(loop, trips, condition, bool(runs))


class _Loop:
    """The body of a Loop, whose state is what changes; what every step hands on stays outside."""

    def __init__(self, n: NodeCall, body: OnnxGraph, state: Sequence[Any]):
        self.n, self.body, self.state = n, body, state
        pairs = zip(body.inputs[2:], body.outputs[1:], strict=False)
        self.moving = [k for k, (a, b) in enumerate(pairs) if a.name != b.name]
        read = {o.name for o in body.outputs}.union(*map(reads, body.nodes))
        self.left = [body.outputs[1 + k] for k in self.moving]
        self.unread = {k for k in self.moving if body.inputs[2 + k].name not in read}

    def first(self) -> list[Any]:
        """The state that changes, before the first step."""
        return _values([self.state[k] for k in self.moving])

    def step(self, i: Any, on: Any, moving: Sequence[Any]) -> tuple[Any, list[Any], list[Any]]:
        """The condition, the state that changes and what is kept, after a step."""
        state = list(self.state)
        for k, x in zip(self.moving, moving, strict=True):
            state[k] = x
        out = self.n.run(self.body, [i, on, *state])
        after = _declared([out[1 + k] for k in self.moving], self.left)
        return out[0], after, _values(out[1 + len(state) :])

    def after(self, moving: Sequence[Any], kept: Sequence[Any] = ()) -> tuple[Any, ...]:
        """The outputs of the node."""
        state = list(self.state)
        for k, x in zip(self.moving, moving, strict=True):
            state[k] = x
        return (*state, *kept)


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


def _scanned(loop: _Loop, trips: int) -> Any:
    """A loop of a known number of steps whose body never ends it."""

    def step(carry: list[Any], i: Any) -> tuple[list[Any], list[Any]]:
        go, after, kept = loop.step(i, np.array(True), carry)
        if not is_known(go) or not bool(one(go, "the condition")):
            raise _NotAScan
        return after, kept

    return loop.after(*_carried(step, loop.first(), op.arange(trips)))


def _carried(step: Callable[[Any, Any], Any], first: list[Any], rows: Any) -> Any:
    """A scan; what its steps assume is carried along."""
    with assume.collected() as held:
        found = op.scan(step, first, rows)
    if not held:
        return found

    def answered(carry: Any, row: Any) -> Any:
        (after, kept), holds = assume.answered(lambda: step(carry[0], row), carry[1])
        return (after, holds), kept

    (last, holds), kept = op.scan(answered, (first, as_value(np.array(True))), rows)
    assume.assume(holds)
    return last, kept


def _while(loop: _Loop, trips: Any, condition: Any, runs: bool) -> Any:
    """A loop that data ends; `runs` says that it takes a step at least."""
    most = np.array(_MOST) if trips is None else op.reshape(trips, ())
    go = np.array(True) if condition is None else op.reshape(condition, ())

    def test(c: Any) -> Any:
        return op.logical_and(c[1], op.lt(c[0], most))

    def step(c: Any) -> Any:
        i, on, carry = c
        go, after, _ = loop.step(i, on, carry)
        return op.add(i, 1), op.reshape(go, ()), after

    def answered(c: Any) -> Any:
        return assume.answered(lambda: step(c[0]), c[1])

    try:
        first = loop.first()
        if runs and loop.unread:
            first = _as_left(loop, first)
        start = (np.array(0), go, first)
        with assume.collected() as held:
            found = op.while_loop(test, step, start)
        if held:
            true = as_value(np.array(True))
            found, holds = op.while_loop(lambda c: test(c[0]), answered, (start, true))
            assume.assume(holds)
        return loop.after(found[2])
    except _UNLIKE as e:
        raise DataDependentError(f"its state changes type: {e.message}") from None


def _as_left(loop: _Loop, first: list[Any]) -> list[Any]:
    """The state, but what no step reads begins as zeros of the type that steps leave it in."""
    with assume.collected():
        types = eval_shape(
            lambda c: loop.step(op.full((), 0, i64), as_value(np.array(True)), c)[1], first
        )
    return [
        op.zeros(t.shape, t.dtype) if k in loop.unread else x
        for k, x, t in zip(loop.moving, first, types, strict=True)
    ]


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

    last, ys = _carried(step, _values(state), rows)
    out_axes = n.get("scan_output_axes", [0] * kept)
    out_ways = n.get("scan_output_directions", [0] * kept)
    done = []
    for y, axis, way in zip(ys, out_axes, out_ways, strict=True):
        turned = op.flip(y, 0) if way else y
        done.append(op.moveaxis(turned, 0, axis_of(axis, len(y.shape))))
    return (*last, *done)
