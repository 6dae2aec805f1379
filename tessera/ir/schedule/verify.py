"""The Schedule verifier: what must hold of every program, between any two passes.

buffers   are listed under their names; their sizes use symbols of the inputs only
steps     read inputs, buffers that an earlier step wrote and, in a kernel, earlier stages of it
writes    are of buffers other than inputs, each once, and of the buffer's type
rows      are the first axes of every stage of a kernel, the same in all of them
columns   are at most one beside the rows, folded or not; a chain folds one for each of another; a
          contraction has two, and the stages after it have its axes
indices   have the rank of the source, use the axes of the stage and sizes, and are proved to lie
          inside; where data says the place it is an i64, clamped
in place  a stage reads a stage of its own kernel at its own row and column only
types     of terms follow from their operands
nests     have loops over the axes of their kernel, as ir/schedule/nests/legality.py has it
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import NoReturn

from tessera.core.dims import Size, symbols
from tessera.core.dtype import bool_, i64
from tessera.core.errors import ScheduleError, VerifyError
from tessera.core.intervals import extremes
from tessera.core.primitives import PRIMITIVES, is_primitive
from tessera.core.scalar import SCALARS
from tessera.core.types import TensorType
from tessera.ir.schedule.inside import facts_of, is_inside, place_of
from tessera.ir.schedule.ir import (
    Apply,
    Axis,
    Group,
    HostCall,
    Kernel,
    Position,
    Primitive,
    Program,
    Read,
    Stage,
    Step,
    Term,
    reads,
    result_dtype,
)
from tessera.ir.schedule.nests.legality import check_nest
from tessera.ir.schedule.nests.nest import Nest
from tessera.ir.schedule.passes.fuse_epilogues import follows_points

_NO_SIZES: Mapping[str, int] = MappingProxyType({})


def verify(program: Program, sizes: Mapping[str, int] = _NO_SIZES) -> None:
    """Raise VerifyError when a program breaks an invariant of Schedule IR; `sizes` are what it is
    specialised for.
    """
    Verifier(program, sizes).run()


class Verifier:
    """Looks at the buffers, steps and outputs of a program in turn."""

    def __init__(self, program: Program, sizes: Mapping[str, int] = _NO_SIZES):
        self.p = program
        self.types = {name: b.type for name, b in program.buffers.items()}
        inputs = [self.types[n] for n in program.inputs if n in self.types]
        self.symbols = {s for t in inputs for n in t.shape for s in symbols(n)}
        self.sizes = {} if self.symbols else sizes  # of a program that is specialised
        self.facts = facts_of(program.guards)
        self.written: set[str] = set()

    def fail(self, message: str) -> NoReturn:
        raise VerifyError(f"{self.p.name}: {message}")

    def run(self) -> None:
        for name, b in self.p.buffers.items():
            if b.name != name:
                self.fail(f"buffer {b.name} is listed as {name}")
            self.known(b.type.shape, set(), f"buffer {name}")
        for name in self.p.inputs:
            self.write(name, None, "an input")
        for i, s in enumerate(self.p.steps):
            self.step(i, s)
        for name in self.p.outputs:
            if name not in self.written:
                self.fail(f"output {name} is never written")

    def step(self, i: int, s: Step) -> None:
        """What must hold of one step after those before it."""
        if isinstance(s, HostCall):
            self.host(s, f"step {i} {s.node.op.name}")
        elif isinstance(s, Primitive):
            self.primitive(s, f"primitive {s.name}")
        elif isinstance(s, Group):
            self.group(s)
        else:
            _KernelVerifier(self, s).run()

    def known(self, sizes: Iterable[Size], axes: set[str], what: str) -> None:
        """Sizes and indices that mention these axes and the sizes of the inputs only."""
        for x in sizes:
            for name in sorted(symbols(x) - axes - self.symbols):
                self.fail(f"{what}: {x} has {name}, which is no axis of it and no size of an input")

    def write(self, name: str, t: TensorType | None, what: str) -> None:
        if name not in self.types:
            self.fail(f"{what}: {name} is no buffer")
        if name in self.written:
            self.fail(f"{what}: {name} is written before")
        if t is not None and t is not self.types[name]:
            self.fail(f"{what}: writes {t} to {name}, which is {self.types[name]}")
        self.written.add(name)

    def host(self, s: HostCall, what: str) -> None:
        types = [self.at(v.type) for v in s.node.operands]
        if len(types) != len(s.operands) or len(s.node.results) != len(s.results):
            self.fail(f"{what}: operands or results are not those of the op")
        for name, t in zip(s.operands, types, strict=True):
            self.reads(name, what)
            if self.types[name] is not t:
                self.fail(f"{what}: reads {name} as {t}, but it is {self.types[name]}")
        for name, v in zip(s.results, s.node.results, strict=True):
            self.write(name, self.at(v.type), what)

    def at(self, t: TensorType) -> TensorType:
        """A type of the graph at the sizes that the program is for; nodes keep their symbols."""
        return t if t.static or not self.sizes else t.substitute(self.sizes)

    def group(self, g: Group) -> None:
        """Kernels that share rows; what one makes, later ones read at their own rows."""
        outer, self.types = self.types, self.types | g.local
        made: set[str] = set()
        for k in g.kernels:
            _KernelVerifier(self, k).run()
            for s in k.stages:
                here = tuple(a.variable for a in s.axes[: g.rows])
                for r in reads(s.term):
                    if r.source in made and r.index[: g.rows] != here:
                        self.fail(f"group {g.name}: stage {s.name} reads {r} at rows of others")
            made.update(k.outputs)
        if missing := sorted(set(g.outputs) - made):
            self.fail(f"group {g.name}: writes {missing[0]}, which no kernel of it does")
        self.types = outer

    def reads(self, name: str, what: str) -> None:
        if name not in self.written:
            self.fail(f"{what}: reads {name}, which is not written before")

    def primitive(self, s: Primitive, what: str) -> None:
        for name in s.operands:
            self.reads(name, what)
        types = [self.types[name] for name in s.own]
        if not is_primitive(s.primitive, types, s.params):
            given = ", ".join(map(str, types))
            self.fail(f"{what}: there is no {s.primitive} of {given}")
        made = PRIMITIVES[s.primitive].infer(types, s.params)
        if s.epilogue is not None:
            self.epilogue(s, s.epilogue, made[0], what)
            return
        if len(made) != len(s.results):
            self.fail(f"{what}: gives {len(made)} tensors, but writes {len(s.results)}")
        for name, t in zip(s.results, made, strict=True):
            self.write(name, t, what)

    def epilogue(self, s: Primitive, k: Kernel, made: TensorType, what: str) -> None:
        """Stages at the points of what a primitive makes, which is no buffer."""
        if not PRIMITIVES[s.primitive].arity:
            self.fail(f"{what}: no kernel of {s.primitive} takes an epilogue")
        if s.made in self.types or s.results != k.outputs:
            self.fail(f"{what}: {s.made} is a buffer, or the results are not those of the epilogue")
        if s.operands[len(s.own) :] != s.others:
            self.fail(f"{what}: reads {s.operands}, but the epilogue reads {s.others}")
        self.types[s.made] = made
        self.written.add(s.made)
        types = {**self.types, **{t.name: t.type for t in k.stages}}
        for t in k.stages:
            if not follows_points(t, made, types):
                self.fail(f"{what}: stage {t.name} of the epilogue is not computed point by point")
        _KernelVerifier(self, k).run()
        self.written.remove(s.made)
        del self.types[s.made]


class _KernelVerifier:
    def __init__(self, outer: Verifier, kernel: Kernel):
        self.outer, self.k = outer, kernel
        self.own: dict[str, Stage] = {}
        self.stage_name = ""

    def fail(self, message: str) -> NoReturn:
        stage = f" stage {self.stage_name}" if self.stage_name else ""
        self.outer.fail(f"kernel {self.k.name}{stage}: {message}")

    def run(self) -> None:
        if not self.k.stages:
            self.fail("has no stages")
        for s in self.k.stages:
            self.stage_name = s.name
            if s.name in self.own or s.name in self.outer.written:
                self.fail("is there twice")
            self.axes(s)
            self.term(s.term)
            for r in reads(s.term):
                self.read(r, s)
            self.own[s.name] = s
        self.stage_name = ""
        if self.k.nest is not None:
            self.nest(self.k.nest)
        for name in self.k.outputs:
            if name not in self.own:
                self.fail(f"writes {name}, which is no stage of it")
            self.outer.write(name, self.own[name].type, f"kernel {self.k.name}")

    def nest(self, nest: Nest) -> None:
        try:
            check_nest(self.k, nest)
        except ScheduleError as e:
            self.outer.fail(e.message)

    # Axes

    def axes(self, s: Stage) -> None:
        names = [a.name for a in (*s.axes, *s.reduced)]
        if len(set(names)) != len(names):
            self.fail(f"axes {', '.join(names)} are not distinct")
        self.outer.known((a.size for a in (*s.axes, *s.reduced)), set(), f"stage {s.name}")
        head = self.k.stages[0]
        rows = len(head.axes) if self.k.contracts else self.k.rows
        if s.axes[:rows] != head.axes[:rows] or len(s.axes) < rows:
            self.fail(f"rows are {_show(s.axes[:rows])}, expected {_show(head.axes[:rows])}")
        if (s.combine is None) != (not s.reduced):
            self.fail("a fold needs a scalar op and an axis")
        if s.combine is not None and SCALARS[s.combine].identity is None:
            self.fail(f"{s.combine} is no scalar op that folds")
        if len(s.reduced) > 1:
            self.fail(f"folds {_show(s.reduced)} at once, expected one axis")
        if not (self.k.contracts and s is head) and len(s.axes) > max(rows, self.k.rows + 1):
            self.fail(f"has the columns {_show(s.axes[rows:])}, expected at most one")
        if self.k.contracts and s is not head and (s.combine or len(s.axes) != rows):
            self.fail("follows a contraction, so it has its axes and folds nothing")

    # Terms

    def term(self, t: Term) -> None:
        for inner in t.children():
            self.term(inner)
        if isinstance(t, Position) and t.dtype is not i64:
            self.fail(f"the index {t} is {t.dtype}, expected i64")
        if isinstance(t, Apply):
            self.apply(t)

    def apply(self, t: Apply) -> None:
        row = SCALARS.get(t.scalar)
        if row is None or row.arity != len(t.operands):
            self.fail(f"{t.scalar} is no scalar op of {len(t.operands)} operands")
        dtypes = [o.dtype for o in t.operands]
        if t.scalar == "where" and dtypes.pop(0) is not bool_:
            self.fail("the condition of where is no bool")
        if any(d is not dtypes[0] for d in dtypes):
            self.fail(f"{t.scalar} of {', '.join(map(str, dtypes))} needs one dtype")
        if t.dtype is not result_dtype(t.scalar, t.operands):
            self.fail(f"{t.scalar} gives {result_dtype(t.scalar, t.operands)}, not {t.dtype}")

    # Reads

    def read(self, r: Read, s: Stage) -> None:
        source = self.own.get(r.source)
        if source is None and r.source not in self.outer.written:
            self.fail(f"reads {r.source}, which is not written before")
        t = self.outer.types[r.source] if source is None else source.type
        if r.dtype is not t.dtype:
            self.fail(f"reads {r} as {r.dtype}, but {r.source} is {t}")
        if len(r.index) != t.rank:
            self.fail(f"reads {r}, but {r.source} is {t}")
        axes = {a.name: a.size for a in (*s.axes, *s.reduced)}
        sizes = [i for i in r.index if not isinstance(i, Term)]
        self.outer.known(sizes, set(axes), f"stage {s.name} reads {r}")
        for i in r.children():
            if i.dtype is not i64:
                self.fail(f"reads {r} at {i}, which is {i.dtype}, expected i64")
        if 0 not in axes.values():
            self.inside(r, t, axes)
        if source is not None:
            self.in_place(r, source, s)

    def inside(self, r: Read, t: TensorType, axes: dict[str, Size]) -> None:
        for axis, (i, n) in enumerate(zip(r.index, t.shape, strict=True)):
            if not is_inside(i, n, axes, self.outer.facts):
                low, high = (place_of if isinstance(i, Term) else extremes)(i, axes)
                self.fail(f"reads {r}: elements {low} to {high} of axis {axis} of size {n}")

    def in_place(self, r: Read, source: Stage, s: Stage) -> None:
        """A read of an own stage: at this row, and at this column of the same size."""
        if s.combine is not None and len(s.axes) > self.k.rows:
            self.fail(f"folds for each column, so it cannot read {r.source} of its own kernel")
        here = (*s.axes, *s.reduced)[: len(source.axes)]
        if r.index != tuple(a.variable for a in here) or len(here) != len(source.axes):
            self.fail(f"reads {r} of its own kernel out of place")
        for a, b in zip(here, source.axes, strict=True):
            if a.size != b.size:
                self.fail(f"reads {r} along {a.name}<{a.size}, but {r.source} has {b.size}")


def _show(axes: Iterable[Axis]) -> str:
    return f"[{', '.join(f'{a.name}<{a.size}' for a in axes)}]"
