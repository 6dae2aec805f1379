"""Eager code: an op outside a trace has the bits that it has in a compiled program.

Where bits cannot depend on who computes them (moves, whole numbers, correctly rounded scalar ops) the
NumPy reference runs: for small tensors nothing is faster.  Any other op is compiled as a program of its
own.  Its sizes are symbolic, so that one build serves all shapes of a rank; an elementwise op is
built for one axis and serves every rank.  An op that such a program would only hand to the host runs by
its reference at once.
"""

from __future__ import annotations

import importlib.util
import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from tessera.compile import compile_graph, compile_task
from tessera.compile.eager_loop import loop_kernel
from tessera.compile.executable import Executable
from tessera.compile.fallback import BY_REFERENCES, PlainExecutable, Task
from tessera.core.constraints import Scope, scope, solve
from tessera.core.deferred import Deferred
from tessera.core.device import GPUS, Device
from tessera.core.dims import symbol
from tessera.core.errors import (
    CompilerFault,
    NumericalError,
    OperandError,
    ShapeError,
    TesseraError,
)
from tessera.core.flags import flags
from tessera.core.observe import Observed
from tessera.core.primitives import is_open
from tessera.core.small_matrices import is_open as is_undecided
from tessera.core.types import TensorType
from tessera.ir.graph.interp import Kernel, kernel, reference, settled
from tessera.ir.graph.ir import (
    Builder,
    Graph,
    Node,
    bind,
    building,
    run_ops_by,
    run_ops_of_device_by,
)
from tessera.ir.graph.op import REGISTRY, Op, Params
from tessera.runtime import memory

Types = Sequence[TensorType]
_MOST = 4096  # programs that are kept before the memory of them starts anew


@cache
def has_compiler() -> bool:
    """Whether llvmlite is installed; says once what happens when it is not."""
    found = importlib.util.find_spec("llvmlite") is not None
    if not found:
        warnings.warn(
            "llvmlite is not installed: programs run by their NumPy references, with NumPy's speed "
            "and last bits; pip install llvmlite, or set TESSERA_TARGET=numpy",
            RuntimeWarning,
            stacklevel=2,
        )
    return found


def target_in_force() -> str:
    """What runs a program that does not say: the flag, unless there is no compiler."""
    target = flags().target
    return target if target == "numpy" or has_compiler() else "numpy"


def kernel_of(
    op: Op,
    types: Types,
    outs: Types,
    params: Params,
    regions: Sequence[Graph] = (),
    env: dict[str, int] | None = None,
) -> Kernel:
    """The function that runs an op on arrays of these static types."""
    compiles = target_in_force() != "numpy"
    if regions and compiles:
        if env:
            return kernel(op, types, outs, params, regions, env)
        return loop_kernel(op, types, outs, params, regions, lambda: bool(OPS.observers))
    if settled(op, types, outs) or all(0 in t.shape for t in outs):
        return _within_memory(op, types, outs, kernel(op, types, outs, params, regions, env))
    if compiles and REGISTRY.get(op.name) is op:  # others are made by a transform as it goes
        return _elementwise(op, types, outs, params) or _general(op, types, outs, params)
    return _hosted(op, types, outs, params, regions, env)


def _hosted(op: Op, types: Types, outs: Types, *given: Any) -> Kernel:
    """The reference, which strict numerics do not take."""
    if flags().numerics == "strict":
        raise _refusal(op)
    return _within_memory(op, types, outs, reference(op, types, outs, *given))


def _within_memory(op: Op, types: Types, outs: Types, run: Kernel) -> Kernel:
    """A reference that is not begun when its results would not find room."""
    free = op.view is not None or not types  # a view, and what is filled with one number
    size = 0 if free else sum(map(_bytes, outs))
    if size < memory.notable():
        return run

    def demanding(*xs: Any) -> Any:
        memory.demand(op.name, size)
        return run(*xs)

    return demanding


def _bytes(t: TensorType) -> int:
    shape: Any = t.shape
    return int(math.prod(shape, start=t.dtype.itemsize))


def _elementwise(op: Op, types: Types, outs: Types, params: Params) -> Kernel | None:
    """An op that works element by element, on its operands as rows."""
    if op.combine is not None or op.signature not in _POINTWISE:
        return None
    program = _program(op, [TensorType(t.dtype, (symbol("n"),)) for t in types], params)
    assert program is not None, f"{op.name} on {types} has no program"
    if program.alone:
        return _hosted(op, types, outs, params)
    shape, run = outs[0].shape, program.executable.run
    if len(shape) == 1:
        return lambda *xs: run(xs)[0]
    return lambda *xs: run([x.reshape(-1) for x in xs])[0].reshape(shape)


