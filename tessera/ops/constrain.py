"""constrain and like: values that are to have a layout on the mesh that their program runs on."""

from __future__ import annotations

from tessera.core.layout import Cuts
from tessera.core.scalar import arg
from tessera.ir.graph.ir import Value, bind
from tessera.ir.graph.op import Op

# The cotangent is left free: how a gradient is laid out is the choice of what uses it.
CONSTRAIN = Op(
    "constrain", "x in a layout on the mesh.", signature="... -> ...", body=arg(0), moves=True,
    linear=(0,), transpose=lambda n, ct, k: ct,
)  # fmt: skip

LIKE = Op(
    "like", "x in the layout that y has on the mesh.", signature="..., ... -> ...", body=arg(0), moves=True,
    result=lambda types, p: types[0].dtype, linear=(0,), transpose=lambda n, ct, k: ct,
)  # fmt: skip


def constrained(x: Value, cuts: Cuts) -> Value:
    """x, cut by these mesh axes along its axes."""
    made: Value = bind(CONSTRAIN, x, cuts=cuts)
    return made


def like(x: Value, y: Value) -> Value:
    """x where y is: on y's mesh, in y's layout.  Without a mesh it is x."""
    if y.device.kind != "mesh":
        return x
    made: Value = bind(LIKE, x, y)
    return made
