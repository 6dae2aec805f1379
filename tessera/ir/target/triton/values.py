"""Values: scalar ops, casts, folds, products and shapes."""

from __future__ import annotations

import re
from collections.abc import Sequence

from tessera.core import assembly
from tessera.core.approximate import FLOATS, FUNCTIONS
from tessera.core.dims import product
from tessera.core.dtype import DType, bool_, f32, f64, i64, u8
from tessera.core.errors import OperandError
from tessera.core.evaluate import neutral
from tessera.core.scalar import TESTS
from tessera.ir.target.triton import algebra, casts, scalars, sizes
from tessera.ir.target.triton.algebra import TritonAlgebra, divide, literal, root
from tessera.ir.target.triton.memory import MemoryWriter
from tessera.ir.target.triton.types import physical, value
from tessera.ir.target.triton.writer import as_tuple
from tessera.ir.tile.ir import Kernel, Operation, Tile, walk
from tessera.ir.tile.rules import leading

HELPERS = {**sizes.HELPERS, **algebra.HELPERS, **scalars.HELPERS, **casts.HELPERS}
NEEDS = {**sizes.NEEDS, **scalars.NEEDS}
_ANY_ORDER = ("max", "min", "and", "or", "xor", "logical_and", "logical_or", "logical_xor")
# Folds of bools as folds of bytes, of which only 0 is false.
_OF_BYTES = {
    "and": "min", "logical_and": "min", "min": "min", "mul": "min",
    "or": "max", "logical_or": "max", "max": "max", "add": "max",
}  # fmt: skip
_MOVES = frozenset(("where", "nextafter", "pos", "conj", "real"))
_CALLED = re.compile(r"\b[a-z_][a-z_0-9]*(?=\()")
_BESIDE = ("eq", "ne", "lt", "le", "gt", "ge", "max", "min")  # of indices that stay in 32 bits
_INFINITY = {"f16": 0x7C00, "bf16": 0x7F80, "f32": 0x7F800000, "f64": 0x7FF0000000000000}


