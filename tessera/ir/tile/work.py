"""work: about how long one instance of a kernel takes, from what its operations touch.

The figure decides how many threads are worth waking, nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from tessera.core.dims import Size, larger, substitute
from tessera.ir.tile.ir import Block, Kernel, Operation

# Picoseconds for an element; what is not listed is arithmetic of one instruction.
_MEMORY, _ARITHMETIC = 100, 30
_WORDS = 2  # for a product of words by a matrix unit
_SCALARS = {"exp": 400, "log": 400, "tanh": 600, "erf": 600, "sin": 600, "cos": 600, "pow": 1200,
            "div": 150, "sqrt": 150, "sigmoid": 500, "rsqrt": 200}  # fmt: skip


def instance_work(kernel: Kernel) -> Size:
    """Picoseconds of the first instance, which is as large as any, when the caches are warm."""
    return _block(kernel.body, {name: 0 for name, _ in kernel.grid})


def _block(block: Block, env: Mapping[str, Size]) -> Size:
    total: Size = 0
    for op in block.operations:
        total = total + (_operation(op) if op.block is None else _loop(op, op.block, env))
    return total


def _loop(op: Operation, block: Block, env: Mapping[str, Size]) -> Size:
    """All iterations, each taken for the first one."""
    a = op.attributes
    start, stop = substitute(a["start"], env), substitute(a["stop"], env)
    trips = larger((stop - start + a["step"] - 1) // a["step"], 0)
    return trips * _block(block, {**env, a["variable"]: start})


def _operation(op: Operation) -> int:
    if op.name == "load":
        return _MEMORY * prod(op.results[0].shape)
    if op.name == "store":
        return _MEMORY * prod(op.operands[0].shape)
    if op.name in ("dot", "dot_words"):
        (m, k), n = op.operands[0].shape, op.operands[1].shape[1]
        return (_ARITHMETIC if op.name == "dot" else _WORDS) * m * k * n
    elements = max((prod(t.shape) for t in (*op.operands, *op.results)), default=0)
    return _SCALARS.get(op.attributes.get("scalar", ""), _ARITHMETIC) * elements
