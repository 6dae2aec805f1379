"""The plan of a program: its buffers, steps and sizes as the C runtime reads them (docs/abi.md, section 4).

A plan is made of an image.  Views are offsets and strides, constants are places among the weights, and
sizes are small programs for a stack machine.  Steps that only Python can run are not in it: they are what
`hosted` tells.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from tessera.compile.artifact import KernelCall
from tessera.core.dims import Dim, Size, SizeFunction, Symbol, substitute, symbols
from tessera.core.dtype import DType
from tessera.core.errors import OperandError
from tessera.core.types import TensorType
from tessera.deploy.dtypes import DTYPES
from tessera.deploy.machine_code import CodePart
from tessera.deploy.views import Layout, is_row_major, layout_of, row_major
from tessera.ir.graph.ir import Graph, Node
from tessera.ir.schedule.ir import HostCall

MAGIC, PLAIN, WITH_REGIONS, WITH_ORDERS, WITH_CHECKS = (
    b"TSPL",
    1,
    2,
    3,
    4,
)  # versions: a plan has the least that says it
TEMPORARY, INPUT, DATA, VIEW = range(4)
CALL, COPY, WHILE, SCAN, BRANCH, REPEAT, TRAVERSE, ORDER, CHECK = range(9)
_ORDERS = {"sort": 1, "argsort": 2, "topk": 3}  # primitives: values, places, both
_SHOWN = ("barrier", "sound")  # what gives its operands on as they are
_OPCODES = {"//": 4, "%": 5, "max": 6, "min": 7}
_CONSTANT, _SYMBOL, _ADD, _MULTIPLY = range(4)
_GUARDS = {"equal": 0, "divisible": 1, "at_least": 2}
MOST_AXES = 8  # TESS_MAX_RANK of the C runtime
_STEPS = "steps"  # the size that the kernel of a scan has: how many steps it runs

Array = np.ndarray[Any, np.dtype[Any]]
Keep = Callable[[Array, DType], int]  # keeps an array among the weights; where its bytes begin


class Hosted(NamedTuple):
    """A step that only Python can run: what it is, where the user wrote it, whether of complex numbers."""

    what: str
    where: str = ""
    is_complex: bool = False

    def __str__(self) -> str:
        kind = " of complex numbers" if self.is_complex else ""
        return f"{self.what}{kind}" + (f" (at {self.where})" if self.where else "")


class NoPlanError(Exception):
    """Steps that only Python can run."""

    def __init__(self, steps: Sequence[Hosted]):
        super().__init__(", ".join(map(str, steps)))
        self.steps = list(steps)


def is_hosted(n: Node) -> bool:
    """Whether only Python can run a node."""
    return not (n.op.view is not None or n.op.call in _SHOWN or n.op.call in _ORDERS or _is_data(n))


def _is_data(n: Node) -> bool:
    static = all(v.type.static for v in n.results)
    return not n.operands and not n.regions and not n.op.effects and static


def _told(n: Node) -> Hosted:
    is_complex = any(v.dtype.kind == "c" for v in (*n.operands, *n.results))
    return Hosted(n.op.name, str(n.location or ""), is_complex)


class _Table:
    """Sizes as numbered programs."""

    def __init__(self) -> None:
        self.symbols: dict[str, int] = {}
        self.known: dict[Size, int] = {}
        self.programs: list[list[tuple[int, int]]] = []

    def __call__(self, x: Size) -> int:
        if x not in self.known:
            program = self._program(x)
            self.known[x] = len(self.programs)
            self.programs.append(program)
        return self.known[x]

    def _program(self, x: Size) -> list[tuple[int, int]]:
        if not isinstance(x, Dim):
            return [(_CONSTANT, int(x))]
        out: list[tuple[int, int]] = []
        for i, (monomial, factor) in enumerate(x.terms):
            out.append((_CONSTANT, factor))
            for atom, power in monomial:
                for _ in range(power):
                    out += [*self._atom(atom), (_MULTIPLY, 0)]
            if i:
                out.append((_ADD, 0))
        return out

    def _atom(self, a: Symbol | SizeFunction) -> list[tuple[int, int]]:
        if isinstance(a, Symbol):
            return [(_SYMBOL, self.symbols.setdefault(a.name, len(self.symbols)))]
        return [*self._program(a.left), *self._program(a.right), (_OPCODES[a.function], 0)]


def _hosted(part: CodePart) -> list[Hosted]:
    """The steps of a program that only Python can run, those of its branches and loops too."""
    found = []
    for i, s in enumerate(part.image.steps):
        if not isinstance(s, HostCall) or i in part.image.loops or not is_hosted(s.node):
            continue
        if s.node.op.control:
            found += [x for r in s.node.regions for x in _hosted(part.regions[r])]
        else:
            found.append(_told(s.node))
    return found


class Planner:
    """Writes the plan of an image; `data` has the arrays of its last inputs."""

    def __init__(
        self, part: CodePart, imports: Mapping[str, int], keep: Keep, given: Sequence[str],
        outputs: Sequence[str], data: Sequence[tuple[Array, DType]], numerics: str,
        inside: bool = False,
    ):  # fmt: skip
        self.part, self.imports, self.inside = part, imports, inside
        self.g, self.image, self.functions = part.graph, part.image, part.functions
        self.keep, self.given, self.out_names, self.data = keep, given, outputs, data
        self.numerics = numerics
        self.regions: dict[Graph, int] = {}
        self.bodies: list[bytes] = []
        self.orders = False  # whether a step sorts
        self.checks = False  # whether one may end the program
        self.sizes = _Table()
        self.numbers: dict[str, int] = {}
        self.buffers: list[bytes] = []
        self.layouts: dict[str, Layout] = {}
        self.roots: dict[str, str] = {}
        self.steps: list[bytes] = []
        self.read = {x for s in part.image.steps if isinstance(s, KernelCall) for x in s.inputs}

    def encode(self) -> bytes:
        """The plan as bytes."""
        hosted = self._hosted()
        if hosted:
            raise NoPlanError(hosted)
        inputs = self._inputs()
        for i, s in enumerate(self.image.steps):
            if isinstance(s, KernelCall):
                self._call(s)
            else:
                self._host(s, i)
        outputs = [
            _text(n) + _u32(self.number(b))
            for n, b in zip(self.out_names, self.image.outputs, strict=True)
        ]
        kernels = [self._kernel(i) for i in range(len(self.image.kernels))]
        guards = [
            _u32(_GUARDS[c.kind], self.sizes(c.left), self.sizes(c.right)) + _text(c.reason)
            for c in (() if self.inside else self.g.guards)
        ]
        bindings = [] if self.inside else self._bindings()
        programs = [
            _u32(len(p)) + b"".join(struct.pack("<Iq", *x) for x in p) for p in self.sizes.programs
        ]
        names = [_text(n) for n in self.sizes.symbols]
        imports = [
            _text(n) + struct.pack("<Q", at) for n, at in sorted(self.imports.items())
        ]  # fmt: skip
        plain = not (self.inside or self.bodies or self.orders or self.checks)
        bodies = () if plain else ([_u32(len(b)) + b for b in self.bodies],)
        parts = (
            names, programs, bindings, guards, self.buffers, inputs, outputs, kernels, self.steps,
            *bodies, imports,
        )  # fmt: skip
        version = WITH_ORDERS if self.orders else PLAIN if plain else WITH_REGIONS
        version = WITH_CHECKS if self.checks else version
        head = MAGIC + _u32(version) + _text(self.numerics)
        return head + b"".join(_u32(len(p)) + b"".join(p) for p in parts)

    def _hosted(self) -> list[Hosted]:
        """The steps that only Python can run."""
        return list(dict.fromkeys(_hosted(self.part)))

    # Buffers

    def number(self, name: str) -> int:
        """The number of a buffer, which is made when it is first asked for."""
        if name not in self.numbers:
            self._add(name, TEMPORARY)
        return self.numbers[name]

    def _add(self, name: str, kind: int, extra: bytes = b"", t: TensorType | None = None) -> int:
        t = t or self.image.buffers[name]
        if t.rank > MOST_AXES:
            raise OperandError(
                f"bundle: a tensor {t} has {t.rank} axes, a bundle holds at most {MOST_AXES}"
            )
        head = _u32(DTYPES[t.dtype.name], np.dtype(t.dtype.np).itemsize, t.rank)
        shape = b"".join(_u32(self.sizes(n)) for n in t.shape)
        self.numbers[name] = len(self.buffers)
        self.buffers.append(head + shape + _u32(kind) + extra)
        return self.numbers[name]

    def _inputs(self) -> list[bytes]:
        """The user's inputs; those after them are data."""
        own = self.image.inputs[: len(self.given)]
        made = [_text(n) + _u32(self._add(b, INPUT)) for n, b in zip(self.given, own, strict=True)]
        rest = self.image.inputs[len(self.given) :]
        for b, (x, dtype) in zip(rest, self.data, strict=True):
            self._data(b, x, dtype)
        return made

    def _data(self, name: str, x: Array, dtype: DType) -> None:
        t = TensorType(dtype, x.shape)
        self._add(name, DATA, struct.pack("<Q", self.keep(x, dtype)), t)

    def _layout(self, name: str) -> Layout:
        found = self.layouts.get(name)
        return (0, row_major(self.image.buffers[name])) if found is None else found

    # Steps

    def _call(self, s: KernelCall) -> None:
        names = (*s.inputs, *s.outputs)
        numbers = [self.number(n) for n in names]
        self.steps.append(_u32(CALL, s.kernel, len(numbers), *numbers))

    def _host(self, s: HostCall, i: int) -> None:
        n = s.node
        if i in self.image.loops:
            self._loop(s, self.image.loops[i])
        elif n.op.control:
            self._control(s)
        elif n.op.call in _ORDERS:
            self._order(s)
        elif n.op.call == "barrier":
            for x, y in zip(s.operands, s.results, strict=True):
                self._see(y, x, self._layout(x))
        elif n.op.call == "sound":
            self._check(s)
        elif n.op.view is not None:
            self._view(s)
        else:
            assert n.op.numpy is not None, n
            made = n.op.numpy(**n.params)
            arrays = made if n.op.multiple else (made,)
            for y, x in zip(s.results, arrays, strict=True):
                t = self.image.buffers[y]
                self._data(y, np.ascontiguousarray(x, t.dtype.np), t.dtype)

    def _check(self, s: HostCall) -> None:
        """A matrix that has a factor, which is looked at before it is given on."""
        x, ok, _ = s.operands
        p = s.node.params
        text = f"{p['asked']}: {s.node.operands[2].type} {p['trouble']}"
        self.steps.append(_u32(CHECK, self._whole(ok)) + _text(text))
        self.checks = True
        self._see(s.results[0], x, self._layout(x))

    def _view(self, s: HostCall) -> None:
        (x,), (y,) = s.operands, s.results
        t, of = self.image.buffers[y], self.image.buffers[x]
        if 0 in t.shape:
            self.number(y)  # nothing is in it
            return
        layout = layout_of(s.node.op, of, t, s.node.params, self._layout(x))
        if layout is None:
            told = _told(s.node)
            raise NoPlanError([told._replace(what=f"{told.what} of a view")])
        self._see(y, x, layout)

    def _see(self, y: str, x: str, layout: Layout) -> None:
        """Make y a view of x; a copy where a kernel reads it and its elements do not lie in order."""
        t = self.image.buffers[y]
        if y in self.read and not is_row_major(t, layout[1]):
            shown = f"{y} as shown"
            self._alias(shown, x, layout, t)
            self.steps.append(_u32(COPY, self.number(y), self.numbers[shown]))
        else:
            self._alias(y, x, layout)

    def _alias(self, y: str, x: str, layout: Layout, t: TensorType | None = None) -> None:
        """Let y be a view of what x is."""
        root = self.roots.get(x, x)
        self.roots[y], self.layouts[y] = root, layout
        offset, strides = layout
        extra = _u32(self.number(root), self.sizes(offset), *map(self.sizes, strides))
        self._add(y, VIEW, extra, t)

    def _loop(self, s: HostCall, kernel: int) -> None:
        """A loop that is one kernel, with what its regions have captured."""
        n = s.node
        numbers = [self._whole(x) for x in s.operands]
        for k, v in enumerate(v for r in n.regions for v in r.captured):
            name = f"{s.results[0]} captured {k}"
            assert v.storage is not None, n
            self._data(name, np.ascontiguousarray(v.storage), v.type.dtype)
            numbers.append(self.numbers[name])
        results = [self.number(y) for y in s.results]
        if n.op.control == "scan":
            p = n.params
            head = (SCAN, kernel, p["carry"], p["xs"], int(p["reverse"]), self.sizes(p["length"]))
        else:
            head = (WHILE, kernel, len(results), 0, 0, self.sizes(1))
        self.steps.append(_u32(*head, len(numbers), *numbers) + _u32(len(results), *results))

    def _order(self, s: HostCall) -> None:
        """A sort, its places, or the first of both, which the runtime does itself."""
        p, (x,) = s.node.params, s.operands
        descending = p["largest"] if "largest" in p else p["descending"]
        made = [self.number(y) for y in s.results]
        assert s.node.op.call is not None, s.node.op.name
        what = _ORDERS[s.node.op.call]
        self.steps.append(_u32(ORDER, p["axis"], int(descending), what, self.number(x), *made))
        self.orders = True

    def _control(self, s: HostCall) -> None:
        """A branch, or a loop whose body is a program of its own."""
        n = s.node
        numbers = [self._whole(x) for x in s.operands]
        results = [self.number(y) for y in s.results]
        regions = [self._region(r) for r in n.regions]
        if n.op.control == "branch":
            head = [BRANCH, *regions, 0, 0, 0, self.sizes(1)]
        elif n.op.control == "while":
            head = [REPEAT, *regions, len(results), 0, 0, self.sizes(1)]
        else:
            p = n.params
            length = self.sizes(p["length"])
            head = [TRAVERSE, *regions, 0, p["carry"], p["xs"], int(p["reverse"]), length]
        self.steps.append(_u32(*head, len(numbers), *numbers) + _u32(len(results), *results))

    def _region(self, r: Graph) -> int:
        """The number of a region, whose plan stands inside of this one and has the sizes of this one."""
        if r in self.regions:
            return self.regions[r]
        part = self.part.regions[r]
        own = len(part.graph.inputs) - len(part.graph.captured)
        data: list[tuple[Array, DType]] = []
        for v in part.graph.captured:
            assert v.storage is not None, r
            data.append((np.ascontiguousarray(v.storage), v.type.dtype))
        data += [(t.array(), t.type.dtype) for t in part.image.tables]
        names = [f"input{i}" for i in range(own)]
        outs = [f"output{i}" for i in range(len(part.image.outputs))]
        inner = Planner(part, {}, self.keep, names, outs, data, self.numerics, inside=True)
        body = inner.encode()
        for name in inner.sizes.symbols:
            if name != _STEPS:
                self.sizes.symbols.setdefault(name, len(self.sizes.symbols))
        self.regions[r] = len(self.bodies)
        self.bodies.append(body)
        return self.regions[r]

    def _whole(self, name: str) -> int:
        """The number of a buffer whose elements lie in order: a view that is not so is copied."""
        layout = self.layouts.get(name)
        if layout is None or is_row_major(self.image.buffers[name], layout[1]):
            return self.number(name)
        copy = f"{name} in order"
        if copy not in self.numbers:
            made = self._add(copy, TEMPORARY, t=self.image.buffers[name])
            self.steps.append(_u32(COPY, made, self.numbers[name]))
        return self.numbers[copy]

    def _kernel(self, i: int) -> bytes:
        e = self.image.kernels[i]
        own = [self.sizes.symbols.setdefault(n, len(self.sizes.symbols)) for n in e.sizes]
        numbers = _u32(*map(self.sizes, (e.count, e.scratch, e.work)))
        flags = bytes(p.writable for p in e.parameters)
        return (
            _text(e.name) + struct.pack("<Q", self.functions[i]) + _u32(len(own), *own) + numbers
            + _u32(len(flags)) + flags
        )  # fmt: skip

    # Sizes

    def _bindings(self) -> list[bytes]:
        """How each symbol follows from the inputs: (size of an axis - rest) / factor."""
        known: set[str] = set()
        out = []
        axes = [
            (i, k, n)
            for i, b in enumerate(self.image.inputs[: len(self.given)])
            for k, n in enumerate(self.image.buffers[b].shape)
            if isinstance(n, Dim)
        ]
        wanted = {n for n in self.sizes.symbols if n != _STEPS}
        wanted |= {s for _, _, n in axes for s in symbols(n)}
        while wanted - known:
            found = _binding(axes, known)
            if found is None:
                missing = ", ".join(sorted(wanted - known))
                raise NoPlanError([Hosted(f"the size {missing}, which no input tells")])
            name, i, k, factor, rest = found
            known.add(name)
            number = self.sizes.symbols.setdefault(name, len(self.sizes.symbols))
            least = 0 if name.startswith("_") else 1
            out.append(
                _u32(number, i, k, least) + struct.pack("<q", factor) + _u32(self.sizes(rest))
            )
        return out


def _binding(
    axes: Sequence[tuple[int, int, Dim]], known: set[str]
) -> tuple[str, int, int, int, Size] | None:
    """The next symbol that an axis tells when those before it are known."""
    for i, k, n in axes:
        missing = symbols(n) - known
        if len(missing) != 1:
            continue
        (name,) = missing
        rest = substitute(n, {name: 0})
        factor = substitute(n, {name: 1}) - rest
        if isinstance(factor, int) and factor and _is_linear(n, name, factor, rest):
            return name, i, k, factor, rest
    return None


def _is_linear(n: Dim, name: str, factor: int, rest: Size) -> bool:
    return bool(n == Dim(((((Symbol(name), 1),), 1),)) * factor + rest)


def _u32(*numbers: int) -> bytes:
    return struct.pack(f"<{len(numbers)}I", *numbers)


def _text(s: str) -> bytes:
    data = s.encode()
    return _u32(len(data)) + data


__all__ = ["Hosted", "NoPlanError", "Planner", "is_hosted"]
