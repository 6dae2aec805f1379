"""emit: a Tile kernel as LLVM IR.

    load, apply, fold, store on tiles   ->   vector instructions on chunks of 16 elements

A tile is a list of vectors along its last axis, 16 lanes each and a shorter one at the end; LLVM
splits them to whatever the machine has.  So the order of a fold does not depend on the machine.
The function runs the instances from `begin` to `end` of the grid, counted with the last axis fastest:

    void kernel(ptr parameters, ptr sizes, i64 begin, i64 end, ptr scratch)
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from typing import Any

from tessera.core.dims import Apply, Shape, Size, Symbol, product, symbols
from tessera.core.dtype import DType
from tessera.core.types import TensorType
from tessera.ir.target.cpu.scalars import TEMPLATES
from tessera.ir.tile.ir import Block, Kernel, Memory, Operation, Tile

LANES = 16
_TYPES = {
    "bool": "i1", "i8": "i8", "i16": "i16", "i32": "i32", "i64": "i64", "u8": "i8", "u16": "i16",
    "u32": "i32", "u64": "i64", "f16": "half", "bf16": "bfloat", "f32": "float", "f64": "double",
}  # fmt: skip
_SUFFIX = {"half": "f16", "bfloat": "bf16", "float": "f32", "double": "f64"}


def size_names(kernel: Kernel) -> tuple[str, ...]:
    """The symbols of the parameters, in the order in which `sizes` holds them."""
    found: set[str] = set()
    for m in kernel.parameters:
        for n in m.type.shape:
            found |= symbols(n)
    return tuple(sorted(found))


def emit(kernel: Kernel) -> str:
    """The LLVM IR of a kernel."""
    return _Emitter(kernel).module()


def strides(shape: Shape) -> list[Size]:
    """How many elements apart neighbours along each axis lie, in row-major order."""
    return [product(shape[i + 1 :]) for i in range(len(shape))]


class _Emitter:
    def __init__(self, kernel: Kernel):
        self.kernel = kernel
        self.lines: list[str] = []
        self.declared: dict[str, str] = {}
        self.count = 0
        self.label = "entry"
        self.variables: dict[str, str] = {}
        self.pointers: dict[Memory, str] = {}
        self.tiles: dict[Tile, list[str]] = {}
        self.known: list[dict[Size, str]] = [{}]  # sizes computed in each open block

    # Text

    def fresh(self) -> str:
        self.count += 1
        return f"%v{self.count}"

    def put(self, text: str) -> str:
        """An instruction with a result."""
        name = self.fresh()
        self.lines.append(f"  {name} = {text}")
        if "@llvm." in text:
            self.declare(text)
        return name

    def declare(self, call: str) -> None:
        head, rest = call.removeprefix("call ").split("@", 1)
        name, arguments = rest.split("(", 1)
        kinds = [_argument_type(a) for a in _split(arguments.rstrip().removesuffix(")"))]
        self.declared[name] = f"declare {head.strip()} @{name}({', '.join(kinds)})"

    def do(self, text: str) -> None:
        """An instruction without a result."""
        self.lines.append(f"  {text}")

    def start(self, label: str) -> None:
        self.lines.append(f"{label}:")
        self.label = label

    # Module

    def module(self) -> str:
        k = self.kernel
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
        body = "\n".join(self.lines)
        declarations = "\n".join(self.declared[n] for n in sorted(self.declared))
        head = "ptr noalias %parameters, ptr noalias %sizes, i64 %begin, i64 %end, ptr noalias %scratch"
        return f"{declarations}\ndefine void @{_symbol(k.name)}({head}) {{\nentry:\n{body}\n  ret void\n}}\n"

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
        for op in block.operations:
            getattr(self, f"_{op.name}")(op)

    # Sizes

    def size(self, x: Size) -> str:
        """An i64 with the value of a size."""
        if isinstance(x, int):
            return str(x)
        for scope in self.known:
            if x in scope:
                return scope[x]
        total: str | None = None
        for monomial, factor in x.terms:
            term = self.monomial(monomial, factor)
            total = term if total is None else self.put(f"add i64 {total}, {term}")
        assert total is not None
        self.known[-1][x] = total
        return total

    def monomial(self, monomial: Any, factor: int) -> str:
        term = None if factor == 1 and monomial else str(factor)
        for atom, power in monomial:
            value = self.atom(atom)
            for _ in range(power):
                term = value if term is None else self.put(f"mul nsw i64 {term}, {value}")
        assert term is not None
        return term

    def atom(self, atom: Any) -> str:
        if isinstance(atom, Symbol):
            return self.variables[atom.name]
        assert isinstance(atom, Apply)
        a, b = self.size(atom.left), self.size(atom.right)
        match atom.function:
            case "//":
                return self.put(f"sdiv i64 {a}, {b}")
            case "%":
                return self.put(f"srem i64 {a}, {b}")
            case _:
                return self.put(f"call i64 @llvm.s{atom.function}.i64(i64 {a}, i64 {b})")

    # Loops and memory

    def _alloc(self, op: Operation) -> None:
        pass  # laid out once, before the first instance

    def _for(self, op: Operation) -> None:
        a, block = op.attributes, op.block
        assert block is not None
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
        self.do(f"br i1 {test}, label %{body}, label %{done}")
        self.start(body)
        self.variables[a["variable"]] = counter
        self.known.append({})
        self.block(block)
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

    def named(self, t: Tile) -> list[str]:
        self.tiles[t] = [self.fresh() for _ in chunk_types(t.type)]
        return self.tiles[t]

    def _load(self, op: Operation) -> None:
        names = []
        for pointer, width, mask, contiguous in self.places(op, op.results[0]):
            names.append(self.load_chunk(op, pointer, width, mask, contiguous))
        self.tiles[op.results[0]] = names

    def load_chunk(
        self, op: Operation, pointer: str, width: int, mask: str | None, step: str | None
    ) -> str:
        """`width` elements from a pointer: in one piece, or element by element `step` apart."""
        dtype = op.results[0].dtype
        memory, t = _memory_type(dtype), _vector(dtype, width)
        fill = constant(op.attributes["fill"], dtype, width)
        if width > 1 and step is None:
            wide = f"<{width} x {memory}>"
            if mask is None:
                raw = self.put(f"load {wide}, ptr {pointer}, align {_align(dtype)}")
            else:
                stored = "zeroinitializer" if dtype.kind == "b" else fill
                raw = self.put(
                    f"call {wide} @llvm.masked.load.v{width}{_suffix(memory)}.p0(ptr {pointer}, "
                    f"i32 {_align(dtype)}, <{width} x i1> {mask}, {wide} {stored})"
                )
            return self.put(f"trunc {wide} {raw} to {t}") if dtype.kind == "b" else raw
        return self.gather(dtype, pointer, width, mask, step, fill)

    def gather(
        self, dtype: DType, pointer: str, width: int, mask: str | None, step: str | None, fill: str
    ) -> str:
        memory, t, scalar = _memory_type(dtype), _vector(dtype, width), _TYPES[dtype.name]
        total = "undef"
        for i in range(width):
            at = pointer if i == 0 else self.element(pointer, memory, step, i)
            ok = None if mask is None else (
                mask if width == 1 else self.put(f"extractelement <{width} x i1> {mask}, i32 {i}")
            )  # fmt: skip
            raw = self.guarded_load(memory, at, ok, dtype)
            value = self.put(f"trunc i8 {raw} to i1") if dtype.kind == "b" else raw
            if width == 1:
                total = value
            else:
                total = self.put(f"insertelement {t} {total}, {scalar} {value}, i32 {i}")
        if mask is None:
            return total
        return self.put(f"select {_vector_of('i1', width)} {mask}, {t} {total}, {t} {fill}")

    def guarded_load(self, memory: str, at: str, ok: str | None, dtype: DType) -> str:
        if ok is None:
            return self.put(f"load {memory}, ptr {at}, align {_align(dtype)}")
        one = self.put(f"insertelement <1 x i1> undef, i1 {ok}, i32 0")
        got = self.put(
            f"call <1 x {memory}> @llvm.masked.load.v1{_suffix(memory)}.p0(ptr {at}, "
            f"i32 {_align(dtype)}, <1 x i1> {one}, <1 x {memory}> zeroinitializer)"
        )
        return self.put(f"extractelement <1 x {memory}> {got}, i32 0")

    def element(self, pointer: str, memory: str, step: str | None, i: int) -> str:
        far = str(i) if step is None else self.put(f"mul i64 {step}, {i}")
        return self.put(f"getelementptr {memory}, ptr {pointer}, i64 {far}")

    def _store(self, op: Operation) -> None:
        value = op.operands[0]
        dtype = value.dtype
        memory = _memory_type(dtype)
        places = self.places(op, value)
        for name, (pointer, width, mask, step) in zip(self.tiles[value], places, strict=True):
            if dtype.kind == "b":
                name = self.put(f"zext {_vector(dtype, width)} {name} to {_vector_of('i8', width)}")
            if width > 1 and step is None:
                wide = f"<{width} x {memory}>"
                if mask is None:
                    self.do(f"store {wide} {name}, ptr {pointer}, align {_align(dtype)}")
                else:
                    self.masked_store(wide, width, memory, name, pointer, mask, dtype)
                continue
            self.scatter(dtype, name, pointer, width, mask, step)

    def masked_store(
        self, wide: str, width: int, memory: str, name: str, pointer: str, mask: str, dtype: DType
    ) -> None:
        text = (
            f"call void @llvm.masked.store.v{width}{_suffix(memory)}.p0({wide} {name}, "
            f"ptr {pointer}, i32 {_align(dtype)}, <{width} x i1> {mask})"
        )
        self.do(text)
        self.declare(text)

    def scatter(
        self, dtype: DType, name: str, pointer: str, width: int, mask: str | None, step: str | None
    ) -> None:
        memory = _memory_type(dtype)
        for i in range(width):
            at = pointer if i == 0 else self.element(pointer, memory, step, i)
            value = name if width == 1 else self.put(
                f"extractelement {_vector_of(memory, width)} {name}, i32 {i}"
            )  # fmt: skip
            if mask is None:
                self.do(f"store {memory} {value}, ptr {at}, align {_align(dtype)}")
                continue
            ok = mask if width == 1 else self.put(f"extractelement <{width} x i1> {mask}, i32 {i}")
            one = self.put(f"insertelement <1 x i1> undef, i1 {ok}, i32 0")
            vec = self.put(f"insertelement <1 x {memory}> undef, {memory} {value}, i32 0")
            self.masked_store(f"<1 x {memory}>", 1, memory, vec, at, one, dtype)

    def places(self, op: Operation, t: Tile) -> list[tuple[str, int, str | None, str | None]]:
        """Pointer, width, mask and step of each chunk of a tile in memory."""
        a, m = op.attributes, op.memory
        assert m is not None
        steps, kept = strides(m.type.shape), a["axes"]
        base: Size = 0
        for at, s in zip(a["at"], steps, strict=True):
            base = base + at * s
        memory = _memory_type(t.dtype)
        dropped_ok = self.dropped_mask(op)
        out: list[tuple[str, int, str | None, str | None]] = []
        last = kept[-1] if kept else None
        contiguous = last is None or steps[last] == 1
        step = None if last is None or contiguous else self.size(steps[last])
        for lead in _indices(t.shape[:-1]):
            offset, ok = base, dropped_ok
            for axis, i in zip(kept[:-1], lead, strict=True):
                offset = offset + i * steps[axis]
                ok = self.both(ok, self.inside(op, axis, i))
            at = 0
            for width in chunks(t.shape[-1] if t.shape else 1):
                here = offset if last is None else offset + at * steps[last]
                pointer = self.put(
                    f"getelementptr {memory}, ptr {self.pointers[m]}, i64 {self.size(here)}"
                )
                mask = self.chunk_mask(op, last, at, width, ok)
                out.append((pointer, width, mask, step))
                at += width
        return out

    def dropped_mask(self, op: Operation) -> str | None:
        ok = None
        for axis in op.attributes["masked"]:
            if axis not in op.attributes["axes"]:
                ok = self.both(ok, self.inside(op, axis, 0))
        return ok

    def inside(self, op: Operation, axis: int, i: int) -> str | None:
        """An i1 that tells whether the i-th element along an axis is in the memory."""
        if axis not in op.attributes["masked"]:
            return None
        assert op.memory is not None
        at = self.size(op.attributes["at"][axis] + i)
        return self.put(f"icmp slt i64 {at}, {self.size(op.memory.type.shape[axis])}")

    def both(self, a: str | None, b: str | None) -> str | None:
        return b if a is None else a if b is None else self.put(f"and i1 {a}, {b}")

    def chunk_mask(
        self, op: Operation, axis: int | None, at: int, width: int, ok: str | None
    ) -> str | None:
        if axis is None or axis not in op.attributes["masked"]:
            return None if ok is None else self.splat(ok, "i1", width)
        if width == 1:
            return self.both(ok, self.inside(op, axis, at))
        assert op.memory is not None
        left = self.size(op.memory.type.shape[axis] - op.attributes["at"][axis] - at)
        limit = self.splat(left, "i64", width)
        lanes = ", ".join(f"i64 {i}" for i in range(width))
        mask = self.put(f"icmp slt <{width} x i64> <{lanes}>, {limit}")
        return (
            mask
            if ok is None
            else self.put(f"and <{width} x i1> {mask}, {self.splat(ok, 'i1', width)}")
        )

    def splat(self, name: str, kind: str, width: int) -> str:
        """A vector of one scalar."""
        if width == 1:
            return name
        one = self.put(f"insertelement <{width} x {kind}> undef, {kind} {name}, i32 0")
        return self.put(
            f"shufflevector <{width} x {kind}> {one}, <{width} x {kind}> undef, "
            f"<{width} x i32> zeroinitializer"
        )

    # Values

    def _full(self, op: Operation) -> None:
        t = op.results[0]
        widths = _widths(t.type)
        self.tiles[t] = [constant(op.attributes["value"], t.dtype, w) for w in widths]

    def _index(self, op: Operation) -> None:
        t, axis = op.results[0], op.attributes.get("axis")
        base = self.size(op.attributes["at"])
        names = []
        for lead in _indices(t.shape[:-1]):
            at = 0
            for width in chunks(t.shape[-1] if t.shape else 1):
                splat = self.splat(self.put(f"add i64 {base}, 0"), "i64", width)
                if axis is None:
                    names.append(splat)
                elif axis == len(t.shape) - 1:
                    lanes = ", ".join(f"i64 {at + i}" for i in range(width))
                    line = f"<{lanes}>" if width > 1 else str(at)
                    names.append(self.put(f"add {_vector_of('i64', width)} {splat}, {line}"))
                else:
                    more = constant(lead[axis], t.dtype, width)
                    names.append(self.put(f"add {_vector_of('i64', width)} {splat}, {more}"))
                at += width
        self.tiles[t] = names

    def spread(self, t: Tile, shape: tuple[int, ...]) -> list[str]:
        """The chunks of a tile broadcast to a shape."""
        names = self.tiles[t]
        if t.shape == shape:
            return names
        own = t.shape or (1,) * len(shape)
        per_row = len(chunks(own[-1])) if own else 1
        out = []
        splats: dict[tuple[str, int], str] = {}
        for lead in _indices(shape[:-1]):
            row = 0
            for i, n in zip(lead, own[:-1], strict=True):
                row = row * n + (0 if n == 1 else i)
            for c, width in enumerate(chunks(shape[-1] if shape else 1)):
                if own and own[-1] == 1 and width > 1:
                    key = (names[row], width)
                    if key not in splats:
                        splats[key] = self.splat(names[row], _TYPES[t.dtype.name], width)
                    out.append(splats[key])
                else:
                    out.append(names[row * per_row + (c if own and own[-1] != 1 else 0)])
        return out

    def _apply(self, op: Operation) -> None:
        t, name = op.results[0], op.attributes["scalar"]
        columns = [self.spread(x, t.shape) for x in op.operands]
        dtypes = [x.dtype for x in op.operands]
        self.tiles[t] = [
            self.scalar(name, list(row), dtypes, width)
            for *row, width in zip(*columns, _widths(t.type), strict=True)
        ]

    def scalar(self, name: str, xs: Sequence[str], dtypes: Sequence[DType], width: int) -> str:
        """One scalar op on vectors of a width."""
        if name == "where":
            t = _vector(dtypes[1], width)
            return self.put(f"select {_vector_of('i1', width)} {xs[0]}, {t} {xs[1]}, {t} {xs[2]}")
        t = _vector(dtypes[0], width)
        template = TEMPLATES[dtypes[0].kind][name]
        kind = _TYPES[dtypes[0].name]
        suffix = (f"v{width}" if width > 1 else "") + _suffix(kind)
        return self.put(template.format(*xs, t=t, v=suffix))

    def _cast(self, op: Operation) -> None:
        x, t = op.operands[0], op.results[0]
        self.tiles[t] = [
            self.cast(name, x.dtype, t.dtype, width)
            for name, width in zip(self.tiles[x], _widths(t.type), strict=True)
        ]

    def cast(self, name: str, source: DType, to: DType, width: int) -> str:
        a, b = _vector(source, width), _vector(to, width)
        if a == b:
            return name
        if to.kind == "b":
            zero = constant(0, source, width)
            relation = "fcmp une" if source.kind == "f" else "icmp ne"
            return self.put(f"{relation} {a} {name}, {zero}")
        if source.kind == "f" and to.kind == "f":
            word = "fpext" if source.bits < to.bits else "fptrunc"
        elif source.kind == "f":
            sign = "s" if to.kind == "i" else "u"
            kinds = (_suffix(_TYPES[to.name]), _suffix(_TYPES[source.name]))
            v = f"v{width}" if width > 1 else ""
            return self.put(
                f"call {b} @llvm.fpto{sign}i.sat.{v}{kinds[0]}.{v}{kinds[1]}({a} {name})"
            )
        elif to.kind == "f":
            word = "sitofp" if source.kind == "i" else "uitofp"
        elif to.bits < source.bits:
            word = "trunc"
        else:
            word = "sext" if source.kind == "i" else "zext"
        return self.put(f"{word} {a} {name} to {b}")

    def _fold(self, op: Operation) -> None:
        x, t = op.operands[0], op.results[0]
        name, axis = op.attributes["scalar"], op.attributes["axis"]
        if axis == len(x.shape) - 1:
            self.tiles[t] = self.fold_last(name, x)
            return
        rows = {lead: r for r, lead in enumerate(_indices(x.shape[:-1]))}
        per_row = len(chunks(x.shape[-1]))
        names = self.tiles[x]
        widths = chunks(x.shape[-1])
        out = []
        for lead in _indices(t.shape[:-1]):
            for c in range(per_row):
                column = [
                    names[rows[(*lead[:axis], i, *lead[axis + 1 :])] * per_row + c]
                    for i in range(x.shape[axis])
                ]
                out.append(self.tree(name, column, x.dtype, widths[c]))
        self.tiles[t] = out

    def tree(self, name: str, xs: list[str], dtype: DType, width: int) -> str:
        """A balanced tree over vectors: the upper part onto the lower until one is left."""
        while len(xs) > 1:
            half = 1 << (len(xs) - 1).bit_length() - 1
            low = [
                self.scalar(name, (a, b), (dtype, dtype), width)
                for a, b in zip(xs[: len(xs) - half], xs[half:], strict=True)
            ]
            xs = low + xs[len(xs) - half : half]
        return xs[0]

    def fold_last(self, name: str, x: Tile) -> list[str]:
        names, widths, n = self.tiles[x], chunks(x.shape[-1]), x.shape[-1]
        whole = all(w == LANES for w in widths) and len(widths) & (len(widths) - 1) == 0
        out = []
        for r in range(len(names) // len(widths)):
            row = names[r * len(widths) : (r + 1) * len(widths)]
            if whole:
                out.append(
                    self.fold_vector(name, self.tree(name, row, x.dtype, LANES), x.dtype, LANES)
                )
            elif len(row) == 1 and n & (n - 1) == 0:
                out.append(self.fold_vector(name, row[0], x.dtype, n))
            else:
                single = [
                    e
                    for v, w in zip(row, widths, strict=True)
                    for e in self.elements(v, x.dtype, w)
                ]
                out.append(self.tree(name, single, x.dtype, 1))
        return out

    def elements(self, name: str, dtype: DType, width: int) -> list[str]:
        """The lanes of a vector."""
        if width == 1:
            return [name]
        t = _vector(dtype, width)
        return [self.put(f"extractelement {t} {name}, i32 {i}") for i in range(width)]

    def fold_vector(self, name: str, v: str, dtype: DType, width: int) -> str:
        kind = _TYPES[dtype.name]
        while width > 1:
            half = width // 2
            low, high = (
                self.put(
                    f"shufflevector <{width} x {kind}> {v}, <{width} x {kind}> undef, <{half} x i32> "
                    f"<{', '.join(f'i32 {i}' for i in range(s, s + half))}>"
                )
                for s in (0, half)
            )
            if half == 1:
                low, high = (
                    self.put(f"extractelement <1 x {kind}> {p}, i32 0") for p in (low, high)
                )
            v = self.scalar(name, (low, high), (dtype, dtype), half)
            width = half
        return v

    def _reshape(self, op: Operation) -> None:
        x, t = op.operands[0], op.results[0]
        names, own, new = self.tiles[x], (x.shape or (1,))[-1], (t.shape or (1,))[-1]
        if own == new:
            self.tiles[t] = names
            return
        single = [
            e
            for v, w in zip(names, _widths(x.type), strict=True)
            for e in self.elements(v, x.dtype, w)
        ]
        out, at = [], 0
        for width in _widths(t.type):
            part = single[at : at + width]
            out.append(part[0] if width == 1 else self.vector(part, t.dtype))
            at += width
        self.tiles[t] = out

    def vector(self, parts: Sequence[str], dtype: DType) -> str:
        """A vector of scalars."""
        t, kind, v = _vector(dtype, len(parts)), _TYPES[dtype.name], "undef"
        for i, p in enumerate(parts):
            v = self.put(f"insertelement {t} {v}, {kind} {p}, i32 {i}")
        return v


# Types and constants --------------------------------------------------------------------------


def chunks(n: int) -> list[int]:
    """The widths of the vectors that hold n elements."""
    return [LANES] * (n // LANES) + ([n % LANES] if n % LANES else [])


def _widths(t: TensorType) -> list[int]:
    shape: tuple[int, ...] = t.shape  # type: ignore[assignment]
    return chunks(shape[-1] if shape else 1) * math.prod(shape[:-1])


def chunk_types(t: TensorType) -> list[str]:
    """The LLVM type of each vector of a tile."""
    return [_vector(t.dtype, w) for w in _widths(t)]


def _indices(shape: Sequence[int]) -> list[tuple[int, ...]]:
    out: list[tuple[int, ...]] = [()]
    for n in shape:
        out = [(*i, k) for i in out for k in range(n)]
    return out


def _vector(dtype: DType, width: int) -> str:
    return _vector_of(_TYPES[dtype.name], width)


def _vector_of(kind: str, width: int) -> str:
    return kind if width == 1 else f"<{width} x {kind}>"


def _memory_type(dtype: DType) -> str:
    return "i8" if dtype.kind == "b" else _TYPES[dtype.name]


def _suffix(kind: str) -> str:
    return _SUFFIX.get(kind, kind)


def _align(dtype: DType) -> int:
    return max(dtype.bits // 8, 1)


def _padded(m: Memory) -> Size:
    """Bytes of a scratch memory, in whole cache lines."""
    return (product(m.type.shape) * _align(m.type.dtype) + 63) // 64 * 64


def scratch_bytes(kernel: Kernel) -> Size:
    """Bytes of scratch that one thread needs."""
    total: Size = 0
    for m in kernel.scratch():
        total = total + _padded(m)
    return total


def constant(value: Any, dtype: DType, width: int) -> str:
    """A literal of a dtype, as a vector of a width."""
    text = _literal(value, dtype)
    if width == 1:
        return text
    kind = _TYPES[dtype.name]
    return f"<{', '.join([f'{kind} {text}'] * width)}>"


def _literal(value: Any, dtype: DType) -> str:
    if dtype.kind == "b":
        return "true" if value else "false"
    if dtype.kind != "f":
        return str(int(value))
    rounded = dtype.np.type(value)  # type: ignore[union-attr]
    if dtype.name in ("f32", "f64"):
        return f"0x{struct.unpack('<Q', struct.pack('<d', float(rounded)))[0]:016X}"
    bits = int.from_bytes(rounded.tobytes(), "little")
    return f"0x{'H' if dtype.name == 'f16' else 'R'}{bits:04X}"


def _symbol(name: str) -> str:
    return "".join(c if c.isalnum() or c == "_" else "_" for c in name)


def _split(arguments: str) -> list[str]:
    """Cut at the commas outside brackets."""
    out, depth, start = [], 0, 0
    for i, c in enumerate(arguments):
        depth += (c in "<([{") - (c in ">)]}")
        if c == "," and depth == 0:
            out.append(arguments[start:i])
            start = i + 1
    return [*out, arguments[start:]]


def _argument_type(argument: str) -> str:
    text = argument.strip()
    return text[: text.index(">") + 1] if text.startswith("<") else text.split()[0]
