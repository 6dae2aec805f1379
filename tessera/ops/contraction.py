"""Sums of products.  All are multilinear: every derived rule follows from the signature."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from tessera.core.constraints import same, unify
from tessera.core.dims import Shape, Size
from tessera.core.dims import product as count
from tessera.core.errors import AxisError, DTypeError, OperandError, ShapeError
from tessera.core.flags import flags
from tessera.core.looking import is_looking
from tessera.core.promotion import promote_all
from tessera.core.scalar import product
from tessera.core.signature import Axes, Signature, broadcast_shapes
from tessera.core.types import TensorType
from tessera.ir.graph.ir import Node, Value
from tessera.ir.graph.op import Params, Sample, Types
from tessera.ops.batching import Mask
from tessera.ops.creation import iota
from tessera.ops.define import (
    ArrayLike,
    as_value,
    axes_of,
    broadcast,
    cast_to,
    define,
    letters,
    meet,
    public,
)
from tessera.ops.elementwise import add, complex, conj, eq, imag, mul, real, sub, where
from tessera.ops.matrix import diagonal
from tessera.ops.reduction import sum as sum_of
from tessera.ops.shape import expand_dims, reshape, squeeze, transpose


def reference_einsum(spec: str, *xs: Any) -> Any:
    """np.einsum, by way of f32 for formats that it does not have: bf16 and the 8-bit floats."""
    held = xs[0].dtype
    if held.kind in "biufc":
        return np.einsum(spec, *xs, optimize=len(xs) > 1)
    wide = [x.astype(np.float32) for x in xs]
    return np.einsum(spec, *wide, optimize=len(xs) > 1).astype(held)


def _reference(*xs: Any, spec: str, sizes: tuple[tuple[str, int], ...] = ()) -> Any:
    """Einsum, and an output axis that no operand has is broadcast to its size."""
    sig = Signature.parse(spec, len(xs))
    names = dict.fromkeys(a for axes in (*sig.ins, sig.out) for a in axes)
    letter = {a: chr((65 if i < 26 else 71) + i) for i, a in enumerate(names)}
    text = ",".join("".join(letter[a] for a in axes) for axes in sig.ins)
    present = [a for a in sig.out if any(a in axes for axes in sig.ins)]
    y = reference_einsum(f"{text}->{''.join(letter[a] for a in present)}", *xs)
    given = dict(sizes)
    new = tuple(i for i, a in enumerate(sig.out) if a not in present)
    y = np.expand_dims(y, new)
    return np.broadcast_to(y, [given[a] if i in new else y.shape[i] for i, a in enumerate(sig.out)])


def _contract_types(types: Types, p: Params) -> list[TensorType]:
    sig, sizes = Signature.parse(p["spec"], len(types)).bind("contract", types)
    sizes = {**dict(p["sizes"]), **sizes}
    return [types[0].with_shape(tuple(sizes[a] for a in sig.out))]


def _contract_transpose(n: Node, ct: Value, k: int) -> Value:
    """Cotangent of operand k: contract ct with the other operands."""
    sig = n.op.sig(n.types, n.params)
    assert sig is not None
    sig, sizes = sig.bind(n.op.name, n.types)
    rest = [i for i in range(len(n.operands)) if i != k]
    ins = [sig.out, *(sig.ins[i] for i in rest)]
    mine = sig.ins[k]
    # An axis that operand k has twice is a diagonal: later places get a name of their own.
    out = [a if mine.index(a) == i else f"{a}_{i}" for i, a in enumerate(mine)]
    present = {a for axes in ins for a in axes}
    extra = tuple((b, sizes[a]) for a, b in zip(mine, out, strict=True) if b not in present)
    if not present:
        y = broadcast(_times([ct, *(n.operands[i] for i in rest)]), n.operands[k].shape)
    else:
        made = Signature(tuple(ins), tuple(out))
        y = contracted([ct, *(n.operands[i] for i in rest)], made, extra)
    for i, a in enumerate(mine):
        if mine.index(a) != i:
            y = where(eq(iota(y.shape, i), iota(y.shape, mine.index(a))), y, 0)
    return y


def _times(xs: Sequence[Value]) -> Value:
    """The product of values of one shape."""
    total = xs[0]
    for x in xs[1:]:
        total = mul(total, x)
    return total


def _contract_batch(n: Node, operands: Sequence[Value], batched: Mask) -> Value:
    """A new name in front of the batched operands and of the result."""
    sig = Signature.parse(n.params["spec"], len(operands))
    used = {a for axes in (*sig.ins, sig.out) for a in axes}
    name = next(f"b{i}" for i in range(len(used) + 1) if f"b{i}" not in used)
    ins = [(name, *a) if b else a for a, b in zip(sig.ins, batched, strict=True)]
    return contracted(operands, Signature(tuple(ins), (name, *sig.out)), n.params["sizes"])


def _contract_part(p: Params, types: Types, outs: Types) -> Params:
    """The parameters for a shard: sizes of axes that no operand has are those of its result."""
    out = Signature.parse(p["spec"], len(types)).out
    mine = dict(zip(out, outs[0].shape, strict=True))
    return {**p, "sizes": tuple((a, mine.get(a, n)) for a, n in p["sizes"])}


@define(
    signature=lambda types, p: p["spec"], body=lambda p: product(p["spec"].count(",") + 1),
    combine="add", infer=_contract_types, kinds="uifc", numpy=_reference, onnx="Einsum",
    batch=_contract_batch, resize=_contract_part,
    linear=tuple(range(16)), transpose=_contract_transpose,
    samples=(
        Sample("i j, j -> i", (2, 3), (3,)), Sample("b i, b j -> b i j", (2, 3), (2, 4)),
        Sample("i j -> ", (2, 3)), Sample("i j, j k, k -> i", (2, 3), (3, 4), (4,)),
        Sample("i i -> i", (3, 3)),
    ),
)  # fmt: skip
def contract(spec: str, *xs: ArrayLike) -> Value:
    """Sum of products of operands with named axes: contract("m k, k n -> m n", a, b)."""
    values = [as_value(x, "contract") for x in xs]
    sig = Signature.parse(spec, len(values))
    if len(sig.ins) != len(values):
        raise OperandError(f"contract: '{spec}' names {len(sig.ins)} operands, got {len(values)}")
    dtype = promote_all([v.dtype for v in values])
    sig, _ = sig.bind("contract", [v.type for v in values])
    return contracted([cast_to(v, dtype) for v in values], sig)


def _complex_contract(x: Value, y: Value, spec: str, sizes: Any) -> Value:
    (a, b), (c, d) = (real(x), imag(x)), (real(y), imag(y))
    ac, bd, ad, bc = (
        contract.bind(u, v, spec=spec, sizes=sizes) for u, v in ((a, c), (b, d), (a, d), (b, c))
    )
    return complex(sub(ac, bd), add(ad, bc))


@define(
    signature=lambda types, p: p["spec"], infer=_contract_types, decompose=_complex_contract, kinds="c",
    numpy=_reference, batch=_contract_batch, linear=(0, 1), transpose=_contract_transpose,
    samples=(
        Sample("i j, j k -> i k", (2, 3), (3, 4)), Sample("b i j, b j k -> b i k", (2, 1, 3), (2, 3, 2)),
        Sample("i j, k j -> i k", (2, 5), (3, 5)),
    ),
)  # fmt: skip
def complex_contract(spec: str, x: ArrayLike, y: ArrayLike) -> Value:
    """contract of two complex operands, as four products of real ones."""
    p, q = as_value(x, "complex_contract"), as_value(y, "complex_contract")
    if promote_all([p.dtype, q.dtype]).kind != "c":
        raise DTypeError(
            f"complex_contract: operands {p.type}, {q.type} are real, expected a complex one; use op.contract"
        )
    return contract(spec, p, q)


def _product(x: Value, y: Value, spec: str) -> Value:
    """The sum of products of two operands by one kernel."""
    op = complex_contract if x.dtype.kind == "c" else contract
    return op.bind(x, y, spec=spec, sizes=())


# Any contraction by products of two matrices
#
# A sum of products has one order: a chain along what is summed (core/folds.py).  It is that of a kernel
# only if one axis of each operand is left over, so the others are made so: axes become one, or one of size
# 1, and operands come in pairs. Whether a batch is one of the axes then changes nothing for an element.  A
# product of complex numbers is four of real ones, which have that order on every target; a library for
# complex
# matrices has one of its
# own that changes with
# the shapes.

_USUAL = 128  # a symbolic size, where the order of products is chosen
Named = tuple[Value, Axes]


def contracted(
    xs: Sequence[Value], sig: Signature, sizes: Sequence[tuple[str, Size]] = ()
) -> Value:
    """The sum of products of operands whose axes have these names; new axes of the result are repeated."""
    dtype = xs[0].dtype
    present = {a for axes in sig.ins for a in axes}
    out = tuple(a for a in sig.out if a in present)
    left: list[Named] = list(zip(xs, sig.ins, strict=True))
    if len(xs) > 2 or (len(xs) == 2 and any(a not in out for a in _lone(sig))):
        left = [(cast_to(x, dtype.accum), axes) for x, axes in left]  # and rounded once
    left = [_alone(x, axes, {*out, *_others(left, i)}) for i, (x, axes) in enumerate(left)]
    while len(left) > 1:
        i, j = _next_pair(left, out)
        wanted = {*out, *_others(left, i, j)}
        made = _pair(left[i], left[j], out if len(left) == 2 else None, wanted)
        left = [made, *(p for k, p in enumerate(left) if k not in (i, j))]
    x, axes = left[0]
    y = cast_to(_turned(x, axes, out), dtype)
    if out == sig.out:
        return y
    new = tuple(i for i, a in enumerate(sig.out) if a not in present)
    found = dict(sizes)
    y = expand_dims(y, new)
    return broadcast(y, tuple(found.get(a, n) for a, n in zip(sig.out, y.shape, strict=True)))


def _lone(sig: Signature) -> list[str]:
    """Axes that one operand alone has."""
    named = [a for axes in sig.ins for a in dict.fromkeys(axes)]
    return [a for a in named if named.count(a) == 1]


def _others(left: Sequence[Named], *mine: int) -> set[str]:
    return {a for k, (_, axes) in enumerate(left) if k not in mine for a in axes}


def _turned(x: Value, axes: Axes, to: Axes) -> Value:
    return x if axes == to else transpose(x, tuple(axes.index(a) for a in to))


def _alone(x: Value, axes: Axes, wanted: set[str]) -> Named:
    """An operand with every axis once, and without those that nobody else wants."""
    while len(set(axes)) < len(axes):
        twice = next(a for a in axes if axes.count(a) > 1)
        i = axes.index(twice)
        j = axes.index(twice, i + 1)
        rest = [k for k in range(len(axes)) if k not in (i, j)]
        x = diagonal.bind(transpose(x, (*rest, i, j)), offset=0)
        axes = (*(axes[k] for k in rest), twice)
    over = tuple(i for i, a in enumerate(axes) if a not in wanted)
    if not over:
        return x, axes
    left = tuple(a for a in axes if a in wanted)
    if x.dtype.kind == "c":  # kernels fold real numbers
        return complex(sum_of(real(x), over), sum_of(imag(x), over)), left
    return cast_to(sum_of(x, over), x.dtype), left


def _next_pair(left: Sequence[Named], out: Axes) -> tuple[int, int]:
    """The two operands whose product takes the fewest steps, where symbolic sizes count as a usual one."""
    if len(left) == 2:
        return 0, 1
    pairs = [(i, j) for j in range(len(left)) for i in range(j)]

    def steps(pair: tuple[int, int]) -> int:
        met = {a: n for k in pair for a, n in zip(left[k][1], left[k][0].shape, strict=True)}
        return math.prod(n if isinstance(n, int) else _USUAL for n in met.values())

    return min(pairs, key=steps)


def _pair(p: Named, q: Named, out: Axes | None, wanted: set[str]) -> Named:
    """The product of two operands, summed over the axes that nobody else wants."""
    (x, a), (y, b) = p, q
    sizes = dict(zip((*a, *b), (*x.shape, *y.shape), strict=True))
    order = out or tuple(dict.fromkeys((*a, *b)))
    kept = tuple(n for n in order if n in wanted and (n in a or n in b))
    summed = tuple(n for n in a if n in b and n not in wanted)
    batch = tuple(n for n in kept if n in a and n in b)
    rows, columns = (tuple(n for n in kept if n in u and n not in v) for u, v in ((a, b), (b, a)))
    names = (*batch, *rows, *columns)
    if not summed:
        u = _turned(x, a, (*batch, *rows))
        v = _turned(y, b, (*batch, *columns))
        u = reshape(u, (*u.shape, *(1,) * len(columns)))
        v = reshape(v, (*v.shape[: len(batch)], *(1,) * len(rows), *v.shape[len(batch) :]))
        return mul(u, v), names
    if len(rows) == len(columns) == len(summed) == 1:
        plain = out is not None and set(out[-2:]) == {*rows, *columns}
        names = kept if plain else names
        spec = str(Signature((a, b), names))
        return _product(x, y, spec), names
    m, k, n = (count(_sizes_of(g, sizes)) for g in (rows, summed, columns))
    lead = _sizes_of(batch, sizes)
    u = reshape(_turned(x, a, (*batch, *rows, *summed)), (*lead, m, k))
    v = reshape(_turned(y, b, (*batch, *summed, *columns)), (*lead, k, n))
    stack = tuple(f"d{i}" for i in range(len(batch)))
    spec = str(Signature(((*stack, "m", "k"), (*stack, "k", "n")), (*stack, "m", "n")))
    z = _product(u, v, spec)
    return reshape(z, _sizes_of(names, sizes)), names


def _sizes_of(axes: Axes, sizes: dict[str, Size]) -> Shape:
    """The sizes of some axes."""
    return tuple(sizes[a] for a in axes)


def _contract_as(name: str, spec: str, *xs: Value) -> Value:
    """contract, with errors that speak of the function the user called."""
    try:
        return contract(spec, *xs)
    except ShapeError as e:
        raise ShapeError(e.message.replace("contract:", f"{name}:", 1)) from None


@public
def einsum(spec: str, *xs: ArrayLike) -> Value:
    """Sum of products in Einstein's notation, as numpy.einsum: einsum("bij,bjk->bik", a, b)."""
    values = [as_value(x, "einsum") for x in xs]
    left, arrow, right = spec.replace(" ", "").partition("->")
    parts = left.split(",")
    if len(parts) != len(values):
        raise OperandError(f"einsum: '{spec}' names {len(parts)} operands, got {len(values)}")
    dots = 0
    for part, v in zip(parts, values, strict=True):
        named = len(part.replace("...", ""))
        if named > v.ndim or ("..." not in part and named != v.ndim):
            raise ShapeError(f"einsum: '{part}' in '{spec}' does not fit operand {v.type}")
        dots = max(dots, v.ndim - named)
    ellipsis = [f"e{i}" for i in range(dots)]
    if not arrow:
        flat = left.replace(",", "").replace("...", "")
        right = ("..." if dots else "") + "".join(
            sorted(c for c in set(flat) if flat.count(c) == 1)
        )
    if unknown := set(right.replace("...", "")) - set(left):
        raise OperandError(f"einsum: '{spec}' has '{min(unknown)}' in the result but in no operand")
    return _aligned(values, parts, right, ellipsis)


