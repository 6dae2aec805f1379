"""Schedule IR of a GPU at the sizes of a call: steps may share a launch, and a step may be several
launches.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import cast

from tessera.ir.schedule.device_steps import DeviceStep, Laid, Placed, SplitStep
from tessera.ir.schedule.ir import HostCall, Program, Step
from tessera.ir.schedule.thin_products import Thin
from tessera.ir.schedule.verify import Verifier


@dataclass(frozen=True)
class DeviceProgram(Program):
    """A program whose steps are also tuples of products, Thin products, Placed updates and Parts."""

    laid: Mapping[str, Laid] = field(
        default_factory=dict
    )  # what attention reads and writes elsewhere
    plain: Program | None = None  # the program before its steps shared launches

    @property
    def device_steps(self) -> tuple[DeviceStep, ...]:
        """The steps, of which some are several launches or share one."""
        return cast("tuple[DeviceStep, ...]", self.steps)

    def with_steps(self, steps: Sequence[DeviceStep]) -> DeviceProgram:
        """The program with other steps; itself when they are its own."""
        alike = len(steps) == len(self.steps)
        if alike and all(a is b for a, b in zip(steps, self.steps, strict=True)):
            return self
        return replace(self, steps=cast("tuple[Step, ...]", tuple(steps)))

    @cached_property
    def text(self) -> str:
        """The canonical text, or where steps share launches that for people to read, which nothing parses."""
        plain = all(isinstance(s, Step) for s in self.steps)
        return self.plain.text if plain and self.plain is not None else self.readable

    @property
    def readable(self) -> str:
        """The program for people to read."""
        lines = [f"program {self.name}"]
        lines += [f"  {b.name}: {b.type}" for b in self.buffers.values()]
        lines += [f"  {n}: columns of {x.base}" for n, x in self.laid.items()]
        lines += ["  " + line for s in self.device_steps for line in _text(s).split("\n")]
        return "\n".join([*lines, f"  returns {', '.join(self.outputs)}"])

    def verify(self, sizes: Mapping[str, int]) -> None:
        """Raise VerifyError when it breaks an invariant of Schedule IR."""
        _DeviceVerifier(self, sizes).run()


def _text(s: DeviceStep) -> str:
    if isinstance(s, tuple):
        return _under("in one launch", s)
    if isinstance(s, Thin):
        return _under(f"with its vector, {s.parts} of its rows at a time", (s.kernel,))
    if isinstance(s, Placed):
        return _under("in place", s.calls)
    return _under("one after the other", s.kernels) if isinstance(s, SplitStep) else str(s)


def _under(head: str, steps: Sequence[Step]) -> str:
    return "\n".join([head, *("  " + line for s in steps for line in str(s).split("\n"))])


class _DeviceVerifier(Verifier):
    """Of steps that share a launch it checks what they read and write; of others all that holds of
    Schedule IR.
    """

    def __init__(self, p: DeviceProgram, sizes: Mapping[str, int]):
        super().__init__(p, sizes)
        self.laid = p.laid

    def step(self, i: int, s: DeviceStep) -> None:
        if isinstance(s, tuple | SplitStep):
            kernels = s if isinstance(s, tuple) else s.kernels
            local = {} if isinstance(s, tuple) else s.local
            self.types |= {n: t for n, t in local.items() if n not in self.types}
            for k in kernels:
                super().step(i, k)
        elif isinstance(s, Thin):
            self.moves(s.kernel.name, s.kernel.inputs(), s.kernel.outputs)
        elif isinstance(s, Placed):
            self.moves(f"update of {s.outputs[-1]}", sorted(s.inputs), s.outputs)
        elif isinstance(s, HostCall) and not self.laid.keys().isdisjoint((*s.operands, *s.results)):
            self.attends(s)
        else:
            super().step(i, s)

    def moves(self, what: str, reads: Sequence[str], writes: Sequence[str]) -> None:
        """The data flow of a launch."""
        for n in reads:
            self.reads(n, what)
        for n in writes:
            self.write(n, None, what)

    def attends(self, s: HostCall) -> None:
        """An attention that reads and writes columns of other tensors."""
        for n in s.operands:
            self.reads(self.laid[n].base if n in self.laid else n, s.node.op.name)
        for n in s.results:
            if n in self.laid:
                self.written |= {n, self.laid[n].base}  # other attentions may write other columns
            else:
                self.write(n, None, s.node.op.name)
