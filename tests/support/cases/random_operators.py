"""Random expressions of operators, for tests of the laws."""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np

import tessera as ts
from tessera.algebra.operator import FUNCTIONS, Operator

SIZES = (2, 3, 4, 6)


def _array(rng: Random, dtype: Any, *shape: int) -> Any:
    r = np.random.default_rng(rng.randrange(2**32))
    x = r.standard_normal(shape)
    return ts.tensor(x + 1j * r.standard_normal(shape) if dtype.kind == "c" else x, dtype=dtype)


def _leaf(rng: Random, m: int, n: int, dtype: Any) -> Operator:
    call = FUNCTIONS
    choices = ["dense", "zero"]
    if m == n:
        choices += ["dense", "diag", "diag", "eye", "unitary", "permutation", "gram"]
    kind = rng.choice(choices)
    if kind == "eye":
        return call["eye"](n, dtype)
    if kind == "zero":
        return call["zero"](m, n, dtype)
    if kind == "diag":
        return call["diag"](_array(rng, dtype, n))
    if kind == "unitary":
        q = np.linalg.qr(np.asarray(_array(rng, dtype, n, n)))[0]
        return call["dense"](ts.tensor(q, dtype=dtype), flags=("unitary",))
    if kind == "permutation":
        return call["permutation"](rng.sample(range(n), n), dtype)
    if kind == "gram":
        return call["low_rank"](_array(rng, dtype, n, 1))
    return call["dense"](_array(rng, dtype, m, n))


def random_operator(
    rng: Random, depth: int, dtype: Any, shape: tuple[int, int] | None = None
) -> Operator:
    """An expression of at most this depth, of one shape if it is given."""
    m, n = shape or (rng.choice(SIZES), rng.choice(SIZES))
    if depth <= 1:
        return _leaf(rng, m, n, dtype)

    def make(p: int, q: int) -> Operator:
        return random_operator(rng, depth - rng.randint(1, 2), dtype, (p, q))

    kinds = ["compose", "compose", "plus", "plus", "scale", "adjoint", "twice", "factor"]
    if m % 2 == 0 and n % 2 == 0:
        kinds += ["kronecker", "direct_sum", "block"]
    if m == n:
        kinds += ["power", "same"]
    if m == n == 6:
        kinds += ["kronsum"]
    return _build(rng, rng.choice(kinds), m, n, make)


def _build(rng: Random, kind: str, m: int, n: int, make: Any) -> Operator:
    call = FUNCTIONS
    k = rng.choice(SIZES)
    if kind == "compose":
        return make(m, k) @ make(k, n)
    if kind == "plus":
        return make(m, n) + make(m, n)
    if kind == "scale":
        return rng.choice((2, -1, 0.5, 0.1)) * make(m, n)
    if kind == "adjoint":
        return make(n, m).H
    if kind == "twice":
        a = make(m, n)
        return a + rng.choice((1, -1, 3)) * a
    if kind == "factor":
        a = make(m, k)
        return a @ make(k, n) + a @ make(k, n)
    if kind == "kronecker":
        return call["kronecker"](make(2, n // 2), make(m // 2, 2))
    if kind == "direct_sum":
        return call["direct_sum"](make(m // 2, n // 2), make(m // 2, n // 2))
    if kind == "block":
        return call["block"](
            [[make(m // 2, n // 2), 0], [make(m // 2, n // 2), make(m // 2, n // 2)]]
        )
    if kind == "kronsum":
        return call["kronsum"](make(2, 2), make(3, 3))
    a = make(m, n)
    return a @ a if kind == "same" else call["power"](a, rng.randint(2, 3))
