"""Random typed graphs, for the laws that every transform and every level must keep.

`programs()` is a Hypothesis strategy.  A program is a graph and inputs for it: many ops, dtypes and
policies, sizes 0, 1 and primes, sometimes symbolic sizes, calls of nested graphs, and data with NaN,
infinities, signed zeros and extreme integers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
from hypothesis import strategies as st

from tessera import bool_, c64, f8e4m3, i4, i8, i32, i64, op, u8
from tessera.core.constraints import Scope, current_scope, scope
from tessera.core.dims import substitute, symbol
from tessera.core.dtype import DType, accum, bf16, f16, f32, f64, saturate, stochastic_round, tf32
from tessera.core.errors import TesseraError
from tessera.core.evaluate import is_portable
from tessera.core.scalar import Expr
from tessera.core.types import TensorType
from tessera.ir.graph.interp import interpret
from tessera.ir.graph.ir import Builder, Graph, Value, building, concrete, current_builder
from tessera.ir.graph.op import REGISTRY
from tessera.ops.control import call
from tessera.ops.define import FUNCTIONS

DTYPES = (
    f32, f32, f64, bf16, f16, bool_, i32, i64, i8, u8, i4, f8e4m3, c64, tf32,
    bf16 @ accum(bf16), f16 @ saturate, i8 @ saturate, bf16 @ stochastic_round,
)  # fmt: skip
SIZES = (0, 1, 1, 2, 3, 5)
LARGEST = 2000  # elements of any value


@dataclass(frozen=True)
class Program:
    """A graph and data to run it on."""

    graph: Graph
    inputs: list[Any]

    def run(self) -> list[Any]:
        """The outputs by the interpreter."""
        return interpret(self.graph, self.inputs)

    def __repr__(self) -> str:
        return f"{self.graph.text}\n{self.inputs}"


def same_bits(xs: Sequence[Any], ys: Sequence[Any]) -> bool:
    """Whether arrays have the same dtypes, shapes and bits; any NaN equals any NaN."""
    return len(xs) == len(ys) and all(map(_same_bits, xs, ys))


def _same_bits(x: Any, y: Any) -> bool:
    if x.dtype != y.dtype or x.shape != y.shape:
        return False
    if x.dtype.kind == "c":
        return _same_bits(x.real, y.real) and _same_bits(x.imag, y.imag)
    raw = [np.array(v, order="C").reshape(-1).view(f"u{x.dtype.itemsize}") for v in (x, y)]
    equal = raw[0] == raw[1]
    if x.dtype.kind == "f" or x.dtype.name in ("bfloat16", "float8_e4m3fn", "float8_e5m2"):
        with np.errstate(invalid="ignore"):  # of signalling NaNs
            equal |= np.isnan(x.reshape(-1)) & np.isnan(y.reshape(-1))
    return bool(equal.all())


def data_for(t: TensorType, rng: np.random.Generator) -> Any:
    """Random elements, a third of them special."""
    d: Any = t.dtype
    if d.kind == "b":
        return rng.random(t.shape) < 0.5
    if d.kind in "iu":
        info = ml_dtypes.iinfo(d.np)
        some = [0, 1, 2, int(info.max), int(info.min)] + ([-1] if d.kind == "i" else [])
        plain = rng.integers(max(-7, int(info.min)), 7, t.shape)
        picked = np.array(some, object)[rng.integers(0, len(some), t.shape)]
        out = np.where(rng.random(t.shape) < 0.3, picked, plain)
        return out.astype(np.uint64 if d.kind == "u" else np.int64).astype(d.np)
    if d.kind == "c":
        parts = [data_for(TensorType(d.real, t.shape), rng) for _ in range(2)]
        return np.stack(parts, -1).view(d.np).reshape(t.shape)
    top = float(ml_dtypes.finfo(d.np).max)
    some = [0.0, -0.0, 1.0, -1.0, np.nan, np.inf, -np.inf, top, -top, 1e-40, 0.5]
    picked = np.array(some)[rng.integers(0, len(some), t.shape)]
    with np.errstate(all="ignore"):
        return np.where(rng.random(t.shape) < 0.3, picked, rng.normal(size=t.shape) * 2).astype(
            d.np
        )


# Steps: each draws operands and binds ops ----------------------------------------------------

WITH_PARAMETERS = {
    "cast",
    "checkpoint_name",
    "polygamma",
    "threshold",
    "loggamma_slope",
    "prelu",
    "complex",
    "pow",
}


def _names(signature: str) -> dict[str, list[str]]:
    """Elementwise ops of this signature by the kind of dtype that they take."""
    ops = [o for o in REGISTRY.values() if o.signature == signature and o.name in FUNCTIONS]
    return {
        kind: [
            o.name for o in ops
            if o.name not in WITH_PARAMETERS and isinstance(o.kinds, str) and kind in o.kinds
        ]
        for kind in "buifc"
    }  # fmt: skip


def _is_loop(name: str) -> bool:
    """Whether an op is a scalar body that every target has, or made of other ops."""
    o = REGISTRY[name]
    return o.decompose is not None or (isinstance(o.body, Expr) and is_portable(o.body, f32))


UNARY = _names("... -> ...")
BINARY = _names("..., ... -> ...")
NUMBERS = {
    "f": (0.0, -0.0, 1.0, -1.0, 2.0, 0.5, -4.0, 3.0, float("nan"), float("inf"), 1, 0, -1, True),
    "c": (0.0, 1.0, 1j, complex(-0.0, -0.0)),
    "i": (0, 1, -1, 2, 3),
    "u": (0, 1, 2, 3),
    "b": (True, False),
}


class Steps:
    """Draws one op after another into the open builder."""

    dtypes = DTYPES
    sizes = SIZES
    unary_names, binary_names = UNARY, BINARY

    def __init__(self, draw: Callable[[Any], Any], values: list[Value], env: dict[str, int]):
        self.draw, self.values, self.env = draw, values, env

    def pick(self, choices: Sequence[Any]) -> Any:
        return self.draw(st.sampled_from(choices))

    def value(self, wanted: Callable[[Value], bool] = lambda v: True) -> Value | None:
        fitting = [v for v in self.values if wanted(v)]
        return self.pick(fitting) if fitting else None

    def partner(self, x: Value) -> Any:
        """Another operand for x: a value of its dtype, or a number."""
        others = [v for v in self.values if v.dtype is x.dtype]
        if self.draw(st.booleans()):
            return self.pick(others)
        return self.pick(NUMBERS[x.dtype.kind])

    def axes(self, x: Value) -> tuple[int, ...]:
        return tuple(a for a in range(x.ndim) if self.draw(st.booleans()))

    def unary(self) -> Any:
        x = self.value()
        f = FUNCTIONS[self.pick(self.unary_names[x.dtype.kind])]
        return f(f(x)) if self.draw(st.booleans()) else f(x)

    def binary(self) -> Any:
        x = self.value()
        y = self.partner(x)
        f = FUNCTIONS[self.pick(self.binary_names[x.dtype.kind])]
        return f(x, y) if self.draw(st.booleans()) else f(y, x)

    def arithmetic(self) -> Any:
        x = self.value(lambda v: v.dtype.kind != "b")
        if x is None:
            return None
        y = self.partner(x)
        f = FUNCTIONS[self.pick(("add", "sub", "mul") + ("div",) * (x.dtype.kind in "fc"))]
        return f(x, y) if self.draw(st.booleans()) else f(y, x)

    def power(self) -> Any:
        x = self.value(lambda v: v.dtype.kind in "uif")
        return None if x is None else op.pow(x, self.pick((0, 1, 2, 3)))

    def select(self) -> Any:
        x = self.value()
        c = self.value(lambda v: v.dtype.kind == "b")
        return op.where(self.draw(st.booleans()) if c is None else c, x, self.partner(x))

    def cast(self) -> Any:
        x = self.value(lambda v: v.dtype.kind != "c")
        if x is None:
            return None
        y = op.cast(x, self.pick(self.dtypes))
        return op.cast(y, x.dtype) if self.draw(st.booleans()) and y.dtype.kind != "c" else y

    def fold(self) -> Any:
        names = {
            "f": "sum prod max min mean var logsumexp",
            "b": "any all max",
            "c": "sum prod mean",
        }
        x = self.value()
        f = FUNCTIONS[self.pick(names.get(x.dtype.kind, "sum prod max min").split())]
        return f(x, self.axes(x) or None, self.draw(st.booleans()))

    def transpose(self) -> Any:
        x = self.value(lambda v: v.ndim > 0)
        if x is None:
            return None
        y = op.transpose(x, self.draw(st.permutations(range(x.ndim))))
        return op.transpose(y) if self.draw(st.booleans()) else y

    def reshape(self) -> Any:
        x = self.value()
        flat = op.reshape(x, (x.type.size,))
        return op.reshape(flat, (1, *x.shape)) if self.draw(st.booleans()) else flat

    def broadcast(self) -> Any:
        x = self.value(lambda v: v.ndim < 3)
        return None if x is None else op.broadcast_to(x, (self.pick((0, 1, 3)), *x.shape))

    def flip(self) -> Any:
        x = self.value()
        y = op.flip(x, self.axes(x)) if x.ndim else x
        return op.flip(y, self.axes(x)) if x.ndim and self.draw(st.booleans()) else y

    def slice(self) -> Any:
        x = self.value(lambda v: v.ndim > 0 and v.type.static)
        for _ in range(1 + self.draw(st.booleans())):
            if x is None:
                return None
            ends = [sorted(self.draw(st.tuples(*[st.integers(0, n)] * 2))) for n in x.shape]
            steps = [self.pick((1, 1, 2, 3)) for _ in ends]
            x = op.slice_(x, [a for a, _ in ends], [b for _, b in ends], steps)
        return x

    def concat(self) -> Any:
        x = self.value(lambda v: v.ndim > 0)
        if x is None:
            return None
        others = [v for v in self.values if v.type.shape == x.type.shape and v.dtype is x.dtype]
        parts = [self.pick(others) for _ in range(self.draw(st.integers(1, 3)))]
        return op.concat(parts, self.pick(range(x.ndim)))

    def pad(self) -> Any:
        x = self.value(lambda v: v.dtype.kind in "if")
        return None if x is None else op.pad(x, self.pick((0, 1, 2)), self.pick((0, 1)))

    def create(self) -> Any:
        dtype: DType = self.pick(self.dtypes)
        shape = self.value().shape
        if self.draw(st.booleans()) and len(shape) and dtype.kind in "if":
            return op.iota(shape, self.pick(range(len(shape))), dtype)
        return op.full(shape, self.pick(NUMBERS[dtype.kind]), dtype)

    def constant(self) -> Any:
        dtype: DType = self.pick(self.dtypes)
        shape = tuple(self.pick(self.sizes) for _ in range(self.draw(st.integers(0, 2))))
        rng = np.random.default_rng(self.draw(st.integers(0, 99)))
        data = data_for(TensorType(dtype, shape), rng)
        return op.stop_gradient(concrete(data, dtype))

    def matmul(self) -> Any:
        x = self.value(lambda v: v.ndim >= 2 and v.dtype.kind != "b")
        return None if x is None else op.matmul(x, op.matrix_transpose(x))

    def call(self) -> Any:
        operands = [self.value() for _ in range(self.draw(st.integers(1, 2)))]
        inner = Builder(current_builder())
        with building(inner):
            values = [inner.input(v.type) for v in operands]
            steps = type(self)(self.draw, values, self.env)
            steps.run(self.draw(st.integers(1, 3)), nested=True)
            outs = steps.outputs()
            region, outer = inner.finish(outs, "inner")
        return call(region, *operands, *outer, name="inner")

    def kinds(self, nested: bool) -> list[Callable[[], Any]]:
        return [
            self.unary, self.binary, self.arithmetic, self.power, self.select, self.cast, self.fold,
            self.transpose, self.reshape, self.broadcast, self.flip, self.slice, self.concat,
            self.pad, self.create, self.constant, self.matmul, *([] if nested else [self.call]),
        ]  # fmt: skip

    def run(self, count: int, nested: bool = False) -> None:
        """Draw this many steps; one that does not fit, or is too large, leaves no trace."""
        kinds = self.kinds(nested)
        for _ in range(count):
            made = self._attempt(self.pick(kinds))
            self.values += [v for v in made if isinstance(v, Value)]

    def _attempt(self, step: Callable[[], Any]) -> tuple[Any, ...]:
        builder, facts = current_builder(), current_scope()
        before = len(builder.nodes), dict(builder.captures), dict(facts.equal), len(facts.guards)
        try:
            made = step()
        except TesseraError:
            made = None
        out = made if isinstance(made, tuple) else (made,)
        fits = all(v is None or self._size(v) <= LARGEST for v in out)
        if made is None or not fits or not all(g.holds(self.env) for g in facts.guards):
            del builder.nodes[before[0] :], facts.guards[before[3] :]
            builder.captures, facts.equal = before[1], before[2]
            return ()
        return out

    def _size(self, v: Value) -> int:
        return int(np.prod([substitute(s, self.env) for s in v.shape], dtype=np.int64))

    def outputs(self) -> list[Value]:
        chosen = [self.pick(self.values) for _ in range(self.draw(st.integers(0, 2)))]
        return [self.values[-1], *chosen]


class LoopSteps(Steps):
    """Steps that the compiler makes loop nests of, so that they meet in kernels."""

    dtypes = (f32, f32, f64, bf16, f16, bool_, i32, i64, i8, u8)
    sizes = (0, 1, 2, 3, 7, 17, 33)
    unary_names, binary_names = (
        {kind: [n for n in names if kind in "bui" or _is_loop(n)] for kind, names in table.items()}
        for table in (UNARY, BINARY)
    )

    def kinds(self, nested: bool) -> list[Callable[[], Any]]:
        views = [self.transpose, self.broadcast, self.slice]
        return [
            self.unary, self.binary, self.arithmetic, self.select, self.cast, self.fold, self.fold,
            self.fold, *views, self.create, self.matmul,
        ]  # fmt: skip


@st.composite
def programs(draw: Any, most: int = 10, steps_class: type[Steps] = Steps) -> Program:
    """Random programs of up to this many steps."""
    env = {"N": draw(st.integers(1, 4)), "M": draw(st.integers(1, 3))}
    named = [symbol("N"), symbol("M"), symbol("N") * 2 + 1] if draw(st.booleans()) else []
    # Every symbol must be the size of some axis, so that a call can tell what it is.
    types = [TensorType(f32, (symbol("N"), symbol("M")))] if named else []
    for _ in range(draw(st.integers(1, 3))):
        shape = tuple(
            draw(st.sampled_from((*steps_class.sizes, *named)))
            for _ in range(draw(st.integers(0, 3)))
        )
        types.append(TensorType(draw(st.sampled_from(steps_class.dtypes)), shape))
    builder, facts = Builder(input_names=[f"x{i}" for i in range(len(types))]), Scope()
    with scope(facts), building(builder):
        steps = steps_class(draw, [builder.input(t) for t in types], env)
        steps.run(draw(st.integers(1, most)))
        graph, _ = builder.finish(steps.outputs(), "random", facts.guards)
    rng = np.random.default_rng(draw(st.integers(0, 2**16)))
    return Program(graph, [data_for(t.substitute(env), rng) for t in types])
