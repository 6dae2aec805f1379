"""BERT and ViT: encoders whose rows see each other; MiniLM embeds sentences with the former."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tessera.core.errors import ModelError, OperandError, ShapeError
from tessera.lang import op
from tessera.lang.create import tensor
from tessera.lang.jit import jit
from tessera.lang.tensor import Tensor
from tessera.models.config import Config
from tessera.models.decoder import ACTIVATIONS, Tree, heads_of, joined, layernorm
from tessera.models.source import WeightSource
from tessera.models.tokenizer import Tokenizer
from tessera.models.weights import linear, rows_of

LINEAR = ("q", "k", "v", "o", "up", "down")
ROWS = (16, 64, 256, 512)  # rows of a program: a batch of texts is padded to one of these


@dataclass(frozen=True)
class EncoderShape:
    """Sizes of an encoder."""

    width: int
    layers: int
    heads: int
    hidden: int
    eps: float
    activation: str
    context: int = 0
    vocabulary: int = 0
    types: int = 0
    image: int = 0
    patch: int = 0
    channels: int = 0
    first: bool = False  # norms before each half of a layer, as ViT has them, not after


def _shared(c: Config) -> dict[str, Any]:
    width, heads = c.size("hidden_size"), c.size("num_attention_heads")
    if width % heads:
        raise ModelError(f"{c.path}: {heads} heads do not divide a width of {width}")
    return {
        "width": width, "heads": heads, "layers": c.size("num_hidden_layers"),
        "hidden": c.size("intermediate_size"),
        "eps": c.positive("layer_norm_eps", 1e-12), "activation": c.choice("hidden_act", ACTIVATIONS, "gelu"),
    }  # fmt: skip


def bert_shape(c: Config) -> EncoderShape:
    """The BERT that a config describes."""
    c.choice("position_embedding_type", ("absolute",), "absolute")
    return EncoderShape(**_shared(c), context=c.size("max_position_embeddings", 512),
                 vocabulary=c.size("vocab_size"),
                 types=c.size("type_vocab_size", 2))  # fmt: skip


def vit_shape(c: Config) -> EncoderShape:
    """The ViT that a config describes."""
    image, patch = c.size("image_size", 224), c.size("patch_size", 16)
    if image % patch:
        raise ModelError(f"{c.path}: patches of {patch} do not divide an image of {image}")
    return EncoderShape(
        **_shared(c), image=image, patch=patch, channels=c.size("num_channels", 3), first=True
    )


def _layer(s: EncoderShape, w: WeightSource, names: dict[str, str]) -> Tree:
    sizes = dict.fromkeys("qkvo", (s.width, s.width))
    sizes |= {"up": (s.width, s.hidden), "down": (s.hidden, s.width)}
    out: Tree = {n: _affine(w, names[n], s.width) for n in ("norm1", "norm2")}
    for n in LINEAR:
        rows, columns = sizes[n]
        out[n] = (
            w.matrix(f"{names[n]}.weight", rows, columns),
            w.vector(f"{names[n]}.bias", columns),
        )
    return out


def _affine(w: WeightSource, name: str, size: int) -> tuple[Any, Any]:
    return w.vector(f"{name}.weight", size), w.vector(f"{name}.bias", size)


BERT_NAMES = {
    "q": "attention.self.query", "k": "attention.self.key", "v": "attention.self.value",
    "o": "attention.output.dense",
    "norm1": "attention.output.LayerNorm", "up": "intermediate.dense", "down": "output.dense",
    "norm2": "output.LayerNorm",
}  # fmt: skip
VIT_NAMES = {
    "norm1": "layernorm_before", "q": "attention.attention.query", "k": "attention.attention.key",
    "v": "attention.attention.value", "o": "attention.output.dense", "norm2": "layernorm_after",
    "up": "intermediate.dense", "down": "output.dense",
}  # fmt: skip


def bert_params(s: EncoderShape, w: WeightSource) -> Tree:
    """The weights of a BERT."""

    def names(i: int) -> dict[str, str]:
        return {n: f"encoder.layer.{i}.{name}" for n, name in BERT_NAMES.items()}

    return {
        "words": w.table("embeddings.word_embeddings.weight", s.vocabulary, s.width),
        "positions": w.vector("embeddings.position_embeddings.weight", s.context, s.width),
        "types": w.vector("embeddings.token_type_embeddings.weight", s.types, s.width),
        "norm": _affine(w, "embeddings.LayerNorm", s.width),
        "layers": [_layer(s, w, names(i)) for i in range(s.layers)],
    }


def vit_params(s: EncoderShape, w: WeightSource, labels: int) -> Tree:
    """The weights of a ViT, with a classifier where the file has one."""

    def names(i: int) -> dict[str, str]:
        return {n: f"encoder.layer.{i}.{name}" for n, name in VIT_NAMES.items()}

    patches = (s.image // s.patch) ** 2
    kernel = (s.width, s.channels, s.patch, s.patch)
    stem = "embeddings.patch_embeddings.projection"
    out: Tree = {
        "class": w.vector("embeddings.cls_token", 1, 1, s.width),
        "positions": w.vector("embeddings.position_embeddings", 1, patches + 1, s.width),
        "patch": (w.vector(f"{stem}.weight", *kernel), w.vector(f"{stem}.bias", s.width)),
        "norm": _affine(w, "layernorm", s.width),
        "layers": [_layer(s, w, names(i)) for i in range(s.layers)],
    }
    if w.has("classifier.weight"):
        out["classifier"] = (
            w.matrix("classifier.weight", s.width, labels),
            w.vector("classifier.bias", labels),
        )
    return out


def encode(s: EncoderShape, layers: Sequence[Tree], x: Any, mask: Any) -> Any:
    """Rows (batch, rows, width) through all layers; a mask (batch, 1, 1, rows) says which rows are seen."""
    act = ACTIVATIONS[s.activation]
    for p in layers:
        y = layernorm(x, p["norm1"], s.eps) if s.first else x
        q, k, v = (heads_of(linear(y, *p[n]), s.heads, s.width // s.heads) for n in "qkv")
        x = x + linear(joined(op.attention(q, k, v, mask=mask)), *p["o"])
        x = x if s.first else layernorm(x, p["norm1"], s.eps)
        y = layernorm(x, p["norm2"], s.eps) if s.first else x
        x = x + linear(act(linear(y, *p["up"])), *p["down"])
        x = x if s.first else layernorm(x, p["norm2"], s.eps)
    return x


class TextEncoder:
    """A BERT with its weights: hidden states of tokens, and embeddings of texts."""

    def __init__(
        self,
        shape: EncoderShape,
        params: Tree,
        tokenizer: Tokenizer | None,
        name: str,
        pooling: str,
    ):
        self.shape, self.params, self.name, self.pooling = shape, params, name, pooling
        self._tokenizer = tokenizer
        self._run = jit(self._hidden)

    @property
    def tokenizer(self) -> Tokenizer:
        """Text to tokens and back."""
        if self._tokenizer is None:
            raise OperandError(
                f"{self.name}: the model has no tokenizer; give tokens instead of text"
            )
        return self._tokenizer

    def _hidden(self, params: Tree, tokens: Any, length: Any) -> Any:
        s, p = self.shape, params
        rows = tokens.shape[1]
        x = rows_of(p["words"], tokens) + (p["types"][0] + p["positions"][:rows])
        x = layernorm(x, p["norm"], s.eps)
        mask = op.reshape(
            op.arange(rows, dtype="i32") < op.reshape(length, (-1, 1)), (-1, 1, 1, rows)
        )
        return encode(s, p["layers"], x, mask)

    def hidden(self, tokens: Any) -> Tensor:
        """Hidden states (rows, width) of one text's tokens."""
        ids = np.asarray(tokens)
        s = self.shape
        if ids.ndim != 1 or not 0 < len(ids) <= s.context or ids.dtype.kind not in "iu":
            raise ShapeError(
                f"{self.name}: got tokens {ids.dtype}{list(ids.shape)}, expected 1 to {s.context} integers"
            )
        if ids.min() < 0 or ids.max() >= s.vocabulary:
            raise OperandError(
                f"{self.name}: a token is out of range; the model has {s.vocabulary}"
            )
        size = min(next((r for r in ROWS if r >= len(ids)), s.context), s.context)
        padded = np.zeros((1, size), np.int32)
        padded[0, : len(ids)] = ids
        out = self._run(self.params, padded, np.array([len(ids)], np.int32))
        return tensor(np.ascontiguousarray(out.numpy()[0, : len(ids)]))

    def embed(self, texts: str | Sequence[str]) -> Tensor:
        """Embeddings (texts, width) of length one, or (width,) of a single text."""
        if isinstance(texts, str):
            return tensor(self._embedded(texts))
        return tensor(np.stack([self._embedded(t) for t in texts]))

    def _embedded(self, text: str) -> Any:
        ids = self.tokenizer.encode(text)
        if len(ids) > self.shape.context:  # the last token ends the text
            ids = [*ids[: self.shape.context - 1], ids[-1]]
        return self.embed_tokens(ids)

    def embed_tokens(self, ids: Sequence[int]) -> Any:
        """The embedding of one text's tokens."""
        x = self.hidden(ids).numpy()
        pooled = x[0] if self.pooling == "cls" else x.mean(0, dtype=np.float32)
        return pooled / max(np.sqrt((pooled * pooled).sum()), np.float32(1e-12))


