"""Parts of the exchange with PyTorch that need no PyTorch: names of dtypes, sizes, memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera.core.dims import larger, smaller, symbol
from tessera.core.dtype import FORMATS
from tessera.core.errors import DTypeError
from tessera.interop.torch.exchange import dtype_of
from tessera.interop.torch.rule import RULES, AtenCall, NoRuleError
from tessera.interop.torch.sizes import size_of

RUNS_ON = "numpy"
SAME = {
    "bool": "bool", "int8": "i8", "int16": "i16", "int32": "i32", "int64": "i64", "uint8": "u8",
    "uint16": "u16",
    "uint32": "u32", "uint64": "u64", "float16": "f16", "bfloat16": "bf16", "float32": "f32",
    "float64": "f64",
    "complex64": "c64", "complex128": "c128", "float8_e4m3fn": "f8e4m3", "float8_e5m2": "f8e5m2",
}  # fmt: skip


@pytest.mark.parametrize("name", SAME)
def test_a_dtype_is_that_of_the_same_name(name: str) -> None:
    found = dtype_of(f"torch.{name}")
    assert found is FORMATS[SAME[name]]


@pytest.mark.parametrize("name", ["complex32", "qint8", "quint4x2", "float4_e2m1fn_x2", "uint4"])
def test_a_dtype_without_a_counterpart_is_an_error(name: str) -> None:
    with pytest.raises(DTypeError) as e:
        dtype_of(f"torch.{name}")
    assert (
        e.value.message
        == f"torch: tensors of torch.{name} cannot cross; cast them, as in x.float()"
    )


class Expression:
    """An expression as sympy has them: a kind and arguments."""

    def __init__(self, kind: str, *args: Any):
        self.args, self.is_Symbol, self.is_Integer = args, kind == "Symbol", kind == "Integer"
        self.__class__ = type(kind, (Expression,), {})

    def __str__(self) -> str:
        return str(self.args[0])

    def __int__(self) -> int:
        return int(self.args[0])


class SymInt:
    """A size as PyTorch has them while it traces."""

    def __init__(self, e: Any):
        self.node = type("Node", (), {"expr": e})


N, M, THREE = Expression("Symbol", "n"), Expression("Symbol", "m"), Expression("Integer", 3)
n, m = symbol("n"), symbol("m")
EXPRESSIONS: list[tuple[Any, Any]] = [
    (N, n), (THREE, 3), (Expression("Add", N, M, THREE), n + m + 3),
    (Expression("Mul", N, M, THREE), 3 * n * m),
    (Expression("Pow", N, THREE), n * n * n),
    (Expression("PowByNatural", N, Expression("Integer", 2)), n * n),
    (Expression("FloorDiv", N, THREE), n // 3), (Expression("CleanDiv", N, THREE), n // 3),
    (Expression("Mod", N, THREE), n % 3), (Expression("PythonMod", N, THREE), n % 3),
    (Expression("Max", N, M), larger(n, m)), (Expression("Min", N, M, THREE), smaller(smaller(n, m), 3)),
    (Expression("sqrt", N), None), (Expression("Pow", N, Expression("Integer", -1)), None),
]  # fmt: skip


@pytest.mark.parametrize(("e", "want"), EXPRESSIONS, ids=range(len(EXPRESSIONS)))
def test_sizes_are_those_of_the_expression(e: Any, want: Any) -> None:
    assert size_of(SymInt(e)) == want


@pytest.mark.parametrize("size", [0, 1, 7, 2**40])
def test_whole_numbers_are_sizes(size: int) -> None:
    assert size_of(size) == size


@pytest.mark.parametrize("name", ["as_strided", "as_strided_copy"])
@pytest.mark.parametrize("order", [None, (0, 1), (1, 0)], ids=str)
def test_strides_are_of_the_memory_of_a_dense_tensor(name: str, order: Any) -> None:
    """x by the axes as they lie in memory; without such an order the places are not known."""
    x = np.arange(12.0).reshape(3, 4)
    call = AtenCall(f"aten.{name}.default", (ts.f64,), ((2, 2),), order)
    if order is None:
        with pytest.raises(NoRuleError, match="strides of a tensor that is not dense"):
            RULES[call.target](call, ts.tensor(x), (2, 2), (1, 3), 1)
        return
    memory = x.transpose(order).reshape(-1)
    want = np.lib.stride_tricks.as_strided(memory[1:], (2, 2), (8, 24))
    got = RULES[call.target](call, ts.tensor(x), (2, 2), (1, 3), 1)
    np.testing.assert_array_equal(np.asarray(got), want)


N = symbol("N")


@pytest.mark.parametrize(
    ("size", "stride", "offset"),
    [
        ((3, 4), (4, 1), 0), ((4, 3), (1, 4), 0), ((3, 1, 4, 1), (4, 7, 1, 4), 0), ((2, 4), (4, 1), 4),
        ((5, 2, 6), (0, 6, 1), 0), ((3, 2), (4, 2), 1), ((10, 3), (1, 1), 0), ((), (), 5),
        ((0, 4), (4, 1), 0),
    ],
)  # fmt: skip
def test_strides_that_nest_are_views_and_others_gathers(
    size: Any, stride: Any, offset: int
) -> None:
    x = np.arange(12.0).reshape(3, 4)
    call = AtenCall("aten.as_strided.default", (ts.f64,), (size,), (0, 1))
    want = np.lib.stride_tricks.as_strided(x.ravel()[offset:], size, [8 * k for k in stride])
    got = RULES[call.target](call, ts.tensor(x), size, stride, offset)
    np.testing.assert_array_equal(np.asarray(got), want)


def test_strides_of_symbolic_sizes_make_one_program() -> None:
    """PyTorch keeps channels last with strides of its own after a mean: each batch had a program."""
    view, gather = ((N, 5, 1, 1), (5, 1, 5, 5)), ((N, 3), (5, 1))
    call = AtenCall("aten.as_strided.default", (ts.f32,), (None,), (0, 1, 2))

    @ts.jit
    def f(x: ts.Tensor["N", 5, 1, ts.f32]) -> Any:  # type: ignore[valid-type, name-defined]
        put = RULES["aten.as_strided_scatter.default"]
        ones = ts.op.full((N, 3), 1.0, ts.f32)
        both = [RULES[call.target](call, x, *how) for how in (view, gather)]
        return *both, put(call, x, ones, *gather, 0)

    for n in (2, 7):
        x = np.random.default_rng(n).standard_normal((n, 5, 1)).astype(np.float32)
        seen, part, written = map(np.asarray, f(x))
        np.testing.assert_array_equal(seen, x.reshape(n, 5, 1, 1))
        np.testing.assert_array_equal(part, x[:, :3, 0])
        np.testing.assert_array_equal(written[:, :3], 1)
        np.testing.assert_array_equal(written[:, 3:], x[:, 3:])
