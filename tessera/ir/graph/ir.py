"""Graph IR: values, nodes, graphs, and `bind`, which applies an op.

With a Builder open, bind appends a node and its results are traced; otherwise bind runs the op at
once, by the kernel that `run_ops_by` says, and its results hold data.  A region is a Graph that sees only
its own inputs: what a nested builder uses from outside becomes an extra operand (Builder.captures).
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from tessera.core import call_guard
from tessera.core.constant import Constant
from tessera.core.constraints import Guard
from tessera.core.device import ANYWHERE, CPU, GPUS, Device
from tessera.core.dims import Dim, Size, substitute
from tessera.core.dtype import DType, as_dtype
from tessera.core.errors import DeviceError, OperandError, TraceError, located, out_of_memory
from tessera.core.flags import flags
from tessera.core.mesh import moving_to, told
from tessera.core.picture import Pictured
from tessera.core.provided import Provided
from tessera.core.repeats import without_repeats
from tessera.core.source import Location, caller, place
from tessera.core.types import TensorType
from tessera.ir.graph.numbers import check, checking
from tessera.ir.graph.op import REGISTRY, Op, Params

Array = np.ndarray[Any, np.dtype[Any]]


class Value:
    """A tensor: data on a device, or the result of a node while tracing."""

    __slots__ = ("builder", "device", "index", "node", "storage", "type")

    type: TensorType
    storage: Array | None  # None: traced
    device: Device
    node: Node | None  # None: data, or an input of a graph
    index: int  # which result of node, or which input
    builder: Builder | None
    weak = False  # whether it stands for a Python number, which takes the dtype of what it meets

    def __str__(self) -> str:
        return f"<{self.type}>"

    if TYPE_CHECKING:  # the language layer's subclass brings the operators

        def __add__(self, other: Any) -> Value: ...
        def __radd__(self, other: Any) -> Value: ...
        def __sub__(self, other: Any) -> Value: ...
        def __rsub__(self, other: Any) -> Value: ...
        def __mul__(self, other: Any) -> Value: ...
        def __rmul__(self, other: Any) -> Value: ...
        def __truediv__(self, other: Any) -> Value: ...
        def __rtruediv__(self, other: Any) -> Value: ...
        def __pow__(self, other: Any) -> Value: ...
        def __rpow__(self, other: Any) -> Value: ...
        def __matmul__(self, other: Any) -> Value: ...
        def __rmatmul__(self, other: Any) -> Value: ...
        def __lt__(self, other: Any) -> Value: ...
        def __le__(self, other: Any) -> Value: ...
        def __gt__(self, other: Any) -> Value: ...
        def __ge__(self, other: Any) -> Value: ...
        def __and__(self, other: Any) -> Value: ...
        def __or__(self, other: Any) -> Value: ...
        def __neg__(self) -> Value: ...

    @property
    def shape(self) -> tuple[Any, ...]:
        """Sizes: ints, or symbolic while tracing."""
        return self.type.shape

    @shape.setter
    def shape(self, value: Any) -> NoReturn:
        raise located(
            OperandError("the shape of a tensor cannot be set; write x = x.reshape(shape)")
        )

    @property
    def dtype(self) -> DType:
        """Storage format and numeric policy."""
        return self.type.dtype

    @dtype.setter
    def dtype(self, value: Any) -> NoReturn:
        raise located(
            OperandError("the dtype of a tensor cannot be set; write x = x.astype(dtype)")
        )

    @property
    def ndim(self) -> int:
        """How many axes."""
        return len(self.type.shape)


class Node:
    """One application of an op.  Immutable."""

    __slots__ = ("location", "op", "operands", "params", "regions", "results")

    def __init__(
        self,
        op: Op,
        operands: tuple[Value, ...],
        params: Params,
        regions: tuple[Graph, ...],
        location: Location | None,
    ):
        self.op, self.operands, self.params = op, operands, params
        self.regions, self.location = regions, location
        self.results: tuple[Value, ...] = ()

    def __repr__(self) -> str:
        ins = ", ".join(str(v.type) for v in self.operands)
        return f"{self.op.name}({ins}) -> {', '.join(str(v.type) for v in self.results)}"

    @property
    def types(self) -> tuple[TensorType, ...]:
        """Types of the operands."""
        return tuple(v.type for v in self.operands)


class Graph(Pictured):
    """Inputs, nodes in order, outputs.  Immutable."""

    __slots__ = (
        "_text", "captured", "guards", "input_names", "inputs", "name", "nodes", "outputs", "schedules",
    )  # fmt: skip

    def __init__(
        self,
        inputs: Sequence[Value],
        nodes: Sequence[Node],
        outputs: Sequence[Value],
        name: str = "main",
        input_names: Sequence[str] = (),
        captured: Sequence[Value] = (),
        guards: Sequence[Guard] = (),
        schedules: Sequence[tuple[str, str]] = (),
    ):
        self.inputs, self.nodes, self.outputs = tuple(inputs), tuple(nodes), tuple(outputs)
        self.name, self.input_names = name, tuple(input_names)
        self.captured, self.guards = tuple(captured), tuple(guards)  # data of the last inputs
        self.schedules = tuple(schedules)  # of kernels by name, as JSON
        self._text: str | None = None

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        ins, outs = (
            ", ".join(str(v.type) for v in vs[:6]) + ", ..." * (len(vs) > 6)
            for vs in (self.inputs, self.outputs)
        )
        return f"<graph {self.name}({ins}) -> {outs}: {len(self.nodes)} nodes>"

    @property
    def text(self) -> str:
        """The canonical text: MLIR generic syntax, without locations and captured data."""
        if self._text is None:
            self._text = CANONICAL_TEXT.get()(self)
        return self._text

    @property
    def hash(self) -> str:
        """SHA-256 of the canonical text: the identity of the program."""
        return hashlib.sha256(self.text.encode()).hexdigest()

    @property
    def static(self) -> bool:
        """Whether no size is symbolic."""
        return all(v.type.static for n in self.nodes for v in n.results) and all(
            v.type.static for v in self.inputs
        )


class Builder:
    """A graph being built."""

    __slots__ = (
        "bakes", "captures", "depth", "given", "input_names", "inputs", "known", "location", "nodes",
        "parent", "place",
    )  # fmt: skip

    def __init__(
        self,
        parent: Builder | None = None,
        location: Location | None = None,
        input_names: Sequence[str] = (),
        place: Device | None = None,
        given: Sequence[Value] = (),
        bakes: bool = True,
    ):
        # Whether small tensors from outside are constants of the graph; else they are inputs, as others are.
        self.bakes = bakes and (parent is None or parent.bakes)
        self.input_names = tuple(input_names)
        self.given = given  # what the inputs stand for, where the graph is of one call alone
        self.known: dict[Value, Value] = {}  # values of that call which were asked for
        self.inputs: list[Value] = []
        self.nodes: list[Node] = []
        self.captures: dict[int, tuple[Value, Value]] = {}  # id of outer -> (outer, inner)
        self.parent = parent
        self.depth: int = 0 if parent is None else parent.depth + 1
        self.location = location  # given to nodes instead of the caller's line
        # The GPU that the graph is for, where one is named: what the host holds goes there.
        self.place = place if place is not None or parent is None else parent.place

    def input(self, type: TensorType, device: Device = CPU, weak: bool = False) -> Value:
        """A new input; a weak one stands for a Python number and takes the dtype of what it meets."""
        v = _traced(type, None, len(self.inputs), self, self._there(device))
        if weak:
            v.__class__ = WEAK_CLASS.get()
        self.inputs.append(v)
        return v

    def lift(self, v: Value) -> Value:
        """v as an operand in this graph: itself, a constant, or a captured input."""
        if v.builder is self:
            return v
        found = self.captures.get(id(v))
        if found is not None:
            return found[1]
        if v.storage is None:
            if self.parent is None or not self._encloses(v.builder):
                raise TraceError(
                    f"a traced value {v.type} was used outside the function that it was traced in; "
                    "return it from that function instead of storing it"
                )
            outer = self.parent.lift(v)
        elif self.bakes and v.storage.size <= _SMALL and v.type.static and _is_settled(v.storage):
            return self.constant(v)
        else:
            outer = v if self.parent is None else self.parent.lift(v)
        inner = _traced(v.type, None, -1, self, self._there(v.device))
        self.captures[id(v)] = (outer, inner)
        return inner

    def _there(self, device: Device) -> Device:
        """Where a value from outside is in this graph."""
        return device if self.place is None or device.kind != "cpu" else self.place

    def constant(self, v: Value) -> Value:
        """A node that holds the data of v."""
        assert v.storage is not None
        node = Node(
            REGISTRY["constant"], (), {"value": Constant(v.storage, v.dtype)}, (), self.location
        )
        node.results = (_traced(v.type, node, 0, self, self._there(v.device)),)
        self.nodes.append(node)
        self.captures[id(v)] = (v, node.results[0])  # v is kept alive: its id stays its own
        return node.results[0]

    def node(
        self,
        op: Op,
        operands: tuple[Value, ...],
        params: Params,
        regions: tuple[Graph, ...],
        types: Sequence[TensorType],
        location: Location | None,
    ) -> Node:
        """A node whose result types are already known, which is not part of the graph yet."""
        node = Node(op, operands, params, regions, location)
        device = _device(op, operands)
        node.results = tuple([_traced(t, node, i, self, device) for i, t in enumerate(types)])
        return node

    def _encloses(self, other: Builder | None) -> bool:
        b: Builder | None = self
        while b is not None:
            if b is other:
                return True
            b = b.parent
        return False

    def captured(self) -> list[tuple[Value, Value]]:
        """(outer, inner) of what became an input, in order."""
        return [(o, i) for o, i in self.captures.values() if i.node is None]

    def finish(
        self,
        outputs: Sequence[Value],
        name: str = "main",
        guards: Sequence[Guard] = (),
    ) -> tuple[Graph, tuple[Value, ...]]:
        """The graph, and the outer values that its last inputs stand for."""
        outs = [self.lift(v) for v in outputs]
        pairs = self.captured()
        inputs = [*self.inputs, *(inner for _, inner in pairs)]
        for i, v in enumerate(inputs):
            v.index = i
        outer = tuple(o for o, _ in pairs)
        names = [*self.input_names, *(f"captured{i}" for i in range(len(pairs)))]
        data = outer if self.parent is None else ()
        return Graph(inputs, self.nodes, outs, name, names, data, guards), outer


CANONICAL_TEXT: Provided[Callable[[Graph], str]] = Provided(
    "graph text", "the canonical text of a graph"
)


_SMALL = 64  # elements up to which a captured tensor is written into the graph


class _BuildState(threading.local):
    builder: Builder | None = None


_STATE = _BuildState()
VALUE_CLASS: Provided[type[Value]] = Provided(
    "value class", "the class of the values that bind returns (the language's Tensor)", Value
)
WEAK_CLASS: Provided[type[Value]] = Provided(
    "weak value class", "the class of traced numbers that take the dtype of their partners", Value
)


def origin(v: Value) -> str | None:
    """Where a traced value came from: the op and the user's line, or the argument."""
    if v.builder is None:
        return None
    if v.node is not None:
        return f"{v.node.op.name} at {v.node.location}" if v.node.location else None
    names = v.builder.input_names
    return f"argument '{names[v.index]}'" if 0 <= v.index < len(names) else None


