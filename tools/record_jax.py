"""Record calls of JAX's primitives with its answers, for tests that have no JAX.

    python tools/record_jax.py        (in the environment of the oracles; writes
    tests/support/data/jax_rules.json.gz)

Calls on which a rule does not agree are printed, and left out.
"""

from __future__ import annotations

import sys
from collections import Counter
from enum import Enum
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp  # noqa: F401  the texts below use it
import numpy as np
from jax import lax  # noqa: F401

sys.path.insert(0, str(Path(__file__).parent.parent))

import tessera as ts
from tessera.core.dtype import as_dtype
from tessera.core.flags import override
from tessera.interop.jax.rules import RULES
from tests.support.runners.recorded_calls import (
    difference,
    map_arrays,
    save,
    written,
)

EACH, FORMS = 14, 2  # calls of a primitive, and of one form
RTOL, ATOL = 2e-5, 2e-6
RNG = np.random.default_rng(0)
X = RNG.standard_normal((3, 4)).astype(np.float32)
Y = RNG.standard_normal((3, 4)).astype(np.float32)
P = np.abs(X) + np.float32(0.25)
U = RNG.uniform(-0.95, 0.95, (3, 4)).astype(np.float32)
S = np.array([np.nan, np.inf, -np.inf, -0.0, 0.0, 0.5, -0.5, 1.0, -1.0, 2.0, 3.5, -2.5], np.float32)
T = np.roll(S, 5)
N = RNG.integers(-9, 9, (3, 4)).astype(np.int32)
M = RNG.integers(1, 7, (3, 4)).astype(np.int32)
W = RNG.integers(0, 1 << 32, (6,), dtype=np.uint32)
Z = (X + 1j * Y).astype(np.complex64)
B, C = X > 0, Y > 0
K = X @ X.T + 4 * np.eye(3, dtype=np.float32)
I = np.array([2, 0, 5, -1], np.int32)
IMAGE = RNG.standard_normal((1, 5, 4, 2)).astype(np.float32)
KERNEL = RNG.standard_normal((3, 2, 2, 4)).astype(np.float32)

UNARY = [
    f"lax.{n}" for n in ["abs", "acos", "acosh", "asin", "asinh", "atan", "atanh", "cbrt", "ceil", "cos",
    "cosh", "digamma", "erf", "erf_inv", "erfc", "exp", "exp2", "expm1", "floor", "is_finite", "lgamma",
    "log", "log1p", "logistic", "neg", "round", "rsqrt", "sign", "sin", "sinh", "sqrt", "square", "tan",
    "tanh", "real", "imag", "conj", "bitwise_not"]
]  # fmt: skip
BINARY = [
    f"lax.{n}" for n in ["add", "atan2", "bitwise_and", "bitwise_or", "bitwise_xor", "complex", "div", "eq",
    "ge", "gt", "le", "lt", "max", "min", "mul", "ne", "nextafter", "pow", "rem", "shift_left",
    "shift_right_arithmetic", "shift_right_logical", "sub"]
] + ["jnp.logaddexp", "lax.lt_to_p.bind", "lax.le_to_p.bind", "lax_internal.lt_to_p.bind",
    "lax_internal.le_to_p.bind"]  # fmt: skip
