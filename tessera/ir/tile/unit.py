"""Units: what the Tile level lowers, one step of Schedule IR at a time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from tessera.core.types import TensorType
from tessera.ir.schedule.ir import Group
from tessera.ir.schedule.ir import Kernel as Loops
from tessera.ir.tile.ir import Kernel
from tessera.ir.tile.launch import Expansion, Launch


@dataclass(frozen=True)
class Unit:
    """A step of Schedule IR, and its launches once a lowering has made them.

    A lowering leaves a unit alone that is lowered already, or that it does not serve.
    """

    name: str
    # A step of Schedule IR, or steps that a target runs in one launch: a lowering asks for what it serves.
    step: object
    types: Mapping[str, TensorType]
    made: Expansion | None = None
    form: str = ""  # which lowering made it
    bucket: Mapping[str, int] = field(
        default_factory=dict
    )  # the largest sizes that it serves, where they are symbols

    def lowered(self, made: Expansion, form: str) -> Unit:
        """The unit with its launches."""
        return replace(self, made=made, form=form)

    def alone(self, kernel: Kernel, form: str) -> Unit:
        """The unit as one launch, whose parameters are the step's inputs and outputs."""
        assert isinstance(self.step, Loops | Group), self.step
        launch = Launch(kernel, tuple(self.step.inputs()), self.step.outputs)
        return self.lowered(Expansion((launch,)), form)

    def kernels(self) -> list[tuple[str, Kernel]]:
        """The Tile kernels by name, none before the unit is lowered."""
        return [] if self.made is None else self.made.named(self.name)

    def each(self, f: Callable[[Kernel], Kernel]) -> Unit:
        """The unit with f of each of its kernels."""
        if self.made is None:
            return self
        new = [f(x.kernel) for x in self.made.launches]
        if all(k is x.kernel for k, x in zip(new, self.made.launches, strict=True)):
            return self
        launches = (replace(x, kernel=k) for k, x in zip(new, self.made.launches, strict=True))
        return replace(self, made=replace(self.made, launches=tuple(launches)))


def on_kernels(f: Callable[[Kernel], Kernel]) -> Callable[[Unit], Unit]:
    """A pass over Tile kernels as a pass over units."""

    def run(u: Unit) -> Unit:
        return u.each(f)

    return run