def _aligned(values: list[Value], parts: list[str], right: str, ellipsis: list[str]) -> Value:
    """Contract operands whose '...' axes broadcast: those of size 1 are dropped."""
    names, ready = [], []
    sizes = _ellipsis_sizes(values, parts, len(ellipsis))
    for part, v in zip(parts, values, strict=True):
        axes = _spell(part, v.ndim, ellipsis)
        dead = [
            i for i, a in enumerate(axes) if a in ellipsis and v.shape[i] == 1 and sizes[a] != 1
        ]
        names.append([a for i, a in enumerate(axes) if i not in dead])
        ready.append(squeeze(v, dead) if dead else v)
    out = _spell(right, len(right.replace("...", "")) + len(ellipsis), ellipsis)
    spec = f"{', '.join(' '.join(a) for a in names)} -> {' '.join(out)}"
    return _contract_as("einsum", spec, *ready)


def _spell(part: str, rank: int, ellipsis: list[str]) -> list[str]:
    before, dots, after = part.partition("...")
    count = rank - len(before) - len(after) if dots else 0
    return [*before, *ellipsis[len(ellipsis) - count :], *after] if dots else list(part)


def _ellipsis_sizes(values: list[Value], parts: list[str], count: int) -> dict[str, Any]:
    shapes = []
    for part, v in zip(parts, values, strict=True):
        before, dots, after = part.partition("...")
        stop = v.ndim - len(after)
        shapes.append(TensorType(v.dtype, v.shape[len(before) : stop] if dots else ()))
    met = broadcast_shapes("einsum", shapes)
    return {f"e{i}": n for i, n in zip(range(count - len(met), count), met, strict=True)}


