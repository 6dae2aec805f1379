"""Legality: whether a kernel can be computed by a nest.

A nest is checked by itself when it is made (ir/schedule/nests/nest.py); what depends on the kernel is checked
here: the axes that it has, and which of them instances may share.
"""

from __future__ import annotations

from typing import NoReturn

from tessera.core.errors import ScheduleError
from tessera.core.folds import LANES, LEAF
from tessera.ir.schedule.ir import ANY, Kernel
from tessera.ir.schedule.nests.matrix import REGISTERS, SIDE, grain, is_matrix, reads_rows
from tessera.ir.schedule.nests.nest import Nest, NestLoop
from tessera.ir.schedule.sweeps import (
    by_pass,
    folds_chains,
    folds_lanes,
    goes_together,
    has_columns_alone,
    is_uniform,
)

_MOST = 1024  # elements of a block of registers
_STREAMS = 8  # leaves of a fold side by side
_MOST_ROWS = 8  # rows that go through passes together


def row_axes(kernel: Kernel) -> list[str]:
    """The names of a kernel's rows in nests."""
    letter = "b" if kernel.contracts else "r"
    return [f"{letter}{i}" for i in range(kernel.rows)]


def axes_of(kernel: Kernel) -> list[str]:
    """The names of a kernel's axes in nests."""
    if kernel.contracts:
        return [*row_axes(kernel), "m", "n", "k"]
    chains = any(folds_chains(s, kernel.rows) for s in kernel.stages)
    columns = any(s.axes[kernel.rows :] or s.reduced for s in kernel.stages)
    lanes = any(folds_lanes(s, kernel.rows) for s in kernel.stages)
    return row_axes(kernel) + ["c"] * columns + ["k"] * chains + ["l"] * lanes


def check_nest(kernel: Kernel, nest: Nest) -> None:
    """Raise ScheduleError unless a kernel can be computed by a nest."""
    _Check(kernel, nest).run()


def is_legal(kernel: Kernel, nest: Nest) -> bool:
    """Whether a kernel can be computed by a nest."""
    try:
        check_nest(kernel, nest)
    except ScheduleError:
        return False
    return True


