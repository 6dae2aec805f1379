"""dist.plan: the layout of a model on a machine, from its sizes or from the function of its loss.

A function is partitioned for every layout that is considered, by the same code that runs it, so that the
collectives of its plan are those of the run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tessera.compile.mesh.executable import MeshExecutable
from tessera.core import tree
from tessera.core.dtype import f32
from tessera.core.errors import OperandError, OutOfMemoryError
from tessera.core.layout import Layout, replicated
from tessera.core.mesh import Mesh
from tessera.core.shardspec import ShardSpec
from tessera.core.types import TensorType
from tessera.ir.graph.ir import Builder, Graph, Value
from tessera.lang.annotation import TensorSpec
from tessera.lang.arguments import argument
from tessera.lang.dist import strategy
from tessera.lang.dist.tensor import tensor
from tessera.lang.trace import Traced, trace
from tessera.lang.transforms import guarded, value_and_grad
from tessera.ops.collective import (
    ALL_GATHER,
    ALL_TO_ALL,
    AXIS_INDEX,
    PART,
    PMAX,
    PSUM,
    PSUM_SCATTER,
)
from tessera.plan.choice import Choice, MemoryUse
from tessera.plan.cost import DeviceGroup, collective_time, stream_time
from tessera.plan.machine import CORE, Machine
from tessera.plan.machine import machine as machine_named
from tessera.plan.model import Transformer, described
from tessera.plan.planner import plan_model
from tessera.plan.search import divisors
from tessera.plan.value import PlannedCollective, Plan
from tessera.transform.budget import flops
from tessera.transform.inline import inline_all
from tessera.transform.partition import Partitioned, partition

Rules = Mapping[str, int]
COLLECTIVES = (ALL_GATHER, ALL_TO_ALL, AXIS_INDEX, PART, PMAX, PSUM, PSUM_SCATTER)
SAME = 1e-3  # of a time: a cut that costs no more is taken, since it saves memory
ZERO = (strategy.data, strategy.zero1, strategy.zero2, strategy.zero3)


@guarded
def plan(
    f: Any, machine: str | Machine, *types: Any, batch: int | None = None, optimizer: Any = None,
    rules: Rules | None = None, zero: int | None = None, tp: int | None = None,
) -> Plan:  # fmt: skip
    """The layout of f on a machine with the shortest step that fits; nothing is run.

    f is a model by its sizes (dist.Transformer, or the name of one) with the sequences of a batch, or a loss
    (params, *batch) with types or tensors for its arguments.  For a loss, `optimizer` updates the parameters in the
    step that is planned, `rules` names the parameters that tensor parallelism cuts, as dist.strategy.tensor does,
    and `zero` and `tp` fix these numbers.
    """
    on = machine_named(machine)
    if isinstance(f, str | Transformer):
        given = {"types": types, "optimizer": optimizer, "rules": rules, "zero": zero, "tp": tp}
        others = [k for k, v in given.items() if v is not None and v != ()]
        if others:
            raise OperandError(
                f"plan: {', '.join(others)} belong to the plan of a function, but {described(f).name} is "
                "described by its sizes; give batch= alone"
            )
        return plan_model(described(f), on, batch)
    if not callable(f) or not types:
        raise OperandError(
            "plan: expected a dist.Transformer, the name of one, or a loss with a type for each argument, as in "
            "plan(loss, machine, params, tokens)"
        )
    if zero is not None and zero not in range(len(ZERO)):
        raise OperandError(f"plan: zero is {zero!r}, expected 0, 1, 2 or 3")
    if tp is not None and (type(tp) is not int or tp < 1):
        raise OperandError(f"plan: tp is {tp!r}, expected a number of devices")
    return _of_function(f, on, types, optimizer, rules, zero, tp)


def strategy_of(p: Plan) -> strategy.Strategy:
    """The strategy that runs the plan of a function."""
    if p.model is not None:
        raise OperandError(
            f"strategy_of: the plan of {p.name} is of a model described by its sizes, which has no parameters to lay out"
        )
    return _strategy(p.choice, dict(p.rules))


def _strategy(c: Choice, rules: Rules) -> strategy.Strategy:
    sizes = {a: n for a, n in (("dp", c.dp), ("tp", c.tp)) if n > 1} or {"dp": 1}
    mesh = Mesh(tuple(sizes), tuple(sizes.values()))
    made = ZERO[c.zero](mesh, "dp") if "dp" in sizes else strategy.Strategy(mesh)
    return made + strategy.tensor(mesh, "tp", rules) if rules else made


# One layout of a function -----------------------------------------------------------------------


@dataclass(frozen=True)
class _Tried:
    """A layout of a function, with what it costs."""

    choice: Choice
    rules: tuple[tuple[str, int], ...]
    seconds: float
    memory: MemoryUse
    parts: Partitioned

    @property
    def order(self) -> tuple[float, float, str]:
        return self.seconds, self.memory.total, f"{self.choice} {self.rules}"


class _Function:
    """A loss with its arguments as types, and the step that trains it."""

    def __init__(
        self, f: Callable[..., Any], machine: Machine, types: Sequence[Any], optimizer: Any
    ):
        self.f, self.machine = f, machine
        self.params, *self.batch = (tree.map(_type, t) for t in types)
        self.optimizer = _Descent() if optimizer is None else optimizer
        self.state = self._state()
        self.gradient = self._traced(value_and_grad(f), (self.params, *self.batch)).graph
        self._inlined = inline_all(self.gradient)

    def _traced(self, f: Callable[..., Any], types: tuple[Any, ...]) -> Traced:
        placed = tree.map(lambda t: Builder().input(t), types)
        return trace(f, placed, {}, tree.leaves(types), "plan")

    def _state(self) -> Any:
        made = self._traced(self.optimizer.init, (self.params,))
        return tree.unflatten(made.structure, [v.type for v in made.graph.outputs])

    def quick(self, c: Choice, rules: Rules) -> float:
        """Seconds of the gradient alone in a layout; the optimiser does not change which rules are best."""
        s = _strategy(c, rules)
        held = [_layout(t, spec, s.mesh) for t, spec in _specs(s, self.params, ())]
        cut = [_layout(t, _batch_spec(t, s), s.mesh) for t in tree.leaves(self.batch)]
        # What is whole may be cut by a later rule: asking for its gradient whole would price a gather.
        wanted = [None, *(x if x.axes else None for x in held)]
        layouts = [*held, *cut]
        layouts += [replicated(v.type.rank) for v in self._inlined.inputs[len(layouts) :]]
        return self._seconds(partition(self._inlined, layouts, s.mesh, {}, wanted), s.mesh)

    def tried(self, c: Choice, rules: Rules) -> _Tried:
        """The step in a layout: partitioned, counted and priced."""
        s = _strategy(c, rules)
        placed = self._placed(s)
        executable, tensors = s.step(self.f, self.optimizer).program(*placed)  # type: ignore[attr-defined]
        assert isinstance(executable, MeshExecutable)
        parts = executable.partitioned(executable.key([v.storage for v in tensors]))
        sizes = [_local(t, s.mesh) for t in placed]
        grads = sum(_bytes(t, spec, s.mesh) for t, spec in _specs(s, self.params, s.of_grads))
        memory = _divided(sizes[0], grads, sizes[1], _live(parts.graph), 0.0)
        return _Tried(c, tuple(sorted(rules.items())), self._seconds(parts, s.mesh), memory, parts)

    def compiled(self, t: _Tried) -> _Tried:
        """A layout with the memory of its program as ranks of this computer run it.

        Before it is compiled, the memory is that of the nodes of the graph one after another, without fusion.
        """
        if self.machine.device != CORE:
            return t
        s = _strategy(t.choice, dict(t.rules))
        placed = self._placed(s)
        executable, tensors = s.step(self.f, self.optimizer).program(*placed)  # type: ignore[attr-defined]
        found = executable.memory(executable.key([v.storage for v in tensors]), self.machine.size)
        if found is None:
            return t
        m = t.memory
        whole = float(found.inputs + found.run)
        return replace(t, memory=_divided(m.params, m.gradients, m.state, whole, float(found.exchange)))

    def _placed(self, s: strategy.Strategy) -> list[Any]:
        def laid(x: Any, axes: Sequence[str]) -> Any:
            pairs = _specs(s, x, axes)
            made = [tensor(t.shape, spec, s.mesh, t.dtype) for t, spec in pairs]
            return tree.unflatten(tree.flatten(x)[1], made)

        batch = [
            tree.map(lambda t: tensor(t.shape, _batch_spec(t, s), s.mesh, t.dtype), x)
            for x in self.batch
        ]
        return [laid(self.params, s.of_params), laid(self.state, s.of_state), *batch]

    def _seconds(self, parts: Partitioned, mesh: Mesh) -> float:
        device = self.machine.device
        dtype = str(parts.graph.inputs[0].dtype)
        known = dict(device.flops)
        peak = known.get(dtype, device.flops[0][1]) * device.product_efficiency
        total = 0.0
        for n in parts.graph.nodes:
            if n.op in COLLECTIVES:  # priced below
                continue
            moved = (
                sum(_nbytes(v.type) for v in (*n.operands, *n.results))
                if n.op.view is None
                else 0.0
            )
            total += max(2 * flops(n) / peak, stream_time(moved, device))
        for c in parts.inserted:
            size = mesh.size(c.axis)
            stride = mesh.size("tp") if c.axis == "dp" and "tp" in mesh.axes else 1
            whole = c.bytes * size / max(1, size - 1) / (2 if c.kind == "all_reduce" else 1)
            total += collective_time(c.kind, whole, DeviceGroup(size, stride), self.machine)
        return total


def _divided(params: float, grads: float, state: float, whole: float, buffers: float) -> MemoryUse:
    """The memory of a run; what is not parameters, gradients or state is activations."""
    return MemoryUse(params, grads, state, max(0.0, whole - params - grads - state), buffers)


def _batch_spec(t: TensorType, s: strategy.Strategy) -> ShardSpec:
    return ShardSpec((0,), (s.batch_axes,)) if t.shape and s.batch_axes else ShardSpec()


class _Descent:
    """Gradient descent, for a plan without an optimiser."""

    def init(self, params: Any) -> Any:
        return ()

    def update(self, grads: Any, state: Any, params: Any) -> Any:
        return tree.map(lambda p, g: p - 1e-3 * g, params, grads), state


def _specs(s: strategy.Strategy, x: Any, axes: Sequence[str]) -> list[tuple[TensorType, ShardSpec]]:
    leaves, structure = tree.flatten(x)
    paths = tree.structure_paths(structure, "")
    return [(t, s.spec(p, t.shape, axes)) for p, t in zip(paths, leaves, strict=True)]


def _type(x: Any) -> TensorType:
    if isinstance(x, TensorSpec):
        x = TensorType(x.dtype or f32, x.shape)
    t = x if isinstance(x, TensorType) else argument(x).type
    if not t.static:
        raise OperandError(f"plan: {t} has sizes that are not numbers; plan for the sizes of a run")
    return t


def _nbytes(t: TensorType) -> float:
    return float(t.size) * t.dtype.bits / 8


def _layout(t: TensorType, spec: ShardSpec, mesh: Mesh) -> Layout:
    return spec.layout([int(n) for n in t.shape], mesh)


def _bytes(t: TensorType, spec: ShardSpec, mesh: Mesh) -> float:
    return _nbytes(t.with_shape(_layout(t, spec, mesh).local(t.shape, mesh)))


def _local(x: Any, mesh: Mesh) -> float:
    return sum(
        _nbytes(v.type.with_shape(v.storage.layout.local(v.shape, mesh))) for v in tree.leaves(x)
    )


def _live(g: Graph) -> float:
    """The most bytes that are alive at once when nodes run in order."""
    last: dict[Value, int] = {}
    for i, n in enumerate(g.nodes):
        last.update(dict.fromkeys(n.operands, i))
    last.update(dict.fromkeys(g.outputs, len(g.nodes)))
    ends: dict[int, list[Value]] = {}
    for v, i in last.items():
        ends.setdefault(i, []).append(v)
    now = most = sum(_nbytes(v.type) for v in g.inputs)
    for i, n in enumerate(g.nodes):
        now += sum(_nbytes(v.type) for v in n.results if n.op.view is None)
        most = max(most, now)
        now -= sum(
            _nbytes(v.type)
            for v in ends.get(i, ())
            if v.node is not None and v.node.op.view is None
        )
    return most


# The search ---------------------------------------------------------------------------------------


def _of_function(
    f: Callable[..., Any], machine: Machine, types: Sequence[Any], optimizer: Any, rules: Rules | None,
    zero: int | None, tp: int | None,
) -> Plan:  # fmt: skip
    made = _Function(f, machine, types, optimizer)
    found = [
        made.tried(replace(c, zero=z), laid)
        for c, zeros in _choices(made, zero, tp)
        for laid in _laid(made, c, rules)
        for z in zeros
    ]
    if not found:
        raise OperandError(
            f"plan: tp={tp} and zero={zero} leave no layout of {machine.size} devices"
        )
    # The first that fits as it is compiled; the others are told by the nodes of their graphs.
    room, ranked = machine.device.memory, sorted(found, key=lambda t: t.order)
    fitting = []
    for i, t in enumerate(ranked):
        ranked[i] = made.compiled(t)
        if ranked[i].memory.total <= room:
            fitting = [ranked[i], *(x for x in ranked[i + 1 :] if x.memory.total <= room)]
            break
    if not fitting:
        least = min(t.memory.total for t in ranked)
        raise OutOfMemoryError(
            f"plan: the function does not fit {machine.name}: the least of {len(found)} layouts needs {least / 1e9:.3g} "
            f"GB on a device of {machine.device.memory / 1e9:.3g} GB; use more devices or a smaller batch"
        )
    return _plan(getattr(f, "__name__", "function"), machine, fitting, len(found), made)


def _choices(
    made: _Function, zero: int | None, tp: int | None
) -> Iterator[tuple[Choice, list[int]]]:
    """The meshes of all devices, each with the stages of ZeRO to try."""
    n = made.machine.size
    for width in [tp] if tp is not None else divisors(n):
        if n % width == 0:
            stages = [zero] if zero is not None else [0, 1, 2, 3] if n // width > 1 else [0]
            yield Choice(n // width, width, sequence=False, overlap=False), stages


def _laid(made: _Function, c: Choice, rules: Rules | None) -> list[Rules]:
    """The parameters that tp cuts: those given, or none and what a greedy search finds, largest first."""
    if c.tp == 1 or rules is not None:
        return [rules if rules is not None and c.tp > 1 else {}]
    best: dict[str, int] = {}
    least = made.quick(c, best)
    for name, rank in _names(made.params):
        for axis in range(rank):
            more = {**best, name: axis}
            seconds = made.quick(c, more)
            if seconds < least * (1 + SAME if name not in best else 1 - SAME):
                best, least = more, seconds
    return [{}, best] if best else [{}]


def _names(params: Any) -> list[tuple[str, int]]:
    """The last names on the ways to matrices, with their number of axes, those with most elements first."""
    leaves, structure = tree.flatten(params)
    sizes: Counter[tuple[str, int]] = Counter()
    for path, t in zip(tree.structure_paths(structure, ""), leaves, strict=True):
        last = strategy.names_of(path)[-1:]
        if last and len(t.shape) > 1:
            sizes[last[0], len(t.shape)] += int(t.size)
    return [name for name, _ in sizes.most_common()]


def _plan(name: str, machine: Machine, fitting: list[_Tried], count: int, made: _Function) -> Plan:
    best = fitting[0]
    totals: dict[tuple[str, str], list[int]] = {}
    for c in best.parts.inserted:
        totals.setdefault((c.kind, c.axis), []).append(c.bytes)
    collectives = tuple(PlannedCollective(k, a, len(b), sum(b)) for (k, a), b in totals.items())
    reasons = [f"it has the shortest step of {count} layouts, {len(fitting)} of which fit"]
    reasons += [f"{t.seconds / best.seconds:.3f} times as long: {t.choice}" for t in fitting[1:4]]
    rows = max((t.shape[0] for t in tree.leaves(made.batch) if t.shape), default=1)
    whole = 2 * sum(flops(n) for n in made.gradient.nodes)
    return Plan(
        name, machine, rows, replace(best.choice, micro=max(1, rows // best.choice.dp)), best.seconds, 0.0, 0.0,
        best.memory, whole, collectives, tuple(reasons), None, best.rules,
    )  # fmt: skip
