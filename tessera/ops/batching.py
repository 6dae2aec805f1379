"""Rules for a new leading axis: what an op's `batch` field is made of.

A rule is batch(node, operands, batched) -> result or results: `batched` says which operands have
the new axis in front, and every result has it there.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from tessera.core.dims import Size
from tessera.ir.graph.ir import Node, Value, bind
from tessera.ops.define import FUNCTIONS, broadcast

Mask = Sequence[bool]
Rule = Callable[[Node, Sequence[Value], Mask], Any]


@dataclass(frozen=True)
class Spread:
    """An axis of a mesh that several ranks share: who has which coordinates."""

    group: tuple[int, ...]  # the ranks, in the order of their coordinates
    ranges: tuple[tuple[int, int], ...]  # of each of them
    mine: int  # which of them is this rank
    loose: bool = False  # whether sums over it may be in any order

    @property
    def total(self) -> int:
        """How many coordinates the axis has."""
        return self.ranges[-1][1]

    @property
    def here(self) -> tuple[int, int]:
        """The coordinates of this rank."""
        return self.ranges[self.mine]


class _BatchingState(threading.local):
    name: str | None = None
    size: Size | None = None
    spread: Spread | None = None  # where ranks share the axis; the size is that of this rank's part


NEW_AXIS = (
    _BatchingState()
)  # the name and the size of the axis that is being added, where vmap gave one


@contextmanager
def adding(name: str | None, size: Size, spread: Spread | None = None) -> Iterator[None]:
    """While the block runs, the new axis has this name and size."""
    before = NEW_AXIS.name, NEW_AXIS.size, NEW_AXIS.spread
    NEW_AXIS.name, NEW_AXIS.size, NEW_AXIS.spread = name, size, spread
    try:
        yield
    finally:
        NEW_AXIS.name, NEW_AXIS.size, NEW_AXIS.spread = before


def batch_size(operands: Sequence[Value], batched: Mask) -> Size:
    """The size of the new axis."""
    sizes = [v.shape[0] for v, b in zip(operands, batched, strict=True) if b]
    size: Size | None = sizes[0] if sizes else NEW_AXIS.size
    assert size is not None, "no operand is batched"
    return size


def in_front(x: Value, batched: bool, size: Size) -> Value:
    """x with the new axis, repeated along it when it has none."""
    return x if batched else broadcast(x, (size, *x.shape))


def all_in_front(operands: Sequence[Value], batched: Mask) -> list[Value]:
    """All operands with the new axis."""
    size = batch_size(operands, batched)
    return [in_front(x, b, size) for x, b in zip(operands, batched, strict=True)]


def leading(n: Node, operands: Sequence[Value], batched: Mask) -> Any:
    """For ops that treat axes before their own as a stack of problems."""
    return bind(n.op, *all_in_front(operands, batched), **n.params)


def shifted(params: Any) -> dict[str, Any]:
    """Parameters with `axis` and `axes` counted past the new axis."""
    return {**params, **{k: _shift(params[k]) for k in ("axis", "axes") if k in params}}


def _shift(axes: Any) -> Any:
    return tuple(a + 1 for a in axes) if isinstance(axes, tuple) else axes + 1


def along(n: Node, operands: Sequence[Value], batched: Mask) -> Any:
    """For ops whose only axes are those that `axis` or `axes` name."""
    return bind(n.op, *all_in_front(operands, batched), **shifted(n.params))


def per_axis(**first: Any) -> Rule:
    """For ops of one operand with parameters that hold an entry for each axis: what goes in front."""

    def rule(n: Node, operands: Sequence[Value], batched: Mask) -> Any:
        new = {k: (v, *n.params[k]) for k, v in first.items()}
        return bind(n.op, *operands, **{**n.params, **new})

    return rule


def merged(n: Node, operands: Sequence[Value], batched: Mask) -> Value:
    """For ops whose operand 0 has a batch in front: the new axis of that alone goes into it."""
    (x, *rest), reshape = operands, FUNCTIONS["reshape"]
    assert not any(batched[1:]), n
    y = bind(n.op, reshape(x, (x.shape[0] * x.shape[1], *x.shape[2:])), *rest, **n.params)
    made: Value = reshape(y, (*x.shape[:2], *y.shape[1:]))
    return made


def to_front(x: Value, axis: int) -> Value:
    """x with one axis moved to the front."""
    moved: Value = FUNCTIONS["transpose"](x, (axis, *(i for i in range(x.ndim) if i != axis)))
    return moved


def spread_behind(x: Value, rank: int) -> Value:
    """x[b, ...] with axes of size 1 after the first, so that it has this rank."""
    shape = (x.shape[0], *(1,) * (rank - x.ndim), *x.shape[1:])
    made: Value = FUNCTIONS["reshape"](x, shape)
    return made
