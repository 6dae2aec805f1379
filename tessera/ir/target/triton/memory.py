"""Memory: the addresses of tiles, which of their elements are inside, and how they travel."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tessera.core.dims import Dim, Size, product
from tessera.core.dtype import DType, bool_
from tessera.ir.target.triton.algebra import literal
from tessera.ir.target.triton.sizes import is_wide
from tessera.ir.target.triton.types import physical
from tessera.ir.target.triton.writer import TritonWriter, as_tuple
from tessera.ir.tile.gpu.tma_loads import fetched
from tessera.ir.tile.ir import Kernel, Memory, Operation, Tile, walk
from tessera.ir.tile.launch import Threads


class MemoryWriter(TritonWriter):
    """Writes loads and stores."""

    def __init__(self, kernel: Kernel, style: Threads):
        super().__init__(kernel, style)
        self.fetched = fetched(kernel) if style.descriptors else frozenset()
        self.shared = _read_and_written(kernel)

    def _alloc(self, op: Operation) -> None:
        """Scratch has its place already."""

    def _prefetch(self, op: Operation) -> None:
        """What is asked for early changes nothing."""

    def _barrier(self, op: Operation) -> None:
        self.do("tl.debug_barrier()")

    def _wait(self, op: Operation) -> None:
        self.do("tl.debug_barrier()")

    def settle(self, m: Memory, writes: bool) -> None:
        """Threads share memory that they write and read: what one wrote must have arrived."""
        if m not in self.scratch and m not in self.shared:
            return
        if self.indent > 1 or self.written is None or self.written != writes:
            self.do("tl.debug_barrier()")
        self.written = writes

    def place(self, op: Operation, shape: tuple[int, ...], picked: Sequence[Tile] = ()) -> str:
        """The addresses of the elements of a tile of a shape."""
        m, a = op.memory, op.attributes
        assert m is not None
        wide = is_wide(m.type.size)
        strides = [product(m.type.shape[i + 1 :]) for i in range(m.type.rank)]
        base: Size = 0
        for start, stride in zip(a["at"], strides, strict=True):
            base = base + start * stride
        parts = [] if base == 0 else [self.size.write(base, wide)]
        moved, neighbours = dict(zip(a.get("picked", ()), picked, strict=True)), None
        for axis, t in moved.items():
            index = self.tiles[t]
            if wide and t in self.short:
                index = f"{index}.to(tl.int64)"
            elif not wide and t not in self.short:
                index = f"{index}.to(tl.int32)"
            parts.append(self.scaled(index, strides[axis], wide))
        for j, axis in enumerate(a["axes"]):
            if a["extent"][axis] > 1:  # an axis of the box, not one of the numbers that are picked
                # Of an axis of one element only the first is inside: it stands still, others are
                # read in rows.
                alone = m.type.shape[axis] == 1 and a["at"][axis] == 0 and axis not in moved
                stride = 0 if alone else strides[axis]
                parts.append(self.scaled(self.line(j, shape), stride, wide))
                neighbours = j if stride == 1 else neighbours
        if shape and all(n == 1 for n in shape):
            parts.append(self.line(0, shape))  # a tile of one element, not a scalar
        at = " + ".join([self.memory[m], *parts])
        if neighbours is None or "vector" not in a:
            return at
        # An access is no wider than elements are known to be neighbours.
        most = [min(a["vector"], n) if j == neighbours else 1 for j, n in enumerate(shape)]
        return f"tl.max_contiguous({at}, {most})"

    def scaled(self, line: str, stride: Size, wide: bool) -> str:
        if stride == 1:
            return line
        if stride == 0:
            return f"{line} * 0"
        if wide and isinstance(stride, Dim):
            return f"{line} * {self.size.inner(stride, wide)}"
        if wide:
            return f"{line}.to(tl.int64) * {stride}"
        return f"{line} * {self.size.inner(stride)}"

    def mask(self, op: Operation, shape: tuple[int, ...], picked: Sequence[Tile] = ()) -> str:
        """Which elements of a tile are inside of a memory, and none of the padding; '' if all are."""
        m, a = op.memory, op.attributes
        assert m is not None
        own = {axis: j for j, axis in enumerate(a["axes"])}
        moved = dict(zip(a.get("picked", ()), picked, strict=True))
        tests = []
        for j in range(len(shape)):
            if shape[j] != (n := _length(op, j, picked)):
                tests.append(f"{self.line(j, shape)} < {n}")
        for axis in a["masked"]:
            at, n, size = a["at"][axis], a["extent"][axis], m.type.shape[axis]
            parts = [self.line(own[axis], shape)] if axis in own and n > 1 else []
            parts += [self.tiles[moved[axis]]] if axis in moved else []
            if axis in moved and shape and not moved[axis].shape and len(parts) == 1:
                # The test of one number and those of a tile do not meet as truth values.
                parts.append(self.nothing(shape))
            line = " + ".join(parts) or self.nothing(shape)
            tests.append(f"{line} < {self.size.inner(size - at)}")
            if axis in moved or self.size.least(at) < 0:
                tests.append(f"{line} >= {self.size.inner(0 - at)}")
        if len(tests) == 1:
            return tests[0]
        return " & ".join(f"({t})" for t in tests)

    def nothing(self, shape: tuple[int, ...]) -> str:
        """Zeros of a shape, as tests of a whole tile compare with."""
        if not shape:
            return self.constant("0", "tl.int32")
        return self.hoist(f"tl.zeros({as_tuple(shape)}, tl.int32)", "zero")

    def _load(self, op: Operation) -> None:
        self.read(op, ())

    def _gather(self, op: Operation) -> None:
        self.read(op, op.operands)

    def read(self, op: Operation, picked: Sequence[Tile]) -> None:
        t, m = op.results[0], op.memory
        assert m is not None
        if op in self.fetched:
            self.fetch(op, t, m)
            return
        self.settle(m, False)
        shape = physical(t.shape)
        at, mask = self.place(op, shape, picked), self.mask(op, shape, picked)
        # Every element needs an address of its own, also where only a mask has all axes.
        lines = [j for j in range(len(shape)) if shape[j] > 1 and not _varies(op, j, picked)]
        for j in lines:
            at += f" + {self.line(j, shape)} * 0"
        fill = self.number(op.attributes["fill"], t.dtype)
        rest = f", mask={mask}, other={fill}" if mask else ""
        x = f"tl.load({at}{rest})"
        if t.dtype is bool_:
            self.bytes[t] = self.put(x)
            x = f"{self.bytes[t]} != 0"
        self.set(op, x)

    def fetch(self, op: Operation, t: Tile, m: Memory) -> None:
        """A box of memory by the tensor memory accelerator; what is outside of the memory is 0."""
        a = op.attributes
        sizes = _list(map(self._size, m.type.shape))
        block = _list(map(str, a["extent"]))
        strides = _list(str(product(m.type.shape[i + 1 :])) for i in range(m.type.rank))
        made = f"tl.make_tensor_descriptor({self.memory[m]}, {sizes}, {strides}, {block})"
        x = f"{self.hoist(made, 'box')}.load({_list(self.size.write(at) for at in a['at'])})"
        axes = sorted(a["axes"])
        if len(axes) != m.type.rank:
            x = f"tl.reshape({x}, {as_tuple([a['extent'][i] for i in axes])})"
        self.set(op, x if list(a["axes"]) == axes else f"tl.trans({x})")

    def _size(self, n: Size) -> str:
        """A size of memory, which may be given at the call."""
        return str(n) if isinstance(n, int) else self.size.inner(n)

    def number(self, x: float, dtype: DType) -> str:
        if dtype.kind == "b":
            return str(int(bool(x)))
        return literal(float(x)) if dtype.kind == "f" else str(int(x))

    def _store(self, op: Operation) -> None:
        self.write(op, op.operands[0], ())

    _store_async = _store

    def _scatter(self, op: Operation) -> None:
        self.write(op, op.operands[0], op.operands[1:])

    def write(self, op: Operation, t: Tile, picked: Sequence[Tile]) -> None:
        assert op.memory is not None
        self.settle(op.memory, True)
        shape = physical(t.shape)
        at, mask = self.place(op, shape, picked), self.mask(op, shape, picked)
        x = self.of(t)
        if t.dtype is bool_:
            x = f"{x}.to(tl.int8)"
        how = op.attributes.get("atomic")
        if how is not None:
            self.do(f"tl.atomic_{how}({at}, {x}{f', mask={mask}' if mask else ''}, sem='relaxed')")
            return
        if not picked or op.attributes.get("distinct") or all(n == 1 for n in shape):
            self.do(f"tl.store({at}, {x}{f', mask={mask}' if mask else ''})")
            return
        # Elements for one place are written one after the other, so that the last stays.
        steps = [product(shape[j + 1 :]) for j in range(len(shape))]
        lines = [self.line(j, shape) for j in range(len(shape))]
        order = " + ".join(f"{a} * {n}" for a, n in zip(lines, steps, strict=True))
        places, turn = self.put(at), self.put(order)
        inside = self.put(mask or f"{turn} >= 0")
        self.do(f"for turn in range(0, {product(shape)}):")
        self.do("    tl.debug_barrier()")
        self.do(f"    tl.store({places}, {x}, mask={inside} & ({turn} == turn))")


def _read_and_written(kernel: Kernel) -> set[Memory]:
    found: dict[str, set[Memory]] = {"read": set(), "written": set()}
    for op in walk(kernel.body):
        if op.memory is not None and op.traits.reads:
            found["read"].add(op.memory)
        elif op.memory is not None and op.traits.writes:
            found["written"].add(op.memory)
    return found["read"] & found["written"]


def _length(op: Operation, j: int, picked: Sequence[Tile]) -> int:
    """The elements of a tile along an axis, without the padding: of its box, or of what is picked."""
    a = op.attributes
    box = a["extent"][a["axes"][j]] if j < len(a["axes"]) else 1
    return int(max([box, *(t.shape[j] for t in picked if t.shape)]))


def _varies(op: Operation, axis: int, picked: Sequence[Tile]) -> bool:
    """Whether the addresses of a gather vary along an axis of its tile."""
    if (
        axis < len(op.attributes["axes"])
        and op.attributes["extent"][op.attributes["axes"][axis]] > 1
    ):
        return True
    return any(t.shape and t.shape[axis] > 1 for t in picked)


def _list(items: Iterable[str]) -> str:
    return f"[{', '.join(items)}]"
