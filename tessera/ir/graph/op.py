"""The record that defines an op: all that the compiler knows of it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tessera.core.dtype import DType, bool_, i64
from tessera.core.errors import DTypeError
from tessera.core.factors import Factors
from tessera.core.scalar import Expr
from tessera.core.signature import Signature
from tessera.core.types import TensorType

if TYPE_CHECKING:
    from tessera.ir.graph.ir import Node, Value

Params = Mapping[str, Any]
Types = Sequence[TensorType]
Index = tuple[Any, ...]  # one integer, index array or index expression per axis


@dataclass(frozen=True, slots=True)
class Element:
    """A place that an operand holds: its number at an index, clamped to 0..last, plus an offset."""

    operand: int
    index: Index
    last: Any
    offset: Any = 0


KIND_NAMES = {"b": "bool", "u": "unsigned", "i": "integer", "f": "float", "c": "complex"}


@dataclass(frozen=True, slots=True)
class Effect:
    """What passes may do with a node that does more than to compute its results."""

    drop: bool = False  # leave it out where nothing uses its results
    merge: bool = False  # with an equal one, or replace it by what it equals
    move: bool = False  # out of a loop, or before other nodes
    repeat: bool = False  # compute it a second time


# A draw is a function of its key, which is an operand (docs/decisions/034).
EFFECTS: Mapping[str, Effect] = {
    "random": Effect(drop=True, merge=True, move=True, repeat=True),
    "state": Effect(),
    "movement": Effect(repeat=True),
    "collective": Effect(repeat=True),
    "io": Effect(),
}


def forbidden(effects: frozenset[str], what: str) -> frozenset[str]:
    """Those of some effects for which a pass may not do this: drop, merge, move or repeat."""
    if not effects:
        return effects
    return frozenset(e for e in effects if not getattr(EFFECTS[e], what))


class Sample:
    """Arguments for the generated tests: a call of the op's public function.

    An operand is a shape (values are drawn from the op's domain) or an array of its own.
    """

    __slots__ = ("kwargs", "operands")

    def __init__(self, *operands: Any, **kwargs: Any):
        self.operands, self.kwargs = operands, kwargs

    def __repr__(self) -> str:
        shown = [f"array{o.shape}" if hasattr(o, "shape") else str(o) for o in self.operands]
        return ",".join(shown + [f"{k}={v}" for k, v in self.kwargs.items()])


@dataclass(frozen=True, eq=False, slots=True)
class Op:
    """All the compiler knows of one op.  What is left None is derived by the transform that asks.

    The meaning is given in one of five ways:
    signature + body + combine   out[out axes] = fold over the reduced axes of body(operands)
    view                         out[index] = operand 0 at view(index, types, params)
    decompose                    other ops
    pick                         out[index] = operand 0 at places that other operands hold
    call                         a host function or a primitive, named
    """

    name: str
    doc: str
    signature: str | Callable[[Types, Params], str] | None = None
    body: Expr | Callable[[Params], Expr] | None = None
    combine: str | None = None  # scalar op that folds the reduced axes
    view: Callable[[Index, Types, Params], Index] | None = None
    pick: Callable[[Index, Types, Params], Index] | None = None  # an index may be an Element
    decompose: Callable[..., Any] | None = None  # (*operands, **params) -> result(s)
    small: Callable[..., Any] | None = None  # (*operands, **params) -> result(s), of small matrices
    call: str | None = None
    total: bool = False  # a call that has a result for all numbers; others may refuse some
    numpy: Callable[..., Any] | None = None  # reference: (*arrays, **params) -> array(s)
    kinds: str | tuple[str, ...] = "buifc"  # dtype kinds it takes, of all operands or of each
    result: str | DType | Callable[[Types, Params], DType] = "same"  # dtype of the result
    infer: Callable[[Types, Params], Sequence[TensorType]] | None = None
    multiple: bool = False  # returns a tuple of values
    moves: bool = False  # only moves elements: needs no wider arithmetic
    casts: bool = False  # gives its operand another dtype
    spreads: bool = False  # shows an element at several places
    reshapes: bool = False  # keeps the elements in row-major order
    by_parts: bool = False  # does to real and imaginary parts what it does to real tensors
    pairs: bool = False  # point by point, with a kernel for whole complex tensors
    in_place: Op | None = None  # the primitive that writes the same part where the tensor is
    makes: str = ""  # what an op without operands makes: data, number, index or size
    kernel: str = (
        ""  # the kernel that a GPU has for all of it: attention, attention_grad, update or pool
    )
    control: str = ""  # how it runs its regions: branch, while or scan
    linear: tuple[int, ...] = ()  # operands it is linear in while the others are held
    partials: Callable[..., tuple[Any, ...]] | None = None  # (y, *xs) -> dy/dx of each operand
    jvp: Callable[[Node, Sequence[Value | None]], Any] | None = (
        None  # (node, tangents) -> tangent(s)
    )
    transpose: Callable[[Node, Any, int], Value] | None = None  # (node, ct, k) -> ct of operand k
    batch: Callable[..., Any] | None = None  # (node, operands, batched) -> result(s), batched
    # How it is cut over a mesh, where the meaning does not say: (types, results, params) -> factors
    factors: Callable[[Types, Types, Params], Factors] | None = None
    # (params, local types, local results) -> the parameters for a shard; sizes in `shape` change by
    # themselves
    resize: Callable[[Params, Types, Types], Params] | None = None
    effects: frozenset[str] = frozenset()  # random, state, movement, collective, io
    onnx: str | None = None
    domain: tuple[float, float] = (-2.0, 2.0)  # where the op tests draw values
    samples: tuple[Sample, ...] = ()

    def __str__(self) -> str:
        return self.name

    def sig(self, types: Types, params: Params) -> Signature | None:
        """The signature for operands of these types."""
        if self.signature is None:
            return None
        text = self.signature if isinstance(self.signature, str) else self.signature(types, params)
        return Signature.parse(text, len(types))

    def expr(self, params: Params) -> Expr | None:
        """The scalar body under these parameters."""
        return self.body(params) if callable(self.body) else self.body

    def result_types(self, types: Types, params: Params) -> tuple[TensorType, ...]:
        """Check the operands and say what comes out."""
        self._check_kinds(types)
        if self.infer is not None:
            return tuple(self.infer(types, params))
        sig = self.sig(types, params)
        assert sig is not None, f"{self.name} has neither signature nor infer"
        bound, sizes = sig.bind(self.name, types)
        sizes = {**params.get("sizes", {}), **sizes}
        return (TensorType(self.result_dtype(types, params), tuple(sizes[a] for a in bound.out)),)

    def result_dtype(self, types: Types, params: Params) -> DType:
        """The dtype of the result."""
        if isinstance(self.result, DType):
            return self.result
        if callable(self.result):
            return self.result(types, params)
        if self.result == "bool":
            return bool_
        if self.result == "index":
            return i64
        first = types[0].dtype
        if any(t.dtype is not first for t in types):
            raise DTypeError(
                f"{self.name}: operands {', '.join(map(str, types))} must be of one dtype; "
                "cast with astype"
            )
        return first.real if self.result == "real" else first

    def _check_kinds(self, types: Types) -> None:
        if self.kinds == "buifc":
            return
        for i, t in enumerate(types):
            kinds = (
                self.kinds
                if isinstance(self.kinds, str)
                else self.kinds[min(i, len(self.kinds) - 1)]
            )
            if t.dtype.kind not in kinds:
                raise DTypeError(
                    f"{self.name}: operand {i} is {t}, expected "
                    f"{' or '.join(KIND_NAMES[k] for k in kinds)}; cast it with astype"
                )


REGISTRY: dict[str, Op] = {}
UNLISTED: dict[str, Op] = {}  # those that passes make and no one calls: not of the catalogue
OWN: set[Op] = set()  # those that Tessera's own modules define: its sources say all about them


def known(name: str) -> Op | None:
    """The op of this name, also one that only passes make."""
    return REGISTRY.get(name) or UNLISTED.get(name)


def register(op: Op) -> Op:
    """Enter an op in the registry."""
    if op.name in REGISTRY:
        raise ValueError(f"op '{op.name}' is defined twice")
    REGISTRY[op.name] = op
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_globals["__name__"].startswith("tessera."):
        frame = frame.f_back
    if frame.f_globals["__name__"] == "importlib._bootstrap":  # a module of ours is being imported
        OWN.add(op)
    return op
