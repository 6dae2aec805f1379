"""Modules: bundles that import entry points of other bundles, which `link` makes one bundle.

    %1 = host_call(%0) {to = "import text.encode", ...}   ->   the nodes of `encode` in the bundle `text`

An import is a node of Graph IR that names what it stands for.  Linking replaces it by the graph of the
entry point, at the sizes of its operands, with the weights of that bundle.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from tessera.core import constraints
from tessera.core.blame import blames_arguments
from tessera.core.constraints import Guard, lone_symbol
from tessera.core.dims import Size, substitute, symbols
from tessera.core.dtype import f32
from tessera.core.errors import OperandError, ShapeError
from tessera.core.rewrite import replaced
from tessera.core.types import TensorType
from tessera.deploy.entries import Node as Returns
from tessera.deploy.entries import TracedEntry
from tessera.ir.graph.ir import (
    Builder,
    Graph,
    Node,
    Value,
    bind,
    current_builder,
    substitute_params,
)
from tessera.lang.annotation import TensorSpec
from tessera.lang.arguments import argument
from tessera.ops.callbacks import host_call

_PREFIX = "import "
_NAME = re.compile(r"[A-Za-z_]\w{0,31}\.[A-Za-z_]\w{0,31}", re.ASCII)
Sizes = Mapping[str, Size]
Env = dict[Value, Value]


class ImportedEntry:
    """An entry point of another bundle, which is linked later."""

    def __init__(self, name: str, results: Sequence[TensorType]):
        self.name, self.results = name, tuple(results)

    def __call__(self, *args: Any) -> Any:
        """Its results, in a function that is being traced."""
        if current_builder() is None:
            raise OperandError(
                f"{self.name}: it is imported and has no code here; call it in a function that you save, "
                "then link that bundle with ts.bundle.link"
            )
        values = [argument(x) for x in args]
        shapes, dtypes = (
            tuple(t.shape for t in self.results),
            tuple(t.dtype for t in self.results),
        )
        made = bind(host_call.op, *values, to=_PREFIX + self.name, shapes=shapes, dtypes=dtypes)
        return made[0] if len(made) == 1 else tuple(made)

    def __repr__(self) -> str:
        return f"ImportedEntry({self.name!r}, {', '.join(map(str, self.results))})"


@blames_arguments
def imported(name: str, *results: Any) -> ImportedEntry:
    """An entry point "module.entry" of a bundle that is not here, by the types of its results."""
    if not _NAME.fullmatch(str(name)):
        raise OperandError(f'bundle: an import is named {name!r}, expected "module.entry"')
    if not results or not all(isinstance(r, TensorSpec | TensorType) for r in results):
        raise OperandError(
            f"bundle: {name} has the results {results!r:.60}, expected types such as Tensor[4, 8]"
        )
    return ImportedEntry(name, [TensorType(r.dtype or f32, r.shape) for r in results])


def imports_of(name: str, g: Graph) -> list[str]:
    """What a graph imports, in order; imports in loops and branches are an error."""

    def inside(h: Graph) -> None:
        for n in h.nodes:
            if _imported(n):
                raise OperandError(
                    f"bundle: {name} imports {_imported(n)} in a loop or a branch, where it cannot be "
                    "linked; call it outside"
                )
            for r in n.regions:
                inside(r)

    for n in g.nodes:
        for r in n.regions:
            inside(r)
    return list(dict.fromkeys(x for x in map(_imported, g.nodes) if x))


def _imported(n: Node) -> str:
    to = n.params.get("to") if n.op is host_call.op else None
    return to.removeprefix(_PREFIX) if isinstance(to, str) and to.startswith(_PREFIX) else ""


class LinkModule:
    """What linking needs of an entry point: its graph, and the arrays of the graph's last inputs."""

    def __init__(
        self, name: str, graph: Graph, inputs: Sequence[str], outputs: Sequence[str],
        weights: Sequence[tuple[str, Any]], returns: Returns, numerics: str,
        fixed: Mapping[str, str],
    ):  # fmt: skip
        self.name, self.graph, self.numerics, self.fixed = name, graph, numerics, fixed
        self.inputs, self.outputs, self.returns = tuple(inputs), tuple(outputs), returns
        self.weights = tuple(weights)  # name and array

    @property
    def own(self) -> tuple[Value, ...]:
        """The inputs that are no weights."""
        return self.graph.inputs[: len(self.inputs)]


