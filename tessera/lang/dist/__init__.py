"""Meshes and distributed tensors: one program on many devices, with the same bits on any number of them.

The logical mesh belongs to the program, the ranks that run it to the machine.  A tensor of `dist.tensor` is global:
ops see the whole of it, and its layout says which logical shard holds which part.
"""

import importlib
from typing import TYPE_CHECKING

from tessera.core.modules import answer
from tessera.core.counterparts import lacking
from tessera.core.mesh import Mesh, balanced
from tessera.core.shardspec import ShardSpec
from tessera.lang.dist import strategy
from tessera.lang.dist.alpa import alpa_shard
from tessera.lang.dist.attention import attention
from tessera.lang.dist.collectives import (
    all_gather,
    all_reduce,
    all_to_all,
    axis_index,
    barrier,
    broadcast,
    permute,
    rank,
    reduce_scatter,
    size,
)
from tessera.lang.dist.experts import experts
from tessera.lang.dist.explain import Report, explain
from tessera.lang.dist.pipeline import pipeline, stacked
from tessera.lang.dist.pmap import pmap
from tessera.lang.dist.scope import mesh
from tessera.lang.dist.shard_map import shard_map
from tessera.lang.dist.tensor import (
    constrain,
    from_function,
    from_shards,
    replicate,
    reshard,
    shard,
    tensor,
)

if TYPE_CHECKING:
    from tessera.lang.dist.planning import plan as plan
    from tessera.lang.dist.planning import strategy_of as strategy_of
    from tessera.plan.choice import Choice as Choice
    from tessera.plan.machine import MACHINES as MACHINES
    from tessera.plan.machine import Machine as Machine
    from tessera.plan.machine import machine as machine
    from tessera.plan.model import Transformer as Transformer
    from tessera.plan.simulate import simulate as simulate
    from tessera.plan.value import Plan as Plan

# Loaded when first used, so that `import tessera` stays light.
_LATER = {
    "plan": "lang.dist.planning", "strategy_of": "lang.dist.planning", "Choice": "plan.choice",
    "MACHINES": "plan.machine", "Machine": "plan.machine", "machine": "plan.machine",
    "Transformer": "plan.model", "simulate": "plan.simulate", "Plan": "plan.value",
}  # fmt: skip


if not TYPE_CHECKING:  # for type checkers a name that is lacking is an error

    def __getattr__(name: str) -> object:
        if name in _LATER:
            return getattr(importlib.import_module(f"tessera.{_LATER[name]}"), name)
        raise lacking("dist", name, (*__all__, *_LATER))


__all__ = [
    "Mesh", "Report", "ShardSpec", "all_gather", "all_reduce", "all_to_all", "alpa_shard", "attention", "axis_index", "balanced", "barrier",
    "broadcast", "constrain", "experts", "explain", "from_function", "from_shards", "mesh", "permute", "pipeline", "pmap", "rank", "reduce_scatter",
    "replicate", "reshard", "shard", "shard_map", "size", "stacked", "strategy", "tensor",
]  # fmt: skip


answer(__name__, "dist")
