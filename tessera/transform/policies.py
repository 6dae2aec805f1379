"""legalize_policies: numeric policies become ops on plain formats, so that levels below have no policies.

    %2 = add(%0, %1) : bf16 @ saturate   ->   %a = add(cast(%0, f32), cast(%1, f32))
                                              %2 = cast(min(max(%a, -top), top), bf16)

An op widens its operands to the format that docs/numerics.md names, computes there, and its result is
rounded once: clamped under `saturate`, to one of two neighbours under `stochastic_round`.  `tf32` rounds
the operands of contractions.  `loss_scale` acts in derivatives alone, which are taken before this pass.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from tessera.core.constant import Constant
from tessera.core.constraints import Scope, current_scope, scope
from tessera.core.dims import Size
from tessera.core.dtype import DType, f32, f64, i64, u32, u64
from tessera.core.rounding import round_to
from tessera.ir.graph.interp import clamps, wide
from tessera.ir.graph.ir import Builder, Graph, Node, Value, bind, building
from tessera.ops.creation import full, iota
from tessera.ops.define import broadcast, cast_to, size_value
from tessera.ops.elementwise import (
    abs,
    add,
    bitwise_and,
    bitwise_left_shift,
    bitwise_right_shift,
    bitwise_xor,
    cast,
    copysign,
    div,
    floor,
    isfinite,
    le,
    lt,
    maximum,
    minimum,
    mul,
    sub,
    where,
)
from tessera.ops.reinterpret import float_bits, from_bits
from tessera.transform.maker import python_number

_finfo: Any = ml_dtypes.finfo
_iinfo: Any = ml_dtypes.iinfo
# The hash of docs/numerics.md.
_STEP, _FIRST, _SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


def legalize_policies(g: Graph) -> Graph:
    """g with every policy spelled out; the same graph where it has none."""
    if not _has_policies(g):
        return g
    with scope(Scope.of(g.guards, around=current_scope())) as facts:
        return _legal(g, facts)


def _has_policies(g: Graph) -> bool:
    values = [*g.inputs, *(v for n in g.nodes for v in n.results)]
    return any(v.dtype is not v.dtype.base for v in values) or any(
        _has_policies(r) for n in g.nodes for r in n.regions
    )


def _legal(g: Graph, facts: Scope | None = None) -> Graph:
    builder = Builder(input_names=g.input_names)
    env: dict[Value, Value] = {
        v: builder.input(v.type.with_dtype(v.dtype.base), v.device) for v in g.inputs
    }
    with building(builder):
        for n in g.nodes:
            builder.location = n.location
            results = _results(n, [env[v] for v in n.operands])
            env.update(zip(n.results, results, strict=True))
        outputs = [env[v] for v in g.outputs]
    guards = g.guards if facts is None else facts.guards
    return Graph(builder.inputs, builder.nodes, outputs, g.name, g.input_names, g.captured, guards)


def _results(n: Node, xs: list[Value]) -> list[Value]:
    params = {k: _plain(v) for k, v in n.params.items()}
    if n.op is cast.op:
        return [rounded(xs[0], n.params["dtype"])]
    if n.op is full.op and n.params["dtype"] is not n.results[0].dtype.base:
        value = round_to(np.asarray(n.params["value"]), n.params["dtype"])
        params["value"] = python_number(value, n.params["dtype"])
    regions = tuple(_legal(r) for r in n.regions)
    dtypes = [v.dtype for v in n.operands]
    ys = [
        x if d is d.base else cast_to(x, wide(n.op, d).base)
        for x, d in zip(xs, dtypes, strict=True)
    ]
    contracts = n.op.combine is not None and len(xs) > 1
    if contracts and any(d.policy.math == "tf32" for d in dtypes):
        ys = [_tf32(y) for y in ys]
    out = bind(n.op, *ys, regions=regions, **params)
    outs = out if n.op.multiple else (out,)
    return [_result(n, y, r.dtype) for y, r in zip(outs, n.results, strict=True)]


def _plain(x: Any) -> Any:
    """A parameter without policies."""
    if isinstance(x, DType):
        return x.base
    return Constant(x.array, x.dtype.base) if isinstance(x, Constant) else x


def _result(n: Node, y: Value, dtype: DType) -> Value:
    y = cast_to(y, y.dtype.base)  # a kernel states the policies of its results
    same = y.dtype is dtype.base
    return y if same and not (n.operands and clamps(n.op, dtype)) else rounded(y, dtype)


# Rounding, as core/rounding.py defines it ---------------------------------------------------------


def rounded(x: Value, to: DType) -> Value:
    """x in the format of a dtype, rounded under its policy."""
    policy, source = to.policy, x.dtype
    if to.kind in "iu" and source.kind in "iu" and policy.saturate:
        of, here = _iinfo(to.np), _iinfo(source.np)
        low, high = max(int(of.min), int(here.min)), min(int(of.max), int(here.max))
        return cast_to(_held(x, low, high), to.base)
    if to.kind == "f" and (policy.saturate or policy.stochastic_round) and source.kind != "c":
        x = x if source in (f32, f64) else cast_to(x, f64)
        if policy.stochastic_round and source.np != to.np:
            x = _stochastic(x, to)
        if policy.saturate:
            top = float(_finfo(to.np).max)
            x = _held(x, -top, top)
    return cast_to(x, to.base)


def _number(like: Value, value: float | int, dtype: DType | None = None) -> Value:
    """A number as a tensor of another one's shape."""
    one: Value = full.bind(shape=(), value=value, dtype=dtype or like.dtype)
    return broadcast(one, like.shape)


