"""run: a kernel on the arguments of a check, by the Tile interpreter, with every element watched.

What depends on data is seen here and nowhere else: indices that are not distinct, results with holes, scratch
that a mask leaves unwritten, folds that count what is past an edge, places that wrapped around.  It says
nothing of other arguments: the other tools do, for all sizes.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from tessera.checks.concrete import Env, instances, shape_at, shown, value
from tessera.checks.findings import Finding, Verdict, finding
from tessera.checks.marks import (
    EDGE,
    GARBAGE,
    SUM,
    WRAPPED,
    may_wrap,
    none,
    of_apply,
    of_cast,
    of_dot,
    of_fold,
    of_scan,
    shaped,
)
from tessera.core.errors import VerifyError
from tessera.ir.tile.interp import Instance, NotDistinctError
from tessera.ir.tile.ir import NOWHERE, Block, Kernel, Memory, Operation, Tile, walk

Array = np.ndarray[Any, np.dtype[Any]]
TOOL = "run"
_MOST_INSTANCES = 600  # bounds the work of a run, not measured
_BUDGET = 12_000  # operations, each of a thousand elements
_SHARED = -2  # several instances have read an element


def check_run(
    kernel: Kernel,
    made: Collection[str],
    sizes: Mapping[str, int],
    arrays: Sequence[Array] | None,
) -> Verdict:
    """Run a kernel on arrays, one for each parameter, and say what went wrong.

    Parameters of the names `made` must be written whole.
    """
    if arrays is None:
        return Verdict(TOOL, kernel.name, note="no arguments to run on")
    for data in _tried(kernel, arrays):
        watched = _Watched(kernel, dict(sizes), data)
        whole = watched.run()
        for m in kernel.parameters if whole else ():
            if m.name in made:
                watched.holes(m)
        if watched.findings:
            return Verdict(TOOL, kernel.name, findings=tuple(watched.findings.values()))
    said = f"nothing found in {watched.ran} of {watched.total} instances, on these arguments"
    return Verdict(TOOL, kernel.name, note=said)


def _tried(kernel: Kernel, arrays: Sequence[Array]) -> list[list[Array]]:
    """The arguments, and, as floats may decide what is stored, those with all floats of one sign."""
    floats = [
        not m.writable and m.type.dtype.kind == "f" and a.dtype.kind == "f"
        for m, a in zip(kernel.parameters, arrays, strict=True)
    ]
    signs: list[Any] = [np.abs, lambda a: -np.abs(a)] if any(floats) else []
    made = [[sign(a) if f else a for f, a in zip(floats, arrays, strict=True)] for sign in signs]
    return [list(arrays), *made]


class _Store:
    """Of each element of a tensor: who wrote it, who read it, and whether a write was read since."""

    def __init__(self, shape: tuple[int, ...]):
        self.owner = np.full(shape, -1, np.int32)
        self.reader = np.full(shape, -1, np.int32)
        self.unread = np.zeros(shape, bool)


class _Watched:
    """The instances of a kernel, one after the other, and what they have left in memory."""

    def __init__(self, kernel: Kernel, sizes: Env, arrays: Sequence[Array]):
        self.kernel, self.sizes = kernel, sizes
        self.arrays = dict(zip(kernel.parameters, [np.array(a) for a in arrays], strict=True))
        self.findings: dict[tuple[str, Any], Finding] = {}
        self.budget, self.ran, self.number = float(_BUDGET), 0, 0
        self.stores = {m: _Store(shape_at(m, sizes)) for m in kernel.parameters if m.writable}
        self.total = int(np.prod([max(value(n, sizes), 0) for _, n in kernel.grid], dtype=np.int64))
        read = {op.memory for op in walk(kernel.body) if op.traits.reads}
        self.updated = {m for m in self.stores if m in read}

    def run(self) -> bool:
        """Run instances while the budget lasts; whether all of them ran."""
        who = instances(self.kernel, self.sizes, _MOST_INSTANCES)
        with np.errstate(all="ignore"):
            for number, instance in enumerate(who):
                self.number = number
                made = _Marked({**self.sizes, **instance}, dict(self.arrays), self, instance)
                try:
                    made.block(self.kernel.body, ())
                    made.finish()
                except NotDistinctError as e:
                    self.say(
                        "races", made.current, e.message, instance, "add up with tile.accumulate"
                    )
                except VerifyError as e:
                    self.say(
                        "bounds", made.current, e.message, instance, "mask it, or clamp the index"
                    )
                except _BudgetSpent:
                    return False
                self.ran += 1
        return len(who) == self.total

    def say(
        self, tool: str, op: Operation | None, message: str, instance: Env, advice: str,
        level: str = "error", **more: Any,
    ) -> None:  # fmt: skip
        """Keep the first finding of a kind at an operation."""
        key = (tool, op)
        if key not in self.findings:
            witness = shown(self.sizes, instance, **more)
            self.findings[key] = finding(
                tool, level, self.kernel.name, op, message, witness, advice, True
            )

    def holes(self, m: Memory) -> None:
        """Say which elements of a result were not written."""
        owner = self.stores[m].owner
        if m in self.updated or not owner.size or (owner >= 0).all():
            return
        place = tuple(int(i) for i in np.argwhere(owner < 0)[0])
        last = [op for op in walk(self.kernel.body) if op.memory is m and op.traits.writes]
        self.say(
            "results", last[-1] if last else None,
            f"{int((owner < 0).sum())} of {owner.size} elements of {m.name} are written by no instance; "
            "they are 0",
            {}, "store to every block, or say that it is meant: tile.empty(..., partial=True)",
            "warning", element=place,
        )  # fmt: skip

    def wrote(self, op: Operation, index: Any, instance: Env) -> None:
        """Note that this instance writes elements."""
        assert op.memory is not None
        s, n = self.stores[op.memory], self.number
        owner, reader = s.owner[index], s.reader[index]
        for bad, verb in (
            ((owner >= 0) & (owner != n), "write"),
            ((reader != -1) & (reader != n), "write and read"),
        ):
            if bad.any():
                place = _element(index, bad)
                self.say(
                    "races", op, f"two instances {verb} element {list(place)} of {op.memory}", instance,
                    "let the position depend on every grid variable, or add up with tile.accumulate",
                    element=place,
                )  # fmt: skip
        lost = s.unread[index] & (owner == n)
        if lost.any():
            place = _element(index, lost)
            self.say(
                "results", op,
                f"element {list(place)} of {op.memory.name} is written twice, and what was there is lost",
                instance, "store every element once, or add up with tile.accumulate", "warning",
                element=place,
            )  # fmt: skip
        s.owner[index], s.unread[index] = n, True

    def read(self, op: Operation, index: Any, instance: Env) -> None:
        """Note that this instance reads elements of a tensor that the kernel writes."""
        assert op.memory is not None
        s, n = self.stores[op.memory], self.number
        owner = s.owner[index]
        bad = (owner >= 0) & (owner != n)
        if bad.any():
            place = _element(index, bad)
            self.say(
                "races", op, f"two instances write and read element {list(place)} of {op.memory}", instance,
                "let an instance read only what no other one writes", element=place,
            )  # fmt: skip
        reader = s.reader[index]
        s.reader[index] = np.where((reader == -1) | (reader == n), n, _SHARED)
        s.unread[index] = False

    def spend(self, elements: int) -> None:
        """Take an operation from the budget."""
        self.budget -= 1 + elements / 1000
        if self.budget < 0:
            raise _BudgetSpent


class _BudgetSpent(Exception):
    """The budget of a run is spent."""


def _element(index: Any, bad: Array) -> tuple[int, ...]:
    place = tuple(int(i) for i in np.argwhere(bad)[0])
    if all(isinstance(i, slice) for i in index):
        return tuple(i.start + p for i, p in zip(index, place, strict=True))
    return tuple(int(np.broadcast_to(i, bad.shape)[place]) for i in index)


class _Marked(Instance):
    """An instance whose tiles and scratch have marks."""

    def __init__(self, variables: Env, memories: Any, run: _Watched, instance: Env):
        super().__init__(variables, memories)
        self.run, self.instance = run, instance
        self.marks: dict[Tile, Array] = {}
        self.of_memory: dict[Memory, Array] = {}
        self.next: list[Array] = []  # marks of what a loop carries

    def block(self, block: Block, inputs: Sequence[Array]) -> list[Array]:
        self.tiles.update(zip(block.arguments, inputs, strict=True))
        given = self.next or [none(x) for x in inputs]
        self.marks.update(zip(block.arguments, given, strict=True))
        self.next = []
        for op in block.operations:
            self.current = op
            if op.block is None:
                self.run.spend(sum(self.tiles[t].size for t in op.operands))
            else:
                self.next = [self.marks[t] for t in op.operands]
            results = getattr(self, f"_{op.name}")(op, *(self.tiles[t] for t in op.operands))
            self.tiles.update(zip(op.results, results, strict=True))
            self.mark(op, results)
        self.next = [self.marks[t] for t in block.outputs]
        return [self.tiles[t] for t in block.outputs]

    def mark(self, op: Operation, results: Sequence[Array]) -> None:
        """The marks of what an operation gave, and what it did wrong."""
        if op.block is not None:
            self.marks.update(zip(op.results, self.next or self._given(op), strict=True))
            self.next = []
            return
        marks = [self.marks[t] for t in op.operands]
        if op.memory is None and not any(m.any() for m in marks) and not may_wrap(op):
            self.marks.update((t, none(x)) for t, x in zip(op.results, results, strict=True))
            return
        if op.memory is not None:
            self._access(op, marks)
            return
        if not op.results:
            return
        made, counted = self._made(op, marks, results[0])
        self.marks[op.results[0]] = made
        if op.name == "cast" and (made & ~marks[0] & WRAPPED)[(made & SUM) > 0].any():
            self.run.say(
                "overflow", op, f"cast: a sum does not fit {op.results[0].dtype}", self.instance,
                "keep it in a wider dtype",
            )  # fmt: skip
        if counted.any():
            self.run.say(
                "edges", op, f"{op.name} counts elements from past the edge of a tensor beside real ones",
                self.instance, "fold before tile.place(x, None), or mask them by tile.where",
            )  # fmt: skip

    def _made(self, op: Operation, marks: Sequence[Array], out: Array) -> tuple[Array, Array]:
        """The marks of a result, and where it counts elements from past an edge."""
        xs = [self.tiles[t] for t in op.operands]
        nowhere = np.zeros((), bool)
        if op.name == "apply":
            return of_apply(op, xs, marks, out), nowhere
        if op.name == "cast":
            return of_cast(op, xs[0], marks[0], out), nowhere
        if op.name == "fold":
            return of_fold(op, xs[0], marks[0], out)
        if op.name == "dot":
            return of_dot(op, xs[0], xs[1], marks)
        if op.name == "scan":
            return of_scan(op, marks[0]), nowhere
        if op.name in ("reshape", "broadcast", "transpose"):
            return shaped(op, marks[0]), nowhere
        garbage = any((m & GARBAGE).any() for m in marks)
        return np.full(out.shape, GARBAGE, np.uint8) if garbage else none(out), nowhere

    def _given(self, op: Operation) -> list[Array]:
        return [self.marks[t] for t in op.operands]

    def _access(self, op: Operation, marks: Sequence[Array]) -> None:
        m = op.memory
        assert m is not None
        if op.name == "alloc":
            self.of_memory[m] = np.full(self.memories[m].shape, GARBAGE, np.uint8)
        elif op.traits.reads:
            self._read(op, m, marks)
        elif op.traits.writes:
            self._wrote(op, m, marks)

    def _picks(self, op: Operation, shape: tuple[int, ...]) -> tuple[Any, Any]:
        """What an indexed access touches: an index of its memory, and which elements are inside."""
        tiles = op.operands[1:] if op.name == "scatter" else op.operands
        _, index, inside = self.picked(op, [self.tiles[t] for t in tiles], shape)
        return tuple(np.broadcast_to(i, inside.shape)[inside] for i in index), inside

    def _wrapped(self, op: Operation, marks: Sequence[Array]) -> None:
        if any((m & WRAPPED).any() for m in marks):
            self.run.say(
                "overflow", op, f"{op.name}: an index wrapped around in the arithmetic of its dtype",
                self.instance, "compute places in i64",
            )  # fmt: skip

    def _read(self, op: Operation, m: Memory, marks: Sequence[Array]) -> None:
        t = op.results[0]
        boxed = "picked" not in op.attributes
        self._wrapped(op, marks)
        if boxed:
            _, touched, inside = self.part(op)
            made = np.zeros(op.attributes["extent"], np.uint8)
            zero = np.asarray(op.attributes["fill"]) == 0
            made[...] = EDGE if zero and m.space == "global" else 0
            made[inside] = 0
            self._in_scratch(op, m, inside)
        else:
            touched, inside = self._picks(op, t.shape)
            made = np.zeros(t.shape, np.uint8)
        if m in self.run.stores:
            self.run.read(op, touched, self.instance)
        if m in self.of_memory:
            made[inside] = self.of_memory[m][touched]
        if any((x & GARBAGE).any() for x in marks):
            made = made | GARBAGE
        self.marks[t] = self._kept(op, made) if boxed else made

    def _wrote(self, op: Operation, m: Memory, marks: Sequence[Array]) -> None:
        mark = marks[0]
        self._wrapped(op, marks[1:])
        if "picked" in op.attributes:
            touched, inside = self._picks(op, op.operands[0].shape)
            self._past_scratch(op, m)
        else:
            _, touched, inside = self.part(op)
            mark = np.transpose(mark, np.argsort(op.attributes["axes"]))
            mark = mark.reshape(op.attributes["extent"])
            self._in_scratch(op, m, inside)
        mark = mark[inside]
        if m in self.of_memory:
            self.of_memory[m][touched] = mark
            return
        if (mark & GARBAGE).any() or any((x & GARBAGE).any() for x in marks[1:]):
            self.run.say(
                "initial", op, f"{op.name} to {m.name} depends on scratch that nothing has written",
                self.instance, "store to all of the scratch first, or read only what was stored",
            )  # fmt: skip
        if m in self.run.updated and (mark & WRAPPED).any():
            self.run.say(
                "overflow", op, f"{op.name}: what adds up in {m} wrapped around in {m.type.dtype}",
                self.instance, "add up in a wider dtype",
            )  # fmt: skip
        self.run.wrote(op, touched, self.instance)

    def _past_scratch(self, op: Operation, m: Memory) -> None:
        """What is stored to scratch lies in it, but for what a mask sends far away."""
        sizes = self.memories[m].shape
        at = (self.number(op.attributes["at"][axis]) for axis in op.attributes["picked"])
        tiles = (self.tiles[t] for t in op.operands[1:])
        for axis, first, index in zip(op.attributes["picked"], at, tiles, strict=True):
            past = (index + first >= sizes[axis]) & (index < NOWHERE)
            if m.space != "global" and past.any():
                self.run.say(
                    "bounds", op, f"{op.name} at {(index + first)[past].min()} leaves {m}: it is dropped",
                    self.instance, "make the scratch as long as what is stored, or store under a mask",
                    "warning",
                )  # fmt: skip

    def _in_scratch(self, op: Operation, m: Memory, inside: tuple[slice, ...]) -> None:
        """Boxes of scratch lie in it: what is outside has no meaning."""
        extent = op.attributes["extent"]
        whole = all(s.stop - s.start == n for s, n in zip(inside, extent, strict=True))
        if m.space != "global" and not whole:
            low = [self.number(x) for x in op.attributes["at"]]
            self.run.say(
                "bounds", op, f"{op.name} at {low} of {list(extent)} elements leaves {m}",
                self.instance, "let the place stay inside of the scratch", "warning",
            )  # fmt: skip