_POINTWISE = frozenset(f"{', '.join(['...'] * n)} -> ..." for n in range(1, 5))


def _general(op: Op, types: Types, outs: Types, params: Params) -> Kernel:
    program = _symbolic(op, types, outs, params)
    if program is None or program.hosted:  # what the host computes, the exact types decide
        program = _program(op, types, params)
        assert program is not None, f"{op.name} on {types} has no program"
    if program.alone:
        return _hosted(op, types, outs, params)
    if flags().numerics == "strict":
        refuse_hosted(program.executable)
    run = program.executable.run if op.small is None else _blaming_the_call(program.executable.run)
    return (lambda *xs: tuple(run(xs))) if op.multiple else (lambda *xs: run(xs)[0])


def _blaming_the_call(run: Callable[..., Any]) -> Callable[..., Any]:
    """A program of one op whose errors are of the line that calls it, not of the one that called it first."""

    def blaming(xs: Any) -> Any:
        try:
            return run(xs)
        except NumericalError as e:
            message = e.message
        raise NumericalError(message)

    return blaming


# Programs of one op


@dataclass(frozen=True)
class _OpProgram:
    """An op as a compiled program."""

    op: Op
    types: tuple[TensorType, ...]  # of its operands, which may be symbolic
    executable: Executable
    hosted: bool = field(init=False)  # whether a library on the host computes some of its bits
    alone: bool = field(init=False)  # whether all that it does is to call the host for this op

    def __post_init__(self) -> None:
        nodes = self.executable.host_nodes
        object.__setattr__(self, "hosted", any(_unsettled(n) for n in nodes))
        alone = len(self.executable.graph.nodes) == len(nodes) == 1 and nodes[0].op is self.op
        object.__setattr__(self, "alone", alone)

    def fits(self, types: Types, outs: Types) -> bool:
        """Whether it computes results of these types from operands of these."""
        g = self.executable.written  # as it was traced, with policies
        wanted: list[tuple[str, Any, Any]] = [
            (str(t), t.shape, actual.shape) for t, actual in zip(self.types, types, strict=True)
        ]
        try:
            sizes = solve(wanted, g.guards)
        except ShapeError:
            return False
        return [v.type.substitute(sizes) for v in g.outputs] == list(outs)


_PROGRAMS: dict[Any, _OpProgram | None] = {}


def _symbolic(op: Op, types: Types, outs: Types, params: Params) -> _OpProgram | None:
    """The program for all sizes; None when it cannot be, or does not serve these."""
    if any(0 in t.shape for t in types):  # a symbolic size is at least 1
        return None
    for freed in _FREED:
        program = _program(op, [freed(i, t) for i, t in enumerate(types)], params)
        if program is None or not program.fits(types, outs):
            return None
        # A primitive has an order of its own: what computes it must be that primitive for these sizes too.
        if not (is_open(op.call, program.types, params) or _may_be_small(op, program.types)):
            return program
    return None


def _may_be_small(op: Op, types: Types) -> bool:
    """Whether sizes that are symbols decide if the matrices of an op are small, and have kernels."""
    return op.small is not None and is_undecided(types[0])


_LETTERS = "abcdefghijklmnopqrstuvwxyz"


def _freed(i: int, t: TensorType, axes: int) -> TensorType:
    """The type of the i-th operand with names for the sizes of its first axes."""
    names = tuple(symbol(f"s{i}{_LETTERS[j]}") for j in range(axes))
    return t.with_shape((*names, *t.shape[axes:]))


# Which sizes a program of one op leaves open: all; those of the first axes; those of the first operand.
_FREED: tuple[Callable[[int, TensorType], TensorType], ...] = (
    lambda i, t: _freed(i, t, t.rank),
    lambda i, t: _freed(i, t, min(t.rank, 1)),
    lambda i, t: _freed(i, t, t.rank if i == 0 else 0),
)


def _program(op: Op, types: Types, params: Params) -> _OpProgram | None:
    """The program of one op; None when sizes that are symbolic must be known."""
    # The text of a number tells 0.0 from -0.0, and 1 from True.
    key = (op, *types, *((k, repr(v)) for k, v in params.items()), flags().verify)
    key = (*key, flags().numerics == "fast")
    if key not in _PROGRAMS:
        if len(_PROGRAMS) >= _MOST:
            _PROGRAMS.clear()
        _PROGRAMS[key] = _built(op, types, params)
    return _PROGRAMS[key]


