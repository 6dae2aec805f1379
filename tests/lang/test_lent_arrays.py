"""Arrays of NumPy that are written to after a call change no result, derivative or tensor."""

from __future__ import annotations

import numpy as np
import pytest

import tessera as ts
from tessera import op
from tessera.core import tree
from tessera.core.errors import OperandError


def same(v):
    return v


CALLS = {
    "vmap": lambda a: ts.vmap(same)(a),
    "vmap of a view": lambda a: ts.vmap(lambda v: (v, op.reshape(v, (1,))))(a[::-1]),
    "vmap, not mapped": lambda a: ts.vmap(lambda v, w: w, in_axes=(0, None), out_axes=None)(a, a),
    "jvp": lambda a: ts.jvp(same, (a,), (a,)),
    "vjp": lambda a: ts.vjp(same, a)[0],
    "pull back": lambda a: ts.vjp(same, a)[1](a),
    "linearize": lambda a: ts.linearize(same, a)[0],
    "linear map": lambda a: ts.linearize(same, a)[1](a),
    "aux": lambda a: ts.value_and_grad(lambda v: ((v * v).sum(), v), has_aux=True)(a),
    "custom": lambda a: ts.vjp(_own, a)[1](a),
    "cond": lambda a: ts.cond(ts.tensor(True), same, lambda v: v, a),
    "cond of a tree": lambda a: ts.cond(ts.tensor(True), same, lambda v: v, {"a": [a, a[1:]]}),
    "switch": lambda a: ts.switch(ts.tensor(0), [same, same], a),
    "while_loop": lambda a: ts.while_loop(lambda v: v[0] > 100, same, a),
    "fori_loop": lambda a: ts.fori_loop(0, 0, lambda i, v: v, a),
    "scan": lambda a: ts.scan(lambda c, x: (c, x), a, a),
    "associative_scan": lambda a: ts.associative_scan(op.add, a[:1]),
    "jit": lambda a: ts.jit(same)({"a": a, "b": a[2:]}),
    "jacfwd": lambda a: ts.jacfwd(same)(a),
}


@ts.custom_vjp
def _own(x):
    return x


_own.defvjp(lambda x: (x, x), lambda r, c: (r,))


@pytest.mark.parametrize("name", CALLS)
def test_results_have_memory_of_their_own(name):
    a = np.arange(6.0)
    found = CALLS[name](a)
    before = [np.array(v) for v in tree.leaves(found)]
    a[:] = 99
    for v, w in zip(tree.leaves(found), before, strict=True):
        np.testing.assert_array_equal(np.asarray(v), w)


def test_a_derivative_is_at_the_point_where_it_was_taken():
    a, c = np.arange(3.0), np.ones(3)
    _, back = ts.vjp(lambda v: v * v * c, a)
    _, push = ts.linearize(lambda v: v * v * c, a)
    a[:] = 99
    c[:] = 99
    assert back(np.ones(3))[0].tolist() == push(np.ones(3)).tolist() == [0, 2, 4]


def test_ufunc_at_writes_to_no_tensor():
    x = ts.tensor([1.0, 2.0])
    y = x
    for f in (np.add, np.multiply, np.maximum, np.subtract):
        with pytest.raises(
            OperandError, match=rf"numpy\.{f.__name__}\.at: a tensor does not change"
        ):
            f.at(x, [0], 5.0)
    assert x.tolist() == y.tolist() == [1, 2]
    a = np.zeros(2, np.float32)
    np.add.at(a, [0, 0], ts.tensor([1.0, 2.0]))  # an array is the user's own
    assert a.tolist() == [3, 0]