@define(
    signature="... m k, ... k n -> ... m n", body=product(2), combine="add", linear=(0, 1),
    kinds="uifc", numpy=lambda a, b, **_: np.matmul(a, b), onnx="MatMul",
    batch=lambda n, xs, batched: matmul(*xs, **n.params),
    transpose=lambda n, ct, k: (
        matmul(ct, _swapped(n.operands[1])) if k == 0 else matmul(_swapped(n.operands[0]), ct)
    ),
    samples=(
        Sample((2, 3), (3, 4)), Sample((3,), (3,)), Sample((2, 3), (3,)), Sample((3,), (3, 2)),
        Sample((5, 2, 3), (3, 4)), Sample((2, 1, 2, 3), (5, 3, 4)), Sample((2, 0), (0, 3)),
    ),
)  # fmt: skip
def matmul(
    a: ArrayLike, b: ArrayLike, *, tile_shape: tuple[int, int, int] | None = None, schedule: Any = None
) -> Value:  # fmt: skip
    """Matrix product over the last two axes; the axes before them broadcast.

    `tile_shape` and `schedule`, a Schedule, say how its kernel is cut up, which changes no bit.
    """
    x, y = as_value(a, "matmul"), as_value(b, "matmul")
    if x.ndim == 0 or y.ndim == 0:
        raise ShapeError(f"matmul: operands {x.type}, {y.type}: a scalar is no matrix; use op.mul")
    if not unify(x.shape[-1], y.shape[max(y.ndim - 2, 0)], "matmul: axis 'k' of operands 0 and 1"):
        raise ShapeError(
            f"matmul: axis 'k' is {x.shape[-1]} in operand 0 {x.type} but "
            f"{y.shape[max(y.ndim - 2, 0)]} in operand 1 {y.type}{_advice(x, y)}"
        )
    if x.dtype is not y.dtype:
        x, y = (cast_to(v, promote_all([x.dtype, y.dtype])) for v in (x, y))
    cut = {"tile_shape": tile_shape, "schedule": schedule}
    if x.ndim == 1:
        row = matmul(expand_dims(x, 0), y, **cut)
        return squeeze(row, -2 if y.ndim > 1 else 0)
    if y.ndim == 1:
        return squeeze(matmul(x, expand_dims(y, 1), **cut), -1)
    if y.ndim == 2 and x.ndim > 2:  # one large product instead of one for each batch element
        flat = matmul(reshape(x, (count(x.shape[:-1]), x.shape[-1])), y, **cut)
        return reshape(flat, (*x.shape[:-1], y.shape[-1]))
    batch = _batch_shape(x, y)
    hint: dict[str, Any] = {} if tile_shape is None else {"tile_shape": _tile(tile_shape)}
    if schedule is not None:
        hint["schedule"] = _settings(schedule)
    x, y = (broadcast(v, (*batch, *v.shape[-2:])) for v in (x, y))
    if x.dtype.kind != "c":
        return matmul.bind(x, y, **hint)
    if hint:
        raise OperandError(f"matmul: tile_shape does nothing for {x.dtype}: a product of complex numbers is "
                           "several products; leave it out")  # fmt: skip
    stack = " ".join(letters(len(batch)))
    return _product(x, y, f"{stack} M K, {stack} K N -> {stack} M N")


