"""Tessera: operators, tiles and meshes, through one compiler to machine code."""

from tessera.core import tree as tree
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
from tessera.lang import graph as graph
from tessera.lang import op as op
from tessera.lang.device import device as device
from tessera.lang.device import devices as devices
from tessera.lang.jit import jit as jit
from tessera.lang.shapes import trace as trace
from tessera.lang.shapes import shapes as shapes
from tessera.lang.tensor import Tensor as Tensor
from tessera.lang.tensor import asarray as asarray
from tessera.lang.tensor import tensor as tensor
from tessera.lang.transforms import grad as grad
from tessera.lang.transforms import jvp as jvp
from tessera.lang.transforms import linearize as linearize
from tessera.lang.transforms import value_and_grad as value_and_grad
from tessera.lang.transforms import vjp as vjp
from tessera.learn import optim as optim

__version__ = "0.1.0"
