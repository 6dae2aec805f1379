"""Derivatives of kernels: the gradients of a kernel are those of the function that it computes."""

from __future__ import annotations

import math

import numpy as np
import pytest

import tessera as ts
from tessera import KTile, block, kernel, op, tile
from tessera.core.dims import symbol
from tessera.ir.tile.autodiff import reverse
from tessera.ir.tile.autodiff.upper_bound import most
from tessera.ir.tile.interp import interpret, sizes_of
from tessera.ir.tile.verify import verify
from tessera.lang.kernel.scalar_grad import slopes

RUNS_ON = "numpy"  # what the kernels are compared with; they are machine code themselves


def data(*shape, seed=0, dtype=np.float64):
    return np.random.default_rng(seed).normal(size=shape).astype(dtype)


# Kernels, and the functions that they compute


@kernel.schedule(block(16))
def scaled(x: KTile["N"], y: KTile["N"], a: KTile[()]):
    return tile.exp(tile.load(x) * tile.load(a)) + tile.tanh(tile.load(y))


def scaled_of(x, y, a):
    return op.exp(x * a) + op.tanh(y)


@kernel.schedule(block(8))
def layernorm(x: KTile["M", "D"], gain: KTile["D"], bias: KTile["D"]):
    t = tile.load(x)
    c = t - tile.mean(t, axis=1)[:, None]
    rate = tile.rsqrt(tile.mean(c * c, axis=1) + 1e-5)
    return c * rate[:, None] * tile.load(gain) + tile.load(bias)


def layernorm_of(x, gain, bias):
    c = x - op.mean(x, axis=-1, keepdims=True)
    return c * op.rsqrt(op.mean(c * c, axis=-1, keepdims=True) + 1e-5) * gain + bias


@kernel.schedule(block(4))
def direction(x: KTile["M", "D"], gain: KTile["D"]):
    """Rows past the end are 0 / 0, and must not reach the gradient of gain."""
    t = tile.load(x)
    return t / tile.sqrt(tile.sum(t * t, axis=1, keepdims=True)) * tile.load(gain)


def direction_of(x, gain):
    return x / op.sqrt(op.sum(x * x, axis=1, keepdims=True)) * gain


@kernel.schedule(block(8))
def softmax(x: KTile["M", "D"]):
    t = tile.load(x)
    e = tile.exp(t - tile.max(t, axis=1, keepdims=True))
    return e / tile.sum(e, axis=1, keepdims=True)


def softmax_of(x):
    return op.softmax(x, axis=-1)


@kernel.schedule(
    block(2, 24).k(16)
)  # few rows: LLVM takes long for error functions of wide tiles in f64
def dense(a: KTile["M", "K"], b: KTile["K", "N"], bias: KTile["N"], *, gelu: bool):
    T = tile.context()
    acc = tile.zeros((T.m, T.n), a.dtype)
    for kb in tile.range_k(a.shape, T.k):
        acc = tile.dot(tile.load(a, rows=T.m, cols=kb), tile.load(b, rows=kb, cols=T.n), acc)
    if gelu:
        acc = acc + tile.load(bias, cols=T.n)
        acc = 0.5 * acc * (1 + tile.erf(acc * math.sqrt(0.5)))
    return acc


def dense_of(a, b, bias, *, gelu):
    y = a @ b
    return op.gelu(y + bias) if gelu else y


@kernel.schedule(block(8))
def rope(x: KTile["B", "S", 2, "E"], cos: KTile["S", "E"], sin: KTile["S", "E"]):
    T, b = tile.context(), tile.program(x.shape[0])
    c, s = tile.load(cos, rows=T.m), tile.load(sin, rows=T.m)
    first, box = tile.program_of("m") * T.m, (1, T.m, 1, x.shape[3])
    left = tile.reshape(tile.load(x, at=(b, first, 0, 0), shape=box), c.shape)
    right = tile.reshape(tile.load(x, at=(b, first, 1, 0), shape=box), c.shape)
    y = tile.empty(x.shape, x.dtype)
    for i, half in enumerate((left * c - right * s, right * c + left * s)):
        tile.store(y, tile.reshape(half, box), at=(b, first, i, 0))
    return y


