"""The engine that carries data between the ranks of a run, as the ops see it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from tessera.core.errors import RankError, located
from tessera.core.mesh import Mesh, Placement, placed

Array = Any
# Bytes up to which a message of the local engine goes through a socket, whose buffer holds many of these.
INLINE = 16384


class RankEngine:
    """One rank among several; this one is alone."""

    rank = 0
    size = 1
    name = "none"
    place = (0, 1)  # the number of this rank among those of its machine, and how many these are
    carries = "cpu"  # the kind of devices whose memory it moves; what others hold goes by the host

    def exchange(self, what: str, group: Sequence[int], sent: Sequence[Array]) -> list[Array]:
        """Send an array to each rank of a group and return what each of them sent here.

        `what` says what for: ranks that meet with different words are out of step.
        """
        assert tuple(group) == (0,), group
        return list(sent)

    def sum(self, what: str, group: Sequence[int], x: Array) -> Array | None:
        """The sum over a group by the library's own all-reduce, in an order of its own; None where the
        engine has none for this array.
        """
        return None

    def move(
        self, what: str, group: Sequence[int], sent: Any, parts: Sequence[tuple[int, int]], got: Any,
        counts: Sequence[int],
    ) -> None:  # fmt: skip
        """Send a part of an array on a device, (begin, count), to each rank of a group, and write what each
        of them sent here into another one, in the order of the group.

        It returns when that has begun: later work of the device's stream comes after it.
        """
        raise AssertionError(f"the engine {self.name} moves what the host holds: {what}")

    def sum_on_device(self, what: str, group: Sequence[int], x: Any, out: Any) -> bool:
        """Begin to write the sum of what a group holds on devices, in the library's order; False where the
        engine has none for this array.
        """
        return False

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Array:
        """Memory for what a collective makes."""
        return np.empty(shape, dtype)

    def close(self) -> None:
        """Leave the run."""


_engine = RankEngine()
_is_chosen = False  # whether this process was told which engine it runs on
# What says how many processes a launcher started: mpiexec of MPICH and srun, mpirun of Open MPI, torchrun.
_LAUNCHERS = {"PMI_SIZE": "mpiexec", "OMPI_COMM_WORLD_SIZE": "mpirun", "WORLD_SIZE": "torchrun"}
_HOW = {"torchrun": "mpiexec"}  # what starts them instead


def engine() -> RankEngine:
    """The engine of this process."""
    return _engine


def start_on(made: RankEngine) -> None:
    """Say which engine this process runs on."""
    global _engine, _is_chosen
    _engine, _is_chosen = made, True


def _launched(name: str) -> int:
    """How many processes a launcher started, by its variable of the environment."""
    text = os.environ.get(name, "")
    return int(text) if text.isdecimal() else 1


def launched_by_mpi() -> bool:
    """Whether mpiexec or a scheduler started several processes."""
    return any(_launched(name) > 1 for name in _LAUNCHERS if name != "WORLD_SIZE")


def demand_chosen() -> None:
    """Raise where a launcher started several processes, none of which knows of the others."""
    global _is_chosen
    if _is_chosen:
        return
    for name, launcher in _LAUNCHERS.items():
        if (count := _launched(name)) > 1:
            raise located(
                RankError(
                    f"{launcher} started {count} processes, each of which would run the whole program "
                    "alone; "
                    f"start them with {_HOW.get(launcher, launcher)} -n {count} tessera run FILE, or with "
                    f"tessera run -n {count} FILE; tessera run --engine local FILE is alone"
                )
            )
    _is_chosen = True


def placement(mesh: Mesh) -> Placement:
    """The part of a mesh that this rank owns."""
    demand_chosen()
    return placed(mesh, _engine.rank, _engine.size)
