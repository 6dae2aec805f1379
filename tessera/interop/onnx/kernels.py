"""Hand-written kernels as ONNX functions of the domain `tessera`.

The body of a function is what the kernel computes, decomposed: every program instance and every turn of a
loop, with its loads as slices and its stores as updates.  A run-time that knows the kernel may take its own
in place of the body.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from itertools import product

import numpy as np

from tessera.core.constraints import solve
from tessera.core.dims import Dim, Size
from tessera.core.dtype import bool_, i64
from tessera.core.evaluator import evaluator
from tessera.core.rounding import round_to
from tessera.interop.onnx.model import OnnxError
from tessera.ir.graph.ir import Node, Value, concrete
from tessera.ir.tile.ir import Block, Kernel, Memory, Operation, Tile
from tessera.lang import op
from tessera.lang.kernel.traced import kernel_of

DOMAIN = "tessera"
_MOST = 20_000  # operations of a body
_NAMES = {
    "and": "bitwise_and", "or": "bitwise_or", "xor": "bitwise_xor", "invert": "bitwise_invert",
    "max": "maximum", "min": "minimum", "mod": "remainder", "floor_div": "floor_divide",
    "is_finite": "isfinite", "is_inf": "isinf", "is_nan": "isnan", "recip": "reciprocal",
    "shift_left": "bitwise_left_shift", "shift_right": "bitwise_right_shift",
}  # fmt: skip
_FOLDS = {"add": "sum", "mul": "prod", "max": "max", "min": "min", "or": "any", "and": "all",
          "logical_or": "any", "logical_and": "all"}  # fmt: skip


def name_of(n: Node) -> str:
    """The name of the function of a kernel for operands of these types."""
    k = kernel_of(n.params["program"])
    text = "\n".join([k.text, *(str(v.type) for v in n.operands)])
    return f"{k.name}_{hashlib.sha256(text.encode()).hexdigest()[:12]}"


def decomposed(program: str, operands: Sequence[Value]) -> list[Value]:
    """What a kernel makes of operands, by ops."""
    k = kernel_of(program)
    if any(isinstance(s, Dim) for v in operands for s in v.shape):
        raise OnnxError(
            f"onnx: the kernel {k.name} has symbolic sizes, whose blocks have no ONNX form; save it with "
            "arguments of known sizes"
        )
    pairs = zip(k.parameters, operands, strict=False)
    sizes = solve([(m.name, m.type.shape, v.shape) for m, v in pairs], ())
    return Body(k, sizes, operands).run()


class Body:
    """The operations of a kernel on traced tensors; places are numbers."""

    def __init__(self, k: Kernel, sizes: dict[str, int], operands: Sequence[Value]):
        self.kernel, self.variables, self.count = k, dict(sizes), len(operands)
        self.left = _MOST
        self.tiles: dict[Tile, Value] = {}
        self.memories: dict[Memory, Value] = dict(zip(k.parameters, operands, strict=False))
        for m in k.parameters[len(operands) :]:
            self.memories[m] = self._blank(m)

    def _blank(self, m: Memory) -> Value:
        return op.zeros([self.number(n) for n in m.type.shape], m.type.dtype)

    def number(self, x: Size) -> int:
        """A place or a size."""
        return x if isinstance(x, int) else int(evaluator(x)(self.variables))

    def run(self) -> list[Value]:
        """What the kernel writes, once every instance has run."""
        names = [name for name, _ in self.kernel.grid]
        for point in product(*(range(self.number(n)) for _, n in self.kernel.grid)):
            self.variables.update(zip(names, point, strict=True))
            self.block(self.kernel.body, ())
        made = enumerate(self.kernel.parameters)
        return [self.memories[m] for i, m in made if m.writable or i >= self.count]

    def block(self, block: Block, inputs: Sequence[Value]) -> list[Value]:
        """The outputs of a block."""
        self.tiles.update(zip(block.arguments, inputs, strict=True))
        for o in block.operations:
            self.left -= 1
            if self.left < 0:
                raise OnnxError(
                    f"onnx: the body of the kernel {self.kernel.name} has more than {_MOST} operations at "
                    "these sizes; save it with larger blocks or smaller arguments"
                )
            rule = _RULES.get(o.name)
            if rule is None:
                raise self.refused(f"the operation {o.name}")
            found = rule(self, o, *(self.tiles[t] for t in o.operands))
            self.tiles.update(zip(o.results, found, strict=True))
        return [self.tiles[t] for t in block.outputs]

    def refused(self, what: str) -> OnnxError:
        """The error of something that no ops are known for."""
        return OnnxError(
            f"onnx: the kernel {self.kernel.name} has {what}, which has no ONNX form; save a function that "
            "computes the same with ops"
        )

    def box(self, o: Operation) -> tuple[Memory, tuple[slice, ...], tuple[slice, ...]]:
        """A memory, and what of a box lies inside of it: where in the memory, where in the box."""
        assert o.memory is not None
        there, here = [], []
        for axis, (at, n) in enumerate(
            zip(o.attributes["at"], o.attributes["extent"], strict=True)
        ):
            first, size = self.number(at), int(self.memories[o.memory].shape[axis])
            low = min(max(first, 0), size)
            high = max(min(first + n, size), low)
            there.append(slice(low, high))
            here.append(slice(low - first, high - first))
        return o.memory, tuple(there), tuple(here)


def _alloc(b: Body, o: Operation) -> list[Value]:
    assert o.memory is not None
    b.memories[o.memory] = b._blank(o.memory)
    return []


def _for(b: Body, o: Operation, *carried: Value) -> list[Value]:
    a, values = o.attributes, list(carried)
    if a.get("bounded") or a.get("going"):
        raise b.refused("a loop that data end")
    assert o.block is not None
    for i in range(b.number(a["start"]), b.number(a["stop"]), a["step"]):
        b.variables[a["variable"]] = i
        values = b.block(o.block, values)
    return values


def _load(b: Body, o: Operation) -> list[Value]:
    m, there, here = b.box(o)
    extent, t = tuple(o.attributes["extent"]), o.results[0]
    box = op.index(b.memories[m], there)
    if tuple(box.shape) != extent:
        fill = concrete(round_to(np.asarray(o.attributes["fill"]), t.dtype), t.dtype)
        box = op.pad(box, [(h.start, n - h.stop) for h, n in zip(here, extent, strict=True)], fill)
    kept = o.attributes["axes"]
    gone = tuple(i for i in range(box.ndim) if i not in kept)
    box = op.squeeze(box, gone) if gone else box
    rank = sorted(range(len(kept)), key=lambda i: kept[i])
    order = tuple(sorted(range(len(kept)), key=lambda i: rank[i]))
    return [box if order == tuple(range(len(order))) else op.transpose(box, order)]


def _store(b: Body, o: Operation, value: Value) -> list[Value]:
    m, there, here = b.box(o)
    axes = o.attributes["axes"]
    order = tuple(sorted(range(len(axes)), key=lambda i: axes[i]))
    box = value if order == tuple(range(len(order))) else op.transpose(value, order)
    box = op.index(op.reshape(box, tuple(o.attributes["extent"])), here)
    whole = all(
        s.start == 0 and s.stop == n for s, n in zip(there, b.memories[m].shape, strict=True)
    )
    if 0 not in box.shape:
        b.memories[m] = box if whole else op.update(b.memories[m], there, box, "set")
    return []


def _gather(b: Body, o: Operation, *indices: Value) -> list[Value]:
    assert o.memory is not None
    data, a, t = b.memories[o.memory], o.attributes, o.results[0]
    shape = tuple(t.shape)
    own = dict(zip(a["axes"], range(len(shape)), strict=False))
    moved = dict(zip(a["picked"], indices, strict=True))
    index, inside = [], op.full(shape, True)
    for axis, at in enumerate(a["at"]):
        fixed = np.full(shape, b.number(at), np.int64)
        if axis in own:
            line = np.arange(a["extent"][axis])
            fixed = fixed + line.reshape([-1] + [1] * (len(shape) - own[axis] - 1))
        place = concrete(fixed)
        if axis in moved:
            place = op.add(place, op.cast(moved[axis], i64))
        size = int(data.shape[axis])
        inside = op.logical_and(inside, op.logical_and(op.ge(place, 0), op.lt(place, size)))
        index.append(op.clip(place, 0, max(size - 1, 0)))
    fill = concrete(round_to(np.asarray(a["fill"]), t.dtype), t.dtype)
    if 0 in data.shape:
        return [op.broadcast_to(fill, shape)]
    return [op.where(inside, op.index(data, tuple(index)), fill)]


def _full(b: Body, o: Operation) -> list[Value]:
    t = o.results[0]
    value = concrete(round_to(np.asarray(o.attributes["value"]), t.dtype), t.dtype)
    return [op.broadcast_to(value, t.shape)]


def _index(b: Body, o: Operation) -> list[Value]:
    t, axis = o.results[0], o.attributes["axis"]
    base = np.full(t.shape, b.number(o.attributes["at"]), np.int64)
    if axis is not None:
        line = np.arange(t.shape[axis])
        base = base + line.reshape([-1] + [1] * (len(t.shape) - axis - 1))
    return [op.cast(concrete(base), t.dtype)]


def _applied(b: Body, name: str, xs: Sequence[Value]) -> Value:
    if name == "fma":
        return op.add(op.mul(xs[0], xs[1]), xs[2])
    if name == "pos":
        return xs[0]
    if name in ("and", "or", "xor", "invert") and xs[0].dtype is bool_:
        name = {"invert": "logical_not"}.get(name, f"logical_{name}")
    found: Callable[..., Value] | None = getattr(op, _NAMES.get(name, name), None)
    if found is None:
        raise b.refused(f"the function {name}")
    return found(*xs)


def _apply(b: Body, o: Operation, *xs: Value) -> list[Value]:
    found = _applied(b, o.attributes["scalar"], xs)
    t = o.results[0]
    return [found if found.dtype is t.dtype else op.cast(found, t.dtype)]


def _fold(b: Body, o: Operation, x: Value) -> list[Value]:
    name = o.attributes["scalar"]
    if name not in _FOLDS:
        raise b.refused(f"a fold by {name}")
    if name in ("or", "and") and x.dtype is not bool_:
        raise b.refused(f"a fold by {name} of {x.dtype}")
    found = getattr(op, _FOLDS[name])(x, axis=o.attributes["axis"], keepdims=True)
    return [found if found.dtype is o.results[0].dtype else op.cast(found, o.results[0].dtype)]


def _scan(b: Body, o: Operation, x: Value) -> list[Value]:
    axis, name = o.attributes["axis"], o.attributes["scalar"]
    rows = op.unstack(x, axis=axis)
    done: list[Value] = [rows[0]]
    for row in rows[1:]:
        done.append(_applied(b, name, (done[-1], row)))
    return [op.stack(done, axis)]


def _dot(b: Body, o: Operation, x: Value, y: Value, acc: Value) -> list[Value]:
    x, y = (v if v.dtype is acc.dtype else op.cast(v, acc.dtype) for v in (x, y))
    return [op.add(acc, op.matmul(x, y))]


def _cast(b: Body, o: Operation, x: Value) -> list[Value]:
    return [op.cast(x, o.results[0].dtype)]


def _nothing(b: Body, o: Operation) -> list[Value]:
    return []


_RULES: dict[str, Callable[..., list[Value]]] = {
    "alloc": _alloc, "for": _for, "load": _load, "store": _store, "store_async": _store, "wait": _nothing,
    "barrier": _nothing, "prefetch": _nothing, "full": _full, "index": _index, "apply": _apply, "cast": _cast,
    "fold": _fold, "gather": _gather, "scan": _scan, "dot": _dot,
    "reshape": lambda b, o, x: [op.reshape(x, o.results[0].shape)],
    "broadcast": lambda b, o, x: [op.broadcast_to(x, o.results[0].shape)],
    "transpose": lambda b, o, x: [op.transpose(x, tuple(reversed(range(x.ndim))))],
}  # fmt: skip
