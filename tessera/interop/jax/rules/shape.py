"""Primitives that make, move and join elements."""

from __future__ import annotations

from typing import Any

from tessera.core.dtype import as_dtype
from tessera.interop.jax.rules.table import Params, rule
from tessera.ir.graph.ir import Value
from tessera.lang import op
from tessera.ops.shape import pad


def _plain(numbers: Any) -> tuple[int, ...]:
    return tuple(map(int, numbers))


@rule("broadcast_in_dim")
def _broadcast(p: Params, x: Value) -> Value:
    shape, dims = p["shape"], list(map(int, p["broadcast_dimensions"]))
    wide = [1] * len(shape)
    for d, n in zip(dims, x.shape, strict=True):
        wide[d] = n
    return op.broadcast_to(op.reshape(x, tuple(wide)), tuple(shape))


@rule("reshape")
def _reshape(p: Params, x: Value) -> Value:
    if p.get("dimensions") is not None:
        x = op.transpose(x, p["dimensions"])
    return op.reshape(x, _plain(p["new_sizes"]))


@rule("squeeze")
def _squeeze(p: Params, x: Value) -> Value:
    return op.squeeze(x, tuple(map(int, p["dimensions"])))


@rule("expand_dims")
def _expand(p: Params, x: Value) -> Value:
    return op.expand_dims(x, p["dimensions"])


@rule("transpose")
def _transpose(p: Params, x: Value) -> Value:
    return op.transpose(x, tuple(map(int, p["permutation"])))


@rule("rev")
def _rev(p: Params, x: Value) -> Value:
    return op.flip(x, tuple(p["dimensions"])) if p["dimensions"] else x


@rule("concatenate")
def _concatenate(p: Params, *xs: Value) -> Value:
    return op.concat(xs, p["dimension"])


@rule("split")
def _split(p: Params, x: Value) -> list[Value]:
    return list(op.split(x, tuple(map(int, p["sizes"])), p["axis"]))


@rule("tile")
def _tile(p: Params, x: Value) -> Value:
    return op.tile(x, p["reps"])


@rule("slice")
def _slice(p: Params, x: Value) -> Value:
    steps = None if p["strides"] is None else _plain(p["strides"])
    return op.slice_(x, _plain(p["start_indices"]), _plain(p["limit_indices"]), steps)


@rule("pad")
def _pad(p: Params, x: Value, value: Value) -> Value:
    low, high, inner = (tuple(int(c[i]) for c in p["padding_config"]) for i in range(3))
    return pad.bind(x, value, low=low, high=high, inner=inner)


@rule("iota")
def _iota(p: Params) -> Value:
    return op.iota(_plain(p["shape"]), int(p["dimension"]), as_dtype(p["dtype"]))


@rule("dynamic_slice")
def _dynamic_slice(p: Params, x: Value, *starts: Value) -> Value:
    return op.dynamic_slice(x, starts, _plain(p["slice_sizes"]))


@rule("dynamic_update_slice")
def _dynamic_update(p: Params, x: Value, part: Value, *starts: Value) -> Value:
    return op.dynamic_update_slice(x, part, starts)


@rule("sharding_constraint", "mesh_cast")
def _placed(p: Params, x: Value) -> Any:
    return x


@rule("stack")
def _stack(p: Params, *xs: Value) -> Value:
    return op.stack(xs, int(p["axis"]))
