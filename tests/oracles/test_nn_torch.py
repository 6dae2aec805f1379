"""Layers beside PyTorch's in f64: the same weights by nn.load_state, values and gradients, random shapes
and options.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera import f64, nn, op

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.oracle
RUNS_ON = "numpy"  # what layers mean; how ops run is tested with the ops
WIDE: dict[str, Any] = {"key": ts.key(0), "dtype": f64}
Case = tuple[Any, Any, Any]  # ours, theirs, the shape of x or x itself


def pick(rng: Any, *options: Any) -> Any:
    return options[rng.integers(len(options))]


def linear(rng: Any) -> Case:
    m, n, b = *(int(v) for v in rng.integers(1, 9, 2)), pick(rng, True, False)
    shape = tuple(int(v) for v in rng.integers(1, 5, rng.integers(0, 3)))
    return nn.Linear(m, n, b, **WIDE), torch.nn.Linear(m, n, b), (*shape, m)


def embedding(rng: Any) -> Case:
    n, d = (int(v) for v in rng.integers(2, 9, 2))
    padding = pick(rng, None, 0, -1)
    ids = rng.integers(0, n, (3, 4))
    return nn.Embedding(n, d, padding, **WIDE), torch.nn.Embedding(n, d, padding), ids


def convolution(rank: int) -> Callable[[Any], Case]:
    def made(rng: Any) -> Case:
        groups = pick(rng, 1, 2)
        m, n = (groups * int(v) for v in rng.integers(1, 4, 2))
        size = tuple(int(v) for v in rng.integers(1, 4, rank))
        dilation, bias = int(rng.integers(1, 3)), pick(rng, True, False)
        mode = pick(rng, "zeros", "zeros", "reflect", "replicate", "circular")
        stride = int(rng.integers(1, 3))
        padding = pick(rng, 0, 1, tuple(int(v) for v in rng.integers(0, 2, rank)))
        if stride == 1:
            padding = pick(rng, padding, "same", "valid")
        given = (m, n, size, stride, padding, dilation, groups, bias, mode)
        theirs = getattr(torch.nn, f"Conv{rank}d")(*given)
        shape = (2, m, *(int(v) for v in rng.integers(5, 8, rank)))
        return getattr(nn, f"Conv{rank}d")(*given, **WIDE), theirs, shape

    return made


def transposed(rank: int) -> Callable[[Any], Case]:
    def made(rng: Any) -> Case:
        groups = pick(rng, 1, 2)
        m, n = (groups * int(v) for v in rng.integers(1, 4, 2))
        size, stride = int(rng.integers(2, 4)), int(rng.integers(1, 3))
        given = (m, n, size, stride, int(rng.integers(0, 2)), stride - 1, groups,
            pick(rng, True, False))  # fmt: skip
        theirs = getattr(torch.nn, f"ConvTranspose{rank}d")(*given)
        shape = (2, m, *(int(v) for v in rng.integers(3, 5, rank)))
        return getattr(nn, f"ConvTranspose{rank}d")(*given, **WIDE), theirs, shape

    return made


def layernorm(rng: Any) -> Case:
    sizes = tuple(int(v) for v in rng.integers(2, 6, rng.integers(1, 3)))
    eps, affine, bias = pick(rng, 1e-5, 1e-2), pick(rng, True, False), pick(rng, True, False)
    theirs = torch.nn.LayerNorm(sizes, eps, affine, bias)
    return nn.LayerNorm(sizes, eps, affine, bias, dtype=f64), theirs, (3, 2, *sizes)


def rmsnorm(rng: Any) -> Case:
    n, affine = int(rng.integers(2, 6)), pick(rng, True, False)
    return nn.RMSNorm(n, 1e-3, affine, dtype=f64), torch.nn.RMSNorm(n, 1e-3, affine), (3, 4, n)


def groupnorm(rng: Any) -> Case:
    groups, affine = int(rng.integers(1, 4)), pick(rng, True, False)
    c = groups * int(rng.integers(1, 4))
    theirs = torch.nn.GroupNorm(groups, c, 1e-4, affine)
    return nn.GroupNorm(groups, c, 1e-4, affine, dtype=f64), theirs, (2, c, 3, 4)


def instancenorm(rng: Any) -> Case:
    c, affine = int(rng.integers(1, 5)), pick(rng, True, False)
    theirs = torch.nn.InstanceNorm2d(c, 1e-4, affine=affine)
    return nn.InstanceNorm(c, 1e-4, affine, dtype=f64), theirs, (2, c, 3, 4)


def local(rng: Any) -> Case:
    n = int(rng.integers(1, 6))
    given = (n, 0.1, 0.7, 1.5)
    return nn.LocalResponseNorm(*given), torch.nn.LocalResponseNorm(*given), (2, 7, 3, 2)


def pooling(rng: Any) -> Case:
    size, stride, padding, ceil = int(rng.integers(2, 4)), pick(rng, None, 1, 2), pick(rng, 0, 1), pick(rng,
        True, False)  # fmt: skip
    shape = (2, 3, *(int(v) for v in rng.integers(6, 9, 2)))
    which = rng.integers(6)
    if which == 0:
        return nn.MaxPool(size, stride, padding, 1, ceil), torch.nn.MaxPool2d(size, stride, padding, 1,
            False, ceil), shape  # fmt: skip
    if which == 1:
        count = pick(rng, True, False)
        return nn.AvgPool(size, stride, padding, ceil, count), torch.nn.AvgPool2d(size, stride, padding,
            ceil, count), shape  # fmt: skip
    if which == 2:
        return nn.LPPool(2.0, size, stride), torch.nn.LPPool2d(2.0, size, stride), shape
    if which == 3:
        return nn.AdaptiveAvgPool(size), torch.nn.AdaptiveAvgPool2d(size), shape
    if which == 4:
        return nn.AdaptiveMaxPool((size, 2)), torch.nn.AdaptiveMaxPool2d((size, 2)), shape
    return nn.PixelShuffle(2), torch.nn.PixelShuffle(2), (2, 8, 3, 4)


ACTIVATIONS = {
    "ReLU": (), "ReLU6": (), "GELU": ("tanh",), "SiLU": (), "Mish": (), "Sigmoid": (), "Tanh": (),
    "Softplus": (2.0,),
    "Softsign": (), "ELU": (0.7,), "CELU": (0.5,), "SELU": (), "LeakyReLU": (0.2,), "Hardtanh": (-0.5, 0.8),
    "Hardsigmoid": (), "Hardswish": (), "LogSigmoid": (), "Tanhshrink": (), "Softshrink": (0.3,),
    "Hardshrink": (0.3,),
    "Threshold": (0.1, 0.2), "Softmax": (1,), "LogSoftmax": (1,), "GLU": (1,),
}  # fmt: skip


def activation(rng: Any) -> Case:
    name = pick(rng, *ACTIVATIONS)
    given = ACTIVATIONS[name]
    theirs = (
        torch.nn.GELU(approximate="tanh") if name == "GELU" else getattr(torch.nn, name)(*given)
    )
    return getattr(nn, name)(*given), theirs, (3, 6)


def prelu(rng: Any) -> Case:
    n = pick(rng, 1, 4)
    return nn.PReLU(n, dtype=f64), torch.nn.PReLU(n), (2, 4, 3)


def bilinear(rng: Any) -> Case:
    ours, theirs = nn.Bilinear(3, 3, 5, **WIDE), torch.nn.Bilinear(3, 3, 5)
    return _Twice(ours), _TorchTwice(theirs), (4, 3)


class _Twice(nn.Module):
    inner: nn.Bilinear

    def __call__(self, x: Any) -> Any:
        return self.inner(x, 2 * x)


class _TorchTwice(torch.nn.Module):
    def __init__(self, inner: Any) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Any) -> Any:
        return self.inner(x, 2 * x)


LAYERS = {
    "linear": linear, "embedding": embedding, "conv1d": convolution(1), "conv2d": convolution(2),
    "conv3d": convolution(3),
    "transposed1d": transposed(1), "transposed2d": transposed(2), "transposed3d": transposed(3),
    "layernorm": layernorm,
    "rmsnorm": rmsnorm, "groupnorm": groupnorm, "instancenorm": instancenorm, "local": local,
    "pooling": pooling,
    "activation": activation, "prelu": prelu, "bilinear": bilinear,
}  # fmt: skip


def agree(got: Any, want: Any, rtol: float = 1e-9) -> None:
    np.testing.assert_allclose(np.asarray(got), want.detach().numpy(), rtol=rtol, atol=1e-10)


def compare(ours: Any, theirs: Any, x: Any, rng: Any) -> None:
    """The result and the gradients in parameters and x, in a random direction."""
    theirs = theirs.double()
    for p in theirs.parameters():
        p.data = torch.tensor(rng.normal(size=tuple(p.shape)))
    ours = nn.load_state(ours, theirs.state_dict())
    x = rng.normal(size=x) if isinstance(x, tuple) else x
    given = torch.tensor(x, requires_grad=x.dtype.kind == "f")
    want = theirs(given)
    ct = rng.normal(size=tuple(want.shape))
    want.backward(torch.tensor(ct))
    agree(ours(ts.tensor(x)), want)
    wanted = {n: p.grad for n, p in theirs.named_parameters()}
    if x.dtype.kind == "f":
        g, gx = ts.grad(lambda m, x: op.sum(m(x) * ct), argnums=(0, 1))(ours, ts.tensor(x))
        # PyTorch's slope of hardsigmoid is 1/6 rounded to f32.
        agree(gx, given.grad, 1e-7 if isinstance(ours, nn.Hardsigmoid) else 1e-9)
    else:
        g = ts.grad(lambda m: op.sum(m(ts.tensor(x)) * ct))(ours)
    for name, value in nn.state_dict(g).items():
        agree(value, wanted[name])


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel")
@pytest.mark.parametrize("name", LAYERS)
def test_layers(name):
    for seed in range(3):
        rng = np.random.default_rng(seed)
        compare(*LAYERS[name](rng), rng)


@pytest.mark.deep
@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel")
@pytest.mark.parametrize("name", LAYERS)
def test_layers_over_many_options(name):
    for seed in range(3, 12):
        rng = np.random.default_rng(seed)
        compare(*LAYERS[name](rng), rng)


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_every_activation(name):
    rng = np.random.default_rng(1)
    given = ACTIVATIONS[name]
    theirs = (
        torch.nn.GELU(approximate="tanh") if name == "GELU" else getattr(torch.nn, name)(*given)
    )
    compare(getattr(nn, name)(*given), theirs, (3, 6), rng)


@pytest.mark.parametrize("momentum", [0.1, 0.3, None])
def test_batchnorm_and_its_running_statistics(momentum):
    rng = np.random.default_rng(0)
    theirs = torch.nn.BatchNorm2d(3, 1e-4, momentum).double()
    ours, state = nn.with_state(nn.BatchNorm(3, 1e-4, momentum, dtype=f64))
    for _ in range(3):
        x, ct = rng.normal(2.0, 3.0, (2, 4, 3, 5, 5))
        given = torch.tensor(x, requires_grad=True)
        want = theirs(given)
        want.backward(torch.tensor(ct))
        y, new = ours(ts.tensor(x), state)
        agree(y, want)
        gx = ts.grad(lambda x, s=state, ct=ct: op.sum(ours(x, s)[0] * ct))(ts.tensor(x))
        agree(gx, given.grad)
        state = new
    for n, x in nn.state_dict(ours, state).items():
        agree(x, theirs.state_dict()[n])
    theirs.eval()
    x = rng.normal(size=(2, 3, 4, 4))
    y, same = ours(ts.tensor(x), state, training=False)
    agree(y, theirs(torch.tensor(x)))
    assert same is state


@pytest.mark.parametrize("kind", ["RNN", "LSTM", "GRU"])
@pytest.mark.parametrize("setting", [(1, True, False), (2, False, True), (2, True, True)], ids=str)
def test_recurrent_layers(kind, setting):
    rng = np.random.default_rng(0)
    layers, bias, both = setting
    theirs = getattr(torch.nn, kind)(
        4, 5, layers, bias=bias, batch_first=True, bidirectional=both
    ).double()
    ours = nn.load_state(getattr(nn, kind)(4, 5, layers, bias, both, **WIDE), theirs.state_dict())
    x, lengths = rng.normal(size=(3, 6, 4)), np.array([6, 4, 1])
    start = rng.normal(size=(2, layers * (1 + both), 3, 5))
    first = tuple(torch.tensor(s) for s in start) if kind == "LSTM" else torch.tensor(start[0])
    mine = tuple(ts.tensor(s) for s in start) if kind == "LSTM" else ts.tensor(start[0])
    packed = torch.nn.utils.rnn.pack_padded_sequence(torch.tensor(x), torch.tensor(lengths), True)
    out, last = theirs(packed, first)
    out, _ = torch.nn.utils.rnn.pad_packed_sequence(out, True)
    y, end = ours(ts.tensor(x), mine, lengths=ts.tensor(lengths))
    agree(y, out)
    for a, b in zip(ts.tree.leaves(end), last if kind == "LSTM" else [last], strict=True):
        agree(a, b)
    whole, _ = theirs(torch.tensor(x))
    ct = rng.normal(size=tuple(whole.shape))
    whole.backward(torch.tensor(ct))
    g = ts.grad(lambda m: op.sum(m(ts.tensor(x))[0] * ct))(ours)
    for n, p in theirs.named_parameters():
        agree(nn.state_dict(g)[n], p.grad)


def test_an_lstm_with_projections():
    theirs = torch.nn.LSTM(4, 6, 2, batch_first=True, bidirectional=True, proj_size=3).double()
    ours = nn.load_state(
        nn.LSTM(4, 6, 2, bidirectional=True, projection=3, **WIDE), theirs.state_dict()
    )
    x = np.random.default_rng(0).normal(size=(2, 5, 4))
    (y, (h, c)), (out, (h2, c2)) = ours(ts.tensor(x)), theirs(torch.tensor(x))
    for a, b in ((y, out), (h, h2), (c, c2)):
        agree(a, b)


@pytest.mark.parametrize("causal", [False, True])
def test_multi_head_attention(causal):
    rng = np.random.default_rng(0)
    theirs = torch.nn.MultiheadAttention(12, 3, batch_first=True).double()
    names = {"in_proj_(weight|bias)": r"qkv.\1", "out_proj": "out"}
    ours = nn.load_state(
        nn.MultiHeadAttention(12, 3, causal=causal, **WIDE), theirs.state_dict(), rename=names
    )
    x, memory = rng.normal(size=(2, 5, 12)), rng.normal(size=(2, 7, 12))
    hidden = torch.triu(torch.ones(5, 5, dtype=torch.bool), 1) if causal else None
    given = torch.tensor(x, requires_grad=True)
    want = theirs(given, given, given, attn_mask=hidden, need_weights=False)[0]
    want.sum().backward()
    agree(ours(ts.tensor(x)), want)
    agree(ts.grad(lambda x: op.sum(ours(x)))(ts.tensor(x)), given.grad)
    if not causal:
        source = torch.tensor(memory)
        agree(ours(ts.tensor(x), ts.tensor(memory)), theirs(given, source, source)[0])


def test_a_mixture_of_experts_is_its_definition():
    rng = np.random.default_rng(0)
    m = nn.MoE(6, 8, 5, 2, **WIDE)
    x = rng.normal(size=(3, 4, 6))
    w = {n: torch.tensor(np.asarray(v), requires_grad=True) for n, v in nn.state_dict(m).items()}
    rows = torch.tensor(x).reshape(-1, 6)
    top, chosen = (rows @ w["router.weight"].T).softmax(-1).topk(2)
    top, silu = top / top.sum(-1, keepdim=True), torch.nn.functional.silu
    want = torch.zeros(12, 6, dtype=torch.float64)
    for e in range(5):
        h = silu(rows @ w["gate"][e].T) * (rows @ w["up"][e].T)
        want = want + (top * (chosen == e)).sum(-1, keepdim=True) * (h @ w["down"][e].T)
    agree(m(ts.tensor(x)), want.reshape(3, 4, 6))
    (want**2).sum().backward()
    g = ts.grad(lambda m: op.sum(op.square(m(ts.tensor(x)))))(m)
    for n, v in nn.state_dict(g).items():
        agree(v, w[n].grad)


ROPES = {
    "linear": {"factor": 4.0}, "yarn": {"factor": 8.0},
    "llama3": {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0},
}  # fmt: skip


@pytest.mark.parametrize("scaling", ROPES)
def test_rope_scalings_of_transformers(scaling):
    pytest.importorskip("transformers")
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    given = {
        "rope_type": scaling,
        "original_max_position_embeddings": 256,
        "rope_theta": 500.0,
        **ROPES[scaling],
    }
    config = LlamaConfig(
        hidden_size=64, num_attention_heads=4, max_position_embeddings=2048, rope_theta=500.0,
        rope_parameters=given,
        rope_scaling=given,
    )  # fmt: skip
    frequencies, amplitude = ROPE_INIT_FUNCTIONS[scaling](config, "cpu")
    turns = {"slow": 1.0, "fast": 4.0} if scaling == "llama3" else {}
    rope = nn.Rope(16, 500.0, scaling, ROPES[scaling]["factor"], 256, **turns)
    np.testing.assert_allclose(rope.frequencies, frequencies.numpy(), rtol=1e-6)
    assert rope.amplitude == pytest.approx(amplitude)
