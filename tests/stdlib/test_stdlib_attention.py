"""flash_attention_2 against float64: masks, groups, dropout, sequences of any length, derivatives,
schedules.
"""

from __future__ import annotations

import math

import numpy as np
import pytest

import tessera as ts
from tessera import Schedule, bf16, block, op, stdlib
from tessera.lang.kernel.random import words_reference


def data(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def seen(rows, keys, causal, window, sink):
    i, j = np.arange(rows)[:, None] + keys - rows, np.arange(keys)
    mask = np.ones((rows, keys), bool)
    if causal:
        mask &= j <= i
    if window is not None:
        mask &= ((j > i - window) & (j < i + window)) | (j < sink)
    return mask


def weights(q, k, causal=False, window=None, sink=0):
    s = q @ k.swapaxes(-1, -2) / math.sqrt(q.shape[-1])
    s = np.where(seen(*s.shape[-2:], causal, window, sink), s, -np.inf)
    top = s.max(-1, keepdims=True)
    e = np.exp(s - np.where(np.isinf(top), 0, top))
    total = e.sum(-1, keepdims=True)
    return e / np.where(total == 0, 1, total)


def kept(shape, p, seed):
    """What dropout keeps of weights, by the number of each of them."""
    drawn = words_reference(np.arange(math.prod(shape)).reshape(shape), seed)
    return np.where(drawn >= np.uint64(int(p * 2**32)), 1 / (1 - p), 0)


def reference(q, k, v, ct=None, dropout=0.0, seed=0, **masks):
    """Attention in float64, and with a cotangent those of q, k and v."""
    q, k, v = (np.asarray(x, np.float64) for x in (q, k, v))
    group = q.shape[-3] // k.shape[-3]
    wide_k, wide_v = (x.repeat(group, -3) for x in (k, v))
    p = weights(q, wide_k, **masks)
    keep = kept(p.shape, dropout, seed) if dropout else 1.0
    y = (p * keep) @ wide_v
    if ct is None:
        return y
    dp = ct @ wide_v.swapaxes(-1, -2) * keep
    ds = p * (dp - (dp * p).sum(-1, keepdims=True)) / math.sqrt(q.shape[-1])
    dk, dv = ds.swapaxes(-1, -2) @ q, (p * keep).swapaxes(-1, -2) @ ct
    parts = (x.reshape(*k.shape[:-2], group, *x.shape[-2:]).sum(-3) for x in (dk, dv))
    return y, ds @ wide_k, *parts


SETTINGS = {
    "plain": {},
    "causal": {"causal": True},
    "window": {"causal": True, "window": 9},
    "both sides": {"window": 5},
    "sink": {"causal": True, "window": 9, "sink": 3},
    "dropout": {"causal": True, "dropout": 0.25, "seed": 7},
}
SHAPES = {  # batch axes, heads, heads of keys, rows, keys, size
    "square": ((2,), 2, 2, 37, 37, 8),
    "groups": ((), 4, 2, 19, 150, 16),
    "one head of keys": ((1,), 3, 1, 1, 65, 4),
    "more rows than keys": ((), 1, 1, 40, 11, 8),
}


def operands(shape):
    batch, heads, shared, rows, keys, size = shape
    q, ct = (data(*batch, heads, rows, size, seed=i) for i in (0, 3))
    k, v = (data(*batch, shared, keys, size, seed=i) for i in (1, 2))
    return q, k, v, ct


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_attention_and_its_derivatives_agree_with_float64(shape, settings):
    q, k, v, ct = operands(shape)
    f = stdlib.flash_attention_2.with_schedule(block(16, 24))
    with ts.interpret():
        y, back = ts.vjp(lambda *xs: f(*xs, **settings), *map(ts.tensor, (q, k, v)))
        got = (y, *back(ts.tensor(ct)))
    for a, b in zip(got, reference(q, k, v, ct, **settings), strict=True):
        np.testing.assert_allclose(a.numpy(), b, rtol=1e-4, atol=2e-5)


def test_machine_code_has_the_bits_of_the_interpreter():
    q, k, v, ct = (ts.tensor(x) for x in operands(SHAPES["groups"]))
    f = stdlib.flash_attention_2.with_schedule(block(16, 64))

    def run():
        y, back = ts.vjp(lambda *xs: f(*xs, causal=True, dropout=0.1), q, k, v)
        return b"".join(x.numpy().tobytes() for x in (y, *back(ct)))

    with ts.interpret():
        want = run()
    assert run() == want


@pytest.mark.parametrize(("step", "count"), [(3, 34), pytest.param(1, 102, marks=pytest.mark.deep)])
def test_every_schedule_gives_one_hash(step, count):
    """So many schedules of the forward pass, and one in 24 of them of the backward pass."""
    q, k, v, ct = (ts.tensor(x) for x in operands(((), 2, 1, 9, 140, 4)))
    made, back = set(), set()
    with ts.interpret():
        for i, s in enumerate(block(m=[*range(2, 53, step)], n=[100, 200]).space):
            f = stdlib.flash_attention_2.with_schedule(s)
            made.add(f(q, k, v, causal=True).numpy().tobytes())
            if i % 24 == 1:
                _, pull = ts.vjp(lambda *xs, f=f: f(*xs, causal=True), q, k, v)
                back.add(b"".join(x.numpy().tobytes() for x in pull(ct)))
    assert i + 1 == count
    assert len(made) == len(back) == 1


def test_sequences_one_after_the_other_have_the_bits_they_have_alone():
    sizes = [(5, 9), (1, 140), (16, 16)]
    starts, starts_k = (np.cumsum([0, *n]) for n in zip(*sizes, strict=True))
    q = data(2, starts[-1], 8)
    k, v = (data(2, starts_k[-1], 8, seed=i) for i in (1, 2))
    with ts.interpret():
        got = stdlib.flash_attention_varlen(
            q, k, v, starts, starts_k, most=16, most_k=140, causal=True
        ).numpy()
        for i in range(len(sizes)):
            rows, keys = slice(*starts[i : i + 2]), slice(*starts_k[i : i + 2])
            alone = stdlib.flash_attention_2(q[:, rows], k[:, keys], v[:, keys], causal=True)
            assert got[:, rows].tobytes() == alone.numpy().tobytes()
    np.testing.assert_allclose(
        got[:, :5], reference(q[:, :5], k[:, :9], v[:, :9], causal=True), atol=1e-5
    )


def test_narrow_tensors_are_computed_wide():
    q, k, v, _ = (ts.tensor(x, bf16) for x in operands(SHAPES["groups"]))
    with ts.interpret():
        got = stdlib.flash_attention_2(q, k, v, causal=True)
    assert got.dtype is bf16
    want = reference(*(x.numpy().astype(np.float64) for x in (q, k, v)), causal=True)
    np.testing.assert_allclose(got.numpy().astype(np.float64), want, atol=0.02)


def test_the_snippet_of_the_specification():
    my_custom_schedule = Schedule(block=(32, 128), warps=4)
    my_attention = stdlib.flash_attention_2.with_schedule(my_custom_schedule)
    q, k, v, _ = operands(SHAPES["square"])
    assert my_attention.schedule == my_custom_schedule
    with ts.interpret():
        assert (my_attention(q, k, v).numpy() == stdlib.flash_attention_2(q, k, v).numpy()).all()


def test_in_a_jitted_function():
    q, k, v, _ = (ts.tensor(x) for x in operands(SHAPES["square"]))

    @ts.jit
    def f(q, k, v):
        return op.sum(stdlib.flash_attention_2(q, k, v, causal=True) ** 2)

    want = (reference(*(x.numpy() for x in (q, k, v)), causal=True) ** 2).sum()
    np.testing.assert_allclose(f(q, k, v).numpy(), want, rtol=1e-5)


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"window": 0}, "window is 0, expected at least 1"),
        ({"sink": 2}, "sink is 2, expected 0, or more with a window"),
        ({"dropout": 1.0}, "dropout is 1.0, expected at least 0 and less than 1"),
    ],
    ids=["window", "sink", "dropout"],
)
def test_settings_that_mean_nothing_are_refused(settings, text):
    q = data(2, 3, 4)
    with pytest.raises(ts.TesseraError, match=text):
        stdlib.flash_attention_2(q, q, q, **settings)


def test_heads_must_divide():
    q, k = data(3, 4, 4), data(2, 4, 4)
    with pytest.raises(ts.TesseraError, match="q has 3 heads, k 2 and v 2"):
        stdlib.flash_attention_2(q, k, k)
