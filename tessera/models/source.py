"""Where a model's weights come from: a Hugging Face folder or a GGUF file, under one set of names."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from tessera.core.errors import ModelError
from tessera.lang.create import tensor
from tessera.models.blocks import E2M1_TWICE, Array, half_exponent
from tessera.models.safetensors import Folder


class WeightSource(Protocol):
    """Weights by the names of Hugging Face; a shape that is not the one asked for is refused."""

    def has(self, name: str) -> bool:
        """Whether there is a tensor of this name."""

    def vector(self, name: str, *shape: int) -> Any:
        """A tensor in f32, as it is stored."""

    def matrix(self, name: str, rows: int, columns: int) -> Any:
        """The weights (in, out) of a linear layer, stored as (out, in)."""

    def table(self, name: str, rows: int, columns: int) -> Any:
        """An embedding: (rows, columns), or the transpose of that in few bits."""


def check_shape(name: str, got: tuple[int, ...], wanted: tuple[int, ...], path: str) -> None:
    """Refuse a tensor that the config does not describe."""
    if got != wanted:
        raise ModelError(
            f"{path}: tensor {name} has the shape {got}, expected {wanted} by the config"
        )


def narrowed(x: Array) -> Array:
    """Floats as they are stored, up to f32; anything else is refused."""
    if x.dtype.kind not in "fV":
        raise ModelError(f"weights of dtype {x.dtype} are not read, expected floats")
    return x.astype(np.float32) if x.dtype.itemsize in (1, 8) else x


class FolderSource:
    """The weights of a folder; `prefix` stands before every name in some files."""

    def __init__(self, folder: Folder, prefix: str = ""):
        self._folder, self._prefix = folder, prefix

    def _stored(self, name: str) -> str:
        full = self._prefix + name
        return full if self._folder.has(full) or not self._folder.has(name) else name

    def has(self, name: str) -> bool:
        """Whether there is a tensor of this name."""
        return self._folder.has(self._stored(name))

    def array(self, name: str, *shape: int) -> Array:
        """A tensor as an array."""
        found = self._folder.tensor(self._stored(name))
        check_shape(name, found.shape, shape, str(self._folder.path))
        return narrowed(found)

    def raw(self, name: str, *shape: int) -> Array:
        """A tensor of bytes."""
        found = self._folder.tensor(self._stored(name))
        check_shape(name, found.shape, shape, str(self._folder.path))
        if found.dtype != np.uint8:
            raise ModelError(f"{self._folder.path}: tensor {name} is {found.dtype}, expected bytes")
        return found

    def vector(self, name: str, *shape: int) -> Any:
        """A tensor in f32, as it is stored."""
        return tensor(self.array(name, *shape).astype(np.float32))

    def matrix(self, name: str, rows: int, columns: int) -> Any:
        """The weights (in, out) of a linear layer, stored as (out, in)."""
        return tensor(np.ascontiguousarray(self.array(name, columns, rows).T))

    def table(self, name: str, rows: int, columns: int) -> Any:
        """An embedding (rows, columns)."""
        return tensor(np.ascontiguousarray(self.array(name, rows, columns)))

    def groups(
        self, name: str, experts: int, rows: int, columns: int, size: int
    ) -> tuple[Any, Any]:
        """Matrices (experts, rows, columns) in MXFP4: codes (experts, groups, size, columns), and scales."""
        blocks = self.raw(f"{name}_blocks", experts, columns, rows // size, size // 2)
        exponents = self.raw(f"{name}_scales", experts, columns, rows // size)
        pairs = np.stack([blocks & np.uint8(15), blocks >> np.uint8(4)], axis=-1)
        codes = E2M1_TWICE[pairs].reshape(*blocks.shape[:-1], size)
        turned = np.ascontiguousarray(np.moveaxis(codes, 1, 3))
        return tensor(turned), tensor(
            np.ascontiguousarray(np.moveaxis(half_exponent(exponents), 1, 2))
        )
