"""Read ONNX protobuf messages into records; the only file that imports onnx.

Sizes are checked against the bytes that are present before an array is made, so that a damaged file
costs no more memory than its length.
"""

from __future__ import annotations

import importlib
import math
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tessera.core.errors import OperandError
from tessera.interop.onnx.model import (
    NUMBERS,
    STRING,
    Array,
    Model,
    OnnxError,
    OnnxFunction,
    OnnxGraph,
    OnnxInfo,
    OnnxNode,
    OnnxReference,
    dtype_of,
)

_DEEPEST = 64  # levels of nested graphs; protobuf itself stops at 100 messages
_NEWEST = 30  # operator sets beyond it have meanings that are not known here
_FIELDS = {
    1: "float_data", 2: "int32_data", 3: "int32_data", 4: "int32_data", 5: "int32_data",
    6: "int32_data", 7: "int64_data", 8: "string_data", 9: "int32_data", 10: "int32_data",
    11: "double_data", 12: "uint64_data", 13: "uint64_data", 14: "float_data", 15: "double_data",
    16: "int32_data", **dict.fromkeys(range(17, 27), "int32_data"),
}  # fmt: skip
_PACKED = {21: 4, 22: 4, 23: 4, 25: 2, 26: 2}  # bits of elements that share a byte


def _library() -> Any:
    try:
        import onnx
    except ImportError:
        raise OperandError(
            "onnx: reading and writing ONNX needs the package onnx; pip install 'tessera[onnx]'"
        ) from None
    return onnx


def read(source: Any) -> Model:
    """The record of a model in a file, in bytes, or in a ModelProto."""
    onnx = _library()
    folder: Path | None = None
    if isinstance(source, onnx.ModelProto):
        proto = source
    elif isinstance(source, bytes | bytearray | memoryview):
        proto = _parsed(onnx, bytes(source), "the bytes")
    elif isinstance(source, str | os.PathLike):
        path = Path(source)
        try:
            data = path.read_bytes()
        except OSError as e:
            raise OnnxError(f"onnx: cannot read {path}: {e.strerror or e}") from None
        folder = path.resolve().parent
        proto = _parsed(onnx, data, str(path))
    else:
        raise OperandError(
            f"onnx: cannot load {type(source).__name__}, expected a path, bytes or a ModelProto"
        )
    return _MessageReader(folder).model(proto)


def _parsed(onnx: Any, data: bytes, what: str) -> Any:
    proto = onnx.ModelProto()
    errors = importlib.import_module("google.protobuf.message")
    try:
        proto.ParseFromString(data)
    except (errors.DecodeError, RuntimeError, ValueError) as e:
        raise OnnxError(f"onnx: {what} is not an ONNX model: {str(e).splitlines()[0]}") from None
    if not proto.HasField("graph"):
        raise OnnxError(f"onnx: {what} is not an ONNX model: it has no graph")
    return proto


