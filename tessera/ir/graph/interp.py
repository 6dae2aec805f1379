"""The Graph interpreter: every op by its NumPy reference.

An op on a narrow dtype widens its operands to the compute format (the accumulator for folds), runs
its reference there and rounds once at the result; docs/numerics.md states the rule.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from tessera.core.constraints import solve
from tessera.core.dtype import DType, i64
from tessera.core.errors import TesseraError, out_of_memory
from tessera.core.rounding import round_mantissa, round_to
from tessera.core.scalar import SCALARS, Expr, evaluate
from tessera.core.types import TensorType
from tessera.ir.graph.ir import Array, Graph, Value, eager_kernel, run_ops_by, substitute_params
from tessera.ir.graph.numbers import check, checking
from tessera.ir.graph.op import Op, Params

Kernel = Callable[..., Any]
KernelOf = Callable[..., Kernel]  # (op, types, outs, params, regions, env) -> kernel


def wide(op: Op, dtype: DType) -> DType:
    """The format in which op computes on dtype."""
    if op.moves or op.view is not None:
        return dtype
    w = dtype.accum if op.combine is not None and dtype.kind in "iuf" else dtype.compute
    if clamps(op, dtype) and dtype.kind in "iu" and (op.combine is None or w.bits == dtype.bits):
        return i64 if dtype.bits < 64 else dtype  # wide enough to see the overflow
    return w


def clamps(op: Op, dtype: DType) -> bool:
    """Whether op does arithmetic that the policy of dtype clamps; ops on bits alone do not."""
    return (
        dtype.policy.saturate
        and not op.moves
        and op.view is None
        and any("f" in k for k in op.kinds)
    )


def kernel(
    op: Op,
    types: Sequence[TensorType],
    outs: Sequence[TensorType],
    params: Params,
    regions: Sequence[Graph] = (),
    env: dict[str, int] | None = None,
    inner: KernelOf = eager_kernel,
) -> Kernel:
    """The reference: a function from operand arrays to the result array, or to a tuple of them.

    Types and params are those of a call; env gives the symbolic sizes that regions still have, and
    inner the kernels of the nodes in regions.
    """
    f = _reference(op, params, [Region(r, env, inner) for r in regions])
    if types and not op.moves and (not exact(op) or types[0].dtype.kind == "c"):
        f = _packed(f)
    widths = [_wide_format(op, t.dtype) for t in types]
    contracts = op.combine is not None and len(types) > 1
    tf32 = contracts and any(t.dtype.policy.math == "tf32" for t in types)
    if any(w is not None for w in widths) or tf32:
        f = _widened(f, widths, tf32)
    if op.multiple:
        return _many(f, [(t.dtype, clamps(op, t.dtype)) for t in outs])
    return _one(f, outs[0].dtype, bool(types) and clamps(op, outs[0].dtype))


def _reference(op: Op, params: Params, regions: Sequence[Region]) -> Kernel:
    if op.numpy is None:
        body = op.expr(params)
        assert body is not None, f"{op.name} has no reference"
        return lambda *xs: evaluate(body, xs)
    if regions:
        return partial(op.numpy, regions=tuple(regions), **params)
    return partial(op.numpy, **params) if params else op.numpy


def exact(op: Op) -> bool:
    """Whether each element comes from one element of each operand by correctly rounded scalar ops."""
    found = _EXACT.get(op)
    if found is None:
        body = isinstance(op.body, Expr) and _exact_body(op.body)
        found = op.view is not None or (op.combine is None and body)
        _EXACT[op] = found
    return found


_EXACT: dict[Op, bool] = {}


def settled(op: Op, types: Sequence[TensorType], outs: Sequence[TensorType]) -> bool:
    """Whether the bits are the same whoever computes the op: nothing depends on an order or a libm.

    True of what only moves elements, of whole numbers, and of correctly rounded scalar ops.
    """
    if op.moves or op.view is not None or not types:
        return True
    kinds = {t.dtype.kind for t in (*types, *outs)}
    return kinds <= set("bui") or ("c" not in kinds and exact(op))


def _exact_body(e: Expr) -> bool:
    rounds = e.op not in ("arg", "const") and SCALARS[e.op].ulp > 0.5
    return not rounds and all(map(_exact_body, e.operands))


def _packed(f: Kernel) -> Kernel:
    """f on operands in row-major order: NumPy's sums and vector loops depend on strides."""

    def run(*xs: Array) -> Any:
        return f(*[x if x.flags.c_contiguous else x.copy() for x in xs])

    return run