def rope_of(x, cos, sin):
    left, right = x[:, :, 0], x[:, :, 1]
    return op.stack([left * cos - right * sin, right * cos + left * sin], 2)


@kernel.schedule(block(16, 32))
def attention(
    q: KTile["H", "S", "D"], k: KTile["H", "L", "D"], v: KTile["H", "L", "D"], *, causal: bool
):
    T = tile.context()
    rows = tile.load(q, rows=T.m, cols=T.d)
    acc = tile.zeros((T.m, T.d), q.dtype)
    m, l = tile.full((T.m,), -math.inf, q.dtype), tile.zeros((T.m,), q.dtype)
    for nb in tile.range_n(k.shape, T.n):
        s = tile.dot(rows, tile.load(k, nb).T) * tile.rsqrt(float(T.d))
        if causal:
            tile.mask_causal(s, tile.row_index(), tile.col_index(nb))
        p, m_c, l_c = tile.softmax_online(s)
        acc, m, l = tile.softmax_accumulate(acc, m, l, p, tile.load(v, nb), m_c, l_c)
    return acc / l[:, None]


def attention_of(q, k, v, *, causal):
    return op.attention(q, k, v, causal=causal)


@kernel.schedule(block(4, 8))
def masked_stats(x: KTile["M", "N"], count: KTile["M"]):
    """A reduction with masks over blocks of columns, of ragged sizes."""
    T = tile.context()
    n = tile.load(count, rows=T.m)[:, None]
    top, total = tile.full((T.m,), -math.inf, x.dtype), tile.zeros((T.m,), x.dtype)
    for nb in tile.range_k(x.shape, T.n):
        piece = tile.load(x, rows=T.m, cols=nb)
        keep = tile.col_index(nb) < n
        top = tile.maximum(top, tile.max(tile.where(keep, piece, -math.inf), axis=1))
        total = total + tile.sum(tile.where(keep, piece * piece, 0.0), axis=1)
    return top * total


def masked_stats_of(x, count):
    keep = op.arange(x.shape[1]) < count[:, None]
    top = op.max(op.where(keep, x, -math.inf), axis=1)
    return top * op.sum(op.where(keep, x * x, 0.0), axis=1)


@kernel.schedule(block(4))
def folds(x: KTile["M", "N"]):
    t = tile.load(x)
    low, high = tile.min(t, axis=1), tile.prod(t, axis=1)
    running = tile.sum(tile.scan(t, "add", axis=1) * t, axis=1)
    return low * high + tile.reduce(t, "logaddexp", axis=1) + running


def folds_of(x):
    low, high = op.min(x, axis=1), op.prod(x, axis=1)
    return low * high + op.logsumexp(x, axis=1) + op.sum(op.cumsum(x, 1) * x, axis=1)


@kernel.schedule(block(8, 8).k(8))
def batched(x: KTile["A", "B", "M", "K"], w: KTile["K", "N"]):
    """A matrix for all of a batch."""
    T = tile.context()
    acc = tile.zeros((T.m, T.n), x.dtype)
    for kb in tile.range_k(x.shape, T.k):
        acc = tile.dot(tile.load(x, rows=T.m, cols=kb), tile.load(w, rows=kb, cols=T.n), acc)
    return acc


@kernel.schedule(block(8))
def updated(x: KTile["N"], y: KTile["N"], z: KTile["N"]):
    """Results in memories that it is called with; one of them is stored to twice, under a mask."""
    a, b = tile.load(x), tile.load(y)
    tile.store(y, b * a)
    tile.store(z, a)
    tile.store(z, a * a, mask=a > 0)


def updated_of(x, y, z):
    return y * x, op.where(x > 0, x * x, x)


@kernel.schedule(block(8))
def scratch(x: KTile["M", "D"]):
    s = tile.alloc((8, 8), x.dtype)
    tile.store(s, tile.exp(tile.load(x)), at=(0, 0))
    tile.barrier()
    left, y = tile.load(s, at=(0, 0), shape=(8, 4)), tile.empty((x.shape[0], 4), x.dtype)
    made = left * tile.load(s, at=(0, 4), shape=(8, 4)) + left
    tile.store(y, made, at=(tile.program_of("m") * 8, 0))
    return y


