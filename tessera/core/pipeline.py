"""Schedules of pipelines: which stage runs which microbatch, forward and backward, in which tick.

A stage is a device along the mesh axis; with several chunks it holds as many parts of the network, and a
microbatch goes round the ring once for each.  In a tick a stage runs at most one part forward and one
backward, and sends both results on.

    gpipe         all forward ticks, then all backward ones; every microbatch is kept
    1f1b          backward as soon as the last stage has a microbatch; about two microbatches a stage are kept
    interleaved   1f1b with several chunks a stage: ticks are shorter and the bubble with them
"""

from __future__ import annotations

from dataclasses import dataclass

from tessera.core.errors import OperandError

NAMES = ("gpipe", "1f1b", "interleaved")


@dataclass(frozen=True)
class Schedule:
    """A schedule for a number of stages, microbatches and chunks a stage."""

    name: str
    stages: int
    microbatches: int
    chunks: int = 1

    def __post_init__(self) -> None:
        if self.name not in NAMES:
            raise OperandError(
                f"pipeline: schedule is {self.name!r:.40}, expected one of {', '.join(NAMES)}"
            )
        if self.microbatches < 1 or self.chunks < 1:
            raise OperandError(
                f"pipeline: got {self.microbatches} microbatches and {self.chunks} chunks, expected 1 or more"
            )
        if (self.name == "interleaved") != (self.chunks > 1):
            raise OperandError(
                f"pipeline: schedule {self.name!r} with {self.chunks} chunks; interleaved needs 2 or more, "
                "the others 1"
            )
        if self.chunks > 1 and self.microbatches % self.stages:
            raise OperandError(
                f"pipeline: interleaved needs a multiple of {self.stages} microbatches, the number of "
                "stages, got "
                f"{self.microbatches}"
            )

    @property
    def units(self) -> int:
        """How often a stage runs forward, and how often backward."""
        return self.microbatches * self.chunks

    @property
    def turn(self) -> int:
        """The tick in which the last stage begins to run backward."""
        if self.name == "gpipe":
            return self.units + self.stages - 1
        return self.chunks * self.stages - 1

    @property
    def ticks(self) -> int:
        """How many ticks there are."""
        return self.turn + self.units + self.stages - 1

    @property
    def kept(self) -> int:
        """How many inputs of microbatches a stage keeps at a time."""
        return self.units if self.name == "gpipe" else min(2 * self.turn + 1, self.units)

    def forward(self, stage: int, tick: int) -> tuple[int, int] | None:
        """The (microbatch, chunk) that a stage runs forward in a tick."""
        return self._unit(tick - stage, False)

    def backward(self, stage: int, tick: int) -> tuple[int, int] | None:
        """The (microbatch, chunk) that a stage runs backward in a tick."""
        return self._unit(tick - self.turn - (self.stages - 1 - stage), True)

    def _unit(self, unit: int, back: bool) -> tuple[int, int] | None:
        if not 0 <= unit < self.units:
            return None
        if self.chunks == 1:
            return unit, 0
        group, rest = divmod(unit, self.stages * self.chunks)
        chunk, place = divmod(rest, self.stages)
        return group * self.stages + place, self.chunks - 1 - chunk if back else chunk

    def bubble(self, back: float = 2.0) -> float:
        """The part of the time in which a stage waits, where running backward takes `back` times as long as
        forward.

        A tick takes as long as the stage that does most in it.
        """
        total = 0.0
        for t in range(self.ticks):
            some = [self.forward(s, t) is not None for s in range(self.stages)]
            other = [self.backward(s, t) is not None for s in range(self.stages)]
            total += max(f + back * b for f, b in zip(some, other, strict=True))
        return 1 - self.units * (1 + back) / total
