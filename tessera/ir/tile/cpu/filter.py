"""Kernels of filters: an instance takes some columns through all parts of a filter.

    y = ifft(fft(x) * fft(k))   ->   program columns by 16: fft of x to scratch; fft of k to scratch;
                                     ifft, which multiplies what it reads

Transforms are those of ir/tile/cpu/fft.py; what is computed point by point is computed where a
transform reads it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from tessera.core.dims import Size, product
from tessera.core.filters import TRANSFORMS, FilterPart, parts_of
from tessera.core.fourier import factor_of
from tessera.core.pairs import FORMULAS, Pair
from tessera.core.tables import fourier_table
from tessera.core.types import TensorType
from tessera.ir.schedule.ir import Primitive
from tessera.ir.tile.cpu.fft import Lanes, Planes, Transform, TransformWriter
from tessera.ir.tile.ir import Kernel
from tessera.ir.tile.launch import Expansion, Launch


@dataclass(frozen=True)
class _Formula(Planes):
    """Elements that are computed from others when they are read."""

    name: str = ""
    operands: tuple[Planes, ...] = ()


class _Filter(TransformWriter):
    """Writes the kernel of a filter."""

    def __init__(self, t: Transform, parts: Sequence[FilterPart], operands: int):
        super().__init__(t, operands)
        self.parts = parts
        # The room that transforms go through, and those of their results; the last one uses both.
        self.way, self.results = self.here, [self.there]

    def kernel(self) -> Kernel:
        known = [Planes(x, 0, self.t.operand) for x in self.xs]
        made = 0
        for p in self.parts:
            operands = tuple(known[i] for i in p.operands)
            if p.name not in TRANSFORMS:
                known.append(_Formula(self.y, name=p.name, operands=operands))
            elif p is self.parts[-1]:
                self.transform_to(Planes(self.y, 0, self.t.result), operands[0], p)
            else:
                self.results += [self.room()] if made == len(self.results) else []
                known.append(self.results[made])
                self.transform_to(known[-1], operands[0], p)
                made += 1
        return self.b.finish()

    def transform_to(self, target: Planes, source: Planes, p: FilterPart) -> None:
        """A transform of elements that are read in its first pass only."""
        count = len(self.plan.passes)
        if target.side is None:
            between = [(target, self.way)[(count - i) % 2] for i in range(1, count)]
        else:
            between = [(self.results[0], self.way)[i % 2] for i in range(1, count)]
        target = replace(target, factor=factor_of(self.t.n, p.norm, p.name == "ifft"))
        if p.name == "ifft":
            source, target = source.swapped, target.swapped
        self.along([source, *between, target])

    def get(self, planes: Planes, j: Size, width: int = 1, lanes: Lanes | None = None) -> Pair:
        if not isinstance(planes, _Formula):
            return super().get(planes, j, width, lanes)
        xs = [self.get(x, j, width, lanes) for x in planes.operands]
        made: Pair = FORMULAS[planes.name](*xs)
        return made if planes.re == 0 else made.swapped


def lower_filter(step: Primitive, types: Mapping[str, TensorType]) -> Expansion:
    """One kernel for all parts."""
    t, axis = types[step.operands[0]], step.params["axis"]
    outer, inner = product(t.shape[:axis]), product(t.shape[axis + 1 :])
    made = Transform("fft", t.shape[axis], outer, inner, t.dtype.real, order=step.order)
    writer = _Filter(made, parts_of(step.params), len(step.operands))
    table = fourier_table(made.plan, TensorType(made.dtype, (2, made.plan.size)))
    launch = Launch(writer.kernel(), (*step.operands, "table0"), step.results)
    return Expansion((launch,), {}, {"table0": table})


FILTERS = {"filter": lower_filter}
