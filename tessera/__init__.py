"""Tessera: operators, tiles and meshes, through one compiler to machine code."""

import importlib
from types import ModuleType as _Module
from typing import TYPE_CHECKING

from tessera import ir as ir
from tessera.algebra.laws.derivation import Derivation as Derivation
from tessera.algebra.laws.simplify import explain as explain
from tessera.algebra.laws.simplify import simplify as simplify
from tessera.algebra.operator import Operator as Operator
from tessera.algebra.spectral import SpectralOperator as SpectralOperator
from tessera.core import tree as tree
from tessera.core.counterparts import lacking as _lacking
from tessera.core.dtype import accum as accum
from tessera.core.dtype import bf16 as bf16
from tessera.core.dtype import bool_ as bool_
from tessera.core.dtype import c64 as c64
from tessera.core.dtype import c128 as c128
from tessera.core.dtype import f8e4m3 as f8e4m3
from tessera.core.dtype import f8e5m2 as f8e5m2
from tessera.core.dtype import f16 as f16
from tessera.core.dtype import f32 as f32
from tessera.core.dtype import f64 as f64
from tessera.core.dtype import i4 as i4
from tessera.core.dtype import i8 as i8
from tessera.core.dtype import i16 as i16
from tessera.core.dtype import i32 as i32
from tessera.core.dtype import i64 as i64
from tessera.core.dtype import loss_scale as loss_scale
from tessera.core.dtype import saturate as saturate
from tessera.core.dtype import stochastic_round as stochastic_round
from tessera.core.dtype import tf32 as tf32
from tessera.core.dtype import u8 as u8
from tessera.core.dtype import u16 as u16
from tessera.core.dtype import u32 as u32
from tessera.core.dtype import u64 as u64
from tessera.core.errors import CompilerFaultWarning as CompilerFaultWarning
from tessera.core.errors import TesseraError as TesseraError
from tessera.core.flags import checked as checked
from tessera.core.flags import numerics as numerics
from tessera.core.moved import tell_moved as _tell_moved
from tessera.core.picture import PICTURES as _PICTURES
from tessera.lang import dist as dist
from tessera.lang import graph as graph
from tessera.lang import op as op
from tessera.lang.callbacks import callback as callback
from tessera.lang.callbacks import io_callback as io_callback
from tessera.lang.callbacks import print_ as print  # noqa: F401
from tessera.lang.callbacks import pure_callback as pure_callback
from tessera.lang.create import asarray as asarray
from tessera.lang.create import from_dlpack as from_dlpack
from tessera.lang.create import tensor as tensor
from tessera.lang.custom_rules import custom_jvp as custom_jvp
from tessera.lang.custom_rules import custom_vjp as custom_vjp
from tessera.lang.debug import debug_nans as debug_nans
from tessera.lang.device import device as device
from tessera.lang.device import devices as devices
from tessera.lang.device import gpu as gpu
from tessera.lang.dist.alpa import alpa_shard as alpa_shard
from tessera.lang.dist.pmap import pmap as pmap
from tessera.lang.dist.scope import mesh as mesh
from tessera.lang.effects import prefetch as prefetch
from tessera.lang.jacobians import hessian as hessian
from tessera.lang.jacobians import hvp as hvp
from tessera.lang.jacobians import jacfwd as jacfwd
from tessera.lang.jacobians import jacrev as jacrev
from tessera.lang.jit import jit as jit
from tessera.lang.names.attending import flash_attention as flash_attention
from tessera.lang.names.attending import qkv_projection as qkv_projection
from tessera.lang.names.attending import split_qkv as split_qkv
from tessera.lang.op import arange as arange
from tessera.lang.op import empty as empty
from tessera.lang.op import empty_like as empty_like
from tessera.lang.op import full as full
from tessera.lang.op import full_like as full_like
from tessera.lang.op import linspace as linspace
from tessera.lang.op import ones as ones
from tessera.lang.op import ones_like as ones_like
from tessera.lang.op import stop_gradient as stop_gradient
from tessera.lang.op import zeros as zeros
from tessera.lang.op import zeros_like as zeros_like
from tessera.lang.remat import budget as budget
from tessera.lang.remat import checkpoint as checkpoint
from tessera.lang.remat import offload as offload
from tessera.lang.remat import remat as remat
from tessera.lang.shapes import shapes as shapes
from tessera.lang.shapes import trace as trace
from tessera.lang.state import KVCache as KVCache
from tessera.lang.state_marks import OptimizerState as OptimizerState
from tessera.lang.state_marks import checkpointable as checkpointable
from tessera.lang.state_marks import fp32_master as fp32_master
from tessera.lang.state_marks import paged as paged
from tessera.lang.state_marks import rolling_window as rolling_window
from tessera.lang.stream import Event as Event
from tessera.lang.stream import Stream as Stream
from tessera.lang.tensor import ARRAY_NAMESPACE as _ARRAY_NAMESPACE
from tessera.lang.tensor import Tensor as Tensor
from tessera.lang.transforms import autodiff as autodiff
from tessera.lang.transforms import grad as grad
from tessera.lang.transforms import jvp as jvp
from tessera.lang.transforms import linearize as linearize
from tessera.lang.transforms import value_and_grad as value_and_grad
from tessera.lang.transforms import vjp as vjp
from tessera.lang.tuning import tune as tune
from tessera.lang.vmap import vmap as vmap
from tessera.learn import optim as optim
from tessera.ops.arrange import eye as eye
from tessera.ops.control import cond as cond
from tessera.ops.control import fori_loop as fori_loop
from tessera.ops.control import scan as scan
from tessera.ops.control import while_loop as while_loop
from tessera.ops.random_bits import fold_in as fold_in
from tessera.ops.random_bits import key as key
from tessera.ops.random_bits import split as split
from tessera.ops.tiles import ENGINE as _TILE_ENGINE
from tessera.runtime.threads import threads as threads

