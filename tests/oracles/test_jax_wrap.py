"""ts.jax.wrap: a function of ours under jax.jit, jax.grad, jax.vmap and their compositions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera import op

jax = pytest.importorskip("jax")
jnp = jax.numpy
pytestmark = pytest.mark.oracle

RNG = np.random.default_rng(0)
X = RNG.standard_normal((4, 3)).astype(np.float32)
P = {"w": RNG.standard_normal((3, 3)).astype(np.float32), "b": np.ones(3, np.float32)}


def ours(p: Any, x: Any) -> Any:
    return op.tanh(x @ p["w"] + p["b"]), (op.sum(x * x), op.argmax(x, -1))


def theirs(p: Any, x: Any) -> Any:
    return jnp.tanh(x @ p["w"] + p["b"]), (jnp.sum(x * x), jnp.argmax(x, -1))


WRAPPED = ts.jax.wrap(ours)


def same(got: Any, want: Any) -> None:
    assert jax.tree.structure(got) == jax.tree.structure(want)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-5)


def loss(f: Any) -> Any:
    return lambda p, x: jnp.sum(f(p, x)[0] ** 2) + f(p, x)[1][0]


TRANSFORMS = {
    "call": lambda f: f,
    "jit": jax.jit,
    "grad": lambda f: jax.grad(loss(f), argnums=(0, 1)),
    "jit of grad": lambda f: jax.jit(jax.value_and_grad(loss(f))),
    "grad of jit": lambda f: jax.grad(loss(jax.jit(f))),
    "vmap": lambda f: jax.vmap(f, in_axes=(None, 0)),
    "jit of vmap of grad": lambda f: jax.jit(jax.vmap(jax.grad(loss(f)), in_axes=(None, 0))),
    "jacfwd of grad": lambda f: jax.jacfwd(jax.grad(loss(f), argnums=1), argnums=1),
    "hessian": lambda f: jax.jit(jax.hessian(loss(f))),
    "grad of vmap": lambda f: jax.grad(lambda p, x: jnp.sum(jax.vmap(f, (None, 0))(p, x)[0] ** 3)),
    "jvp": lambda f: lambda p, x: jax.jvp(lambda x: f(p, x)[0], (x,), (x,)),
    "scan": lambda f: (
        lambda p, x: jax.lax.scan(lambda c, r: (f(p, c)[0] + r, r), x, jnp.stack([x, x]))
    ),
}


@pytest.mark.parametrize("name", TRANSFORMS)
def test_transforms_of_jax(name: str) -> None:
    t = TRANSFORMS[name]
    same(t(WRAPPED)(P, X), t(theirs)(P, X))


def test_arrays_of_jax_are_arguments_everywhere() -> None:
    x = jnp.asarray(X)
    np.testing.assert_allclose(op.sin(x), np.sin(X), rtol=1e-6)
    np.testing.assert_allclose(ts.jit(lambda x: x * 2)(x), X * 2)
    np.testing.assert_allclose(ts.grad(lambda x: op.sum(x * x))(x), 2 * X)
    np.testing.assert_allclose(ts.tensor(X) + x, 2 * X)
    shared = ts.from_dlpack(x)
    assert np.asarray(shared).ctypes.data == np.asarray(x).ctypes.data


def test_a_program_is_compiled_once() -> None:
    f = jax.jit(WRAPPED)
    f(P, X)
    before = f._cache_size()
    f(P, X + 1)
    assert f._cache_size() == before


def test_errors_name_what_is_wrong() -> None:
    with pytest.raises(ts.TesseraError) as e:
        WRAPPED(P, "text")
    assert e.value.message == (
        "wrap: an argument holds str 'text', expected arrays and numbers in trees; bind other values with "
        "functools.partial"
    )
    with pytest.raises(ts.TesseraError, match="axis 'k' is 2 in operand 0"):
        WRAPPED(P, np.ones((4, 2), np.float32))
