"""Rules for elementwise functions, casts, folds, scans, sorts and comparisons."""

from __future__ import annotations

import inspect

from tessera.ops.define import OpFunction
from tests.fuzz.draw import WHOLE, Drawer, Unfit
from tests.fuzz.program import spelled
from tests.fuzz.rules import options, rule
from tests.support.cases.op_cases import public_functions


def unary(d: Drawer, name: str) -> str:
    """A function of one tensor, element by element, where it is defined."""
    o = public_functions_of()[name].op
    assert isinstance(o.kinds, str)
    return f"{spelled(name)}({d.within(d.take(o.kinds), *o.domain)})"


def binary(d: Drawer, name: str) -> str:
    """A function of two tensors that broadcast."""
    o = public_functions_of()[name].op
    assert isinstance(o.kinds, str)
    if name.endswith("shift"):
        return shifted(d, name)
    x = d.take(o.kinds)
    y = d.partner(x)
    if name in ("floor_divide", "remainder", "fmod") and d.kind(x) in "iu":
        y = d.pick(("2", "3", "5"))
    pair = [
        d.within(v, *o.domain) if v in d.values and o.domain != (-2.0, 2.0) else v for v in (x, y)
    ]
    if d.often(0.3) and pair[1] in d.values:
        pair.reverse()
    return f"{spelled(name)}({', '.join(pair)})"


def shifted(d: Drawer, name: str) -> str:
    x = d.take("iu")
    return f"{spelled(name)}({x}, {d.int(0, 3)})"


_FUNCTIONS: dict[str, OpFunction] = {}


def public_functions_of() -> dict[str, OpFunction]:
    """The functions of one op each, by name."""
    if not _FUNCTIONS:
        _FUNCTIONS.update(
            {n: f for n, f in public_functions().items() if isinstance(f, OpFunction)}
        )
    return _FUNCTIONS


for _name, _f in public_functions_of().items():
    _signature = str(inspect.signature(inspect.unwrap(_f)))
    if _f.op.signature == "... -> ..." and _signature.startswith("(x: 'ArrayLike', /)"):
        rule(_name)(unary)
    elif _f.op.signature == "..., ... -> ..." and _signature.startswith(
        "(x: 'ArrayLike', y: 'ArrayLike', /)"
    ):
        rule(_name)(binary)

_NUMBERS = {
    "celu": {"alpha": (0.5, 2.0)}, "elu": {"alpha": (0.5, 2.0)}, "gelu": {"approximate": ("none", "tanh")},
    "hardshrink": {"width": (0.25, 1.0)}, "softshrink": {"width": (0.25, 1.0)},
    "hardtanh": {"low": (-0.5, -2.0), "high": (0.5, 2.0)}, "leaky_relu": {"slope": (0.1, -0.5)},
    "softplus": {"beta": (0.5, 2.0)}, "swish": {"beta": (0.5, 2.0)},
}  # fmt: skip


@rule(*_NUMBERS)
def with_numbers(d: Drawer, name: str) -> str:
    x = d.take("f")
    return f"{spelled(name)}({x}{options(d, **_NUMBERS[name])})"


@rule("threshold")
def threshold(d: Drawer, name: str) -> str:
    return f"op.threshold({d.take('f')}, {d.number('f')}, {d.number('f')})"


@rule("polygamma")
def polygamma(d: Drawer, name: str) -> str:
    return f"op.polygamma({d.int(0, 3)}, {d.within(d.take('f'), 0.5, 3.0)})"


@rule("prelu")
def prelu(d: Drawer, name: str) -> str:
    x = d.take("f")
    return f"op.prelu({x}, {d.partner(x)})"


@rule("clip")
def clip(d: Drawer, name: str) -> str:
    x = d.take("uif")
    low, high = ("0.25", "1.5") if d.kind(x) == "f" else ("1", "3")
    ends = [
        f"min={low if d.often(0.6) else d.partner(x)}",
        f"max={high if d.often(0.6) else d.partner(x)}",
    ]
    return f"op.clip({x}, {', '.join(ends[: d.int(1, 2)] if d.often(0.7) else ends[1:])})"


@rule("complex")
def complex_(d: Drawer, name: str) -> str:
    x = d.take("f", fits=lambda s: True)
    if str(d.dtype(x)) not in ("f32", "f64"):
        raise Unfit
    return f"op.complex({x}, {d.partner(x)})"


@rule("cast")
def cast(d: Drawer, name: str) -> str:
    x = d.take("fiub" if d.often(0.9) else "c")
    formats = (
        "f32",
        "f64",
        "bf16",
        "f16",
        "f8e4m3",
        "f8e5m2",
        "bool_",
        "c64",
        "c128",
        *d.floats,
        *d.floats,
        *WHOLE,
    )
    return f"op.cast({x}, {d.pick(formats)})"