class _MessageReader:
    """Turn messages into records."""

    def __init__(self, folder: Path | None):
        self.folder = folder
        self.maps: dict[Path, Array] = {}
        self.opsets: dict[str, int] = {}
        self.depth = 0

    def model(self, proto: Any) -> Model:
        opsets = {_domain(o.domain): int(o.version) for o in proto.opset_import}
        self.opsets = opsets
        for domain, version in opsets.items():
            if domain == "" and not 1 <= version <= _NEWEST:
                raise OnnxError(f"onnx: operator set {version} is not one of 1 to {_NEWEST}")
        functions = {}
        for f in proto.functions:
            made = self.function(f)
            functions[made.domain, made.name] = made
        self.opsets = opsets
        producer = f"{_text(proto.producer_name)} {_text(proto.producer_version)}".strip()
        return Model(self.graph(proto.graph), opsets, functions, producer)

    def function(self, f: Any) -> OnnxFunction:
        self.opsets = {_domain(o.domain): int(o.version) for o in f.opset_import} or self.opsets
        defaults = {_text(a.name): self.attribute(a) for a in f.attribute_proto}
        nodes = tuple(self.node(n) for n in f.node)
        return OnnxFunction(
            _domain(f.domain), _text(f.name), _texts(f.input), _texts(f.output), defaults, nodes
        )

    def graph(self, g: Any) -> OnnxGraph:
        self.depth += 1
        if self.depth > _DEEPEST:
            raise OnnxError(f"onnx: graphs are nested deeper than {_DEEPEST} levels")
        made = {_text(t.name): self.tensor(t) for t in g.initializer}
        made |= {_text(t.values.name): self.sparse(t) for t in g.sparse_initializer}
        out = OnnxGraph(
            _text(g.name),
            tuple(map(info, g.input)),
            tuple(map(info, g.output)),
            tuple(self.node(n) for n in g.node),
            made,
        )
        self.depth -= 1
        return out

    def node(self, n: Any) -> OnnxNode:
        domain = _domain(n.domain)
        return OnnxNode(
            _text(n.op_type), domain, self.opsets.get(domain, 1), _text(n.name), _texts(n.input),
            _texts(n.output), {_text(a.name): self.attribute(a) for a in n.attribute},
        )  # fmt: skip

    def attribute(self, a: Any) -> Any:
        if a.ref_attr_name:
            return OnnxReference(_text(a.ref_attr_name))
        read = _ATTRIBUTES.get(a.type)
        if read is None:
            raise OnnxError(f"onnx: attribute '{a.name}' has the type {a.type}, which is not known")
        return read(self, a)

    def sparse(self, s: Any) -> Array:
        """A sparse tensor as a dense one."""
        values, indices = self.tensor(s.values), self.tensor(s.indices)
        shape = tuple(s.dims)
        count = math.prod(shape)
        if any(d < 0 for d in shape) or count > _SPARSE_MOST * max(values.size, 1):
            raise OnnxError(f"onnx: sparse tensor '{s.values.name}' has the shape {shape}")
        flat = indices if indices.ndim == 1 else np.ravel_multi_index(tuple(indices.T), shape)
        if values.ndim != 1 or flat.shape != values.shape or not _within(flat, count):
            raise OnnxError(f"onnx: sparse tensor '{s.values.name}' has indices that do not fit")
        out = np.zeros(count, values.dtype)
        out[flat] = values
        return out.reshape(shape)

    def tensor(self, t: Any) -> Array:
        """The array of a tensor, which lies in the message or is mapped from its file."""
        what = f"tensor '{t.name}'"
        dtype, shape = dtype_of(t.data_type, what), tuple(t.dims)
        if any(d < 0 for d in shape):
            raise OnnxError(f"onnx: {what} has the shape {shape}")
        count = math.prod(shape)
        bits = _PACKED.get(t.data_type, dtype.itemsize * 8)
        if t.data_location == 1:
            raw: Any = self.external(t, -(-count * bits // 8), what)
        elif t.HasField("raw_data"):
            raw = np.frombuffer(t.raw_data, np.uint8)
        else:
            return _typed(t, dtype, shape, count, what)
        if dtype == STRING or raw.size * 8 // bits < count or raw.size != -(-count * bits // 8):
            raise OnnxError(
                f"onnx: {what} is {dtype}{list(shape)}, which takes {-(-count * bits // 8)} bytes, "
                f"but has {raw.size}"
            )
        if t.data_type in _PACKED:
            return _unpacked(raw, bits, count, dtype).reshape(shape)
        return _native(raw, dtype).reshape(shape)

    def external(self, t: Any, size: int, what: str) -> Array:
        """Bytes of a file in the folder of the model, mapped."""
        said = {_text(e.key): _text(e.value) for e in t.external_data}
        if self.folder is None:
            raise OnnxError(f"onnx: {what} is in another file; load the model by its path")
        path = _inside(self.folder, said.get("location", ""))
        if path is None:
            where = repr(said.get("location"))
            where = where if len(where) < 100 else f"{where[:97]}..."
            raise OnnxError(f"onnx: {what} is in {where}, which is no file in the model's folder")
        if path not in self.maps:
            empty = path.stat().st_size == 0
            self.maps[path] = np.zeros(0, np.uint8) if empty else np.memmap(path, np.uint8, "r")
        start = _whole(said.get("offset", "0"), what)
        length = _whole(said["length"], what) if "length" in said else size
        whole = self.maps[path]
        if start + length > whole.size:
            raise OnnxError(
                f"onnx: {what} ends at byte {start + length} of {path.name}, which has {whole.size}"
            )
        return whole[start : start + length]


def _inside(folder: Path, name: str) -> Path | None:
    """The file of a folder with this name; None where there is none, or links lead out of the folder."""
    try:
        path = (folder / name).resolve()
        return path if path.is_relative_to(folder) and path.is_file() else None
    except (OSError, ValueError):  # a name that no file can have
        return None


def _whole(text: str, what: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 19:
        raise OnnxError(f"onnx: {what} has the offset or length {text!r}, expected a whole number")
    return int(text)


_SPARSE_MOST = 10_000  # zeros for each value that is present


def _within(flat: Array, count: int) -> bool:
    return flat.size == 0 or (flat.min() >= 0 and flat.max() < count)


def _native(raw: Array, dtype: np.dtype[Any]) -> Array:
    """Little-endian bytes as an array."""
    if dtype.byteorder == "=" and dtype.isbuiltin == 1 and dtype.itemsize > 1:
        return raw.view(dtype.newbyteorder("<")).astype(dtype, copy=False)
    return raw.view(dtype)


def _unpacked(raw: Array, bits: int, count: int, dtype: np.dtype[Any]) -> Array:
    """Elements of 4 or 2 bits, the first in the low bits of a byte."""
    mask = (1 << bits) - 1
    parts = [(raw >> k) & mask for k in range(0, 8, bits)]
    codes = np.stack(parts, axis=-1).reshape(-1)[:count].astype(np.uint8)
    if dtype.name.startswith("int"):  # two's complement of `bits` bits
        signed = codes.astype(np.int8)
        return np.where(signed >= 1 << (bits - 1), signed - (1 << bits), signed).astype(dtype)
    return codes.astype(dtype) if dtype.name.startswith("uint") else codes.view(dtype)


def _typed(t: Any, dtype: np.dtype[Any], shape: tuple[int, ...], count: int, what: str) -> Array:
    """The array of a tensor whose elements stand in a repeated field."""
    given: Any = getattr(t, _FIELDS[t.data_type])
    bits = _PACKED.get(t.data_type)
    per = 2 if dtype.kind == "c" else 1
    needed = count * per if bits is None else -(-count * bits // 8)
    if len(given) != needed:
        raise OnnxError(
            f"onnx: {what} has {len(given)} elements in {_FIELDS[t.data_type]}, expected {needed}"
        )
    if dtype == STRING:
        out = np.empty(count, object)
        out[:] = [_text(s) for s in given]
        return out.reshape(shape)
    if bits is not None:
        return _unpacked(_codes(given, np.uint8), bits, count, dtype).reshape(shape)
    if dtype.kind == "c":
        real = np.float32 if dtype == np.complex64 else np.float64
        return np.array(given, real).view(dtype).reshape(shape)
    if t.data_type in (10, 16) or 17 <= t.data_type <= 26:  # bits of a format
        wide = np.uint16 if dtype.itemsize == 2 else np.uint8
        return _codes(given, wide).view(dtype).reshape(shape)
    return np.array(given).astype(dtype).reshape(shape)


def _codes(given: Sequence[int], dtype: Any) -> Array:
    return (np.array(given, np.int64) & np.iinfo(dtype).max).astype(dtype)


def _text(s: str | bytes) -> str:
    """Text; bytes that are no UTF-8, which damaged files hold, are kept as they are."""
    return s if isinstance(s, str) else s.decode("utf-8", "surrogateescape")


def _texts(names: Sequence[str | bytes]) -> tuple[str, ...]:
    return tuple(map(_text, names))


def _domain(name: str | bytes) -> str:
    text = _text(name)
    return "" if text == "ai.onnx" else text


def info(v: Any) -> OnnxInfo:
    """The record of a ValueInfoProto."""
    kind = v.type.WhichOneof("value")
    if kind is None:
        return OnnxInfo(_text(v.name))
    if kind != "tensor_type":
        return OnnxInfo(_text(v.name), kind.removesuffix("_type"))
    t = v.type.tensor_type
    dtype = dtype_of(t.elem_type, f"'{v.name}'") if t.elem_type else None
    if not t.HasField("shape"):
        return OnnxInfo(_text(v.name), "tensor", dtype, None)
    return OnnxInfo(_text(v.name), "tensor", dtype, tuple(map(_size, t.shape.dim)))


def _size(d: Any) -> int | str | None:
    kind = d.WhichOneof("value")
    if kind == "dim_value":
        return int(d.dim_value) if d.dim_value >= 0 else None
    return _text(d.dim_param) if kind == "dim_param" and d.dim_param else None


_ATTRIBUTES: Mapping[int, Callable[[_MessageReader, Any], Any]] = {
    1: lambda r, a: float(a.f),
    2: lambda r, a: int(a.i),
    3: lambda r, a: _text(a.s),
    4: lambda r, a: r.tensor(a.t),
    5: lambda r, a: r.graph(a.g),
    6: lambda r, a: [float(x) for x in a.floats],
    7: lambda r, a: [int(x) for x in a.ints],
    8: lambda r, a: [_text(s) for s in a.strings],
    9: lambda r, a: [r.tensor(t) for t in a.tensors],
    10: lambda r, a: [r.graph(g) for g in a.graphs],
    11: lambda r, a: r.sparse(a.sparse_tensor),
    12: lambda r, a: [r.sparse(t) for t in a.sparse_tensors],
    13: lambda r, a: info_of_type(a.tp),
    14: lambda r, a: [info_of_type(t) for t in a.type_protos],
}


def info_of_type(t: Any) -> str:
    """The kind of a TypeProto."""
    return str(t.WhichOneof("value") or "unknown")


def array_of(x: Any) -> Array:
    """An array, also of a TensorProto."""
    if type(x).__name__ == "TensorProto":
        return _MessageReader(None).tensor(x)
    return np.asarray(x)


# Writing


def write(model: Model, opset: int) -> bytes:
    """The file of a model, as bytes, once onnx has checked it."""
    onnx = _library()
    made = onnx.helper.make_model(
        _graph(onnx, model.graph),
        opset_imports=[onnx.helper.make_opsetid(d, v) for d, v in model.opsets.items()],
        functions=[_function(onnx, f, opset) for f in model.functions.values()],
        producer_name=model.producer,
        ir_version=min(onnx.IR_VERSION, 10),
    )
    try:
        onnx.checker.check_model(made)
    except onnx.checker.ValidationError as e:
        raise OnnxError(f"onnx: the model is not valid: {str(e).splitlines()[0]}") from None
    data: bytes = made.SerializeToString()
    return data


def _graph(onnx: Any, g: OnnxGraph) -> Any:
    tensors = [onnx.numpy_helper.from_array(a, name) for name, a in g.initialisers.items()]
    nodes = [_node(onnx, n) for n in g.nodes]
    infos = [[_info(onnx, i) for i in part] for part in (g.inputs, g.outputs)]
    return onnx.helper.make_graph(nodes, g.name, *infos, tensors)


def _function(onnx: Any, f: OnnxFunction, opset: int) -> Any:
    nodes = [_node(onnx, n) for n in f.nodes]
    opsets = [onnx.helper.make_opsetid("", opset)]
    return onnx.helper.make_function(f.domain, f.name, f.inputs, f.outputs, nodes, opsets)


def _node(onnx: Any, n: OnnxNode) -> Any:
    attributes = {k: _attribute(onnx, a) for k, a in n.attributes.items()}
    return onnx.helper.make_node(n.op, n.inputs, n.outputs, n.name, domain=n.domain, **attributes)


def _attribute(onnx: Any, a: Any) -> Any:
    if isinstance(a, OnnxGraph):
        return _graph(onnx, a)
    return onnx.numpy_helper.from_array(a) if isinstance(a, np.ndarray) else a


def _info(onnx: Any, i: OnnxInfo) -> Any:
    assert i.dtype is not None
    return onnx.helper.make_tensor_value_info(i.name, NUMBERS[i.dtype], i.shape)