@kernel.schedule(block(4, 4))
def nested(x: KTile["M", "N"], y: KTile["M", "K"]):
    """A loop in a loop, both of which carry what is not linear."""
    T = tile.context()
    out = tile.zeros((T.m, 1), x.dtype)
    for nb in tile.range_k(x.shape, T.n):
        t, inner = tile.load(x, rows=T.m, cols=nb), tile.ones((T.m, 1), x.dtype)
        for mb in tile.range_k(y.shape, T.n):
            u = tile.sum(tile.load(y, rows=T.m, cols=mb), axis=1, keepdims=True)
            inner = tile.tanh(inner * u)
        out = tile.sin(out + tile.sum(t, axis=1, keepdims=True) * inner)
    return tile.reshape(out, (T.m,))


def nested_of(x, y):
    out = 0.0
    for i in range(0, x.shape[1], 4):
        inner = 1.0
        for j in range(0, y.shape[1], 4):
            inner = op.tanh(inner * op.sum(y[:, j : j + 4], axis=1))
        out = op.sin(out + op.sum(x[:, i : i + 4], axis=1) * inner)
    return out


SPIN = np.linspace(0, 3, 13 * 4).reshape(13, 4)
COUNTS = np.array([1, 9, 13, 5, 2, 13, 7])


@kernel.schedule(block(8))
def copied(x: KTile["M", 8]):
    s = tile.alloc((8, 8), x.dtype)
    tile.copy_async(s, x)
    tile.wait()
    return tile.load(x) * tile.read(s)


CASES = {
    "scaled": (scaled, scaled_of, (data(37), data(37, seed=1), data()), (0, 1, 2), {}),
    "layernorm": (layernorm, layernorm_of, (data(21, 13), data(13), data(13)), (0, 1, 2), {}),
    "direction": (direction, direction_of, (data(6, 5), data(5)), (0, 1), {}),
    "softmax": (softmax, softmax_of, (data(21, 13),), (0,), {}),
    "matmul": (dense, dense_of, (data(50, 45), data(45, 41), data(41)), (0, 1), {"gelu": False}),
    "dense": (dense, dense_of, (data(9, 33), data(33, 25), data(25)), (0, 1, 2), {"gelu": True}),
    "rope": (rope, rope_of, (data(3, 13, 2, 4), np.cos(SPIN), np.sin(SPIN)), (0, 1, 2), {}),
    "attention": (
        attention, attention_of, tuple(data(2, 40, 8, seed=i) for i in range(3)), (0, 1, 2),
        {"causal": False},
    ),
    "causal": (
        attention, attention_of, tuple(data(1, 37, 8, seed=i) for i in range(3)), (0, 1, 2),
        {"causal": True},
    ),
    "masked": (masked_stats, masked_stats_of, (data(7, 13), COUNTS), (0,), {}),
    "folds": (folds, folds_of, (np.where(data(6, 7) > 1.2, 0, data(6, 7)),), (0,), {}),
    "batched": (batched, lambda x, w: x @ w, (data(2, 3, 9, 11), data(11, 5)), (0, 1), {}),
    "scratch": (
        scratch, lambda x: op.exp(x[:, :4]) * op.exp(x[:, 4:]) + op.exp(x[:, :4]), (data(11, 8),), (0,), {},
    ),
    "copied": (copied, lambda x: x * x, (data(19, 8),), (0,), {}),
    "nested": (nested, nested_of, (data(6, 10), data(6, 7, seed=1)), (0, 1), {}),
}  # fmt: skip


def gradients(f, args, argnums, kwargs):
    weights = data(*np.shape(f(*args, **kwargs).numpy()), seed=9)

    def loss(*xs):
        return op.sum(f(*xs, **kwargs) * weights)

    return [g.numpy() for g in ts.grad(loss, argnums=argnums)(*args)]


@pytest.mark.parametrize("name", CASES)
def test_the_gradient_is_that_of_the_function(name):
    f, of, args, argnums, kwargs = CASES[name]
    args = [ts.tensor(a) for a in args]
    got, want = gradients(f, args, argnums, kwargs), gradients(of, args, argnums, kwargs)
    for g, w in zip(got, want, strict=True):
        assert g.shape == w.shape
        assert np.abs(g - w).max() < 1e-12 * max(1, np.abs(w).max())


