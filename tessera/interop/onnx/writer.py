"""Nodes of an ONNX graph as they are written: names, constants, shapes with symbolic sizes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tessera.core.dims import Dim, SizeFunction, Symbol
from tessera.interop.onnx.model import (
    NUMBERS,
    Array,
    OnnxError,
    OnnxFunction,
    OnnxGraph,
    OnnxInfo,
    OnnxNode,
)
from tessera.ir.graph.ir import Value


class OnnxWriter:
    """A graph under construction."""

    def __init__(self, opset: int, outer: OnnxWriter | None = None):
        self.opset, self.outer = opset, outer
        self.nodes: list[OnnxNode] = []
        self.initialisers: dict[str, Array] = {}
        self.functions: dict[str, OnnxFunction] = {}  # of the whole model
        self.names: dict[Value, str] = {}
        self.symbols: dict[str, tuple[str, int]] = {} if outer is None else outer.symbols
        self._constants: dict[Any, str] = {}
        self._sizes: dict[Any, str] = {}
        self._count = 0  # of names

    def root(self) -> OnnxWriter:
        """The writer of the whole model, which gives names and holds constants."""
        return self if self.outer is None else self.outer.root()

    def fresh(self, stem: str) -> str:
        """A name that nothing has."""
        top = self.root()
        top._count += 1
        return f"{stem}_{top._count}"

    def emit(self, op: str, *inputs: str, outputs: int = 1, **attributes: Any) -> Any:
        """Append a node; the name of its output, or names of several."""
        names = tuple(self.fresh(op.lower()) for _ in range(outputs))
        given = {k: v for k, v in attributes.items() if v is not None}
        self.nodes.append(OnnxNode(op, "", self.opset, names[0], inputs, names, given))
        return names[0] if outputs == 1 else names

    def constant(self, data: Any, dtype: Any = None) -> str:
        """The name of an initialiser."""
        top = self.root()
        array = np.ascontiguousarray(np.asarray(data, dtype)).reshape(np.shape(data))
        array = pairs_last(array)
        key = (array.dtype, array.shape, array.tobytes())
        if key not in top._constants:
            name = top._constants[key] = self.fresh("constant")
            top.initialisers[name] = array
        return top._constants[key]

    def ints(self, numbers: Sequence[int]) -> str:
        """A vector of whole numbers."""
        return self.constant(np.array(list(numbers), np.int64))

    def cast(self, x: str, dtype: Any) -> str:
        """x in another dtype."""
        found: str = self.emit("Cast", x, to=number_of(np.dtype(dtype)))
        return found

    # Shapes

    def shape(self, sizes: Sequence[Any]) -> str:
        """A vector of sizes, computed from the shapes of inputs where they are symbolic."""
        if not any(isinstance(s, Dim) for s in sizes):
            return self.ints(sizes)
        parts = [self.size(s) if isinstance(s, Dim) else self.ints([s]) for s in sizes]
        found: str = parts[0] if len(parts) == 1 else self.emit("Concat", *parts, axis=0)
        return found

    def size(self, d: Any) -> str:
        """A size as a vector of one number."""
        if not isinstance(d, Dim):
            return self.ints([d])
        if d not in self._sizes:
            self._sizes[d] = self._sum(d)
        return self._sizes[d]

    def _sum(self, d: Dim) -> str:
        total: str | None = None
        for monomial, factor in d.terms:
            term = self.ints([factor])
            for atom, power in monomial:
                for _ in range(power):
                    term = self.emit("Mul", term, self._atom(atom))
            total = term if total is None else self.emit("Add", total, term)
        assert total is not None
        return total

    def _atom(self, atom: Any) -> str:
        if isinstance(atom, Symbol):
            if atom.name not in self.symbols:
                raise OnnxError(f"onnx: size {atom.name} is no axis of an input, which save needs")
            name, axis = self.symbols[atom.name]
            found: str = self.emit("Shape", name, start=axis, end=axis + 1)
            return found
        assert isinstance(atom, SizeFunction)
        ops = {"//": "Div", "%": "Mod", "max": "Max", "min": "Min"}
        made: str = self.emit(ops[atom.function], self.size(atom.left), self.size(atom.right))
        return made

    def graph(
        self, name: str, inputs: Sequence[OnnxInfo], outputs: Sequence[OnnxInfo]
    ) -> OnnxGraph:
        """What was written, as a graph."""
        return OnnxGraph(name, tuple(inputs), tuple(outputs), tuple(self.nodes), self.initialisers)


def number_of(dtype: np.dtype[Any]) -> int:
    """The TensorProto.DataType of a NumPy dtype."""
    if dtype not in NUMBERS:
        raise OnnxError(f"onnx: there is no ONNX type for {dtype}")
    return NUMBERS[dtype]


def info_of(name: str, v: Value) -> OnnxInfo:
    """The name and type of a value; a complex one has its parts along a last axis."""
    shape = tuple(s if isinstance(s, int) else str(s) for s in v.shape)
    if v.dtype.kind == "c":
        return OnnxInfo(name, "tensor", np.dtype(v.dtype.real.np), (*shape, 2))
    return OnnxInfo(name, "tensor", np.dtype(v.dtype.np), shape)


def pairs_last(x: Array) -> Array:
    """An array, whose complex numbers are pairs along a last axis."""
    return x.view(x.real.dtype).reshape(*x.shape, 2) if x.dtype.kind == "c" else x