if TYPE_CHECKING:
    from tessera import array_api as array_api
    from tessera import cache as cache
    from tessera import data as data
    from tessera import models as models
    from tessera import nn as nn
    from tessera import stdlib as stdlib
    from tessera import testing as testing
    from tessera import train as train
    from tessera.deploy import bundle as bundle
    from tessera.files.load import load as load
    from tessera.files.save import save as save
    from tessera.inspect.profile import profile as profile
    from tessera.interop import jax as jax
    from tessera.interop import onnx as onnx
    from tessera.interop import stablehlo as stablehlo
    from tessera.interop import torch as torch
    from tessera.lang import debugging as debug  # noqa: F401
    from tessera.lang import tile as tile
    from tessera.lang import verify as verify
    from tessera.lang.checks import check as check
    from tessera.lang.control import associative_scan as associative_scan
    from tessera.lang.control import eval_shape as eval_shape
    from tessera.lang.control import map as map
    from tessera.lang.control import reduce as reduce
    from tessera.lang.control import switch as switch
    from tessera.lang.kernel.decorate import kernel as kernel
    from tessera.lang.kernel.launch import interpret as interpret
    from tessera.lang.kernel.signature import KTile as KTile
    from tessera.lang.kernel.signature import Tile as Tile
    from tessera.lang.schedule import Schedule as Schedule
    from tessera.lang.schedule import block as block
    from tessera.lang.seeds import seeds as seeds
    from tessera.lang.watching import watch as watch
    from tessera.lang.watching import watching as watching
    from tessera.nn.state import from_torch as from_torch
    from tessera.replay.record import record as record
    from tessera.train.dashboard import log as log

# Loaded when first used, so that `import tessera` stays light.
_LATER = {
    name: name
    for name in ("array_api", "cache", "data", "models", "nn", "stdlib", "testing", "train")
} | {
    "bundle": "deploy.bundle",
    "onnx": "interop.onnx",
    "stablehlo": "interop.stablehlo",
    "jax": "interop.jax",
    "torch": "interop.torch",
    "debug": "lang.debugging",
    "tile": "lang.tile",
    "verify": "lang.verify",
}
_KERNELS = {
    "check": "lang.checks", "profile": "inspect.profile",
    "kernel": "lang.kernel.decorate", "interpret": "lang.kernel.launch", "KTile": "lang.kernel.signature",
    "from_torch": "nn.state", "eval_shape": "lang.control", "switch": "lang.control", "map": "lang.control",
    "associative_scan": "lang.control", "reduce": "lang.control",
    "Tile": "lang.kernel.signature", "Schedule": "lang.schedule", "block": "lang.schedule",
    "log": "train.dashboard", "watch": "lang.watching", "watching": "lang.watching",
    "load": "files.load", "save": "files.save", "record": "replay.record", "seeds": "lang.seeds",
}  # fmt: skip


_tell_moved()
_TILE_ENGINE.provide(lambda: importlib.import_module("tessera.lang.kernel.traced"))
_PICTURES.provide(lambda: importlib.import_module("tessera.inspect.pictures"))
_ARRAY_NAMESPACE.provide(lambda: importlib.import_module("tessera.array_api"))


# Type checkers take what is imported above: a name that Tessera lacks is an error for them.
if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        if name in _LATER:
            return importlib.import_module(f"tessera.{_LATER[name]}")
        if name in _KERNELS:
            return getattr(importlib.import_module(f"tessera.{_KERNELS[name]}"), name)
        raise _lacking(
            "ts", name, __dir__(), {"op": dir(op), "optim": dir(optim), "ts.tree": dir(tree)}
        )


_MODULES = frozenset(("dist", "graph", "ir", "op", "optim", "tree", *_LATER))


def __dir__() -> list[str]:
    """What users write: packages of the compiler that something has imported are not shown."""
    own = {n for n, x in globals().items() if not (n.startswith("_") or isinstance(x, _Module))}
    return sorted((own - {"TYPE_CHECKING"}) | _MODULES | set(_KERNELS) | {"__version__"})


__version__ = "0.1.0"