def current_builder() -> Builder | None:
    """The innermost open builder of this thread."""
    return _STATE.builder


@contextmanager
def building(builder: Builder) -> Iterator[Builder]:
    """Append nodes to `builder` while the block runs."""
    before = _STATE.builder
    _STATE.builder = builder
    call_guard.begin()
    try:
        yield builder
    finally:
        call_guard.end()
        _STATE.builder = before


@contextmanager
def eagerly() -> Iterator[None]:
    """Run ops at once while the block runs, even inside a trace."""
    before = _STATE.builder
    _STATE.builder = None
    try:
        yield
    finally:
        _STATE.builder = before


def _traced(
    type: TensorType, node: Node | None, index: int, builder: Builder, device: Device
) -> Value:
    v = object.__new__(VALUE_CLASS.get())
    v.type, v.storage, v.device = type, None, device
    v.node, v.index, v.builder = node, index, builder
    return v


def concrete(data: Any, dtype: Any = None, device: Device = ANYWHERE) -> Value:
    """A value that holds data; its dtype is that of the array unless given."""
    array = np.asarray(data)
    d = as_dtype(array.dtype) if dtype is None else as_dtype(dtype)
    if array.dtype != d.np:
        with np.errstate(over="ignore"):  # a number beyond the format is an infinity
            array = array.astype(d.np)
    return holding(TensorType(d, array.shape), array, device)


