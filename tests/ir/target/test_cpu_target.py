"""The target cpu: whole programs in machine code agree with the references, and their bits never move."""

import hashlib

import numpy as np
import pytest

import tessera as ts
from tessera import Tensor, f32, op
from tessera.core.approximate.algebra import F32, F64
from tessera.core.errors import OperandError
from tessera.core.flags import override
from tessera.ir.target.cpu.algebra import LlvmAlgebra

RNG = np.random.default_rng(0)


def draw(*shape, dtype=np.float32):
    return ts.tensor(RNG.normal(size=shape).astype(dtype))


def mlp_loss(p, x, y):
    h = op.tanh(x @ p["w1"] + p["b1"])
    return op.mean(op.square(h @ p["w2"] - y))


def block(x, w, g):
    y = op.rmsnorm(x, g) @ w
    return x + op.silu(y) * op.sigmoid(x)


def attention(q, k, v):
    return op.softmax(op.einsum("bqd,bkd->bqk", q, k) / 4.0) @ v


PROGRAMS = {
    "chain": (lambda x, b: op.tanh(x * b + b) * 2.0 - x, ((33, 70), (70,))),
    "softmax": (op.softmax, ((7, 5, 130),)),
    "layernorm": (lambda x, g, b: op.layernorm(x, g, b), ((9, 600), (600,), (600,))),
    "sums": (lambda x: (x.sum(), x.sum(0), x.sum(1), x.mean((0, 2))), ((17, 21, 65),)),
    "extremes": (lambda x: (x.max(1), x.min(0), op.max(x)), ((17, 40),)),
    "transposed": (lambda x: op.transpose(x) * 2.0 + op.transpose(x[::-1]), ((30, 41),)),
    "matmul": (lambda a, b: a @ b, ((37, 700), (700, 45))),
    "matmul of transposes": (lambda a, b: a.T @ b.T, ((60, 20), (33, 60))),
    "batched matmul": (lambda a, b: a @ b, ((3, 2, 15, 40), (3, 2, 40, 17))),
    "vector": (lambda a, b: a @ b, ((300,), (300, 500))),
    "epilogue": (lambda a, b, c: op.relu(a @ b + c) * c, ((40, 64), (64, 50), (50,))),
    "block": (block, ((5, 6, 32), (32, 32), (32,))),
    "attention": (attention, ((2, 20, 16), (2, 30, 16), (2, 30, 16))),
    "host ops": (lambda x: op.sort(x, axis=1) + op.cumsum(x, axis=0), ((9, 20),)),
    "positions": (lambda x: op.where(op.tril(x) == 0, -1.0, x), ((20, 20),)),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_machine_code_agrees_with_the_references(name):
    f, shapes = PROGRAMS[name]
    xs = [draw(*s) for s in shapes]
    got, want = ts.jit(f, target="cpu")(*xs), ts.jit(f, target="numpy")(*xs)
    for a, b in zip(ts.tree.leaves(got), ts.tree.leaves(want), strict=True):
        assert a.type is b.type
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-5)


def test_gradients_agree():
    p = {"w1": draw(20, 30), "b1": draw(30), "w2": draw(30, 3)}
    x, y = draw(50, 20), draw(50, 3)
    f = ts.value_and_grad(mlp_loss)
    got, want = ts.jit(f, target="cpu")(p, x, y), ts.jit(f, target="numpy")(p, x, y)
    for a, b in zip(ts.tree.leaves(got), ts.tree.leaves(want), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "name", ["softmax", "layernorm", "sums", "matmul", "epilogue", "attention"]
)
def test_bits_do_not_depend_on_threads(name):
    f, shapes = PROGRAMS[name]
    xs = [draw(*s) for s in shapes]
    jitted = ts.jit(f, target="cpu")
    digests = set()
    for threads in (1, 2, 3, 8):
        with override(threads=threads):
            data = b"".join(t.numpy().tobytes() for t in ts.tree.leaves(jitted(*xs)))
        digests.add(hashlib.sha256(data).hexdigest())
    assert len(digests) == 1


