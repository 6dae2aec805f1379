"""Steps that share a launch, as passes over the program of a device, and the joint launch of products."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tessera.compile.gpu.device_program import DeviceProgram, SplitStep
from tessera.compile.gpu.passes.fuse_gated_epilogue import paired
from tessera.compile.gpu.passes.fuse_prologue import absorbed
from tessera.compile.gpu.passes.group_gemms import together
from tessera.compile.gpu.passes.update_in_place import Where, placed
from tessera.core.types import TensorType
from tessera.ir.schedule.ir import Group, Kernel
from tessera.ir.schedule.passes.split_kernel import split_kernel
from tessera.ir.schedule.rename import renamed
from tessera.ir.tile.gpu.thin import Thin


def group_gemms(p: DeviceProgram) -> DeviceProgram:
    """The program in which products that fill a GPU badly run in one launch."""
    return p.with_steps(together(p.steps))


def fuse_prologue(p: DeviceProgram) -> DeviceProgram:
    """The program in which a product with a vector computes the vector, too."""
    return p.with_steps(absorbed(p.steps, p.outputs))


def fuse_gated_epilogue(p: DeviceProgram) -> DeviceProgram:
    """The program in which such a product computes what reads its rows in pairs."""
    return p.with_steps(paired(p.steps, p.outputs))


def update_in_place(
    p: DeviceProgram, sizes: Mapping[str, int], donated: frozenset[int]
) -> DeviceProgram:
    """The program in which parts of tensors are computed where they are stored."""
    types = {n: b.type for n, b in p.buffers.items()}
    stay = frozenset(p.inputs) - {p.inputs[i] for i in donated}
    return p.with_steps(placed(p.steps, Where(types, sizes, p.outputs, stay)))


def split_kernels(p: DeviceProgram) -> DeviceProgram:
    """The program in which groups, and kernels whose parts need nothing of each other, are several
    launches.
    """
    return p.with_steps([_split(s) for s in p.steps])


def _split(s: Any) -> Any:
    if isinstance(s, Group):
        return SplitStep(s, s.kernels)
    parts = split_kernel(s) if isinstance(s, Kernel) else ()
    return SplitStep(s, tuple(parts)) if len(parts) > 1 else s


@dataclass(frozen=True)
class Joint:
    """Steps of one launch under names of their own: what they follow from, and what their buffers are in
    the program.
    """

    name: str
    key: Any
    step: Any
    types: Mapping[str, TensorType]
    buffers: Mapping[str, str]


def of_products(kernels: Sequence[Kernel], types: Mapping[str, TensorType]) -> Joint:
    """Products in one launch."""
    made = [renamed(k, f"p{i}") for i, k in enumerate(kernels)]
    own = [{n: types[x] for n, x in names.items() if x in types} for _, names in made]
    key = tuple((str(k), *t.items()) for (k, _), t in zip(made, own, strict=True))
    old = {new: name for _, names in made for new, name in names.items()}
    known = {n: t for one in own for n, t in one.items()}
    return Joint(kernels[-1].name, key, tuple(k for k, _ in made), known, old)


def of_thin(t: Thin, types: Mapping[str, TensorType]) -> Joint:
    """A product with a vector, and what makes the vector."""
    plain, old = renamed(t.kernel)
    own = {n: types[x] for n, x in old.items() if x in types}
    key = (str(plain), t.before, t.parts, *own.items())
    return Joint(t.kernel.name, key, replace(t, kernel=plain), own, old)