class _Check:
    def __init__(self, kernel: Kernel, nest: Nest):
        self.k, self.nest = kernel, nest
        self.rows = row_axes(kernel)

    def fail(self, what: object, message: str) -> NoReturn:
        raise ScheduleError(f"kernel {self.k.name}: {what}: {message}")

    def run(self) -> None:
        axes = axes_of(self.k)
        for x in self.nest.loops:
            if x.axis not in axes:
                has = f"has {', '.join(axes)}" if axes else "has none"
                self.fail(x, f"there is no axis {x.axis} to loop over; the kernel {has}")
            if x.kind == "parallel" and len(self.nest.steps(x.axis, "parallel")) > 1:
                self.fail(x, f"instances share {x.axis} once; make one of its loops serial")
        self.check_rows()
        if self.k.contracts:
            self.check_contraction()
        else:
            self.check_columns()

    # Rows

    def check_rows(self) -> None:
        serial = [x for x in self.nest.loops if x.kind == "serial"]
        for x in self.nest.loops:
            if x.axis in self.rows and x.kind == "unroll":
                self.check_together(x)
            if x.axis in self.rows and x.kind == "vector":
                self.fail(x, "rows do not lie along vectors; use a serial loop")
            if x.axis in self.rows and x.kind == "serial" and x.step != 1:
                self.fail(x, f"rows are computed one by one; use {x.axis}:1")
        for x in self.nest.loops:
            if (
                x.axis in self.rows
                and x.step > 1
                and 1 not in self.nest.steps(x.axis, "serial", "unroll")
            ):
                self.fail(x, f"{x.axis}:1 is missing; split the loop")
        inner = next((i for i, x in enumerate(serial) if x.axis not in self.rows), len(serial))
        for x in serial[inner:]:
            if x.axis in self.rows:
                self.fail(x, f"a loop over rows stands outside of {serial[inner]}; reorder")

    def check_together(self, x: NestLoop) -> None:
        """Rows that go through passes together: those of an instance, always as many."""
        size = self.k.stages[0].axes[self.k.rows - 1].size
        steps = self.nest.steps(x.axis)
        if self.k.contracts or x.axis != self.rows[-1] or not goes_together(self.k):
            self.fail(x, "rows are computed one by one; use a serial loop")
        if x.step != 1 or len(steps) != 2 or not 2 <= steps[0] <= _MOST_ROWS:
            wanted = f"parallel {x.axis}:2, unroll {x.axis}:1"
            self.fail(x, f"2 to {_MOST_ROWS} rows of an instance go together; use {wanted}")
        if not isinstance(size, int) or size % steps[0]:
            self.fail(x, f"{size} rows are not a multiple of {steps[0]}; use a serial loop")
        if self.nest.steps("c", "parallel") or self.nest.steps("k", "parallel"):
            self.fail(x, "rows that go together are not shared; use a serial loop")

    # Columns

    def check_columns(self) -> None:
        if self.nest.staged:
            self.fail(self.nest, "only the factors of a contraction are staged")
        for x in self.nest.loops:
            if x.axis == "c":
                self.check_column(x)
            elif x.axis == "k":
                self.check_shared_fold(x)
            elif x.axis == "l":
                self.check_streams(x)
        serial = self.nest.steps("c", "serial")
        if len(serial) > 2:
            self.fail(self.nest, "columns have at most two serial loops; fuse some")
        if serial and not self.nest.steps("c", "vector"):
            self.fail(self.nest, f"columns lie along vectors; end with vector c:{LANES}")

    def check_column(self, x: NestLoop) -> None:
        if x.kind == "unroll":
            self.fail(x, "columns lie along vectors; use a serial loop of a larger step")
        if x.kind == "serial" and x.step > _MOST:
            self.fail(x, f"a block of registers has at most {_MOST} elements; split the loop")
        if x.step % LANES:
            self.fail(x, f"columns lie along vectors; use a multiple of {LANES}")
        if x.kind == "parallel" and not has_columns_alone(self.k):
            if not any(folds_lanes(s, self.k.rows) for s in self.k.stages):
                self.fail(x, "stages have columns of several sizes, which cannot be shared")
            self.check_leaves(x)

    def check_shared_fold(self, x: NestLoop) -> None:
        if x.kind != "parallel":
            self.fail(x, "columns are folded leaf by leaf; leave this loop out or share it")
        self.check_leaves(x)

    def check_streams(self, x: NestLoop) -> None:
        if x.kind != "unroll" or x.step > _STREAMS:
            self.fail(x, f"leaves are folded side by side; use unroll l:1 to unroll l:{_STREAMS}")

    def check_leaves(self, x: NestLoop) -> None:
        """A fold that instances share: each takes a subtree of leaves."""
        leaves = x.step // LEAF
        subtrees = self.k.order == ANY or not leaves & (leaves - 1)
        if x.step % LEAF or not subtrees:
            self.fail(x, f"a fold is shared by subtrees of leaves; use {LEAF} times a power of two")
        if not all(map(is_uniform, by_pass(self.k))):
            self.fail(x, "its passes fold axes of several lengths, which cannot be shared")

    # Contractions

    def check_contraction(self) -> None:
        matrix = is_matrix(self.nest)
        if matrix:
            self.check_matrix()
        else:
            self.check_reduced()
        for axis in "mn":
            if not self.nest.steps(axis, "parallel", "serial"):
                self.fail(self.nest, f"there is no loop over {axis}; add one")
        if not self.nest.steps("n", "vector"):
            self.fail(self.nest, f"columns lie along vectors; end with vector n:{LANES}")
        for x in self.nest.loops:
            if x.kind == "unroll" and (x.axis, x.step) != ("m", SIDE if matrix else 1):
                self.fail(x, "only m is unrolled, by single rows; use unroll m:1")
            if x.kind == "vector" and x.axis != "n":
                self.fail(x, f"the columns lie along vectors; use vector n:{LANES}")
        height, width = (self.nest.steps(a, "parallel", "serial")[-1] for a in "mn")
        if height * width > _MOST:
            self.fail(self.nest, f"a block of {height} by {width} has more than {_MOST} elements; "
                      "split m or n")  # fmt: skip
        self.check_stages()

    def check_matrix(self) -> None:
        """Blocks of whole matrix registers, between factors that are packed for them."""
        step, steps = grain(self.k), self.nest.steps("k")
        if not step:
            self.fail(
                self.nest, "matrix registers multiply bytes, or bf16 in any order; use unroll m:1"
            )
        if (
            not steps
            or steps[-1] != step
            or len(steps) > 2
            or len(self.nest.steps("k", "serial")) < len(steps)
        ):
            self.fail(
                self.nest, f"a matrix register holds {step} k; end the loops over k with k:{step}"
            )
        blocks = [self.nest.steps(a, "parallel", "serial")[-1:] for a in "mn"]
        high, broad = (b[0] // SIDE if b else 1 for b in blocks)
        if high * broad + high >= REGISTERS:
            self.fail(
                self.nest, f"there are {REGISTERS} matrix registers; use smaller blocks of m and n"
            )
        staged = {name for name, _ in self.nest.staged}
        if "right" not in staged or not ("left" in staged or reads_rows(self.k, high * SIDE)):
            self.fail(self.nest, "matrix registers read packed factors; stage left and right")

    def check_reduced(self) -> None:
        steps = self.nest.steps("k")
        if not steps:
            self.fail(self.nest, "there is no loop over k; add k:1")
        for x in self.nest.loops:
            if x.axis == "k" and x.kind != "serial":
                self.fail(x, "k is folded, so instances cannot share it; make the loop serial")
            if x.axis == "k" and x.step > LEAF:
                self.fail(x, f"k is folded leaf by leaf; use k:{LEAF}")
        if sum(1 < s < LEAF for s in steps) > 1:
            self.fail(self.nest, "a leaf is cut into strips once; fuse the loops over k")

    def check_stages(self) -> None:
        first = sum(x.kind == "parallel" or x.axis in self.rows for x in self.nest.loops)
        last = sum(x.kind in ("parallel", "serial") for x in self.nest.loops)
        for name, at in self.nest.staged:
            if name not in ("left", "right"):
                self.fail(f"stage {name}", "the factors are left and right")
            if not first <= at <= last:
                self.fail(f"stage {name} at {at}", f"a factor is staged inside the shared loops; "
                          f"stage it at {first} to {last}")  # fmt: skip
