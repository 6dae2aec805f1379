"""alpa_shard: a function whose arguments are laid out on a mesh as moves and computes least.

A candidate gives every argument a layout: each mesh axis cuts one of its axes, or none.  Arguments of one name and shape
have one layout, as the same matrix of every layer has.  A candidate is partitioned, and costs the bytes that a shard sends,
the operations that it runs and the bytes that it holds.  All candidates are tried where they are few; where they are many,
one group of arguments is changed at a time until no change is cheaper.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import update_wrapper
from typing import Any

from tessera.compile.mesh.executable import MeshExecutable
from tessera.core import tree
from tessera.core.blame import wanting, demand_function
from tessera.core.layout import Layout
from tessera.core.mesh import Mesh
from tessera.core.shardspec import ShardSpec, spec_of
from tessera.ir.graph.ir import Graph, Node, current_builder
from tessera.lang.dist.tensor import replicate, tensor
from tessera.lang.jit import jit
from tessera.lang.transforms import guarded
from tessera.ops.control import scan

# Operations of a shard that take as long as sending a byte: an H100 runs 1e15 a second beside 450e9 bytes over NVLink, a CPU
# core 40e9 beside 5e9 bytes between processes; the geometric mean of the two ratios is 133.
OPERATIONS_A_BYTE = 128.0
HELD = 0.01  # what a byte that a shard holds costs beside one that it sends: it settles ties
_ALL = 256  # candidates up to which every one is tried


@dataclass(frozen=True)
class LayoutChoice:
    """The layouts of the arguments, in order, and what they cost."""

    specs: tuple[ShardSpec, ...]
    cost: float
    bytes: int  # that a shard sends
    operations: int  # that a shard runs
    tried: int  # candidates

    def __str__(self) -> str:
        shown = ", ".join(str(dict(zip(s.partition, s.mesh_axes, strict=True))) for s in self.specs)
        return f"{shown}: {self.bytes} bytes sent and {self.operations} operations a shard"


@wanting
def alpa_shard(f: Callable[..., Any], mesh: Mesh) -> AutoSharded:
    """f, jitted, on arguments that are laid out on a mesh at the first call with their types, by cost."""
    demand_function("alpa_shard", f)
    return AutoSharded(f, mesh)


class AutoSharded:
    """A function that chooses the layouts of its arguments."""

    def __init__(self, f: Callable[..., Any], mesh: Mesh):
        update_wrapper(self, f)
        self.mesh, self._run = mesh, jit(f)
        self._known: dict[Any, LayoutChoice] = {}

    @guarded
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if current_builder() is not None:  # part of a program, which has layouts of its own
            return self._run(*args, **kwargs)
        leaves, structure = tree.flatten((args, kwargs))
        specs = self.choice(*args, **kwargs).specs
        pairs = zip(leaves, specs, strict=True)
        args, kwargs = tree.unflatten(structure, [tensor(x, s, self.mesh) for x, s in pairs])
        return self._run(*args, **kwargs)

    @guarded
    def choice(self, *args: Any, **kwargs: Any) -> LayoutChoice:
        """The layouts for arguments like these."""
        leaves, structure = tree.flatten((args, kwargs))
        zeros = [tensor(x, None, self.mesh) for x in leaves]
        key = tree.token(structure), tuple(v.type for v in zeros)
        if key not in self._known:
            paths = tree.structure_paths(structure, "")
            given, named = replicate(tree.unflatten(structure, zeros), self.mesh)
            found, _ = self._run.program(*given, **named)
            assert isinstance(found, MeshExecutable)
            shapes = [v.shape for v in zeros]
            self._known[key] = _LayoutSearch(found, self.mesh, shapes, _groups(paths, shapes)).best()
        return self._known[key]


def _groups(paths: Sequence[str], shapes: Sequence[Any]) -> list[list[int]]:
    """Arguments of one name and shape, largest first."""
    found: dict[Any, list[int]] = {}
    for k, (path, shape) in enumerate(zip(paths, shapes, strict=True)):
        names = re.findall(r"[A-Za-z_]\w*", path)
        found.setdefault((names[-1] if names else path, shape), []).append(k)
    return sorted(found.values(), key=lambda ks: -math.prod(shapes[ks[0]]) * len(ks))


class _LayoutSearch:
    def __init__(
        self, program: MeshExecutable, mesh: Mesh, shapes: Sequence[tuple[int, ...]], groups: Sequence[list[int]]
    ):  # fmt: skip
        self.program, self.mesh, self.shapes, self.groups = program, mesh, shapes, groups
        self._costs: dict[tuple[Layout, ...], LayoutChoice] = {}

    def best(self) -> LayoutChoice:
        """The cheapest candidate."""
        options = [self._options(self.shapes[ks[0]]) for ks in self.groups]
        if math.prod(len(o) for o in options) <= _ALL:
            return self._found(min(map(self._cost, itertools.product(*options)), key=_price))
        now = [o[0] for o in options]
        best = self._cost(now)
        while True:
            before = best
            for k, some in enumerate(options):
                for layout in some:
                    other = self._cost([*now[:k], layout, *now[k + 1 :]])
                    if _price(other) < _price(best):
                        best, now = other, [*now[:k], layout, *now[k + 1 :]]
            if best is before:
                return self._found(best)

    def _found(self, best: LayoutChoice) -> LayoutChoice:
        return replace(best, tried=len(self._costs))

    def _options(self, shape: tuple[int, ...]) -> list[Layout]:
        """The layouts of an argument: whole first, then each mesh axis on an axis that it divides."""
        places = [None, *range(len(shape))]
        found = []
        for pick in itertools.product(places, repeat=len(self.mesh.axes)):
            cuts = [tuple(a for a, p in zip(self.mesh.axes, pick, strict=True) if p == k) for k in range(len(shape))]  # fmt: skip
            parts = [math.prod(self.mesh.size(a) for a in c) for c in cuts]
            if all(n % p == 0 and n >= p for n, p in zip(shape, parts, strict=True)):
                found.append(Layout(tuple(cuts)))
        return found

    def _cost(self, picks: Sequence[Layout]) -> LayoutChoice:
        layouts: list[Any] = [None] * len(self.shapes)
        for ks, layout in zip(self.groups, picks, strict=True):
            for k in ks:
                layouts[k] = layout
        key = tuple(layouts)
        if key not in self._costs:
            self._costs[key] = self._priced(key)
        return self._costs[key]

    def _priced(self, layouts: tuple[Layout, ...]) -> LayoutChoice:
        inputs = zip(self.program.graph.inputs, self.shapes, layouts, strict=False)
        rest = self.program.key([])  # captured tensors
        made = self.program.partitioned((*((s, w) for _, s, w in inputs), *rest))
        moved = sum(c.bytes for c in made.inserted)
        work = operations(made.graph)
        held = sum(int(v.type.size) * v.dtype.bits // 8 for v in made.graph.inputs)
        cost = moved + work / OPERATIONS_A_BYTE + HELD * held
        return LayoutChoice(tuple(map(spec_of, layouts)), cost, moved, work, 0)


def _price(c: LayoutChoice) -> float:
    return c.cost


def operations(g: Graph) -> int:
    """The operations of a program: a multiplication and an addition for each term of a fold, one for each other element."""
    return sum(map(_operations, g.nodes))


def _operations(n: Node) -> int:
    if n.regions:
        times = int(n.params["length"]) if n.op is scan.op else 1
        return times * sum(operations(r) for r in n.regions)
    sizes = _sizes(n)
    folded = n.op.combine is not None and len(n.operands) > 1
    return math.prod(sizes.values()) * (2 if folded else 1)


def _sizes(n: Node) -> Mapping[str, int]:
    """The sizes of the axes that a node runs over."""
    if n.op.signature is None:
        return {"out": max((int(v.type.size) for v in n.results), default=0)}
    sig = n.op.sig(n.types, n.params)
    assert sig is not None
    _, found = sig.bind(n.op.name, n.types)
    rest = {f"out{k}": int(s) for k, s in enumerate(n.results[0].shape)} if not found else {}
    return {**{a: int(s) for a, s in found.items()}, **rest}
