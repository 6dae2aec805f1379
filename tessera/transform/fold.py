"""Constant folding: nodes whose operands are known become constants, bit for bit.

    add(full 1.0, full 2.0)        ->  full 3.0          of any size, also symbolic
    reshape(full 1.0, ...)         ->  full 1.0
    sqrt(constant)                 ->  constant          up to 64 elements
    constant of equal elements     ->  full

Nodes are evaluated by the interpreter's own kernels, and only where every target gives the same
bits: a sum of floats or exp is left to the target.  Host calls are left alone: what they raise belongs
to the run.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tessera.core.constant import Constant
from tessera.core.errors import TesseraError
from tessera.core.rounding import round_to
from tessera.core.types import TensorType
from tessera.ir.graph.interp import exact, kernel, settled
from tessera.ir.graph.ir import Array, Node, Value
from tessera.ir.graph.op import forbidden
from tessera.ops.creation import constant, dim, full, iota
from tessera.transform.maker import Found, Maker, python_number

LARGEST_RESULT = 64  # elements of a result that is worth writing into the program
LARGEST_OPERAND = 4096  # elements that are folded while a program is compiled: bounds its time
LITERALS = frozenset((constant.op, full.op, iota.op))


def fold(n: Node, m: Maker) -> Found:
    """f(constants) -> constant."""
    op = n.op
    if not n.operands:
        return _literal(n, m)
    for v in n.operands:
        if v.node is None or v.node.op not in LITERALS:
            return None
    if n.regions or forbidden(op.effects, "merge") or (op.call is not None and not op.moves):
        return None
    return _fold_splats(n, m) or _fold_small(n, m)


def _literal(n: Node, m: Maker) -> Found:
    if n.op is constant.op:
        x = n.params["value"].array
        return _splat(x, n.results[0].type, m) if x.size else None
    if n.op is dim.op and isinstance(n.params["size"], int):
        return _splat(np.asarray(n.params["size"], np.int64), n.results[0].type, m)
    return None


def _fold_splats(n: Node, m: Maker) -> Found:
    """An exact elementwise op, or a view, of tensors that are one number everywhere."""
    if not exact(n.op) or not all(_one_value(v) for v in (*n.operands, *n.results)):
        return None
    numbers = [m.splat(v) for v in n.operands]
    if any(x is None for x in numbers):
        return None
    out = n.results[0].type
    if n.op.view is not None:
        return _splat(numbers[0], out, m)
    y = _evaluate(n, [TensorType(v.dtype, ()) for v in n.operands], numbers, out.with_shape(()))
    return None if y is None else _splat(y, out, m)


def _one_value(v: Value) -> bool:
    """Not complex, whose vector loops round in their own way, nor rounded by an element's index."""
    return v.dtype.kind != "c" and not v.dtype.policy.stochastic_round


def _fold_small(n: Node, m: Maker) -> Found:
    if not settled(n.op, n.types, [v.type for v in n.results]):
        return None
    if not all(v.type.static and v.type.size <= LARGEST_OPERAND for v in n.operands):
        return None
    if not all(v.type.static and v.type.size <= LARGEST_RESULT for v in n.results):
        return None
    if n.op.multiple:
        return None
    out = n.results[0].type
    y = _evaluate(n, n.types, [literal_data(v) for v in n.operands], out)
    if y is None:
        return None
    return (_splat(y, out, m) if y.size else None) or _constant(y, out, m)


def literal_data(v: Value) -> Array:
    """The elements of the result of a literal."""
    assert v.node is not None
    run = kernel(v.node.op, (), (v.type,), v.node.params)
    data: Array = run()
    return data


def _evaluate(n: Node, types: Any, data: Any, out: TensorType) -> Array | None:
    try:
        with np.errstate(all="ignore"):
            y: Array = kernel(n.op, types, (out,), n.params)(*data)
    except TesseraError:  # such as a negative integer power: the run will say so
        return None
    return y


def _splat(x: Any, t: TensorType, m: Maker) -> Found:
    """`full` of this type, when all elements of x have the same bits and `full` can make them."""
    flat = np.ascontiguousarray(x).reshape(-1)
    raw = flat.view(np.uint8).reshape(flat.size, -1)
    if not (raw == raw[0]).all():
        return None
    value = python_number(flat[0], t.dtype)
    if round_to(np.asarray(value), t.dtype).tobytes() != raw[0].tobytes():
        return None
    return m.full(t, value)


def _constant(x: Array, t: TensorType, m: Maker) -> Found:
    return m.make(
        constant.op, (), value=Constant(np.ascontiguousarray(x).reshape(x.shape), t.dtype)
    )