@rule("cast_like")
def cast_like(d: Drawer, name: str) -> str:
    return f"op.cast_like({d.take('fiub')}, {d.take('fiub')})"


@rule("where")
def where(d: Drawer, name: str) -> str:
    x = d.take("fiucb")
    y = d.partner(x)
    have = [
        n for n, v in d.values.items() if v.dtype.kind == "b" and tuple(v.shape) == d.shape_of(x)
    ]
    if have and d.often(0.7):
        c = d.pick(have)
    elif d.kind(x) in "fiu" and d.often(0.6):
        c = f"({x} > {d.number('u')})"
    else:
        c = d.new("b", d.shape_of(x)[d.int(0, d.rank(x)) :])
    return f"op.where({c}, {x}, {y})" if d.often(0.7) else f"op.where({c}, {y}, {x})"


# Folds, scans, sorts

_FOLDS = {
    "sum": "uifc", "prod": "uifc", "max": "buif", "min": "buif", "mean": "fc", "any": "b", "all": "b",
    "logsumexp": "f", "logsumexp_safe": "f", "l2norm": "fc", "count_nonzero": "buif",
}  # fmt: skip


@rule(*_FOLDS)
def fold(d: Drawer, name: str) -> str:
    x = d.take(_FOLDS[name])
    keep = options(d, 0.4, keepdims=(True, False))
    return f"{spelled(name)}({x}, {d.axes(x)}{keep})"


@rule("var", "std")
def spread(d: Drawer, name: str) -> str:
    x = d.take("fc" if name == "var" else "f", low=1)
    return f"op.{name}({x}, {d.axes(x)}{options(d, correction=(0.0, 1.0, 0.5), keepdims=(True,))})"


@rule("norm", "vector_norm")
def norm(d: Drawer, name: str) -> str:
    x = d.take("f", low=1)
    more = options(d, ord=(1, 2, 3, 0, "float('inf')"), keepdims=(True,)).replace(
        "\"float('inf')\"", "float('inf')"
    )
    return f"op.{name}({x}, axis={d.axes(x)}{more})"


@rule("argmax", "argmin")
def place(d: Drawer, name: str) -> str:
    x = d.take("buif", low=1)
    axis = "None" if d.often(0.3) else d.axis(x)
    return f"op.{name}({x}, {axis}{options(d, 0.3, keepdims=(True,))})"


@rule("sort", "argsort")
def sort(d: Drawer, name: str) -> str:
    x = d.take("buif", low=1)
    return (
        f"op.{name}({x}, {d.axis(x)}{options(d, descending=(True, False), stable=(True, False))})"
    )


@rule("topk")
def topk(d: Drawer, name: str) -> str:
    x = d.take("buif", low=1)
    a = d.axis(x)
    return f"op.topk({x}, {d.int(0, d.shape_of(x)[a])}, {a}{options(d, largest=(True, False))})"


@rule("searchsorted")
def searchsorted(d: Drawer, name: str) -> str:
    x = d.take("uif", low=1, high=1)
    values = d.take(d.kind(x))
    return f"op.searchsorted(op.sort({x}), {values}{options(d, side=('left', 'right'))})"


@rule("isin")
def isin(d: Drawer, name: str) -> str:
    x = d.take("buif")
    return f"op.isin({x}, {d.take(d.kind(x), fits=lambda s: len(s) > 0)}{options(d, 0.3, invert=(True,))})"


_SCANS = {
    "cumsum": "uifc",
    "cumprod": "uifc",
    "cummax": "buif",
    "cummin": "buif",
    "logcumsumexp": "f",
}


@rule(*_SCANS)
def scanned(d: Drawer, name: str) -> str:
    x = d.take(_SCANS[name], low=1)
    axis = "None" if d.often(0.1) else d.axis(x)
    return f"op.{name}({x}, {axis}{options(d, 0.3, reverse=(True, False))})"


@rule("cumulative_sum", "cumulative_prod")
def cumulative(d: Drawer, name: str) -> str:
    x = d.take("uifc", low=1)
    return f"op.{name}({x}, axis={d.axis(x)}{options(d, 0.4, include_initial=(True, False))})"


@rule("linear_recurrence")
def recurrence(d: Drawer, name: str) -> str:
    x = d.take("f", low=1)
    return f"op.linear_recurrence(op.tanh({x}), {d.same_shape(x, 'f')}, {d.axis(x)}{options(d, reverse=(True, False))})"  # noqa: E501


@rule("diff")
def diff(d: Drawer, name: str) -> str:
    x = d.take("uif", low=1)
    return f"op.diff({x}, axis={d.axis(x)}{options(d, 0.4, n=(0, 1, 2))})"
