"""Configs and weights of GGUF files, under the names of Hugging Face."""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from tessera.core.errors import ModelError
from tessera.lang.create import tensor
from tessera.models.blocks import Array, Groups
from tessera.models.config import Config
from tessera.models.gguf import GGUF
from tessera.models.source import check_shape
from tessera.models.weights import packed

ARCHITECTURES = {
    "llama": "llama",
    "qwen2": "qwen2",
    "qwen3": "qwen3",
    "gemma": "gemma",
}
# Their conversion interleaves the halves of each head's queries and keys.
INTERLEAVED = ("llama",)
# Their conversion adds one to every gain of a norm.
ADDED_ONE = ("gemma",)

FIELDS = {
    "hidden_size": "embedding_length", "num_hidden_layers": "block_count",
    "num_attention_heads": "attention.head_count",
    "num_key_value_heads": "attention.head_count_kv", "intermediate_size": "feed_forward_length",
    "max_position_embeddings": "context_length", "rms_norm_eps": "attention.layer_norm_rms_epsilon",
    "rope_theta": "rope.freq_base", "head_dim": "attention.key_length",
    "sliding_window": "attention.sliding_window",
}  # fmt: skip

NAMES = {
    r"model\.embed_tokens": "token_embd", r"model\.norm": "output_norm", "lm_head": "output",
    r"model\.layers\.(\d+)\.input_layernorm": r"blk.\1.attn_norm",
    r"model\.layers\.(\d+)\.self_attn\.([qkv])_proj": r"blk.\1.attn_\2",
    r"model\.layers\.(\d+)\.self_attn\.o_proj": r"blk.\1.attn_output",
    r"model\.layers\.(\d+)\.self_attn\.([qk])_norm": r"blk.\1.attn_\2_norm",
    r"model\.layers\.(\d+)\.mlp\.(gate|up|down)_proj": r"blk.\1.ffn_\2",
}  # fmt: skip
DIVISORS = "rope_freqs.weight"  # of the angles of each pair: how Llama 3.1 and later are scaled
_NORM2 = r"model\.layers\.(\d+)\.post_attention_layernorm"
PLAIN_NORMS = {_NORM2: r"blk.\1.ffn_norm"}


def config_of(g: GGUF) -> Config:
    """The config that a file's metadata describes."""
    kind = g.metadata.get("general.architecture")
    if not isinstance(kind, str) or kind not in ARCHITECTURES:
        raise ModelError(
            f"{g.path}: the architecture is {kind!r}, expected one of {', '.join(ARCHITECTURES)}"
        )
    values = {hub: _plain(g.metadata.get(f"{kind}.{own}")) for hub, own in FIELDS.items()}
    values |= {
        "model_type": ARCHITECTURES[kind],
        "tie_word_embeddings": "output.weight" not in g.tensors,
    }
    names = g.metadata.get("tokenizer.ggml.tokens")
    values["vocab_size"] = len(names) if isinstance(names, list) else None
    values["rope_scaling"] = _scaling(g, kind)
    c = Config(values, str(g.path))
    _check_heads(g, kind, c)
    return c


