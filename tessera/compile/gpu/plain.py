"""What runs a program of a GPU when the compiler fails: op by op on the device, or on the host."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from tessera.compile.executable import Executable, PassResult
from tessera.compile.fallback import BY_OPS, Task, Way
from tessera.core.device import Device
from tessera.ir.graph.interp import execute
from tessera.ir.graph.ir import Graph, device_kernel
from tessera.ir.graph.op import Op, Params
from tessera.runtime.cuda.device import Gpu, gpu
from tessera.runtime.cuda.memory import to_device

ON_THE_HOST = "on the host, where its operands travel"


class PlainOnGpu(Executable):
    """A graph as it was traced, each op by itself on the device."""

    def __init__(self, graph: Graph, record: Sequence[PassResult], place: Device):
        self.kernel_of = partial(_kernel, place)
        super().__init__(graph, record)

    def run(self, inputs: Sequence[Any], donated: frozenset[int] = frozenset()) -> list[Any]:
        """The outputs for these inputs; the memory of those that are donated is not used."""
        return super().run(inputs)


def _kernel(
    place: Device, op: Op, types: Any, outs: Any, params: Params, regions: Any, env: Any
) -> Any:
    return device_kernel(place, op, types, params, regions)


class OnTheHost(Executable):
    """A graph that the host runs op by op; what it makes goes to the device."""

    def __init__(self, graph: Graph, record: Sequence[PassResult], place: Gpu):
        self.graph, self.record, self.gpu = graph, tuple(record), place

    def run(self, inputs: Sequence[Any], donated: frozenset[int] = frozenset()) -> list[Any]:
        """The outputs for these inputs; the memory of those that are donated is not used."""
        here = [x if isinstance(x, np.ndarray) else x.numpy() for x in inputs]
        made = execute(self.graph, here)
        return [to_device(np.asarray(y, order="C"), self.gpu) for y in made]


def plain_ways(task: Task) -> tuple[Way[Executable], ...]:
    """How a program runs on a device without the whole of the compiler; for an architecture there is
    nothing to run.
    """
    kind, _, which = task.target.partition(":")
    if not (which or "0").isdecimal():
        return ()
    index = int(which or 0)
    g, record = task.program, (PassResult("trace", 0.0, task.program),)
    by_ops = (BY_OPS, lambda: PlainOnGpu(g, record, Device(kind, index)))
    here = (ON_THE_HOST, lambda: OnTheHost(g, record, gpu(index, kind)))
    return (by_ops, here) if len(g.nodes) > 1 else (here,)  # one op is by itself already
