"""Collectives between ranks that run on GPUs: local parts are programs of the device, exchanges an engine's.

An engine that moves memory of such devices itself (NCCL) does so on their stream, and nothing waits.  For
every other engine what is exchanged goes by pinned memory of the host.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import accumulate, pairwise
from math import prod
from typing import Any

import numpy as np

from tessera.compile import compile_graph
from tessera.core.errors import TesseraError
from tessera.core.ranks import engine
from tessera.core.types import TensorType
from tessera.ir.graph.ir import Graph, substitute_params
from tessera.ir.schedule.ir import HostCall
from tessera.ops.rank_stages import STAGES, RankStage, RankStages, stages_of
from tessera.runtime.cuda.device import Gpu
from tessera.runtime.cuda.memory import DeviceArray, empty
from tessera.runtime.gpu.control import Run

Local = Callable[[DeviceArray], DeviceArray] | None  # a program, if there is something to do


def is_collective(s: HostCall) -> bool:
    """Whether a step is a collective between ranks."""
    return s.node.op in STAGES


def collective(
    s: HostCall, types: Mapping[str, TensorType], sizes: Mapping[str, int], place: Gpu
) -> tuple[Run, int]:
    """What runs a collective on arrays of a device, and the bytes that it takes meanwhile."""
    (operand,), (result,) = s.operands, s.results
    params = substitute_params(s.node.params, sizes)
    plan = stages_of(s.node.op, types[operand], params)
    shape = tuple(int(n) for n in types[result].shape)
    programs = [(_program(x.pack, place), _program(x.unpack, place)) for x in plan.stages]
    run = partial(_run, plan, programs, shape, place, s)
    size = types[operand].dtype.np.itemsize
    return run, max(size * _elements(x) for x in plan.stages)


def _elements(x: RankStage) -> int:
    """The elements that a stage has packed, received and made."""
    packed = 0 if x.pack is None else sum(n for _, n in x.parts)
    made = 0 if x.unpack is None else prod(int(n) for n in x.unpack.outputs[0].shape)
    return packed + sum(x.counts) + made


def _program(g: Graph | None, place: Gpu) -> Local:
    if g is None:
        return None
    run: Any = compile_graph(g, f"{place.kind}:{place.index}").run
    seen = g.inputs[0].type.dtype.np
    return lambda x: run([x.view(seen)])[0].view(x.dtype)


def _run(
    plan: RankStages, programs: Sequence[tuple[Local, Local]], shape: tuple[int, ...], place: Gpu,
    s: HostCall, xs: Sequence[DeviceArray],
) -> list[DeviceArray]:  # fmt: skip
    (x,) = xs
    try:
        if plan.loose and x.size:
            out = empty(shape, x.dtype, place)
            if engine().sum_on_device(plan.what, plan.group, x, out):
                return [out]
        for stage, (pack, unpack) in zip(plan.stages, programs, strict=True):
            sent = x if pack is None else pack(x)
            got = empty((sum(stage.counts),), x.dtype, place)
            _exchange(plan, stage, sent, got, place)
            x = got if unpack is None else unpack(got)
    except TesseraError as e:
        raise e.at(s.node.location) from None
    if x.size == prod(shape):
        return [x.reshape(shape)]
    assert not x.size, (x, shape)  # a permutation that brings nothing here
    nothing = empty(shape, x.dtype, place)
    nothing.memset()
    return [nothing]


def _exchange(
    plan: RankStages, stage: RankStage, sent: DeviceArray, got: DeviceArray, place: Gpu
) -> None:
    """Send the parts of an array and fill another with what comes."""
    e = engine()
    if e.carries == place.kind:
        e.move(plan.what, plan.group, sent, stage.parts, got, stage.counts)
        return
    held = sent.numpy().reshape(-1)
    parts = [held[begin : begin + n] for begin, n in stage.parts]
    came: np.ndarray[Any, Any] = np.empty((got.size,), got.dtype)
    places = pairwise(accumulate(stage.counts, initial=0))
    for (begin, end), y in zip(places, e.exchange(plan.what, plan.group, parts), strict=True):
        came[begin:end] = y
    got.fill(came)
