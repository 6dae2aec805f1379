"""Values that a derivative keeps elsewhere: written out by the forward pass, read back by the backward pass.

From a GPU they go to pinned memory of the host, by copies beside the kernels (runtime/gpu/host_copies.py);
on a CPU, whose memory that is, to a file without a name in the temporary folder.  What was written is a
number in the program, and is read once.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from typing import Any

import numpy as np

from tessera.core.dtype import f64
from tessera.core.errors import RuleError
from tessera.core.offloaded import keep, take
from tessera.core.types import TensorType
from tessera.ir.graph.ir import Node, Value, bind
from tessera.ir.graph.op import Op, Params, Types, register
from tessera.ops.batching import Mask, batch_size
from tessera.ops.define import broadcast
from tessera.ops.shape import reshape, slice_

Array = np.ndarray[Any, Any]
PLACES = ("file", "host")


def _put(x: Array, to: str) -> Array:
    kept: Any = np.array(x)
    if to == "file":
        file = tempfile.TemporaryFile()  # noqa: SIM115  closed when it is read
        file.write(np.ascontiguousarray(x).reshape(-1).view(np.uint8).data)
        kept = file
    return np.array(keep(kept), np.float64)


def _get(number: Array, shape: Any, dtype: Any) -> Array:
    kept = take(int(number))
    if isinstance(kept, np.ndarray):
        return kept
    with kept as file:
        file.seek(0)
        made = np.empty(shape, dtype.np)
        file.readinto(made.reshape(-1).view(np.uint8).data)
    return made


def _refuse(n: Node, ts: Sequence[Any]) -> Any:
    raise RuleError(
        "offload: a second derivative would need what is written out again; use another policy of "
        "checkpoint for it"
    )


def _put_batch(n: Node, operands: Sequence[Value], batched: Mask) -> Value:
    size = batch_size(operands, batched)
    made: Value = bind(n.op, operands[0], **n.params)
    return broadcast(made, (size,))


def _get_batch(n: Node, operands: Sequence[Value], batched: Mask) -> Value:
    size = batch_size(operands, batched)
    first = reshape(slice_(operands[0], (0,), (1,)), ())
    made: Value = bind(n.op, first, **{**n.params, "shape": (size, *n.params["shape"])})
    return made


def _number(types: Types, p: Params) -> list[TensorType]:
    """A number that has derivatives: an integer has none, and a second derivative would be zero without a
    word.
    """
    return [TensorType(f64, ())]


_EFFECTS = frozenset(("movement",))
PUT = register(Op(
    "offload_put", "The number under which x is kept elsewhere.", call="offload_put", numpy=_put,
    infer=_number,
    moves=True, batch=_put_batch, jvp=_refuse, effects=_EFFECTS,
))  # fmt: skip
GET = register(Op(
    "offload_get", "What is kept elsewhere under a number.", call="offload_get", numpy=_get,
    infer=lambda types, p: [TensorType(p["dtype"], p["shape"])], moves=True, batch=_get_batch, jvp=_refuse,
    effects=_EFFECTS,
))  # fmt: skip


def put(x: Value) -> Value:
    """Write x out; its number."""
    made: Value = bind(PUT, x, to="file" if x.device.kind == "cpu" else "host")
    return made


def get(number: Value, like: TensorType) -> Value:
    """Read back what was written out."""
    made: Value = bind(GET, number, shape=like.shape, dtype=like.dtype)
    return made
