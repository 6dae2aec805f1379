"""Attention and its derivative as launches: which kernels, and whether groups of threads have roles."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from tessera.core.types import TensorType
from tessera.ir.schedule.device_steps import Columns
from tessera.ir.schedule.ir import HostCall
from tessera.ir.tile.gpu.attention import AttentionForward, AttentionProblem, forward_block
from tessera.ir.tile.gpu.attention_backward import (
    Delta,
    KeysBackward,
    QueriesBackward,
    keys_block,
    queries_block,
)
from tessera.ir.tile.gpu.attention_decode import (
    Join,
    KeysPart,
    by_group,
    is_few,
    join_threads,
    part_block,
    part_types,
)
from tessera.ir.tile.gpu.flash_backward_match import double
from tessera.ir.tile.gpu.flash_forward_match import GROUPS, ROWS, pipeline
from tessera.ir.tile.launch import Launch, Threads


def problem(
    s: HostCall, types: Mapping[str, TensorType], columns: Mapping[str, Columns]
) -> AttentionProblem:
    """The sizes of an attention, and which of its tensors lie in columns of others."""
    q, k, v = (types[x] for x in s.operands[:3])
    *lead, heads, queries, size = (int(n) for n in q.shape)
    groups, keys = (int(n) for n in k.shape[-3:-1])
    scale = s.node.params["scale"]
    factor = 1 / math.sqrt(size) if scale is None else float(scale)
    mask = None
    if s.node.op.kernel == "attention" and len(s.operands) > 3:
        m = types[s.operands[3]]
        mask = m.with_shape((*[1] * (max(q.rank, 4) - m.rank), *m.shape))
    return AttentionProblem(
        math.prod(lead), heads, groups, queries, keys, size, int(v.shape[-1]), q.dtype.base,
        bool(s.node.params["causal"]), factor, _columns(s, columns), mask, tuple(lead) or (1,),
    )  # fmt: skip


def _columns(s: HostCall, columns: Mapping[str, Columns]) -> tuple[tuple[str, Columns], ...]:
    forward = s.node.op.kernel == "attention"
    mask = ("mask",) * (len(s.operands) - 3)
    rest = (*mask, "o") if forward else ("o", "d_o", "d_q", "d_k", "d_v")
    given = zip(("q", "k", "v", *rest), (*s.operands, *s.results), strict=True)
    return tuple((n, columns[x]) for n, x in given if x in columns)


def forward(
    p: AttentionProblem, operands: Sequence[str], o: str, logs: str, roles: bool
) -> tuple[list[Launch], dict[str, TensorType]]:
    """The launches of an attention, and what passes between them; `roles` where groups of threads may
    have roles.
    """
    if is_few(p):
        return _few(p, operands, o, logs)
    if p.queries == 1 and not p.columns:
        p = by_group(p)
    given = tuple(operands), (o, logs)
    columns = roles_width(p) if roles else 0
    if columns:
        kernel = AttentionForward(p, ROWS, whole=columns).kernel()
        if pipeline(kernel) is not None:
            stages = 2 if columns > 64 else 4
            threads = Threads(4, stages, approximate=True, roles=True)
            return [Launch(kernel, *given, threads)], {}
    queries, threads = forward_block(p)
    return [Launch(AttentionForward(p, queries).kernel(), *given, threads)], {}


def roles_width(p: AttentionProblem) -> int:
    """Columns of the tiles of groups with roles, which hold a head and zeros behind it; 0 where there are
    none.
    """
    if p.size != p.values or p.mask is not None or p.size <= min(GROUPS) // 2:
        return 0
    lie = all(c.pitch % p.size == c.first % p.size == 0 for _, c in p.columns)
    found = next((n for n in sorted(GROUPS) if n >= p.size), 0)
    return found if found == p.size or not p.columns or lie else 0


def _few(
    p: AttentionProblem, operands: Sequence[str], o: str, logs: str
) -> tuple[list[Launch], dict[str, TensorType]]:
    """Parts of the keys, and what joins them."""
    between = {f"{o}.{n}": t for n, t in part_types(p).items()}
    queries, threads = part_block(p)
    parts = Launch(KeysPart(p, queries).kernel(), tuple(operands), tuple(between), threads)
    join = Launch(Join(p).kernel(), tuple(between), (o, logs), join_threads(p))
    return [parts, join], between


def backward(
    p: AttentionProblem,
    operands: Sequence[str],
    results: Sequence[str],
    logs: str,
    delta: str,
    roles: bool,
) -> list[Launch]:
    """The launches of its derivative; `roles` where groups of threads may have roles."""
    q, k, v, o, ct = operands
    d_q, d_k, d_v = results
    launches = [Launch(Delta(p).kernel(), (o, ct), (delta,), Threads(4))]
    columns = roles_width(p) if roles else 0
    for kind, block, outputs in (
        (KeysBackward, keys_block, (d_k, d_v)),
        (QueriesBackward, queries_block, (d_q,)),
    ):
        given = (q, k, v, ct, logs, delta), outputs
        if columns and double(kernel := kind(p, ROWS, ROWS, columns).kernel()) is not None:
            own = Threads(4, 4, approximate=True, roles=True)
            launches.append(Launch(kernel, *given, own))
        else:
            m, n, threads = block(p)
            launches.append(Launch(kind(p, m, n).kernel(), *given, threads))
    return launches