class _GraphLinker:
    """Copies the graph of an entry point, and what it imports in the place of its imports."""

    def __init__(self, modules: Mapping[str, LinkModule]):
        self.modules = modules
        self.builder = Builder()
        self.held: dict[tuple[str, str], Value] = {}
        self.weights: list[tuple[str, Any, TensorType]] = []
        self.guards: list[Guard] = []

    def traced(self, called: str, m: LinkModule) -> TracedEntry:
        inputs = [self.builder.input(v.type) for v in m.own]
        outputs = self.copy(m, inputs, (m.name,))
        made, _ = self.builder.finish(outputs)
        names = [*m.inputs, *(n for n, _, _ in self.weights)]
        g = Graph(made.inputs, made.nodes, made.outputs, m.graph.name, names, (), self.guards)
        return TracedEntry(
            called, g, m.inputs, m.outputs, m.returns, tuple(self.weights), m.numerics, m.fixed
        )  # fmt: skip

    def copy(
        self, m: LinkModule, operands: Sequence[Value], trail: tuple[str, ...]
    ) -> tuple[Value, ...]:
        sizes = sizes_of(m, operands)
        env: Env = dict(zip(m.own, operands, strict=True))
        for v, (name, x) in zip(m.graph.inputs[len(m.inputs) :], m.weights, strict=True):
            env[v] = self._weight(m.name, name, x, v.type)
        self.guards += guards_at(m, sizes)
        for n in m.graph.nodes:
            wanted = _imported(n)
            if wanted:
                results = self._import(n, wanted, env, sizes, trail)
            else:
                made = _copied(n, env, sizes, self.builder)
                self.builder.nodes.append(made)
                results = made.results
            env.update(zip(n.results, results, strict=True))
        return replaced(m.graph.outputs, env)

    def _weight(self, module: str, name: str, x: Any, t: TensorType) -> Value:
        key = module.partition(".")[0], name
        if key not in self.held:
            self.held[key] = self.builder.input(t)
            self.weights.append((name, x, t))
        return self.held[key]

    def _import(
        self, n: Node, wanted: str, env: Env, sizes: Sizes, trail: tuple[str, ...]
    ) -> tuple[Value, ...]:
        m = self.modules.get(wanted)
        if m is None:
            have = ", ".join(self.modules)
            raise OperandError(
                f"bundle: {trail[-1]} imports {wanted}, which no bundle that is linked exports; they export "
                f"{have}"
            )
        if wanted in trail:
            raise OperandError(f"bundle: {' imports '.join((*trail, wanted))}, which never ends")
        if m.numerics != self.modules[trail[0]].numerics:
            raise OperandError(
                f"bundle: {trail[-1]} has numerics {self.modules[trail[0]].numerics!r}, but {wanted}, "
                f"which it imports, has {m.numerics!r}"
            )
        results = self.copy(m, replaced(n.operands, env), (*trail, wanted))
        states = [_at(v.type, sizes) for v in n.results]
        if [v.type for v in results] != states:
            raise OperandError(
                f"bundle: {trail[-1]} states that {wanted} gives {_listed(states)}, it gives "
                f"{_listed([v.type for v in results])}"
            )
        return results


def linked(called: str, name: str, modules: Mapping[str, LinkModule]) -> TracedEntry:
    """The entry point `name` of modules under another name, with all that it imports."""
    if name not in modules:
        raise OperandError(
            f"bundle: no bundle that is linked exports {name}; they export {', '.join(modules)}"
        )
    return _GraphLinker(modules).traced(called, modules[name])


