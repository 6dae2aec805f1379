"""Partition transforms and convolutions along the axes that they run over.

    %1 = fft(%0) {axes = (0, 1)} : c64[64@x, 64]
->  fft along axis 1, all_to_all, fft along axis 0 : c64[64, 64@x]

    %2 = conv(%0, %1) {padding = ((1, 1),)} : f32[1, 8, 64@x], f32[8, 8, 3]
->  the last element of the shard before and the first of the one after (permute), then conv without padding
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from tessera.core.mesh import Mesh
from tessera.ir.graph.ir import Node, Value, bind
from tessera.ir.graph.op import Op, Params
from tessera.ops.collective import PPERMUTE
from tessera.ops.convolution import conv, conv_weights
from tessera.ops.fft import fft, ifft
from tessera.ops.local import SUM, TO_GLOBAL, TO_LOCAL, WHOLE
from tessera.ops.shape import concat, slice_
from tessera.transform.shards import Shard, ShardWalk, as_graph

Rule = Callable[[ShardWalk, Node, Sequence[Shard], Params], list[Shard] | None]
_SPACE = 2  # the first axis of space: batch and channels come before it


def _transform(
    walk: ShardWalk, n: Node, operands: Sequence[Shard], params: Params
) -> list[Shard] | None:
    """A transform over several axes is one over each: those that are whole first."""
    axes, cuts = params["axes"], operands[0].layout.cuts
    if len(axes) == 1 or not any(cuts[a] for a in axes):
        return None

    def each(x: Value) -> Value:
        for a in sorted(axes, key=lambda a: bool(cuts[a])):
            x = bind(n.op, x, axes=(a,), norm=params["norm"])
        return x

    return as_graph(walk, n, operands, each)


class _Cut(NamedTuple):
    """An axis of space that a mesh axis cuts, and how many elements of its neighbours a shard needs."""

    axis: str
    size: int
    dim: int
    before: int
    after: int


def _cut_of(
    mesh: Mesh, x: Shard, window: Sequence[int], outs: Sequence[int], params: Params
) -> _Cut | None:
    """The first axis of space that can be cut: it is cut once, divides, and its result is its size by the
    stride.
    """
    for i, span in enumerate(window):
        dim, names = _SPACE + i, x.layout.cuts[_SPACE + i]
        if len(names) != 1 or params["inner"][i] != 1:
            continue
        count, n, stride = mesh.size(names[0]), int(x.type.shape[dim]), params["stride"][i]
        before = params["padding"][i][0]
        after = (span - 1) * params["dilation"][i] + 1 - stride - before
        fits = n % (count * stride) == 0 and outs[i] * stride == n
        if fits and min(before, after) >= 0 and max(before, after) <= n // count:
            return _Cut(names[0], count, dim, before, after)
    return None


def _with_halo(x: Value, c: _Cut) -> Value:
    """A shard with the last elements of the one before it and the first of the one after, zeros at the
    ends.
    """

    def part(start: int, stop: int) -> Value:
        low = tuple(start if k == c.dim else 0 for k in range(x.ndim))
        high = tuple(stop if k == c.dim else n for k, n in enumerate(x.shape))
        return slice_(x, low, high)

    n, parts = x.shape[c.dim], [x]
    right = tuple((i, i + 1) for i in range(c.size - 1))
    if c.before:
        parts.insert(0, bind(PPERMUTE, part(n - c.before, n), axis=c.axis, perm=right))
    if c.after:
        left = tuple((b, a) for a, b in right)
        parts.append(bind(PPERMUTE, part(0, c.after), axis=c.axis, perm=left))
    return concat(parts, c.dim) if len(parts) > 1 else x


def _unpadded(params: Params, c: _Cut) -> dict[str, Any]:
    padding = [(0, 0) if _SPACE + i == c.dim else p for i, p in enumerate(params["padding"])]
    return {**params, "padding": tuple(padding)}


def _conv(
    walk: ShardWalk, n: Node, operands: Sequence[Shard], params: Params
) -> list[Shard] | None:
    x, w = operands[:2]
    outs = [int(k) for k in n.results[0].type.substitute(walk.sizes).shape[_SPACE:]]
    c = _cut_of(walk.mesh, x, w.type.shape[_SPACE:], outs, params)  # type: ignore[arg-type]
    if c is None:
        return None
    view: dict[str, Any] = {"axis": c.axis, "size": c.size}

    def local(x: Value, w: Value, *rest: Value) -> Value:
        halo = _with_halo(bind(TO_LOCAL, x, dim=c.dim, **view), c)
        others = [bind(TO_LOCAL, v, dim=WHOLE, **view) for v in (w, *rest)]
        y = bind(n.op, halo, *others, **_unpadded(params, c))
        made: Value = bind(TO_GLOBAL, y, dim=c.dim, **view)
        return made

    return as_graph(walk, n, operands, local)


def _weights(
    walk: ShardWalk, n: Node, operands: Sequence[Shard], params: Params
) -> list[Shard] | None:
    """The derivative by the kernel: each shard's part of a sum."""
    x, ct = operands
    outs = [int(k) for k in ct.type.shape[_SPACE:]]
    c = _cut_of(walk.mesh, x, params["window"], outs, params)
    if c is None:
        return None
    view: dict[str, Any] = {"axis": c.axis, "size": c.size}

    def local(x: Value, ct: Value) -> Value:
        halo = _with_halo(bind(TO_LOCAL, x, dim=c.dim, **view), c)
        y = bind(n.op, halo, bind(TO_LOCAL, ct, dim=c.dim, **view), **_unpadded(params, c))
        made: Value = bind(TO_GLOBAL, y, dim=SUM, **view)
        return made

    return as_graph(walk, n, operands, local)


SPACE: dict[Op, Rule] = {
    fft.op: _transform, ifft.op: _transform, conv.op: _conv, conv_weights.op: _weights,
}  # fmt: skip