def _held(x: Value, low: float, high: float) -> Value:
    return minimum(maximum(x, _number(x, low)), _number(x, high))


def _tf32(x: Value) -> Value:
    """f32 with a mantissa of 10 bits, to nearest even."""
    raw = float_bits(x)
    drop, one, most = (_number(x, k, u32) for k in (13, 1, (1 << 12) - 1))
    bias = add(bitwise_and(bitwise_right_shift(raw, drop), one), most)
    near = bitwise_left_shift(bitwise_right_shift(add(raw, bias), drop), drop)
    return where(isfinite(x), from_bits(near), x)


def _stochastic(x: Value, to: DType) -> Value:
    """One of the two neighbours in a format, the upper one with a probability by the distance.

    In f64 every step is exact: neighbours are multiples of a power of two, the unit.
    """
    info, y = _finfo(to.np), cast_to(x, f64)
    unit = _unit(y, int(info.nmant), int(info.minexp))
    down = mul(floor(div(y, unit)), unit)
    share = div(sub(y, down), unit)
    pick = copysign(where(lt(_uniform(y), share), add(down, unit), down), y)
    inside = le(abs(y), _number(y, float(info.max)))
    return cast_to(where(inside, pick, y), x.dtype)


def _unit(y: Value, fraction: int, least: int) -> Value:
    """The distance of neighbours around y in a format, a power of two made from the exponent's bits."""
    exponent = bitwise_right_shift(
        bitwise_and(float_bits(y), _number(y, 0x7FF << 52, u64)), _number(y, 52, u64)
    )
    held = maximum(exponent, _number(y, least + 1023, u64))
    return from_bits(bitwise_left_shift(sub(held, _number(y, fraction, u64)), _number(y, 52, u64)))


def _uniform(y: Value) -> Value:
    """Numbers in [0, 1) from each element's row-major index and bits."""
    index = cast_to(_row_major(y), u64)
    mixed = _mix(bitwise_xor(float_bits(y), _mix(add(index, _number(y, _STEP, u64)))))
    whole = bitwise_right_shift(mixed, _number(y, 11, u64))
    return mul(cast_to(whole, f64), _number(y, 2.0**-53, f64))


def _row_major(y: Value) -> Value:
    """Each element's place in row-major order."""
    total = _number(y, 0, i64)
    stride: Size = 1
    for axis in reversed(range(len(y.shape))):
        here: Value = iota.bind(shape=y.shape, axis=axis, dtype=i64)
        step = (
            _number(y, stride, i64)
            if isinstance(stride, int)
            else broadcast(size_value(stride), y.shape)
        )
        total = add(total, mul(here, cast_to(step, i64)))
        stride = stride * y.shape[axis]
    return total


def _mix(z: Value) -> Value:
    for shift, factor in ((30, _FIRST), (27, _SECOND)):
        moved = bitwise_right_shift(z, _number(z, shift))
        z = mul(bitwise_xor(z, moved), _number(z, factor))
    return bitwise_xor(z, bitwise_right_shift(z, _number(z, 31)))
