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
from tessera.models.gguf_families import architecture
from tessera.models.source import check_shape
from tessera.models.weights import packed

FIELDS = {
    "hidden_size": "embedding_length", "num_hidden_layers": "block_count",
    "num_attention_heads": "attention.head_count",
    "num_key_value_heads": "attention.head_count_kv", "intermediate_size": "feed_forward_length",
    "max_position_embeddings": "context_length", "rms_norm_eps": "attention.layer_norm_rms_epsilon",
    "rope_theta": "rope.freq_base", "head_dim": "attention.key_length",
    "sliding_window": "attention.sliding_window",
}  # fmt: skip

DIVISORS = "rope_freqs.weight"  # of the angles of each pair: how Llama 3.1 and later are scaled


def config_of(g: GGUF) -> Config:
    """The config that a file's metadata describes."""
    kind = g.metadata.get("general.architecture")
    known = architecture(kind, str(g.path))
    values = {hub: _plain(g.metadata.get(f"{kind}.{own}")) for hub, own in FIELDS.items()}
    values |= {
        "model_type": known.model_type,
        "tie_word_embeddings": "output.weight" not in g.tensors,
    }
    names = g.metadata.get("tokenizer.ggml.tokens")
    values["vocab_size"] = len(names) if isinstance(names, list) else None
    values["rope_scaling"] = _scaling(g, str(kind))
    values |= known.more(lambda name: _listed(g.metadata.get(f"{kind}.{name}")), values)
    c = Config(values, str(g.path))
    if not known.turned:
        _check_heads(g, str(kind), c)
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


def _listed(x: Any) -> Any:
    return x.tolist() if isinstance(x, np.ndarray) else x


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
        self._known = architecture(g.metadata.get("general.architecture"), str(g.path))
        self._kind = self._known.model_type
        self._read = {DIVISORS}

    def _stored(self, name: str) -> str:
        sinks = re.fullmatch(r"model\.layers\.(\d+)\.self_attn\.sinks", name)
        if sinks:
            return f"blk.{sinks[1]}.attn_sinks.weight"
        stem, _, end = name.rpartition(".")
        for pattern, own in self._known.names.items():
            if re.fullmatch(pattern, stem):
                return f"{re.sub(pattern, own, stem)}.{end}"
        return name

    def has(self, name: str) -> bool:
        """Whether there is a tensor of this name; experts have blocks where all their matrices do."""
        if name.endswith("_blocks"):
            kinds = [self._file.tensors.get(n) for n in _expert_names(name.removesuffix("_blocks"))]
            return all(t is not None and t.format.name == "MXFP4" for t in kinds)
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
        if ".experts." in name:
            return self._experts(name, shape)
        self._read.add(self._stored(name))
        found = self._file.tensor(self._stored(name))
        if self._known.turned and found.ndim == 2 and "wpe" not in name:
            found = np.ascontiguousarray(found.T)
        check_shape(name, found.shape, shape, str(self._file.path))
        if self._interleaved(name):
            found = found[self._rows(name, len(found))]
        return tensor(found - 1 if self._known.added_one and "norm" in name else found)

    def _experts(self, name: str, shape: tuple[int, ...]) -> Any:
        """The matrices (experts, in, out) or biases of all experts; gates and ups are interleaved."""
        names = _expert_names(name)
        experts, *rows, columns = shape
        parts = []
        for own in names:
            self._read.add(own)
            part = self._file.tensor(own)
            wanted = (experts, columns // len(names), *rows)
            check_shape(own, part.shape, wanted, str(self._file.path))
            parts.append(part.swapaxes(1, 2) if rows else part)
        found = parts[0] if len(parts) == 1 else _interleaved(parts)
        return tensor(np.ascontiguousarray(found))

    def groups(
        self, name: str, experts: int, rows: int, columns: int, size: int
    ) -> tuple[Any, Any]:
        """Matrices (experts, rows, columns) in MXFP4: codes (experts, groups, size, columns), and scales."""
        codes, scales = [], []
        own_names = _expert_names(name)
        for own in own_names:
            self._read.add(own)
            wanted = (experts, columns // len(own_names), rows)
            check_shape(own, self._file.tensors[own].shape, wanted, str(self._file.path))
            g = self._file.groups(own)
            split = (experts, columns // len(own_names), rows // size)
            codes.append(np.moveaxis(g.codes.reshape(*split, size), 1, 3))
            scales.append(np.moveaxis(g.scale.reshape(split), 1, 2))
        both = [x[0] if len(x) == 1 else _interleaved(x) for x in (codes, scales)]
        return tensor(np.ascontiguousarray(both[0])), tensor(np.ascontiguousarray(both[1]))

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
        return self._known.interleaved and re.search(r"self_attn\.[qk]_proj", name) is not None

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


def _expert_names(name: str) -> list[str]:
    """The tensors of a file that hold what Hugging Face calls experts.gate_up_proj or experts.down_proj."""
    found = re.fullmatch(r"model\.layers\.(\d+)\.mlp\.experts\.(gate_up|down)_proj(_bias)?", name)
    if found is None:
        raise ModelError(f"experts have no tensor {name}")
    layer, which, bias = found.groups()
    end = "bias" if bias else "weight"
    parts = ("gate", "up") if which == "gate_up" else ("down",)
    return [f"blk.{layer}.ffn_{part}_exps.{end}" for part in parts]


def _interleaved(parts: list[Array]) -> Array:
    """Two arrays with the elements of their last axes in turn."""
    stacked = np.stack(parts, axis=-1)
    return stacked.reshape(*stacked.shape[:-2], -1)


def _reordered(g: Groups, order: Array) -> Groups:
    """Groups with the rows of the matrix in another order."""

    def turned(x: Array) -> Array:
        return x.reshape(len(order), -1, *x.shape[1:])[order].reshape(x.shape)

    return Groups(turned(g.codes), turned(g.scale), None if g.offset is None else turned(g.offset))
