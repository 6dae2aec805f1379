"""How a node type is translated: the table of rules, and what rules ask of their operands.

A rule is a short function over `tessera.op` of a Call (the node) and its inputs; an input that is left
out is None.  Values are tensors, lists of them (sequences), or NumPy arrays: those hold what is known
while tracing, text, and formats that Tessera has no dtype for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tessera.core.dims import Dim, Size
from tessera.core.dtype import FORMATS, DType, as_dtype
from tessera.interop.onnx.model import (
    STRING,
    Array,
    DataDependentError,
    OnnxError,
    OnnxGraph,
    OnnxNode,
    dtype_of,
)
from tessera.ir.graph.ir import Value, concrete, current_builder, eagerly
from tessera.lang import op
from tessera.ops.define import as_value

_OURS = {np.dtype(d.np) for d in FORMATS.values()}


@dataclass(frozen=True)
class NodeRule:
    """How one node type runs."""

    run: Callable[..., Any]
    fold: bool = True  # of inputs that are known while tracing it is computed at once
    moves: bool = False  # it only moves elements, so that text and foreign formats pass through
    host: bool = False  # it reads NumPy arrays and runs outside of compiled programs
    sizes: bool = False  # it takes symbolic sizes as they are


RULES: dict[tuple[str, str], NodeRule] = {}


def rule(
    *names: str,
    domain: str = "",
    fold: bool = True,
    moves: bool = False,
    host: bool = False,
    sizes: bool = False,
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorator: the rule of these node types."""

    def enter(f: Callable[..., Any]) -> Callable[..., Any]:
        for name in names:
            RULES[domain, name] = NodeRule(f, fold, moves, host, sizes)
        return f

    return enter


class Sizes:
    """An integer array of sizes, some of them symbolic, which is known while tracing."""

    __slots__ = ("array", "dtype")

    def __init__(self, array: Array, dtype: Any = np.int64):
        self.array, self.dtype = array, np.dtype(dtype)

    @property
    def shape(self) -> tuple[int, ...]:
        found: tuple[int, ...] = self.array.shape
        return found

    def value(self) -> Value:
        """The sizes as a traced tensor."""
        flat = [op.dim(s) if isinstance(s, Dim) else concrete(int(s)) for s in self.array.flat]
        return op.cast(op.reshape(op.stack(flat), self.array.shape), as_dtype(self.dtype))


@dataclass(frozen=True)
class Quantised:
    """What DequantizeLinear made an input from."""

    numbers: Any
    scale: Any
    zero: Any
    axis: int  # along which there is a scale for each place
    blocks: int  # places that share one there, 0 for one each


@dataclass(frozen=True)
class NodeCall:
    """A node as its rule sees it."""

    node: OnnxNode
    run: Callable[
        [OnnxGraph, Sequence[Any]], list[Any]
    ]  # a graph among the attributes, on arguments
    quantised: tuple[Quantised | None, ...] = ()  # what the inputs were made from

    def whole(self, k: int) -> Quantised | None:
        """What input k was made from, if DequantizeLinear made it."""
        return self.quantised[k] if k < len(self.quantised) else None

    @property
    def version(self) -> int:
        """The version of the operator set."""
        return self.node.version

    @property
    def outputs(self) -> int:
        """How many outputs the node names."""
        return len(self.node.outputs)

    def get(self, name: str, default: Any = None) -> Any:
        """An attribute, or a default."""
        return self.node.attributes.get(name, default)

    def need(self, name: str) -> Any:
        """An attribute that must be there."""
        return self.node.need(name)

    def wants(self, k: int) -> bool:
        """Whether output k is used."""
        return k < len(self.node.outputs) and bool(self.node.outputs[k])


def is_ours(dtype: np.dtype[Any]) -> bool:
    """Whether Tessera has a dtype for a NumPy dtype."""
    return dtype in _OURS


def is_foreign(x: Any) -> bool:
    """Whether x is an array of text or of a format that Tessera has no dtype for."""
    return isinstance(x, np.ndarray) and not is_ours(x.dtype)


