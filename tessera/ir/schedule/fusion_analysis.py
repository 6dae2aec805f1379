"""What of a graph is a loop nest, what it costs, and who wants it: the questions that lowering asks."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from tessera.core.dtype import FORMATS, DType, Policy
from tessera.core.evaluate import is_portable
from tessera.core.scalar import Expr, arg, product
from tessera.ir.graph.ir import Graph, Node, Value
from tessera.ir.schedule.views import is_layout_view, is_nest_view, is_simple_view, keeps_order

# What a scalar op costs beside an addition.
# About how many operations a scalar op takes, where it is not 1.
COST = {"exp": 12, "log": 12, "tanh": 16, "erf": 20, "erfc": 24, "sin": 14, "cos": 14, "pow": 30, "div": 4,
         "sqrt": 4, "sigmoid": 16, "rsqrt": 6, "expm1": 14, "log1p": 14,
         "lgamma": 100, "digamma": 80, "gamma": 120, "erfinv": 100, "erfcinv": 100,
         "philox_low": 60, "philox_high": 60}  # fmt: skip
_PICK = 6  # elements that are read one by one
DEEP = 100  # ops of a term, one within another: passes call themselves for each
LONG = 400  # cost of a term at most: compilers take more than twice as long for twice as much
_KINDS = FORMATS.keys() - {"c64", "c128"}


class Questions:
    """A graph, and which of its values exist on their own so far."""

    def __init__(self, g: Graph):
        self.g = g
        self.returned = set(g.outputs)
        self.users: dict[Value, list[Node]] = {}
        for n in g.nodes:
            for v in n.operands:
                self.users.setdefault(v, []).append(n)
        self.names: dict[Value, str] = {}  # values that exist on their own
        self.costs: dict[Value, int] = {}
        self.depths: dict[Value, int] = {}
        self.traffic: dict[Value, frozenset[Value]] = {}
        self.nests: dict[Node, bool] = {}
        self.simple: dict[Node, bool] = {}

    def is_loop_nest(self, n: Node) -> bool:
        """Whether a node is computed point by point, or folds points; asked once for every user."""
        if n not in self.nests:
            self.nests[n] = self.nests_loops(n)
        return self.nests[n]

    def nests_loops(self, n: Node) -> bool:
        if len(n.results) != 1 or n.regions:
            return False
        dtypes = [v.dtype for v in (*n.operands, *n.results)]
        if not all(is_held(d) for d in dtypes):
            return False
        if n.op.moves and not n.op.casts and any(d is not d.base for d in dtypes):
            return False
        if n.op.makes:
            return n.op.makes != "data" or n.results[0].ndim == 0
        if n.op.view is not None:
            return is_nest_view(n)
        if n.op.pick is not None:
            return 0 not in n.operands[0].shape
        if self.is_contraction(n):
            return True
        if n.op.combine is not None:
            return n.op.body == arg(0) and len(n.params.get("axes", ())) > 0
        body = n.op.expr(n.params)
        return body is not None and is_portable(body, dtypes[-1])

    def is_simple_view(self, n: Node) -> bool:
        """Whether a node is a view that shows elements along axes, moved by constants."""
        if n not in self.simple:
            self.simple[n] = n.op.view is not None and is_simple_view(n)
        return self.simple[n]

    def is_contraction(self, n: Node) -> bool:
        """A product of two tensors summed over one axis, with one axis of each left over."""
        if n.op.combine != "add" or len(n.operands) != 2 or n.results[0].dtype.kind not in "uif":
            return False
        sig = n.op.sig(n.types, n.params)
        if sig is None or n.op.expr(n.params) != product(2):
            return False
        sig = sig.spell(n.op.name, n.types)
        (left, right), out = sig.ins, sig.out
        repeated = any(len(set(a)) != len(a) for a in (left, right, out))
        if repeated or len(out) < 2 or set(out) - set(left) - set(right):
            return False
        only = [
            [a for a in out if a in x and a not in y] for x, y in ((left, right), (right, left))
        ]
        return (
            len(sig.reduced) == 1
            and all(len(o) == 1 for o in only)
            and {*out[-2:]} == {only[0][0], only[1][0]}
        )

    def is_pointwise(self, n: Node) -> bool:
        """Whether a node computes each element from those at its place."""
        same = n.op.view is None and n.op.pick is None and n.op.combine is None
        return same and bool(n.operands) and self.is_loop_nest(n)

    def is_narrow_factor(self, v: Value) -> bool:
        """Whether contractions read a computed value at more bits than it has: they make those themselves."""
        n = v.node
        return (
            n is not None
            and n.op.view is None
            and any(
                u.op.casts
                and u.results[0].dtype.bits > v.dtype.bits
                and any(self.is_contraction(w) for w in self.users.get(u.results[0], []))
                for u in self.users.get(v, [])
            )
        )

    def is_picked(self, v: Value) -> bool:
        """Whether somebody reads a value at places that are data; casts happen to what was picked."""
        return any(
            u.op.pick is not None and u.operands[0] is w
            for w in self.onward(v, lambda u: u.op.casts)
            for u in self.users.get(w, [])
        )

    def is_spread(self, v: Value) -> bool:
        """Whether a value is wanted in more places than it has elements."""
        shown = self.onward(v, lambda u: u.op.view is not None)
        return any(u.op.spreads for w in shown for u in self.users.get(w, []))

    def onward(self, v: Value, follow: Callable[[Node], bool]) -> Iterator[Value]:
        """A value, and what the users of it to be followed make of it, one after another."""
        seen, waiting = {v}, [v]
        while waiting:
            w = waiting.pop()
            yield w
            made = dict.fromkeys(u.results[0] for u in self.users.get(w, []) if follow(u))
            waiting += (x for x in made if x not in seen)
            seen.update(made)

    def closes(self, v: Value) -> bool:
        """Whether a value is the last that follows a product point by point, no wider than it.

        Nothing of the product is wanted beside it, and it is wanted in another place or more than once.
        """
        users = self.users.get(v, [])
        ends = len(users) != 1 or not self.is_pointwise(users[0])
        return ends and self.is_led(v, v.dtype.bits)

    def is_led(self, v: Value, bits: int) -> bool:
        """Whether a value is computed point by point from a product that nobody else wants."""
        n = v.node
        if n is None or not self.is_pointwise(n):
            return False
        return any(
            x.shape == v.shape and len(self.users[x]) == 1 and x not in self.returned
            and (
                self.is_contraction(x.node) and x.dtype.bits >= bits if x in self.names
                else self.is_led(x, bits)
            )
            for x in n.operands
            if x.node is not None
        )  # fmt: skip

    def tensors(self, v: Value) -> frozenset[Value]:
        """The tensors in memory that an inlined value reads, those of the size of a row or less left out."""
        if v in self.names:
            return frozenset([v] if v.type.rank > 1 else [])
        if v not in self.traffic:
            operands = () if v.node is None else v.node.operands
            self.traffic[v] = frozenset().union(*map(self.tensors, operands))
        return self.traffic[v]

    def readers(self, v: Value) -> list[Node]:
        """The nodes that compute with a value, through views too."""
        found = (u for w in self.onward(v, self.is_shown_by) for u in self.users.get(w, []))
        return [u for u in found if not self.is_shown_by(u)]

    def is_shown_by(self, n: Node) -> bool:
        """Whether a node is a view that kernels read through."""
        return n.op.view is not None and self.is_loop_nest(n)

    def is_readable(self, v: Value) -> bool:
        """Whether an element is a term of tensors in memory alone, and one that a kernel can have: no fold on
        the way has yet to run.
        """
        depths: dict[Value, int] = {}
        ops: dict[Value, int] = {}  # of its term, where a value that is read twice counts twice
        waiting = [v]  # operands last: Python's stack is shorter than a model
        while waiting:
            w = waiting[-1]
            n = w.node
            if w in self.names:
                depths[w] = ops[w] = 0
            elif n is None or not self.is_computed_in_place(w, n):
                return False
            elif missing := [x for x in n.operands if x not in depths]:
                waiting += missing
                continue
            else:
                depths[w] = 1 + max((depths[x] for x in n.operands), default=0)
                ops[w] = 1 + sum(ops[x] for x in n.operands)
                if depths[w] > DEEP or ops[w] > LONG:
                    return False
            waiting.pop()
        return True

    def is_computed_in_place(self, v: Value, n: Node) -> bool:
        """Whether who reads the result v of a node can compute its elements from those of the operands."""
        if n.op.pick is not None:  # at places that follow from tensors that exist
            return n.operands[0] in self.names
        same = n.op.combine is None and all(x.shape == v.shape for x in n.operands)
        return n.op.view is not None or (same and self.is_loop_nest(n))

    def is_layout(self, n: Node) -> bool:
        """A view of a tensor in memory, or a copy of it."""
        there = n.op.view is not None and all(v in self.names for v in n.operands)
        return there and is_layout_view(n)

    def is_copied(self, n: Node) -> bool:
        """Whether a view in another order than memory is reshaped, which needs a copy of it."""
        users = self.users.get(n.results[0], [])
        whole = any(u.op.view is not None and not self.is_loop_nest(u) for u in users)
        return whole and not keeps_order(n)

    def cost(self, n: Node) -> int:
        own = COST.get(n.op.body.op, 1) if isinstance(n.op.body, Expr) else 0
        by_element = n.op.pick is not None or (n.op.view is not None and not self.is_simple_view(n))
        own += _PICK if by_element else 0
        return own + sum(0 if v in self.names else self.costs.get(v, 0) for v in n.operands)

    def depth(self, n: Node) -> int:
        """How many ops of what a node computes from tensors in memory are one within another."""
        return 1 + max((0 if v in self.names else self.depths[v] for v in n.operands), default=0)


def is_held(d: DType) -> bool:
    """Whether kernels have a dtype: its own, or that of a narrow float that saturates."""
    saturates = d.kind == "f" and d.is_narrow and d.policy == Policy(saturate=True)
    return d.name in _KINDS and (d is d.base or saturates)
