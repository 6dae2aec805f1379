"""emit: a Tile kernel as the source of a Triton kernel.

    %3 = load(%x) {at = [p0, 0], extent = [1, 64]}   ->   v3 = tl.load(x + p0 * 64 + line)

The text is for people too: one line for each operation, sizes and positions as in the kernel.  Axes
are padded to powers of two; what lies in the padding is never stored, and folds and products do not
see it.  A fold is the balanced tree that Tile IR says, pair by pair, so that its bits do not depend on
how Triton lays a tile out over threads.
"""

from __future__ import annotations

import keyword
import re
from collections.abc import Iterable, Iterator, Sequence

from tessera.core.approximate import FLOATS, FUNCTIONS
from tessera.core.dims import Dim, Size, product, substitute
from tessera.core.dtype import DType, bool_, f32, i64
from tessera.core.errors import OperandError
from tessera.core.evaluate import identity
from tessera.core.scalar import TESTS
from tessera.ir.target.triton import algebra, casts, scalars, sizes
from tessera.ir.target.triton.algebra import TritonAlgebra, divide, literal, root
from tessera.ir.target.triton.casts import Casts
from tessera.ir.target.triton.sizes import SizeWriter, is_wide
from tessera.ir.target.triton.types import physical, value
from tessera.ir.tile.ir import Block, Kernel, Memory, Operation, Tile, walk
from tessera.ir.tile.launch import Threads

_HELPERS = {**sizes.HELPERS, **algebra.HELPERS, **scalars.HELPERS, **casts.HELPERS}
_NEEDS = {**sizes.NEEDS, **scalars.NEEDS}
_HEAD = """import triton
import triton.language as tl
from triton.language.extra import libdevice
"""
_ANY_ORDER = ("max", "min", "and", "or", "xor", "logical_and", "logical_or", "logical_xor")
_MOVES = frozenset(("where", "nextafter", "pos", "conj", "real"))
_CALLED = re.compile(r"\b[a-z_]+(?=\()")
_BESIDE = ("eq", "ne", "lt", "le", "gt", "ge", "max", "min")  # of indices that stay in 32 bits


def emit(kernel: Kernel, threads: Threads | None = None) -> str:
    """The module that defines a kernel, under its name."""
    return _Emitter(kernel, threads or Threads()).text()


def scratch_bytes(kernel: Kernel) -> Size:
    """Bytes of scratch that a block needs: it gets them as the last parameter, if any."""
    return _Emitter(kernel, Threads()).lay_out_scratch()


def plain_name(name: str) -> str:
    """A name that Python takes."""
    clean = re.sub(r"\W", "_", name)
    taken = keyword.iskeyword(clean) or clean in ("tl", "triton", "libdevice", "range", "float")
    return f"{clean}_" if taken or clean[:1].isdigit() else clean


def size_names(kernel: Kernel) -> list[str]:
    """The scalars that a kernel is called with, after its memories."""
    return list(kernel.sizes)


