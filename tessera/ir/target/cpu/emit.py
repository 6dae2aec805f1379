"""emit: a Tile kernel as LLVM IR.

    load, apply, fold, store on tiles   ->   vector instructions on chunks of 16 elements

A tile is a list of vectors along its last axis, 16 lanes each and a shorter one at the end; LLVM
splits them to whatever the machine has.  So the order of a fold does not depend on the machine.
The function runs the instances from `begin` to `end` of the grid, counted with the last axis fastest:

    void kernel(ptr parameters, ptr sizes, i64 begin, i64 end, ptr scratch)
"""

from __future__ import annotations

import itertools
import math

from tessera.core.dims import Size, product, substitute, symbols
from tessera.ir.target.cpu.machine import SIMPLE
from tessera.ir.target.cpu.software_pipeline import Iteration, TurnWriter
from tessera.ir.target.cpu.tiles import MatrixLoop, usable_features
from tessera.ir.target.cpu.types import align_of, chunk_types
from tessera.ir.tile.ir import Block, Kernel, Memory, Operation, Tile

# Emerald Rapids reads slowly through rbp: a product whose left factor was addressed by it took 1.1
# of the time.
_NO_BASE_POINTER = ' "frame-pointer"="reserved"'
_INSTANCES = 64  # at which loops are looked at, to find those without a step


def size_names(kernel: Kernel) -> tuple[str, ...]:
    """The symbols of the parameters, in the order in which `sizes` holds them."""
    return kernel.sizes


def emit(kernel: Kernel, features: frozenset[str] | None = None) -> str:
    """The LLVM IR of a kernel, for this CPU or one of the features given."""
    return Emitter(kernel, usable_features() if features is None else features).module()


