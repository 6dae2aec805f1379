"""The engine that carries data between the ranks of a run, as the ops see it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tessera.core.mesh import Mesh, Placement, placed

Array = Any
# Bytes up to which a message of the local engine goes through a socket, whose buffer holds many of these.
INLINE = 16384


class RankEngine:
    """One rank among several; this one is alone."""

    rank = 0
    size = 1
    name = "none"

    def exchange(self, what: str, group: Sequence[int], sent: Sequence[Array]) -> list[Array]:
        """Send an array to each rank of a group and return what each of them sent here.

        `what` says what for: ranks that meet with different words are out of step.
        """
        assert tuple(group) == (0,), group
        return list(sent)

    def close(self) -> None:
        """Leave the run."""


_engine = RankEngine()


def engine() -> RankEngine:
    """The engine of this process."""
    return _engine


def start_on(made: RankEngine) -> None:
    """Say which engine this process runs on."""
    global _engine
    _engine = made


def placement(mesh: Mesh) -> Placement:
    """The part of a mesh that this rank owns."""
    return placed(mesh, _engine.rank, _engine.size)
