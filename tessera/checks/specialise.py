"""specialise: a kernel with some of its sizes replaced, by numbers or by other sizes.

load x[_p0, 0] of f32[M, N]   ->   load x[_p0, 0] of f32[M, 64]
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tessera.core.dims import Dim, Size, substitute
from tessera.core.types import TensorType
from tessera.ir.tile.ir import Block, Kernel, Memory, Operation


def specialise(kernel: Kernel, sizes: Mapping[str, Size]) -> Kernel:
    """The kernel at these sizes; its operations keep their locations."""
    if not set(sizes) & set(kernel.sizes):
        return kernel
    return _Specialise(sizes).kernel(kernel)


class _Specialise:
    """Replaces sizes everywhere."""

    def __init__(self, sizes: Mapping[str, Size]):
        self.sizes = sizes
        self.memories: dict[Memory, Memory] = {}

    def kernel(self, k: Kernel) -> Kernel:
        parameters = tuple(map(self.memory, k.parameters))
        grid = tuple((name, substitute(n, self.sizes)) for name, n in k.grid)
        return replace(k, parameters=parameters, grid=grid, body=self.block(k.body))

    def memory(self, m: Memory) -> Memory:
        if m not in self.memories:
            shape = tuple(substitute(n, self.sizes) for n in m.type.shape)
            t = TensorType(m.type.dtype, shape)
            self.memories[m] = Memory(m.name, t, m.space, m.writable)
        return self.memories[m]

    def block(self, b: Block) -> Block:
        return replace(b, operations=tuple(map(self.operation, b.operations)))

    def operation(self, op: Operation) -> Operation:
        attributes = {k: self.attribute(v) for k, v in op.attributes.items()}
        memory = None if op.memory is None else self.memory(op.memory)
        block = None if op.block is None else self.block(op.block)
        return Operation(
            op.name, op.operands, attributes, op.results, memory, block, op.location
        )  # fmt: skip

    def attribute(self, x: Any) -> Any:
        if isinstance(x, tuple):
            return tuple(map(self.attribute, x))
        return substitute(x, self.sizes) if isinstance(x, Dim) else x
