"""jit: what is traced, what is static, when it compiles, and that it computes what eager code does."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pytest

import tessera as ts
from tessera import Tensor, f32, graph, op


def tensor(*shape, dtype=np.float32, seed=0):
    return ts.tensor(np.random.default_rng(seed).normal(size=shape).astype(dtype))


def counting(f):
    """f, and the list that grows by one each time it is traced."""
    traces = []

    def traced(*args, **kwargs):
        traces.append(1)
        return f(*args, **kwargs)

    traced.__wrapped__ = f
    return traced, traces


def test_a_call_with_known_types_is_never_traced_again():
    f, traces = counting(lambda x, y: op.tanh(x) + y)
    jitted = ts.jit(f)
    for seed in range(5):
        x, y = tensor(3, 4, seed=seed), tensor(4, seed=seed + 9)
        np.testing.assert_array_equal(jitted(x, y), op.tanh(x) + y)
    assert len(traces) == jitted.compiled == 1
    jitted(tensor(2, 4), tensor(4))
    jitted(tensor(3, 4, dtype=np.float64), tensor(4))
    assert len(traces) == jitted.compiled == 3


def test_keywords_and_positions_share_one_compile():
    f, traces = counting(lambda x, y: x - y)
    jitted = ts.jit(f)
    x, y = tensor(3), tensor(3, seed=1)
    for result in (jitted(x, y), jitted(x, y=y), jitted(y=y, x=x)):
        np.testing.assert_array_equal(result, x.numpy() - y.numpy())
    assert len(traces) == 1


def test_trees_go_in_and_come_out():
    class Pair(NamedTuple):
        a: object
        b: object

    @ts.jit
    def f(params, xs):
        return {"sum": params["w"] + xs[0], "rest": Pair(xs[1], (params["b"], None))}

    p = {"w": tensor(2), "b": tensor(3)}
    for _ in range(2):
        out = f(p, [tensor(2, seed=1), tensor(1)])
        assert list(out) == ["rest", "sum"] or list(out) == ["sum", "rest"]
        assert isinstance(out["rest"], Pair)
        np.testing.assert_array_equal(out["rest"].b[0], p["b"])
        assert out["rest"].b[1] is None
    assert f.compiled == 1


def test_dicts_in_another_order_are_one_structure_and_another_program():
    f = ts.jit(lambda d: d["x"] - d["y"])
    x, y = tensor(2), tensor(2, seed=1)
    np.testing.assert_array_equal(f({"x": x, "y": y}), f({"y": y, "x": x}))
    assert f.compiled == 2  # a function may look at the order of the keys
    f({"y": x, "x": y})
    assert f.compiled == 2


def test_static_arguments_choose_the_program():
    @ts.jit
    def f(x, *, power: int, name="plain"):
        return x**power if name == "plain" else -x

    x = tensor(3)
    np.testing.assert_allclose(f(x, power=2), x.numpy() ** 2, rtol=1e-6)
    np.testing.assert_allclose(f(x, power=3), x.numpy() ** 3, rtol=1e-6)
    np.testing.assert_array_equal(f(x, power=3, name="other"), -x.numpy())
    f(x, power=2)
    assert f.compiled == 3

    g = ts.jit(lambda x, n: x.reshape(n, -1), static_argnames=("n",))
    assert g(tensor(6), 2).shape == (2, 3)
    assert g(tensor(6), n=3).shape == (3, 2)


def test_one_and_true_are_different_static_values():
    f = ts.jit(lambda x, *, flag: x + 1 if flag is True else x)
    x = tensor(2)
    np.testing.assert_array_equal(f(x, flag=1), x)
    np.testing.assert_array_equal(f(x, flag=True), x.numpy() + 1)
    np.testing.assert_array_equal(f(x, flag=1), x)


def test_python_numbers_are_dynamic():
    f, traces = counting(lambda x, k: x * k)
    jitted = ts.jit(f)
    x = tensor(3)
    for k in (1.5, 2.5, -3.0):
        np.testing.assert_array_equal(jitted(x, k), x.numpy() * np.float32(k))
    assert len(traces) == 1


def test_a_number_means_the_same_eager_and_jitted():
    def f(x, k):
        return x * k + k, k - x, op.where(x > k, x, k), op.maximum(k, x)

    for x in (tensor(3), tensor(3, dtype=np.float64), tensor(3).astype("bf16"), ts.tensor([1, 2])):
        for k in (0.1, 2, True):
            got, want = ts.jit(f)(x, k), f(x, k)
            for a, b in zip(got, map(ts.tensor, want), strict=True):
                assert a.type is b.type
                np.testing.assert_array_equal(a, b)


def test_numpy_arrays_are_taken():
    f = ts.jit(lambda x, y: x @ y)
    a = np.random.default_rng(0).normal(size=(3, 3))
    np.testing.assert_allclose(f(a, a), a @ a)
    np.testing.assert_allclose(f(ts.tensor(a), a), a @ a)


def test_captured_tensors_are_inputs_not_constants():
    w = tensor(16, 16)
    g = ts.jit(lambda x: x @ w).lower(tensor(4, 16)).graph
    assert [n.op.name for n in g.nodes] == ["matmul"]
    assert len(g.captured) == 1


def test_a_captured_array_is_copied():
    a = np.ones(100, np.float32)
    f = ts.jit(lambda x: x + a)
    x = tensor(100)
    before = f(x).numpy().copy()
    a[:] = 7
    np.testing.assert_array_equal(f(x), before)


def test_jit_inside_jit_is_one_named_call():
    inner = ts.jit(lambda x: op.exp(x))
    outer = ts.jit(lambda x: inner(x) + inner(x))
    x = tensor(3)
    np.testing.assert_array_equal(outer(x), 2 * np.exp(x.numpy()))
    assert [n.op.name for n in outer.lower(x).traced.nodes] == ["call", "call", "add"]
    # simplify sees through the calls and computes exp once
    assert [n.op.name for n in outer.lower(x).graph.nodes] == ["exp", "add"]


def test_modules_have_names_and_nest():
    @graph.module("inner")
    def inner(x):
        return op.relu(x)

    @graph.module("outer")
    def outer(x):
        return inner(x) * 2

    assert (outer.name, inner.name) == ("outer", "inner")
    assert ts.trace(lambda x: outer(x), tensor(2)).nodes[0].regions[0].nodes[0].params == {
        "name": "inner"
    }
    x = tensor(4)
    np.testing.assert_array_equal(outer(x), np.maximum(x.numpy(), 0) * 2)


def test_methods_can_be_jitted():
    @ts.tree.node
    @dataclass
    class Layer:
        w: object

        @ts.jit
        def apply(self, x):
            return x @ self.w

    layer = Layer(tensor(3, 2))
    x = tensor(4, 3)
    np.testing.assert_allclose(layer.apply(x), x.numpy() @ layer.w.numpy(), rtol=1e-6)


@pytest.mark.parametrize("sizes", [(1, 1), (2, 5), (7, 3), (0, 4)])
def test_symbolic_sizes_compile_once(sizes):
    @ts.jit
    def f(x: Tensor["B", "D", f32], w: Tensor["D", 3, f32]):
        y = x @ w
        return op.concat([y, y]).reshape(-1, 3).sum(0), x.shape[0] * op.ones(())

    b, d = sizes
    for k in range(3):
        x, w = tensor(b + k, d, seed=k), tensor(d, 3)
        total, rows = f(x, w)
        np.testing.assert_allclose(total, 2 * (x.numpy() @ w.numpy()).sum(0), rtol=1e-4, atol=1e-5)
        assert float(rows) == b + k
    # empty axes are compiled apart, since a symbolic size is at least 1
    assert f.compiled == (2 if 0 in sizes else 1)


def test_lowering_shows_the_graph_and_every_pass():
    f = ts.jit(lambda x: op.exp(x) * 1.0)
    low = f.lower(tensor(2))
    assert low.record[0].name == "trace"
    assert [n.op.name for n in low.graph.nodes] == ["exp"]
    assert '"tessera.exp"' in str(low.graph)
    assert low.graph.hash == f.lower(tensor(2, seed=5)).graph.hash


def test_threads_trace_apart():
    def work(seed):
        x = tensor(8, 8, seed=seed)
        f = ts.jit(lambda a: op.tanh(a @ a) + seed)
        return np.array_equal(f(x), op.tanh(x @ x) + seed)

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(work, range(16)))
