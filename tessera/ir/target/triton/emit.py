"""emit: a Tile kernel as the source of a Triton kernel.

    %3 = load(%x) {at = [p0, 0], extent = [1, 64]}   ->   v3 = tl.load(x + p0 * 64 + line)

The text is for people too: one line for each operation, sizes and positions as in the kernel.  Axes
are padded to powers of two; what lies in the padding is never stored, and folds and products do not
see it.  A fold is the balanced tree that Tile IR says, pair by pair, so that its bits do not depend on
how Triton lays a tile out over threads.
"""

from __future__ import annotations

from collections.abc import Sequence

from tessera.core.dims import Size
from tessera.core.dtype import bool_
from tessera.ir.target.triton import waits
from tessera.ir.target.triton.types import value
from tessera.ir.target.triton.values import HELPERS, NEEDS, ValueWriter
from tessera.ir.target.triton.writer import plain_name
from tessera.ir.tile.ir import Block, Kernel, Operation
from tessera.ir.tile.launch import Threads

_HEAD = """import triton
import triton.language as tl
from triton.language.extra import libdevice
"""


def emit(kernel: Kernel, threads: Threads | None = None, kind: str = "cuda") -> str:
    """The module that defines a kernel, under its name, for devices of a kind: cuda or hip."""
    made = _KernelEmitter(kernel, threads or Threads())
    made.language = {"cuda": "ptx", "hip": "amdgcn"}[kind]
    return made.text()


def scratch_bytes(kernel: Kernel) -> Size:
    """Bytes of scratch that a block needs: it gets them as the last parameter, if any."""
    return _KernelEmitter(kernel, Threads()).lay_out_scratch()


def size_names(kernel: Kernel) -> list[str]:
    """The scalars that a kernel is called with, after its memories."""
    return list(kernel.sizes)


class _KernelEmitter(ValueWriter):
    """A whole kernel."""

    def text(self) -> str:
        name = plain_name(self.k.name)
        self._grid()
        self._scratch()
        self.block(self.k.body)
        given = [self.memory[m] for m in self.k.parameters]
        given += [self.names[n] for n in size_names(self.k)]
        given += ["scratch"] if self.scratch else []
        head, first = "", []
        if self.style.early:
            head, first = waits.HEAD, [waits.NEXT, waits.WAIT]
        body = [*first, *self.prelude, *self.lines] or ["    pass"]
        helpers = "\n".join(HELPERS[h] for h in self._helpers())
        folds = "\n".join(self.functions.values())
        return (
            f"{_HEAD}{head}{helpers}\n{folds}\n\n@triton.jit\ndef {name}({', '.join(given)}):\n"
            + "\n".join(body)
            + "\n"
        )

    def _helpers(self) -> list[str]:
        found: dict[str, None] = {}
        for name in self.used:
            for needed in (*NEEDS.get(name, ()), name):
                for first in (*NEEDS.get(needed, ()), needed):
                    found[first] = None
        return list(found)

    def _grid(self) -> None:
        """The numbers of this instance, of which the last varies fastest."""
        grid = self.k.grid
        if len(grid) == 1:
            self.do(f"{self.names[grid[0][0]]} = tl.program_id(0)")
            return
        if grid:
            self.do("rest = tl.program_id(0)")
        for i, (name, count) in reversed(list(enumerate(grid))):
            if i == 0:
                self.do(f"{self.names[name]} = rest")
            else:
                n = self.size.inner(count)
                self.do(f"{self.names[name]} = rest % {n}")
                self.do(f"rest = rest // {n}")

    def _scratch(self) -> None:
        """Places for scratch in global memory: an instance has its own part of it."""
        at = self.lay_out_scratch()
        if self.scratch:
            each = self.size.inner(at, wide=True)
            self.do(f"own = scratch + tl.program_id(0).to(tl.int64) * {each}")
        for m, begin in self.scratch.items():
            self.memory[m] = f"scratch_{m.name}"
            kind = "tl.int8" if m.type.dtype is bool_ else value(m.type.dtype)
            begin_text = self.size.inner(begin, wide=True)
            self.do(f"{self.memory[m]} = (own + {begin_text}).to(tl.pointer_type({kind}))")

    def block(self, block: Block) -> None:
        for op in block.operations:
            getattr(self, f"_{op.name}")(op)

    def _for(self, op: Operation) -> None:
        a = op.attributes
        assert op.block is not None
        carried = []
        begun: set[str] = set()
        for t, argument in zip(op.operands, op.block.arguments, strict=True):
            start_value = self.of(t)
            if start_value in begun:
                # Triton takes a variable for unchanged that is given one of the same first value.
                yes = self.constant("True", "tl.int1")
                start_value = f"tl.where({yes}, {start_value}, {start_value})"
            begun.add(self.of(t))
            self.tiles[argument] = self.put(start_value)
            carried.append(self.tiles[argument])
        i = self.names[a["variable"]] = self.free(plain_name(a["variable"].lstrip("_")))
        start, stop = (self.size.write(a[x]) for x in ("start", "stop"))
        if a.get("bounded"):
            # The bound is data of 64 bits: it is cut to the range of a counter before it is one.
            bound = f"tl.maximum(tl.minimum({carried[0]}, {stop}), -1)"
            stop = f"{bound}.to(tl.int32)"
        if self.size.least(a["start"]) < 0:
            self.size.signed.add(a["variable"])
        self.head(op, i, start, stop, carried)
        self.indent += 1
        before = len(self.lines)
        self.block(op.block)
        outs = [self.of(t) for t in op.block.outputs]
        if carried:
            self.do(f"{', '.join(carried)} = {', '.join(outs)}")
        elif len(self.lines) == before:
            self.do("pass")
        if a.get("going"):
            self.do(f"{i} += {a['step']}")
        self.indent -= 1
        self.tiles.update(zip(op.results, carried, strict=True))

    def head(self, op: Operation, i: str, start: str, stop: str, carried: Sequence[str]) -> None:
        """The line that a loop begins with."""
        a = op.attributes
        assert op.block is not None
        nested = any(x.name == "for" for x in op.block.operations)
        if a.get("going"):
            self.do(f"{i} = {start}")
            self.do(f"while ({i} < {stop}) & {carried[0]}:")
        elif not carried and self.size.least(a["start"]) >= 0 and self.size.most(a["stop"]) <= 1:
            self.do(f"{i} = {start}")
            self.do(f"if {i} < {stop}:")
        elif nested and self.style.descriptors and not carried:
            self.do(f"for {i} in tl.range({start}, {stop}, {a['step']}, flatten=True):")
        elif nested or self.style.stages is None:
            self.do(f"for {i} in range({start}, {stop}, {a['step']}):")
        else:
            said = f"num_stages={self.style.stages}"
            said += ", warp_specialize=True" if self.style.specialise else ""
            self.do(f"for {i} in tl.range({start}, {stop}, {a['step']}, {said}):")
