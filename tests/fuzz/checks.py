"""The laws that every program keeps, each a function of the program's function and its arguments.

A law that does not hold is an AssertionError; an exception that is no TesseraError breaks every law.  What
Tessera refuses is said by Refused, whose reasons `known.py` lists.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

import tessera as ts
from tessera import Tensor, op
from tessera.compile.cpu import bound_program, build
from tessera.compile.cpu.executable import MachineExecutable
from tessera.core.errors import NumericalError, RuleError, TesseraError
from tessera.core.flags import flags, override
from tessera.runtime.code import Loading
from tests.support.cases.random_graphs import same_bits
from tests.support.cases.random_programs import Case
from tests.support.runners.laws import UNITS, _check_text, _lowered
from tests.support.runners.levels import by_schedule, by_tile, expanded

Function = Callable[..., Any]
EXTREME = 1e15  # numbers above it leave nothing of their neighbours in a sum
NARROW = {"float8_e4m3fn": 2.0**-3, "float8_e5m2": 2.0**-2, "bfloat16": 2.0**-7}


class Broken(AssertionError):
    """A law does not hold."""


class Refused(AssertionError):
    """A way to run a program is refused, though the program runs eagerly."""


def arrays(values: Any) -> list[Any]:
    """The results of a program as NumPy arrays."""
    return [np.asarray(v) for v in ts.tree.leaves(values)]


def same(who: str, got: Sequence[Any], want: Sequence[Any]) -> None:
    """The same bits; any NaN is as good as another.  The references keep no law of bits: close will do
    there.
    """
    for i, (a, b) in enumerate(zip(got, want, strict=True)):
        if flags().target == "numpy":
            near(f"{who}: result {i}", a, b, peak_of([a, b]))
        elif not same_bits([a], [b]):
            raise Broken(f"{who}: result {i} differs\n{_difference(a, b)}")


def _difference(a: Any, b: Any) -> str:
    if a.dtype != b.dtype or a.shape != b.shape:
        return f"{a.dtype}{a.shape} is not {b.dtype}{b.shape}"
    x, y = (
        v.astype(np.complex128 if v.dtype.kind == "c" else np.float64).reshape(-1) for v in (a, b)
    )
    differs = [i for i in range(x.size) if not (x[i] == y[i] or (x[i] != x[i] and y[i] != y[i]))]
    shown = ", ".join(f"[{i}] {x[i]!r} is not {y[i]!r}" for i in differs[:4])
    return f"{a.dtype}{a.shape}: {len(differs)} of {x.size} elements; {shown or 'signs of zeros'}"


def near(who: str, got: Any, want: Any, peak: float, units: float = 1.0) -> None:
    """Whole numbers equal; others apart by so many units in the last place of the largest number there."""
    if got.dtype != want.dtype or got.shape != want.shape:
        raise Broken(f"{who}: {got.dtype}{got.shape} is not {want.dtype}{want.shape}")
    if got.dtype.kind in "biu":
        close = np.array_equal(got, want)
    else:
        with np.errstate(all="ignore"):
            a, b = got.astype(np.complex128), want.astype(np.complex128)
            close = np.allclose(
                a, b, rtol=units * unit(got), atol=units * unit(got) * peak, equal_nan=True
            )
    if not close:
        raise Broken(f"{who}: {_difference(got, want)}, allowed {units * unit(got) * peak:.2g}")


def unit(x: Any) -> float:
    """How far apart, for numbers of size 1, two ways to compute may lie."""
    name = {"complex64": "float32", "complex128": "float64"}.get(x.dtype.name, x.dtype.name)
    if name in ("float64", "float32", "float16"):
        return UNITS[name] * float(np.finfo(name).eps)
    return 4 * NARROW.get(name, 0.0)


def peak_of(values: Sequence[Any]) -> float:
    """The largest finite number, 1 at least."""
    found = 1.0
    for x in values:
        if x.dtype.kind in "biu":
            continue
        with np.errstate(all="ignore"):
            sizes = np.abs(x.astype(np.complex128))
        found = max(found, float(np.max(sizes[np.isfinite(sizes)], initial=0.0)))
    return found


@contextmanager
def refusals(way: str) -> Iterator[None]:
    """Errors of Tessera, for a program that runs eagerly, are Refused."""
    try:
        yield
    except TesseraError as e:
        raise Refused(f"{way}: {type(e).__name__}: {str(e).splitlines()[0]}") from e


# The laws


def references(f: Function, xs: Sequence[Any]) -> None:
    """Eager machine code gives what the references of the ops give."""
    with override(target="numpy"):
        want = arrays(f(*xs))
    with refusals("eager"):
        got = arrays(f(*xs))
    values = [*arrays(list(xs)), *want]
    for i, (a, b) in enumerate(zip(got, want, strict=True)):
        near(f"eager and reference, result {i}", a, b, peak_of(values))


def jitted(f: Function, xs: Sequence[Any]) -> None:
    """A jitted program has the bits of the eager one."""
    want = arrays(f(*xs))
    with refusals("jit"):
        got = arrays(ts.jit(f)(*xs))
    same("jitted and eager", got, want)


def donated(f: Function, xs: Sequence[Any]) -> None:
    """A program that may write over its arguments has the bits of one that may not."""
    want = arrays(f(*xs))
    names = [f"x{i}" for i in range(len(xs))]
    named = eval(f"lambda {', '.join(names)}: f({', '.join(names)})", {"f": f})
    with refusals("jit with donation"), warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*donat.*")  # it says which memory it had no use for
        run = ts.jit(named, donate=names)
        for _ in range(2):
            fresh = [ts.tensor(np.array(x), dtype=x.dtype) for x in xs]
            same("jitted with donation and eager", arrays(run(*fresh)), want)


def looped(f: Function, xs: Sequence[Any]) -> None:
    """Steps of a loop have the bits of the steps one by one; results of its arguments' types are carried."""

    def step(carry: tuple[Any, ...]) -> tuple[tuple[Any, ...], list[Any]]:
        made = ts.tree.leaves(f(*carry))
        left, after = list(made), []
        for x in carry:
            fit = next((y for y in left if (y.shape, y.dtype) == (x.shape, x.dtype)), None)
            left = [y for y in left if y is not fit]
            after.append(x if fit is None else fit)
        return tuple(after), made

    state, rows = tuple(xs), []
    for _ in range(3):
        try:
            state, made = step(state)
        except TesseraError:
            return  # what is carried is no argument that the program takes
        rows.append(arrays(made))
    want = [*arrays(state), *(np.stack(parts) for parts in zip(*rows, strict=True))]
    with refusals("jit of a loop"):
        run = ts.jit(lambda *xs: ts.scan(lambda c, _: step(c), xs, None, length=3))
        same("steps of a loop and steps", arrays(run(*xs)), want)