def inlined(
    m: LinkModule, operands: Sequence[Value], weights: Sequence[Value]
) -> tuple[Value, ...]:
    """The results of an entry point that is called in a function being traced."""
    sizes = sizes_of(m, operands)
    for g in guards_at(m, sizes):
        if g.kind == "equal":
            constraints.unify(g.left, g.right, g.reason)
        else:
            constraints.require(g.kind, g.left, g.right, g.reason)
    env: Env = dict(zip(m.graph.inputs, (*operands, *weights), strict=True))
    for n in m.graph.nodes:
        if _imported(n):
            raise OperandError(f"{m.name}: it imports {_imported(n)}; link it with ts.bundle.link")
        regions = tuple(_region(r, sizes) for r in n.regions)
        params = substitute_params(n.params, sizes)
        out = bind(n.op, *replaced(n.operands, env), regions=regions, **params)
        env.update(zip(n.results, out if n.op.multiple else (out,), strict=True))
    return replaced(m.graph.outputs, env)


# Sizes --------------------------------------------------------------------------------------------


def sizes_of(m: LinkModule, operands: Sequence[Value]) -> Sizes:
    """The sizes of an entry point's symbols for these operands, which may be symbolic themselves."""
    if len(operands) != len(m.inputs):
        wanted = ", ".join(f"{n}: {v.type}" for n, v in zip(m.inputs, m.own, strict=True))
        raise OperandError(f"{m.name}: got {len(operands)} tensors, expected {wanted}")
    sizes: dict[str, Size] = {}
    for name, v, x in zip(m.inputs, m.own, operands, strict=True):
        if v.type.dtype is not x.type.dtype or v.type.rank != x.type.rank:
            raise OperandError(f"{m.name}: {name} is {x.type}, expected {v.type}")
        for n, actual in zip(v.shape, x.shape, strict=True):
            symbol = lone_symbol(n)
            if symbol is not None:
                sizes.setdefault(symbol, actual)
    for name, v, x in zip(m.inputs, m.own, operands, strict=True):
        for n, actual in zip(v.shape, x.shape, strict=True):
            unknown = symbols(n) - sizes.keys() if not isinstance(n, int) else ()
            if unknown:
                raise ShapeError(
                    f"{m.name}: {name} has the size {n}, but no axis of an input is "
                    f"{', '.join(sorted(unknown))} alone"
                )
            if substitute(n, sizes) != actual:
                raise ShapeError(f"{m.name}: {name} is {x.type}, expected {_at(v.type, sizes)}")
    return sizes


def guards_at(m: LinkModule, sizes: Sizes) -> list[Guard]:
    """The guards of an entry point at these sizes that still depend on a call."""
    found = []
    for g in m.graph.guards:
        left, right = substitute(g.left, sizes), substitute(g.right, sizes)
        at = Guard(g.kind, left, right, g.reason, g.location)
        if not isinstance(left, int) or not isinstance(right, int):
            found.append(at)
        elif not at.holds({}):
            raise ShapeError(f"{m.name}: {g.reason}: needs {g}, which is {at} here")
    return found


def _at(t: TensorType, sizes: Sizes) -> TensorType:
    return t.with_shape(tuple(substitute(n, sizes) for n in t.shape)) if sizes else t


def _copied(n: Node, env: Env, sizes: Sizes, builder: Builder) -> Node:
    types = [_at(v.type, sizes) for v in n.results]
    regions = tuple(_region(r, sizes) for r in n.regions)
    params = substitute_params(n.params, sizes)
    return builder.node(n.op, replaced(n.operands, env), params, regions, types, n.location)


def _region(g: Graph, sizes: Sizes) -> Graph:
    """A region at these sizes."""
    if not sizes:
        return g
    b = Builder()
    env: Env = {v: b.input(_at(v.type, sizes)) for v in g.inputs}
    for n in g.nodes:
        made = _copied(n, env, sizes, b)
        b.nodes.append(made)
        env.update(zip(n.results, made.results, strict=True))
    outputs = replaced(g.outputs, env)
    return Graph(b.inputs, b.nodes, outputs, g.name, g.input_names, g.captured, g.guards)


def _listed(types: Sequence[TensorType]) -> str:
    return ", ".join(map(str, types)) or "nothing"


__all__ = ["ImportedEntry", "LinkModule", "imported", "imports_of", "inlined", "linked"]