def held_array(array: Array) -> Value:
    """A value that holds an array of a dtype that NumPy has."""
    d = as_dtype(array.dtype)
    if array.dtype is not d.np and array.dtype != d.np:  # bytes in another order
        array = array.astype(d.np)
    return holding(TensorType(d, array.shape), array, ANYWHERE)


def holding(type: TensorType, data: Array, device: Device = CPU) -> Value:
    """A value of this type that holds data, which must fit it."""
    v = object.__new__(VALUE_CLASS.get())
    v.type, v.storage, v.device = type, data, device
    v.node, v.index, v.builder = None, 0, None
    return v


_INFERRED: dict[Any, tuple[TensorType, ...]] = {}


_MOST = 1 << 14  # entries that a memory of this module keeps before it starts anew


def _remember(memory: dict[Any, Any], key: Any, value: Any) -> None:
    if len(memory) >= _MOST:
        memory.clear()
    memory[key] = value


def result_types(op: Op, types: tuple[TensorType, ...], params: Params) -> tuple[TensorType, ...]:
    """The types that an op gives, remembered for operands of static shape."""
    key = (op, types, tuple(params.items()))
    found = _INFERRED.get(key)
    if found is None:
        found = op.result_types(types, params)
        if all(t.static for t in types) and all(t.static for t in found):
            _remember(_INFERRED, key, found)
    return found


