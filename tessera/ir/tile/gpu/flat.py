"""flat: pointwise kernels on tensors of one shape run along one axis, whatever their rows are.

    y[r<4099, c<2053] = f(x[r, c])   ->   y[i<8415247] = f(x[i]):  4108 blocks of 2048 without a mask, and
    a tail

Rows of odd lengths begin at odd places of memory and end inside of a block, so that their elements are
accessed one by one, and some threads have nothing to do.  Along one axis whole blocks begin at multiples of
their size and need no masks: accesses are vectors.  What is left behind the last whole block is taken by
small blocks with masks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod

from tessera.core.dims import Size, larger, smaller, symbols
from tessera.core.types import TensorType
from tessera.ir.schedule import ir as schedule
from tessera.ir.schedule.gpu_blocks import RowsBlock
from tessera.ir.schedule.ir import Axis, Stage, Term
from tessera.ir.tile.gpu.rows import Rows, default_block
from tessera.ir.tile.gpu.terms import AxisLine
from tessera.ir.tile.ir import Kernel

_AXIS = Axis("_flat", 1)


def flat_rows(k: schedule.Kernel, types: Mapping[str, TensorType]) -> FlatRows | None:
    """The kernel along one axis, where rows do not fill blocks and every tensor has the points of all."""
    if any(s.combine for s in k.stages) or not k.stages[0].axes:
        return None
    n = default_block(k).columns
    if int(k.stages[0].axes[-1].size) % n == 0:
        return None
    made = _flattened(k, types)
    return None if made is None else FlatRows(*made)


class FlatRows(Rows):
    """A kernel of one axis being written: whole blocks, then the tail."""

    def __init__(
        self,
        kernel: schedule.Kernel,
        types: Mapping[str, TensorType],
        block: RowsBlock | None = None,
    ):
        super().__init__(kernel, types, block)
        self.types = types

    def kernel(self) -> Kernel:
        size, n = int(self.k.stages[0].axes[0].size), self.block.columns
        whole, each = size // n, min(32 * self.threads.warps, n)
        rest = size - whole * n
        p = self.b.program(whole + -(-rest // each))
        if not rest:
            self.part(p * n, n, size)
            return self.b.finish()
        if whole:
            with self.b.loop(p, smaller(p + 1, whole), 1) as loop:
                self.part(loop.variable * n, n, whole * n)
        with self.b.loop(larger(p, whole), p + 1, 1) as loop:
            self.part(whole * n + (loop.variable - whole) * each, each, size)
        return self.b.finish()

    def part(self, at: Size, n: int, size: int) -> None:
        """The elements from a place on."""
        where = self.context(None)
        for s in self.k.stages:
            where.lines[s.axes[0].name] = AxisLine(1, at, n, size)
        self.do_piece(self.k.stages, where)


# From rows to one axis


def _flattened(
    k: schedule.Kernel, types: Mapping[str, TensorType]
) -> tuple[schedule.Kernel, Mapping[str, TensorType]] | None:
    shape = tuple(int(a.size) for a in k.stages[0].axes)
    if any(tuple(s.type.shape) != shape for s in k.stages):
        return None
    axis = replace(_AXIS, size=prod(shape))
    own = {s.name for s in k.stages}
    flat = _Flat(shape, own, types, axis)
    stages: list[Stage] = []
    for s in k.stages:
        term = flat.term(s.term, s.axes)
        if term is None:
            return None
        stages.append(replace(s, axes=(axis,), term=term))
    if any(types[n].shape != shape for n in k.outputs):
        return None
    whole = {*flat.whole, *k.outputs}
    changed = {n: t.with_shape((axis.size,)) if n in whole else t for n, t in types.items()}
    return replace(k, rows=0, stages=tuple(stages)), changed


class _Flat:
    """Terms at a place of all axes as terms at a place of one."""

    def __init__(
        self, shape: tuple[int, ...], own: set[str], types: Mapping[str, TensorType], axis: Axis
    ):
        self.shape, self.own, self.types, self.axis = shape, own, types, axis
        self.whole: set[str] = set()  # tensors that are read along the axis
        self.parts: set[str] = set()  # those of which one element is read

    def term(self, t: Term, axes: Sequence[Axis]) -> Term | None:
        """The same number along the axis; None where a place is no place of it."""
        if isinstance(t, schedule.Read):
            return self.read(t, axes)
        if isinstance(t, schedule.Position):
            return self.position(t, axes)
        inner = [self.term(c, axes) for c in t.children()]
        found = tuple(c for c in inner if c is not None)
        if len(found) < len(inner):
            return None
        if isinstance(t, schedule.Apply):
            return replace(t, operands=found)
        return replace(t, operand=found[0]) if isinstance(t, schedule.Cast) else t

    def read(self, t: schedule.Read, axes: Sequence[Axis]) -> Term | None:
        if any(isinstance(x, Term) for x in t.index):
            return None
        here = len(t.index) == len(axes) and all(
            x == a.variable or (x == 0 and a.size == 1) for x, a in zip(t.index, axes, strict=True)
        )
        inside = t.source in self.own or self.types[t.source].shape == self.shape
        if here and inside and t.source not in self.parts:
            self.whole |= {t.source} - self.own
            return replace(t, index=(self.axis.variable,))
        if any(symbols(x) for x in t.index) or t.source in self.whole or t.source in self.own:
            return None
        self.parts.add(t.source)
        return t

    def position(self, t: schedule.Position, axes: Sequence[Axis]) -> Term | None:
        """A place that does not move, or the number of the element."""
        if not symbols(t.value):
            return t
        number: Size = 0
        for a in axes:
            number = number * int(a.size) + (a.variable if a.size != 1 else 0)
        return replace(t, value=self.axis.variable) if t.value == number else None