def _check_heads(g: GGUF, kind: str, c: Config) -> None:
    """Refuse heads of which only a part turns, and values of another size than keys."""
    dim = c.size("head_dim", c.size("hidden_size") // c.size("num_attention_heads"))
    for name in ("rope.dimension_count", "attention.value_length"):
        found = g.metadata.get(f"{kind}.{name}", dim)
        if found != dim:
            raise ModelError(
                f"{g.path}: {kind}.{name} is {found!r}, expected {dim}, the size of a head"
            )


def _plain(x: Any) -> Any:
    return None if isinstance(x, np.ndarray | list) else x


def _scaling(g: GGUF, kind: str) -> dict[str, Any] | None:
    out = {"divisors": g.tensor(DIVISORS).ravel().tolist()} if DIVISORS in g.tensors else {}
    name = g.metadata.get(f"{kind}.rope.scaling.type")
    if name in (None, "none"):
        return out or None
    old = g.metadata.get(f"{kind}.rope.scaling.original_context_length")
    return out | {
        "rope_type": name, "factor": g.metadata.get(f"{kind}.rope.scaling.factor"),
        "original_max_position_embeddings": old,
    }  # fmt: skip


class GGUFSource:
    """The weights of a GGUF file; matrices of few bits stay as they are stored."""

    def __init__(self, g: GGUF, c: Config):
        self._file, self._config = g, c
        self._kind = c.values["model_type"]
        self._names = NAMES | PLAIN_NORMS
        self._read = {DIVISORS}

    def _stored(self, name: str) -> str:
        stem, _, end = name.rpartition(".")
        for pattern, own in self._names.items():
            if re.fullmatch(pattern, stem):
                return f"{re.sub(pattern, own, stem)}.{end}"
        return name

    def has(self, name: str) -> bool:
        """Whether there is a tensor of this name."""
        return self._stored(name) in self._file.tensors

    def finish(self) -> None:
        """Refuse a file with tensors that the model has no place for: it describes another one."""
        left = sorted(self._file.tensors.keys() - self._read)
        if left:
            raise ModelError(
                f"{self._file.path}: the tensor {left[0]} has no place in a {self._kind} as it is known "
                f"here, nor have {len(left) - 1} others"
            )

    def vector(self, name: str, *shape: int) -> Any:
        """A tensor in f32."""
        self._read.add(self._stored(name))
        found = self._file.tensor(self._stored(name))
        check_shape(name, found.shape, shape, str(self._file.path))
        if self._interleaved(name):
            found = found[self._rows(name, len(found))]
        return tensor(found - 1 if self._kind in ADDED_ONE and "norm" in name else found)

    def matrix(self, name: str, rows: int, columns: int) -> Any:
        """The weights (in, out) of a linear layer."""
        found = self._matrix(name, (columns, rows))
        return (
            tensor(np.ascontiguousarray(found.T))
            if isinstance(found, np.ndarray)
            else packed(found, columns)
        )

    def table(self, name: str, rows: int, columns: int) -> Any:
        """An embedding: (rows, columns), or the transpose of that in few bits."""
        found = self._matrix(name, (rows, columns))
        return tensor(found) if isinstance(found, np.ndarray) else packed(found, rows)

    def _matrix(self, name: str, shape: tuple[int, int]) -> Array | Groups:
        """A dense array, or the groups of its rows."""
        own = self._stored(name)
        self._read.add(own)
        if own not in self._file.tensors:
            raise ModelError(f"{self._file.path}: there is no tensor {own}")
        info = self._file.tensors[own]
        check_shape(own, info.shape, shape, str(self._file.path))
        order = self._rows(name, shape[0]) if self._interleaved(name) else None
        if info.format.groups is None:
            found = self._file.tensor(own)
            return found if order is None else found[order]
        groups = self._file.groups(own)
        return groups if order is None else _reordered(groups, order)

    def _interleaved(self, name: str) -> bool:
        return self._kind in INTERLEAVED and re.search(r"self_attn\.[qk]_proj", name) is not None

    def _rows(self, name: str, rows: int) -> Array:
        """Rows in the order of halves, which a file has in the order of pairs."""
        heads = self._config.size("num_attention_heads")
        if "k_proj" in name:
            heads = self._config.size("num_key_value_heads", heads)
        if rows % (2 * heads):
            raise ModelError(
                f"{self._file.path}: {rows} rows of {name} are not {heads} heads of pairs"
            )
        return np.arange(rows).reshape(heads, -1, 2).swapaxes(1, 2).reshape(-1)


def _reordered(g: Groups, order: Array) -> Groups:
    """Groups with the rows of the matrix in another order."""

    def turned(x: Array) -> Array:
        return x.reshape(len(order), -1, *x.shape[1:])[order].reshape(x.shape)

    return Groups(turned(g.codes), turned(g.scale), None if g.offset is None else turned(g.offset))
