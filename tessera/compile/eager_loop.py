"""Eager loops: a scan or a while loop of many steps runs as one compiled program.

Step by step each op of the body is a call from Python.  A program has the same bits (the law of bits), and
costs as much to build as some thousand steps take.  So the steps of equal loops are counted: loops of equal
bodies, types and sizes are one, whatever tensors they capture, for those are operands.  A loop that comes
again is compiled past `_AGAIN` steps, one that goes on in the same call past `_LONG`, from that step on.

A body with effects or functions of the user's always runs step by step, and so does one that checks or
observers look at.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from tessera.compile import compile_task
from tessera.compile.executable import Executable
from tessera.compile.fallback import BY_OPS, Task
from tessera.core.constraints import Scope, scope
from tessera.core.flags import flags
from tessera.core.types import TensorType
from tessera.ir.graph.interp import Kernel, Region, kernel
from tessera.ir.graph.ir import Array, Builder, Graph, Node, bind, building, eager_kernel
from tessera.ir.graph.numbers import check_numbers, checking
from tessera.ir.graph.op import Op, Params

Types = Sequence[TensorType]
# A step of some ops takes 10 to 40 us, and its program 30 to 150 ms to build (measured on an x86 processor
# of 2 cores).  A loop that never comes again, as one with another number in its body each time, is built
# only where it takes longer itself.
_AGAIN, _LONG = 512, 4096
_MOST = 1024  # loops that are known before the memory of them starts anew
_LOOPS = frozenset(("scan", "while"))


@dataclass
class _Loop:
    """Equal loops: how many steps they took, and their program once there is one."""

    steps: int = 0
    calls: int = 0
    program: Executable | None = None
    is_left: bool = False  # no program runs it


_KNOWN: dict[Any, _Loop] = {}


def loop_kernel(
    op: Op, types: Types, outs: Types, params: Params, regions: Sequence[Graph],
    is_watched: Callable[[], bool],
) -> Kernel:  # fmt: skip
    """The function that runs an op with regions on arrays of these static types."""
    by_steps = kernel(op, types, outs, params, regions)
    if op.control not in _LOOPS or not all(map(_is_plain, _nodes(regions))):
        return partial(_looked_at, by_steps)
    build = partial(_built, op, tuple(types), params, tuple(regions))
    find = partial(_known, op, types, params, regions)
    run = (
        _while(regions, find, build)
        if op.control == "while"
        else _scan(params, by_steps, find, build)
    )

    def choose(*xs: Array) -> Any:
        if flags().checked or checking() or is_watched():
            return _looked_at(by_steps, *xs)
        return run(*xs)

    return choose


def _looked_at(by_steps: Kernel, *xs: Array) -> Any:
    """A loop step by step; under ts.checked() each number in it is looked at."""
    if not flags().checked or checking():
        return by_steps(*xs)
    with check_numbers(False, "checked"):
        return by_steps(*xs)


def _scan(
    params: Params, by_steps: Kernel, find: Callable[[], _Loop], build: Callable[[], Executable | None]
) -> Kernel:  # fmt: skip
    def run(*xs: Array) -> Any:
        loop = find()
        loop.calls += 1
        if _has_program(loop, params["length"], build):
            assert loop.program is not None, "a program that was just built"
            return tuple(loop.program.run(xs))
        return by_steps(*xs)

    return run


def _while(
    regions: Sequence[Graph], find: Callable[[], _Loop], build: Callable[[], Executable | None]
) -> Kernel:  # fmt: skip
    test, body = (Region(r, None, eager_kernel) for r in regions)
    n = len(body.types)

    def run(*xs: Array) -> Any:
        loop, carry, outer = find(), list(xs[:n]), xs[n:]
        loop.calls += 1
        while not _has_program(loop, 1, build):
            if not test(*carry, *outer)[0]:
                return tuple(carry)
            carry = body(*carry, *outer)
        assert loop.program is not None, "a program that was just built"
        return tuple(loop.program.run([*carry, *outer]))

    return run


def _has_program(loop: _Loop, steps: int, build: Callable[[], Executable | None]) -> bool:
    """Whether a loop that takes so many steps more runs as a program, which is built when it is due."""
    if loop.program is not None or loop.is_left:
        return loop.program is not None
    loop.steps += steps
    due = loop.steps >= (_AGAIN if loop.calls > 1 else _LONG)
    if not due and flags().numerics != "fast":  # whose bits are a program's from the first call on
        return False
    loop.program = build()
    loop.is_left = loop.program is None
    return not loop.is_left


def _known(op: Op, types: Types, params: Params, regions: Sequence[Graph]) -> _Loop:
    """The loop that equals this one; the lines of its body are those that its errors name."""
    mode = flags()
    key = (
        op, tuple(types), tuple((k, repr(v)) for k, v in params.items()), tuple(r.text for r in regions),
        tuple(n.location for n in _nodes(regions)), mode.numerics, mode.verify,
    )  # fmt: skip
    found = _KNOWN.get(key)
    if found is None:
        if len(_KNOWN) >= _MOST:
            _KNOWN.clear()
        found = _KNOWN[key] = _Loop()
    return found


def _nodes(regions: Sequence[Graph]) -> Iterator[Node]:
    """All nodes of regions, those inside their own regions too."""
    for r in regions:
        for n in r.nodes:
            yield n
            yield from _nodes(n.regions)


def _is_plain(n: Node) -> bool:
    """Whether a node does nothing but compute, and its text says all that it computes."""
    effects = n.op.effects - {"random"}
    return not effects and not any(callable(x) for x in n.params.values())


def _built(op: Op, types: Types, params: Params, regions: tuple[Graph, ...]) -> Executable | None:
    """The program of a loop; None where the compiler fails, and where strict numerics may refuse it."""
    with scope(Scope()), building(Builder()) as b:
        out = bind(op, *[b.input(t) for t in types], regions=regions, **params)
        g, _ = b.finish(out, op.name)
    with scope(Scope()):
        made = compile_task(
            Task(g, "cpu", flags().numerics), (BY_OPS, lambda: Executable(Graph((), (), ()), ()))
        )
    if type(made) is Executable or (made.host_nodes and flags().numerics == "strict"):
        return None  # step by step, where strict numerics refuse the op whose bits are not settled
    made.forget_levels()
    return made