class Emitter(TurnWriter):
    """Writes the structure of a kernel: the grid, the loops, the scratch."""

    # Module

    def module(self) -> str:
        k = self.kernel
        self.do("%spare = alloca [16 x i8], align 16")  # masked elements are read and written here
        for i, m in enumerate(k.parameters):
            slot = self.put(f"getelementptr ptr, ptr %parameters, i64 {i}")
            self.pointers[m] = self.put(f"load ptr, ptr {slot}")
        for i, name in enumerate(size_names(k)):
            slot = self.put(f"getelementptr i64, ptr %sizes, i64 {i}")
            self.variables[name] = self.put(f"load i64, ptr {slot}")
        offset: Size = 0
        for m in k.scratch():
            self.pointers[m] = self.put(f"getelementptr i8, ptr %scratch, i64 {self.size(offset)}")
            offset = offset + _padded(m)
        self.grid_loop()
        if self.hides:  # ones that LLVM does not know for ones
            ones = ("store volatile i64 -1, ptr %spare", "%every = load volatile i64, ptr %spare")
            self.lines[1:1] = (f"  {line}" for line in ones)
        self.configure()
        tail = ""
        if self.bypasses:  # such stores may be seen late; who waits for this kernel must see them
            self.do("fence seq_cst")
            tail = "!0 = !{i32 1}\n"
        body = "\n".join(self.lines)
        declarations = "\n".join(self.declared[n] for n in sorted(self.declared))
        head = "ptr noalias %parameters, ptr noalias %sizes, i64 %begin, i64 %end, ptr noalias %scratch"
        kind = f' "{SIMPLE}"' if self.simple else ""
        if "avx512f" in self.features:
            kind += _NO_BASE_POINTER
        begin = f"{declarations}\ndefine void @{symbol_of(k.name)}({head}){kind} {{\nentry:\n"
        return f"{begin}{body}\n  ret void\n}}\n{tail}"

    def grid_loop(self) -> None:
        counts = [self.size(n) for _, n in self.kernel.grid]
        entry, number = self.label, self.fresh()
        self.do("%any = icmp slt i64 %begin, %end")
        self.do("br i1 %any, label %instance, label %finished")
        self.start("instance")
        after = self.fresh()
        place = len(self.lines)
        rest = number
        for (name, _), n in zip(reversed(self.kernel.grid), reversed(counts), strict=True):
            self.variables[name] = self.put(f"urem i64 {rest}, {n}")
            rest = self.put(f"udiv i64 {rest}, {n}")
        self.known.append({})
        self.block(self.kernel.body)
        self.known.pop()
        self.do(f"{after} = add i64 {number}, 1")
        phi = f"  {number} = phi i64 [ %begin, %{entry} ], [ {after}, %{self.label} ]"
        self.lines.insert(place, phi)
        self.do(f"%more = icmp slt i64 {after}, %end")
        self.do("br i1 %more, label %instance, label %finished")
        self.start("finished")

    def block(self, block: Block) -> None:
        for op in self.selected(block.operations):
            self.one(op)

    def one(self, op: Operation | MatrixLoop | Iteration) -> None:
        """Write an operation, or several that are written together."""
        if isinstance(op, MatrixLoop):
            self.product(op)
        elif isinstance(op, Iteration):
            self.turn(op)
            self.simple = True
        else:
            getattr(self, f"_{op.name}")(op)

    # Loops and memory

    def _alloc(self, op: Operation) -> None:
        pass  # laid out once, before the first instance

    def _store_async(self, op: Operation) -> None:
        self._store(op)  # a thread is an instance: what it stores has arrived

    def _wait(self, op: Operation) -> None:
        pass

    def _barrier(self, op: Operation) -> None:
        pass

    def _for(self, op: Operation) -> None:
        a, block = op.attributes, op.block
        assert block is not None
        if self.never(op):
            for t, given in zip(op.results, op.operands, strict=True):
                self.tiles[t] = self.tiles[given]
            return
        first, stop = self.size(a["start"]), self.size(a["stop"])
        head, body, done = (f"{k}{self.count}" for k in ("head", "body", "done"))
        initial = [name for t in op.operands for name in self.tiles[t]]
        before = self.label
        self.do(f"br label %{head}")
        self.start(head)
        counter, following = self.fresh(), self.fresh()
        carried = [self.named(t) for t in block.arguments]
        place = len(self.lines)
        test = self.put(f"icmp slt i64 {counter}, {stop}")
        if a.get("bounded"):
            (limit,) = carried[0]
            test = self.put(f"and i1 {test}, {self.put(f'icmp slt i64 {counter}, {limit}')}")
        if a.get("going"):
            (going,) = carried[0]
            test = self.put(f"and i1 {test}, {going}")
        self.do(f"br i1 {test}, label %{body}, label %{done}")
        self.start(body)
        self.variables[a["variable"]] = counter
        if not self.natural(a["start"]):
            self.signed.add(a["variable"])
        self.known.append({})
        outer, self.loop = self.loop, a["variable"]
        self.block(block)
        self.loop = outer
        self.known.pop()
        self.do(f"{following} = add nsw i64 {counter}, {a['step']}")
        last = self.label
        self.do(f"br label %{head}")
        outputs = [name for t in block.outputs for name in self.tiles[t]]
        names = [name for names in carried for name in names]
        kinds = [k for t in block.arguments for k in chunk_types(t.type)]
        phis = [f"  {counter} = phi i64 [ {first}, %{before} ], [ {following}, %{last} ]"]
        phis += [
            f"  {n} = phi {k} [ {i}, %{before} ], [ {o}, %{last} ]"
            for n, k, i, o in zip(names, kinds, initial, outputs, strict=True)
        ]
        self.lines[place:place] = phis
        self.start(done)
        for t, values in zip(op.results, carried, strict=True):
            self.tiles[t] = values

    def never(self, op: Operation) -> bool:
        """Whether a loop has no step in any instance, as those over rests that no instance has."""
        steps = op.attributes["stop"] - op.attributes["start"]
        names = symbols(steps)
        grid = {name: n for name, n in self.kernel.grid if name in names}
        ranges = [range(n) for n in grid.values() if isinstance(n, int)]
        if not (len(ranges) == len(names) and math.prod(map(len, ranges)) <= _INSTANCES):
            return False
        places = itertools.product(*ranges)
        return all(substitute(steps, dict(zip(grid, p, strict=True))) <= 0 for p in places)

    def named(self, t: Tile) -> list[str]:
        self.tiles[t] = [self.fresh() for _ in chunk_types(t.type)]
        return self.tiles[t]


def _padded(m: Memory) -> Size:
    """Bytes of a scratch memory, in whole cache lines."""
    return (product(m.type.shape) * align_of(m.type.dtype) + 63) // 64 * 64


def scratch_bytes(kernel: Kernel) -> Size:
    """Bytes of scratch that one thread needs."""
    total: Size = 0
    for m in kernel.scratch():
        total = total + _padded(m)
    return total


def symbol_of(name: str) -> str:
    """What the function of a kernel is called in LLVM IR."""
    return "".join(c if c.isalnum() or c == "_" else "_" for c in name)