def levels(f: Function, xs: Sequence[Any]) -> None:
    """Schedule, tile and machine code on 1 and 2 threads have the same bits; text reads back."""
    with refusals("trace"):
        g = ts.trace(f, *(Tensor[(*x.shape, x.dtype)] for x in xs))
    inputs = [np.asarray(x) for x in xs]
    c = Case(0, "fuzz", g, (inputs,))
    g, p = _lowered(c)
    with Loading() as loading, override(verify=True):
        image = build.image_of(p, loading)
        loading.finish()
    tiles = expanded(p)
    _check_text(c, g, p, tiles)
    machine = MachineExecutable(g, (), image)
    want = by_schedule(p, [np.array(x, order="C") for x in inputs])
    same("tile and schedule", by_tile(p, inputs, tiles), want)
    for threads in (1, 2):
        with override(threads=threads):
            got = [np.array(y) for y in machine.run(inputs)]
        same(f"machine code on {threads} threads and schedule", got, want)
    same("schedule and eager", want, arrays(f(*xs)))


def batched(f: Function, xs: Sequence[Any], axes: Sequence[int | None]) -> None:
    """vmap gives the bits of a loop; elements of the batch are the arguments in other orders."""
    if not any(a is not None for a in axes):
        return
    sets = [
        [x if a is None else _turned(x, k) for x, a in zip(xs, axes, strict=True)] for k in range(3)
    ]
    try:
        each = [arrays(f(*s)) for s in sets]
    except TesseraError:
        return  # an order of its numbers that the program refuses
    joined = [
        x if a is None else op.stack([s[i] for s in sets], a)
        for i, (x, a) in enumerate(zip(xs, axes, strict=True))
    ]
    with refusals("vmap"):
        got = arrays(ts.vmap(f, in_axes=tuple(axes))(*joined))
    same("vmap and loop", got, [np.stack(parts) for parts in zip(*each, strict=True)])
    with refusals("jit of vmap"):
        same("jit of vmap and vmap", arrays(ts.jit(ts.vmap(f, in_axes=tuple(axes)))(*joined)), got)


