"""Elementwise ops, broadcasts, casts and chains: bound by memory at every shape."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from sweep.case import Case, Operand, size_name, slopes, torch_slopes
from tessera import bf16, bool_, f16, f32, i32, op

UNARY: dict[str, tuple[Any, Any, str]] = {
    "exp": (op.exp, lambda t, x: t.exp(x), "unit"),
    "log": (op.log, lambda t, x: t.log(x), "positive"),
    "tanh": (op.tanh, lambda t, x: t.tanh(x), "normal"),
    "sigmoid": (op.sigmoid, lambda t, x: t.sigmoid(x), "normal"),
    "sin": (op.sin, lambda t, x: t.sin(x), "normal"),
    "erf": (op.erf, lambda t, x: t.erf(x), "normal"),
    "sqrt": (op.sqrt, lambda t, x: t.sqrt(x), "positive"),
    "rsqrt": (op.rsqrt, lambda t, x: t.rsqrt(x), "positive"),
    "gelu": (op.gelu, lambda t, x: t.nn.functional.gelu(x), "normal"),
    "silu": (op.silu, lambda t, x: t.nn.functional.silu(x), "normal"),
    "softplus": (op.softplus, lambda t, x: t.nn.functional.softplus(x), "normal"),
    "relu": (op.relu, lambda t, x: t.relu(x), "normal"),
    "mish": (op.mish, lambda t, x: t.nn.functional.mish(x), "normal"),
    "atan": (op.atan, lambda t, x: t.atan(x), "normal"),
    "expm1": (op.expm1, lambda t, x: t.expm1(x), "unit"),
    "log1p": (op.log1p, lambda t, x: t.log1p(x), "positive"),
    "lgamma": (op.lgamma, lambda t, x: t.lgamma(x), "positive"),
    "floor": (op.floor, lambda t, x: t.floor(x), "normal"),
    "abs": (op.abs, lambda t, x: t.abs(x), "normal"),
    "isfinite": (op.isfinite, lambda t, x: t.isfinite(x), "normal"),
}
BINARY: dict[str, tuple[Any, Any, str]] = {
    "add": (op.add, lambda t, x, y: x + y, "normal"),
    "mul": (op.mul, lambda t, x, y: x * y, "normal"),
    "div": (op.div, lambda t, x, y: x / y, "positive"),
    "pow": (op.pow, lambda t, x, y: x**y, "positive"),
    "maximum": (op.maximum, lambda t, x, y: t.maximum(x, y), "normal"),
    "less": (op.less, lambda t, x, y: x < y, "normal"),
    "atan2": (op.atan2, lambda t, x, y: t.atan2(x, y), "normal"),
    "logaddexp": (op.logaddexp, lambda t, x, y: t.logaddexp(x, y), "normal"),
}
TIGHT = {"floor", "isfinite", "less"}


def cases() -> Iterator[Case]:
    """All of the family."""
    for name, (f, g, draw) in UNARY.items():
        for shape, dtype in (((1 << 24,), "f32"), ((4099, 2053), "bf16")):
            x = Operand(shape, dtype, draw)
            exact = name in TIGHT or (name == "abs")
            how = "same" if exact and dtype != "f32" else "f64"
            yield Case("unary", f"{name} {size_name(x)}", f, g, (x,), checked=how)
    for shape in ((), (1,), (7,), (1023,), (100_003,), (1 << 28,), (3, 5, 7, 11, 13), (1, 1 << 20)):
        x = Operand(shape)
        yield Case("unary", f"tanh sizes {size_name(x)}", op.tanh, lambda t, x: t.tanh(x), (x,))
    for name, (f, g, draw) in BINARY.items():
        x, y = Operand((4096, 4096), "f32", draw), Operand((4096, 4096), "f32", draw)
        yield Case("binary", f"{name} {size_name(x)}", f, g, (x, y))
    yield from _broadcasts()
    yield from _casts()
    yield from _chains()


def _broadcasts() -> Iterator[Case]:
    for dtype in ("f32", "bf16"):
        pairs = (
            ((8191, 4096), (4096,)), ((8191, 4096), (8191, 1)), ((8191, 1), (1, 4093)),
            ((16, 3, 511, 513), (3, 1, 1)), ((64, 1, 128, 127), (64, 16, 1, 127)), ((1 << 22,), ()),
        )  # fmt: skip
        for a, b in pairs:
            x, y = Operand(a, dtype), Operand(b, dtype)
            yield Case("broadcast", f"mul {size_name(x, y)}", op.mul, lambda t, x, y: x * y, (x, y))
    x, y = Operand((4096, 4095)), Operand((4095, 4096))
    yield Case("layout", f"add transposed {size_name(x)}", lambda x, y: x + y.T,
               lambda t, x, y: x + y.T, (x, y))  # fmt: skip
    x = Operand((4096, 8192), "bf16")
    yield Case("layout", f"halves of columns {size_name(x)}", lambda x: x[:, :4096] * x[:, 4096:],
               lambda t, x: x[:, :4096] * x[:, 4096:], (x,))  # fmt: skip
    yield Case("layout", f"every second column {size_name(x)}", lambda x: x[:, ::2] * 2.0,
               lambda t, x: x[:, ::2] * 2.0, (x,), moved=1.5 * x.nbytes)  # fmt: skip
    z = Operand((64, 128, 56, 57))
    yield Case("layout", f"nchw to nhwc and gelu {size_name(z)}",
               lambda x: op.gelu(op.transpose(x, (0, 2, 3, 1))),
               lambda t, x: t.nn.functional.gelu(x.permute(0, 2, 3, 1)).contiguous(), (z,))  # fmt: skip
    c = Operand((4096, 4096), "bool", "bool")
    x, y = Operand((4096, 4096)), Operand((4096, 4096))
    yield Case("binary", f"where {size_name(x)}", op.where, lambda t, c, x, y: t.where(c, x, y),
               (c, x, y))  # fmt: skip


def _casts() -> Iterator[Case]:
    table = {"f32": f32, "bf16": bf16, "f16": f16, "i32": i32, "bool": bool_}
    for a, b in (("f32", "bf16"), ("bf16", "f32"), ("f32", "f16"), ("i64", "f32"), ("i32", "bool"),
        ("f32", "i32")):  # fmt: skip
        draw = "index" if a[0] == "i" else "normal"
        x = Operand((2049, 8191), a, draw, 3)
        name = {
            "bf16": "bfloat16",
            "f32": "float32",
            "f16": "float16",
            "i32": "int32",
            "bool": "bool",
        }[b]
        yield Case("cast", f"to {b} {size_name(x)}", lambda x, b=b: op.cast(x, table[b]),
                   lambda t, x, n=name: x.to(getattr(t, n)), (x,), checked="same")  # fmt: skip


def _chains() -> Iterator[Case]:
    for shape, dtype in (((8192, 4096), "bf16"), ((1009, 3001), "f32")):
        x, y = Operand(shape, dtype), Operand(shape, dtype)
        yield Case("chain", f"gelu of scaled plus residual {size_name(x)}",
                   lambda x, y: op.gelu(x * 0.5 + 0.25) * 0.75 + y,
                   lambda t, x, y: t.nn.functional.gelu(x * 0.5 + 0.25) * 0.75 + y, (x, y),
                   compiled=True)  # fmt: skip
        yield Case("chain", f"silu gate {size_name(x)}", lambda x, y: op.silu(x) * y,
                   lambda t, x, y: t.nn.functional.silu(x) * y, (x, y), compiled=True)  # fmt: skip
        for name in ("gelu", "tanh", "softplus"):
            f, g, _ = UNARY[name]
            yield Case("chain", f"{name} gradient {size_name(x)}", slopes(f), torch_slopes(g), (x, y),
                       compiled=name == "gelu")  # fmt: skip
    n = Operand((30_000_001,))
    v = Operand((30_000_001,), "f32", "positive")

    def adam(p: Any, g: Any, m: Any, v: Any) -> Any:
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
        return p - 1e-3 * m / (v**0.5 + 1e-8), m, v

    yield Case("chain", f"adam {size_name(n)}", adam, lambda t, *xs: adam(*xs), (n, n, n, v),
               compiled=True)  # fmt: skip
