"""offload: where a program writes values out to the host and reads them back, beside its kernels.

    h1 = f(x); put(h1); h2 = f(h1); put(h2); ...; get(h2); g(h2); get(h1); g(h1)
->  h1 = f(x); begin h1 out; h2 = f(h1); begin h2 out, h1 is out; ...
    begin h2 back, begin h1 back, h2 is back; g(h2); h1 is back; g(h1)

A value that is written out keeps its place until the copy is over, and one that is read back has its place
from when the copy begins: the memory plan knows both by the buffers that the steps name.  So many bytes are
on their way at once as two values of the largest size have.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from tessera.compile.gpu.image import GpuCall
from tessera.core.types import TensorType
from tessera.ir.schedule.ir import HostCall
from tessera.ir.schedule.memory import StepAccess, size_of
from tessera.ops import offload
from tessera.runtime.gpu.control import Run
from tessera.runtime.gpu.host_copies import Get, Put

_AHEAD = 2  # values of the largest size that may be on their way in one direction


# What a step does to memory, and a launch, a copy, or what runs on the host (nothing does offline).
Step = tuple[StepAccess, GpuCall | Put | Get | Run | None]


def is_move(s: HostCall) -> bool:
    """Whether a step writes a value out or reads it back."""
    return s.node.op in (offload.PUT, offload.GET)


def move_of(access: StepAccess, s: HostCall) -> tuple[StepAccess, Put | Get]:
    """The step by itself, under a name of its own."""
    if s.node.op is offload.PUT:
        (value,), (number,) = s.operands, s.results
        return replace(access, name=f"offload_put_{number}"), Put(value)
    (number,), (value,) = s.operands, s.results
    return replace(access, name=f"offload_get_{value}", host=False), Get(value)


def beside(
    steps: Sequence[Step], types: Mapping[str, TensorType], root: Callable[[str], str]
) -> list[Step]:
    """The steps, with values that keep their places while they are copied beside the kernels."""
    out = list(steps)
    _finish_puts(out, types)
    _begin_gets(out, types, root)
    return out


def _finish_puts(steps: list[Step], types: Mapping[str, TensorType]) -> None:
    """Say at which later step the copy of each value that is written out must be over."""
    moves = [(i, a, c) for i, (a, c) in enumerate(steps) if isinstance(c, Put | Get)]
    puts = [size_of(types[c.value]) for _, _, c in moves if isinstance(c, Put)]
    room = _AHEAD * max(puts, default=0)
    waiting: deque[str] = deque()
    for i, access, c in moves:
        over: list[str] = []
        if isinstance(c, Get) or i == moves[-1][0]:
            over = [*waiting, c.value] if isinstance(c, Put) else list(waiting)
            waiting.clear()
        else:
            size = size_of(types[c.value])
            while waiting and size + sum(size_of(types[n]) for n in waiting) > room:
                over.append(waiting.popleft())
            if c.value in waiting:  # the same value twice
                waiting.remove(c.value)
                over.append(c.value)
            waiting.append(c.value)
        reads = (*access.reads, *(n for n in over if n not in access.reads))
        steps[i] = replace(access, reads=reads), replace(c, over=tuple(over))


def _begin_gets(
    steps: list[Step], types: Mapping[str, TensorType], root: Callable[[str], str]
) -> None:
    """Say at which earlier step each value begins to be read back."""
    found = [(i, a, c) for i, (a, c) in enumerate(steps) if isinstance(c, Get)]
    gets = deque((i, a.reads[0], c.value) for i, a, c in found)
    made = {n: i for i, (a, _) in enumerate(steps) for n in a.writes}
    room = _AHEAD * max((size_of(types[value]) for _, _, value in gets), default=0)
    ahead: deque[tuple[int, int]] = deque()  # steps whose values are on their way, and their bytes
    for i, access, c in found:
        begins: list[tuple[str, str]] = []
        if ahead:
            ahead.popleft()  # its own
        while gets:
            k, number, value = gets[0]
            size = size_of(types[value])
            full = size + sum(n for _, n in ahead) > room
            if k != i and (full or made.get(root(number), -1) >= i):
                break
            gets.popleft()
            begins.append((number, value))
            if k != i:
                ahead.append((k, size))
        numbers = (n for n, _ in begins if n not in access.reads)
        values = (v for _, v in begins if v not in access.writes)
        grown = replace(access, reads=(*access.reads, *numbers), writes=(*access.writes, *values))
        steps[i] = grown, replace(c, begins=tuple(begins))