@pytest.mark.parametrize("name", ["layernorm", "causal", "updated"])
def test_machine_code_has_the_bits_of_the_interpreter(name):
    if name == "updated":
        f, args, argnums, kwargs = (lambda *xs: updated(*xs)[1]), (data(19),) * 3, (0,), {}
    else:
        f, _, args, argnums, kwargs = CASES[name]
    args = [ts.tensor(a.astype(np.float32)) for a in args]
    got = gradients(f, args, argnums, kwargs)
    with ts.interpret():
        want = gradients(f, args, argnums, kwargs)
    assert [g.tobytes() for g in got] == [w.tobytes() for w in want]


@pytest.mark.parametrize("name", ["masked", "dense", "nested"])
def test_the_gradient_is_the_slope(name):
    f, _, args, argnums, kwargs = CASES[name]
    found = gradients(f, [ts.tensor(a) for a in args], argnums, kwargs)
    weights = data(*np.shape(f(*args, **kwargs).numpy()), seed=9)
    for k, g in zip(argnums, found, strict=True):
        step = data(*args[k].shape, seed=5)
        ends = []
        for h in (1e-6, -1e-6):
            moved = [a + h * step if i == k else a for i, a in enumerate(args)]
            ends.append((f(*moved, **kwargs).numpy() * weights).sum())
        slope = (ends[0] - ends[1]) / 2e-6
        assert abs(slope - (g * step).sum()) < 1e-6 * max(1, abs(slope))


def test_what_a_kernel_stores_to_has_a_cotangent_of_what_was_there_before():
    args = [ts.tensor(data(19, seed=i)) for i in range(3)]

    def loss(f):
        return lambda *xs: sum(op.sum(y * y * (i + 1)) for i, y in enumerate(f(*xs)))

    got = ts.grad(loss(updated), argnums=(0, 1, 2))(*args)
    want = ts.grad(loss(updated_of), argnums=(0, 1))(*args)
    for g, w in zip(got[:2], want, strict=True):
        assert np.abs(g.numpy() - w.numpy()).max() < 1e-12
    assert not got[2].numpy().any()


def test_narrow_tensors_add_up_wide():
    x, gain = (ts.tensor(data(*s, dtype=np.float32)).astype(ts.bf16) for s in ((64, 16), (16,)))

    def loss(f):
        return lambda gain: op.sum(f(x, gain, gain).astype(ts.f32))

    got, want = (ts.grad(loss(f))(gain) for f in (layernorm, layernorm_of))
    assert got.dtype is ts.bf16
    assert np.abs(got.numpy().astype(float) - want.numpy().astype(float)).max() < 0.5


def test_a_derivative_has_a_derivative():
    x, y = data(9), data(9, seed=1)

    def slope(f):
        return lambda x: op.sum(ts.grad(lambda x: op.sum(f(x, y, ts.tensor(np.array(0.5)))))(x) * y)

    got, want = (ts.grad(slope(f))(x).numpy() for f in (scaled, scaled_of))
    assert np.abs(got - want).max() < 1e-12


# The reversed kernels themselves


def back_of(f, args, argnums, **kwargs):
    k = f.lower(*args, **kwargs)
    count = len(args)
    made = len(k.parameters) - count + sum(m.writable for m in k.parameters[:count])
    wanted = [i in argnums for i in range(count)]
    return reverse(k, count, wanted, [True] * made, slopes)


def test_instances_that_share_an_element_have_a_part_each():
    f, _, args, argnums, kwargs = CASES["dense"]
    back = back_of(f, args, argnums, **kwargs)
    verify(back.kernel)
    m, n = (c for _, c in f.lower(*args, **kwargs).grid)
    types = {p.name: p.type.shape for p in back.kernel.parameters}
    M, N, K = map(symbol, "MNK")
    assert types["d_a"] == (n, M, K)
    assert types["d_b"] == (m, K, N)
    assert types["d_bias"] == (m, N)
    assert [g.parts for g in back.gradients] == [1, 1, 1]
    assert not back.zeros


