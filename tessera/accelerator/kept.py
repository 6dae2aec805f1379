"""Ops that a GPU has kernels for as they are, and the kernels of each."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from tessera.core.convolutions import MOST_AXES
from tessera.core.primitive import are_plain
from tessera.core.types import TensorType
from tessera.ir.graph.ir import Graph, Node
from tessera.ir.schedule.ir import HostCall
from tessera.ir.target.gluon.flash_backward_match import double
from tessera.ir.target.gluon.flash_forward_match import ROWS, pipeline
from tessera.ir.tile.gpu.attention import (
    Columns,
    Delta,
    Forward,
    KeysBackward,
    Problem,
    QueriesBackward,
    backward_threads,
    forward_threads,
)
from tessera.ir.tile.gpu.pooling import POOLS
from tessera.ir.tile.launch import Launch, Threads
from tessera.transform.decompose import decompose

_SIZES = (16, 32, 64, 128)
NAMES = ("attention", "attention_grad")
UPDATE = "dynamic_update_slice"
_PART = 4  # of a tensor, at most, that is replaced where it lies


def is_kept(n: Node) -> bool:
    """Whether a node stays whole: an attention on narrow floats, without a mask, a pooling, or an update of a small part."""
    if n.op.name == UPDATE:
        return _is_small(*n.types[:2])
    if n.op.name in POOLS:
        return _is_pool(n)
    if n.op.name not in NAMES:
        return False
    q, _, v = n.types[:3]
    masked = n.op.name == "attention" and len(n.types) > 3
    sizes = all(isinstance(s, int) and s in _SIZES for s in (q.shape[-1], v.shape[-1]))
    scale = n.params["scale"]
    return not masked and sizes and q.dtype.bits == 16 and (scale is None or scale > 0)


def _is_pool(n: Node) -> bool:
    """Whether a pooling has kernels: floats of a machine, up to three axes, known windows, no negative padding."""
    t, p = n.types[0], n.params
    known = [*p["size"], *p["stride"], *p["dilation"], *(k for pair in p["padding"] for k in pair)]
    plain = are_plain(n.types, p) and t.dtype.kind == "f" and t.rank - 2 <= MOST_AXES
    whole = 0 not in (*t.shape, *n.results[0].shape)
    return plain and whole and all(isinstance(k, int) and k >= 0 for k in known)


def decompose_rest(g: Graph) -> Graph:
    """g with every op that has a decomposition replaced by it, but for those that a GPU has kernels for."""
    return decompose(g, is_kept)


def _is_small(whole: TensorType, part: TensorType) -> bool:
    """Whether a part is worth a kernel of its own, which leaves the rest of a tensor alone."""
    if not (whole.static and part.static) or whole.dtype.kind == "c" or whole.dtype.bits < 8:
        return False
    n, m = (math.prod(int(k) for k in t.shape) for t in (whole, part))
    return 0 < m * _PART <= n


def problem(
    s: HostCall, types: Mapping[str, TensorType], columns: Mapping[str, Columns]
) -> Problem:
    """The sizes of an attention, and which of its tensors lie in columns of others."""
    q, k, v = (types[x] for x in s.operands[:3])
    *lead, heads, queries, size = (int(n) for n in q.shape)
    groups, keys = (int(n) for n in k.shape[-3:-1])
    scale = s.node.params["scale"]
    factor = 1 / math.sqrt(size) if scale is None else float(scale)
    return Problem(
        math.prod(lead), heads, groups, queries, keys, size, int(v.shape[-1]), q.dtype.base,
        bool(s.node.params["causal"]), factor, _columns(s, columns),
    )  # fmt: skip


def _columns(s: HostCall, columns: Mapping[str, Columns]) -> tuple[tuple[str, Columns], ...]:
    forward = s.node.op.name == "attention"
    names = ("q", "k", "v", "o") if forward else ("q", "k", "v", "o", "d_o", "d_q", "d_k", "d_v")
    given = zip(names, (*s.operands, *s.results), strict=True)
    return tuple((n, columns[x]) for n, x in given if x in columns)


def forward(p: Problem, operands: Sequence[str], o: str, logs: str, roles: bool) -> Launch:
    """The launch of an attention; `roles` where groups of threads may have roles."""
    if roles:
        kernel = Forward(p, ROWS).kernel()
        if pipeline(kernel) is not None:
            stages = 2 if p.size > 64 else 4
            threads = Threads(4, stages, approximate=True, roles=True)
            return Launch(kernel, tuple(operands), (o, logs), threads)
    block = (64, 128) if p.size <= 64 else (128, 128)
    return Launch(Forward(p, *block).kernel(), tuple(operands), (o, logs), forward_threads(p))


def backward(
    p: Problem, operands: Sequence[str], results: Sequence[str], logs: str, delta: str, roles: bool
) -> list[Launch]:
    """The launches of its derivative; `roles` where groups of threads may have roles."""
    q, k, v, o, ct = operands
    d_q, d_k, d_v = results
    launches = [Launch(Delta(p).kernel(), (o, ct), (delta,), Threads(4))]
    for kernel, outputs in (
        (KeysBackward(p, 64, 64).kernel(), (d_k, d_v)),
        (QueriesBackward(p, 64, 64).kernel(), (d_q,)),
    ):
        threads = backward_threads(p)
        if roles and double(kernel) is not None:
            threads = Threads(4, 4, approximate=True, roles=True)
        launches.append(Launch(kernel, (q, k, v, ct, logs, delta), outputs, threads))
    return launches
