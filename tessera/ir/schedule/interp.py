"""The Schedule interpreter: each stage on grids of its indices, every access checked.

A fold runs in the order of core/folds.py: in lanes when the stage has no column beside the reduced
axis, as a chain for each column otherwise, and a contraction by fused multiply-adds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from tessera.core.constraints import solve
from tessera.core.dims import Apply as SizeApply
from tessera.core.dims import Size, Symbol, substitute
from tessera.core.errors import VerifyError
from tessera.core.evaluate import cast, identity, scalar
from tessera.core.folds import contract, fold_chain, fold_lanes
from tessera.core.primitives import PRIMITIVES
from tessera.ir.graph.interp import kernel as host_kernel
from tessera.ir.graph.ir import Graph, substitute_params
from tessera.ir.schedule.ir import (
    Apply,
    Axis,
    Cast,
    Group,
    HostCall,
    Kernel,
    Literal,
    Position,
    Primitive,
    Program,
    Read,
    Stage,
    Step,
    Term,
)
from tessera.ir.schedule.lower import lower

Array = np.ndarray[Any, np.dtype[Any]]
Env = Mapping[str, Any]  # sizes as numbers, axes as arrays of their indices


def interpret(program: Program, inputs: Sequence[Array]) -> list[Array]:
    """The outputs of a program; captured tensors need not be given."""
    arrays = arguments(program, inputs)
    return _run(program, arrays, sizes_of(program, arrays))


def _run(program: Program, arrays: Sequence[Array], sizes: Mapping[str, int]) -> list[Array]:
    memory = dict(zip(program.inputs, arrays, strict=True))
    for step in program.steps:
        memory |= run_step(step, memory, sizes)
    return [memory[name] for name in program.outputs]


def arguments(program: Program, inputs: Sequence[Array]) -> list[Array]:
    """The inputs and the captured tensors."""
    return [*inputs, *(v.storage for v in program.captured)]


def sizes_of(program: Program, arrays: Sequence[Array]) -> dict[str, int]:
    """The symbols of a program at the sizes of its arguments."""
    shapes = [
        (name, program.buffers[name].type.shape, np.shape(x))
        for name, x in zip(program.inputs, arrays, strict=True)
    ]
    return solve(shapes, program.guards)


def run_step(step: Step, memory: Mapping[str, Array], sizes: Mapping[str, int]) -> dict[str, Array]:
    """What a step writes, from what is in memory before it."""
    with np.errstate(all="ignore"):
        if isinstance(step, HostCall):
            return _host(step, memory, sizes)
        if isinstance(step, Primitive):
            return _primitive(step, memory, sizes)
        return (
            _group(step, memory, sizes) if isinstance(step, Group) else _kernel(step, memory, sizes)
        )


def _group(g: Group, memory: Mapping[str, Array], sizes: Mapping[str, int]) -> dict[str, Array]:
    known = dict(memory)
    for k in g.kernels:
        known |= _kernel(k, known, sizes)
    return {name: known[name] for name in g.outputs}


def _host(
    step: HostCall, memory: Mapping[str, Array], sizes: Mapping[str, int]
) -> dict[str, Array]:
    n = step.node
    types = [v.type.substitute(sizes) for v in n.operands]
    outs = [v.type.substitute(sizes) for v in n.results]
    params = substitute_params(n.params, sizes)
    if n.regions:
        assert n.op.numpy is not None, n
        regions = tuple(_Region(r, sizes) for r in n.regions)
        run: Callable[..., Any] = partial(n.op.numpy, regions=regions, **params)
    else:
        run = host_kernel(n.op, types, outs, params)
    made = run(*(memory[name] for name in step.operands))
    return dict(zip(step.results, made if n.op.multiple else (made,), strict=True))


class _Region:
    """A region as a program, at the sizes of a call."""

    def __init__(self, g: Graph, sizes: Mapping[str, int]):
        self._program, self._sizes = lower(g), sizes
        self.types = [v.type.substitute(sizes) for v in g.outputs]

    def __call__(self, *xs: Array) -> list[Array]:
        return _run(self._program, arguments(self._program, xs), self._sizes)


def _primitive(
    step: Primitive, memory: Mapping[str, Array], sizes: Mapping[str, int]
) -> dict[str, Array]:
    run = PRIMITIVES[step.primitive].evaluate
    made = run([memory[name] for name in step.own], substitute_params(step.params, sizes))
    if step.epilogue is None:
        return dict(zip(step.results, made, strict=True))
    return _kernel(step.epilogue, {**memory, step.made: made[0]}, sizes)


def _kernel(k: Kernel, memory: Mapping[str, Array], sizes: Mapping[str, int]) -> dict[str, Array]:
    known = dict(memory)
    for s in k.stages:
        known[s.name] = _stage(s, k, known, sizes)
    return {name: known[name] for name in k.outputs}


def _stage(s: Stage, k: Kernel, memory: Mapping[str, Array], sizes: Mapping[str, int]) -> Array:
    axes = (*s.axes, *s.reduced)
    shape = [_number(a.size, sizes) for a in axes]
    if 0 in shape:
        start = 0 if s.combine is None else identity(s.combine, s.dtype)
        return np.full(shape[: len(s.axes)], start, s.dtype.np)
    here = _Evaluation(memory, _grids(axes, shape, sizes))
    if s.combine is None:
        return np.array(np.broadcast_to(here.term(s.term), shape))
    (_,) = s.reduced
    if k.contracts and s is k.stages[0]:
        return contract(*(np.broadcast_to(here.term(t), shape) for t in s.term.children()))
    x = np.broadcast_to(here.term(s.term), shape)
    order = fold_lanes if len(s.axes) == k.rows else fold_chain
    return np.asarray(order(s.combine, x, identity(s.combine, s.dtype)))


def _grids(axes: Sequence[Axis], shape: Sequence[int], sizes: Mapping[str, int]) -> Env:
    lines = np.ix_(*map(np.arange, shape)) if axes else ()
    return {**sizes, **{a.name: g for a, g in zip(axes, lines, strict=True)}}


def _number(x: Size, sizes: Mapping[str, int]) -> int:
    n = substitute(x, sizes)
    assert isinstance(n, int), f"{x} has no value in {dict(sizes)}"
    return n


_SIZE_FUNCTIONS: dict[str, Callable[[Any, Any], Any]] = {
    "//": np.floor_divide,
    "%": np.remainder,
    "max": np.maximum,
    "min": np.minimum,
}


def places(x: Size, env: Env) -> Any:
    """The values of an index where its axes are arrays."""
    if isinstance(x, int):
        return x
    total: Any = 0
    for monomial, factor in x.terms:
        term: Any = factor
        for atom, power in monomial:
            term = term * _atom(atom, env) ** power
        total = total + term
    return total


def _atom(atom: Symbol | SizeApply, env: Env) -> Any:
    if isinstance(atom, Symbol):
        return env[atom.name]
    return _SIZE_FUNCTIONS[atom.function](places(atom.left, env), places(atom.right, env))


class _Evaluation:
    """Terms as arrays over the grid of a stage."""

    def __init__(self, memory: Mapping[str, Array], env: Env):
        self.memory, self.env = memory, env

    def term(self, t: Term) -> Array:
        match t:
            case Literal():
                return cast(np.asarray(t.value), t.dtype)
            case Position():
                return np.asarray(places(t.value, self.env), t.dtype.np)
            case Cast():
                return cast(self.term(t.operand), t.dtype)
            case Apply():
                return scalar(t.scalar, [self.term(o) for o in t.operands], t.dtype)
            case Read():
                return self.read(t)
        raise AssertionError(t)

    def read(self, r: Read) -> Array:
        data = self.memory[r.source]
        index = [
            self.term(i) if isinstance(i, Term) else np.asarray(places(i, self.env))
            for i in r.index
        ]
        for axis, (i, n) in enumerate(zip(index, data.shape, strict=True)):
            if i.min() < 0 or i.max() >= n:
                raise VerifyError(
                    f"read {r}: elements {i.min()} to {i.max()} lie outside axis {axis} of size {n}"
                )
        return np.asarray(data[tuple(index)])
