"""The cases of the generated tests: every sample of every op and public function, with operands.

A parameter annotated ArrayLike (or a sequence or tree of them) is an operand: a tuple of sizes there is a
shape to draw values for, an array stands for itself.  Every other argument is a parameter.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np

import tessera as ts
import tessera.ops
from tessera.core.dtype import DType, as_dtype, f64
from tessera.core.rounding import round_to
from tessera.core.types import TensorType
from tessera.ir.graph.interp import kernel
from tessera.ir.graph.ir import Graph, Node, Value, concrete
from tessera.ir.graph.op import REGISTRY, Op, Sample
from tessera.lang.trace import trace
from tessera.ops.define import ArrayLike, OpFunction
from tests.support.cases.function_samples import DOMAINS, SAMPLES

Array = np.ndarray[Any, np.dtype[Any]]
DOMAIN = (-2.0, 2.0)


@dataclass(frozen=True, eq=False)
class Slot:
    """One operand of a case: a shape to draw, or an array."""

    shape: tuple[int, ...]
    kinds: str
    given: Array | None = None


@dataclass(frozen=True, eq=False)
class Case:
    """One call of a public function, its operands taken out."""

    name: str
    function: Callable[..., Any]
    op: Op | None  # None: a function written with other ops
    args: tuple[Any, ...]  # with Slots where operands go
    kwargs: dict[str, Any]
    label: str
    slots: list[Slot] = field(default_factory=list)

    def __str__(self) -> str:
        return f"{self.name}-{self.label}"

    @property
    def domain(self) -> tuple[float, float]:
        """Where values are drawn from."""
        return self.op.domain if self.op is not None else DOMAINS.get(self.name, DOMAIN)

    def draw(self, dtype: DType = f64, seed: int = 0) -> list[Array]:
        """The operands: drawn ones in this dtype where the op takes its kind."""
        rng = np.random.default_rng([seed, zlib.crc32(str(self).encode())])
        return [
            draw(s.shape, _fitting(dtype, s.kinds), self.domain, rng)
            if s.given is None
            else s.given
            for s in self.slots
        ]

    def call(self, xs: Sequence[Any]) -> Any:
        """The function on these operands."""
        operands = iter(xs)
        args = [_fill(a, operands) for a in self.args]
        kwargs = {k: _fill(v, operands) for k, v in self.kwargs.items()}
        return self.function(*args, **kwargs)

    def run(self, xs: Sequence[Any]) -> list[Value]:
        """The results on these operands, flat."""
        return [v for v in ts.tree.leaves(self.call(xs)) if isinstance(v, Value)]

    def trace(self, types: Sequence[TensorType]) -> Graph:
        """The graph for operands of these types."""
        blank = [np.zeros(())] * len(types)
        return trace(self.run, (blank,), {}, types, self.name).graph


def draw(
    shape: tuple[int, ...], dtype: DType, domain: tuple[float, float], rng: np.random.Generator
) -> Array:
    """Values of a dtype from an interval."""
    x: Any = np.asarray(rng.uniform(*domain, size=shape))
    if dtype.kind == "b":
        return np.asarray(rng.uniform(size=shape) < 0.5)
    if dtype.kind in "iu":
        return round_to(np.abs(np.rint(x)) if dtype.kind == "u" else np.rint(x), dtype)
    if dtype.kind == "c":
        x = x + 1j * rng.uniform(*domain, size=shape)
    return round_to(np.asarray(x), dtype)


def _fitting(dtype: DType, kinds: str) -> DType:
    """dtype, or the widest one of a kind that the operand takes."""
    if dtype.kind in kinds:
        return dtype
    return as_dtype({"f": "f64", "c": "c128", "i": "i64", "u": "u64", "b": "bool"}[_best(kinds)])


def _best(kinds: str) -> str:
    return next(k for k in "ficub" if k in kinds)


def _fill(x: Any, operands: Iterator[Any]) -> Any:
    if isinstance(x, Slot):
        return next(operands)
    if isinstance(x, list):
        return [_fill(v, operands) for v in x]
    return x


# From samples to cases --------------------------------------------------------------------------


def case_of(name: str, function: Callable[..., Any], op: Op | None, sample: Sample) -> Case:
    """The case that a sample stands for."""
    front = inspect.unwrap(function)
    parameters = list(inspect.signature(front).parameters.values())
    slots: list[Slot] = []

    def take(p: inspect.Parameter, x: Any) -> Any:
        return _take(x, op, slots) if _is_operand(p) else x

    args = []
    for i, x in enumerate(sample.operands):
        p = parameters[min(i, len(parameters) - 1)]
        args.append(take(p, x))
    named = {p.name: p for p in parameters}
    kwargs = {k: take(named[k], v) if k in named else v for k, v in sample.kwargs.items()}
    return Case(name, function, op, tuple(args), kwargs, _label(sample), slots)


def _is_operand(p: inspect.Parameter) -> bool:
    text = str(p.annotation)
    return any(t in text for t in ("ArrayLike", "Value", "Tree")) and "Callable" not in text


def _take(x: Any, op: Op | None, slots: list[Slot]) -> Any:
    if isinstance(x, list):
        return [_take(v, op, slots) for v in x]
    given = x.numpy() if isinstance(x, ts.Tensor) else x if isinstance(x, np.ndarray) else None
    drawn = isinstance(x, tuple) and all(isinstance(n, int) for n in x)
    if given is None and not drawn:
        return x
    kinds = "buifc" if op is None else op.kinds
    mine = kinds if isinstance(kinds, str) else kinds[min(len(slots), len(kinds) - 1)]
    slots.append(Slot(given.shape if given is not None else x, mine, given))
    return slots[-1]


def _label(sample: Sample) -> str:
    parts = [_word(o) for o in sample.operands]
    return ",".join(parts + [f"{k}={_word(v)}" for k, v in sample.kwargs.items()]) or "call"


def _word(x: Any) -> str:
    if isinstance(x, np.ndarray | Value):
        return f"{as_dtype(x.dtype)}[{','.join(map(str, x.shape))}]"
    if isinstance(x, list):
        return "+".join(map(_word, x))
    if callable(x):
        return getattr(x, "__name__", type(x).__name__)
    return str(x).replace(" ", "")


# What there is ----------------------------------------------------------------------------------


def public_functions() -> dict[str, Callable[..., Any]]:
    """Every public function of every module of tessera.ops, found by looking.

    Two functions of one name go by module.name.
    """
    found: dict[str, dict[str, Callable[..., Any]]] = {}
    for module in pkgutil.walk_packages(tessera.ops.__path__, "tessera.ops."):
        m = importlib.import_module(module.name)
        for name in getattr(m, "__all__", ()):
            f = getattr(m, name)
            if callable(f):
                found.setdefault(name, {})[f.__module__.rpartition(".")[2]] = f
    return {
        name if len(homes) == 1 else f"{home}.{name}": f
        for name, homes in found.items()
        for home, f in homes.items()
    }


def _captures(x: ArrayLike) -> Any:
    return ts.op.add(x, np.arange(3.0))


def _calls(x: ArrayLike) -> Any:
    return ts.jit(lambda y: ts.op.mul(y, y))(x)


@ts.custom_jvp
def _own_sine(x: Any) -> Any:
    return ts.op.sin(x)


@_own_sine.defjvp
def _own_cosine(primals: Any, tangents: Any) -> Any:
    (x,), (t,) = primals, tangents
    return ts.op.sin(x), ts.op.cos(x) * t


def _customised(x: ArrayLike) -> Any:
    return _own_sine(x)


@ts.checkpoint
def _own_tanh(x: Any) -> Any:
    return ts.op.tanh(x)


def _checkpointed(x: ArrayLike) -> Any:
    return _own_tanh(x)


@ts.kernel
def _own_square(x: ts.KTile["N"]) -> Any:
    t = ts.tile.load(x)
    return t * t


def _tiled(x: ArrayLike) -> Any:
    return _own_square(x)


def _vectors(a: Any) -> Any:
    """What does not depend on the signs of eigenvectors."""
    return ts.op.abs(ts.op.eigh(a)[1])


def _polar(a: Any) -> Any:
    u, _, vh = ts.op.svd(a)
    return u @ vh


def _moved(f: Callable[[Any], Any]) -> Callable[[ArrayLike], Any]:
    return lambda x: ts.jvp(f, (x,), (x,))[1]


def _linear(x: ArrayLike) -> Any:
    return ts.linearize(_polar, x)[1](x)


def _pulled(x: ArrayLike) -> Any:
    y, back = ts.vjp(_vectors, x)
    return back(y)[0]


_MATRIX = np.array([[3.0, 0.5, 0.25], [0.5, 2.0, -0.75], [0.25, -0.75, -1.0]])

# Ops that no public function of their own binds on operands: a function whose trace holds the op.
THROUGH: dict[str, tuple[Callable[..., Any], Sample]] = {
    "constant": (_captures, Sample((3,))),
    "call": (_calls, Sample((3,))),
    "custom": (_customised, Sample((3,))),
    "checkpoint": (_checkpointed, Sample((3,))),
    "kernel": (_tiled, Sample(np.arange(6))),
    "adjugate_slope": (_moved(ts.op.adjugate), Sample(_MATRIX)),
    "clusters": (_moved(ts.op.svdvals), Sample(_MATRIX)),
    "cluster_turn": (_moved(_vectors), Sample(_MATRIX)),
    "singular_follow": (_moved(_polar), Sample(_MATRIX)),
    "gauged": (_linear, Sample(_MATRIX)),
    "same_in_every_gauge": (_pulled, Sample(_MATRIX)),
}


@cache
def all_cases() -> tuple[Case, ...]:
    """Every case, in the order of the functions' names."""
    cases: list[Case] = []
    for name, f in sorted(public_functions().items()):
        op = f.op if isinstance(f, OpFunction) else None
        samples = SAMPLES.get(name, ()) if op is None else (*op.samples, *SAMPLES.get(name, ()))
        cases += [case_of(name, f, op, s) for s in samples]
    for name, (through, sample) in THROUGH.items():
        cases.append(case_of(name, through, REGISTRY[name], sample))
    return tuple(cases)


def cases(wanted: Callable[[Case], bool] = lambda c: True) -> list[Any]:
    """Parameters for pytest with readable ids."""
    return [c for c in all_cases() if wanted(c)]


# Running a case node by node --------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Application:
    """One node of a traced case with the arrays that went in and came out."""

    node: Node
    operands: list[Array]
    results: list[Array]


def applications(case: Case, xs: Sequence[Array]) -> list[Application]:
    """Every node of the case's own op, run by the interpreter's kernels."""
    g = case.trace([concrete(x).type for x in xs])
    outer = [v.storage for v in g.captured if v.storage is not None]
    env = dict(zip(g.inputs, [*xs, *outer], strict=True))
    found = []
    for n in g.nodes:
        run = kernel(n.op, n.types, [v.type for v in n.results], n.params, n.regions)
        ins = [env[v] for v in n.operands]
        with np.errstate(all="ignore"):
            outs = list(run(*ins)) if n.op.multiple else [run(*ins)]
        env.update(zip(n.results, outs, strict=True))
        if n.op is case.op:
            found.append(Application(n, ins, outs))
    return found
