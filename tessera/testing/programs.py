"""Random programs around a user's op: what surrounds it, batches it or differentiates it must not change
it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tessera.core import tree
from tessera.core.blame import blames_arguments
from tessera.core.errors import OperandError, RuleError, TesseraError, located
from tessera.ir.graph.ir import Value
from tessera.lang.create import tensor
from tessera.lang.jit import jit
from tessera.lang.transforms import grad
from tessera.lang.vmap import vmap
from tessera.ops.activation import relu
from tessera.ops.elementwise import cos, exp, neg, sin, square, tanh
from tessera.ops.reduction import max as max_
from tessera.ops.reduction import mean
from tessera.ops.reduction import sum as sum_
from tessera.ops.shape import flip, transpose
from tessera.testing.close import CheckFailed, array_of, assert_same_bits
from tessera.testing.gradients import gradcheck

LAWS = ("jit", "vmap", "grad", "differences")
_BATCH = 3  # elements of a batch: odd, and no size of the samples
_BEFORE: dict[str, Callable[[Any], Any]] = {
    "x": lambda x: x, "sin(x)": sin, "tanh(x)": tanh, "-x": neg, "x * 0.5": lambda x: x * 0.5,
    "flip(flip(x))": lambda x: flip(flip(x)), "cos(x) + x": lambda x: cos(x) + x,
}  # fmt: skip
_AFTER: dict[str, Callable[[Any], Any]] = {
    "y": lambda y: y, "exp(tanh(y))": lambda y: exp(tanh(y)), "square(y)": square, "sum(y)": sum_,
    "mean(y)": mean,
    "relu(y)": relu, "transpose(y)": transpose, "y - max(y)": lambda y: y - max_(y),
    "y + sin(y)": lambda y: y + sin(y),
}  # fmt: skip


@dataclass(frozen=True)
class OpProgram:
    """A program around an op: what happens to its arguments, and to its results."""

    seed: int
    f: Callable[..., Any]
    before: tuple[str, ...]
    after: tuple[str, ...]

    def __call__(self, *args: Any) -> Any:
        leaves, structure = tree.flatten(args)
        floats = iter(self.before * len(leaves))
        given = [_BEFORE[next(floats)](x) if _is_float(x) else x for x in leaves]
        outs, how = tree.flatten(self.f(*tree.unflatten(structure, given)))
        done = []
        for y in outs:
            for name in self.after:
                y = _AFTER[name](y) if _is_float(y) else y
            done.append(y)
        return tree.unflatten(how, done)

    def __str__(self) -> str:
        name = getattr(self.f, "__name__", "f")
        return f"program {self.seed}: y = {name}({', '.join(self.before)}); y = {'; y = '.join(self.after)}"


def _is_float(x: Any) -> bool:
    return isinstance(x, Value) and x.dtype.kind == "f"


@blames_arguments
def random_programs(
    f: Callable[..., Any], draw: Callable[[Any], Any], *, count: int = 10, seed: int = 0,
    laws: Sequence[str] = LAWS,
) -> int:  # fmt: skip
    """Raise when a law fails in one of so many random programs around f; the number of laws that were
    checked.

    `draw(rng)` gives the arguments of a call, of any shapes.  The laws: jitted bits are eager bits; `vmap`
    has the bits of a loop; jitted gradients have the bits of eager ones; derivatives agree with
    differences.
    """
    for law in laws:
        if law not in LAWS:
            raise located(
                OperandError(
                    f"random_programs: laws has {law!r}, expected some of {', '.join(LAWS)}"
                )
            )
    checked = 0
    for i in range(seed, seed + count):
        rng = np.random.default_rng(i)
        args = _tensors(draw(rng))
        p = OpProgram(i, f, tuple(_chosen(_BEFORE, rng, 3)), tuple(_chosen(_AFTER, rng, 2)))
        for law in laws:
            try:
                checked += _CHECKS[law](p, args, rng, draw)
            except (CheckFailed, TesseraError) as e:
                raise CheckFailed(f"{law} fails in {p}: {e}") from None
    return checked


def _chosen(table: dict[str, Any], rng: Any, count: int) -> Iterator[str]:
    names = list(table)
    for _ in range(count):
        yield names[int(rng.integers(len(names)))]


def _tensors(args: Any) -> tuple[Any, ...]:
    given = args if isinstance(args, tuple) else (args,)
    made: tuple[Any, ...] = tree.map(lambda x: x if isinstance(x, Value) else tensor(x), given)
    return made


def _jitted(p: OpProgram, args: tuple[Any, ...], rng: Any, draw: Any) -> int:
    assert_same_bits(jit(p.__call__)(*args), p(*args), "jitted and eager")
    return 1


def _batched(p: OpProgram, args: tuple[Any, ...], rng: Any, draw: Any) -> int:
    leaves, structure = tree.flatten(args)
    noise = [np.linspace(1.0, 0.5, _BATCH).reshape(-1, *[1] * array_of(x).ndim) for x in leaves]
    stacked = [
        tensor(
            array_of(x)[None] * w if _is_float(x) else np.stack([array_of(x)] * _BATCH),
            dtype=x.dtype,
        )
        for x, w in zip(leaves, noise, strict=True)
    ]
    got = vmap(p.__call__)(*tree.unflatten(structure, stacked))
    for i in range(_BATCH):
        alone = p(
            *tree.unflatten(structure, [tensor(array_of(x)[i], dtype=x.dtype) for x in stacked])
        )
        assert_same_bits(
            tree.map(lambda y, i=i: tensor(array_of(y)[i], dtype=y.dtype), got),
            alone,
            f"vmap, row {i}",
        )
    return 1


def _differentiated(p: OpProgram, args: tuple[Any, ...], rng: Any, draw: Any) -> int:
    where = tuple(i for i, a in enumerate(args) if all(map(_is_float, tree.leaves(a))))
    if not where:
        return 0

    def loss(*xs: Any) -> Any:
        return sum(sum_(y) for y in tree.leaves(p(*xs)) if _is_float(y))

    try:
        eager = grad(loss, where)(*args)
    except RuleError:
        return 0  # an op without a derivative says so
    assert_same_bits(jit(grad(loss, where))(*args), eager, "jitted and eager gradient")
    return 1


def _differences(p: OpProgram, args: tuple[Any, ...], rng: Any, draw: Any) -> int:
    """On the op alone: what stands around it may have edges, where no slope is."""
    try:
        gradcheck(p.f, *args, directions=2, seed=p.seed)
    except (RuleError, OperandError):
        return 0
    return 1


_CHECKS: dict[str, Callable[..., int]] = {
    "jit": _jitted, "vmap": _batched, "grad": _differentiated, "differences": _differences,
}  # fmt: skip
