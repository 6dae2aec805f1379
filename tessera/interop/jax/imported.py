"""ts.jax.import_function: a function of JAX as a function of tensors, by the rules of its primitives."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tessera.core.blame import demand_function
from tessera.core.dtype import as_dtype
from tessera.core.errors import OperandError, ShapeError, TesseraError, TreeError, located
from tessera.core.types import TensorType
from tessera.interop.jax.errors import JaxError
from tessera.interop.jax.library import jax
from tessera.interop.jax.rules import RULES
from tessera.ir.graph.ir import Value, concrete, current_builder
from tessera.ops.control import cond, scan, while_loop
from tessera.ops.define import as_value, cast_to
from tessera.ops.elementwise import add, le, sub
from tessera.ops.gather import take
from tessera.ops.shape import stack


def evaluate(jaxpr: Any, consts: Sequence[Value], args: Sequence[Value]) -> list[Value]:
    """The results of a jaxpr on tensors."""
    env: dict[Any, Value] = dict(zip(jaxpr.constvars, consts, strict=True))
    env.update(zip(jaxpr.invars, args, strict=True))

    def read(v: Any) -> Value:
        return env[v] if not hasattr(v, "val") else _literal(v)

    for eqn in jaxpr.eqns:
        found = _apply(eqn, [read(v) for v in eqn.invars])
        results = found if isinstance(found, list | tuple) else [found]
        env.update(zip(eqn.outvars, results, strict=True))
    return [read(v) for v in jaxpr.outvars]


def _literal(v: Any) -> Value:
    return as_value(np.asarray(v.val, v.aval.dtype))


def _closed(c: Any, args: Sequence[Value]) -> list[Value]:
    return evaluate(c.jaxpr, [_constant(x) for x in c.consts], args)


def _constant(x: Any) -> Value:
    if jax.dtypes.issubdtype(getattr(x, "dtype", None), jax.dtypes.prng_key):
        x = jax.random.key_data(x)
    return as_value(np.asarray(x))


def _apply(eqn: Any, xs: list[Value]) -> Any:
    name = eqn.primitive.name
    if name in _CONTROL:
        return _CONTROL[name](eqn.params, xs, eqn)
    if name not in RULES:
        raise JaxError(
            f"jax: the primitive '{name}' has no rule here; import the part of the function without it"
        )
    if not name.startswith("random_") and any(map(_is_key, eqn.invars)):
        return _of_keys(eqn, xs)
    return RULES[name](eqn.params, *xs)


def _is_key(v: Any) -> bool:
    return bool(jax.dtypes.issubdtype(v.aval.dtype, jax.dtypes.prng_key))


def _of_keys(eqn: Any, xs: list[Value]) -> Value:
    """A primitive that moves keys: it moves their words, which stand along a last axis."""
    keys = list(map(_is_key, eqn.invars))
    count = next(x.shape[-1] for x, k in zip(xs, keys, strict=True) if k)
    words = [
        RULES[eqn.primitive.name](
            eqn.params, *(take(x, w, -1) if k else x for x, k in zip(xs, keys, strict=True))
        )
        for w in range(count)
    ]
    return stack(words, -1)


# Control flow


def _call(p: Any, xs: list[Value], eqn: Any) -> Any:
    inner = next(p[k] for k in ("jaxpr", "call_jaxpr", "fun_jaxpr") if k in p)
    if hasattr(inner, "consts"):
        return _closed(inner, xs)
    return evaluate(inner, (), xs)


def _scan(p: Any, xs: list[Value], eqn: Any) -> Any:
    n, k = p["num_consts"], p["num_carry"]
    consts, init, rows = xs[:n], xs[n : n + k], xs[n + k :]

    def step(carry: Any, row: Any) -> Any:
        out = _closed(p["jaxpr"], [*consts, *carry, *row])
        return tuple(out[:k]), tuple(out[k:])

    last, ys = scan(step, tuple(init), tuple(rows), length=p["length"], reverse=p["reverse"])
    return [*last, *ys]


def _while(p: Any, xs: list[Value], eqn: Any) -> Any:
    a, b = p["cond_nconsts"], p["body_nconsts"]
    test, body, init = xs[:a], xs[a : a + b], xs[a + b :]
    out = while_loop(
        lambda c: _closed(p["cond_jaxpr"], [*test, *c])[0],
        lambda c: tuple(_closed(p["body_jaxpr"], [*body, *c])),
        tuple(init),
    )
    return list(out)


def _cond(p: Any, xs: list[Value], eqn: Any) -> Any:
    """One branch after the other is asked whether the index is its own."""
    index, args, branches = xs[0], xs[1:], p["branches"]
    if index.storage is not None and current_builder() is None:
        known = min(max(int(index.storage), 0), len(branches) - 1)
        return _closed(branches[known], args)

    def from_(k: int) -> Any:
        if k == len(branches) - 1:
            return tuple(_closed(branches[k], args))
        return cond(le(index, k), lambda: tuple(_closed(branches[k], args)), lambda: from_(k + 1))

    return list(from_(0))


_ORDER = 3  # up to which derivatives of a solution are exact


def _linear_solve(p: Any, xs: list[Value], eqn: Any) -> Any:
    """x with matvec(x) = b by a solver whose factors are constants.

    x + solve(b - matvec(x)) is x, and its derivative of order k is exact if that of order k - 1 of x is.
    """
    counts, jaxprs = p["const_lengths"], p["jaxprs"]
    m, v, s = counts.matvec, counts.vecmat, counts.solve
    matrix, factors = xs[:m], xs[m + v : m + v + s]
    b = xs[m + v + s + counts.transpose_solve :]
    x = _closed(jaxprs.solve, [*factors, *b])
    for _ in range(_ORDER):
        gap = [sub(c, y) for c, y in zip(b, _closed(jaxprs.matvec, [*matrix, *x]), strict=True)]
        x = [add(y, d) for y, d in zip(x, _closed(jaxprs.solve, [*factors, *gap]), strict=True)]
    return x


def _random(make: Callable[..., Any]) -> Callable[..., Any]:
    """A primitive on keys by the jaxpr of what it does on their data."""

    def run(p: Any, xs: list[Value], eqn: Any) -> Any:
        impl = eqn.invars[0].aval.dtype._impl
        shapes = [jax.ShapeDtypeStruct(x.shape, x.dtype.np) for x in xs]
        return _closed(jax.make_jaxpr(make(impl, p))(*shapes), xs)

    return run


_CONTROL: dict[str, Callable[..., Any]] = {
    **dict.fromkeys(
        ("jit", "pjit", "closed_call", "core_call", "remat", "remat2", "checkpoint", "custom_jvp_call",
         "custom_vjp_call", "custom_vjp_call_jaxpr"), _call,
    ),
    "scan": _scan, "while": _while, "cond": _cond, "custom_linear_solve": _linear_solve,
    "random_bits": _random(lambda impl, p: lambda k: impl.random_bits(k, p["bit_width"], p["shape"])),
    "random_split": _random(lambda impl, p: lambda k: impl.split(k, p["shape"])),
    "random_fold_in": _random(lambda impl, p: lambda k, data: impl.fold_in(k, data)),
    "platform_index": lambda p, xs, eqn: concrete(np.int32(_platform(p["platforms"]))),
    "random_seed": lambda p, xs, eqn: _seeded(p, xs),
}  # fmt: skip


def _platform(platforms: Any) -> int:
    """Which of the branches for platforms is the one without a platform, or else the one for CPUs."""
    plain = [k for k, names in enumerate(platforms) if names is None]
    return plain[0] if plain else next(k for k, n in enumerate(platforms) if "cpu" in n)


def _seeded(p: Any, xs: list[Value]) -> Any:
    shape = jax.ShapeDtypeStruct(xs[0].shape, xs[0].dtype.np)
    return _closed(jax.make_jaxpr(p["impl"].seed)(shape), xs)


class Imported:
    """A function of JAX, traced on arguments of these shapes and dtypes, as a function of tensors."""

    def __init__(self, f: Callable[..., Any], args: Any, kwargs: Any):
        closed, out = jax.make_jaxpr(f, return_shape=True)(*args, **kwargs)
        self.name = getattr(f, "__name__", "function")
        self.jaxpr = closed
        self._in = jax.tree_util.tree_structure((args, kwargs))
        self._out = jax.tree_util.tree_structure(out)
        self._consts = [_constant(x) for x in closed.consts]
        self._check_primitives(closed.jaxpr)

    @staticmethod
    def _check_primitives(jaxpr: Any) -> None:
        for eqn in jaxpr.eqns:
            if eqn.primitive.name not in _CONTROL and eqn.primitive.name not in RULES:
                _apply(eqn, [])

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        try:
            return self._run(args, kwargs)
        except TesseraError as e:
            error = located(e)
        raise error

    def _run(self, args: Any, kwargs: Any) -> Any:
        leaves, structure = jax.tree_util.tree_flatten((args, kwargs))
        if structure != self._in:
            raise TreeError(
                f"{self.name}: the arguments are {structure}, but the function was imported for {self._in}"
            )
        values = [self._value(i, x) for i, x in enumerate(leaves)]
        out = evaluate(self.jaxpr.jaxpr, self._consts, values)
        return jax.tree_util.tree_unflatten(self._out, out)

    def _value(self, i: int, x: Any) -> Value:
        aval = self.jaxpr.in_avals[i]
        if jax.dtypes.issubdtype(aval.dtype, jax.dtypes.prng_key):
            return _constant(x) if not isinstance(x, Value) else x
        wanted = TensorType(as_dtype(aval.dtype), tuple(aval.shape))
        v = as_value(x, self.name)
        if v.shape != wanted.shape:
            raise ShapeError(
                f"{self.name}: argument {i} is {v.type}, but the function was imported for {wanted}; import "
                "it "
                "again for other shapes"
            )
        if isinstance(x, int | float | complex):
            return cast_to(v, wanted.dtype)
        if v.dtype is not wanted.dtype:
            raise OperandError(
                f"{self.name}: argument {i} is {v.type}, but the function was imported for {wanted}; cast "
                "it with astype"
            )
        return v


def import_function(f: Callable[..., Any], *args: Any, **kwargs: Any) -> Imported:
    """What ts.jax.import_function is, once JAX is there."""
    demand_function("import_function", f)
    plain = [
        np.asarray(x) if isinstance(x, Value) else x
        for x in jax.tree_util.tree_leaves((args, kwargs))
    ]
    given, named = jax.tree_util.tree_unflatten(jax.tree_util.tree_structure((args, kwargs)), plain)
    try:
        return Imported(f, given, named)
    except TesseraError as e:
        error = located(e)
    raise error
