"""A model as types alone: the shapes of its weights and caches, what they take, and their layouts on a mesh.

Nothing of the size of the model is allocated.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tessera.core import tree
from tessera.core.blame import blames_arguments
from tessera.core.dtype import DType, as_dtype, bf16, f32, i8, i32
from tessera.core.types import TensorType
from tessera.lang.shapes import results_of
from tessera.models.config import Config
from tessera.models.loading import FAMILIES
from tessera.models.model import Family
from tessera.models.safetensors import read_json

GIB = 1 << 30  # bytes


@dataclass(frozen=True)
class TypeSource:
    """Weights of any name, as types: matrices and tables of one dtype, vectors in f32."""

    dtype: DType
    mxfp4: bool  # whether experts are in groups of four bits

    def has(self, name: str) -> bool:
        """Whether there is a tensor of this name."""
        return self.mxfp4 and name.endswith("_blocks")

    def vector(self, name: str, *shape: int) -> TensorType:
        """A tensor in f32."""
        return TensorType(f32, shape)

    def matrix(self, name: str, rows: int, columns: int) -> TensorType:
        """The weights (in, out) of a linear layer."""
        return TensorType(self.dtype, (rows, columns))

    def table(self, name: str, rows: int, columns: int) -> TensorType:
        """An embedding (rows, columns)."""
        return TensorType(self.dtype, (rows, columns))

    def groups(
        self, name: str, experts: int, rows: int, columns: int, size: int
    ) -> tuple[TensorType, TensorType]:
        """Codes (experts, groups, size, columns) and their scales (experts, groups, columns)."""
        groups = rows // size
        return (
            TensorType(i8, (experts, groups, size, columns)),
            TensorType(f32, (experts, groups, columns)),
        )


@dataclass(frozen=True)
class WeightRow:
    """One weight: where it is in the tree, its type, its layout in words, and bytes on one device."""

    path: str
    type: TensorType
    layout: str
    bytes: int


@dataclass(frozen=True)
class ModelTypes:
    """A model without its weights; `params` is the tree of a loaded model, with types for tensors."""

    name: str
    shape: Any
    params: Any
    family: Family

    @property
    def parameters(self) -> int:
        """How many numbers the weights are; tables of angles and scales of groups are none."""
        rows = [r for r in self.rows() if not r.path.endswith(".scale") and "rope" not in r.path]
        return sum(int(r.type.size) for r in rows)

    @property
    def nbytes(self) -> int:
        """Bytes of the weights as they are held."""
        return sum(_bytes(t) for t in tree.leaves(self.params))

    def cache(self, batch: int = 1, room: int | None = None) -> list[tuple[TensorType, TensorType]]:
        """The keys and values of each layer, for so many positions."""
        s = self.shape
        t = TensorType(f32, (batch, s.kv_heads, room or s.context, s.head_dim))
        return [(t, t)] * s.layers

    def step(
        self, batch: int = 1, rows: int = 1, room: int | None = None
    ) -> tuple[TensorType, Any]:
        """The logits and the caches that a step on so many tokens gives, through every op of the model."""

        def run(params: Any, tokens: Any, cache: Any, start: Any) -> Any:
            x, longer = self.family.forward(self.shape, params, tokens, cache, start)
            return self.family.logits(self.shape, params, x), longer

        tokens, start = TensorType(i32, (batch, rows)), TensorType(i32, (batch,))
        logits, cache = results_of(run, (self.params, tokens, self.cache(batch, room), start), {})
        return logits, cache

    def rows(self, strategy: Any = None) -> list[WeightRow]:
        """Every weight, laid out by a strategy of dist where one is given."""
        leaves, structure = tree.flatten(self.params)
        paths = tree.structure_paths(structure, "")
        return [
            _row(".".join(re.findall(r"\w+", p)), t, strategy)
            for p, t in zip(paths, leaves, strict=True)
        ]

    def bytes_per_device(self, strategy: Any) -> int:
        """Bytes of the weights on the device that holds most."""
        return sum(r.bytes for r in self.rows(strategy))

    def __str__(self) -> str:
        s = self.shape
        held = sum(_bytes(t) for t in tree.leaves(self.cache()))
        return "\n".join(
            [
                f"{self.name}: {s.layers} layers of width {s.width}, {s.heads} heads of {s.head_dim} on "
                f"{s.kv_heads}, {s.vocabulary} tokens",
                f"  weights  {self.parameters / 1e9:.1f} billion, {self.nbytes / GIB:.1f} GiB",
                f"  cache    {held / GIB:.1f} GiB for one sequence of {s.context} positions",
            ]
        )

    __repr__ = __str__


def _bytes(t: TensorType) -> int:
    return -(-int(t.size) * t.dtype.bits // 8)


def _row(path: str, t: TensorType, strategy: Any) -> WeightRow:
    if strategy is None:
        return WeightRow(path, t, str(t), _bytes(t))
    layout = strategy.spec(path, t.shape, strategy.of_params).layout(t.shape, strategy.mesh)
    local = layout.local(t.shape, strategy.mesh)
    return WeightRow(path, t, layout.show(t), -(-math.prod(local) * t.dtype.bits // 8))


@blames_arguments
def types(config: Mapping[str, Any] | str | os.PathLike[str], dtype: Any = bf16) -> ModelTypes:
    """The types of a language model by its config: a dict, a config.json, or the folder of one.

    Matrices have the dtype that is given; experts are in MXFP4 where the config says so.
    """
    if isinstance(config, Mapping):
        c = Config(config, "config")
        name = str(config.get("model_type", "model"))
    else:
        where = Path(config)
        where = where / "config.json" if where.is_dir() else where
        c, name = Config(read_json(where), str(where)), where.parent.name
    module, family = FAMILIES[c.choice("model_type", FAMILIES)]
    stored = c.values.get("quantization_config")
    four = isinstance(stored, Mapping) and stored.get("quant_method") == "mxfp4"
    shape = module.shape(c)
    made = module.params(shape, TypeSource(as_dtype(dtype), four))
    return ModelTypes(
        name, shape, tree.map(lambda t: t if isinstance(t, TensorType) else t.type, made), family
    )