def _built(op: Op, types: Types, params: Params) -> _OpProgram | None:
    try:
        return _OpProgram(op, *_compiled(op, types, params))
    except CompilerFault:
        raise
    except TesseraError:
        if all(t.static for t in types):
            raise
        return None


def _compiled(op: Op, types: Types, params: Params) -> tuple[tuple[TensorType, ...], Executable]:
    """An op compiled for operands of these types; sizes that must be equal get one name."""
    while True:
        facts = Scope()
        with scope(facts), building(Builder()) as b:
            out = bind(op, *[b.input(t) for t in types], **params)
            g, _ = b.finish(out if op.multiple else (out,), op.name, facts.guards)
        if not facts.equal:
            with scope(Scope()):  # what is known where the op is called says nothing of its program
                made = compile_task(*_alone(g))
                made.forget_levels()  # no public call shows the program of a single op, and there are many
                return tuple(types), made
        types = [t.with_shape(tuple(facts.normal(s) for s in t.shape)) for t in types]


_interpreted = Deferred("tessera.compile.interpreted:InterpretedExecutable")


def _alone(g: Graph) -> tuple[Any, ...]:
    """The task of a program of one op, and how it runs where the compiler fails."""
    task = Task(g, "cpu", flags().numerics)

    def interpreted() -> Executable:
        made: Executable = _interpreted(g, task)
        return made

    return (
        task,
        ("by the Schedule interpreter, slowly, with the same bits", interpreted),
        (BY_REFERENCES, lambda: Executable(g, ())),
    )


# What strict numerics refuse


def hosted_nodes(e: Executable) -> Iterator[Node]:
    """The nodes of a program whose bits a library on the host decides."""
    for n in e.host_nodes:
        if isinstance(e, PlainExecutable):  # every op by itself, as eager code runs it
            yield from _hosted_inside(n, False)
        elif n.regions:
            for m in (m for r in n.regions for m in r.nodes):
                yield from _hosted_inside(m, type(e) is Executable)
        elif _unsettled(n) and not is_open(n.op.call, n.types, n.params):
            yield n


def _hosted_inside(n: Node, by_reference: bool) -> Iterator[Node]:
    """The same for a node of a region, which runs as eager code does."""
    if n.regions:
        for m in (m for r in n.regions for m in r.nodes):
            yield from _hosted_inside(m, by_reference)
    elif _unsettled(n):
        program = None if by_reference else _program(n.op, n.types, n.params)
        if program is None:
            yield n
        else:
            yield from hosted_nodes(program.executable)


def _unsettled(n: Node) -> bool:
    return bool(n.regions) or not settled(n.op, n.types, [v.type for v in n.results])


def refuse_hosted(e: Executable) -> None:
    """Raise when a program has bits that other machines need not share."""
    for n in hosted_nodes(e):
        raise _refusal(n.op).at(n.location)


def _refusal(op: Op) -> OperandError:
    return OperandError(
        f"{op.name}: numerics 'strict' needs the same bits on every machine, but this op runs on the "
        "host in NumPy, SciPy or LAPACK; use 'deterministic'"
    )


def _observed_kernel_of(op: Op, *given: Any) -> Kernel:
    kernel: Kernel = kernel_of(op, *given)
    for observer in OPS.observers:
        kernel = observer(op, kernel)
    return kernel


def _choose_kernels() -> None:
    run_ops_by(_observed_kernel_of if OPS.observers else kernel_of)


# (the op, what runs it) -> what runs it while it is observed
OPS: Observed[Callable[[Op, Kernel], Kernel]] = Observed(
    "ops", "single ops of eager code", changed=_choose_kernels
)


def _on_gpu(
    device: Device, op: Op, types: Types, params: Params, regions: Sequence[Graph] = (),
    repeated: Sequence[int] = (),
) -> Kernel:  # fmt: skip
    """An op as a program of a GPU or a mesh; operands that are repeated come as one number."""
    with scope(Scope()), building(Builder()) as b:
        inputs = [
            bind(REGISTRY["broadcast_to"], b.input(t.with_shape(())), shape=t.shape)
            if i in repeated
            else b.input(t)
            for i, t in enumerate(types)
        ]
        out = bind(op, *inputs, regions=tuple(regions), **params)
        g, _ = b.finish(out if op.multiple else (out,), op.name)
    with scope(Scope()):
        run = compile_graph(g, str(device)).run
    return (lambda *xs: tuple(run(xs))) if op.multiple else (lambda *xs: run(xs)[0])


run_ops_by(kernel_of)
for _kind in (*GPUS, "mesh"):
    run_ops_of_device_by(_kind, _on_gpu)
