"""Update in place: compute the new part of a tensor where it is stored, in one launch with its neighbours.

    a = h[32:40]; k = update(k0, a, s); b = h[40:48]; v = update(v0, b, s)   ->   k, v[s] = h[32:40], h[40:48]

Parts are small, so a launch costs more than what it computes.  A part takes in the stages that make it,
point by point and through views; a stage that others read too is computed again, so that no update waits
for its launch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeGuard

from tessera.core.gpu_kernels import UPDATE
from tessera.core.types import TensorType
from tessera.ir.graph.ir import substitute_params
from tessera.ir.schedule.device_program import DeviceProgram
from tessera.ir.schedule.device_steps import DeviceStep, Placed, Update, inputs_read, outputs_made
from tessera.ir.schedule.index import narrow, rejoined
from tessera.ir.schedule.ir import (
    Axis,
    HostCall,
    Kernel,
    Read,
    Stage,
    Term,
    reads,
    walk,
    with_reads,
)

_SMALL = 1 << 16  # elements, which take the time of a launch
_MOST_TERMS = 200  # that a part is computed by
_MOST_TENSORS = 10  # that a launch reads


@dataclass(frozen=True)
class Where:
    """What else is known of the steps: types, sizes, what is returned and which inputs stay as they are."""

    types: Mapping[str, TensorType]
    sizes: Mapping[str, int]
    outputs: Sequence[str]
    stay: frozenset[str]


def update_in_place(
    p: DeviceProgram, sizes: Mapping[str, int], donated: frozenset[int]
) -> DeviceProgram:
    """The program in which parts of tensors are computed where they are stored."""
    types = {n: b.type for n, b in p.buffers.items()}
    stay = frozenset(p.inputs) - {p.inputs[i] for i in donated}
    return p.with_steps(placed(p.device_steps, Where(types, sizes, p.outputs, stay)))


def placed(steps: Sequence[DeviceStep], where: Where) -> list[DeviceStep]:
    """The steps, in which updates are Placed."""
    found = list(steps)
    i = 0
    while i < len(found):
        call = found[i]
        if isinstance(call, HostCall) and call.node.op.kernel == UPDATE:
            search = _UpdateSearch(found, i, where)
            found[i] = own = search.update(call)
            left = _needed(found, search.taken, where.outputs)
            i -= len(found) - len(left)
            found = left
            before = _before(found, i)
            if before is not None and _fit(before[1], own, _Names(found), where.types):
                found[i] = _both(before[1], own)
                del found[before[0]]
                i -= 1
        i += 1
    return found


class _Names:
    """Which step makes each tensor."""

    def __init__(self, steps: Sequence[DeviceStep]):
        self.steps = steps
        self.makers = {n: j for j, s in enumerate(steps) for n in outputs_made(s)}

    def maker(self, name: str) -> DeviceStep | None:
        """The step that makes a tensor; None for inputs."""
        return self.steps[self.makers[name]] if name in self.makers else None

    def root(self, name: str) -> str:
        """The tensor that a view shows."""
        while _is_view(s := self.maker(name)):
            name = s.operands[0]
        return name


class _UpdateSearch(_Names):
    """What an update can compute itself."""

    def __init__(self, steps: Sequence[DeviceStep], i: int, where: Where):
        super().__init__(steps)
        self.i, self.where, self.types = i, where, where.types
        self.taken: set[str] = set()

    def update(self, call: HostCall) -> Placed:
        """An update as a launch, which computes what it replaces."""
        x, part, *starts = call.operands
        t = self.types[part]
        whole = [n == m for n, m in zip(self.types[x].shape, t.shape, strict=True)]
        self.taken = {n for n in starts if isinstance(self.maker(n), Kernel)}
        axes = tuple(Axis(f"_p{n}", size) for n, size in enumerate(t.shape))
        self.axes = {a.name: a.size for a in axes}
        term: Term = Read(t.dtype, part, tuple(a.variable for a in axes))
        if t.size <= _SMALL:
            while (more := self.grown(term)) is not None:
                term = more
        stage = Stage(part, axes, (), None, term, call.node.location)
        begins = tuple(None if all_ else n for n, all_ in zip(starts, whole, strict=True))
        return Placed((call,), (Update(call.results[0], begins, stage),))

    def grown(self, term: Term) -> Term | None:
        """The term with one more step in it, if there is one to take in."""
        known = {r.source for r in reads(term)}
        for name in dict.fromkeys(r.source for r in reads(term)):
            j = self.makers.get(name)
            made = None if j is None else self.inlined(term, name, self.steps[j])
            if j is not None and made is not None and self.may_be(made, known, j):
                self.taken.add(name)
                return made
        return None

    def inlined(self, term: Term, name: str, s: DeviceStep) -> Term | None:
        """The term, which computes what a step makes itself."""
        if any(r.source == name and _is_picked(r) for r in reads(term)):
            return None
        if _is_view(s):
            return with_reads(term, lambda r: self.through(r, s) if r.source == name else r)
        if not isinstance(s, Kernel) or s.contracts or not self.has_same_bits(s, term):
            return None
        stages = {t.name: t for t in s.stages}
        own = {name} | (stages.keys() - set(s.outputs))
        if any(n in own and _folds(stages[n], own) for n in _needs(s, [name])):
            return None

        def change(r: Read) -> Term:
            return self.at(stages[r.source], r, change) if r.source in own else r

        return with_reads(term, change)

    def has_same_bits(self, k: Kernel, part: Term) -> bool:
        """Whether functions are as exact in an update: kernels that store narrow floats have faster ones."""
        whole = all(t.dtype.kind != "f" for s in k.stages for t in walk(s.term))
        return whole or all(self.types[n].dtype is part.dtype for n in k.outputs)

    def at(self, s: Stage, r: Read, change: Callable[[Read], Term]) -> Term:
        """The element of a stage that is read."""
        env = dict(zip((a.name for a in s.axes), r.index, strict=True))
        return with_reads(s.term.at(env), lambda x: self.narrowed(change(x)))

    def through(self, r: Read, s: HostCall) -> Read:
        """The element of a view where it lies."""
        view, (x,) = s.node.op.view, s.operands
        assert view is not None
        params = substitute_params(s.node.params, self.where.sizes)
        index = view(r.index, (self.types[x],), params)
        moved = self.narrowed(replace(r, source=x, index=tuple(index)))
        assert isinstance(moved, Read)
        return moved

    def narrowed(self, t: Term) -> Term:
        if not isinstance(t, Read):
            return t
        index = (x if isinstance(x, Term) else rejoined(narrow(x, self.axes)) for x in t.index)
        return replace(t, index=tuple(index))

    def may_be(self, term: Term, known: set[str], j: int) -> bool:
        """Whether a term is short, and what it reads in place of step j can wait for the update."""
        sources = {r.source for r in reads(term)}
        if sum(1 for _ in walk(term)) > _MOST_TERMS or len(sources) > _MOST_TENSORS:
            return False
        return all(self.waits(n, j) for n in sources - known)

    def waits(self, name: str, j: int) -> bool:
        """Whether nobody wants the memory of a tensor that is read by the update rather than by step j."""
        root, t = self.root(name), self.types[name]
        if t.dtype.bits < 8 or any(
            root in map(self.root, _written(s)) for s in self.steps[j + 1 : self.i + 1]
        ):
            return False
        small = self.types[root].size <= _SMALL or root in self.where.stay
        return small or any(
            root in map(self.root, inputs_read(s)) for s in self.steps[self.i :] if not _is_view(s)
        )


def _written(s: DeviceStep) -> Sequence[str]:
    """The operands that a step may write over."""
    if isinstance(s, Placed):
        return [c.operands[0] for c in s.calls]
    if not isinstance(s, HostCall) or _is_view(s):
        return ()
    return s.operands[:1] if s.node.op.kernel == UPDATE else s.operands


def _is_view(s: DeviceStep | None) -> TypeGuard[HostCall]:
    return isinstance(s, HostCall) and s.node.op.view is not None


def _is_picked(r: Read) -> bool:
    return any(isinstance(i, Term) for i in r.index)


def _folds(s: Stage, own: set[str]) -> bool:
    """Whether a stage is no term of others, or reads one of its kernel where data says."""
    return s.combine is not None or any(r.source in own and _is_picked(r) for r in reads(s.term))


def _needs(k: Kernel, names: Sequence[str]) -> set[str]:
    """The stages of a kernel that some of its stages are made of."""
    found = set(names)
    for s in reversed(k.stages):
        if s.name in found:
            found |= {r.source for r in reads(s.term)}
    return found & {s.name for s in k.stages}


# Steps


def _needed(
    steps: Sequence[DeviceStep], taken: set[str], outputs: Sequence[str]
) -> list[DeviceStep]:
    """The steps, without those that make what was taken in and nobody reads any more."""
    used, out = set(outputs), list[DeviceStep]()
    for s in reversed(steps):
        gone = taken.intersection(outputs_made(s)) - used
        left = _without(s, gone) if gone else s
        if left is not None:
            used |= inputs_read(left)
            out.append(left)
    return out[::-1]


def _without(s: DeviceStep, gone: set[str]) -> DeviceStep | None:
    outputs = tuple(n for n in outputs_made(s) if n not in gone)
    if not outputs:
        return None
    assert isinstance(s, Kernel), s  # others make one result
    needed = _needs(s, outputs)
    return replace(s, stages=tuple(t for t in s.stages if t.name in needed), outputs=outputs)


def _before(steps: Sequence[DeviceStep], i: int) -> tuple[int, Placed] | None:
    """The updates before those at i, with nothing between that runs or reads them."""
    for j in range(i - 1, -1, -1):
        found = steps[j]
        if isinstance(found, Placed):
            apart = all(inputs_read(s).isdisjoint(found.outputs) for s in steps[j + 1 : i])
            return (j, found) if apart else None
        if not _is_view(found):
            return None
    return None


def _fit(a: Placed, b: Placed, names: _Names, types: Mapping[str, TensorType]) -> bool:
    """Whether updates can be one launch: parts of one size and dtype, and none reads what another one
    writes.
    """
    first, second = a.updates[0], b.updates[0]
    same = first.count == second.count and types[first.whole].dtype is types[second.whole].dtype
    written = {names.root(c.operands[0]) for c in (*a.calls, *b.calls)}
    apart = written.isdisjoint(map(names.root, a.sources | b.sources)) and b.inputs.isdisjoint(
        a.outputs
    )
    return same and apart and len(a.sources | b.sources) <= _MOST_TENSORS


def _both(a: Placed, b: Placed) -> Placed:
    return Placed(a.calls + b.calls, a.updates + b.updates)
