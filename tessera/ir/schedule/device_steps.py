"""Steps that a GPU runs in one launch, or as several: what they are, what they read and make."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from tessera.core.types import TensorType
from tessera.ir.schedule.gpu_blocks import width
from tessera.ir.schedule.ir import Group, HostCall, Kernel, Stage, Step, reads
from tessera.ir.schedule.passes.fuse_contractions import inputs_of, outputs_of
from tessera.ir.schedule.thin_products import Thin


@dataclass(frozen=True)
class Update:
    """A tensor, the numbers where a part of it starts, and what the part becomes: a stage on its axes."""

    whole: str
    starts: tuple[str | None, ...]  # None along axes that the part covers whole
    part: Stage

    @property
    def sources(self) -> list[str]:
        """The tensors that the part is computed from."""
        return list(dict.fromkeys(r.source for r in reads(self.part.term)))

    @property
    def count(self) -> int:
        """How many elements are replaced."""
        return prod(int(a.size) for a in self.part.axes)


@dataclass(frozen=True)
class Placed:
    """Calls of updates that are one launch, and what each of them writes."""

    calls: tuple[HostCall, ...]
    updates: tuple[Update, ...]

    @property
    def inputs(self) -> frozenset[str]:
        """The tensors that it reads."""
        starts = frozenset(n for u in self.updates for n in u.starts if n is not None)
        return self.sources | starts | {c.operands[0] for c in self.calls}

    @property
    def sources(self) -> frozenset[str]:
        """The tensors that the parts are computed from."""
        return frozenset(n for u in self.updates for n in u.sources)

    @property
    def outputs(self) -> tuple[str, ...]:
        return tuple(n for c in self.calls for n in c.results)


@dataclass(frozen=True)
class Columns:
    """A tensor of heads as columns of a matrix for each batch."""

    pitch: int  # columns of the matrix
    first: int  # where head 0 begins
    step: int  # from head to head
    plus_zero: bool = False  # whether 0 is added to what is written: there is no -0 then

    def fits(self, size: int) -> bool:
        """Whether tiles of heads of a size find their columns: they fill them, or heads lie at multiples
        of it.
        """
        return width(size) == size or not any(n % size for n in (self.pitch, self.first, self.step))


@dataclass(frozen=True)
class Laid:
    """A tensor of heads as columns of another tensor."""

    base: str
    columns: Columns


@dataclass(frozen=True)
class SplitStep:
    """A step, and the kernels that it is launched as, one after the other."""

    step: Kernel | Group
    kernels: tuple[Kernel, ...]

    @property
    def local(self) -> dict[str, TensorType]:
        """What passes between the kernels and is no buffer of the program."""
        if isinstance(self.step, Group):
            return self.step.local
        return {t.name: t.type for k in self.kernels for t in k.stages if t.name in k.outputs}


DeviceStep = Step | tuple[Kernel, ...] | Thin | Placed | SplitStep


def inputs_read(s: DeviceStep) -> frozenset[str]:
    """What a step reads, one of those that run together too."""
    if isinstance(s, Thin):
        return frozenset(s.kernel.inputs())
    if isinstance(s, tuple):
        return frozenset(n for k in s for n in k.inputs())
    if isinstance(s, Placed):
        return s.inputs
    return frozenset(inputs_of(s.step if isinstance(s, SplitStep) else s))


def outputs_made(s: DeviceStep) -> tuple[str, ...]:
    """What a step makes, one of those that run together too."""
    if isinstance(s, Thin):
        return s.kernel.outputs
    if isinstance(s, tuple):
        return tuple(n for k in s for n in k.outputs)
    if isinstance(s, Placed):
        return s.outputs
    return tuple(outputs_of(s.step if isinstance(s, SplitStep) else s))
