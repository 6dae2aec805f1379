"""Products, convolutions, transforms and factorisations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tessera.core.dtype import as_dtype, complex_of, i32
from tessera.interop.jax.rules.table import Params, rule
from tessera.ir.graph.ir import Value
from tessera.lang import op
from tessera.ops.contraction import einsum
from tessera.ops.convolution import conv, operands_of
from tessera.ops.factor import cholesky, eigh, lu, qr, svd
from tessera.ops.fft import fftn, ifftn, irfftn, rfftn
from tessera.ops.matrix import adjoint
from tessera.ops.solve import triangular_solve


def _preferred(p: Params, *xs: Value) -> Sequence[Value]:
    """Operands in the dtype in which the result is wanted, where that is wider."""
    to = p.get("preferred_element_type")
    if to is None or as_dtype(to) is xs[0].dtype:
        return xs
    return [op.cast(x, as_dtype(to)) for x in xs]


@rule("dot_general")
def _dot_general(p: Params, x: Value, y: Value) -> Value:
    (folded_x, folded_y), (batch_x, batch_y) = p["dimension_numbers"]
    x, y = _preferred(p, x, y)
    letters = iter("abcdefghijklmnopqrstuvwxyz")
    left, right = [next(letters) for _ in x.shape], [next(letters) for _ in y.shape]
    for i, j in [*zip(folded_x, folded_y, strict=True), *zip(batch_x, batch_y, strict=True)]:
        right[j] = left[i]
    batch = [left[i] for i in batch_x]
    kept = [left[i] for i in range(x.ndim) if i not in folded_x and i not in batch_x]
    kept += [right[j] for j in range(y.ndim) if j not in folded_y and j not in batch_y]
    return einsum(f"{''.join(left)},{''.join(right)}->{''.join(batch + kept)}", x, y)


@rule("conv_general_dilated")
def _conv(p: Params, x: Value, k: Value) -> Value:
    d, groups = p["dimension_numbers"], p["feature_group_count"]
    x, k = _preferred(p, x, k)
    x, k = op.transpose(x, d.lhs_spec), op.transpose(k, d.rhs_spec)
    many = p["batch_group_count"]
    if many > 1:  # the batch holds groups: they become groups of features
        b, c, *rest = x.shape
        parts = op.reshape(x, (many, b // many, c, *rest))
        x = op.reshape(op.moveaxis(parts, 0, 1), (b // many, many * c, *rest))
        groups = many
    x, k = operands_of("conv_general_dilated", x, k, None)
    y = conv.bind(  # op.conv refuses negative padding, which cuts
        x, k, stride=tuple(p["window_strides"]), padding=tuple(map(tuple, p["padding"])),
        dilation=tuple(p["rhs_dilation"]), inner=tuple(p["lhs_dilation"]), groups=groups,
    )  # fmt: skip
    back = [0] * len(d.out_spec)
    for i, a in enumerate(d.out_spec):
        back[a] = i
    return op.transpose(y, back)


@rule("fft")
def _fft(p: Params, x: Value) -> Value:
    kind, sizes = int(p["fft_type"]), tuple(p["fft_lengths"])
    axes = tuple(range(-len(sizes), 0))
    made = (fftn, ifftn, rfftn, irfftn)[kind](x, sizes, axes)
    wanted = x.dtype.real if kind == 3 else complex_of(x.dtype.real)
    return op.cast(made, wanted)


@rule("cholesky")
def _cholesky(p: Params, x: Value) -> Value:
    return cholesky(x)


@rule("triangular_solve")
def _triangular(p: Params, a: Value, b: Value) -> Value:
    transpose, left = p["transpose_a"], p["left_side"]
    if p["conjugate_a"]:
        a = op.conj(a)
    if not left:  # x a = b is a.T x.T = b.T
        b, transpose = op.matrix_transpose(b), not transpose
    y = triangular_solve(a, b, p["lower"], transpose, p["unit_diagonal"])
    return y if left else op.matrix_transpose(y)


@rule("lu")
def _lu(p: Params, x: Value) -> Any:
    """The two factors in one matrix, the exchanges of rows, and the permutation that they make."""
    perm, low, up = lu(x)
    k = min(x.shape[-2:])
    *batch, m, n = x.shape
    pad = ((0, 0),) * len(batch)
    both = op.add(
        op.pad(op.tril(low, -1), (*pad, (0, 0), (0, n - k))),
        op.pad(up, (*pad, (0, m - k), (0, 0))),
    )
    return [both, op.cast(_exchanges(perm, k), i32), op.cast(perm, i32)]


@rule("qr")
def _qr(p: Params, x: Value) -> Any:
    return list(qr(x, "complete" if p.get("full_matrices") else "reduced"))


@rule("eigh")
def _eigh(p: Params, x: Value) -> Any:
    low = op.tril(x) if p.get("lower", True) else op.triu(x)
    strict = op.tril(x, -1) if p.get("lower", True) else op.triu(x, 1)
    w, v = eigh(op.add(low, adjoint(strict)))
    return [v, w]


@rule("svd")
def _svd(p: Params, x: Value) -> Any:
    u, s, vh = svd(x, bool(p.get("full_matrices")))
    return [s, u, vh] if p.get("compute_uv", True) else [s]


def _exchanges(perm: Value, steps: int) -> Value:
    """For each step the row with which it was exchanged, as LAPACK counts."""
    rows = op.broadcast_to(op.iota((perm.shape[-1],), 0), perm.shape)
    out = []
    for k in range(steps):
        wanted = op.take(perm, k, -1)
        at = op.argmax(op.eq(rows, op.expand_dims(wanted, -1)), -1)
        out.append(at)
        here, there = op.take(rows, k, -1), op.expand_dims(at, -1)
        place = op.broadcast_to(op.iota((perm.shape[-1],), 0), perm.shape)
        moved = op.where(op.eq(place, there), op.expand_dims(here, -1), rows)
        rows = op.where(op.eq(place, k), op.expand_dims(wanted, -1), moved)
    return op.stack(out, -1)
