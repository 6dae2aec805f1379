"""Hand-written kernels on the page of the inspector: their Tile IR under their own name, and its LLVM IR."""

from __future__ import annotations

from collections.abc import Sequence

from tessera.checks.roofline import work as tile_work
from tessera.core.types import TensorType
from tessera.inspect.work import Work
from tessera.ir.schedule.ir import HostCall, Step
from tessera.ir.tile.ir import Kernel
from tessera.ir.tile.launch import Launch
from tessera.lang.kernel.traced import kernel_of


def written_kernel(s: Step) -> Kernel | None:
    """The kernel of a step that calls one, as its author wrote it."""
    if not isinstance(s, HostCall) or s.node.op.call != "kernel":
        return None
    return kernel_of(s.node.params["program"])


def launch_of(s: HostCall, k: Kernel) -> Launch:
    """The launch of a hand-written kernel: its operands, and what it makes beside those it stores to."""
    updated = sum(m.writable for m in k.parameters[: len(s.operands)])
    return Launch(k, tuple(s.operands), tuple(s.results[updated:]))


def work_by_hand(k: Kernel, types: Sequence[TensorType], otherwise: Work) -> Work:
    """The work of a hand-written kernel on operands and results of these types."""
    sizes: dict[str, int] = {}
    for m, t in zip(k.parameters, types, strict=True):
        for d, n in zip(m.type.shape, t.shape, strict=True):
            if str(d) in k.sizes:
                sizes[str(d)] = int(n)
    if any(n not in sizes for n in k.sizes):
        return otherwise
    w = tile_work(k, sizes)
    return Work(w.flops, w.flops, w.bytes)
