"""Models of torchvision and transformers with random weights, for benchmarks of torch.compile: by name, a
function that makes the model and its inputs.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch

from tests.support.cases import torch_models as small

Made = tuple[Any, dict[str, Any]]


def mlp() -> Made:
    """Three layers with a wide middle."""
    nn = torch.nn
    made = nn.Sequential(nn.Linear(512, 1024), nn.GELU(), nn.LayerNorm(1024), nn.Linear(1024, 512))
    return made, {"input": torch.randn(256, 512)}


def language(name: str) -> Callable[[], Made]:
    """A network of transformers in a size that takes milliseconds."""

    def make() -> Made:
        import transformers as hf

        ids = torch.randint(0, 999, (4, 64))
        sizes = {
            "vocab_size": 1000,
            "hidden_size": 256,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
        }
        if name == "bert":
            return hf.BertModel(hf.BertConfig(**sizes, intermediate_size=1024)), {"input_ids": ids}
        if name == "llama":
            config = hf.LlamaConfig(**sizes, intermediate_size=768, use_cache=False)
            return hf.LlamaForCausalLM(config), {"input_ids": ids}
        config = hf.GPT2Config(vocab_size=1000, n_embd=256, n_layer=2, n_head=4, use_cache=False)
        return hf.GPT2LMHeadModel(config), {"input_ids": ids}

    return make


def image(make: Callable[..., Any], key: str = "input", **sizes: Any) -> Callable[[], Made]:
    """A small network for images, with a batch of them."""
    return lambda: (make(**sizes), {key: torch.randn(4, 3, 64, 64)})


def vision(name: str, batch: int = 2) -> Callable[[], Made]:
    """A model of torchvision on pictures of 224 by 224; names that end in _4 have a quarter of the layers."""

    def make() -> Made:
        models = _torchvision().models
        x = {"x": torch.randn(batch, 3, 224, 224)}
        if name == "vit_b_4":
            return models.VisionTransformer(224, 16, 4, 12, 768, 3072), x
        if name == "convnext_tiny_4":
            sizes = ((96, 192, 1), (192, 384, 1), (384, 768, 2), (768, None, 1))
            return models.ConvNeXt([models.convnext.CNBlockConfig(*s) for s in sizes]), x
        return models.get_model(name, weights=None), x

    return make


def _torchvision() -> Any:
    """The package, without its compiled operators where they are built for another PyTorch: models do not
    use them, but importing it wants their names.
    """
    if not hasattr(torch.ops.torchvision, "nms"):
        try:
            import torchvision
        except RuntimeError:
            for name in ("nms", "qnms"):
                torch.library.define(
                    f"torchvision::{name}", "(Tensor a, Tensor b, float c) -> Tensor"
                )
            for name in [m for m in sys.modules if m.partition(".")[0] == "torchvision"]:
                del sys.modules[name]
    import torchvision

    return torchvision


def text(name: str, layers: int) -> Callable[[], Made]:
    """A model of transformers in its own width, on 2 sequences of 128 tokens."""

    def make() -> Made:
        import transformers as hf

        ids = torch.randint(3, 5000, (2, 128))
        if name == "bert":
            return hf.BertModel(hf.BertConfig(num_hidden_layers=layers)), {"input_ids": ids}
        if name == "gpt2":
            return hf.GPT2LMHeadModel(hf.GPT2Config(n_layer=layers, use_cache=False)), {
                "input_ids": ids
            }
        if name == "llama":
            config = hf.LlamaConfig(
                vocab_size=8000, hidden_size=512, intermediate_size=1376, num_hidden_layers=layers,
                num_attention_heads=8, num_key_value_heads=4, use_cache=False,
            )  # fmt: skip
            return hf.LlamaForCausalLM(config), {"input_ids": ids}
        if name == "t5":  # the width of t5-small
            config = hf.T5Config(num_layers=layers, use_cache=False, decoder_start_token_id=0)
            return hf.T5ForConditionalGeneration(config), {
                "input_ids": ids,
                "labels": ids[:, :64].contiguous(),
            }
        assert name == "whisper", name  # the width of whisper-tiny
        config = hf.WhisperConfig(encoder_layers=layers, decoder_layers=layers, use_cache=False)
        features = torch.randn(1, config.num_mel_bins, 3000)
        return hf.WhisperModel(config), {
            "input_features": features,
            "decoder_input_ids": ids[:1, :64],
        }

    return make


SMALL: dict[str, Callable[[], Made]] = {
    "mlp": mlp, "gpt2": language("gpt2"), "bert": language("bert"), "llama": language("llama"),
    "resnet": image(small.resnet, width=32, depth=1), "convnext": image(small.convnext, dim=48, depth=2),
    "efficientnet": image(small.efficientnet, width=24), "unet": image(small.UNet, "x", width=16),
    "vit": image(small.ViT, "x", size=64, patch=8, dim=192, depth=4, heads=3),
}  # fmt: skip
ZOO: dict[str, Callable[[], Made]] = {
    "resnet18": vision("resnet18"), "resnet50": vision("resnet50"),
    "convnext_tiny": vision("convnext_tiny"),
    "vit_b_16": vision("vit_b_16"), "efficientnet_b0": vision("efficientnet_b0"),
    "unet_32": image(small.UNet, "x", width=32), "bert_base": text("bert", 12),
    "gpt2_small": text("gpt2", 12),
    "llama_8": text("llama", 8), "t5_small": text("t5", 6), "whisper_tiny": text("whisper", 4),
}  # fmt: skip
# The same widths in fewer layers, where compiling all of them would take most of the time.
SHORT: dict[str, Callable[[], Made]] = {
    "resnet18": ZOO["resnet18"], "efficientnet_b0": ZOO["efficientnet_b0"], "unet_32": ZOO["unet_32"],
    "convnext_tiny_4": vision("convnext_tiny_4"), "vit_b_4": vision("vit_b_4"), "bert_3": text("bert", 3),
    "gpt2_3": text("gpt2", 3), "llama_2": text("llama", 2), "t5_2": text("t5", 2),
    "whisper_2": text("whisper", 2),
}  # fmt: skip