@pytest.mark.parametrize("name", ["dense", "attention", "layernorm", "rope", "masked"])
def test_reversed_kernels_pass_the_checks(name):
    f, _, args, argnums, kwargs = CASES[name]
    report = ts.check(
        back_of(f, args, argnums, **kwargs).kernel, tools=("races", "bounds", "initial")
    )
    assert report.ok, report


def test_a_product_keeps_nothing_of_its_loop():
    """The sum so far is not needed for the derivative, so no scratch is left and one loop."""
    f, _, args, _, _ = CASES["matmul"]
    back = back_of(f, args, (0, 1), gelu=False)
    assert not list(back.kernel.scratch())
    assert back.kernel.text.count('"tile.for"') == 1
    assert back.kernel.text.count('"tile.dot"') == 2


def test_parts_of_an_instance_do_not_depend_on_the_others():
    """A row's gradient has the same bits in a batch and alone."""
    f, _, (x, gain, bias), _, _ = CASES["layernorm"]
    back = back_of(f, (x, gain, bias), (0,))
    ct, whole, alone = data(21, 13, seed=3), np.zeros_like(x), np.zeros((1, 13))
    interpret(back.kernel, [x, gain, bias, ct, whole])
    arrays = [x[5:6].copy(), gain, bias, ct[5:6].copy(), alone]
    interpret(back.kernel, arrays, sizes_of(back.kernel, arrays))
    assert alone[0].tobytes() == whole[5].tobytes()


def test_schedules_change_only_the_last_bits_of_what_instances_share():
    f, _, args, argnums, kwargs = CASES["layernorm"]
    made = [gradients(f.with_schedule(block(m)), args, argnums, kwargs) for m in (4, 8, 32)]
    assert len({own.tobytes() for own, *_ in made}) == 1
    for _, *shared in made[1:]:
        for got, want in zip(shared, made[0][1:], strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-13, atol=1e-13)


def test_threads_change_no_bit_of_what_instances_share():
    f, _, args, argnums, kwargs = CASES["dense"]
    made = set()
    for n in (1, 2, 3):
        with ts.threads(n):
            made.add(b"".join(g.tobytes() for g in gradients(f, args, argnums, kwargs)))
    assert len(made) == 1


def test_most_bounds_positions():
    i, n = symbol("_i"), symbol("N")
    assert most(3 * i + n - 2, {"_i": (0, n - 1)}) == 4 * n - 5
    assert most(n - i, {"_i": (1, n)}) == n - 1
    assert most(i // 4, {"_i": (0, 4 * n)}) == n


# Forward mode


@pytest.mark.parametrize("name", CASES)
def test_forward_mode_is_that_of_the_function(name):
    f, of, args, argnums, kwargs = CASES[name]
    moved = [ts.tensor(args[k]) for k in argnums]
    steps = [ts.tensor(data(*args[k].shape, seed=7 + k)) for k in argnums]

    def along(g):
        def of_moved(*xs):
            given = dict(zip(argnums, xs, strict=True))
            return g(*(given.get(i, a) for i, a in enumerate(args)), **kwargs)

        return ts.jvp(of_moved, moved, steps)

    (y, t), (_, want) = along(f), along(of)
    assert t.shape == y.shape
    assert np.abs(t.numpy() - want.numpy()).max() < 1e-12 * max(1, np.abs(want.numpy()).max())


def test_forward_mode_in_programs_over_reverse_and_by_columns():
    x, t = (ts.tensor(data(3, 4, seed=i)) for i in (1, 2))
    want = ts.jvp(softmax_of, (x,), (t,))[1].numpy()
    jitted = ts.jit(lambda x, t: ts.jvp(lambda x: softmax(x), (x,), (t,))[1])
    np.testing.assert_allclose(jitted(x, t).numpy(), want, atol=1e-14)
    both = [
        ts.jvp(ts.grad(lambda x, f=f: op.sum(f(x) ** 2)), (x,), (t,))[1].numpy()
        for f in (softmax, softmax_of)
    ]
    np.testing.assert_allclose(*both, atol=1e-13)
    columns = [ts.jacfwd(lambda x, f=f: f(x))(x).numpy() for f in (softmax, softmax_of)]
    np.testing.assert_allclose(*columns, atol=1e-14)
