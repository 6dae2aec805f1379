"""Transforms inside of transforms, in any order, against JAX: eager, and jitted with a symbolic size.

Each transform takes a function of vectors to a function of vectors of the same size, so that all of them
follow each other.  Both libraries are spoken to in one language: JAX's names.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import product
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera import Tensor, f64, op
from tests.support.runners.tolerance import Tolerance, assert_close

RUNS_ON = "numpy"

jax = pytest.importorskip("jax")
pytestmark = pytest.mark.oracle

X = np.array([0.3, -0.7, 0.9])
Function = Callable[[Any], Any]


@pytest.fixture(autouse=True)
def _double_precision() -> Any:
    jax.config.update("jax_enable_x64", True)
    yield
    jax.config.update("jax_enable_x64", False)


def bounded(f: Function) -> Function:
    return lambda x: ts.while_loop(
        lambda s: s[0] < 2, lambda s: (s[0] + 1, f(s[1])), (0, x), bound=4
    )[1]


def twice(f: Function) -> Function:
    """What a loop of two steps is; JAX has no derivative of one with a condition."""
    return lambda x: f(f(x))


OURS = SimpleNamespace(
    n=op, m=ts, scan=ts.scan, cond=ts.cond, fori=ts.fori_loop, loop=bounded, stack=op.stack
)
THEIRS = SimpleNamespace(
    n=jax.numpy, m=jax, scan=jax.lax.scan, cond=jax.lax.cond, fori=jax.lax.fori_loop, loop=twice,
    stack=jax.numpy.stack,
)  # fmt: skip


def doubled(m: Any, f: Function) -> Function:
    """f with a rule of its own for jvp, which says twice the slope."""
    g = m.custom_jvp(lambda x: f(x))
    g.defjvp(lambda p, t: (f(p[0]), m.jvp(f, (p[0],), (t[0],))[1] * 2.0))
    return g  # type: ignore[no-any-return]


def halved(m: Any, f: Function) -> Function:
    """f with a rule of its own for vjp, which says half the slope."""
    g = m.custom_vjp(lambda x: f(x))
    g.defvjp(lambda x: (f(x), x), lambda kept, ct: (m.vjp(f, kept)[1](ct)[0] * 0.5,))
    return g  # type: ignore[no-any-return]


Transform = Callable[[Any, Function], Function]
TRANSFORMS: dict[str, Transform] = {
    "jit": lambda l, f: l.m.jit(f),
    "grad": lambda l, f: l.m.grad(lambda x: l.n.sum(f(x) * l.n.sin(x))),
    "jvp": lambda l, f: lambda x: l.m.jvp(f, (x,), (l.n.cos(x),))[1],
    "vjp": lambda l, f: lambda x: l.m.vjp(f, x)[1](l.n.cos(x))[0],
    "linearize": lambda l, f: lambda x: l.m.linearize(f, x)[1](x * x),
    "jacfwd": lambda l, f: lambda x: l.m.jacfwd(f)(x) @ l.n.sin(x),
    "jacrev": lambda l, f: lambda x: l.m.jacrev(f)(x) @ l.n.sin(x),
    "hessian": lambda l, f: lambda x: l.m.hessian(lambda v: l.n.sum(f(v)))(x) @ x,
    "vmap": lambda l, f: lambda x: l.n.sum(l.m.vmap(f)(l.stack([x, x * 0.5])), 0),
    "vmap of columns": lambda l, f: (
        lambda x: l.n.sum(l.m.vmap(f, in_axes=1, out_axes=1)(l.stack([x, x * 0.5]).T), 1)
    ),
    "checkpoint": lambda l, f: l.m.checkpoint(f),
    "scan": lambda l, f: (
        lambda x: l.scan(lambda c, r: (l.n.tanh(f(c) + r), c * r), x, l.stack([x, x * x]))[0]
    ),
    "cond": lambda l, f: lambda x: l.cond(l.n.sum(x) > 0.1, f, lambda v: f(v * 0.5), x),
    "fori_loop": lambda l, f: lambda x: l.fori(0, 2, lambda i, c: f(c) * 0.5, x),
    "while_loop": lambda l, f: l.loop(f),
    "custom_jvp": lambda l, f: doubled(l.m, f),
    "custom_vjp": lambda l, f: halved(l.m, f),
}


def nested(l: Any, names: tuple[str, ...]) -> Function:
    """The transforms around each other, the first outside."""
    f: Function = lambda x: l.n.tanh(x * x[::-1]) + l.n.sum(x) * 0.1 * l.n.sin(x)  # noqa: E731
    for name in reversed(names):
        f = TRANSFORMS[name](l, f)
    return f


PAIRS = list(product(TRANSFORMS, repeat=2))
TRIPLES = random.Random(0).sample(list(product(TRANSFORMS, repeat=3)), 60)


@pytest.mark.parametrize("names", [*PAIRS, *TRIPLES], ids=", ".join)
def test_transforms_nest(names: tuple[str, ...]) -> None:
    f = nested(OURS, names)

    @ts.jit
    def symbolic(x: Tensor["N", f64]) -> Any:
        return f(x)

    try:
        with jax.disable_jit("jit" not in names):
            want = np.asarray(nested(THEIRS, names)(X))
    except TypeError:  # forward mode through a rule for reverse mode
        assert "custom_vjp" in names
        with pytest.raises(ts.TesseraError, match="reverse mode only"):
            f(ts.tensor(X))
        return
    close = Tolerance(1e-9, 1e-9 * max(1.0, float(np.abs(want).max())))
    for run in (f, symbolic):
        assert_close(run(ts.tensor(X)), want, close)