def _wide_format(op: Op, dtype: DType) -> Any:
    w = wide(op, dtype)
    return w.np if w.np != dtype.np else None


def _widened(f: Kernel, widths: Sequence[Any], tf32: bool) -> Kernel:
    def run(*xs: Array) -> Any:
        ys = [x if w is None else x.astype(w) for x, w in zip(xs, widths, strict=True)]
        return f(*([round_mantissa(y, 10) for y in ys] if tf32 else ys))

    return run


def _one(f: Kernel, dtype: DType, clamp: bool) -> Kernel:
    np_dtype = dtype.np
    if clamp:
        return lambda *xs: round_to(np.asarray(f(*xs)), dtype)

    def run(*xs: Array) -> Array:
        y = f(*xs)
        if type(y) is np.ndarray and y.dtype == np_dtype:
            return y
        y = np.asarray(y)
        return y if y.dtype == np_dtype else round_to(y, dtype)

    return run


def _many(f: Kernel, dtypes: Sequence[tuple[DType, bool]]) -> Kernel:
    def run(*xs: Array) -> tuple[Array, ...]:
        return tuple(
            y if y.dtype == d.np and not clamp else round_to(y, d)
            for y, (d, clamp) in zip(map(np.asarray, f(*xs)), dtypes, strict=True)
        )

    return run


class Region:
    """A region at the sizes of a call: a function from arrays to a list of arrays."""

    def __init__(self, g: Graph, env: dict[str, int] | None, kernel_of: KernelOf):
        self._graph, self._env, self._kernel_of = g, env, kernel_of
        self._plan: SlotPlan | None = None
        self.types = [v.type.substitute(env or {}) for v in g.outputs]

    def __call__(self, *xs: Array) -> list[Array]:
        if self._plan is None:
            self._plan = SlotPlan(self._graph, self._env, self._kernel_of)
        return self._plan.run(xs)