def _advice(x: Value, y: Value) -> str:
    """What would make a matmul fit."""
    if y.ndim >= 2 and same(x.shape[-1], y.shape[-1]):
        return "; transpose operand 1 with .mT"
    if x.ndim >= 2 and same(x.shape[-2], y.shape[max(y.ndim - 2, 0)]):
        return "; transpose operand 0 with .mT"
    return ""


def _tile(tile_shape: Any) -> tuple[int, int, int]:
    t = tuple(tile_shape)
    if len(t) != 3 or not all(isinstance(n, int) and n > 0 for n in t):
        raise OperandError(
            f"matmul: tile_shape is {tile_shape!r}, expected three positive sizes (m, n, k)"
        )
    _demand_blocks("tile_shape")
    return t


def _settings(schedule: Any) -> str:
    """A schedule as JSON; a node that is made again has it already."""
    if isinstance(schedule, str) and schedule.startswith("{"):
        return schedule
    whole = getattr(schedule, "schedule", schedule)  # of one that is being written
    said = whole.to_dict() if hasattr(whole, "to_dict") else None
    if not isinstance(said, dict) or not said:
        raise OperandError(
            f"matmul: schedule is {schedule!r:.40}, expected a Schedule that says something, as in "
            "block(64, 64)"
        )
    _demand_blocks("schedule")
    return json.dumps(said, sort_keys=True)


