"""Every rule of every op against the op's own reference.  A new record is picked up by itself."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera.core.constraints import Scope, scope
from tessera.core.dims import symbol
from tessera.core.errors import RuleError, ShapeError
from tessera.core.primitives import PRIMITIVES
from tessera.ir.graph.interp import execute
from tessera.ir.graph.ir import REGISTRY, concrete
from tessera.ir.graph.verify import verify
from tessera.transform.differentiate import REGION_JVP
from tests.support.cases.op_cases import (
    THROUGH,
    Case,
    all_cases,
    applications,
    cases,
    public_functions,
)
from tests.support.runners.each import each
from tests.support.runners.loops import run_loops, run_pick, run_view
from tests.support.runners.tolerance import (
    DIFFERENCE,
    DIFFERENCE_STEP,
    assert_close,
    assert_same_bits,
)

RUNS_ON = "numpy"

# Functions that compute with the sizes themselves: they may refuse a symbolic one.
NEEDS_STATIC = {
    "resize": "the weights of a resampling are computed from both sizes",
    "interpolate": "as resize",
    "adaptive_avg_pool": "the weights of each window are computed from both sizes",
    "adaptive_avg_pool1d": "as adaptive_avg_pool",
    "adaptive_avg_pool2d": "as adaptive_avg_pool",
    "adaptive_avg_pool3d": "as adaptive_avg_pool",
    "grid_sample": "places are scaled by the sizes",
    "stft": "the transform is as long as the window, and its length sets the normalisation",
    "istft": "as stft",
}

every_case = each(cases())


# A pair with memory between them, which one call alone cannot show: tests/transform/test_offload.py.
PAIRED = {"offload_get", "offload_put"}
# What a pass alone makes: tests/ir/schedule/test_write_in_place.py.
PAIRED |= {"write_rows", "write_slice"}


def test_every_op_has_a_doc_and_a_case() -> None:
    covered = {c.op.name for c in all_cases() if c.op is not None} | PAIRED
    assert sorted(set(REGISTRY) - covered) == []
    assert [o.name for o in REGISTRY.values() if not o.doc.endswith(".")] == []


def test_every_public_function_has_a_doc_and_a_case() -> None:
    covered = {c.name for c in all_cases()}
    assert sorted(set(public_functions()) - covered) == []
    assert [n for n, f in public_functions().items() if not (f.__doc__ or "").strip()] == []


def test_every_op_has_one_meaning() -> None:
    """Exactly one of signature + body, view, pick, and decompose or call.

    A call that names a primitive may have a decomposition beside it, for what the primitive does not take.
    """
    for o in REGISTRY.values():
        assert o.decompose is None or o.call is None or o.call in PRIMITIVES, o.name
        ways = (o.body, o.view, o.pick, o.decompose or o.call)
        assert sum(w is not None for w in ways) == 1, o.name
        assert o.body is None or o.signature is not None, o.name


def test_the_cases_of_an_op_reach_its_node() -> None:
    reached = {c.op.name for c in all_cases() if c.op is not None and applications(c, c.draw())}
    reached |= PAIRED
    assert sorted(set(REGISTRY) - reached) == []


@every_case
def test_types_are_those_of_the_data(case: Case) -> None:
    for y in case.run(tensors(case)):
        assert isinstance(y.storage, np.ndarray)
        assert y.storage.shape == y.shape
        assert y.storage.dtype == y.dtype.np


@every_case
def test_jit_is_eager_bit_for_bit(case: Case) -> None:
    xs = tensors(case)
    eager = case.run(xs)
    compiled = ts.jit(lambda xs: case.run(xs))(xs)
    assert [y.type for y in compiled] == [y.type for y in eager]
    for got, want in zip(compiled, eager, strict=True):
        assert_same_bits(got, want)


@every_case
def test_traced_types_are_eager_types(case: Case) -> None:
    xs = tensors(case)
    g = case.trace([x.type for x in xs])
    verify(g)
    assert [v.type for v in g.outputs] == [y.type for y in case.run(xs)]


def has_loops(case: Case) -> bool:
    return case.op is not None and (case.op.body is not None or case.op.view is not None)


@each(cases(has_loops))
def test_loops_are_the_reference(case: Case) -> None:
    for a in applications(case, case.draw()):
        with np.errstate(all="ignore"):
            got = (
                run_loops(a.node, a.operands)
                if a.node.op.view is None
                else run_view(a.node, a.operands[0])
            )
        assert_close(got, a.results[0])


@each(cases(lambda c: c.op and c.op.pick))
def test_picked_places_are_the_reference(case: Case) -> None:
    for a in applications(case, case.draw()):
        assert_close(run_pick(a.node, a.operands), a.results[0])


@each(cases(lambda c: c.op and c.op.decompose))
def test_decomposition_is_the_reference(case: Case) -> None:
    for a in applications(case, case.draw()):
        assert a.node.op.decompose is not None
        made = a.node.op.decompose(
            *(concrete(x, t.dtype) for x, t in zip(a.operands, a.node.types, strict=True)),
            **a.node.params,
        )
        for got, v, want in zip(ts.tree.leaves(made), a.node.results, a.results, strict=True):
            assert got.type == v.type
            assert_close(got, want, times=10)


@every_case
def test_symbolic_types_are_static_types(case: Case) -> None:
    """Each axis that is longer than 1 gets a symbol; sizes put back give the static types."""
    xs, env = tensors(case), {}
    types = [x.type.with_shape(tuple(named(n, env) for n in x.shape)) for x in xs]
    with scope(Scope()):
        g, error = attempt(lambda: case.trace(types))
    if error is not None:
        assert case.name in NEEDS_STATIC, error
        assert re.search(r"is symbolic.* give the axis a number", error.message)
        return
    want = case.run(xs)
    assert [g_.holds(env) for g_ in g.guards] == [True] * len(g.guards), g.guards
    assert [v.type.substitute(env) for v in g.outputs] == [y.type for y in want]
    for got, y in zip(execute(g, [x.numpy() for x in xs]), want, strict=True):
        assert_same_bits(got, y)


def attempt(f: Callable[[], Any]) -> tuple[Any, ShapeError | None]:
    """What f gives, or the error with which it refuses a size."""
    try:
        return f(), None
    except ShapeError as e:
        return None, e


def named(n: int, env: dict[str, int]) -> Any:
    """A new symbol for a size; sizes 0 and 1 broadcast and vanish, so that they stay numbers."""
    if n < 2:
        return n
    env[f"s{len(env)}"] = n
    return symbol(f"s{len(env) - 1}")


def tensors(case: Case) -> list[ts.Tensor]:
    return [ts.asarray(x) for x in case.draw()]


# Derivatives --------------------------------------------------------------------------------------

# Ops whose derivative is not the slope of their values, on purpose.
NOT_THE_SLOPE = {
    "stop_gradient": "a constant for differentiation by definition",
    "loggamma_sample": "the slope of a sample at a fixed probability; rejection has no slope",
    "loggamma": "as loggamma_sample",
    "random_gamma.gamma": "as loggamma_sample",
    "beta": "as loggamma_sample",
    "dirichlet": "as loggamma_sample",
}
# Ops whose slope has no derivative, and the op that says so: slopes of samples come from a series.
_SAMPLES = ("loggamma_sample", "loggamma", "random_gamma.gamma", "beta", "dirichlet")
NO_SECOND = dict.fromkeys(_SAMPLES, "loggamma_slope")
# Ops that have a JVP but no transpose, and how they say so.
NO_REVERSE = {"while_loop": "reverse mode needs to know the most steps"}


def has_no_rule(case: Case) -> bool:
    o = case.op
    if o is None or case.name in THROUGH:
        return False
    return not (o.jvp or o.partials or o.linear or o.decompose or o in REGION_JVP)


def takes_floats(case: Case) -> bool:
    return any(x.dtype.kind in "fc" for x in case.draw())


differentiable = each(cases(lambda c: takes_floats(c) and not has_no_rule(c)))


class Smooth:
    """A case as a function of its floating-point operands, with a point and directions."""

    def __init__(self, case: Case):
        self.case, self.xs = case, case.draw()
        self.where = [i for i, x in enumerate(self.xs) if x.dtype.kind in "fc"]
        self.point = [self.xs[i] for i in self.where]
        rng = np.random.default_rng(1)
        self.direction = [like(x, rng) for x in self.point]

    def __call__(self, *floats: Any) -> list[Any]:
        xs: list[Any] = list(self.xs)
        for i, x in zip(self.where, floats, strict=True):
            xs[i] = x
        return list(self.case.run(xs))

    def moved(self, h: float) -> list[np.ndarray]:
        """The results a step away from the point."""
        moved = [x + h * t for x, t in zip(self.point, self.direction, strict=True)]
        return [np.asarray(y) for y in self(*map(ts.asarray, moved))]

    def slopes(self, slope: Callable[..., Any], along: Sequence[Any]) -> list[list[np.ndarray]]:
        """What a function of the point gives a step forward and a step back."""
        found = []
        for h in (DIFFERENCE_STEP, -DIFFERENCE_STEP):
            moved = [ts.asarray(x + h * t) for x, t in zip(self.point, along, strict=True)]
            found.append([np.asarray(y) for y in slope(*moved)])
        return found


def like(x: Any, rng: np.random.Generator) -> Any:
    """Normal numbers of the shape and dtype of x."""
    made = rng.normal(size=np.shape(x))
    if x.dtype.kind == "c":
        return (made + 1j * rng.normal(size=np.shape(x))).astype(x.dtype)
    return (np.abs(made) if x.dtype.kind == "u" else made).astype(x.dtype)


@differentiable
def test_jvp_is_the_difference(case: Case) -> None:
    f = Smooth(case)
    ys, ts_out = ts.jvp(f, f.point, f.direction)
    high, low = f.moved(DIFFERENCE_STEP), f.moved(-DIFFERENCE_STEP)
    for y, t, up, down in zip(ys, ts_out, high, low, strict=True):
        assert t.type == y.type
        if case.name == "stop_gradient" or y.dtype.kind not in "fc":
            assert not np.asarray(t).any()
        elif case.name not in NOT_THE_SLOPE and y.dtype.real is ts.f64:
            known = np.isfinite(up) & np.isfinite(down)
            slope = np.subtract(up, down, where=known, out=np.zeros_like(up)) / DIFFERENCE_STEP / 2
            assert_close(np.asarray(t)[known], slope[known], DIFFERENCE)


@differentiable
def test_transpose_is_the_adjoint(case: Case) -> None:
    """Re sum(ct * J t) = Re sum(J' ct * t) for any cotangent ct and tangent t."""
    f = Smooth(case)
    ys, moved = ts.jvp(f, f.point, f.direction)
    if case.name in NO_REVERSE:
        with pytest.raises(RuleError, match=f"^{case.name}: {NO_REVERSE[case.name]}"):
            ts.vjp(f, *f.point)[1](ys)
        return
    rng = np.random.default_rng(2)
    cts = [like(np.asarray(y), rng) for y in ys]
    _, pull_back = ts.vjp(f, *f.point)
    back = pull_back([ts.asarray(c).astype(y.dtype) for c, y in zip(cts, ys, strict=True)])
    assert [b.type for b in back] == [ts.asarray(x).type for x in f.point]
    floats = [i for i, y in enumerate(ys) if y.dtype.kind in "fc"]
    left = inner([cts[i] for i in floats], [moved[i] for i in floats])
    width = min([y.dtype.real.bits for y in (ys[i] for i in floats)], default=64)
    assert_close(inner(back, f.direction), left, times=1e4 if width == 64 else 1e11)


@differentiable
def test_second_derivatives_agree_in_every_order_of_modes(case: Case) -> None:
    """ct D2f[d, e] by differences, and forward or reverse over forward or reverse."""
    f = Smooth(case)
    rng = np.random.default_rng(3)
    other = [like(x, rng) for x in f.point]

    def slope(*xs: Any) -> list[Any]:
        return [t for t in ts.jvp(f, xs, f.direction)[1] if t.dtype.kind in "fc"]

    if case.name in NO_SECOND:
        with pytest.raises(RuleError, match=f"^{NO_SECOND[case.name]} has no derivative"):
            ts.jvp(slope, f.point, other)
        return
    firsts, seconds = ts.jvp(slope, f.point, other)
    smooth = case.name not in NOT_THE_SLOPE and all(y.dtype.real is ts.f64 for y in firsts)
    if smooth:
        for t, up, down in zip(seconds, *f.slopes(slope, other), strict=True):
            known = np.isfinite(up) & np.isfinite(down)
            slopes = np.subtract(up, down, where=known, out=np.zeros_like(up))
            assert_close(np.asarray(t)[known], slopes[known] / DIFFERENCE_STEP / 2, DIFFERENCE)
    if case.name in NO_REVERSE or not firsts:
        return
    cts = [ts.asarray(like(np.asarray(y), rng)).astype(y.dtype) for y in firsts]

    def pulled(*xs: Any) -> list[Any]:
        ys, back = ts.vjp(lambda *xs: [y for y in f(*xs) if y.dtype.kind in "fc"], *xs)
        return list(back([c.astype(y.dtype) for c, y in zip(cts, ys, strict=True)]))

    directions = [ts.asarray(d) for d in f.direction]
    want = inner(cts, seconds)
    found = {
        "reverse over forward": inner(ts.vjp(slope, *f.point)[1](cts), other),
        "forward over reverse": inner(ts.jvp(pulled, f.point, other)[1], f.direction),
        "reverse over reverse": inner(ts.vjp(pulled, *f.point)[1](directions), other),
    }
    width = min(y.dtype.real.bits for y in firsts)
    times = 1e5 if width == 64 else 1e11
    assert_close(list(found.values()), [want] * len(found), times=times)


def inner(a: Sequence[Any], b: Sequence[Any]) -> float:
    """Re sum(a * b) over all arrays, without conjugation."""
    wide: Callable[[Any], Any] = lambda x: np.asarray(x).astype(  # noqa: E731
        np.complex128 if np.asarray(x).dtype.kind == "c" else np.float64
    )
    return float(sum(np.real(np.sum(wide(x) * wide(y))) for x, y in zip(a, b, strict=True)))


@each(cases(lambda c: takes_floats(c) and has_no_rule(c)))
def test_an_op_without_a_rule_says_so(case: Case) -> None:
    f = Smooth(case)
    if all(y.dtype.kind not in "fc" for y in case.run(f.xs)):
        assert not any(np.asarray(t).any() for t in ts.jvp(f, f.point, f.direction)[1])
        return
    assert case.op is not None
    with pytest.raises(RuleError, match=f"^{case.op.name} has no derivative"):
        ts.jvp(f, f.point, f.direction)
