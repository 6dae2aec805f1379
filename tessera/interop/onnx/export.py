"""ts.onnx.save: a function as an ONNX model.

The function is traced to Graph IR.  An op is written by its emitter, by its scalar expression, as a
gather of places when it is a view, or by decomposing it.  Tensors that the function holds become
initialisers, symbolic sizes named axes, control flow If, Loop and Scan, hand-written kernels functions of the
domain `tessera`.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tessera.core import tree
from tessera.core.blame import blames_arguments, brief
from tessera.core.constraints import Scope, scope
from tessera.core.dims import Dim, Symbol
from tessera.core.dtype import bool_
from tessera.core.errors import FileError, OperandError, TesseraError, located
from tessera.interop.onnx import control_nodes, kernels
from tessera.interop.onnx.fourier import in_real_parts
from tessera.interop.onnx.model import Model, OnnxError, OnnxFunction
from tessera.interop.onnx.model import OnnxGraph as Record
from tessera.interop.onnx.model import OnnxNode as Call
from tessera.interop.onnx.nodes import EMITTERS, by_places
from tessera.interop.onnx.proto import write
from tessera.interop.onnx.random_bits import RANDOM
from tessera.interop.onnx.running import RUNNING
from tessera.interop.onnx.scalars import _TESTS, OnnxScalars
from tessera.interop.onnx.writer import OnnxWriter, info_of, pairs_last
from tessera.ir.graph.ir import Builder, Graph, Node, Value, building, host_data
from tessera.lang.shapes import trace
from tessera.ops.define import cast_to

_OPSETS = range(18, 24)
_EMITTERS = {**EMITTERS, **RUNNING, **RANDOM}


@blames_arguments
def save(f: Any, path: str | os.PathLike[str], *args: Any, opset: int = 20) -> None:
    """Write f, traced on these arguments or annotations, as an ONNX file."""
    try:
        data = model_bytes(f, *args, opset=opset)
    except TesseraError as e:
        raise located(e) from None
    try:
        Path(path).write_bytes(data)
    except OSError as e:
        raise FileError(f"onnx.save: {path} cannot be written ({e.strerror or e})") from None


def model_bytes(f: Any, *args: Any, opset: int = 20) -> bytes:
    """The ONNX file of f as bytes."""
    if opset not in _OPSETS:
        raise OperandError(
            f"onnx: save writes operator sets {_OPSETS[0]} to {_OPSETS[-1]}, got {opset}"
        )
    for x in tree.leaves(args):
        if isinstance(x, str | bytes):
            raise OperandError(
                f"onnx: save got the argument {type(x).__name__} {brief(x, 40)}, expected tensors, arrays, "
                "numbers or annotations; the order is save(f, path, *args)"
            )
    return write(model_of(trace(f, *args), opset), opset)


def model_of(g: Graph, opset: int) -> Model:
    """A graph as the record of an ONNX model."""
    g = in_real_parts(g)
    w = OnnxWriter(opset)
    own = len(g.inputs) - len(g.captured)
    names = [*g.input_names, *(f"input_{i}" for i in range(len(g.input_names), own))][:own]
    names = [_identifier(s) for s in names]
    infos = []
    for name, v in zip(names, g.inputs[:own], strict=True):
        w.names[v] = name
        infos.append(info_of(name, v))
        for axis, s in enumerate(v.shape):
            symbol = _symbol(s)
            if symbol is not None:
                w.symbols.setdefault(symbol, (name, axis))
    for i, (v, data) in enumerate(zip(g.inputs[own:], g.captured, strict=True)):
        w.names[v] = f"weight_{i}"
        w.initialisers[f"weight_{i}"] = pairs_last(np.asarray(host_data(data), order="C"))
    with scope(Scope.of(g.guards)):
        write_nodes(w, g.nodes)
    outputs = []
    for i, v in enumerate(g.outputs):
        name = f"output_{i}"
        w.nodes.append(_named(w, w.names[v], name))
        outputs.append(info_of(name, v))
    record: Record = w.graph(_identifier(g.name), infos, outputs)
    functions = {(f.domain, f.name): f for f in w.functions.values()}
    opsets = {"": opset, **({kernels.DOMAIN: 1} if functions else {})}
    return Model(record, opsets, functions, "tessera")


def _identifier(text: str) -> str:
    return "".join(c if c.isalnum() or c in "._" else "_" for c in text) or "graph"


def _symbol(s: Any) -> str | None:
    """The name of a size that is a symbol alone."""
    if not isinstance(s, Dim) or len(s.terms) != 1:
        return None
    (monomial, factor), *_ = s.terms
    if factor != 1 or len(monomial) != 1 or monomial[0][1] != 1:
        return None
    atom = monomial[0][0]
    return atom.name if isinstance(atom, Symbol) else None


def _named(w: OnnxWriter, x: str, name: str) -> Any:
    from_node = w.emit("Identity", x)
    node = w.nodes.pop()
    assert node.outputs == (from_node,)
    return type(node)(node.op, node.domain, node.version, name, node.inputs, (name,), {})


def write_nodes(w: OnnxWriter, nodes: Sequence[Node]) -> None:
    """Write nodes in order."""
    for n in nodes:
        found = _written(w, n)
        results = found if isinstance(found, tuple) else (found,)
        w.names.update(zip(n.results, results, strict=False))


def _written(w: OnnxWriter, n: Node) -> Any:
    names = [w.names[v] for v in n.operands]
    if n.op.call == "kernel":
        return _kernel(w, n, names)
    control = control_nodes.CONTROL.get(n.op.name)
    if control is not None:
        return control(w, n, names, write_nodes)
    emitter = _EMITTERS.get(n.op.name)
    found = None if emitter is None else emitter(w, n, *names)
    if found is not None:
        return found
    if n.op.body is not None and n.op.combine is None:
        return _elementwise(w, n, names)
    if n.op.view is not None:
        return by_places(w, n, *names)
    if n.op.decompose is not None:
        return _decomposed(w, n)
    raise OnnxError(f"onnx: {n.op.name} has no ONNX form")


def _elementwise(w: OnnxWriter, n: Node, names: list[str]) -> str:
    """An op that is a scalar expression; narrow floats are computed in f32 and rounded once."""
    body = n.op.expr(n.params)
    assert body is not None
    dtypes = [v.dtype for v in n.operands]
    at = next((d for d in dtypes if d is not bool_), dtypes[0])
    wide = at.compute if at.kind == "f" else at
    if wide is not at:
        names = [w.cast(x, wide.np) if d is at else x for x, d in zip(names, dtypes, strict=True)]
    y = OnnxScalars(w, names, dtypes, wide).write(body)
    out = n.results[0].dtype
    if body.op in _TESTS or out is wide:
        return y
    return w.cast(y, out.np)


def _decomposed(w: OnnxWriter, n: Node) -> Any:
    """The ops that an op stands for."""
    assert n.op.decompose is not None
    builder = Builder()
    inner = [builder.input(v.type, v.device) for v in n.operands]
    with building(builder):
        wide = [cast_to(v, v.dtype.compute) if v.dtype.kind == "f" else v for v in inner]
        out = n.op.decompose(*wide, **n.params)
        results = [
            cast_to(v, r.dtype)
            for v, r in zip(out if n.op.multiple else (out,), n.results, strict=True)
        ]
    w.names.update(zip(inner, [w.names[v] for v in n.operands], strict=True))
    for outer, captured in builder.captured():
        w.names[captured] = w.constant(np.asarray(host_data(outer), order="C"))
    write_nodes(w, builder.nodes)
    found = tuple(_name(w, v) for v in results)
    return found if n.op.multiple else found[0]


def _kernel(w: OnnxWriter, n: Node, names: list[str]) -> tuple[str, ...]:
    """A call of the function of a kernel, whose body is written once."""
    name = kernels.name_of(n)
    functions = w.root().functions
    if name not in functions:
        functions[name] = _kernel_function(w.opset, name, n)
    outputs = tuple(w.fresh(name) for _ in n.results)
    w.nodes.append(Call(name, kernels.DOMAIN, 1, outputs[0], tuple(names), outputs, {}))
    return outputs


def _kernel_function(opset: int, name: str, n: Node) -> OnnxFunction:
    """The function of a kernel: its decomposed body, with constants as nodes."""
    w, builder = OnnxWriter(opset), Builder()
    inner = [builder.input(v.type, v.device) for v in n.operands]
    with building(builder):
        results = kernels.decomposed(n.params["program"], inner)
    ins = tuple(f"operand_{i}" for i in range(len(inner)))
    w.names.update(zip(inner, ins, strict=True))
    for outer, captured in builder.captured():
        w.names[captured] = w.constant(np.asarray(host_data(outer), order="C"))
    write_nodes(w, builder.nodes)
    outs = tuple(f"result_{i}" for i in range(len(results)))
    for v, out in zip(results, outs, strict=True):
        w.nodes.append(Call("Identity", "", opset, out, (_name(w, v),), (out,), {}))
    constants = [
        Call("Constant", "", opset, c, (), (c,), {"value": a}) for c, a in w.initialisers.items()
    ]
    return OnnxFunction(kernels.DOMAIN, name, ins, outs, {}, (*constants, *w.nodes))


def _name(w: OnnxWriter, v: Value) -> str:
    return w.names[v] if v in w.names else w.constant(host_data(v))
