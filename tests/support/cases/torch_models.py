"""Small networks in PyTorch with random weights: what the zoos hold, in a few layers each."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn

F = nn.functional


class Residual(nn.Module):
    """The basic block of ResNet."""

    def __init__(self, ins: int, outs: int, stride: int = 1):
        super().__init__()
        self.conv1 = nn.Conv2d(ins, outs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outs)
        self.conv2 = nn.Conv2d(outs, outs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outs)
        self.relu = nn.ReLU(inplace=True)
        self.down = None
        if stride != 1 or ins != outs:
            self.down = nn.Sequential(
                nn.Conv2d(ins, outs, 1, stride, bias=False), nn.BatchNorm2d(outs)
            )

    def forward(self, x):
        y = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        y += x if self.down is None else self.down(x)
        return self.relu(y)


def resnet(width: int = 8, depth: int = 1, classes: int = 10) -> nn.Module:
    """A ResNet of four stages; width 64 and depth 2 is ResNet-18."""
    layers: list[nn.Module] = [
        nn.Conv2d(3, width, 7, 2, 3, bias=False), nn.BatchNorm2d(width), nn.ReLU(inplace=True),
        nn.MaxPool2d(3, 2, 1),
    ]  # fmt: skip
    ins = width
    for stage in range(4):
        outs = width << stage
        for k in range(depth):
            layers.append(Residual(ins, outs, 2 if stage and not k else 1))
            ins = outs
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(ins, classes))


class ChannelNorm(nn.LayerNorm):
    """LayerNorm over the channels of images."""

    def forward(self, x):
        x = x.permute(0, 2, 3, 1)
        return F.layer_norm(x, self.normalized_shape, self.weight, self.bias, self.eps).permute(
            0, 3, 1, 2
        )


class ConvNeXtBlock(nn.Module):
    """A depthwise convolution and a network of two layers at each place."""

    def __init__(self, dim: int):
        super().__init__()
        self.conv = nn.Conv2d(dim, dim, 7, padding=3, groups=dim)
        self.norm = nn.LayerNorm(dim, eps=1e-6)
        self.up, self.down = nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)
        self.scale = nn.Parameter(torch.full((dim, 1, 1), 0.1))

    def forward(self, x):
        y = self.norm(self.conv(x).permute(0, 2, 3, 1))
        y = self.down(F.gelu(self.up(y))).permute(0, 3, 1, 2)
        return x + self.scale * y


def convnext(dim: int = 8, depth: int = 1, classes: int = 10) -> nn.Module:
    """A ConvNeXt of two stages."""
    return nn.Sequential(
        nn.Conv2d(3, dim, 4, 4), ChannelNorm(dim, eps=1e-6), *(ConvNeXtBlock(dim) for _ in range(depth)),
        ChannelNorm(dim, eps=1e-6), nn.Conv2d(dim, 2 * dim, 2, 2),
        *(ConvNeXtBlock(2 * dim) for _ in range(depth)), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.LayerNorm(2 * dim, eps=1e-6), nn.Linear(2 * dim, classes),
    )  # fmt: skip


class Inverted(nn.Module):
    """The block of EfficientNet: expand, depthwise, squeeze and excite, project."""

    def __init__(self, ins: int, outs: int, stride: int, expand: int = 4, kernel: int = 3):
        super().__init__()
        mid = ins * expand
        self.expand = nn.Sequential(
            nn.Conv2d(ins, mid, 1, bias=False), nn.BatchNorm2d(mid), nn.SiLU(inplace=True)
        )
        self.depth = nn.Sequential(
            nn.Conv2d(mid, mid, kernel, stride, kernel // 2, groups=mid, bias=False), nn.BatchNorm2d(mid),
            nn.SiLU(inplace=True),
        )  # fmt: skip
        self.squeeze, self.excite = nn.Conv2d(mid, ins // 2, 1), nn.Conv2d(ins // 2, mid, 1)
        self.project = nn.Sequential(nn.Conv2d(mid, outs, 1, bias=False), nn.BatchNorm2d(outs))
        self.skips = stride == 1 and ins == outs

    def forward(self, x):
        y = self.depth(self.expand(x))
        s = torch.sigmoid(self.excite(F.silu(self.squeeze(F.adaptive_avg_pool2d(y, 1)))))
        y = self.project(y * s)
        return x + y if self.skips else y


def efficientnet(width: int = 8, classes: int = 10) -> nn.Module:
    """An EfficientNet of three blocks."""
    return nn.Sequential(
        nn.Conv2d(3, width, 3, 2, 1, bias=False), nn.BatchNorm2d(width), nn.SiLU(inplace=True),
        Inverted(width, width, 1), Inverted(width, 2 * width, 2), Inverted(2 * width, 2 * width, 1, kernel=5),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.2), nn.Linear(2 * width, classes),
    )  # fmt: skip


class ViT(nn.Module):
    """A vision transformer."""

    def __init__(
        self, size: int = 32, patch: int = 8, dim: int = 32, depth: int = 2, heads: int = 2
    ):
        super().__init__()
        self.patches = nn.Conv2d(3, dim, patch, patch)
        self.token = nn.Parameter(torch.zeros(1, 1, dim))
        self.places = nn.Parameter(torch.randn(1, (size // patch) ** 2 + 1, dim) * 0.02)
        layer = nn.TransformerEncoderLayer(
            dim, heads, 2 * dim, 0.0, "gelu", batch_first=True, norm_first=True
        )
        self.layers = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.norm, self.head = nn.LayerNorm(dim), nn.Linear(dim, 10)

    def forward(self, x):
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], 1) + self.places
        return self.head(self.norm(self.layers(x))[:, 0])


def _double(ins: int, outs: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(ins, outs, 3, padding=1), nn.BatchNorm2d(outs), nn.ReLU(inplace=True),
        nn.Conv2d(outs, outs, 3, padding=1), nn.GroupNorm(2, outs), nn.SiLU(),
    )  # fmt: skip


class UNet(nn.Module):
    """Down and up again, with both ways of going up."""

    def __init__(self, width: int = 8):
        super().__init__()
        w = width
        self.down = nn.ModuleList([_double(3, w), _double(w, 2 * w), _double(2 * w, 4 * w)])
        self.up1, self.join1 = nn.ConvTranspose2d(4 * w, 2 * w, 2, stride=2), _double(4 * w, 2 * w)
        self.up2, self.join2 = nn.Upsample(scale_factor=2, mode="bilinear"), _double(3 * w, w)
        self.out = nn.Conv2d(w, 1, 1)

    def forward(self, x):
        a = self.down[0](x)
        b = self.down[1](F.max_pool2d(a, 2))
        c = self.down[2](F.max_pool2d(b, 2))
        y = self.join1(torch.cat([self.up1(c), b], 1))
        return self.out(self.join2(torch.cat([self.up2(y), a], 1)))


IMAGES = {
    "resnet": resnet,
    "convnext": convnext,
    "efficientnet": efficientnet,
    "vit": ViT,
    "unet": UNet,
}


def image_model(name: str) -> tuple[nn.Module, dict[str, Any]]:
    """A network for images, with random inputs."""
    torch.manual_seed(0)
    size = 64 if name == "resnet" else 32
    return IMAGES[name](), {
        "input" if name not in ("vit", "unet") else "x": torch.randn(2, 3, size, size)
    }


def language_model(name: str) -> tuple[nn.Module, dict[str, Any]]:
    """A tiny network of transformers, with random inputs."""
    import transformers as hf

    torch.manual_seed(0)
    ids = torch.randint(0, 99, (2, 9))
    tiny = {"vocab_size": 99, "use_cache": False}
    sizes = {**tiny, "hidden_size": 32, "num_hidden_layers": 2, "intermediate_size": 64}
    if name == "bert":
        config = hf.BertConfig(**sizes, num_attention_heads=2, max_position_embeddings=32)
        return hf.BertModel(config), {"input_ids": ids}
    if name == "gpt2":
        config = hf.GPT2Config(**tiny, n_embd=32, n_layer=2, n_head=2, n_positions=32)
        return hf.GPT2LMHeadModel(config), {"input_ids": ids}
    if name == "llama":
        config = hf.LlamaConfig(**sizes, num_attention_heads=4, num_key_value_heads=2)
        return hf.LlamaForCausalLM(config), {"input_ids": ids}
    if name == "t5":
        config = hf.T5Config(
            **tiny,
            d_model=32,
            d_kv=16,
            d_ff=64,
            num_layers=2,
            num_heads=2,
            decoder_start_token_id=0,
        )
        return hf.T5ForConditionalGeneration(config), {"input_ids": ids, "labels": ids}
    if name == "whisper":
        config = hf.WhisperConfig(
            **tiny, d_model=32, encoder_layers=2, decoder_layers=2, encoder_attention_heads=2,
            decoder_attention_heads=2, encoder_ffn_dim=64, decoder_ffn_dim=64, num_mel_bins=8,
            max_source_positions=20, max_target_positions=20, pad_token_id=0, bos_token_id=1, eos_token_id=2,
            decoder_start_token_id=1,
        )  # fmt: skip
        return hf.WhisperModel(config), {
            "input_features": torch.randn(2, 8, 40),
            "decoder_input_ids": ids,
        }
    assert name == "hf_vit", name
    config = hf.ViTConfig(
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        image_size=32,
        patch_size=8,
    )
    return hf.ViTModel(config), {"pixel_values": torch.randn(2, 3, 32, 32)}


LANGUAGE = ("bert", "gpt2", "llama", "t5", "whisper", "hf_vit")


def tensors_of(y: Any) -> list[torch.Tensor]:
    """The tensors of an output, in order."""
    if isinstance(y, torch.Tensor):
        return [y]
    if isinstance(y, dict):
        y = tuple(y.values())
    return [t for v in y for t in tensors_of(v)] if isinstance(y, list | tuple) else []


def loss_of(y: Any) -> torch.Tensor:
    """A number that depends on every element of the outputs, each in its own way."""
    parts = [t for t in tensors_of(y) if t.is_floating_point() and t.requires_grad]
    terms = [
        (t * torch.linspace(-1, 1, t.numel()).reshape(t.shape)).sum() / math.sqrt(t.numel())
        for t in parts
    ]
    return sum(terms[1:], terms[0])