class ValueWriter(MemoryWriter):
    """Writes what is computed on tiles."""

    def _full(self, op: Operation) -> None:
        t = op.results[0]
        shape, x = as_tuple(physical(t.shape)), op.attributes["value"]
        if t.dtype is i64 and abs(x) < 1 << 30:
            self.short.add(t)
            self.set(op, f"tl.full({shape}, {x}, tl.int32)")
        elif t.dtype.bits < 16 and t.dtype.kind == "f":
            full = f"tl.full({shape}, {self.number(x, f32)}, tl.float32)"
            self.set(op, self.casts.cast(full, f32, t.dtype))
        else:
            text = repr(bool(x)) if t.dtype is bool_ else self.number(x, t.dtype)
            self.set(op, f"tl.full({shape}, {text}, {value(t.dtype)})")
            if t.dtype is bool_:
                self.bytes[t] = self.put(f"tl.full({shape}, {int(bool(x))}, tl.int8)")

    def _index(self, op: Operation) -> None:
        t, axis = op.results[0], op.attributes["axis"]
        self.short.add(t)
        at, shape = self.size.write(op.attributes["at"]), physical(t.shape)
        if axis is None or shape[axis] == 1:
            self.set(op, f"tl.zeros({as_tuple(shape)}, tl.int32) + {at}")
        else:
            line = self.line(axis, shape)
            own = line if len(shape) == 1 else f"tl.broadcast_to({line}, {as_tuple(shape)})"
            self.set(op, own if at == "0" else f"{own} + ({at})")

    def _apply(self, op: Operation) -> None:
        name, xs, out = op.attributes["scalar"], op.operands, op.results[0]
        if all(x in self.short for x in xs) and name in _BESIDE:
            if name in ("max", "min"):
                self.short.add(out)
            self.set(op, self.scalar(name, [self.tiles[x] for x in xs], i64))
            return
        if name == "where" and out.dtype is bool_ and all(x in self.bytes for x in xs[1:]):
            of, other = (self.bytes[x] for x in xs[1:])
            self.bytes[out] = self.put(f"tl.where({self.of(xs[0])}, {of}, {other}).to(tl.int8)")
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
        if name.startswith(assembly.PREFIX):
            return self.assembly(assembly.found(name), xs)
        base = dtype.base
        row = scalars.TEMPLATES[base.kind].get(name)
        if self.narrow and base is f32 and name in scalars.NARROW:
            row = scalars.NARROW[name]
        if row is None:
            if name not in FUNCTIONS or base.kind != "f":
                raise OperandError(f"triton: the scalar op {name!r} on {dtype} has no GPU form")
            branch = None if self.combining else self.branch
            form = TritonAlgebra(self.put, self.constant, FLOATS[base.name], self.used, branch)
            names = [self.put(x) if not x.isidentifier() else x for x in xs]
            return FUNCTIONS[name].build(form, *names)
        if row.count("{0}") > 1 or "(" in row:
            xs = [x if x.isidentifier() else self.put(x) for x in xs]
        made = row.format(*xs, **self._words(row, base, *xs))
        for helper in _CALLED.findall(made):
            if helper in HELPERS:
                self.used[helper] = None
        return made

    def assembly(self, c: assembly.Contract, xs: Sequence[str]) -> str:
        """Inline assembly, element by element."""
        why = c.lacks(self.language)
        if why is not None:
            raise OperandError(f"{self.k.name}: {why}")
        text, where = c.texts[self.language], c.constraints(self.language)
        given = ", ".join(f"{x}.to({value(d)})" for x, d in zip(xs, c.takes, strict=True))
        return (
            f"tl.inline_asm_elementwise({text!r}, {where!r}, [{given}], dtype={value(c.gives)}, "
            "is_pure=True, pack=1)"
        )

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
            self.combining = True
            if dtype.is_narrow and dtype.kind == "f":
                wide = self.scalar(name, ["a.to(tl.float32)", "b.to(tl.float32)"], f32)
                made = self.casts.cast(f"({wide})", f32, dtype)
            else:
                made = self.scalar(name, ["a", "b"], dtype)
            body = "\n".join([*self.prelude, *self.lines, f"    return {made}"])
            self.functions[key] = f"\n@triton.jit\ndef {key}(a, b):\n{body}\n"
            self.lines, self.prelude, self.hoisted, self.indent = outside
            self.combining = False
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
        """What changes nothing in a fold, as text."""
        x = neutral(name, dtype)
        assert isinstance(x, int | float), name
        if dtype.kind == "b":
            return str(bool(x))
        return literal(float(x)) if dtype.kind == "f" else str(int(x))

    def _fold(self, op: Operation) -> None:
        (t,), name, axis = op.operands, op.attributes["scalar"], op.attributes["axis"]
        if t in self.bytes and name in _OF_BYTES and physical(t.shape) == t.shape:
            self._fold_bytes(op, t, _OF_BYTES[name], axis)
            return
        f = self.combine(name, t.dtype)
        x = self.masked(t, axis, self.of(t), self.neutral(name, t.dtype))
        shape = physical(t.shape)
        n = shape[axis]
        if n == 1:
            self.set(op, x)
            return
        if "order" in op.attributes:
            while n > 2:
                n //= 2
                x = self.joined_pairs(x, shape, axis, n, f)
            shape, n = (*shape[:axis], 2, *shape[axis + 1 :]), 2
        if n == 2 or name in _ANY_ORDER or t.dtype.kind != "f":
            if product(shape) == n:
                self.set(op, self.one(op, f"tl.reduce({x}, {axis}, {f})", f))
            else:
                self.set(op, f"tl.reduce({x}, {axis}, {f}, keep_dims=True)")
            return
        while n > 1:
            n //= 2
            halves = as_tuple((*shape[:axis], 2, n, *shape[axis + 1 :]))
            x = self.put(f"tl.reduce(tl.reshape({x}, {halves}), {axis}, {f})")
        self.tiles[op.results[0]] = x

    def _fold_bytes(self, op: Operation, t: Tile, name: str, axis: int) -> None:
        """Bools from memory as the bytes that they are: threads have few registers for truth values."""
        f = self.combine(name, u8)
        x = f"{self.bytes[t]}.to(tl.uint8, bitcast=True)"
        if product(t.shape) == t.shape[axis] > 1:
            number = self.put(f"tl.reduce(tl.reshape({x}, ({t.shape[axis]},)), 0, {f})")
            self.set(op, f"tl.full({as_tuple(op.results[0].shape)}, {number}, tl.uint8) != 0")
        else:
            self.set(op, f"tl.reduce({x}, {axis}, {f}, keep_dims=True) != 0")

    def one(self, op: Operation, x: str, f: str) -> str:
        """The one element of a fold as a tile without a layout of its own.

        The layout of a fold holds every element in every thread; tiles that Triton computes in it, since
        they meet the result, take thousands of registers of each.
        """
        t = op.results[0]
        number = x if len(t.shape) == 1 else self.only(x, f)
        return f"tl.full({as_tuple(physical(t.shape))}, {number}, {value(t.dtype)})"

    def only(self, x: str, f: str) -> str:
        """The number that a tile of one element holds."""
        return f"tl.reduce(tl.reshape({x}, (1,)), 0, {f})"

    def _scan(self, op: Operation) -> None:
        (t,), name, axis = op.operands, op.attributes["scalar"], op.attributes["axis"]
        f = self.combine(name, t.dtype)
        if name in _ANY_ORDER or t.dtype.kind != "f":
            self.set(op, f"tl.associative_scan({self.of(t)}, {axis}, {f})")
            return
        shape = physical(t.shape)
        if "order" in op.attributes:
            self.set(op, self.tree_scan(t, name, axis, f) if shape[axis] > 1 else self.of(t))
            return
        x, line = self.put(self.of(t)), self.line(axis, shape)
        out, last = self.put(x), self.put(self.element(x, t, axis, "0"))
        self.do(f"for at in range(1, {t.shape[axis]}):")
        self.indent += 1
        self.do(f"{last} = {f}({last}, {self.element(x, t, axis, 'at')})")
        self.do(f"{out} = tl.where({line} == at, {last}, {out})")
        self.indent -= 1
        self.tiles[op.results[0]] = out

    def tree_scan(self, t: Tile, name: str, axis: int, f: str) -> str:
        """Running folds down the tree over aligned neighbours, as an expression.

        What comes before a left child is what comes before its parent; before a right child, that and its
        sibling. Padding is last in its line, so no element of the tile comes after it.
        """
        shape = physical(t.shape)
        levels = [self.put(self.of(t))]
        n = shape[axis]
        while n > 2:
            n //= 2
            levels.append(self.joined_pairs(levels[-1], shape, axis, n, f))
        ones = as_tuple((*shape[:axis], 1, *shape[axis + 1 :]))
        none = self.neutral(name, t.dtype)
        before = self.put(f"tl.full({ones}, {none}, {value(t.dtype)})")
        side = self.line(axis + 1, [2 if i == axis + 1 else 1 for i in range(len(shape) + 1)])
        n = 1
        for level in reversed(levels):
            pairs = self.put(self.split_axis(level, shape, axis, (n, 2)))
            first = f"tl.where({side} == 0, {pairs}, {none})"
            sibling = self.put(f"tl.reduce({first}, {axis + 1}, {f}, keep_dims=True)")
            if product(shape) == shape[axis] and n == 1:
                one = (1,) * (len(shape) + 1)
                sibling = self.put(f"tl.full({one}, {self.only(sibling, f)}, {value(t.dtype)})")
            parent = self.put(self.split_axis(before, shape, axis, (n, 1)))
            child = self.put(f"tl.where({side} == 0, {parent}, {f}({parent}, {sibling}))")
            n *= 2
            before = self.put(self.split_axis(child, shape, axis, (n,)))
        return f"{f}({before}, {levels[0]})"

    def joined_pairs(self, x: str, shape: Sequence[int], axis: int, n: int, f: str) -> str:
        """The n pairs of neighbours along an axis, folded.

        The axis of pairs stays until the tile is reshaped: without it, Triton gives a small tile a layout in
        which each thread holds all of it, and so all of what is computed from it.
        """
        pairs = self.split_axis(x, shape, axis, (n, 2))
        joined = self.put(f"tl.reduce({pairs}, {axis + 1}, {f}, keep_dims=True)")
        return self.put(self.split_axis(joined, shape, axis, (n,)))

    def split_axis(self, x: str, shape: Sequence[int], axis: int, into: Sequence[int]) -> str:
        """A tile whose axis is several, or one again."""
        return f"tl.reshape({x}, {as_tuple((*shape[:axis], *into, *shape[axis + 1 :]))})"

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
        if acc.dtype.base is f64:
            x, y = (self.apart(t, v) for t, v in ((a, x), (b, y)))
        precision = "tf32" if a.dtype.policy.math == "tf32" else "ieee"
        kind = value(acc.dtype)
        self.set(
            op,
            f'tl.dot({x}, {y}, {total}, input_precision="{precision}", out_dtype={kind})',
        )

    def apart(self, t: Tile, x: str) -> str:
        """An f64 factor that Triton lays out by its own width: 3.6 goes by the narrowest tile behind it,
        and fails.
        """
        return f"tl.sum(({x})[:, :, None], 2)" if has_narrow_origin(self.k, t) else x

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
        shape = as_tuple(physical(t.shape))
        if not x.shape:
            self.set(op, f"tl.broadcast_to({self.tiles[x]}, {shape})")
        elif not t.shape:  # the fold of one element is itself
            f = self.combine("max" if t.dtype.kind != "b" else "or", t.dtype)
            self.set(op, f"tl.reduce(tl.reshape({self.tiles[x]}, (1,)), 0, {f})")
        else:
            self.set(op, f"tl.reshape({self.tiles[x]}, {shape})")
            if x in self.bytes:
                self.bytes[t] = self.put(f"tl.reshape({self.bytes[x]}, {shape})")

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
        self.set(op, f"tl.broadcast_to({self.tiles[x]}, {as_tuple(physical(t.shape))})")

    def _transpose(self, op: Operation) -> None:
        (x,), t = op.operands, op.results[0]
        if x in self.short:
            self.short.add(t)
        self.set(op, f"tl.trans({self.tiles[x]})")

    def _take(self, op: Operation) -> None:
        x, place = op.operands
        self.set(op, f"tl.gather({self.of(x)}, {self.tiles[place]}.to(tl.int32), 0)")

    def _count(self, op: Operation) -> None:
        """Numbers of a tile counted in shared memory."""
        (x,), size = op.operands, op.attributes["size"]
        number, shape = self.put(self.of(x)), physical(x.shape)
        inside = f"({number} >= 0) & ({number} < {size})"
        if shape != x.shape:
            inside += f" & ({self.line(0, shape)} < {x.shape[0]})"
        (bins,) = physical((size,))
        self.set(op, f"tl.histogram({number}, {bins}, mask={inside})")

    def _exchange(self, op: Operation) -> None:
        """Tiles joined by halves, their axes in another order, and split again.

        The compiler sees where threads hold the elements before and after, and moves them through shared
        memory once.
        """
        shape, order = op.attributes["shape"], op.attributes["order"]
        names = [self.of(x) for x in op.operands]
        given, made = (
            leading(shape, len(names)),
            leading([shape[i] for i in order], len(op.results)),
        )
        assert given is not None, op
        assert made is not None, op
        while len(names) > 1:
            half = len(names) // 2
            names = [self.put(f"tl.join({names[i]}, {names[i + half]})") for i in range(half)]
        # The axes that number tiles are the last ones here.
        axes = [*range(given, len(shape)), *range(given)]
        wanted = [axes.index(i) for i in (*order[made:], *order[:made])]
        joined = f"tl.reshape({names[0]}, {as_tuple([shape[i] for i in axes])})"
        bits = len(op.results).bit_length() - 1
        places = op.results[0].shape[0]
        turned = f"tl.permute({self.put(joined)}, {as_tuple(wanted)})"
        parts = [self.put(f"tl.reshape({self.put(turned)}, {as_tuple([places, *[2] * bits])})")]
        for _ in range(bits):
            halves = [self.halves(part) for part in parts]
            parts = [pair[side] for side in (0, 1) for pair in halves]
        self.tiles |= dict(zip(op.results, parts, strict=True))

    def halves(self, part: str) -> tuple[str, str]:
        """The two places of a last axis."""
        pair = self.put(f"tl.split({part})")
        return self.put(f"{pair}[0]"), self.put(f"{pair}[1]")


def _has_units(a: Tile, acc: Tile) -> bool:
    """Whether a matrix unit, or Triton's own loop, multiplies tiles of this kind."""
    if a.dtype.kind == "f":
        least = 32 if a.dtype.bits == 8 else 16
        return physical(a.shape)[1] >= least
    return a.dtype.base.name == "i8" and acc.dtype.base.name == "i32" and physical(a.shape)[1] >= 32


def has_narrow_origin(k: Kernel, t: Tile) -> bool:
    """Whether a tile is computed from one whose elements have fewer than 32 bits."""
    made = {r: op for op in walk(k.body) for r in op.results}
    seen, left = set(), [t]
    while left:
        x = left.pop()
        if x.dtype.bits < 32:
            return True
        if x not in seen and x in made:
            left += made[x].operands
        seen.add(x)
    return False
