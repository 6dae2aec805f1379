"""Lowerings of what only a GPU has as one step: attention, kernels of the user, updates, products that
share a launch.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tessera.ir.schedule.device_steps import Placed
from tessera.ir.schedule.ir import HostCall, Kernel
from tessera.ir.schedule.thin_products import Thin
from tessera.ir.tile.gpu import attention_launches
from tessera.ir.tile.gpu.attention import AttentionProblem
from tessera.ir.tile.gpu.contraction import side_by_side
from tessera.ir.tile.gpu.thin import ThinWriter
from tessera.ir.tile.gpu.update import update
from tessera.ir.tile.gpu.written import written, written_threads
from tessera.ir.tile.launch import Expansion, Launch, Threads
from tessera.ir.tile.text import parse_kernel
from tessera.ir.tile.unit import Unit


@dataclass(frozen=True)
class Attention:
    """An attention, or its derivative, on buffers of the program."""

    problem: AttentionProblem
    operands: tuple[str, ...]
    results: tuple[str, ...]
    logs: str  # what the attention says of its rows
    delta: str = ""  # of the derivative
    again: str = ""  # where the derivative computes the attention once more


@dataclass(frozen=True)
class Written:
    """A kernel that the user wrote, on buffers of the program."""

    call: HostCall
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


def lower_attention(u: Unit, roles: bool) -> Unit:
    """An attention becomes one kernel, or two where its keys are taken in parts, its derivative three."""
    s = u.step
    if u.made is not None or not isinstance(s, Attention):
        return u
    if not s.delta:
        launches, between = attention_launches.forward(
            s.problem, s.operands, s.results[0], s.logs, roles
        )
        return u.lowered(Expansion(tuple(launches), between), "attention")
    launches, between = [], {}
    if s.again:
        p = s.problem
        plain = replace(p, columns=tuple(c for c in p.columns if c[0] != "o"))
        launches, between = attention_launches.forward(
            plain, s.operands[:3], s.again, s.logs, roles
        )
    launches += attention_launches.backward(
        s.problem, s.operands, s.results, s.logs, s.delta, roles
    )
    return u.lowered(Expansion(tuple(launches), between), "attention")


def lower_written(u: Unit) -> Unit:
    """A kernel of the user's becomes one that a GPU can run."""
    s = u.step
    if u.made is not None or not isinstance(s, Written):
        return u
    k = written(parse_kernel(s.call.node.params["program"]))
    threads = written_threads(k, s.call.node.params.get("threads"))
    launch = Launch(k, s.inputs, s.outputs, threads)
    return u.lowered(Expansion((launch,)), "written")


def lower_update(u: Unit) -> Unit:
    """Updates of small parts become one kernel that writes them where they lie."""
    if u.made is not None or not isinstance(u.step, Placed):
        return u
    kernel, given = update(u.step.updates, u.types)
    return u.lowered(Expansion((Launch(kernel, tuple(given), (), Threads(4)),)), "update")


def lower_grouped_gemms(u: Unit) -> Unit:
    """Products that share a launch become one kernel, whose blocks each compute a block of one of them."""
    if u.made is not None or not isinstance(u.step, tuple):
        return u
    kernels: tuple[Kernel, ...] = u.step
    kernel, threads = side_by_side(kernels, [u.types] * len(kernels))
    inputs = tuple(m.name for m in kernel.parameters if not m.writable)
    outputs = tuple(m.name for m in kernel.parameters if m.writable)
    return u.lowered(Expansion((Launch(kernel, inputs, outputs, threads),)), "products")


def lower_gemv(u: Unit) -> Unit:
    """A product with a vector becomes a stream of the matrix past blocks that make the vector."""
    if u.made is not None or not isinstance(u.step, Thin):
        return u
    w, k = ThinWriter(u.step, u.types), u.step.kernel
    launch = Launch(w.kernel(), tuple(k.inputs()), k.outputs, w.threads)
    return u.lowered(Expansion((launch,)), "thin")