FOLDS = [
    "sum",
    "max",
    "min",
    "prod",
    "argmax",
    "argmin",
    "any",
    "all",
    "cumsum",
    "cumprod",
    "sort",
    "argsort",
    "flip",
    "std",
    "median",
]
OTHERS = """
lax.integer_pow(X, 3)|lax.integer_pow(P, -2)|lax.integer_pow(N, 5)|lax.integer_pow(S, 0)|lax.integer_pow(X, 7)
lax.clamp(-0.5, X, 0.75)|lax.clamp(X - 1, Y, X + 1)|lax.clamp(np.float32(-1), S, np.float32(1))|lax.clamp(np.int32(-2), N, np.int32(3))
lax.round(S, lax.RoundingMethod.AWAY_FROM_ZERO)|lax.round(S, lax.RoundingMethod.TO_NEAREST_EVEN)|lax.round(X * 5, lax.RoundingMethod.TO_NEAREST_EVEN)
lax.select(B, X, Y)|lax.select_n(N % 3, X, Y, X)|lax.select_n(B, N, M)
lax.convert_element_type(X, jnp.int32)|lax.convert_element_type(N, jnp.float32)|lax.convert_element_type(B, jnp.float32)|lax.convert_element_type(X, bool)|lax.convert_element_type(X * 90, jnp.uint8)
lax.convert_element_type(X, jnp.complex64)|lax.convert_element_type(N, jnp.int8)|lax.convert_element_type(X, jnp.float16)
lax.bitcast_convert_type(X, jnp.int32)|lax.bitcast_convert_type(N, jnp.float32)|lax.bitcast_convert_type(X, jnp.uint32)
lax.reduce_precision(X, 8, 7)|lax.reduce_precision(X, 5, 10)
lax.broadcast_in_dim(X, (2, 3, 4), (1, 2))|lax.broadcast_in_dim(X[0], (4, 3), (0,))|lax.broadcast_in_dim(X[:, :1], (3, 4), (0, 1))
lax.reshape(X, (2, 6))|lax.reshape(X, (12,), (1, 0))|lax.squeeze(X[:, :1], (1,))|lax.expand_dims(X, (0, 2))|lax.transpose(X, (1, 0))|lax.transpose(IMAGE, (3, 0, 2, 1))
lax.rev(X, (0,))|lax.rev(X, (0, 1))|lax.concatenate([X, Y, X], 1)|lax.split(X, (1, 2), 0)|jnp.tile(X, (2, 1))|lax.slice(X, (1, 0), (3, 4), (1, 2))|lax.slice(X, (0, 1), (2, 3))
lax.pad(X, np.float32(7), ((1, 2, 0), (0, 1, 2)))|lax.pad(X, np.float32(7), ((-1, 0, 1), (2, -1, 0)))|lax.pad(N, np.int32(0), ((0, 0, 3), (1, 0, 0)))
lax.iota(jnp.int32, 5)|lax.broadcasted_iota(jnp.float32, (3, 4), 1)|lax.broadcasted_iota(jnp.int32, (3, 4), 0)
lax.dynamic_slice(X, (1, 2), (2, 2))|lax.dynamic_slice(X, (5, -7), (2, 2))|lax.dynamic_update_slice(X, Y[:2, :2], (1, 1))|lax.dynamic_update_slice(X, Y[:2, :2], (9, -3))
jnp.asarray(X)[I]|jnp.asarray(X)[:, I]|jnp.asarray(X)[I, I]|jnp.asarray(X)[1]|X[N > 3]|jnp.take(X, I, axis=1)|jnp.take(X, I, axis=1, mode="clip")|jnp.take(X, I, axis=0, mode="fill")|jnp.take_along_axis(X, M % 4, axis=1)|jnp.take(N, I, axis=0, mode="fill")
jnp.asarray(X).at[I].set(1.5)|jnp.asarray(X).at[I].add(Y[:1])|jnp.asarray(X).at[:, I].multiply(2.0)|jnp.asarray(X).at[I].min(0.0)|jnp.asarray(X).at[I, I].max(0.5)|jnp.asarray(X).at[I].add(2.0, mode="clip")|jnp.asarray(N).at[1:, 2].set(3)|jnp.asarray(X).at[I].subtract(1.0)
jnp.asarray(X).at[I].set(Y[:1], mode="drop")|jnp.asarray(N).at[:, I].min(M[:, :1])|jax.grad(lambda x: x[I].sum())(X)|jax.grad(lambda x: lax.dynamic_slice(x, (1, 2), (2, 2)).sum())(X)
lax.dot_general(X, Y, (((1,), (1,)), ((), ())))|lax.dot_general(X, Y, (((0,), (0,)), ((), ())))|lax.dot_general(X, Y, (((1,), (1,)), ((0,), (0,))))|jnp.einsum("ij,ik->jk", X, Y)|N @ M.T|Z @ Z.T|lax.dot(X, Y.T, preferred_element_type=jnp.float32)
lax.conv_general_dilated(IMAGE, KERNEL, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))|lax.conv_general_dilated(IMAGE, KERNEL, (2, 1), [(1, 0), (0, 2)], dimension_numbers=("NHWC", "HWIO", "NHWC"))
lax.conv_general_dilated(IMAGE, KERNEL, (1, 1), [(0, 1), (2, 0)], lhs_dilation=(2, 1), rhs_dilation=(1, 2), dimension_numbers=("NHWC", "HWIO", "NHWC"))|lax.conv_general_dilated(IMAGE, KERNEL[:, :, :1], (1, 1), "SAME", feature_group_count=2, dimension_numbers=("NHWC", "HWIO", "NHWC"))
jax.grad(lambda k: (lax.conv_general_dilated(IMAGE, k, (2, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")) ** 2).sum())(KERNEL)|jax.grad(lambda x: (lax.conv_general_dilated(x, KERNEL[:, :, :1], (1, 2), "SAME", feature_group_count=2, dimension_numbers=("NHWC", "HWIO", "NHWC")) ** 2).sum())(IMAGE)
jax.grad(lambda k: (lax.conv_general_dilated(IMAGE, k, (1, 1), "SAME", feature_group_count=2, dimension_numbers=("NHWC", "HWIO", "NHWC")) ** 2).sum())(KERNEL[:, :, :1])
lax.reduce_window(X, -np.inf, lax.max, (2, 2), (1, 2), "SAME")|lax.reduce_window(X, 0.0, lax.add, (2, 2), (1, 1), ((1, 0), (0, 1)))|lax.reduce_window(X, np.inf, lax.min, (1, 3), (1, 1), "VALID")|lax.reduce_window(X, 0.0, lax.add, (2, 2), (1, 1), "VALID", base_dilation=(2, 1), window_dilation=(1, 2))
lax.reduce_window(N, np.int32(-99), lax.max, (2, 1), (2, 1), "SAME")|lax.reduce_window(X, -np.inf, lax.max, (2, 2), (2, 1), ((1, 1), (0, 0)), base_dilation=(1, 2))
lax.cummax(X, 1)|lax.cummin(X, 0, True)|lax.cumlogsumexp(X, 0)|lax.cumsum(N, 1, True)|lax.cumprod(X, 0)|lax.cumsum(S, 0)|lax.cummax(S, 0)|lax.cummin(T, 0)|lax.cumlogsumexp(X, 1, True)
lax.sort(X, dimension=0)|lax.sort([N % 3, X, Y], dimension=1, num_keys=2)|lax.sort([N, X], num_keys=1)|lax.sort(S)|lax.top_k(X, 2)|lax.top_k(S, 3)|lax.top_k(N, 3)
jnp.fft.fft(Z)|jnp.fft.ifft(Z)|jnp.fft.rfft(X)|jnp.fft.irfft(Z)|jnp.fft.fft2(Z)|jnp.fft.rfft2(X)|jnp.fft.ifft2(Z)|jnp.fft.irfft2(Z, (3, 5))
jnp.linalg.cholesky(K)|lax.linalg.cholesky(K)|lax.linalg.triangular_solve(jnp.linalg.cholesky(K), X, left_side=True, lower=True)|lax.linalg.triangular_solve(K, X.T, lower=False, transpose_a=True)|lax.linalg.triangular_solve(K, X, left_side=True, lower=True, unit_diagonal=True)|lax.linalg.triangular_solve(K, X, left_side=True, lower=False)|lax.linalg.triangular_solve(K, X.T, lower=True)
lax.linalg.triangular_solve(Z[:, :3], Z, left_side=True, lower=True, transpose_a=True, conjugate_a=True)|lax.linalg.lu(K)|jnp.linalg.qr(X.T)|jnp.linalg.eigh(K)|jnp.linalg.svd(X, compute_uv=False)|jnp.linalg.qr(X.T, "complete")
jax.random.bits(jax.random.key(3), (5,))|jax.random.normal(jax.random.key(4), (2, 3))|jax.random.split(jax.random.key(1), 3)|jax.random.uniform(jax.random.PRNGKey(7), (4,))|jax.random.permutation(jax.random.key(2), 6)
lax.optimization_barrier(X)|lax.stop_gradient(X)|jnp.copy(X)|jnp.stack([X, Y], 1)|jnp.nextafter(S, T)|jax.grad(lambda x: (x * x).sum() + x.sum())(X)|jax.nn.gelu(X)|jax.nn.softmax(X)|lax.stack([X, Y], 1)|lax.tile(X, (1, 2))
lax.mul(B, C)|lax.add(B, C)|lax.max(B, C)|lax.le(B, C)|lax.reduce_and(B, (0,))|lax.reduce_or(B, (1,))|lax.argmax(S, 0, jnp.int32)|lax.argmin(T, 0, jnp.int32)|lax.argmax(X, 1, jnp.uint8)
lax.bessel_i0e(X)|lax.bessel_i1e(X)|lax.igamma(P, P[::-1])|lax.igammac(P, P[::-1])|lax.zeta(P + 1, P)
lax.betainc(P, P[::-1], jax.nn.sigmoid(X))
"""  # noqa: E501


