"""Models as sizes: the parameters, products, traffic and kept activations of each layer on one device.

A `Transformer` stands for a model of any size without its data.  What a layer keeps for the backward pass
follows Korthikanti et al., "Reducing Activation Recomputation in Large Transformer Models" (2022), tensor
by tensor.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any

from tessera.core.errors import OperandError, located
from tessera.plan.cost import MatrixProducts

WIDTH = 2  # bytes of a parameter or an activation in 16 bits


@dataclass(frozen=True)
class LayerCut:
    """How a layer is divided: over tp and ep devices, for `micro` sequences at a time."""

    tp: int = 1
    ep: int = 1
    micro: int = 1
    sequence: bool = False  # what tensor parallelism leaves whole is cut along the sequence


@dataclass(frozen=True)
class Layer:
    """What one device does for one layer and one microbatch, in the forward pass."""

    name: str
    params: float  # parameters that it holds, apart from experts
    experts: float = 0.0  # parameters of experts that it holds
    products: tuple[MatrixProducts, ...] = ()
    traffic: float = 0.0  # bytes that kernels other than products read and write
    kept: float = 0.0  # bytes kept for the backward pass
    entry: float = 0.0  # bytes that recomputation keeps: the input
    working: float = 0.0  # bytes in use while it runs
    reduced: float = 0.0  # bytes of the activation that tensor parallelism adds up
    reductions: int = 0  # how many times
    dispatched: float = 0.0  # bytes that a device sends to experts, and gets back
    again: bool = True  # whether recomputation covers it

    @property
    def flops(self) -> float:
        """Operations of the forward pass."""
        return sum(p.flops for p in self.products)


@dataclass(frozen=True)
class Transformer:
    """A decoder for planning: GPT, Llama and mixtures of experts by their sizes."""

    name: str
    layers: int
    width: int
    heads: int
    vocabulary: int
    length: int = 2048  # tokens of a sequence
    hidden: int = 0  # of the feed-forward part or of one expert; 4 * width unless given
    kv_heads: int = 0  # heads unless given
    head_dim: int = 0  # width / heads unless given
    experts: int = 0
    chosen: int = 1
    gated: bool = False  # SwiGLU: two matrices into the hidden width
    biases: bool = True
    tied: bool = False  # the head is the embedding
    positions: bool = False  # learned positions
    window: int = 0  # of every other layer
    sinks: bool = False  # one more score for each head
    flash: bool = True  # attention keeps no scores
    dropout: bool = False
    dtype: str = "bf16"

    def __post_init__(self) -> None:
        filled = {
            "hidden": self.hidden or 4 * self.width,
            "kv_heads": self.kv_heads or self.heads,
            "head_dim": self.head_dim or self.width // max(1, self.heads),
        }
        for name, value in filled.items():
            object.__setattr__(self, name, value)
        for name in ("layers", "width", "heads", "vocabulary", "length"):
            if getattr(self, name) < 1:
                raise located(
                    OperandError(
                        f"Transformer: {name} is {getattr(self, name)}, expected at least 1"
                    )
                )

    def to_dict(self) -> dict[str, Any]:
        """The description as plain values."""
        return asdict(self)

    def __str__(self) -> str:
        mixed = f", {self.chosen} of {self.experts} experts" if self.experts else ""
        return (
            f"{self.name}: {self.params / 1e9:.4g} billion parameters, {self.layers} layers of "
            f"{self.width}{mixed}, "
            f"sequences of {self.length}"
        )

    @cached_property
    def params(self) -> float:
        """All parameters."""
        made = self.on_device(LayerCut(ep=1))
        return sum(layer.params + layer.experts for layer in made)

    def flops(self, sequences: int, passes: float = 3) -> float:
        """Operations of products for a batch; a training step has 3 passes, 4 with recomputation."""
        return passes * sequences * sum(layer.flops for layer in self.on_device(LayerCut()))

    def on_device(self, cut: LayerCut) -> tuple[Layer, ...]:
        """The layers as one device sees them: the embedding, the blocks and the head."""
        first, last = self._embedding(cut), self._head(cut)
        kinds = [self._block(cut, 0), self._block(cut, self.window)]
        blocks = (kinds[1 if self.window and i % 2 == 0 else 0] for i in range(self.layers))
        return (first, *(replace(b, name=f"block {i}") for i, b in enumerate(blocks)), last)

    # Layers ---------------------------------------------------------------------------------------

    def _embedding(self, c: LayerCut) -> Layer:
        rows = c.micro * self.length
        params = self.vocabulary * self.width / c.tp
        params += self.length * self.width if self.positions else 0
        out = rows * self.width * WIDTH
        return Layer("embedding", params, traffic=3 * out, kept=0, entry=0, working=out, reduced=out,
                     reductions=1, again=False)  # fmt: skip

    def _head(self, c: LayerCut) -> Layer:
        rows = c.micro * self.length
        wide = self.vocabulary / c.tp
        params = (0 if self.tied else self.vocabulary * self.width / c.tp) + self.width
        logits = rows * wide
        x = rows * self.width * WIDTH / (c.tp if c.sequence else 1)
        # 16-bit logits, cast to f32, maximum, exponential, sum, division
        return Layer("head", params, products=(MatrixProducts(rows, wide, self.width),),
                     traffic=logits * 18 + 2 * x, kept=logits * 4 + 2 * x, entry=x, working=logits * 8,
                     reduced=rows * 8, reductions=2, again=False)  # fmt: skip

    def _block(self, c: LayerCut, window: int) -> Layer:
        rows = c.micro * self.length
        whole = rows * self.width * WIDTH / (c.tp if c.sequence else 1)  # what tp does not cut
        q, kv = self.heads * self.head_dim, self.kv_heads * self.head_dim
        seen = min(window or self.length, self.length)
        heads = self.heads / c.tp
        products = [
            MatrixProducts(rows, (q + 2 * kv) / c.tp, self.width),
            *self._attention(c, seen, heads),
            MatrixProducts(rows, self.width, q / c.tp),
            *self._feed_forward(c),
        ]
        moe = self.experts > 0
        fan = self.chosen if moe else 1
        up = rows * fan * self.hidden * (2 if self.gated else 1) * WIDTH / c.tp
        act = rows * fan * self.hidden * WIDTH / c.tp
        qkv, out = rows * (q + 2 * kv) * WIDTH / c.tp, rows * q * WIDTH / c.tp
        scores = 0.0 if self.flash else c.micro * heads * self.length * seen * WIDTH
        masks = whole if self.dropout else 0.0  # two masks of a byte
        # Norms read and write (4), residuals read two and write one (6); a softmax and its dropout make 4.5
        # passes.
        traffic = (
            4 * whole + 6 * whole + (up + act) + 2 * qkv * (0.5 if self.flash else 1) + 4.5 * scores
        )
        kept = 4 * whole + masks + qkv + out + up + act + scores * 2.5
        routed = rows * self.chosen * self.width * WIDTH if moe else 0.0
        traffic += 4 * routed
        kept += 2 * routed
        dense, experts = self._params(c)
        return Layer(
            "block", dense, experts, tuple(products), traffic, kept, whole, qkv + out + up + act + 2 * scores,
            rows * self.width * WIDTH, 2, routed if c.ep > 1 else 0.0,
        )  # fmt: skip

    def _attention(self, c: LayerCut, seen: int, heads: float) -> list[MatrixProducts]:
        half = (
            0.5 if self.flash and seen == self.length else 1.0
        )  # causal tiles above the diagonal are skipped
        count = c.micro * heads
        return [
            MatrixProducts(self.length, seen * half, self.head_dim, count),
            MatrixProducts(self.length, self.head_dim, seen * half, count),
        ]

    def _feed_forward(self, c: LayerCut) -> list[MatrixProducts]:
        up = self.hidden * (2 if self.gated else 1) / c.tp
        down = self.hidden / c.tp
        rows = c.micro * self.length
        if not self.experts:
            return [MatrixProducts(rows, up, self.width), MatrixProducts(rows, self.width, down)]
        mine = math.ceil(self.experts / c.ep)
        each = (
            rows * self.chosen * c.ep / self.experts
        )  # rows of an expert, from all devices of its group
        return [
            MatrixProducts(rows, self.experts, self.width),
            MatrixProducts(each, up, self.width, mine),
            MatrixProducts(each, self.width, down, mine),
        ]

    def _params(self, c: LayerCut) -> tuple[float, float]:
        w, q, kv = self.width, self.heads * self.head_dim, self.kv_heads * self.head_dim
        up = 2 if self.gated else 1
        attention = w * (q + 2 * kv) + q * w
        matrices, biases = (up + 1) * w * self.hidden, up * self.hidden + w
        gains = 2 * w * (2 if self.biases and not self.gated else 1)
        more = (q + 2 * kv) / c.tp + w if self.biases else 0
        more += self.heads / c.tp if self.sinks else 0
        if not self.experts:
            more += up * self.hidden / c.tp + w if self.biases else 0
            return (attention + matrices) / c.tp + gains + more, 0.0
        router = (w + 1) * self.experts
        one = matrices / c.tp + (biases if self.biases else 0)
        return attention / c.tp + gains + more + router, one * math.ceil(self.experts / c.ep)

    @staticmethod
    def of_config(values: Mapping[str, Any], name: str = "", length: int = 4096) -> Transformer:
        """The model of a config.json, for sequences of a length."""
        if "hidden_size" not in values or "num_hidden_layers" not in values:
            raise located(
                OperandError(
                    "Transformer.of_config: no hidden_size or num_hidden_layers in the config"
                )
            )
        get = values.get
        sliding = bool(get("sliding_window")) and "sliding_attention" in (
            get("layer_types") or ["sliding_attention"]
        )
        experts = int(get("num_local_experts") or get("num_experts") or 0)
        return Transformer(
            name or str(get("model_type", "model")), int(values["num_hidden_layers"]),
            int(values["hidden_size"]),
            int(values["num_attention_heads"]), int(values["vocab_size"]), length,
            int(get("intermediate_size") or 0),
            int(get("num_key_value_heads") or 0), int(get("head_dim") or 0), experts,
            int(get("num_experts_per_tok") or get("experts_per_token") or 1), gated=True,
            biases=bool(get("attention_bias", False)), tied=bool(get("tie_word_embeddings", False)),
            window=int(get("sliding_window") or 0) if sliding else 0, sinks=get("model_type") == "gpt_oss",
        )  # fmt: skip


def gpt(
    name: str, layers: int, width: int, heads: int, length: int = 2048, vocabulary: int = 51200
) -> Transformer:
    """A GPT as Megatron-LM trains it: biases, learned positions, a tied head."""
    return Transformer(name, layers, width, heads, vocabulary, length, tied=True, positions=True)


GPT_OSS_120B: dict[str, Any] = {
    "model_type": "gpt_oss", "num_hidden_layers": 36, "hidden_size": 2880, "num_attention_heads": 64,
    "num_key_value_heads": 8, "head_dim": 64, "intermediate_size": 2880, "vocab_size": 201088,
    "num_local_experts": 128, "num_experts_per_tok": 4, "sliding_window": 128, "attention_bias": True,
    "tie_word_embeddings": False, "max_position_embeddings": 131072,
}  # fmt: skip

MODELS: dict[str, Transformer] = {
    "gpt-oss-120b": Transformer.of_config(GPT_OSS_120B, "gpt-oss-120b"),
    "gpt-oss-20b": Transformer.of_config(
        {**GPT_OSS_120B, "num_hidden_layers": 24, "num_local_experts": 32}, "gpt-oss-20b"
    ),
    "gpt-175b": gpt("gpt-175b", 96, 12288, 96),
}


def described(name: str | Transformer) -> Transformer:
    """A model by name."""
    if isinstance(name, Transformer):
        return name
    if name not in MODELS:
        raise located(
            OperandError(f"plan: there is no model {name!r}; known are {', '.join(MODELS)}")
        )
    return MODELS[name]
