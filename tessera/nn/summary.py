"""summary: the layers of a module, what they compute for given inputs, and what that costs."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tessera.core import tree
from tessera.core.blame import blames_arguments
from tessera.core.dims import Dim
from tessera.inspect.work import FORMULAS
from tessera.ir.graph.ir import Graph, Node, Value
from tessera.lang.shapes import trace
from tessera.nn.module import Module, vars_of
from tessera.nn.walk import map_modules
from tessera.transform.budget import flops as rough
from tessera.transform.decompose import decompose


@dataclass(frozen=True)
class LayerRow:
    """One call of a layer: its name, its class, what it gave, its parameters and the operations of the
    call.
    """

    name: str
    kind: str
    result: str
    parameters: int
    flops: float


@dataclass(frozen=True)
class Summary:
    """A table with a row for each call of a layer, in the order of the calls."""

    rows: tuple[LayerRow, ...]
    parameters: int
    bytes: int
    flops: float

    def __str__(self) -> str:
        head = ("layer", "kind", "result", "parameters", "flops")
        cells = [
            (r.name or "(whole)", r.kind, r.result, f"{r.parameters:,}", f"{r.flops:,.0f}")
            for r in self.rows
        ]
        widths = [max(len(row[i]) for row in (head, *cells)) for i in range(5)]
        lines = [_line(row, widths) for row in (head, *cells)]
        total = f"{self.parameters:,} parameters, {_size(self.bytes)}, {self.flops:,.0f} flops"
        return "\n".join([*lines, total])

    __repr__ = __str__


@blames_arguments
def summary(module: Module, *args: Any, **kwargs: Any) -> Summary:
    """Trace a call of the module with these arguments, or annotations that stand for tensors."""
    calls: list[tuple[str, Module, Any, dict[str, Any], Any]] = []
    watched = map_modules(lambda name, m: _watched(name, m, calls), module)
    whole = trace(lambda *xs: watched(*xs, **kwargs), *args)
    rows = tuple(_row(*c) for c in sorted(calls, key=lambda c: bool(c[0])))
    leaves = tree.leaves(module)
    return Summary(
        rows,
        sum(x.size for x in leaves),
        sum(x.size * x.dtype.itemsize for x in leaves),
        flops(whole),
    )


@functools.cache
def _class_of(cls: Any) -> Any:
    """A subclass whose calls are noted."""

    @functools.wraps(cls.__call__)
    def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N807
        name, plain, calls = self.__dict__["_watch"]
        place = len(calls)
        result = cls.__call__(self, *args, **kwargs)
        calls.insert(place, (name, plain, args, kwargs, result))
        return result

    own = {"__call__": __call__, "__module__": cls.__module__, "__tessera_watches__": cls}
    return type(cls.__name__, (cls,), own)


def _watched(name: str, module: Module, calls: list[Any]) -> Any:
    cls: Any = type(module)
    made = object.__new__(_class_of(cls))
    made.__dict__.update(vars_of(module), _watch=(name, module, calls))
    return made


def _row(name: str, module: Module, args: Any, kwargs: dict[str, Any], result: Any) -> LayerRow:
    given = tree.map(lambda x: x.type if isinstance(x, Value) else x, (args, kwargs))
    plain = map_modules(_unwatched, module)
    flat, structure = tree.flatten(given)
    types = [x for x in flat if hasattr(x, "rank")]

    def call(*xs: Any) -> Any:
        mine = iter(xs)
        a, k = tree.unflatten(structure, [next(mine) if hasattr(x, "rank") else x for x in flat])
        return type(plain).__call__(plain, *a, **k)

    count = sum(x.size for x in tree.leaves(module))
    done = flops(trace(call, *types)) if types else 0.0
    return LayerRow(name, type(plain).__name__, _shown(result), count, done)


def _unwatched(name: str, module: Any) -> Any:
    """The module of its own class, with the modules inside that it has now."""
    cls = getattr(type(module), "__tessera_watches__", None)
    if cls is None:
        return module
    made = object.__new__(cls)
    made.__dict__.update((k, v) for k, v in vars_of(module).items() if k != "_watch")
    return made


def _shown(result: Any) -> str:
    return ", ".join(str(x.type) for x in tree.leaves(result) if isinstance(x, Value))


def flops(g: Graph) -> float:
    """Scalar operations of a graph: a multiplication and an addition are two."""
    return sum(_work(n) for n in _nodes(decompose(g)))


def _nodes(g: Graph) -> Iterator[Node]:
    yield from g.nodes


def _work(n: Node) -> float:
    if n.regions:
        times = n.params.get("length", 1)
        inside = sum(flops(r) for r in n.regions)
        return inside * (times if isinstance(times, int) else 1)
    sizes = [[int(s) for s in t.shape] for t in n.types if _is_known(t.shape)]
    count = FORMULAS.get(n.op.call or "")
    if count is not None and len(sizes) == len(n.types):
        return float(count(sizes, [[int(s) for s in v.shape] for v in n.results], n.params))
    if n.op.sig(n.types, n.params) is None:
        return 0.0
    contracts = len(n.operands) > 1 and rough(n) > math.prod(map(_number, n.results[0].shape))
    return rough(n) * (2 if contracts else 1)


def _is_known(shape: Any) -> bool:
    return not any(isinstance(s, Dim) for s in shape)


def _number(size: Any) -> float:
    return math.inf if isinstance(size, Dim) else float(size)


def _line(row: tuple[str, ...], widths: list[int]) -> str:
    cells = [
        c.rjust(w) if i > 2 else c.ljust(w)
        for i, (c, w) in enumerate(zip(row, widths, strict=True))
    ]
    return "  ".join(cells).rstrip()


def _size(n: float) -> str:
    for unit in ("B", "KB", "MB", "GB", "TB"):
        if n < 999.5 or unit == "TB":  # what three digits round to 1000 is 1 of the next unit
            break
        n /= 1000
    return f"{n:.3g} {unit}" if n < 999.5 else f"{n:.0f} {unit}"