def plain(x: Any) -> Any:
    """Params as rules see them, without objects of JAX."""
    if x is None or (isinstance(x, bool | int | float | str | complex) and not isinstance(x, Enum)):
        return x
    if isinstance(x, Enum):
        return int(x) if isinstance(x, int) else SimpleNamespace(name=x.name, value=int(x.value))
    if isinstance(x, np.dtype) or (isinstance(x, type) and issubclass(x, np.generic)):
        return as_dtype(np.dtype(x))
    if isinstance(x, np.ndarray | np.generic | jax.Array):
        return np.asarray(x)
    if hasattr(x, "_fields"):
        return SimpleNamespace(**{k: plain(getattr(x, k)) for k in x._fields})
    if isinstance(x, list | tuple):
        return type(x)(plain(v) for v in x) if type(x) in (list, tuple) else [plain(v) for v in x]
    return repr(x)  # shardings, precisions and names, which no rule reads


def form(x: Any) -> Any:
    """What calls that are alike have in common."""
    if isinstance(x, np.ndarray):
        return x.dtype.str, x.ndim
    if isinstance(x, list | tuple):
        return tuple(map(form, x))
    return str(x)


class Recorder:
    """Runs jaxprs equation by equation, and keeps calls of primitives that have a rule."""

    def __init__(self) -> None:
        self.kept: list[Any] = []
        self.forms: Counter[Any] = Counter()
        self.differ: Counter[str] = Counter()

    def run(self, jaxpr: Any, consts: Any, args: Any) -> list[Any]:
        """The results of a jaxpr."""
        env = dict(zip(jaxpr.constvars, consts, strict=True)) | dict(
            zip(jaxpr.invars, args, strict=True)
        )

        def at(v: Any) -> Any:
            return v.val if hasattr(v, "val") else env[v]

        for eqn in jaxpr.eqns:
            xs = [at(v) for v in eqn.invars]
            inner = eqn.params.get("jaxpr") or eqn.params.get("call_jaxpr")
            if inner is not None and eqn.primitive.name in (
                "jit",
                "pjit",
                "custom_jvp_call",
                "closed_call",
            ):
                out = self.run(inner.jaxpr, inner.consts, xs)
            else:
                made = eqn.primitive.bind(*xs, **eqn.params)
                out = list(made) if eqn.primitive.multiple_results else [made]
                self.note(eqn, xs, out)
            env.update(zip(eqn.outvars, out, strict=True))
        return [at(v) for v in jaxpr.outvars]

    def note(self, eqn: Any, xs: Any, out: Any) -> None:
        """Keep a call."""
        name = eqn.primitive.name
        if name not in RULES:
            return
        try:
            given = [np.asarray(x) for x in xs]
            want = [np.asarray(x) for x in out]
            want = want if eqn.primitive.multiple_results else want[0]
            params = {k: plain(v) for k, v in eqn.params.items()}
            row = {"op": name, "args": given, "params": params, "want": want}
            key = name, form(given), str(params)
            written(row)
        except Exception as e:  # keys, and params that no record holds
            self.differ[f"not written {name}: {e!r:.150}"] += 1
            return
        if self.forms[key] >= FORMS or self.forms[name] >= EACH:
            return
        told = checked(row)
        if told:
            self.differ[f"{name}: {told[:250]}"] += 1
            return
        self.forms[key] += 1
        self.forms[name] += 1
        self.kept.append(row)


