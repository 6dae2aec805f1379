"""The modelling snippet of the principles, as written but for its two decorators on one line."""

import numpy as np
import pytest

import tessera as ts
from tessera import KVCache, Tensor, accum, autodiff, bf16, device, f32, gpu, jit, op, prefetch
from tessera.lang.op import cast_like, gelu, matmul, residual, rmsnorm_safe

D, HEADS, ROOM = 16, 2, 12
rng = np.random.default_rng(0)


def weight(*shape):
    return ts.tensor(rng.normal(size=shape) / np.sqrt(shape[0]), dtype=bf16)


Wqkv, Wo, Wmlp_in, Wmlp_out = weight(D, 3 * D), weight(D, D), weight(D, 4 * D), weight(4 * D, D)


def split_qkv(qkv, *, heads):
    b, s, width = qkv.shape
    parts = qkv.reshape(b, s, 3, heads, width // (3 * heads))
    q, k, v = (op.transpose(parts[:, :, i], (0, 2, 1, 3)) for i in range(3))
    return q, k, v


def flash_attention(q, cache, *, dropout, causal):
    assert causal
    assert dropout == 0.0
    rows = cache.length - q.shape[2] + op.iota((q.shape[2], ROOM), 0)
    mask = op.iota((q.shape[2], ROOM), 1) <= rows
    y = op.attention(q, cache.K, cache.V, mask=mask)
    return op.transpose(y, (0, 2, 1, 3)).reshape(q.shape[0], q.shape[2], D)


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
    np.testing.assert_allclose(
        np.concatenate(outs, 1), np.asarray(y, np.float32), rtol=0.1, atol=0.1
    )
    np.testing.assert_allclose(
        np.asarray(stepwise.K, np.float32), np.asarray(cache.K, np.float32), rtol=0.05, atol=0.05
    )
    # B, S and D are symbolic: one compile served every size
    assert transformer_block.compiled == 1


@pytest.mark.filterwarnings("default:no cuda or hip device here", "ignore:prefetch")
def test_a_wish_for_a_gpu_falls_back_with_a_warning():
    if any(d.kind in gpu.kinds for d in ts.devices()):
        pytest.skip("there is a GPU, so the wish is granted")
    here = pytest.warns(RuntimeWarning, match="no cuda or hip device here; running on cpu:0")
    with here, device(gpu) as d:
        assert str(d) == "cpu:0"
