"""Calls of functions, and of the factorisations that JAX takes from LAPACK on a CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tessera.core.dtype import i32
from tessera.interop.jax.rules import RULES as PRIMITIVES
from tessera.interop.stablehlo.reading.table import OpFrame, rule
from tessera.interop.stablehlo.tree import HloOp
from tessera.interop.stablehlo.writer import StableHloError
from tessera.ir.graph.ir import Value
from tessera.lang import op


@rule("func.call")
def _call(frame: OpFrame, o: HloOp, *xs: Value) -> Any:
    return frame.call(str(o.attributes["callee"]), xs)


@rule("composite")
def _composite(frame: OpFrame, o: HloOp, *xs: Value) -> Any:
    return frame.call(str(o.attributes["decomposition"]), xs)


_SAME = {"Sharding", "SPMDFullToShardShape", "SPMDShardToFullShape", "annotate_device_placement"}
_CALLS: dict[str, Callable[..., Any]] = {}


@rule("custom_call")
def _custom_call(frame: OpFrame, o: HloOp, *xs: Value) -> Any:
    target = str(o.attributes.get("callee") or o.attributes.get("call_target_name"))
    if target in _SAME:
        return list(xs)
    name = target.removeprefix("lapack_").removesuffix("_ffi")
    if not target.startswith("lapack_") or name[1:] not in _CALLS:
        raise StableHloError(f"stablehlo: line {o.line}: the call of '{target}' has no rule")
    config = o.attributes.get("mhlo.backend_config") or {}
    letters = {k: chr(v) for k, v in config.items() if isinstance(v, int) and v < 128}
    return _CALLS[name[1:]](letters, *xs)


def _lapack(*names: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def enter(f: Callable[..., Any]) -> Callable[..., Any]:
        for name in names:
            _CALLS[name] = f
        return f

    return enter


def _well(x: Value) -> Value:
    """The report of a routine that found nothing wrong."""
    return op.zeros(x.shape[:-2], i32)


@_lapack("getrf")
def _getrf(p: dict[str, str], x: Value) -> Any:
    both, rows, _ = PRIMITIVES["lu"]({}, x)
    return [both, op.add(rows, 1), _well(x)]


@_lapack("potrf")
def _potrf(p: dict[str, str], x: Value) -> Any:
    if p.get("uplo", "L") == "U":
        upper = op.triu(x)
        sides = op.add(upper, op.conj(op.matrix_transpose(op.triu(x, 1))))
        return [op.conj(op.matrix_transpose(PRIMITIVES["cholesky"]({}, sides))), _well(x)]
    sides = op.add(op.tril(x), op.conj(op.matrix_transpose(op.tril(x, -1))))
    return [PRIMITIVES["cholesky"]({}, sides), _well(x)]


@_lapack("syevd", "heevd")
def _syevd(p: dict[str, str], x: Value) -> Any:
    v, w = PRIMITIVES["eigh"]({"lower": p.get("uplo", "L") == "L"}, x)
    return [v, w, _well(x)]


@_lapack("gesdd")
def _gesdd(p: dict[str, str], x: Value) -> Any:
    s, u, vh = PRIMITIVES["svd"]({"full_matrices": p.get("mode", "S") == "A"}, x)
    return [x, s, u, vh, _well(x)]


@_lapack("trsm")
def _trsm(p: dict[str, str], a: Value, b: Value) -> Value:
    how = p.get("trans_x", "N")
    given = {
        "left_side": p.get("side", "L") == "L", "lower": p.get("uplo", "L") == "L",
        "transpose_a": how in "TC",
        "conjugate_a": how == "C", "unit_diagonal": p.get("diag", "N") == "U",
    }  # fmt: skip
    return PRIMITIVES["triangular_solve"](given, a, b)  # type: ignore[no-any-return]


@_lapack("geqrf")
def _geqrf(p: dict[str, str], x: Value) -> Any:
    """Householder's reflectors below the diagonal of R, and their factors."""
    m, n = (int(k) for k in x.shape[-2:])
    rows, columns = op.iota((m, 1), 0), op.iota((1, n), 1)
    y, taus, reflectors = x, [], op.zeros_like(x)
    for k in range(min(m, n)):
        column = op.index(y, (..., slice(None), slice(k, k + 1)))
        v, tau, _ = _reflector(op.where(op.ge(rows, k), column, 0), rows, k)
        y = op.sub(y, op.mul(op.mul(tau, v), op.matmul(op.matrix_transpose(v), y)))
        below = op.logical_and(op.gt(rows, k), op.eq(columns, k))
        reflectors = op.where(below, op.broadcast_to(v, reflectors.shape), reflectors)
        taus.append(op.squeeze(tau, (-2, -1)))
    return [op.add(op.triu(y), op.tril(reflectors, -1)), op.stack(taus, -1)]


def _reflector(x: Value, rows: Value, k: int) -> tuple[Value, Value, Value]:
    """v and tau with (1 - tau v v^T) x = beta e_k."""
    if x.dtype.kind != "f":
        raise StableHloError("stablehlo: factors of complex matrices by reflectors have no rule")
    at = op.eq(rows, k)
    alpha = op.sum(op.where(at, x, 0), -2, True)
    rest = op.sum(op.square(op.where(at, 0, x)), -2, True)
    norm = op.sqrt(op.add(op.square(alpha), rest))
    beta = op.where(op.ge(alpha, 0), op.neg(norm), norm)
    flat = op.eq(rest, 0)  # nothing to reflect
    tau = op.where(flat, 0, op.div(op.sub(beta, alpha), op.where(flat, 1, beta)))
    by = op.where(flat, 1, op.sub(alpha, beta))
    v = op.where(at, 1, op.div(x, by))
    return v, tau, beta


@_lapack("orgqr", "ungqr")
def _orgqr(p: dict[str, str], packed: Value, taus: Value) -> Value:
    """The first columns of the product of reflectors."""
    m, n = (int(k) for k in packed.shape[-2:])
    rows = op.iota((m, 1), 0)
    eye = op.cast(op.eq(rows, op.iota((1, n), 1)), packed.dtype)
    q = op.broadcast_to(eye, packed.shape)
    for k in reversed(range(int(taus.shape[-1]))):
        column = op.index(packed, (..., slice(None), slice(k, k + 1)))
        v = op.where(op.gt(rows, k), column, op.cast(op.eq(rows, k), packed.dtype))
        tau = op.reshape(op.index(taus, (..., k)), (*taus.shape[:-1], 1, 1))
        q = op.sub(q, op.mul(op.mul(tau, v), op.matmul(op.matrix_transpose(v), q)))
    return q
