"""Strided attention: read and write tensors where they are, without copies in another order of axes.

    q[b, h, s, d] = x[1024 b + s, 64 h + d + 768]; o = attention(q, ...); y[b, s, h, d] = o[b, h, s, d]
->  attention reads columns of x and writes columns of y

A copy vanishes where attention alone reads it, or where attention makes what it copies.  Parts of a
concatenation that attention makes are written where they belong.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace

from tessera.core.dims import Size, substitute
from tessera.core.gpu_kernels import ATTENDS
from tessera.core.types import TensorType
from tessera.ir.schedule.device_program import DeviceProgram
from tessera.ir.schedule.device_steps import Columns, Laid
from tessera.ir.schedule.ir import (
    Apply,
    Cast,
    HostCall,
    Kernel,
    Literal,
    Primitive,
    Program,
    Read,
    Stage,
    Step,
    Term,
)
from tessera.ir.schedule.passes.fuse_contractions import inputs_of, outputs_of, readings


def strided(p: Program) -> DeviceProgram:
    """A program without the copies around attention, and where the tensors lie that they were made for."""
    found = _StrideSearch(p)
    for s in p.steps:
        if isinstance(s, Kernel) and not s.contracts:
            for stage in s.stages:
                found.look(stage)
    found.look_at_parts()
    steps = [kept for s in p.steps if (kept := found.without_copies(s)) is not None]
    plain = replace(p, steps=tuple(steps))
    own = {f.name: getattr(plain, f.name) for f in fields(Program)}
    return DeviceProgram(**own, laid=found.laid, plain=plain)


class _StrideSearch:
    def __init__(self, p: Program):
        self.p = p
        self.readers: dict[str, list[Step]] = {}
        self.makers: dict[str, Step] = {n: s for s in p.steps for n in outputs_of(s)}
        for s in p.steps:
            for n in dict.fromkeys(inputs_of(s)):
                self.readers.setdefault(n, []).append(s)
        self.readings = readings(p.steps)
        self.laid: dict[str, Laid] = {}
        self.copies: set[str] = set()  # stages that are not needed

    def look(self, s: Stage) -> None:
        """Whether a stage is a copy that attention does without."""
        r, plus_zero = _copied(s.term)
        if r is None or s.combine is not None or s.name not in self.makers:
            return
        if self.is_for_attention(s.name) and r.source in self.p.buffers and not plus_zero:
            self.from_columns(s, r)
        elif self.is_of_attention(r.source) and s.name not in self.p.outputs:
            self.to_columns(s, r, plus_zero)

    def is_for_attention(self, name: str) -> bool:
        """Whether attentions alone read a tensor, and no stage beside the one that makes it."""
        attends = [s for s in self.readers.get(name, []) if _attends(s)]
        return name not in self.p.outputs and 0 < self.readings[name] == len(attends)

    def is_of_attention(self, name: str) -> bool:
        """Whether attention makes a tensor, which one copy and other attentions read."""
        maker = self.makers.get(name)
        others = self.readings[name] - sum(map(_attends, self.readers.get(name, [])))
        mine = maker is not None and _attends(maker) and name not in self.p.outputs
        return mine and name not in self.laid and others == 1

    def from_columns(self, s: Stage, r: Read) -> None:
        base = self.p.buffers[r.source].type
        columns = _columns(s, r, base)
        if columns is not None and r.source not in self.laid and self.fits(s, columns):
            self.laid[s.name] = Laid(r.source, columns)
            self.copies.add(s.name)

    def fits(self, s: Stage, columns: Columns) -> bool:
        """Whether tiles of heads find their columns; one query of heads that share keys is read as rows."""
        attends = [x for x in self.readers[s.name] if isinstance(x, HostCall) and _attends(x)]
        alone = s.type.shape[2] == 1 and any(x.operands[0] == s.name for x in attends)
        mask = any(x.node.op.kernel == "attention" and s.name in x.operands[3:] for x in attends)
        return not alone and not mask and columns.fits(int(s.type.shape[3]))

    def to_columns(self, s: Stage, r: Read, plus_zero: bool) -> None:
        """The source is written where the copy would lie."""
        source, target = (self.p.buffers[n].type for n in (r.source, s.name))
        strides = dict(zip((a.name for a in s.axes), _row_major(target), strict=True))
        names = [_only(i) for i in r.index]
        if source.rank != 4 or source.size != target.size or None in names:
            return
        found = [strides[n] if n else 0 for n in names if n is not None]
        columns = _as_columns(found, 0, source)
        if columns is not None and columns.fits(int(source.shape[3])):
            self.laid[r.source] = Laid(s.name, replace(columns, plus_zero=plus_zero))
            self.copies.add(s.name)

    # Concatenations

    def look_at_parts(self) -> None:
        for s in self.p.steps:
            if isinstance(s, Primitive) and s.primitive == "concat":
                self.look_at_concat(s)

    def look_at_concat(self, s: Primitive) -> None:
        """Columns of the parts are columns of the whole."""
        own = {x.base: n for n, x in self.laid.items() if x.base in self.copies}
        if not all(x in own and self.readings[x] == 1 for x in s.operands):
            return
        (out,) = s.results
        axis, whole = s.params["axis"], self.p.buffers[out].type
        before = [self.laid[own[x]].columns for x in s.operands]
        pitch = int(TensorType(whole.dtype, whole.shape[axis:]).size)
        widths = [
            int(TensorType(whole.dtype, self.p.buffers[x].type.shape[axis:]).size)
            for x in s.operands
        ]
        if any(c.pitch != w or c.first for c, w in zip(before, widths, strict=True)):
            return
        sizes = [int(self.p.buffers[own[x]].type.shape[-1]) for x in s.operands]
        begins = [sum(widths[:i]) for i in range(len(widths))]
        places = [Columns(pitch, a, c.step) for a, c in zip(begins, before, strict=True)]
        if not all(c.fits(n) for c, n in zip(places, sizes, strict=True)):
            return
        at = 0
        for x, c, width in zip(s.operands, before, widths, strict=True):
            self.laid[own[x]] = Laid(out, Columns(pitch, at, c.step, c.plus_zero))
            at += width
        self.copies.add(out)

    def without_copies(self, s: Step) -> Step | None:
        if isinstance(s, Primitive):
            return None if self.copies.intersection(s.results) else s
        if not isinstance(s, Kernel) or not self.copies.intersection(s.outputs):
            return s
        stages = tuple(t for t in s.stages if t.name not in self.copies)
        outputs = tuple(n for n in s.outputs if n not in self.copies)
        return replace(s, stages=stages, outputs=outputs) if stages else None


def _attends(s: Step) -> bool:
    return isinstance(s, HostCall) and s.node.op.kernel in ATTENDS


def _copied(t: Term) -> tuple[Read | None, bool]:
    """What a term reads and gives as it is, and whether it adds 0 to it, as sums of padded parts do."""
    if isinstance(t, Read):
        return t, False
    inner = t.operand if isinstance(t, Cast) else t
    if not isinstance(inner, Apply) or inner.scalar != "add":
        return None, False
    x, zero = (o.operand if isinstance(o, Cast) else o for o in inner.operands)
    whole = isinstance(x, Read) and x.dtype is t.dtype
    nothing = isinstance(zero, Literal) and str(float(zero.value.real)) == "0.0"
    return (x, True) if isinstance(x, Read) and whole and nothing else (None, False)


def _only(i: object) -> str | None:
    """The axis that an index is; '' for 0, and None for anything else."""
    if i == 0:
        return ""
    text = str(i)
    return text if text.startswith("_") and text.isidentifier() else None


def _row_major(t: TensorType) -> list[int]:
    out, step = [], 1
    for n in reversed(t.shape):
        out.append(step)
        step *= int(n)
    return out[::-1]


def _columns(s: Stage, r: Read, base: TensorType) -> Columns | None:
    """Where a tensor of heads lies in another one, if it lies in columns of it."""
    if any(not isinstance(i, int) and not hasattr(i, "terms") for i in r.index):
        return None
    flat: Size = 0
    for i, step in zip(r.index, _row_major(base), strict=True):
        flat = flat + i * step
    names = [a.name for a in s.axes]
    first = substitute(flat, dict.fromkeys(names, 0))
    steps = [substitute(flat, dict.fromkeys(names, 0) | {n: 1}) - first for n in names]
    last = {a.name: a.size - 1 for a in s.axes}
    end = first + sum(x * n for x, n in zip(steps, last.values(), strict=True))
    if substitute(flat, last) != end or not all(isinstance(x, int) for x in (first, *steps)):
        return None
    if len(steps) != 4:
        return None
    columns = _as_columns([int(x) for x in steps], int(first), s.type)
    whole = columns is not None and columns.pitch * int(s.type.shape[0]) * int(s.type.shape[2])
    return columns if whole == int(base.size) else None


def _as_columns(steps: Sequence[int], first: int, t: TensorType) -> Columns | None:
    """Steps of batch, heads, rows and elements as columns of a matrix for each batch."""
    batch, heads, rows, size = (int(n) for n in t.shape)
    by_batch, by_head, pitch, one = steps
    fits = first + (heads - 1) * by_head + size <= pitch and one == 1
    return (
        Columns(pitch, first, by_head)
        if fits and (batch == 1 or by_batch == rows * pitch)
        else None
    )
