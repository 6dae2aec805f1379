"""Every scalar op and every cast on every dtype: machine code gives the bits of the reference."""

from __future__ import annotations

from functools import cache
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tessera.core.dims import symbol
from tessera.core.dtype import FORMATS, DType, f32, saturate
from tessera.core.scalar import REINTERPRETS, SCALARS
from tessera.core.types import TensorType
from tessera.ir.target.cpu.scalars import TEMPLATES
from tessera.ir.tile import rules
from tessera.ir.tile.interp import cast, scalar
from tessera.ir.tile.ir import Builder, Kernel
from tests.support.cases.random_graphs import same_bits
from tests.support.runners.tile_machine import Machine

DTYPES = [FORMATS[n] for n in sorted(rules.FORMATS)]
N = symbol("N")
each_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=str)


def values(dtype: DType) -> Any:
    """Special and random elements."""
    rng = np.random.default_rng(3)
    d: Any = dtype
    if d.kind == "b":
        return np.array([False, True] * 9)
    if d.kind in "iu":
        if d.name == "i4":
            return np.arange(-8, 8).astype(d.np)
        info = np.iinfo(d.np)
        near = [0, 1, 2, 3, 5, 7, d.bits - 1, d.bits, d.bits + 1, 64, 127]
        ends = [info.max, info.max - 1, info.max // 2, info.min, info.min + 1]
        low = [-1, -2, -3, -5, -7, -d.bits] if d.kind == "i" else []
        some = rng.integers(info.min, info.max, 9, d.np, endpoint=True).tolist()
        return np.array([*near, *ends, *low, *some], d.np)
    info = ml_dtypes.finfo(d.np)
    ends = [float(info.max), float(info.smallest_normal), float(info.smallest_subnormal)]
    near = [0.0, 0.5, 1.0, 1.5, 2.5, 3.0, 0.1, 100.25, 7.0, np.inf, *ends]
    some = np.concatenate([rng.normal(size=9), rng.normal(size=9) * 10.0 ** rng.integers(-6, 6, 9)])
    with np.errstate(over="ignore"):
        return np.array([*near, *(-v for v in near), np.nan, *some]).astype(d.np)


def operands(dtype: DType, arity: int) -> list[Any]:
    """Every pair of elements."""
    x = values(dtype)
    grid = np.meshgrid(x, x, indexing="ij")
    return [np.ascontiguousarray(g.ravel()) for g in grid][:arity]


def accepted(dtype: DType) -> list[str]:
    """Scalar ops with a row in LLVM for a dtype."""
    return [
        n for n in TEMPLATES[dtype.kind]
        if n in SCALARS and dtype.kind in rules.KINDS.get(n, "f") and SCALARS[n].arity < 3
        and dtype.name in REINTERPRETS.get(n, (dtype.name,))
    ]  # fmt: skip


def result_of(name: str, dtype: DType) -> DType:
    """The dtype that a scalar op gives."""
    return rules.result_dtype(name, [dtype] * SCALARS[name].arity)


@cache
def every_scalar(dtype: DType, width: int) -> Kernel:
    """One kernel that stores the result of every op, for `width` elements an instance."""
    b = Builder("scalars")
    x, y = (b.parameter(n, TensorType(dtype, (N,))) for n in "xy")
    names = accepted(dtype)
    outs = [b.parameter(f"{n}_out", TensorType(result_of(n, dtype), (N,)), True) for n in names]
    at = b.program((N + width - 1) // width) * width
    tiles = [b.load(m, (at,), (width,), masked=(0,)) for m in (x, y)]
    for name, out in zip(names, outs, strict=True):
        b.store(out, b.apply(name, *tiles[: SCALARS[name].arity]), (at,), (width,), masked=(0,))
    return b.finish()


def where_not(got: Any, want: Any, *xs: Any) -> str:
    """The first elements that differ, with the operands that they come from."""
    differ = [i for i in range(len(got)) if not same_bits([got[i : i + 1]], [want[i : i + 1]])][:5]
    return f"{[x[differ] for x in xs]} gives {got[differ]}, not {want[differ]}"


@pytest.mark.parametrize("width", [1, 5, 16])
@pytest.mark.parametrize("dtype", [d for d in DTYPES if d.name not in rules.STORAGE], ids=str)
def test_scalar_ops_equal_their_reference(dtype: DType, width: int) -> None:
    kernel, names = every_scalar(dtype, width), accepted(dtype)
    x, y = operands(dtype, 2)
    outs = [np.zeros(x.shape, m.type.dtype.np) for m in kernel.parameters[2:]]
    Machine([kernel]).run(0, [x, y, *outs])
    for name, got in zip(names, outs, strict=True):
        with np.errstate(all="ignore"):
            want = scalar(name, [x, y][: SCALARS[name].arity], result_of(name, dtype))
        assert same_bits([got], [want]), f"{name}: {where_not(got, want, x, y)}"


def test_extremes_of_short_vectors_equal_their_reference() -> None:
    """Instructions that know no NaN serve them on some machines, also in the folds of a vector."""
    b = Builder("extremes")
    x, y = (b.parameter(n, TensorType(f32, (N,))) for n in "xy")
    cases = [(name, width) for name in ("max", "min") for width in (2, 4, 8)]
    outs = [b.parameter(f"{n}{w}", TensorType(f32, (N,)), True) for n, w in cases]
    at = b.program(N // 16) * 16
    for (name, width), out in zip(cases, outs, strict=True):
        for start in range(0, 16, width):
            tiles = [b.load(m, (at + start,), (width,)) for m in (x, y)]
            b.store(out, b.apply(name, *tiles), (at + start,), (width,))
    pairs = [np.resize(v, -(-v.size // 16) * 16) for v in operands(f32, 2)]
    got = [np.zeros_like(pairs[0]) for _ in cases]
    Machine([b.finish()]).run(0, [*pairs, *got])
    for (name, width), found in zip(cases, got, strict=True):
        with np.errstate(all="ignore"):
            want = scalar(name, pairs, f32)
        assert same_bits([found], [want]), f"{name} {width}: {where_not(found, want, *pairs)}"


@pytest.mark.parametrize("width", [1, 16])
@each_dtype
def test_casts_equal_rounding(dtype: DType, width: int) -> None:
    b = Builder("casts")
    x = b.parameter("x", TensorType(dtype, (N,)))
    to = [*DTYPES, *(d @ saturate for d in DTYPES if d.kind != "b")]
    outs = [b.parameter(f"to{i}", TensorType(d, (N,)), True) for i, d in enumerate(to)]
    at = b.program((N + width - 1) // width) * width
    tile = b.load(x, (at,), (width,), masked=(0,))
    for out, d in zip(outs, to, strict=True):
        b.store(out, b.cast(tile, d), (at,), (width,), masked=(0,))
    data = cast_values(dtype)
    arrays = [np.zeros(data.shape, d.np) for d in to]
    Machine([b.finish()]).run(0, [data, *arrays])
    for d, got in zip(to, arrays, strict=True):
        with np.errstate(invalid="ignore"):
            want = data if d is dtype else cast(data, d)
        assert same_bits([got], [want]), f"{d}: {where_not(got, want, data)}"


def cast_values(dtype: DType) -> Any:
    """Elements near the ties and the ends of every format."""
    if dtype.kind == "b" or dtype.name == "i4":
        return values(dtype)
    rng = np.random.default_rng(5)
    if dtype.kind in "iu":
        more = [1 << k for k in range(dtype.bits - 1)]
        return np.concatenate(
            [values(dtype), np.array(more, dtype.np), np.array(more, dtype.np) - 1]
        )
    ties = [
        s * (1 + k * 2.0**-m + e) * 2.0**p
        for s in (1, -1)
        for k in (1, 2, 3)
        for m in (8, 9, 11, 12)
        for e in (0, 2.0**-40, -(2.0**-40))
        for p in (0, -14, -24, -130, -140, 15, 127)
    ]
    raw = np.frombuffer(rng.bytes(4000 * dtype.bits // 8), dtype.np)
    limits = [
        65504,
        65519.99,
        65520,
        65536,
        3.3895e38,
        3.4e38,
        127.5,
        128,
        255.5,
        256,
        2.0**31,
        2.0**32,
        2.0**63,
        2.0**64,
        -(2.0**31),
        -(2.0**63),
        -0.9,
        -1e-300,
    ]
    with np.errstate(over="ignore"):
        return np.concatenate([values(dtype), np.array([*ties, *limits]).astype(dtype.np), raw])