def _demand_blocks(what: str) -> None:
    if flags().target == "numpy" and not is_looking():
        raise OperandError(
            f"matmul: {what} does nothing on numpy: its references have no blocks; leave it out, or use "
            'jit(target="cpu")'
        )


def _batch_shape(x: Value, y: Value) -> Shape:
    try:
        return broadcast_shapes("matmul", [_batch(x), _batch(y)])
    except ShapeError:
        raise ShapeError(
            f"matmul: the axes before the last two of {x.type} and {y.type} do not broadcast; sizes "
            "must be equal or 1"
        ) from None


def _batch(x: Value) -> TensorType:
    return TensorType(x.dtype, x.shape[:-2])


def _swapped(x: Value) -> Value:
    return transpose(x, (*range(x.ndim - 2), x.ndim - 1, x.ndim - 2))


@public
def vecdot(a: ArrayLike, b: ArrayLike, axis: int = -1) -> Value:
    """Sum of conj(a) * b along an axis; the other axes broadcast."""
    x, y = as_value(a, "vecdot"), as_value(b, "vecdot")
    (k,) = axes_of("vecdot", axis, max(x.ndim, y.ndim))
    end = k - max(x.ndim, y.ndim)
    if -end > min(x.ndim, y.ndim) or not unify(x.shape[end], y.shape[end], "vecdot: the axis"):
        raise ShapeError(
            f"vecdot: operands {x.type}, {y.type} differ in size along axis {axis}, which does not "
            "broadcast"
        )
    x = conj(x) if x.dtype.kind == "c" else x
    p, q = meet("vecdot", (x, y))
    names = letters(p.ndim)
    out = [a for i, a in enumerate(names) if i != k]
    return contract(f"{' '.join(names)}, {' '.join(names)} -> {' '.join(out)}", p, q)