def bind(op: Op, *operands: Value, regions: tuple[Graph, ...] = (), **params: Any) -> Any:
    """Apply an op: append a node to the open builder, or run it at once."""
    builder = _STATE.builder
    if builder is None:
        return _run(op, operands, params, regions)
    lifted = tuple([v if v.builder is builder else builder.lift(v) for v in operands])
    if regions:
        types = op.result_types([v.type for v in lifted], {**params, "regions": regions})
    else:
        types = result_types(op, tuple([v.type for v in lifted]), params)
    node = Node(op, lifted, params, regions, builder.location or place())
    device = _device(op, lifted)
    results = tuple([_traced(t, node, i, builder, device) for i, t in enumerate(types)])
    node.results = results
    builder.nodes.append(node)
    return results if op.multiple else results[0]


_DONATED = -1  # the index of a value whose data was given away


def _on_host(data: Any) -> bool:
    return isinstance(data, np.ndarray)


def _is_settled(data: Any) -> bool:
    """Whether an array on the host belongs to tensors alone.

    Borrowed memory is held by views that cannot be written to; a broadcast number cannot be either.
    """
    return _on_host(data) and (data.flags.writeable or data.base is None or 0 in data.strides)


def host_data(v: Value) -> Array:
    """The data of a value as a NumPy array: a copy, where it lies on a device."""
    return on_host(v.storage)


def on_host(data: Any) -> Array:
    """An array as one of NumPy's."""
    found: Array = data if _on_host(data) else data.numpy()
    return found


def donate(v: Value) -> None:
    """Take the data of a value away: its memory belongs to somebody else."""
    v.storage, v.index = None, _DONATED


def data_of(v: Value, user: str) -> Array:
    """The data of a value that must not be traced."""
    if v.index == _DONATED:
        raise OperandError(
            f"{user}: {v.type} was donated to a jitted function, which may have written over it; use what "
            "that function returned, or do not donate the argument"
        )
    if v.storage is None:
        raise TraceError(
            f"{user}: a traced value {v.type} was used outside the function that it was traced in; "
            "return it from that function instead of storing it"
        )
    return v.storage


def _device(op: Op, operands: Sequence[Value]) -> Device:
    first: Value | None = None
    for i, v in enumerate(operands):
        if v.device is ANYWHERE:
            continue
        if first is None:
            first = v
        elif v.device != first.device:
            if {v.device.kind, first.device.kind} == {"cpu", "mesh"}:  # whole on every shard
                first = v if v.device.kind == "mesh" else first
                continue
            raise DeviceError(
                f"{op.name}: operand {[v is first for v in operands].index(True)} {first.type} is on "
                f"{told(first.device)} but operand {i} {v.type} is on {told(v.device)}; "
                f"{moving_to(first.device)}"
            )
    return ANYWHERE if first is None else first.device


