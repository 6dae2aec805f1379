"""What each Tile operation takes and gives: one rule per operation, one table of attributes.

The builder, the parser and the verifier ask the same rules, so that they agree.  A rule is given the
types of the operands, the attributes, the type of the memory, and the type that the result is stated
to have, which some operations need; it returns the types of the results.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from tessera.core import assembly
from tessera.core.dims import Dim
from tessera.core.dot_words import PARTS
from tessera.core.dtype import FORMATS as DTYPES
from tessera.core.dtype import DType, bool_, i32, i64
from tessera.core.errors import VerifyError
from tessera.core.rounding import round_to
from tessera.core.scalar import REINTERPRETS, SCALARS, TESTS
from tessera.core.types import TensorType

SPACES = ("global", "shared", "private")
FORMATS = frozenset(DTYPES) - {"c64", "c128"}  # what tiles are made of
# Of these, which are moved and cast, no more.
STORAGE = frozenset(name for name, d in DTYPES.items() if d.is_narrow and d.bits <= 8)

# Kinds of dtype that a scalar op takes, where it is not floats alone.
KINDS = {
    **dict.fromkeys(("eq", "ne", "lt", "le", "gt", "ge", "max", "min", "add", "mul"), "buif"),
    **dict.fromkeys(("sub", "neg", "pos", "abs", "sign", "square", "pow", "conj"), "uif"),
    **dict.fromkeys(("floor_div", "mod", "fmod", "floor", "ceil", "round", "trunc"), "uif"),
    **dict.fromkeys(("and", "or", "xor", "invert"), "bui"),
    **dict.fromkeys(("shift_left", "shift_right"), "ui"),
    **dict.fromkeys(("from_bits", "philox_low", "philox_high"), "u"),
    **dict.fromkeys(("logical_and", "logical_or", "logical_xor", "logical_not"), "b"),
    **dict.fromkeys(("is_nan", "is_inf", "is_finite", "real"), "uif"),
}

Types = Sequence[TensorType]
Attributes = Mapping[str, Any]


# Attributes -----------------------------------------------------------------------------------


def _is_int(x: Any) -> bool:
    return type(x) is int


def _is_size(x: Any) -> bool:
    return _is_int(x) or isinstance(x, Dim)


def _tuple_of(test: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda x: isinstance(x, tuple) and all(map(test, x))


# Kind of an attribute: how messages call it, and what it must pass.
_KINDS: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "size": ("a size", _is_size),
    "sizes": ("a list of sizes", _tuple_of(_is_size)),
    "int": ("a whole number", _is_int),
    "ints": ("a list of whole numbers", _tuple_of(_is_int)),
    "axis": ("a whole number or unit", lambda x: x is None or _is_int(x)),
    "flag": ("true or false", lambda x: type(x) is bool),
    "text": ("a string", lambda x: isinstance(x, str)),
    "number": ("a number", lambda x: type(x) in (bool, int, float)),
}
_BOX = {"at": "sizes", "extent": "ints", "axes": "ints", "masked": "ints"}
ATTRIBUTES: dict[str, dict[str, str]] = {
    "alloc": {"space": "text"},
    "load": {**_BOX, "fill": "number"},
    "store": _BOX,
    "store_async": _BOX,
    "wait": {"pending": "int"},
    "barrier": {},
    "gather": {**_BOX, "picked": "ints", "fill": "number"},
    "scatter": {**_BOX, "picked": "ints"},
    "prefetch": {"at": "sizes", "extent": "ints", "write": "flag"},
    "for": {"variable": "text", "start": "size", "stop": "size", "step": "int"},
    "full": {"value": "number"},
    "index": {"at": "size", "axis": "axis"},
    "apply": {"scalar": "text"},
    "cast": {},
    "fold": {"scalar": "text", "axis": "int"},
    "scan": {"scalar": "text", "axis": "int"},
    "dot": {},
    "dot_parts": {"parts": "int"},
    "words": {"axis": "int"},
    "dot_words": {"left": "text", "right": "text"},
    "reshape": {},
    "broadcast": {},
    "transpose": {},
    "take": {},
    "count": {"size": "int"},
    "exchange": {"shape": "ints", "order": "ints", "count": "int"},
}
# Attributes that may be left out.  A store with `bypass` goes past the caches where its memory has at
# least so many bytes: what it writes is the same.  A loop that is `bounded` ends where its first
# carried tile says, an i64 number that the body passes on, or at `stop` if that comes first.  One that is
# `going` ends as soon as its first carried tile, a bool, is false, and at `stop` at the latest.  A prefetch
# that is `far` brings a box to the second cache.  The places of a scatter that is `distinct` differ; one
# that is `atomic` folds into what is there by that scalar op, in any order, also that of other instances.
# A load or store with `vector` accesses at most so many elements at once.  A fold or scan of the order
# `neighbours` is a tree over aligned neighbours, as in folds.py of GPUs.
NEIGHBOURS = "neighbours"
OPTIONAL: dict[str, dict[str, str]] = {
    "load": {"vector": "int"}, "store": {"bypass": "int", "vector": "int"},
    "for": {"bounded": "flag", "going": "flag"}, "prefetch": {"far": "flag"},
    "scatter": {"distinct": "flag", "atomic": "text"}, "fold": {"order": "text"}, "scan": {"order": "text"},
}  # fmt: skip
OPERANDS = {
    "alloc": 0, "prefetch": 0, "load": 0, "store": 1, "full": 0, "index": 0, "cast": 1, "fold": 1, "scan": 1,
    "dot": 3, "dot_parts": 3, "reshape": 1, "broadcast": 1, "transpose": 1, "store_async": 1, "wait": 0,
    "barrier": 0, "words": 1, "dot_words": 3, "take": 2, "count": 1,
}  # fmt: skip
WITH_MEMORY = frozenset(("alloc", "load", "store", "store_async", "prefetch", "gather", "scatter"))
STATED = frozenset(("full", "index", "cast", "reshape", "broadcast"))  # say the type they give


def check_attributes(name: str, attributes: Attributes) -> None:
    """Raise VerifyError unless an operation has just the attributes of its table row."""
    wanted = ATTRIBUTES[name]
    if attributes.keys() != wanted.keys() and name in OPTIONAL:
        wanted = wanted | {k: kind for k, kind in OPTIONAL[name].items() if k in attributes}
    if attributes.keys() != wanted.keys():
        got, want = (", ".join(sorted(s)) or "none" for s in (attributes, wanted))
        raise VerifyError(f"{name}: has the attributes {got}, expected {want}")
    for key, kind in wanted.items():
        what, test = _KINDS[kind]
        if not test(attributes[key]):
            raise VerifyError(f"{name}: {key} is {attributes[key]!r}, expected {what}")


def infer(
    name: str,
    types: Types,
    attributes: Attributes,
    memory: TensorType | None = None,
    stated: TensorType | None = None,
) -> tuple[TensorType, ...]:
    """The types of the results of an operation without a region."""
    check_attributes(name, attributes)
    if name in OPERANDS and len(types) != OPERANDS[name]:
        raise VerifyError(f"{name}: got {len(types)} tiles, expected {OPERANDS[name]}")
    if (memory is not None) != (name in WITH_MEMORY):
        raise VerifyError(f"{name}: {'needs a' if memory is None else 'takes no'} memory")
    if name in STATED:
        if stated is None:
            raise VerifyError(f"{name}: gives one tile")
        check_tile(name, stated)
    return _RULES[name](types, attributes, memory, stated)


def check_tile(name: str, t: TensorType) -> None:
    """Raise VerifyError unless tiles may be of this type."""
    check_format(name, t.dtype)
    if not t.static or any(n < 1 for n in t.shape):
        raise VerifyError(f"{name}: a tile of {t} needs sizes that are numbers of at least 1")


def check_format(name: str, dtype: DType) -> None:
    """Raise VerifyError unless tiles and memories may be of this dtype."""
    if dtype.name not in FORMATS:
        raise VerifyError(f"{name}: {dtype} is no dtype of tiles; cast to one that is before")


def canonical(name: str, value: Any, dtype: DType) -> Any:
    """A number as the Python value of what a dtype stores for it."""
    check_format(name, dtype)
    x = round_to(np.asarray(value), dtype)
    return {"b": bool, "i": int, "u": int, "f": float}[dtype.kind](x)


def check_number(name: str, value: Any, dtype: DType) -> None:
    """Raise VerifyError unless a dtype stores just this number."""
    kept = canonical(name, value, dtype)
    if type(kept) is not type(value) or repr(kept) != repr(value):
        raise VerifyError(f"{name}: {value!r} is no number of {dtype}")


# Rules ----------------------------------------------------------------------------------------


def broadcast(op: str, shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    """The shape that tiles meet in: sizes are equal or 1, ranks are equal or 0."""
    rank = max(map(len, shapes), default=0)
    if any(len(s) not in (0, rank) for s in shapes):
        raise VerifyError(f"{op}: tiles of shapes {list(shapes)} differ in rank")
    out = []
    for column in zip(*(s for s in shapes if len(s) == rank), strict=True):
        sizes = {n for n in column if n != 1}
        if len(sizes) > 1:
            raise VerifyError(f"{op}: tiles of shapes {list(shapes)} do not broadcast")
        out.append(sizes.pop() if sizes else 1)
    return tuple(out)


def result_dtype(scalar: str, dtypes: Sequence[DType]) -> DType:
    """The dtype that a scalar op gives on operands of these dtypes."""
    if scalar.startswith(assembly.PREFIX):
        return assembly.result_dtype(scalar, dtypes)
    row = SCALARS.get(scalar)
    if row is None:
        raise VerifyError(f"apply: {scalar!r} is no scalar op")
    if len(dtypes) != row.arity:
        raise VerifyError(f"{scalar}: got {len(dtypes)} operands, expected {row.arity}")
    if scalar == "where":
        if dtypes[0] is not bool_:
            raise VerifyError(f"where: the condition is {dtypes[0]}, expected bool")
        return _one_dtype(scalar, dtypes[1:])
    first = _one_dtype(scalar, dtypes)
    if first.kind not in KINDS.get(scalar, "f"):
        raise VerifyError(f"{scalar}: takes no {first}")
    if first.name in STORAGE:
        raise VerifyError(
            f"{scalar}: {first} is for storage; compute in {first.base.compute}, then cast"
        )
    if scalar in TESTS:
        return bool_
    if scalar in REINTERPRETS:
        return _reinterpreted(scalar, first)
    if first.policy.saturate or first.policy.stochastic_round:
        raise VerifyError(
            f"{scalar}: {first} rounds by a policy; compute in {first.base.compute}, then cast"
        )
    return first


def _reinterpreted(scalar: str, dtype: DType) -> DType:
    formats = REINTERPRETS[scalar]
    if dtype.name not in formats:
        raise VerifyError(f"{scalar}: takes {' or '.join(formats)}, got {dtype}")
    return DTYPES[formats[dtype.name]]


def _one_dtype(op: str, dtypes: Sequence[DType]) -> DType:
    if any(d is not dtypes[0] for d in dtypes):
        raise VerifyError(f"{op}: operands {', '.join(map(str, dtypes))} must be of one dtype")
    return dtypes[0]


def _alloc(types: Types, a: Attributes, m: Any, stated: Any) -> tuple[TensorType, ...]:
    check_format("alloc", m.dtype)
    if a["space"] not in SPACES[1:]:
        raise VerifyError(f"alloc: space is {a['space']!r}, expected 'shared' or 'private'")
    return ()


def _box(name: str, a: Attributes, m: TensorType) -> tuple[int, ...]:
    """The shape of the tile that a box of memory is."""
    if not len(a["at"]) == len(a["extent"]) == m.rank:
        raise VerifyError(
            f"{name}: {len(a['at'])} positions and {len(a['extent'])} extents for {m} of rank "
            f"{m.rank}"
        )
    for key in ("axes", "masked"):
        if len(set(a[key])) != len(a[key]) or any(not 0 <= i < m.rank for i in a[key]):
            raise VerifyError(f"{name}: {key} {list(a[key])} are no distinct axes of {m}")
    for axis, n in enumerate(a["extent"]):
        if n < 1:
            raise VerifyError(f"{name}: the extent of axis {axis} is {n}, expected at least 1")
        if n != 1 and axis not in a["axes"]:
            raise VerifyError(f"{name}: axis {axis} is dropped, but its extent is {n}, not 1")
    return tuple(a["extent"][i] for i in a["axes"])


def _load(types: Types, a: Attributes, m: Any, stated: Any) -> tuple[TensorType, ...]:
    shape = _box("load", a, m)
    check_number("load", a["fill"], m.dtype)
    return (TensorType(m.dtype, shape),)


def _store(types: Types, a: Attributes, m: Any, stated: Any) -> tuple[TensorType, ...]:
    want = TensorType(m.dtype, _box("store", a, m))
    if types[0] is not want:
        raise VerifyError(f"store: the tile is {types[0]}, but the box is {want}")
    return ()


def _wait(types: Types, a: Attributes, m: Any, stated: Any) -> tuple[TensorType, ...]:
    if a["pending"] < 0:
        raise VerifyError(f"wait: {a['pending']} stores may be pending, expected at least 0")
    return ()


def _barrier(types: Types, a: Attributes, m: Any, stated: Any) -> tuple[TensorType, ...]:
    return ()


def _prefetch(types: Types, a: Attributes, m: Any, stated: Any) -> tuple[TensorType, ...]:
    _box("prefetch", {**a, "axes": tuple(range(m.rank)), "masked": ()}, m)
    return ()


def _picked(name: str, indices: Types, a: Attributes, m: TensorType) -> tuple[int, ...]:
    """The shape of the tile whose elements lie where a box and index tiles say together."""
    picked = a["picked"]
    if len(set(picked)) != len(picked) or any(not 0 <= i < m.rank for i in picked):
        raise VerifyError(f"{name}: picked {list(picked)} are no distinct axes of {m}")
    if len(indices) != len(picked):
        raise VerifyError(f"{name}: got {len(indices)} index tiles for axes {list(picked)}")
    for t in indices:
        if t.dtype is not i64:
            raise VerifyError(f"{name}: an index tile is {t}, expected i64")
    for axis, t in zip(picked, indices, strict=True):
        if a["extent"][axis : axis + 1] not in ((), (1,)) and any(n != 1 for n in _shape(t)):
            raise VerifyError(
                f"{name}: axis {axis} is picked by {t}, but its extent is not 1; one number moves a box"
            )
    return broadcast(name, [_box(name, a, m), *(_shape(t) for t in indices)])


def _gather(types: Types, a: Attributes, m: Any, stated: Any) -> tuple[TensorType, ...]:
    shape = _picked("gather", types, a, m)
    check_number("gather", a["fill"], m.dtype)
    return (TensorType(m.dtype, shape),)


def _scatter(types: Types, a: Attributes, m: Any, stated: Any) -> tuple[TensorType, ...]:
    if not types:
        raise VerifyError("scatter: got no tile to write")
    want = TensorType(m.dtype, _picked("scatter", types[1:], a, m))
    if types[0] is not want:
        raise VerifyError(f"scatter: the tile is {types[0]}, but the places are {want}")
    return ()


def _full(types: Types, a: Attributes, m: Any, stated: Any) -> tuple[TensorType, ...]:
    check_number("full", a["value"], stated.dtype)
    return (stated,)


def _index(types: Types, a: Attributes, m: Any, stated: Any) -> tuple[TensorType, ...]:
    if a["axis"] is not None:
        _in_range("index", a["axis"], stated)
    return (TensorType(i64, stated.shape),)


def _apply(types: Types, a: Attributes, m: Any, stated: Any) -> tuple[TensorType, ...]:
    return _applied(a["scalar"], tuple(types))


@lru_cache(maxsize=1 << 14)
def _applied(scalar: str, types: tuple[TensorType, ...]) -> tuple[TensorType, ...]:
    """Half of all operations apply a scalar op, and most to types that met before."""
    dtype = result_dtype(scalar, [t.dtype for t in types])
    return (TensorType(dtype, broadcast(scalar, [_shape(t) for t in types])),)


def _cast(types: Types, a: Attributes, m: Any, stated: Any) -> tuple[TensorType, ...]:
    if stated.dtype.policy.stochastic_round:
        raise VerifyError(
            f"cast: {stated.dtype} draws from the index of an element, which a tile does not know"
        )
    return (TensorType(stated.dtype, types[0].shape),)


def _fold(types: Types, a: Attributes, m: Any, stated: Any) -> tuple[TensorType, ...]:
    (x,) = types
    _foldable("fold", a["scalar"], x)
    _in_range("fold", a["axis"], x)
    _ordered("fold", a)
    shape = (*x.shape[: a["axis"]], 1, *x.shape[a["axis"] + 1 :])
    return (TensorType(x.dtype, shape),)


def _scan(types: Types, a: Attributes, m: Any, stated: Any) -> tuple[TensorType, ...]:
    _foldable("scan", a["scalar"], types[0])
    _in_range("scan", a["axis"], types[0])
    _ordered("scan", a)
    return (types[0],)


def _dot(types: Types, a: Attributes, m: Any, stated: Any) -> tuple[TensorType, ...]:
    x, y, acc = types
    fits = all(t.rank == 2 for t in types) and (
        (*x.shape, y.shape[1]) == (acc.shape[0], *y.shape[:1], acc.shape[1])
    )
    if not fits:
        raise VerifyError(f"dot: {x}, {y} and {acc} are not (m, k), (k, n) and (m, n)")
    d, wide = _one_dtype("dot", (x.dtype, y.dtype)), acc.dtype
    if d.kind not in "uif" or wide.kind != d.kind or wide.bits < d.bits or wide.is_narrow:
        raise VerifyError(f"dot: products of {d} do not add up in {wide}")
    return (acc,)


def _dot_parts(types: Types, a: Attributes, m: Any, stated: Any) -> tuple[TensorType, ...]:
    acc = types[2]
    if a["parts"] not in (2, 4):
        raise VerifyError(f"dot_parts: words have {a['parts']} parts, expected 2 or 4")
    if _one_dtype("dot_parts", [t.dtype for t in types]).name not in ("i32", "u32"):
        raise VerifyError(f"dot_parts: words are i32 or u32, got {acc.dtype}")
    if broadcast("dot_parts", [_shape(t) for t in types]) != acc.shape:
        raise VerifyError(f"dot_parts: {types[0]} and {types[1]} do not spread to {acc}")
    return (acc,)


def _words(types: Types, a: Attributes, m: Any, stated: Any) -> tuple[TensorType, ...]:
    (x,), axis = types, a["axis"]
    parts = PARTS.get(x.dtype.name)
    if parts is None or x.rank != 2:
        raise VerifyError(f"words: {x} is no matrix of {', '.join(PARTS)}")
    _in_range("words", axis, x)
    if x.shape[axis] % parts:
        raise VerifyError(f"words: axis {axis} of {x} is cut in {parts} parts of a word")
    shape = tuple(n // parts if i == axis else n for i, n in enumerate(_shape(x)))
    return (TensorType(i32, shape),)


def _dot_words(types: Types, a: Attributes, m: Any, stated: Any) -> tuple[TensorType, ...]:
    x, y, acc = types
    left, right = a["left"], a["right"]
    if left not in PARTS or PARTS[left] != PARTS.get(right):
        raise VerifyError(f"dot_words: there are no words of {left} and {right}")
    if x.dtype is not i32 or y.dtype is not i32:
        raise VerifyError(f"dot_words: words are i32, got {x.dtype} and {y.dtype}")
    if acc.dtype.name not in (("f32",) if left == "bf16" else ("i32", "u32")):
        raise VerifyError(f"dot_words: products of {left} and {right} do not add up in {acc.dtype}")
    fits = all(t.rank == 2 for t in types) and (
        (*x.shape, y.shape[1]) == (acc.shape[0], *y.shape[:1], acc.shape[1])
    )
    if not fits:
        raise VerifyError(f"dot_words: {x}, {y} and {acc} are not (m, k), (k, n) and (m, n)")
    return (acc,)


def _reshape(types: Types, a: Attributes, m: Any, stated: Any) -> tuple[TensorType, ...]:
    x = types[0]
    if math.prod(_shape(x)) != math.prod(_shape(stated)):
        raise VerifyError(f"reshape: {x} has {x.size} elements, {stated} has {stated.size}")
    return (TensorType(x.dtype, stated.shape),)


def _broadcast(types: Types, a: Attributes, m: Any, stated: Any) -> tuple[TensorType, ...]:
    x = types[0]
    if broadcast("broadcast", [_shape(x), _shape(stated)]) != stated.shape:
        raise VerifyError(f"broadcast: {x} does not spread to {stated}")
    return (TensorType(x.dtype, stated.shape),)


def _transpose(types: Types, a: Attributes, m: Any, stated: Any) -> tuple[TensorType, ...]:
    x = types[0]
    if x.rank != 2:
        raise VerifyError(f"transpose: {x} has rank {x.rank}, expected 2")
    return (TensorType(x.dtype, x.shape[::-1]),)


def _take(types: Types, a: Attributes, m: Any, stated: Any) -> tuple[TensorType, ...]:
    x, place = types
    if x.rank != 1 or place.rank != 1 or place.dtype is not i64:
        raise VerifyError(f"take: {x} at {place}, expected tiles of one axis and places of i64")
    return (TensorType(x.dtype, place.shape),)


def _count(types: Types, a: Attributes, m: Any, stated: Any) -> tuple[TensorType, ...]:
    (x,), size = types, a["size"]
    if x.rank != 1 or x.dtype is not i32:
        raise VerifyError(f"count: {x}, expected a tile of one axis and of i32")
    if size < 1:
        raise VerifyError(f"count: numbers below {size}, expected 1 or more")
    return (TensorType(i32, (size,)),)


def _exchange(types: Types, a: Attributes, m: Any, stated: Any) -> tuple[TensorType, ...]:
    """Tiles of one type, whose numbers and places are axes of a shape, in another order of the axes."""
    shape, order = a["shape"], a["order"]
    count: int = a["count"]
    if not types or any(t.shape != types[0].shape for t in types) or types[0].rank != 1:
        raise VerifyError(
            f"exchange: got {list(map(str, types))}, expected tiles of one axis and size"
        )
    if any(n < 1 or n & (n - 1) for n in (*shape, count)):
        raise VerifyError(f"exchange: {shape} and {count} are to be powers of two")
    if sorted(order) != list(range(len(shape))):
        raise VerifyError(f"exchange: {order} is no order of the axes of {shape}")
    dtype = _one_dtype("exchange", [t.dtype for t in types])
    total: int = math.prod(shape)
    turned = tuple(shape[i] for i in order)
    if total != len(types) * math.prod(_shape(types[0])):
        raise VerifyError(f"exchange: {shape} does not hold {len(types)} tiles of {types[0]}")
    for sizes, n in ((shape, len(types)), (turned, count)):
        if leading(sizes, n) is None:
            raise VerifyError(f"exchange: no first axes of {sizes} number {n} tiles")
    return (TensorType(dtype, (total // count,)),) * count


def leading(shape: Sequence[int], count: int) -> int | None:
    """How many first axes have so many elements together."""
    return next((i for i in range(len(shape) + 1) if math.prod(shape[:i]) == count), None)


def _ordered(name: str, a: Attributes) -> None:
    if a.get("order", NEIGHBOURS) != NEIGHBOURS:
        raise VerifyError(f"{name}: order is {a['order']!r}, expected {NEIGHBOURS!r} or none")


def _foldable(name: str, scalar: str, x: TensorType) -> None:
    if SCALARS.get(scalar) is None or SCALARS[scalar].identity is None:
        raise VerifyError(f"{name}: {scalar!r} is no scalar op that folds")
    result_dtype(scalar, (x.dtype, x.dtype))


def _in_range(name: str, axis: int, t: TensorType) -> None:
    if not 0 <= axis < t.rank:
        raise VerifyError(f"{name}: axis {axis} is no axis of {t}")


def _shape(t: TensorType) -> tuple[int, ...]:
    return t.shape  # type: ignore[return-value]


_RULES: dict[str, Callable[[Types, Attributes, Any, Any], tuple[TensorType, ...]]] = {
    "alloc": _alloc, "load": _load, "store": _store, "prefetch": _prefetch, "full": _full, "index": _index,
    "apply": _apply, "cast": _cast, "fold": _fold, "scan": _scan, "dot": _dot, "dot_parts": _dot_parts,
    "reshape": _reshape, "broadcast": _broadcast, "transpose": _transpose, "gather": _gather,
    "scatter": _scatter, "store_async": _store, "wait": _wait, "barrier": _barrier,
    "words": _words, "dot_words": _dot_words, "exchange": _exchange,
    "take": _take, "count": _count,
}  # fmt: skip