def is_text(x: Any) -> bool:
    """Whether x is an array of strings."""
    return isinstance(x, np.ndarray) and x.dtype == STRING


def is_known(x: Any) -> bool:
    """Whether the data of x is at hand."""
    if isinstance(x, list):
        return all(map(is_known, x))
    return (
        x is None or isinstance(x, np.ndarray) or (isinstance(x, Value) and x.storage is not None)
    )


def host(x: Any, what: str) -> Array:
    """The data of an input as a NumPy array."""
    if isinstance(x, np.ndarray):
        return x
    if isinstance(x, Value) and x.storage is not None:
        return np.asarray(x)
    raise DataDependentError(
        f"{what} is computed from the inputs of the model and decides a shape; run the model outside of jit"
    )


def integers(x: Any, what: str) -> list[Any]:
    """Sizes or axes that must be known: whole numbers, or symbolic sizes."""
    if isinstance(x, Sizes):
        return [s if isinstance(s, Dim) else int(s) for s in x.array.reshape(-1)]
    if isinstance(x, list | tuple):
        return [int(i) for i in x]
    found = host(x, what)
    if found.dtype.kind not in "iub":
        raise OnnxError(f"{what} is {found.dtype}, expected integers")
    return [int(i) for i in found.reshape(-1)]


def one(x: Any, what: str) -> Any:
    """The one number of an input."""
    if isinstance(x, Sizes) and x.array.size == 1:
        found: Any = x.array.reshape(-1)[0]
        return found
    a = host(x, what)
    if a.size != 1:
        raise OnnxError(f"{what} has the shape {list(a.shape)}, expected one number")
    return a.reshape(-1)[0].item()


def numpy_dtype(x: Any) -> np.dtype[Any]:
    """The NumPy dtype of a value."""
    found: np.dtype[Any] = x.dtype if isinstance(x, np.ndarray | Sizes) else np.dtype(x.dtype.np)
    return found


def dtype(number: int, what: str) -> DType:
    """The Tessera dtype of a TensorProto.DataType."""
    found = dtype_of(number, what)
    if not is_ours(found):
        raise OnnxError(f"{what} asks for {found.name}, which it cannot compute in")
    return as_dtype(found)


def axis_of(axis: int, rank: int, what: str = "axis") -> int:
    """An axis counted from the front."""
    if not -rank <= axis < max(rank, 1):
        raise OnnxError(f"{what} {axis} is out of range for rank {rank}")
    return axis % rank if rank else 0


def axes_of(axes: Sequence[int], rank: int) -> tuple[int, ...]:
    """Axes counted from the front."""
    return tuple(axis_of(a, rank) for a in axes)


def tensor(x: Any) -> Any:
    """A value that ops take; text and foreign formats stay arrays."""
    if isinstance(x, Sizes):
        return x.value()
    return as_value(x) if isinstance(x, np.ndarray) and is_ours(x.dtype) else x


def shape_of(x: Any) -> tuple[Size, ...]:
    """The sizes of a value."""
    found: tuple[Size, ...] = tuple(x.shape)
    return found


def scalar_like(x: Any, number: Any) -> Value:
    """A number in the dtype of x."""
    return concrete(np.asarray(number).astype(numpy_dtype(x)))


def at_once(f: Callable[..., Any], *xs: Any) -> Any:
    """f of operands; computed outside of the program when all of them are known while tracing."""
    if not tracing() or not all(map(is_known, xs)):
        return f(*xs)
    with eagerly():
        return f(*xs)


def turned(w: Any) -> Value:
    """A matrix transposed; a known one is copied, since products of few rows read lines of the result."""
    if not tracing() or not is_known(w):
        return op.transpose(w)
    found = np.ascontiguousarray(host(w, "a weight").T)
    found.flags.writeable = False
    return concrete(found)


def tracing() -> bool:
    """Whether a program is being traced."""
    return current_builder() is not None