def _turned(x: Any, k: int) -> Any:
    """The numbers of x in another order."""
    flat = np.asarray(x).reshape(-1)
    return ts.tensor(np.roll(flat, 3 * k).reshape(x.shape), dtype=x.dtype)


def loss_of(f: Function, xs: Sequence[Any], where: Sequence[int]) -> Function:
    """A number that depends on all floating-point results, as a function of some arguments."""

    def loss(*floats: Any) -> Any:
        full = list(xs)
        for i, x in zip(where, floats, strict=True):
            full[i] = x
        parts = []
        for k, y in enumerate(ts.tree.leaves(f(*full))):
            if y.dtype.kind == "f":
                parts.append(op.sum(op.cast(y, ts.f64) * weights(k, y.shape)))
            elif y.dtype.kind == "c":
                parts.append(
                    op.sum(op.cast(op.real(y), ts.f64)) + op.sum(op.cast(op.imag(y), ts.f64))
                )
        return sum(parts[1:], parts[0])

    return loss


def weights(k: int, shape: Sequence[int]) -> Any:
    """Numbers that result k of a program is weighed with."""
    return np.cos(np.arange(math.prod(shape)) + k).reshape(shape)


def floats_of(f: Function, xs: Sequence[Any]) -> list[int]:
    """Arguments that a derivative can be taken in, if any result has one."""
    with override(target="numpy"):
        kinds = {y.dtype.kind for y in ts.tree.leaves(f(*xs))}
    return [i for i, x in enumerate(xs) if x.dtype.kind in "fc"] if kinds & set("fc") else []


def differentiated(f: Function, xs: Sequence[Any]) -> None:
    """Gradients have the same bits eagerly and jitted, and reverse mode is the adjoint of forward mode."""
    where = floats_of(f, xs)
    if not where:
        return
    loss, point = loss_of(f, xs, where), [xs[i] for i in where]
    eager, jit = ts.grad(loss, tuple(range(len(where)))), None
    try:
        got = eager(*point)
    except (RuleError, NumericalError):
        return  # an op without a derivative says so, as does one that does not converge
    jit = ts.jit(eager)
    with refusals("jit of grad"):
        same("jitted and eager gradient", arrays(jit(*point)), arrays(got))
    _adjoint(loss, point, got)