class ImageEncoder:
    """A ViT with its weights: hidden states of an image's patches, and scores of its classes."""

    def __init__(self, shape: EncoderShape, params: Tree, name: str):
        self.shape, self.params, self.name = shape, params, name
        self._run = jit(self._hidden)

    def _hidden(self, p: Tree, images: Any) -> Any:
        s = self.shape
        kernel, bias = p["patch"]
        x: Any = op.conv2d(images, kernel, bias, stride=s.patch)
        batch, width = x.shape[0], s.width
        x = op.swapaxes(op.reshape(x, (batch, width, -1)), 1, 2)
        x = op.concat([op.broadcast_to(p["class"], (batch, 1, width)), x], axis=1) + p["positions"]
        return layernorm(encode(s, p["layers"], x, None), p["norm"], s.eps)

    def hidden(self, images: Any) -> Tensor:
        """Hidden states (images, 1 + patches, width) of images (images, channels, height, width)."""
        s, got = self.shape, np.shape(images)
        if len(got) != 4 or got[1:] != (s.channels, s.image, s.image):
            raise ShapeError(
                f"{self.name}: got images {list(got)}, expected [n, {s.channels}, {s.image}, {s.image}]"
            )
        out: Tensor = self._run(self.params, images)
        return out

    def logits(self, images: Any) -> Tensor:
        """Scores (images, classes)."""
        if "classifier" not in self.params:
            raise OperandError(f"{self.name}: the file has no classifier; use hidden(images)")
        out: Tensor = linear(self.hidden(images)[:, 0], *self.params["classifier"])
        return out
