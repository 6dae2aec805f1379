"""Sizes that a mesh axis does not divide are cut as those that it does: nothing more is gathered."""

from __future__ import annotations

import numpy as np
import pytest

import tessera as ts
from tessera import dist, op
from tessera.core.flags import override
from tests.support.runners.tolerance import assert_close

MESH = dist.Mesh(["x"], shape=(4,))
SIZES = (7, 9)  # the last shard has one element less; one of three shards full and one empty


def normal(*shape):
    return np.random.default_rng(0).normal(size=shape)


def matrices(n):
    """Positive definite ones, which zeros or anything else in padding are not."""
    x = normal(n, 3, 3)
    return x @ x.swapaxes(1, 2) + np.eye(3)


def places(n, size):
    return np.random.default_rng(1).integers(0, n, size)


# name -> (function, n -> its arguments, with the axis that is cut; None: whole)
CASES = {
    "rows of a table": (lambda x, i: op.take(x, i, axis=0), lambda n: [(normal(n, 3), 0), (places(n, 6), None)]),
    "labels of cut classes": (op.cross_entropy, lambda n: [(normal(6, n), 1), (places(n, 6), None)]),
    "one of each row": (lambda x, i: op.take_along_axis(x, i, axis=1),
                        lambda n: [(normal(n, 4), 0), (places(4, (n, 2)), 0)]),
    "convolution, images": (op.conv2d, lambda n: [(normal(n, 2, 4, 4), 0), (normal(3, 2, 3, 3), None)]),
    "convolution, channels": (op.conv2d, lambda n: [(normal(2, n, 4, 4), 1), (normal(3, n, 3, 3), 1)]),
    "convolution, kernels": (op.conv2d, lambda n: [(normal(2, 2, 4, 4), None), (normal(n, 2, 3, 3), 0)]),
    "sort": (lambda x: op.sort(x, axis=1), lambda n: [(normal(n, 4), 0)]),
    "topk": (lambda x: op.topk(x, 2)[0], lambda n: [(normal(n, 4), 0)]),
    "median": (lambda x: op.median(x, axis=1), lambda n: [(normal(n, 4), 0)]),
    "cumsum": (lambda x: op.cumsum(x, axis=1), lambda n: [(normal(n, 4), 0)]),
    "rfft": (lambda x: op.real(op.rfft(x, axis=1)), lambda n: [(normal(n, 4), 0)]),
    "searchsorted": (lambda x, v: op.searchsorted(op.sort(x), v), lambda n: [(normal(5), None), (normal(n, 2), 0)]),
    "tile": (lambda x: op.tile(x, (1, 2)), lambda n: [(normal(n, 4), 0)]),
    "reshape behind": (lambda x: op.reshape(op.reshape(x, (-1, 2, 3)), (x.shape[0], 3, 2)),
                       lambda n: [(normal(n, 6), 0)]),
    "join with nothing": (lambda x: op.concat([op.zeros((x.shape[0], 0), dtype="f64"), x], 1),
                          lambda n: [(normal(n, 4), 0)]),
    "cholesky": (op.cholesky, lambda n: [(matrices(n), 0)]),
    "solve": (op.solve, lambda n: [(matrices(n), 0), (normal(n, 3, 2), 0)]),
    "solve, columns": (lambda a, b: op.solve(a[0], b), lambda n: [(matrices(1), None), (normal(3, n), 1)]),
    "inv": (op.inv, lambda n: [(matrices(n), 0)]),
    "eigvalsh": (op.eigvalsh, lambda n: [(matrices(n), 0)]),
    "svdvals": (op.svdvals, lambda n: [(matrices(n), 0)]),
}  # fmt: skip
# An empty shard has no matrix that could stand for those of its padding.
REFUSES = {"cholesky", "solve", "solve, columns", "inv", "eigvalsh", "svdvals"}
FLAT = {"searchsorted"}  # no derivative


def laid(pairs):
    specs = [None if a is None else dist.ShardSpec((a,), ("x",)) for _, a in pairs]
    return [dist.tensor(x, s, MESH) for (x, _), s in zip(pairs, specs, strict=True)]


def pulled(f, pairs):
    floats = tuple(i for i, (x, _) in enumerate(pairs) if x.dtype.kind == "f")
    return ts.grad(lambda *xs: op.sum(op.sin(f(*xs))), argnums=floats)


@pytest.mark.parametrize("name", list(CASES))
@pytest.mark.parametrize("n", SIZES)
def test_an_uneven_size_is_cut_as_an_even_one(name, n):
    f, make = CASES[name]
    for g in (f,) if name in FLAT else (f, pulled(f, make(n))):
        with override(target="numpy"):
            found, wanted = ts.jit(g)(*laid(make(n))), ts.jit(g)(*(x for x, _ in make(n)))
            for y, w in zip(ts.tree.leaves(found), ts.tree.leaves(wanted), strict=True):
                assert_close(y.numpy(), w.numpy(), times=20)  # of sums of sums
            if n == 7 or name not in REFUSES:
                even, uneven = (dist.explain(g, *laid(make(k))).counts for k in (8, n))
                assert "all_gather" not in uneven
                assert uneven == even