class SlotPlan:
    """A graph of static shapes as a list of steps over numbered slots."""

    __slots__ = ("arity", "count", "locations", "nodes", "outputs", "steps")

    def __init__(
        self, g: Graph, env: dict[str, int] | None = None, kernel_of: KernelOf | None = None
    ):
        kernel_of = reference if kernel_of is None else kernel_of
        slots: dict[Value, int] = {v: i for i, v in enumerate(g.inputs)}
        last: dict[int, int] = {}
        self.arity = len(g.inputs)
        self.nodes, self.locations = g.nodes, [n.location for n in g.nodes]
        self.steps: list[tuple[Kernel, tuple[int, ...], int, int, tuple[int, ...]]] = []
        for n in g.nodes:
            for v in n.results:
                slots[v] = len(slots)
        for k, n in enumerate(g.nodes):
            for v in (*n.operands, *n.results):
                last[slots[v]] = k
        self.outputs = tuple(slots[v] for v in g.outputs)
        for k, n in enumerate(g.nodes):
            params = substitute_params(n.params, env) if env else n.params
            types = [v.type.substitute(env or {}) for v in n.operands]
            outs = [v.type.substitute(env or {}) for v in n.results]
            run = kernel_of(n.op, types, outs, params, n.regions, env)
            ins = tuple(slots[v] for v in n.operands)
            dead = tuple(
                s
                for s in {*ins, *(slots[v] for v in n.results)}
                if last[s] == k and s not in self.outputs
            )
            many = len(n.results) if n.op.multiple else -1
            self.steps.append((run, ins, slots[n.results[0]] if n.results else -1, many, dead))
        self.count = len(slots)

    def run(self, inputs: Sequence[Array]) -> list[Array]:
        """The outputs for these inputs."""
        if checking():
            return self._run_checked(inputs)
        env: list[Any] = [None] * self.count
        env[: self.arity] = inputs
        k = 0
        try:
            with np.errstate(all="ignore"):
                for k, (f, ins, out, many, dead) in enumerate(self.steps):  # noqa: B007
                    y = f(*[env[i] for i in ins])
                    if many < 0:
                        env[out] = y
                    else:
                        env[out : out + many] = y
                    for i in dead:
                        env[i] = None
        except TesseraError as e:
            raise e.at(self.locations[k]) from None
        except MemoryError as e:
            raise out_of_memory(self.nodes[k].op.name, e).at(self.locations[k]) from None
        return [env[i] for i in self.outputs]

    def each(self, inputs: Sequence[Array]) -> Iterator[list[Array]]:
        """The results of every node, one node after the other."""
        env: list[Any] = [None] * self.count
        env[: self.arity] = inputs
        for f, ins, out, many, dead in self.steps:
            y = quietly(f, [env[i] for i in ins])
            ys = [y] if many < 0 else list(y)
            env[out : out + len(ys)] = ys
            for i in dead:
                env[i] = None
            yield ys

    def _run_checked(self, inputs: Sequence[Array]) -> list[Array]:
        """As run, but every result is looked at; a region looks at its own."""
        env: list[Any] = [None] * self.count
        env[: self.arity] = inputs
        for n, (f, ins, out, many, _) in zip(self.nodes, self.steps, strict=True):
            xs = [env[i] for i in ins]
            try:
                y = quietly(f, xs)
            except TesseraError as e:
                raise (e if n.regions else e.at(n.location)) from None
            except MemoryError as e:
                raise out_of_memory(n.op.name, e).at(n.location) from None
            ys = [y] if many < 0 else list(y)
            env[out : out + len(ys)] = ys
            if not n.regions:
                check(n.op.name, xs, ys, [v.type for v in n.results], n.types, n.location)
        return [env[i] for i in self.outputs]


def reference(
    op: Op,
    types: Sequence[TensorType],
    outs: Sequence[TensorType],
    params: Params,
    regions: Sequence[Graph] = (),
    env: dict[str, int] | None = None,
) -> Kernel:
    """The reference of an op, and of the ops in its regions."""
    return kernel(op, types, outs, params, regions, env, reference)


def specialise(
    g: Graph, shapes: Sequence[tuple[int, ...]], kernel_of: KernelOf = reference
) -> SlotPlan:
    """The plan of a graph with symbolic sizes at the sizes of a call."""
    names = [
        g.input_names[i] if i < len(g.input_names) else f"input {i}" for i in range(len(g.inputs))
    ]
    env = solve(
        [(n, v.type.shape, s) for n, v, s in zip(names, g.inputs, shapes, strict=True)], g.guards
    )
    return SlotPlan(g, env, kernel_of)


def interpret(g: Graph, inputs: Sequence[Array], kernel_of: KernelOf = reference) -> list[Array]:
    """The outputs of a graph by the references of its ops; captured tensors need not be given."""
    xs = [*inputs, *(v.storage for v in g.captured if v.storage is not None)]
    plan = (
        SlotPlan(g, None, kernel_of)
        if g.static
        else specialise(g, [np.shape(x) for x in xs], kernel_of)
    )
    return plan.run(xs)


def execute(g: Graph, inputs: Sequence[Array]) -> list[Array]:
    """The outputs of a graph, op by op as eager code runs them."""
    return interpret(g, inputs, eager_kernel)


run_ops_by(kernel)


def quietly(f: Kernel, xs: Sequence[Array]) -> Any:
    """A kernel on arrays, without NumPy's warnings."""
    with np.errstate(all="ignore"):
        return f(*xs)


def contiguous(x: Array) -> Array:
    """An array in row-major order."""
    return x if x.flags.c_contiguous else np.ascontiguousarray(x)
