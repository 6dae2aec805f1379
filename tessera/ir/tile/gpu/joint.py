"""Joint launches under names of their own: what is equal but for names is lowered once."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace

from tessera.core.types import TensorType
from tessera.ir.schedule.ir import Kernel
from tessera.ir.schedule.rename import renamed
from tessera.ir.schedule.thin_products import Thin


@dataclass(frozen=True)
class Joint:
    """Steps of one launch under names of their own: what they follow from, and what their buffers are in
    the program.
    """

    name: str
    key: Hashable
    step: tuple[Kernel, ...] | Thin
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
