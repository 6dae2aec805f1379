"""The modelling snippet of the principles, as written but for its two decorators on one line."""

import numpy as np
import pytest

import tessera as ts
from tessera import (
    KVCache,
    Tensor,
    accum,
    autodiff,
    bf16,
    device,
    f32,
    flash_attention,
    gpu,
    jit,
    op,
    prefetch,
    split_qkv,
)
from tessera.lang.op import cast_like, gelu, matmul, residual, rmsnorm_safe

D, HEADS, ROOM = 16, 2, 12
rng = np.random.default_rng(0)


def weight(*shape):
    return ts.tensor(rng.normal(size=shape) / np.sqrt(shape[0]), dtype=bf16)


Wqkv, Wo, Wmlp_in, Wmlp_out = weight(D, 3 * D), weight(D, D), weight(D, 4 * D), weight(4 * D, D)


# fmt: off
@jit
@autodiff
def transformer_block(x: Tensor["B","S","D", bf16 @accum(f32)],
                      cache: KVCache, *, heads: int, p: float):
    x = rmsnorm_safe(x)
    with device(gpu), prefetch(cache, into="smem", overlap="compute"):
        qkv = matmul(x, Wqkv)                 # fp8 -> fp32 accum
        q,k,v = split_qkv(qkv, heads=heads)
        cache = cache.append(k,v)
        y = flash_attention(q, cache, dropout=p, causal=True)
    y = residual(x, matmul(y, Wo), dropout=p)
    y = residual(y, gelu(matmul(rmsnorm_safe(y), Wmlp_in)) @ Wmlp_out, dropout=p)
    return cast_like(y, x), cache
# fmt: on


def run(x, cache):
    return transformer_block(x, cache, heads=HEADS, p=0.0)


@pytest.mark.filterwarnings("ignore:no cuda or hip device here", "ignore:prefetch")
def test_transformer_block_runs_and_is_causal():
    x = ts.tensor(rng.normal(size=(2, 5, D)), dtype=bf16)
    y, cache = run(x, KVCache.empty(2, HEADS, ROOM, D // HEADS, bf16))
    assert (y.shape, y.dtype, int(cache.length)) == ((2, 5, D), bf16, 5)

    # one position at a time through the cache gives what the whole sequence gave
    stepwise = KVCache.empty(2, HEADS, ROOM, D // HEADS, bf16)
    outs = []
    for i in range(5):
        out, stepwise = run(x[:, i : i + 1], stepwise)
        outs.append(np.asarray(out, np.float32))
    np.testing.assert_array_equal(np.concatenate(outs, 1), np.asarray(y, np.float32))
    np.testing.assert_array_equal(stepwise.K.numpy(), cache.K.numpy())
    # B, S and D are symbolic: one compile served every size
    assert transformer_block.compiled == 1


@pytest.mark.filterwarnings("ignore:no cuda or hip device here", "ignore:prefetch")
def test_transformer_block_has_derivatives():
    x = ts.tensor(rng.normal(size=(1, 3, D)), dtype=bf16)
    cache = KVCache.empty(1, HEADS, ROOM, D // HEADS, bf16)

    def loss(x):
        y, _ = transformer_block(x, cache, heads=HEADS, p=0.0)
        return op.sum(op.square(op.cast(y, f32)))

    g = jit(ts.grad(loss), target="numpy")(x)
    assert (g.shape, g.dtype) == (x.shape, bf16)
    step = ts.tensor(rng.normal(size=x.shape), dtype=bf16)
    slope = jit(lambda x, t: ts.jvp(loss, (x,), (t,))[1], target="numpy")(x, step)
    a, b = (np.asarray(v, np.float32).ravel() for v in (g, step))
    size = np.linalg.norm(a) * np.linalg.norm(b)
    assert size > 1
    assert abs(float(slope) - a @ b) < 2**-6 * size, "two roundings of bf16"


@pytest.mark.filterwarnings("default:no cuda or hip device here", "ignore:prefetch")
def test_a_wish_for_a_gpu_falls_back_with_a_warning():
    if any(d.kind in gpu.kinds for d in ts.devices()):
        pytest.skip("there is a GPU, so the wish is granted")
    here = pytest.warns(RuntimeWarning, match="no cuda or hip device here; running on cpu:0")
    with here, device(gpu) as d:
        assert str(d) == "cpu:0"
