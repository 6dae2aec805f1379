"""State dicts of PyTorch models, with random weights, in modules of ours: the same outputs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera import f64, nn, op

torch = pytest.importorskip("torch")
tnn = torch.nn
pytestmark = pytest.mark.oracle
RUNS_ON = "numpy"


def agree(got: Any, want: Any, rtol: float = 1e-9, atol: float = 1e-9) -> None:
    np.testing.assert_allclose(np.asarray(got), want.detach().numpy(), rtol=rtol, atol=atol)


# ResNet-18, with the names of torchvision ---------------------------------------------------------


class TorchBlock(tnn.Module):
    def __init__(self, into: int, out: int, stride: int) -> None:
        super().__init__()
        self.conv1 = tnn.Conv2d(into, out, 3, stride, 1, bias=False)
        self.bn1 = tnn.BatchNorm2d(out)
        self.conv2 = tnn.Conv2d(out, out, 3, 1, 1, bias=False)
        self.bn2 = tnn.BatchNorm2d(out)
        short = tnn.Sequential(tnn.Conv2d(into, out, 1, stride, bias=False), tnn.BatchNorm2d(out))
        self.downsample = short if stride != 1 or into != out else None

    def forward(self, x: Any) -> Any:
        y = self.bn2(self.conv2(self.bn1(self.conv1(x)).relu()))
        return (y + (x if self.downsample is None else self.downsample(x))).relu()


class TorchResNet(tnn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = tnn.Conv2d(3, 64, 7, 2, 3, bias=False)
        self.bn1 = tnn.BatchNorm2d(64)
        self.maxpool = tnn.MaxPool2d(3, 2, 1)
        into = 64
        for i, out in enumerate((64, 128, 256, 512), 1):
            stride = 1 if i == 1 else 2
            setattr(self, f"layer{i}",
                tnn.Sequential(TorchBlock(into, out, stride), TorchBlock(out, out, 1)))  # fmt: skip
            into = out
        self.fc = tnn.Linear(512, 1000)

    def forward(self, x: Any) -> Any:
        x = self.maxpool(self.bn1(self.conv1(x)).relu())
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(x.mean((2, 3)))


class Block(nn.Module):
    conv1: nn.Conv2d
    bn1: nn.BatchNorm
    conv2: nn.Conv2d
    bn2: nn.BatchNorm
    downsample: nn.Sequential | None

    def __init__(self, into: int, out: int, stride: int, key: Any) -> None:
        a, b, c = ts.split(key, 3)
        self.conv1 = nn.Conv2d(into, out, 3, stride, 1, bias=False, key=a)
        self.bn1 = nn.BatchNorm(out)
        self.conv2 = nn.Conv2d(out, out, 3, 1, 1, bias=False, key=b)
        self.bn2 = nn.BatchNorm(out)
        short = nn.Sequential(nn.Conv2d(into, out, 1, stride, bias=False, key=c), nn.BatchNorm(out))
        self.downsample = short if stride != 1 or into != out else None

    def __call__(self, x: Any, state: Any, *, training: bool = True) -> Any:
        y, state = self.bn1(self.conv1(x), state, training=training)
        y, state = self.bn2(self.conv2(op.relu(y)), state, training=training)
        if self.downsample is not None:
            x, state = self.downsample(x, state, training=training)
        return op.relu(x + y), state


class ResNet(nn.Module):
    conv1: nn.Conv2d
    bn1: nn.BatchNorm
    layer1: nn.Sequential
    layer2: nn.Sequential
    layer3: nn.Sequential
    layer4: nn.Sequential
    fc: nn.Linear

    def __init__(self, key: Any) -> None:
        a, b, *keys = ts.split(key, 10)
        self.conv1 = nn.Conv2d(3, 64, 7, 2, 3, bias=False, key=a)
        self.bn1 = nn.BatchNorm(64)
        into = 64
        for i, out in enumerate((64, 128, 256, 512), 1):
            stride = 1 if i == 1 else 2
            first = Block(into, out, stride, keys[2 * i - 2])
            setattr(self, f"layer{i}", nn.Sequential(first, Block(out, out, 1, keys[2 * i - 1])))
            into = out
        self.fc = nn.Linear(512, 1000, key=b)

    def __call__(self, x: Any, state: Any, *, training: bool = True) -> Any:
        x, state = self.bn1(self.conv1(x), state, training=training)
        x = op.max_pool2d(op.relu(x), 3, 2, 1)
        for layer in (self.layer1, self.layer2, self.layer3, self.layer4):
            x, state = layer(x, state, training=training)
        return self.fc(op.mean(x, axis=(2, 3))), state


def test_resnet_18():
    torch.manual_seed(0)
    theirs = TorchResNet()
    for b in theirs.buffers():
        if b.is_floating_point():
            b.data = 0.5 + torch.rand_like(b)
    ours, state = nn.with_state(ResNet(ts.key(0)))
    assert sum(p.size for p in ts.tree.leaves(ours)) == 11_689_512
    ours, state = nn.load_state(ours, theirs.state_dict(), state)
    x = np.random.default_rng(0).normal(size=(2, 3, 40, 40)).astype(np.float32)
    want = theirs.eval()(torch.tensor(x))
    y, _ = ours(ts.tensor(x), state, training=False)
    agree(y, want, 2e-4, 2e-4)
    want = theirs.train()(torch.tensor(x))
    y, state = ours(ts.tensor(x), state)
    agree(y, want, 2e-3, 2e-3)
    for n, b in theirs.named_buffers():
        agree(nn.state_dict(state)[n], b, 1e-4, 1e-4)
    assert set(nn.state_dict(ours, state)) == set(theirs.state_dict())


# A vision transformer, with PyTorch's own attention and names of its own -----------------------------


class TorchViT(tnn.Module):
    def __init__(self, width: int = 24, depth: int = 3, heads: int = 3) -> None:
        super().__init__()
        self.patch = tnn.Conv2d(3, width, 4, 4)
        self.cls = tnn.Parameter(torch.randn(1, 1, width))
        self.pos = tnn.Parameter(torch.randn(1, 17, width))
        layer = tnn.TransformerEncoderLayer(
            width, heads, 4 * width, 0.0, "gelu", batch_first=True, norm_first=True
        )
        self.encoder = tnn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.norm = tnn.LayerNorm(width)
        self.head = tnn.Linear(width, 10)

    def forward(self, x: Any) -> Any:
        x = self.patch(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls.expand(x.shape[0], -1, -1), x], 1) + self.pos
        return self.head(self.norm(self.encoder(x))[:, 0])


class Layer(nn.Module):
    norm1: nn.LayerNorm
    attn: nn.MultiHeadAttention
    norm2: nn.LayerNorm
    mlp: nn.MLP

    def __init__(self, width: int, heads: int, key: Any, causal: bool = False,
        activation: Any = op.gelu) -> None:  # fmt: skip
        a, b = ts.split(key)
        self.norm1, self.norm2 = (nn.LayerNorm(width, dtype=f64) for _ in range(2))
        self.attn = nn.MultiHeadAttention(width, heads, causal=causal, key=a, dtype=f64)
        self.mlp = nn.MLP([width, 4 * width, width], activation, key=b, dtype=f64)

    def __call__(self, x: Any) -> Any:
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class ViT(nn.Module):
    patch: nn.Conv2d
    cls: Any
    pos: Any
    blocks: list[Layer]
    norm: nn.LayerNorm
    head: nn.Linear

    def __init__(self, key: Any, width: int = 24, depth: int = 3, heads: int = 3) -> None:
        a, b, *keys = ts.split(key, depth + 2)
        self.patch = nn.Conv2d(3, width, 4, 4, key=a, dtype=f64)
        self.cls, self.pos = ts.zeros((1, 1, width), "f64"), ts.zeros((1, 17, width), "f64")
        self.blocks = [Layer(width, heads, k) for k in keys]
        self.norm = nn.LayerNorm(width, dtype=f64)
        self.head = nn.Linear(width, 10, key=b, dtype=f64)

    def __call__(self, x: Any) -> Any:
        x = op.swapaxes(op.flatten(self.patch(x), 2), 1, 2)
        first = op.broadcast_to(self.cls, (x.shape[0], 1, x.shape[2]))
        x = op.concat([first, x], axis=1) + self.pos
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x)[:, 0])


VIT_NAMES = {
    r"encoder\.layers\.": "blocks.", r"self_attn\.in_proj_(weight|bias)": r"attn.qkv.\1",
    r"self_attn\.out_proj": "attn.out",
    "linear1": "mlp.layers.0", "linear2": "mlp.layers.1",
}  # fmt: skip


def test_a_vision_transformer():
    torch.manual_seed(0)
    theirs = TorchViT().double()
    ours = nn.load_state(ViT(ts.key(0)), theirs.state_dict(), rename=VIT_NAMES)
    x = np.random.default_rng(0).normal(size=(2, 3, 16, 16))
    given = torch.tensor(x, requires_grad=True)
    want = theirs(given)
    want.sum().backward()
    agree(ours(ts.tensor(x)), want)
    agree(ts.grad(lambda x: op.sum(ours(x)))(ts.tensor(x)), given.grad)


# GPT-2, with the names of Hugging Face, whose linear weights are (in, out) ------------------------------


class Conv1D(tnn.Module):
    def __init__(self, into: int, out: int) -> None:
        super().__init__()
        self.weight = tnn.Parameter(torch.randn(into, out) * 0.2)
        self.bias = tnn.Parameter(torch.randn(out) * 0.2)

    def forward(self, x: Any) -> Any:
        return x @ self.weight + self.bias


class TorchGPTBlock(tnn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.ln_1, self.ln_2 = tnn.LayerNorm(width), tnn.LayerNorm(width)
        self.attn = tnn.ModuleDict({"c_attn": Conv1D(width, 3 * width),
            "c_proj": Conv1D(width, width)})  # fmt: skip
        self.mlp = tnn.ModuleDict({"c_fc": Conv1D(width, 4 * width),
            "c_proj": Conv1D(4 * width, width)})  # fmt: skip

    def forward(self, x: Any, heads: int = 4) -> Any:
        b, s, w = x.shape
        q, k, v = (
            t.reshape(b, s, heads, -1).transpose(1, 2)
            for t in self.attn["c_attn"](self.ln_1(x)).split(w, -1)
        )
        y = tnn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.attn["c_proj"](y.transpose(1, 2).reshape(b, s, w))
        h = tnn.functional.gelu(self.mlp["c_fc"](self.ln_2(x)), approximate="tanh")
        return x + self.mlp["c_proj"](h)


class TorchGPT(tnn.Module):
    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.wte, self.wpe = tnn.Embedding(50, width), tnn.Embedding(20, width)
        self.h = tnn.ModuleList(TorchGPTBlock(width) for _ in range(2))
        self.ln_f = tnn.LayerNorm(width)

    def forward(self, ids: Any) -> Any:
        x = self.wte(ids) + self.wpe(torch.arange(ids.shape[1]))
        for block in self.h:
            x = block(x)
        return self.ln_f(x) @ self.wte.weight.T


class GPT(nn.Module):
    wte: nn.Embedding
    wpe: nn.Embedding
    h: list[Layer]
    ln_f: nn.LayerNorm

    def __init__(self, key: Any, width: int = 32) -> None:
        a, b, *keys = ts.split(key, 4)
        self.wte = nn.Embedding(50, width, key=a, dtype=f64)
        self.wpe = nn.Embedding(20, width, key=b, dtype=f64)
        gelu = nn.GELU("tanh")
        self.h = [Layer(width, 4, k, causal=True, activation=gelu) for k in keys]
        self.ln_f = nn.LayerNorm(width, dtype=f64)

    def __call__(self, ids: Any) -> Any:
        x = self.wte(ids) + self.wpe(op.arange(ids.shape[1]))
        for block in self.h:
            x = block(x)
        return self.wte.attend(self.ln_f(x))


GPT_NAMES = {
    "ln_([12])": r"norm\1", "c_attn": "qkv", r"attn\.c_proj": "attn.out", "c_fc": "layers.0",
    r"mlp\.c_proj": "mlp.layers.1",
}  # fmt: skip


def test_gpt_2():
    torch.manual_seed(0)
    theirs = TorchGPT().double()
    turned = ("c_attn.weight", "c_proj.weight", "c_fc.weight")
    weights = {n: x.T if n.endswith(turned) else x for n, x in theirs.state_dict().items()}
    ours = nn.load_state(GPT(ts.key(0)), weights, rename=GPT_NAMES)
    ids = np.random.default_rng(0).integers(0, 50, (2, 9))
    agree(ours(ts.tensor(ids)), theirs(torch.tensor(ids)))


class Tagger(nn.Module):
    embed: nn.Embedding
    lstm: nn.LSTM
    out: nn.Linear

    def __init__(self, key: Any) -> None:
        a, b, c = ts.split(key, 3)
        self.embed = nn.Embedding(30, 8, key=a)
        self.lstm = nn.LSTM(8, 16, 2, bidirectional=True, key=b)
        self.out = nn.Linear(32, 5, key=c)

    def __call__(self, ids: Any) -> Any:
        return self.out(self.lstm(self.embed(ids))[0])


class TorchTagger(tnn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = tnn.Embedding(30, 8)
        self.lstm = tnn.LSTM(8, 16, 2, bidirectional=True, batch_first=True)
        self.out = tnn.Linear(32, 5)

    def forward(self, ids: Any) -> Any:
        return self.out(self.lstm(self.embed(ids))[0])


def test_an_lstm_in_single_precision_and_back():
    torch.manual_seed(0)
    theirs = TorchTagger()
    ours = nn.load_state(Tagger(ts.key(0)), theirs.state_dict())
    ids = np.random.default_rng(0).integers(0, 30, (3, 11))
    agree(ours(ts.tensor(ids)), theirs(torch.tensor(ids)), 1e-4, 1e-5)
    again = TorchTagger()
    again.load_state_dict({n: torch.tensor(np.asarray(x)) for n,
        x in nn.state_dict(Tagger(ts.key(1))).items()})  # fmt: skip
    agree(Tagger(ts.key(1))(ts.tensor(ids)), again(torch.tensor(ids)), 1e-4, 1e-5)


def test_a_state_dict_is_a_tree_that_shares_memory():
    theirs = TorchGPT()
    t = ts.from_torch(theirs.state_dict())
    assert isinstance(t["h"], list)
    assert sorted(ts.tree.names(t)) == sorted(theirs.state_dict())
    mine, w = t["wte"]["weight"], theirs.wte.weight.detach()
    assert mine.numpy().ctypes.data == w.data_ptr()
    table = nn.Embedding(50, 32, key=ts.key(0))
    for copy in (True, False):
        held = nn.load_state(table, theirs.wte.state_dict(), copy=copy).weight
        assert (held.numpy().ctypes.data == w.data_ptr()) is not copy
    for dtype, name in ((torch.bfloat16, "bf16"), (torch.float16, "f16"), (torch.float8_e5m2, "f8e5m2"),
        (torch.int64, "i64"), (torch.bool, "bool")):  # fmt: skip
        x = torch.arange(6).reshape(2, 3).to(dtype)
        got = ts.from_torch({"a.b": x})["a"]["b"]
        assert got.dtype.name == name
        np.testing.assert_array_equal(got.numpy().astype(float), x.float().numpy())
