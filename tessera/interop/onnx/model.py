"""The record of an ONNX model: graphs, nodes, functions and initialisers, free of protobuf."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np

from tessera.core.errors import TesseraError

Array = np.ndarray[Any, np.dtype[Any]]


class OnnxError(TesseraError, ValueError):
    """An ONNX file is damaged, or says something that cannot be run."""


class DataDependentError(TesseraError, TypeError):
    """A traced value decides a shape or an attribute of a node."""


STRING = np.dtype(object)
# TensorProto.DataType, by number.
DTYPES: dict[int, np.dtype[Any]] = {
    1: np.dtype(np.float32), 2: np.dtype(np.uint8), 3: np.dtype(np.int8),
    4: np.dtype(np.uint16), 5: np.dtype(np.int16), 6: np.dtype(np.int32),
    7: np.dtype(np.int64), 8: STRING, 9: np.dtype(np.bool_), 10: np.dtype(np.float16),
    11: np.dtype(np.float64), 12: np.dtype(np.uint32), 13: np.dtype(np.uint64),
    14: np.dtype(np.complex64), 15: np.dtype(np.complex128), 16: np.dtype(ml_dtypes.bfloat16),
    17: np.dtype(ml_dtypes.float8_e4m3fn), 18: np.dtype(ml_dtypes.float8_e4m3fnuz),
    19: np.dtype(ml_dtypes.float8_e5m2), 20: np.dtype(ml_dtypes.float8_e5m2fnuz),
    21: np.dtype(ml_dtypes.uint4), 22: np.dtype(ml_dtypes.int4),
    23: np.dtype(ml_dtypes.float4_e2m1fn), 24: np.dtype(ml_dtypes.float8_e8m0fnu),
    25: np.dtype(ml_dtypes.uint2), 26: np.dtype(ml_dtypes.int2),
}  # fmt: skip
NUMBERS = {d: k for k, d in DTYPES.items()}


def dtype_of(number: int, what: str) -> np.dtype[Any]:
    """The NumPy dtype of a TensorProto.DataType."""
    if number not in DTYPES:
        raise OnnxError(f"onnx: {what} has data type {number}, which is not one of 1 to 26")
    return DTYPES[number]


@dataclass(frozen=True)
class OnnxInfo:
    """The name and the type of an input or an output."""

    name: str
    kind: str = "tensor"  # or sequence, optional, map, unknown
    dtype: np.dtype[Any] | None = None
    shape: tuple[int | str | None, ...] | None = None  # None: the rank is not known

    def __str__(self) -> str:
        if self.kind != "tensor" or self.dtype is None:
            return f"{self.name}: {self.kind}"
        name = "string" if self.dtype == STRING else self.dtype.name
        sizes = "..." if self.shape is None else ", ".join(str(s or "?") for s in self.shape)
        return f"{self.name}: {name}[{sizes}]"


@dataclass(frozen=True)
class OnnxNode:
    """One node; an input or output that is left out is the empty name."""

    op: str
    domain: str
    version: int  # of the operator set of its domain
    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Any]

    def get(self, name: str, default: Any = None) -> Any:
        """An attribute, or a default."""
        return self.attributes.get(name, default)

    def need(self, name: str) -> Any:
        """An attribute that must be there."""
        if name not in self.attributes:
            raise OnnxError(f"onnx: {self} lacks the attribute '{name}'")
        return self.attributes[name]

    def graphs(self) -> Iterator[OnnxGraph]:
        """The graphs among its attributes."""
        for a in self.attributes.values():
            if isinstance(a, OnnxGraph):
                yield a
            elif isinstance(a, list):
                yield from (g for g in a if isinstance(g, OnnxGraph))

    def __str__(self) -> str:
        op = f"{self.domain}.{self.op}" if self.domain else self.op
        return f"{op} '{self.name}'" if self.name else op


@dataclass(frozen=True)
class OnnxReference:
    """An attribute of a node in a function that stands for one of the function's own."""

    name: str


@dataclass(frozen=True)
class OnnxGraph:
    """Nodes in order, from inputs and initialisers to outputs."""

    name: str
    inputs: tuple[OnnxInfo, ...]
    outputs: tuple[OnnxInfo, ...]
    nodes: tuple[OnnxNode, ...]
    initialisers: Mapping[str, Array] = field(default_factory=dict)


@dataclass(frozen=True)
class OnnxFunction:
    """A node type that the model defines by other nodes."""

    domain: str
    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    defaults: Mapping[str, Any]
    nodes: tuple[OnnxNode, ...]


@dataclass(frozen=True)
class Model:
    """A graph with the functions and the operator sets that it uses."""

    graph: OnnxGraph
    opsets: Mapping[str, int]
    functions: Mapping[tuple[str, str], OnnxFunction]
    producer: str
