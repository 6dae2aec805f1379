"""Random kernels of the kernel language: their source and their arguments.

A kernel is lines of Python that are made with their types, so that most of what comes out is legal; what is
refused is refused before it runs.  Floats are small multiples of 1/4, so that sums are exact.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import ml_dtypes
import numpy as np

SIZES = (0, 1, 2, 3, 5, 7, 8, 13, 16, 17, 31, 33)
BLOCKS = (1, 2, 3, 4, 5, 7, 8, 16)
FLOATS = ("f32", "f32", "f32", "f64", "f16", "bf16")
INTS = ("i32", "i64", "i8", "u8", "i16")
HEAD = "from tessera import KTile, block, kernel, tile, bool_, {}\n\n\n{}".format(
    ", ".join(dict.fromkeys((*FLOATS, *INTS))),
    "def later(a, b):\n    return b[0], b[1] - a[0]\n",
)


@dataclass(frozen=True)
class Case:
    """A kernel and its arguments."""

    family: str
    parameters: tuple[str, ...]  # as the signature has them
    lines: tuple[str, ...]
    returned: str
    blocks: tuple[int, ...]  # rows, columns, depth
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...]
    seed: int
    stored: tuple[int, ...] = ()  # arguments that the kernel stores to
    hostile: bool = False  # whether indices may be anything
    modelled: bool = (
        True  # whether the model knows all places: those of what no round carried it does not
    )

    def body(self) -> list[str]:
        """The statements of the function."""
        return [*self.lines, f"return {self.returned}"] if self.returned else list(self.lines)

    def source(self, name: str = "f") -> str:
        """The kernel as Python."""
        m, n, k = self.blocks
        inner = "\n".join(f"    {x}" for x in self.body())
        return f"@kernel.schedule(block({m}, {n}).k({k}))\ndef {name}({', '.join(self.parameters)}):\n{inner}\n"  # noqa: E501

    def test(self) -> str:
        """The kernel as a test of its own."""
        return (
            f"import numpy as np\nimport tessera as ts\n{HEAD}\n\n{self.source('failing')}\n\n"
            "def test_failing():\n"
            f"    args = arguments({self.shapes!r}, {self.dtypes!r}, {self.seed}, {self.hostile})\n"
            "    made = failing(*args)\n    for step in (False, True):\n"
            "        with ts.interpret(step=step):\n            other = failing(*args)\n"
            "        for a, b in zip(made, other) if isinstance(made, tuple) else [(made, other)]:\n"
            "            np.testing.assert_array_equal(a.numpy(), b.numpy())\n"
        )

    def arguments(self) -> list[Any]:
        """Numbers for the tensors."""
        return arguments(self.shapes, self.dtypes, self.seed, self.hostile)


def numpy_dtype(name: str) -> Any:
    """The dtype of NumPy under our name."""
    if name == "bf16":
        return np.dtype(ml_dtypes.bfloat16)
    kinds = {"f": "float", "i": "int", "u": "uint"}
    return np.dtype("bool" if name == "bool" else f"{kinds[name[0]]}{name[1:]}")


def arguments(
    shapes: Sequence[tuple[int, ...]], dtypes: Sequence[str], seed: int, hostile: bool
) -> list[Any]:
    """Small numbers; indices (`ids`) that are near the axis, or anything if they are hostile."""
    rng = np.random.default_rng(seed)
    out: list[Any] = []
    for shape, dtype in zip(shapes, dtypes, strict=True):
        if dtype == "ids":
            wide = rng.integers(-(2**63), 2**63 - 1, shape) >> rng.integers(0, 63, shape)
            out.append(wide if hostile else rng.integers(-3, 20, shape))
        elif dtype == "bool":
            out.append(rng.integers(0, 2, shape).astype(bool))
        elif dtype[0] in "iu":
            low = 0 if dtype[0] == "u" else -6
            out.append(rng.integers(low, 7, shape).astype(numpy_dtype(dtype)))
        else:
            out.append((rng.integers(-12, 13, shape) / 4).astype(numpy_dtype(dtype)))
    return out


# Making kernels -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Var:
    """A tile: its name, its axes by letter, the kind of its numbers, and whether they are exact."""

    name: str
    axes: str
    kind: str  # f, i or b
    exact: bool = True


class Maker:
    """Writes the lines of a kernel."""

    def __init__(self, rng: random.Random, sizes: dict[str, int], dtype: str):
        self.rng, self.sizes, self.dtype = (
            rng,
            sizes,
            dtype,
        )  # sizes of tiles by the letter of the axis
        self.lines: list[str] = []
        self.vars: list[Var] = []
        self.count = itertools.count()
        self.exact = True

    def put(self, text: str, axes: str, kind: str, exact: bool = True) -> Var:
        """A line that gives a tile a name."""
        v = Var(f"v{next(self.count)}", axes, kind, exact)
        self.lines.append(f"{v.name} = {text}")
        self.vars.append(v)
        return v

    def some(self, kind: str = "", axes: str | None = None, exact: bool = False) -> Var | None:
        """A tile made before, of this kind."""
        found = [
            v
            for v in self.vars
            if (not kind or v.kind in kind)
            and (axes is None or v.axes == axes)
            and (v.exact or not exact)
        ]
        return self.rng.choice(found) if found else None

    def grow(self, count: int) -> None:
        """Write some lines more."""
        ways: list[Callable[[], Any]] = [
            self.unary, self.binary, self.binary, self.compare, self.select, self.fold, self.fold,
            self.fold, self.scan, self.turn, self.numbers, self.convert, self.reshape, self.branch,
            self.mean, self.argument, self.spread, self.loop,
        ]  # fmt: skip
        while len(self.lines) < count:
            self.rng.choice(ways)()

    def unary(self) -> None:
        v = self.some("f" if self.rng.random() < 0.7 else "i")
        if v is None:
            return
        x = v.name
        if v.kind == "i":
            self.put(
                self.rng.choice([f"-{x}", f"tile.abs({x})", f"tile.minimum({x}, 5)"]), v.axes, "i"
            )
            return
        plain = [f"-{x}", f"tile.abs({x})", f"tile.maximum({x}, 0.5)", f"{x} * 0.5", f"{x} + 1"]
        rough = [
            f"tile.exp(tile.minimum({x}, 2))", f"tile.tanh({x})", f"tile.sqrt(tile.abs({x}))",
            f"tile.sigmoid({x})", f"tile.minimum({x} * {x}, 9)", f"{x} / (tile.abs({x}) + 1)",
        ]  # fmt: skip
        if self.rng.random() < 0.5:
            self.put(self.rng.choice(plain), v.axes, "f", v.exact and "0.5" not in plain)
        else:
            self.put(self.rng.choice(rough), v.axes, "f", False)

    def binary(self) -> None:
        a = self.some("fi")
        b = None if a is None else self.some(a.kind, a.axes)
        if a is None or b is None:
            return
        f = self.rng.choice(["{} + {}", "{} - {}", "tile.maximum({}, {})", "tile.minimum({}, {})"])
        if self.rng.random() < 0.3:
            least = 0 if self.dtype[0] == "u" else -20
            f = f"tile.minimum(tile.maximum({{}} * {{}}, {least}), 20)"
        both = a.exact and b.exact
        self.put(f.format(a.name, b.name), a.axes, a.kind, both and "*" not in f)

    def compare(self) -> None:
        a = self.some("fi", exact=True)
        if a is not None:
            sign = self.rng.choice(["<", "<=", ">", ">=", "==", "!="])
            numbers = [0, 1, 2] if self.dtype[0] == "u" else [-1, 0, 1, 2]
            self.put(f"{a.name} {sign} {self.rng.choice(numbers)}", a.axes, "b")

    def select(self) -> None:
        c = self.some("b")
        a = None if c is None else self.some("fi", c.axes)
        if c is None or a is None:
            return
        b = self.some(a.kind, a.axes)
        other = b.name if b is not None and self.rng.random() < 0.6 else "1"
        exact = a.exact and (b is None or b.exact)
        self.put(f"tile.where({c.name}, {a.name}, {other})", a.axes, a.kind, exact)

    def fold(self) -> None:
        v = self.some()
        if v is None or not v.axes:
            return
        names = {"f": ["sum", "max", "min"], "i": ["sum", "max", "min"], "b": ["any", "all"]}[
            v.kind
        ]
        name = self.rng.choice(names)
        axis = self.rng.randrange(len(v.axes))
        if self.rng.random() < 0.3:
            self.put(f"tile.{name}({v.name})", "", v.kind, v.exact)
            return
        rest = v.axes[:axis] + v.axes[axis + 1 :]
        if self.rng.random() < 0.5:
            kept = v.axes[:axis] + "1" + v.axes[axis + 1 :]
            made = self.put(
                f"tile.{name}({v.name}, axis={axis}, keepdims=True)", kept, v.kind, v.exact
            )
            if v.kind != "b":
                self.put(f"{v.name} - {made.name}", v.axes, v.kind, v.exact)
            return
        self.put(f"tile.{name}({v.name}, axis={axis})", rest, v.kind, v.exact)

    def mean(self) -> None:
        v = self.some("f")
        if v is not None and v.axes and "1" not in v.axes:
            axis = self.rng.randrange(len(v.axes))
            rest = v.axes[:axis] + v.axes[axis + 1 :]
            self.put(f"tile.mean({v.name}, axis={axis})", rest, "f", False)

    def argument(self) -> None:
        v = self.some("fi", exact=True)
        if v is not None and v.axes and "1" not in v.axes:
            axis = self.rng.randrange(len(v.axes))
            rest = v.axes[:axis] + v.axes[axis + 1 :]
            name = self.rng.choice(["argmax", "argmin"])
            self.put(f"tile.{name}({v.name}, axis={axis})", rest, "i", False)

    def scan(self) -> None:
        v = self.some("f")
        if v is not None and v.axes and "1" not in v.axes:
            how = self.rng.choice(["add", "max", "min"])
            axis = self.rng.randrange(len(v.axes))
            self.put(
                f"tile.scan({v.name}, '{how}', axis={axis})", v.axes, "f", v.exact and how != "add"
            )

    def turn(self) -> None:
        v = self.some()
        if v is not None and len(v.axes) == 2:
            text = self.rng.choice([f"{v.name}.T", f"tile.transpose({v.name})"])
            self.put(text, v.axes[::-1], v.kind, v.exact)

    def numbers(self) -> None:
        v = self.some("fi")
        if v is not None and v.axes and "1" not in v.axes:
            shape = ", ".join(str(self.sizes[a]) for a in v.axes)
            dtype = self.dtype if v.kind == "f" else "i64"
            if v.kind == "f":
                self.put(f"{v.name} + tile.full(({shape},), 2, {dtype})", v.axes, "f", v.exact)

    def convert(self) -> None:
        v = self.some("fi")
        if v is None:
            return
        if v.kind == "f" and v.exact:
            self.put(f"tile.cast(tile.cast({v.name}, i32), {self.dtype})", v.axes, "f")
        elif v.kind == "i" and self.dtype[0] in "fb":
            self.put(f"tile.cast({v.name}, {self.dtype})", v.axes, "f", v.exact)

    def reshape(self) -> None:
        v = self.some("fi")
        if v is None or len(v.axes) != 2 or "1" in v.axes:
            return
        rows, cols = (self.sizes[a] for a in v.axes)
        name = self.rng.choice(["sum", "max", "min"])
        parts = [k for k in (2, 3, 4) if cols % k == 0]
        if parts and self.rng.random() < 0.6:
            k = self.rng.choice(parts)
            box = f"tile.reshape({v.name}, ({rows}, {cols // k}, {k}))"
            self.put(f"tile.{name}({box}, axis=(1, 2))", v.axes[0], v.kind, v.exact)
        else:
            self.put(f"tile.{name}(tile.reshape({v.name}, ({rows * cols},)))", "", v.kind, v.exact)

    def spread(self) -> None:
        v, w = self.some("fi"), self.some("fi")
        if v is None or w is None or len(v.axes) != 1 or len(w.axes) != 2 or v.kind != w.kind:
            return
        if w.axes[0] == v.axes:
            self.put(f"{w.name} + {v.name}[:, None]", w.axes, w.kind, v.exact and w.exact)
        elif w.axes[1] == v.axes:
            self.put(f"{w.name} - {v.name}[None]", w.axes, w.kind, v.exact and w.exact)

    def branch(self) -> None:
        c = self.some("fi", "", exact=True)
        v = self.some("f")
        if c is None or v is None:
            return
        made = self.put(v.name, v.axes, v.kind, v.exact)
        self.lines.append(f"if {c.name} > 1:")
        self.lines.append(f"    {made.name} = {made.name} + 1")
        if self.rng.random() < 0.5:
            self.lines.append("else:")
            self.lines.append(f"    {made.name} = {made.name} - 1")

    def loop(self) -> None:
        v = self.some("f")
        if v is None:
            return
        made = self.put(v.name, v.axes, v.kind, False)
        over = self.rng.choice(
            [f"tile.range({self.rng.randrange(4)})", f"range({self.rng.randrange(3)})"]
        )
        self.lines.append(f"for i{made.name} in {over}:")
        self.lines.append(f"    {made.name} = tile.minimum({made.name} * 0.5 + {v.name}, 9)")


def _results(m: Maker, whole: str, free: str = "") -> str:
    """What a kernel returns: tiles that hold the block of this instance, or one element for each block."""
    out = []
    for v in m.rng.sample(m.vars, min(len(m.vars), m.rng.randrange(1, 4))):
        placed = sorted(v.axes) == sorted(whole) if whole else False
        if placed or (free and v.axes == free):
            out.append(v.name)
        else:
            out.append(f"tile.per_block({v.name})")
    return ", ".join(dict.fromkeys(out)) if len(out) > 1 else out[0]


def _dtypes(rng: random.Random) -> str:
    return rng.choice(FLOATS) if rng.random() < 0.8 else rng.choice(INTS)


def _kind(dtype: str) -> str:
    return "b" if dtype == "bool" else "f" if dtype in FLOATS else "i"


def _case(rng: random.Random, family: str, m: Maker, parameters: Sequence[str], returned: str,
          blocks: tuple[int, int, int], shapes: Sequence[tuple[int, ...]], dtypes: Sequence[str],
          stored: tuple[int, ...] = (), hostile: bool = False, modelled: bool = True) -> Case:  # fmt: skip
    return Case(
        family, tuple(parameters), tuple(m.lines), returned, blocks, tuple(shapes), tuple(dtypes),
        rng.randrange(1 << 30), stored, hostile, modelled,
    )  # fmt: skip


def lines_of(rng: random.Random) -> Case:
    """A tensor of rank 1 in blocks."""
    n, b, dtype = rng.choice(SIZES), rng.choice(BLOCKS), _dtypes(rng)
    m = Maker(rng, {"m": b}, dtype)
    m.put("tile.load(x)", "m", _kind(dtype))
    m.put(f"tile.load(y, fill={rng.choice([0, 1])})", "m", _kind(dtype))
    if rng.random() < 0.3:
        m.put("tile.load(x, mask=v0 > 0, fill=2)", "m", _kind(dtype))
    m.grow(rng.randrange(4, 12))
    wanted = [f'x: KTile["N", {dtype}]', f'y: KTile["N", {dtype}]']
    return _case(rng, "lines", m, wanted, _results(m, "m"), (b, 8, 8), [(n,), (n,)], [dtype] * 2)


def rows_of(rng: random.Random) -> Case:
    """Whole rows."""
    r, n, b, dtype = rng.choice(SIZES), rng.choice(SIZES[1:]), rng.choice(BLOCKS), _dtypes(rng)
    m = Maker(rng, {"m": b, "n": n}, dtype)
    m.put("tile.load(x)", "mn", _kind(dtype))
    m.put("tile.load(g, g.shape[0])", "n", _kind(dtype))
    m.put("v0 + v1[None]", "mn", _kind(dtype))
    m.grow(rng.randrange(4, 12))
    whole = _results(m, "mn", "m")
    wanted = [f'x: KTile["M", "N", {dtype}]', f'g: KTile["N", {dtype}]']
    return _case(rng, "rows", m, wanted, whole, (b, 8, 8), [(r, n), (n,)], [dtype] * 2)


def blocks_of(rng: random.Random) -> Case:
    """Blocks of rows and columns."""
    r, n, dtype = rng.choice(SIZES), rng.choice(SIZES), _dtypes(rng)
    b, c = rng.choice(BLOCKS), rng.choice(BLOCKS)
    m = Maker(rng, {"m": b, "n": c}, dtype)
    m.lines.append("T = tile.context()")
    m.put("tile.load(x, rows=T.m, cols=T.n)", "mn", _kind(dtype))
    if rng.random() < 0.5:
        m.put("tile.row_index() + tile.col_index() * 0", "mn", "i")
    m.put("tile.load(y, rows=T.m, cols=T.n, fill=1)", "mn", _kind(dtype))
    m.grow(rng.randrange(4, 12))
    wanted = [f'x: KTile["M", "N", {dtype}]', f'y: KTile["M", "N", {dtype}]']
    return _case(rng, "blocks", m, wanted, _results(m, "mn"), (b, c, 8), [(r, n)] * 2, [dtype] * 2)


def loops_of(rng: random.Random) -> Case:
    """Rows of blocks of columns that a loop folds."""
    r, n, dtype = rng.choice(SIZES), rng.choice(SIZES), rng.choice(FLOATS)
    b, k = rng.choice(BLOCKS), rng.choice(BLOCKS)
    m = Maker(rng, {"m": b, "k": k}, dtype)
    m.lines.append("T = tile.context()")
    m.lines.append(f"low = tile.full((T.m,), 50.0, {dtype})")
    m.lines.append(f"total = tile.zeros((T.m,), {dtype})")
    m.lines.append("for kb in tile.range_k(x.shape, T.k):")
    inner = Maker(rng, m.sizes, dtype)
    inner.put("tile.load(x, rows=T.m, cols=kb)", "mk", "f")
    inner.grow(rng.randrange(1, 6))
    full = [v for v in inner.vars if v.axes == "mk" and v.kind == "f"]
    rows = [v for v in inner.vars if v.axes == "m" and v.kind == "f"]
    inner.lines.append(f"low = tile.minimum(low, tile.min({rng.choice(full).name}, axis=1))")
    added = f"tile.sum({rng.choice(full).name}, axis=1)"
    if rows and rng.random() < 0.5:
        added = f"tile.maximum({rng.choice(rows).name}, -4)"
    inner.lines.append(f"total = total + {added}")
    m.lines += [f"    {x}" for x in inner.lines]
    m.vars += [Var("low", "m", "f", False), Var("total", "m", "f", False)]
    m.grow(len(m.lines) + rng.randrange(4))
    wanted = [f'x: KTile["M", "N", {dtype}]']
    names = [v.name for v in m.vars if v.axes == "m" and v.kind == "f"]
    returned = ", ".join(dict.fromkeys(rng.sample(names, min(2, len(names)))))
    return _case(
        rng, "loops", m, wanted, returned, (b, 8, k), [(r, n)], [dtype], modelled=n > 0
    )  # fmt: skip


def products_of(rng: random.Random) -> Case:
    """Products of matrices, block by block."""
    r, n, depth = rng.choice(SIZES), rng.choice(SIZES), rng.choice(SIZES)
    b, c, k, dtype = rng.choice(BLOCKS), rng.choice(BLOCKS), rng.choice(BLOCKS), rng.choice(FLOATS)
    wide = "f32" if dtype in ("f16", "bf16") else dtype
    m = Maker(rng, {"m": b, "n": c}, wide)
    m.lines += ["T = tile.context()", f"acc = tile.zeros((T.m, T.n), {wide})",
                "for kb in tile.range_k(a.shape, T.k):",
                "    left, right = tile.load(a, rows=T.m, cols=kb), tile.load(b, rows=kb, cols=T.n)",
                rng.choice(["    acc = tile.dot(left, right, acc)",
                            "    acc = tile.dot(left + 1, right - 1, acc)",
                            "    acc = acc + tile.dot(tile.maximum(left, 1), right)"])]  # fmt: skip
    m.vars.append(Var("acc", "mn", "f", False))
    m.grow(len(m.lines) + rng.randrange(5))
    wanted = [f'a: KTile["M", "K", {dtype}]', f'b: KTile["K", "N", {dtype}]']
    shapes = [(r, depth), (depth, n)]
    whole = _results(m, "mn")
    return _case(
        rng, "products", m, wanted, whole, (b, c, k), shapes, [dtype] * 2, modelled=depth > 0
    )  # fmt: skip


def boxes_of(rng: random.Random) -> Case:
    """Boxes at places by hand: neighbours, which may lie outside."""
    r, n, dtype = rng.choice(SIZES), rng.choice(SIZES), _dtypes(rng)
    h, w = rng.choice(BLOCKS), rng.choice(BLOCKS)
    m = Maker(rng, {"m": h, "n": w}, dtype)
    m.lines.append(
        f"i, j = tile.program((x.shape[0] + {h - 1}) // {h}) * {h}, tile.program((x.shape[1] + {w - 1}) // "
        f"{w}) * {w}"
    )
    here = m.put(f"tile.load(x, at=(i, j), shape=({h}, {w}))", "mn", _kind(dtype))
    for _ in range(rng.randrange(1, 3)):
        up, left = rng.randrange(-2, 3), rng.randrange(-2, 3)
        fill = rng.choice([0, 1])
        beside = f"tile.load(x, at=(i + {up}, j + {left}), shape=({h}, {w}), fill={fill})"
        if rng.random() < 0.4:
            m.put(f"tile.min({beside}, axis=1)", "m", _kind(dtype))
            m.vars.pop()  # it lies elsewhere
        m.put(f"tile.place({beside}, {here.name})", "mn", _kind(dtype))
    m.grow(rng.randrange(5, 10))
    if rng.random() < 0.5:
        whole = [v for v in m.vars if v.axes == "mn" and v.kind == _kind(dtype)]
        mask = m.some("b", "mn")
        guard = f", mask={mask.name}" if mask is not None else ""
        m.lines.append(
            f"tile.store(y, tile.cast({rng.choice(whole).name}, {dtype}), at=(i, j){guard})"
        )
        wanted = [f'x: KTile["M", "N", {dtype}]', f'y: KTile["M", "N", {dtype}]']
        return _case(rng, "boxes", m, wanted, "", (8, 8, 8), [(r, n)] * 2, [dtype] * 2, (1,))
    wanted = [f'x: KTile["M", "N", {dtype}]']
    return _case(rng, "boxes", m, wanted, _results(m, "mn"), (8, 8, 8), [(r, n)], [dtype])


def gathers_of(rng: random.Random, hostile: bool = False) -> Case:
    """Elements at places that are data."""
    r, n, k, dtype = rng.choice(SIZES), rng.choice(SIZES), rng.choice(SIZES[1:]), _dtypes(rng)
    b, c = rng.choice(BLOCKS), rng.choice(BLOCKS)
    m = Maker(rng, {"m": b, "n": c, "k": k}, dtype)
    m.lines += ["T = tile.context()", "picked = tile.load(ids, ids.shape[0])"]
    fill = f"fill={rng.choice([0, 1, 2])}"
    form = rng.choice(["rows", "cols", "both", "point", "line"])
    axes = {"rows": "kn", "cols": "mk", "both": "kl", "point": "k1", "line": "k"}[form]
    m.sizes["l"] = k
    text = {
        "rows": f"tile.load(x, rows=picked, cols=T.n, {fill})",
        "cols": f"tile.load(x, rows=T.m, cols=picked, {fill})",
        "both": f"tile.load(x, rows=picked, cols=picked, {fill})",
        "point": f"tile.load(x, rows=picked[:, None], cols=picked[:, None], {fill})",
        "line": f"tile.load(y, rows=picked, {fill})",
    }[form]
    m.put(text, axes, _kind(dtype))
    if form in ("both", "point", "line"):
        m.vars[-1] = replace(m.vars[-1], axes=axes)
    if axes != "kl":
        m.grow(rng.randrange(3, 8))
    wanted = [f'x: KTile["M", "N", {dtype}]', f'y: KTile["N", {dtype}]', 'ids: KTile["K"]']
    whole = {"rows": "kn", "cols": "mk"}.get(form, "")
    if whole:
        returned = _results(m, whole)
    else:
        returned = ", ".join(
            dict.fromkeys(v.name for v in m.rng.sample(m.vars, min(2, len(m.vars))))
        )
    shapes = [(r, n), (n,), (k,)]
    return _case(
        rng, "gathers", m, wanted, returned, (b, c, 8), shapes, [dtype, dtype, "ids"], (), hostile
    )


FAMILIES = (lines_of, rows_of, blocks_of, loops_of, products_of, boxes_of, gathers_of)