# Installed by interp, which runs references, and then by eager, which compiles what needs it.
EAGER_KERNELS: Provided[Callable[..., Callable[..., Any]]] = Provided(
    "eager kernels", "the function that runs one op when no builder is open"
)
_KERNELS: dict[Any, tuple[Callable[..., Any], tuple[TensorType, ...]]] = {}


def run_ops_by(kernel_of: Callable[..., Callable[..., Any]]) -> None:
    """Say how bind runs an op when no builder is open."""
    EAGER_KERNELS.provide(kernel_of)
    _KERNELS.clear()


# How single ops run on devices that are no CPUs, by kind.
_DEVICE_KERNELS: dict[str, Callable[..., Callable[..., Any]]] = {}


def run_ops_of_device_by(kind: str, kernel_of: Callable[..., Callable[..., Any]]) -> None:
    """Say how bind runs an op on tensors of a kind of device; the first argument is the device."""
    _DEVICE_KERNELS[kind] = kernel_of


def eager_kernel(
    op: Op,
    types: Sequence[TensorType],
    outs: Sequence[TensorType],
    params: Params,
    regions: Sequence[Graph] = (),
    env: dict[str, int] | None = None,
) -> Callable[..., Any]:
    """The function by which eager code runs an op on arrays of these types."""
    return EAGER_KERNELS.get()(op, types, outs, params, regions, env)


def device_kernel(
    device: Device,
    op: Op,
    types: Sequence[TensorType],
    params: Params,
    regions: Sequence[Graph] = (),
    repeated: Sequence[int] = (),
) -> Callable[..., Any]:
    """What runs an op of eager code on arrays of a device; `repeated` operands come as one number each."""
    return _DEVICE_KERNELS[device.kind](device, op, types, params, regions, repeated)


def _run(op: Op, operands: tuple[Value, ...], params: Params, regions: tuple[Graph, ...]) -> Any:
    types = tuple([v.type for v in operands])
    mode, device = flags(), _device(op, operands)
    place = mode.target if device.kind == "cpu" else device
    inputs = [v.storage if v.storage is not None else data_of(v, op.name) for v in operands]
    given, repeated = without_repeats(inputs) if device.kind in GPUS else (inputs, ())
    key = (op, types, regions, tuple(params.items()), place, mode.numerics, repeated)
    found = _KERNELS.get(key)
    if found is None:
        extra = {"regions": regions} if regions else {}
        outs = op.result_types(types, {**params, **extra})
        if device.kind == "cpu":
            found = eager_kernel(op, types, outs, params, regions), outs
        else:
            found = device_kernel(device, op, types, params, regions, repeated), outs
        if not regions and not any(_is_ambiguous(n, x) for n, x in params.items()):
            _remember(_KERNELS, key, found)
    kernel, outs = found
    try:
        with np.errstate(all="ignore"):
            data = kernel(*given)
    except MemoryError as e:
        raise out_of_memory(op.name, e) from None
    if (mode.checked or checking()) and not regions:
        made = data if op.multiple else [data]
        check(op.name, [*map(on_host, inputs)], [*map(on_host, made)], outs, types, caller())
    if op.multiple:
        return tuple([holding(t, x, device) for t, x in zip(outs, data, strict=True)])
    return holding(outs[0], data, device)


def _is_ambiguous(name: str, x: Any) -> bool:
    """Whether equal parameters may mean different bits: large data, and 0.0, which equals -0.0."""
    return name == "value" or (isinstance(x, float) and x == 0)


def substitute_params(params: Params, env: Mapping[str, Size]) -> dict[str, Any]:
    """Parameters at the sizes of a call."""
    return {k: _substitute(v, env) for k, v in params.items()}


def _substitute(v: Any, env: Mapping[str, Size]) -> Any:
    if isinstance(v, Dim):
        return substitute(v, env)
    if isinstance(v, tuple):
        return tuple(_substitute(x, env) for x in v)
    return v