def _adjoint(loss: Function, point: Sequence[Any], got: Sequence[Any]) -> None:
    rng = np.random.default_rng(1)
    ways = [_direction(x, rng) for x in point]
    try:
        _, slope = ts.jvp(loss, point, ways)
    except RuleError:
        return  # a rule for reverse mode only
    with np.errstate(all="ignore"):
        terms = [np.real(_wide(g) * _wide(t)) for g, t in zip(got, ways, strict=True)]
        back, forth = sum(float(np.sum(t)) for t in terms), float(np.asarray(slope))
        scale = sum(float(np.sum(np.abs(t))) for t in terms) + abs(forth) + 1.0
    narrowest = _coarsest(loss, point)
    if not np.isfinite(scale) or peak_of(arrays(list(point))) > EXTREME:
        return
    if not abs(back - forth) <= 64 * narrowest * scale:
        raise Broken(f"reverse mode is not the adjoint of forward mode: {back!r} is not {forth!r}")


def _coarsest(f: Function, xs: Sequence[Any]) -> float:
    """The unit of the narrowest dtype on the way from arguments to results."""
    g = ts.trace(f, *(Tensor[(*x.shape, x.dtype)] for x in xs))
    dtypes = {v.dtype for n in g.nodes for v in (*n.operands, *n.results)}
    return max((unit(np.zeros((), d.np)) for d in dtypes), default=0.0)


def _direction(x: Any, rng: Any) -> Any:
    made = rng.normal(size=x.shape)
    return ts.tensor(
        made + 1j * rng.normal(size=x.shape) if x.dtype.kind == "c" else made, dtype=x.dtype
    )


def _wide(x: Any) -> Any:
    a = np.asarray(x)
    return a.astype(np.complex128 if a.dtype.kind == "c" else np.float64)


def differences(f: Function, xs: Sequence[Any]) -> None:
    """Slopes are those of the values, in f64 and where the values have one."""
    where = floats_of(f, xs)
    if not where or any(xs[i].dtype.real is not ts.f64 for i in where):
        return
    loss, point = loss_of(f, xs, where), [xs[i] for i in where]
    if _coarsest(loss, point) > unit(np.zeros((), np.float64)):
        return  # a step is lost in a cast to a narrower type
    rng = np.random.default_rng(2)
    ways = [_direction(x, rng) for x in point]
    try:
        _, slope = ts.jvp(loss, point, ways)
    except RuleError:
        return
    with override(target="numpy"):
        found = [_slope(loss, point, ways, h) for h in (1e-5, 5e-6, 1e-6, -1e-6)]
    spread = max(found) - min(found)
    if not np.isfinite(found).all() or spread > 1e-3 * (abs(found[0]) + 1):
        return  # a jump or an edge lies near
    if not abs(float(np.asarray(slope)) - found[2]) <= 10 * spread + 1e-4 * (abs(found[2]) + 1):
        raise Broken(f"the slope is {float(np.asarray(slope))!r}, differences give {found}")


def _slope(loss: Function, point: Sequence[Any], ways: Sequence[Any], h: float) -> float:
    """A difference over h, on one side: both sides of an edge are looked at."""

    def at(h: float) -> float:
        moved = [np.asarray(x) + h * np.asarray(t) for x, t in zip(point, ways, strict=True)]
        return float(np.asarray(loss(*map(ts.tensor, moved))))

    return (at(h) - at(0.0)) / h


def symbolic(f: Function, xs: Sequence[Any], names: Sequence[Sequence[str | None]]) -> None:
    """A program of symbolic sizes has the bits of the eager one."""
    want = arrays(f(*xs))
    specs = [
        Tensor[(*(n or s for n, s in zip(row, x.shape, strict=True)), x.dtype)]
        for row, x in zip(names, xs, strict=True)
    ]
    with refusals("symbolic"):
        got = arrays(_annotated(f, specs)(*xs))
    same("symbolic sizes and eager", got, want)


def _annotated(f: Function, specs: Sequence[Any]) -> Function:
    """f with annotations on its arguments, jitted."""
    f.__annotations__ = dict(
        zip(f.__code__.co_varnames[: f.__code__.co_argcount], specs, strict=True)
    )
    return ts.jit(f)


def wake_threads() -> None:
    """Programs are too small to wake a thread; here they do."""
    bound_program._QUANTUM = 1
