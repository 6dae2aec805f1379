"""split_complex: complex tensors become pairs of real ones, where an op has a formula for their parts.

    %2 = exp(%0); %3 = mul(%2, %1)   ->   %a = real(%0); %b = imag(%0); ...; %3 = complex(%c, %d)

A tensor is whole, its parts side by side in memory, where a caller, a transform or a factorisation has it;
in between it is two tensors, which kernels compute as any others (ops/pairs.py).  What a loop carries is a
pair too, unless its body needs it whole.  Additions, products and views between tensors that are whole
anyway stay whole: there are kernels for them, and transforms take them in (passes/fuse_fft.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from tessera.core.constant import Constant
from tessera.core.constraints import Scope, current_scope, scope
from tessera.core.pairs import Pair
from tessera.core.primitives import is_primitive
from tessera.core.scalar import Expr, arg
from tessera.ir.graph.ir import Builder, Graph, Node, Value, bind, building
from tessera.ir.graph.op import Op
from tessera.ops.creation import constant, full
from tessera.ops.define import cast_to, full_of
from tessera.ops.elementwise import complex, imag, real
from tessera.ops.pairs import FORMULAS, Part, as_bool
from tessera.ops.shape import reshape, slice_

_KINDS = ("c64", "c128")
_NUMBERS = (full.op, constant.op)


def split_complex(g: Graph) -> Graph:
    """g with pairs of real tensors in place of complex ones; the same graph where it has none."""
    if not has_complex(g) or not _has_work(g):
        return g
    with scope(Scope.of(g.guards, around=current_scope())) as facts:
        return _Splitting(g, False).graph(facts.guards)


def split_all(g: Graph) -> Graph:
    """g with pairs wherever an op has a formula: only what has none takes and makes whole tensors."""
    with scope(Scope.of(g.guards, around=current_scope())) as facts:
        return _Splitting(g, False, lambda n: False).graph(facts.guards)


def has_complex(g: Graph) -> bool:
    """Whether there is a complex tensor in a graph."""
    values = [*g.inputs, *(v for n in g.nodes for v in n.results)]
    return any(map(is_complex, values)) or any(has_complex(r) for n in g.nodes for r in n.regions)


def _has_work(g: Graph) -> bool:
    """Whether a node is to be computed in pairs."""
    kept = _Choice(g, False, _may_stay).kept
    return any(
        _has_complex_inside(n) if n.regions else _touches(n) and n not in kept and has_formula(n)
        for n in g.nodes
        if n.op not in _NUMBERS
    )


def is_complex(v: Value) -> bool:
    """Whether a value is a tensor of complex numbers."""
    return v.dtype.name in _KINDS


def _touches(n: Node) -> bool:
    return any(map(is_complex, (*n.operands, *n.results)))


# Which nodes have a formula ------------------------------------------------------------------------


def has_formula(n: Node) -> bool:
    """Whether a node is computed on the parts of its complex operands."""
    op = n.op
    if n.regions or op.effects or len(n.results) != 1:
        return False
    if op is complex.op or op in _NUMBERS or op.casts:
        return True
    if op.combine is not None:
        return _folds(n)
    body = op.expr(n.params)
    return _each_part(op) or (body is not None and _is_formula(body))


def _folds(n: Node) -> bool:
    if n.op.body != arg(0) or not n.params.get("axes"):
        return False
    known = all(isinstance(n.operands[0].shape[a], int) for a in n.params["axes"])
    return n.op.combine == "add" or (n.op.combine == "mul" and known)


def _each_part(op: Op) -> bool:
    """Whether an op does to each part of complex operands what it does to real ones."""
    moves = op.moves and op.body is None and op.call != "barrier"
    return moves or op.view is not None or op.pick is not None or op.by_parts


def _is_formula(e: Expr) -> bool:
    return e.op == "arg" or (e.op in FORMULAS and all(map(_is_formula, e.operands)))


def needs_whole(g: Graph) -> bool:
    """Whether a node of a graph, or of a region in it, takes or makes complex tensors that are whole."""
    return any(
        any(map(needs_whole, n.regions)) if n.op.control else _touches(n) and not has_formula(n)
        for n in g.nodes
    )


# Which nodes stay whole ----------------------------------------------------------------------------


class _Choice:
    """The nodes with a formula that a graph keeps whole; its inputs and outputs are, or are pairs."""

    def __init__(self, g: Graph, in_pairs: bool, may_stay: Callable[[Node], bool]):
        self.outputs = set() if in_pairs else set(g.outputs)
        self.inputs = set() if in_pairs else set(g.inputs)
        self.users: dict[Value, list[Node]] = {}
        for n in g.nodes:
            for v in n.operands:
                self.users.setdefault(v, []).append(n)
        self.kept = {n for n in g.nodes if _touches(n) and may_stay(n)}
        self.fixed = {n for n in g.nodes if _touches(n) and stays_whole(n)}
        self.led: set[Node] = set()  # kept nodes that are followed by one that needs whole tensors
        count = -1
        while count != len(self.kept):  # from back to front for readers, then for operands
            count = len(self.kept)
            self.leave(g.nodes)

    def leave(self, nodes: Sequence[Node]) -> None:
        """Take out what is not read whole, and then what is not made of what is whole."""
        self.led = set()
        for n in reversed(nodes):
            users = self.users.get(n.results[0], []) if n in self.kept else []
            if n in self.kept and not self.is_read_whole(n, users):
                self.kept.remove(n)
            elif any(u in self.fixed or u in self.led for u in users):
                self.led.add(n)
        for n in nodes:
            if n in self.kept and not self.is_made_whole(n):
                self.kept.remove(n)

    def is_whole(self, n: Node | None) -> bool:
        return n is not None and (n in self.kept or n in self.fixed)

    def is_read_whole(self, n: Node, users: Sequence[Node]) -> bool:
        return all(map(self.is_whole, users)) and bool(users or n.results[0] in self.outputs)

    def is_made_whole(self, n: Node) -> bool:
        there = [self.is_whole(v.node) or v in self.inputs for v in n.operands if is_complex(v)]
        return all(there) or (any(there) and n in self.led)


def _may_stay(n: Node) -> bool:
    """Whether a target has something for whole tensors: a kernel, or a view that shows each element once."""
    if n.op.view is not None:
        return not n.op.spreads
    if not is_complex(n.results[0]):
        return False
    return n.op.pairs and is_primitive(n.op.name, n.types, n.params)


def stays_whole(n: Node) -> bool:
    """Whether a node has no formula, or is a loop with such a node in it."""
    if n.op.control:
        return any(map(needs_whole, n.regions))
    return not has_formula(n)


# The graph in pairs --------------------------------------------------------------------------------


class _Splitting:
    """Writes a graph in pairs; its own inputs and outputs stay whole unless `in_pairs`."""

    def __init__(
        self, g: Graph, in_pairs: bool, may_stay: Callable[[Node], bool] | None = None
    ):  # fmt: skip
        self.g, self.in_pairs = g, in_pairs
        self.may_stay = may_stay or _may_stay
        self.kept = _Choice(g, in_pairs, self.may_stay).kept
        self.whole: dict[Value, Value] = {}
        self.pairs: dict[Value, Pair] = {}

    def graph(self, guards: Any = ()) -> Graph:
        g = self.g
        builder = Builder(input_names=g.input_names)
        for v in g.inputs:
            if self.in_pairs and is_complex(v):
                part = v.type.with_dtype(v.dtype.real)
                self.pairs[v] = Pair(builder.input(part, v.device), builder.input(part, v.device))
            else:
                self.whole[v] = builder.input(v.type, v.device)
        with building(builder):
            for n in g.nodes:
                builder.location = n.location
                self.node(n)
            outputs = [x for v in g.outputs for x in self.given(v, self.in_pairs)]
        return Graph(
            builder.inputs, builder.nodes, outputs, g.name, g.input_names, g.captured, guards
        )

    def given(self, v: Value, in_pairs: bool) -> Iterable[Value]:
        """A value as operands: one, or two if it is complex and wanted as a pair."""
        return self.pair(v) if in_pairs and is_complex(v) else (self.at(v),)

    def at(self, v: Value) -> Value:
        """A value as one tensor."""
        if v not in self.whole:
            n = v.node
            if n is not None and n.op in _NUMBERS:
                self.whole[v] = bind(n.op, **n.params)
            else:
                self.whole[v] = complex.bind(*self.pairs[v])
        return self.whole[v]

    def pair(self, v: Value) -> Pair:
        """A complex value as two tensors."""
        if v not in self.pairs:
            x = self.whole[v]
            self.pairs[v] = Pair(real.bind(x), imag.bind(x))
        return self.pairs[v]

    def node(self, n: Node) -> None:
        if n.regions and _has_complex_inside(n):
            self.loop(n)
        elif not _touches(n) or n in self.kept or not has_formula(n):
            out = bind(n.op, *map(self.at, n.operands), regions=n.regions, **n.params)
            self.whole.update(zip(n.results, out if n.op.multiple else (out,), strict=True))
        else:
            self.put(n.results[0], self.formula(n))

    def put(self, v: Value, made: Any) -> None:
        if isinstance(made, Pair):
            self.pairs[v] = made
        else:
            self.whole[v] = made

    # Regions

    def loop(self, n: Node) -> None:
        """A node whose regions have complex tensors: pairs go in and out of them where they can."""
        in_pairs = bool(n.op.control) and not stays_whole(n)
        regions = tuple(_Splitting(r, in_pairs, self.may_stay).graph() for r in n.regions)
        groups = [tuple(self.given(v, in_pairs)) for v in n.operands]
        params = dict(n.params)
        if in_pairs and n.op.control == "scan":
            carry, stop = params["carry"], params["carry"] + params["xs"]
            params["carry"] = sum(map(len, groups[:carry]))
            params["xs"] = sum(map(len, groups[carry:stop]))
        out = bind(n.op, *(x for xs in groups for x in xs), regions=regions, **params)
        made = iter(out if n.op.multiple else (out,))
        for v in n.results:
            self.put(v, Pair(next(made), next(made)) if in_pairs and is_complex(v) else next(made))

    # Formulas

    def formula(self, n: Node) -> Pair | Value:
        xs = [self.pair(v) if is_complex(v) else self.at(v) for v in n.operands]
        op, p = n.op, n.params
        if op is complex.op:
            return Pair(*xs)
        if op in _NUMBERS:
            return _number(n)
        if op.casts:
            return _cast(xs[0], n)
        if op.combine == "mul":
            return _product(self.pair(n.operands[0]), p["axes"])
        body = None if op.combine else op.expr(p)
        if body is not None and body != arg(0):
            made = _evaluate(body, [_as_parts(x) for x in xs])
            return Pair(made.re.value, made.im.value) if isinstance(made, Pair) else made.value
        parts = [bind(op, *(x[i] if isinstance(x, Pair) else x for x in xs), **p) for i in (0, 1)]
        return Pair(*parts)


def _has_complex_inside(n: Node) -> bool:
    return _touches(n) or any(map(has_complex, n.regions))


def _as_parts(x: Pair | Value) -> Any:
    return Pair(Part(x.re), Part(x.im)) if isinstance(x, Pair) else Part(x)


def _evaluate(e: Expr, xs: Sequence[Any]) -> Any:
    """A scalar expression on pairs."""
    if e.op == "arg":
        return xs[e.index]
    return FORMULAS[e.op](*(_evaluate(o, xs) for o in e.operands))


def _number(n: Node) -> Pair:
    """A complex constant as two real ones."""
    p, part = n.params, n.results[0].dtype.real
    if n.op is full.op:
        z = np.asarray(p["value"], n.results[0].dtype.np)
        return Pair(
            *(full.bind(shape=p["shape"], value=float(x), dtype=part) for x in (z.real, z.imag))
        )
    z = p["value"].array
    both = (np.ascontiguousarray(x) for x in (z.real, z.imag))
    return Pair(*(bind(constant.op, value=Constant(x, part)) for x in both))


def _cast(x: Pair | Value, n: Node) -> Pair | Value:
    to = n.results[0].dtype
    if not isinstance(x, Pair):
        return Pair(cast_to(x, to.real), full_of(n.results[0].shape, 0.0, to.real))
    if to.kind == "b":
        return as_bool(Pair(Part(x.re), Part(x.im))).value
    return Pair(*(cast_to(part, to.real) for part in x))


def _product(z: Pair, axes: Sequence[int]) -> Pair:
    """The product over axes, the last one first: halves are multiplied until one element is left."""
    for a in sorted(axes, reverse=True):
        z = _product_over(z, a)
    return z


def _product_over(z: Pair, axis: int) -> Pair:
    shape = z.re.shape
    count = shape[axis]
    rest = (*shape[:axis], *shape[axis + 1 :])
    assert isinstance(count, int), shape
    if count == 0:
        return Pair(full_of(rest, 1.0, z.re.dtype), full_of(rest, 0.0, z.re.dtype))
    odd: list[Pair] = []
    while count > 1:
        half = count // 2
        if count % 2:
            odd.append(_range(z, axis, count - 1, count))
        z = _times(_range(z, axis, 0, half), _range(z, axis, half, 2 * half))
        count = half
    for x in odd:
        z = _times(z, x)
    return Pair(*(reshape(x, rest) for x in z))


def _range(z: Pair, axis: int, start: int, stop: int) -> Pair:
    shape = z.re.shape
    low = tuple(start if i == axis else 0 for i in range(len(shape)))
    high = tuple(stop if i == axis else n for i, n in enumerate(shape))
    return Pair(*(slice_(x, low, high) for x in z))


def _times(x: Pair, y: Pair) -> Pair:
    made = _evaluate(Expr("mul", (arg(0), arg(1))), [_as_parts(x), _as_parts(y)])
    return Pair(made.re.value, made.im.value)
