"""Constants, casts and ops that move elements."""

from __future__ import annotations

from typing import Any

import numpy as np

from tessera.core.dtype import i64
from tessera.interop.stablehlo.rules.table import rule
from tessera.interop.stablehlo.writer import Ssa, StableHloWriter, ints
from tessera.ir.graph.ir import Node


@rule("stop_gradient", "positive", "checkpoint_name")
def _same(w: StableHloWriter, n: Node, x: Ssa) -> Any:
    return x


@rule("barrier")
def _barrier(w: StableHloWriter, n: Node, *xs: Ssa) -> Any:
    return w.many("stablehlo.optimization_barrier", xs, [(x.dtype, x.shape) for x in xs])


@rule("state_prefetch")
def _prefetch(w: StableHloWriter, n: Node, x: Ssa) -> Any:
    return w.full(0, n.results[0].dtype, n.results[0].shape)


@rule("gauged", "same_in_every_gauge")
def _gauged(w: StableHloWriter, n: Node, ids: Ssa, *xs: Ssa) -> Any:
    return list(xs)


@rule("cast")
def _cast(w: StableHloWriter, n: Node, x: Ssa) -> Any:
    return w.cast(x, n.params["dtype"])


@rule("complex")
def _complex(w: StableHloWriter, n: Node, re: Ssa, im: Ssa) -> Any:
    return w.op("complex", re, im, dtype=n.results[0].dtype)


@rule("constant")
def _constant(w: StableHloWriter, n: Node) -> Any:
    return w.constant(n.params["value"].array, n.results[0].dtype)


@rule("full")
def _full(w: StableHloWriter, n: Node) -> Any:
    return w.full(n.params["value"], n.params["dtype"], n.params["shape"])


@rule("iota")
def _iota(w: StableHloWriter, n: Node) -> Any:
    p = n.params
    if p["dtype"].kind == "b":
        return w.cast(w.iota(p["shape"], p["axis"]), p["dtype"])
    return w.iota(p["shape"], p["axis"], p["dtype"])


@rule("dim")
def _dim(w: StableHloWriter, n: Node) -> Any:
    return w.constant(np.array(n.params["size"]), i64)


@rule("reshape")
def _reshape(w: StableHloWriter, n: Node, x: Ssa) -> Any:
    return w.reshape(x, n.params["shape"])


@rule("broadcast_to")
def _broadcast(w: StableHloWriter, n: Node, x: Ssa) -> Any:
    shape = n.params["shape"]
    return w.broadcast(x, shape, range(len(shape) - len(x.shape), len(shape)))


@rule("transpose")
def _transpose(w: StableHloWriter, n: Node, x: Ssa) -> Any:
    return w.transpose(x, n.params["axes"])


@rule("slice")
def _slice(w: StableHloWriter, n: Node, x: Ssa) -> Any:
    p = n.params
    return w.slice(x, p["start"], p["stop"], p["step"])


@rule("concat")
def _concat(w: StableHloWriter, n: Node, *xs: Ssa) -> Any:
    return w.concat(xs, n.params["axis"])


@rule("flip")
def _flip(w: StableHloWriter, n: Node, x: Ssa) -> Any:
    return w.op("reverse", x, properties={"dimensions": ints(n.params["axes"])})


@rule("pad")
def _pad(w: StableHloWriter, n: Node, x: Ssa, value: Ssa) -> Any:
    p = n.params
    held = {
        "edge_padding_low": ints(p["low"]), "edge_padding_high": ints(p["high"]),
        "interior_padding": ints(p["inner"]),
    }  # fmt: skip
    return w.op("pad", x, value, shape=n.results[0].shape, properties=held)


@rule("tile")
def _tile(w: StableHloWriter, n: Node, x: Ssa) -> Any:
    """Each axis repeated: a new axis in front of it, joined with it."""
    reps = n.params["reps"]
    lead = (1,) * (len(reps) - len(x.shape))
    shape = (*lead, *x.shape)
    count = (*(1,) * (len(shape) - len(reps)), *reps)
    wide = [k for pair in zip(count, shape, strict=True) for k in pair]
    spread = w.broadcast(w.reshape(x, shape), wide, range(1, 2 * len(shape), 2))
    return w.reshape(spread, n.results[0].shape)