class _Emitter:
    """A kernel being written."""

    def __init__(self, kernel: Kernel, style: Threads):
        self.k, self.style = kernel, style
        self.narrow = style.approximate or stores_narrow(kernel)
        self.fetched = fetched(kernel) if style.descriptors else frozenset()
        self.lines: list[str] = []
        self.prelude: list[str] = []  # constants and lines of numbers
        self.hoisted: dict[str, str] = {}
        self.indent, self.count = 1, 0
        self.tiles: dict[Tile, str] = {}
        self.short: set[Tile] = set()  # i64 tiles that are kept in 32 bits
        self.used: dict[str, None] = {}
        self.functions: dict[str, str] = {}  # what folds combine with
        self.written: bool | None = None  # whether scratch was last written, or read
        self.memory = {m: plain_name(m.name) for m in kernel.parameters}
        self.taken = {*self.memory.values(), "scratch", "own", "rest", "turn", "at"}
        self.names = {n: self.free(plain_name(n)) for n in kernel.sizes}
        self.names |= {n: self.free(plain_name(n.lstrip("_"))) for n, _ in kernel.grid}
        self.size = SizeWriter(self.names, self.used)
        self.casts = Casts(self.used)
        self.scratch: dict[Memory, Size] = {}  # where each begins, in bytes
        self.shared = _read_and_written(kernel)
        self.turned: dict[Operation, Memory] = {}

    def text(self) -> str:
        name = plain_name(self.k.name)
        self._grid()
        self._scratch()
        self.block(self.k.body)
        given = [self.memory[m] for m in self.k.parameters]
        given += [self.names[n] for n in size_names(self.k)]
        given += ["scratch"] if self.scratch else []
        body = [*self.prelude, *self.lines] or ["    pass"]
        helpers = "\n".join(_HELPERS[h] for h in self._helpers())
        folds = "\n".join(self.functions.values())
        return (
            f"{_HEAD}{helpers}\n{folds}\n\n@triton.jit\ndef {name}({', '.join(given)}):\n"
            + "\n".join(body)
            + "\n"
        )

    def _helpers(self) -> list[str]:
        found: dict[str, None] = {}
        for name in self.used:
            for needed in (*_NEEDS.get(name, ()), name):
                for first in (*_NEEDS.get(needed, ()), needed):
                    found[first] = None
        return list(found)

    def free(self, name: str) -> str:
        """A name that nothing else has."""
        while name in self.taken:
            name += "_"
        self.taken.add(name)
        return name

    # Lines

    def do(self, line: str) -> None:
        self.lines.append("    " * self.indent + line)

    def put(self, expression: str) -> str:
        """A new variable."""
        self.count += 1
        name = self.free(f"v{self.count}")
        self.do(f"{name} = {expression}")
        return name

    def hoist(self, expression: str, stem: str) -> str:
        """A variable that is set once, at the beginning."""
        if expression not in self.hoisted:
            name = self.free(f"{stem}{len(self.hoisted)}")
            self.hoisted[expression] = name
            self.prelude.append(f"    {name} = {expression}")
        return self.hoisted[expression]

    def constant(self, text: str, kind: str) -> str:
        """A number of a type."""
        return self.hoist(f"tl.full((), {text}, {kind})", "k")

    def line(self, axis: int, shape: Sequence[int]) -> str:
        """The numbers 0, 1, ... along an axis of a tile of a (padded) shape."""
        rank, n = len(shape), shape[axis]
        if rank == 1:
            return self.hoist(f"tl.arange(0, {n})", "line")
        places = ", ".join(":" if i == axis else "None" for i in range(rank))
        return self.hoist(f"tl.arange(0, {n})[{places}]", "line")

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

    def lay_out_scratch(self) -> Size:
        """Say where each memory begins; the bytes of all of them."""
        at: Size = 0
        for m in (*self.k.scratch(), *self._turned()):
            self.scratch[m] = at
            at = at + (m.type.size * max(m.type.dtype.bits // 8, 1) + 15) // 16 * 16
        return at

    def _turned(self) -> Iterator[Memory]:
        """Scratch for tiles that are reshaped where padding lies between their elements."""
        for op in walk(self.k.body):
            if op.name == "reshape" and not _keeps_padding(
                op.operands[0].shape, op.results[0].shape
            ):
                self.turned[op] = Memory(f"turned{len(self.turned)}", op.operands[0].type)
                yield self.turned[op]

    # Blocks

    def block(self, block: Block) -> None:
        for op in block.operations:
            getattr(self, f"_{op.name}")(op)

    def of(self, t: Tile) -> str:
        """The variable of a tile, in the type that the tile has."""
        return f"{self.tiles[t]}.to(tl.int64)" if t in self.short else self.tiles[t]

    def set(self, op: Operation, expression: str) -> None:
        self.tiles[op.results[0]] = self.put(expression)

    def _for(self, op: Operation) -> None:
        a = op.attributes
        assert op.block is not None
        carried = []
        for t, argument in zip(op.operands, op.block.arguments, strict=True):
            self.tiles[argument] = self.put(self.of(t))
            carried.append(self.tiles[argument])
        i = self.names[a["variable"]] = self.free(plain_name(a["variable"].lstrip("_")))
        start, stop = (self.size.write(a[x]) for x in ("start", "stop"))
        if self.size.least(a["start"]) < 0:
            self.size.signed.add(a["variable"])
        nested = any(x.name == "for" for x in op.block.operations)
        if nested and self.style.descriptors:
            self.do(f"for {i} in tl.range({start}, {stop}, {a['step']}, flatten=True):")
        elif nested or self.style.stages is None:
            self.do(f"for {i} in range({start}, {stop}, {a['step']}):")
        else:
            stages = self.style.stages
            self.do(f"for {i} in tl.range({start}, {stop}, {a['step']}, num_stages={stages}):")
        self.indent += 1
        before = len(self.lines)
        self.block(op.block)
        outs = [self.of(t) for t in op.block.outputs]
        if carried:
            self.do(f"{', '.join(carried)} = {', '.join(outs)}")
        elif len(self.lines) == before:
            self.do("pass")
        self.indent -= 1
        self.tiles.update(zip(op.results, carried, strict=True))

    # Memory

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
        for at, stride in zip(a["at"], strides, strict=True):
            base = base + at * stride
        parts = [] if base == 0 else [self.size.write(base, wide)]
        moved = dict(zip(a.get("picked", ()), picked, strict=True))
        for axis, t in moved.items():
            index = self.tiles[t]
            if wide and t in self.short:
                index = f"{index}.to(tl.int64)"
            elif not wide and t not in self.short:
                index = f"{index}.to(tl.int32)"
            parts.append(self.scaled(index, strides[axis], wide))
        for j, axis in enumerate(a["axes"]):
            if shape[j] > 1:
                parts.append(self.scaled(self.line(j, shape), strides[axis], wide))
        if shape and all(n == 1 for n in shape):
            parts.append(self.line(0, shape))  # a tile of one element, not a scalar
        return " + ".join([self.memory[m], *parts])

    def scaled(self, line: str, stride: Size, wide: bool) -> str:
        if stride == 1:
            return line
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
        for axis, (at, n) in enumerate(zip(a["at"], a["extent"], strict=True)):
            size = m.type.shape[axis]
            if axis in own and shape[own[axis]] != n:
                tests.append(f"{self.line(own[axis], shape)} < {n}")
            if axis not in a["masked"]:
                continue
            if axis in own and shape[own[axis]] > 1:
                line, left = self.line(own[axis], shape), at
            elif axis in moved:
                line, left = self.tiles[moved[axis]], at
            else:
                line, left = self.nothing(shape), at
            tests.append(f"{line} < {self.size.inner(size - left)}")
            if axis in moved or self.size.least(left) < 0:
                tests.append(f"{line} >= {self.size.inner(0 - left)}")
        if len(tests) == 1:
            return tests[0]
        return " & ".join(f"({t})" for t in tests)

    def nothing(self, shape: tuple[int, ...]) -> str:
        """Zeros of a shape, as tests of a whole tile compare with."""
        if not shape:
            return self.constant("0", "tl.int32")
        return self.hoist(f"tl.zeros({_tuple(shape)}, tl.int32)", "zero")

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
            x = f"({x} != 0)"
        self.set(op, x)

    def fetch(self, op: Operation, t: Tile, m: Memory) -> None:
        """A box of memory by the tensor memory accelerator; what is outside of the memory is 0."""
        a = op.attributes
        sizes, block = (_list(map(str, x)) for x in (m.type.shape, a["extent"]))
        strides = _list(str(product(m.type.shape[i + 1 :])) for i in range(m.type.rank))
        made = f"tl.make_tensor_descriptor({self.memory[m]}, {sizes}, {strides}, {block})"
        x = f"{self.hoist(made, 'box')}.load({_list(self.size.write(at) for at in a['at'])})"
        axes = sorted(a["axes"])
        if len(axes) != m.type.rank:
            x = f"tl.reshape({x}, {_tuple([a['extent'][i] for i in axes])})"
        self.set(op, x if list(a["axes"]) == axes else f"tl.trans({x})")

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
        if not picked or all(n == 1 for n in shape):
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

    # Values

    def _full(self, op: Operation) -> None:
        t = op.results[0]
        shape, x = _tuple(physical(t.shape)), op.attributes["value"]
        if t.dtype is i64 and abs(x) < 1 << 30:
            self.short.add(t)
            self.set(op, f"tl.full({shape}, {x}, tl.int32)")
        elif t.dtype.bits < 16 and t.dtype.kind == "f":
            full = f"tl.full({shape}, {self.number(x, f32)}, tl.float32)"
            self.set(op, self.casts.cast(full, f32, t.dtype))
        else:
            text = repr(bool(x)) if t.dtype is bool_ else self.number(x, t.dtype)
            self.set(op, f"tl.full({shape}, {text}, {value(t.dtype)})")

    def _index(self, op: Operation) -> None:
        t, axis = op.results[0], op.attributes["axis"]
        self.short.add(t)
        at, shape = self.size.write(op.attributes["at"]), physical(t.shape)
        if axis is None or shape[axis] == 1:
            self.set(op, f"tl.zeros({_tuple(shape)}, tl.int32) + {at}")
        else:
            line = self.line(axis, shape)
            own = line if len(shape) == 1 else f"tl.broadcast_to({line}, {_tuple(shape)})"
            self.set(op, own if at == "0" else f"{own} + ({at})")

    def _apply(self, op: Operation) -> None:
        name, xs, out = op.attributes["scalar"], op.operands, op.results[0]
        if all(x in self.short for x in xs) and name in _BESIDE:
            if name in ("max", "min"):
                self.short.add(out)
            self.set(op, self.scalar(name, [self.tiles[x] for x in xs], i64))
            return
        dtype = xs[1 if name == "where" else 0].dtype
        given = [self.of(x) for x in xs]
        if dtype.is_narrow and dtype.kind == "f" and name not in _MOVES:
            wide = [f"{x}.to(tl.float32)" for x in given]
            made = self.scalar(name, wide, f32)
            self.set(op, made if name in TESTS else self.casts.cast(f"({made})", f32, dtype))
            return
        self.set(op, self.scalar(name, given, dtype))

    def scalar(self, name: str, xs: Sequence[str], dtype: DType) -> str:
        """A scalar op on variables, as an expression."""
        base = dtype.base
        row = scalars.TEMPLATES[base.kind].get(name)
        if self.narrow and base is f32 and name in scalars.NARROW:
            row = scalars.NARROW[name]
        if row is None:
            if name not in FUNCTIONS or base.kind != "f":
                raise OperandError(f"triton: the scalar op {name!r} on {dtype} has no GPU form")
            form = TritonAlgebra(self.put, self.constant, FLOATS[base.name], self.used)
            names = [self.put(x) if not x.isidentifier() else x for x in xs]
            return FUNCTIONS[name].build(form, *names)
        if row.count("{0}") > 1 or "(" in row:
            xs = [x if x.isidentifier() else self.put(x) for x in xs]
        made = row.format(*xs, **self._words(row, base, *xs))
        for helper in _CALLED.findall(made):
            if helper in _HELPERS:
                self.used[helper] = None
        return made

    def _words(self, row: str, d: DType, x: str, *rest: str) -> dict[str, str]:
        words = {"f": value(d), "bits": str(d.bits), "last": str(d.bits - 1)}
        if d.kind != "f":
            return words
        form = FLOATS["f64" if d.bits == 64 else "f32"]
        integer = f"tl.int{d.bits}"
        y = rest[0] if rest else ""
        one = self.constant("1.0", value(d)) if "invert" in row else ""
        return words | {
            "i": integer,
            "most": str((1 << d.bits - 1) - 1),
            "far": str(_INFINITY[d.name]),
            "magic": repr(float(2**form.fraction)),
            "divide": divide(x, y, form),
            "invert": divide(one, x, form),
            "root": root(x, form),
            "root_invert": divide(one, root(x, form), form),
        }

    def _cast(self, op: Operation) -> None:
        x, t = op.operands[0], op.results[0]
        if x in self.short and t.dtype.base.kind == "f":
            self.set(op, self.casts.cast(self.tiles[x], x.dtype, t.dtype))
        else:
            self.set(op, self.casts.cast(self.of(x), x.dtype, t.dtype))

    # Folds

    def combine(self, name: str, dtype: DType) -> str:
        """The function that a fold combines with."""
        key = f"fold_{name}_{dtype.name}"
        if key not in self.functions:
            outside = self.lines, self.prelude, self.hoisted, self.indent
            self.lines, self.prelude, self.hoisted, self.indent = [], [], {}, 1
            if dtype.is_narrow and dtype.kind == "f":
                wide = self.scalar(name, ["a.to(tl.float32)", "b.to(tl.float32)"], f32)
                made = self.casts.cast(f"({wide})", f32, dtype)
            else:
                made = self.scalar(name, ["a", "b"], dtype)
            body = "\n".join([*self.prelude, *self.lines, f"    return {made}"])
            self.functions[key] = f"\n@triton.jit\ndef {key}(a, b):\n{body}\n"
            self.lines, self.prelude, self.hoisted, self.indent = outside
        return key

    def masked(self, t: Tile, axis: int, x: str, fill: str) -> str:
        """A tile whose padding along an axis holds a number."""
        shape = physical(t.shape)
        if shape[axis] == t.shape[axis]:
            return x
        inside = f"{self.line(axis, shape)} < {t.shape[axis]}"
        other = self.constant(fill, value(t.dtype))
        return self.put(f"tl.where({inside}, {x}, {other})")

    def neutral(self, name: str, dtype: DType) -> str:
        """What changes nothing in a fold: x + -0 is x, also where x is -0."""
        if name == "add" and dtype.kind == "f":
            return "-0.0"
        x = identity(name, dtype)
        assert isinstance(x, int | float), name
        if dtype.kind == "b":
            return str(bool(x))
        return literal(float(x)) if dtype.kind == "f" else str(int(x))

    def _fold(self, op: Operation) -> None:
        (t,), name, axis = op.operands, op.attributes["scalar"], op.attributes["axis"]
        f = self.combine(name, t.dtype)
        x = self.masked(t, axis, self.of(t), self.neutral(name, t.dtype))
        shape = physical(t.shape)
        n = shape[axis]
        if n == 1:
            self.set(op, x)
            return
        if n == 2 or name in _ANY_ORDER or t.dtype.kind != "f":
            self.set(op, f"tl.reduce({x}, {axis}, {f}, keep_dims=True)")
            return
        while n > 1:
            n //= 2
            halves = _tuple((*shape[:axis], 2, n, *shape[axis + 1 :]))
            x = self.put(f"tl.reduce(tl.reshape({x}, {halves}), {axis}, {f})")
        self.tiles[op.results[0]] = x

    def _scan(self, op: Operation) -> None:
        (t,), name, axis = op.operands, op.attributes["scalar"], op.attributes["axis"]
        f = self.combine(name, t.dtype)
        if name in _ANY_ORDER or t.dtype.kind != "f":
            self.set(op, f"tl.associative_scan({self.of(t)}, {axis}, {f})")
            return
        shape = physical(t.shape)
        x, line = self.put(self.of(t)), self.line(axis, shape)
        out, last = self.put(x), self.put(self.element(x, t, axis, "0"))
        self.do(f"for at in range(1, {t.shape[axis]}):")
        self.indent += 1
        self.do(f"{last} = {f}({last}, {self.element(x, t, axis, 'at')})")
        self.do(f"{out} = tl.where({line} == at, {last}, {out})")
        self.indent -= 1
        self.tiles[op.results[0]] = out

    def element(self, x: str, t: Tile, axis: int, at: str) -> str:
        """The elements at one place of an axis: the others count as the bits 0."""
        line = self.line(axis, physical(t.shape))
        kind = f"tl.int{t.dtype.bits}"
        bits = f"tl.where({line} == {at}, {x}.to({kind}, bitcast=True), 0)"
        return (
            f"tl.sum({bits}, {axis}, keep_dims=True).to({kind}).to({value(t.dtype)}, bitcast=True)"
        )

    # Products

    def _dot(self, op: Operation) -> None:
        a, b, acc = op.operands
        x, y, total = self.of(a), self.of(b), self.of(acc)
        if a.dtype.base.bits < 64 <= acc.dtype.bits and acc.dtype.kind == "f":
            x, y = (self.casts.cast(v, a.dtype, acc.dtype) for v in (x, y))
        if not _has_units(a, acc):
            self.chain(op, x, y, total)
            return
        x = self.masked(a, 1, x, "0")
        y = self.masked(b, 0, y, "0")
        precision = "tf32" if a.dtype.policy.math == "tf32" else "ieee"
        kind = value(acc.dtype)
        self.set(
            op,
            f'tl.dot({x}, {y}, {total}, input_precision="{precision}", out_dtype={kind})',
        )

    def chain(self, op: Operation, x: str, y: str, total: str) -> None:
        """A product of which no unit takes the operands: one k after the other."""
        a, b, acc = op.operands
        wide = acc.dtype
        x, y = (self.put(self.casts.cast(v, a.dtype, wide)) for v in (x, y))
        out = self.put(total)
        left, right = (Tile(t.type.with_dtype(wide)) for t in (a, b))
        self.do(f"for at in range(0, {a.shape[1]}):")
        self.indent += 1
        row, column = self.element(x, left, 1, "at"), self.element(y, right, 0, "at")
        if wide.kind == "f":
            self.do(f"{out} = tl.fma({row}, {column}, {out})")
        else:
            self.do(f"{out} = {out} + {row} * {column}")
        self.indent -= 1
        self.tiles[op.results[0]] = out

    def _dot_parts(self, op: Operation) -> None:
        """Products of the parts of words."""
        x, y, total = (self.of(t) for t in op.operands)
        parts = op.attributes["parts"]
        bits = 32 // parts
        terms = [total]
        for i in range(parts):
            up, down = 32 - bits * (i + 1), 32 - bits
            sign = f"(({y}.to(tl.int32) << {up}) >> {down})"
            if parts == 2:
                first = f"(({x}.to(tl.int32) << {up}) >> {down})"
            else:
                first = f"(({x}.to(tl.int32) >> {bits * i}) & 255)"
            terms.append(f"({first} * {sign}).to({value(op.results[0].dtype)})")
        self.set(op, " + ".join(terms))

    # Shapes

    def _reshape(self, op: Operation) -> None:
        (x,), t = op.operands, op.results[0]
        if op in self.turned:
            self._turn(op, x, t)
            return
        if x in self.short:
            self.short.add(t)
        shape = _tuple(physical(t.shape))
        if not x.shape:
            self.set(op, f"tl.broadcast_to({self.tiles[x]}, {shape})")
        elif not t.shape:  # the fold of one element is itself
            f = self.combine("max" if t.dtype.kind != "b" else "or", t.dtype)
            self.set(op, f"tl.reduce(tl.reshape({self.tiles[x]}, (1,)), 0, {f})")
        else:
            self.set(op, f"tl.reshape({self.tiles[x]}, {shape})")

    def _turn(self, op: Operation, x: Tile, t: Tile) -> None:
        """A tile through memory, where its elements lie without padding."""
        m = self.turned[op]
        flat = m.type.shape
        for tile, writes in ((x, True), (t, False)):
            shape, sizes = physical(tile.shape), tile.shape
            lines = [self.line(j, shape) for j in range(len(shape))]
            steps = [product(sizes[j + 1 :]) for j in range(len(shape))]
            at = " + ".join(
                [self.memory[m], *(f"{a} * {n}" for a, n in zip(lines, steps, strict=True))]
            )
            tests = [f"({a} < {n})" for a, n, p in zip(lines, sizes, shape, strict=True) if n != p]
            mask = f", mask={' & '.join(tests)}" if tests else ""
            self.settle(m, writes)
            if writes:
                kept = f"{self.of(x)}.to(tl.int8)" if x.dtype is bool_ else self.of(x)
                self.do(f"tl.store({at}, {kept}{mask})")
            else:
                found = f"tl.load({at}{mask}{', other=0' if mask else ''})"
                self.set(op, f"({found} != 0)" if t.dtype is bool_ else found)
        assert product(flat) == product(t.shape)

    def _broadcast(self, op: Operation) -> None:
        (x,), t = op.operands, op.results[0]
        if x in self.short:
            self.short.add(t)
        self.set(op, f"tl.broadcast_to({self.tiles[x]}, {_tuple(physical(t.shape))})")

    def _transpose(self, op: Operation) -> None:
        (x,), t = op.operands, op.results[0]
        if x in self.short:
            self.short.add(t)
        self.set(op, f"tl.trans({self.tiles[x]})")


def stores_narrow(kernel: Kernel) -> bool:
    """Whether all floats that a kernel stores have 16 bits or fewer."""
    found = [m.type.dtype.base for m in kernel.parameters if m.writable]
    floats = [d.bits for d in found if d.kind == "f"]
    return bool(floats) and max(floats) <= 16


def _read_and_written(kernel: Kernel) -> set[Memory]:
    found: dict[str, set[Memory]] = {"read": set(), "written": set()}
    for op in walk(kernel.body):
        if op.memory is not None and op.name in ("load", "gather"):
            found["read"].add(op.memory)
        elif op.memory is not None and op.name in ("store", "store_async", "scatter"):
            found["written"].add(op.memory)
    return found["read"] & found["written"]


def fetched(kernel: Kernel) -> frozenset[Operation]:
    """The loads of factors that are boxes of memory whose rows begin at multiples of 16 bytes."""
    makers = {t: op for op in walk(kernel.body) for t in op.results}
    found = set()
    for op in walk(kernel.body):
        for t in op.operands[:2] if op.name == "dot" else ():
            made = makers.get(t)
            while made is not None and made.name in ("reshape", "transpose", "broadcast"):
                made = makers.get(made.operands[0])
            if made is not None and made.name == "load" and _is_box(made):
                found.add(made)
    return frozenset(found)


def _is_box(op: Operation) -> bool:
    m, a = op.memory, op.attributes
    assert m is not None
    rank, size = m.type.rank, m.type.dtype.bits // 8
    if not m.type.static or not 2 <= rank <= 5 or m.space != "global" or m.writable:
        return False
    if a["fill"] != 0 or len(a["axes"]) != 2 or rank - 1 not in a["axes"]:
        return False
    if physical(a["extent"]) != tuple(a["extent"]) or a["extent"][-1] * size < 16:
        return False
    return all(product(m.type.shape[i:]) * size % 16 == 0 for i in range(1, rank))


_INFINITY = {"f16": 0x7C00, "bf16": 0x7F80, "f32": 0x7F800000, "f64": 0x7FF0000000000000}


def _has_units(a: Tile, acc: Tile) -> bool:
    """Whether a matrix unit, or Triton's own loop, multiplies tiles of this kind."""
    if a.dtype.kind == "f":
        least = 32 if a.dtype.bits == 8 else 16
        return physical(a.shape)[1] >= least
    return a.dtype.base.name == "i8" and acc.dtype.base.name == "i32" and physical(a.shape)[1] >= 32


def _varies(op: Operation, axis: int, picked: Sequence[Tile]) -> bool:
    """Whether the addresses of a gather vary along an axis of its tile."""
    if (
        axis < len(op.attributes["axes"])
        and op.attributes["extent"][op.attributes["axes"][axis]] > 1
    ):
        return True
    return any(t.shape and t.shape[axis] > 1 for t in picked)


def _keeps_padding(before: tuple[int, ...], after: tuple[int, ...]) -> bool:
    """Whether a reshape of padded tiles is a reshape: axes of one element come and go, or none is padded."""
    if _without_ones(before) == _without_ones(after):
        return True
    return physical(before) == before and physical(after) == after


def _without_ones(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(n for n in shape if n != 1)


def _list(items: Iterable[str]) -> str:
    return f"[{', '.join(items)}]"


def _tuple(shape: Sequence[int]) -> str:
    return f"({', '.join(map(str, shape))}{',' if len(shape) == 1 else ''})"


def at_sizes(x: Size, known: dict[str, int]) -> int:
    """A size at known sizes."""
    return int(substitute(x, known))
