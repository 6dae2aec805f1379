"""joined: which steps of a program run in one launch, and the launch of products that do."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tessera.accelerator.absorb import absorbed
from tessera.accelerator.pairs import paired
from tessera.accelerator.place import Where, placed
from tessera.accelerator.together import together
from tessera.core.types import TensorType
from tessera.ir.schedule.ir import Kernel, Program
from tessera.ir.schedule.rename import renamed
from tessera.ir.tile.gpu.contraction import side_by_side
from tessera.ir.tile.gpu.thin import Thin, Writer
from tessera.ir.tile.launch import Launch


def joined(
    p: Program,
    types: Mapping[str, TensorType],
    sizes: Mapping[str, int],
    donated: frozenset[str],
    roles: bool,
) -> list[Any]:
    """The steps, those that run in one launch together; `roles` where groups of threads may have roles."""
    steps = list(together(p.steps))
    if roles:
        steps = paired(absorbed(steps, p.outputs), p.outputs)
    return placed(steps, Where(types, sizes, p.outputs, frozenset(p.inputs) - donated))


@dataclass(frozen=True)
class Joint:
    """A launch that several kernels are: what it follows from, how it is made, and what its buffers are in the program."""

    name: str
    key: Any
    make: Callable[[], Launch]
    buffers: Mapping[str, str]


def of_products(kernels: Sequence[Kernel], types: Mapping[str, TensorType]) -> Joint:
    """Products in one launch."""
    made = [renamed(k, f"p{i}") for i, k in enumerate(kernels)]
    own = [{n: types[x] for n, x in names.items() if x in types} for _, names in made]

    def make() -> Launch:
        kernel, threads = side_by_side([k for k, _ in made], own)
        inputs = tuple(m.name for m in kernel.parameters if not m.writable)
        outputs = tuple(m.name for m in kernel.parameters if m.writable)
        return Launch(kernel, inputs, outputs, threads)

    key = tuple((str(k), *t.items()) for (k, _), t in zip(made, own, strict=True))
    old = {new: name for _, names in made for new, name in names.items()}
    return Joint(kernels[-1].name, key, make, old)


def of_thin(t: Thin, types: Mapping[str, TensorType]) -> Joint:
    """A product with a vector, and what makes the vector."""
    plain, old = renamed(t.kernel)
    own = {n: types[x] for n, x in old.items() if x in types}

    def make() -> Launch:
        w = Writer(replace(t, kernel=plain), own)
        return Launch(w.kernel(), tuple(plain.inputs()), plain.outputs, w.threads)

    return Joint(t.kernel.name, (str(plain), t.before, t.parts, *own.items()), make, old)
