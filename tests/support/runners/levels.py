"""One program at every level of the compiler, for the law that all of them give the same bits."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from tessera.compile import LOOP_PASSES, PASSES
from tessera.core.dims import substitute
from tessera.core.dtype import DType, as_dtype, bool_
from tessera.core.evaluate import cast, identity, scalar
from tessera.core.folds import contract, fold
from tessera.core.primitives import PRIMITIVES, is_primitive
from tessera.core.scalar import REINTERPRETS, TESTS, Expr
from tessera.core.types import TensorType
from tessera.ir.graph.interp import kernel, wide
from tessera.ir.graph.ir import Graph, Node, substitute_params
from tessera.ir.schedule import interp as schedule_interp
from tessera.ir.schedule.ir import HostCall, Kernel, Program, Step
from tessera.ir.schedule.lower import lower
from tessera.ir.schedule.nests.nest import Nest
from tessera.ir.target.cpu.program import program as target_program
from tessera.ir.tile import interp as tile_interp
from tessera.ir.tile import ir as tile
from tessera.ir.tile.cpu import lower as tile_lower
from tessera.ir.tile.launch import Expansion, Launch
from tessera.runtime.code import load
from tessera.runtime.kernel import CompiledKernel, source_of

Run = Callable[[tile.Kernel, Sequence[Any], Mapping[str, int]], None]


def prepared(g: Graph) -> Graph:
    """g after the passes that come before Schedule IR."""
    for p in (*PASSES, *LOOP_PASSES):
        g = p.run(g)
    return g


def by_schedule(p: Program, inputs: Sequence[Any]) -> list[Any]:
    """The outputs by the Schedule interpreter."""
    return schedule_interp.interpret(p, inputs)


def by_tile(
    p: Program, inputs: Sequence[Any], expansions: Sequence[Expansion] | None = None
) -> list[Any]:
    """The outputs when kernels run by the Tile interpreter."""
    return _by_kernels(p, inputs, tile_interp.interpret, expansions)


def by_llvm(p: Program, inputs: Sequence[Any]) -> list[Any]:
    """The outputs when kernels run as machine code."""
    return _by_kernels(p, inputs, run_llvm)


def by_runtime(p: Program, inputs: Sequence[Any]) -> list[Any]:
    """The outputs when kernels run as the runtime runs them, from the store of compiled code."""
    return Runtime().run(p, inputs)


class Runtime:
    """Runs the schedules of one program as the runtime does; a step is lowered once for a nest.

    What has no nest is lowered once for each `variant`, by which a test says what it changed meanwhile.
    """

    def __init__(self) -> None:
        self.variant = 0
        self.expansions: dict[tuple[str, Nest | int | None], Expansion] = {}
        self.compiled: dict[int, tuple[tile.Kernel, CompiledKernel]] = {}

    def run(self, p: Program, inputs: Sequence[Any]) -> list[Any]:
        types = {name: b.type for name, b in p.buffers.items()}
        made = []
        for s in p.steps:
            if isinstance(s, HostCall):
                continue
            key = s.name, s.nest if isinstance(s, Kernel) else self.variant
            if key not in self.expansions:
                self.expansions[key] = tile_lower.expand(s, types)
            made.append(self.expansions[key])
        return _by_kernels(p, inputs, self.launch, made)

    def launch(self, k: tile.Kernel, arrays: Sequence[Any], sizes: Mapping[str, int]) -> None:
        if id(k) not in self.compiled:
            self.compiled[id(k)] = k, CompiledKernel(target_program(k))
        self.compiled[id(k)][1].run(arrays, sizes)


def kernels(p: Program) -> Iterator[tuple[Step, tile.Kernel]]:
    """The Tile programs of a program, each with its step."""
    steps = [s for s in p.steps if not isinstance(s, HostCall)]
    for s, e in zip(steps, expanded(p), strict=True):
        for launch in e.launches:
            yield s, launch.kernel


def expanded(p: Program) -> list[Expansion]:
    """The launches of the steps of a program that are no calls of the host."""
    types = {name: b.type for name, b in p.buffers.items()}
    return [tile_lower.expand(s, types) for s in p.steps if not isinstance(s, HostCall)]


def _by_kernels(
    p: Program, inputs: Sequence[Any], run: Run, expansions: Sequence[Expansion] | None = None
) -> list[Any]:
    made = iter(expanded(p) if expansions is None else expansions)
    arrays = schedule_interp.arguments(p, inputs)
    sizes = schedule_interp.sizes_of(p, arrays)
    memory = dict(zip(p.inputs, arrays, strict=True))
    types = {name: b.type for name, b in p.buffers.items()}
    for s in p.steps:
        if isinstance(s, HostCall):
            memory |= schedule_interp.run_step(s, memory, sizes)
            continue
        e = next(made)
        memory = {n: x for n, x in memory.items() if n not in e.between}  # another step's
        memory |= {name: t.array() for name, t in e.tables.items()}
        for launch in e.launches:
            memory |= _launch(launch, memory, {**types, **e.between}, sizes, run)
    return [memory[n] for n in p.outputs]


def _launch(
    launch: Launch, memory: Mapping[str, Any], types: Mapping[str, TensorType],
    sizes: Mapping[str, int], run: Run,
) -> dict[str, Any]:  # fmt: skip
    """What a launch writes; each parameter sees its buffer in its own shape."""
    made = {n: types[n].substitute(sizes) for n in launch.outputs}
    # Of what a launch before it wrote, a launch may write a part again.
    outs = [memory.get(n, tile_interp.unwritten(t.shape, t.dtype)) for n, t in made.items()]
    ins = [np.array(memory[n], order="C") for n in launch.inputs]
    wanted = [m.type.substitute(sizes) for m in launch.kernel.parameters]
    seen = [
        x.reshape(-1).view(t.dtype.np).reshape(t.shape)
        for x, t in zip([*ins, *outs], wanted, strict=True)
    ]
    run(launch.kernel, seen, sizes)
    return dict(zip(launch.outputs, outs, strict=True))


def run_llvm(k: tile.Kernel, arrays: Sequence[Any], sizes: Mapping[str, int]) -> None:
    """Run a kernel as machine code, in this thread: the last instances first, which nothing may notice."""
    p = target_program(k)
    count, scratch = (int(substitute(n, sizes)) for n in (p.count, p.scratch))
    code = load(source_of(p))
    pointers = (ctypes.c_void_p * max(len(arrays), 1))(*[a.ctypes.data for a in arrays])
    numbers = (ctypes.c_int64 * max(len(p.sizes), 1))(*[sizes[n] for n in p.sizes])
    room = np.empty(scratch + 64, np.uint8)
    for end in range(count, 0, -max(count // _CHUNKS, 1)):
        begin = max(end - max(count // _CHUNKS, 1), 0)
        room[:] = 0x5A
        code.call(
            ctypes.addressof(pointers), ctypes.addressof(numbers), begin, end, room.ctypes.data
        )  # fmt: skip


_CHUNKS = 8  # of the instances of a kernel, which are run one after another


# Graph IR in the order of folds and with the scalar functions that the levels below have


def by_graph(g: Graph, inputs: Sequence[Any], sizes: Mapping[str, int] | None = None) -> list[Any]:
    """The outputs of a graph, node by node: what is no host call by its body and the law of folds."""
    p, arrays = lower(g), [*inputs, *(v.storage for v in g.captured)]
    hosted = {s.node for s in p.steps if isinstance(s, HostCall)}
    sizes = dict(schedule_interp.sizes_of(p, arrays) if sizes is None else sizes)
    env = dict(zip(g.inputs, arrays, strict=True))
    with np.errstate(all="ignore"):
        for n in g.nodes:
            run = _hosted(n, sizes) if n in hosted else _defined(n, sizes)
            made = run(*(env[v] for v in n.operands))
            env |= dict(zip(n.results, made if n.op.multiple else (made,), strict=True))
    return [env[v] for v in g.outputs]


def _hosted(n: Node, sizes: dict[str, int]) -> Callable[..., Any]:
    if n.regions:
        regions = tuple(_Region(r, sizes) for r in n.regions)
        return partial(n.op.numpy, regions=regions, **substitute_params(n.params, sizes))
    types, outs = ([v.type.substitute(sizes) for v in vs] for vs in (n.operands, n.results))
    return kernel(n.op, types, outs, substitute_params(n.params, sizes), n.regions, sizes)


class _Region:
    def __init__(self, g: Graph, sizes: Mapping[str, int]):
        self.g, self.sizes = g, sizes
        self.types = [v.type.substitute(sizes) for v in g.outputs]

    def __call__(self, *xs: Any) -> list[Any]:
        return by_graph(self.g, xs, self.sizes)


def _defined(n: Node, sizes: dict[str, int]) -> Callable[..., Any]:
    if is_primitive(n.op.call, n.types, n.params):
        return partial(_primitive, n, sizes)
    if n.op.combine is not None:
        return partial(_fold if len(n.operands) == 1 else _contract, n)
    pairs = any(
        v.dtype.kind == "c" for v in (*n.operands, *n.results)
    )  # parts are taken and joined
    if n.op.body is not None and n.op.name != "cast" and not pairs:
        return partial(_elementwise, n)
    return _hosted(n, sizes)


def _primitive(n: Node, sizes: dict[str, int], *xs: Any) -> Any:
    made = PRIMITIVES[n.op.call].evaluate(xs, substitute_params(n.params, sizes))
    return tuple(made) if n.op.multiple else made[0]


def _fold(n: Node, x: Any) -> Any:
    accum = n.operands[0].dtype.accum
    start = identity(n.op.combine, accum)
    return cast(fold(n.op.combine, cast(x, accum), n.params["axes"], start), n.results[0].dtype)


def _contract(n: Node, *xs: Any) -> Any:
    sig, _ = n.op.sig(n.types, n.params).bind(n.op.name, n.types)
    order = (*sig.out, *sig.reduced)
    factors = []
    for x, names in zip(xs, sig.ins, strict=True):
        moved = np.transpose(x, [names.index(a) for a in order if a in names])
        full = moved[tuple(slice(None) if a in names else None for a in order)]
        factors.append(cast(full, n.operands[0].dtype.accum))
    if factors[0].shape[-1] == 0:
        shape = np.broadcast_shapes(*(f.shape for f in factors))[:-1]
        return np.zeros(shape, n.results[0].dtype.np)
    return cast(contract(*np.broadcast_arrays(*factors)), n.results[0].dtype)


def _elementwise(n: Node, *xs: Any) -> Any:
    dtypes = [wide(n.op, v.dtype) for v in n.operands]
    widened = [cast(x, d) for x, d in zip(xs, dtypes, strict=True)]
    return cast(_body(n.op.expr(n.params), widened, dtypes[0]), n.results[0].dtype)


def _body(e: Expr, xs: Sequence[Any], dtype: DType) -> Any:
    if e.op == "arg":
        return xs[e.index]
    if e.op == "const":
        return cast(np.asarray(e.value), dtype)
    inner = [_body(o, xs, dtype) for o in e.operands]
    given = as_dtype(inner[1 if e.op == "where" else 0].dtype)
    if e.op in REINTERPRETS:
        given = as_dtype(REINTERPRETS[e.op][given.name])
    return scalar(e.op, inner, bool_ if e.op in TESTS else given)