@public
def tensordot(a: ArrayLike, b: ArrayLike, axes: Any = 2) -> Value:
    """Sum of products over the last axes of a and the first of b, or over pairs of axes."""
    x, y = as_value(a, "tensordot"), as_value(b, "tensordot")
    if isinstance(axes, int):
        if axes < 0:
            raise AxisError(f"tensordot: axes is {axes}, expected 0 or more, or pairs of axes")
        pair = (list(range(x.ndim - axes, x.ndim)), list(range(axes)))
    else:
        pair = tuple([s] if isinstance(s, int) else list(s) for s in axes)  # type: ignore[assignment]
    left, right = axes_of("tensordot", pair[0], x.ndim), axes_of("tensordot", pair[1], y.ndim)
    if len(left) != len(right):
        raise ShapeError(f"tensordot: {len(left)} axes of operand 0 but {len(right)} of operand 1")
    xs, ys = letters(x.ndim), letters(y.ndim, x.ndim)
    for i, j in zip(left, right, strict=True):
        ys[j] = xs[i]
    out = [n for i, n in enumerate(xs) if i not in left] + [
        n for j, n in enumerate(ys) if j not in right
    ]
    spec = f"{' '.join(xs)}, {' '.join(ys)} -> {' '.join(out)}"
    return _contract_as("tensordot", spec, x, y)


@public
def outer(a: ArrayLike, b: ArrayLike) -> Value:
    """All products of an element of vector a and one of vector b."""
    x, y = as_value(a, "outer"), as_value(b, "outer")
    if x.ndim != 1 or y.ndim != 1:
        raise ShapeError(f"outer: operands {x.type}, {y.type} must be vectors")
    return mul(expand_dims(x, 1), expand_dims(y, 0))


@public
def kron(a: ArrayLike, b: ArrayLike) -> Value:
    """Kronecker product: every element of a times the whole of b."""
    x, y = as_value(a, "kron"), as_value(b, "kron")
    rank = max(x.ndim, y.ndim)
    x = reshape(x, (1,) * (rank - x.ndim) + x.shape)
    y = reshape(y, (1,) * (rank - y.ndim) + y.shape)
    wide = mul(
        reshape(x, tuple(n for s in x.shape for n in (s, 1))),
        reshape(y, tuple(n for s in y.shape for n in (1, s))),
    )
    return reshape(wide, tuple(m * n for m, n in zip(x.shape, y.shape, strict=True)))
