"""Two primitives of the same operands in one GPU program: each has the bits that it has in a program of its
own.

Launches that make the same of the same are shared, as a copy with channels last.  What one of them writes
again, as the words of a sort, must not be shared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import permutations
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera import op
from tessera.ir.tile.gpu import radix, sort
from tests.support.fakes.gpu_fake import fake_gpu

RUNS_ON = "numpy"

Function = Callable[..., Any]


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A GPU whose blocks are small, so that few elements need many passes."""
    monkeypatch.setattr(sort, "_BLOCK", 32)
    monkeypatch.setattr(sort, "_FEW", 0)
    monkeypatch.setattr(radix, "BLOCK", 32)
    with fake_gpu():
        yield


def line(n: int = 70) -> Any:
    return np.random.default_rng(n).integers(-40, 40, n).astype(np.float32)


def images() -> tuple[Any, ...]:
    rng = np.random.default_rng(3)
    return (
        rng.standard_normal((2, 8, 6, 6)).astype(np.float16),
        rng.standard_normal((8, 8, 3, 3)).astype(np.float16),
    )


def rows() -> tuple[Any, ...]:
    rng = np.random.default_rng(4)
    return rng.integers(0, 9, 120), rng.standard_normal((120, 4)).astype(np.float32)


ORDERS: dict[str, Function] = {
    "sort": lambda x: op.sort(x, 0),
    "argsort": lambda x: op.argsort(x, 0),
    "falling": lambda x: op.sort(x, 0, True),
    "top": lambda x: op.topk(x, 42)[0],
    "median": lambda x: op.median(x),
}
SUMS: dict[str, Function] = {
    "sums": lambda i, v: op.segment_sum(v, i, count=9),
    "largest": lambda i, v: op.zeros((9, 4), dtype=ts.f32).at[i].max(v),
    "added": lambda i, v: op.zeros((9, 4), dtype=ts.f32).at[i].add(v),
    "set": lambda i, v: op.zeros((9, 4), dtype=ts.f32).at[i].set(v),
    "counts": lambda i, v: op.bincount(i, length=9),
}
SCANS: dict[str, Function] = {
    "sums": lambda x: op.cumsum(x, 0),
    "back": lambda x: op.cumsum(x, 0, reverse=True),
    "products": lambda x: op.cumprod(x / 40.0, 0),
    "largest": lambda x: op.cummax(x, 0),
}
FILTERS: dict[str, Function] = {
    "plain": lambda x, w: op.conv(x, w, padding=1),
    "strided": lambda x, w: op.conv(x, w, stride=2),
    "transposed": lambda x, w: op.conv_transpose(x, w),
    "grouped": lambda x, w: op.conv(x, w[:, :4], groups=2, padding=1),
    "pooled": lambda x, w: op.max_pool(x, 2),
}


def check(
    functions: dict[str, Function], given: tuple[Any, ...], pairs: Iterable[tuple[str, str]] = ()
) -> None:
    xs = [ts.tensor(x).to("cuda") for x in given]
    alone = {name: ts.jit(f)(*xs).numpy() for name, f in functions.items()}
    for first, second in pairs or permutations(functions, 2):
        f, g = functions[first], functions[second]
        got = ts.jit(lambda *xs, f=f, g=g: (f(*xs), g(*xs)))(*xs)
        for name, y in zip((first, second), got, strict=True):
            assert y.numpy().tobytes() == alone[name].tobytes(), f"{name} of {first} and {second}"


@pytest.mark.parametrize("apart", range(1, len(ORDERS)))
def test_orders_of_one_line(apart: int) -> None:
    names = list(ORDERS)
    few = line().astype(np.float16)  # whose words take half as many passes
    check(ORDERS, (few,), list(zip(names, [*names[apart:], *names[:apart]], strict=True)))


def test_sorts_are_those_of_numpy() -> None:
    x = line()
    values, places = ts.jit(lambda x: (op.sort(x, 0), op.argsort(x, 0)))(ts.tensor(x).to("cuda"))
    np.testing.assert_array_equal(values.numpy(), np.sort(x))
    np.testing.assert_array_equal(places.numpy(), np.argsort(x, kind="stable"))


def test_scatters_by_the_same_rows() -> None:
    check(SUMS, rows())


def test_scans_of_one_line() -> None:
    check(SCANS, (line(),))


def test_convolutions_of_one_image() -> None:
    check(FILTERS, images())
