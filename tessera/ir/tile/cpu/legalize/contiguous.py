"""tidy: what is computed twice is computed once, and loops over whole parts need no masks.

    for i < S by 64: load(x, i, masked)   ->   for i < S // 64 * 64 by 64: load(x, i)
                                               for the rest by 64: load(x, i, masked)

In the first loop comparisons of an index with the end are known, and so is what they select.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tessera.core.dims import Size, SizeFunction, symbol
from tessera.core.dtype import bool_
from tessera.ir.tile.cpu.legalize.copy import Copy
from tessera.ir.tile.ir import Block, Kernel, Operation, Tile, walk


def tidy(kernel: Kernel, large: set[Tile]) -> Kernel:
    """A kernel that computes the same with fewer operations and masks."""
    return _Tidy(kernel, large).kernel()


@dataclass(frozen=True)
class _Whole:
    """A loop in whole parts, or an axis of the grid: positions from its counter on are inside for so many
    elements.
    """

    counter: Size
    step: int
    stop: Size


class _Tidy(Copy):
    def __init__(self, kernel: Kernel, large: set[Tile]):
        super().__init__(kernel)
        self.large = large
        self.known: list[dict[Any, Tile]] = [{}]  # pure operations of each open block
        self.whole = [_Whole(symbol(name), 1, n) for name, n in self.b.grid]
        self.made: dict[Tile, Operation] = {}  # by the new tiles
        self.true: set[Tile] = set()  # new tiles that hold nothing else

    # Operations

    def block(self, block: Block) -> None:
        """The operations of a block; folds come as soon as they can, while their tile is at hand."""
        made = {t: op for op in block.operations for t in op.results}
        folds: dict[Operation, list[Operation]] = {}
        for op in block.operations:
            if op.name == "fold" and op.operands[0] in made:
                folds.setdefault(made[op.operands[0]], []).append(op)
        early = {op for ops in folds.values() for op in ops}
        todo = [op for op in reversed(block.operations) if op not in early]
        while todo:
            op = todo.pop()
            self.b.location = op.location
            self.operation(op)
            todo += folds.get(op, ())

    def operation(self, op: Operation) -> None:
        if op.block is None and op.traits.pure:
            self.tiles[op.results[0]] = self.pure(op)
        else:
            super().operation(op)

    def pure(self, op: Operation) -> Tile:
        """The result of an operation: that of the same one before it, if there is one."""
        operands = tuple(self.tiles[t] for t in op.operands)
        attributes = self.renamed(op.attributes)
        chosen = self.chosen(op, operands)
        if chosen is not None:
            return self.b.broadcast(chosen, op.results[0].shape)
        values = tuple((k, repr(v)) for k, v in sorted(attributes.items()))
        key = (op.name, operands, values, op.results[0].type)
        for scope in self.known:
            if key in scope:
                return scope[key]
        if self.is_true(op, operands):
            made = self.b.full(bool_, op.results[0].shape, True)
            self.true.add(made)
        else:
            (made,) = self.b.repeat(op, operands, attributes, None)
        self.made[made] = Operation(op.name, operands, attributes, (made,))
        self.known[-1][key] = made
        return made

    def chosen(self, op: Operation, operands: tuple[Tile, ...]) -> Tile | None:
        """What is left of an operation when one of its operands is true."""
        scalar = op.attributes["scalar"] if op.name == "apply" else None
        if scalar == "where" and operands[0] in self.true:
            return operands[1]
        if scalar in ("logical_and", "and") and operands[0].dtype is bool_:
            for x, other in (operands, operands[::-1]):
                if x in self.true:
                    return other
        if op.name in ("broadcast", "reshape") and operands[0] in self.true:
            self.true.add(made := self.b.full(bool_, op.results[0].shape, True))
            return made
        return None

    def is_true(self, op: Operation, operands: tuple[Tile, ...]) -> bool:
        """Whether an operation compares an index with the end of a loop of whole parts."""
        if op.name != "apply" or op.attributes["scalar"] != "lt":
            return False
        low, high = (self.made.get(t) for t in operands)
        if low is None or high is None or low.name != "index" or high.name != "index":
            return False
        axis = low.attributes["axis"]
        extent = 1 if axis is None else operands[0].shape[axis]
        return high.attributes["axis"] is None and self.is_inside(
            low.attributes["at"], extent, high.attributes["at"]
        )

    def is_inside(self, at: Size, extent: int, size: Size) -> bool:
        """Whether a position in a loop of whole parts is known to be below a size."""
        return any(
            at == w.counter and extent <= w.step and is_at_most(w.stop, size) for w in self.whole
        )

    def repeat(self, op: Operation, operands: Sequence[Tile]) -> None:
        if op.memory is not None and op.attributes.get("masked") and op.name in ("load", "store"):
            a, shape = op.attributes, op.memory.type.shape
            at = self.moved(a["at"])
            masked = tuple(
                i for i in a["masked"] if not self.is_inside(at[i], a["extent"][i], shape[i])
            )
            op = Operation(
                op.name, op.operands, {**a, "masked": masked}, op.results, op.memory, None,
                op.location,
            )  # fmt: skip
        super().repeat(op, operands)

    # Loops

    def loop(self, op: Operation, block: Block) -> None:
        a = self.renamed(op.attributes)
        start, stop, step = a["start"], a["stop"], a["step"]
        carried = [self.tiles[t] for t in op.operands]
        if self.is_masked(op, block, stop):
            middle = (stop - start) // step * step + start
            carried = self.turns(op, block, (start, middle), carried, whole=True)
            carried = self.turns(op, block, (middle, stop), carried, whole=False)
        else:
            carried = self.turns(op, block, (start, stop), carried, whole=False)
        self.tiles.update(zip(op.results, carried, strict=True))

    def is_masked(self, op: Operation, block: Block, stop: Size) -> bool:
        """Whether large tiles in a loop are masked where its last turn may end."""
        counter, start = symbol(op.attributes["variable"]), op.attributes["start"]
        if not isinstance(start, int) or start < 0:
            return False
        if isinstance(stop, int) and (stop - start) % op.attributes["step"] == 0:
            return False
        return any(
            o.name in ("load", "store")
            and o.memory is not None
            and not self.large.isdisjoint((*o.results, *o.operands))
            and o.attributes["at"][i] == counter
            and is_at_most(stop, o.memory.type.shape[i])
            for o in walk(block)
            for i in o.attributes.get("masked", ())
        )

    def turns(
        self, op: Operation, block: Block, span: tuple[Size, Size], carried: list[Tile],
        whole: bool,
    ) -> list[Tile]:  # fmt: skip
        """Some turns of a loop."""
        step = op.attributes["step"]
        self.known.append({})
        with self.b.loop(*span, step, carried, like=op) as loop:
            self.sizes[op.attributes["variable"]] = loop.variable
            if whole:
                self.whole.append(_Whole(loop.variable, step, span[1]))
            self.tiles.update(zip(block.arguments, loop.carried, strict=True))
            self.block(block)
            loop.carry(*(self.tiles[t] for t in block.outputs))
            if whole:
                self.whole.pop()
        self.known.pop()
        return list(loop.results)


def is_at_most(a: Size, b: Size) -> bool:
    """Whether a is known to be no larger than b: it is b, or the whole parts or the least of it."""
    if a == b:
        return True
    if isinstance(a, int) or len(a.terms) != 1:
        return False
    ((monomial, factor),) = a.terms
    if len(monomial) != 1 or monomial[0][1] != 1 or not isinstance(monomial[0][0], SizeFunction):
        return False
    atom = monomial[0][0]
    if atom.function == "min" and factor == 1:
        return is_at_most(atom.left, b) or is_at_most(atom.right, b)
    return atom.function == "//" and atom.right == factor and is_at_most(atom.left, b)
