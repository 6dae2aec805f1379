"""What makes kernels equal: their text without names, and the sizes that they depend on."""

from __future__ import annotations

import re
from collections.abc import Hashable, Mapping
from dataclasses import fields
from typing import Any

from tessera.core.dims import Dim, symbols
from tessera.core.dtype import DType
from tessera.core.types import TensorType
from tessera.ir.schedule.ir import Group, Kernel, Position, Primitive, Read, walk


def sizes_of(k: Kernel, types: Mapping[str, TensorType]) -> list[str]:
    """The symbolic sizes that a kernel has: in shapes, loops and terms, as in y * mean(x)."""
    axes = [a for s in k.stages for a in (*s.axes, *s.reduced)]
    found = [d for n in (*k.inputs(), *k.outputs) for d in types[n].shape]
    found += [a.size for a in axes]
    for t in (t for s in k.stages for t in walk(s.term)):
        if isinstance(t, Position):
            found.append(t.value)
        elif isinstance(t, Read):
            found += [i for i in t.index if isinstance(i, int | Dim)]
    own = {a.name for a in axes}
    return sorted({name for d in found for name in symbols(d)} - own)


def form_of(k: Kernel | Group, types: Mapping[str, TensorType]) -> str:
    """The text of a kernel in which names are numbered: kernels of one form are one program.

    t7[_r0<8, _t7_1<64]: f32 = exp(x3[_r0, _t7_1])   ->   %0[%1<8, %2<64]: f32 = exp(%3[%1, %2])
    """
    stages = {s.name for s in k.stages}
    axes = {a.name for s in k.stages for a in (*s.axes, *s.reduced)}
    buffers = dict.fromkeys((*k.inputs(), *k.outputs))
    own = stages | axes | buffers.keys()
    numbers: dict[str, str] = {}

    def number(m: re.Match[str]) -> str:
        word = m.group()
        return numbers.setdefault(word, f"%{len(numbers)}") if word in own else word

    inner = k.kernels if isinstance(k, Group) else (k,)
    skipped = ("name", "stages")
    rest = [
        getattr(x, f.name)
        for x in inner
        for f in fields(x)
        if f.name not in (*skipped, "tile", "asked")
    ]
    rest += [x.asked for x in inner if x.asked]
    rest += [x.tile for x in inner if x.tile is not None]
    rest += [(k.rows, [len(x.stages) for x in inner])]
    text = _WORD.sub(number, "\n".join([*k.outputs, *map(str, k.stages), repr(rest)]))
    parameters = [f"{numbers.get(n, n)}: {types[n]}" for n in buffers]
    # A size may be called like a buffer; it keeps its name, by which a call gives it.
    sizes = {name for b in buffers for x in types[b].shape for name in symbols(x)}
    return "\n".join([text, *parameters, *sorted(sizes & own)])


def form_of_primitive(s: Primitive, types: Mapping[str, TensorType]) -> Hashable | None:
    """What primitives have in common that are one program; None with an epilogue, whose kernel is part
    of it, or a parameter that is no plain value.
    """
    if s.epilogue is not None:
        return None
    params = [(k, _plain(s.params[k])) for k in sorted(s.params)]
    if any(x is None for _, x in params):
        return None
    buffers = (*s.operands, *s.results)
    wired = tuple(buffers.index(n) for n in buffers)  # which of them are one
    return s.primitive, s.order, tuple(params), wired, tuple(types[n] for n in buffers)


def _plain(x: Any) -> Hashable | None:
    """A parameter so that 1, 1.0 and True differ, and 0.0 and -0.0."""
    if isinstance(x, tuple):
        parts = tuple(map(_plain, x))
        return None if None in parts else ("tuple", parts)
    if x is None or isinstance(x, int | float | str | Dim | DType):
        return type(x).__name__, repr(x)
    return None


_WORD = re.compile(r"\b[A-Za-z_]\w*")