@pytest.mark.parametrize(
    "f",
    [op.softmax, lambda x: op.layernorm(x), lambda x: x @ W],
    ids=["softmax", "layernorm", "matmul"],
)
def test_a_row_alone_is_the_row_in_a_batch(f):
    x = draw(37, 520)
    jitted = ts.jit(f, target="cpu")
    whole = jitted(x).numpy()
    for i in (0, 5, 36):
        np.testing.assert_array_equal(jitted(x[i : i + 1]).numpy()[0], whole[i])
    np.testing.assert_array_equal(jitted(x[10:20]).numpy(), whole[10:20])


W = draw(520, 33)


def test_one_compile_serves_all_sizes():
    @ts.jit(target="cpu")
    def f(x: Tensor["B", "D", f32], w: Tensor["D", "N", f32]):
        return op.softmax(x @ w), x.sum(0)

    for b, d, n in ((3, 5, 7), (20, 600, 33), (1, 1, 1), (64, 16, 16)):
        x, w = draw(b, d), draw(d, n)
        got, total = f(x, w)
        np.testing.assert_allclose(got, op.softmax(x @ w), rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(total, x.numpy().sum(0), rtol=1e-4, atol=1e-4)
    assert f.compiled == 1


@pytest.mark.parametrize(
    "f",
    [
        lambda x: op.mean(x) * 2.0,
        lambda x: op.exp(op.reshape(x, (-1,))) + 1.0,
        lambda x: op.sum(x.T, 0),
    ],
    ids=["mean", "reshape", "transpose"],
)
def test_symbolic_sizes_that_one_kernel_alone_cannot_tell(f):
    @ts.jit(target="cpu")
    def g(x: Tensor["N", "M", f32]):
        return f(x)

    for shape in ((3, 4), (70, 600)):
        x = draw(*shape)
        np.testing.assert_allclose(g(x), f(x), rtol=1e-4, atol=1e-5)
    assert g.compiled == 1


def test_every_level_is_verified_when_asked():
    with override(verify=True):
        f = ts.jit(lambda x, w: op.softmax(x @ w), target="cpu")
        assert f(draw(5, 6), draw(6, 7)).shape == (5, 7)


def test_a_norm_is_one_kernel():
    low = ts.jit(lambda x, g: op.softmax(op.layernorm(x, g) + x), target="cpu").lower(
        draw(4, 64), draw(64)
    )
    assert len(low.schedule.steps) == 1
    assert len(low.tile) == len(low.target) == 1
    for level in (low.schedule, low.tile, low.target):
        assert len(level.text) > 100
        assert len(level.hash) == 64


def test_levels_of_the_numpy_target_are_said_to_be_missing():
    low = ts.jit(op.exp, target="numpy").lower(draw(2))
    with pytest.raises(OperandError) as e:
        _ = low.schedule
    assert e.value.message == "lower: target 'numpy' has no schedule level; use jit(target=\"cpu\")"
    with pytest.raises(OperandError) as e:
        ts.jit(op.exp, target="abacus")(draw(2))
    assert e.value.message == "jit: target is 'abacus', expected one of numpy, cpu, cuda, hip"


@pytest.mark.parametrize("width", [1, 2, 4, 8, 16])
@pytest.mark.parametrize("format", [F32, F64], ids=lambda f: f.name)
def test_intrinsics_are_named_by_the_vectors_that_they_take(format, width):
    types = LlvmAlgebra(None, format, width).types
    kind = {"f32": "float", "f64": "double"}[format.name]
    assert types["f"] == (kind if width == 1 else f"<{width} x {kind}>")
    assert types["b"] == ("i1" if width == 1 else f"<{width} x i1>")
    assert types["v"] == (format.name if width == 1 else f"v{width}{format.name}")
    assert types["true"] == ("true" if width == 1 else "splat (i1 true)")
