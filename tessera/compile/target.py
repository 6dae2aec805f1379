"""Targets: what a program is compiled for.

A target is a value: its name, how it is written, and what makes its executables after the Graph level.  Its
passes are its line of PIPELINES.  numpy, cpu, cuda and hip are registered here; another target registers
itself from its own folder (docs/compiler.md adds one).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from tessera.compile.executable import Executable, PassResult
from tessera.compile.fallback import Task, Way, plain_ways
from tessera.compile.passes import Pass
from tessera.compile.pipeline import PIPELINES, passes_of
from tessera.core.deferred import Deferred
from tessera.core.errors import OperandError
from tessera.ir.graph.ir import Graph

Make = Callable[
    [Graph, Sequence[PassResult], str, str], Executable
]  # graph, record, which, numerics

# graph, record, target, sizes, numerics, pass to stop at -> record
Lower = Callable[
    [Graph, Sequence[PassResult], str, Mapping[str, int], str, str | None], list[PassResult]
]


@dataclass(frozen=True)
class Target:
    """Something that programs are compiled for."""

    name: str
    about: str
    executable: Make  # takes a graph after its passes the rest of the way
    lower: Lower | None = None  # the record of the levels below, to a pass to stop at
    plain: Callable[[Task], Sequence[Way[Executable]]] = plain_ways  # where the compiler fails
    which: str = ""  # a pattern of what may stand after the name and a colon
    listed: bool = True  # whether users write its name

    @property
    def passes(self) -> tuple[Pass, ...]:
        """Every pass of every level, in order."""
        return passes_of(self.name)


REGISTRY: dict[str, Target] = {}


def register(target: Target, passes: Sequence[Pass] | None = None) -> Target:
    """Make a target known, and its passes where the pipeline does not list them."""
    if passes is not None:
        PIPELINES[target.name] = tuple(passes)
    assert target.name in PIPELINES, f"{target.name} has no passes"
    REGISTRY[target.name] = target
    return target


def demand_target(text: object) -> None:
    """Raise unless there is such a target."""
    if isinstance(text, str):
        name, colon, which = text.partition(":")
        found = REGISTRY.get(name)
        if found is not None and (not colon or (re.fullmatch(found.which, which) and which)):
            return
    known = ", ".join(name for name, t in REGISTRY.items() if t.listed)
    raise OperandError(f"jit: target is {text!r}, expected one of {known}")


def target_of(text: str) -> tuple[Target, str]:
    """The target that a text names, and what it says after the colon."""
    name, _, which = text.partition(":")
    return REGISTRY[name], which


_machine = Deferred("tessera.compile.cpu.executable:executable")
_on_gpu = Deferred("tessera.compile.gpu.offline:executable")
_lowered_on_cpu = Deferred("tessera.compile.cpu.build:lowered")
_lowered_on_gpu = Deferred("tessera.compile.gpu.offline:lowered")
_plain_on_gpu = Deferred("tessera.compile.gpu.plain:plain_ways")
_on_mesh = Deferred("tessera.compile.mesh.executable:executable")


def _by_references(g: Graph, record: Sequence[PassResult], which: str, numerics: str) -> Executable:
    return Executable(g, record)


def _cpu(g: Graph, record: Sequence[PassResult], which: str, numerics: str) -> Executable:
    made: Executable = _machine(g, record, numerics)
    return made


def _gpu(kind: str) -> Make:
    def make(g: Graph, record: Sequence[PassResult], which: str, numerics: str) -> Executable:
        made: Executable = _on_gpu(g, record, kind, which)
        return made

    return make


NUMPY = register(Target("numpy", "the ops' NumPy references, without a compiler", _by_references))
CPU = register(
    Target("cpu", "machine code for this processor, by LLVM", _cpu, lower=_lowered_on_cpu)
)
# A GPU may have a number, or be an architecture, for which a program is compiled and not run.
CUDA = register(
    Target("cuda", "NVIDIA GPUs, by Triton and Gluon", _gpu("cuda"), lower=_lowered_on_gpu,
           plain=_plain_on_gpu, which=r"\d+|sm_\d+a?")
)  # fmt: skip
HIP = register(
    Target("hip", "AMD GPUs, by Triton", _gpu("hip"), lower=_lowered_on_gpu, plain=_plain_on_gpu,
           which=r"\d+|gfx[0-9a-f]+")
)  # fmt: skip
# A tensor on a mesh has a device of this kind.  Its programs are partitioned and compiled for the device of
# each rank.
MESH = register(
    Target("mesh", "a logical mesh of devices, shard by shard", _on_mesh, plain=lambda task: (),
           which=r"\d+", listed=False),
    passes=(),
)  # fmt: skip