def checked(row: Any) -> str:
    """How a rule differs from a call."""
    try:
        got = RULES[row["op"]](row["params"], *map_arrays(row["args"], ts.asarray))
    except Exception as e:
        return f"{type(e).__name__}: {e}"
    if isinstance(row["want"], list) and not isinstance(got, list | tuple):
        got = [got]
    return difference(row["want"], got, RTOL, ATOL)


def main() -> None:
    """Record."""
    space = {**globals(), "lax_internal": jax._src.lax.lax}
    texts = [f"{f}({x})" for f in UNARY for x in ["X", "P", "U", "S", "N", "Z"]]
    pairs = ("X, Y", "P, Y", "S, T", "N, M", "Z, Z[::-1]", "B, C", "W, W[::-1] % 40")
    texts += [f"{f}({xy})" for f in BINARY for xy in pairs]
    texts += [
        f"jnp.{f}({x}, axis={a})"
        for f in FOLDS
        for x, a in (("X", 0), ("X", 1), ("N", 0), ("S", 0))
    ]
    texts += [t for line in OTHERS.strip().splitlines() for t in line.split("|")]
    recorder, failed = Recorder(), []
    with override(target="numpy"):
        for text in texts:
            try:
                closed = jax.make_jaxpr(lambda text=text: eval(text, space))()
                recorder.run(closed.jaxpr, closed.consts, [])
            except Exception as e:
                failed.append(f"{text}: {type(e).__name__} {str(e)[:80]!r}")
    print(*(f"differs {t}" for t in sorted(recorder.differ)), sep="\n")
    have = {row["op"] for row in recorder.kept}
    print("failed:", *failed, sep="\n  ")
    print("no call of:", *sorted(set(RULES) - have))
    print(
        f"{len(recorder.kept)} calls of {len(have)} of {len(RULES)} rules; {len(failed)} samples failed"
    )
    save("jax_rules.json.gz", {"jax": jax.__version__}, recorder.kept)


if __name__ == "__main__":
    main()
