"""Ops on lists of tensors, which optimisers step with: the rule of one tensor, for each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tessera.interop.torch.rule import (
    RULES,
    AtenCall,
    Rule,
    as_dtype,
    full_name,
    is_value,
    rule,
    wide,
)
from tessera.lang import op

_UNARY = (
    "abs", "acos", "asin", "atan", "ceil", "cos", "cosh", "erf", "erfc", "exp", "expm1", "floor", "lgamma",
    "log", "log10", "log1p", "log2", "neg", "reciprocal", "round", "rsqrt", "sigmoid", "sign", "sin", "sinh",
    "sqrt", "tan", "tanh", "trunc",
)  # fmt: skip
# Of an op of two operands, the op that each tensor is given to.
_BINARY = {
    "add": "add.Tensor", "sub": "sub.Tensor", "mul": "mul.Tensor", "div": "div.Tensor",
    "maximum": "maximum", "minimum": "minimum", "clamp_min": "maximum", "clamp_max": "minimum",
}  # fmt: skip
_POWERS = {"List": "Tensor_Tensor", "Scalar": "Tensor_Scalar", "ScalarList": "Tensor_Scalar"}


def _each(one: Callable[..., Any]) -> Rule:
    """A function of one tensor as one of lists; what is no list is the same for each."""

    def run(n: AtenCall, xs: Any, *others: Any, **named: Any) -> Any:
        rows = [y if isinstance(y, list | tuple) else [y] * len(xs) for y in others]
        calls = [
            AtenCall(n.target, n.dtypes[k : k + 1], n.shapes[k : k + 1]) for k in range(len(xs))
        ]
        return tuple(one(c, *x, **named) for c, *x in zip(calls, xs, *rows, strict=True))

    return run


def _rule_of(name: str) -> Callable[..., Any]:
    """The rule of an op, which may be entered after this."""
    return lambda *args, **named: RULES[full_name(name)](*args, **named)


def _weighed(n: AtenCall, x: Any, y: Any, w: Any) -> Any:
    """Between x and y, from the end that is nearer, which is exact at both."""
    x, y = as_dtype(x, wide(n.dtype)), as_dtype(y, wide(n.dtype))
    gap, w = op.sub(y, x), as_dtype(w, x.dtype)
    low, high = op.add(x, op.mul(w, gap)), op.sub(y, op.mul(gap, op.sub(1, w)))
    return as_dtype(op.where(op.lt(op.abs(w), 0.5), low, high), n.dtype)


def _with_products(join: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    def run(n: AtenCall, x: Any, a: Any, b: Any, value: Any = 1) -> Any:
        x, a, b, value = (as_dtype(v, wide(n.dtype)) for v in (x, a, b, value))
        return as_dtype(op.add(x, op.mul(value, join(a, b))), n.dtype)

    return run


def _spread(one: Callable[..., Any]) -> Rule:
    """The same where the factors are the elements of one tensor."""

    def run(n: AtenCall, xs: Any, a: Any, b: Any, values: Any) -> Any:
        factors = [op.index(values, k) for k in range(len(xs))]
        return _each(one)(n, xs, a, b, factors)

    return run


for _name in _UNARY:
    rule(f"_foreach_{_name}")(_each(_rule_of(_name)))
for _name, _one in _BINARY.items():
    for _overload in ("Scalar", "List", "ScalarList", "Tensor"):
        rule(f"_foreach_{_name}.{_overload}")(_each(_rule_of(_one)))
for _overload, _one in _POWERS.items():
    rule(f"_foreach_pow.{_overload}")(_each(_rule_of(f"pow.{_one}")))
for _overload in ("List", "Scalar", "ScalarList"):
    rule(f"_foreach_lerp.{_overload}")(_each(_weighed))
for _name, _join in {"addcmul": op.mul, "addcdiv": op.div}.items():
    for _overload in ("Scalar", "ScalarList"):
        rule(f"_foreach_{_name}.{_overload}")(_each(_with_products(_join)))
    rule(f"_foreach_{_name}.Tensor")(_spread(_with_products(_join)))
rule("_foreach_copy")(_each(_rule_of("copy")))
rule("_foreach_mm")(_each(lambda n, x, y: op.matmul(x, y)))


@rule("_foreach_norm.Scalar")
def _norms(n: AtenCall, xs: Any, order: Any = 2, dtype: Any = None) -> Any:
    run = _rule_of("linalg_vector_norm")
    return _each(lambda c, x: run(c, x, order, None, False, dtype))(n, xs)


@rule("_foreach_zero")
def _zeros(n: AtenCall, xs: Any) -> Any:
    return tuple(op.zeros_like(x) for x in xs)


@rule("_foreach_pow.ScalarAndTensor")
def _powers(n: AtenCall, base: Any, xs: Any) -> Any:
    assert not is_value(base)
    run = _rule_of("pow.Scalar")
    return _each(lambda c, x: run(c, base, x))(n, xs)
