"""Numeric policies are compiled: a program under a policy has no step on the host that it lacks without."""

import numpy as np
import pytest

import tessera as ts
from tessera import (
    accum,
    bf16,
    f8e4m3,
    f16,
    f32,
    f64,
    i8,
    i32,
    loss_scale,
    op,
    saturate,
    stochastic_round,
    tf32,
    u8,
)
from tessera.transform.policies import legalize_policies

FLOATS = (
    tf32, bf16 @ stochastic_round, f16 @ stochastic_round, f8e4m3 @ stochastic_round @ saturate,
    bf16 @ accum(f64), f32 @ accum(f64), f16 @ loss_scale(1024), f16 @ saturate, f32 @ saturate,
    f32 @ stochastic_round, bf16 @ accum(f64) @ stochastic_round @ saturate @ loss_scale(8),
)  # fmt: skip
INTEGERS = (i8 @ saturate, u8 @ saturate, i32 @ saturate)
EXACT = {  # the same bits by any order: one rounding, or whole numbers
    "add": lambda x: x + x,
    "polynomial": lambda x: (x * x + x) * x,
    "cast": lambda x: x.astype(f64).astype(x.dtype),
    "choice": lambda x: op.where(x > 1, x, op.full((), 3, x.dtype)),
    "moved": lambda x: op.concat([op.flip(x, 0), x[2:5] * 2]),
    "greatest": lambda x: op.max(x * 2, axis=1),
}
ROUNDED = {"product": lambda x: x @ x.T, "sum": lambda x: op.sum(x, axis=0)}
NEURAL = {"softmax": op.softmax, "tanh": op.tanh, "norm": op.layernorm}


def numbers(d, shape=(19, 23), scale=60):
    x = np.random.default_rng(5).normal(size=shape) * scale
    return ts.tensor(np.abs(x) if d.kind == "u" else x, dtype=f64).astype(d)


def stored(x):
    return np.ascontiguousarray(np.asarray(x)).view(np.uint8)


def hosted(f, *args):
    return [n.op.name for n in f.lower(*args)._executable.host_nodes if n.op.name != "constant"]


@pytest.mark.parametrize("d", FLOATS + INTEGERS, ids=str)
@pytest.mark.parametrize("name", [*EXACT, *ROUNDED, *NEURAL])
def test_a_policy_brings_no_step_to_the_host(name, d):
    if d.kind in "iu" and name in NEURAL:
        return
    f, x = {**EXACT, **ROUNDED, **NEURAL}[name], numbers(d)
    compiled = ts.jit(f)
    y = compiled(x)
    assert hosted(compiled, x) == hosted(ts.jit(f), x.astype(d.base))
    assert y.dtype is f(x).dtype
    assert np.array_equal(stored(y), stored(f(x)))
    if name in EXACT:
        assert np.array_equal(stored(y), stored(ts.jit(f, target="numpy")(x)))


@pytest.mark.parametrize("d", [bf16 @ accum(f64), f32 @ accum(f64)], ids=str)
def test_a_wide_accumulator_gives_the_sum_in_f64_rounded_once(d):
    x = numbers(d)
    wide = np.asarray(x).astype(np.float64)
    assert np.array_equal(
        stored(ts.jit(lambda x: x @ x.T)(x)), stored(ts.tensor(wide @ wide.T).astype(d))
    )


def test_tf32_rounds_the_factors_of_a_product_when_compiled():
    x = numbers(tf32)
    near = ts.tensor(((np.asarray(x).view(np.uint32) + 0x1000) >> 13 << 13).view(np.float32))
    assert np.array_equal(
        stored(ts.jit(lambda x: x @ x.T)(x)), stored(ts.jit(lambda x: x @ x.T)(near))
    )


@pytest.mark.parametrize("d", [bf16, f16, f8e4m3], ids=str)
def test_stochastic_rounding_of_edges_is_compiled_as_it_is_defined(d):
    least = float(np.asarray(ts.tensor(0.0).astype(d)).dtype.type(2.0**-9)) * 2.0**-130
    edge = [
        0.0,
        -0.0,
        np.inf,
        -np.inf,
        np.nan,
        1.0,
        -1.0,
        447.9,
        -447.9,
        1e39,
        5e-324,
        -5e-324,
        least,
        -least,
    ]
    x = ts.tensor(np.array(edge * 7 + list(np.geomspace(1e-42, 3e38, 300))), dtype=f64)
    to = d @ stochastic_round
    compiled = ts.jit(lambda x: (x + 0.0).astype(to))(x)
    assert np.array_equal(
        stored(compiled), stored(ts.jit(lambda x: (x + 0.0).astype(to), target="numpy")(x))
    )
    signs = np.signbit(np.asarray(compiled).astype(np.float64))
    assert np.array_equal(
        signs[~np.isnan(np.asarray(x))], np.signbit(np.asarray(x + 0.0))[~np.isnan(np.asarray(x))]
    )


def test_policies_in_loops_symbolic_sizes_and_gradients_are_compiled():
    d = bf16 @ stochastic_round

    @ts.jit
    def walk(x: ts.Tensor["N", d], w: ts.Tensor["N", d]):
        return ts.scan(lambda c, t: (c * 0.5 + t, c), x, op.stack([w, w * 2, w * 3]))

    for n in (5, 12):
        x, w = numbers(d, (n,)), numbers(d, (n,), 1)
        last, seen = walk(x, w)
        with ts.device("cpu"):
            c = x
            for t in (w, w * 2, w * 3):
                c = c * 0.5 + t
        assert np.array_equal(stored(last), stored(c))
        assert seen.dtype is d
    scaled = f16 @ loss_scale(1024)
    slope = ts.grad(
        lambda x: op.sum((x.astype(scaled) * op.full((2,), 0.1, scaled)).astype(f32) * 1e-8)
    )
    assert np.array_equal(stored(ts.jit(slope)(op.ones((2,)))), stored(slope(op.ones((2,)))))
    assert hosted(ts.jit(slope), op.ones((2,))) == []


def test_a_graph_without_policies_is_left_alone():
    g = ts.jit(lambda x: op.softmax(x.astype(bf16))).lower(op.ones((3, 4))).graph
    assert legalize_policies(g) is g


def test_after_the_pass_no_value_has_a_policy():
    x = numbers(bf16 @ stochastic_round @ saturate)
    g = legalize_policies(ts.trace(lambda x: (x @ x.T, op.sum(x), x[0]), x))
    assert all(v.dtype is v.dtype.base for n in g.nodes for v in (*n.operands, *n.results))


@pytest.mark.parametrize(("d", "to"), [(f32, "u32"), (f32, "i32"), (f64, "i64"), (f64, "u64")])
def test_bitcast_there_and_back(d, to):
    x = ts.tensor(np.array([0.0, -0.0, 1.5, -np.inf, 3e38]), dtype=d)
    there = ts.jit(lambda x: op.bitcast(x, to))(x)
    assert np.array_equal(np.asarray(there), np.asarray(x).view(f"{to[0]}{d.bits // 8}"))
    assert np.array_equal(stored(ts.jit(lambda n: op.bitcast(n, d))(there)), stored(x))


def test_bitcast_to_another_width_is_an_error():
    with pytest.raises(
        ts.TesseraError, match=r"bitcast: f32\[2\] to f64: expected two formats of one width"
    ):
        op.bitcast(op.ones((2,)), f64)
